"""Comparisons of replicas at their limits: lists that are short, replicas and states that go."""

from __future__ import annotations

import pytest

from raftstore.client.comparing import comparison
from raftstore.errors import UnavailableError
from raftstore.protocol.replica_checks import ROW_ENTRY, HashHistoryAnswer
from raftstore.types import Seq
from tests.unit.client import test_comparison
from tests.unit.client.test_comparison import END, Replica, compared, replicas_of, row_key


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "PAUSE_S", 0)


def test_key_is_named_in_a_part_that_is_longer_than_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """S13: by halves; only a replica with many more entries there than others leaves a range."""
    monkeypatch.setattr(comparison, "LISTED_MAX", 20)
    monkeypatch.setattr(comparison, "LEAF_ENTRIES", 8)
    replicas = replicas_of()
    odd = replicas["n2"].entries
    odd[row_key(17)] = odd[row_key(402)] = b"another"
    found = compared(replicas)
    assert [each.key for each in found.keys] == [{"id": 17}, {"id": 402}]
    assert found.ranges == ()
    for number in range(1_000, 1_100):
        odd[row_key(number)] = b"added"
    found = compared(replicas)
    assert {17, 402} <= {each.key["id"] for each in found.keys}
    assert [each.replicas for each in found.ranges] == [("n2",)]


def test_replica_that_goes_while_histories_are_compared_ends_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S13: the difference is named as far as it was known by then."""
    replicas = replicas_of()
    replicas["n2"].other_from = 101
    chain = Replica.chain
    told: list[Seq] = []

    def goes(self: Replica, seq: Seq) -> HashHistoryAnswer:
        answer = chain(self, seq)
        if self is replicas["n2"] and seq >= 101:
            if told:
                raise UnavailableError("it is gone")
            told.append(seq)
        return answer

    monkeypatch.setattr(Replica, "chain", goes)
    found = compared(replicas)
    [difference] = found.histories
    assert difference.node == "n2"
    assert difference.equal_to < 101 <= difference.differs_at == told[0] < END


def test_range_that_differs_is_reported_once_although_its_state_was_given_up() -> None:
    """S13: the part is hashed again from the next state."""
    for pins_live in range(2, 60, 3):
        replicas = replicas_of(200)
        for number in range(200):
            replicas["n2"].entries[row_key(number)] = b"another"
        replicas["n1"].pins_live = pins_live
        found = compared(replicas, shown_max=3)
        assert len(set(found.ranges)) == len(found.ranges)
        assert len(found.keys) == 3


def test_log_that_is_trimmed_again_and_again_is_compared_by_its_rows_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S13: it is said, and no history is called equal."""
    replicas = replicas_of(50)
    chain = Replica.chain

    def trims(self: Replica, seq: Seq) -> HashHistoryAnswer:
        self.base += 2
        return chain(self, seq)

    monkeypatch.setattr(Replica, "chain", trims)
    found = compared(replicas)
    assert {each.not_compared for each in found.replicas} == {
        "its log was trimmed again and again while it was compared"
    }


def test_row_of_a_table_whose_schema_is_not_known_is_named_in_hex(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S13: a key is shown in any case."""
    replicas = replicas_of(50)
    key = row_key(17)
    replicas["n2"].entries[key] = b"another"
    monkeypatch.setattr(test_comparison, "SCHEMA", None)
    assert [each.key for each in compared(replicas).keys] == [key[len(ROW_ENTRY) :].hex()]
