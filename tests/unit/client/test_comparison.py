"""Replicas compared by their answers alone: positions, histories, and parts down to their keys."""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.client.comparing import comparison
from raftstore.client.comparing.comparison import ChannelComparison
from raftstore.client.comparing.results import (
    ComparisonProgress,
    HistoryDifference,
    ReplicaComparison,
)
from raftstore.errors import NotUpToBoundError, PageExpiredError, UnavailableError
from raftstore.protocol.replica_checks import (
    ROW_ENTRY,
    HashedEntry,
    HashHistoryAnswer,
    HashRangeAnswer,
    LogRecord,
    PinStateAnswer,
)
from raftstore.rows.schema import TableSchema
from raftstore.types import NodeId, RecordKind, Seq, Term

NAMES = ("n1", "n2", "n3")
SCHEMA = TableSchema(("id",))
END = 200
STEP_ENTRIES = 90
"""That a replica hashes at a time."""


def node(name: str) -> NodeId:
    """The id of a node."""
    return NodeId(f"{name}@{'0' * 32}")


def row_key(number: int) -> bytes:
    """The key of an entry that is a row."""
    return ROW_ENTRY + SCHEMA.key_of(number)


def digest(*parts: bytes) -> bytes:
    """A hash over parts."""
    return blake2b(b"/".join(parts), digest_size=16).digest()


class Replica:
    """One replica: records of two seqs each behind a base, entries, and a position that moves."""

    def __init__(self, entries: dict[bytes, bytes]) -> None:
        self.entries = dict(entries)
        self.base = 0
        self.other_from = END + 1
        """The first seq of its history that is another than that of others."""
        self.damaged_at = END + 1
        self.applied = END
        self.moves = 0
        """So many seqs are applied between two questions."""
        self.pins = 0
        self.pins_live = 1_000
        """So many questions about a state are answered before it is gone."""
        self.is_forgetful = False
        """Its states are gone at once."""
        self.is_gone = False

    def chain(self, seq: int) -> HashHistoryAnswer:
        """The answer about its log at a seq."""
        if seq < self.base or not seq:
            return HashHistoryAnswer(0, Seq(self.base), Seq(END))
        end = seq // 2 * 2
        damage = ""
        if end >= self.damaged_at:
            end, damage = self.damaged_at - 2, "the payload is another"
        word = b"other" if end >= self.other_from else b"same"
        record = None
        if end > self.base:
            first, kind = Seq(end - 1), int(RecordKind.ROWS)
            record = LogRecord(first, Seq(end), Term(3), kind, b"guid", word)
        told = digest(b"%d" % end, word)
        return HashHistoryAnswer(0, Seq(self.base), Seq(END), Seq(end), told, record, damage)

    def hashed(self, after: bytes, last: bytes, most: int, *, lists: bool) -> HashRangeAnswer:
        """The answer about a part of its entries."""
        keys = [key for key in sorted(self.entries) if key > after and (not last or key <= last)]
        found = keys[: min(most, STEP_ENTRIES)]
        resume = found[-1] if len(found) == min(most, STEP_ENTRIES) else b""
        listed = tuple(HashedEntry(key, digest(key, self.entries[key])) for key in found)
        whole = digest(*[entry.digest for entry in listed])
        size = sum(len(key) + len(self.entries[key]) for key in found)
        resume = b"" if resume == last else resume
        return HashRangeAnswer(0, whole, len(found), size, resume, listed if lists else ())


class Questions:
    """Answers for the replicas; the clock stands still but for waits."""

    def __init__(self, replicas: dict[str, Replica]) -> None:
        self.replicas = {node(name): replica for name, replica in replicas.items()}
        self.now_ms = 0
        self.open: set[tuple[NodeId, int]] = set()
        self.asked = 0
        self.listed = 0

    async def pin(self, of: NodeId, seq: Seq, wait_ms: int) -> PinStateAnswer:
        """A state."""
        await asyncio.sleep(0)
        replica = self._replica(of)
        replica.applied += replica.moves
        self.now_ms += 10
        if replica.moves:
            replica.applied = max(replica.applied, seq)
        if replica.applied < seq:
            self.now_ms += wait_ms
            raise NotUpToBoundError(f"it has applied seq {replica.applied}")
        replica.pins += 1
        self.open.add((of, replica.pins))
        return PinStateAnswer(0, replica.pins, Seq(replica.applied), Term(3), 10_000)

    def close(self, of: NodeId, pin: int) -> None:
        """It is needed no longer."""
        self.open.remove((of, pin))

    async def history(self, of: NodeId, seq: Seq) -> HashHistoryAnswer:
        """A hash of a log."""
        await asyncio.sleep(0)
        return self._replica(of).chain(seq)

    async def hashed(
        self, of: NodeId, pin: int, after: bytes, last: bytes, most: int, *, lists: bool = False
    ) -> HashRangeAnswer:
        """A hash of entries."""
        await asyncio.sleep(0)
        replica = self._replica(of)
        assert (of, pin) in self.open
        self.asked += 1
        self.listed += lists
        replica.pins_live -= 1
        if replica.pins_live == 0 or replica.is_forgetful:
            replica.pins_live = 1_000
            raise PageExpiredError("the pinned state is gone")
        return replica.hashed(after, last, most, lists=lists)

    def _replica(self, of: NodeId) -> Replica:
        if self.replicas[of].is_gone:
            raise UnavailableError("it cannot be reached: connection refused")
        return self.replicas[of]


