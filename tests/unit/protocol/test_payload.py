"""Payloads, seals and partitions: the bytes between publishers, logs and stores."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.config import KEY_BYTES_MAX, VALUE_BYTES_MAX
from raftstore.errors import CorruptRecordError, DecodeError
from raftstore.protocol.payload import (
    check_payload,
    decode_conditional,
    decode_rows,
    encode_conditional,
    encode_rows,
    join_rows,
)
from raftstore.rows.partitioner import (
    HASH_ID,
    key_crcs,
    partition_of,
    partitions_of,
    partitions_of_crcs,
)
from raftstore.rows.sealing import seal, seal_rows, unseal, value_checksums
from raftstore.types import RecordKind, Seq

KEYS = st.binary(min_size=1, max_size=30)
CELLS = st.none() | st.binary(min_size=4, max_size=60)


@st.composite
def sealed_rows(draw: st.DrawFn) -> tuple[bytes, bytes | None]:
    """A key and its sealed value, or a delete."""
    key, value = draw(KEYS), draw(st.none() | st.binary(max_size=60))
    return key, None if value is None else seal(key, value)


@given(st.lists(sealed_rows(), min_size=1))
def test_rows_are_restored_flat_and_in_order(rows: list[tuple[bytes, bytes | None]]) -> None:
    """A payload gives back its keys and sealed values, deletes as None."""
    payload = encode_rows(iter(rows))
    assert decode_rows(payload) == [cell for row in rows for cell in row]
    assert msgpack.unpackb(payload) == [cell for row in rows for cell in row]
    check_payload(RecordKind.ROWS, payload, len(rows))


@given(sealed_rows(), st.integers(0, 2**64 - 1))
def test_conditional_is_restored(row: tuple[bytes, bytes | None], expected: int) -> None:
    """A conditional write gives back key, value and expectation."""
    key, sealed = row
    payload = encode_conditional(key, sealed, Seq(expected))
    assert decode_conditional(payload) == (key, sealed, expected)
    check_payload(RecordKind.CONDITIONAL, payload, 1)


MALFORMED = [b"", b"\xc1", b"\x92\xc4\x01k", *map(msgpack.packb, [
    [], {}, 7, [b"k"], ["k", b"vvvv"], [None, b"vvvv"], [b"", b"vvvv"], [b"k", "vvvv"], [b"k", 1],
    [b"k", b"vvvv", b"l"],
])]  # fmt: skip


@pytest.mark.parametrize("payload", MALFORMED)
def test_decode_rows_raises_decode_error_when_malformed(payload: bytes) -> None:
    """Anything but pairs of a key and a value or nil is refused."""
    with pytest.raises(DecodeError):
        decode_rows(payload)


@pytest.mark.parametrize(
    "payload",
    [b"", *map(msgpack.packb, [[], [b"k", b"v"], [b"k", b"v", -1], [b"", None, 0], [None, b"v", 0],
                               [b"k", b"v", 1.0], [b"k", b"v", 0, 0]])],
)  # fmt: skip
def test_decode_conditional_raises_decode_error_when_malformed(payload: bytes) -> None:
    """Anything but key, value or nil, and a seq is refused."""
    with pytest.raises(DecodeError):
        decode_conditional(payload)


@given(st.binary(max_size=60))
def test_decoders_return_or_raise_decode_error_for_any_bytes(payload: bytes) -> None:
    """Arbitrary bytes never end in another exception."""
    for decode in (decode_rows, decode_conditional):
        try:
            decode(payload)
        except DecodeError:
            continue


@pytest.mark.parametrize(
    ("kind", "payload", "rows", "text"),
    [
        (RecordKind.ROWS, encode_rows([(b"k", None)]), 2, "announced with 2 rows holds 1"),
        (RecordKind.CONDITIONAL, encode_conditional(b"k", None, Seq(0)), 2, "with 2 rows holds 1"),
        (RecordKind.COMMAND, b"", 1, "not records of kind 3"),
        (RecordKind.TERM_START, b"", 1, "not records of kind 0"),
        (RecordKind.ROWS, encode_rows([(b"k" * (KEY_BYTES_MAX + 1), None)]), 1, "4097 bytes"),
        (RecordKind.ROWS, encode_rows([(b"k", b"abc")]), 1, "3 to 3 bytes; 4 to"),
        (RecordKind.ROWS, encode_rows([(b"k", bytes(VALUE_BYTES_MAX + 5))]), 1, "are allowed"),
    ],
)
def test_check_payload_refuses_what_a_replica_could_not_apply(
    kind: RecordKind, payload: bytes, rows: int, text: str
) -> None:
    """A leader can recognize a poisonous payload before it is in the log for ever."""
    with pytest.raises(DecodeError) as error:
        check_payload(kind, payload, rows)
    assert text in str(error.value)


def test_check_payload_refuses_a_row_whose_seal_is_wrong() -> None:
    """A row that every reader would have to refuse never enters the log."""
    payload = encode_rows([(b"k", seal(b"another", b"value"))])
    with pytest.raises(CorruptRecordError):
        check_payload(RecordKind.ROWS, payload, 1)


@given(KEYS, st.binary())
def test_unseal_returns_the_value_that_was_sealed(key: bytes, value: bytes) -> None:
    """A seal is transparent for its own key and value."""
    assert unseal(key, seal(key, value)) == value


@given(KEYS, st.binary(max_size=30), st.data())
def test_unseal_raises_when_a_bit_of_key_or_value_changed(
    key: bytes, value: bytes, data: st.DataObject
) -> None:
    """A flipped bit anywhere, or another key, is never answered as a value."""
    stored = bytearray(key + seal(key, value))
    bit = data.draw(st.integers(0, len(stored) * 8 - 1))
    stored[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptRecordError, match="read it from another replica"):
        unseal(bytes(stored[: len(key)]), bytes(stored[len(key) :]))


def test_unseal_raises_when_the_seal_is_cut() -> None:
    """Fewer bytes than a seal are damage."""
    with pytest.raises(CorruptRecordError):
        unseal(b"k", b"ab")


def test_partition_of_stays_as_it_is_stored() -> None:
    """Golden partitions: another function under the same name would hide every row."""
    assert HASH_ID == "crc32m-1"
    keys = [b"a", b"b", b"order-1", b"\x18\x80" + bytes(7)]
    assert [partition_of(key, 8) for key in keys] == [3, 1, 7, 5]
    assert [partition_of(key, 4096) for key in keys] == [1875, 3113, 2879, 2573]


@pytest.mark.parametrize("partitions", [3, 8, 100])
def test_partition_of_spreads_neighbouring_keys(partitions: int) -> None:
    """Consecutive keys fill all partitions within a fifth of the mean."""
    counts = [0] * partitions
    for number in range(1000 * partitions):
        counts[partition_of(b"\x18" + (2**63 + number).to_bytes(8, "big"), partitions)] += 1
    assert min(counts) > 800
    assert max(counts) < 1200


@given(st.lists(st.tuples(st.binary(min_size=1), st.binary()), max_size=9), st.integers(1, 4096))
def test_many_rows_are_sealed_and_placed_like_each_of_them(
    rows: list[tuple[bytes, bytes]], partitions: int
) -> None:
    """One partitioner and one seal: what is quicker for many rows gives the same."""
    keys, values = [row[0] for row in rows], [row[1] for row in rows]
    assert partitions_of(keys, partitions) == [partition_of(key, partitions) for key in keys]
    assert seal_rows(keys, values) == [(key, seal(key, value)) for key, value in rows]


@pytest.mark.parametrize("count", [1, 7, 8, 32_767, 32_768])
def test_packed_rows_are_joined_to_the_payload_of_the_same_rows(count: int) -> None:
    """Around the numbers of rows where the header of the list becomes longer."""
    rows = [(b"k", b"1234")] * count

    assert join_rows(count, [b"\xc4\x01k\xc4\x041234"] * count) == encode_rows(rows)


@given(st.lists(st.tuples(st.binary(min_size=1), st.binary())), st.integers(1, 4096))
def test_keys_and_values_are_placed_and_sealed_alike_given_their_checksums(
    rows: list[tuple[bytes, bytes]], partitions: int
) -> None:
    """Given checksums in an array, keys are placed and values sealed as one by one."""
    crcs = key_crcs(key for key, _ in rows)
    places = partitions_of_crcs(np.array(crcs, np.uint64), partitions)
    sums = value_checksums((value for _, value in rows), crcs)

    assert places.tolist() == [partition_of(key, partitions) for key, _ in rows]
    assert [number.to_bytes(4, "big") for number in sums] == [seal(*row)[:4] for row in rows]
