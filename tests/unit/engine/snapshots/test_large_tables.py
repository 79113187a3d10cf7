"""Large tables come to a node one after the other: when the next one begins."""

from __future__ import annotations

from raftstore.engine.snapshots.transfer import SMALL_BYTES
from raftstore.types import Seq
from tests.unit.engine.receiver_bench import Receiving
from tests.unit.engine.snapshots_bench import CHANNEL, OTHER, SETTINGS

LARGE = SMALL_BYTES + 1


def waiting_beside(table_bytes: int) -> Receiving:
    """Return a node of which one channel copies so large a table, and another one waits."""
    bench = Receiving()
    bench.asking()
    bench.channels[OTHER].core.trimmed_to = Seq(41)
    bench.receiver.needed(bench.channels[OTHER], bench.now_ms)
    bench.timer()
    assert list(bench.receiver.transfers) == [CHANNEL], "nobody knows how large it is"
    bench.room_bytes = 2 * LARGE
    bench.offer(table_bytes=table_bytes)
    return bench


def others(bench: Receiving) -> bool:
    """Whether the other channel begins now."""
    bench.timer()
    return OTHER in bench.receiver.transfers


def test_small_tables_come_beside_each_other() -> None:
    """As soon as an offer says that one is small, and not a second later."""
    assert others(waiting_beside(SMALL_BYTES))


def test_large_table_is_waited_for_until_it_was_read_back() -> None:
    """The next one begins at once then, not at its next look."""
    bench = waiting_beside(LARGE)
    assert not others(bench)
    for number in range(3):
        bench.now_ms += SETTINGS.request_ms - 1
        bench.receiver.transfers[CHANNEL].bytes += SMALL_BYTES
        bench.chunk(number)
        bench.step()
        assert not others(bench), "it moves"
    while bench.stage() == "reading back":
        bench.now_ms += SETTINGS.request_ms - 1
        bench.receiver.deadlines.push(OTHER, bench.now_ms)
        assert not others(bench), "it is read back"
        bench.step()
    assert others(bench)


def test_large_table_that_stands_still_is_not_waited_for() -> None:
    """Its sender hangs: the other one comes from somebody else meanwhile."""
    bench = waiting_beside(LARGE)
    bench.chunk(0)
    bench.step()
    bench.now_ms += SETTINGS.request_ms
    bench.receiver.deadlines.push(OTHER, bench.now_ms)
    assert others(bench)


def test_large_table_that_comes_slowly_is_not_waited_for() -> None:
    """Its sender has a bad disk: it slows no request, and would keep others away for hours."""
    bench = waiting_beside(LARGE)
    for number in range(2):
        bench.now_ms += SETTINGS.request_ms // 2
        bench.receiver.transfers[CHANNEL].bytes += SMALL_BYTES // 4
        bench.chunk(number)
        bench.step()
    bench.receiver.deadlines.push(OTHER, bench.now_ms)
    assert others(bench)
