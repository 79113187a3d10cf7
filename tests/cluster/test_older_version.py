"""Nodes of the version before this one, as it was built, beside nodes of this version."""

from __future__ import annotations

from pathlib import Path

import pytest

from jepsen_like.older_wheel import run_wheel

pytestmark = pytest.mark.cluster


def test_nodes_of_the_older_version_are_exchanged_and_back_again(tmp_path: Path) -> None:
    """All up with the leader first, one down again, on the same directories and under load.

    Older clients go on, and what older nodes could not read is refused while there is one. All the
    way down, leaders last, and a refusal to go too far: ``make upgrades-wheel``.
    """
    outcome = run_wheel(tmp_path, directions=(3, 1), too_far=False)
    assert outcome.faults == []
    assert outcome.restarts == 4
    assert outcome.client_rows == 3
    assert outcome.too_new > 0, "nothing of this version was asked for beside an older node"
    assert outcome.reads > 100, "too little was read to show anything"
