"""One follower against a leader that is only a list of records: any order, any loss, any repeat.

The model is the leader's log and the follower's own old log; whatever happens, the follower's log
is made of a prefix of one and then of the other, it acknowledges only what is durable and the
leader's, and in the end it equals the leader.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raftstore.config import ReplicationSettings
from raftstore.core.effects import Append, Halt, Truncate
from raftstore.core.folds import advance
from raftstore.ports.log import EMPTY_BASE
from raftstore.protocol.records import Record
from raftstore.protocol.replication import CommitNotice, MsgSyncRequest, StoreAck
from raftstore.types import FollowerMode, Seq, Term
from tests.core_world import CHANNEL, N1, N2, Bench, lineage_of, make_replica, record

TERM = 6
"""The leader's term; records of the leader's log have lower ones and this."""


class FollowerMachine(RuleBasedStateMachine):
    """A follower, its leader's log, and the newest request on its way."""

    @initialize(
        common=st.integers(0, 4),
        trimmed=st.integers(0, 4),
        stray=st.integers(0, 3),
        rows=st.lists(st.integers(1, 3), min_size=1, max_size=8),
    )
    def begin(self, common: int, trimmed: int, stray: int, rows: list[int]) -> None:
        """Both logs share ``common`` records; the follower has ``stray`` others after them, and its
        log begins behind the first ``trimmed`` of those that are shared (S6.5)."""
        shared = [record(seq, term=1) for seq in range(1, common + 1)]
        self.leader_log: list[Record] = list(shared)
        for index, count in enumerate(rows):
            base = self.leader_log[-1].last_seq + 1 if self.leader_log else 1
            term = 2 if index < len(rows) // 2 else TERM
            counter = 100 + index
            self.leader_log.append(record(base, term=term, rows=count, counter=counter))
        own = [record(common + 1 + i, term=1 + 2 * (i > 0), counter=50 + i) for i in range(stray)]
        own_base = advance(EMPTY_BASE, shared[:trimmed])
        self.base_seq = own_base.seq
        self.log: list[Record] = [*shared[trimmed:], *own]
        settings = ReplicationSettings(live_queue_messages_max=3, pending_messages_max=4)
        self.bench = Bench(
            make_replica(
                N1, records=self.log, base=own_base, settings=settings, applied_seq=self.base_seq
            )
        )
        self.bench.follow(N2, term=TERM)
        self.request = self.requests()[-1]
        self.looked_at = 0
        self.durable = list(self.log)

    def requests(self) -> list[MsgSyncRequest]:
        """Every request so far."""
        return list(self.bench.sent(MsgSyncRequest, self.bench.all_effects))

    @invariant()
    def log_is_a_prefix_of_the_leaders_then_our_own(self) -> None:
        """S2.4, S2.5: nothing but the leader's records is ever added, in order, without holes."""
        for effect in self.bench.all_effects[self.looked_at :]:
            assert not isinstance(effect, Halt), effect
            if isinstance(effect, Truncate):
                self.log = [r for r in self.log if r.base_seq < effect.from_seq]
                self.durable = [r for r in self.durable if r.base_seq < effect.from_seq]
            elif isinstance(effect, Append):
                self.log += effect.records
                end = self.log[-1].last_seq
                assert self.log == self.leaders_up_to(end)
            elif acks := self.bench.sent(StoreAck, [effect]):
                held = [r for r in self.durable if r.last_seq <= acks[0].match_seq]
                assert held == self.leaders_up_to(acks[0].match_seq)
        self.looked_at = len(self.bench.all_effects)
        self.request = self.requests()[-1]
        assert self.bench.replica.last_seq == (self.log[-1].last_seq if self.log else self.base_seq)
        assert self.bench.replica.statistics().live_queue.messages <= 3

    def leaders_up_to(self, end: int) -> list[Record]:
        """Records of the leader behind the follower's base."""
        return [r for r in self.leader_log if self.base_seq < r.last_seq <= end]

    @rule(index=st.integers(0, 11))
    def payload(self, index: int) -> None:
        """A publisher's payload arrives (again)."""
        self.bench.hold(self.leader_log[index % len(self.leader_log)], term=TERM)

    @rule(index=st.integers(0, 11), commit=st.integers(0, 20))
    def store_request(self, index: int, commit: int) -> None:
        """A StoreRequest arrives: late, early or repeated."""
        at = index % len(self.leader_log)
        prev_term = self.leader_log[at - 1].term if at else 0
        known = min(commit, self.leader_log[at].base_seq - 1)
        self.bench.store_request(
            self.leader_log[at], prev_term=prev_term, term=TERM, commit_seq=self.boundary(known)
        )

    def boundary(self, seq: int) -> int:
        """The last record's end at or below a seq that our own log does not contradict (S2.5)."""
        ours = {(r.term, r.last_seq) for r in self.leader_log}
        return max((end for _, end in ours if end <= seq), default=0)

    @rule(count=st.integers(1, 4))
    def history(self, count: int) -> None:
        """The newest request is answered with some records."""
        lineage = lineage_of(self.leader_log)
        request = self.request
        start = request.from_seq or lineage.match_point(request.lineage) + 1
        records = [r for r in self.leader_log if r.base_seq >= start][:count]
        self.bench.sync(
            *records,
            request_id=request.request_id,
            from_seq=start,
            prev_term=lineage.term_at(start - 1),
            term=TERM,
            last_seq=lineage.last_seq,
        )

    @rule()
    def notice(self) -> None:
        """The leader reports its end."""
        last = self.leader_log[-1]
        self.bench.receive(CommitNotice(CHANNEL, Term(TERM), Seq(0), last.last_seq, last.term, b""))

    @rule(ms=st.sampled_from([20, 100, 1_000]))
    def wait(self, ms: int) -> None:
        """Time passes."""
        self.bench.wait(ms)

    @precondition(lambda self: self.looked_at == len(self.bench.all_effects))
    @rule()
    def persist(self) -> None:
        """The disk finishes."""
        self.durable = list(self.log)
        self.bench.persist()

    def teardown(self) -> None:
        """However it got there, the follower ends equal to its leader, in steady state."""
        if not hasattr(self, "leader_log"):
            return
        for _ in range(40):
            self.log_is_a_prefix_of_the_leaders_then_our_own()
            self.persist()
            self.notice()
            self.history(4)
            self.bench.wait(100)
        self.log_is_a_prefix_of_the_leaders_then_our_own()
        assert self.log == self.leaders_up_to(self.leader_log[-1].last_seq)
        assert self.bench.replica.mode is FollowerMode.STEADY
        assert self.bench.replica.verified_seq == self.leader_log[-1].last_seq


TestFollowerMachine = pytest.mark.slow(FollowerMachine.TestCase)
