"""The next configuration of a channel on the way to what the catalog orders (M6 to M11, M22).

Log and catalog together are the state of a change: nothing is remembered between two steps, so that
any leader goes on where another one stopped. A change begins and ends in the log. Its records carry
the number of the order, and the last of them says that it ``ended``: orders below the newest record
of the log, or that ended, are of an old copy of the catalog, and are ignored.

A witness votes for what it has no rows of, so the rows must be elsewhere: each voter set has a
majority of voters with rows in it (W1), and a joint configuration does not end before as many of
the new set hold it (W2). A reader stays a learner; before it may become a voter, a record that it
holds says that it is no reader any more (W5).

Everything here is pure; ``raftstore.core.change`` asks, and appends what comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from raftstore.core.quorum import has_quorum, majority
from raftstore.types import (
    ChangeTarget,
    ChannelConfig,
    MemberRole,
    NodeId,
    ReplicaId,
    ReplicaNumber,
    node_name,
)


class Stage(Enum):
    """How far a change is."""

    NONE = "none"
    """No order is open."""
    WAITING = "waiting"
    """Nothing of it has begun, or one of its replacements is done and the next has not begun."""
    LEARNER = "learner"
    """A new replica gets the history."""
    JOINT = "joint"
    """Two voter sets are in force."""
    FINAL = "final"
    """Its last configuration is in the log and not committed."""


class MemberView(NamedTuple):
    """The leader's view of another member, as far as a step depends on it."""

    is_live: bool
    """Steady, and it acknowledged a short time ago: neither recovering nor stopped (M10)."""
    why_not_promoted: str = ""
    """Why a learner must not become a voter yet (M11); empty: it may."""
    holds_config: bool = True
    """It durably holds the log up to the newest configuration."""


class Situation(NamedTuple):
    """All that a step depends on."""

    config: ChannelConfig
    """The newest of the log."""
    is_committed: bool
    is_own_term: bool
    """The newest configuration is a record of the present leader's term."""
    target: ChangeTarget | None
    me: ReplicaId
    views: Mapping[NodeId, MemberView]
    may_hand_over: bool = False
    """The leadership may be given to another voter first (M26)."""


class Step(NamedTuple):
    """The next step: a configuration to append, a hand-over to try first, or why it waits."""

    config: ChannelConfig | None = None
    waits_for: str = ""
    hands_over: bool = False


def is_open(config: ChannelConfig, target: ChangeTarget | None) -> bool:
    """Whether the order is to be carried out or undone: it is not of an old copy of the catalog.

    B2: orders below the change of the newest configuration, or that a configuration ended, are not
    begun again.
    """
    return target is not None and (
        target.change > config.change or (target.change == config.change and not config.ended)
    )


def stage_of(config: ChannelConfig, target: ChangeTarget | None, *, is_committed: bool) -> Stage:
    """How far the change is, for status."""
    if config.is_joint:
        return Stage.JOINT
    if config.ended and not is_committed:
        return Stage.FINAL
    if target is None or not is_open(config, target):
        return Stage.NONE
    is_learning = any(
        node in target.voters and config.number_of(node) == target.number_of(node)
        for node in config.learners
    )
    return Stage.LEARNER if is_learning else Stage.WAITING


def next_step(situation: Situation) -> Step:
    """The step of a leader that has committed a record of its own term (M6)."""
    config, target = situation.config, situation.target
    if not situation.is_committed:
        # M7: one at a time. Exception of M8: nobody but this leader can have gone on from a joint
        # record of its own term that is not committed.
        if config.is_joint and situation.is_own_term and _is_cancelled(config, target):
            return Step(_undone(config))
        return Step(waits_for="the newest configuration is not committed")
    if config.is_joint:
        # M9: without asking anybody, and forward unless its order was cancelled.
        if _is_cancelled(config, target):
            return Step(_undone(config))
        waits_for = _why_not_final(situation)
        return Step(waits_for=waits_for) if waits_for else Step(_final(config, target))
    if target is None or not is_open(config, target):
        is_unknown = target is None and config.change and not config.ended
        return Step(waits_for=f"order {config.change} is not known here" if is_unknown else "")
    if target.cancelled:
        return Step(_cancelled(config, target))
    return _toward(situation, target)


def is_legal(before: ChannelConfig, after: ChannelConfig, *, is_committed: bool) -> bool:
    """Whether ``after`` may follow ``before`` in a log (M7, M8): voters change by joint sets."""
    if after.change < before.change or (after.change == before.change and before.ended):
        return False
    if not _keeps_rows(before, after):
        return False
    if before.is_joint:
        old, new = (_replicas(before, group) for group in before.voter_sets)
        only = after.voter_sets[0]
        is_end = not after.is_joint and _replicas(after, only) in (old, new)
        return is_end and (is_committed or _replicas(after, only) == old)
    if not is_committed:
        return False
    have = _replicas(before, before.voter_sets[0])
    if not after.is_joint:
        added = _replicas(after, after.learners) - _replicas(before, before.learners)
        return _replicas(after, after.voter_sets[0]) == have and len(added) <= 1
    kept, wanted = (_replicas(after, group) for group in after.voter_sets)
    enters, leaves = wanted - have, have - wanted
    return (
        kept == have
        and max(len(enters), len(leaves)) == 1
        and enters <= _replicas(before, before.learners)
    )


