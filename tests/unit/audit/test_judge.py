"""The judge of an audit: each promise that it watches, and what it must never take for broken."""

from __future__ import annotations

import json
from typing import Any

import pytest

from raftstore.audit.finding import EVIDENCE_BYTES_MAX, AuditFinding, FindingKind
from raftstore.audit.judge import CHANNELS_MAX, Judge
from raftstore.audit.observation import NO_ROW, Action, Observation, hash_of_key, hash_of_row
from raftstore.audit.row_spans import OPERATIONS_MAX, SPANS_MAX

KEY, OTHER = hash_of_key(b"key"), hash_of_key(b"other")
CHANNEL, NAME = b"c" * 20, "orders/0"


class Bench:
    """One process and what its judge found."""

    def __init__(self, keys_max: int = 10) -> None:
        self.judge = Judge(keys_max=keys_max)
        self.found: list[AuditFinding] = []

    def read(
        self, began_ms: float, seq: int, version: int = 0, row: bytes | None = None, **fields: Any
    ) -> list[FindingKind]:
        """A read that took one millisecond; of a version without a row named, its usual one."""
        sealed = (row or b"row of %d" % version) if version else None
        given = {"action": Action.GET, "key": KEY, "level": "linearizable", **fields}
        return self._observe(
            began_ms=began_ms, seq=seq, version=version, row=hash_of_row(sealed), **given
        )

    def put(self, began_ms: float, seq: int, **fields: Any) -> list[FindingKind]:
        """An acknowledged put."""
        row = hash_of_row(b"row of %d" % seq)
        given = {"action": Action.PUT, "key": KEY, **fields}
        return self._observe(began_ms=began_ms, seq=seq, version=seq, row=row, **given)

    def delete(self, began_ms: float, seq: int) -> list[FindingKind]:
        """An acknowledged delete."""
        return self._observe(
            action=Action.DELETE, key=KEY, began_ms=began_ms, seq=seq, version=0, row=NO_ROW
        )

    def _observe(self, **fields: Any) -> list[FindingKind]:
        seen = Observation(ended_ms=fields["began_ms"] + 1, **fields)
        found = self.judge.observe(CHANNEL, NAME, seen)
        self.found += found
        return [finding.kind for finding in found]


def test_what_a_right_history_shows_is_never_a_violation() -> None:
    """N7: puts, deletes and reads of any level in the order of their positions."""
    bench = Bench()
    assert bench.put(0, 5) == []
    assert bench.read(2, 7, 5) == []
    assert bench.read(4, 4, level="any") == []  # before the put, from a replica behind
    assert bench.delete(6, 9) == []
    assert bench.read(8, 12) == []
    assert bench.put(10, 13) == []
    assert bench.read(12, 8, 5, level="bounded", max_lag=9, lag=5) == []
    assert bench.read(14, 13, 13) == []
    assert bench.judge.observed == 8
    assert bench.judge.violations == 0


def test_linearizable_read_behind_what_was_known_is_stale() -> None:
    """N7, S7.1: any report of a position counts, whichever key it was of."""
    bench = Bench()
    assert bench.put(0, 20, key=OTHER) == []
    assert bench.read(2, 19) == [FindingKind.STALE_READ]
    [finding] = bench.found
    assert finding.text == (
        "a linearizable read was answered as of seq 19, and 20 was committed before it began"
    )
    assert [operation.seq for operation in finding.operations] == [19, 20]


def test_position_reported_while_a_read_was_under_way_does_not_count() -> None:
    """N7: the order of two operations that overlap is open."""
    bench = Bench()
    assert bench.put(0, 20) == []
    assert bench.read(0.5, 19) == []
    assert bench.read(1, 19) == []  # at the very moment
    assert bench.read(1.1, 19) == [FindingKind.STALE_READ]


@pytest.mark.parametrize("level", ["leader", "bounded", "any"])
def test_other_levels_may_be_behind(level: str) -> None:
    """N7: a deposed leader may answer at level leader (S7.2), any replica at the others."""
    bench = Bench()
    bench.put(0, 20)
    assert bench.read(5, 10, level=level) == []


def test_read_is_too_old_when_it_lacks_what_was_known_before_the_age_it_stated() -> None:
    """N7, S7.3: with room for whole milliseconds and for clocks that differ."""
    bench = Bench()
    bench.put(99, 20)  # known from 100 on
    stated: dict[str, Any] = {"level": "bounded", "max_staleness_ms": 500, "staleness_ms": 300}
    assert bench.read(400, 19, **stated) == []
    assert bench.read(100 + 302 * 1.01, 19, **stated) == []
    assert bench.read(405.1, 19, **stated) == [FindingKind.TOO_OLD]
    assert bench.read(405.1, 20, 20, **stated) == []
    [finding] = bench.found
    assert finding.text == (
        "a read stated an age of 300 ms as of seq 19, and 20 was committed longer ago"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"max_staleness_ms": 100, "staleness_ms": 101},
        {"max_staleness_ms": 100, "staleness_ms": None},
        {"max_lag": 3, "lag": 4},
        {"max_lag": 3, "lag": None},
    ],
)
def test_bounded_read_that_states_more_than_its_bound_is_one(fields: dict[str, Any]) -> None:
    """N7, S7.3: what is unknown is beyond every bound."""
    bench = Bench()
    assert bench.read(0, 5, level="bounded", **fields) == [FindingKind.OVER_BOUND]
    assert bench.read(0, 5, level="any", **fields) == []


