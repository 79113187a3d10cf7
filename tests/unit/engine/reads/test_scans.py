"""Long reads and pinned states: one state per scan, bounded in every way, never of what is gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from raftstore.config import ReadSettings
from raftstore.engine.reads import scans
from raftstore.protocol.admin import DropTable
from raftstore.protocol.message import Done, Failed, Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.reads import ClosePin, Count, CountAnswer, GetAnswer, Scan, ScanAnswer
from raftstore.rows.sealing import seal, unseal
from raftstore.types import ChannelId, Seq
from tests.unit.engine.engine_world import ask, publish, run
from tests.unit.engine.scan_world import ROWS, World, code, values


@pytest.fixture
def world() -> World:
    """Ten rows of the first write."""
    return World()


def test_pages_of_a_pinned_scan_are_of_the_first_pages_state(world: World) -> None:
    """Given writes between its pages, a pinned scan returns the state of its first page; a scan
    without the pin sees the present.
    """
    first = world.ask(world.scan(keep=True))
    seen, keys = values(first), [key for key, _, _ in first.rows]
    answer = first
    while answer.more:
        world.write()
        answer = world.ask(world.scan(keys[-1] + b"\0", pin=first.pin))
        assert answer.served.applied_seq == first.served.applied_seq
        assert answer.served.pinned
        seen |= values(answer)
        keys += [key for key, _, _ in answer.rows]
    assert seen == {b"1"}
    assert keys == [b"%02d" % number for number in range(ROWS)]
    assert not first.served.pinned
    assert values(world.ask(world.scan())) == {b"3"}


def test_state_may_be_pinned_before_the_first_row_is_asked_for(world: World) -> None:
    """A pin without rows keeps the state before later writes, also where one page has all rows: a
    reader of several channels pins them all first.
    """
    opened = world.ask(world.scan(limit=0, keep=True))
    assert (opened.rows, opened.more) == ((), True)
    world.write()
    page = world.ask(world.scan(limit=1_000, pin=opened.pin))
    assert (values(page), len(page.rows), page.more) == ({b"1"}, ROWS, False)
    assert world.scans.pins == 1
    world.ask(ClosePin(1, world.channel, opened.pin))
    assert world.scans.pins == 0


def test_lag_of_a_pinned_page_is_what_it_is_now(world: World) -> None:
    """The state gets no younger: its answers say how far behind it is by now (S7.3)."""
    pin = world.pin()
    world.write()
    world.write()
    assert world.ask(world.scan(pin=pin)).served.lag == 2 * ROWS


def test_count_of_a_pin_is_of_its_state(world: World) -> None:
    """A count may go with a scan."""
    pin = world.pin()
    payload = encode_rows([(b"new", seal(b"new", b"v"))])
    ask(world.cluster, world.node, publish(world.cluster, world.node, world.channel, 9, payload))
    run(world.cluster, 500)
    answer = world.ask(world.count(pin=pin))
    assert isinstance(answer, CountAnswer)
    assert (answer.rows, answer.served.pinned) == (ROWS, True)
    assert world.ask(world.count()).rows == ROWS + 1


def test_keys_of_a_pin_are_of_its_state(world: World) -> None:
    """All keys of one request, absent ones too, away from the node's thread."""
    pin = world.pin()
    world.write()
    keys = (b"03", b"missing", b"01")
    held = world.hold_reads()
    assert world.ask(world.get(keys, pin=pin)) == []
    world.finish(held)
    answer = world.ask(world.get(keys, pin=pin))
    assert isinstance(answer, GetAnswer)
    assert [
        value and unseal(key, value) for key, value in zip(keys, answer.values, strict=True)
    ] == [
        b"1",
        None,
        b"1",
    ]
    assert answer.seqs[0] == answer.seqs[2] > answer.seqs[1] == 0
    assert answer.served.pinned
    assert unseal(b"03", world.ask(world.get(keys)).values[0]) == b"2"
    assert code(world.ask(world.get(keys, pin=pin ^ 1))) == "page_expired"