def has_rows_enough(voters: Iterable[NodeId], roles: Mapping[NodeId, MemberRole]) -> bool:
    """W1: whether the voters with rows alone are a majority, so that each quorum has one of them,
    and what witnesses no longer keep is held by as many as a commit needs."""
    group = tuple(dict.fromkeys(voters))
    return sum(roles.get(node) is not MemberRole.WITNESS for node in group) >= majority(len(group))


def _keeps_rows(before: ChannelConfig, after: ChannelConfig) -> bool:
    """W1, W3: no voter set leans on witnesses, and no replica becomes a witness or stops being
    one: it has the rows of all that it ever applied, or of nothing."""
    if not all(has_rows_enough(group, after.roles) for group in after.voter_sets):
        return False
    kept = [node for node in after.members if before.has_member(_replica(after, node))]
    return all(before.is_witness(node) == after.is_witness(node) for node in kept)


# --- steps ----------------------------------------------------------------------------------------


def _is_cancelled(config: ChannelConfig, target: ChangeTarget | None) -> bool:
    return target is not None and target.change == config.change and target.cancelled


def _undone(config: ChannelConfig) -> ChannelConfig:
    """M8: the old voters of a joint configuration; who was to enter is a learner again."""
    old, new = config.voter_sets
    entering = tuple(node for node in new if node not in old)
    return _config(config, (old,), (*config.learners, *entering), config.change)


def _final(config: ChannelConfig, target: ChangeTarget | None) -> ChannelConfig:
    """M9: the new voters of a joint configuration; who leaves stays as a learner if ordered."""
    old, new = config.voter_sets
    known = target if target is not None and target.change == config.change else None
    staying = tuple(
        node
        for node in old
        if node not in new and known is not None and _names_learner(known, config, node)
    )
    final = _config(config, (new,), (*config.learners, *staying), config.change)
    is_whole = known is not None and _is_reached(final, known)
    return _config(final, final.voter_sets, final.learners, final.change, ended=is_whole)


def _why_not_final(situation: Situation) -> str:
    """W2: what a witness acknowledged it may have trimmed by the word of voters that now leave. So
    as many voters with rows as the new set commits by hold the log up to the joint record."""
    config, me = situation.config, situation.me
    new = config.voter_sets[-1]
    if not any(config.is_witness(node) for node in config.members):
        return ""
    having = [node for node in new if not config.is_witness(node)]
    holding = [
        node
        for node in having
        if node == me.node or (node in situation.views and situation.views[node].holds_config)
    ]
    if len(holding) >= majority(len(new)):
        return ""
    late = ", ".join(node_name(node) for node in having if node not in holding)
    return f"too few voters with rows hold the joint configuration: {late} does not"


def _cancelled(config: ChannelConfig, target: ChangeTarget) -> ChannelConfig:
    """B2, B3: the change ends where it is, without its learners, also if nothing has to change."""
    kept = tuple(node for node in config.learners if config.number_of(node) != target.change)
    return _config(config, config.voter_sets, kept, target.change, ended=True)


def _toward(situation: Situation, target: ChangeTarget) -> Step:
    config = situation.config
    if _is_reached(config, target):
        ended = _config(config, config.voter_sets, config.learners, target.change, ended=True)
        return Step(ended)
    strays = [node for node in config.learners if not _names(target, config, node)]
    if strays:  # A6: one of an earlier life, or that nobody ordered, would block this order
        kept = tuple(node for node in config.learners if node not in strays)
        return Step(_config(config, config.voter_sets, kept, target.change))
    other = [
        n
        for n in config.learners
        if n in target.learners and _is_reader(config, n) != _is_reader(target, n)
    ]
    if other:
        return Step(_as_ordered(config, target, other[0]))
    missing = [node for node in target.learners if node not in config.members]
    if missing:
        return Step(_with_learner(config, target, missing[0]))
    return _replace(situation, target)


def _replace(situation: Situation, target: ChangeTarget) -> Step:
    """One voter in, one out, or both."""
    config = situation.config
    entering = [
        node
        for node in target.voters
        if not config.has_voter(ReplicaId(node, target.number_of(node)))
    ]
    leaving = [node for node in config.voters if not _names_voter(target, config, node)]
    # The leader last: each hand-over costs a moment without writes (M26). Witnesses leave first and
    # come last, so that no set on the way has fewer voters with rows than it needs (W1).
    leaving.sort(key=lambda node: (not config.is_witness(node), node == situation.me.node))
    fresh = [node for node in entering if node not in leaving]
    fresh.sort(key=lambda node: target.roles.get(node) is MemberRole.WITNESS)
    enters: tuple[NodeId, ...] = ()
    if fresh:
        node = fresh[0]
        if node not in config.learners:
            return Step(_with_learner(config, target, node))
        if _is_reader(config, node):
            # W5: it holds this record before it votes, so it knows that it may have to stand.
            return Step(_as_ordered(config, target, node))
        view = situation.views.get(node)
        if view is None or view.why_not_promoted:
            return Step(waits_for=f"{node_name(node)} {_why(view)}")
        enters = (node,)
    elif entering and len(config.voters) == 1:
        # A configuration has one number for a node: an earlier life leaves before the next enters.
        text = f"the only replica, on {node_name(entering[0])}, cannot be replaced on its own node"
        return Step(waits_for=text)
    old = config.voter_sets[0]
    new = tuple(node for node in old if node not in leaving[:1]) + enters
    return _joint(situation, target, old, new)


