"""The audit of a node by itself: what it notes of requests, and how it judges their answers."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.audit.finding import EVIDENCE_BYTES_MAX
from raftstore.audit.settings import AuditSettings
from raftstore.engine.audit import EVENT, KEYS_LOOKED_AT, REPORTS_PAUSE_MS, REQUESTS_MAX, NodeAudit
from raftstore.protocol.audit import ReportViolation
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.reads import (
    ChannelKeys,
    FoundKeys,
    Get,
    GetAnswer,
    GetMany,
    GetManyAnswer,
    RefusedKeys,
    Scan,
    Served,
)
from raftstore.types import ChannelId, Durability, NodeId, Seq, Term, channel_id

ME = NodeId("n1@00")
FIRST, SECOND, SAVED = (channel_id(b"t" * 16, number) for number in range(3))
CLIENT = 5
ALL = AuditSettings(keys_per_million=1_000_000)


class Bench:
    """Two channels of fsync and one that is only buffered; what is known as committed of each."""

    def __init__(self, settings: AuditSettings = ALL) -> None:
        self.events: list[dict[str, Any]] = []
        self.committed: dict[ChannelId, int] = {}
        self.runners: dict[ChannelId, Any] = {
            channel: SimpleNamespace(
                channel=channel,
                name=f"t/{number}",
                durable=SimpleNamespace(durability=durability),
            )
            for number, (channel, durability) in enumerate(
                ((FIRST, Durability.FSYNC), (SECOND, Durability.FSYNC), (SAVED, Durability.MEMORY))
            )
        }
        self.now_ms = 1_000
        self.reads = 1_000
        """The request id of the last one of ``read``."""
        self.audit = NodeAudit(settings, b"seed", self, self._tell)

    def known_commit(self, runner: Any) -> Seq:
        """Return what the test says."""
        return Seq(self.committed.get(runner.channel, 0))

    def _tell(self, name: str, **fields: object) -> None:
        assert name == EVENT
        self.events.append(fields)

    def ask(self, request: Any, client: int = CLIENT) -> None:
        """A request arrives."""
        self.audit.read_began(client, request, self.runners, self.now_ms)

    def answer(self, message: Message, client: int = CLIENT) -> list[Any]:
        """An answer leaves, a millisecond later; what was found since the last one."""
        self.now_ms += 1
        self.audit.answered(client, message, self.now_ms)
        found = [event["kind"] for event in self.events]
        self.events.clear()
        self.now_ms += REPORTS_PAUSE_MS
        return found

    def read(
        self, seq: int, version: int = 0, row: bytes = b"row", channel: ChannelId = FIRST,
        **fields: Any,
    ) -> list[Any]:  # fmt: skip
        """Ask for a key and answer at once."""
        self.reads += 1
        self.ask(get(self.reads, channel, **fields))
        return self.answer(answer(self.reads, seq, version, row, channel))


def get(request_id: int, channel: ChannelId = FIRST, **fields: Any) -> Get:
    """A linearizable read of one key, or another."""
    given = {"keys": (b"k",), "level": "linearizable", "max_lag": None, "min_seq": Seq(0)}
    return Get(request_id, channel, **{**given, **fields}, timeout_ms=100)


def served(seq: int, channel: ChannelId = FIRST, **fields: Any) -> Served:
    """The state of a position."""
    return Served(ME, channel, Term(3), Seq(seq), 0, 0, "linearizable", **fields)


def answer(
    request_id: int, seq: int, version: int = 0, row: bytes = b"row", channel: ChannelId = FIRST
) -> GetAnswer:
    """One row, or none, of the state of a position."""
    value = row if version else None
    return GetAnswer(request_id, (value,), (Seq(version),), served(seq, channel))


def test_right_answers_are_counted_and_nothing_is_told() -> None:
    """N7."""
    bench = Bench()
    bench.committed[FIRST] = 10
    assert bench.read(10, 4) == []
    assert bench.read(12, 11) == []
    status = bench.audit.status(())
    assert status == {
        "keys_per_million": 1_000_000, "operations": 2, "dropped": 0, "violations": 0,
        "reported": 0, "last_at_wall_ms": None,
    }  # fmt: skip
    assert bench.audit.status(({"at_wall_ms": 77},))["last_at_wall_ms"] == 77


def test_linearizable_answer_behind_what_was_known_when_the_request_came_is_an_event() -> None:
    """N7, S7.1: with the operations as JSON."""
    bench = Bench()
    bench.committed[FIRST] = 10
    bench.ask(get(1))
    bench.now_ms += 1
    bench.audit.answered(CLIENT, answer(1, 9), bench.now_ms)
    [event] = bench.events
    evidence = json.loads(str(event.pop("evidence")))
    assert event == {
        "source": "node",
        "kind": "stale_read",
        "channel": "t/0",
        "text": "a linearizable read was answered as of seq 9, and 10 was committed before it "
        "began",
    }
    assert [operation["seq"] for operation in evidence] == [9]
    assert bench.audit.status(())["violations"] == 1


def test_position_that_came_behind_the_request_does_not_count() -> None:
    """N7: also within one millisecond, whichever request had the node look."""
    bench = Bench()
    bench.committed[FIRST] = 9
    bench.ask(get(1))
    bench.committed[FIRST] = 10
    bench.ask(get(2))
    assert bench.answer(answer(1, 9)) == []
    assert bench.answer(answer(2, 9)) == ["stale_read"]


def test_request_id_that_is_used_twice_has_neither_request_judged() -> None:
    """N7: the answer may be to either, of whichever kind they are; so a client ends no node."""
    keys = tuple(b"%d" % number for number in range(5))
    many = GetMany(1, (ChannelKeys(FIRST, keys),), "linearizable", None, 100)
    one = get(1, keys=(b"k",), level="any")
    found = GetManyAnswer(1, (FoundKeys(0, (b"x",) * 5, (Seq(4),) * 5, served(9)),))
    for first, second in ((get(1, keys=keys), one), (many, one), (one, many), (one, one)):
        bench = Bench()
        bench.committed[FIRST] = 10
        bench.ask(first)
        bench.ask(second)
        assert bench.answer(answer(1, 9, 4)) == []
        assert bench.answer(found) == []
        assert bench.audit._asked == {}
        assert bench.audit.status(())["operations"] == 0
        assert bench.read(9) == ["stale_read"]


def test_request_id_that_is_used_again_and_again_is_not_judged() -> None:
    """N7: the answers to the first uses may come at any time, of watched keys or not."""
    bench = Bench(AuditSettings(keys_per_million=20_000))
    keys = [b"key %d" % number for number in range(1_000)]
    watched = next(key for key in keys if bench.audit._sample.has(key))
    other = next(key for key in keys if not bench.audit._sample.has(key))
    bench.committed[FIRST] = 10
    for number, uses in enumerate(((watched,) * 3, (other, watched), (watched, other, watched))):
        for use in uses:
            bench.ask(get(number, keys=(use,)))
            bench.committed[FIRST] += 1
        for _ in uses:
            assert bench.answer(answer(number, 10)) == [], uses
            bench.ask(get(number, keys=(watched,)))
    assert bench.audit._asked == {}
    bench.ask(get(99, keys=(watched,)))
    assert bench.answer(answer(99, 10)) == ["stale_read"]
    bench.audit.client_gone(CLIENT)
    assert bench.audit._newest == {}


def test_answer_that_cannot_be_to_the_request_is_not_judged() -> None:
    """N7: of another channel, or another number of keys."""
    bench = Bench()
    bench.committed |= {FIRST: 10, SECOND: 10}
    bench.ask(get(1, keys=(b"a", b"b")))
    assert bench.answer(answer(1, 9)) == []
    bench.ask(get(2))
    assert bench.answer(answer(2, 9, channel=SECOND)) == []
    bench.ask(GetMany(3, (ChannelKeys(FIRST, (b"a", b"b")),), "linearizable", None, 100))
    assert bench.answer(GetManyAnswer(3, (FoundKeys(0, (None,), (Seq(0),), served(9)),))) == []
    assert bench.audit.status(())["operations"] == 0


def test_bounded_answer_without_what_was_known_before_its_age_is_an_event() -> None:
    """N7, S7.3: the node's own clock alone."""
    bench = Bench()
    bench.committed[FIRST] = 10
    bench.read(10)
    bench.now_ms += 1_000
    bounded: dict[str, Any] = {"level": "bounded", "max_staleness_ms": 500}
    bench.ask(get(2_000, **bounded))
    old = GetAnswer(2_000, (None,), (Seq(0),), served(9, staleness_ms=400))
    assert bench.answer(old) == ["too_old"]
    bench.ask(get(2_001, **bounded))
    over = GetAnswer(2_001, (None,), (Seq(0),), served(9, staleness_ms=90_000))
    assert bench.answer(over) == ["over_bound"]


