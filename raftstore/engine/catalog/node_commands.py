"""Commands by which nodes join, drain and leave: judged here, decided in the catalog (M27, M28)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Final, Protocol

from raftstore.engine.catalog.order_proposals import hosted_channels
from raftstore.engine.catalog.table_commands import CatalogView, TableCommands
from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.node_ports import NodeIdentity, Tell
from raftstore.errors import (
    JoinRefusedError,
    OverloadedError,
    Refusal,
    SchemaError,
    StillMemberError,
    StoreTooOldError,
    UnavailableError,
    UnknownNodeError,
    refusal_by_code,
)
from raftstore.policy.levels import MEMBERS_LEVEL, REPLACED_ONCE_LEVEL
from raftstore.protocol.members import (
    AskJoin,
    Drain,
    Join,
    JoinAccepted,
    JoinNonce,
    MakeTicket,
    Retire,
)
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.requests import MemberRequest
from raftstore.protocol.tickets import TICKET_LIFETIME_MS_MAX, JoinClaim, is_proven
from raftstore.state_machines.catalog import Catalog
from raftstore.state_machines.catalog_entries import (
    MEMBERS_FORMAT,
    REPLACED_ONCE_FORMAT,
    NodeEntry,
)
from raftstore.state_machines.catalog_members import (
    RetiredEntry,
    TicketEntry,
    add_ticket_command,
    drain_node_command,
    join_node_command,
    remove_node_command,
)
from raftstore.types import NodeId, TimestampMs, node_name

TICKETS_OPEN_MAX: Final = 64
"""Tickets that nobody has used yet and that have not expired."""
NAMES_SHOWN_MAX: Final = 5
ENDPOINT_CHARS_MAX: Final = 300
_NODE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}@[0-9a-f]{32}\Z")


class ClusterView(CatalogView, Protocol):
    """The node's view of the catalog and of where nodes are."""

    def endpoints(self) -> dict[NodeId, str]:
        """Every node that has not left, with its newest endpoint."""

    def refusal_of_format(self, number: int, gone: NodeId | None = None) -> Refusal | None:
        """Why a command of this format must not be written; None: all but ``gone`` can read it."""


