"""``raftstore channel``: one partition's replicas."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import click

from raftstore import Client
from raftstore.cli.common import Context, pass_context
from raftstore.cli.errors import EXIT_DIFFERENCE, EXIT_NOT_COMPARED
from raftstore.cli.names import CHANNEL, CHANNEL_OR_TABLE
from raftstore.cli.watch import watched
from raftstore.client.results import NodeStatus, ReplicaDigest
from raftstore.errors import ArgumentError
from raftstore.protocol.admin import TableInfo
from raftstore.types import Role, Seq, node_name

PAUSE_S: Final = 0.2
"""Between two looks at replicas that are not at one position."""
DIGITS_MAX: Final = 9
"""Of a partition's number; no table has as many."""
OWN_WORD: Final = (
    "role", "term", "mode", "reason", "base_seq", "applied_seq", "commit_seq", "last_seq",
    "log_bytes", "lag",
)  # fmt: skip
"""What a replica tells of itself (``raftstore.policy.status.SeenChannel``)."""


@click.group()
def channel() -> None:
    """List and show channels, move leadership, compare replicas."""


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
    """Show every replica of a channel by its own report: role, term, positions and lag; how far one
    is that catches up, and who keeps records in each log.

    \b
    Example:
      raftstore channel info orders/3
      raftstore channel info orders/3 --watch
    """
    with context.connect() as client:

        def look() -> tuple[TableInfo, int, dict[str, NodeStatus]]:
            table, number = _named(client, name)
            return table, number, {node.name: node for node in client.cluster_status().nodes}

        watched(context, look, partial(_show_info, context, name), again=watch)


def _show_info(
    context: Context, name: str, found: tuple[TableInfo, int, dict[str, NodeStatus]]
) -> None:
    table, number, nodes = found
    placed = table.channels[number]
    names = map(node_name, placed.replicas)
    replicas = [_replica(node, nodes.get(node), table.name, number) for node in names]
    leaders = [row for row in replicas if row["role"] == Role.LEADER.value]
    leader = max(leaders, key=lambda row: row["term"], default=None)
    whole = {
        "channel": name,
        "id": placed.channel.hex(),
        "leader": None if leader is None else leader["node"],
    }
    if context.output != "table":
        context.show({**whole, "replicas": replicas})
        return
    context.show(None, [whole])
    for rows in (
        [{field: row[field] for field in ("node", *OWN_WORD, "note")} for row in replicas],
        [_catch_up_row(row["node"], row["catch_up"]) for row in replicas if row["catch_up"]],
        [_floor_row(row, floor) for row in replicas for floor in row["floors"] or ()],
    ):
        if rows:
            click.echo()
            context.show(None, rows)


