"""Worlds that once failed, or nearly did; each says why it is kept.

A failure of the protocol becomes a directed test or a script first; the world is kept beside it.
"""

from __future__ import annotations

import pytest

from raftstore.testing.campaign import run_seed

SLOW_DISK = {"slow_disk": "1", "sync_min_ms": "2", "sync_max_ms": "150"}

WORLDS: tuple[tuple[int, dict[str, str], str], ...] = (
    (
        29,
        {},
        "an armed disk error struck after healing, and nobody restarted the node",
    ),
    (
        55,
        {},
        "a log lost its end with a truncation, and what that had removed counted as applied",
    ),
    (190, {}, "what ended a recovery was acknowledged after a start, and not in the mark"),
    (2, SLOW_DISK, "the first world that loses records when acks do not wait for the disk"),
    (5, {}, "the first world that loses records when votes compare sequences alone"),
    (3, {}, "the first world with a stale read when a leader asks nobody"),
    (1, {}, "the first world that diverges when live records are taken by their seq alone"),
    (796, {}, "a witness far behind, a damaged voter and a leader waited for each other"),
    (311, {}, "a node died in the midst of its start, and was asked whom it knows"),
    (
        62,
        {"flip_percent": "40", "damage_percent": "0"},
        "two replicas waited for a leader, with holes that the third one had trimmed",
    ),
    (
        21002,
        {"member_changes": "yes"},
        "the operator had a node come back under the identity whose disk was lost",
    ),
    (
        21084,
        {"member_changes": "yes"},
        "a power cut took back a mark that a killed process had put in the place of the old one",
    ),
    (
        21729,
        {"member_changes": "yes"},
        "a leader left its channel, and the one voter that stayed never learned that it gave up",
    ),
    (
        21998,
        {"member_changes": "yes"},
        "a simulated table was closed between the begin and the end of a turn that applies",
    ),
    (
        22280,
        {"member_changes": "yes"},
        "tables were asked of a node that was gone, one after the other",
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "changes", "why"), WORLDS)
def test_world_that_once_failed_holds_every_promise(
    seed: int, changes: dict[str, str], why: str
) -> None:
    """Worlds that once failed hold every promise."""
    assert run_seed(seed, changes).violation is None, why
