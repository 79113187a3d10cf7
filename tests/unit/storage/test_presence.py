"""A data directory that is taken away under a running node is noticed (S0.1)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from raftstore.storage.presence import PresenceWatch
from raftstore.storage.store import Store, open_store
from tests.storage_helpers import CHANNEL, SMALL, record

INTERVAL_S = 0.01


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An open store whose presence is looked at often."""
    monkeypatch.setattr(PresenceWatch.__init__, "__kwdefaults__", {"interval_s": INTERVAL_S})
    return open_store(tmp_path / "data", "n1", SMALL, free_bytes_min=0)


def told(store: Store, change: Callable[[Path], object], *, timeout_s: float) -> str | None:
    """The watch's report after a change of the directory; None if there is none."""
    sentences: SimpleQueue[str] = SimpleQueue()
    watch = store.watch_presence(sentences.put)
    try:
        change(store.identity.directory)
        return sentences.get(timeout=timeout_s)
    except Empty:
        return None
    finally:
        watch.stop()
        store.close(is_clean=False)


def replace_with_copy(directory: Path) -> None:
    """A restored backup is not what the node has open."""
    directory.rename(directory.with_name("old"))
    shutil.copytree(directory.with_name("old"), directory)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (shutil.rmtree, "data"),
        (lambda directory: directory.rename(directory.with_name("moved")), "data"),
        (replace_with_copy, "data"),
        (lambda directory: shutil.rmtree(directory / "log"), "log"),
        (lambda directory: (directory / "log" / "0000000000000001.log").unlink(), ".log"),
        (lambda directory: (directory / "mark").unlink(), "mark"),
        (lambda directory: (directory / "lock").unlink(), "lock"),
        (lambda directory: shutil.rmtree(directory / "tables"), "tables"),
    ],
    ids=["removed", "moved", "replaced", "log", "segment", "mark", "lock", "tables"],
)
def test_what_is_taken_away_is_told(
    store: Store, change: Callable[[Path], object], named: str
) -> None:
    """S0.1: writes to files that nobody finds again must not count for a quorum."""
    sentence = told(store, change, timeout_s=10)
    assert sentence is not None
    assert named in sentence.partition(" is not what this node has open")[0]
    assert "put the data directory back" in sentence


def test_new_segments_and_marks_are_no_loss(store: Store) -> None:
    """Files that the node replaces itself are its own."""

    def write(_: Path) -> None:
        for seq in range(1, 40):
            store.log.append(CHANNEL, [record(seq, payload=bytes(200))])
            store.log.flush()
        store.log.committer._mark._rewrite()

    assert told(store, write, timeout_s=10 * INTERVAL_S) is None


def test_nothing_below_the_directory_is_open_to_others(tmp_path: Path) -> None:
    """Rows are readable by the user of the node only, also in directories of older versions."""
    directory = tmp_path / "data"
    open_store(directory, "n1", SMALL, free_bytes_min=0).close(is_clean=True)
    assert directory.stat().st_mode & 0o077 == 0
    for name in ("log", "tables"):
        assert (directory / name).stat().st_mode & 0o077 == 0
        (directory / name).chmod(0o755)
    open_store(directory, "n1", SMALL, free_bytes_min=0).close(is_clean=True)
    for name in ("log", "tables"):
        assert (directory / name).stat().st_mode & 0o077 == 0
    for name in ("mark", "lock", "boot", "raftstore.json", "log/0000000000000001.log"):
        assert (directory / name).stat().st_mode & 0o077 == 0
