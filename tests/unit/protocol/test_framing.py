"""Frames in a byte stream: restored from any pieces, and refused with reasons (S12)."""

from __future__ import annotations

from itertools import pairwise
from struct import pack
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.config import FRAME_BYTES_MAX, PROTOCOL_VERSION
from raftstore.errors import (
    DecodeError,
    LocalProtocolError,
    RemoteProtocolError,
    UnsupportedVersionError,
)
from raftstore.protocol.framing import (
    HEADER_BYTES,
    Body,
    ReceiveBuffer,
    body_length,
    encode_frame,
    encode_frames,
)

BODIES = [b"first", b"", bytes(range(256)) * 17, b"last"]
"""Short, empty, one above the size from which bodies are views, short."""


def raw_frame(
    body: bytes,
    *,
    length: int | None = None,
    version: int = PROTOCOL_VERSION,
    checksum: int | None = None,
) -> bytes:
    """A frame whose header may lie."""
    announced = len(body) if length is None else length
    return pack(">IBI", announced, version, crc32(body) if checksum is None else checksum) + body


def fed(buffer: ReceiveBuffer, chunks: list[bytes]) -> list[bytes]:
    """Every body that the chunks complete."""
    found: list[Body] = []
    for chunk in chunks:
        found += buffer.feed(chunk)
    return [bytes(body) for body in found]


def test_frame_has_the_documented_layout() -> None:
    """Length, version and CRC-32, big-endian, then the body: other programs may rely on it."""
    assert encode_frame(b"abc").hex() == "0000000301352441c2616263"
    assert encode_frames([b"abc", b""]) == encode_frame(b"abc") + encode_frame(b"")
    assert body_length(encode_frame(b"abc")) == 3


def test_bodies_are_restored_when_the_stream_is_cut_anywhere() -> None:
    """TCP keeps no borders: two pieces, cut at every byte, give the same bodies in order."""
    stream = encode_frames(BODIES)
    for cut in range(len(stream) + 1):
        buffer = ReceiveBuffer()
        assert fed(buffer, [stream[:cut], stream[cut:]]) == BODIES, cut
        assert buffer.held_bytes == 0


def test_bodies_are_restored_when_bytes_come_one_by_one() -> None:
    """The slowest sender is understood, and only the incomplete frame is held."""
    stream = encode_frames(BODIES)
    buffer = ReceiveBuffer()
    found: list[bytes] = []
    for position in range(len(stream)):
        found += fed(buffer, [stream[position : position + 1]])
        whole = sum(HEADER_BYTES + len(body) for body in found)
        assert buffer.held_bytes == position + 1 - whole
    assert found == BODIES


@given(
    bodies=st.lists(st.binary(max_size=64) | st.sampled_from(BODIES), max_size=8),
    cuts=st.lists(st.integers(0, 2**16), max_size=12),
)
def test_bodies_are_restored_from_any_pieces(bodies: list[bytes], cuts: list[int]) -> None:
    """However many frames and pieces there are, what was framed comes out."""
    stream = encode_frames(bodies)
    borders = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    chunks = [stream[start:end] for start, end in pairwise(borders)]
    assert fed(ReceiveBuffer(), chunks) == bodies


@pytest.mark.parametrize("at_once", [True, False])
def test_length_over_the_limit_is_refused_before_a_body_is_kept(at_once: bool) -> None:
    """An announced length reserves nothing; the error names what was found and the limit (S12)."""
    header = raw_frame(b"", length=FRAME_BYTES_MAX + 1)
    chunks = [header + b"x" * 100] if at_once else [bytes([byte]) for byte in header]
    buffer = ReceiveBuffer()
    with pytest.raises(DecodeError, match=rf"{FRAME_BYTES_MAX + 1} bytes.*limit is 16777216"):
        fed(buffer, chunks)
    assert buffer.held_bytes == 0
    with pytest.raises(DecodeError):
        body_length(header)