class NodeCommands:
    """Takes the commands about nodes of all clients of one node."""

    def __init__(  # noqa: PLR0917 - each is one thing that it works with
        self,
        identity: NodeIdentity,
        commands: TableCommands,
        answers: ClientAnswers,
        view: ClusterView,
        wall_ms: Callable[[], int],
        is_up: Callable[[NodeId], bool],
        tell: Tell,
    ) -> None:
        """``commands``: those about tables, which count what a client has under way."""
        self._identity = identity
        self._commands = commands
        self._answers = answers
        self._view = view
        self._wall_ms = wall_ms
        self._is_up = is_up
        self._tell = tell

    def on_request(self, client: int, request: MemberRequest, now_ms: int) -> None:
        """A command of an operator, or of a node that joins."""
        if isinstance(request, AskJoin):
            self._answers.answer(client, JoinNonce(request.request_id, self._nonce(client)))
            return
        if self._commands.refuse_command(client, request.request_id):
            return
        match request:
            case MakeTicket():
                self._make_ticket(client, request, now_ms)
            case Join():
                self._join(client, request, now_ms)
            case Drain():
                self._drain(client, request, now_ms)
            case Retire():
                self._retire(client, request, now_ms)

    # --- tickets ----------------------------------------------------------------------------------

    def _make_ticket(self, client: int, request: MakeTicket, now_ms: int) -> None:
        catalog, time_ms = self._view.catalog, self._time_ms()
        if not 0 < request.lifetime_ms <= TICKET_LIFETIME_MS_MAX:
            text = (
                f"a ticket for {request.lifetime_ms} ms cannot be made; allowed are 1 ms to "
                f"{TICKET_LIFETIME_MS_MAX // 3_600_000} h"
            )
            self._fail(client, request.request_id, Refusal(SchemaError, text))
            return
        replaced = NodeId("")
        if request.replaces:
            found = self._node_named(request.replaces)
            problem = found if isinstance(found, Refusal) else None
            if not isinstance(found, Refusal):
                replaced = found
                problem = None if request.is_forced else self._why_not_replace(found)
            if problem is not None:
                self._fail(client, request.request_id, problem)
                return
        unused = {name: entry for name, entry in catalog.tickets.items() if not entry.used_by}
        expired = tuple(name for name, entry in unused.items() if entry.expires_ms <= time_ms)
        if len(unused) - len(expired) >= TICKETS_OPEN_MAX and request.ticket not in unused:
            text = (
                f"{TICKETS_OPEN_MAX} tickets are open, which is the limit; they expire by "
                "themselves"
            )
            self._fail(client, request.request_id, Refusal(OverloadedError, text))
            return
        expires_ms: TimestampMs = max(0, time_ms + request.lifetime_ms)
        entry = TicketEntry(request.stored_key, expires_ms, replaced, is_forced=request.is_forced)
        command = add_ticket_command(request.ticket, entry, expired)
        taken = Refusal(SchemaError, "another ticket has this name; make a new token")
        self._propose(client, request, command, now_ms, lambda: taken, gone=self._gone(replaced))

    def _why_not_replace(self, node: NodeId) -> Refusal | None:
        """A14: who is replaced counts as dead from the join on, in all its channels at once."""
        name = node_name(node)
        if self._is_up(node):
            text = (
                f"{name} is up: `raftstore cluster drain {name}` and `raftstore cluster remove "
                f"{name}` let it go without a gap; --force replaces it all the same"
            )
            return Refusal(StillMemberError, text)
        lost = [
            each
            for each in hosted_channels(self._view.catalog)
            if node in each.voters and not self._has_quorum_without(node, each.voters)
        ]
        if not lost:
            return None
        text = (
            f"{len(lost)} channels have no quorum of live replicas without {name}; start other "
            "nodes first, or replace it all the same with --force"
        )
        return Refusal(UnavailableError, text)

    def _has_quorum_without(self, node: NodeId, voters: tuple[NodeId, ...]) -> bool:
        live = sum(self._is_up(each) for each in voters if each != node)
        return 2 * live > len(voters)

    # --- joining ----------------------------------------------------------------------------------

    def _nonce(self, client: int) -> bytes:
        """One connection in one boot has it: a proof is of no use on another."""
        text = self._identity.boot_id + client.to_bytes(8, "big")
        return hashlib.blake2b(text, digest_size=16).digest()

    def _join(self, client: int, request: Join, now_ms: int) -> None:
        problem = self._why_not_join(client, request)
        if problem is not None:
            self._tell("join_refused", joiner=request.node[:100], reason=problem.text)
            self._fail(client, request.request_id, problem)
            return
        entry = self._view.catalog.tickets[request.ticket]
        node = NodeEntry(request.node, request.endpoint, level=request.level)
        gone = self._gone(NodeId(entry.replaces))
        # While older nodes could not read that, it is only judged here: two that ask in the same
        # moment may both be entered then, but a lost disk need not wait for the end of an upgrade.
        is_once = (
            request.level >= REPLACED_ONCE_LEVEL
            and self._view.refusal_of_format(REPLACED_ONCE_FORMAT, gone) is None
        )
        self._propose(
            client,
            request,
            join_node_command(request.ticket, entry, node, is_once=is_once),
            now_ms,
            lambda: (
                self._why_not_join(client, request)
                or Refusal(
                    UnavailableError, "the catalog changed meanwhile; nothing was done, retry"
                )
            ),
            lambda: self._accept(client, request),
            gone=gone,
        )

    def _accept(self, client: int, request: Join) -> None:
        catalog, endpoints = self._view.catalog, self._view.endpoints()
        number = catalog.numbers.get(request.node)
        if number is None:  # it was removed in the moment since
            gone = Refusal(JoinRefusedError, f"{request.node} was retired; use an empty directory")
            self._fail(client, request.request_id, gone)
            return
        self._tell("node_joined", joiner=request.node, endpoint=request.endpoint)
        founders = tuple(
            (node, endpoints.get(node, address)) for node, address in self._identity.members
        )
        self._commands.answer(
            client,
            JoinAccepted(
                request.request_id, founders, tuple(endpoints.items()), number, catalog.version
            ),
        )

    def _why_not_join(self, client: int, request: Join) -> Refusal | None:
        node, catalog = request.node, self._view.catalog
        host, colon, port = request.endpoint.rpartition(":")
        is_address = host and colon and port.isascii() and port.isdigit()
        if not _NODE_ID.match(node) or not is_address or len(request.endpoint) > ENDPOINT_CHARS_MAX:
            text = f"{node[:100]!r} at {request.endpoint[:100]!r} is no node id and address"
            return Refusal(SchemaError, f"{text}; install the same raftstore version on both sides")
        claim = JoinClaim(
            self._identity.cluster_id,
            request.ticket,
            node,
            request.endpoint,
            request.level,
            self._nonce(client),
        )
        ticket = catalog.tickets.get(request.ticket)
        # One answer for both, so that nobody learns which tickets there are.
        if ticket is None or not is_proven(request.proof, ticket.stored_key, claim):
            return Refusal(
                JoinRefusedError,
                "the cluster has no such ticket: it expired long ago, or the token is of another "
                "cluster; make a new one with `raftstore cluster token`",
            )
        if request.level < MEMBERS_LEVEL:
            text = f"{node} is at level {request.level}, {MEMBERS_LEVEL} is needed to join"
            return Refusal(StoreTooOldError, f"{text}; upgrade it")
        refusal = _why_not_by_ticket(catalog, ticket, node, self._time_ms())
        if refusal is not None or ticket.used_by:
            return refusal
        return self._why_not_here(request, ticket) or self._why_not_yet(ticket)

    def _why_not_here(self, request: Join, ticket: TicketEntry) -> Refusal | None:
        """Two nodes cannot be behind one address: the others would dial the wrong one."""
        for other, endpoint in self._view.endpoints().items():
            is_taken = endpoint == request.endpoint and other not in (request.node, ticket.replaces)
            if is_taken and self._is_up(other):
                text = (
                    f"{endpoint} is the address of {node_name(other)}, which is up; give the new "
                    "node --listen and --advertise of its own"
                )
                return Refusal(JoinRefusedError, text)
        return None

    def _why_not_yet(self, ticket: TicketEntry) -> Refusal | None:
        """A14 once more: since the token was made the lost node may have come back, or others may
        have gone. The new node waits until that is over."""
        replaced = NodeId(ticket.replaces)
        if ticket.is_forced or not replaced or self._why_not_replace(replaced) is None:
            return None
        name = node_name(replaced)
        if self._is_up(replaced):
            text = (
                f"{name} is up again, whose place the new node is to take; stop {name} if its "
                f"store is lost, or make a token with `raftstore cluster replace {name} --force`"
            )
        else:
            text = (
                f"channels would have no quorum of live replicas without {name}; start other "
                f"nodes first, or make a token with `raftstore cluster replace {name} --force`"
            )
        return Refusal(UnavailableError, text)

    # --- leaving ----------------------------------------------------------------------------------

    def _drain(self, client: int, request: Drain, now_ms: int) -> None:
        found = self._node_named(request.node)
        if isinstance(found, Refusal):
            self._fail(client, request.request_id, found)
            return
        left = Refusal(UnknownNodeError, f"{request.node} has left the cluster meanwhile")
        command = drain_node_command(found, drains=request.drains)
        self._propose(client, request, command, now_ms, lambda: left)

    def _retire(self, client: int, request: Retire, now_ms: int) -> None:
        found = self._node_named(request.node)
        if isinstance(found, Refusal):
            self._fail(client, request.request_id, found)
            return
        problem = self._why_not_retire(found)
        if problem is not None:
            self._fail(client, request.request_id, problem)
            return
        since = self._view.catalog.draining[found]
        changed = Refusal(
            UnavailableError, f"{request.node} was changed meanwhile; nothing was done, retry"
        )
        command = remove_node_command(found, since)
        self._propose(client, request, command, now_ms, lambda: changed)

    def _why_not_retire(self, node: NodeId) -> Refusal | None:
        name, catalog = node_name(node), self._view.catalog
        if node not in catalog.draining:
            text = f"{name} does not drain; begin with `raftstore cluster drain {name}`"
            return Refusal(StillMemberError, text)
        held = [
            f"{table.name}/{partition}"
            for table in catalog.tables.values()
            for partition, channel in enumerate(table.channels)
            if node in catalog.hosts_of(channel)
        ]
        if node in self._view.metadata.core.config().voters:
            held.append(self._view.metadata.name)
        if not held:
            return None
        shown = ", ".join(held[:NAMES_SHOWN_MAX])
        more = f" and {len(held) - NAMES_SHOWN_MAX} more" if len(held) > NAMES_SHOWN_MAX else ""
        return Refusal(
            StillMemberError,
            f"{name} has replicas of {len(held)} channels ({shown}{more}); it can leave when they "
            "are elsewhere",
        )

    # --- inside -----------------------------------------------------------------------------------

    def _time_ms(self) -> int:
        """The least that the next record states (S10), by which the catalog judges tickets: another
        leader's clock may have been ahead of this one's."""
        return max(self._wall_ms(), self._view.metadata.core.last_timestamp_ms + 1)

    def _node_named(self, name: str) -> NodeId | Refusal:
        """The registered node of this name or id."""
        nodes = self._view.catalog.nodes
        for known, entry in nodes.items():
            if name in (known, entry.node):
                return entry.node
        text = f"the cluster has no node {name[:100]!r}; it has {', '.join(nodes) or 'none yet'}"
        return Refusal(UnknownNodeError, text)

    def _propose(
        self,
        client: int,
        request: MakeTicket | Join | Drain | Retire,
        command: bytes,
        now_ms: int,
        why_conflict: Callable[[], Refusal],
        on_applied: Callable[[], None] | None = None,
        *,
        gone: NodeId | None = None,
    ) -> None:
        def done(answer: PubAck | PubReject, at_ms: int) -> None:
            self._view.on_catalog_applied(at_ms)  # the answer comes before the apply's notice
            if isinstance(answer, PubReject):
                refusal = Refusal(*refusal_by_code(answer.code, answer.message))
                self._fail(client, request.request_id, refusal)
            elif answer.conflict:
                self._fail(client, request.request_id, why_conflict())
            elif on_applied is not None:
                on_applied()
            else:
                self._commands.answer(client, self._commands.done(request.request_id))

        refusal = self._view.refusal_of_format(MEMBERS_FORMAT, gone)
        self._view.proposals.propose(self._view.metadata, command, done, now_ms, refusal=refusal)

    def _gone(self, replaced: NodeId) -> NodeId | None:
        """The node that is replaced, if it is down: it shall never read anything again, so it need
        not be of a version that could. One that comes back all the same stops as it reads this."""
        return replaced if replaced and not self._is_up(replaced) else None

    def _fail(self, client: int, request_id: int, refusal: Refusal) -> None:
        self._commands.fail(client, request_id, *refusal)


