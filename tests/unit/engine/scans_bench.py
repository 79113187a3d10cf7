"""The long reads of one node alone: two channels, and a thread of reads that the test runs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from raftstore.config import ReadSettings
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.reads.scans import Scans
from raftstore.errors import Refusal, RequestError
from raftstore.ports.tables import Counted, Page, ReadDone, SealedPage
from raftstore.protocol.message import Failed, Message, failed
from raftstore.protocol.reads import (
    Count,
    CountAnswer,
    Get,
    GetAnswer,
    ReadRequest,
    Scan,
    ScanAnswer,
    Served,
)
from raftstore.record_machine import Row
from raftstore.rows.sealing import seal
from raftstore.types import ChannelId, NodeId, Seq, Term, channel_id

ME, LEADER = NodeId("n1"), NodeId("n2")
ROWS = [(b"%02d" % number, b"value %d" % number, Seq(number + 1)) for number in range(10)]
CLIENT = 7


class Snapshot:
    """Ten rows; it remembers that it was closed."""

    def __init__(self, applied_seq: int) -> None:
        self.applied_seq = Seq(applied_seq)
        self.is_closed = False
        self.reads = 0

    def _rows(self, start: bytes, stop: bytes) -> list[tuple[bytes, bytes, Seq]]:
        assert not self.is_closed, "a state that is closed is read by nobody"
        self.reads += 1
        return [row for row in ROWS if start <= row[0] and (not stop or row[0] < stop)]

    def page(self, start: bytes, stop: bytes, limit: int, bytes_max: int | None = None) -> Page:
        """Rows of a range."""
        assert bytes_max is None
        found = self._rows(start, stop)
        return Page([Row(*row) for row in found[:limit]], len(found) > limit, self.applied_seq)

    def sealed_page(self, start: bytes, stop: bytes, limit: int, bytes_max: int) -> SealedPage:
        """The same as they are sent."""
        assert bytes_max > len(ROWS)
        found = self._rows(start, stop)
        sealed = [(key, seal(key, value), seq) for key, value, seq in found[:limit]]
        return SealedPage(sealed, len(found) > limit)

    def count(self, start: bytes, stop: bytes, limit: int) -> Counted:
        """Rows of a range, and where to go on."""
        found = self._rows(start, stop)
        return Counted(len(found[:limit]), found[limit][0] if len(found) > limit else None)

    def close(self) -> None:
        """Close the snapshot: later reads of it are faults."""
        self.is_closed = True


class Bench:
    """The host of long reads, and its reader; the test is the clock and the other thread."""

    def __init__(self, **settings: int) -> None:
        self.now_ms = 1_000
        self.applied = 20
        self.first, self.second = (
            cast(
                "ChannelRunner",
                SimpleNamespace(
                    channel=channel_id(b"t" * 16, number),
                    name=f"t/{number}",
                    is_reopened=False,
                    elector=SimpleNamespace(leader=LEADER),
                ),
            )
            for number in range(2)
        )
        self.snapshots: list[Snapshot] = []
        self.queue: list[Callable[[], ReadDone]] = []
        self.tables: Any = SimpleNamespace(snapshot=self._snapshot, start_read=self.queue.append)
        self.drawn = iter(range(101, 1_000))
        self.ids: Any = SimpleNamespace(below=lambda _: next(self.drawn))
        self.refusal: Refusal | None = None
        self.answers: list[tuple[int, Message]] = []
        self.hints: list[NodeId | None] = []
        self.scans = Scans(
            self.tables, self.ids, cast("Any", self), cast("Any", self), ReadSettings(**settings)
        )
        self._requests = 0

    def _snapshot(self, channel: ChannelId) -> Snapshot:
        assert channel in (self.first.channel, self.second.channel)
        self.snapshots.append(Snapshot(self.applied))
        return self.snapshots[-1]

    def answer(self, client: int, message: Message) -> None:
        """Keep the answer for the test."""
        self.answers.append((client, message))

    # --- what the reader knows about all reads ----------------------------------------------------

    def serving_refusal(self, runner: ChannelRunner) -> Refusal | None:
        """Why nothing is served now."""
        assert runner in (self.first, self.second)
        return self.refusal

    def served(self, request: ReadRequest, runner: ChannelRunner, applied: Seq) -> Served:
        """The lag is what it is now."""
        lag = self.applied - applied
        return Served(ME, runner.channel, Term(1), applied, lag, 0, request.level)

    def fail(
        self,
        client: int,
        request: ReadRequest,
        error: type[RequestError],
        message: str,
        *,
        leader: NodeId | None = None,
    ) -> None:
        """A refusal."""
        self.answer(client, failed(request.request_id, error, message, leader_hint=leader))

    # --- what a test does -------------------------------------------------------------------------

    def _number(self) -> int:
        self._requests += 1
        return self._requests

    def scan(self, runner: ChannelRunner | None = None, *, limit: int = 4, **more: Any) -> Scan:
        """A page from the first row on."""
        channel = (runner or self.first).channel
        start, stop = more.pop("start", b""), more.pop("stop", b"")
        return Scan(self._number(), channel, start, stop, limit, "any", None, Seq(0), 500, **more)

    def count(self, runner: ChannelRunner | None = None, **more: Any) -> Count:
        """All rows, by default."""
        channel = (runner or self.first).channel
        start, stop = more.pop("start", b""), more.pop("stop", b"")
        return Count(self._number(), channel, start, stop, "any", None, Seq(0), 500, **more)

    def get(self, *keys: bytes, pin: int) -> Get:
        """Keys of a pinned state."""
        return Get(self._number(), self.first.channel, keys, "any", None, Seq(0), 500, pin=pin)

    def ask(self, request: ReadRequest, *, client: int = CLIENT) -> ReadRequest:
        """As the reader does when the request may be answered."""
        runner = self.first if request.channel == self.first.channel else self.second
        take = self.scans.on_pinned if request.pin else self.scans.begin
        take(client, request, runner, self.now_ms + request.timeout_ms, self.now_ms)
        return request

    def read(self, number: int = 0) -> None:
        """The other thread does one thing, and the node learns of it."""
        done = self.queue.pop(number)()
        done(self.now_ms)

    def read_all(self) -> None:
        """The other thread does all there is to do."""
        while self.queue:
            self.read()

    def at(self, now_ms: int) -> None:
        """Time passes; the timer is called when it is due, as a node calls it."""
        while (due_ms := self.scans.deadlines.next_ms) <= now_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.scans.on_timer(self.now_ms)
        self.now_ms = now_ms

    def pin(self, runner: ChannelRunner | None = None, *, client: int = CLIENT) -> int:
        """Pin the present state without a page."""
        self.ask(self.scan(runner, limit=0, keep=True), client=client)
        [answer] = self.take()
        assert isinstance(answer, ScanAnswer)
        return answer.pin

    def take(self) -> list[Any]:
        """Return and forget the answers since the last call."""
        taken, self.answers = self.answers, []
        return [message for _, message in taken]

    def told(self) -> list[tuple[int, str]]:
        """Request and code of what was answered since; no code for rows."""
        return [
            (message.request_id, message.code if isinstance(message, Failed) else "")
            for message in self.take()
            if isinstance(message, Failed | ScanAnswer | CountAnswer | GetAnswer)
        ]

    @property
    def open_states(self) -> int:
        """Snapshots that keep files of the store."""
        return sum(not snapshot.is_closed for snapshot in self.snapshots)