def test_keys_of_a_pin_that_are_too_many_or_too_large_are_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As any others are."""
    pin = world.pin()
    most = world.scans._settings.get_keys_max
    assert code(world.ask(world.get((b"01",) * (most + 1), pin=pin))) == "payload_too_large"
    monkeypatch.setattr(scans, "GET_BYTES_MAX", 8)
    assert code(world.ask(world.get((b"01", b"02", b"03"), pin=pin))) == "payload_too_large"
    assert isinstance(world.ask(world.get((b"01", b"02"), pin=pin)), GetAnswer)
    assert world.scans.under_way == 0


def test_first_page_that_is_the_last_keeps_no_pin(world: World) -> None:
    """Nothing follows, so nothing is kept for it."""
    answer = world.ask(world.scan(limit=ROWS, keep=True))
    assert (answer.more, answer.pin) == (False, 0)
    assert world.scans.pins == world.node.tables.open_snapshots == 0


@pytest.mark.parametrize("what", ["closed", "unknown", "of another channel"])
def test_page_of_a_pin_that_is_not_there_is_refused(world: World, what: str) -> None:
    """Never another state in its place: the scan has to start again."""
    pin = world.pin()
    asked = world.scan(pin=pin)
    if what == "closed":
        assert isinstance(world.ask(ClosePin(2, world.channel, pin)), Done)
        assert world.scans.pins == world.node.tables.open_snapshots == 0
    elif what == "unknown":
        asked = world.scan(pin=pin ^ 1)
    else:
        assert world.node.runner is not None
        asked = Scan(
            1, world.node.runner.metadata_channel, b"", b"", 4, "any", None, Seq(0), 1_000, pin=pin
        )
    assert code(world.ask(asked)) == "page_expired"


def test_pin_is_closed_for_its_own_channel_only(world: World) -> None:
    """A pin that is closed by mistake costs a scan; both must fit. Closing twice is no mistake."""
    pin = world.pin()
    assert world.node.runner is not None
    for channel in (world.node.runner.metadata_channel, ChannelId(b"nobody's-channel-1")):
        assert isinstance(world.ask(ClosePin(2, channel, pin)), Done)
    assert values(world.ask(world.scan(pin=pin))) == {b"1"}
    for _ in range(2):
        assert isinstance(world.ask(ClosePin(2, world.channel, pin)), Done)
    assert world.scans.pins == 0


@pytest.mark.slow
def test_pin_is_given_up_when_nobody_asks_for_pages(world: World) -> None:
    """It keeps old files of the store."""
    idle_ms = ReadSettings().scan_pin_idle_ms
    pin = world.pin()
    for _ in range(3):
        run(world.cluster, idle_ms * 0.8)
        assert values(world.ask(world.scan(pin=pin))) == {b"1"}
    run(world.cluster, idle_ms * 1.01)
    assert world.scans.pins == world.node.tables.open_snapshots == 0
    assert code(world.ask(world.scan(pin=pin))) == "page_expired"


def test_pin_is_given_up_at_its_oldest_age_however_busy(world: World) -> None:
    """A scan that never ends would keep old files for ever."""
    world.scans._settings = ReadSettings(scan_pin_life_ms=40_000)
    pin = world.pin()
    run(world.cluster, 20_000)
    assert values(world.ask(world.scan(pin=pin))) == {b"1"}
    run(world.cluster, 20_000)
    assert code(world.ask(world.scan(pin=pin))) == "page_expired"
    assert world.node.tables.open_snapshots == 0


def test_pin_that_is_given_up_while_it_is_read_ends_with_the_page(world: World) -> None:
    """Given a pin that is closed during a read, the read finishes and its answer says that no state
    is kept.
    """
    pin = world.pin()
    held = world.hold_reads()
    answers = ask(world.cluster, world.node, world.scan(pin=pin))
    run(world.cluster, 50)
    ask(world.cluster, world.node, ClosePin(2, world.channel, pin))
    run(world.cluster, 50)
    assert world.node.tables.open_snapshots == 1
    answers = ask(world.cluster, world.node)
    world.finish(held)
    [answer] = answers
    assert values(answer) == {b"1"}
    assert answer.pin == 0
    assert world.node.tables.open_snapshots == 0


def test_first_page_whose_state_is_given_up_before_it_is_read_is_refused(world: World) -> None:
    """Rows that others have to follow, and no state to read those from, would look like all."""
    world.scans._settings = ReadSettings(scan_pin_idle_ms=1_000)
    held = world.hold_reads()
    answers = ask(
        world.cluster, world.node, structs.replace(world.scan(keep=True), timeout_ms=9_000)
    )
    run(world.cluster, 2_000)
    assert world.scans.pins == 0
    world.finish(held)
    [answer] = answers
    assert code(answer) == "page_expired"
    assert world.node.tables.open_snapshots == 0


def test_pins_beyond_the_limit_are_refused(world: World) -> None:
    """At once, and may be retried; scans without a pin go on."""
    world.scans._settings = ReadSettings(scan_pins_max=2)
    pins = [world.pin(), world.pin()]
    assert pins[0] != pins[1]
    assert code(world.ask(world.scan(keep=True))) == "overloaded"
    assert values(world.ask(world.scan(limit=1_000))) == {b"1"}
    world.ask(ClosePin(2, world.channel, pins[0]))
    world.pin()
    assert world.node.tables.open_snapshots == 2


def test_long_reads_beyond_the_limit_are_refused(world: World) -> None:
    """The queue of the other thread is bounded, whatever is asked for."""
    world.scans._settings = ReadSettings(scans_queued_max=2)
    pin = world.pin()
    held = world.hold_reads()
    for asked in (world.scan(limit=1_000), world.count()):
        assert world.ask(asked) == []
    for asked in (world.scan(keep=True), world.scan(pin=pin), world.count()):
        assert code(world.ask(asked)) == "overloaded"
    assert values(world.ask(world.scan(limit=100))) == {b"1"}
    answers = ask(world.cluster, world.node)
    world.finish(held)
    assert {type(answer) for answer in answers} == {ScanAnswer, CountAnswer}
    assert world.scans.under_way == 0


def test_long_page_is_of_the_state_when_it_could_be_answered(world: World) -> None:
    """It is read later; rows, position and lag are of one moment all the same (S7.3)."""
    held = world.hold_reads()
    answers = world.ask(world.scan(limit=1_000), world.count(), ms=50)
    assert answers == []
    world.write()
    answers = ask(world.cluster, world.node)
    world.finish(held)
    # A page waits for another thread in its turn, so their order says nothing.
    [page] = [answer for answer in answers if isinstance(answer, ScanAnswer)]
    [count] = [answer for answer in answers if isinstance(answer, CountAnswer)]
    assert len(answers) == 2
    assert values(page) == {b"1"}
    assert {seq for _, _, seq in page.rows} == {page.served.applied_seq}
    assert (page.served.lag, page.served.pinned) == (0, False)
    assert count.served.applied_seq == page.served.applied_seq
    assert world.node.tables.open_snapshots == 0


@pytest.mark.parametrize("kind", ["page", "pinned page", "count"])
def test_nothing_of_a_dropped_table_is_answered(world: World, kind: str) -> None:
    """S0.8: not even what was under way; its pins are gone with it."""
    pin = world.pin()
    asked: dict[str, Message] = {
        "page": world.scan(limit=1_000),
        "pinned page": world.scan(pin=pin),
        "count": world.count(),
    }
    held = world.hold_reads()
    answers = ask(world.cluster, world.node, asked[kind])
    run(world.cluster, 50)
    assert world.node.runner is not None
    metadata = world.node.runner.metadata_channel
    dropped = ask(world.cluster, world.cluster.leaders()[metadata], DropTable(2, "t", 1_000))
    run(world.cluster, 1_000)
    assert world.channel not in world.node.runner.channels
    assert world.scans.pins == 0
    refused = [answer for answer in answers + dropped if isinstance(answer, Failed)]
    assert [code(answer) for answer in refused] == ["unknown_channel"]
    answers = ask(world.cluster, world.node)
    world.finish(held)
    assert answers == []
    assert world.node.tables.open_snapshots == 0
    assert code(world.ask(world.scan(pin=pin))) == "unknown_channel"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["page", "pinned page", "count"])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_nothing_of_a_channel_that_stopped_serving_is_answered(
    world: World, kind: str, when: str
) -> None:
    """S13: histories differ; pinned or under way, these rows are not to be trusted any more."""
    pin = world.pin()
    asked: dict[str, Message] = {
        "page": world.scan(limit=1_000),
        "pinned page": world.scan(pin=pin),
        "count": world.count(),
    }

    def stop() -> None:
        assert world.node.runner is not None
        runner = world.node.runner.channels[world.channel]
        runner.on_broken("a quorum has another history", world.node.clock.now_ms())
        assert runner.stopped_reason is not None

    if when == "before":
        stop()
        answer = world.ask(asked[kind])
    else:
        held = world.hold_reads()
        answers = ask(world.cluster, world.node, asked[kind])
        run(world.cluster, 50)
        stop()
        world.finish(held)
        [answer] = answers
    assert code(answer) == "unavailable"


def test_nothing_pinned_is_answered_while_the_replica_recovers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0.3: no serving, whatever is asked for."""
    pin = world.pin()
    assert world.node.runner is not None
    core = world.node.runner.channels[world.channel].core
    monkeypatch.setattr(type(core), "is_recovering", True)
    assert code(world.ask(world.scan(pin=pin))) == "unavailable"
    assert code(world.ask(world.count())) == "unavailable"


