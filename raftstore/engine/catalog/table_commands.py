"""Commands on tables and leaderships: refused, or proposed and answered when they had their effect.

What a client waits for here ends with an answer at its deadline at the latest. A refusal before
anything was proposed or handed over says so; what goes on behind the deadline is in doubt (S4.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol

import msgspec

from raftstore.config import (
    DROPPED_WRITERS_MAX,
    FRAME_BYTES_MAX,
    WAITING_COMMANDS_MAX,
)
from raftstore.engine.catalog.machine_codes import Codes, MachineCodes, first_version
from raftstore.engine.catalog.quorum_room import QuorumRoom
from raftstore.engine.catalog.table_definition import (
    REPLICAS,
    definition_problem,
    edit_problem,
    edited_entry,
    entry_of,
    resized,
)
from raftstore.engine.channel.proposals import Proposals
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.shares import Shares
from raftstore.errors import (
    NoLeaderError,
    NotLeaderError,
    OperationInDoubtError,
    OverloadedError,
    PayloadTooLargeError,
    Refusal,
    RequestError,
    SchemaError,
    TableExistsError,
    UnavailableError,
    UnknownTableError,
    refusal_by_code,
)
from raftstore.policy.placement import PlacementError, place_table
from raftstore.ports.ids import IdSource
from raftstore.protocol.admin import CreateTable, DropTable, EditTable, StepDown
from raftstore.protocol.members import JoinAccepted
from raftstore.protocol.message import Done, Failed, failed
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.staged import writer_fault
from raftstore.state_machines.batches.coordinator import CHECKPOINT_BYTES_MAX
from raftstore.state_machines.catalog import (
    Catalog,
    TableEntry,
    create_table_command,
    created_format,
    drop_table_command,
    edit_table_command,
    edited_format,
)
from raftstore.types import ChannelId, NodeId, Role, Term, channel_id, node_name

CATALOG_BYTES_MAX = FRAME_BYTES_MAX // 2
"""Tables with their schemas and placements: all of them travel in one answer to discovery, which
adds the leaders."""


_FIRST = 0


class CatalogView(Protocol):
    """The node's copy of the catalog, and the way to change it."""

    catalog: Catalog
    proposals: Proposals
    codes: MachineCodes

    @property
    def metadata(self) -> ChannelRunner:
        """The metadata channel of this node."""

    def on_catalog_applied(self, now_ms: int) -> None:
        """Read the catalog anew."""

    def refusal_of_format(self, number: int) -> Refusal | None:
        """Code and text if some node could not read a catalog command of this format."""

    def leader_of(self, channel: ChannelId) -> tuple[NodeId | None, Term]:
        """The leader of a channel, as far as this node knows."""

    def is_up(self, node: NodeId) -> bool:
        """Whether the node is up, as far as this node knows."""


@dataclass(slots=True)
class _Waiting:
    """A client that waits for leaders of a new table, or for a hand-over."""

    client: int
    request_id: int
    deadline_ms: int
    channels: tuple[ChannelId, ...]
    was_leader: tuple[NodeId, Term] | None = None
    what: str = ""
    seen: int = 0
    """So many of the channels had a leader at the last look."""


