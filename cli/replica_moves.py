"""``raftstore rebalance plan|start|status|cancel|throttle``: replicas that move to other nodes."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Any

import click

from raftstore.cli.common import Context, pass_context
from raftstore.cli.errors import EXIT_UNAVAILABLE
from raftstore.cli.watch import watched
from raftstore.client.rebalancing import RebalanceProposal, RebalanceStatus
from raftstore.errors import ArgumentError
from raftstore.node.units import parse_size_bytes
from raftstore.protocol.rebalance import MoveState
from raftstore.state_machines.catalog_rebalance import MOVES_MAX


@click.command()
@pass_context
def plan(context: Context) -> None:
    """Show which replicas should move: from where to where, bytes, time, and what is at risk.

    Goals, in this order: nothing on nodes that are tagged permanent_offline, replicas of a channel
    in different failure domains, as many replicas on every node, as many bytes, and as many
    channels that prefer it as their leader. Nothing is moved; an even cluster has an empty plan.

    \b
    Example:
      raftstore rebalance plan
    """
    with context.connect() as client:
        found = client.plan_rebalance()
    _show_plan(context, found)


@click.command()
@click.option("--limit", type=click.IntRange(1, MOVES_MAX), help="Only the first moves.")
@click.option("--reason", help="Kept with the rebalance.")
@pass_context
def start(context: Context, *, limit: int | None, reason: str | None) -> None:
    """Make a plan, show it, and move the replicas, a few channels at a time.

    Each new replica gets the table and the history first, then it votes in the place of the old
    one, which deletes what it holds at the end. The leader of the metadata channel sees to it, and
    after it the next one: no command has to go on running. `raftstore rebalance status` shows how
    far it is.

    \b
    Example:
      raftstore rebalance start
      raftstore rebalance start --limit 10 --reason "disk of n3"
    """
    with context.connect() as client:
        found = client.plan_rebalance()
        if not found.moves:
            _show_plan(context, found)
            return
        chosen = _first(found, limit or MOVES_MAX)
        if context.output == "table":
            _show_plan(context, chosen)
        moves = f"{len(chosen.moves)} of {len(found.moves)} moves"
        context.confirm(f"Start {moves}, {_size(chosen.bytes)} to copy.")
        number = client.start_rebalance(chosen, reason=reason)
    if context.output != "table":
        context.show({"rebalance": number, "moves": len(chosen.moves), "bytes": chosen.bytes})
    context.say(f"rebalance {number} has begun; `raftstore rebalance status --watch` shows it")


@click.command()
@click.option("--watch", is_flag=True, help="Show it again every two seconds, until it has ended.")
@pass_context
def status(context: Context, *, watch: bool) -> int:
    """Show how far the open rebalance is, or how the last one ended.

    The exit code is 4 if it ended as anything but COMPLETED.

    \b
    Example:
      raftstore rebalance status
      raftstore rebalance status --watch
    """
    seen: list[RebalanceStatus] = []
    with context.connect() as client:

        def look() -> RebalanceStatus:
            found: RebalanceStatus = client.rebalance_status()
            seen[:] = [found]
            return found

        show = partial(_show_status, context)
        watched(context, look, show, again=watch, until=lambda found: not found.is_open)
    ended = [each for each in seen if each.number and not each.is_open]
    return EXIT_UNAVAILABLE if any(e.state != MoveState.COMPLETED for e in ended) else 0


@click.command()
@click.argument("number", type=click.IntRange(1), required=False)
@pass_context
def cancel(context: Context, *, number: int | None) -> None:
    """Begin no further move, and end those under way: each is undone or done, none half.

    \b
    Example:
      raftstore rebalance cancel
    """
    with context.connect() as client:
        client.cancel_rebalance(number or 0)
    context.say("no further move begins; `raftstore rebalance status` shows what is under way")


@click.command()
@click.argument("rate")
@pass_context
def throttle(context: Context, rate: str) -> None:
    """Let each node send RATE bytes of tables a second at most, as in 20MiB; none takes it back.

    It holds for all copies at once, also for those under way, and for replicas that need a table
    for another reason. Without it snapshot.second_bytes_max of each node counts.

    \b
    Example:
      raftstore rebalance throttle 20MiB
      raftstore rebalance throttle none
    """
    most = 0
    if rate != "none":
        try:
            most = int(rate) if rate.isdecimal() else parse_size_bytes(rate)
        except ValueError as error:
            raise ArgumentError(f"RATE: {error}; or none") from error
        if not most:
            raise ArgumentError("RATE: a throttle of 0 stops nothing; give none, or a rate")
    with context.connect() as client:
        client.throttle_copies(most)
    context.say(f"each node sends {_size(most)}/s of tables at most" if most else "no throttle")


def _first(found: RebalanceProposal, limit: int) -> RebalanceProposal:
    """The first moves of a plan; what nodes hold after them is not what the plan says then."""
    if len(found.moves) <= limit:
        return found
    moves = found.moves[:limit]
    copied = sum(move.bytes for move in moves)
    share = copied / found.bytes if found.bytes else 0.0
    return replace(found, moves=moves, bytes=copied, seconds=found.seconds * share)


def _show_plan(context: Context, found: RebalanceProposal) -> None:
    moves = [
        {
            "channel": move.channel,
            "from": ",".join(move.sources),
            "to": ",".join(move.targets),
            "bytes": move.bytes,
            "spare": move.spare,
            "at risk meanwhile": move.risk,
        }
        for move in found.moves
    ]
    if context.output != "table":
        whole = {**asdict(found), "moves": moves}
        context.show(whole)
        return
    if moves:
        context.show(None, moves)
        click.echo()
        context.show(None, [asdict(node) for node in found.nodes])
    for text in _words(found):
        context.say(text)


def _words(found: RebalanceProposal) -> list[str]:
    said: list[str] = []
    if not found.moves:
        said.append("nothing to move: no plan would be more even")
    else:
        source = "as copies were measured" if found.is_rate_measured else "nothing measured yet"
        said.append(
            f"{len(found.moves)} moves, {_size(found.bytes)} to copy, about {found.seconds:.0f} s "
            f"at {_size(found.rate)}/s each ({source})"
        )
    if found.crowded or found.crowded_after:
        said.append(
            f"{found.crowded} replicas share a failure domain with another one of their channel, "
            f"{found.crowded_after} afterwards"
        )
    if found.staying:
        said.append(
            f"there is no other node for {', '.join(found.staying[:5])}"
            f"{' and more' if len(found.staying) > 5 else ''}; add a node"
        )
    if found.unknown:
        said.append(f"{', '.join(found.unknown)} did not report the sizes of tables")
    return said


def _show_status(context: Context, found: RebalanceStatus) -> None:
    rows: list[dict[str, Any]] = [
        {
            "channel": move.channel,
            "from": ",".join(move.sources),
            "to": ",".join(move.targets),
            "state": move.state,
            "copied": move.copied,
            "bytes": move.bytes,
            "order": move.change or None,
            "reason": move.reason,
        }
        for move in found.moves
    ]
    if context.output != "table":
        context.show({**asdict(found), "is_open": found.is_open})
        return
    if rows:
        context.show(None, rows)
    if not found.number:
        context.say("there was no rebalance yet")
    else:
        done = sum(move.state == MoveState.COMPLETED for move in found.moves)
        word = "is being cancelled, " if found.is_cancelled and found.is_open else ""
        why = f" ({found.reason})" if found.reason else ""
        context.say(
            f"rebalance {found.number}{why}: {word}{found.state}, {done} of {len(rows)} moves done"
        )
    if found.throttle:
        context.say(f"each node sends {_size(found.throttle)}/s of tables at most")
    if found.leaders is not None:
        word = "on" if found.leaders else "off"
        context.say(
            f"leaders are made even: {word} (`raftstore rebalance leaders --as-set` ends it)"
        )
    for node, tag in found.tags.items():
        context.say(f"{node} is tagged {tag}")


def _size(count: int) -> str:
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.1f} {unit}" if unit != "B" else f"{count} B"
