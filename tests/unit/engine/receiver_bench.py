"""A node whose channel takes a replica snapshot, up to each stage of it."""

from __future__ import annotations

from typing import Any

from raftstore.core.folds import advance
from raftstore.engine.snapshots.receiver import VERIFY_BYTES, SnapshotReceiver
from raftstore.ports.log import EMPTY_BASE
from raftstore.ports.table_copy import digest_of_pairs
from raftstore.protocol.replica_snapshots import (
    AskSnapshotChunk,
    BaseOffer,
    ReplicaSnapshotOffer,
    SnapshotChunk,
)
from raftstore.types import NodeId, Seq, Term
from tests.core_bench import record, term_start
from tests.unit.engine.snapshots_bench import (
    CHANNEL,
    FIRST_ID,
    PAIRS,
    SETTINGS,
    B,
    Bench,
    digest_of,
)

BASE = advance(EMPTY_BASE, [term_start(1, 1), record(2, rows=3), record(5)])
"""At seq 5, with folds that can be read."""
ASKED = FIRST_ID + 1
"""The id of the first question."""
SNAPSHOT = 55
VERIFY = f"verify {VERIFY_BYTES}"
RETRY_MS, GIVE_UP_MS = 1_000 + SETTINGS.retry_ms, 1_000 + SETTINGS.session_ms


class Receiving(Bench):
    """A node whose channels need a table or a base of the node B, which leads them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.receiver = SnapshotReceiver(self.parts)
        self.mine = self.channels[CHANNEL]
        self.mine.core.lacks_rows = True

    def timer(self, now_ms: int | None = None) -> None:
        """It is so late."""
        self.now_ms = self.now_ms if now_ms is None else now_ms
        self.receiver.on_timer(self.now_ms)

    def looking(self) -> None:
        """The barrier is under way."""
        self.receiver.needed(self.mine, self.now_ms)
        self.timer()

    def asking(self) -> Any:
        """The question was sent; return it."""
        self.looking()
        self.barrier(40)
        [question] = self.said()
        return question

    def asking_base(self) -> Any:
        """The question for a base was sent; return it."""
        self.mine.core.lacks_rows, self.mine.core.trimmed_to = False, Seq(6)
        return self.asking()

    def offer(self, sender: NodeId = B, **changed: Any) -> None:
        """The answer."""
        fields: dict[str, Any] = {
            "channel": CHANNEL,
            "request_id": ASKED,
            "snapshot_id": SNAPSHOT,
            "term": Term(4),
            "seq": Seq(60),
            "base_max": Seq(9),
            "table_bytes": 90,
        }
        self.receiver.on_offer(sender, ReplicaSnapshotOffer(**{**fields, **changed}), self.now_ms)

    def offer_base(self, sender: NodeId = B, **changed: Any) -> None:
        """The answer, with a base."""
        fields: dict[str, Any] = {
            "channel": CHANNEL,
            "request_id": ASKED,
            "term": BASE.term,
            "seq": BASE.seq,
            "chain_hash": BASE.chain_hash,
            "folds": BASE.folds,
        }
        self.receiver.on_base(sender, BaseOffer(**{**fields, **changed}), self.now_ms)

    def source(self) -> NodeId:
        """The node that was asked."""
        self.asked = self.receiver.transfers[CHANNEL].source
        return self.asked

    def copying(self) -> None:
        """Two chunks were asked for."""
        self.asking()
        self.offer()
        self.said()
        self.told()

    def chunk(
        self, number: int, *, sender: NodeId = B, is_last: bool = False, **changed: Any
    ) -> None:
        """One of three chunks, of two pairs, two and one."""
        pairs = tuple(PAIRS[2 * number : 2 * number + 2])
        fields: dict[str, Any] = {
            "channel": CHANNEL,
            "snapshot_id": SNAPSHOT,
            "number": number,
            "pairs": pairs,
            "digest": digest_of_pairs(pairs),
            "is_last": is_last or number == 2,
            "all_pairs": 5 if number == 2 else 0,
            "all_digest": digest_of(PAIRS) if number == 2 else b"",
        }
        self.receiver.taking.on_chunk(sender, SnapshotChunk(**{**fields, **changed}), self.now_ms)

    def written(self) -> None:
        """All chunks are written; the next step makes them durable."""
        self.copying()
        for number in range(3):
            self.chunk(number)
            self.step()
        self.said()

    def verified(self) -> None:
        """Everything was read back; what was written to the log before is not durable yet."""
        self.last_operation += 1
        self.written()
        self.run_steps()

    def numbers(self) -> list[int]:
        """Of the chunks that were asked for since the last call."""
        return [one.number for one in self.said() if isinstance(one, AskSnapshotChunk)]

    @property
    def due_ms(self) -> int:
        """When something is due."""
        return self.receiver.deadlines.next_ms

    def stage(self) -> str:
        """As people see it."""
        return self.receiver.progress(CHANNEL, self.now_ms).partition(": ")[2].partition(",")[0]

    def failed(self, peer: str = "n2") -> str:
        """Why the attempt was given up; the next one is due after the pause."""
        assert CHANNEL not in self.receiver.transfers
        assert self.due_ms == self.now_ms + SETTINGS.retry_ms
        [(name, fields)] = self.told()
        assert name == "replica_snapshot_failed"
        assert (fields["channel"], fields["peer"]) == ("orders/3", peer)
        return str(fields["reason"])
