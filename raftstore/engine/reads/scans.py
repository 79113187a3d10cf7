"""Long reads: pages and counts away from the node's thread, and states pinned between pages.

A long page would keep the node's thread from everything else for tens of milliseconds (P16), so it
is read elsewhere, from a snapshot that is taken when the read may be answered: its rows are of that
moment, and so is what the answer says of them. A count goes slice by slice, others in between.

A pin is such a snapshot kept for the pages that follow. It is the state of the first page whatever
is written meanwhile, so levels and bounds no longer matter; but what no longer serves (S0.3, S13)
serves no pinned page either, and with the table its pins are gone (S0.8). A pin keeps old files of
the store: their number, their idle time and their life are bounded, and an unknown pin is refused
with ``page_expired``, never answered with another state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import msgspec

from raftstore.config import ReadSettings
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.reads.read_rules import (
    GET_BYTES_MAX,
    closing_refusal,
    rows_too_large,
    too_many_keys,
)
from raftstore.engine.shares import GIVEN_UP, TOTAL_PER_LIMIT, Shares
from raftstore.errors import (
    OverloadedError,
    PageExpiredError,
    QueryError,
    Refusal,
    RequestError,
)
from raftstore.ports.ids import IdSource
from raftstore.ports.tables import Counted, ReadDone, TableSnapshot, TableStore
from raftstore.protocol.machines import ReplicaRead
from raftstore.protocol.message import Done
from raftstore.protocol.reads import (
    ClosePin,
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
from raftstore.types import NodeId, Seq

SHORT_ROWS_MAX: Final = 100
"""Pages of at most so many rows are read on the node's thread: to hand them over takes longer."""
COUNT_SLICE_ROWS: Final = 10_000
"""Rows counted before others get their turn; a few milliseconds."""
PIN_BITS: Final = 63
_ALL: Final = 0
"""The only key in ``Scans.deadlines``."""

SealedRows = tuple[tuple[bytes, bytes | None, Seq], ...]


class ReadRules(Protocol):
    """The reader's rules for all reads."""

    def serving_refusal(self, runner: ChannelRunner) -> Refusal | None:
        """Why the channel serves nothing here now, whatever the level."""

    def served(self, request: ReplicaRead, runner: ChannelRunner, applied: Seq) -> Served:
        """The facts that an answer states of the state it was read from, at present."""

    def fail(
        self,
        client: int,
        request: ReplicaRead,
        error: type[RequestError],
        message: str,
        *,
        leader: NodeId | None = None,
    ) -> None:
        """Refuse a read."""


@dataclass(slots=True, eq=False)
class PinnedState:
    """A snapshot that is read from; ``pin`` is 0 unless it is kept for more pages."""

    runner: ChannelRunner
    snapshot: TableSnapshot
    born_ms: int
    used_ms: int
    pin: int = 0
    idle_ms: int = 0
    """How long it stays pinned while nobody reads it; 0: as long as the setting says."""
    readers: int = 0
    owner: int | None = None
    """The client that pinned it; None when that is gone: then the pin makes room for others."""


@dataclass(slots=True, eq=False)
class _Reading:
    """A long read under way. ``served`` is None while it would describe the present (a pin)."""

    client: int
    request: ReadRequest
    state: PinnedState
    deadline_ms: int
    served: Served | None
    rows: int = 0
    is_over: bool = False


