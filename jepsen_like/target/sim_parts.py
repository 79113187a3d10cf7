"""Requests of a simulated client's call to each channel: a record, keys, all
rows, a page, a fate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jepsen_like.calls import Action, Call
from raftstore.client.writes.kinds import Write
from raftstore.client.writes.write_outcomes import parse_guid
from raftstore.protocol.payload import encode_conditional, encode_mark, encode_rows
from raftstore.rows.keys import encode_key
from raftstore.rows.partitioner import partition_of
from raftstore.rows.sealing import seal
from raftstore.rows.values import ValueCodec
from raftstore.types import ChannelId, Guid, RecordKind, Seq

CODEC: Final = ValueCodec()
Pair = tuple[bytes, bytes | None]


@dataclass(slots=True)
class Part:
    """The request to one channel: a record to publish, or keys (None: all rows) to read."""

    partition: int
    channel: ChannelId
    write: Write | None = None
    keys: tuple[bytes, ...] | None = None
    asked_about: Guid | None = None
    """Of a question for the fate of a write."""


def key_of(key: str | int | None) -> bytes:
    """The key column, encoded."""
    assert key is not None
    return encode_key((key,))


def divided(call: Call, channels: Sequence[ChannelId]) -> list[Part]:
    """The call, channel by channel."""
    if call.action is Action.FATE:
        channel, guid = parse_guid(call.guid)
        return [Part(list(channels).index(channel), channel, asked_about=guid)]
    if call.action is Action.PAGE:
        assert len(channels) == 1, "pages of several partitions are merged by the real client alone"
    if call.action in (Action.SCAN, Action.PAGE):
        return [Part(at, channel) for at, channel in enumerate(channels)]
    if call.action in (Action.GET, Action.GET_MANY):
        return _reads(call, channels)
    if call.action is Action.MARK:
        payload = encode_mark("jepsen", int(call.value))
        return [
            Part(at, channel, Write(channel, RecordKind.BATCH_MARK, payload, 1))
            for at, channel in enumerate(channels)
        ]
    return _writes(call, channels)


def _reads(call: Call, channels: Sequence[ChannelId]) -> list[Part]:
    keys = call.keys if call.action is Action.GET_MANY else (call.key,)
    wanted = by_partition(((key_of(key), None) for key in keys), len(channels))
    return [
        Part(at, channels[at], keys=tuple(key for key, _ in wanted[at])) for at in sorted(wanted)
    ]


def _writes(call: Call, channels: Sequence[ChannelId]) -> list[Part]:
    rows = call.rows if call.action is Action.PUT_MANY else ((call.key, call.value),)
    is_gone = call.action is Action.DELETE
    pairs = ((key_of(key), None if is_gone else _sealed(key_of(key), value)) for key, value in rows)
    parts = []
    for at, written in sorted(by_partition(pairs, len(channels)).items()):
        kind, payload = RecordKind.ROWS, b""
        if call.action is Action.PUT_IF:
            kind = RecordKind.CONDITIONAL
            payload = encode_conditional(*written[0], Seq(call.expected_seq))
        else:
            payload = encode_rows(written)
        write = Write.of_rows(channels[at], kind, payload, len(written), call.ttl_ms)
        parts.append(Part(at, channels[at], write))
    return parts


def by_partition(pairs: Iterable[Pair], partitions: int) -> Mapping[int, list[Pair]]:
    """The pairs of each partition, in their order."""
    found: dict[int, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(partition_of(pair[0], partitions), []).append(pair)
    return found


def sealed_row(key: str | int, value: Any) -> Pair:
    """A row as it is stored."""
    encoded = key_of(key)
    return encoded, _sealed(encoded, value)


def _sealed(key: bytes, value: Any) -> bytes:
    return seal(key, CODEC.encode({"v": value}))
