"""Answers what is asked to compare the replicas of a channel, and when rows of a state expire.

A client has every replica pin the state at one position, has parts of these states hashed, and
hashes of the log reported (docs/protocol.md). Tables are read away from the node's thread, logs on
it; one step at a time, each of a bounded size, and between two there is a pause, so that in a
second no more than ``scrub.verify_second_bytes_max`` bytes are read for all who ask. When rows
expire is a question of an export; it goes the same way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Final

from raftstore.config import KIB, MIB
from raftstore.engine.channel.apply_feed import HALTS_MAX
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.healing.history_walks import HistoryWalk, HistoryWalks, WalkEnd
from raftstore.engine.healing.parts import HealingParts
from raftstore.engine.reads.read_rules import serving_refusal
from raftstore.engine.reads.scans import PinnedState
from raftstore.engine.shares import GIVEN_UP, Shares, Waits
from raftstore.errors import (
    NotUpToBoundError,
    OverloadedError,
    PageExpiredError,
    QueryError,
    RequestError,
    SchemaError,
    UnknownChannelError,
)
from raftstore.ports.table_copy import Pair
from raftstore.ports.tables import ReadDone, TableSnapshot
from raftstore.protocol.message import Message, failed
from raftstore.protocol.replica_checks import (
    ROW_ENTRY,
    EntriesAnswer,
    HashedEntry,
    HashHistory,
    HashHistoryAnswer,
    HashRange,
    HashRangeAnswer,
    PinState,
    PinStateAnswer,
    ReadEntries,
    ReplicaCheck,
    RowExpiries,
    RowExpiriesAnswer,
)
from raftstore.state_machines.state_keys import UNHASHED
from raftstore.types import ChannelId

STORE_OWN: Final = b"\x02\x04"
"""What a store writes beside a table for itself (``raftstore.state_machines.state_keys``)."""
LEFT_OUT: Final = (*UNHASHED, STORE_OWN)
STEP_BYTES: Final = 1 * MIB
"""Of a table read in one step, away from the node's thread."""
PAGE_BYTES: Final = 256 * KIB
"""Of it read at once."""
ENTRIES_MAX: Final = 10_000
"""Hashed in one step."""
LISTED_MAX: Final = 256
"""Entries listed one by one in one answer."""
DIGEST_BYTES: Final = 16
STATE_KEY_BYTES: Final = 64
"""More than any key of a channel set beside its rows has."""
_NEXT: Final = 0
"""The key of the one deadline: the next step."""


@dataclass(slots=True, eq=False)
class _Check:
    """A request without an answer."""

    client: int
    request: ReplicaCheck
    runner: ChannelRunner
    walk: HistoryWalk | None = None


