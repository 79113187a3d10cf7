"""Long reads and pins of one node: what is answered, when, and what is held for how long."""

from __future__ import annotations

import pytest
from msgspec import structs

from raftstore.engine.deadlines import NEVER_MS
from raftstore.engine.reads import scans as scans_module
from raftstore.engine.reads.scans import SHORT_ROWS_MAX, is_long, page_rows, sealed_rows
from raftstore.errors import Refusal, UnavailableError
from raftstore.protocol.message import Done, Failed
from raftstore.protocol.reads import ClosePin, CountAnswer, GetAnswer, ScanAnswer, Served
from raftstore.record_machine import Row
from raftstore.rows.sealing import seal
from raftstore.types import Seq, Term
from tests.unit.engine.scans_bench import CLIENT, LEADER, ME, ROWS, Bench

SEALED = tuple((key, seal(key, value), seq) for key, value, seq in ROWS)
IDLE_MS, LIFE_MS = 30_000, 300_000


def served(bench: Bench, *, lag: int = 0, pinned: bool = False) -> Served:
    """The facts that an answer carries about the first state."""
    position = bench.snapshots[0].applied_seq
    return Served(ME, bench.first.channel, Term(1), position, lag, 0, "any", pinned=pinned)


# --- answers --------------------------------------------------------------------------------------


def test_page_is_answered_from_the_state_of_when_it_was_asked_for() -> None:
    """Given writes between the request and its read, the page has the rows and the lag of the
    moment of the request; then its snapshot is closed.
    """
    bench = Bench()
    asked = bench.ask(bench.scan(limit=3, start=b"02", stop=b"08"))
    bench.applied += 5
    assert bench.scans.under_way == 1
    assert bench.scans.holds_for(CLIENT)
    bench.read()
    assert bench.answers == [
        (CLIENT, ScanAnswer(asked.request_id, SEALED[2:5], True, served(bench), 0))
    ]
    assert (bench.scans.under_way, bench.open_states) == (0, 0)
    assert not bench.scans.holds_for(CLIENT)


def test_keys_alone_are_answered_without_values() -> None:
    """With their seqs."""
    bench = Bench()
    bench.ask(bench.scan(limit=20, keys_only=True))
    bench.read()
    [answer] = bench.take()
    assert answer.rows == tuple((key, None, seq) for key, _, seq in ROWS)
    assert answer.more is False


