"""Behind damaged bytes: which entry they were, and where the next intact one begins (S0.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pytest

from raftstore.storage.log.records import (
    HEADER,
    HEADER_BYTES,
    META_BYTES,
    RecordPosition,
    encode_drop,
    encode_record,
    encode_segment,
    encode_vote,
    first_chain,
    next_chain,
)
from raftstore.storage.log.resync import Damage, damage_at, damaged_segment_header
from raftstore.types import Seq, Term
from tests.storage_helpers import ALICE, CHANNEL, STORE_UUID, record

RECORDS: Final = (1, 3, 4, 5)
"""Entries of the segment that are records; 0 is its header, 2 a vote, 6 a drop."""


@dataclass(frozen=True)
class Segment:
    """A segment of seven entries."""

    data: bytes
    starts: list[int]
    """Offset of each entry, and the end."""
    chains: list[int]
    """Chain after each entry; the last one is what a next segment continues."""

    def body(self, entry: int) -> int:
        """Offset of its body."""
        return self.starts[entry] + HEADER_BYTES

    def damaged(self, *offsets: int) -> bytes:
        """A bit is flipped at each offset."""
        data = bytearray(self.data)
        for offset in offsets:
            data[offset] ^= 0x10
        return bytes(data)

    def damage(self, data: bytes, entry: int, following_chain: int | None = None) -> Damage | None:
        """At an entry, as the scan finds it that has read all entries before."""
        return damage_at(data, self.starts[entry], self.chains[entry - 1], following_chain)


@pytest.fixture(scope="module")
def segment() -> Segment:
    """Of records, a vote and a drop."""
    data, starts, chains = b"", [], []
    chain = first_chain(STORE_UUID)
    for number in range(7):
        starts.append(len(data))
        if number == 0:
            found, chain = encode_segment(STORE_UUID, 1, chain)
        elif number == 2:
            found, chain = encode_vote(CHANNEL, Term(4), ALICE, chain)
        elif number == 6:
            found, chain = encode_drop(CHANNEL, chain)
        else:
            one = record(number, payload=b"payload of %d" % number * number)
            found, chain = encode_record(CHANNEL, one, chain)
            found += one.payload
        data += found
        chains.append(chain)
    return Segment(data, [*starts, len(data)], chains)


@pytest.mark.parametrize("entry", RECORDS)
@pytest.mark.parametrize("following", [True, False])
def test_damaged_payload_costs_the_record_it_is_of(
    segment: Segment, entry: int, following: bool
) -> None:
    """Its fields have a checksum of their own, so it is known which record is lost."""
    for offset in (segment.body(entry) + META_BYTES, segment.starts[entry + 1] - 1):
        found = segment.damage(
            segment.damaged(offset), entry, segment.chains[-1] if following else None
        )
        assert found == Damage(
            segment.starts[entry],
            segment.starts[entry + 1],
            segment.chains[entry],
            is_single=True,
            lost=RecordPosition(CHANNEL, Term(1), Seq(entry), 1),
        )


@pytest.mark.parametrize("entry", [*RECORDS, 2, 6])
def test_damaged_fields_cost_one_entry_of_which_nothing_is_known(
    segment: Segment, entry: int
) -> None:
    """The header continues the chain, so its length is right; votes have no fields to trust."""
    found = segment.damage(segment.damaged(segment.body(entry) + 5), entry)
    assert found == Damage(
        segment.starts[entry], segment.starts[entry + 1], segment.chains[entry], is_single=True
    )


@pytest.mark.parametrize("entry", range(1, 6))
@pytest.mark.parametrize("byte", range(HEADER_BYTES))
def test_damaged_header_is_known_by_the_one_behind_it(
    segment: Segment, entry: int, byte: int
) -> None:
    """Nothing is lost: the header is written again as it was."""
    data = segment.damaged(segment.starts[entry] + byte)
    found = segment.damage(data, entry)
    assert found == Damage(
        segment.starts[entry],
        segment.starts[entry + 1],
        segment.chains[entry],
        is_single=True,
        repair=segment.data[segment.starts[entry] : segment.body(entry)],
    )


@pytest.mark.parametrize("byte", range(HEADER_BYTES))
def test_damaged_header_of_the_last_entry_is_known_by_the_next_segment(
    segment: Segment, byte: int
) -> None:
    """Without a next segment, or with one that continues something else, nothing is proven."""
    data = segment.damaged(segment.starts[6] + byte)
    whole = segment.data[segment.starts[6] : segment.body(6)]
    assert segment.damage(data, 6, segment.chains[6]) == Damage(
        segment.starts[6], len(data), segment.chains[6], is_single=True, repair=whole
    )
    assert segment.damage(data, 6) is None
    assert segment.damage(data, 6, segment.chains[5]) is None
    torn = data[:-1]
    assert segment.damage(torn, 6, segment.chains[6]) is None


@pytest.mark.parametrize("last", [1, 2, 3, 4, 5])
def test_more_damage_than_one_entry_ends_where_all_is_intact_again(
    segment: Segment, last: int
) -> None:
    """Proven by the next segment alone; what was in between is not known."""
    data = bytearray(segment.data)
    first, end = segment.starts[1], segment.starts[last + 1]
    data[first : end - 1] = b"\xee" * (end - 1 - first)
    found = segment.damage(bytes(data), 1, segment.chains[-1])
    assert found == Damage(first, end, None, is_single=False)
    assert segment.damage(bytes(data), 1) is None
    assert segment.damage(bytes(data), 1, segment.chains[-2]) is None
    # The same where not even the chain in front of the damage is known.
    unknown = damage_at(bytes(data), first, None, segment.chains[-1])
    assert unknown == Damage(first, end, None, is_single=False)
    assert damage_at(bytes(data), first, None, None) is None


def test_rest_must_be_intact_to_its_end(segment: Segment) -> None:
    """A second damage behind the first: only entries behind the second one are proven."""
    data = segment.damaged(segment.starts[1] + 1, segment.body(1) + 3, segment.body(4) + 9)
    found = segment.damage(data, 1, segment.chains[-1])
    assert found == Damage(segment.starts[1], segment.starts[5], None, is_single=False)
    for cut in (1, HEADER_BYTES, len(segment.data) - segment.starts[6] - 1):
        assert segment.damage(data[:-cut], 1, segment.chains[-1]) is None


def test_torn_entry_proves_nothing(segment: Segment) -> None:
    """However much of it was written."""
    for end in range(segment.starts[3], segment.starts[4]):
        assert segment.damage(segment.data[:end], 3) is None
    assert segment.damage(b"", 3) is None


def test_header_of_a_segment_is_known_without_it(segment: Segment) -> None:
    """From the store and the segment before; the next entry or the next segment proves it."""
    expected, chain = segment.data[: segment.starts[1]], segment.chains[0]
    data = segment.damaged(3)
    assert damaged_segment_header(data, expected, chain, None) == Damage(
        0, len(expected), chain, is_single=True, repair=expected
    )
    assert damaged_segment_header(data, expected, chain ^ 1, None) is None
    alone = data[: len(expected)]
    assert damaged_segment_header(alone, expected, chain, chain) is not None
    assert damaged_segment_header(alone, expected, chain, None) is None
    assert damaged_segment_header(alone[:-1], expected, chain, chain) is None
    assert damaged_segment_header(data[: segment.body(1) - 1], expected, chain, chain) is None
    length, crc, link = HEADER.unpack_from(data, len(expected))
    assert next_chain(chain, length, crc) == link
    assert damaged_segment_header(data[: segment.body(1)], expected, chain, None) is not None
