"""Operations that hang are found by a thread that touches no disk: reported, handed over, and ended
in time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread, get_ident
from typing import NoReturn

import pytest

import raftstore.storage.worker
from raftstore.config import StorageSettings
from raftstore.errors import StorageError
from raftstore.node.watchdog import STOP_MS_MAX, TICK_MS, Watchdog, place_in_storage
from raftstore.storage.files import FileOps
from raftstore.storage.log.writer import LogWriter
from raftstore.storage.stalls import Area, StallWatch
from raftstore.storage.store import open_store
from raftstore.storage.watched_files import WatchedFileOps
from raftstore.types import ChannelId, StorageStall, Term, channel_id
from tests.storage_helpers import SMALL

SETTINGS = StorageSettings(
    stall_handover_ms=200, tables_stall_handover_ms=400, stall_limit_ms=1_000, stall_stop_ms=500
)
LOG = Path("/data/log/0001.seg")


class EndedError(BaseException):
    """Stands for the end of the process."""


@dataclass
class World:
    """A watchdog whose thread is the test, and what it reported."""

    stalls: StallWatch = field(default_factory=StallWatch)
    told: list[StorageStall | None] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    turns: list[Callable[[], None]] = field(default_factory=list)
    is_turning: bool = True

    def __post_init__(self) -> None:
        self.dog = Watchdog(self.stalls, SETTINGS, node="n1", end=self._end)
        self.dog.close()  # its own thread: ticks are the test's
        self.dog.attend(self._post, self.told.append)

    def _end(self, reason: str) -> NoReturn:
        self.ended.append(reason)
        raise EndedError

    def _post(self, call: Callable[[], None]) -> None:
        self.turns.append(call)

    def pass_ms(self, milliseconds: int) -> None:
        """So much time goes by, tick by tick, and the main loop turns."""
        for _ in range(milliseconds // TICK_MS):
            self.dog.look(TICK_MS)
            while self.is_turning and self.turns:
                self.turns.pop(0)()


def test_question_that_was_asked_of_nobody_ends_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread looks while the main loop is just about to attend: seen as the end of a node that
    was well, 40 s after its start."""
    world = World()
    dog = Watchdog(world.stalls, SETTINGS, node="n1", end=world._end)
    dog.close()
    dog.look(TICK_MS)
    dog.attend(world._post, world.told.append)
    world.dog = dog
    monkeypatch.setattr("raftstore.node.watchdog.place_in_storage", lambda _frame: "there")
    world.pass_ms(5 * SETTINGS.stall_limit_ms)
    assert world.ended == []

    class Attended(Watchdog):
        """One whose thread looks in the midst of ``attend``."""

        def __setattr__(self, name: str, value: object) -> None:
            if name == "_post" and value is not None:
                self.look(TICK_MS)
            super().__setattr__(name, value)

    world.dog = dog = Attended(world.stalls, SETTINGS, node="n1", end=world._end)
    dog.close()
    dog.attend(world._post, world.told.append)
    world.pass_ms(5 * SETTINGS.stall_limit_ms)
    assert world.ended == []


@pytest.fixture
def world() -> World:
    """A node that is well."""
    return World()


def test_operation_that_hangs_is_told_then_ends_the_node_with_its_cause(world: World) -> None:
    """S0.4: first the leaderships go, then the node; the words name call, file and time."""
    with world.stalls.doing(Area.LOG, "fdatasync", LOG):
        world.pass_ms(150)
        assert (world.told, world.dog.stall()) == ([], None)
        world.pass_ms(100)
        assert world.told == [StorageStall("fdatasync", str(LOG), 200)]
        world.pass_ms(700)
        assert world.ended == []
        with pytest.raises(EndedError):
            world.pass_ms(100)
    assert world.ended == [
        f"the disk of n1 has not finished fdatasync on {LOG} for 1.0 s; the node ends "
        "(storage.stall_limit_ms): look at the disk"
    ]


