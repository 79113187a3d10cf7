"""``raftstore cluster``: the nodes of the cluster, and how they come and go."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from raftstore.cli.common import Context, pass_context
from raftstore.client.rebalancing import NO_TAG, TAGS
from raftstore.errors import ArgumentError
from raftstore.node.units import parse_duration_ms
from raftstore.protocol.rebalance import NodeTag


@click.group()
def cluster() -> None:
    """Look at the nodes of the cluster, and let nodes come and go."""


@cluster.command()
@pass_context
def members(context: Context) -> None:
    """List the nodes: where they are, whether they are up, and what they hold.

    \b
    Example:
      raftstore cluster members
    """
    with context.connect() as client:
        found = client.members()
    rows: list[dict[str, Any]] = [msgspec.structs.asdict(_Row.of(each)) for each in found]
    context.show(rows, rows)


@cluster.command()
@click.option("--replaces", metavar="NAME", help="The node whose store is lost.")
@click.option(
    "--expires", default="1h", show_default=True, metavar="TIME", help="How long it may be used."
)
@click.option("--force", is_flag=True, help="Also where the node is up, or a quorum would be lost.")
@pass_context
def token(context: Context, *, replaces: str | None, expires: str, force: bool) -> None:
    """Print a token by which one new node may join, once.

    The token holds a secret: pass it on as you would a password. Give it to the new node with
    --join at its first start; later the node ignores it. With --replaces the new node takes the
    place of one whose disk is lost, under the same name or another: the old one never comes back.

    \b
    Example:
      raftstore cluster token
      raftstore node --id n4 --data-dir /var/lib/raftstore --join TOKEN
    """
    made = _token(context, replaces, expires, force=force)
    context.show({"token": made}) if context.output != "table" else click.echo(made)
    context.say(_use(replaces or "n4", expires))


@cluster.command()
@click.argument("name")
@click.option(
    "--expires", default="1h", show_default=True, metavar="TIME", help="How long it may be used."
)
@click.option("--force", is_flag=True, help="Also where the node is up, or a quorum would be lost.")
@pass_context
def replace(context: Context, *, name: str, expires: str, force: bool) -> None:
    """Print a token for the node that takes the place of NAME, whose store is lost.

    The same as `raftstore cluster token --replaces NAME`.

    \b
    Example:
      raftstore cluster replace n3
      raftstore node --id n3 --data-dir /var/lib/raftstore --join TOKEN
    """
    made = _token(context, name, expires, force=force)
    context.show({"token": made}) if context.output != "table" else click.echo(made)
    context.say(_use(name, expires))


@cluster.command()
@click.argument("name")
@click.option("--undo", is_flag=True, help="Let the node have replicas again.")
@pass_context
def drain(context: Context, *, name: str, undo: bool) -> None:
    """Place no further replicas on a node, and move those it has to other nodes.

    It goes on by itself, a few channels at a time; `raftstore cluster members` shows how many are
    left. A channel that has a replica on every node keeps it until there is another node.

    \b
    Example:
      raftstore cluster drain n3
      raftstore cluster drain n3 --undo
    """
    with context.connect() as client:
        client.drain_node(name, drains=not undo)
    if undo:
        context.say(f"{name} may have replicas again")
    else:
        context.say(
            f"{name} gets no further replicas; once it has none, `raftstore cluster remove {name}` "
            "retires it"
        )


@cluster.command()
@click.argument("name")
@pass_context
def remove(context: Context, *, name: str) -> None:
    """Retire a node that drains and has no replica any more. It never comes back.

    The node stops by itself (exit code 78); its data directory is of no use any more. Its name is
    free for a new node.

    \b
    Example:
      raftstore cluster remove n3
    """
    context.confirm(f"Node {name} leaves the cluster for ever.")
    with context.connect() as client:
        client.remove_node(name)
    context.say(f"{name} has left the cluster; its data directory may be removed")


@cluster.command("tag")
@click.argument("name")
@click.argument("tag", type=click.Choice(TAGS), metavar="TAG")
@pass_context
def tag_node(context: Context, *, name: str, tag: str) -> None:
    """Say what becomes of a node soon, for `raftstore rebalance` and for new tables.

    \b
    The TAG is one of
    permanent_offline: it goes, or is gone: the next rebalance moves all of its replicas away.
    temporary_offline: it is away for a while: nothing goes there, and what it holds stays.
    none: it is a node like the others again.

    \b
    Example:
      raftstore cluster tag n3 permanent_offline
      raftstore rebalance start
    """
    with context.connect() as client:
        client.tag_node(name, tag)
    if tag == NodeTag.PERMANENT_OFFLINE:
        context.say(f"`raftstore rebalance start` moves the replicas of {name} to other nodes")
    else:
        context.say(f"{name} is tagged {tag}" if tag != NO_TAG else f"{name} has no tag")


class _Row(msgspec.Struct, frozen=True):
    """A line of ``members``."""

    name: str
    state: str
    up: bool
    catalog: str
    replicas: int
    failure_domain: str
    endpoint: str
    http: str
    level: int
    id: str

    @classmethod
    def of(cls, member: Any) -> _Row:
        """The line of one node."""
        return msgspec.convert(member, cls, from_attributes=True)


def _token(context: Context, replaces: str | None, expires: str, *, force: bool) -> str:
    try:
        lifetime_ms = parse_duration_ms(expires)
    except ValueError as error:
        raise ArgumentError(f"--expires: {error}") from error
    with context.connect() as client:
        return client.join_token(replaces=replaces, lifetime=lifetime_ms / 1000, force=force)


def _use(name: str, expires: str) -> str:
    return f"within {expires}, for one node: raftstore node --id {name} --data-dir DIR --join TOKEN"
