"""Payloads of staged rows and of decided batches: read as written, refused when malformed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from raftstore.errors import CorruptRecordError, DecodeError, NewerFormatError
from raftstore.protocol.batches import ApplyBatch, ChannelPart
from raftstore.protocol.lifetimes import TTL_MS_MAX
from raftstore.protocol.payload import WRITER_BYTES_MAX, encode_rows
from raftstore.protocol.staged import (
    BatchApply,
    ChunkHeader,
    apply_message,
    apply_of,
    check_staged,
    decode_apply,
    decode_header,
    decode_staged,
    encode_apply,
    encode_staged,
)
from raftstore.rows.sealing import seal
from raftstore.types import ChannelId, Term

HEADER = ChunkHeader("orders", 3, 1, 17, 0, 2)
ROWS = encode_rows([(b"a", seal(b"a", b"1")), (b"b", None)])
BATCH = BatchApply(5, 4, "orders", 9, 3, 0, ((1, 17),), ChannelPart(0, 1, 2, 40, 7), (5, 4), 1_000)


@given(
    header=st.builds(
        ChunkHeader,
        writer=st.text(min_size=1, max_size=WRITER_BYTES_MAX // 4),
        attempt=st.integers(1, 2**63 - 1),
        partition_id=st.integers(0, 2**32 - 1),
        task_attempt_id=st.integers(0, 2**63 - 1),
        number=st.integers(0, 2**32 - 1),
        mode=st.sampled_from([0, 1, 2]),
        ttl_ms=st.just(0) | st.integers(1, TTL_MS_MAX),
    )
)
def test_staged_chunk_is_read_as_it_was_written(header: ChunkHeader) -> None:
    """The header names the chunk, and the rows behind it are those of an ordinary write."""
    payload = encode_staged(header, ROWS)
    assert check_staged(payload, 2) == header
    found, cells = decode_staged(payload)
    assert (found, cells) == (header, [b"a", seal(b"a", b"1"), b"b", None])
    assert bytes(decode_header(payload)[1]) == ROWS


@pytest.mark.parametrize(
    ("payload", "rows", "text"),
    [
        (b"", 1, "has no header"),
        (b"\x00\x10\x90", 1, "announces a header of 16"),
        (b"\x02\x01" + bytes(1_000), 1, "announces a header of 513"),
        (b"\x00\x01\xc1", 1, "header of a staged payload cannot be read"),
        (b"\x00\x08\x96\xa1\xff\x01\x00\x00\x00\x00", 1, "cannot be read: .*utf-8"),
        (encode_staged(HEADER._replace(writer=""), ROWS), 2, "1 to 256 bytes"),
        (encode_staged(HEADER._replace(writer="x" * 257), ROWS), 2, "1 to 256 bytes"),
        (encode_staged(HEADER._replace(attempt=0), ROWS), 2, "of attempt 0"),
        (encode_staged(HEADER._replace(mode=3), ROWS), 2, "mode 3"),
        (encode_staged(HEADER._replace(ttl_ms=TTL_MS_MAX + 1), ROWS), 2, "a lifetime of"),
        (encode_staged(HEADER._replace(partition_id=-1), ROWS), 2, ">= 0 .*, the partition_id"),
        (encode_staged(HEADER._replace(number=2**32), ROWS), 2, "<= 4294967295 .*, the number"),
        (encode_staged(HEADER, ROWS), 3, "announced with 3 rows holds 2"),
        (encode_staged(HEADER, b"\x90"), 1, "holds 0 cells"),
    ],
)
def test_malformed_chunk_is_refused_before_it_is_sequenced(
    payload: bytes, rows: int, text: str
) -> None:
    """S12: once committed it would lie in every log, and no replica could apply it."""
    with pytest.raises(DecodeError, match=text):
        check_staged(payload, rows)


def test_chunk_with_a_damaged_row_is_refused() -> None:
    """The seal is looked at before a quorum keeps the rows, as with rows that are not staged."""
    damaged = encode_rows([(b"a", seal(b"b", b"1"))])
    with pytest.raises(CorruptRecordError, match="does not match its checksum"):
        check_staged(encode_staged(HEADER, damaged), 1)


def test_decided_batch_is_read_as_it_was_told() -> None:
    """A channel's leader writes down every field of the message, and its sender is not one."""
    assert decode_apply(encode_apply(BATCH)) == BATCH
    channel, target = ChannelId(b"c" * 18), ChannelId(b"t" * 18)
    message = apply_message(channel, Term(2), target, BATCH)
    assert (message.channel, message.term, message.target) == (channel, Term(2), target)
    assert {name: getattr(message, name) for name in BATCH.__struct_fields__} == {
        name: getattr(BATCH, name) for name in BATCH.__struct_fields__
    }
    assert apply_of(message) == BATCH


def test_message_and_record_of_a_decided_batch_have_the_same_fields_and_types() -> None:
    """One is the other with an address in front: a field that one alone gets would be lost."""
    told, kept = fields(ApplyBatch), fields(BatchApply)
    assert [field.name for field in told[:3]] == ["channel", "term", "target"]
    assert [(field.name, field.type, field.default) for field in told[3:]] == [
        (field.name, field.type, field.default) for field in kept
    ]


def test_decided_batch_of_a_newer_format_is_no_damage() -> None:
    """The node stops and leaves its tables alone (GAP-15); what cannot be read at all is
    reported."""
    with pytest.raises(NewerFormatError, match="run a newer version"):
        decode_apply(b"\x02" + msgspec.msgpack.encode(BATCH))
    for payload in (b"", b"\x01", b"\x01\x90", encode_apply(BATCH)[:-1]):
        with pytest.raises(DecodeError, match="decides no micro-batch"):
            decode_apply(payload)
