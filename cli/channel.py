"""``raftstore channel``: one partition's replicas."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import click

from raftstore.cli.common import Context, pass_context
from raftstore.cli.names import CHANNEL
from raftstore.cli.placed import named
from raftstore.cli.verify import verify
from raftstore.cli.watch import watched
from raftstore.client.blocking.client import Client
from raftstore.client.replicas import ReplicaChange
from raftstore.client.results import NodeStatus
from raftstore.errors import ArgumentError
from raftstore.protocol.admin import TableInfo
from raftstore.types import MemberRole, Role, node_name

OWN_WORD: Final = (
    "role", "term", "mode", "reason", "base_seq", "applied_seq", "commit_seq", "last_seq",
    "log_bytes", "lag",
)  # fmt: skip
"""What a replica reports of itself (``raftstore.policy.status.SeenChannel``)."""

ROLES: Final = tuple(
    role.value for role in (MemberRole.VOTER, MemberRole.READER, MemberRole.WITNESS)
)
"""What a new replica may be."""


@click.group()
def channel() -> None:
    """List and show channels, move replicas and leadership, compare replicas."""


@channel.command("ls")
@pass_context
def list_channels(context: Context) -> None:
    """Every channel with its leader and replicas.

    \b
    Example:
      raftstore channel ls
    """
    with context.connect() as client:
        rows = [
            {
                "channel": f"{table.name}/{number}",
                "leader": None if found.leader is None else node_name(found.leader),
                "term": found.term,
                "replicas": ",".join(node_name(node) for node in found.replicas),
            }
            for table in client.tables()
            for number, found in enumerate(table.channels)
        ]
    context.show(rows, rows)


@channel.command()
@click.argument("name", type=CHANNEL)
@click.option("--watch", is_flag=True, help="Show it again every two seconds, until Ctrl-C.")
@pass_context
def info(context: Context, name: str, *, watch: bool) -> None:
    """Show every replica of a channel by its own report: whether it votes or only serves reads,
    role, term, positions and lag; which standbys could lead at once, by their leader; how far one
    is that catches up, and who keeps records in each log. As JSON it has the record of the leader,
    the replicas in sync (isr), the standbys in sync (iss), and the epochs of that.

    \b
    Example:
      raftstore channel info orders/3
      raftstore channel info orders/3 --watch
    """
    with context.connect() as client:

        def look() -> tuple[TableInfo, int, dict[str, NodeStatus]]:
            table, number = named(client, name)
            return table, number, {node.name: node for node in client.cluster_status().nodes}

        watched(context, look, partial(_show_info, context, name), again=watch)


def _show_info(
    context: Context, name: str, found: tuple[TableInfo, int, dict[str, NodeStatus]]
) -> None:
    table, number, nodes = found
    placed = table.channels[number]
    replicas = [
        {
            "node": node_name(node),
            "member": placed.roles.get(node, MemberRole.VOTER).value,
            **_replica(nodes.get(node_name(node)), table.name, number),
        }
        for node in placed.replicas
    ]
    leaders = [row for row in replicas if row["role"] == Role.LEADER.value]
    leader = max(leaders, key=lambda row: row["term"], default=None)
    whole = {
        "channel": name,
        "id": placed.channel.hex(),
        "leader": None if leader is None else leader["node"],
    }
    said, _ = _said(nodes.get(whole["leader"] or ""), table.name, number)
    record, late = said.get("record"), said.get("late_standbys") or {}
    if context.output != "table":
        context.show({**whole, "record": record, "late_standbys": late, "replicas": replicas})
        return
    context.show(None, [whole])
    for rows in (
        [
            {
                **{field: row[field] for field in ("node", "member", *OWN_WORD)},
                "standby": _standby(row["node"], record, late),
                "note": row["note"],
            }
            for row in replicas
        ],
        [_catch_up_row(row["node"], row["catch_up"]) for row in replicas if row["catch_up"]],
        [_floor_row(row, floor) for row in replicas for floor in row["floors"] or ()],
    ):
        if rows:
            click.echo()
            context.show(None, rows)


def _standby(node: str, record: Mapping[str, Any] | None, late: Mapping[str, str]) -> str:
    """Whether a replica could lead at once, by its leader; if not, why."""
    if record is None or node not in record["hot_standby_replicas"]:
        return ""
    return "in sync" if node in record["iss"] else late.get(node, "not in sync")


def _catch_up_row(node: str, reported: Mapping[str, Any]) -> dict[str, Any]:
    """A replica on its way to its leader's end."""
    left_ms = reported["left_ms"]
    words = [word for word in ("waits", "is_far", "cannot_complete") if reported[word]]
    return {
        "catches up": node,
        "because": reported["reason"],
        "at": reported["verified_seq"],
        "of": reported["end_seq"],
        "rows left": reported["rows_left"],
        "rows/s": reported["rows_per_s"],
        "bytes/s": reported["bytes_per_s"],
        "taken": reported["bytes_taken"],
        "left": "?" if left_ms is None else f"{left_ms / 1000:.0f}s",
        "note": " ".join(words),
    }