def test_operation_that_ends_after_all_is_told_once_and_forgotten(world: World) -> None:
    """A disk that goes on in time costs the leaderships and no more."""
    with world.stalls.doing(Area.LOG, "fdatasync", LOG):
        world.pass_ms(600)
    world.pass_ms(2_000)
    assert [stall is None for stall in world.told] == [False, True]
    assert world.ended == []


def test_many_short_operations_are_no_stall(world: World) -> None:
    """A slow disk is none that hangs: what counts is one operation."""
    for _ in range(100):
        with world.stalls.doing(Area.LOG, "fdatasync", LOG):
            world.pass_ms(150)
    assert (world.told, world.ended) == ([], [])


def test_commit_is_as_old_as_its_first_call_and_named_by_its_present_one(world: World) -> None:
    """One operation that is not durable counts, however many calls it takes."""
    with world.stalls.doing(Area.LOG, "a group commit", LOG.parent, is_whole=True):
        with world.stalls.doing(Area.LOG, "write", LOG):
            world.pass_ms(150)
        with world.stalls.doing(Area.LOG, "fdatasync", LOG):
            world.pass_ms(150)
            assert world.told == [StorageStall("fdatasync", str(LOG), 200)]


def test_merging_tables_have_more_patience_than_the_log(world: World) -> None:
    """LevelDB holds a write back by itself for longer than any disk should take."""
    with world.stalls.doing(Area.TABLES, "a write of LevelDB", Path("/data/tables")):
        world.pass_ms(350)
        assert world.told == []
        world.pass_ms(100)
        assert world.told == [StorageStall("a write of LevelDB", "/data/tables", 400)]


def test_long_read_that_hangs_costs_no_leadership_and_ends_the_node(world: World) -> None:
    """Given a long read that hangs, the leadership stays, as nothing else waits for it; but the
    node ends at last: a read that never returns is a disk that fails.
    """
    with world.stalls.doing(Area.READS, "a read of LevelDB", Path("/data/tables")):
        world.pass_ms(900)
        assert (world.told, world.ended) == ([], [])
        with pytest.raises(EndedError):
            world.pass_ms(200)


def test_time_in_which_the_process_was_stopped_is_no_stall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SIGSTOP, a machine asleep: the first tick afterwards is a tick like any other."""
    monotonic, stops_s = time.monotonic, [0.0]
    monkeypatch.setattr(
        "raftstore.node.watchdog.time.monotonic", lambda: monotonic() + sum(stops_s)
    )
    stalls = StallWatch()
    dog = Watchdog(stalls, SETTINGS, node="n1", end=_never)
    try:
        for _ in range(3):
            before, ticked = stalls.now_ms, Event()
            stops_s.append(60.0)
            deadline = monotonic() + 5.0
            while stalls.now_ms == before:
                assert monotonic() < deadline
                ticked.wait(0.005)
            assert stalls.now_ms - before <= 4 * TICK_MS
    finally:
        dog.close()


def _never(reason: str) -> NoReturn:
    raise AssertionError(reason)


def test_main_loop_that_hangs_in_the_store_ends_the_node(world: World) -> None:
    """S0.4: it takes no message any more, so only another thread can notice."""
    healed = Event()

    def hang() -> None:
        world.dog._main = get_ident()
        raftstore.storage.worker.failure_of("hanging", _Slow(healed))

    thread = Thread(target=hang, daemon=True)
    thread.start()
    world.is_turning = False
    try:
        with pytest.raises(EndedError):
            world.pass_ms(1_100)
    finally:
        healed.set()
        thread.join()
    assert "the main loop of n1 has hung in worker.py:" in world.ended[0]
    assert "(failure_of) for 1.0 s" in world.ended[0]


class _Slow(Exception):
    """An error whose text takes as long as a disk that hangs."""

    def __init__(self, healed: Event) -> None:
        super().__init__()
        self._healed = healed

    def __repr__(self) -> str:
        self._healed.wait(5.0)
        return "slow"


def test_main_loop_that_works_for_long_elsewhere_is_left_alone(world: World) -> None:
    """A thousand elections are no disk that hangs."""
    world.is_turning = False
    world.pass_ms(5_000)
    assert (world.told, world.ended) == ([], [])
    assert place_in_storage(None) is None


def test_node_that_stops_waits_for_its_disk_for_less_time(world: World) -> None:
    """SIGTERM ends in bounded time, with a clear word and not with 0."""
    with world.stalls.doing(Area.LOG, "fdatasync", LOG):
        world.dog.stopping()
        with pytest.raises(EndedError):
            world.pass_ms(550)
    assert (
        "for 0.5 s; the node ends (storage.stall_stop_ms, as it was asked to stop)"
        in (world.ended[0])
    )


def test_stop_as_a_whole_is_bounded(world: World) -> None:
    """The stop of a node is bounded as a whole, also where a thread that it joins hangs."""
    world.dog.stopping()
    world.pass_ms(STOP_MS_MAX - TICK_MS)
    assert world.ended == []
    with pytest.raises(EndedError):
        world.pass_ms(TICK_MS)
    assert world.ended[0].startswith("n1 was asked to stop and has not within 20 s")


class HangingOps(FileOps):
    """A disk whose syncs of one kind of file do not return until it is healed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.healed = Event()
        self.hung = Event()

    def datasync(self, descriptor: int) -> None:
        """Hang if it is such a file."""
        if self._name in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            self.hung.set()
            self.healed.wait(5.0)
        super().datasync(descriptor)


