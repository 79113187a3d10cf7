"""Faults that change members: replicas move, nodes come and go, and everything is as before again.

They hit no node: those who vote meanwhile are looked at, and a majority of them has to go on.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Final

from jepsen_like.nemesis.fault import Fault, Heal
from jepsen_like.target.base import FaultUnavailableError, Target

LEAST: Final = 3
"""Replicas of a partition that may lose one."""
CHANGING: Final = (4_000.0, 12_000.0)
"""Long enough for an order to be carried out, mostly, and for other faults to meet it."""


def _partition(target: Target, rng: random.Random) -> tuple[str, tuple[str, ...]]:
    """A partition that nobody is changing, and its voters."""
    replicas = target.replicas()
    if not replicas:
        raise FaultUnavailableError("every partition is being changed already, or nobody leads it")
    channel = rng.choice(sorted(replicas))
    return channel, replicas[channel]


def _remove_replica(target: Target, rng: random.Random) -> Heal:
    channel, voters = _partition(target, rng)
    if len(voters) < LEAST:
        raise FaultUnavailableError(f"{channel} has no replica to spare: {', '.join(voters)}")
    gone = rng.choice(voters)
    target.move_replicas(channel, [node for node in voters if node != gone])
    return lambda: target.restore_replicas(channel)


def _add_replica(target: Target, rng: random.Random) -> Heal:
    channel, voters = _partition(target, rng)
    return _with_another(target, rng, channel, voters, voters)


def _replace_replica(target: Target, rng: random.Random) -> Heal:
    channel, voters = _partition(target, rng)
    gone = rng.choice(voters)
    return _with_another(target, rng, channel, voters, [n for n in voters if n != gone])


def _with_another(
    target: Target, rng: random.Random, channel: str, voters: Collection[str], kept: Sequence[str]
) -> Heal:
    """Have one more vote than are kept: a node without a replica, or one that joins for it."""
    spare = [node for node in target.staying() if node not in voters]
    guest = None if spare else target.join_node()
    target.move_replicas(channel, (*kept, guest or rng.choice(spare)))

    def heal() -> None:
        try:
            target.restore_replicas(channel)
        finally:
            if guest is not None:
                target.remove_node(guest)

    return heal


def _join(target: Target, rng: random.Random) -> Heal:
    del rng
    guest = target.join_node()
    return lambda: target.remove_node(guest)


def _drain(target: Target, rng: random.Random) -> Heal:
    """Drain a node whose replicas have somewhere to go."""
    staying = target.staying()
    most = max((len(voters) for voters in target.replicas().values()), default=LEAST)
    node = rng.choice(staying)
    target.drain_node(node)
    try:
        guest = None if len(staying) > most else target.join_node()
    except FaultUnavailableError:
        target.keep_node(node)
        raise

    def heal() -> None:
        try:
            target.keep_node(node)
        finally:
            if guest is not None:
                target.remove_node(guest)

    return heal


MEMBER_FAULTS: Final = (
    Fault("remove-replica", "a partition loses a replica, and gets it back", _remove_replica,
          CHANGING),
    Fault("add-replica", "a partition gets another replica, on a new node if need be, and loses it",
          _add_replica, CHANGING),
    Fault("replace-replica", "a replica moves to another node, a new one if need be, and back",
          _replace_replica, CHANGING),
    Fault("join-node", "a new node joins, and leaves the cluster again", _join, CHANGING),
    Fault("drain-node", "a node gives its replicas to others, a new one if need be, and stays",
          _drain, CHANGING),
)  # fmt: skip
