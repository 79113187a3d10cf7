"""The leader's part in trimming outcomes: when it asks, what it names, and what holds it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.config import RetentionSettings
from raftstore.engine.retention.outcome_trimmer import (
    ASKS_MAX,
    HELD_MS,
    NEXT_MS,
    OutcomeTrimmer,
)
from raftstore.errors import Refusal, StoreTooOldError
from raftstore.policy.levels import TRIM_LEVEL
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.trimming import OUTCOMES_MAX, AskTrimmed, TrimmedAnswer, decode_trim
from raftstore.state_machines.state_keys import applied_batch_key, outcome_key
from raftstore.types import ChannelConfig, ChannelId, Guid, NodeId, RecordKind, Role, Seq, Term
from tests.storage_helpers import CHANNEL

A, B, C = NodeId("n1@00"), NodeId("n2@00"), NodeId("n3@00")
INTERVAL_MS = 1_000


class Bench:
    """One channel that is led here, of three replicas that are up."""

    def __init__(self, **settings: Any) -> None:
        self.state: dict[bytes, bytes] = {}
        self.applied = Seq(50)
        self.refusal: Refusal | None = None
        self.up = {A, B, C}
        self.levels = {B: TRIM_LEVEL, C: TRIM_LEVEL}
        self.sent: list[tuple[NodeId, Any]] = []
        self.proposed: list[tuple[int, list[bytes], Any]] = []
        self.scans = 0
        self.now_ms = 0
        core = SimpleNamespace(
            base=SimpleNamespace(seq=Seq(10)),
            leader_is_ready=True,
            config=lambda: ChannelConfig(((A, B, C),)),
        )
        self.runner: Any = SimpleNamespace(
            channel=CHANNEL,
            core=core,
            table_damage=None,
            has_rows=True,
            elector=SimpleNamespace(role=Role.LEADER),
        )
        me: Any = self
        self.channels = {CHANNEL: self.runner}
        parts: Any = SimpleNamespace(
            me=A,
            channels=self.channels,
            tables=me,
            watch=SimpleNamespace(is_up=lambda node: node in self.up),
            settings=RetentionSettings(interval_ms=INTERVAL_MS, **settings),
            proposals=me,
            refusal_of=lambda kind: self.refusal,
            outbox=me,
            nodes_at_level=lambda level: tuple(n for n, own in self.levels.items() if own >= level),
        )
        self.trimmer = OutcomeTrimmer(parts)
        self.trimmer.start(0)

    # --- what the trimmer works with --------------------------------------------------------------

    def state_scan(self, channel: ChannelId, start: bytes, stop: bytes, limit: int) -> list[Any]:
        """The state beside the rows."""
        self.scans += 1
        return [pair for pair in sorted(self.state.items()) if start <= pair[0] < stop][:limit]

    def applied_seq(self, channel: ChannelId) -> Seq:
        """The position that is applied here."""
        return self.applied

    def send_known(self, to: NodeId, message: Any) -> None:
        """To another node."""
        self.sent.append((to, message))

    def propose(self, runner: Any, payload: bytes, done: Any, now_ms: int, **more: Any) -> None:
        """A record of this leader."""
        assert more == {"kind": RecordKind.TRIM_OUTCOMES, "refusal": None}
        to_seq, keys = decode_trim(payload)
        self.proposed.append((to_seq, keys, done))

    # --- what happens -----------------------------------------------------------------------------

    def write(self, *seqs: int) -> None:
        """Conditional writes were applied."""
        self.state.update({outcome_key(seq): b"x" for seq in seqs})

    def look(self, times: int = 1) -> None:
        """The next moments at which something is due."""
        for _ in range(times):
            self.now_ms = self.trimmer.deadlines.next_ms
            self.trimmer.on_timer(self.now_ms)

    def asked(self) -> list[NodeId]:
        """The nodes that were asked since the last call."""
        sent, self.sent = self.sent, []
        assert all(message == AskTrimmed(CHANNEL) for _, message in sent)
        return [to for to, _ in sent]

    def answer(self, node: NodeId, base_seq: int) -> None:
        """How far the log of another replica is trimmed."""
        self.trimmer.on_message(node, TrimmedAnswer(CHANNEL, Seq(base_seq)))

    def named(self) -> list[tuple[int, list[int]]]:
        """Records since the last call: up to which seq, and the seqs of what they name."""
        made = self.proposed
        self.proposed = []
        self._dones = [done for *_, done in made] or getattr(self, "_dones", [])
        return [(to, [int.from_bytes(key[2:10], "big") for key in keys]) for to, keys, _ in made]

    def committed(self, *, applied: bool = True) -> None:
        """The last record has a quorum."""
        last_seq = Seq(self.applied + 1)
        ack = PubAck(CHANNEL, Term(1), Guid(bytes(16)), last_seq, last_seq, Term(1), "fsync", 3)
        self._dones.pop()(ack, self.now_ms)
        if applied:
            self.applied = last_seq

    def refused(self) -> None:
        """The last record may have none."""
        reject = PubReject(CHANNEL, Term(1), Guid(bytes(16)), "quorum_timeout", "why", None)
        self._dones.pop()(reject, self.now_ms)


def test_outcomes_in_front_of_all_bases_are_named() -> None:
    """S6.6: the others' logs are asked for, since readers may read there; then nothing is left."""
    bench = Bench()
    bench.write(3, 8, 10, 11)
    bench.look()
    assert (bench.asked(), bench.named()) == ([B, C], [])
    bench.answer(B, 9)
    bench.answer(C, 12)
    bench.look()
    assert (bench.asked(), bench.named()) == ([], [(9, [3, 8])])
    bench.committed()
    assert bench.trimmer.trimmed_total == 2


