"""Pairs (t, seq) that a replica keeps, and what it proves by those that are left (S7.3)."""

from __future__ import annotations

from raftstore.core.commit_proofs import MERGED_MS, PAIRS_KEPT, PAIRS_MAX, Freshness
from raftstore.types import Seq


def learnt(*pairs: tuple[int, int]) -> Freshness:
    """The pairs known after these round trips, in this order."""
    freshness = Freshness()
    for known_ms, seq in pairs:
        freshness.learn(known_ms, Seq(seq))
    return freshness


def told(freshness: Freshness, seqs: range) -> list[int | None]:
    """The moments known for states applied up to each of these."""
    return [freshness.as_of(Seq(seq)) for seq in seqs]


def test_newest_moment_is_that_of_the_newest_pair() -> None:
    """None before the first; an earlier round trip that answers later does not set it back."""
    assert Freshness().newest_ms is None
    assert learnt((100, 1), (200, 2), (300, 3)).newest_ms == 300
    assert learnt((300, 3), (100, 1)).newest_ms == 300


def test_round_trip_that_proves_less_than_a_later_one_is_not_kept() -> None:
    """Seqs rise with the times: what is out of order would hide what was proven."""
    assert told(learnt((300, 5), (200, 9), (100, 9)), range(4, 10)) == [None] + 5 * [300]


def test_repetitions_do_not_crowd_out_what_is_known() -> None:
    """A late answer that proves the same as a later one takes no room."""
    pairs = [(1_000 * seq, seq) for seq in range(1, PAIRS_MAX + 1)]
    late = [(1_000 * seq - 500, seq) for seq in range(1, PAIRS_MAX + 1)]
    known = told(learnt(*pairs), range(1, PAIRS_MAX + 1))
    assert known == [known_ms for known_ms, _ in pairs]
    assert told(learnt(*pairs, *late), range(1, PAIRS_MAX + 1)) == known


def test_of_pairs_that_are_close_together_the_outer_ones_are_kept() -> None:
    """From ``MERGED_MS`` on all of them are."""
    near, far = 100 + MERGED_MS - 1, 100 + MERGED_MS
    assert told(learnt((100, 1), (105, 2), (near, 3)), range(1, 4)) == [100, 100, near]
    assert told(learnt((100, 1), (105, 2), (far, 3)), range(1, 4)) == [100, 105, far]


def test_pairs_are_spaced_out_the_more_the_older_they_are() -> None:
    """The gap behind a pair is half of its age, as near as there are pairs; the newest and the
    oldest one stay."""
    ages = [6_290, 6_210, *range(6_200, -1, -100)]
    assert len(ages) == PAIRS_MAX + 1
    freshness = learnt(*((10_000 - age, seq) for seq, age in enumerate(ages, 1)))
    kept = {10_000 - known for known in told(freshness, range(1, 66)) if known is not None}
    assert sorted(kept) == [0, 100, 200, 300, 400, 600, 900, 1_300, 1_900, 2_800, 4_200, 6_290]


def test_pairs_that_are_far_apart_are_bounded_as_well() -> None:
    """The oldest ones go when no two are near enough to be merged."""
    ages = [2**power for power in range(PAIRS_MAX + 5, 4, -1)]
    freshness = learnt(*((-age, seq) for seq, age in enumerate(ages, 1)))
    known = told(freshness, range(1, len(ages) + 1))
    assert known[-PAIRS_KEPT:] == [-age for age in ages[-PAIRS_KEPT:]]
    assert known[:-PAIRS_KEPT] == [None] * (len(ages) - PAIRS_KEPT)
