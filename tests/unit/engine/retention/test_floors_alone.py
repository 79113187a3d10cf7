"""Floors of a log by themselves: what needs records, for how much of the log, and who is
informed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.engine.retention.floors import SHORT_LOG_BYTES, Floor
from raftstore.types import ChannelConfig, MemberRole, NodeId, ReplicaNumber, Seq, Term
from tests.unit.engine.retention_bench import CHANNEL, OTHER, RECORD_BYTES, A, B, Bench, C


def floors(bench: Bench) -> dict[str, tuple[str, int, int | None, bool]]:
    """Of the channel, by owner."""
    found = bench.retention.floors.of(bench.mine, bench.now_ms)
    return {one.owner: (one.name, one.seq, one.bytes_max, one.is_given_up) for one in found}


def slow(bench: Bench, node: str = "n2") -> tuple[int, bool]:
    """The floor of a replica, and whether it is given up."""
    _, seq, _, is_given_up = floors(bench)[node]
    return seq, is_given_up


def acknowledges(bench: Bench, node: NodeId, applied: int, heard_ms: int | None) -> None:
    """It reported that to the leader with an acknowledgement."""
    bench.mine.progress[node] = SimpleNamespace(applied_seq=Seq(applied), heard_ms=heard_ms)


def test_each_other_replica_needs_what_it_has_not_applied() -> None:
    """S10: of followers too; this node's own table is no other replica."""
    bench = Bench()
    bench.grow(30)
    bench.heard(B, 12)
    bench.heard(C, 30)
    assert floors(bench) == {
        "n2": ("slow_replica", 12, 400, False),
        "n3": ("slow_replica", 30, 400, False),
    }
    assert bench.retention.floors.given_up_total == 0
    assert not bench.told()


def test_learner_needs_records_like_a_voter() -> None:
    """It is a member."""
    bench = Bench()
    config = ChannelConfig(((A,),), (C,))
    bench.mine.core.config = lambda: config
    assert list(floors(bench)) == ["n3"]


def test_replica_that_told_nothing_needs_all_that_there_is() -> None:
    """S6.5: of this channel; what it reported of others does not count."""
    bench = Bench()
    bench.based(7)
    bench.grow(30)
    bench.positions.clear()
    bench.heard(B, 12, OTHER)
    assert slow(bench) == (7, False)
    bench.heard(C, 12, CHANNEL)
    assert (slow(bench), slow(bench, "n3")) == ((7, False), (12, False))


@pytest.mark.parametrize(
    ("reported", "acknowledged", "heard_ms", "expected"),
    [(12, 20, 5, 20), (20, 12, 5, 20), (12, 20, None, 12), (None, 20, 0, 20), (None, 4, 9, 7)],
)
def test_acknowledgement_counts_where_it_is_newer_than_the_report(
    reported: int | None, acknowledged: int, heard_ms: int | None, expected: int
) -> None:
    """A leader learns it more often; a progress from before the first report is none."""
    bench = Bench()
    bench.based(7)
    bench.grow(30)
    if reported is None:
        bench.positions.clear()
    else:
        bench.heard(B, reported)
    acknowledges(bench, B, acknowledged, heard_ms)
    assert slow(bench) == (expected, False)


def test_readers_of_changes_need_what_comes_behind_their_last_question() -> None:
    """Of this channel, while they ask; below the base they learn that it is gone."""
    bench = Bench()
    bench.based(5)
    bench.grow(30)
    bench.readers.asked(CHANNEL, 71, Seq(4), 1_000)
    bench.readers.asked(CHANNEL, 72, Seq(5), 1_000)
    bench.readers.asked(CHANNEL, 73, Seq(9), 1_000)
    bench.readers.asked(OTHER, 74, Seq(9), 1_000)
    found = {owner: floor for owner, floor in floors(bench).items() if owner.startswith("client")}
    assert found == {
        "client 72": ("reader_of_changes", 5, 300, False),
        "client 73": ("reader_of_changes", 9, 300, False),
    }
    bench.now_ms = 6_000
    assert sorted(floors(bench)) == ["n2", "n3"]