def entries_of(rows: int) -> dict[bytes, bytes]:
    """Rows, and two values of the state beside them."""
    found = {row_key(number): b"value %d" % number for number in range(rows)}
    return {**found, b"\x02\x00": b"head", b"\x03\x00": b"table"}


def replicas_of(rows: int = 500) -> dict[str, Replica]:
    """Three equal replicas."""
    return {name: Replica(entries_of(rows)) for name in NAMES}


def compared(
    replicas: dict[str, Replica], *, shown_max: int = 20, told: list[Any] | None = None
) -> ReplicaComparison:
    """The result; every state that was pinned is closed."""
    questions = Questions(replicas)

    async def compare() -> ReplicaComparison:
        return await ChannelComparison(
            "orders/0",
            tuple(map(node, replicas)),
            cast(Any, questions),
            SCHEMA,
            now_ms=lambda: questions.now_ms,
            timeout_ms=20_000,
            shown_max=shown_max,
            progress=(told if told is not None else []).append,
        ).compare()

    found = asyncio.run(compare())
    assert questions.open == set()
    return found


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "PAUSE_S", 0)


def test_equal_replicas_are_compared_to_the_end() -> None:
    """Every entry, the state beside the rows too, and the log that all of them have."""
    replicas = replicas_of()
    replicas["n2"].base = 40
    told: list[ComparisonProgress] = []
    found = compared(replicas, told=told)
    assert (found.is_different, found.is_whole, found.entries) == (False, True, 502)
    assert (found.log_from, found.log_to) == (40, END)
    assert [replica.base_seq for replica in found.replicas] == [0, 40, 0]
    assert {replica.applied_seq for replica in found.replicas} == {END}
    history = [at for at in told if at.part == "history"]
    assert history[-1].done == history[-1].total == END - 40


def test_replicas_that_go_on_agree_on_a_position_ahead() -> None:
    """Each moves at another speed; the position is far enough when all have heard of it."""
    replicas = replicas_of()
    for moves, replica in enumerate(replicas.values(), 1):
        replica.moves = 3 * moves
    found = compared(replicas)
    assert found.is_whole
    assert len({replica.applied_seq for replica in found.replicas}) == 1


def test_replica_that_is_behind_is_waited_for_and_left_out_in_the_end() -> None:
    """The others are compared without it; it is said where it is."""
    replicas = replicas_of()
    replicas["n3"].applied = END - 5
    found = compared(replicas)
    assert (found.is_different, found.is_whole) == (False, False)
    [late] = [replica for replica in found.replicas if replica.not_compared]
    assert late.node == "n3"
    assert "not at one position within 20 s" in late.not_compared
    assert found.entries == 502


def test_replica_that_cannot_be_asked_is_left_out() -> None:
    """With one that is left nothing is compared."""
    replicas = replicas_of()
    replicas["n2"].is_gone = True
    found = compared(replicas)
    assert [bool(replica.not_compared) for replica in found.replicas] == [False, True, False]
    assert found.entries == 502
    replicas["n1"].is_gone = True
    found = compared(replicas)
    assert [replica.not_compared != "" for replica in found.replicas] == [True] * 3
    assert found.entries == 0


def test_differing_entries_are_named() -> None:
    """A changed, a missing and an added row, and a value of the state; of the odd one."""
    replicas = replicas_of()
    odd = replicas["n2"].entries
    odd[row_key(17)] = b"another"
    del odd[row_key(333)]
    odd[row_key(7_000)] = b"added"
    odd[b"\x02\x00"] = b"another head"
    found = compared(replicas)
    assert [(each.kind, each.key) for each in found.keys] == [
        ("row", {"id": 17}),
        ("row", {"id": 333}),
        ("row", {"id": 7_000}),
        ("state", "0200"),
    ]
    assert [replica.differs for replica in found.replicas] == [False, True, False]
    assert found.keys[1].digests["n2"] is None
    assert found.keys[2].digests["n1"] is None
    assert found.keys[0].digests["n1"] == found.keys[0].digests["n3"]
    assert found.ranges == ()


