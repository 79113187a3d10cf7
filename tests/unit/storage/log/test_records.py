"""Bytes of the log's entries: stable, verified, and never mistaken."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.config import FORMAT_VERSION
from raftstore.errors import NewerFormatError, StorageError
from raftstore.ports.log import Base
from raftstore.protocol.records import Record
from raftstore.storage.log import records
from raftstore.storage.log.records import (
    HEADER_BYTES,
    RECORD_HEAD_BYTES,
    Based,
    DamagedEntryError,
    Drop,
    EntryKind,
    RecordPosition,
    SegmentHeader,
    Truncation,
    Vote,
    decode_entries,
    decode_record,
    decode_record_head,
    encode_base,
    encode_drop,
    encode_record,
    encode_segment,
    encode_truncation,
    encode_vote,
    first_chain,
    peek_header,
    record_channel,
)
from raftstore.types import History, NodeId, RecordKind
from tests.storage_helpers import ALICE, CHANNEL, OTHER, STORE_UUID, record

U64 = st.integers(0, 2**64 - 1)
RECORDS = st.builds(
    Record,
    term=U64,
    base_seq=U64,
    rows=st.integers(1, 2**32 - 1),
    guid=st.binary(min_size=16, max_size=16),
    timestamp_ms=st.integers(-(2**63), 2**63 - 1),
    digest=st.sampled_from([b"", bytes(16), b"0123456789abcdef"]),
    kind=st.sampled_from(RecordKind),
    payload=st.binary(max_size=300),
)


def segment() -> bytes:
    """A whole segment file of one entry per kind."""
    data, chain = encode_segment(STORE_UUID, 1, first_chain(STORE_UUID))
    head, chain = encode_record(CHANNEL, record(1), chain)
    data += head + record(1).payload
    for encode in (
        lambda chain: encode_vote(CHANNEL, 3, ALICE, chain),
        lambda chain: encode_vote(OTHER, 4, None, chain),
        lambda chain: encode_truncation(CHANNEL, 1, chain),
        lambda chain: encode_drop(OTHER, chain),
    ):
        entry, chain = encode(chain)
        data += entry
    return data


def test_entries_come_back_in_their_order() -> None:
    """Every kind is read as it was written."""
    entries = [entry for *_, entry in decode_entries(segment(), first_chain(STORE_UUID))]
    assert entries == [
        SegmentHeader(FORMAT_VERSION, STORE_UUID, 1, first_chain(STORE_UUID)),
        RecordPosition(CHANNEL, 1, 1, 1),
        Vote(CHANNEL, 3, ALICE),
        Vote(OTHER, 4, None),
        Truncation(CHANNEL, 1),
        Drop(OTHER),
    ]


BASED = Based(CHANNEL, Base(3, 7, bytes(range(16)), b"folds"), History(4, 9), 5, ALICE, False)


@pytest.mark.parametrize(
    "entry",
    [BASED, replace(BASED, voted_for=None, replaces=True), replace(BASED, voted_for=NodeId(""))],
)
def test_base_is_read_as_it_was_written(entry: Based) -> None:
    """With all that a start has to know of the channel; torn at any byte it is none."""
    data, chain = encode_base(entry, 7)
    assert list(decode_entries(data, 7)) == [(0, len(data), chain, entry)]
    for size in range(1, len(data)):
        with pytest.raises(DamagedEntryError):
            list(decode_entries(data[:size], 7))


def test_bytes_of_a_base_are_fixed() -> None:
    """They are on disks."""
    data, _ = encode_base(BASED, 7)
    assert hashlib.sha256(data).hexdigest()[:32] == "5232a69fed2eb4d9a52c9ea6a4f5bf0d"


def test_bytes_of_format_version_1_are_fixed() -> None:
    """A change of any byte needs a new format version and an upgrade test."""
    assert len(segment()) == 321
    assert hashlib.sha256(segment()).hexdigest()[:32] == "8b441a6e9337a3eeec5ef9a9edda7d88"


@given(RECORDS)
def test_record_is_read_as_it_was_written(one: Record) -> None:
    """Whole, or only its fields, and with its channel (NATS-021)."""
    head, _ = encode_record(CHANNEL, one, 7)
    assert len(head) == RECORD_HEAD_BYTES
    assert decode_record(head + one.payload) == one
    assert record_channel(head) == CHANNEL
    fields = decode_record_head(head)
    assert (fields.term, fields.base_seq, fields.guid, fields.kind) == (
        one.term,
        one.base_seq,
        one.guid,
        one.kind,
    )
    assert fields.payload == b""


@given(st.data())
def test_any_flipped_bit_is_noticed(data: st.DataObject) -> None:
    """Given any flipped bit, its entry and everything behind it count as damaged."""
    whole = segment()
    offset = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[offset] ^= 1 << data.draw(st.integers(0, 7))
    entries = decode_entries(bytes(damaged), first_chain(STORE_UUID))
    starts = [at for at, *_ in decode_entries(whole, first_chain(STORE_UUID))]
    for _ in [start for start in starts[1:] if start <= offset]:
        next(entries)
    with pytest.raises(DamagedEntryError):
        next(entries)


def test_zeros_are_no_entries() -> None:
    """The checksum of nothing is zero: an all-zero header must not pass for an empty entry."""
    with pytest.raises(DamagedEntryError, match="claims 0 bytes"):
        list(decode_entries(segment() + bytes(64), first_chain(STORE_UUID)))


def test_exchanged_entries_are_noticed() -> None:
    """Each entry is intact by itself; the chain says that one is missing."""
    whole = segment()
    starts = [at for at, *_ in decode_entries(whole, first_chain(STORE_UUID))]
    shortened = whole[: starts[2]] + whole[starts[3] :]
    with pytest.raises(DamagedEntryError, match="does not continue"):
        list(decode_entries(shortened, first_chain(STORE_UUID)))


def test_entries_of_another_store_do_not_fit() -> None:
    """The chain starts from the store's UUID."""
    with pytest.raises(DamagedEntryError, match="does not continue"):
        list(decode_entries(segment(), first_chain(bytes(16))))


