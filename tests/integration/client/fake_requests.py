"""Answers of a fake node to reads, table commands and operators, from the truth it shares."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import structs

from raftstore.protocol.admin import (
    ClusterView,
    ContentHash,
    ContentHashAnswer,
    CreateTable,
    DropTable,
    EditTable,
    Events,
    EventsAnswer,
    Status,
    StatusAnswer,
    StepDown,
)
from raftstore.protocol.audit import ReportViolation
from raftstore.protocol.machines import MachineQuery, SkipCommand
from raftstore.protocol.message import Done, Failed, Message
from raftstore.protocol.publish import PubAck, WriteFate, WriteFateAnswer
from raftstore.protocol.reads import (
    ClosePin,
    Count,
    CountAnswer,
    Get,
    GetAnswer,
    Scan,
    ScanAnswer,
    Served,
)
from raftstore.protocol.replica_checks import RowExpiries, RowExpiriesAnswer
from raftstore.protocol.shared_commands import CommandFate, CommandFateAnswer, CommandsAck
from raftstore.protocol.table_settings import SETTING_LIMITS
from raftstore.rows.schema_growth import grown_schema
from raftstore.types import (
    Seq,
    Term,
    node_name,
)
from tests.integration.client.fake_batches import coordinate
from tests.integration.client.fake_machines import ask
from tests.integration.client.fake_snapshots import open_snapshot
from tests.integration.client.fake_states import give_state

if TYPE_CHECKING:
    from tests.integration.client.fake_cluster import FakeNode


def read(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
    """Answer a read from the truth, refusing like a node would."""
    assert isinstance(message, Get | Scan | Count)
    channel = node.cluster.channels.get(message.channel)
    if channel is None:
        reply(Failed(message.request_id, "unknown_channel", "not hosted here"))
        return
    if message.level in ("linearizable", "leader") and channel.leader != node.id:
        reply(Failed(message.request_id, "not_leader", "not I", leader_hint=channel.leader))
        return
    if message.level == "bounded" and (node.lag is None or node.lag > (message.max_lag or 0)):
        reply(Failed(message.request_id, "lag_exceeded", f"lag {node.lag} of {node.name}"))
        return
    if message.min_seq > channel.seq:
        text = f"applied seq {channel.seq} has not reached {message.min_seq}"
        delay_s = message.timeout_ms / 1000
        late = Failed(message.request_id, "not_up_to_bound", text)
        asyncio.get_running_loop().call_later(delay_s, reply, late)
        return
    served = Served(node.id, message.channel, channel.term, channel.seq, node.lag, 0, message.level)
    rows = channel.rows
    pin = 0
    if message.pin:
        if message.pin not in node.pins:
            reply(Failed(message.request_id, "page_expired", "the state is gone"))
            return
        seq, rows = node.pins[message.pin]
        pin = message.pin
        served = structs.replace(served, applied_seq=seq, pinned=True)
    if isinstance(message, Count):
        found_keys = _range(rows, message.start, message.stop)
        reply(CountAnswer(message.request_id, len(found_keys), served))
        return
    if isinstance(message, Get):
        found = [rows.get(bytes(key)) for key in message.keys]
        values = tuple(None if row is None else row[0] for row in found)
        seqs = tuple(Seq(0) if row is None else row[1] for row in found)
        reply(GetAnswer(message.request_id, values, seqs, served))
        return
    keys = _range(rows, message.start, message.stop)
    page = keys[: min(message.limit, node.page_rows_max)]
    more = len(keys) > len(page) or (message.keep and message.limit == 0)
    if message.keep and more:
        pin = node.pinned = node.pinned + 1
        node.pins[pin] = (channel.seq, dict(rows))
    found_rows = tuple(
        (key, None if message.keys_only else rows[key][0], rows[key][1]) for key in page
    )
    reply(ScanAnswer(message.request_id, found_rows, more, served, pin))


def _range(rows: dict[bytes, tuple[bytes, Seq]], start: bytes, stop: bytes) -> list[bytes]:
    return [key for key in sorted(rows) if key >= start and (not stop or key < stop)]


def execute(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
    """React to a table command or an operator's request."""
    cluster = node.cluster
    if isinstance(message, CreateTable | DropTable) and cluster.metadata.leader != node.id:
        hint = cluster.metadata.leader
        reply(Failed(message.request_id, "not_leader", "not I", leader_hint=hint))
    elif isinstance(message, CreateTable):
        if message.name in cluster.tables and not message.if_not_exists:
            reply(Failed(message.request_id, "table_exists", f"{message.name} exists"))
            return
        if message.name not in cluster.tables:
            settings, versions = message.settings, message.machine_versions
            cluster.created.append(message)
            cluster.add_table(
                message.name,
                message.partitions,
                key=message.key_columns,
                schema_json=message.schema_json,
                settings=structs.replace(settings, from_backup=versions is not None),
                machine=message.machine,
                version=1 if versions is None else versions[0],
            )
        reply(Done(message.request_id, {"version": cluster.version}))
    elif isinstance(message, DropTable):
        if message.name not in cluster.tables:
            reply(Failed(message.request_id, "unknown_table", f"no table {message.name}"))
            return
        cluster.drop_table(message.name)
        reply(Done(message.request_id, {"version": cluster.version}))
    elif isinstance(message, EditTable):
        table = cluster.tables[message.name]
        cluster.version += 1
        changes = dict(message.changes)
        if (added := changes.pop("add_columns", None)) is not None:
            changes["schema_json"] = grown_schema(table.key_columns, table.schema_json, added)
        names = (*SETTING_LIMITS, "restoring")
        own = {name: changes.pop(name) for name in names if name in changes}
        settings = structs.replace(table.settings, **own)
        cluster.tables[message.name] = structs.replace(table, settings=settings, **changes)
        reply(Done(message.request_id, {"version": cluster.version}))
    elif not coordinate(node, message, reply) and not open_snapshot(node, message, reply):
        _operate(node, message, reply)


