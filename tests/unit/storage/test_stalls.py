"""Operations of the store that are under way, and for how long (S0.4)."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread

import pytest

from raftstore.storage.stalls import Area, StallWatch
from raftstore.types import StorageStall

LOG, MARK, TABLE = Path("data/log"), Path("data/mark"), Path("data/tables/orders")


@pytest.fixture
def watch() -> StallWatch:
    """A watch on which some time has passed already."""
    watch = StallWatch()
    assert watch.now_ms == 0
    watch.tick(1_000)
    return watch


def test_operation_is_under_way_until_it_ends(watch: StallWatch) -> None:
    """An error ends it, too; its age is what was counted since it began."""
    assert watch.oldest(Area.LOG) is None

    def sync() -> None:
        with watch.doing(Area.LOG, "syncing", LOG):
            assert watch.oldest(Area.LOG) == StorageStall("syncing", str(LOG), 0)
            watch.tick(30)
            watch.tick(12)
            assert watch.oldest(Area.LOG) == StorageStall("syncing", str(LOG), 42)
            raise OSError("EIO")

    with pytest.raises(OSError, match="EIO"):
        sync()
    assert watch.oldest(Area.LOG) is None
    assert watch.under_way == {}


def test_areas_are_told_apart(watch: StallWatch) -> None:
    """Each kind of work has patience of its own."""
    with watch.doing(Area.TABLES, "merging", TABLE):
        assert watch.oldest(Area.LOG) is None
        assert watch.oldest(Area.READS) is None
        assert watch.oldest(Area.TABLES) == StorageStall("merging", str(TABLE), 0)


def test_step_of_an_operation_is_as_old_as_the_whole(watch: StallWatch) -> None:
    """All of it must end in time; behind the step the whole is under way again."""
    with watch.doing(Area.LOG, "committing", LOG):
        watch.tick(40)
        with watch.doing(Area.LOG, "writing the mark", MARK):
            watch.tick(5)
            assert watch.oldest(Area.LOG) == StorageStall("writing the mark", str(MARK), 45)
        watch.tick(1)
        assert watch.oldest(Area.LOG) == StorageStall("committing", str(LOG), 46)
    assert watch.oldest(Area.LOG) is None
    with watch.doing(Area.LOG, "syncing", LOG):
        assert watch.oldest(Area.LOG) == StorageStall("syncing", str(LOG), 0), "a new one is young"


@pytest.mark.parametrize("is_whole", [False, True])
def test_whole_names_what_hangs_in_another_thread(watch: StallWatch, is_whole: bool) -> None:
    """The age is that of the oldest; the words are those of a step, if there is one."""
    begun, may_end = Event(), Event()

    def step() -> None:
        with watch.doing(Area.LOG, "syncing the mark", MARK):
            begun.set()
            may_end.wait(10)

    thread = Thread(target=step)
    with watch.doing(Area.LOG, "committing", LOG, is_whole=is_whole):
        watch.tick(40)
        thread.start()
        assert begun.wait(10)
        watch.tick(2)
        named = ("syncing the mark", str(MARK)) if is_whole else ("committing", str(LOG))
        assert watch.oldest(Area.LOG) == StorageStall(*named, 42)
        assert len(watch.under_way) == 2
        may_end.set()
        thread.join()
        assert watch.oldest(Area.LOG) == StorageStall("committing", str(LOG), 42)
    assert watch.under_way == {}