def test_count_goes_on_where_a_slice_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other reads take place between two slices."""
    monkeypatch.setattr(scans_module, "COUNT_SLICE_ROWS", 3)
    bench = Bench()
    asked = bench.ask(bench.count(start=b"01", stop=b"09"))
    page = bench.ask(bench.scan())
    bench.read_all()
    first, second = bench.take()
    assert first.request_id == page.request_id
    assert second == CountAnswer(asked.request_id, 8, served(bench))
    assert bench.snapshots[0].reads == 3
    assert (bench.scans.under_way, bench.open_states) == (0, 0)


def test_pin_without_a_page_answers_at_once() -> None:
    """A pin without a page is answered at once, without a read: a reader of several channels pins
    them all first.
    """
    bench = Bench()
    asked = bench.ask(bench.scan(limit=0, keep=True))
    assert bench.take() == [ScanAnswer(asked.request_id, (), True, served(bench), 101)]
    assert (bench.queue, bench.scans.pins, bench.scans.under_way) == ([], 1, 0)
    bench.ask(bench.scan(limit=1, keep=True))
    bench.read()
    [answer] = bench.take()
    assert (answer.rows, answer.pin) == (SEALED[:1], 102)


def test_pages_of_a_pin_are_of_its_state_and_tell_todays_lag() -> None:
    """S7.3: the state gets no younger."""
    bench = Bench()
    pin = bench.pin()
    bench.applied += 3
    page = bench.ask(bench.scan(pin=pin, start=b"05", limit=2))
    bench.read()
    told = served(bench, lag=3, pinned=True)
    assert bench.take() == [ScanAnswer(page.request_id, SEALED[5:7], True, told, pin)]
    counted = bench.ask(bench.count(pin=pin))
    bench.read()
    assert bench.take() == [CountAnswer(counted.request_id, 10, told)]
    asked = bench.ask(bench.get(b"03", b"none", b"01", pin=pin))
    bench.read()
    values = (seal(b"03", b"value 3"), None, seal(b"01", b"value 1"))
    assert bench.take() == [GetAnswer(asked.request_id, values, (Seq(4), Seq(0), Seq(2)), told)]
    assert len(bench.snapshots) == 1


def test_first_page_keeps_its_state_only_if_others_follow() -> None:
    """The last page of a scan names no pin."""
    bench = Bench()
    bench.ask(bench.scan(limit=9, keep=True))
    bench.read()
    [answer] = bench.take()
    assert (answer.more, answer.pin, bench.scans.pins) == (True, 101, 1)
    bench.ask(bench.scan(limit=10, keep=True))
    bench.read()
    [answer] = bench.take()
    assert (answer.more, answer.pin, bench.scans.pins) == (False, 0, 1)
    assert bench.open_states == 1


def test_limits_of_a_page() -> None:
    """At least a row, at most ``scan_rows_max``; beyond 100 rows the other thread reads them."""
    bench = Bench()
    settings = bench.scans._settings
    most = settings.scan_rows_max
    rows = [page_rows(bench.scan(limit=limit), settings) for limit in (0, 1, most, most + 1)]
    assert rows == [1, 1, most, most]
    assert not is_long(bench.scan(limit=SHORT_ROWS_MAX))
    assert is_long(bench.scan(limit=SHORT_ROWS_MAX + 1))
    assert is_long(bench.scan(limit=1, keep=True))
    row = Row(b"k", b"v", Seq(3))
    assert sealed_rows([row], keys_only=False) == ((b"k", seal(b"k", b"v"), 3),)
    assert sealed_rows([row], keys_only=True) == ((b"k", None, 3),)
    bench.ask(bench.scan(limit=0))
    bench.read()
    [answer] = bench.take()
    assert answer.rows == SEALED[:1], "without a pin there is nothing else to answer"


# --- refusals -------------------------------------------------------------------------------------


def test_page_of_an_unknown_pin_is_refused() -> None:
    """A pin of another channel is unknown, too; the pin itself stays."""
    bench = Bench()
    pin = bench.pin()
    for request in (bench.scan(pin=pin + 1), bench.scan(bench.second, pin=pin)):
        asked = bench.ask(request)
        [refused] = bench.take()
        assert (refused.request_id, refused.code) == (asked.request_id, "page_expired")
        assert "start the scan again" in refused.message
    assert (bench.queue, bench.scans.pins) == ([], 1)


def test_reads_beyond_a_clients_share_are_refused() -> None:
    """Each kind of them; what is answered makes room. Others have shares of their own."""
    bench = Bench(scans_queued_max=2)
    pin = bench.pin()
    bench.ask(bench.count())
    bench.ask(bench.scan())
    for request in (bench.scan(), bench.scan(keep=True), bench.scan(pin=pin), bench.count()):
        asked = bench.ask(request)
        [refused] = bench.take()
        assert (refused.request_id, refused.code) == (asked.request_id, "overloaded")
        assert "2 long reads and wants" in refused.message
        assert "read.scans_queued_max" in refused.message
    kept = bench.scans.keep(CLIENT, bench.first, bench.tables.snapshot(bench.first.channel), 0)
    assert isinstance(kept, str)
    assert "long reads" in kept
    assert (len(bench.queue), bench.scans.pins) == (2, 1)
    bench.ask(bench.scan(), client=8)
    assert bench.take() == []
    bench.read()
    bench.take()
    bench.ask(bench.scan())
    assert bench.take() == []


def test_largest_holder_gives_its_newest_read_up() -> None:
    """All clients together have twice what one may; the one that is read is refused, too."""
    bench = Bench(scans_queued_max=2)
    mine = [bench.ask(bench.scan()) for _ in range(2)]
    others = [bench.ask(bench.scan(), client=client) for client in (8, 9)]
    last = bench.ask(bench.scan(), client=10)
    [refused] = bench.take()
    assert (refused.request_id, refused.code) == (mine[1].request_id, "overloaded")
    assert "others needed the place" in refused.message
    bench.ask(bench.scan())
    [again] = bench.take()
    assert "1 long reads and wants 1 more, others hold 3" in again.message
    bench.read_all()
    told = [mine[0], *others, last]
    assert bench.told() == [(each.request_id, "") for each in told]
    assert bench.scans.under_way == 0


def test_read_that_was_refused_already_is_given_up_without_a_word() -> None:
    """Its deadline had passed; the other thread was not there yet."""
    bench = Bench(scans_queued_max=2)
    for _ in range(2):
        bench.ask(bench.scan())
    bench.at(1_500)
    assert len(bench.take()) == 2
    for client in (8, 9, 10):
        bench.ask(bench.scan(), client=client)
    assert bench.take() == []


def test_pins_beyond_a_clients_share_are_refused() -> None:
    """The one that is closed makes room; reads that pin nothing go on."""
    bench = Bench(scan_pins_max=2)
    pins = [bench.pin(), bench.pin()]
    bench.ask(bench.scan(keep=True))
    [refused] = bench.take()
    assert (refused.code, "2 pinned states and wants" in refused.message) == ("overloaded", True)
    assert "read.scan_pins_max" in refused.message
    kept = bench.scans.keep(CLIENT, bench.first, bench.tables.snapshot(bench.first.channel), 0)
    assert isinstance(kept, str)
    bench.ask(bench.scan())
    assert bench.take() == []
    bench.scans.on_close_pin(CLIENT, ClosePin(99, bench.first.channel, pins[0]))
    assert bench.take() == [Done(99)]
    assert bench.pin() == 103


def test_largest_holder_gives_its_newest_pin_up() -> None:
    """Given full pins, the client with the most loses its newest one when a client with fewer asks
    for one.
    """
    bench = Bench(scan_pins_max=2)
    mine = [bench.pin(), bench.pin()]
    for client in (8, 9, 10):
        bench.pin(client=client)
    assert bench.scans.pins == 4
    bench.ask(bench.scan(pin=mine[1]))
    [refused] = bench.take()
    assert refused.code == "page_expired"
    bench.ask(bench.scan(pin=mine[0]))
    assert bench.take() == []


def test_keys_that_are_too_many_or_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a pinned state as of any; at the limit they are not."""
    bench = Bench(get_keys_max=3)
    pin = bench.pin()
    bench.ask(bench.get(b"01", b"02", b"03", b"04", pin=pin))
    [refused] = bench.take()
    assert refused.code == "payload_too_large"
    row_bytes = len(b"01") + len(b"value 1")
    monkeypatch.setattr(scans_module, "GET_BYTES_MAX", 2 * row_bytes)
    bench.ask(bench.get(b"01", b"02", b"none", pin=pin))
    bench.read()
    [answer] = bench.take()
    assert len(answer.values) == 3, "what is not there has no size"
    monkeypatch.setattr(scans_module, "GET_BYTES_MAX", 2 * row_bytes - 1)
    bench.ask(bench.get(b"01", b"02", pin=pin))
    bench.read()
    [refused] = bench.take()
    assert (refused.code, "first 2 of 2 rows" in refused.message) == ("payload_too_large", True)
    reads = bench.snapshots[0].reads
    monkeypatch.setattr(scans_module, "GET_BYTES_MAX", 1)
    bench.ask(bench.get(b"01", b"02", pin=pin))
    bench.read()
    assert bench.snapshots[0].reads == reads + 1, "what is not answered is not read"
    assert bench.scans.under_way == 0


