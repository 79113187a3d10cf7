"""How a damaged log is cut: what is put aside stays."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.storage_helpers import CHANNEL, create_log, flip_bit, open_log, record


@pytest.fixture
def rolled(tmp_path: Path) -> Path:
    """A closed log of several segments with 25 records of one channel."""
    log = create_log(tmp_path, segment_bytes=500)
    for seq in range(1, 26):
        log.append(CHANNEL, [record(seq)])
    log.flush()
    log.close()
    assert len(list((tmp_path / "log").iterdir())) > 3
    return tmp_path


def test_quarantine_goes_on_after_an_operator_removed_a_run(rolled: Path) -> None:
    """Damage after a cleared one does not take the place of a run that is still kept."""
    path = rolled / "log" / "0000000000000002.log"
    quarantine = rolled / "quarantine"
    for kept in ("log-0000", "log-0001", "log-0002"):
        flip_bit(path, path.stat().st_size - 1)
        open_log(rolled, segment_bytes=500).close()
        assert (quarantine / kept).is_dir()
        if kept == "log-0001":
            shutil.rmtree(quarantine / "log-0000")
    assert sorted(run.name for run in quarantine.iterdir()) == ["log-0001", "log-0002"]
