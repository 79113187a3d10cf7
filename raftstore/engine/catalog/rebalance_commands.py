"""Commands about rebalances and tags of nodes: judged here, decided in the catalog (FIP-23)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftstore.engine.catalog.copy_reports import CopyReports
from raftstore.engine.catalog.rebalancer import Rebalancer
from raftstore.engine.catalog.table_commands import CatalogView, TableCommands
from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.node_ports import Tell
from raftstore.errors import (
    ChangeDoneError,
    ChangePendingError,
    Refusal,
    SchemaError,
    UnknownNodeError,
    UnknownTableError,
    refusal_by_code,
)
from raftstore.protocol.message import Done
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.rebalance import (
    AskRebalance,
    CancelRebalance,
    MoveReport,
    RebalanceAnswer,
    RebalanceReport,
    StartRebalance,
    SwitchLeaders,
    TagNode,
    ThrottleCopies,
    WantedMove,
)
from raftstore.state_machines.catalog_entries import MEMBERS_FORMAT, SWITCH_FORMAT
from raftstore.state_machines.catalog_rebalance import (
    BeginRebalance,
    CancelMoves,
    RebalanceEntry,
    moves_problem,
    overall_state,
    rebalance_command,
    switch_command,
    tag_node_command,
    throttle_command,
)
from raftstore.types import NodeId, Seq, channel_partition, node_name

THROTTLE_MIN: Final = 256 * 1024
"""Bytes a second: with less, a chunk would leave after its receiver has given it up."""
_NONE_OPEN: Final = "no rebalance is open; `raftstore rebalance status` shows the last one"


RebalanceOrder = TagNode | StartRebalance | CancelRebalance | ThrottleCopies | SwitchLeaders


class RebalanceCommands:
    """Takes the commands of all clients of one node."""

    def __init__(
        self,
        commands: TableCommands,
        answers: ClientAnswers,
        view: CatalogView,
        rebalancer: Rebalancer,
        copies: CopyReports,
        tell: Tell,
    ) -> None:
        """``commands``: those about tables, which count what a client has under way."""
        self._commands = commands
        self._answers = answers
        self._view = view
        self._rebalancer = rebalancer
        self._copies = copies
        self._tell = tell

    def on_request(
        self,
        client: int,
        request: RebalanceOrder | AskRebalance,
        now_ms: int,
    ) -> None:
        """A command, or a question, of an operator."""
        if isinstance(request, AskRebalance):
            self._answers.answer(client, self._report(request))
            return
        if self._commands.refuse_command(client, request.request_id):
            return
        match request:
            case TagNode():
                self._tag(client, request, now_ms)
            case StartRebalance():
                self._start(client, request, now_ms)
            case CancelRebalance():
                self._cancel(client, request, now_ms)
            case ThrottleCopies():
                self._throttle(client, request, now_ms)
            case SwitchLeaders():
                self._switch(client, request, now_ms)

    # --- tags, the throttle and the switch --------------------------------------------------------

    def _tag(self, client: int, request: TagNode, now_ms: int) -> None:
        nodes = self._view.catalog.nodes
        found = [e.node for name, e in nodes.items() if request.node in (name, e.node)]
        if not found:
            names = ", ".join(nodes) or "none yet"
            text = f"the cluster has no node {request.node[:100]!r}; it has {names}"
            self._fail(client, request.request_id, Refusal(UnknownNodeError, text))
            return
        left = Refusal(UnknownNodeError, f"{request.node} has left the cluster meanwhile")
        command = tag_node_command(found[0], request.node_tag)
        self._propose(client, request.request_id, command, now_ms, lambda: left)

    def _throttle(self, client: int, request: ThrottleCopies, now_ms: int) -> None:
        if 0 < request.bytes_per_s < THROTTLE_MIN:
            text = (
                f"a throttle of {request.bytes_per_s} bytes/s is too low for copies to arrive; "
                f"give at least {THROTTLE_MIN}, or cancel the rebalance"
            )
            self._fail(client, request.request_id, Refusal(SchemaError, text))
            return
        command = throttle_command(request.bytes_per_s)
        changed = Refusal(ChangePendingError, "the throttle was changed meanwhile; repeat it")
        self._propose(client, request.request_id, command, now_ms, lambda: changed)

    def _switch(self, client: int, request: SwitchLeaders, now_ms: int) -> None:
        self._propose(
            client,
            request.request_id,
            switch_command(request.is_on),
            now_ms,
            None,
            number=SWITCH_FORMAT,
        )

    # --- starting ---------------------------------------------------------------------------------

    def _start(self, client: int, request: StartRebalance, now_ms: int) -> None:
        if (last := self._known(request)) is not None:
            self._answer_number(client, request.request_id, last.number)
            return
        refusal = self._why_not_start(request)
        if refusal is not None:
            self._fail(client, request.request_id, refusal)
            return

        def started() -> Refusal | None:
            entry = self._known(request)
            if entry is None:
                text = "the cluster was changed meanwhile; look at a new plan and repeat"
                return Refusal(ChangePendingError, text)
            moves = len(entry.channels)
            self._tell("rebalance_started", reason=request.reason, moves=moves)
            self._answer_number(client, request.request_id, entry.number)
            return None

        begin = BeginRebalance(request.order, request.reason, request.moves)
        self._propose(client, request.request_id, rebalance_command(begin), now_ms, None, started)

    def _known(self, request: StartRebalance) -> RebalanceEntry | None:
        last = self._view.catalog.rebalance.last
        return last if last is not None and last.guid == request.order else None

    def _answer_number(self, client: int, request_id: int, number: Seq) -> None:
        detail = {**self._commands.done(request_id).detail, "rebalance": number}
        self._commands.answer(client, Done(request_id, detail))

    def _why_not_start(self, request: StartRebalance) -> Refusal | None:
        known = self._view.catalog.rebalance.open
        if known is not None:
            text = (
                f"rebalance {known.number} is open; wait until it has ended "
                "(`raftstore rebalance status`), or cancel it with `raftstore rebalance cancel`"
            )
            return Refusal(ChangePendingError, text)
        problem = moves_problem(request.moves)
        if problem is not None:
            return Refusal(SchemaError, problem)
        for move in request.moves:
            refusal = self._why_not_move(move)
            if refusal is not None:
                return refusal
        return None

    def _why_not_move(self, move: WantedMove) -> Refusal | None:
        catalog = self._view.catalog
        table, entry = catalog.table_of(move.channel), catalog.entry_of(move.channel)
        if table is None or entry is None:
            text = f"the cluster has no channel {move.channel.hex()}; look at a new plan"
            return Refusal(UnknownTableError, text)
        name, config = f"{table.name}/{channel_partition(move.channel)}", entry.config
        if entry.order is not None:
            text = (
                f"order {entry.order.target.change} for {name} is open; wait until it has ended "
                "(`raftstore channel change ls`), and look at a new plan"
            )
            return Refusal(ChangePendingError, text)
        present = set(config.voters), set(config.learners)
        if present != (set(move.old_voters), set(move.old_learners)):
            names = ", ".join(map(node_name, config.members))
            text = f"{name} has replicas on {names}, others than planned; look at a new plan"
            return Refusal(ChangePendingError, text)
        able = set(catalog.placeable())
        unable = [node for node in move.targets if node not in able]
        if unable:
            first = node_name(NodeId(unable[0]))
            text = (
                f"{name} cannot go to {first}, which drains, is tagged or is no node of the "
                "cluster; see `raftstore cluster members`"
            )
            return Refusal(SchemaError, text)
        former = [node for node in move.learners if node in config.voters]
        if former:
            text = f"{node_name(former[0])} votes in {name} and cannot become a learner of it"
            return Refusal(SchemaError, text)
        return None

    # --- cancelling -------------------------------------------------------------------------------

    def _cancel(self, client: int, request: CancelRebalance, now_ms: int) -> None:
        refusal = self._why_not_cancel(request.number)
        open_one = self._view.catalog.rebalance.open
        if refusal is not None or open_one is None:
            over = refusal or Refusal(ChangeDoneError, _NONE_OPEN)
            self._fail(client, request.request_id, over)
            return

        def changed() -> Refusal:
            late = self._why_not_cancel(request.number)
            return late or Refusal(ChangePendingError, "it was changed meanwhile; repeat")

        command = rebalance_command(CancelMoves(open_one.number))
        self._propose(client, request.request_id, command, now_ms, changed)

    def _why_not_cancel(self, number: Seq) -> Refusal | None:
        last = self._view.catalog.rebalance.last
        if number and (last is None or number != last.number):
            return Refusal(ChangeDoneError, _unknown_number(number, last))
        known = self._view.catalog.rebalance.open
        if known is None:
            ended = last if number else None
            text = f"rebalance {number} has ended as {ended.state.value}" if ended else _NONE_OPEN
            return Refusal(ChangeDoneError, text)
        if known.is_cancelled:
            text = (
                f"rebalance {known.number} is being cancelled already; `raftstore rebalance "
                "status` shows what is still under way"
            )
            return Refusal(ChangeDoneError, text)
        return None

    # --- looking ----------------------------------------------------------------------------------

    def _report(self, request: AskRebalance) -> RebalanceAnswer:
        known = self._view.catalog.rebalance
        last = known.last
        report: RebalanceReport | None = None
        if last is not None:
            entries = [known.moves[channel] for channel in last.channels]
            moves = tuple(
                MoveReport(
                    each.move,
                    each.state,
                    each.reason,
                    each.change,
                    each.begun_ms,
                    each.ended_ms,
                    sum(self._copies.bytes_of(each.move.channel, n) for n in each.move.targets),
                    self._rebalancer.waits_for.get(each.move.channel, ""),
                )
                for each in entries
            )
            state = last.state
            if last.is_open:
                states = (each.state for each in entries if not each.state.is_end)
                state = overall_state(states, is_cancelled=False) if moves else state
            report = RebalanceReport(
                last.number, last.reason, state, last.begun_ms, last.ended_ms,
                last.is_cancelled, moves,
            )  # fmt: skip
        return RebalanceAnswer(
            request.request_id, report, known.throttle, dict(known.tags), known.leaders
        )

    # --- inside -----------------------------------------------------------------------------------

    def _propose(
        self,
        client: int,
        request_id: int,
        command: bytes,
        now_ms: int,
        why_conflict: Callable[[], Refusal] | None,
        on_applied: Callable[[], Refusal | None] | None = None,
        *,
        number: int = MEMBERS_FORMAT,
    ) -> None:
        """``on_applied`` answers by itself, or says why it has failed. ``number``: format of the
        command."""

        def done(answer: PubAck | PubReject, at_ms: int) -> None:
            self._view.on_catalog_applied(at_ms)  # the answer comes before the apply's notice
            refusal: Refusal | None = None
            if isinstance(answer, PubReject):
                refusal = Refusal(*refusal_by_code(answer.code, answer.message))
            elif on_applied is not None:
                refusal = on_applied()
            elif answer.conflict and why_conflict is not None:
                refusal = why_conflict()
            else:
                self._commands.answer(client, self._commands.done(request_id))
            if refusal is not None:
                self._fail(client, request_id, refusal)

        refusal = self._view.refusal_of_format(number)
        self._view.proposals.propose(self._view.metadata, command, done, now_ms, refusal=refusal)

    def _fail(self, client: int, request_id: int, refusal: Refusal) -> None:
        self._commands.fail(client, request_id, *refusal)


def _unknown_number(number: Seq, last: RebalanceEntry | None) -> str:
    """There is no such rebalance, and which there is. Earlier ones are not kept, so that one of
    them and one that never was look the same."""
    if last is None:
        return f"there is no rebalance {number}: the cluster has had none yet"
    if last.is_open:
        return (
            f"there is no rebalance {number}; {last.number} is open: cancel that one with "
            f"`raftstore rebalance cancel {last.number}`"
        )
    return (
        f"there is no rebalance {number}; the last one is {last.number}, which has ended as "
        f"{last.state.value}, and none is open"
    )
