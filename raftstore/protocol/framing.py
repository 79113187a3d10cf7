"""Frames: how messages lie in a byte stream.

========  =====  =========================================================================
field     bytes  meaning
========  =====  =========================================================================
length    4      of the body, unsigned big-endian; at most ``FRAME_BYTES_MAX``
version   1      ``PROTOCOL_VERSION``; these two fields stay where they are in all versions
checksum  4      CRC-32 of the body, unsigned big-endian
body      ...    one message (``raftstore.protocol.codec``)
========  =====  =========================================================================

Length and version are checked before a byte of the body is kept, so a stranger cannot make a node
reserve memory by announcing a big frame (S12).
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

from raftstore.config import FRAME_BYTES_MAX, PROTOCOL_VERSION
from raftstore.crc import crc32
from raftstore.errors import (
    DecodeError,
    LocalProtocolError,
    RemoteProtocolError,
    UnsupportedVersionError,
)

Body = bytes | memoryview
"""One frame's body. A memoryview is valid for as long as somebody holds it; bodies of short frames
are copied because that is cheaper than a view."""

_HEADER: Final = Struct(">IBI")
HEADER_BYTES: Final = _HEADER.size
_VIEW_BYTES_MIN: Final = 4096
"""From here on a view costs less than a copy."""


def encode_frame(body: bytes) -> bytes:
    """Put a header before a body; LocalProtocolError when it is over the frame limit."""
    length = len(body)
    if length > FRAME_BYTES_MAX:
        raise _too_large(length)
    return _HEADER.pack(length, PROTOCOL_VERSION, crc32(body)) + body


def encode_frames(bodies: Iterable[bytes]) -> bytes:
    """Join several bodies into bytes for one write."""
    return b"".join(map(encode_frame, bodies))


def _too_large(length: int) -> LocalProtocolError:
    return LocalProtocolError(
        f"a message of {length} bytes does not fit into a frame, the limit is "
        f"{FRAME_BYTES_MAX}; send it in smaller pieces"
    )


def body_length(header: bytes | bytearray, bytes_max: int = FRAME_BYTES_MAX) -> int:
    """Return the length that a header announces, having checked length and version.

    For readers that take exactly one frame from a socket (the handshake of an accepted one).
    """
    length, version, _ = _HEADER.unpack_from(header, 0)
    _check_header(length, version, bytes_max)
    return int(length)


class ReceiveBuffer:
    """Cuts what a socket delivers into bodies.

    Cost: whole frames inside one chunk are not copied (views) or copied once (short ones); a frame
    that spans chunks is copied once into its own buffer, however many chunks it takes.
    """

    __slots__ = ("partial", "_wanted", "bytes_max", "failure")

    failure: RemoteProtocolError | None
    """Why nothing more can be read from this stream; None while it is good."""

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        """``bytes_max`` bounds one body; a peer that is known better may be given another bound."""
        self.failure = None
        self.bytes_max = bytes_max
        self.partial = bytearray()
        """Of a frame that is not complete."""
        self._wanted = 0

    @property
    def partial_bytes(self) -> int:
        """Bytes kept of a frame that is not complete."""
        return len(self.partial)

    def feed(self, data: bytes) -> list[Body]:
        """Take the next bytes of the stream and return the bodies they complete, in order.

        Bodies before a bad frame are delivered however the stream was cut into chunks: the call
        that meets the bad frame behind good ones sets ``failure`` and returns them; a call that has
        nothing good to return, and every later one, raises it (DecodeError or
        UnsupportedVersionError). A stream has no way back to a frame border, so it is over.
        """
        if self.failure is not None:
            raise self.failure
        bodies: list[Body] = []
        try:
            start = self._complete(data, bodies) if self.partial else 0
            if start < len(data):
                self._split(data, start, bodies)
        except RemoteProtocolError as error:
            self.failure = error
            self.partial = bytearray()
            if not bodies:
                raise
        return bodies

    @property
    def held_bytes(self) -> int:
        """Bytes of the incomplete frame at the end."""
        return len(self.partial)

    def _complete(self, data: bytes, bodies: list[Body]) -> int:
        """Fill the frame begun by earlier chunks; return how much of ``data`` it took."""
        partial = self.partial
        taken = 0
        if len(partial) < HEADER_BYTES:
            taken = min(HEADER_BYTES - len(partial), len(data))
            partial += data[:taken]
            if len(partial) < HEADER_BYTES:
                return taken
            self._wanted = HEADER_BYTES + body_length(partial, self.bytes_max)
        more = min(self._wanted - len(partial), len(data) - taken)
        partial += memoryview(data)[taken : taken + more]
        if len(partial) == self._wanted:
            self.partial = bytearray()
            _, _, checksum = _HEADER.unpack_from(partial, 0)
            body = memoryview(partial)[HEADER_BYTES:]
            _check_body(body, checksum)
            bodies.append(body)
        return taken + more

    def _split(self, data: bytes, start: int, bodies: list[Body]) -> None:
        """Cut the frames that lie wholly in ``data``, from a frame border on; keep the rest."""
        size = len(data)
        view = memoryview(data)
        while size - start >= HEADER_BYTES:
            length, version, checksum = _HEADER.unpack_from(data, start)
            if length > self.bytes_max or version != PROTOCOL_VERSION:
                _check_header(length, version, self.bytes_max)
            end = start + HEADER_BYTES + length
            if end > size:
                self._wanted = HEADER_BYTES + length
                break
            body = (
                data[start + HEADER_BYTES : end]
                if length < _VIEW_BYTES_MIN
                else (view[start + HEADER_BYTES : end])
            )
            if crc32(body) != checksum:
                _check_body(body, checksum)
            bodies.append(body)
            start = end
        if start < size:
            self.partial += view[start:]


_HTTP_STARTS: Final = frozenset({b"HTTP", b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI"})
_TLS_STARTS: Final = frozenset({b"\x15\x03", b"\x16\x03"})
"""An alert, and a handshake."""


def _other_protocol(length: int) -> str | None:
    """The protocol whose first four bytes were read as this length; None if none is known."""
    start = length.to_bytes(4, "big")
    if start in _HTTP_STARTS:
        return "HTTP"
    return "TLS" if start[:2] in _TLS_STARTS else None


def _check_header(length: int, version: int, bytes_max: int) -> None:
    if length > bytes_max and (other := _other_protocol(length)):
        raise DecodeError(
            f"the other side speaks {other}: one of two ports was taken for the other; a node's "
            "port for clients and nodes is node.listen (4481 by default), that for HTTP is "
            "http.listen (4480)"
        )
    if length > bytes_max:
        raise DecodeError(
            f"the header announces a body of {length} bytes, the limit is {bytes_max}; "
            f"the sender does not speak raftstore's protocol or must send smaller messages"
        )
    if version != PROTOCOL_VERSION:
        raise UnsupportedVersionError(
            f"the frame has protocol version {version}, this side speaks {PROTOCOL_VERSION}; "
            f"install the same raftstore version on both sides"
        )


def _check_body(body: Body, checksum: int) -> None:
    found = crc32(body)
    if found != checksum:
        raise DecodeError(
            f"the checksum of a frame of {len(body)} bytes is {found:#010x}, its header says "
            f"{checksum:#010x}; the bytes were damaged on the way"
        )