def test_lowest_floor_says_how_far_the_log_may_go_and_what_keeps_it() -> None:
    """Only one below where it should go; of two alike the first."""
    bench = Bench()
    bench.grow(30)
    bench.heard(B, 20)
    bench.heard(C, 20)
    lowest = bench.retention.floors.lowest
    assert lowest(bench.mine, Seq(19), 1_000) == (19, None)
    assert lowest(bench.mine, Seq(20), 1_000) == (20, None)
    limit, held_by = lowest(bench.mine, Seq(25), 1_000)
    assert (limit, held_by and held_by.owner) == (20, "n2")
    bench.heard(C, 18)
    limit, held_by = lowest(bench.mine, Seq(25), 1_000)
    assert (limit, held_by and held_by.owner) == (18, "n3")


def test_other_parts_name_floors_of_their_own() -> None:
    """Such as replica snapshots; all of them are asked, and without a bound none is given up."""
    bench = Bench()
    bench.grow(30)
    asked: list[Any] = []

    def source(name: str, seq: int, bytes_max: int | None) -> Any:
        def floors_of(runner: Any) -> list[Floor]:
            asked.append(runner)
            return [Floor(name, "n3", Seq(seq), bytes_max)]

        return floors_of

    register = bench.retention.floors
    register.sources += [source("one", 8, None), source("two", 3, 10)]
    bench.log.size = 99_999
    found = register.of(bench.mine, 1_000)
    assert [(one.name, one.is_given_up) for one in found][-2:] == [("one", False), ("two", True)]
    assert asked == [bench.mine] * 2
    limit, held_by = register.lowest(bench.mine, Seq(30), 1_000)
    assert (limit, held_by and held_by.name) == (8, "one")


def test_floor_is_given_up_beyond_its_bytes_once_and_with_its_owner() -> None:
    """Forty records of ten bytes are kept for a replica, and no more; the event says so."""
    bench = Bench()
    bench.heard(B, 10)
    bench.grow(50)
    assert slow(bench) == (10, False)
    bench.grow(51)
    assert slow(bench) == (10, True)
    assert slow(bench) == (10, True)
    fields = {
        "channel": "orders/3",
        "floor": "slow_replica",
        "owner": "n2",
        "seq": 10,
        "bytes_max": 400,
    }
    assert bench.told() == [("retention_floor_given_up", fields)]
    assert bench.retention.floors.given_up_total == 1
    assert bench.retention.floors.lowest(bench.mine, Seq(40), 1_000) == (40, None)
    bench.heard(C, 10)
    assert slow(bench, "n3") == (10, True)
    assert bench.retention.floors.given_up_total == 2
    assert len(bench.told()) == 1