def test_channel_without_old_outcomes_is_looked_at_once_for_each_base() -> None:
    """An idle channel costs nothing, and nobody is asked."""
    bench = Bench()
    bench.write(11, 40)
    bench.look(5)
    assert (bench.asked(), bench.named(), bench.scans) == ([], [], 2)
    bench.runner.core.base.seq = Seq(11)
    bench.look(5)
    assert bench.asked()[:2] == [B, C]


def test_batches_count_like_conditions() -> None:
    """Both: what a BATCH_APPLY record applied, and what became of its chunks."""
    bench = Bench()
    bench.state = {applied_batch_key(4): b"x", outcome_key(4, 1, 1): b"x", outcome_key(11): b"x"}
    bench.up = {A}
    bench.look()
    assert bench.named() == [(10, [4, 4])]


def test_records_are_made_one_after_the_other_and_soon() -> None:
    """One is under way until it is applied; the next one names what comes behind it."""
    bench = Bench()
    bench.up = {A}
    bench.runner.core.base.seq = Seq(3 * OUTCOMES_MAX)
    bench.write(*range(1, 2 * OUTCOMES_MAX + 2))
    bench.look()
    [(to_seq, first)] = bench.named()
    assert (to_seq, first) == (3 * OUTCOMES_MAX, list(range(1, OUTCOMES_MAX + 1)))
    began_ms = bench.now_ms
    bench.look(3)
    assert bench.named() == [], "it has no outcome yet"
    bench.committed(applied=False)
    bench.look(3)
    assert bench.named() == [], "it is not applied yet"
    bench.applied = Seq(bench.applied + 1)
    bench.look()
    [(_, second)] = bench.named()
    assert second == list(range(OUTCOMES_MAX + 1, 2 * OUTCOMES_MAX + 1))
    assert bench.now_ms == began_ms + 7 * NEXT_MS
    bench.committed()
    bench.look()
    assert bench.named() == [(to_seq, [2 * OUTCOMES_MAX + 1])]
    bench.committed()
    bench.state.clear()
    bench.look()
    scans = bench.scans
    bench.look(3)
    assert (bench.named(), bench.scans) == ([], scans)
    assert bench.trimmer.deadlines.next_ms == bench.now_ms + INTERVAL_MS


def test_replica_that_is_down_or_says_nothing_holds_nothing() -> None:
    """It is asked a few times while it is up; its answer counts when it comes."""
    bench = Bench()
    bench.write(3, 8)
    bench.up = {A, B}
    bench.look(ASKS_MAX)
    assert (bench.asked(), bench.named()) == ([B] * ASKS_MAX, [])
    bench.look()
    assert (bench.asked(), bench.named()) == ([], [(10, [3, 8])])


