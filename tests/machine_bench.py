"""A user's machine without a node: records in, rows and state out, as a table store keeps them."""

from __future__ import annotations

from raftstore.machine import StateMachine
from raftstore.protocol.machines import LIMITS, Step, encode_command, encode_limits, encode_step
from raftstore.protocol.records import Record
from raftstore.record_machine import (
    DEFAULT_RULES,
    ApplyResult,
    CommandEnd,
    DictView,
    MachineRules,
    MachineSource,
    Row,
)
from raftstore.rows.sealing import unseal
from raftstore.state_machines.machine_state import MachineHead, kept_ends, read_head, read_result
from raftstore.state_machines.user_machine import UserMachine
from raftstore.types import NO_GUID, Guid, RecordKind, Seq, Term, make_guid


class MachineBench:
    """One partition of a channel set at one replica."""

    def __init__(
        self,
        machine: type[StateMachine],
        rules: MachineRules = DEFAULT_RULES,
        *,
        first_version: int = 1,
        from_backup: bool = False,
    ) -> None:
        self.code = machine
        self.rules = rules
        self.first_version = first_version
        self.from_backup = from_backup
        self.rows: dict[bytes, bytes] = {}
        self.state: dict[bytes, bytes] = {}
        self.seq = 0
        self.user = self._opened()

    def _opened(self) -> UserMachine:
        return UserMachine(
            lambda: MachineSource("m", self.code, self.code.version, self.code.oldest_version),
            partition=3,
            first_version=self.first_version,
            rules=self.rules,
            from_backup=self.from_backup,
        )

    def restart(self, code: type[StateMachine] | None = None) -> None:
        """The process ends; another one finds what was written."""
        self.code = code or self.code
        self.user = self._opened()

    def view(self) -> DictView:
        """Rows and state as they are."""
        rows = {key: Row(key, value, Seq(0)) for key, value in self.rows.items()}
        view = DictView(rows, self.state)
        view.range = self.range  # type: ignore[method-assign]
        return view

    # --- machine.StateView ------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """The value of a key of the machine."""
        return self.rows.get(key)

    def range(
        self, start: bytes = b"", stop: bytes = b"", limit: int = 1000
    ) -> list[tuple[bytes, bytes]]:
        """Keys in order."""
        keys = sorted(key for key in self.rows if key >= start and (not stop or key < stop))
        return [(key, self.rows[key]) for key in keys[:limit]]

    # --- records ----------------------------------------------------------------------------------

    def record(self, kind: RecordKind, payload: bytes, guid: Guid = NO_GUID) -> Record:
        """The next record of the log."""
        self.seq += 1
        named = guid if guid != NO_GUID else make_guid(b"writer..", self.seq)
        return Record(Term(1), Seq(self.seq), 1, named, 1_000 + self.seq, bytes(16), kind, payload)

    def apply(self, record: Record) -> ApplyResult:
        """Apply it as a table store does: all of it in one batch, or nothing."""
        result = self.user.apply(record, self.view())
        if result.failure is None:
            _write(self.rows, ((k, v and unseal(k, v)) for k, v in result.writes))
            _write(self.state, result.state_writes)
        return result

    def command(self, command: bytes, key: bytes = b"k") -> CommandEnd:
        """Send a command; what is kept of it."""
        payload = encode_command(key, command)
        result = self.apply(self.record(RecordKind.MACHINE_COMMAND, payload))
        assert result.failure is None, result.failure
        assert result.answer is not None
        [end] = kept_ends(result.answer)
        return end

    def failing(self, command: bytes, key: bytes = b"k") -> str:
        """Send a command that cannot be applied; why."""
        payload = encode_command(key, command)
        result = self.apply(self.record(RecordKind.MACHINE_COMMAND, payload))
        assert result.failure is not None, "it was applied"
        self.seq -= 1
        return result.failure

    def step(self, step: Step, argument: int) -> str | None:
        """A step of the leader's; why it cannot be applied."""
        payload = encode_step(step, argument)
        return self.apply(self.record(RecordKind.MACHINE_STEP, payload)).failure

    def limit(self, number: int = LIMITS) -> str | None:
        """Limits come into force; why they cannot."""
        return self.apply(self.record(RecordKind.MACHINE_LIMITS, encode_limits(number))).failure

    @property
    def head(self) -> MachineHead:
        """As it is stored."""
        head = read_head(self.state.get)
        assert head is not None
        return head

    def result(self, seq: int) -> CommandEnd | None:
        """The stored end of the command at a seq."""
        return read_result(self.view().state, Seq(seq))


def _write(kept: dict[bytes, bytes], writes: object) -> None:
    for key, value in writes:  # type: ignore[attr-defined]
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = value
