"""Stand-ins for the parts of a node that its replica snapshots work with, each step by hand.

Barriers and steps of copies wait until the test lets them end; a step has two halves, one on the
thread of copies and one on the node's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from raftstore.config import SnapshotSettings
from raftstore.engine.snapshots.parts import SnapshotParts
from raftstore.errors import CorruptRecordError
from raftstore.policy.levels import (
    SNAPSHOT_LEVEL,
    SNAPSHOT_REST_LEVEL,
    TABLE_FILES_LEVEL,
    WITNESS_BASE_LEVEL,
)
from raftstore.ports.log import EMPTY_BASE, Base
from raftstore.ports.table_copy import CopyDigest, CopyPage, Pair, ResumePoint
from raftstore.ports.table_files import FileDigest, HeldFile, TableFile
from raftstore.ports.tables import Barrier
from raftstore.protocol.message import Message
from raftstore.types import ChannelConfig, ChannelId, History, NodeId, Role, Seq, Term, channel_id

CHANNEL, OTHER = channel_id(b"orders-table-id!", 3), channel_id(b"orders-table-id!", 4)
A, B, C = NodeId("n1@00"), NodeId("n2@00"), NodeId("n3@00")
TRIO = ChannelConfig(((A, B, C),))
FIRST_ID = 700
SETTINGS = SnapshotSettings(
    chunk_bytes_max=25,
    second_bytes_max=1_000_000,
    serve_max=2,
    fetch_max=2,
    session_ms=10_000,
    request_ms=200,
    retry_ms=70,
)
PAIRS: list[Pair] = [(b"key%d" % number, b"value%d" % number) for number in range(5)]
"""Ten bytes each: two of them in a chunk, three chunks."""


def digest_of(pairs: list[Pair]) -> bytes:
    """Over all of them."""
    whole = CopyDigest()
    whole.add(pairs)
    return whole.digest()


class Snapshot:
    """One state of a table."""

    def __init__(self, applied: History) -> None:
        self.applied = applied
        self.applied_seq = applied.seq
        self.closed = 0
        self.pages: list[tuple[bytes | None, int]] = []

    def copy_page(self, after: bytes | None, bytes_max: int) -> CopyPage:
        """Pairs behind a key."""
        assert not self.closed, "a closed snapshot was read"
        self.pages.append((after, bytes_max))
        left, found, size = [p for p in PAIRS if after is None or p[0] > after], list[Pair](), 0
        for key, value in left:
            size += len(key) + len(value)
            if found and size > bytes_max:
                break
            found.append((key, value))
        return CopyPage(found, more=len(found) < len(left))

    def close(self) -> None:
        """It is read no more."""
        self.closed += 1


FILES = {"000005.ldb": bytes(range(40)), "MANIFEST-000002": b"names all"}
"""Two chunks of 25 bytes, and one."""


class Files:
    """The files of one state of a table."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.applied = History(Term(4), Seq(bench.applied))
        self.files = tuple(TableFile(name, len(content)) for name, content in FILES.items())
        self.closed = 0

    def read(self, number: int, at: int, bytes_max: int) -> bytes:
        """Bytes of one of them."""
        assert not self.closed, "files were read that nobody keeps"
        name = self.files[number].name
        self._bench.did.append(f"read {name} {at}")
        return FILES[name][at : at + bytes_max]

    def close(self) -> None:
        """They are read no more."""
        self.closed += 1


class Copy:
    """A table that is being built aside."""

    in_files = False

    def __init__(self, bench: Bench, position: History, pairs: int = 0) -> None:
        self._bench = bench
        self.channel = CHANNEL
        self.position = position
        self.pairs: list[Pair] = PAIRS[:pairs]
        self.left_to_verify = 2
        self.fails_at = ""
        self.as_read: tuple[bytes, int, History] | None = None

    def _do(self, step: str) -> None:
        if step == self.fails_at:
            raise CorruptRecordError(f"the disk failed at {step}")
        self._bench.did.append(step)

    def write(self, pairs: list[Pair]) -> None:
        """Take in what comes next."""
        self._do("write")
        self.pairs += pairs

    def finish(self) -> None:
        """Make it durable."""
        self._do("finish")

    def verify(self, bytes_max: int) -> bool:
        """Read some of it back."""
        self._do(f"verify {bytes_max}")
        self.left_to_verify -= 1
        if self.left_to_verify:
            return False
        self.left_to_verify = 2
        return True

    def resume_point(self) -> ResumePoint:
        """How far it goes."""
        after = self.pairs[-1][0] if self.pairs else b""
        return ResumePoint(after, len(self.pairs), digest_of(self.pairs))

    def found(self) -> tuple[bytes, int, History]:
        """Digest, pairs and position as they were read back."""
        whole = digest_of(self.pairs), len(self.pairs), History(Term(4), Seq(60))
        return self.as_read or whole

    def complete(self) -> None:
        """The switch."""
        self._do("complete")

    def abandon(self) -> None:
        """Remove it."""
        self._do("abandon")