class ReplicaChecks:
    """Answers of one node to questions that compare replicas."""

    def __init__(self, parts: HealingParts) -> None:
        self._channels: Mapping[ChannelId, ChannelRunner] = parts.channels
        self._tables = parts.tables
        self._scans = parts.scans
        self._answers = parts.answers
        self._checks_max = parts.reads.scans_queued_max
        self._second_bytes_max = parts.settings.verify_second_bytes_max
        self._clock = parts.clock
        self._walks = HistoryWalks(parts.log)
        self.waiting: Waits[_Check] = Waits(
            Shares("checks of replicas", "read.scans_queued_max", self._give_up)
        )
        """Requests without an answer."""
        self._turns: deque[int] = deque()
        """Tokens of those that want to be read for, each for a step."""
        self._tokens = 0
        self._is_reading = False
        self._free_ms = 0
        """Before this no step begins."""
        self.deadlines: Deadlines[int] = Deadlines()

    # --- inputs -----------------------------------------------------------------------------------

    def on_request(self, client: int, request: ReplicaCheck, now_ms: int) -> None:
        """A client's request; answered in this call or a later one."""
        runner = self._channels.get(request.channel)
        if runner is None:
            self._fail(client, request, UnknownChannelError, "this node does not host the channel")
            return
        refusal = serving_refusal(runner)
        if refusal is not None:
            self._fail(client, request, *refusal)
            return
        if isinstance(request, ReadEntries) and runner.commands is None:
            text = f"channel {runner.name} is of a table, and only a channel set gives entries"
            self._fail(client, request, SchemaError, f"{text}; scan its rows")
            return
        if isinstance(request, HashHistory) and not self._may_walk(client, request, runner):
            return
        full = self.waiting.shares.refusal(client, self._checks_max)
        if full is not None:
            self._fail(client, request, OverloadedError, full)
            return
        self._tokens += 1
        token, check = self._tokens, _Check(client, request, runner)
        self.waiting.add(client, token, check, now_ms + max(1, request.timeout_ms))
        if isinstance(request, PinState):
            if not runner.feed.halt_at(request.seq, token, partial(self._pin, token)):
                self.waiting.pop(token)
                text = f"{HALTS_MAX} clients wait for a state of {runner.name}; retry later"
                self._fail(client, request, OverloadedError, text)
            return
        if isinstance(request, HashHistory):
            check.walk = self._walks.begin(runner, request.seq)
        self._turns.append(token)
        self._wake(now_ms)

    def _may_walk(self, client: int, request: HashHistory, runner: ChannelRunner) -> bool:
        """Whether the log has to be read; else the request has its answer."""
        core = runner.core
        if request.seq > core.commit_seq:
            text = (
                f"channel {runner.name} is known to be committed up to seq {core.commit_seq} here, "
                f"not to {request.seq}"
            )
            self._fail(client, request, NotUpToBoundError, text)
            return False
        if request.seq >= core.base.seq and request.seq:
            return True
        reply = HashHistoryAnswer(request.request_id, core.base.seq, core.commit_seq)
        self._answers.answer(client, reply)
        return False

    def on_client_gone(self, client: int) -> None:
        """Forget the client's requests; a step that is under way is finished unused."""
        for token, check in self.waiting.pop_all_of(client):
            check.runner.feed.forget_halt(token)

    def holds_for(self, client: int) -> bool:
        """Whether anything is under way for the client."""
        return self.waiting.shares.amount_of(client) > 0

    def closed(self, runner: ChannelRunner) -> None:
        """A channel is closed, to be opened anew or for good."""
        self._walks.closed(runner)
        for token in self.waiting:
            if self.waiting.of(token).runner is runner:
                text = "the channel was closed on this node; ask again"
                self._refuse(token, UnknownChannelError, text)

    def on_timer(self, now_ms: int) -> None:
        """Refuse what has waited long enough, and take the next step."""
        for token in self.waiting.due(now_ms):
            request, runner = self.waiting.of(token).request, self.waiting.of(token).runner
            if isinstance(request, PinState):
                applied = self._tables.applied_seq(runner.channel)
                text = (
                    f"channel {runner.name} has applied seq {applied}, not {request.seq} within "
                    f"{request.timeout_ms} ms"
                )
                self._refuse(token, NotUpToBoundError, text)
            else:
                text = f"it was not read within {request.timeout_ms} ms, others come first; retry"
                self._refuse(token, QueryError, text)
        for _ in self.deadlines.due(now_ms):
            self._step(now_ms)

    def _give_up(self, client: int, token: int) -> None:
        """Others need a place of the client that has most of them."""
        del client
        self._refuse(token, OverloadedError, GIVEN_UP)

    # --- states -----------------------------------------------------------------------------------

    def _pin(self, token: int) -> None:
        """Nothing of the channel is being applied."""
        check = self.waiting.pop(token)
        if check is None:
            return
        runner, request = check.runner, check.request
        # S0.3, S13: it may have stopped serving while somebody waited.
        refusal = serving_refusal(runner)
        if refusal is not None:
            self._fail(check.client, request, *refusal)
            return
        snapshot = self._tables.snapshot(runner.channel)
        kept = self._scans.keep(check.client, runner, snapshot, self._clock.now_ms)
        if isinstance(kept, str):
            snapshot.close()
            self._fail(check.client, request, OverloadedError, kept)
            return
        size = self._tables.table_bytes(runner.channel)
        term, seq = snapshot.applied
        reply = PinStateAnswer(request.request_id, kept, seq, term, size)
        self._answers.answer(check.client, reply)

    # --- steps ------------------------------------------------------------------------------------

    def _wake(self, now_ms: int) -> None:
        if self._turns and not self._is_reading:
            self.deadlines.push(_NEXT, max(now_ms, self._free_ms))

    def _step(self, now_ms: int) -> None:
        while self._turns and not self._is_reading:
            token = self._turns.popleft()
            check = self.waiting.get(token)
            if check is None:
                continue
            if check.walk is not None:
                size = self._walk(token, check, check.walk)
                self._paid(size, now_ms)
                break
            self._read(token, check, now_ms)
        self._wake(now_ms)

    def _paid(self, size: int, now_ms: int) -> None:
        self._free_ms = now_ms + max(1, size * 1_000 // self._second_bytes_max)

    def _walk(self, token: int, check: _Check, walk: HistoryWalk) -> int:
        size, end = walk.step()
        if end is None:
            self._turns.append(token)
        else:
            self.waiting.pop(token)
            self._answers.answer(check.client, _history(check, end))
        return size

    def _read(self, token: int, check: _Check, now_ms: int) -> None:
        request = check.request
        kinds = HashRange | RowExpiries | ReadEntries
        assert isinstance(request, kinds), "all others are no reads of a table"
        state = self._scans.borrow(request.pin, check.runner, now_ms)
        if state is None:
            text = f"the pinned state of {check.runner.name} is gone; pin another"
            self._refuse(token, PageExpiredError, text)
            return
        self._is_reading = True

        def read() -> ReadDone:
            answer, size = _answer_of(request, state.snapshot)
            return partial(self._is_read, token, state, answer, size)

        self._tables.start_read(read)

    def _is_read(
        self, token: int, state: PinnedState, answer: Message, size: int, now_ms: int
    ) -> None:
        self._is_reading = False
        self._scans.give_back(state, now_ms)
        self._paid(size, now_ms)
        check = self.waiting.pop(token)
        if check is not None:
            # S0.3, S13: what stopped serving meanwhile answers nothing.
            refusal = serving_refusal(check.runner)
            if refusal is not None:
                self._fail(check.client, check.request, *refusal)
            else:
                self._answers.answer(check.client, answer)
        self._wake(now_ms)

    # --- refusals ---------------------------------------------------------------------------------

    def _refuse(self, token: int, error: type[RequestError], text: str) -> None:
        check = self.waiting.pop(token)
        if check is not None:
            check.runner.feed.forget_halt(token)
            self._fail(check.client, check.request, error, text)

    def _fail(
        self, client: int, request: ReplicaCheck, error: type[RequestError], text: str
    ) -> None:
        self._answers.answer(client, failed(request.request_id, error, text))


def _history(check: _Check, end: WalkEnd) -> HashHistoryAnswer:
    core = check.runner.core
    return HashHistoryAnswer(
        check.request.request_id,
        core.base.seq,
        core.commit_seq,
        end.end_seq,
        end.chain_hash,
        end.record,
        end.damage,
    )


def _answer_of(
    request: HashRange | RowExpiries | ReadEntries, snapshot: TableSnapshot
) -> tuple[Message, int]:
    """On another thread: the answer, and the bytes that count for who comes next."""
    if isinstance(request, HashRange):
        return _hashed(request, snapshot)
    # These two are read at the speed of an export.
    if isinstance(request, RowExpiries):
        return _expiries(request, snapshot), 0
    return _entries(request, snapshot), 0


def _hashed(request: HashRange, snapshot: TableSnapshot) -> tuple[Message, int]:
    """The hash of a part of a state, and the bytes that were read."""
    most = max(1, min(request.entries_max, LISTED_MAX if request.lists else ENTRIES_MAX))
    entries, resume, size = _part(request, snapshot, most)
    whole = blake2b(digest_size=DIGEST_BYTES)
    for pair in entries:
        _take(whole, pair)
    listed = tuple(_entry(pair) for pair in entries) if request.lists else ()
    answer = HashRangeAnswer(request.request_id, whole.digest(), len(entries), size, resume, listed)
    return answer, size


def _part(
    request: HashRange, snapshot: TableSnapshot, entries_max: int
) -> tuple[list[Pair], bytes, int]:
    """The entries that are hashed, the last of them if the range goes on, and their bytes.

    Where it ends depends on nothing but these entries: it ends alike on all replicas.
    """
    at, entries, size = max(request.after, ROW_ENTRY), list[Pair](), 0
    while True:
        page = snapshot.copy_page(at, PAGE_BYTES)
        for key, value in page.pairs:
            if request.last and key > request.last:
                return entries, b"", size
            at = key
            if key.startswith(LEFT_OUT):
                if key >= STORE_OWN:
                    continue
                at = STORE_OWN  # all that is left out is in front of it
                break
            entries.append((key, value))
            size += len(key) + len(value)
            if len(entries) >= entries_max or size >= STEP_BYTES:
                return entries, b"" if key == request.last else key, size
        else:
            if not page.more:
                return entries, b"", size


def _entry(pair: Pair) -> HashedEntry:
    single = blake2b(digest_size=DIGEST_BYTES)
    _take(single, pair)
    return HashedEntry(pair[0], single.digest())


def _take(hasher: blake2b, pair: Pair) -> None:
    key, value = pair
    hasher.update(len(key).to_bytes(4, "big") + len(value).to_bytes(4, "big") + key)
    hasher.update(value)


def _expiries(request: RowExpiries, snapshot: TableSnapshot) -> Message:
    """When rows of a range expire."""
    if not snapshot.has_lifetimes():
        return RowExpiriesAnswer(request.request_id, (), False)
    page = snapshot.expiries(request.start, request.stop, ENTRIES_MAX)
    return RowExpiriesAnswer(request.request_id, tuple(page.expiries), True, page.resume)


def _entries(request: ReadEntries, snapshot: TableSnapshot) -> Message:
    """Entries with a prefix of their keys, each checked, with their seals."""
    prefix, after = request.prefix, request.after
    if prefix == ROW_ENTRY:
        start = after[len(prefix) :] + b"\0" if after else b""
        rows = snapshot.sealed_page(start, b"", ENTRIES_MAX, STEP_BYTES)
        found = tuple((prefix + key, sealed) for key, sealed, _ in rows.rows)
        return EntriesAnswer(request.request_id, found, rows.more)
    page = snapshot.copy_page(after or _before(prefix), STEP_BYTES)
    pairs = tuple(pair for pair in page.pairs if pair[0].startswith(prefix))
    return EntriesAnswer(request.request_id, pairs, page.more and len(pairs) == len(page.pairs))


def _before(prefix: bytes) -> bytes:
    """A key behind all that are in front of the prefix, and in front of all that have it: keys
    beside the rows are short."""
    return prefix[:-1] + bytes((prefix[-1] - 1,)) + b"\xff" * STATE_KEY_BYTES