def test_one_difference_of_many_entries_costs_few_questions() -> None:
    """Bisection: parts without a difference are not looked into."""
    replicas = replicas_of(5_000)
    replicas["n3"].entries[row_key(2_500)] = b"another"
    questions = Questions(replicas)
    whole = ChannelComparison(
        "orders/0",
        tuple(map(node, NAMES)),
        cast(Any, questions),
        SCHEMA,
        now_ms=lambda: 0,
        timeout_ms=1_000,
        shown_max=20,
        progress=lambda _: None,
    )
    found = asyncio.run(whole.compare())
    assert [each.key for each in found.keys] == [{"id": 2_500}]
    parts = -(-5_002 // STEP_ENTRIES)
    assert questions.asked <= 3 * parts + 20
    assert questions.listed == 3


def test_no_more_keys_are_named_than_asked_for() -> None:
    """The others are parts, and of those no more either."""
    replicas = replicas_of(2_000)
    for number in range(0, 2_000, 3):
        replicas["n3"].entries[row_key(number)] = b"another"
    found = compared(replicas, shown_max=5)
    assert (len(found.keys), len(found.ranges)) == (5, 5)
    assert found.more_ranges > 0
    assert all(part.replicas == ("n3",) for part in found.ranges)


def test_two_replicas_only_differ() -> None:
    """It is not known which of them is wrong."""
    replicas = {name: Replica(entries_of(10)) for name in ("n1", "n2")}
    replicas["n2"].entries[row_key(3)] = b"another"
    found = compared(replicas)
    assert [replica.differs for replica in found.replicas] == [True, True]
    assert [each.key for each in found.keys] == [{"id": 3}]


@pytest.mark.parametrize("other_from", [2, 100, 101, END])
def test_histories_part_at_a_seq(other_from: int) -> None:
    """Found by bisection, with the records of both sides."""
    replicas = replicas_of(3)
    replicas["n2"].other_from = other_from
    found = compared(replicas)
    [parted] = found.histories
    assert isinstance(parted, HistoryDifference)
    first = -(-other_from // 2) * 2
    assert (parted.node, parted.equal_to, parted.differs_at) == ("n2", first - 1, first)
    assert parted.record is not None
    assert parted.others is not None
    assert (parted.record["last_seq"], parted.others["last_seq"]) == (first, first)
    assert parted.record["digest"] != parted.others["digest"]
    assert [replica.differs for replica in found.replicas] == [False, True, False]


def test_damaged_record_is_told() -> None:
    """Its chain hash may be right: the digest is not that of its payload."""
    replicas = replicas_of(3)
    replicas["n3"].damaged_at = 60
    [parted] = compared(replicas).histories
    assert (parted.node, parted.differs_at) == ("n3", 60)
    assert parted.damage == "the payload is another"


def test_state_that_is_gone_is_pinned_again_and_compared_from_there() -> None:
    """Parts that are compared stay compared; every entry is compared once."""
    replicas = replicas_of(1_000)
    replicas["n2"].pins_live = 7
    replicas["n3"].entries[row_key(990)] = b"another"
    found = compared(replicas)
    assert found.entries >= 1_002
    assert [each.key for each in found.keys] == [{"id": 990}]
    assert replicas["n1"].pins == 2


def test_states_that_are_always_gone_end_the_comparison() -> None:
    """It is said why, and not tried for ever."""
    replicas = replicas_of()
    replicas["n2"].is_forgetful = True
    found = compared(replicas)
    assert all("given up" in replica.not_compared for replica in found.replicas)
    assert (found.is_whole, found.is_different) == (False, False)


@given(
    base=st.dictionaries(st.integers(0, 400), st.binary(max_size=3), max_size=300),
    changes=st.lists(
        st.tuples(
            st.sampled_from(NAMES),
            st.integers(0, 400),
            st.one_of(st.none(), st.binary(max_size=3)),
        ),
        max_size=6,
    ),
)
def test_exactly_what_differs_is_named(
    base: dict[int, bytes], changes: list[tuple[str, int, bytes | None]]
) -> None:
    """Any changes, on any replicas."""
    entries = {row_key(number): value for number, value in base.items()}
    replicas = {name: Replica(entries) for name in NAMES}
    for name, number, value in changes:
        replicas[name].entries.pop(row_key(number), None)
        if value is not None:
            replicas[name].entries[row_key(number)] = value
    found = compared(replicas, shown_max=1_000)
    numbers = {*base, *(number for _, number, _ in changes)}
    wanted = [
        number
        for number in sorted(numbers, key=row_key)
        if len({replica.entries.get(row_key(number)) for replica in replicas.values()}) > 1
    ]
    assert [cast(Any, each.key)["id"] for each in found.keys] == wanted