@pytest.mark.parametrize(
    ("table_bytes", "has_rows", "kept_bytes"),
    [
        (0, True, SHORT_LOG_BYTES),
        (SHORT_LOG_BYTES, True, 2 * SHORT_LOG_BYTES),
        (10 * SHORT_LOG_BYTES, True, 3 * SHORT_LOG_BYTES),
        (0, False, 3 * SHORT_LOG_BYTES),
    ],
)
def test_no_log_is_kept_for_a_replica_that_a_copy_of_the_table_is_cheaper_for(
    table_bytes: int, has_rows: bool, kept_bytes: int
) -> None:
    """Ten megabytes that were overwritten for an hour come as ten megabytes; what is soon sent is
    kept, however small the table is, and nothing above the setting. A witness has no table."""
    bench = Bench(slow_replica_bytes=3 * SHORT_LOG_BYTES)
    bench.table_bytes, bench.mine.has_rows = table_bytes, has_rows
    bench.mine.core.known_configs = tuple
    bench.heard(B, 10)
    bench.grow(10 + kept_bytes // RECORD_BYTES)
    assert slow(bench) == (10, False)
    bench.grow(11 + kept_bytes // RECORD_BYTES)
    assert slow(bench) == (10, True)


def test_floor_that_came_nearer_counts_again() -> None:
    """When it is given up again, that is reported again."""
    bench = Bench()
    bench.heard(B, 10)
    bench.grow(51)
    assert slow(bench) == (10, True)
    bench.heard(B, 11)
    assert slow(bench) == (11, False)
    bench.grow(52)
    assert slow(bench) == (11, True)
    assert len(bench.told()) == 2


def test_replica_whose_records_are_gone_stays_given_up() -> None:
    """However little log there is behind the base; at the base it needs what there is."""
    bench = Bench()
    bench.heard(B, 10)
    bench.grow(51)
    slow(bench)
    bench.based(45)
    assert slow(bench) == (10, True)
    bench.heard(B, 45)
    assert slow(bench) == (45, False)
    bench.heard(B, 10)
    assert slow(bench) == (10, False), "its last report is old: it was counted since"
    assert len(bench.told()) == 1


def test_old_word_of_a_replica_holds_the_log_from_its_base_on() -> None:
    """Bytes that are gone do not count."""
    bench = Bench()
    bench.based(60)
    bench.grow(100)
    bench.heard(B, 10)
    assert slow(bench) == (10, False)
    bench.grow(101)
    assert slow(bench) == (10, True)


def test_log_that_is_too_long_as_a_whole_is_kept_for_no_one() -> None:
    """One node's disk comes before slow replicas and readers; at the bound it is not too long."""
    bench = Bench()
    bench.grow(30)
    bench.heard(B, 29)
    bench.log.size = 50_000
    assert slow(bench) == (29, False)
    bench.log.size = 50_001
    assert slow(bench) == (29, True)


def test_closed_channel_is_told_anew_in_its_next_life_and_others_are_not() -> None:
    """Its readers are forgotten."""
    bench = Bench()
    bench.heard(B, 10)
    register = bench.retention.floors
    for runner in (bench.mine, bench.other):
        bench.grow(51, runner)
        register.of(runner, 1_000)
    assert len(bench.told()) == 2
    bench.readers.asked(CHANNEL, 72, Seq(50), 1_000)
    bench.readers.asked(OTHER, 73, Seq(50), 1_000)
    bench.retention.channel_closed(bench.mine)
    assert list(bench.readers.positions(CHANNEL, 1_000)) == []
    assert len(list(bench.readers.positions(OTHER, 1_000))) == 1
    for runner in (bench.mine, bench.other):
        register.of(runner, 1_000)
    assert [fields["channel"] for _, fields in bench.told()] == ["orders/3"]


def test_floors_that_were_given_up_are_forgotten_with_their_owners() -> None:
    """Each connection of a reader is another owner: their number does not grow for ever."""
    bench = Bench()
    bench.grow(30)
    register = bench.retention.floors
    bench.log.size = 99_999
    for client in range(50):
        bench.readers.asked(CHANNEL, client, Seq(3), bench.now_ms)
        bench.readers.asked(OTHER, client, Seq(3), bench.now_ms)
        assert floors(bench)[f"client {client}"][3], "it is given up"
        bench.readers.client_gone(client)
        floors(bench)
    assert len(register._given_up) == len(floors(bench)) == 2
    assert register.given_up_total == 52
    bench.readers.asked(CHANNEL, 7, Seq(3), bench.now_ms)
    assert floors(bench)["client 7"][3], "one that comes again is judged again"
    assert register.given_up_total == 53


def test_w6_witness_is_needed_up_to_what_enough_voters_with_rows_have_applied() -> None:
    """In each configuration that may count, and by the life of a replica that it names (M4)."""
    bench = Bench()
    config = ChannelConfig(((A, B, C),), roles={A: MemberRole.WITNESS})
    known = [config]
    bench.mine.core.known_configs = lambda: [(Seq(1), Term(1), each) for each in known]
    bench.heard(B, 12)
    bench.heard(C, 30)

    def needed(limit: int) -> int:
        return bench.retention.floors.rows_seq(bench.mine, Seq(limit))

    assert [needed(limit) for limit in (99, 12, 11)] == [12, 12, 11]
    known.insert(0, ChannelConfig(((A, C),), roles={A: MemberRole.WITNESS}))
    assert needed(99) == 0
    known[0] = ChannelConfig(((A, B, C),))
    bench.heard(A, 5)
    assert needed(99) == 12
    known[:] = [ChannelConfig(((A, B, C),), numbers={B: ReplicaNumber(7)})]
    assert needed(99) == 5