def _catch_up_row(node: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """A replica on its way to its leader's end."""
    left_ms = told["left_ms"]
    words = [word for word in ("waits", "is_far", "cannot_complete") if told[word]]
    return {
        "catches up": node,
        "because": told["reason"],
        "at": told["verified_seq"],
        "of": told["end_seq"],
        "rows left": told["rows_left"],
        "rows/s": told["rows_per_s"],
        "bytes/s": told["bytes_per_s"],
        "taken": told["bytes_taken"],
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

    A replica that lost a payload, or was not told of a record, asks the others for it and catches
    up if none gives it; a log that was damaged is filled by the others. So a gap lasts some tenths
    of a second, unless no node that is up holds what is missing. What is behind a replica's
    end_seq is no gap but its lag, which `raftstore channel info` shows.

    \b
    Example:
      raftstore channel gaps orders/3
      raftstore channel gaps orders/3 -o json
    """
    with context.connect() as client:
        table, number = _named(client, name)
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


def _replica(name: str, node: NodeStatus | None, table: str, number: int) -> dict[str, Any]:
    """The answer of one replica, or why there is none."""
    said, note = _said(node, table, number)
    told = (*OWN_WORD, "catch_up", "flapping", "floors")
    return {"node": name, **{field: said.get(field) for field in told}, "note": note}


def _said(node: NodeStatus | None, table: str, number: int) -> tuple[Mapping[str, Any], str]:
    """The part of a node's own status that tells of the replica, and why there is none."""
    said: Mapping[str, Any] = {}
    for own in () if node is None or node.status is None else node.status["channels"]:
        if (own["table"], own["partition"]) == (table, number):
            said = own
    note = "it is no node of the cluster" if node is None else node.error or ""
    if not said and not note:
        note = "it hosts no replica yet"
    return said, note


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


@channel.command()
@click.argument("name", type=CHANNEL_OR_TABLE)
@pass_context
def verify(context: Context, name: str) -> int:
    """Compare the content of all replicas of a channel, or of each channel of a table; exit code 7
    if they differ.

    Only what two replicas hold at the same position can be compared. Waits for them to meet there,
    --timeout at most for each channel; exit code 8 if they did not, which says nothing about their
    content.

    \b
    Example:
      raftstore channel verify orders/3
      raftstore channel verify orders
      raftstore --timeout 60s channel verify orders/3
    """
    rows: list[dict[str, Any]] = []
    codes = set()
    with context.connect() as client:
        table, numbers = _channels_named(client, name)
        for done, number in enumerate(numbers):
            if len(numbers) > 1 and sys.stderr.isatty():
                click.echo(f"\r{done} of {len(numbers)} channels compared", nl=False, err=True)
            replicas = [node_name(node) for node in table.channels[number].replicas]
            found, code = _compare(client, table.name, number, replicas, context.timeout_s)
            rows += [_digest_row(table.name, number, part) for part in found]
            codes.add(code)
            if code:
                context.say(_verdict(f"{table.name}/{number}", code, context.timeout_s))
    context.show(rows, rows)
    # A difference is worse than what nobody could compare.
    return next((code for code in (EXIT_DIFFERENCE, EXIT_NOT_COMPARED) if code in codes), 0)


def _digest_row(table: str, number: int, part: ReplicaDigest) -> dict[str, Any]:
    return {
        "channel": f"{table}/{number}",
        "node": part.node,
        "digest": part.digest,
        "rows": part.rows,
        "seq": part.applied_seq,
    }


def _verdict(channel_name: str, code: int, timeout_s: float) -> str:
    if code == EXIT_DIFFERENCE:
        return f"different: replicas of {channel_name} hold other rows at the same position"
    return (
        f"not compared: the replicas of {channel_name} were not at one position within "
        f"{timeout_s:g} s; verify again while less is written, or with more --timeout"
    )


def _compare(
    client: Client, table: str, number: int, replicas: Sequence[str], timeout_s: float
) -> tuple[list[ReplicaDigest], int]:
    """Look again at who is behind, until all are at one position or two of them differ at one."""
    give_up = time.monotonic() + timeout_s
    newest: dict[str, ReplicaDigest] = {}
    while True:
        end = max((part.applied_seq for part in newest.values()), default=Seq(0))
        for replica in replicas:
            if replica not in newest or newest[replica].applied_seq < end:
                newest[replica] = _digest(client, table, number, replica)
        found = list(newest.values())
        digests: dict[Seq, set[str]] = {}
        for part in found:
            digests.setdefault(part.applied_seq, set()).add(part.digest)
        if any(len(different) > 1 for different in digests.values()):
            return found, EXIT_DIFFERENCE
        if len(digests) == 1:
            return found, 0
        if time.monotonic() >= give_up:
            return found, EXIT_NOT_COMPARED
        time.sleep(PAUSE_S)


def _digest(client: Client, table: str, number: int, replica: str) -> ReplicaDigest:
    for part in client.content_hash(table, replica, partition=number).partitions:
        return part
    raise click.ClickException(f"{replica} has no replica of {table}/{number} any more")


def _channels_named(client: Client, name: str) -> tuple[TableInfo, Sequence[int]]:
    """The table, and the partitions that ``table/partition`` or ``table`` names."""
    if "/" in name:
        table, number = _named(client, name)
        return table, [number]
    table = client.table_info(name)
    return table, range(table.partitions)


def _named(client: Client, name: str) -> tuple[TableInfo, int]:
    """The table and the partition that ``table/partition`` names."""
    table, slash, number = name.rpartition("/")
    if not slash or not number.isdecimal() or len(number) > DIGITS_MAX:
        raise ArgumentError(f"{name!r} is no channel; write table/partition, as in orders/3")
    found = client.table_info(table)
    if int(number) >= found.partitions:
        raise ArgumentError(f"table {table} has partitions 0 to {found.partitions - 1}")
    return found, int(number)
