"""Steps of the coordinator as they lie in the log, and values of its state."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.errors import CorruptRecordError, DecodeError, NewerFormatError
from raftstore.state_machines.batches.txn_records import (
    AnyStep,
    Begin,
    Close,
    Drop,
    Trim,
    Verdict,
    decode_step,
    decode_verdict,
    encode_step,
    encode_verdict,
)
from raftstore.state_machines.state_keys import (
    chunk_key,
    chunks_of,
    end_key,
    packed,
    unpacked,
    writer_key,
)
from tests.unit.protocol.messages_of_all_kinds import of_type

STEP: Any = AnyStep


@given(step=st.sampled_from(STEP.__args__).flatmap(lambda kind: of_type(_info(kind))))
def test_step_is_the_same_after_a_round_trip(step: AnyStep) -> None:
    """Every kind of step survives the log with every field."""
    assert decode_step(encode_step(step)) == step


@pytest.mark.parametrize(
    ("step", "written"),
    [
        (Close("w", 3, ((0, 2),)), "019403a1770391920002"),
        (Trim(((1, 5),)), "01920491920105"),
        (Drop("w", 4), "019307a17704"),
        (
            Begin("w", 1, bytes(16), "c", one_shot=False, ttl_ms=9, partitions=2),
            "019901a17701c41000000000000000000000000000000000a163c2090290",
        ),
    ],
)
def test_bytes_in_the_log_stay_as_they_are(step: AnyStep, written: str) -> None:
    """The format is on disk: a newer version reads what this one wrote."""
    assert encode_step(step).hex() == written


def test_step_of_a_newer_format_is_no_damage() -> None:
    """The node stops and leaves its tables alone (GAP-15); what cannot be read at all is
    reported."""
    with pytest.raises(NewerFormatError, match="run a newer version"):
        decode_step(b"\x02\x90")
    for payload in (b"", b"\x01", b"\x01\x91\x63", encode_step(Drop("w", 4))[:-1]):
        with pytest.raises(DecodeError, match="no step of micro-batches"):
            decode_step(payload)


def test_verdict_travels_with_all_it_says() -> None:
    """The leader answers the client with what the machine found when the step was applied."""
    verdict = Verdict("already", "", "", 4, 7, 2, (7, 3), 11)
    assert decode_verdict(encode_verdict(verdict)) == verdict


def test_state_of_a_newer_format_is_no_damage() -> None:
    """A value of a newer version stops the node; a damaged one names what it was."""
    stored = packed(Trim(((1, 5),)))
    assert unpacked(stored, Trim) == Trim(((1, 5),))
    with pytest.raises(NewerFormatError, match="Trim is stored in format 2"):
        unpacked(b"\x02" + stored[1:], Trim)
    for damaged in (b"", stored[:-1]):
        with pytest.raises(CorruptRecordError, match="stored Trim cannot be read"):
            unpacked(damaged, Trim)


@given(
    one=st.tuples(*[st.integers(0, 2**32 - 1)] * 4),
    other=st.tuples(*[st.integers(0, 2**32 - 1)] * 4),
)
def test_order_of_chunk_keys_is_that_of_their_numbers(
    one: tuple[int, int, int, int], other: tuple[int, int, int, int]
) -> None:
    """All chunks of a writer up to an attempt are one range."""
    keys = [chunk_key("w", *numbers) for numbers in (one, other)]
    assert (keys[0] < keys[1]) == (one < other)
    assert all(key.startswith(chunks_of("w")) for key in keys)


def test_keys_of_writers_are_apart_from_others() -> None:
    """No writer's name reaches into the keys of another kind."""
    assert writer_key("w") == b"\x03\x01w"
    assert end_key(258, "w") == b"\x03\x04" + b"\x00" * 6 + b"\x01\x02w"


def _info(kind: type) -> msgspec.inspect.Type:
    return msgspec.inspect.type_info(kind)