def test_read_before_the_position_that_it_named_is_too_early() -> None:
    """N7: at_least."""
    bench = Bench()
    assert bench.read(0, 5, level="any", min_seq=5) == []
    assert bench.read(0, 5, level="any", min_seq=6) == [FindingKind.TOO_EARLY]


def test_row_newer_than_its_state_is_ahead() -> None:
    """N7: a later read from there might go back."""
    assert Bench().read(0, 5, 6) == [FindingKind.AHEAD]


def test_acknowledged_put_that_a_later_state_does_not_show_is_lost() -> None:
    """N7, O4: an older version is there, or at its own position nothing."""
    bench = Bench()
    bench.put(0, 20)
    assert bench.read(2, 25, 18, level="any") == [FindingKind.LOST_WRITE]
    bench = Bench()
    bench.put(0, 20)
    assert bench.read(2, 20) == [FindingKind.LOST_WRITE]


def test_absent_row_behind_a_put_may_have_been_deleted_by_others() -> None:
    """N7: what was not seen proves nothing."""
    bench = Bench()
    bench.put(0, 20)
    assert bench.read(2, 21) == []


def test_acknowledged_put_with_another_row_at_its_position_is_lost() -> None:
    """N7, O3."""
    bench = Bench()
    bench.put(0, 20)
    assert bench.read(2, 25, 20, b"forged") == [FindingKind.LOST_WRITE]


def test_deleted_row_that_is_there_again_in_its_old_version_is_a_lost_delete() -> None:
    """N7, O4."""
    bench = Bench()
    bench.put(0, 20)
    bench.delete(2, 22)
    assert bench.read(4, 30, 20) == [FindingKind.LOST_WRITE]


def test_two_answers_with_two_rows_of_one_version_contradict_each_other() -> None:
    """N7: content differs between two replicas, or changed on one."""
    bench = Bench()
    assert bench.read(0, 30, 20, node="n1") == []
    assert bench.read(2, 31, 20, b"forged", node="n2") == [FindingKind.TWO_ROWS]
    [finding] = bench.found
    assert [operation.node for operation in finding.operations[:2]] == ["n2", "n1"]


@pytest.mark.parametrize(
    ("seq", "version"),
    [(29, 18), (40, 25), (25, 0)],
    ids=["an older version inside", "written inside", "absent inside"],
)
def test_two_versions_at_one_position_contradict_each_other(seq: int, version: int) -> None:
    """N7: the row was version 20 from 20 to 30."""
    bench = Bench()
    assert bench.read(0, 30, 20, level="any") == []
    assert bench.read(2, seq, version, level="any") == [FindingKind.TWO_ROWS]


def test_versions_side_by_side_do_not_contradict() -> None:
    """N7: the row was version 20 from 20 to 30; before and behind it may be what it likes."""
    for seq, version in ((19, 18), (31, 31), (40, 31), (19, 0), (31, 0), (45, 20)):
        bench = Bench()
        bench.read(0, 30, 20, level="any")
        assert bench.read(2, seq, version, level="any") == [], (seq, version)


def test_each_answer_says_that_the_row_was_the_same_since_the_one_before() -> None:
    """N7: it was version 20 up to the last position that showed it."""
    bench = Bench()
    for at, seq in enumerate((30, 45, 40)):
        assert bench.read(2 * at, seq, 20, level="any") == []
    assert bench.read(8, 44, 35, level="any") == [FindingKind.TWO_ROWS]
    assert "as of seq 45" in bench.found[0].text


def test_contradiction_is_found_once_and_not_with_each_later_answer() -> None:
    """N7: which answer is wrong nobody knows, so the judge begins anew."""
    bench = Bench()
    bench.read(0, 30, 20, b"forged")
    assert bench.read(2, 31, 20) == [FindingKind.TWO_ROWS]
    assert bench.read(4, 32, 20) == []


def test_write_acknowledged_at_a_position_that_was_committed_before_is_old() -> None:
    """N7, S2.1: a position is given once."""
    bench = Bench()
    bench.read(0, 30)
    assert bench.put(2, 30) == [FindingKind.OLD_WRITE]
    assert bench.put(4, 31) == []


def test_keys_beyond_the_limit_are_judged_by_their_positions_alone() -> None:
    """N7: memory is bounded, and what is left out is counted."""
    bench = Bench(keys_max=1)
    bench.read(0, 30, 20)
    assert bench.read(2, 30, 20, key=OTHER) == []
    assert bench.read(4, 30, 20, b"forged", key=OTHER) == []
    assert bench.judge.dropped == 2
    assert bench.read(6, 29, 20, key=OTHER) == [FindingKind.STALE_READ]


