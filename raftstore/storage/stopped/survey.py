"""The logs of several stopped nodes judged together, channel by channel.

The verdict of a channel says what happens when exactly the nodes of these directories are started:
their nodes fill each other's holes as ``raftstore.storage.stopped.logs.heal`` does, and what nobody
can give is recovered from a leader, if enough replicas are whole to elect one; else a log begins
behind the base of another one where that may stand for what it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from raftstore.state_machines.catalog import Catalog
from raftstore.storage.log.base_rules import why_hole_stays
from raftstore.storage.log.index import ChannelIndex
from raftstore.storage.stopped.logs import (
    Gap,
    Given,
    StoppedLog,
    catalog_of,
    channel_name,
    gaps_of,
    heal,
)
from raftstore.types import ChannelId, History, Seq, channel_id, node_name


class Verdict(StrEnum):
    """Verdicts on a channel, best first."""

    WHOLE = "whole"
    REFILLED = "refilled"
    RECOVERS = "recovers"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class HoleFound:
    """A hole of one log, and the other logs that can give what belongs there."""

    gap: Gap
    held_by: tuple[str, ...]
    is_filled: bool
    """All of it can be given, so that nothing of it is missing any more."""


@dataclass(frozen=True, slots=True)
class ReplicaFound:
    """A channel in one log."""

    node: str
    first_seq: Seq | None
    end: History
    """(term, seq) of the last record in front of the first hole."""
    holes: tuple[HoleFound, ...]
    kept: tuple[tuple[Seq, Seq], ...]
    """(first, last) seq of what is kept behind the holes."""
    shortfall: History | None
    """Something was acknowledged up to here and is missing."""
    base: History
    """(term, seq) behind which the log begins: records up to there were trimmed, and none of them
    is missed; (0, 0) for a log that holds all."""


@dataclass(frozen=True, slots=True)
class ChannelFound:
    """A channel in all logs."""

    channel: ChannelId
    name: str
    replicas: tuple[ReplicaFound, ...]
    verdict: Verdict
    sentence: str
    """The verdict, with the names of the nodes."""


def survey(logs: Sequence[StoppedLog]) -> list[ChannelFound]:
    """Compare the logs; their indexes are used up by this. Channels by name, dropped ones left out.

    ``logs``: of one cluster, at least one.
    """
    catalog = catalog_of(logs)
    dropped = {channel for one in logs for channel in one.log.dropped_channels()}
    channels = {channel for one in logs for channel in one.log.channels()} - dropped
    return sorted(
        (_channel(channel, logs, catalog) for channel in channels),
        key=lambda found: (found.name.rpartition("/")[0], found.channel),
    )


def _channel(channel: ChannelId, logs: Sequence[StoppedLog], catalog: Catalog) -> ChannelFound:
    indexes = {one.label: index for one in logs if (index := one.log.index_of(channel)) is not None}
    damaged = [name for name, index in indexes.items() if index.kept or index.shortfall]
    gaps = {name: gaps_of(index) for name, index in indexes.items()}
    before = {name: _replica(name, index) for name, index in indexes.items()}
    given = heal(indexes, damaged)
    replicas = tuple(
        _with_holes(found, gaps[name], given, indexes[name]) for name, found in before.items()
    )
    left = [name for name in damaged if indexes[name].kept or indexes[name].shortfall]
    voters = catalog.replicas_of(channel)
    members = logs[0].identity.belonging.members
    if not voters:  # the metadata channel, or a table that no log names
        voters = tuple(node for node, _ in members)
    names = {one.identity.name for one in logs}
    absent = tuple(name for node in voters if (name := node_name(node)) not in names)
    electing = max(len(voters), len(indexes)) // 2 + 1
    covered = {} if len(indexes) - len(left) >= electing else _covered(indexes, left)
    left = [name for name in left if name not in covered]
    is_led = len(indexes) - len(left) >= electing
    verdict, sentence = _verdict(damaged, left, given, covered, absent, is_led=is_led)
    is_metadata = channel == channel_id(logs[0].cluster_id, 0)
    name = "metadata" if is_metadata else channel_name(channel, catalog, logs[0].cluster_id)
    return ChannelFound(channel, name, replicas, verdict, sentence)


def _covered(indexes: Mapping[str, ChannelIndex], left: Sequence[str]) -> dict[str, str]:
    """By damaged log the whole one behind whose base it will begin: what it lacks was trimmed
    there, so it was committed, and the nodes need no leader for that (S0.3)."""
    whole = {name: index.base for name, index in indexes.items() if name not in left}
    return {
        name: other
        for name in left
        for other, base in reversed(whole.items())
        if base.seq and why_hole_stays(indexes[name], base) is None
    }


def _replica(name: str, index: ChannelIndex) -> ReplicaFound:
    first = Seq(index.base_seqs[0]) if len(index) else None
    kept = tuple((Seq(part.start_seq + 1), part.last_seq) for part in index.kept if len(part))
    base = index.base.history
    return ReplicaFound(name, first, index.end, (), kept, index.shortfall, base)


def _with_holes(
    found: ReplicaFound, gaps: Sequence[Gap], given: Sequence[Given], healed: ChannelIndex
) -> ReplicaFound:
    holes = []
    for gap in gaps:
        steps = [
            step
            for step in given
            if step.to == found.node and gap.from_seq <= step.from_seq <= gap.to_seq
        ]
        holders = dict.fromkeys(holder for step in steps for holder in step.holders)
        is_filled = bool(steps) and healed.last_seq >= gap.to_seq
        holes.append(HoleFound(gap, tuple(holders), is_filled))
    return replace(found, holes=tuple(holes))


def _verdict(
    damaged: Sequence[str],
    left: Sequence[str],
    given: Sequence[Given],
    covered: Mapping[str, str],
    absent: Sequence[str],
    *,
    is_led: bool,
) -> tuple[Verdict, str]:
    if not damaged:
        return Verdict.WHOLE, "whole"
    parts = []
    for name in damaged:
        holders = dict.fromkeys(
            holder for step in given if step.to == name for holder in step.holders
        )
        if name in covered:
            other = covered[name]
            parts.append(f"{name} begins behind what {other} has trimmed when {other} is up")
        elif name not in left:
            up = "it is" if len(holders) == 1 else "one of them is"
            parts.append(f"{name} will be refilled by {' or '.join(holders)} when {up} up")
        elif is_led:
            parts.append(f"{name} recovers from the leader of the others")
    if not left:
        return Verdict.REFILLED, "; ".join(parts)
    if is_led:
        return Verdict.RECOVERS, "; ".join(parts)
    parts.append(f"{' and '.join(left)} miss records that are lost on all directories given")
    if absent:
        parts.append(f"not looked at: {', '.join(absent)}")
    return Verdict.LOST, "; ".join(parts)