class Scans:
    """The long reads and the pins of one node."""

    def __init__(
        self,
        tables: TableStore,
        ids: IdSource,
        answers: ClientAnswers,
        rules: ReadRules,
        settings: ReadSettings,
    ) -> None:
        self._tables = tables
        self._ids = ids
        self._answers = answers
        self._rules = rules
        self._settings = settings
        self._pins: dict[int, PinnedState] = {}
        self._pins_held: Shares[int] = Shares(
            "pinned states", "read.scan_pins_max", lambda _, pin: self._unpin(self._pins[pin])
        )
        self._left: dict[int, None] = {}
        """Pins of clients that are gone, the longest ago first."""
        self._readings: dict[_Reading, None] = {}
        self._reads_held: Shares[_Reading] = Shares(
            "long reads", "read.scans_queued_max", self._give_up
        )
        self.deadlines: Deadlines[int] = Deadlines()
        """A single one: the earliest deadline of all reads and pins."""

    @property
    def pins(self) -> int:
        """States that are pinned now."""
        return len(self._pins)

    @property
    def under_way(self) -> int:
        """Long reads that are queued or being read, answered or not."""
        return len(self._readings)

    # --- inputs -----------------------------------------------------------------------------------

    def begin(
        self,
        client: int,
        request: ReadRequest,
        runner: ChannelRunner,
        deadline_ms: int,
        now_ms: int,
    ) -> None:
        """Read the present state; the reader has found that the request may be answered from it."""
        keep = opens_pin(request)
        full = self._overload(client) or (self._no_pin(client) if keep else None)
        if full is not None:
            self._rules.fail(client, request, OverloadedError, full)
            return
        state = PinnedState(runner, self._tables.snapshot(runner.channel), now_ms, now_ms)
        if keep:
            self._pin(state, client)
        served = self._rules.served(request, runner, state.snapshot.applied_seq)
        if isinstance(request, Scan) and keep and request.limit == 0:
            # A reader of several channels pins all of them before it reads the first row.
            answer = ScanAnswer(request.request_id, (), True, served, state.pin)
            self._answers.answer(client, answer)
            return
        self._start(_Reading(client, request, state, deadline_ms, served))

    def on_pinned(
        self,
        client: int,
        request: ReadRequest,
        runner: ChannelRunner,
        deadline_ms: int,
        now_ms: int,
    ) -> None:
        """Read a state that an earlier page pinned."""
        self.on_timer(now_ms)
        state = self._pins.get(request.pin)
        if state is None or state.runner is not runner:
            text = f"the state of this scan of {runner.name} is gone; start the scan again"
            self._rules.fail(client, request, PageExpiredError, text)
            return
        full = self._overload(client)
        refusal = Refusal(OverloadedError, full) if full else None
        refusal = refusal or too_many_keys(request, self._settings.get_keys_max)
        if refusal is not None:
            self._rules.fail(client, request, *refusal)
            return
        state.used_ms = now_ms
        self._start(_Reading(client, request, state, deadline_ms, None))

    def keep(
        self,
        client: int,
        runner: ChannelRunner,
        snapshot: TableSnapshot,
        now_ms: int,
        idle_ms: int = 0,
    ) -> int | str:
        """Pin a state for reads that follow; its number, or why there is no room for it."""
        full = self._overload(client) or self._no_pin(client)
        if full is not None:
            return full
        state = PinnedState(runner, snapshot, now_ms, now_ms, idle_ms=max(0, idle_ms))
        self._pin(state, client)
        return state.pin

    def borrow(self, pin: int, runner: ChannelRunner, now_ms: int) -> PinnedState | None:
        """A pinned state for one more reader, until ``give_back``; None: it is gone."""
        self.on_timer(now_ms)
        state = self._pins.get(pin)
        if state is None or state.runner is not runner:
            return None
        state.used_ms = now_ms
        state.readers += 1
        return state

    def give_back(self, state: PinnedState, now_ms: int) -> None:
        """The reader is done."""
        state.readers -= 1
        state.used_ms = now_ms
        self._close_unread(state)

    def on_client_gone(self, client: int) -> None:
        """Forget the client's waits. Its pins stay while they are read: pages and parts of
        one scan are asked for by many connections, and a scan outlives the loss of one. They are
        nobody's share any more, so they go as soon as others need their place."""
        for reading in self._reads_held.of(client):
            reading.is_over = True
            if opens_pin(reading.request):
                self._unpin(reading.state)  # no client knows of the pin
        for pin in self._pins_held.of(client):
            self._pins_held.give(client, pin)
            self._pins[pin].owner = None
            self._left[pin] = None

    def on_close_pin(self, client: int, request: ClosePin) -> None:
        """The client needs the pin no longer."""
        state = self._pins.get(request.pin)
        if state is not None and state.runner.channel == request.channel:
            self._unpin(state)
        self._answers.answer(client, Done(request.request_id))

    def on_timer(self, now_ms: int) -> None:
        """Refuse the reads whose deadline has passed; give up pins that are too old or idle."""
        if now_ms < self.deadlines.next_ms:
            return
        for reading in tuple(self._readings):
            if not reading.is_over and reading.deadline_ms <= now_ms:
                self._end(reading, QueryError, _late(reading))
        for state in tuple(self._pins.values()):
            if self._pin_due_ms(state) <= now_ms:
                self._unpin(state)
        dues = [reading.deadline_ms for reading in self._readings if not reading.is_over]
        dues += map(self._pin_due_ms, self._pins.values())
        self.deadlines.cancel(_ALL)
        if dues:
            self.deadlines.push(_ALL, min(dues))

    def on_channel_closed(self, runner: ChannelRunner) -> None:
        """Nothing of a dropped table is answered any more (S0.8), nor of one that was replaced."""
        channel, refusal = runner.channel, closing_refusal(runner)
        for reading in tuple(self._readings):
            if reading.state.runner.channel == channel and not reading.is_over:
                self._end(reading, *refusal)
        for state in tuple(self._pins.values()):
            if state.runner.channel == channel:
                self._unpin(state)

    def _give_up(self, client: int, reading: _Reading) -> None:
        """Others need a place of the client that has most of them."""
        self._reads_held.give(client, reading)
        if not reading.is_over:
            self._end(reading, OverloadedError, GIVEN_UP)

    def holds_for(self, client: int) -> bool:
        """Whether a long read of the client is under way. A pinned state is none: it stays when
        the connection ends."""
        return self._reads_held.amount_of(client) > 0

    # --- pins -------------------------------------------------------------------------------------

    def _pin(self, state: PinnedState, client: int) -> None:
        for pin in tuple(self._left):
            if len(self._pins) < self._settings.scan_pins_max * TOTAL_PER_LIMIT:
                break
            self._unpin(self._pins[pin])
        while state.pin == 0 or state.pin in self._pins:
            state.pin = self._ids.below(1 << PIN_BITS)
        self._pins[state.pin] = state
        state.owner = client
        self._pins_held.take(client, state.pin)
        self._wake_at(self._pin_due_ms(state))

    def _pin_due_ms(self, state: PinnedState) -> int:
        idle = state.idle_ms or self._settings.scan_pin_idle_ms
        life = self._settings.scan_pin_life_ms
        return min(state.used_ms + idle, state.born_ms + life)

    def _unpin(self, state: PinnedState) -> None:
        """No read of it begins any more; those under way may finish."""
        if state.pin:
            del self._pins[state.pin]
            self._left.pop(state.pin, None)
            if state.owner is not None:
                self._pins_held.give(state.owner, state.pin)
            state.pin = 0
            self._close_unread(state)

    @staticmethod
    def _close_unread(state: PinnedState) -> None:
        if state.pin == 0 and state.readers == 0:
            state.snapshot.close()

    def _overload(self, client: int) -> str | None:
        return self._reads_held.refusal(client, self._settings.scans_queued_max)

    def _no_pin(self, client: int) -> str | None:
        return self._pins_held.refusal(client, self._settings.scan_pins_max)

    # --- reading ----------------------------------------------------------------------------------

    def _start(self, reading: _Reading) -> None:
        self._readings[reading] = None
        self._reads_held.take(reading.client, reading)
        reading.state.readers += 1
        self._wake_at(reading.deadline_ms)
        request = reading.request
        if isinstance(request, Count):
            self._start_slice(reading, request, request.start)
        elif isinstance(request, Get):
            self._tables.start_read(partial(self._read_keys, reading, request))
        else:
            self._tables.start_read(partial(self._read_page, reading, request))

    def _wake_at(self, due_ms: int) -> None:
        if due_ms < self.deadlines.next_ms:
            self.deadlines.push(_ALL, due_ms)

    def _start_slice(self, reading: _Reading, request: Count, start: bytes) -> None:
        self._tables.start_read(partial(self._read_slice, reading, request, start))

    def _read_page(self, reading: _Reading, request: Scan) -> ReadDone:
        """On the other thread: the page, ready to be sent."""
        if reading.is_over:
            return partial(self._on_page, reading, request, (), more=False)
        limit, bytes_max = page_rows(request, self._settings), self._settings.scan_bytes_max
        page = reading.state.snapshot.sealed_page(request.start, request.stop, limit, bytes_max)
        rows: SealedRows = tuple(page.rows)
        if request.keys_only:
            rows = tuple((key, None, seq) for key, _, seq in page.rows)
        return partial(self._on_page, reading, request, rows, more=page.more)

    def _read_keys(self, reading: _Reading, request: Get) -> ReadDone:
        """On the other thread: the rows of some keys."""
        rows: list[Row | None] = []
        size = 0
        for key in () if reading.is_over else request.keys:
            found = reading.state.snapshot.page(key, key + b"\0", 1).rows
            rows.append(found[0] if found else None)
            size += found[0].size if found else 0
            if size > GET_BYTES_MAX:
                break
        return partial(self._on_keys, reading, request, rows, fits=size <= GET_BYTES_MAX)

    def _read_slice(self, reading: _Reading, request: Count, start: bytes) -> ReadDone:
        """On the other thread: count some rows."""
        if reading.is_over:
            return partial(self._on_slice, reading, request, Counted(0, None))
        counted = reading.state.snapshot.count(start, request.stop, COUNT_SLICE_ROWS)
        return partial(self._on_slice, reading, request, counted)

    def _on_page(
        self, reading: _Reading, request: Scan, rows: SealedRows, now_ms: int, *, more: bool
    ) -> None:
        state = reading.state
        if opens_pin(request) and more and state.pin == 0 and not reading.is_over:
            text = "the state was given up while its first page waited; start the scan again"
            self._end(reading, PageExpiredError, text)
        elif self._may_answer(reading):
            if opens_pin(request) and not more:
                self._unpin(state)  # no page follows
            served = self._served(reading)
            answer = ScanAnswer(request.request_id, rows, more, served, state.pin)
            self._answers.answer(reading.client, answer)
        self._finish(reading, now_ms)

    def _on_keys(
        self, reading: _Reading, request: Get, rows: list[Row | None], now_ms: int, *, fits: bool
    ) -> None:
        if not fits and not reading.is_over:
            self._end(reading, *rows_too_large(request, len(rows)))
        elif self._may_answer(reading):
            self._answers.answer(reading.client, get_answer(request, rows, self._served(reading)))
        self._finish(reading, now_ms)

    def _on_slice(self, reading: _Reading, request: Count, counted: Counted, now_ms: int) -> None:
        if not self._may_answer(reading):
            self._finish(reading, now_ms)
            return
        reading.rows += counted.rows
        if counted.resume is not None:
            self._start_slice(reading, request, counted.resume)
            return
        answer = CountAnswer(request.request_id, reading.rows, self._served(reading))
        self._answers.answer(reading.client, answer)
        self._finish(reading, now_ms)

    def _may_answer(self, reading: _Reading) -> bool:
        if reading.is_over:
            return False
        # S0.3, S13: what stopped serving since the snapshot was taken answers nothing.
        refusal = self._rules.serving_refusal(reading.state.runner)
        if refusal is not None:
            self._end(reading, *refusal)
        return refusal is None

    def _served(self, reading: _Reading) -> Served:
        if reading.served is not None:
            return reading.served
        state = reading.state
        served = self._rules.served(reading.request, state.runner, state.snapshot.applied_seq)
        return msgspec.structs.replace(served, pinned=True)

    def _end(self, reading: _Reading, error: type[RequestError], message: str) -> None:
        """Refuse the read; what the other thread finds for it is dropped."""
        reading.is_over = True
        leader = reading.state.runner.elector.leader
        self._rules.fail(reading.client, reading.request, error, message, leader=leader)
        if opens_pin(reading.request):
            self._unpin(reading.state)  # no client knows of the pin

    def _finish(self, reading: _Reading, now_ms: int) -> None:
        reading.is_over = True
        del self._readings[reading]
        self._reads_held.give(reading.client, reading)
        self.give_back(reading.state, now_ms)