def test_other_keys_take_the_place_of_those_before_and_positions_stay() -> None:
    """N7: a turn of the sample."""
    bench = Bench(keys_max=1)
    bench.read(0, 30, 20)
    bench.judge.rotate()
    assert bench.read(2, 30, 20, key=OTHER) == []
    assert bench.judge.dropped == 0
    assert bench.read(4, 29) == [FindingKind.STALE_READ]


def test_channel_that_is_gone_is_forgotten() -> None:
    """N7: another may follow that begins anew."""
    bench = Bench(keys_max=1)
    bench.read(0, 30, 20)
    bench.judge.forget(CHANNEL)
    bench.judge.forget(CHANNEL)
    assert bench.read(2, 3, 2, key=OTHER) == []
    assert bench.judge.dropped == 0


def test_channel_used_least_lately_makes_room_for_another() -> None:
    """N7: tables come and go in the life of a process; memory is bounded, and all are judged."""
    judge = Judge(keys_max=CHANNELS_MAX)

    def read(channel: int, at_ms: float, seq: int) -> list[FindingKind]:
        seen = Observation(Action.GET, KEY, at_ms, at_ms + 1, seq, 0, NO_ROW, level="linearizable")
        return [finding.kind for finding in judge.observe(channel, NAME, seen)]

    for channel in range(CHANNELS_MAX):
        assert read(channel, 0, 10) == []
    assert read(0, 2, 10) == []
    for channel in range(CHANNELS_MAX, CHANNELS_MAX + 9):
        assert read(channel, 4, 10) == []
        assert read(channel, 6, 9) == [FindingKind.STALE_READ]
    assert len(judge._channels) == CHANNELS_MAX
    assert sum(len(known.rows) for known in judge._channels.values()) == judge._keys
    assert judge.dropped == 0
    assert read(0, 8, 9) == [FindingKind.STALE_READ]  # used again since, so it was kept
    assert read(1, 8, 9) == []  # made room


def test_memory_of_a_key_is_bounded() -> None:
    """N7: the newest versions and operations are remembered."""
    bench = Bench()
    for number in range(1, 100):
        bench.put(number * 2, number * 2)
    [row] = bench.judge._channels[CHANNEL].rows.values()
    assert len(row._spans) == SPANS_MAX
    assert len(row.operations) == OPERATIONS_MAX
    assert bench.read(1_000, 300, 196) == [FindingKind.LOST_WRITE]  # the last was at 198


def test_position_that_comes_late_counts_from_the_newest_moment_on() -> None:
    """N7: also a second one of the same moment; what was known before it stays as it was."""
    judge = Judge(keys_max=1)
    for at_ms, seq in ((10, 1), (20, 2), (20, 3), (15, 4), (30, 4)):
        judge.committed(CHANNEL, NAME, at_ms, seq)
    floors = judge._channels[CHANNEL].floors
    assert [floors.before(at_ms) for at_ms in (10, 11, 20, 21, 99)] == [0, 1, 1, 4, 4]


def test_finding_says_in_words_who_saw_what_of_the_row() -> None:
    """N7: it is read by people."""
    bench = Bench()
    bench.put(0, 20)
    bench.read(2, 20)
    bench.read(4, 31, 30, b"one", node="n1")
    bench.read(6, 32, 30, b"other", node="n2", action=Action.CHECK)
    one, other = (hash_of_row(row).hex()[:8] for row in (b"one", b"other"))
    assert [finding.text.removeprefix(f"key {KEY.hex()}: ") for finding in bench.found] == [
        "it was absent as of seq 20, and a put was acknowledged at seq 20",
        f"a check as of seq 32 by n2 showed the row {other} of 30, and "
        f"a read as of seq 31 by n1 showed the row {one} of 30",
    ]


def test_floors_of_long_ago_are_thinned_and_stay_true() -> None:
    """N7: a floor is never higher than what was known at its moment."""
    judge = Judge(keys_max=1)
    for at in range(1, 2_000):
        judge.committed(CHANNEL, NAME, at, at * 10)
    floors = judge._channels[CHANNEL].floors
    for at in (1, 2, 50, 700, 1_998, 1_999, 2_000, 5_000):
        assert floors.before(at) <= (min(at, 2_000) - 1) * 10
    assert floors.before(2_000) == 19_990
    assert floors.before(1_900) > 18_000


def test_evidence_is_json_of_bounded_size_without_rows() -> None:
    """N7: an event carries it."""
    bench = Bench()
    for number in range(1, 40):
        bench.put(number * 2, number)
    bench.read(100, 50, 20, b"a secret row", level="any", node="n" * 63)
    [finding] = bench.found
    evidence = finding.evidence()
    assert len(evidence) <= EVIDENCE_BYTES_MAX
    operations = json.loads(evidence)
    assert len(operations) >= 5
    assert operations[0]["seq"] == 50
    assert operations[0]["key"] == KEY.hex()
    assert "secret" not in evidence
    assert finding.channel == NAME