@pytest.mark.parametrize("kind", ["page", "first page", "count", "keys"])
def test_nothing_is_answered_of_what_stopped_serving_meanwhile(kind: str) -> None:
    """S0.3, S13: the refusal names the leader; a pin that nobody was notified of is gone."""
    bench = Bench()
    pin = bench.pin()
    requests = {
        "page": bench.scan(),
        "first page": bench.scan(keep=True),
        "count": bench.count(),
        "keys": bench.get(b"01", pin=pin),
    }
    asked = bench.ask(requests[kind])
    bench.refusal = Refusal(UnavailableError, "it stopped")
    bench.read_all()
    refused = Failed(asked.request_id, "unavailable", "it stopped", leader_hint=LEADER)
    assert bench.take() == [refused]
    assert (bench.scans.under_way, bench.scans.pins, bench.open_states) == (0, 1, 1)


# --- deadlines ------------------------------------------------------------------------------------


def test_read_is_refused_at_its_deadline_and_its_rows_told_to_nobody() -> None:
    """Never a hang; the other thread spends nothing on what is over."""
    bench = Bench()
    pin = bench.pin()
    kept = bench.snapshots[0]
    requests = [bench.scan(), bench.count(), bench.get(b"01", pin=pin), bench.scan(keep=True)]
    asked = [bench.ask(request) for request in requests]
    assert bench.scans.deadlines.next_ms == 1_500
    bench.at(1_499)
    assert bench.answers == []
    bench.at(1_500)
    assert bench.told() == [(each.request_id, "query_error") for each in asked]
    assert (bench.scans.under_way, bench.scans.pins) == (4, 1)
    assert bench.scans.deadlines.next_ms == 1_000 + IDLE_MS
    reads = kept.reads
    bench.read_all()
    assert bench.take() == []
    assert kept.reads == reads
    assert [snapshot.reads for snapshot in bench.snapshots[1:]] == [0, 0, 0]
    assert (bench.scans.under_way, bench.open_states) == (0, 1)


