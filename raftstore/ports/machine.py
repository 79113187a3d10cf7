"""State machines of users, as a node finds them and as its store stops at them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from raftstore.errors import UnknownMachineError
from raftstore.protocol.records import Record
from raftstore.record_machine import DEFAULT_RULES, ApplyResult, MachineRules, MachineSource
from raftstore.types import Guid, Seq


class MachineStop(NamedTuple):
    """A record that a machine of users could not apply; nothing behind it is applied here."""

    seq: Seq
    guid: Guid
    reason: str
    """What was raised, or what this node lacks."""
    differs: bool = False
    """What is applied here already is not what the others have."""
    record_seq: Seq = Seq(0)
    """The last seq of the record, of which the command at ``seq`` may be one of several."""

    @classmethod
    def at(cls, record: Record, result: ApplyResult) -> MachineStop:
        """The stop at a record whose result is a failure."""
        assert result.failure is not None, f"seq {record.last_seq} can be applied"
        seq, guid = result.failed_at or (record.last_seq, record.guid)
        return cls(seq, guid, result.failure, result.differs, record.last_seq)


class Machines(Protocol):
    """The code of users' machines that a node has."""

    rules: MachineRules

    def is_at_hand(self, name: str) -> bool:
        """Whether ``load`` answers at once. Else it may take as long as any import, so it is called
        away from the node's thread."""

    def load(self, name: str) -> MachineSource:
        """The code of this name, ``module:Class`` or an entry point's. Raises UnknownMachineError,
        which says what is missing and what to do."""


class NoMachines:
    """A node that is given no code of users."""

    rules: MachineRules = DEFAULT_RULES

    def is_at_hand(self, name: str) -> bool:
        """Nothing is looked for."""
        del name
        return True

    def load(self, name: str) -> MachineSource:
        """Raises UnknownMachineError."""
        raise UnknownMachineError(f"this node was started without state machines, such as {name!r}")
