"""One snapshot out of the answers of many replicas, against a model of replicas that lag."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.client.cluster.vector import TABLES_MAX, Commit, Floors, VectorRound, commit_of
from raftstore.errors import DecodeError

TOUCHED = st.lists(st.sets(st.integers(0, 2), min_size=0), max_size=8)
"""Which of three partitions each commit touches; commit numbers begin at 1."""


def vectors_of(touched: list[set[int]]) -> list[tuple[int, ...]]:
    """V of every commit, V[0] is before any."""
    vectors = [(0, 0, 0)]
    for n, partitions in enumerate(touched, 1):
        vectors.append(tuple(n if p in partitions else vectors[-1][p] for p in range(3)))
    return vectors


def state_of(vectors: list[tuple[int, ...]], partition: int, upto: int) -> Commit:
    """A replica's reply once it applied every commit up to one that touches its partition."""
    n = vectors[upto][partition]
    return Commit(n, vectors[n] if n else ())


@given(TOUCHED, st.data())
def test_snapshots_are_one_commit_and_never_go_back(
    touched: list[set[int]], data: st.DataObject
) -> None:
    """Given any applied commits of the replicas, a snapshot reads every partition as of one commit,
    the newest that was reported; the next snapshot is not before it.
    """
    vectors = vectors_of(touched)
    floors = Floors()
    newest = 0
    for _ in range(3):
        before = floors.of(b"t")
        asked = VectorRound(3, before)
        upto = [data.draw(st.integers(0, len(touched))) for _ in range(3)]
        held = [state_of(vectors, partition, upto[partition]) for partition in range(3)]
        for partition in data.draw(st.permutations(range(3))):
            asked.on_reply(partition, *held[partition])
        late = asked.late()
        for partition, n in late.items():
            assert held[partition].n < n
            asked.on_late_reply(partition, n)
        result = asked.result()
        newest = max([newest, *(commit.n for commit in held)])
        assert result.n == newest >= before.n
        read = [late.get(partition, held[partition].n) for partition in range(3)]
        assert read == list(vectors[result.n])
        assert asked.late() == {}
        floors.note(b"t", result.vector)


@given(TOUCHED, st.data())
def test_two_readers_see_batches_in_one_order(touched: list[set[int]], data: st.DataObject) -> None:
    """No long fork: of two snapshots, by readers who know nothing of each other and ask replicas
    that lag in different partitions, one has every batch that the other one has."""
    vectors = vectors_of(touched)
    seen: list[list[int]] = []
    for _ in range(2):
        asked = VectorRound(3)
        held: list[int] = []
        for partition in range(3):
            state = state_of(vectors, partition, data.draw(st.integers(0, len(touched))))
            asked.on_reply(partition, *state)
            held.append(state.n)
        late = asked.late()
        for partition, n in late.items():
            asked.on_late_reply(partition, n)
        seen.append([late.get(partition, held[partition]) for partition in range(3)])
    older, newer = sorted(seen)
    assert all(first <= second for first, second in zip(older, newer, strict=True)), seen


@given(TOUCHED, st.data())
def test_answers_that_no_store_gives_are_refused(
    touched: list[set[int]], data: st.DataObject
) -> None:
    """A state above the highest vector, or two vectors that contradict each other, is an error and
    never a snapshot, however python was started."""
    vectors = vectors_of(touched)
    upto = [data.draw(st.integers(0, len(touched))) for _ in range(3)]
    held = [state_of(vectors, partition, upto[partition]) for partition in range(3)]
    top = max(held, key=lambda commit: commit.n)
    partition = data.draw(st.integers(0, 2))
    if top.at(partition) == 0:
        return
    lied = list(top.vector)
    lied[partition] = data.draw(st.integers(-1, top.n + 2).filter(lambda n: n != lied[partition]))
    others = [commit for commit in held if commit.n < top.n]
    asked = VectorRound(3)

    def play() -> None:
        for number, commit in enumerate(held):
            said = Commit(top.n, tuple(lied)) if commit == top else commit
            asked.on_reply(number, *said)
        asked.late()

    contradicted = (
        lied[partition] > top.n
        or lied[partition] < max([0, *(commit.at(partition) for commit in others)])
        or any(held[number] == top and lied[number] != top.n for number in range(3))
    )
    if contradicted:
        with pytest.raises(DecodeError, match="contradict each other"):
            play()
    else:
        play()  # nobody can know


def test_state_above_the_vector_is_an_error_of_the_store() -> None:
    """Partition 1 holds commit 2, and commit 3 says that it was touched by commit 1 last."""
    asked = VectorRound(2)
    asked.on_reply(1, 2, (1, 2))
    with pytest.raises(DecodeError, match="contradict each other"):
        asked.on_reply(0, 3, (3, 1))


@pytest.mark.parametrize(
    ("n", "vector"),
    [(1, ()), (1, (1,)), (1, (1, 0, 0)), (1, (2, 1)), (2, (1, 1)), (1, (1, -1)), (-1, ())],
)
def test_vector_of_another_shape_is_refused(n: int, vector: tuple[int, ...]) -> None:
    """Its length is the number of partitions, and its numbers are of commits up to it."""
    with pytest.raises(DecodeError, match="contradict each other"):
        VectorRound(2).on_reply(0, n, vector)


def test_late_partition_is_taken_only_as_of_the_commit_asked_for() -> None:
    """Another state would be a mixture."""
    asked = VectorRound(2, Commit(3, (3, 2)))
    asked.on_reply(0, 1, (1, 0))
    asked.on_reply(1, 2, (1, 2))
    assert asked.late() == {0: 3}
    with pytest.raises(DecodeError, match="asked for the state of commit 3"):
        asked.on_late_reply(0, 4)
    asked.on_late_reply(0, 3)
    assert (asked.late(), asked.result()) == ({}, Commit(3, (3, 2)))


def test_partition_that_never_replied_is_late() -> None:
    """Nothing is taken for read that was not."""
    asked = VectorRound(2, Commit(1, (1, 1)))
    asked.on_reply(0, 1, (1, 1))
    assert asked.late() == {1: 1}


def test_client_remembers_the_newest_commit_of_each_table_within_bounds() -> None:
    """The table seen longest ago is forgotten first."""
    floors = Floors()
    floors.note(b"a", (0, 4))
    floors.note(b"a", (3, 0))
    assert floors.of(b"a") == commit_of((0, 4)) == Commit(4, (0, 4))
    for number in range(TABLES_MAX - 1):
        floors.note(b"t%d" % number, (1,))
    floors.note(b"a", (0, 1))
    floors.note(b"b", (1,))
    assert floors.of(b"a").n == 4
    assert floors.of(b"t0") == Commit()