def test_rows_that_were_read_in_time_and_told_too_late_are_not_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each request has one answer, whatever the other thread found."""
    bench = Bench()
    pin = bench.pin()
    monkeypatch.setattr(scans_module, "GET_BYTES_MAX", 1)
    bench.ask(bench.scan(keep=True))
    bench.ask(bench.get(b"01", pin=pin))
    done = [read() for read in bench.queue]
    bench.at(1_500)
    assert [code for _, code in bench.told()] == ["query_error", "query_error"]
    for each in done:
        each(bench.now_ms)
    assert bench.take() == []
    assert bench.scans.under_way == 0


def test_refusals_at_the_deadline_say_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count that was under way returns its rows; both state the time."""
    monkeypatch.setattr(scans_module, "COUNT_SLICE_ROWS", 4)
    bench = Bench()
    bench.ask(bench.count())
    bench.ask(structs.replace(bench.scan(), timeout_ms=700))
    bench.read()
    bench.at(1_500)
    [refused] = bench.take()
    assert "t/0: counted 4 rows and was not done within 500 ms" in refused.message
    assert bench.scans.deadlines.next_ms == 1_700
    bench.at(1_700)
    [refused] = bench.take()
    assert "t/0: the rows were not read within 700 ms" in refused.message
    bench.read_all()
    assert bench.scans.deadlines.next_ms in (1_500, NEVER_MS)


def test_timer_does_nothing_before_something_is_due() -> None:
    """Nothing waits at first, and nothing when all is over."""
    bench = Bench()
    assert bench.scans.deadlines.next_ms == NEVER_MS
    bench.scans.on_timer(10**9)
    bench.ask(structs.replace(bench.scan(), timeout_ms=900))
    bench.ask(structs.replace(bench.scan(), timeout_ms=300))
    bench.ask(structs.replace(bench.scan(), timeout_ms=600))
    assert bench.scans.deadlines.next_ms == 1_300
    bench.at(1_300)
    assert bench.scans.deadlines.next_ms == 1_600
    bench.at(2_000)
    assert len(bench.take()) == 3
    assert bench.scans.deadlines.next_ms == NEVER_MS


# --- the life of a pin ----------------------------------------------------------------------------


def is_pinned(bench: Bench, pin: int) -> bool:
    """Whether a page of it is read."""
    bench.ask(bench.scan(pin=pin))
    bench.read_all()
    [(_, code)] = bench.told()
    assert code in ("", "page_expired")
    return not code


