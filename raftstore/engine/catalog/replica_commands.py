"""Commands about the replicas of channels: judged here, decided in the catalog (M20)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raftstore.engine.catalog.table_commands import CatalogView, TableCommands
from raftstore.engine.client_answers import ClientAnswers
from raftstore.errors import (
    ChangeDoneError,
    ChangePendingError,
    Refusal,
    SchemaError,
    UnavailableError,
    UnknownNodeError,
    UnknownTableError,
    refusal_by_code,
)
from raftstore.protocol.message import Done
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.replica_orders import (
    AskOrders,
    CancelOrder,
    OrderedReplicas,
    OrderReplicas,
    OrdersAnswer,
)
from raftstore.state_machines.catalog_entries import MEMBERS_FORMAT
from raftstore.state_machines.catalog_replicas import (
    ChangeReplicas,
    ReplicaEntry,
    cancel_change_command,
    change_replicas_command,
    order_problem,
    roles_of_order,
    rows_problem,
)
from raftstore.types import (
    ChangeNumber,
    ChannelId,
    NodeId,
    Seq,
    channel_partition,
    node_name,
)

_Found = tuple[NodeId, ...]


class ReplicaCommands:
    """Takes the commands about replicas of all clients of one node."""

    def __init__(
        self,
        commands: TableCommands,
        answers: ClientAnswers,
        view: CatalogView,
        is_up: Callable[[NodeId], bool],
    ) -> None:
        """``commands``: those about tables, which count what a client has under way."""
        self._commands = commands
        self._answers = answers
        self._view = view
        self._is_up = is_up

    def on_request(
        self, client: int, request: OrderReplicas | CancelOrder | AskOrders, now_ms: int
    ) -> None:
        """A command, or a question, of an operator."""
        if isinstance(request, AskOrders):
            found = tuple(_ordered(*each) for each in self._view.catalog.changes.items())
            self._answers.answer(client, OrdersAnswer(request.request_id, found))
            return
        if self._commands.refuse_command(client, request.request_id):
            return
        if isinstance(request, OrderReplicas):
            self._order(client, request, now_ms)
        else:
            self._cancel(client, request, now_ms)

    # --- orders -----------------------------------------------------------------------------------

    def _order(self, client: int, request: OrderReplicas, now_ms: int) -> None:
        known = self._known(request)
        if known is not None:
            self._answer_change(client, request.request_id, known)
            return
        judged = self._judged(request)
        if isinstance(judged, Refusal):
            self._fail(client, request.request_id, judged)
            return

        def done(answer: PubAck | PubReject, at_ms: int) -> None:
            self._view.on_catalog_applied(at_ms)  # the answer comes before the apply's notice
            change = self._known(request)
            if isinstance(answer, PubReject):
                refusal = Refusal(*refusal_by_code(answer.code, answer.message))
                self._fail(client, request.request_id, refusal)
            elif change is not None:
                self._answer_change(client, request.request_id, change)
            else:
                text = f"{self._name(request.channel)} was changed meanwhile; look at it and repeat"
                self._fail(client, request.request_id, Refusal(ChangePendingError, text))

        self._propose(change_replicas_command(judged), done, now_ms)

    def _known(self, request: OrderReplicas) -> ChangeNumber | None:
        """The number of this very order, if the catalog has it."""
        entry = self._view.catalog.changes.get(request.channel)
        if entry is not None and entry.order is not None and entry.order.guid == request.order:
            return entry.order.target.change
        if entry is not None and entry.ended is not None and entry.ended.guid == request.order:
            return entry.ended.change
        return None

    def _judged(self, request: OrderReplicas) -> ChangeReplicas | Refusal:
        catalog, channel = self._view.catalog, request.channel
        table, entry = catalog.table_of(channel), catalog.entry_of(channel)
        if table is None or entry is None:
            text = f"the cluster has no channel {channel.hex()}; `raftstore channel ls` lists them"
            return Refusal(UnknownTableError, text)
        groups: list[_Found] = []
        for names in (request.voters, request.learners, request.witnesses):
            found = self._nodes(names)
            if isinstance(found, Refusal):
                return found
            groups.append(found)
        voters, learners, witnesses = groups
        wanted = ChangeReplicas(
            channel,
            table.name,
            voters,
            catalog.change_seqs.get(channel, Seq(0)),
            request.order,
            request.reason,
            learners,
            witnesses=witnesses,
        )
        problem = order_problem(voters, learners) or _role_problem(wanted, entry)
        if problem is not None:
            return Refusal(SchemaError, problem)
        refusal = self._why_not(channel, entry, wanted)
        if refusal is None and not request.is_forced:
            refusal = self._why_stuck(channel, entry, voters)
        return wanted if refusal is None else refusal

    def _nodes(self, names: Sequence[str]) -> _Found | Refusal:
        known = self._view.catalog.nodes
        ids = {name: entry.node for name, entry in known.items()}
        ids |= {entry.node: entry.node for entry in known.values()}
        for name in names:
            if name not in ids:
                text = f"the cluster has no node {name[:100]!r}; it has {', '.join(known)}"
                return Refusal(UnknownNodeError, text)
        return tuple(ids[name] for name in names)

    def _why_not(
        self, channel: ChannelId, entry: ReplicaEntry, wanted: ChangeReplicas
    ) -> Refusal | None:
        name, config = self._name(channel), entry.config
        voters, learners = wanted.voters, wanted.learners
        if entry.target is not None:
            change = entry.target.change
            text = (
                f"order {change} for {name} is open; wait until it has ended, or cancel it with "
                f"`raftstore channel change cancel {name} {change}`"
            )
            return Refusal(ChangePendingError, text)
        is_same = set(voters) == set(config.voters) and set(learners) == set(config.learners)
        if is_same and roles_of_order(wanted, config) == config.roles:
            held = ", ".join(map(node_name, voters))
            return Refusal(SchemaError, f"{name} has these replicas already: {held}")
        former = [node for node in learners if node in config.voters]
        if former:
            text = f"{node_name(former[0])} votes in {name} and cannot become a learner of it"
            return Refusal(SchemaError, f"{text}; remove its replica first")
        draining = self._view.catalog.draining
        leaving = [node for node in (*voters, *learners) if node in draining]
        added = [node for node in leaving if node not in config.members]
        if added:
            first = node_name(added[0])
            text = f"{first} drains and gets no further replicas; choose another node"
            return Refusal(SchemaError, f"{text}, or `raftstore cluster drain {first} --undo`")
        return None

    def _why_stuck(self, channel: ChannelId, entry: ReplicaEntry, voters: _Found) -> Refusal | None:
        """M10: it could not be carried out with the nodes that are up."""
        for group in (entry.config.voters, voters):
            down = [node_name(node) for node in group if not self._is_up(node)]
            if 2 * (len(group) - len(down)) <= len(group):
                text = (
                    f"{self._name(channel)} would wait: of {len(group)} voters {', '.join(down)} "
                    "are down; start them first, or order it all the same with --force"
                )
                return Refusal(UnavailableError, text)
        return None

    # --- cancelling -------------------------------------------------------------------------------

    def _cancel(self, client: int, request: CancelOrder, now_ms: int) -> None:
        name = self._name(request.channel)

        def why_over() -> Refusal:
            entry = self._view.catalog.changes.get(request.channel)
            return Refusal(ChangeDoneError, _not_open(request.change, name, entry))

        entry = self._view.catalog.changes.get(request.channel)
        if entry is None or entry.target is None or entry.target.change != request.change:
            self._fail(client, request.request_id, why_over())
            return

        def done(answer: PubAck | PubReject, at_ms: int) -> None:
            self._view.on_catalog_applied(at_ms)
            if isinstance(answer, PubReject):
                refusal = Refusal(*refusal_by_code(answer.code, answer.message))
                self._fail(client, request.request_id, refusal)
            elif answer.conflict:
                self._fail(client, request.request_id, why_over())
            else:
                self._commands.answer(client, self._commands.done(request.request_id))

        self._propose(cancel_change_command(request.channel, request.change), done, now_ms)

    # --- inside -----------------------------------------------------------------------------------

    def _propose(
        self, command: bytes, done: Callable[[PubAck | PubReject, int], None], now_ms: int
    ) -> None:
        refusal = self._view.refusal_of_format(MEMBERS_FORMAT)
        self._view.proposals.propose(self._view.metadata, command, done, now_ms, refusal=refusal)

    def _name(self, channel: ChannelId) -> str:
        table = self._view.catalog.table_of(channel)
        return channel.hex() if table is None else f"{table.name}/{channel_partition(channel)}"

    def _answer_change(self, client: int, request_id: int, change: ChangeNumber) -> None:
        detail = {**self._commands.done(request_id).detail, "change": change}
        self._commands.answer(client, Done(request_id, detail))

    def _fail(self, client: int, request_id: int, refusal: Refusal) -> None:
        self._commands.fail(client, request_id, *refusal)


def _role_problem(wanted: ChangeReplicas, entry: ReplicaEntry) -> str | None:
    """Why replicas cannot have the ordered roles; None: they can."""
    config = entry.config
    for node in wanted.witnesses:
        if node not in wanted.voters:
            return f"{node_name(node)} is to be a witness and no voter; name it among the voters"
        if node in config.members and not config.is_witness(node):
            return (
                f"{node_name(node)} has the rows and cannot become a witness; remove its replica "
                "first, then add it as one"
            )
    former = [node for node in wanted.learners if config.is_witness(node)]
    if former:
        return (
            f"{node_name(former[0])} is a witness without rows and cannot serve reads; remove its "
            "replica first, then add it as a reader"
        )
    return rows_problem(wanted.voters, roles_of_order(wanted, config))


def _ordered(channel: ChannelId, entry: ReplicaEntry) -> OrderedReplicas:
    order, ended = entry.order, entry.ended
    found = OrderedReplicas(channel, entry.config, entry.config_seq)
    if ended is not None:
        found = OrderedReplicas(
            channel, entry.config, entry.config_seq,
            ended_change=ended.change, is_done=ended.is_done,
        )  # fmt: skip
    if order is None:
        return found
    target = order.target
    return OrderedReplicas(
        channel, entry.config, entry.config_seq, target.change, target.voters, target.learners,
        target.numbers, target.cancelled, order.reason, order.ordered_ms,
        found.ended_change, found.is_done, target.roles,
    )  # fmt: skip


def _not_open(change: ChangeNumber, name: str, entry: ReplicaEntry | None) -> str:
    """An order that cannot be cancelled: what became of it, or which there are. Of those that have
    ended only the last one is kept."""
    order = None if entry is None else entry.order
    if order is not None:
        return (
            f"there is no open order {change} for {name}; {order.target.change} is: cancel that "
            f"one with `raftstore channel change cancel {name} {order.target.change}`"
        )
    ended = None if entry is None else entry.ended
    if ended is None:
        return f"there is no order {change} for {name}, and none was given yet"
    if ended.change != change:
        return (
            f"there is no order {change} for {name}; the last one is {ended.change}, which has "
            "ended, and none is open"
        )
    if ended.is_done:
        return (
            f"order {change} for {name} has ended, its replicas are those that were ordered; "
            "order the opposite to take it back"
        )
    return f"order {change} for {name} was cancelled already"
