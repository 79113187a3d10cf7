"""Answers reads: by level, with waits for a position or a confirmation, all bounded by deadlines.

A read never changes anything, so every refusal is safe to retry. Levels (S7):

* linearizable — the leader, after a ReadIndex round that started after the read arrived;
* leader — the leader once it has committed a record of its own term and applied what was committed
  when the read arrived; may be stale if deposed;
* bounded — any replica that is known to be within the bounds (``engine.reads.read_rules``);
* any — whatever this replica has applied.

At every level a read may name a position that the state must hold; it waits for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import count
from typing import Final

from raftstore.config import NodeSettings
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.clock import Clock
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.peers.peer_watch import PeerWatch
from raftstore.engine.reads.machine_queries import MachineQueries
from raftstore.engine.reads.many_gets import ManyGets, PartId
from raftstore.engine.reads.read_rules import (
    BEYOND_BOUNDS,
    GET_BYTES_MAX,
    ReplicaFreshness,
    beyond_bounds,
    bounds_of_request,
    bounds_problem,
    closing_refusal,
    kind_refusal,
    late_refusal,
    may_be_proven,
    needs_proof,
    restoring_refusal,
    rows_too_large,
    serving_refusal,
    too_many_keys,
    unconfirmed_refusal,
)
from raftstore.engine.reads.scans import Scans, is_long, page_rows, sealed_rows
from raftstore.engine.reads.waiting_reads import WaitingRead, WaitingReads
from raftstore.engine.reads.write_outcomes import WriteOutcomes
from raftstore.engine.shares import GIVEN_UP
from raftstore.errors import (
    NoLeaderError,
    NotLeaderError,
    OverloadedError,
    Refusal,
    RequestError,
    SchemaError,
    UnknownChannelError,
)
from raftstore.policy.bounds import effective_bounds
from raftstore.policy.lag import known_lag
from raftstore.ports.ids import IdSource
from raftstore.ports.tables import Answers, ReadDone, TableStore
from raftstore.protocol.machines import MachineQuery, ReplicaRead
from raftstore.protocol.message import Failed, failed
from raftstore.protocol.reads import (
    Bounds,
    Count,
    Get,
    GetAnswer,
    Scan,
    ScanAnswer,
    Served,
)
from raftstore.types import Level, NodeId, Role, Seq, node_name

PROOFS_MAX = 2
"""Round trips that a read waits for: the first may have been under way before it came. When the
second is too old already on arrival, the bound is shorter than a round trip."""
_LINEARIZABLE: Final = Level.LINEARIZABLE.value
_LEADER: Final = Level.LEADER.value
_BOUNDED: Final = Level.BOUNDED.value
_ANY: Final = Level.ANY.value


class Reader:
    """All reads of one node."""

    def __init__(  # noqa: PLR0917 - each is one thing that it works with
        self,
        me: NodeId,
        tables: TableStore,
        ids: IdSource,
        clock: Clock,
        answers: ClientAnswers,
        watch: PeerWatch,
        settings: NodeSettings,
    ) -> None:
        query, read = settings.query, settings.read
        self._me = me
        self._tables = tables
        self._clock = clock
        self._answers = answers
        self._watch = watch
        self._settings = read
        tokens = count(1)
        self._waits = WaitingReads(self._give_up, tokens)
        self.deadlines = self._waits.deadlines
        self._node_bounds = Bounds(max_lag=query.max_lag)
        self.scans = Scans(tables, ids, answers, self, read)
        self.machines = MachineQueries(tables, answers, self, read)
        self.many = ManyGets(answers, self, read.get_keys_max)
        self.write_outcomes = WriteOutcomes(
            me, clock, answers, self, read, self._waits.held, tokens
        )

    # --- inputs -----------------------------------------------------------------------------------

    def on_request(
        self,
        client: int,
        request: ReplicaRead,
        runner: ChannelRunner | None,
        now_ms: int,
        part: PartId | None = None,
    ) -> None:
        """A client's read, or a part of one; answered now or when it may be."""
        if runner is None:
            self.fail(
                client,
                request,
                UnknownChannelError,
                "this node does not host the channel; refresh the table's placement",
                part=part,
            )
            return
        deadline_ms = now_ms + max(1, request.timeout_ms)
        if not isinstance(request, MachineQuery) and request.pin:
            self.scans.on_pinned(client, request, runner, deadline_ms, now_ms)
            return
        refusal = self._refusal(request, runner)
        if refusal is not None and not self._may_wait(refusal, request, runner):
            self.fail(client, request, *refusal, leader=runner.elector.leader, part=part)
            return
        linearizable = request.level == _LINEARIZABLE
        stopped = _stopped(runner) if linearizable else None
        if stopped is not None:
            # The command at which it stands is committed, and the read would have to show it.
            self.fail(client, request, *stopped, part=part)
            return
        min_seq = request.min_seq
        if request.level == _LEADER:
            # S7.0: writes are acknowledged when they are committed, and applied a moment later.
            min_seq = Seq(max(min_seq, runner.core.commit_seq))
        applied = self._tables.applied_seq(runner.channel)
        if not linearizable and applied >= min_seq and refusal is None:
            self._answer(client, request, runner, deadline_ms, part)
            return
        full = self._waits.refusal(client, request, self._settings)
        if full is not None:
            self.fail(client, request, OverloadedError, full, part=part)
            return
        confirmed = not linearizable
        token = self._waits.add(
            client, request, runner, deadline_ms, confirmed=confirmed, min_seq=min_seq, part=part
        )
        if linearizable:
            self._request_confirmation(token, runner, now_ms)
        else:
            self._try_answer(token)

    def _request_confirmation(self, token: int, runner: ChannelRunner, now_ms: int) -> None:
        confirmation = runner.request_read(
            partial(self.on_confirmed, token), partial(self.on_refused, token), now_ms
        )
        waiting = self._waits.get(token)
        if waiting is not None:  # else it was answered at once
            waiting.confirmation = confirmation

    def on_confirmed(self, token: int, read_seq: Seq) -> None:
        """The core confirmed leadership for this read (S7.1)."""
        waiting = self._waits.get(token)
        if waiting is None:
            return  # given up in this very turn; its question is dropped at the end of it
        waiting.confirmed = True
        waiting.min_seq = Seq(max(waiting.min_seq, read_seq))
        self._try_answer(token)

    def on_read(self, done: ReadDone, now_ms: int) -> None:
        """A long read was done on the other thread."""
        done(now_ms)

    def on_refused(self, token: int, error: type[RequestError], message: str) -> None:
        """The core could not confirm leadership."""
        waiting = self._waits.forget(token)
        if waiting is not None:
            self._fail_waiting(waiting, error, message)

    def on_freshness(self, runner: ChannelRunner) -> None:
        """How far the channel is committed was proven anew: answer who waited for that."""
        for token in self._waits.unproven(runner.channel):
            waiting = self._waits.get(token)
            if waiting is not None:
                waiting.proofs += waiting.proof_by_ms is not None
                self._try_answer(token)

    def on_applied(self, runner: ChannelRunner, answers: Answers, now_ms: int) -> None:
        """The channel's applied seq moved: answer who waited for it."""
        del answers, now_ms
        self.write_outcomes.on_applied(runner)
        if self._waits.awaits(runner.channel):
            applied = self._tables.applied_seq(runner.channel)
            for token in self._waits.reached(runner.channel, applied):
                self._try_answer(token)

    def on_client_gone(self, client: int) -> None:
        """Forget everything that the client waited for."""
        self._drop_unconfirmed(self._waits.forget_all_of(client))
        self.many.on_client_gone(client)
        self.write_outcomes.on_client_gone(client)
        self.scans.on_client_gone(client)
        self.machines.on_client_gone(client)

    def holds_for(self, client: int) -> bool:
        """Whether a read or a question of the client waits."""
        return (
            self._waits.held.amount_of(client) > 0
            or self.scans.holds_for(client)
            or self.machines.holds_for(client)
        )

    def _give_up(self, client: int, token: int) -> None:
        """Others need the place of a read or a question of the client that has most."""
        del client
        waiting = self._waits.get(token)
        if waiting is None:
            self.write_outcomes.give_up(token, GIVEN_UP)
            return
        self._waits.forget(token)
        self._drop_unconfirmed([waiting])
        self.fail(waiting.client, waiting.request, OverloadedError, GIVEN_UP, part=waiting.part)

    def _drop_unconfirmed(self, over: Iterable[WaitingRead]) -> None:
        """The core need not confirm what nobody waits for: its places are for others."""
        tokens: dict[ChannelRunner, set[int]] = {}
        for waiting in over:
            if not waiting.confirmed:
                tokens.setdefault(waiting.runner, set()).add(waiting.confirmation)
        for runner, dropped in tokens.items():
            runner.drop_reads(frozenset(dropped), self._clock.now_ms)

    def on_timer(self, now_ms: int) -> None:
        """Refuse the reads whose deadline has passed."""
        late: list[WaitingRead] = []
        self.scans.on_timer(now_ms)
        self.machines.on_timer(now_ms)
        self.write_outcomes.on_timer(now_ms)
        for token, waiting in self._waits.due(now_ms):
            self._waits.forget(token)
            if waiting.proof_by_ms is not None:
                self._end_unproven(waiting)
            else:
                late.append(waiting)
                self._fail_waiting(waiting, *self._late(waiting))
        self._drop_unconfirmed(late)

    def on_channel_opened(self, runner: ChannelRunner, now_ms: int) -> None:
        """Opened anew, perhaps from another replica's table: look at the reads that waited."""
        del now_ms
        refusal = self.serving_refusal(runner)
        for token in self._waits.of_channel(runner.channel):
            waiting = self._waits.get(token)
            if waiting is None:
                continue
            waiting.runner = runner
            if refusal is None:
                self._try_answer(token)
            else:
                self.on_refused(token, *refusal)

    def on_channel_closed(self, runner: ChannelRunner) -> None:
        """The table was dropped, or the channel is opened anew: reads of any replica wait on."""
        refusal = closing_refusal(runner)
        for token in self._waits.of_channel(runner.channel):
            waiting = self._waits.get(token)
            if waiting is not None and not (runner.is_reopened and waiting.confirmed):
                self.on_refused(token, *refusal)
        self.scans.on_channel_closed(runner)
        self.machines.on_channel_closed(runner)
        self.write_outcomes.on_channel_closed(runner)

    @property
    def all_deadlines(self) -> tuple[Deadlines[int], ...]:
        """Deadlines of everything that reads and questions wait for."""
        outcomes = self.write_outcomes.open.deadlines
        return (self.deadlines, self.scans.deadlines, self.machines.deadlines, outcomes)

    @property
    def waiting(self) -> int:
        """Reads not answered yet."""
        return len(self._waits)

    # --- rules ------------------------------------------------------------------------------------

    def lag(
        self, runner: ChannelRunner, now_ms: int, applied: Seq | None = None
    ) -> tuple[int | None, int | None]:
        """(lag in rows, age of the leader's position in ms); None = unknown (S7.3).

        ``applied``: lag of that state instead of the newest.
        """
        if applied is None:
            applied = self._tables.applied_seq(runner.channel)
        age_max = self._settings.leader_info_age_max_ms
        if runner.elector.role is Role.LEADER and runner.core.knows_position:
            return known_lag(runner.core.commit_seq, applied, 0, age_max), 0
        heard = runner.leader_info_heard_ms
        age = None if heard is None else max(0, now_ms - heard)
        if not runner.core.is_trusting:  # S7.3: it stood still, and all it knows may be old
            return None, age
        return known_lag(self._watch.known_commit(runner), applied, age, age_max), age

    def lag_of(self, runner: ChannelRunner, applied: Seq) -> tuple[int | None, int | None]:
        """The same of one state, as of the present call."""
        return self.lag(runner, self._clock.now_ms, applied)

    def freshness(self, runner: ChannelRunner, applied: Seq | None = None) -> ReplicaFreshness:
        """How far behind the newest state is, or the one that is applied so far (S7.3)."""
        if applied is None:
            applied = self._tables.applied_seq(runner.channel)
        core = runner.core
        lag, age = self.lag(runner, self._clock.now_ms, applied)
        batches = None
        if lag is not None:
            batches = core.batches_between(applied, self._watch.known_commit(runner))
        as_of = core.fresh_as_of(applied)
        return ReplicaFreshness(lag, age, as_of, batches, core.is_trusting, self._clock.now_ms)

    def serving_refusal(self, runner: ChannelRunner) -> Refusal | None:
        """Why the channel serves nothing here now, whatever the level."""
        return serving_refusal(runner)

    def _refusal(self, request: ReplicaRead, runner: ChannelRunner) -> Refusal | None:
        name, elector = runner.name, runner.elector
        limit = (
            self.serving_refusal(runner)
            or restoring_refusal(runner)
            or kind_refusal(request, runner)
            or too_many_keys(request, self._settings.get_keys_max)
            or bounds_problem(bounds_of_request(request))
        )
        if limit is not None:
            return limit
        if request.level in (_LINEARIZABLE, _LEADER):
            if elector.role is not Role.LEADER:
                if elector.leader is None:
                    return Refusal(
                        NoLeaderError, f"channel {name} has no leader known to this node; retry"
                    )
                leader = node_name(elector.leader)
                return Refusal(NotLeaderError, f"channel {name} is led by {leader}, ask there")
            if request.level == _LEADER and not runner.core.leader_is_ready:
                return Refusal(
                    NoLeaderError, f"the leader of {name} has not committed in its term yet; retry"
                )
            return None
        if request.level == _BOUNDED:
            return beyond_bounds(name, self.freshness(runner), self._bounds(request, runner))
        if request.level == _ANY:
            return None
        levels = ", ".join(level.value for level in Level)
        return Refusal(SchemaError, f"unknown read level {request.level!r}; use one of {levels}")

    def _bounds(self, request: ReplicaRead, runner: ChannelRunner) -> Bounds:
        return effective_bounds(bounds_of_request(request), runner.bounds, self._node_bounds)

    def _may_wait(self, refusal: Refusal, request: ReplicaRead, runner: ChannelRunner) -> bool:
        """Whether the read is refused only for what a round trip or a moment may change (S7.3)."""
        if refusal.error not in BEYOND_BOUNDS:
            return False
        return may_be_proven(self.freshness(runner), self._bounds(request, runner))

    def _late(self, waiting: WaitingRead) -> Refusal:
        """Why a read whose deadline has passed has no answer."""
        request, runner = waiting.request, waiting.runner
        applied = self._tables.applied_seq(runner.channel)
        if not waiting.confirmed:
            stopped = _stopped(runner)
            if stopped is not None:
                return stopped
            return unconfirmed_refusal(
                runner.name, request.timeout_ms, applied=applied, committed=runner.core.commit_seq
            )
        return late_refusal(
            runner.name,
            request,
            applied=applied,
            wanted=waiting.min_seq,
            known_commit=self._watch.known_commit(runner),
        )

    # --- answering --------------------------------------------------------------------------------

    def _try_answer(self, token: int) -> None:
        waiting = self._waits.get(token)
        if waiting is None or not waiting.confirmed:
            return
        applied = self._tables.applied_seq(waiting.runner.channel)
        if applied < waiting.min_seq:
            self._await_position(token, waiting)
            return
        client, request, runner = waiting.client, waiting.request, waiting.runner
        # S7.3, S13: the bounds hold at the moment of the answer, however long the read has waited.
        refusal = self._refusal(request, runner)
        if refusal is not None and self._may_wait(refusal, request, runner):
            self._await_proof(token, waiting, refusal)
            return
        self._waits.forget(token)
        if refusal is None:
            self._answer(client, request, runner, waiting.deadline_ms, waiting.part)
        else:
            self._fail_waiting(waiting, *refusal)

    def _await_position(self, token: int, waiting: WaitingRead) -> None:
        stopped = _stopped(waiting.runner)
        if stopped is None:
            self._waits.await_position(token, waiting)
            return
        # Nothing behind the command is applied before somebody does something about it.
        self._waits.forget(token)
        self._fail_waiting(waiting, *stopped)

    def _await_proof(self, token: int, waiting: WaitingRead, refusal: Refusal) -> None:
        """S7.3: one round trip proves what this node may serve; then it may have to be applied."""
        runner = waiting.runner
        self._waits.await_proof(token, waiting)
        if waiting.proof_by_ms is None:
            wait_ms = self._settings.freshness_wait_ms
            waiting.proof_by_ms = min(waiting.deadline_ms, self._clock.now_ms + wait_ms)
            self.deadlines.push(token, waiting.proof_by_ms)
        bounds = self._bounds(waiting.request, runner)
        if not needs_proof(self.freshness(runner), bounds, runner.core.proven_ms):
            return  # what is committed has to be applied
        if waiting.proofs < PROOFS_MAX:
            runner.request_proof(waiting.proof_by_ms, self._clock.now_ms)
            return
        self._waits.forget(token)
        self._fail_waiting(waiting, *refusal)

    def _end_unproven(self, waiting: WaitingRead) -> None:
        """S7.3: it has waited long enough for a proof, and is judged by what is known now."""
        request, runner = waiting.request, waiting.runner
        refusal = self._refusal(request, runner)
        if refusal is None:
            self._answer(waiting.client, request, runner, waiting.deadline_ms, waiting.part)
        else:
            self._fail_waiting(waiting, *refusal)

    def _answer(
        self,
        client: int,
        request: ReplicaRead,
        runner: ChannelRunner,
        deadline_ms: int,
        part: PartId | None,
    ) -> None:
        if isinstance(request, Get):
            self._answer_get(client, request, runner, part)
        elif isinstance(request, MachineQuery):
            self.machines.begin(client, request, runner, deadline_ms)
        elif isinstance(request, Count) or is_long(request):
            self.scans.begin(client, request, runner, deadline_ms, self._clock.now_ms)
        else:
            self._answer_page(client, request, runner)
        self._refresh(request, runner)

    def _refresh(self, request: ReplicaRead, runner: ChannelRunner) -> None:
        """Ask for a new proof before the next read of this kind has to wait for one."""
        if request.level != _BOUNDED:
            return
        bound, proven_ms = self._bounds(request, runner).max_staleness_ms, runner.core.proven_ms
        now_ms = self._clock.now_ms
        if bound is None or proven_ms is None or 2 * (now_ms - proven_ms) <= bound:
            return
        runner.request_proof(now_ms + self._settings.freshness_wait_ms, now_ms)

    def _answer_page(self, client: int, request: Scan, runner: ChannelRunner) -> None:
        limit, bytes_max = page_rows(request, self._settings), self._settings.scan_bytes_max
        page = self._tables.scan(runner.channel, request.start, request.stop, limit, bytes_max)
        rows = sealed_rows(page.rows, keys_only=request.keys_only)
        served = self.served(request, runner, page.applied_seq)
        self._answers.answer(client, ScanAnswer(request.request_id, rows, page.more, served))

    def _answer_get(
        self, client: int, request: Get, runner: ChannelRunner, part: PartId | None
    ) -> None:
        found = self._tables.get_many(runner.channel, request.keys, GET_BYTES_MAX)
        if found.size > GET_BYTES_MAX:
            self.fail(client, request, *rows_too_large(request, len(found.values)), part=part)
            return
        served = self.served(request, runner, found.applied_seq)
        values, seqs = tuple(found.values), tuple(found.seqs)
        self._reply(client, GetAnswer(request.request_id, values, seqs, served), part)

    def served(self, request: ReplicaRead, runner: ChannelRunner, applied: Seq) -> Served:
        """S7.3: the state that the rows are of, and how far that is behind."""
        return self.served_at(request.level, runner, applied)

    def served_at(self, level: str, runner: ChannelRunner, applied: Seq | None = None) -> Served:
        """The same at a level; of the newest state by default."""
        if applied is None:
            applied = self._tables.applied_seq(runner.channel)
        freshness = self.freshness(runner, applied)
        behind = freshness.batches_behind
        return Served(
            node=self._me,
            channel=runner.channel,
            term=runner.elector.term,
            applied_seq=applied,
            lag=freshness.lag,
            leader_info_age_ms=freshness.leader_info_age_ms,
            level=level,
            staleness_ms=freshness.staleness_ms,
            batches_behind=None if behind is None else behind[1],
            batches=runner.core.tell_batches(applied),
        )

    def _fail_waiting(self, waiting: WaitingRead, error: type[RequestError], message: str) -> None:
        leader = waiting.runner.elector.leader
        self.fail(waiting.client, waiting.request, error, message, leader=leader, part=waiting.part)

    def fail(
        self,
        client: int,
        request: ReplicaRead,
        error: type[RequestError],
        message: str,
        *,
        leader: NodeId | None = None,
        part: PartId | None = None,
    ) -> None:
        """Refuse a read."""
        hosts = {node_name(self._me): message}
        refused = failed(request.request_id, error, message, leader_hint=leader, hosts=hosts)
        self._reply(client, refused, part)

    def _reply(self, client: int, message: GetAnswer | Failed, part: PartId | None) -> None:
        """Answer a request of a client, or a part of one for many channels."""
        if part is None:
            self._answers.answer(client, message)
        else:
            self.many.collect(part, message)


def _stopped(runner: ChannelRunner) -> Refusal | None:
    """Why nothing more is applied before somebody does something about it; None: it is."""
    return None if runner.commands is None else runner.commands.refusal()
