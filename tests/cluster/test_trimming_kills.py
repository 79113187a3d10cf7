"""Real nodes are killed where they trim logs, merge tables and copy them; nothing is lost."""

from __future__ import annotations

import pytest

from jepsen_like.trimming_kills import POINTS, run
from raftstore.faults import FAILPOINTS

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_nothing_is_lost_when_nodes_die_where_they_trim() -> None:
    """One place of each kind; ``make trimming-kills`` takes all of them, fifty times."""
    run(("barrier.after-flush", "floor.before-unlink", "merge.before", "files.after-link"), 1)
    run(("copy.before-switch",), 2)


def test_all_places_of_trimming_are_known() -> None:
    """The command goes round them."""
    assert len(POINTS) == 14
    assert set(POINTS) < set(FAILPOINTS)
