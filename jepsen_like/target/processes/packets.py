"""The little of Ethernet, IPv4 and TCP that a switch must read, and the RST it can forge."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

ETHERNET: Final = struct.Struct("!6s6sH")
IPV4: Final = struct.Struct("!BBHHHBBH4s4s")
TCP: Final = struct.Struct("!HHIIBBHHH")
TYPE_IPV4: Final = 0x0800
TYPE_ARP: Final = 0x0806
PROTOCOL_TCP: Final = 6
FIN, SYN, RST, ACK = 1, 2, 4, 16
TTL: Final = 64
HEADER_WORDS: Final = 5
BROADCAST: Final = b"\xff" * 6


@dataclass(frozen=True, slots=True)
class Segment:
    """The head of a TCP segment in an Ethernet frame; addresses as they are on the wire."""

    source_mac: bytes
    destination_mac: bytes
    source: bytes
    source_port: int
    destination: bytes
    destination_port: int
    sequence: int
    acknowledged: int
    flags: int

    @property
    def flow(self) -> tuple[bytes, int, bytes, int]:
        """The direction of the connection it travels in."""
        return self.source, self.source_port, self.destination, self.destination_port

    @property
    def flow_back(self) -> tuple[bytes, int, bytes, int]:
        """The other direction."""
        return self.destination, self.destination_port, self.source, self.source_port


def ethernet_type(frame: bytes) -> int:
    """The type of the frame's payload; 0 when it is too short to say."""
    return int.from_bytes(frame[12:14], "big") if len(frame) >= ETHERNET.size else 0


def read_segment(frame: bytes) -> Segment | None:
    """None when the frame is no whole TCP head over IPv4."""
    at = ETHERNET.size
    if ethernet_type(frame) != TYPE_IPV4 or len(frame) < at + IPV4.size:
        return None
    first, _, _, _, fragment, _, protocol, _, source, destination = IPV4.unpack_from(frame, at)
    at += (first & 0x0F) * 4
    if protocol != PROTOCOL_TCP or fragment & 0x1FFF or len(frame) < at + TCP.size:
        return None
    source_port, destination_port, sequence, acknowledged, _, flags, *_ = TCP.unpack_from(frame, at)
    return Segment(
        frame[6:12],
        frame[0:6],
        source,
        source_port,
        destination,
        destination_port,
        sequence,
        acknowledged,
        flags,
    )


def reset_of(heard: Segment) -> bytes:
    """A frame that ends the connection at the sender of ``heard``, as if its peer had sent it.

    A receiver obeys only an RST of exactly the sequence number it waits for (RFC 5961), and that is
    the one it acknowledged last.
    """
    segment = TCP.pack(
        heard.destination_port,
        heard.source_port,
        heard.acknowledged,
        (heard.sequence + (1 if heard.flags & (SYN | FIN) else 0)) & 0xFFFFFFFF,
        HEADER_WORDS << 4,
        RST | ACK,
        0,
        0,
        0,
    )
    pseudo = heard.destination + heard.source + struct.pack("!HH", PROTOCOL_TCP, len(segment))
    segment = segment[:16] + struct.pack("!H", checksum(pseudo + segment)) + segment[18:]
    head = IPV4.pack(
        0x45,
        0,
        IPV4.size + len(segment),
        0,
        0x4000,
        TTL,
        PROTOCOL_TCP,
        0,
        heard.destination,
        heard.source,
    )
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    ethernet = ETHERNET.pack(heard.source_mac, heard.destination_mac, TYPE_IPV4)
    return ethernet + head + segment


def checksum(data: bytes) -> int:
    """The Internet checksum: 0 over data that holds its own."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