def test_row_that_changes_without_a_write_is_an_event_for_every_reader() -> None:
    """N7: a table that went back, or a damaged one."""
    bench = Bench()
    assert bench.read(10, 4) == []
    bench.ask(get(1), client=CLIENT + 1)
    assert bench.answer(answer(1, 11, 4, b"forged"), client=CLIENT + 1) == ["two_rows"]


def test_parts_of_a_request_for_many_channels_are_judged_by_themselves() -> None:
    """N7: those that come late, too; a refused one is no answer."""
    bench = Bench()
    bench.committed |= {FIRST: 10, SECOND: 20}
    keys = (b"a", b"b")
    parts = (ChannelKeys(FIRST, keys), ChannelKeys(SECOND, keys), ChannelKeys(SAVED, keys))
    bench.ask(GetMany(3, parts, "linearizable", None, 100))
    late = GetManyAnswer(3, (FoundKeys(1, (None, None), (Seq(0), Seq(0)), served(19, SECOND)),))
    first = GetManyAnswer(
        3,
        (FoundKeys(2, (None, None), (Seq(0), Seq(0)), served(1, SAVED)),),
        (RefusedKeys(0, "unavailable", "not now"),),
    )
    assert bench.answer(first) == []
    assert bench.answer(late) == ["stale_read"]
    assert bench.audit.status(())["violations"] == 2  # of two keys; one event
    assert bench.answer(late) == []
    assert bench.audit._asked == {}