@pytest.mark.parametrize(
    ("start", "protocol"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "HTTP"),
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"POST /v1/tables HTTP/1.1\r\n", "HTTP"),
        (b"\x15\x03\x01\x00\x02\x02\x46\x00\x00", "TLS"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", "TLS"),
    ],
)
def test_bytes_of_another_protocol_are_told_as_such(start: bytes, protocol: str) -> None:
    """One port is easily taken for the other, and "a body of 1213486160 bytes" helps nobody."""
    with pytest.raises(DecodeError, match=f"speaks {protocol}: .*node.listen.*http.listen"):
        ReceiveBuffer().feed(start)


def test_limit_of_a_buffer_is_its_own() -> None:
    """Clients get a smaller limit than peers; a body of exactly the limit is fine."""
    assert fed(ReceiveBuffer(5), [encode_frame(b"12345")]) == [b"12345"]
    with pytest.raises(DecodeError, match="6 bytes, the limit is 5"):
        ReceiveBuffer(5).feed(encode_frame(b"123456"))
    with pytest.raises(DecodeError, match="6 bytes, the limit is 5"):
        body_length(encode_frame(b"123456"), 5)


@pytest.mark.parametrize("at_once", [True, False])
def test_other_version_is_refused_with_both_versions(at_once: bool) -> None:
    """A peer of another version is distinguished from a broken one, before its body arrives."""
    header = raw_frame(b"", length=1_000, version=PROTOCOL_VERSION + 1)
    chunks = [header] if at_once else [header[:3], header[3:]]
    buffer = ReceiveBuffer()
    with pytest.raises(UnsupportedVersionError, match="version 2, this side speaks 1; install"):
        fed(buffer, chunks)
    assert buffer.held_bytes == 0


@pytest.mark.parametrize("cut", [0, 4, HEADER_BYTES, HEADER_BYTES + 2])
def test_damaged_body_is_refused_with_both_checksums(cut: int) -> None:
    """A flipped bit is noticed in whole frames and in ones that came in pieces."""
    frame = raw_frame(b"abc", checksum=0x12345678)
    buffer = ReceiveBuffer()
    with pytest.raises(DecodeError, match="3 bytes is 0x352441c2, its header says 0x12345678"):
        fed(buffer, [frame[:cut], frame[cut:]])
    assert buffer.held_bytes == 0


def test_bodies_before_a_bad_frame_are_delivered_and_none_after_it() -> None:
    """Given a bad frame, bodies that arrived whole before it are delivered and none after it, for
    any cut of the stream.
    """
    stream = encode_frame(b"good") + raw_frame(b"bad", checksum=0) + encode_frame(b"after")
    buffer = ReceiveBuffer()
    assert fed(buffer, [stream]) == [b"good"]
    assert isinstance(buffer.failure, DecodeError)
    assert buffer.held_bytes == 0
    for _ in range(2):
        with pytest.raises(DecodeError):
            buffer.feed(encode_frame(b"after"))


def test_body_over_the_limit_is_not_sent() -> None:
    """Our own too big message is our own error, raised before a byte leaves."""
    too_big = bytes(FRAME_BYTES_MAX + 1)
    with pytest.raises(LocalProtocolError, match=r"16777217 bytes.*limit is 16777216"):
        encode_frame(too_big)
    with pytest.raises(LocalProtocolError):
        encode_frames([b"", too_big])


@given(chunks=st.lists(st.binary(max_size=200), max_size=8))
def test_random_bytes_raise_only_remote_protocol_errors(chunks: list[bytes]) -> None:
    """Given any bytes, the connection can be closed with a reason (S12)."""
    buffer = ReceiveBuffer()
    try:
        fed(buffer, chunks)
    except RemoteProtocolError:
        assert buffer.failure is not None
        assert buffer.held_bytes == 0
    assert buffer.held_bytes <= sum(map(len, chunks))