def _floor_row(replica: Mapping[str, Any], floor: Mapping[str, Any]) -> dict[str, Any]:
    """A reason to keep records in the log of a node."""
    return {
        "log of": replica["node"],
        "kept by": floor["name"],
        "owner": floor["owner"],
        "behind seq": floor["seq"],
        "rows": max(0, (replica["last_seq"] or 0) - floor["seq"]),
        "at most": "no bound" if floor["bytes_max"] is None else floor["bytes_max"],
        "given up": "yes" if floor["is_given_up"] else "",
    }


@channel.command()
@click.argument("name", type=CHANNEL)
@pass_context
def gaps(context: Context, name: str) -> None:
    """List what each replica of a channel misses between what it holds.

    A replica that lost a payload, or got no news of a record, asks the others for it and catches
    up if none gives it; a log that was damaged is filled by the others. So a gap lasts some tenths
    of a second, unless no node that is up holds what is missing. What is behind a replica's
    end_seq is no gap but its lag, which `raftstore channel info` shows.

    \b
    Example:
      raftstore channel gaps orders/3
      raftstore channel gaps orders/3 -o json
    """
    with context.connect() as client:
        table, number = named(client, name)
        nodes = {node.name: node for node in client.cluster_status().nodes}
    placed = table.channels[number]
    replicas: list[dict[str, Any]] = []
    for node in map(node_name, placed.replicas):
        said, note = _said(nodes.get(node), table.name, number)
        held = {field: said.get(field) for field in ("end_seq", "gaps")}
        first_seq = said["base_seq"] + 1 if said else None
        replicas.append({"node": node, "first_seq": first_seq, **held, "note": note})
    if context.output != "table":
        context.show({"channel": name, "id": placed.channel.hex(), "replicas": replicas})
        return
    rows = [{"node": one["node"], **gap} for one in replicas for gap in one["gaps"] or ()]
    context.show(None, rows)
    for one in replicas:
        if one["gaps"] is None:
            context.say(f"{one['node']} was not asked: {one['note']}")
    if not rows and all(one["gaps"] is not None for one in replicas):
        context.say(f"no replica of {name} misses anything between what it holds")


def _replica(node: NodeStatus | None, table: str, number: int) -> dict[str, Any]:
    """The answer of one replica, or why there is none."""
    said, note = _said(node, table, number)
    reported = (*OWN_WORD, "catch_up", "flapping", "floors")
    return {**{field: said.get(field) for field in reported}, "note": note}


def _said(node: NodeStatus | None, table: str, number: int) -> tuple[Mapping[str, Any], str]:
    """The part of a node's own status that describes the replica, and why there is none."""
    said: Mapping[str, Any] = {}
    for own in () if node is None or node.status is None else node.status["channels"]:
        if (own["table"], own["partition"]) == (table, number):
            said = own
    note = "it is no node of the cluster" if node is None else node.error or ""
    if not said and not note:
        note = "it hosts no replica yet"
    return said, note