def _joint(
    situation: Situation,
    target: ChangeTarget,
    old: tuple[NodeId, ...],
    new: tuple[NodeId, ...],
) -> Step:
    """M10, M26: the joint configuration, if both sets have a live majority; a leader that is to
    leave hands over first."""
    config, me = situation.config, situation.me
    if not has_rows_enough(new, config.roles):
        witnesses = ", ".join(node_name(node) for node in new if config.is_witness(node))
        return Step(waits_for=f"of {len(new)} voters too few would have rows beside {witnesses}")
    live = {node for node, view in situation.views.items() if view.is_live}
    if config.has_voter(me):
        live.add(me.node)
    for group in (old, new):
        if not has_quorum(ChannelConfig((group,)), live):
            silent = ", ".join(node_name(node) for node in group if node not in live)
            return Step(waits_for=f"too few voters are steady: {silent} is not")
    if me.node not in new and situation.may_hand_over:
        return Step(waits_for="the leadership goes to a voter that stays", hands_over=True)
    learners = tuple(node for node in config.learners if node not in new)
    return Step(_config(config, (old, new), learners, target.change))


def _why(view: MemberView | None) -> str:
    return "is not heard" if view is None else view.why_not_promoted


def _with_learner(config: ChannelConfig, target: ChangeTarget, node: NodeId) -> ChannelConfig:
    numbers = {**config.numbers, node: target.number_of(node)}
    learners = (*config.learners, node)
    roles = _with_role(config.roles, node, target.roles.get(node))
    return _made(config.voter_sets, learners, numbers, target.change, ended=False, roles=roles)


def _as_ordered(config: ChannelConfig, target: ChangeTarget, node: NodeId) -> ChannelConfig:
    """A learner becomes a reader, or stops being one."""
    roles = _with_role(config.roles, node, target.roles.get(node))
    return _made(
        config.voter_sets, config.learners, config.numbers, target.change, ended=False, roles=roles
    )


def _with_role(
    roles: Mapping[NodeId, MemberRole], node: NodeId, role: MemberRole | None
) -> dict[NodeId, MemberRole]:
    others = {each: roles[each] for each in roles if each != node}
    return others if role is None else {**others, node: role}


def _config(
    base: ChannelConfig,
    voter_sets: tuple[tuple[NodeId, ...], ...],
    learners: tuple[NodeId, ...],
    change: int,
    *,
    ended: bool = False,
) -> ChannelConfig:
    """A configuration of members of ``base``."""
    return _made(voter_sets, learners, base.numbers, change, ended=ended, roles=base.roles)


def _made(
    voter_sets: tuple[tuple[NodeId, ...], ...],
    learners: tuple[NodeId, ...],
    numbers: Mapping[NodeId, ReplicaNumber],
    change: int,
    *,
    ended: bool,
    roles: Mapping[NodeId, MemberRole],
) -> ChannelConfig:
    bare = ChannelConfig(voter_sets, learners)
    named = {node: numbers[node] for node in bare.members if numbers.get(node)}
    kept = {node: roles[node] for node in bare.members if node in roles}
    return ChannelConfig(voter_sets, learners, named, change, ended, kept)


# --- what an order names --------------------------------------------------------------------------


def _names_voter(target: ChangeTarget, config: ChannelConfig, node: NodeId) -> bool:
    return node in target.voters and target.number_of(node) == config.number_of(node)


def _names_learner(target: ChangeTarget, config: ChannelConfig, node: NodeId) -> bool:
    return node in target.learners and target.number_of(node) == config.number_of(node)


def _names(target: ChangeTarget, config: ChannelConfig, node: NodeId) -> bool:
    return _names_voter(target, config, node) or _names_learner(target, config, node)


def _is_reached(config: ChannelConfig, target: ChangeTarget) -> bool:
    """One voter set equal to the ordered one, no learner but those ordered (B3)."""
    return (
        not config.is_joint
        and _replicas(config, config.voters) == _replicas(target, target.voters)
        and _replicas(config, config.learners) == _replicas(target, target.learners)
        and all(_is_reader(config, node) == _is_reader(target, node) for node in config.learners)
    )


def _is_reader(named: ChannelConfig | ChangeTarget, node: NodeId) -> bool:
    return named.roles.get(node) is MemberRole.READER


def _replica(named: ChannelConfig | ChangeTarget, node: NodeId) -> ReplicaId:
    return ReplicaId(node, named.number_of(node))


def _replicas(named: ChannelConfig | ChangeTarget, nodes: Iterable[NodeId]) -> set[ReplicaId]:
    return {_replica(named, node) for node in nodes}
