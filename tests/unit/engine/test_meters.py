"""A node counts reads and writes one by one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftstore.core.replica import ReplicaStatistics
from raftstore.engine import meters as meters_module
from raftstore.engine.meters import Meters, channel_labels
from raftstore.metrics import FixedHistogram
from raftstore.protocol.machines import CommandAck
from raftstore.protocol.message import Failed
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.reads import (
    ChannelKeys,
    FoundKeys,
    Get,
    GetAnswer,
    GetMany,
    GetManyAnswer,
    RefusedKeys,
    Served,
)
from raftstore.types import NodeId, Role, Seq, Term, make_guid
from tests.core_bench import pub_msg
from tests.storage_helpers import CHANNEL

GUID = make_guid(b"session1", 1)


def served(lag: int | None = 0, staleness_ms: int | None = 0) -> Served:
    """The facts that an answer carries about its state."""
    return Served(NodeId("n1"), CHANNEL, Term(1), Seq(3), lag, 0, "leader", staleness_ms)


def get(request_id: int, level: str = "leader") -> Get:
    """A read."""
    return Get(request_id, CHANNEL, (b"k",), level, None, Seq(0), 1_000)


def totals(meters: Meters) -> dict[str, float]:
    """Totals by name and values of labels."""
    return {" ".join([n, *(value for _, value in labels)]): v for n, labels, v in meters.samples()}


def shown(meters: Meters, name: str) -> list[tuple[float, int]]:
    """(sum, count) of the histograms of this name."""
    return [(total, count) for n, _, _, total, count in meters.histograms() if n == name]


def test_histogram_counts_up_to_its_bounds_and_beyond() -> None:
    """The bound itself is in its bucket; buckets are cumulated, and the last has everything."""
    histogram = FixedHistogram((1, 5))
    for value in (0, 1, 2, 5, 6, 100):
        histogram.observe(value)
    name, labels, buckets, total, count = histogram.shown("x", (), scale=2.0)
    assert (name, labels, total, count) == ("x", (), 228.0, 6)
    assert buckets == ((2.0, 2), (10.0, 4), (float("inf"), 6))


def test_read_is_counted_by_its_level_and_result_and_timed() -> None:
    """From when it came to when its answer left."""
    meters = Meters()
    meters.read_began(1, get(1), 100)
    meters.read_began(1, get(2, "any"), 100)
    meters.read_began(2, get(1, "made up"), 100)
    answer = GetAnswer(1, (), (), served(7, 40))
    assert meters.answered(1, answer, 103) == (served(7, 40),)
    assert meters.answered(1, Failed(2, "lag_exceeded", "far"), 110) == ()
    meters.answered(2, Failed(1, "schema", "unknown"), 100)
    meters.answered(2, Failed(1, "schema", "unknown"), 100)
    assert totals(meters) == {
        "raftstore_reads_total leader ok": 1,
        "raftstore_reads_total any lag_exceeded": 1,
        "raftstore_reads_total other schema": 1,
    }
    assert shown(meters, "raftstore_read_duration_seconds") == [
        (pytest.approx(0.003), 1), (pytest.approx(0.01), 1), (0, 1),
    ]  # fmt: skip
    assert shown(meters, "raftstore_reads_served_staleness_seconds") == [(pytest.approx(0.04), 1)]
    assert shown(meters, "raftstore_reads_served_lag_records") == [(7, 1)]


def test_parts_of_a_request_are_counted_one_by_one_until_the_last() -> None:
    """Found, refused, or ended by one answer for all that are left."""
    meters = Meters()
    parts = tuple(ChannelKeys(CHANNEL, (b"k",)) for _ in range(6))
    meters.read_began(1, GetMany(1, parts, "any", None, 1_000), 100)
    found = tuple(FoundKeys(part, (), (), served(part, 10 * part)) for part in (1, 2))
    refused = (RefusedKeys(3, "schema", "unknown", None),)
    told = meters.answered(1, GetManyAnswer(1, found, refused), 105)
    assert told == tuple(each.served for each in found)
    assert meters.answered(1, GetManyAnswer(1, (), refused), 106) == ()
    assert meters.answered(1, Failed(1, "overloaded", "later"), 110) == ()
    assert meters.answered(1, Failed(1, "overloaded", "later"), 110) == ()
    assert totals(meters) == {
        "raftstore_reads_total any ok": 2,
        "raftstore_reads_total any schema": 2,
        "raftstore_reads_total any overloaded": 2,
    }
    [(total, count)] = shown(meters, "raftstore_read_duration_seconds")
    assert (total, count) == (pytest.approx((5 + 5 + 5 + 6 + 10 + 10) / 1_000), 6)
    assert shown(meters, "raftstore_reads_served_lag_records") == [(3, 2)]
    assert shown(meters, "raftstore_reads_served_staleness_seconds") == [(pytest.approx(0.03), 2)]


def test_what_is_not_known_of_a_state_is_not_counted_as_fresh() -> None:
    """An unknown lag is no lag of 0."""
    meters = Meters()
    meters.answered(1, GetAnswer(1, (), (), served(None, None)), 0)
    assert shown(meters, "raftstore_reads_served_staleness_seconds") == [(0, 0)]
    assert shown(meters, "raftstore_reads_served_lag_records") == [(0, 0)]


def test_requests_whose_time_is_taken_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of clients that are gone, and those that are answered, give room."""
    monkeypatch.setattr(meters_module, "UNDER_WAY_MAX", 2)
    meters = Meters()
    for number in (1, 2, 3):
        meters.read_began(number, get(1), 0)
        meters.write_began(pub_msg(number), 0)
    assert (meters._reads_timed, len(meters._writes)) == (2, 2)
    meters.client_gone(1)
    meters.client_gone(3)
    meters.read_began(2, get(1), 5)
    assert meters._reads_timed == 1
    meters.answered(2, Failed(1, "schema", ""), 7)
    assert meters._reads_timed == 0
    assert meters._reads == {}