def is_long(request: Scan) -> bool:
    """Whether the page is too long for the node's thread, or is to be pinned."""
    return request.keep or request.limit > SHORT_ROWS_MAX


def opens_pin(request: ReadRequest) -> bool:
    """Whether the state of this page is to be pinned for the pages that follow."""
    return isinstance(request, Scan) and request.keep and request.pin == 0


def sealed_rows(rows: Iterable[Row], *, keys_only: bool) -> SealedRows:
    """The rows of a page as they are sent."""
    return tuple(
        (row.key, None if keys_only else seal(row.key, row.value), row.seq) for row in rows
    )


def get_answer(request: Get, rows: Sequence[Row | None], served: Served) -> GetAnswer:
    """The rows of keys as they are sent."""
    return GetAnswer(
        request.request_id,
        tuple(None if row is None else seal(row.key, row.value) for row in rows),
        tuple(Seq(0) if row is None else row.seq for row in rows),
        served,
    )


def page_rows(request: Scan, settings: ReadSettings) -> int:
    """How many rows the page may have."""
    return max(1, min(request.limit, settings.scan_rows_max))


def _late(reading: _Reading) -> str:
    name, timeout_ms = reading.state.runner.name, reading.request.timeout_ms
    if isinstance(reading.request, Count):
        return (
            f"channel {name}: counted {reading.rows} rows and was not done within {timeout_ms} ms; "
            "give it more time, or count a smaller range"
        )
    return f"channel {name}: the rows were not read within {timeout_ms} ms; retry"