def test_part_that_is_not_judged_hides_none_behind_it() -> None:
    """N7: one of a table below fsync, of a channel that is not here, or that was refused."""
    bench = Bench()
    bench.committed[FIRST] = 10
    strange = channel_id(b"x" * 16, 0)
    parts = tuple(ChannelKeys(channel, (b"a",)) for channel in (SAVED, strange, SECOND, FIRST))
    bench.ask(GetMany(3, parts, "linearizable", None, 100))
    refused = tuple(RefusedKeys(number, "unavailable", "not now") for number in range(3))
    found = (FoundKeys(3, (None,), (Seq(0),), served(9)),)
    assert bench.answer(GetManyAnswer(3, found, refused)) == ["stale_read"]
    assert bench.audit._asked == {}


def test_answer_to_a_request_of_which_nothing_is_watched_is_passed_over() -> None:
    """N7: while others are under way."""
    bench = Bench()
    bench.ask(get(1))
    assert bench.answer(GetManyAnswer(3, (FoundKeys(0, (None,), (Seq(0),), served(9)),))) == []
    assert bench.answer(answer(4, 9)) == []
    assert list(bench.audit._asked) == [(CLIENT, 1)]


def test_what_is_not_judged() -> None:
    """N7, S0.6: pinned states are of long ago, and tables below fsync may lose writes."""
    bench = Bench()
    bench.committed |= {FIRST: 10, SAVED: 10}
    assert bench.read(9, pin=4) == []
    assert bench.read(9, channel=SAVED) == []
    bench.ask(Scan(1, FIRST, b"", b"", 10, "linearizable", None, Seq(0), 100))
    bench.ask(get(2, channel_id(b"x" * 16, 0)))
    bench.ask(get(3, keys=()))
    assert bench.audit._asked == {}
    assert bench.audit.status(())["operations"] == 0