@channel.command()
@click.argument("name", type=CHANNEL)
@click.argument("nodes", required=False)
@click.option(
    "--learners", default="", metavar="NODE,NODE,…", help="Read replicas, which never vote."
)
@click.option(
    "--witnesses", default="", metavar="NODE,NODE,…", help="New ones of NODES that get no rows."
)
@click.option("--reason", help="Kept with the order.")
@click.option("--force", is_flag=True, help="Also where too few nodes are up to carry it out.")
@pass_context
def members(
    context: Context,
    name: str,
    nodes: str | None,
    *,
    learners: str,
    witnesses: str,
    reason: str | None,
    force: bool,
) -> None:
    """Show the replicas of a channel, or order that NODES (n1,n2,…) have them.

    The leader carries an order out by itself, one replica after another: a new one first gets the
    history, then it votes; data of one that left is deleted when the others hold everything.
    `raftstore channel change ls` shows how far it is.

    \b
    Example:
      raftstore channel members orders/3
      raftstore channel members orders/3 n2,n3,n4
    """
    with context.connect() as client:
        if nodes is None:
            _show_members(context, client, name)
            return
        wanted, others = _listed(nodes), _listed(learners)
        change = client.order_replicas(
            name, wanted, learners=others, witnesses=_listed(witnesses), reason=reason, force=force
        )
    _ordered(context, name, change)


@channel.command("add-replica")
@click.argument("name", type=CHANNEL)
@click.argument("node")
@click.option(
    "--role",
    type=click.Choice(ROLES),
    default=MemberRole.VOTER.value,
    show_default=True,
    help="reader: serves reads and never votes; witness: votes and has no rows.",
)
@click.option("--force", is_flag=True, help="Also where too few nodes are up to carry it out.")
@pass_context
def add_replica(context: Context, name: str, node: str, *, role: str, force: bool) -> None:
    """Order one more replica of a channel, on NODE; a reader may become a voter by it.

    \b
    Example:
      raftstore channel add-replica orders/3 n4
      raftstore channel add-replica orders/3 n5 --role reader
      raftstore channel add-replica orders/3 n6 --role witness
    """
    with context.connect() as client:
        present = _present(client, name)
        has = present.role_of(node)
        is_promoted = (has, role) == (MemberRole.READER.value, MemberRole.VOTER.value)
        if has and not is_promoted:
            raise ArgumentError(
                f"{node} has a replica of {name} already, as {has}; to make it another, remove it "
                f"with `raftstore channel remove-replica {name} {node}` first"
            )
        voters, learners = present.voters, _without(present.learners, node)
        is_reader = role == MemberRole.READER.value
        change = client.order_replicas(
            name,
            voters if is_reader else (*voters, node),
            learners=(*learners, node) if is_reader else learners,
            witnesses=(node,) if role == MemberRole.WITNESS.value else (),
            force=force,
        )
    _ordered(context, name, change)


@channel.command("remove-replica")
@click.argument("name", type=CHANNEL)
@click.argument("node")
@click.option("--force", is_flag=True, help="Also where too few nodes are up to carry it out.")
@pass_context
def remove_replica(context: Context, name: str, node: str, *, force: bool) -> None:
    """Order that NODE has no replica of a channel any more; what it holds is deleted.

    \b
    Example:
      raftstore channel remove-replica orders/3 n1
    """
    with context.connect() as client:
        present = _present(client, name)
        if node not in (*present.voters, *present.learners):
            raise ArgumentError(f"{node} has no replica of {name}; it has {_shown(present)}")
        if present.voters == (node,):
            raise ArgumentError(
                f"{node} has the only replica of {name}: add another one first, or drop the table"
            )
        change = client.order_replicas(
            name,
            _without(present.voters, node),
            learners=_without(present.learners, node),
            force=force,
        )
    _ordered(context, name, change)


