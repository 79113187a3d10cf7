"""The payload that ends a micro-batch (BLOG-32)."""

from __future__ import annotations

import pytest

from raftstore.errors import DecodeError
from raftstore.protocol.payload import WRITER_BYTES_MAX, check_payload, decode_mark, encode_mark
from raftstore.state_machines.row_writes import writes_of
from raftstore.types import RecordKind
from tests.core_bench import record


def test_mark_is_read_as_it_was_written() -> None:
    """Its writer and the number that the writer gave the batch."""
    assert decode_mark(encode_mark("orders", 7)) == ("orders", 7)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x92\xa1\xff\x01",
        encode_mark("", 1),
        encode_mark("x" * (WRITER_BYTES_MAX + 1), 1),
        encode_mark("orders", -1),
    ],
)
def test_malformed_mark_is_refused_before_it_is_sequenced(payload: bytes) -> None:
    """Once committed it could not be taken back."""
    with pytest.raises(DecodeError):
        check_payload(RecordKind.BATCH_MARK, payload, 1)


def test_mark_occupies_one_seq() -> None:
    """Batches are counted by records, and no seq is without one."""
    check_payload(RecordKind.BATCH_MARK, encode_mark("orders", 7), 1)
    with pytest.raises(DecodeError, match="occupies 1 seq, not 2"):
        check_payload(RecordKind.BATCH_MARK, encode_mark("orders", 7), 2)


def test_mark_changes_no_row() -> None:
    """Given a mark of any content, a table applies no row of it (S10)."""
    mark = record(1, kind=RecordKind.BATCH_MARK, payload=encode_mark("orders", 7))
    assert writes_of(mark) == []