def test_pin_stays_until_it_was_not_used_for_long_enough() -> None:
    """Each page begins the time anew."""
    bench = Bench()
    pin = bench.pin()
    for _ in range(3):
        bench.at(bench.now_ms + IDLE_MS - 1)
        assert is_pinned(bench, pin)
    bench.at(bench.now_ms + IDLE_MS)
    assert (bench.scans.pins, bench.open_states) == (0, 0)
    assert not is_pinned(bench, pin)
    assert bench.scans.deadlines.next_ms == NEVER_MS


def test_pin_that_was_read_for_long_is_idle_from_the_end_of_that() -> None:
    """A page may take a while; the next one is asked for behind it."""
    bench = Bench()
    pin = bench.pin()
    bench.ask(structs.replace(bench.count(pin=pin), timeout_ms=60_000))
    bench.at(bench.now_ms + IDLE_MS - 1_000)
    bench.read_all()
    bench.take()
    bench.at(bench.now_ms + IDLE_MS - 1)
    assert is_pinned(bench, pin)


def test_pin_is_not_idle_while_its_page_waits() -> None:
    """The other thread may have much to do before it comes to it."""
    bench = Bench()
    pin = bench.pin()
    bench.at(bench.now_ms + IDLE_MS - 1_000)
    bench.ask(structs.replace(bench.scan(pin=pin), timeout_ms=60_000))
    bench.at(bench.now_ms + 2_000)
    assert bench.scans.pins == 1


@pytest.mark.parametrize("keep", [True, False])
def test_last_page_of_a_pin_leaves_it(keep: bool) -> None:
    """The last page of a pin does not close it: other parts of the range may still be read. The
    client that pinned it closes it.
    """
    bench = Bench()
    pin = bench.pin()
    bench.ask(bench.scan(pin=pin, limit=20, keep=keep))
    bench.read()
    [answer] = bench.take()
    assert (answer.more, answer.pin, bench.scans.pins) == (False, pin, 1)


def test_pin_ends_at_its_oldest_age_however_busy() -> None:
    """It would keep old files for ever."""
    bench = Bench(scan_pin_life_ms=50_000)
    pin = bench.pin()
    for now_ms in (20_000, 40_000, 50_999):
        bench.at(now_ms)
        assert is_pinned(bench, pin)
    bench.at(51_000)
    assert bench.scans.pins == 0


def test_pin_that_is_due_is_gone_before_the_timer_says_so() -> None:
    """A page that comes first finds what the timer would leave."""
    bench = Bench()
    pin = bench.pin()
    bench.now_ms += IDLE_MS
    assert not is_pinned(bench, pin)
    assert bench.open_states == 0


def test_pins_draw_their_numbers_until_one_is_free() -> None:
    """Never 0, never one in use."""
    bench = Bench()
    bench.drawn = iter((0, 5, 5, 0, 1))
    assert (bench.pin(), bench.pin()) == (5, 1)


def test_state_that_is_kept_for_others_has_its_own_idle_time() -> None:
    """0 means that of the settings, and so does one below."""
    for idle_ms, lasts_ms in ((400, 400), (0, IDLE_MS), (-5, IDLE_MS)):
        bench = Bench()
        snapshot = bench.tables.snapshot(bench.first.channel)
        pin = bench.scans.keep(CLIENT, bench.first, snapshot, bench.now_ms, idle_ms)
        assert pin == 101
        assert bench.scans.deadlines.next_ms == bench.now_ms + lasts_ms
        assert is_pinned(bench, pin)
        bench.at(bench.now_ms + lasts_ms)
        assert snapshot.is_closed


def test_pin_that_is_closed_while_it_is_read_ends_with_the_page() -> None:
    """Given a pin that is closed during a read, the read finishes and its answer names no pin."""
    bench = Bench()
    pin = bench.pin()
    bench.ask(bench.scan(pin=pin))
    bench.ask(bench.scan(pin=pin))
    bench.scans.on_close_pin(8, ClosePin(9, bench.first.channel, pin))
    assert bench.take() == [Done(9)]
    assert (bench.scans.pins, bench.open_states) == (0, 1)
    bench.read()
    [answer] = bench.take()
    assert (answer.rows, answer.pin, bench.open_states) == (SEALED[:4], 0, 1)
    bench.read()
    assert bench.open_states == 0