class FilesCopy(Copy):
    """The same of files."""

    in_files = True

    def __init__(self, bench: Bench, position: History, held: int = 0) -> None:
        super().__init__(bench, position)
        self.written = dict(list(FILES.items())[:held])
        self.kept = list[str]()
        self.as_read = b"", 5, History(Term(4), Seq(60))
        self.left_to_look = 2

    def look(self, bytes_max: int) -> bool:
        """Read some of what is there."""
        self._do(f"look {bytes_max}")
        self.left_to_look -= 1
        return not self.left_to_look

    def held(self) -> tuple[HeldFile, ...]:
        """All that is there."""
        return tuple(held_of(name, content) for name, content in self.written.items())

    def begin(self, position: History) -> None:
        """Somebody has this position."""
        self._do("begin")
        self.position = position

    def write_part(self, name: str, at: int, content: bytes, *, is_last: bool) -> None:
        """Take in what comes next."""
        self._do(f"write {name} {at}" + (" to its end" if is_last else ""))
        self.written[name] = (b"" if at == 0 else self.written[name]) + content

    def keep(self, name: str, *, is_whole: bool) -> None:
        """It is the sender's."""
        self._do(f"keep {name}" + (" whole" if is_whole else ""))


def held_of(name: str, content: bytes) -> HeldFile:
    """A file that a receiver has."""
    digest = FileDigest()
    digest.add(content)
    return HeldFile(name, len(content), digest.digest())