def _tell(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> bool:
    """React to what is asked about writes, lags and events; False for anything else."""
    cluster = node.cluster
    if isinstance(message, MachineQuery):
        node.queries.append(message)
        ask(node, message, reply, read)
    elif isinstance(message, SkipCommand):
        cluster.skipped.append((message.channel, message.seq))
        reply(Done(message.request_id))
    elif isinstance(message, ReportViolation):
        node.reports.append(message)
        reply(Done(message.request_id))
    elif isinstance(message, ClosePin):
        node.pins.pop(message.pin, None)
        reply(Done(message.request_id))
    elif isinstance(message, WriteFate):
        channel = cluster.channels[message.channel]
        if channel.leader != node.id:
            reply(Failed(message.request_id, "not_leader", "not I", leader_hint=channel.leader))
            return True
        ack = channel.acks.get(message.guid)
        fate, seq = ("not_applied", Seq(0)) if ack is None else ("committed", ack.last_seq)
        served = Served(node.id, channel.channel, channel.term, channel.seq, 0, 0, "linearizable")
        told = (fate, seq, channel.term, "none", "by script")
        if isinstance(message, CommandFate):
            reply(command_fate(message, told, served, ack))
        else:
            reply(WriteFateAnswer(message.request_id, *told, served))
    elif isinstance(message, Events):
        wanted = [
            event
            for event in node.events[message.since :]
            if not message.types or event["type"] in message.types
        ]
        reply(EventsAnswer(message.request_id, node.id, len(node.events), tuple(wanted)))
    elif isinstance(message, ClusterView):
        reply(cluster.view(message.request_id, node))
    else:
        return False
    return True


def _operate(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
    cluster = node.cluster
    if give_state(node, message, reply) or _tell(node, message, reply):
        return
    if isinstance(message, Status):
        reply(StatusAnswer(message.request_id, {"node": node.name, "channels": []}))
    elif isinstance(message, RowExpiries):
        channel = cluster.channels[message.channel]
        expiries = tuple(
            (key, at_ms)
            for key, at_ms in channel.expiries.items()
            if key >= message.start and (not message.stop or key < message.stop)
        )
        reply(RowExpiriesAnswer(message.request_id, expiries, bool(channel.expiries)))
    elif isinstance(message, ContentHash):
        channel = cluster.channels[message.channel]
        served = Served(node.id, channel.channel, channel.term, channel.seq, 0, 0, "any")
        digest = repr(sorted(channel.rows.items())).encode()[:16]
        reply(ContentHashAnswer(message.request_id, digest, len(channel.rows), served))
    elif isinstance(message, StepDown):
        channel = cluster.channels[message.channel]
        if channel.leader != node.id:
            reply(Failed(message.request_id, "not_leader", "not I", leader_hint=channel.leader))
            return
        target = message.target or next(n for n in channel.replicas if n != node.id)
        cluster.elect(channel, node_name(target))
        reply(Done(message.request_id))


def command_fate(
    message: CommandFate, told: tuple[str, Seq, Term, str, str], served: Served, ack: PubAck | None
) -> CommandFateAnswer:
    """The fate of a command of a shared record; the last results alone are kept."""
    fate, seq, *others = told
    if not isinstance(ack, CommandsAck):
        return CommandFateAnswer(message.request_id, fate, seq, *others, served)
    seq = Seq(ack.base_seq + message.place - 1)
    return CommandFateAnswer(
        message.request_id, fate, seq, *others, served, ack.ends[message.place - 1]
    )
