"""``raftstore check``: one line, performance data and an exit code, as Nagios plugins do it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import click

from raftstore.cli.common import Context, pass_context
from raftstore.cli.names import TABLE
from raftstore.cli.placed import placed_info
from raftstore.client.results import NodeStatus
from raftstore.errors import RaftstoreError
from raftstore.node.units import parse_duration_ms
from raftstore.policy.views import crowded_channels, leader_plan, nodes_by_id, readiness
from raftstore.protocol.admin import ChannelView, ClusterViewAnswer
from raftstore.protocol.reads import Bounds
from raftstore.types import Level, Role, StorageStall, node_name

OK, WARNING, CRITICAL, UNKNOWN = range(4)
WORDS: Final = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
LINE_MAX: Final = 160
"""Characters of the text of the first line: monitors show it in a table, or send it."""
UNEVEN_MS_MAX: Final = 60_000
"""Leaders are even again within this."""
LOST_MS: Final = 600_000
"""A node that is down for so long may not come back; before that a hint would be noise."""
WRONG_ANSWERS_S: Final = 24 * 3_600
"""So long an answer that was found wrong is critical."""
REASONS_MAX: Final = 20
"""More of them are only counted."""


@dataclass(slots=True)
class Verdict:
    """Findings, worst first."""

    warnings: list[str] = field(default_factory=list)
    criticals: list[str] = field(default_factory=list)
    unknowns: list[str] = field(default_factory=list)
    """Why nothing could be found out."""
    summary: str = ""
    numbers: dict[str, int] = field(default_factory=dict)

    @property
    def code(self) -> int:
        """Exit code."""
        if self.unknowns:
            return UNKNOWN
        return CRITICAL if self.criticals else WARNING if self.warnings else OK

    @property
    def lines(self) -> list[str]:
        """``RAFTSTORE CRITICAL - reasons | name=value …``, then a line for each further reason."""
        reasons = [*self.unknowns, *self.criticals, *self.warnings]
        text, shown = _beginning(reasons)
        rest = reasons[shown:]
        if rest:
            text += f"; and {len(rest)} more"
        data = " ".join(f"{name}={value}" for name, value in self.numbers.items())
        bar = f" | {data}" if data else ""
        listed = rest[:REASONS_MAX]
        if len(rest) > len(listed):
            listed.append(f"and {len(rest) - len(listed)} more")
        return [f"RAFTSTORE {WORDS[self.code]} - {text or self.summary}{bar}", *listed]


def _beginning(reasons: list[str]) -> tuple[str, int]:
    """As many whole reasons as fit into a line, the first one in any case; and how many."""
    text = ""
    for number, reason in enumerate(reasons):
        longer = f"{text}; {reason}" if text else reason
        if text and len(longer) > LINE_MAX:
            return text, number
        text = longer
    return text, len(reasons)


@click.group()
def check() -> None:
    """Checks for monitors: a line with performance data on stdout, then what did not fit into it.

    Exit codes: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN (nobody could be asked), as monitors expect;
    options that cannot be read are 2, too, with a sentence on stderr.

    \b
    Example:
      raftstore check cluster
      raftstore check table orders --max-lag 1000
    """


@check.command("cluster")
@pass_context
def check_cluster(context: Context) -> int:
    """Critical: partitions without a live leader, and answers of the last day that an audit found
    to be wrong (raftstore audit). Warning: nodes down, an incomplete catalog,
    leaders that are uneven and stay so, or replicas of a partition that share a failure domain
    though another one has a node without any.

    The worst lag, the number of replicas of unknown lag, and how many partitions the nodes that are
    up lead at most and at least are in the performance data.

    \b
    Example:
      raftstore check cluster --endpoints n1:4481,n2:4481
    """
    return _run(context, judge_cluster_and_disks)


@check.command("table")
@click.argument("name", type=TABLE)
@click.option(
    "--level",
    type=click.Choice([level.value for level in Level]),
    default=Level.BOUNDED.value,
    show_default=True,
    help="Level of the reads that are judged.",
)
@click.option("--max-lag", type=click.IntRange(0), help="Critical beyond it, in rows.")
@click.option("--max-staleness", help="Critical beyond it, as in 2s.")
@click.option("--max-batches-behind", type=click.IntRange(0), help="Critical beyond it.")
@click.option("--warn-lag", type=click.IntRange(0), help="Warning when a replica is behind so far.")
@pass_context
def check_table(
    context: Context,
    name: str,
    *,
    level: str,
    max_lag: int | None,
    max_staleness: str | None,
    max_batches_behind: int | None,
    warn_lag: int | None,
) -> int:
    """Whether reads of a table find a replica within a bound, for every partition.

    Bounds that are not given are the table's, else the node's. A bound in time holds for a replica
    that lacks nothing while the leader and a quorum live, because a read would have them prove it;
    else by the age of the last proof. Bounds shorter than a round trip are not noticed.

    \b
    Example:
      raftstore check table orders --level bounded --max-staleness 2s --warn-lag 100
    """
    try:
        staleness_ms = None if max_staleness is None else parse_duration_ms(max_staleness)
    except ValueError as error:
        raise click.UsageError(f"--max-staleness: {error}.") from error
    asked = Bounds(max_lag, staleness_ms, max_batches_behind)

    def judge(view: ClusterViewAnswer, client: Any) -> Verdict:
        placed_info(client, name)  # a typo is reported as such
        return judge_table(view, name, Level(level), asked, warn_lag)

    return _run(context, judge)


def _run(context: Context, judge: Callable[[ClusterViewAnswer, Any], Verdict]) -> int:
    try:
        with context.connect() as client:
            verdict = judge(client.cluster_view(), client)
    except RaftstoreError as error:
        verdict = Verdict(unknowns=[str(error)])
    if context.output == "table":
        click.echo("\n".join(verdict.lines))
    else:
        context.show(
            {
                "status": WORDS[verdict.code],
                "critical": verdict.criticals,
                "warning": verdict.warnings,
                "unknown": verdict.unknowns,
                "numbers": verdict.numbers,
            }
        )
    return verdict.code


def judge_cluster_and_disks(view: ClusterViewAnswer, client: Any) -> Verdict:
    """The same as ``judge_cluster``, and each node's own report of its disk (S0.4, GAP-13), of what
    it does about uneven leaders, of answers that were found wrong (N7), of channels that are
    stopped."""
    verdict = judge_cluster(view)
    nodes = client.cluster_status().nodes
    verdict.criticals += wrong_answers(nodes, time.time())
    verdict.criticals += stopped_channels(nodes)
    verdict.warnings += troubled_disks(nodes)
    verdict.warnings += lost_nodes(view)
    verdict.warnings += uneven_leaders(view, nodes)
    return verdict


def uneven_leaders(view: ClusterViewAnswer, nodes: Iterable[NodeStatus]) -> list[str]:
    """One sentence if leaders are uneven and the node that plans does nothing about it, or tries
    in vain."""
    for node in nodes:
        reported = node.status or {}
        if (
            reported.get("metadata", {}).get("role") != Role.LEADER.value
            or "leaders" not in reported
        ):
            continue
        balancing_ms = reported["leaders"]["balancing_ms"] or 0
        if not reported["leaders"]["is_on"] and leader_plan(view).is_uneven:
            return [
                "leaders are uneven, and rebalance.leaders is off; run raftstore rebalance leaders"
            ]
        if balancing_ms > UNEVEN_MS_MAX:
            return [
                f"leaders have been uneven for {balancing_ms // 1000} s; raftstore events --type "
                "leader_move_failed lists why"
            ]
    return []


def lost_nodes(view: ClusterViewAnswer) -> list[str]:
    """One sentence for each node that has been down for long and has replicas: what to do."""
    found: list[str] = []
    for node in view.nodes:
        silent_ms = node.last_heard_ms_ago
        held = sum(hint.node == node.node for channel in view.channels for hint in channel.replicas)
        if node.state != "down" or silent_ms is None or silent_ms < LOST_MS or not held:
            continue
        name = node_name(node.node)
        found.append(
            f"{name} has been down for {silent_ms // 1000} s and has {held} replicas; if it is "
            f"lost: raftstore cluster tag {name} permanent_offline, then raftstore rebalance start "
            "(replica.replace_after_ms does it by itself)"
        )
    return found


def wrong_answers(nodes: Iterable[NodeStatus], now_s: float) -> list[str]:
    """One sentence for each node that knows of answers that cannot be right, for a day."""
    found: list[str] = []
    for node in nodes:
        last_ms = ((node.status or {}).get("audit") or {}).get("last_at_wall_ms")
        if last_ms is not None and now_s - last_ms / 1000 < WRONG_ANSWERS_S:
            minutes = max(0, int(now_s - last_ms / 1000)) // 60
            found.append(
                f"an audit found a wrong answer {minutes} min ago, by {node.name}; run raftstore "
                "audit"
            )
    return found


def stopped_channels(nodes: Iterable[NodeStatus]) -> list[str]:
    """One sentence for each channel that some replica serves no more, with the reason, and for each
    replica whose state machine is at something that does not end."""
    found: dict[str, list[str]] = {}
    reasons: dict[str, str] = {}
    slow_ones: list[str] = []
    for node in nodes:
        for own in () if node.status is None else node.status.get("channels", ()):
            if slow := own.get("slow_machine"):
                slow_ones.append(f"on {node.name} {slow}")
            if own["mode"] == "stopped":
                name = f"{own['table']}/{own['partition']}"
                found.setdefault(name, []).append(node.name)
                reasons[name] = own["reason"]
    return [
        f"channel {name} is stopped on {', '.join(found[name])}: {reasons[name]}"
        for name in sorted(found)
    ] + sorted(slow_ones)


def troubled_disks(nodes: Iterable[NodeStatus]) -> list[str]:
    """One sentence for each disk that is nearly full or has not finished an operation for long."""
    found: list[str] = []
    for node in nodes:
        stall = (node.status or {}).get("storage_stall")
        if stall is not None:
            found.append(StorageStall(**stall).describe(node.name))
        disk = (node.status or {}).get("disk")
        if disk is not None and disk["is_low"]:
            found.append(
                f"the disk of {node.name} has {disk['free_bytes']} bytes free, its "
                f"storage.min_free_bytes is {disk['min_free_bytes']}"
            )
    return found


def judge_cluster(view: ClusterViewAnswer) -> Verdict:
    """Critical is what refuses reads or writes now; a warning is a loss of spare."""
    verdict = Verdict()
    down = [node for node in view.nodes if node.state == "down"]
    for node in down:
        verdict.warnings.append(f"node {node_name(node.node)} at {node.endpoint} is down")
    known = nodes_by_id(view)
    leaderless = 0
    for channel in view.channels:
        leader = None if channel.leader is None else known.get(channel.leader)
        if leader is None or leader.state == "down":
            leaderless += 1
            verdict.criticals.append(f"{_name(channel)} has no leader that lives")
    if view.age_ms is None:
        verdict.warnings.append(
            f"the catalog as {node_name(view.viewpoint)} knows it may be incomplete"
        )
    crowded = crowded_channels(view)
    for domain, channels in sorted(crowded.items()):
        verdict.warnings.append(
            f"{len(channels)} partitions, such as {_name(channels[0])}, have two replicas in "
            f"failure domain {domain} though another domain is free; move one with raftstore "
            "channel replace"
        )
    led = Counter(channel.leader for channel in view.channels)
    leads = [led[node.node] for node in view.nodes if node.state != "down"]
    lags = _lags(list(view.channels))
    verdict.summary = (
        f"{len(view.nodes) - len(down)} of {len(view.nodes)} nodes up, "
        f"{len(view.channels)} partitions with a leader"
    )
    verdict.numbers = {
        "nodes_up": len(view.nodes) - len(down),
        "nodes": len(view.nodes),
        "partitions": len(view.channels),
        "without_leader": leaderless,
        "leads_most": max(leads, default=0),
        "leads_least": min(leads, default=0),
        "crowded": sum(map(len, crowded.values())),
        **lags,
    }
    return verdict


def judge_table(
    view: ClusterViewAnswer, name: str, level: Level, bounds: Bounds, warn_lag: int | None
) -> Verdict:
    """Critical is a partition nobody would serve; a warning is one with a late replica."""
    verdict = Verdict()
    channels = [channel for channel in view.channels if channel.table == name]
    for found in readiness(view, level, bounds, table=name):
        if not found.is_ready:
            verdict.criticals.append(f"{found.table}/{found.partition}: {found.reason}")
    if not channels:
        verdict.criticals.append(f"{node_name(view.viewpoint)} knows no partition of {name}")
    for channel in channels if warn_lag is not None else ():
        for hint in channel.replicas:
            if hint.lag is None or hint.lag > (warn_lag or 0):
                shown = "unknown" if hint.lag is None else hint.lag
                verdict.warnings.append(f"{_name(channel)} on {node_name(hint.node)}: lag {shown}")
    verdict.summary = f"{len(channels)} partitions of {name} serve level {level.value}"
    verdict.numbers = {
        "partitions": len(channels),
        "not_ready": len(verdict.criticals),
        **_lags(channels),
    }
    return verdict


def _lags(channels: list[ChannelView]) -> dict[str, int]:
    hints = [hint for channel in channels for hint in channel.replicas]
    known = [hint.lag for hint in hints if hint.lag is not None]
    return {"worst_lag": max(known, default=0), "lags_unknown": len(hints) - len(known)}


def _name(channel: ChannelView) -> str:
    return f"{channel.table}/{channel.partition}"
