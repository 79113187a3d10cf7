"""``raftstore channel``: one partition's replicas."""

from __future__ import annotations

import click

from raftstore.cli.common import Context, pass_context
from raftstore.cli.errors import EXIT_DIFFERENCE
from raftstore.errors import SchemaError
from raftstore.types import node_name


@click.group()
def channel() -> None:
    """List channels, move leadership, compare replicas."""


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


@channel.command("step-down")
@click.argument("name")
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
@click.argument("name")
@pass_context
def verify(context: Context, name: str) -> int:
    """Compare the content of all replicas of a channel; exit code 7 if they differ.

    \b
    Example:
      raftstore channel verify orders/3
    """
    table, slash, number = name.rpartition("/")
    if not slash or not number.isdigit():
        raise SchemaError(f"{name!r} is no channel; write table/partition, as in orders/3")
    with context.connect() as client:
        info = client.table_info(table)
        if int(number) >= info.partitions:
            raise SchemaError(f"table {table} has partitions 0 to {info.partitions - 1}")
        replicas = [node_name(node) for node in info.channels[int(number)].replicas]
        rows = [
            {"node": part.node, "digest": part.digest, "rows": part.rows, "seq": part.applied_seq}
            for replica in replicas
            for part in client.content_hash(table, replica).partitions
            if part.partition == int(number)
        ]
    context.show(rows, rows)
    if len({(row["digest"], row["seq"]) for row in rows}) == 1:
        return 0
    if len({row["seq"] for row in rows}) > 1:
        context.say(
            "the replicas are at different positions; verify again while nothing is written"
        )
    return EXIT_DIFFERENCE