def test_pin_is_closed_by_its_own_channel_only() -> None:
    """Closing what is not there is no mistake."""
    bench = Bench()
    pin = bench.pin()
    for channel, closed in ((bench.second.channel, pin), (bench.first.channel, pin + 1)):
        bench.scans.on_close_pin(CLIENT, ClosePin(9, channel, closed))
        assert bench.take() == [Done(9)]
    assert bench.scans.pins == 1


def test_first_page_whose_state_was_given_up_is_refused_unless_it_is_the_last() -> None:
    """Rows that others have to follow, and nothing to read those from, would look like all."""
    bench = Bench(scan_pin_idle_ms=100)
    asked = bench.ask(bench.scan(keep=True))
    whole = bench.ask(bench.scan(limit=10, keep=True))
    bench.at(1_200)
    assert bench.scans.pins == 0
    bench.read_all()
    assert bench.told() == [(asked.request_id, "page_expired"), (whole.request_id, "")]
    assert (bench.scans.under_way, bench.open_states) == (0, 0)


# --- clients and tables that go -------------------------------------------------------------------


def test_client_that_is_gone_is_told_nothing() -> None:
    """A pin that it does not know of goes with it; nobody else's read does."""
    bench = Bench()
    bench.ask(bench.scan())
    bench.ask(bench.scan(keep=True))
    bench.ask(bench.count())
    other = bench.ask(bench.scan(), client=8)
    bench.scans.on_client_gone(CLIENT)
    assert bench.scans.pins == 0
    bench.read_all()
    assert bench.told() == [(other.request_id, "")]
    assert [snapshot.reads for snapshot in bench.snapshots] == [0, 0, 0, 1]
    assert (bench.scans.under_way, bench.open_states) == (0, 0)
    assert bench.scans.deadlines.next_ms < NEVER_MS
    bench.at(2_000)
    assert bench.take() == []


def test_pins_of_a_client_that_is_gone_stay_until_others_need_the_place() -> None:
    """Pages of one scan come by many connections. The longest ago goes first, and no more than
    have to."""
    bench = Bench(scan_pins_max=2)
    kept = [bench.pin(client=8), bench.pin(client=8)]
    bench.ask(bench.scan(pin=kept[1]), client=8)
    bench.scans.on_client_gone(8)
    bench.read_all()
    assert bench.take() == []
    later = [bench.pin(client=9)]
    bench.scans.on_client_gone(9)
    later.append(bench.pin())
    assert bench.scans.pins == 4
    later.append(bench.pin())
    assert bench.scans.pins == 4
    assert not is_pinned(bench, kept[0])
    assert all(is_pinned(bench, pin) for pin in (kept[1], *later))
    bench.scans.on_close_pin(CLIENT, ClosePin(9, bench.first.channel, kept[1]))
    bench.take()
    bench.pin(client=10)
    bench.pin(client=10)
    assert bench.scans.pins == 4
    assert not is_pinned(bench, later[0])


@pytest.mark.parametrize("is_reopened", [False, True])
def test_dropped_or_replaced_table_answers_nothing_more(is_reopened: bool) -> None:
    """S0.8: what is under way is refused, its pins are gone; other channels go on."""
    bench = Bench()
    pins = [bench.pin(), bench.pin(bench.second)]
    asked = [bench.ask(bench.scan()), bench.ask(bench.count())]
    late = bench.ask(structs.replace(bench.scan(), timeout_ms=1))
    bench.at(1_001)
    bench.take()
    other = bench.ask(bench.scan(bench.second))
    bench.first.is_reopened = is_reopened
    bench.scans.on_channel_closed(bench.first)
    assert late.request_id not in dict(told := bench.told())
    code = "unavailable" if is_reopened else "unknown_channel"
    assert told == [(each.request_id, code) for each in asked]
    assert bench.scans.pins == 1
    bench.read_all()
    assert bench.told() == [(other.request_id, "")]
    assert bench.open_states == 1
    bench.ask(bench.scan(bench.second, pin=pins[1]))
    bench.read()
    [answer] = bench.take()
    assert answer.rows == SEALED[:4]
