"""The hash over a channel's content, which replicas of different versions compare."""

from __future__ import annotations

from raftstore.state_machines.state_keys import OUTCOMES
from raftstore.storage.tables.keys import ContentHasher
from raftstore.types import Seq


def hasher(*state: tuple[bytes, bytes]) -> ContentHasher:
    """Of one row, and these values beside it."""
    made = ContentHasher()
    made.add(b"a", b"sealed", Seq(3))
    for key, value in state:
        made.add_state(key, value)
    return made


def test_content_hash_is_fixed_with_and_without_state() -> None:
    """A hash is a promise between versions: these two never change."""
    assert hasher().digest().hex() == "01bfc18b264c30ab58658f4d1504aded"
    with_state = hasher((b"\x02\x00", b"head"), (b"\x03", b""))
    assert with_state.digest().hex() == "75faeb2dcd5237454c94ea01b2e7efc2"
    assert with_state.rows == 1


def test_content_hash_tells_expiries_apart() -> None:
    """S10: replicas agree on when a row expires, or they are not equal."""
    digests = set()
    for expires_ms in (0, 1, 2, 2**62):
        made = ContentHasher()
        made.add(b"a", b"sealed", Seq(3), expires_ms)
        digests.add(made.digest())
    assert len(digests) == 4
    assert hasher().digest() in digests


def test_content_hash_leaves_out_what_a_replica_found_out_for_readers_of_changes() -> None:
    """A replica that applied a batch twice may have reported more of them."""
    assert hasher((OUTCOMES + b"1", b"x")).digest() == hasher().digest()
    assert hasher((b"\x03", b"x")).digest() != hasher().digest()
