"""``raftstore rebalance``: what nodes do is made even again."""

from __future__ import annotations

import time
from typing import Any, Final

import click

from raftstore import Client
from raftstore.cli.common import Context, pass_context
from raftstore.cli.errors import EXIT_UNAVAILABLE
from raftstore.cli.replica_moves import cancel, plan, start, status, throttle
from raftstore.client.results import NodeStatus
from raftstore.errors import ArgumentError, RaftstoreError
from raftstore.policy.leader_balance import LeaderPlan
from raftstore.policy.views import knows_replicas, leader_plan
from raftstore.protocol.admin import ClusterViewAnswer
from raftstore.types import NodeId, node_name

VIEW_WAIT_S: Final = 5.0
"""A node that was started knows within this how far the replicas of the others are."""
VIEW_PAUSE_S: Final = 0.1
MOVED: Final = "moved"
PLANNED: Final = "planned"


@click.group()
def rebalance() -> None:
    """Make even what the nodes of the cluster hold, and what they do."""


for _command in (plan, start, status, cancel, throttle):
    rebalance.add_command(_command)


@rebalance.command("leaders")
@click.option("--dry-run", is_flag=True, help="Only print what would be moved.")
@click.option("--on", "switch", flag_value="on", help="From now on it happens by itself.")
@click.option("--off", "switch", flag_value="off", help="It happens by itself no more.")
@click.option("--as-set", "switch", flag_value="as-set", help="As rebalance.leaders of nodes says.")
@pass_context
def leaders(context: Context, *, dry_run: bool, switch: str | None) -> int:
    """Hand leaderships over, one after the other, until every node leads its share.

    The plan is as even as the replicas allow, and of two even ones it prefers the first node of
    each placement. Nodes that are not up take none, nor do replicas that are far behind, and nodes
    that drain give all theirs away. Each
    channel has no leader for some tens of milliseconds; writes are retried meanwhile. A hand-over
    that is refused leaves the leader where it is: the others go on, and the exit code is 4. Stop
    it with Ctrl-C: what is done stays.

    With --on, --off or --as-set nothing is moved now: they say whether the cluster does it by
    itself. That is kept in the catalog, so it holds for every node until it is said otherwise,
    whichever leads the metadata channel; `raftstore rebalance status` shows it.

    \b
    Example:
      raftstore rebalance leaders --dry-run
      raftstore rebalance leaders
      raftstore rebalance leaders --off
    """
    if switch is not None:
        return _switch(context, switch, dry_run=dry_run)
    with context.connect() as client:
        view = _whole_view(client)
        draining = [NodeId(node.id) for node in client.cluster_status().nodes if _drains(node)]
        plan = leader_plan(view, draining)
        names = {each.channel: f"{each.table}/{each.partition}" for each in view.channels}
        led = dict(plan.before)
        rows: list[dict[str, Any]] = []
        for number, move in enumerate(plan.moves, start=1):
            name, source, target = names[move.channel], *map(node_name, move[1:])
            result = PLANNED
            if not dry_run:
                try:
                    client.step_down(name, target=target)
                except RaftstoreError as error:
                    result = str(error)
                else:
                    result = MOVED
                    led[move.source] -= 1
                    led[move.target] += 1
                context.say(f"{number} of {len(plan.moves)}: {name} to {target}: {result}")
            rows.append({"channel": name, "from": source, "to": target, "result": result})
    return _show(context, plan, dict(plan.after) if dry_run else led, rows)


SWITCH: Final = {
    "on": (True, "the cluster makes leaders even by itself"),
    "off": (False, "the cluster leaves leaders where they are; drained nodes keep theirs, too"),
    "as-set": (None, "leaders are made even where rebalance.leaders of the nodes says so"),
}


def _switch(context: Context, switch: str, *, dry_run: bool) -> int:
    if dry_run:
        raise ArgumentError(
            f"--{switch} moves nothing, so there is no --dry-run of it; leave one out"
        )
    is_on, words = SWITCH[switch]
    with context.connect() as client:
        client.balance_leaders(is_on)
    context.say(words)
    return 0


def _whole_view(client: Client) -> ClusterViewAnswer:
    """The view of a node once it knows all leaders, or after a while as far as it knows them."""
    end_s = time.monotonic() + VIEW_WAIT_S
    while True:
        view = client.cluster_view()
        if knows_replicas(view) or time.monotonic() >= end_s:
            return view
        time.sleep(VIEW_PAUSE_S)


def _drains(node: NodeStatus) -> bool:
    """Whether a node is to be emptied, by its own report; older versions have none of it."""
    reported: dict[str, Any] = (node.status or {}).get("leaders", {})
    return bool(reported.get("drains"))


def _show(
    context: Context, plan: LeaderPlan, after: dict[Any, int], rows: list[dict[str, Any]]
) -> int:
    before = {node_name(node): led for node, led in plan.before.items()}
    now = {node_name(node): led for node, led in after.items()}
    context.show({"moves": rows, "before": before, "after": now}, rows)
    if context.output == "table":
        if not rows:
            context.say("nothing to move: no plan would be more even")
        for name, led in now.items():
            context.say(f"{name} leads {led} channels, {before[name]} before")
    failed = [row for row in rows if row["result"] not in (MOVED, PLANNED)]
    if failed:
        context.say(f"{len(failed)} of {len(rows)} leaderships stayed where they were")
    return EXIT_UNAVAILABLE if failed else 0