@pytest.mark.parametrize("name", ["log/", "mark"])
def test_sync_of_the_log_and_of_the_mark_are_named(tmp_path: Path, name: str) -> None:
    """Whichever thread hangs, the watchdog knows the call and the file."""
    stalls, ops = StallWatch(), HangingOps("no such file")
    store = open_store(tmp_path, "n1", SMALL, ops=ops, stalls=stalls, free_bytes_min=0)
    durable: list[int] = []
    failed: list[StorageError] = []
    writer = LogWriter(
        store.log,
        post=lambda call: call(),
        on_durable=durable.append,
        on_failed=failed.append,
        stalls=stalls,
    )
    try:
        ops._name = name
        store.log.set_vote(_channel(), _term(), None)
        writer.kick()
        assert ops.hung.wait(5.0)
        stalls.tick(300)
        found = stalls.oldest(Area.LOG)
        assert found is not None
        assert (found.doing, found.for_ms) == ("fdatasync", 300)
        assert name in found.path
        ops.healed.set()
    finally:
        ops.healed.set()
        writer.stop()
        store.close(is_clean=False)
    assert stalls.oldest(Area.LOG) is None
    assert failed == []


def _channel() -> ChannelId:
    return channel_id(b"t" * 16, 0)


def _term() -> Term:
    return Term(1)


def test_watched_files_do_what_others_do(tmp_path: Path) -> None:
    """Every call goes through, and nothing is left noted behind it."""
    stalls = StallWatch()
    ops = WatchedFileOps(FileOps(), stalls)
    ops.create_file(tmp_path / "a", b"one")
    ops.replace_file(tmp_path / "a", b"two")
    assert ops.read_file(tmp_path / "a") == b"two"
    ops.rename(tmp_path / "a", tmp_path / "b")
    descriptor = ops.open(tmp_path / "b", os.O_RDWR)
    ops.pwrite_all(descriptor, b"3", 0)
    ops.truncate(descriptor, 1)
    ops.close(descriptor)
    assert (tmp_path / "b").read_bytes() == b"3"
    ops.unlink(tmp_path / "b")
    assert ops.free_bytes(tmp_path) > 0
    with pytest.raises(FileNotFoundError):
        ops.open(tmp_path / "none", os.O_RDONLY)
    assert stalls.under_way == {}
