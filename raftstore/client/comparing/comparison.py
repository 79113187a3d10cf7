"""Compares the replicas of one channel: histories by chain hashes, then contents entry by entry.

All replicas pin the state at one position while writes go on; then parts of these states are hashed
side by side, and where two hashes differ the part is halved until the entries are named. Histories
are compared up to that position likewise, with bisection over seqs. What most replicas have is held
against the others; with two replicas there is no most, and they are only said to differ.

A replica that cannot be asked is left out, and it is said why.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Final, TypeVar

from raftstore.client.comparing.questions import ReplicaQuestions
from raftstore.client.comparing.results import (
    ComparedReplica,
    ComparisonProgress,
    EntryDifference,
    HistoryDifference,
    RangeDifference,
    ReplicaComparison,
)
from raftstore.errors import (
    NotUpToBoundError,
    PageExpiredError,
    RaftstoreError,
)
from raftstore.protocol.replica_checks import (
    ROW_ENTRY,
    HashHistoryAnswer,
    HashRangeAnswer,
    LogRecord,
    PinStateAnswer,
)
from raftstore.rows.schema import TableSchema
from raftstore.types import NodeId, RecordKind, Seq, node_name

WAIT_MS: Final = 2_000
"""For replicas to come to one position; then another one is agreed on."""
PAUSE_S: Final = 0.1
"""Before a position is agreed on again."""
PARTS: Final = 64
"""A history is walked in so many parts, so that no answer takes long and progress is seen."""
CHUNK_ENTRIES: Final = 5_000
"""Entries that are hashed at a time; fewer where they are large."""
LEAF_ENTRIES: Final = 64
"""So many entries are no longer halved but listed."""
LISTED_MAX: Final = 1_024
"""Entries of one replica that are listed of one part."""
EXPIRED_MAX: Final = 3
"""A part is begun again so often because a state was given up."""
TRIMMED_MAX: Final = 3
"""A history that is trimmed in front of where it is compared is begun again so often."""

Progress = Callable[[ComparisonProgress], None]
ValueT = TypeVar("ValueT")


class ChannelComparison:
    """One comparison of one channel."""

    def __init__(
        self,
        name: str,
        replicas: tuple[NodeId, ...],
        questions: ReplicaQuestions,
        schema: TableSchema | None,
        *,
        now_ms: Callable[[], int],
        timeout_ms: int,
        shown_max: int,
        progress: Progress,
    ) -> None:
        """``timeout_ms``: for the replicas to come to one position; ``shown_max``: keys, and parts,
        that are listed at most."""
        self._channel_name = name
        self._replicas = replicas
        self._questions = questions
        self._schema = schema
        self._now_ms = now_ms
        self._timeout_ms = timeout_ms
        self._shown_max = shown_max
        self._progress = progress
        self._left: dict[NodeId, str] = {}
        """Replicas that are not asked any more, and why."""
        self._pins: dict[NodeId, PinStateAnswer] = {}
        self._compared_at: dict[NodeId, Seq] = {}
        self._chains: dict[NodeId, HashHistoryAnswer] = {}
        self._bases: dict[NodeId, Seq] = {}
        self._log_from = self._log_to = Seq(0)
        self._entries = 0
        self._histories: list[HistoryDifference] = []
        self._keys: dict[bytes, dict[NodeId, bytes]] = {}
        self._ranges: list[RangeDifference] = []
        self._more_ranges = 0
        self._wrong: set[NodeId] = set()

    async def compare(self) -> ReplicaComparison:
        """Compare all; raises nothing for replicas that cannot be asked."""
        try:
            if await self._pin_all():
                await self._compare_histories()
                await self._compare_contents()
        finally:
            self._unpin()
        return self._result()

    # --- asking -----------------------------------------------------------------------------------

    @property
    def _nodes(self) -> list[NodeId]:
        return [node for node in self._replicas if node not in self._left]

    async def _each(
        self, ask: Callable[[NodeId], Awaitable[ValueT]], nodes: list[NodeId] | None = None
    ) -> dict[NodeId, ValueT]:
        """Ask replicas side by side; those that fail are left out from now on, but for what is a
        matter of the state that they pinned."""
        asked = self._nodes if nodes is None else nodes
        reported = await asyncio.gather(*map(ask, asked), return_exceptions=True)
        found: dict[NodeId, ValueT] = {}
        for node, answer in zip(asked, reported, strict=True):
            if isinstance(answer, PageExpiredError | NotUpToBoundError):
                raise answer
            if isinstance(answer, RaftstoreError):
                self._left[node] = str(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[node] = answer
        return found

    # --- one position -----------------------------------------------------------------------------

    async def _pin_all(self) -> bool:
        """Have all replicas pin one state; False: fewer than two did."""
        give_up_ms = self._now_ms() + self._timeout_ms
        wanted, step = Seq(0), 0
        while len(self._nodes) > 1:
            self._unpin()
            wait_ms = max(1, min(WAIT_MS, give_up_ms - self._now_ms()))
            late: dict[NodeId, str] = {}

            async def pin(
                node: NodeId, wanted: Seq = wanted, wait_ms: int = wait_ms, late: Any = late
            ) -> PinStateAnswer | None:
                try:
                    return await self._questions.pin(node, wanted, wait_ms)
                except NotUpToBoundError as error:
                    late[node] = str(error)
                    return None

            reported = await self._each(pin)
            self._pins = {node: answer for node, answer in reported.items() if answer is not None}
            seqs = [answer.applied_seq for answer in self._pins.values()]
            if not late and len(set(seqs)) == 1 and len(seqs) > 1:
                self._compared_at |= dict.fromkeys(self._pins, seqs[0])
                return True
            if self._now_ms() >= give_up_ms:
                # At least one is left out each time.
                self._leave_late(late)
                give_up_ms = self._now_ms() + self._timeout_ms
                continue
            newest = max(seqs, default=Seq(0))
            # Writes that go on carry replicas past a position before all have heard of it. Twice as
            # far as they came meanwhile is far enough; when they end, it never comes.
            step = 0 if late or not wanted else 2 * max(0, newest - wanted)
            wanted = Seq(0) if late else Seq(newest + step)
            if late:
                await asyncio.sleep(PAUSE_S)
        return False

    def _leave_late(self, late: Mapping[NodeId, str]) -> None:
        """Leave out those that do not come to where the others are."""
        newest = max((pin.applied_seq for pin in self._pins.values()), default=Seq(0))
        text = (
            f"the replicas were not at one position within {self._timeout_ms / 1000:g} s; verify "
            "again with more --timeout"
        )
        for node in self._nodes:
            pin = self._pins.get(node)
            if node in late or pin is None:
                self._left[node] = f"{text} ({late.get(node, 'it pinned no state')})"
            elif pin.applied_seq < newest:
                self._left[node] = f"{text} (it has applied seq {pin.applied_seq})"

    def _unpin(self) -> None:
        for node, pin in self._pins.items():
            self._questions.close(node, pin.pin)
        self._pins = {}

    @property
    def _seq(self) -> Seq:
        return max(pin.applied_seq for pin in self._pins.values())

    # --- histories --------------------------------------------------------------------------------

    async def _compare_histories(self) -> None:
        seq = self._seq
        for _ in range(TRIMMED_MAX):
            bounds = await self._each(lambda node: self._questions.history(node, Seq(0)))
            self._bases = {node: reported.base_seq for node, reported in bounds.items()}
            self._log_from = max(self._bases.values(), default=Seq(0))
            if await self._walk_histories(self._log_from, max(seq, self._log_from)):
                return
        for node in self._nodes:
            self._left[node] = "its log was trimmed again and again while it was compared"

    async def _walk_histories(self, start: Seq, end: Seq) -> bool:
        """Walk all logs; False: one was trimmed in front of where it is compared."""
        part = max(1, (end - start) // PARTS)
        equal_to = start
        at = start
        while len(self._nodes) > 1:
            asked = at
            reported = await self._histories_at(asked)
            if reported is None:
                return False
            self._chains, self._log_to = reported, asked
            self._progress(ComparisonProgress("history", asked - start, end - start))
            reference, others = self._judge(reported, _chain)
            for node in others:
                await self._part_of_histories(node, reference, equal_to, asked, reported)
            if others or asked >= end:
                return True
            equal_to, at = asked, Seq(min(end, asked + part))
        return True

    async def _histories_at(
        self, seq: Seq, nodes: list[NodeId] | None = None
    ) -> dict[NodeId, HashHistoryAnswer] | None:
        """The hashes of logs at a seq; None: one of them begins behind it."""
        reported = await self._each(lambda node: self._questions.history(node, seq), nodes)
        is_trimmed = any(not answer.chain_hash and seq for answer in reported.values())
        return None if is_trimmed else reported

    async def _part_of_histories(
        self,
        node: NodeId,
        reference: NodeId,
        equal_to: Seq,
        differs_at: Seq,
        reported: Mapping[NodeId, HashHistoryAnswer],
    ) -> None:
        """Find by bisection where the history of a replica parts from another's."""
        low, high, found = equal_to, differs_at, reported
        while high - low > 1:
            middle = Seq((low + high) // 2)
            both = await self._histories_at(middle, [node, reference])
            if both is None or len(both) < 2:
                break
            if _chain(both[node]) == _chain(both[reference]):
                low = middle
            else:
                high, found = middle, both
        self._histories.append(
            HistoryDifference(
                node_name(node),
                low,
                high,
                _record(found[node].record),
                _record(found[reference].record),
                found[node].damage or found[reference].damage,
            )
        )

    # --- contents ---------------------------------------------------------------------------------

    async def _compare_contents(self) -> None:
        after, hashed_bytes, expired = b"", 0, 0
        while len(self._nodes) > 1:
            try:
                chunk = await self._compare_chunk(after)
            except PageExpiredError:
                # A state is kept for a bounded time. What is compared stays compared: each part is
                # compared at one position, and which one does not matter.
                expired += 1
                if expired > EXPIRED_MAX:
                    for node in self._nodes:
                        self._left[node] = "states are given up before a part of them is compared"
                if not await self._pin_all():
                    return
                continue
            if chunk is None:
                continue  # the replica that was to say where the part ends was left out
            expired = 0
            hashed_bytes += chunk.size_bytes
            self._entries += chunk.entries
            total = max(pin.table_bytes for pin in self._pins.values())
            self._progress(ComparisonProgress("contents", hashed_bytes, max(total, hashed_bytes)))
            if not chunk.resume:
                return
            after = chunk.resume

    async def _compare_chunk(self, after: bytes) -> HashRangeAnswer | None:
        """Compare the next part on all replicas, as long as the first of them has it end."""
        first = self._nodes[0]
        reported = await self._hashed(after, b"", CHUNK_ENTRIES, [first])
        chunk = reported.get(first)
        if chunk is None:
            return None
        last = chunk.resume
        reported |= await self._hashed(after, last, 2 * CHUNK_ENTRIES, self._nodes[1:])
        _, others = self._judge(reported, lambda answer: _content(answer, is_first=answer is chunk))
        if others:
            await self._locate(after, last, chunk.entries)
        return chunk

    async def _hashed(
        self, after: bytes, last: bytes, entries_max: int, nodes: list[NodeId]
    ) -> dict[NodeId, HashRangeAnswer]:
        async def ask(node: NodeId) -> HashRangeAnswer:
            pin = self._pins[node].pin
            return await self._questions.hashed(node, pin, after, last, entries_max)

        return await self._each(ask, nodes)

    async def _locate(self, after: bytes, last: bytes, entries: int) -> None:
        """Halve a part that differs until its entries are named, or enough are."""
        parts = [(after, last, entries)]
        while parts:
            after, last, entries = parts.pop()
            nodes = self._nodes
            reported = await self._hashed(after, last, 2 * CHUNK_ENTRIES, nodes)
            reference, others = self._judge(
                reported, lambda answer: _content(answer, is_first=False)
            )
            if not others:
                continue
            if len(self._keys) >= self._shown_max:
                self._tell_range(after, last, others)
            elif entries <= LEAF_ENTRIES:
                await self._name(after, last, others)
            else:
                half = await self._hashed(after, last, entries // 2, [reference])
                middle = half[reference].resume if reference in half else b""
                if not middle or middle == last:
                    await self._name(after, last, others)
                    continue
                entries_left = half[reference].entries
                parts.append((middle, last, max(1, entries - entries_left)))
                parts.append((after, middle, entries_left))

    async def _name(self, after: bytes, last: bytes, others: list[NodeId]) -> None:
        """List the entries of a part that differ."""

        async def ask(node: NodeId) -> dict[bytes, bytes] | None:
            found: dict[bytes, bytes] = {}
            at = after
            while len(found) < LISTED_MAX:
                answer = await self._questions.hashed(
                    node, self._pins[node].pin, at, last, LISTED_MAX, lists=True
                )
                found |= {entry.key: entry.digest for entry in answer.listed}
                at = answer.resume
                if not at:
                    return found
            return None

        reported = await self._each(ask)
        listed = {node: entries for node, entries in reported.items() if entries is not None}
        if len(listed) < len(reported):
            # One has many more entries there than the others.
            self._tell_range(after, last, others)
            return
        for key in sorted({key for entries in listed.values() for key in entries}):
            found = {node: entries[key] for node, entries in listed.items() if key in entries}
            if len(found) == len(listed) and len(set(found.values())) == 1:
                continue
            if len(self._keys) >= self._shown_max:
                self._tell_range(key, last, others)
                return
            self._keys[key] = found

    def _tell_range(self, after: bytes, last: bytes, others: list[NodeId]) -> None:
        found = RangeDifference(after.hex(), last.hex(), tuple(map(node_name, others)))
        if found in self._ranges:
            return  # reported before the state was given up
        if len(self._ranges) >= self._shown_max:
            self._more_ranges += 1
        else:
            self._ranges.append(found)

    def _judge(
        self, reported: Mapping[NodeId, ValueT], value: Callable[[ValueT], Hashable]
    ) -> tuple[NodeId, list[NodeId]]:
        """One of the replicas that most agree with, and those that do not; without most, of all
        that were asked it is only known that they differ."""
        values = {node: value(answer) for node, answer in reported.items()}
        (common, most), *rest = Counter(values.values()).most_common()
        reference = next(node for node, found in values.items() if found == common)
        others = [node for node, found in values.items() if found != common]
        self._wrong.update(values if any(count == most for _, count in rest) else others)
        return reference, others

    # --- the result -------------------------------------------------------------------------------

    def _result(self) -> ReplicaComparison:
        return ReplicaComparison(
            channel=self._channel_name,
            replicas=tuple(self._replica(node) for node in self._replicas),
            log_from=self._log_from,
            log_to=self._log_to,
            entries=self._entries,
            histories=tuple(self._histories),
            keys=tuple(self._entry(key, found) for key, found in self._keys.items()),
            ranges=tuple(self._ranges),
            more_ranges=self._more_ranges,
        )

    def _replica(self, node: NodeId) -> ComparedReplica:
        chain = self._chains.get(node)
        not_compared = self._left.get(node, "")
        if not not_compared and len(self._nodes) < 2:
            not_compared = "there was no other replica to compare it with"
        return ComparedReplica(
            node=node_name(node),
            base_seq=self._bases.get(node),
            chain_hash="" if chain is None else chain.chain_hash.hex(),
            applied_seq=self._compared_at.get(node),
            differs=node in self._wrong,
            not_compared=not_compared,
        )

    def _entry(self, key: bytes, found: Mapping[NodeId, bytes]) -> EntryDifference:
        digests = {
            node_name(node): found[node].hex() if node in found else None for node in self._nodes
        }
        if not key.startswith(ROW_ENTRY):
            return EntryDifference("state", key.hex(), digests)
        if self._schema is None:
            return EntryDifference("row", key[len(ROW_ENTRY) :].hex(), digests)
        values = self._schema.decode_key(key[len(ROW_ENTRY) :])
        columns = dict(zip(self._schema.key_columns, values, strict=True))
        return EntryDifference("row", columns, digests)


def _chain(reported: HashHistoryAnswer) -> tuple[Seq, bytes, str]:
    return reported.end_seq, reported.chain_hash, reported.damage


def _content(reported: HashRangeAnswer, *, is_first: bool) -> tuple[bytes, bool]:
    """The hash of a part, and whether that was all of it; the first answer says where it ends."""
    return reported.digest, is_first or not reported.resume


def _record(reported: LogRecord | None) -> dict[str, Any] | None:
    if reported is None:
        return None
    known = reported.kind in {int(kind) for kind in RecordKind}
    return {
        "first_seq": reported.first_seq,
        "last_seq": reported.last_seq,
        "term": reported.term,
        "kind": RecordKind(reported.kind).name if known else str(reported.kind),
        "guid": reported.guid.hex(),
        "digest": reported.digest.hex(),
    }