@channel.command()
@click.argument("name", type=CHANNEL)
@click.argument("old")
@click.argument("new")
@click.option("--force", is_flag=True, help="Also where too few nodes are up to carry it out.")
@pass_context
def replace(context: Context, name: str, old: str, new: str, *, force: bool) -> None:
    """Order a replica of a channel on NEW in the place of the one on OLD.

    \b
    Example:
      raftstore channel replace orders/3 n1 n4
    """
    with context.connect() as client:
        present = _present(client, name)
        if old not in present.voters:
            raise ArgumentError(f"{old} has no replica of {name}; it has {_shown(present)}")
        if new in present.voters:
            raise ArgumentError(f"{new} has a replica of {name} already; see remove-replica")
        wanted = tuple(new if node == old else node for node in present.voters)
        change = client.order_replicas(
            name,
            wanted,
            learners=_without(present.learners, new),
            witnesses=(new,) if old in present.witnesses else (),
            force=force,
        )
    _ordered(context, name, change)


@channel.group()
def change() -> None:
    """List and cancel orders for the replicas of channels."""


@change.command("ls")
@click.option("--all", "every", is_flag=True, help="Also channels without an open order.")
@pass_context
def list_changes(context: Context, *, every: bool) -> None:
    """Every open order: how far it is, and what the channel has now.

    \b
    Example:
      raftstore channel change ls
      raftstore channel change ls --all
    """
    with context.connect() as client:
        rows = [_row(each) for each in client.replicas() if every or each.change]
    context.show(rows, rows)


@change.command("cancel")
@click.argument("name", type=CHANNEL)
@click.argument("number", type=click.IntRange(min=1))
@pass_context
def cancel_change(context: Context, name: str, number: int) -> None:
    """End an open order where it is; a replica that did not vote yet goes again.

    \b
    Example:
      raftstore channel change cancel orders/3 57
    """
    with context.connect() as client:
        client.cancel_order(name, number)
    context.say(f"order {number} of {name} ends where it is; see `raftstore channel change ls`")


def _present(client: Client, name: str) -> ReplicaChange:
    """The replicas of a channel now; ArgumentError while an order is open."""
    found = next((each for each in client.replicas() if each.channel == name), None)
    if found is None:
        raise ArgumentError(f"there is no channel {name}; `raftstore channel ls` lists them")
    if found.change:
        raise ArgumentError(
            f"order {found.change} for {name} is open; wait until it has ended, or cancel it with "
            f"`raftstore channel change cancel {name} {found.change}`"
        )
    return found


def _show_members(context: Context, client: Client, name: str) -> None:
    found = [_row(each) for each in client.replicas() if each.channel == name]
    if not found:
        raise ArgumentError(f"there is no channel {name}; `raftstore channel ls` lists them")
    context.show(found[0], found)


def _row(found: ReplicaChange) -> dict[str, Any]:
    return {
        "channel": found.channel,
        "voters": ",".join(found.voters),
        "learners": ",".join(found.learners),
        "witnesses": ",".join(found.witnesses),
        "change": found.change or None,
        "stage": found.stage,
        "ordered": ",".join((*found.ordered, *found.ordered_learners)),
        "reason": found.reason,
    }


def _ordered(context: Context, name: str, change: int) -> None:
    context.show({"channel": name, "change": change})
    context.say(f"order {change} of {name}; `raftstore channel change ls` shows how far it is")


def _listed(names: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in names.split(",") if part.strip())


def _without(nodes: tuple[str, ...], gone: str) -> tuple[str, ...]:
    return tuple(node for node in nodes if node != gone)


def _shown(found: ReplicaChange) -> str:
    return ", ".join((*found.voters, *found.learners))


@channel.command("step-down")
@click.argument("name", type=CHANNEL)
@click.option("--to", help="The node that shall lead [default: the best follower].")
@pass_context
def step_down(context: Context, name: str, *, to: str | None) -> None:
    """Hand the leadership of a channel over.

    \b
    Example:
      raftstore channel step-down orders/3 --to n2
    """
    with context.connect() as client:
        client.step_down(name, target=to)
    context.say(f"channel {name} has another leader")


channel.add_command(verify)