def test_unknown_kinds_are_of_a_newer_version() -> None:
    """GAP-15: an intact entry of a kind this version does not know is neither skipped nor damaged.

    Damage would be cut off; here a newer version put what only it can read."""
    entry, _ = encode_drop(CHANNEL, 0)
    for kind in (0, max(EntryKind) + 1, 255):
        body = bytes([kind]) + entry[HEADER_BYTES + 1 :]
        framed, _ = records._framed(body, 0)
        with pytest.raises(NewerFormatError, match=f"unknown kind {kind}.*run a newer version"):
            list(decode_entries(framed, 0))
        assert peek_header(framed) is None


def test_record_of_an_unknown_kind_is_of_a_newer_version() -> None:
    """GAP-15: wherever it is read, its checksums show that nothing is damaged."""
    newer = record(1, kind=cast(RecordKind, 99))
    head, _ = encode_record(CHANNEL, newer, 0)
    reads: list[Callable[[], object]] = [
        lambda: decode_record(head + newer.payload),
        lambda: decode_record_head(head),
        lambda: list(decode_entries(head + newer.payload, 0)),
    ]
    for read in reads:
        with pytest.raises(
            NewerFormatError, match=r"unknown kind 99.*written by a newer raftstore"
        ):
            read()
    flipped = head[:-1] + bytes([head[-1] ^ 1])
    with pytest.raises(DamagedEntryError):
        list(decode_entries(flipped + newer.payload, 0))


def test_segment_header_of_something_else_is_damage() -> None:
    """A file that does not begin with our magic was not written by any version: it is damaged."""
    entry, _ = encode_segment(STORE_UUID, 1, 0)
    body = entry[HEADER_BYTES:].replace(b"raftstore log", b"something els")
    framed, _ = records._framed(body, 0)
    with pytest.raises(DamagedEntryError, match="magic of something else"):
        list(decode_entries(framed, 0))


def test_single_record_is_verified_by_itself() -> None:
    """Random access believes nothing either."""
    head, _ = encode_record(CHANNEL, record(1), 0)
    entry = head + record(1).payload
    for damaged in (entry[:-1], entry + b"x", entry[:50], entry[:-1] + b"x"):
        with pytest.raises(DamagedEntryError):
            decode_record(damaged)
    with pytest.raises(DamagedEntryError):
        decode_record_head(head[:-1])
    with pytest.raises(DamagedEntryError):
        decode_record_head(head[:30] + b"\xff" + head[31:])


def test_oversized_record_is_refused_before_it_is_written() -> None:
    """The reader's limit is the writer's limit."""
    with pytest.raises(StorageError, match="cannot be stored"):
        encode_record(CHANNEL, record(1, payload=bytes(1 << 24)), 0)


def test_header_is_recognised_in_any_file() -> None:
    """A header is recognised without its place in a chain, so any file shows which store it belongs
    to.
    """
    assert peek_header(segment()) == SegmentHeader(
        FORMAT_VERSION, STORE_UUID, 1, first_chain(STORE_UUID)
    )
    entry, _ = encode_drop(CHANNEL, 0)
    for data in (b"", b"short", entry, segment()[:40], bytes(200)):
        assert peek_header(data) is None