class Bench:
    """A node with two channels that it leads, or follows, and what it says and does."""

    def __init__(self, *, rows_to: int = 0, **settings: Any) -> None:
        self.now_ms = 1_000
        self.hole_stays: str | None = None
        self.older: set[NodeId] = set()
        self.did: list[str] = []
        """Steps of copies and tables, of the log and of the channel, in order."""
        self.sent: list[tuple[NodeId, Message]] = []
        self.events: list[tuple[str, dict[str, object]]] = []
        self.barriers: list[tuple[ChannelId, Callable[[Barrier, int], None]]] = []
        self.steps: list[Callable[[], Callable[[int], None]]] = []
        self.snapshots: list[Snapshot] = []
        self.copies: list[Copy] = []
        self.applied = 60
        self.is_idle = True
        self.base = EMPTY_BASE
        self.rebased: list[Base] = []
        self.last_operation = self.durable_operation = 40
        self.known = {B, C}
        self.down: set[NodeId] = set()
        self.knows_rest: set[NodeId] = set()
        """Nodes that give tables they do not lead, and the rest of some."""
        self.knows_files: set[NodeId] = set()
        """Nodes that give and take tables in files."""
        self.has_files = True
        """Whether the files of tables can be had here."""
        self.files: list[Files | None] = []
        """What is kept of the table's files, for each time that they were asked for; None: they
        cannot be had."""
        self.base_max = 27
        self.begun: dict[ChannelId, Copy] = {}
        """Copies of an earlier life."""
        self.channels: dict[ChannelId, Any] = {
            CHANNEL: self.runner(CHANNEL, "orders/3"),
            OTHER: self.runner(OTHER, "orders/4"),
        }
        values = {name: getattr(SETTINGS, name) for name in SETTINGS.__slots__}
        me: Any = self
        self.room_bytes = 1_000_000
        """What may be copied to the disk."""
        self.parts = SnapshotParts(
            log=me.log(),
            tables=me.tables(),
            outbox=me.outbox(),
            channels=self.channels,
            settings=SnapshotSettings(**{**values, **settings}),
            tell=self._tell,
            nodes_at_level=self._nodes_at_level,
            reopen=lambda runner: self.did.append(f"reopen {runner.name}"),
            first_id=FIRST_ID,
            shortage=self._shortage,
            rows_seq=lambda runner, limit: min(limit, Seq(rows_to)),
            is_up=lambda node: node not in self.down,
        )

    def _shortage(self, more_bytes: int) -> str | None:
        return None if more_bytes <= self.room_bytes else f"no room for {more_bytes}"

    def runner(self, channel: ChannelId, name: str) -> Any:
        """A channel that is led here and whole."""
        return SimpleNamespace(
            channel=channel,
            name=name,
            elector=SimpleNamespace(role=Role.LEADER, leader=B, term=Term(4)),
            core=SimpleNamespace(
                leader_is_ready=True,
                is_recovering=False,
                lacks_rows=False,
                trimmed_to=Seq(0),
                base=EMPTY_BASE,
                config=lambda: TRIO,
                chain_hash_at=lambda history: None,
            ),
            feed=SimpleNamespace(is_idle=True),
            unserved_until=0,
            ignores_peers=False,
            stopped_reason=None,
            has_rows=True,
            hole=None,
            pause=lambda: self.did.append(f"pause {name}"),
            on_broken=lambda reason, now_ms: self.did.append(f"broken: {reason}"),
        )

    def tables(self) -> SimpleNamespace:
        """Of ports.TableStore."""
        return SimpleNamespace(
            applied_seq=lambda channel: Seq(self.applied),
            applied_history=lambda channel: History(Term(4), Seq(self.applied)),
            base_max=lambda channel: Seq(self.base_max),
            begun_copy=lambda channel: self.begun.pop(channel, None),
            start_barrier=lambda channel, done: self.barriers.append((channel, done)),
            start_files=self._start_files,
            snapshot=self._snapshot,
            table_bytes=lambda channel: 4_321,
            start_copy_step=lambda _channel, step: self.steps.append(step),
            begin_copy=self._begin_copy,
            is_idle=lambda channel: self.is_idle,
            install=lambda channel, copy: self.did.append(f"install {self.name(channel)}"),
        )

    def log(self) -> SimpleNamespace:
        """Of ports.MessageLog."""
        return SimpleNamespace(
            base=lambda channel: self.base,
            last_operation=lambda: self.last_operation,
            durable_operation=lambda: self.durable_operation,
            rebase=self._rebase,
            why_hole_stays=lambda channel, base: self.hole_stays,
        )

    def outbox(self) -> SimpleNamespace:
        """Of the engine: all that is said."""
        return SimpleNamespace(send=self._sent)

    def name(self, channel: ChannelId) -> str:
        """Of the channel."""
        return str(self.channels[channel].name)

    def _sent(self, to: NodeId, message: Message, *, after_operation: int) -> None:
        assert after_operation == 0, "a quorum has it: nothing has to be durable here first"
        self.sent.append((to, message))

    def _nodes_at_level(self, level: int) -> tuple[NodeId, ...]:
        if level == WITNESS_BASE_LEVEL:
            return tuple(self.known - self.older)
        if level == TABLE_FILES_LEVEL:
            return tuple(self.known & self.knows_files)
        assert level in (SNAPSHOT_LEVEL, SNAPSHOT_REST_LEVEL)
        return tuple(self.known if level == SNAPSHOT_LEVEL else self.known & self.knows_rest)

    def _tell(self, name: str, **fields: object) -> None:
        self.events.append((name, fields))

    def _snapshot(self, channel: ChannelId) -> Snapshot:
        self.snapshots.append(Snapshot(History(Term(4), Seq(self.applied))))
        return self.snapshots[-1]

    def _start_files(
        self, channel: ChannelId, done: Callable[[Files | None, Barrier, int], None]
    ) -> None:
        found = Files(self) if self.has_files else None
        self.files.append(found)
        self.barriers.append((channel, partial(done, found)))

    def _begin_copy(self, channel: ChannelId, position: History, *, in_files: bool = False) -> Copy:
        copy = FilesCopy(self, position) if in_files else Copy(self, position)
        self.copies.append(copy)
        return copy

    def _rebase(self, channel: ChannelId, base: Base) -> int:
        self.did.append(f"rebase {self.name(channel)}")
        self.rebased.append(base)
        self.last_operation += 1
        return self.last_operation

    # --- what happens ----------------------------------------------------------------------------

    def said(self) -> list[Any]:
        """Messages since the last call."""
        said = [message for _, message in self.sent]
        self.sent.clear()
        return said

    def told(self) -> list[tuple[str, dict[str, object]]]:
        """Events since the last call."""
        told = self.events.copy()
        self.events.clear()
        return told

    def done(self) -> list[str]:
        """Steps since the last call."""
        did = self.did.copy()
        self.did.clear()
        return did

    def barrier(self, base_max: int = 33, applied: int = 60) -> None:
        """The oldest barrier that waits is taken."""
        _, done = self.barriers.pop(0)
        done(Barrier(Seq(applied), Seq(base_max)), self.now_ms)

    def on_thread(self) -> Callable[[int], None]:
        """The thread's half of the oldest step; what it returns is the node's."""
        return self.steps.pop(0)()

    def step(self) -> None:
        """Both halves of the oldest step."""
        self.on_thread()(self.now_ms)

    def run_steps(self) -> None:
        """All of them, and those that they lead to."""
        while self.steps:
            self.step()
