"""Linearizable reads by ReadIndex: leadership is confirmed by a quorum after the read came (S7.1).

One round of confirmations is under way at a time; reads that come meanwhile join the next one, so
that a round always starts after the arrival of every read it confirms. Replicas that ask how far
the channel is committed (FreshRequest) join the next one in the same way (S7.3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from raftstore.core.effects import FreshnessProven, ReadReady, ReadRefused
from raftstore.core.quorum import has_quorum
from raftstore.core.state import ChannelState
from raftstore.errors import OverloadedError, RequestError, UnavailableError
from raftstore.protocol.replication import FreshReply, ReadIndexReply, ReadIndexRequest
from raftstore.types import NodeId, ReplicaNumber, Role, Seq


class _Read(NamedTuple):
    token: int
    deadline_ms: int


@dataclass(slots=True)
class _Round:
    """A round of confirmations for the reads and the replicas in it, all at ``read_seq``."""

    round_id: int
    read_seq: Seq
    started_ms: int
    reads: list[_Read]
    askers: dict[NodeId, int]
    is_proof_wanted: bool
    repeat_at_ms: int = 0
    confirmed: dict[NodeId, ReplicaNumber] = field(default_factory=dict)


class ReadRounds:
    """Waiting reads of the leader of one term; ``read_index_reads_max`` bounds their number."""

    def __init__(self, state: ChannelState) -> None:
        self._state = state
        self._waiting: list[_Read] = []
        self._askers: dict[NodeId, int] = {}  # replica -> its newest FreshRequest
        self._is_proof_wanted = False
        self._round: _Round | None = None
        self._next_round_id = 1
        self._confirmed: deque[tuple[Seq, list[_Read]]] = deque()  # waiting to be applied
        self._confirmed_reads = 0

    def __len__(self) -> int:
        """Reads without an answer."""
        in_round = 0 if self._round is None else len(self._round.reads)
        return len(self._waiting) + in_round + self._confirmed_reads

    def request(self, token: int) -> None:
        """A read arrived now; refused at once if too many wait, as when applying stalls."""
        limit = self._state.settings.read_index_reads_max
        if len(self) >= limit:
            text = (
                f"{len(self)} of {limit} reads wait to be confirmed or applied; retry later, or "
                "read at another level"
            )
            self._state.emit(ReadRefused(token, OverloadedError, text))
            return
        deadline = self._state.now_ms + self._state.settings.read_index_timeout_ms
        self._waiting.append(_Read(token, deadline))
        self.advance()

    def drop(self, tokens: AbstractSet[int]) -> None:
        """These reads were given up by their callers; the round goes on for the others."""

        def left(reads: list[_Read]) -> list[_Read]:
            return [read for read in reads if read.token not in tokens]

        self._waiting = left(self._waiting)
        if self._round is not None:
            self._round.reads = left(self._round.reads)
        self._confirmed = deque((seq, left(reads)) for seq, reads in self._confirmed)
        self._confirmed_reads = sum(len(reads) for _, reads in self._confirmed)

    def on_fresh_request(self, sender: NodeId, round_id: int) -> None:
        """A replica asks how far the channel is committed; the next round answers it (S7.3)."""
        self._askers[sender] = round_id
        self.advance()

    def request_proof(self) -> None:
        """This node itself wants to know it; FreshnessProven follows the next round."""
        self._is_proof_wanted = True
        self.advance()

    def on_reply(self, sender: NodeId, reply: ReadIndexReply) -> None:
        """A voter confirms that the term is still ours; replies to other rounds count nothing."""
        if self._round is not None and reply.round_id == self._round.round_id:
            self._round.confirmed[sender] = reply.replica
            self.advance()

    def on_config(self) -> None:
        """M25: another configuration counts, for the round under way, too: voters that it adds are
        asked, and other lives of replicas that it names have confirmed nothing (M4)."""
        current, state = self._round, self._state
        if current is None:
            return
        config = state.configs.current
        current.confirmed = {
            node: number
            for node, number in current.confirmed.items()
            if config.number_of(node) == number
        }
        self._ask(current)
        self.advance()

    def advance(self) -> None:
        """Finish the round if a quorum has confirmed it, start the next, answer what is applied."""
        config = self._state.configs.current
        while True:
            if self._round is None and not self._start_round():
                break
            assert self._round is not None, "a round was started"
            # S7.1: same-term confirmations of a quorum of voters, both majorities when joint.
            if not has_quorum(config, self._round.confirmed):
                break
            self._finish(self._round)
        self._answer_applied()

    def on_timer(self) -> None:
        """Repeat an unconfirmed round; refuse reads that waited too long for confirmation."""
        now_ms = self._state.now_ms
        self._waiting = self._refuse_overdue(self._waiting)
        if self._round is not None:
            self._round.reads = self._refuse_overdue(self._round.reads)
            if not self._round.reads and self._ends_ms(self._round) <= now_ms:
                self._round = None  # replicas that still want to know ask again
            elif self._round.repeat_at_ms <= now_ms:
                self._ask(self._round)
        self.advance()

    def refuse_all(self, error: type[RequestError], text: str) -> None:
        """The role is lost: the next leader must be asked."""
        reads = [read for _, group in self._confirmed for read in group]
        reads += self._round.reads if self._round is not None else []
        reads += self._waiting
        self._confirmed.clear()
        self._confirmed_reads = 0
        self._round = None
        self._waiting = []
        self._askers = {}
        for read in reads:
            self._state.emit(ReadRefused(read.token, error, text))

    def next_deadline_ms(self) -> int | None:
        """Next repetition or refusal."""
        current = self._round
        if current is None:
            return self._waiting[0].deadline_ms if self._waiting else None
        reads = current.reads
        ends_ms = reads[0].deadline_ms if reads else self._ends_ms(current)
        if self._waiting:
            ends_ms = min(ends_ms, self._waiting[0].deadline_ms)
        return min(current.repeat_at_ms, ends_ms)

    def _start_round(self) -> bool:
        """Begin a round for all waiting reads, at the present commit seq."""
        state = self._state
        # S7.3: a leader that stood still confirms itself, whether anybody reads or not.
        is_proof_wanted = self._is_proof_wanted or not state.freshness.is_trusted
        if not (self._waiting or self._askers or is_proof_wanted):
            return False
        # S7.1: until a record of its own term is committed, a leader does not know what is.
        if state.lineage.term_at(state.commit_seq) != state.term:
            return False
        assert self._round is None, f"round {self._next_round_id} begins within another (S7.1)"
        self._round = _Round(
            round_id=self._next_round_id,
            read_seq=state.commit_seq,
            started_ms=state.now_ms,
            reads=self._waiting,
            askers=self._askers,
            is_proof_wanted=is_proof_wanted,
        )
        self._next_round_id += 1
        self._waiting, self._askers, self._is_proof_wanted = [], {}, False
        if state.configs.current.number_of(state.me) == state.number:  # M4
            self._round.confirmed[state.me] = state.number
        self._ask(self._round)
        return True

    def _finish(self, current: _Round) -> None:
        """A quorum confirmed it: what was committed when it started is known to all in it."""
        state = self._state
        assert current.read_seq <= state.commit_seq, (
            f"a read would see seq {current.read_seq}, committed are {state.commit_seq} (S7.1)"
        )
        assert state.role is Role.LEADER, f"the role {state.role} has a round confirmed (S7.1)"
        assert not self._confirmed or self._confirmed[-1][0] <= current.read_seq, (
            f"reads at seq {current.read_seq} wait behind those at {self._confirmed[-1][0]} (S7.1)"
        )
        self._round = None
        if current.reads:
            self._confirmed.append((current.read_seq, current.reads))
            self._confirmed_reads += len(current.reads)
        state.freshness.learn(current.started_ms, current.read_seq)
        if current.is_proof_wanted:
            state.emit(FreshnessProven(current.started_ms))
        for node, round_id in current.askers.items():
            reply = FreshReply(
                channel=state.channel,
                term=state.term,
                round_id=round_id,
                read_seq=current.read_seq,
                batches=state.batches.tell(current.read_seq),
            )
            state.send(node, reply)

    def _ends_ms(self, current: _Round) -> int:
        """When a round that no read waits for is given up."""
        return current.started_ms + self._state.settings.read_index_timeout_ms

    def _ask(self, current: _Round) -> None:
        state = self._state
        assert state.role is Role.LEADER, f"the role {state.role} confirms reads (S7.1)"
        message = ReadIndexRequest(
            channel=state.channel, term=state.term, round_id=current.round_id
        )
        for voter in state.configs.current.voters:
            if voter != state.me and voter not in current.confirmed:
                state.send(voter, message)
        current.repeat_at_ms = state.now_ms + state.settings.read_index_retry_ms

    def _answer_applied(self) -> None:
        """S7.1: answer from state that has applied at least the read's seq."""
        while self._confirmed and self._confirmed[0][0] <= self._state.applied_seq:
            read_seq, reads = self._confirmed.popleft()
            self._confirmed_reads -= len(reads)
            assert self._confirmed or self._confirmed_reads == 0, (
                f"{self._confirmed_reads} confirmed reads are counted, and none waits"
            )
            for read in reads:
                self._state.emit(ReadReady(read.token, read_seq))

    def _refuse_overdue(self, reads: list[_Read]) -> list[_Read]:
        state = self._state
        overdue = [read for read in reads if read.deadline_ms <= state.now_ms]
        assert not overdue or overdue[-1] is reads[len(overdue) - 1], "reads wait out of order"
        for read in overdue:
            text = (
                f"no quorum confirmed the leadership of term {state.term} within "
                f"{state.settings.read_index_timeout_ms} ms; retry or read at another level"
            )
            state.emit(ReadRefused(read.token, UnavailableError, text))
        return reads[len(overdue) :]
