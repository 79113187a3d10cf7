"""Cutting the keys of a partition: every key in one part, about as many in each."""

import asyncio
import random
from bisect import bisect_left
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from raftstore.client.scans.splits import cuts_of
from raftstore.rows.keys import encode_key

KEYS = st.lists(st.binary(max_size=40) | st.integers(-(2**63), 2**63 - 1), max_size=30)


def cut(keys, parts, start=b"", stop=b""):
    """The cuts of sorted keys, and how many questions they took."""
    asked = []

    async def probe(at):
        asked.append(at)
        here = bisect_left(keys, at)
        return keys[here] if here < len(keys) and (not stop or keys[here] < stop) else None

    return asyncio.run(cuts_of(probe, start, stop, parts)), len(asked)


def sizes(keys, cuts):
    """Keys of each part."""
    at = [0, *(bisect_left(keys, each) for each in cuts), len(keys)]
    return [end - begin for begin, end in pairwise(at)]


@given(KEYS, st.integers(1, 64), st.binary(max_size=3), st.binary(max_size=3))
def test_cuts_ascend_within_the_range_whatever_the_keys(given_keys, parts, start, stop):
    """So that each key of the range is in exactly one part."""
    keys = sorted({encode_key((key,)) for key in given_keys})
    cuts, asked = cut(keys, parts, start, stop)
    assert cuts == sorted(set(cuts))
    assert len(cuts) < parts
    assert all(start < each and (not stop or each < stop) for each in cuts)
    assert asked <= 8 * 32 + 1


def test_keys_that_are_spread_evenly_are_cut_evenly():
    """Counters, negative numbers too, digests, and names that begin alike."""
    dice = random.Random(7)
    for made in (
        range(10_000),
        range(-5_000, 5_000),
        [dice.randbytes(16) for _ in range(10_000)],
        [f"customer/{dice.randrange(10**6):06}" for _ in range(10_000)],
    ):
        keys = sorted({encode_key((key,)) for key in made})
        cuts, asked = cut(keys, 8)
        assert len(cuts) == 7
        assert max(sizes(keys, cuts)) < 2.5 * len(keys) / 8
        assert asked < 150


def test_few_keys_have_few_parts():
    """None at all, or one, is not cut."""
    assert cut([], 8) == ([], 1)
    assert cut([encode_key((1,))], 8)[0] == []
    assert cut(sorted(map(encode_key, [(1,), (2,)])), 1) == ([], 0)
