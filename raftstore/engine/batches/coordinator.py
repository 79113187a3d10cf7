"""Opens attempts, decides batches and has every channel apply them: the leader of partition 0.

What may be decided is judged when the record is applied (``state_machines.batches.coordinator``),
alike on every replica; here requests become records, their outcome becomes answers, and decided
batches are pushed until each channel has said that it applied them. Success is reported to no one
before that (rule 5), and nothing here is needed after the leadership: the next leader reads the
outbox.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Final

from raftstore.config import BatchSettings
from raftstore.engine.batches.batch_sender import BatchSender
from raftstore.engine.batches.coordinated_table import CoordinatedTable, Waiter
from raftstore.engine.batches.writer_meters import WriterMeters
from raftstore.engine.catalog.controller import CatalogController
from raftstore.engine.channel.applied_state import AppliedState, SnapshotState
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.reads.read_rules import restoring_refusal
from raftstore.engine.reads.reader import Reader
from raftstore.engine.shares import GIVEN_UP, Shares, Waits
from raftstore.errors import (
    BatchPendingError,
    LeadershipLostError,
    NoLeaderError,
    NotLeaderError,
    OverloadedError,
    Refusal,
    RequestError,
    SchemaError,
    UnknownChannelError,
    UnknownTableError,
    refusal_by_code,
)
from raftstore.ports.tables import Answers, TableStore
from raftstore.protocol.batches import (
    ADOPT,
    ALREADY,
    MISSING,
    NOT_LEADER,
    OK,
    OPENED,
    REMOVE,
    ApplyBatchReply,
    BatchAnswer,
    BeginBatch,
    CloseBatch,
    CommitBatch,
    EditWriter,
    ResolvedWriter,
    ResolveWriter,
    StagedReply,
    Writers,
)
from raftstore.protocol.message import Done, Message, failed
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.requests import BatchRequest
from raftstore.protocol.staged import writer_fault
from raftstore.state_machines.batches.coordinator import (
    CHECKPOINT_BYTES_MAX,
    judge_begin,
    judge_commit,
)
from raftstore.state_machines.batches.dropped_batches import judge_dropped
from raftstore.state_machines.batches.txn_records import (
    Adopt,
    AnyStep,
    Begin,
    Close,
    Commit,
    Remove,
    Trim,
    Verdict,
    decode_verdict,
    encode_step,
)
from raftstore.state_machines.batches.txn_state import floor_for, read_table
from raftstore.types import (
    ChannelId,
    NodeId,
    RecordKind,
    Role,
    channel_partition,
    channel_table,
    node_name,
)

RESOLVED_MAX: Final = 1_024
"""Writers whose floors one message asks for."""


class Coordinator:
    """The coordinators of one node: one for each partition 0 that it leads."""

    def __init__(  # noqa: PLR0917 - each is one thing that it works with
        self,
        channels: Mapping[ChannelId, ChannelRunner],
        tables: TableStore,
        controller: CatalogController,
        reader: Reader,
        answers: ClientAnswers,
        sender: BatchSender,
        settings: BatchSettings,
    ) -> None:
        self._channels = channels
        self._store = tables
        self._controller = controller
        self._reader = reader
        self._answers = answers
        self._sender = sender
        self._settings = settings
        self.meters = WriterMeters()
        self._tables: dict[ChannelId, CoordinatedTable] = {}
        self.deadlines: Deadlines[ChannelId] = Deadlines()
        """Of the tables, by their coordinator's channel; clients have theirs in ``waiting``."""
        self.held: Shares[int] = Shares("batch requests", "batch.waiting_max", self._give_up)
        self.waiting: Waits[tuple[CoordinatedTable, Waiter]] = Waits(self.held)
        self._tokens = 0

    # --- requests of clients ----------------------------------------------------------------------

    def on_request(self, client: int, request: BatchRequest, now_ms: int) -> None:
        """Anything a client asks of the coordinator."""
        assert isinstance(request, BeginBatch | CommitBatch | CloseBatch | Writers | EditWriter)
        runner = self._channels.get(request.channel)
        refusal = self._refusal(client, runner)
        if refusal is not None:
            hint = None if runner is None else runner.elector.leader
            self._fail(client, request, *refusal, hint=hint)
            return
        assert runner is not None
        table = self._table(runner, now_ms)
        if isinstance(request, Writers):
            self._answers.answer(client, table.tell_writers(request))
            return
        fault = _fault(request)
        if fault is not None:
            self._fail(client, request, SchemaError, fault)
            return
        self._tokens += 1
        waiter = Waiter(client, request, self._tokens)
        until_ms = now_ms + max(1, request.timeout_ms)
        self.waiting.add(client, waiter.token, (table, waiter), until_ms)
        match request:
            case BeginBatch():
                self._begin(table, waiter, request, now_ms)
            case CommitBatch():
                self._commit(table, waiter, request, now_ms)
            case CloseBatch():
                self._step(table, Close(request.writer, request.attempt), [waiter], now_ms)
            case _:
                self._edit(table, waiter, request, now_ms)
        self._arm(table, now_ms)

    def _begin(
        self, table: CoordinatedTable, waiter: Waiter, request: BeginBatch, now_ms: int
    ) -> None:
        entry = self._controller.catalog.table_of(table.runner.channel)
        assert entry is not None, "on_request refuses what is no table"
        restoring = restoring_refusal(table.runner)
        if restoring is not None and request.uuid.hex() != table.runner.table_settings.restoring:
            self._refuse(waiter, *restoring)
            return
        verdict = judge_begin(
            request,
            table.state,
            partitions=entry.partitions,
            pending_max=self._settings.pending_max,
            acked=table.acked,
        )
        if verdict is None and restoring is None:  # a restore brings what a dropped table had
            verdict = judge_dropped(
                request,
                entry.name,
                table.state,
                self._controller.catalog.dropped_writers.get(entry.name, ()),
                is_current=table.is_current,
            )
        if verdict is not None:
            self._tell(table, waiter, verdict, now_ms)
            return
        # The tasks of a batch send the same uuid: only the first one costs a record.
        same = (request.writer, request.batch_id, request.uuid)
        beginning = table.beginning.get(same)
        if beginning is not None:
            beginning.append(waiter)
            return
        table.beginning[same] = waiters = [waiter]
        step = Begin(
            writer=request.writer,
            batch_id=request.batch_id,
            uuid=request.uuid,
            lineage=request.lineage,
            one_shot=request.one_shot,
            ttl_ms=request.ttl_ms or self._settings.attempt_ttl_ms,
            partitions=entry.partitions,
            acked=table.news(),
        )
        self._step(table, step, waiters, now_ms, begins=same)

    def _commit(
        self, table: CoordinatedTable, waiter: Waiter, request: CommitBatch, now_ms: int
    ) -> None:
        entry = self._controller.catalog.table_of(table.runner.channel)
        verdict = judge_commit(request, table.state) or table.judge(request, entry)
        if verdict is not None:
            self._tell(table, waiter, verdict, now_ms)
        elif table.checks.add(waiter.token, request, now_ms):
            self._question(table, now_ms)
        else:
            self._decide(table, waiter, request, now_ms)

    def _decide(
        self, table: CoordinatedTable, waiter: Waiter, request: CommitBatch, now_ms: int
    ) -> None:
        """Every channel that it touches holds its part of the batch."""
        step = Commit(
            writer=request.writer,
            batch_id=request.batch_id,
            attempt=request.attempt,
            manifest=request.manifest,
            digest=request.digest,
            one_shots_max=self._settings.one_shots_max,
            acked=table.news(),
        )
        self._step(table, step, [waiter], now_ms)

    def _edit(
        self, table: CoordinatedTable, waiter: Waiter, request: EditWriter, now_ms: int
    ) -> None:
        step: AnyStep
        if request.action == ADOPT:
            step = Adopt(request.writer, request.lineage)
        elif request.action == REMOVE:
            step = Remove(request.writer)
        else:
            text = f"a writer cannot be {request.action!r}; use {ADOPT} or {REMOVE}"
            self._refuse(waiter, SchemaError, text)
            return
        self._step(table, step, [waiter], now_ms)

    # --- records and what they led to -------------------------------------------------------------

    def _step(
        self,
        table: CoordinatedTable,
        step: AnyStep,
        waiters: list[Waiter],
        now_ms: int,
        *,
        begins: tuple[str, int, bytes] | None = None,
    ) -> None:
        """Have a record made; ``waiters`` are called with its verdict when it is applied here."""

        def done(answer: PubAck | PubReject, at_ms: int) -> None:
            del at_ms
            if begins is not None:
                table.beginning.pop(begins, None)
            if isinstance(answer, PubAck):
                table.asked[answer.last_seq] = waiters
                return
            for waiter in waiters:
                self._refuse(waiter, *refusal_by_code(answer.code, answer.message))

        table.stepped_ms = now_ms
        payload = encode_step(step)
        self._controller.proposals.propose(table.runner, payload, done, now_ms, kind=RecordKind.TXN)

    def on_applied(self, runner: ChannelRunner, answers: Answers, now_ms: int) -> None:
        """Records of a channel were applied here, with these answers of its machine."""
        if not answers:
            return
        table = self._tables.get(runner.channel)
        if table is None:
            # An earlier leader's steps, applied after this one has gone to work.
            if runner.elector.role is Role.LEADER and runner.core.leader_is_ready:
                self.leads(runner, now_ms)
            return
        table.refresh()
        for seq, answer in answers:
            waiters = table.asked.pop(seq, [])
            verdict = decode_verdict(answer)
            if verdict.name == OK:
                table.settle(verdict.attempt)
            requests = [waiter.request for waiter in waiters]
            self.meters.decided(table, requests, verdict, now_ms)
            for waiter in waiters:
                self._tell(table, waiter, verdict, now_ms)
        self._answer_passed(table)
        self._push(table, now_ms)
        self._arm(table, now_ms)

    def _tell(self, table: CoordinatedTable, waiter: Waiter, verdict: Verdict, now_ms: int) -> None:
        """Answer a waiter, or keep it until every channel has applied its commit (rule 5)."""
        if verdict.code:
            self._refuse(waiter, *refusal_by_code(verdict.code, verdict.message))
            return
        request = waiter.request
        if verdict.name == OPENED and isinstance(request, BeginBatch):
            ttl_ms = request.ttl_ms or self._settings.attempt_ttl_ms
            table.touch(verdict.attempt, request.writer, ttl_ms, now_ms)
        if verdict.name in (ALREADY, OK) and not table.is_everywhere(verdict.n):
            table.add_gate(verdict.n, waiter, verdict)
            return
        self._answer(waiter, verdict)

    def _answer_passed(self, table: CoordinatedTable) -> None:
        for gate in table.take_passed():
            self._answer(gate.waiter, gate.verdict)

    def _answer(self, waiter: Waiter, verdict: Verdict) -> None:
        if self.waiting.pop(waiter.token) is None:
            return
        message: Message = Done(waiter.request.request_id)
        if verdict.name in (OPENED, ALREADY, OK):
            message = BatchAnswer(
                request_id=waiter.request.request_id,
                verdict=verdict.name,
                attempt=verdict.attempt,
                n=verdict.n,
                batch_id=verdict.batch_id,
                vector=verdict.vector,
                rows=verdict.rows,
            )
        self._answers.answer(waiter.client, message)

    # --- what is asked before a batch is decided --------------------------------------------------

    def _question(self, table: CoordinatedTable, now_ms: int) -> None:
        """Ask channels for their parts of batches that want to commit."""
        for message in table.checks.next_questions(now_ms):
            leader, _ = self._controller.leader_of(message.target)
            if leader is not None:
                self._sender.deliver(leader, message)

    def on_staged_reply(self, sender: NodeId, message: StagedReply, now_ms: int) -> None:
        """A channel holds its part of a batch, or does not, or its leader is another node."""
        table = self._tables.get(message.channel)
        # Tokens are of this leadership: another one may have given the same number.
        if table is None or message.term != table.runner.elector.term:
            return
        partition, checks = channel_partition(message.target), table.checks
        if not checks.is_open(message.token, partition):
            return
        if message.reason == NOT_LEADER:
            hint = message.leader_hint
            if hint is not None and hint != sender:
                question = checks.again(message.token, partition)
                if question is not None:
                    self._sender.deliver(hint, question)
            return
        _, waiter = self.waiting.of(message.token)
        if message.reason == MISSING:
            if not table.is_current:
                return  # asked again: the end of the attempt may be in what is not applied here yet
            verdict = judge_commit(checks.request_of(message.token), table.state)
            if verdict is None:
                verdict = checks.refusal(message.token, partition, message.chunks, message.rows)
            checks.forget(message.token)
            self._tell(table, waiter, verdict, now_ms)
            self._arm(table, now_ms)
            return
        request = checks.confirm(message.token, partition)
        if request is not None:
            self._decide(table, waiter, request, now_ms)
        self._arm(table, now_ms)

    # --- decided batches --------------------------------------------------------------------------

    def _push(self, table: CoordinatedTable, now_ms: int) -> None:
        """Send each channel the next commit that it has not applied, to the channel's leader."""
        for partition, message in list(table.next_pushes(now_ms)):
            leader, _ = self._controller.leader_of(message.target)
            if leader is not None and self._is_still(table, partition, message.n):
                self._sender.deliver(leader, message)

    def _is_still(self, table: CoordinatedTable, partition: int, n: int) -> bool:
        """A push before it may have been answered at once, by this very node."""
        push = table.pushes.get(partition)
        return push is not None and push.n == n

    def on_apply_reply(self, sender: NodeId, message: ApplyBatchReply, now_ms: int) -> None:
        """A channel has applied a commit, or its leader says why not yet."""
        table = self._tables.get(message.channel)
        if table is None or channel_table(message.target) != channel_table(message.channel):
            return
        partition = channel_partition(message.target)
        if table.ack(partition, message.applied):
            self._answer_passed(table)
            self._push(table, now_ms)
            self._arm(table, now_ms)
            return
        push = table.pushes.get(partition)
        hint = message.leader_hint
        if push is None or push.n != message.n or message.reason != NOT_LEADER:
            return
        if hint is not None and hint != sender and not push.is_hinted:
            push.is_hinted = True
            again = table.message(push.n, partition)
            if again is not None:
                self._sender.deliver(hint, again)

    def on_resolve(self, sender: NodeId, message: ResolveWriter) -> None:
        """Rule 6: say which attempts are finished for a channel; any replica's state may.

        An older state gives a lower floor, which only keeps chunks longer.
        """
        runner = self._channels.get(message.channel)
        same_table = channel_table(message.target) == channel_table(message.channel)
        if runner is None or not same_table or self._reader.serving_refusal(runner) is not None:
            return
        partition = channel_partition(message.target)
        # Records are applied meanwhile, and a floor is what several values say at one position.
        with closing(self._store.snapshot(runner.channel)) as snapshot:
            state = SnapshotState(snapshot)
            floors = tuple(
                (writer, floor_for(writer, partition, state))
                for writer in message.writers[:RESOLVED_MAX]
            )
        reply = ResolvedWriter(
            channel=message.channel,
            term=runner.elector.term,
            target=message.target,
            floors=floors,
        )
        self._sender.deliver(sender, reply)

    # --- leaderships and timers -------------------------------------------------------------------

    def leader_changed(self, runner: ChannelRunner) -> None:
        """The channel's leader, role or term is another: what waited here is in doubt (S4.3)."""
        table = self._tables.get(runner.channel)
        if table is not None and runner.elector.role is not Role.LEADER:
            text = f"the leadership of {runner.name} ended; ask the new leader again"
            self._forget(runner.channel, LeadershipLostError, text)

    def on_channel_closed(self, runner: ChannelRunner) -> None:
        """The table was dropped; opened anew, the channel is led in another term (S4.3)."""
        if runner.channel not in self._tables:
            return
        if runner.is_reopened:
            text = f"channel {runner.name} was opened anew; ask the new leader again"
            self._forget(runner.channel, LeadershipLostError, text)
        else:
            self._forget(runner.channel, UnknownTableError, "the table was dropped")

    def leads(self, runner: ChannelRunner, now_ms: int) -> None:
        """The leadership is ready to serve: go on with what an earlier leader decided."""
        if read_table(AppliedState(self._store, runner.channel)) is not None:
            table = self._table(runner, now_ms)
            self._push(table, now_ms)
            self._arm(table, now_ms)

    def on_timer(self, now_ms: int) -> None:
        """Send again what was not answered, close what no writer goes on with, answer clients whose
        time is up."""
        for table in tuple(self._tables.values()):
            table.scan_writers(now_ms)
            self._push(table, now_ms)
            self._question(table, now_ms)
            for writer, attempt in table.take_expired(now_ms):
                self._step(table, Close(writer, attempt, table.news()), [], now_ms)
            if table.trim_due(now_ms):
                self._step(table, Trim(table.news()), [], now_ms)
            self._arm(table, now_ms)
        for token in self.waiting.due(now_ms):
            table, waiter = self.waiting.of(token)
            text = (
                f"channel {table.runner.name}: the batch was not seen opened or applied "
                f"everywhere in {waiter.request.timeout_ms} ms; ask again, nothing is done "
                "twice"
            )
            table.forget(waiter)
            self._refuse(waiter, BatchPendingError, text)

    def _give_up(self, _: int, token: int) -> None:
        """Others need its place; what it asked for may go on."""
        table, waiter = self.waiting.of(token)
        table.forget(waiter)
        self._refuse(waiter, BatchPendingError, GIVEN_UP)

    def on_client_gone(self, client: int) -> None:
        """Proposed steps go on; a commit that waits for answers of its channels does not."""
        for _, (table, waiter) in self.waiting.pop_all_of(client):
            table.forget(waiter)

    def _arm(self, table: CoordinatedTable, now_ms: int) -> None:
        """Something happened to the table: it may have another deadline."""
        channel = table.runner.channel
        due_ms = table.next_deadline_ms(now_ms)
        if due_ms is None or self._tables.get(channel) is not table:
            self.deadlines.cancel(channel)
        else:
            self.deadlines.push(channel, due_ms)

    # --- inside -----------------------------------------------------------------------------------

    def _table(self, runner: ChannelRunner, now_ms: int) -> CoordinatedTable:
        table = self._tables.get(runner.channel)
        if table is None:
            table = CoordinatedTable(runner, self._store, self._settings)
            self._tables[runner.channel] = table
            self._arm(table, now_ms)
        return table

    def _refusal(self, client: int, runner: ChannelRunner | None) -> Refusal | None:
        # The catalog's own channel is no partition of a table, and could not apply what is written.
        if runner is None or self._controller.catalog.table_of(runner.channel) is None:
            text = "this node hosts no partition of a table there; refresh the table's placement"
            return Refusal(UnknownChannelError, text)
        if channel_partition(runner.channel) != 0:
            text = f"{runner.name} coordinates no micro-batches; ask the leader of partition 0"
            return Refusal(SchemaError, text)
        refusal = self._reader.serving_refusal(runner) or self._controller.refusal_of(
            RecordKind.TXN
        )
        if refusal is not None:
            return refusal
        elector = runner.elector
        if elector.role is not Role.LEADER:
            if elector.leader is None:
                return Refusal(
                    NoLeaderError, f"channel {runner.name} has no leader known to this node; retry"
                )
            leader = node_name(elector.leader)
            return Refusal(NotLeaderError, f"channel {runner.name} is led by {leader}, ask there")
        if not runner.core.leader_is_ready:
            text = f"the leader of {runner.name} has committed nothing in its term yet; retry"
            return Refusal(NoLeaderError, text)
        full = self.held.refusal(client, self._settings.waiting_max)
        return None if full is None else Refusal(OverloadedError, full)

    def _forget(self, channel: ChannelId, error: type[RequestError], text: str) -> None:
        gone = self._tables.pop(channel)
        self.deadlines.cancel(channel)
        for token in self.waiting:
            table, waiter = self.waiting.of(token)
            if table is gone:
                self._refuse(waiter, error, text)

    def _refuse(self, waiter: Waiter, error: type[RequestError], text: str) -> None:
        if self.waiting.pop(waiter.token) is not None:
            self._fail(waiter.client, waiter.request, error, text)

    def _fail(
        self,
        client: int,
        request: BatchRequest,
        error: type[RequestError],
        text: str,
        hint: NodeId | None = None,
    ) -> None:
        self._answers.answer(client, failed(request.request_id, error, text, leader_hint=hint))


def _fault(request: BatchRequest) -> str | None:
    """The fault of the names in a request, before they enter a record; None: there is none."""
    if not isinstance(request, CloseBatch | EditWriter):
        return None  # judged with everything else that they say
    fault = writer_fault(request.writer)
    lineage = request.lineage if isinstance(request, EditWriter) else None
    if fault is None and lineage is not None and len(lineage.encode()) > CHECKPOINT_BYTES_MAX:
        checkpoint = lineage[:40]
        return f"the checkpoint (lineage) {checkpoint!r}… is over {CHECKPOINT_BYTES_MAX} bytes"
    return fault