@pytest.mark.parametrize("kind", ["page", "first page", "pinned page", "count"])
def test_long_read_is_refused_at_its_deadline(world: World, kind: str) -> None:
    """Never a hang: the other thread may have much to do."""
    pin = world.pin()
    asked: dict[str, Message] = {
        "page": world.scan(limit=1_000),
        "first page": world.scan(keep=True),
        "pinned page": world.scan(pin=pin),
        "count": world.count(),
    }
    held = world.hold_reads()
    assert world.ask(asked[kind], ms=900) == []
    answers = ask(world.cluster, world.node)
    run(world.cluster, 150)
    [answer] = answers
    assert code(answer) == "query_error"
    assert "within 1000 ms" in answer.message
    answers = ask(world.cluster, world.node)
    world.finish(held)
    assert answers == []
    assert world.scans.under_way == 0
    assert world.scans.pins == world.node.tables.open_snapshots == 1


def test_count_goes_slice_by_slice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any size of slice, a count has all rows once and of one state."""
    for size in (1, 3, ROWS, ROWS + 1):
        monkeypatch.setattr(scans, "COUNT_SLICE_ROWS", size)
        answer = world.ask(world.count(), ms=200)
        assert isinstance(answer, CountAnswer)
        assert answer.rows == ROWS
    ranged = Count(1, world.channel, b"02", b"05", "any", None, Seq(0), 1_000)
    assert world.ask(ranged).rows == 3


def test_pages_of_others_are_read_between_the_slices_of_a_count(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One long count must not keep everybody waiting."""
    monkeypatch.setattr(scans, "COUNT_SLICE_ROWS", 1)
    held = world.hold_reads()
    for asked in (world.count(), world.scan(limit=1_000)):
        assert world.ask(asked) == []
    answers = ask(world.cluster, world.node)
    assert world.node.runner is not None
    for _ in range(2):
        world.node.runner.on_read(held.pop(0)(), world.node.clock.now_ms())
    run(world.cluster, 50)
    assert [type(answer) for answer in answers] == [ScanAnswer]
    world.finish(held)
    run(world.cluster, 50)
    assert [type(answer) for answer in answers] == [ScanAnswer, CountAnswer]


