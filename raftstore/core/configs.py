"""Configurations of a channel as its log tells them: the newest one counts, committed or not (S8).

Membership changes are not offered yet; the record format, the joint arithmetic and the roll-back
on truncation are what they will need.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from raftstore.protocol.records import Record
from raftstore.types import ChannelConfig, RecordKind, Seq

_decoder = msgspec.msgpack.Decoder(ChannelConfig)
_encoder = msgspec.msgpack.Encoder()


class _State(msgspec.Struct, frozen=True, array_like=True):
    """The newest configuration as a base keeps it."""

    seq: Seq
    config: ChannelConfig | None
    """None: the creation configuration, which the catalog tells."""


_state_decoder = msgspec.msgpack.Decoder(_State)


def encode_config(config: ChannelConfig) -> bytes:
    """Payload of a CONFIG record."""
    return _encoder.encode(config)


class ConfigStack:
    """Creation configuration, then every CONFIG record of the log."""

    NAME: ClassVar = "configs"
    FORMAT: ClassVar = 1
    KINDS: ClassVar = frozenset({RecordKind.CONFIG})
    HEEDS_COMMITS: ClassVar = True

    __slots__ = ("_stack", "current", "current_seq")

    def __init__(self, creation: ChannelConfig) -> None:
        assert creation.voter_sets, "a channel without voters (S1.7)"
        self._stack: list[tuple[Seq, ChannelConfig]] = [(Seq(0), creation)]
        self.current = creation
        """The newest configuration."""
        self.current_seq = Seq(0)
        """Where it stands in the log; 0 for the creation configuration."""

    def append(self, record: Record) -> None:
        """Learn a CONFIG record; a payload that is not a configuration is a bug of its leader."""
        assert record.kind is RecordKind.CONFIG, f"kind {record.kind} at {record.last_seq}"
        assert record.last_seq > self.current_seq, (
            f"a configuration at seq {record.last_seq} would follow one at {self.current_seq} (S8)"
        )
        self._stack.append((record.last_seq, _decoder.decode(record.payload)))
        self.current_seq, self.current = self._stack[-1]

    def truncate(self, from_seq: Seq) -> None:
        """S8: configurations roll back with their records."""
        while self._stack[-1][0] >= from_seq and len(self._stack) > 1:
            self._stack.pop()
        self.current_seq, self.current = self._stack[-1]
        assert self.current_seq < from_seq or self.current_seq == 0, (
            f"the configuration at seq {self.current_seq} outlived a cut at {from_seq} (S8)"
        )

    def commit(self, commit_seq: Seq) -> None:
        """Forget those that can never count again: older than the newest committed one."""
        while len(self._stack) > 1 and self._stack[1][0] <= commit_seq:
            del self._stack[0]
        assert self._stack[0][0] <= commit_seq, (
            f"no configuration is known at seq {commit_seq}, the oldest is of {self._stack[0][0]}"
        )

    def encode(self) -> bytes:
        """The newest configuration, unless it is that of the channel's creation."""
        seq, config = self._stack[-1]
        return _encoder.encode(_State(seq, config if seq else None))

    def restore(self, state: bytes, base_seq: Seq) -> None:
        """Become what was encoded. Raises ValueError for what no log has."""
        held = _state_decoder.decode(state)
        if (held.seq > 0) != (held.config is not None) or held.seq > base_seq:
            raise ValueError(f"a configuration of seq {held.seq} in records up to {base_seq}")
        if held.config is not None:
            if not held.config.voters:
                raise ValueError(f"a configuration without voters at seq {held.seq}")
            self._stack = [(held.seq, held.config)]
            self.current_seq, self.current = held.seq, held.config
