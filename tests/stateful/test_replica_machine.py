"""Three replicas, a hand-driven elector, and everything a network and three disks may do.

Hypothesis chooses what is published, delivered, doubled, lost, persisted, crashed (keeping any
prefix of its buffered writes) and elected (by history, S1.1). After every step the oracles look:

* O2 an elected leader holds every record committed in a lower term.
* O3 what is committed at a seq never changes, on any replica, and is durable on a majority.
* O4 an acknowledged publish stands in the committed log, once; NOT_APPLIED ones never do.
* O5 a linearizable read misses nothing acknowledged before it began.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raftstore.config import ReplicationSettings
from raftstore.core.effects import ReadReady
from raftstore.core.events import HandOverRequested, ReadRequested
from raftstore.protocol.publish import PubAck
from raftstore.protocol.records import Record
from raftstore.types import Guid, NodeId, RecordKind, Role, Seq, Term
from tests.core_world import N1, N2, N3, Node, World, guid

NODES = st.sampled_from([N1, N2, N3])
NOT_APPLIED = {"not_leader", "overloaded", "unavailable", "schema", "guid_reuse"}
Identity = tuple[Term, Guid, bytes, int]


def identity(stored: Record) -> Identity:
    """The identity of a record, which must never change at a seq."""
    return stored.term, stored.guid, stored.digest, stored.rows


class ReplicaMachine(RuleBasedStateMachine):
    """A world of three, its committed truth, and what was reported to publishers."""

    def __init__(self) -> None:
        super().__init__()
        settings = ReplicationSettings(
            live_queue_messages_max=4, pending_messages_max=6, uncommitted_records_max=8
        )
        self.world = World(settings=settings)
        self.world.sync_records_max = 2
        self.world.checks.append(self.after_step)
        self.committed: dict[Seq, tuple[Identity, Term]] = {}
        self.counter = 0
        self.asked: dict[int, Guid] = {}
        self.reads: dict[int, Seq] = {}
        self.acked_seq = Seq(0)
        self.looked_at = 0

    # --- the oracles ------------------------------------------------------------------------------

    def after_step(self, world: World, node: Node) -> None:
        """O3 and O5 after every step of every node."""
        assert node.halted is None, node.halted
        commit_seq = node.replica.commit_seq
        assert node.applied_seq <= commit_seq <= node.replica.last_seq
        for stored in node.log:
            if stored.last_seq > commit_seq:
                break
            known = self.committed.setdefault(
                stored.last_seq, (identity(stored), node.replica.term)
            )
            assert known[0] == identity(stored), f"seq {stored.last_seq} changed (O3)"
        for me, effect in world.trace:
            if isinstance(effect, ReadReady):
                assert effect.read_seq >= self.reads[effect.token], f"stale read on {me} (O5)"
        world.trace.clear()

    @invariant()
    def committed_records_are_durable_on_a_majority(self) -> None:
        """S3.1: nothing is committed that a minority could lose."""
        end = max(self.committed, default=Seq(0))
        if end == 0:
            return
        holders = 0
        for node in self.world.nodes.values():
            at = {stored.last_seq: identity(stored) for stored in node.disk.records}
            holders += at.get(end) == self.committed[end][0]
        assert holders >= 2, f"seq {end} is committed but durable on {holders} of 3"

    @invariant()
    def answers_are_true(self) -> None:
        """O4: OK means committed there, once; NOT_APPLIED means never."""
        seqs: dict[Guid, list[Seq]] = {}
        for seq, (known, _) in self.committed.items():
            seqs.setdefault(known[1], []).append(seq)
        assert all(len(at) == 1 or not any(g) for g, at in seqs.items()), "applied twice (O4)"
        for client, answer in self.world.replies:
            written = seqs.get(answer.guid, [])
            if isinstance(answer, PubAck):
                assert written == [answer.last_seq], "acknowledged but not committed there (O4)"
                self.acked_seq = Seq(max(self.acked_seq, answer.last_seq))
            elif answer.code in NOT_APPLIED and self.attempts(self.asked[client]) == 1:
                assert not written, f"{answer.code} was told, but it was applied"

    def attempts(self, asked: Guid) -> int:
        """How often a write was tried."""
        return sum(other == asked for other in self.asked.values())

    # --- rules ------------------------------------------------------------------------------------

    @initialize(node=NODES)
    def first_leader(self, node: NodeId) -> None:
        """Somebody leads at first."""
        self.world.elect(node)
        self.world.settle()

    @rule(to=st.sets(NODES), rows=st.integers(1, 3), kind=st.sampled_from(["ROWS", "CONDITIONAL"]))
    def publish(self, to: set[NodeId], rows: int, kind: str) -> None:
        """A new write reaches some of the replicas."""
        self.counter += 1
        self.try_publish(self.counter, to, rows=rows, kind=RecordKind[kind])

    @precondition(lambda self: self.counter > 0)
    @rule(back=st.integers(0, 3), to=st.sets(NODES, min_size=1))
    def retry(self, back: int, to: set[NodeId]) -> None:
        """An earlier write is tried again under its GUID."""
        self.try_publish(max(1, self.counter - back), to, attempt=1)

    def try_publish(self, counter: int, to: set[NodeId], **fields: object) -> None:
        """Publish to some replicas, addressed to the present leader."""
        leader = self.world.leader()
        if leader is None:
            return
        self.asked[self.world.next_client] = guid(counter)
        self.world.publish(counter, to=[n for n in self.world.nodes if n in to], **fields)

    @precondition(lambda self: self.world.network)
    @rule(data=st.data(), how=st.sampled_from(["deliver"] * 6 + ["drop", "double"]))
    def message(self, data: st.DataObject, how: str) -> None:
        """Any message on its way arrives, is lost, or arrives twice."""
        index = data.draw(st.integers(0, len(self.world.network) - 1))
        if how == "double":
            self.world.duplicate(index)
        envelope = self.world.network.pop(index)
        if how != "drop":
            self.world[envelope.to].receive(envelope.sender, envelope.message)

    @precondition(lambda self: self.world.network)
    @rule(to=NODES)
    def all_messages(self, to: NodeId) -> None:
        """Everything for one node arrives."""
        self.world.deliver(to)

    @rule(node=NODES, operations=st.none() | st.integers(1, 3))
    def persist(self, node: NodeId, operations: int | None) -> None:
        """A disk gets some or all of its work done."""
        if self.world[node].is_up:
            self.world[node].persist(operations)

    @rule(node=NODES, keep=st.integers(0, 4))
    def crash(self, node: NodeId, keep: int) -> None:
        """A node stops; a prefix of its buffered writes survives."""
        if self.world[node].is_up:
            self.world[node].crash(keep)

    @rule(node=NODES)
    def restart(self, node: NodeId) -> None:
        """A node comes back with what its disk has."""
        if not self.world[node].is_up:
            self.world[node].boot()

    @rule(node=NODES, other=NODES)
    def elect(self, node: NodeId, other: NodeId) -> None:
        """A node wins with its own vote and another's, if its history allows (S1.1)."""
        voters = [n for n in self.world.nodes if n in {node, other} and self.world[n].is_up]
        if len(voters) < 2:
            return
        term = self.world.try_to_elect(node, voters=voters)
        if term is None:
            return
        held = {stored.last_seq: identity(stored) for stored in self.world[node].log}
        for seq, (known, commit_term) in self.committed.items():
            if commit_term < term:
                assert held.get(seq) == known, f"the leader of term {term} lacks seq {seq} (O2)"

    @rule(ms=st.sampled_from([5, 25, 100, 250, 1_100]))
    def tick(self, ms: int) -> None:
        """Time passes."""
        self.world.tick(ms)

    @rule(node=NODES)
    def read(self, node: NodeId) -> None:
        """A linearizable read begins; it must see everything acknowledged by now."""
        token = len(self.reads)
        self.reads[token] = self.acked_seq
        if self.world[node].is_up:
            self.world[node].step(ReadRequested(token))

    @rule(node=NODES)
    def hand_over(self, node: NodeId) -> None:
        """An operator asks for another leader."""
        if self.world[node].is_up and self.world[node].role is Role.LEADER:
            self.world[node].step(HandOverRequested(None, "test"))

    @rule()
    def settle(self) -> None:
        """Everything arrives and gets durable."""
        self.world.settle()

    def teardown(self) -> None:
        """Healed, all replicas become equal and keep everything that was committed."""
        for node in self.world.nodes.values():
            if not node.is_up:
                node.boot()
        best = max(self.world.nodes.values(), key=lambda node: node.replica.history())
        self.world.elect(best.me)
        self.world.settle(ticks=12)
        logs = [node.log for node in self.world.nodes.values()]
        assert logs[0] == logs[1] == logs[2]
        assert {node.replica.commit_seq for node in self.world.nodes.values()} == {
            logs[0][-1].last_seq
        }
        held = {stored.last_seq: identity(stored) for stored in logs[0]}
        assert all(held[seq] == known for seq, (known, _) in self.committed.items())
        self.answers_are_true()


TestReplicaMachine = pytest.mark.slow(ReplicaMachine.TestCase)
TestReplicaMachine.settings = settings(
    max_examples=max(20, settings.default.max_examples // 2), stateful_step_count=60
)
