"""Commands on tables at a node whose catalog, proposals and channels are a test's own."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec

from raftstore.engine.catalog.quorum_room import QuorumRoom
from raftstore.engine.catalog.table_commands import TableCommands
from raftstore.engine.catalog.table_definition import entry_of
from raftstore.errors import Refusal
from raftstore.protocol.admin import CreateTable, DropTable, EditTable, StepDown
from raftstore.protocol.message import Failed
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.state_machines.catalog import (
    EDITED_FORMAT,
    FIRST_FORMAT,
    Catalog,
    NodeEntry,
    TableEntry,
)
from raftstore.types import (
    ChannelConfig,
    ChannelId,
    DiskRoom,
    NodeId,
    Role,
    Seq,
    Term,
    channel_id,
    make_guid,
)

NODES = tuple(NodeId(f"n{number}@" + str(number) * 32) for number in (1, 2, 3))
ME, OTHER, THIRD = NODES
METADATA = channel_id(b"the-catalogs-id!", 0)
UUID, NEW_UUID = b"orders-table-id!", b"a-new-tables-id!"
CLIENT = 5
GUID = make_guid(b"session!", 1)
CREATE = CreateTable(1, "new", ("k",), 2, 3, "fsync", None, "", False, timeout_ms=100)
EDIT = EditTable(2, "orders", UUID, {"max_lag": 7}, timeout_ms=100)
DROP = DropTable(3, "orders", 100)


class Bench:
    """The leader of the metadata channel with one table; proposals are answered by the test."""

    def __init__(self, channels_max: int = 100, *, standby_reads: bool = True) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.commands_proposed: list[bytes] = []
        self.refusals: list[Refusal | None] = []
        self.outcomes: list[Callable[[PubAck | PubReject, int], None]] = []
        self.leaders: dict[ChannelId, tuple[NodeId | None, Term]] = {}
        self.format_refusal: Refusal | None = None
        self.space_refusal: Refusal | None = None
        self.applied_ms: list[int] = []
        self.asked: list[ChannelId] = []
        self.catalog = Catalog(4)
        for node in NODES:
            name = node.partition("@")[0]
            self.catalog.nodes[name] = NodeEntry(node, f"{name}:7100")
        self.orders = self.add(CREATE, "orders", UUID, partitions=1)
        self.elector: Any = SimpleNamespace(role=Role.LEADER, leader=ME)
        self.core: Any = SimpleNamespace(
            leader_is_ready=True, config=lambda: ChannelConfig((NODES,))
        )
        me: Any = self
        self.commands = TableCommands(
            ME,
            me,
            me,
            me,
            standby_reads=standby_reads,
            channels_max=channels_max,
            no_space=lambda: self.space_refusal,
            quorum_room=QuorumRoom(me),
        )

    def add(self, request: CreateTable, name: str, uuid: bytes, partitions: int) -> TableEntry:
        """A table of the catalog, written at seq 9."""
        entry = msgspec.structs.replace(
            entry_of(request), name=name, uuid=uuid, partitions=partitions,
            placement=(NODES,) * partitions,
        )  # fmt: skip
        self.catalog.tables[name] = entry
        self.catalog.seqs[name] = Seq(9)
        return entry

    is_disk_full = False

    def has_room(self, node: NodeId, wanted: DiskRoom) -> bool:
        """Every disk has."""
        return True

    # --- the view of the catalog, and what else the commands work with ----------------------------

    @property
    def proposals(self) -> Any:
        """The way into the log."""
        return self

    @property
    def metadata(self) -> Any:
        """The metadata channel."""
        return self

    def propose(
        self, runner: Any, command: bytes, done: Any, now_ms: int, *, refusal: Any = None
    ) -> None:
        """A command for the log."""
        assert runner is self
        assert now_ms >= 1_000
        self.commands_proposed.append(command)
        self.refusals.append(refusal)
        self.outcomes.append(done)

    def on_catalog_applied(self, now_ms: int) -> None:
        """The catalog is read anew."""
        self.applied_ms.append(now_ms)

    def refusal_of_format(self, number: int) -> Refusal | None:
        """Some node may be too old."""
        if number == FIRST_FORMAT:
            return None  # that every node reads
        assert number == EDITED_FORMAT
        return self.format_refusal

    def leader_of(self, channel: ChannelId) -> tuple[NodeId | None, Term]:
        """The leader that the node knows."""
        self.asked.append(channel)
        return self.leaders.get(channel, (None, Term(0)))

    def uuid(self) -> bytes:
        """A fresh one."""
        return NEW_UUID

    def answer(self, client: int, message: Any) -> None:
        """An answer to a client."""
        self.answers.append((client, message))

    # --- what the test does -----------------------------------------------------------------------

    def take(self) -> Any:
        """The one answer; nothing is held for the client any more."""
        [(client, message)] = self.answers
        assert client == CLIENT
        self.answers.clear()
        assert self.commands.held.total == 0
        return message

    def refused(self) -> tuple[int, str, str]:
        """The one answer, a refusal: number, code and text."""
        failed = self.take()
        assert isinstance(failed, Failed)
        return failed.request_id, failed.code, failed.message

    def create(self, request: CreateTable = CREATE) -> None:
        """Ask for a table."""
        self.commands.on_create_table(CLIENT, request, 1_000)

    def edit(self, request: EditTable = EDIT) -> None:
        """Ask for a change."""
        self.commands.on_edit_table(CLIENT, request, 1_000)

    def drop(self, request: DropTable = DROP) -> None:
        """Ask for no table."""
        self.commands.on_drop_table(CLIENT, request, 1_000)

    def step_down(self, timeout_ms: int = 100, request_id: int = 4) -> Any:
        """Ask for another leader of the table's channel; the runner of it."""
        runner: Any = SimpleNamespace(
            channel=self.orders.channels[0],
            name="orders/0",
            me=ME,
            elector=SimpleNamespace(term=Term(3)),
        )
        self.leaders[runner.channel] = (ME, Term(3))
        request = StepDown(request_id, runner.channel, timeout_ms=timeout_ms)
        assert self.commands.await_step_down(CLIENT, request, runner, 1_000)
        return runner

    def commit(self, at_ms: int = 1_010, *, conflict: bool = False) -> None:
        """The command that was proposed last is applied."""
        ack = PubAck(METADATA, Term(3), GUID, Seq(5), Seq(5), Term(3), "fsync", 2, conflict)
        self.outcomes.pop()(ack, at_ms)

    def reject(self, code: str = "unavailable") -> None:
        """The command that was proposed last is refused."""
        self.outcomes.pop()(PubReject(METADATA, Term(3), GUID, code, "why"), 1_010)

    def created(self, request: CreateTable = CREATE) -> TableEntry:
        """The table as it is in the catalog from now on."""
        return self.add(request, request.name, NEW_UUID, request.partitions)

    def lead(self, *channels: ChannelId) -> None:
        """The channels have leaders."""
        for channel in channels:
            self.leaders[channel] = (OTHER, Term(1))


DONE_DETAIL = {"version": 4}
