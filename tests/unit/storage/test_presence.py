"""A data directory that is taken away under a running node is noticed (S0.1)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event

import pytest

from raftstore.storage.presence import Place, PresenceWatch
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


GONE = Place(Path("removed"), 1, 2)


def watching(
    directory: Path, looks: Iterator[list[Place]], told: list[str], interval_s: float = 0.001
) -> PresenceWatch:
    """A watch whose every look is at the next of these files beside the directory."""
    return PresenceWatch([directory], lambda: next(looks), told.append, interval_s=interval_s)


def test_file_that_is_gone_at_one_look_alone_is_no_loss(tmp_path: Path) -> None:
    """The mark is replaced by a new file now and then: only two looks in a row are believed."""
    seen_all = Event()

    def looks() -> Iterator[list[Place]]:
        for _ in range(3):
            yield [GONE]
            yield []
        seen_all.set()
        while True:
            yield []

    told: list[str] = []
    watch = watching(tmp_path, looks(), told)
    assert seen_all.wait(10)
    watch.stop()
    assert told == []


def test_loss_is_told_once_and_ends_the_thread(tmp_path: Path) -> None:
    """The node stops at the first sentence."""
    seen = 0

    def looks() -> Iterator[list[Place]]:
        nonlocal seen
        while (seen := seen + 1) < 20:
            yield [GONE]

    told: list[str] = []
    watch = watching(tmp_path, looks(), told)
    watch._thread.join(10)
    assert not watch._thread.is_alive()
    assert seen == 2
    assert len(told) == 1
    assert told[0].startswith("removed is not what this node has open")
    watch.stop()


def test_stop_ends_the_thread_and_closes_the_directories(tmp_path: Path) -> None:
    """Nothing is left of a watch, and stopping it again does nothing."""

    def looks() -> Iterator[list[Place]]:
        while True:
            yield []

    watch = watching(tmp_path, looks(), [], interval_s=0.05)
    (held,) = watch._held.values()
    assert watch._thread.daemon, "a look that hangs must not keep the process"
    watch.stop()
    assert not watch._thread.is_alive()
    assert watch._held == {}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(held)
    watch.stop()


def test_look_that_hangs_holds_nobody_up_and_tells_nothing_later(tmp_path: Path) -> None:
    """The directories stay open as long as the thread might look at them."""
    hangs, may_end = Event(), Event()

    def looks() -> Iterator[list[Place]]:
        yield [GONE]
        hangs.set()
        may_end.wait(10)
        yield [GONE]

    told: list[str] = []
    watch = watching(tmp_path, looks(), told)
    assert hangs.wait(10)
    watch.stop()
    assert watch._thread.is_alive()
    (held,) = watch._held.values()
    os.fstat(held)
    may_end.set()
    watch._thread.join(10)
    assert not watch._thread.is_alive()
    assert told == []
    watch.stop()
    assert watch._held == {}


def test_directory_to_watch_must_be_one(tmp_path: Path) -> None:
    """A file in its place is refused at once."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        watching(tmp_path / "file", iter(()), [])