def _why_not_by_ticket(
    catalog: Catalog, ticket: TicketEntry, node: NodeId, time_ms: int
) -> Refusal | None:
    """The reason for which the catalog's own rule would refuse the node, in words."""
    name = node_name(node)
    if node in catalog.retired:
        text = f"{node} was retired and never comes back; start it with an empty --data-dir"
    elif ticket.used_by:
        if ticket.used_by == node:
            return None
        text = (
            f"the token was used by {ticket.used_by}, and admits one node; make a new one with "
            "`raftstore cluster token`"
        )
    elif ticket.expires_ms <= time_ms:
        text = "the token has expired; make a new one with `raftstore cluster token`"
    elif ticket.replaces in catalog.retired:
        text = _place_is_gone(NodeId(ticket.replaces), catalog.retired[NodeId(ticket.replaces)])
    else:
        taken = catalog.nodes.get(name)
        if taken is None or taken.node == ticket.replaces:
            return None
        text = (
            f"the cluster has a node {name} already, {taken.node}; choose another --id and an "
            "empty --data-dir, or if that one's store is lost, make a token with `raftstore "
            f"cluster token --replaces {name}`"
        )
    return Refusal(JoinRefusedError, text)


def _place_is_gone(replaced: NodeId, retired: RetiredEntry) -> str:
    """M29: the place of a node is taken once, whichever of several tokens for it comes first."""
    further = "a node that is to come besides takes a token of `raftstore cluster token`"
    if not retired.replaced_by:
        return f"{replaced}, whose place the token is for, was removed meanwhile; {further}"
    name = node_name(NodeId(retired.replaced_by))
    return (
        f"{replaced}, whose place the token is for, was replaced by {retired.replaced_by} "
        f"meanwhile; if the store of that one is lost, too, make a token with `raftstore cluster "
        f"replace {name}`; {further}"
    )
