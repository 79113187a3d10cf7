"""The ring of a node's newest events by itself: what is kept, and how a client reads on."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.engine.reports.events import EventLog, EventRing

Fields = dict[str, Any]


def filled() -> EventRing:
    """Four events: role, mode, role, mode."""
    ring = EventRing()
    for number in range(1, 5):
        ring.add("role" if number % 2 else "mode", {"n": number}, 10 * number)
    return ring


def numbers(told: tuple[int, tuple[Fields, ...]]) -> tuple[int, list[int]]:
    """The number to go on from, and those of the events."""
    return told[0], [event["number"] for event in told[1]]


@pytest.mark.parametrize(
    ("after", "types", "limit", "told"),
    [
        (0, (), 10, (4, [1, 2, 3, 4])),
        (2, (), 10, (4, [3, 4])),
        (4, (), 10, (4, [])),
        (5, (), 10, (4, [1, 2, 3, 4])),
        (0, (), 2, (2, [1, 2])),
        (0, (), 0, (1, [1])),
        (0, ("mode",), 1, (2, [2])),
        (0, ("mode",), 10, (4, [2, 4])),
        (0, ("put",), 10, (4, [])),
    ],
)
def test_client_reads_on_from_the_number_of_the_last_answer(
    after: int, types: tuple[str, ...], limit: int, told: tuple[int, list[int]]
) -> None:
    """By type and in pages of at least one; a number of an earlier life begins anew."""
    assert numbers(filled().since(after, types, limit)) == told


def test_event_has_its_plain_fields() -> None:
    """Other values cannot be sent, other kinds of events are not kept."""
    ring = EventRing()
    fields = {"a": None, "b": "x", "c": 1, "d": 0.5, "e": True, "f": object()}
    ring.add("role", fields, 70)
    ring.add("put", {}, 80)
    del fields["f"]
    _, told = ring.since(0, (), 10)
    assert told == ({"number": 1, "type": "role", "at_wall_ms": 70, **fields},)


def test_n8_failovers_outlive_the_process_and_come_first_in_the_next() -> None:
    """N8: numbered anew; nothing else that was in the file is taken."""
    kept: list[Fields] = []
    ring = EventRing()
    ring.add("failover", {"n": 0}, 5)  # nobody keeps it yet
    ring.keep = kept.append
    for name in ("role", "failover", "failover_seen"):
        ring.add(name, {}, 10)
    assert [event["type"] for event in kept] == ["failover", "failover_seen"]
    again = EventRing()
    again.restore([{"type": "role", "number": 1}, *kept, {}])
    again.add("role", {}, 20)
    _, told = again.since(0, (), 10)
    assert [(event["number"], event["type"]) for event in told] == [
        (1, "failover"),
        (2, "failover_seen"),
        (3, "role"),
    ]


def test_newest_events_of_a_kind_come_newest_first() -> None:
    """At most so many."""
    assert [event["number"] for event in filled().newest("role", 10)] == [3, 1]
    assert [event["number"] for event in filled().newest("role", 1)] == [3]


def test_event_is_written_and_kept() -> None:
    """One line in the log of the process, with every field of it."""
    ring, lines = EventRing(), list[tuple[str, Any]]()
    log = EventLog(ring, lambda: 90, lambda name, fields: lines.append((name, dict(fields))))
    log.tell("role", n=1)
    assert lines == [("role", {"n": 1})]
    assert ring.since(0, (), 1)[1][0]["at_wall_ms"] == 90


def test_field_of_an_event_never_takes_the_place_of_its_number() -> None:
    """A reader that goes on behind that number would miss what follows."""
    ring = EventRing()
    ring.add("replica_deleted", {"channel": "t/0", "number": 9, "type": "x"}, 5)
    ring.add("table_resized", {"table": "t"}, 6)
    number, events = ring.since(0, (), 10)
    assert number == 2
    assert [(event["number"], event["type"]) for event in events] == [
        (1, "replica_deleted"),
        (2, "table_resized"),
    ]