def test_replica_whose_log_has_more_is_asked_again_later() -> None:
    """A reader of changes holds it, or it trims later."""
    bench = Bench()
    bench.write(3, 8)
    bench.look()
    bench.answer(B, 2)
    bench.answer(C, 10)
    bench.look()
    held_ms = bench.now_ms
    assert (bench.asked(), bench.named()) == ([B, C], [])
    while not (asked := bench.asked()):
        bench.look()
    assert (asked, bench.named()) == ([B, C], [])
    assert bench.now_ms == held_ms + HELD_MS
    bench.answer(B, 5)
    bench.answer(C, 20)
    bench.look()
    assert bench.named() == [(5, [3])]


def test_refused_record_is_made_again_later_from_the_first_outcome_on() -> None:
    """Whether it was applied is not known; what is gone is not found again."""
    bench = Bench()
    bench.up = {A}
    bench.write(3, 8)
    bench.look()
    assert bench.named() == [(10, [3, 8])]
    bench.refused()
    refused_ms = bench.now_ms
    while not (named := bench.named()):
        bench.look()
    assert named == [(10, [3, 8])]
    assert HELD_MS <= bench.now_ms - refused_ms < HELD_MS + INTERVAL_MS


def test_nothing_is_trimmed_while_a_node_reads_no_such_records() -> None:
    """An older node would stop at the record, and does not know the question."""
    bench = Bench()
    bench.write(3)
    bench.refusal = Refusal(StoreTooOldError, "an older node")
    bench.look(5)
    assert (bench.asked(), bench.named(), bench.scans) == ([], [], 0)
    bench.refusal = None
    bench.levels[C] = TRIM_LEVEL - 1
    bench.look()
    assert bench.asked() == [B]


@pytest.mark.parametrize("how", ["follower", "not ready", "damaged", "switched off"])
def test_only_a_leader_with_a_whole_table_trims(how: str) -> None:
    """The next one begins itself."""
    bench = Bench(enabled=how != "switched off")
    bench.write(3)
    if how == "follower":
        bench.runner.elector.role = Role.FOLLOWER
    elif how == "not ready":
        bench.runner.core.leader_is_ready = False
    elif how == "damaged":
        bench.runner.table_damage = "a bit"
    else:
        assert len(bench.trimmer.deadlines) == 0
        return
    bench.look(5)
    assert (bench.asked(), bench.named(), bench.scans) == ([], [], 0)


def test_leadership_that_ends_forgets_what_was_told() -> None:
    """By its next term the others may hold more for a reader, and the records may be another's."""
    bench = Bench()
    bench.write(3)
    bench.look()
    assert bench.asked() == [B, C]
    bench.runner.elector.role = Role.FOLLOWER
    bench.look()
    bench.answer(B, 10)
    bench.runner.elector.role = Role.LEADER
    bench.look()
    assert (bench.asked(), bench.named()) == ([B, C], [])


def test_any_replica_tells_how_far_its_log_is_trimmed() -> None:
    """To nodes that know the answer; of a channel that is not here nothing is answered (S0.8)."""
    bench = Bench()
    bench.runner.elector.role = Role.FOLLOWER
    bench.trimmer.on_message(B, AskTrimmed(CHANNEL))
    assert bench.sent == [(B, TrimmedAnswer(CHANNEL, Seq(10)))]
    bench.levels[C] = TRIM_LEVEL - 1
    bench.trimmer.on_message(C, AskTrimmed(CHANNEL))
    bench.trimmer.on_message(B, AskTrimmed(ChannelId(bytes(18))))
    assert len(bench.sent) == 1


def test_channel_that_is_opened_anew_is_looked_at_anew() -> None:
    """Its table may be another replica's."""
    bench = Bench()
    bench.look()
    bench.write(3)
    bench.look(3)
    assert bench.asked() == []
    bench.trimmer.channel_closed(bench.runner)
    bench.look()
    assert bench.asked() == [B, C]
    bench.trimmer.channel_closed(bench.runner)
    del bench.channels[CHANNEL]
    bench.answer(B, 10)
    bench.look(3)
    assert (bench.asked(), bench.named()) == ([], [])