def test_write_is_counted_by_its_outcome_and_timed_from_its_first_copy() -> None:
    """A copy that comes again does not make it look faster."""
    meters = Meters()
    first = pub_msg(1)
    meters.write_began(first, 100)
    meters.write_began(first, 200)
    ack = PubAck(CHANNEL, Term(1), first.guid, Seq(1), Seq(1), Term(1), "fsync", 2)
    meters.write_ended(ack, 250)
    conflict = PubAck(CHANNEL, Term(1), GUID, Seq(1), Seq(1), Term(1), "fsync", 2, conflict=True)
    meters.write_ended(conflict, 300)
    meters.write_ended(PubReject(CHANNEL, Term(1), GUID, "overloaded", ""), 300)
    assert totals(meters) == {
        "raftstore_writes_total committed": 1,
        "raftstore_writes_total conflict": 1,
        "raftstore_writes_total overloaded": 1,
    }
    assert shown(meters, "raftstore_write_duration_seconds") == [(pytest.approx(0.15), 1)]


@pytest.mark.parametrize(("staleness_ms", "breaches"), [(0, 0), (50, 0), (51, 1), (None, 1)])
def test_n14_read_beyond_its_tables_bound_is_a_breach(
    staleness_ms: int | None, breaches: int
) -> None:
    """N14: what is unknown is beyond every bound; without a bound nothing is promised."""
    meters = Meters()
    meters.served_within("t", served(0, staleness_ms), 50)
    meters.served_within("u", served(0, staleness_ms), None)
    told = totals(meters)
    assert told.pop("raftstore_table_staleness_slo_reads_total t") == 1
    assert sum(told.values()) == breaches


def test_tables_that_are_gone_leave_no_labels() -> None:
    """Others stay, and totals without a table."""
    meters = Meters()
    for table in ("t", "u"):
        meters.served_within(table, served(), 50)
    for role in (Role.CANDIDATE, Role.LEADER, Role.FOLLOWER):
        channel = cast(Any, SimpleNamespace(elector=SimpleNamespace(role=role)))
        meters.leader_changed(channel, (Term(1), Role.FOLLOWER, None), 0)
    meters.forget_tables(["u"])
    assert totals(meters) == {
        "raftstore_table_staleness_slo_reads_total u": 1,
        "raftstore_elections_total": 1,
        "raftstore_leaderships_won_total": 1,
    }


def test_totals_grow_and_keep_what_closed_channels_counted() -> None:
    """A total never goes down."""
    meters = Meters()
    meters.count("x", by=3)
    meters.count("x")
    assert totals(meters) == {"x": 4}
    held = ReplicaStatistics(None, None, 0, 0, 0, 0, 0, 5)  # type: ignore[arg-type]
    channel = cast(Any, SimpleNamespace(core=SimpleNamespace(statistics=lambda: held)))
    for _ in range(2):
        meters.channel_closed(channel)
    assert meters.repeated_before == 10
    assert channel_labels("t", 3) == (("table", "t"), ("partition", "3"))


def test_ends_of_commands_are_counted_by_what_the_machine_made_of_them() -> None:
    """They are counted as committed writes, too, which they are."""
    meters = Meters()
    of = (CHANNEL, Term(1), GUID, Seq(1), Seq(1), Term(1), "fsync", 2)
    meters.write_ended(CommandAck(*of), 300)
    for is_skipped in (False, True, True):
        meters.write_ended(CommandAck(*of, is_rejected=True, is_skipped=is_skipped), 300)
    found = {labels: value for name, labels, value in meters.samples() if "commands" in name}
    assert found == {
        (("outcome", "applied"),): 1.0,
        (("outcome", "rejected"),): 1.0,
        (("outcome", "skipped"),): 2.0,
    }
    assert ("raftstore_writes_total", (("outcome", "committed"),), 4.0) in meters.samples()
