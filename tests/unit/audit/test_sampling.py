"""Which keys an audit watches."""

from __future__ import annotations

from raftstore.audit.sampling import KeySample

KEYS = [b"key %d" % number for number in range(20_000)]


def test_share_of_keys_is_watched_and_another_after_a_turn() -> None:
    """N7: of a watched key everything is seen, so a key is watched or it is not."""
    sample = KeySample(0.02, b"seed")
    first = {key for key in KEYS if sample.has(key)}
    assert 250 <= len(first) <= 550
    assert first == {key for key in KEYS if sample.has(key)}
    sample.turn()
    second = {key for key in KEYS if sample.has(key)}
    assert 250 <= len(second) <= 550
    assert len(first & second) < len(first) / 4


def test_none_and_all() -> None:
    """N7: the ends of the range."""
    assert KeySample(0.0, b"seed").is_empty
    assert not any(KeySample(0.0, b"seed").has(key) for key in KEYS)
    assert all(KeySample(1.0, b"seed").has(key) for key in KEYS)
    assert not KeySample(1.0, b"seed").is_empty