class TableCommands:
    """Takes the commands of all clients of one node, and keeps those that wait for leaders."""

    def __init__(
        self,
        me: NodeId,
        ids: IdSource,
        answers: ClientAnswers,
        view: CatalogView,
        *,
        standby_reads: bool,
        channels_max: int,
        no_space: Callable[[], Refusal | None],
        quorum_room: QuorumRoom,
    ) -> None:
        """``standby_reads``: what new tables begin with; ``channels_max``: of each node;
        ``no_space``: code and text if this node's disk has no room for changes of the catalog;
        ``quorum_room``: of a quorum's disks."""
        self._me = me
        self._ids = ids
        self._answers = answers
        self._standby_reads = standby_reads
        self._channels_max = channels_max
        self._no_space = no_space
        self._quorum_room = quorum_room
        self._view = view
        self.waiting: list[_Waiting] = []
        """Clients without an answer: always the same list."""
        self.deadlines: Deadlines[int] = Deadlines()
        """One: of the client that waits least long."""
        self.held: Shares[int] = Shares(
            "table and leadership commands", f"{WAITING_COMMANDS_MAX} for each"
        )
        """Commands without an answer, by request id."""

    def on_create_table(self, client: int, request: CreateTable, now_ms: int) -> None:
        """Compare-and-set on the name; answered when every partition has a leader (S0.8)."""
        if self.refuse_command(client, request.request_id):
            return
        existing = self._view.catalog.tables.get(request.name)
        problem = definition_problem(request, is_new=existing is None)
        if problem is not None:
            self.fail(client, request.request_id, SchemaError, problem)
            return
        if existing is not None:
            self._answer_existing(client, request, existing, now_ms)
            return
        candidates = self._view.catalog.placeable()
        try:
            placement = place_table(
                partitions=request.partitions,
                replicas=request.replicas,
                nodes=candidates,
                existing=self._view.catalog.placements(),
                domains=self._view.catalog.domains(),
            )
        except PlacementError as error:
            # Founders register in a moment; nobody knows of nodes that may come some day.
            founders = self._view.metadata.core.config().members
            is_final = request.replicas > len({*founders, *candidates})
            kind = SchemaError if is_final else UnavailableError
            self.fail(client, request.request_id, kind, str(error))
            return
        entry = msgspec.structs.replace(
            entry_of(request), uuid=self._ids.uuid(), placement=placement,
            standby_reads=self._standby_reads,
        )  # fmt: skip
        asked = client, request.request_id
        if self._refuse_full(*asked, placement) or self._refuse_bounds(*asked, entry):
            return
        if entry.machine:
            self._create_channelset(client, request, entry, now_ms)
        else:
            self._create(client, request, entry, now_ms)

    def _create(self, client: int, request: CreateTable, entry: TableEntry, now_ms: int) -> None:
        deadline_ms = now_ms + request.timeout_ms

        def done(answer: PubAck | PubReject, at_ms: int) -> None:
            if self._answer_failure(client, request.request_id, answer, "table"):
                return
            # The answer comes with the apply, before its notice.
            self._view.on_catalog_applied(at_ms)
            current = self._view.catalog.tables.get(request.name)
            if current is not None and current.uuid == entry.uuid:
                self._await_leaders(client, request, current, at_ms)
            elif current is not None:
                self._answer_existing(client, request, current, at_ms)
            elif isinstance(answer, PubAck) and answer.conflict:
                self._create_again(client, request, deadline_ms, at_ms)
            else:
                text = (
                    f"table {request.name!r} was created, and another client has dropped it since"
                )
                self.fail(client, request.request_id, OperationInDoubtError, text)

        self._view.proposals.propose(
            self._view.metadata,
            create_table_command(entry),
            done,
            now_ms,
            refusal=self._view.refusal_of_format(created_format(entry)),
        )

    def _create_again(
        self, client: int, request: CreateTable, deadline_ms: int, now_ms: int
    ) -> None:
        """Nothing was created: a node that was to host it began to drain, or left, before the
        record came (M27). By the catalog of now it is placed elsewhere."""
        if now_ms < deadline_ms:
            left = msgspec.structs.replace(request, timeout_ms=deadline_ms - now_ms)
            self.held.give(client, request.request_id, 1)
            self.on_create_table(client, left, now_ms)
        else:
            text = (
                f"nodes that were to host {request.name!r} began to drain or left at each try; "
                "nothing was done, retry"
            )
            self.fail(client, request.request_id, UnavailableError, text)

    def _create_channelset(
        self, client: int, request: CreateTable, entry: TableEntry, now_ms: int
    ) -> None:
        """Create it if the nodes that are to host it have the code of its machine."""
        hosts = sorted({node for group in entry.placement for node in group})

        def decide(codes: Codes, at_ms: int) -> None:
            up = [node for node in hosts if self._view.is_up(node)]
            found = first_version(request.machine, codes, up, request.machine_versions)
            if isinstance(found, Refusal):
                self.fail(client, request.request_id, found.error, found.text)
            else:
                versioned = msgspec.structs.replace(entry, machine_version=found)
                self._create(client, request, versioned, at_ms)

        self._view.codes.ask(request.machine, hosts, decide, now_ms)

    def on_drop_table(self, client: int, request: DropTable, now_ms: int) -> None:
        """Remove a table; its UUID is remembered as dropped, and who had batches in it."""
        if self.refuse_command(client, request.request_id):
            return
        entry = self._view.catalog.tables.get(request.name)
        if entry is None:
            text = f"there is no table {request.name!r}; `raftstore table ls` lists them"
            self.fail(client, request.request_id, UnknownTableError, text)
            return
        if request.uuid not in (b"", entry.uuid):
            text = f"table {request.name!r} was dropped and created again; look at it and repeat"
            self.fail(client, request.request_id, UnknownTableError, text)
            return

        def done(answer: PubAck | PubReject, at_ms: int) -> None:
            if not self._answer_failure(client, request.request_id, answer, "drop"):
                # The answer comes before the apply's notice.
                self._view.on_catalog_applied(at_ms)
                self.answer(client, self.done(request.request_id))

        command = drop_table_command(request.name, entry.uuid, _writers(request))
        self._view.proposals.propose(self._view.metadata, command, done, now_ms)

    def on_edit_table(self, client: int, request: EditTable, now_ms: int) -> None:
        """Change properties of a table: a compare-and-set on its entry, made again if it is lost.

        Each property is set on its own, so a concurrent change of another one is not undone.
        """
        if self.refuse_command(client, request.request_id):
            return
        catalog = self._view.catalog
        edited = self._edited(client, request)
        if edited is None or self._refuse_size(client, request.request_id, edited):
            return
        if edited == catalog.tables[request.name]:
            self.answer(client, self.done(request.request_id))
            return
        deadline_ms = now_ms + request.timeout_ms

        def done(answer: PubAck | PubReject, at_ms: int) -> None:
            self._view.on_catalog_applied(at_ms)  # the answer comes before the apply's notice
            if isinstance(answer, PubReject):
                self.fail(client, request.request_id, *refusal_by_code(answer.code, answer.message))
            elif not answer.conflict:
                self.answer(client, self.done(request.request_id))
            elif at_ms < deadline_ms:
                left = msgspec.structs.replace(request, timeout_ms=deadline_ms - at_ms)
                self.held.give(client, request.request_id, 1)
                self.on_edit_table(client, left, at_ms)
            else:
                text = f"others changed table {request.name!r} at each try; nothing was done, retry"
                self.fail(client, request.request_id, UnavailableError, text)

        self._view.proposals.propose(
            self._view.metadata,
            edit_table_command(edited, catalog.seqs[request.name]),
            done,
            now_ms,
            refusal=self._view.refusal_of_format(edited_format(edited)),
        )

    def await_step_down(
        self, client: int, request: StepDown, runner: ChannelRunner, now_ms: int
    ) -> bool:
        """Answer when the channel has another leader, or at the deadline; False: refused."""
        if self._refuse_overload(client, request.request_id):
            return False
        command = _Waiting(
            client,
            request.request_id,
            now_ms + request.timeout_ms,
            (runner.channel,),
            was_leader=(runner.me, runner.elector.term),
            what=f"hand-over of {runner.name}",
        )
        self._wait_for([*self.waiting, command])
        return True

    def is_handing_over(self, runner: ChannelRunner) -> bool:
        """Whether a client waits for this leader to hand the channel over."""
        asked = (runner.me, runner.elector.term)
        return any(
            waiting.was_leader == asked and waiting.channels == (runner.channel,)
            for waiting in self.waiting
        )

    def step_down_refused(self, runner: ChannelRunner, reason: str) -> None:
        """S9: nobody was asked to take over, so the leadership certainly stays."""
        asked = (runner.me, runner.elector.term)
        still: list[_Waiting] = []
        for waiting in self.waiting:
            if waiting.channels == (runner.channel,) and waiting.was_leader == asked:
                text = f"{waiting.what}: {reason}"
                self.fail(waiting.client, waiting.request_id, UnavailableError, text)
            else:
                still.append(waiting)
        self._wait_for(still)

    def check_waiting(self, now_ms: int) -> None:
        """Answer those whose leaders are there, and those whose time is up."""
        still: list[_Waiting] = []
        for waiting in self.waiting:
            if self._have_new_leaders(waiting):
                self.answer(waiting.client, self.done(waiting.request_id))
            elif now_ms >= waiting.deadline_ms:
                missing = [c for c in waiting.channels if not self._has_new_leader(c, waiting)]
                text = (
                    f"{waiting.what}: {len(missing)} of {len(waiting.channels)} channels have "
                    "no new leader yet; it goes on, and `raftstore channel ls` shows how it ended"
                )
                self.fail(waiting.client, waiting.request_id, OperationInDoubtError, text)
            else:
                still.append(waiting)
        self._wait_for(still)

    # --- inside -----------------------------------------------------------------------------------

    def refuse_command(self, client: int, request_id: int) -> bool:
        """Before anything is done: such an answer says that it certainly will not be."""
        return self._refuse_unless_leader(client, request_id) or self._refuse_overload(
            client, request_id
        )

    def on_client_gone(self, client: int) -> None:
        """Forget the client's commands; proposals and hand-overs go on."""
        for request_id in self.held.of(client):
            self.held.give(client, request_id)
        self._wait_for([waiting for waiting in self.waiting if waiting.client != client])

    def _wait_for(self, waiting: list[_Waiting]) -> None:
        self.waiting[:] = waiting
        self.deadlines.cancel(_FIRST)
        if waiting:
            self.deadlines.push(_FIRST, min(each.deadline_ms for each in waiting))

    def _refuse_unless_leader(self, client: int, request_id: int) -> bool:
        elector = self._view.metadata.elector
        if elector.role is Role.LEADER and self._view.metadata.core.leader_is_ready:
            return False
        if elector.leader is not None and elector.leader != self._me:
            text = f"the catalog is led by {node_name(elector.leader)}, ask there"
            hint = elector.leader
            self._answers.answer(client, failed(request_id, NotLeaderError, text, leader_hint=hint))
        else:
            text = "the metadata channel has no leader now"
            if (full := self._no_space()) is not None:
                text = f"{text}: {full.text}"
                self._answers.answer(client, failed(request_id, full.error, text))
            else:
                text = f"{text}; data channels go on, retry later"
                self._answers.answer(client, failed(request_id, NoLeaderError, text))
        return True

    def _refuse_overload(self, client: int, request_id: int) -> bool:
        """Take the command in, unless the client has too many here that are not finished."""
        full = self.held.refusal(client, WAITING_COMMANDS_MAX)
        if full is not None:
            self._answers.answer(client, failed(request_id, OverloadedError, full))
            return True
        self.held.take(client, request_id)
        return False

    def _edited(self, client: int, request: EditTable) -> TableEntry | None:
        """The entry as it is to be; None: refused."""
        entry = self._view.catalog.tables.get(request.name)
        kind: type[RequestError] = SchemaError
        problem = edit_problem(request.changes)
        if problem is None and (entry is None or entry.uuid != request.uuid):
            kind = UnknownTableError
            problem = f"table {request.name!r} was dropped; see `raftstore table ls`, then repeat"
        if problem is None:
            assert entry is not None
            try:
                edited = edited_entry(entry, request.changes)
                if REPLICAS in request.changes:
                    edited = resized(edited, self._view.catalog, self._channels_max)
                return edited
            except SchemaError as error:
                problem = f"table {request.name!r}: {error}"
        self.fail(client, request.request_id, kind, problem)
        return None

    def _refuse_size(self, client: int, request_id: int, entry: TableEntry) -> bool:
        """Whether the catalog with this entry would not fit into one answer to discovery."""
        others = [each for each in self._view.catalog.tables.values() if each.name != entry.name]
        size = len(msgspec.msgpack.encode((*others, entry)))
        if size <= CATALOG_BYTES_MAX:
            return False
        text = (
            f"with table {entry.name!r} the catalog has {size} bytes, the limit is "
            f"{CATALOG_BYTES_MAX}; use fewer partitions or a smaller schema, or drop tables"
        )
        self.fail(client, request_id, PayloadTooLargeError, text)
        return True

    def _refuse_bounds(self, client: int, request_id: int, entry: TableEntry) -> bool:
        """Whether the catalog, or some node, would have more than it may."""
        asked = client, request_id
        return self._refuse_size(*asked, entry) or self._refuse_channels(*asked, entry)

    def _refuse_full(
        self, client: int, request_id: int, placement: Sequence[Sequence[NodeId]]
    ) -> bool:
        """Before a proposal that no quorum has room for: behind it the outcome is unknown."""
        config = self._view.metadata.core.config()
        full = self._no_space() or self._quorum_room.catalog_refusal(config)
        full = full or self._quorum_room.table_refusal(placement)
        if full is not None:
            self.fail(client, request_id, full.error, full.text)
        return full is not None

    def _refuse_channels(self, client: int, request_id: int, entry: TableEntry) -> bool:
        """Whether a node would have more channels than its open files allow."""
        placed = Counter(node for replicas in entry.placement for node in replicas)
        for placement in self._view.catalog.placements():
            placed.update(node for hosts in placement for node in hosts)
        node, channels = max(placed.items(), key=itemgetter(1))
        channels += 1  # that of the metadata
        if channels <= self._channels_max:
            return False
        text = (
            f"with table {entry.name!r} node {node_name(node)} would have {channels} channels, the "
            f"limit is {self._channels_max}; use fewer partitions, drop tables, or raise "
            "LimitNOFILE (ulimit -n) and storage.channels_max of the nodes"
        )
        self.fail(client, request_id, SchemaError, text)
        return True

    def _answer_existing(
        self, client: int, request: CreateTable, existing: TableEntry, now_ms: int
    ) -> None:
        same = existing.same_definition(entry_of(request))
        if same and request.if_not_exists:
            self._await_leaders(client, request, existing, now_ms)
            return
        text = f"table {request.name!r} exists already" + (
            ", with this definition; if that is fine, give if_not_exists=True (--if-not-exists)"
            if same
            else " with another definition (see `raftstore table info`)"
        )
        self.fail(client, request.request_id, TableExistsError, text)

    def _answer_failure(
        self, client: int, request_id: int, answer: PubAck | PubReject, what: str
    ) -> bool:
        if isinstance(answer, PubReject):
            self.fail(client, request_id, *refusal_by_code(answer.code, answer.message))
            return True
        if answer.conflict and what == "drop":
            self.fail(client, request_id, UnknownTableError, "the table was dropped meanwhile")
            return True
        return False

    def _await_leaders(
        self, client: int, request: CreateTable, table: TableEntry, now_ms: int
    ) -> None:
        if not self.held.holds(client, request.request_id):
            return  # the client is gone
        channels = tuple(channel_id(table.uuid, p) for p in range(table.partitions))
        command = _Waiting(
            client,
            request.request_id,
            now_ms + request.timeout_ms,
            channels,
            what=f"leaders of table {request.name!r}",
        )
        self._wait_for([*self.waiting, command])
        self.check_waiting(now_ms)

    def done(self, request_id: int) -> Done:
        """With the version of the catalog that shows it: other copies may be behind (S1.9)."""
        return Done(request_id, {"version": self._view.catalog.version})

    def _have_new_leaders(self, waiting: _Waiting) -> bool:
        """Whether all channels are led; looks on where it stopped last, for this is asked at every
        turn and a table may have thousands."""
        channels = waiting.channels
        while waiting.seen < len(channels):
            if not self._has_new_leader(channels[waiting.seen], waiting):
                return False
            waiting.seen += 1
        # Those seen first may have lost their leaders meanwhile.
        for at, channel in enumerate(channels):
            if not self._has_new_leader(channel, waiting):
                waiting.seen = at
                return False
        return True

    def _has_new_leader(self, channel: ChannelId, waiting: _Waiting) -> bool:
        leader, term = self._view.leader_of(channel)
        return leader is not None and (leader, term) != waiting.was_leader

    def fail(self, client: int, request_id: int, error: type[RequestError], text: str) -> None:
        """Refuse a command that was taken in."""
        self.answer(client, failed(request_id, error, text))

    def answer(self, client: int, message: Done | Failed | JoinAccepted) -> None:
        """End a command that was taken in."""
        self.held.give(client, message.request_id, 1)
        self._answers.answer(client, message)


def _writers(request: DropTable) -> tuple[tuple[str, str], ...]:
    """The writers to be remembered, without what no BEGIN can name: nobody asks for that."""
    return tuple(
        (writer, lineage)
        for writer, lineage in request.writers[:DROPPED_WRITERS_MAX]
        if writer_fault(writer) is None and 0 < len(lineage.encode()) <= CHECKPOINT_BYTES_MAX
    )
