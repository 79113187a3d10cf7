"""Positions: tokens that survive every trip, and merge to what is at least as new as all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.client.position import Position
from raftstore.errors import PositionError
from raftstore.types import SEQ_MAX, TERM_MAX, Seq, Term

UUID = b"u" * 16
POSITIONS = st.dictionaries(
    st.tuples(st.sampled_from([UUID, bytes(16)]), st.sampled_from([0, 1, 4095])),
    st.tuples(st.integers(0, TERM_MAX).map(Term), st.integers(0, SEQ_MAX).map(Seq)),
    max_size=5,
).map(Position)

NO_RECORD = str(Position.at(UUID, 1, Term(1), Seq(-9)))


@given(POSITIONS)
def test_position_survives_its_token(position: Position) -> None:
    """A token read back is the same position."""
    assert Position.parse(str(position)) == position
    assert str(Position.parse(str(position))) == str(position)
    assert Position.parse(position) is position


@given(POSITIONS, POSITIONS)
def test_position_merged_is_at_least_as_new_as_both(left: Position, right: Position) -> None:
    """Merging takes the higher seq of each partition, in either order, from tokens, too."""
    merged = left | str(right)
    assert merged == right | left
    for position in (left, right):
        for uuid, partition in position._entries:
            mine, both = position.seq_of(uuid, partition), merged.seq_of(uuid, partition)
            assert mine is not None
            assert both is not None
            assert both >= mine


def test_position_is_compared_by_seq() -> None:
    """A committed seq is one record for ever, so the term does not make another version of it."""
    first, same = (Position.at(UUID, 1, Term(term), Seq(9)) for term in (1, 2))
    assert first == same
    assert hash(first) == hash(same)
    assert first != Position.at(UUID, 1, Term(1), Seq(8))
    assert first != "another thing"


def test_position_says_what_it_knows() -> None:
    """A position knows the partitions it was made of, and nothing about others."""
    position = Position.at(UUID, 1, Term(3), Seq(9))
    assert position.seq_of(UUID, 1) == 9
    assert position.seq_of(UUID, 2) is None
    assert position
    assert not Position()
    assert repr(position) == "<Position 75757575/1: term 3 seq 9>"


def test_position_with_one_other_letter_is_refused() -> None:
    """S7.3: one that is a little lower would let its holder go back, and look like a good one."""
    token = str(Position.at(UUID, 1, Term(3), Seq(9)))
    for at in range(len("p1."), len(token) - 1):  # some bits of the last letter are of no byte
        for letter in "A_z5 \u00e9":
            damaged = token[:at] + letter + token[at + 1 :]
            if damaged != token:
                with pytest.raises(PositionError):
                    Position.parse(damaged)


@pytest.mark.parametrize(
    "token", ["", "x", "p1.", "p1.%%%", "p1.AAAA", "p2.kA", 7, None, NO_RECORD]
)
def test_position_refuses_what_is_no_token(token: object) -> None:
    """A damaged token is one clear sentence, never a wrong position."""
    with pytest.raises(PositionError, match="is not a position"):
        Position.parse(token)  # type: ignore[arg-type]
