"""The corruption campaign: damage is noticed or harmless; what goes unnoticed is a violation."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from jepsen_like.corruption import ViolationError, run_corruption, run_corruptions
from jepsen_like.target.base import FaultUnavailableError
from jepsen_like.target.processes.damage import KINDS, PATTERNS, damage_file
from raftstore.storage.log.mark import MarkRow
from raftstore.storage.log.recovery import LogRecovery
from raftstore.storage.tables import leveldb_database
from raftstore.types import ChannelId, History

TRIALS = 10
MANIFEST_CUT = (8, 250)
"""Trials that once went wrong, or would: seed and number."""


@pytest.mark.slow
def test_random_damage_is_noticed_or_harmless(tmp_path: Path) -> None:
    """Every trial ends in a known way, and the same seed damages the same."""
    said: list[str] = []
    figures = run_corruptions(TRIALS, 3, tmp_path, said.append)
    assert figures.violations == said == []
    assert sum(figures.outcomes.values()) == figures.trials == TRIALS
    assert figures.outcomes["refused"] > 0
    assert figures.outcomes["rebuilt"] > 0
    assert list(tmp_path.iterdir()) == []
    # What becomes of it may differ: how far LevelDB had merged its files is nobody's seed.
    assert run_corruptions(TRIALS, 3, tmp_path).struck == figures.struck


@pytest.mark.slow
def test_store_that_believes_a_cut_manifest_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LevelDB forgets a whole file without a word: the campaign found this one."""
    assert run_corruption(*MANIFEST_CUT, tmp_path) == ("torn manifest", "rebuilt")
    monkeypatch.setattr(leveldb_database, "why_incomplete", lambda _path: None)
    with pytest.raises(ViolationError, match="are not those of the log"):
        run_corruption(*MANIFEST_CUT, tmp_path)


@pytest.mark.slow
def test_store_that_forgets_its_promises_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0.3: without the comparison with the mark a shortened log looks like a whole one."""

    def believe(self: LogRecovery) -> dict[ChannelId, History]:
        self._promised = dict.fromkeys(self._promised, MarkRow())
        return {}

    outcomes = ((number, *run_corruption(3, number, tmp_path)) for number in itertools.count())
    # What is appended takes no record away: such a store may believe its log.
    number = next(
        number
        for number, what, outcome in outcomes
        if outcome == "recovering" and not what.startswith("append")
    )
    monkeypatch.setattr(LogRecovery, "_compare", believe)
    with pytest.raises(ViolationError, match=r"S0\.3|S0\.8|S10"):
        run_corruption(3, number, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_changes_the_file_it_names(tmp_path: Path, kind: str) -> None:
    """Of every kind; an empty or missing file cannot be damaged."""
    (tmp_path / "log").mkdir()
    path = tmp_path / "log" / "1.log"
    path.write_bytes(b"")
    rng = random.Random(kind)
    with pytest.raises(FaultUnavailableError, match="no log"):
        damage_file(tmp_path, kind=kind, file="log", rng=rng)
    before = bytes(range(1, 251)) * 8
    path.write_bytes(before)
    assert damage_file(tmp_path, kind=kind, file="log", rng=rng).startswith(f"{kind} of 1.log")
    assert not path.exists() or path.read_bytes() != before
    with pytest.raises(FaultUnavailableError, match="there is no damage burn"):
        damage_file(tmp_path, kind="burn", file=next(iter(PATTERNS)), rng=rng)