@pytest.mark.parametrize("request_of", [World.count, World.scan])
def test_long_reads_obey_the_levels(world: World, request_of: Callable[..., Message]) -> None:
    """They differ from other reads in where they are read, not in what may be read (S7)."""
    keep = {"keep": True} if request_of is World.scan else {}
    for level in ("linearizable", "leader", "bounded", "any"):
        answer = world.ask(request_of(world, level=level, **keep), ms=500)
        assert isinstance(answer, ScanAnswer | CountAnswer)
        assert answer.served.level == level
    assert code(world.ask(request_of(world, level="odd", **keep))) == "schema"
    world.node = next(node for node in world.cluster.nodes.values() if node is not world.node)
    for level in ("linearizable", "leader"):
        assert code(world.ask(request_of(world, level=level, **keep))) == "not_leader"
    for level in ("bounded", "any"):
        answer = world.ask(request_of(world, level=level, **keep))
        assert isinstance(answer, ScanAnswer | CountAnswer)


def test_restarted_node_knows_no_pin(world: World) -> None:
    """Its state went with the process."""
    pin = world.pin()
    world.node.crash("test")
    world.node.boot()
    run(world.cluster, 5_000)
    assert code(world.ask(world.scan(pin=pin))) == "page_expired"


@pytest.mark.slow
def test_status_tells_the_pins(world: World) -> None:
    """Status reports the number of pins: they keep old files of the store."""
    world.pin()
    assert world.node.runner is not None
    assert world.node.runner.reports.status()["scans"] == {"pins": 1, "under_way": 0}


def test_pins_have_hard_numbers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """63 random bits, never 0 and never one in use."""
    drawn = [0, 5, 5, 0, 6]
    assert world.node.runner is not None
    asked: list[int] = []

    def below(limit: int) -> int:
        asked.append(limit)
        return drawn.pop(0)

    monkeypatch.setattr(world.node.runner.ports.ids, "below", below)
    assert (world.pin(), world.pin()) == (5, 6)
    assert set(asked) == {1 << 63}


def test_long_read_that_ends_after_a_stop_does_not_hide_the_stop(world: World) -> None:
    """S7.3: whatever a node that stood still gets first, it trusts no buffered word since."""
    world.node = next(node for node in world.cluster.nodes.values() if node is not world.node)
    held = world.hold_reads()
    ask(world.cluster, world.node, world.scan(limit=1_000))
    run(world.cluster, 50)
    world.node.pause()
    run(world.cluster, 20_000)
    assert world.node.runner is not None
    core = world.node.runner.channels[world.channel].core
    assert core.is_trusting
    [read] = held
    world.node.runner.on_read(read(), world.node.clock.now_ms())
    assert not core.is_trusting
