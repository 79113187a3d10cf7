"""Digests of leadership: equal exactly when both sides believe the same (S1.8)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftstore.policy.leadership import LeadershipDigest
from raftstore.types import Term, channel_id

PAIRS = st.tuples(
    st.integers(0, 5).map(lambda number: channel_id(b"t" * 16, number)),
    st.integers(1, 3).map(Term),
)
CHANGES = st.lists(st.tuples(st.sampled_from(["add", "remove"]), PAIRS))


def built(pairs: list) -> LeadershipDigest:
    """A digest of these pairs."""
    digest = LeadershipDigest()
    for channel, term in pairs:
        digest.add(channel, term)
    return digest


@given(CHANGES, CHANGES)
def test_digests_are_equal_exactly_when_the_pairs_are(first: list, second: list) -> None:
    """Any history of additions and removals gives the digest of what is left."""
    digests, models = [], []
    for changes in (first, second):
        digest, model = LeadershipDigest(), {}
        for change, pair in changes:
            getattr(digest, change)(*pair)
            model[pair] = None
            if change == "remove":
                del model[pair]
        assert digest.value == built(list(model)).value
        assert sorted(digest.pairs) == sorted(model)
        digests.append(digest)
        models.append(model)
    assert digests[0].matches(digests[1].value) == (models[0].keys() == models[1].keys())


def test_digest_is_zero_when_nothing_is_led() -> None:
    """A node that leads nothing says so with zeros, before and after."""
    digest = LeadershipDigest()
    assert digest.value == bytes(16)
    digest.add(channel_id(b"t" * 16, 0), Term(1))
    assert digest.value != bytes(16)
    assert "1 pairs" in repr(digest)
    digest.remove(channel_id(b"t" * 16, 0), Term(1))
    assert digest.value == bytes(16)


def test_digest_differs_when_only_the_term_does() -> None:
    """A leader of an old term does not pass for one of the new term."""
    channel = channel_id(b"t" * 16, 0)
    assert not built([(channel, Term(1))]).matches(built([(channel, Term(2))]).value)


def test_digest_does_not_cancel_when_a_pair_is_added_twice() -> None:
    """An XOR alone would forget a leadership that is reported twice."""
    pair = (channel_id(b"t" * 16, 0), Term(1))
    assert built([pair, pair]).value == built([pair]).value
    digest = built([])
    digest.remove(*pair)
    assert digest.value == bytes(16)


def test_digest_stays_as_it_is_on_the_wire() -> None:
    """Golden bytes: nodes of two versions compare digests."""
    assert (
        built([(channel_id(b"t" * 16, 3), Term(7))]).value.hex()
        == "f17ba952b3846f8b66f2291cb31c40a2"
    )
