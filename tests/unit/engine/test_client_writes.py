"""Bytes of writes that clients make a node hold: each is counted once and given back."""

from __future__ import annotations

from raftstore.engine.client_writes import WRITE_BYTES, ClientWrites
from raftstore.engine.node_ports import CLIENT_HANDLE_SELF
from raftstore.errors import OverloadedError
from raftstore.protocol.publish import PubMsg, PubReject
from raftstore.types import ChannelId, NodeId, RecordKind, Term, channel_id, make_guid

HERE, THERE = (channel_id(b"t" * 16, number) for number in range(2))
CLIENT, OTHER = 3, 4
DIGEST = b"d" * 16
BYTES_MAX = 10 * WRITE_BYTES


def write(number: int, size: int = 0, channel: ChannelId = HERE) -> PubMsg:
    """A client's write."""
    return PubMsg(
        channel=channel,
        term=Term(1),
        leader=NodeId("n1"),
        guid=make_guid(b"session!", number),
        digest=DIGEST,
        rows=1,
        kind=RecordKind.ROWS,
        payload=bytes(size),
        relay_to=(),
    )


def test_write_counts_its_payload_and_its_place_until_it_is_answered() -> None:
    """A payload of nothing costs something, too."""
    writes = ClientWrites(BYTES_MAX)
    assert not writes.holds_for(CLIENT)
    message = write(1, size=10)
    assert writes.begin(CLIENT, message) is None
    assert writes.held_bytes == 10 + WRITE_BYTES
    assert writes.holds_for(CLIENT)
    assert not writes.holds_for(OTHER)
    writes.settled(OTHER, message)
    assert writes.held_bytes == 10 + WRITE_BYTES
    writes.settled(CLIENT, PubReject(HERE, Term(1), message.guid, "overloaded", "later"))
    assert writes.held_bytes == 0
    assert not writes.holds_for(CLIENT)


def test_write_that_is_sent_again_counts_once() -> None:
    """It has its place already, even when there is none for a new one."""
    writes = ClientWrites(BYTES_MAX)
    assert writes.begin(CLIENT, write(1, size=BYTES_MAX - WRITE_BYTES)) is None
    assert writes.begin(CLIENT, write(1, size=BYTES_MAX - WRITE_BYTES)) is None
    assert writes.held_bytes == BYTES_MAX
    refusal = writes.begin(CLIENT, write(2))
    assert refusal is not None
    assert refusal.error is OverloadedError
    assert refusal.text.startswith(
        f"this client holds {BYTES_MAX} bytes of writes and wants {WRITE_BYTES} more, the limit of "
        f"one client is {BYTES_MAX} (replication.client_payload_bytes_max)"
    )
    assert writes.held_bytes == BYTES_MAX


def test_copy_for_another_leader_is_counted_until_it_is_released() -> None:
    """By client, channel, write and payload: two payloads of one guid are two copies."""
    writes = ClientWrites(BYTES_MAX)
    guid = make_guid(b"session!", 1)
    assert writes.admit(CLIENT, HERE, guid, DIGEST, 10)
    assert writes.admit(CLIENT, HERE, guid, DIGEST, 10), "it is held already"
    assert writes.held_bytes == 10 + WRITE_BYTES
    assert writes.admit(CLIENT, HERE, guid, b"e" * 16, 10)
    assert writes.admit(CLIENT, THERE, guid, DIGEST, 10)
    assert writes.held_bytes == 3 * (10 + WRITE_BYTES)
    writes.release(CLIENT, HERE, guid, DIGEST)
    assert writes.held_bytes == 2 * (10 + WRITE_BYTES)


def test_copy_that_has_no_room_is_not_held() -> None:
    """The leader has the payload, too: it is fetched from there."""
    writes = ClientWrites(BYTES_MAX)
    guid = make_guid(b"session!", 1)
    assert not writes.admit(CLIENT, HERE, guid, DIGEST, BYTES_MAX - WRITE_BYTES + 1)
    assert writes.held_bytes == 0
    assert writes.admit(CLIENT, HERE, guid, DIGEST, BYTES_MAX - WRITE_BYTES)
    assert writes.held_bytes == BYTES_MAX


def test_what_a_leader_relays_is_bounded_elsewhere() -> None:
    """By its channel: it is no client's."""
    writes = ClientWrites(0)
    assert writes.admit(CLIENT_HANDLE_SELF, HERE, make_guid(b"session!", 1), DIGEST, 10)
    assert writes.held_bytes == 0


def test_copies_outlive_the_client_and_its_answers_do_not() -> None:
    """S5.3: the leader may have given the write its place already."""
    writes = ClientWrites(BYTES_MAX)
    guid = make_guid(b"session!", 2)
    assert writes.begin(CLIENT, write(1)) is None
    assert writes.admit(CLIENT, HERE, guid, DIGEST, 0)
    assert writes.begin(OTHER, write(3)) is None
    writes.on_client_gone(CLIENT)
    assert writes.held_bytes == 2 * WRITE_BYTES
    assert writes.holds_for(CLIENT)
    writes.release(CLIENT, HERE, guid, DIGEST)
    assert not writes.holds_for(CLIENT)
    assert writes.holds_for(OTHER)
