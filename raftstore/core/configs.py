"""Configurations of a channel as its log states them: the newest one counts, committed or not (S8,
M2), and goes with its record when the log is cut (M3)."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import msgspec

from raftstore.core.membership import has_rows_enough
from raftstore.protocol.records import Record
from raftstore.types import ChannelConfig, MemberRole, RecordKind, ReplicaId, Seq, Term

_decoder = msgspec.msgpack.Decoder(ChannelConfig)
_encoder = msgspec.msgpack.Encoder()


class _State(msgspec.Struct, frozen=True, array_like=True):
    """The newest configuration as a base keeps it."""

    seq: Seq
    config: ChannelConfig | None
    """None: the creation configuration, which is in the catalog."""
    term: Term = Term(0)
    """Of its record; 0: it was written by a version that did not keep it."""


_state_decoder = msgspec.msgpack.Decoder(_State)


class ConfigEntry(NamedTuple):
    """A configuration and the record that states it; seq and term are 0 for the creation's."""

    seq: Seq
    term: Term
    config: ChannelConfig


def encode_config(config: ChannelConfig) -> bytes:
    """Payload of a CONFIG record."""
    return _encoder.encode(config)


def decode_config(payload: bytes) -> ChannelConfig:
    """The configuration of a CONFIG record. Raises ValueError for what no leader writes (M1)."""
    config = _decoder.decode(payload)
    _check(config)
    return config


def _check(config: ChannelConfig) -> None:
    if not 1 <= len(config.voter_sets) <= 2:
        raise ValueError(f"a configuration of {len(config.voter_sets)} voter sets")
    if not all(config.voter_sets):
        raise ValueError("a configuration with an empty voter set")
    both = [node for node in config.learners if node in config.voters]
    if both:
        raise ValueError(f"a configuration with {both[0]} as voter and as learner")
    for node, role in config.roles.items():
        groups = {MemberRole.WITNESS: config.members, MemberRole.READER: config.learners}
        if node not in groups.get(role, ()):
            raise ValueError(f"a configuration with {node} as {role.value} out of place")
    if not all(has_rows_enough(group, config.roles) for group in config.voter_sets):
        raise ValueError("a configuration with too few voters that have rows")


class ConfigStack:
    """Creation configuration, then every CONFIG record of the log."""

    NAME: ClassVar = "configs"
    FORMAT: ClassVar = 1
    KINDS: ClassVar = frozenset({RecordKind.CONFIG})
    HEEDS_COMMITS: ClassVar = True

    __slots__ = ("_stack", "committed", "current", "current_seq", "current_term", "members")

    def __init__(self, creation: ChannelConfig) -> None:
        assert creation.voter_sets, "a channel without voters (S1.7)"
        self.committed = ConfigEntry(Seq(0), Term(0), creation)
        """The newest one that is known to be committed."""
        self._stack: list[ConfigEntry] = [self.committed]
        self.current = creation
        """The newest configuration."""
        self.members = creation.members
        """Its voters and learners, which every message is judged by."""
        self.current_seq = Seq(0)
        """Where it stands in the log; 0 for the creation configuration."""
        self.current_term = Term(0)
        """Of its record."""

    @property
    def entries(self) -> tuple[ConfigEntry, ...]:
        """All that may count, from the newest known to be committed on."""
        return tuple(self._stack)

    @property
    def before(self) -> ChannelConfig:
        """The one before the newest, if the newest is not known to be committed, else the newest:
        it counts again when the newest is cut off (M3)."""
        return self._stack[-2 if len(self._stack) > 1 else -1].config

    def has_dropped(self, replica: ReplicaId) -> bool:
        """Whether committed configurations name this replica no more, and none ever will (M13).

        A replica has the number of the order that adds it, and orders below the newest one of the
        log, or that ended, are not begun again; so one that is yet to be added is none of these.
        """
        _, _, config = self.committed
        is_over = replica.number < config.change or (
            replica.number == config.change > 0 and config.ended
        )
        return is_over and not config.has_member(replica) and not self.current.has_member(replica)

    def append(self, record: Record) -> None:
        """Learn a CONFIG record. Raises ValueError for a payload that no leader writes."""
        assert record.kind is RecordKind.CONFIG, f"kind {record.kind} at {record.last_seq}"
        assert record.last_seq > self.current_seq, (
            f"a configuration at seq {record.last_seq} would follow one at {self.current_seq} (S8)"
        )
        entry = ConfigEntry(record.last_seq, record.term, decode_config(record.payload))
        self._stack.append(entry)
        self._take_newest()

    def truncate(self, from_seq: Seq) -> None:
        """S8: configurations roll back with their records."""
        while self._stack[-1].seq >= from_seq and len(self._stack) > 1:
            self._stack.pop()
        self._take_newest()
        assert self.current_seq < from_seq or self.current_seq == 0, (
            f"the configuration at seq {self.current_seq} outlived a cut at {from_seq} (S8)"
        )

    def commit(self, commit_seq: Seq) -> None:
        """Forget those that can never count again: older than the newest committed one."""
        while len(self._stack) > 1 and self._stack[1].seq <= commit_seq:
            del self._stack[0]
        self.committed = self._stack[0]
        assert self.committed.seq <= commit_seq, (
            f"no configuration is known at seq {commit_seq}, the oldest is of {self.committed.seq}"
        )

    def encode(self) -> bytes:
        """The newest configuration, unless it is that of the channel's creation."""
        seq, term, config = self._stack[-1]
        # Without a configuration as versions wrote it that knew no other: bases are compared.
        return _encoder.encode(_State(seq, config, term) if seq else (seq, None))

    def restore(self, state: bytes, base_seq: Seq) -> None:
        """Become what was encoded. Raises ValueError for what no log has."""
        held = _state_decoder.decode(state)
        if (held.seq > 0) != (held.config is not None) or held.seq > base_seq:
            raise ValueError(f"a configuration of seq {held.seq} in records up to {base_seq}")
        if held.config is not None:
            _check(held.config)
            self._stack = [ConfigEntry(held.seq, held.term, held.config)]
            self.committed = self._stack[0]
            self._take_newest()

    def _take_newest(self) -> None:
        self.current_seq, self.current_term, self.current = self._stack[-1]
        self.members = self.current.members
