"""Configurations of a channel as its log tells them: the newest one counts, committed or not (S8).

Membership changes are not offered yet; the record format, the joint arithmetic and the roll-back
on truncation are what they will need.
"""

from __future__ import annotations

import msgspec

from raftstore.protocol.records import Record
from raftstore.types import ChannelConfig, RecordKind, Seq

_decoder = msgspec.msgpack.Decoder(ChannelConfig)
_encoder = msgspec.msgpack.Encoder()


def encode_config(config: ChannelConfig) -> bytes:
    """Payload of a CONFIG record."""
    return _encoder.encode(config)


class ConfigStack:
    """Creation configuration, then every CONFIG record of the log."""

    __slots__ = ("_stack", "current", "current_seq")

    def __init__(self, creation: ChannelConfig) -> None:
        assert creation.voter_sets
        self._stack: list[tuple[Seq, ChannelConfig]] = [(Seq(0), creation)]
        self.current = creation
        """The newest configuration."""
        self.current_seq = Seq(0)
        """Where it stands in the log; 0 for the creation configuration."""

    def append(self, record: Record) -> None:
        """Learn a CONFIG record; a payload that is not a configuration is a bug of its leader."""
        assert record.kind is RecordKind.CONFIG
        self._stack.append((record.last_seq, _decoder.decode(record.payload)))
        self.current_seq, self.current = self._stack[-1]

    def truncate(self, from_seq: Seq) -> None:
        """S8: configurations roll back with their records."""
        while self._stack[-1][0] >= from_seq and len(self._stack) > 1:
            self._stack.pop()
        self.current_seq, self.current = self._stack[-1]

    def prune(self, commit_seq: Seq) -> None:
        """Forget those that can never count again: older than the newest committed one."""
        while len(self._stack) > 1 and self._stack[1][0] <= commit_seq:
            del self._stack[0]