def test_request_that_is_refused_or_whose_client_is_gone_is_forgotten() -> None:
    """N7: what is held for a client ends with it."""
    bench = Bench()
    bench.ask(get(1))
    bench.ask(get(2))
    bench.ask(get(1), client=CLIENT + 1)
    assert bench.answer(Failed(1, "unavailable", "not now")) == []
    assert list(bench.audit._asked) == [(CLIENT, 2), (CLIENT + 1, 1)]
    bench.audit.client_gone(CLIENT)
    assert list(bench.audit._asked) == [(CLIENT + 1, 1)]


def test_channel_that_is_closed_is_forgotten_with_its_requests() -> None:
    """N7: what follows may be another life of the replica."""
    bench = Bench()
    bench.committed[FIRST] = 10
    bench.read(10, 4)
    bench.ask(get(2_000))
    bench.ask(get(2_001, SECOND))
    bench.audit.channel_closed(bench.runners[FIRST])
    assert list(bench.audit._asked) == [(CLIENT, 2_001)]
    bench.committed[FIRST] = 0
    bench.reads = 3_000
    assert bench.read(3, 2) == []


def test_memory_and_time_of_requests_are_bounded() -> None:
    """N7: of many keys a few are looked at, of many requests under way some."""
    bench = Bench()
    keys = tuple([b"%d" % number for number in range(KEYS_LOOKED_AT + 9)])
    bench.ask(get(0, keys=keys))
    [asked] = bench.audit._asked.values()
    assert len(asked.parts[0].keys) == KEYS_LOOKED_AT
    for number in range(1, REQUESTS_MAX + 9):
        bench.ask(get(number))
    assert len(bench.audit._asked) == REQUESTS_MAX


def test_none_are_watched_where_it_is_switched_off() -> None:
    """N7: audit.keys_per_million = 0."""
    bench = Bench(AuditSettings(keys_per_million=0))
    bench.committed[FIRST] = 10
    assert bench.read(9) == []
    assert bench.audit.status(())["operations"] == 0


def test_other_keys_are_watched_after_a_while() -> None:
    """N7: rotate_ms."""
    bench = Bench(AuditSettings(keys_per_million=20_000, keys_max=2, rotate_ms=60_000))
    keys = [b"key %d" % number for number in range(1_000)]

    def watched() -> set[bytes]:
        return {key for key in keys if bench.audit._sample.has(key)}

    first = watched()
    some, more, *_ = first
    for key in (some, more, some):
        bench.read(10, 4, keys=(key,))
        assert watched() == first
    bench.now_ms += 60_000
    bench.read(10, 4, keys=(some,))
    assert watched() != first
    other = next(key for key in keys if key in watched())
    bench.read(10, 4, keys=(other,))
    assert bench.audit.status(())["dropped"] == 0  # those before make room


def test_many_findings_are_one_event_and_all_are_counted() -> None:
    """N7: one cause has many effects."""
    bench = Bench()
    bench.committed[FIRST] = 10
    for number in range(3):
        bench.ask(get(number))
        bench.audit.answered(CLIENT, answer(number, 9), bench.now_ms)
    assert len(bench.events) == 1
    assert bench.audit.status(())["violations"] == 3


@pytest.mark.parametrize("length", [2, 4_000])
def test_report_of_a_client_is_an_event_of_bounded_size(length: int) -> None:
    """N7: it says whose it is."""
    bench = Bench()
    report = ReportViolation(9, "lost_write", "t/0", "it is gone", "x" * length)
    bench.audit.on_report(report, 1_000)
    bench.audit.on_report(report, 1_001)
    [event] = bench.events
    assert event == {
        "source": "client", "kind": "lost_write", "channel": "t/0", "text": "it is gone",
        "evidence": "x" * min(length, EVIDENCE_BYTES_MAX),
    }  # fmt: skip
    assert bench.audit.status(())["reported"] == 2


def test_reports_of_clients_keep_no_event_of_the_node_back() -> None:
    """N7: nor the other way round."""
    bench = Bench()
    bench.committed[FIRST] = 10
    report = ReportViolation(9, "lost_write", "t/0", "it is gone", "x")
    for number in range(3):
        bench.audit.on_report(report, bench.now_ms)
        bench.ask(get(number))
        bench.audit.answered(CLIENT, answer(number, 9), bench.now_ms)
    assert [event["source"] for event in bench.events] == ["client", "node"]
