"""A user's state machine behind a channel (docs/decisions/0039).

Its state is the rows of the channel, sealed like any other; what it made of each command and its
head are beside them, in the same atomic batch (S10). A machine in memory keeps its commands there
since its last snapshot, and the snapshot. A RejectedError is a result. Anything else that ``apply``
raises is a failure: nothing is written, and nothing behind the command is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from raftstore.errors import (
    DecodeError,
    RejectedError,
    RequestError,
    SchemaError,
    StateLimitError,
    UnavailableError,
)
from raftstore.machine import (
    COMMAND_WRITE_BYTES_MAX,
    RESULT_BYTES_MAX,
    STATE_VALUE_BYTES_MAX,
    Chance,
    CommandContext,
    MemoryMachine,
    QueryContext,
    StateView,
    any_depth,
)
from raftstore.machine import StateMachine as UserStateMachine
from raftstore.protocol.machine_restore import check_portion, decode_portion
from raftstore.protocol.machines import (
    LIMITS,
    MACHINE_KINDS,
    TOGETHER_LIMITS,
    CommandEnd,
    MachineStep,
    Step,
    check_command,
    decode_command,
    decode_limits,
    decode_step,
)
from raftstore.protocol.records import Record
from raftstore.protocol.shared_commands import CROWDED_OUT, check_commands, commands_in
from raftstore.record_machine import (
    DEFAULT_RULES,
    ApplyResult,
    CommandMachine,
    MachineRules,
    MachineSource,
    QueryAtWork,
    RecordView,
    StateReader,
)
from raftstore.state_machines.base import NO_CHANGE, refuse_kind, refuse_payload
from raftstore.state_machines.command_overlay import ViewOver
from raftstore.state_machines.command_state import UNBOUNDED, CommandState, NoState, sealed_writes
from raftstore.state_machines.machine_journal import (
    commands_of_entry,
    entry_of,
    entry_together,
    journal_of,
)
from raftstore.state_machines.machine_origin import (
    NOT_WHOLE,
    MachineOrigin,
    apply_portion,
    as_the_machine_sees,
    kept_of_portion,
    read_origin,
    seen_seq,
)
from raftstore.state_machines.machine_reasons import cut, text_of, version_lacking, what_of
from raftstore.state_machines.machine_state import (
    Ends,
    EndsTogether,
    LimitsInForce,
    MachineHead,
    Results,
    kept_ends,
    read_head,
    read_limits,
    read_result,
    read_results,
)
from raftstore.state_machines.state_keys import (
    MACHINE_CHUNKS,
    MACHINE_CHUNKS_END,
    MACHINE_HEAD,
    MACHINE_LIMITS,
    is_together,
    journal_key,
    machine_chunk_key,
    packed,
    packed_together,
    scanned,
    unpacked,
)
from raftstore.types import RecordKind, Seq

CROWDED: Final = CommandEnd(is_rejected=True, reason=CROWDED_OUT)
SKIPPED: Final = CommandEnd(is_rejected=True, reason="an operator had it skipped", is_skipped=True)
Writes = list[tuple[bytes, bytes | None]]


class _FailedError(Exception):
    """A command cannot be applied; the text says why."""


@dataclass(slots=True)
class _Room:
    """Bytes that the commands of a record may write yet; below 0: none of them any more."""

    left: int = COMMAND_WRITE_BYTES_MAX


class UserMachine(CommandMachine):
    """The machine of one replica of one partition; all but the constructor on the apply thread."""

    LABEL: ClassVar = "channel set"
    KINDS: ClassVar = frozenset(MACHINE_KINDS)
    REREADS: ClassVar = True

    def __init__(
        self,
        load: Callable[[], MachineSource],
        *,
        partition: int,
        first_version: int,
        rules: MachineRules = DEFAULT_RULES,
        from_backup: bool = False,
    ) -> None:
        """``load`` gives the code, or raises UnknownMachineError: then nothing is applied.
        ``from_backup``: it begins with the state of a backup, which comes in the log."""
        self._load = load
        self._partition = partition
        self._first_version = first_version
        self._rules = rules
        self._from_backup = from_backup
        self._results = Results(rules)
        self._skips: set[Seq] = set()
        self._is_in_memory: bool | None = None
        self.forget()

    def forget(self) -> None:
        """Read all again from the state: what was computed last may not be in it."""
        self._source: MachineSource | None = None
        self._machine: UserStateMachine | None = None
        self._head: MachineHead | None = None
        self._origin: MachineOrigin | None = None
        self._limits = LimitsInForce()
        """Read with the head."""
        self._journal: list[bytes] = []
        """The keys of its entries."""
        self._results.forget()

    def skip(self, seq: Seq) -> None:
        """The command at this seq is to become nothing."""
        self._skips.add(seq)

    def check(self, kind: RecordKind, payload: bytes, rows: int) -> None:
        """Raise DecodeError unless a client may have this record applied."""
        if kind is RecordKind.MACHINE_COMMANDS:
            check_commands(payload, rows)
        elif kind is RecordKind.MACHINE_RESTORE:
            check_portion(payload, rows)
        else:
            check_command(kind, payload, rows)

    def apply(self, record: Record, view: RecordView) -> ApplyResult:
        """Compute what a command or a step changes; ``failure`` says why nothing can be applied."""
        if record.kind not in self.KINDS:
            raise refuse_kind(self.LABEL, record)
        try:
            if record.kind is RecordKind.MACHINE_RESTORE:
                return self._portion(record, view.state)
            if record.kind is RecordKind.MACHINE_STEP and not self.is_whole(view.state.get):
                return NO_CHANGE  # it is of no state yet
            machine, head = self._ready(view.state)
            if record.kind is RecordKind.MACHINE_STEP:
                return self._step(decode_step(record.payload), record, head, view.state)
            if record.kind is RecordKind.MACHINE_LIMITS:
                return self._limit(decode_limits(record.payload), record)
            source = self._source
            assert source is not None, "the machine was made of it"
            if source.version < head.version or source.oldest_version > head.version:
                return ApplyResult((), failure=version_lacking(source, head.version))
            if record.kind is RecordKind.MACHINE_COMMANDS:
                return self._commands(machine, head, record, view)
            return self._command(machine, head, record, view)
        except DecodeError as error:
            raise refuse_payload(record, error) from error
        except _FailedError as failed:
            # What it remembers may be of the command that failed.
            self.forget()
            self._leave_interrupts(failed.__cause__)
            return ApplyResult((), failure=str(failed))

    def is_whole(self, get: Callable[[bytes], bytes | None]) -> bool:
        """Whether the state is all that it begins with: False while it comes from a backup."""
        if not self._from_backup:
            return True
        origin = read_origin(get)
        return origin is not None and origin.is_whole

    def version_in_force(self, get: Callable[[bytes], bytes | None]) -> int:
        """The version by which the next command is applied."""
        head = read_head(get)
        return self._first_version if head is None else head.version

    def limits_in_force(self, get: Callable[[bytes], bytes | None]) -> int:
        """The number of the limits by which the next command is judged."""
        return read_limits(get).number

    def ends_of(self, answer: bytes, commands: int) -> Sequence[CommandEnd]:
        """The ends of so many commands of one record, as ``ApplyResult.answer`` has them."""
        if commands == 1 or is_together(answer):
            return kept_ends(answer)
        return [each for stored in unpacked(answer, Ends).stored for each in kept_ends(stored)]

    def kept_ends(
        self, base_seq: Seq, last_seq: Seq, state: StateReader
    ) -> Sequence[CommandEnd] | None:
        """The ends of the commands of a record as the state keeps them; None: some are not kept."""
        if base_seq == last_seq:
            end = self.kept_end(last_seq, state)
            return None if end is None else (end,)
        return read_results(state, base_seq, last_seq)

    def kept_end(self, seq: Seq, state: StateReader) -> CommandEnd | None:
        """The end of the command at a seq as the state keeps it; None: it is kept no longer."""
        kept = read_result(state, seq)
        if kept is None and self._from_backup:
            return kept_of_portion(seq, state.get)
        return kept

    @property
    def is_in_memory(self) -> bool | None:
        """Whether its state is in the object, which only the apply thread may ask; None: nobody has
        made one yet. Any thread; it imports nothing."""
        return self._is_in_memory

    def query(
        self, key: bytes, request: bytes, view: StateView, get: Callable[[bytes], bytes | None]
    ) -> CommandEnd:
        """Ask a machine with its state on the disk, away from the node's thread; a request that it
        refuses is rejected, and an error of it is a RejectedError's kind of answer, too."""
        try:
            machine = self._load().make()
        except RequestError:
            raise
        except BaseException as error:  # noqa: BLE001 - the code is somebody else's
            self._leave_interrupts(error)
            return CommandEnd(is_rejected=True, reason=what_of(error))
        if isinstance(machine, MemoryMachine):  # S7.3: a new one has nothing of what was applied
            self._is_in_memory = True
            raise UnavailableError("the machine has its state in memory; ask it between commands")
        self._is_in_memory = False
        if not self.is_whole(get):
            raise UnavailableError(f"{NOT_WHOLE}; wait for the restore to end")
        return self._ask(machine, key, request, view, read_head(get))

    def query_memory(self, key: bytes, request: bytes, state: StateReader) -> CommandEnd:
        """Ask a machine in memory, between commands; raises nothing."""
        try:
            machine, head = self._ready(state)
        except _FailedError as failed:
            self.forget()
            self._leave_interrupts(failed.__cause__)
            return CommandEnd(is_rejected=True, reason=str(failed))
        self.at_work = QueryAtWork(key)
        try:
            return self._ask(machine, key, request, NoState(), head)
        finally:
            self.at_work = None

    # --- the machine ------------------------------------------------------------------------------

    def _ready(self, state: StateReader) -> tuple[UserStateMachine, MachineHead]:
        """The machine as the commands before left it, and its head."""
        head = self._head
        if head is None:
            if self._from_backup:
                self._origin = read_origin(state.get)
                if self._origin is None or not self._origin.is_whole:
                    raise _FailedError(NOT_WHOLE)
            head = read_head(state.get) or MachineHead(self._first_version)
            self._head = head
            self._limits = read_limits(state.get)
        if self._machine is None:
            self._machine = self._made()
            self._is_in_memory = isinstance(self._machine, MemoryMachine)
            if isinstance(self._machine, MemoryMachine):
                self._restore(self._machine, head, state)
        return self._machine, head

    def _made(self) -> UserStateMachine:
        """A new object of the machine's class."""
        try:
            self._source = self._load()
            return self._source.make()
        except BaseException as error:
            raise _FailedError(what_of(error)) from error

    def _restore(self, machine: MemoryMachine, head: MachineHead, state: StateReader) -> None:
        """Bring a new object to where the commands before left the last one."""
        if head.chunks:
            chunks = scanned(state, MACHINE_CHUNKS, MACHINE_CHUNKS_END)
            self._restore_chunks(machine, [value[1:] for _, value in chunks])
        self._journal = []
        for key, stored in journal_of(state):
            for each, version in commands_of_entry(key, stored):
                self._run(machine, each, NoState(), version)
            self._journal.append(key)

    @staticmethod
    def _restore_chunks(machine: UserStateMachine, chunks: list[bytes]) -> None:
        assert isinstance(machine, MemoryMachine), "its class was, a moment ago"
        try:
            with any_depth():
                machine.restore(iter(chunks))
        except BaseException as error:
            text = f"its snapshot of {len(chunks)} chunks does not restore: {what_of(error)}"
            raise _FailedError(text) from error

    def _is_limited(self, seq: Seq) -> bool:
        """Whether the limits of 1 were in force for the command at a seq, as the machine is given
        it: its place in the log decides, wherever and whenever it is applied. One of a backup has
        its place in the source's."""
        return self._limits.number > 0 and seq > self._limits.behind

    def _run(
        self,
        machine: UserStateMachine,
        seen: Record,
        state: CommandState | NoState,
        version: int,
        record: Record | None = None,
    ) -> CommandEnd:
        """Have the machine apply a command, as it is given it. Raises _FailedError, or StorageError
        of a read. ``record``: the command as the log has it."""
        self.at_work = record or seen
        try:
            if self._is_limited(seen.last_seq):
                return self._apply(machine, seen, state, version)
            with any_depth():
                return self._apply(machine, seen, state, version)
        finally:
            self.at_work = None

    def _apply(
        self,
        machine: UserStateMachine,
        record: Record,
        state: CommandState | NoState,
        version: int,
    ) -> CommandEnd:
        key, payload = decode_command(record.payload)
        # Codecs are those of the class: an object may have attributes of these names.
        codecs = type(machine)
        try:
            command = codecs.commands.decode(payload)
        except (SchemaError, ValueError) as error:
            return CommandEnd(
                is_rejected=True, reason=cut(f"the command is none of this machine: {error}")
            )
        except BaseException as error:
            raise _FailedError(f"the codec of its commands raised {what_of(error)}") from error
        seed = record.guid + record.last_seq.to_bytes(8, "big")
        context = CommandContext(
            state, key, record.last_seq, record.term, record.timestamp_ms, record.guid,
            self._partition, version, Chance(seed),
        )  # fmt: skip
        try:
            result = _bytes_of(codecs.results.encode(machine.apply(command, context)))
        except (RejectedError, StateLimitError) as error:
            return CommandEnd(is_rejected=True, reason=text_of(error))
        except BaseException as error:
            if isinstance(state, CommandState) and state.broken is not None:
                raise state.broken from error
            raise _FailedError(what_of(error)) from error
        if isinstance(state, CommandState) and state.broken is not None:
            raise state.broken
        if len(result) > RESULT_BYTES_MAX:
            text = f"its result has {len(result)} bytes, at most {RESULT_BYTES_MAX} are allowed"
            return CommandEnd(is_rejected=True, reason=text)
        return CommandEnd(result)

    # --- records ----------------------------------------------------------------------------------

    def _portion(self, record: Record, state: StateReader) -> ApplyResult:
        """Take in a part of the state of a backup. No code of the machine is needed for it."""
        if not self._from_backup:
            reason = "the channel set was not created by a restore"
            return ApplyResult((), answer=packed(CommandEnd(is_rejected=True, reason=reason)))
        result = apply_portion(decode_portion(record.payload), record, state)
        self.forget()
        return result

    def _end_of(
        self,
        machine: UserStateMachine,
        record: Record,
        seen: Record,
        changes: CommandState | NoState,
        version: int,
        room: _Room | None,
    ) -> CommandEnd:
        """Have a command applied, or skipped. ``room``: of the record that it shares; a command
        that goes over it is crowded out, and so are all behind, for they come in the order in which
        they were begun."""
        if record.last_seq in self._skips:
            end = SKIPPED
        elif room is not None and room.left < 0:
            end = CROWDED
        else:
            end = self._run(machine, seen, changes, version, record)
            if room is not None and type(changes) is CommandState and not end.is_rejected:
                room.left -= changes.bytes
                end = CROWDED if room.left < 0 else end
        if type(changes) is CommandState:
            changes.end()
        return end

    def _changes(
        self, machine: UserStateMachine, seq: Seq, view: RecordView
    ) -> CommandState | NoState:
        """The state that a command changes; ``seq``: as the machine is given it."""
        if isinstance(machine, MemoryMachine):
            return NoState()
        return CommandState(view, COMMAND_WRITE_BYTES_MAX if self._is_limited(seq) else UNBOUNDED)

    def _command(
        self,
        machine: UserStateMachine,
        head: MachineHead,
        record: Record,
        view: RecordView,
        room: _Room | None = None,
        *,
        is_shared: bool = False,
    ) -> ApplyResult:
        """``is_shared``: the head is left to ``_commands``, which writes it once behind all of
        them."""
        seen = as_the_machine_sees(record, self._origin, head)
        changes = self._changes(machine, seen.last_seq, view)
        end = self._end_of(machine, record, seen, changes, head.version, room)
        stored = packed(end)
        head, beside = self._results.put(head, record.last_seq, stored, view.state)
        head = replace(
            head, commands=head.commands + 1, time_ms=seen.timestamp_ms, seq=seen.last_seq
        )
        if isinstance(machine, MemoryMachine) and not end.is_skipped:
            entry = entry_of(seen, head.version)
            head = self._note(machine, head, journal_key(seen.last_seq), entry, 1, beside)
        if not is_shared:
            beside.append((MACHINE_HEAD, packed(head)))
        self._head = head
        self._skips.discard(record.last_seq)
        return ApplyResult(sealed_writes(changes, end), state_writes=beside, answer=stored)

    def _commands(
        self, machine: UserStateMachine, head: MachineHead, record: Record, view: RecordView
    ) -> ApplyResult:
        """One after the other, each as if it had a record of its own; written together, or none."""
        over, skips = ViewOver(view), set(self._skips)
        is_limited = self._is_limited(seen_seq(record.last_seq, self._origin))
        room = _Room() if is_limited else None
        each = record
        try:
            if self._limits.number >= TOGETHER_LIMITS:
                ends: list[CommandEnd] = []
                seen = record
                for each in commands_in(record):
                    seen = as_the_machine_sees(each, self._origin, head)
                    changes = self._changes(machine, seen.last_seq, over)
                    end = self._end_of(machine, each, seen, changes, head.version, room)
                    over.take(each.last_seq, sealed_writes(changes, end))
                    ends.append(end)
                return self._ended_together(machine, head, record, seen, ends, over, view.state)
            answers: list[bytes] = []
            for each in commands_in(record):
                assert self._head is not None, "a command is applied before the head is known"
                result = self._command(machine, self._head, each, over, room, is_shared=True)
                over.take(each.last_seq, result.writes, result.state_writes)
                answers.append(result.answer or b"")
        except _FailedError as failed:
            self.forget()
            self._skips = skips  # those before it were not applied either
            self._leave_interrupts(failed.__cause__)
            return ApplyResult((), failure=str(failed), failed_at=(each.last_seq, each.guid))
        assert self._head is not None, "each command left one"
        over.state.written[MACHINE_HEAD] = packed(self._head)
        return ApplyResult(
            tuple(over.rows.items()),
            state_writes=tuple(over.state.written.items()),
            answer=packed(Ends(tuple(answers))),
        )

    def _ended_together(  # noqa: PLR0917 - each is one thing that it works with
        self,
        machine: UserStateMachine,
        head: MachineHead,
        record: Record,
        seen: Record,
        ends: list[CommandEnd],
        over: ViewOver,
        state: StateReader,
    ) -> ApplyResult:
        """All commands of a record were applied; ``seen``: the last one as the machine was given
        it. What they leave behind is one result and one entry of the journal."""
        count = len(ends)
        stored = packed_together(EndsTogether(tuple(ends)))
        head, beside = self._results.put(head, record.last_seq, stored, state, count)
        head = replace(
            head, commands=head.commands + count, time_ms=seen.timestamp_ms, seq=seen.last_seq
        )
        skipped = tuple(place for place, end in enumerate(ends, start=1) if end.is_skipped)
        if isinstance(machine, MemoryMachine) and len(skipped) < count:
            entry = entry_together(seen, record, head.version, skipped)
            noted, key = count - len(skipped), journal_key(seen.last_seq)
            head = self._note(machine, head, key, entry, noted, beside)
        beside.append((MACHINE_HEAD, packed(head)))
        self._head = head
        self._skips.difference_update(range(record.base_seq, record.last_seq + 1))
        return ApplyResult(tuple(over.rows.items()), state_writes=beside, answer=stored)

    def _note(
        self,
        machine: MemoryMachine,
        head: MachineHead,
        key: bytes,
        entry: bytes,
        commands: int,
        beside: Writes,
    ) -> MachineHead:
        """Keep an entry of so many commands of a machine in memory, or all that it has become.

        Rejected ones are among them: they may have changed the object, if they should not.
        """
        size = head.journal_bytes + len(entry)
        if size < max(self._rules.journal_bytes, 2 * head.snapshot_bytes):
            self._journal.append(key)
            beside.append((key, entry))
            return replace(head, journal=head.journal + commands, journal_bytes=size)
        chunks = _snapshot_of(machine)
        # Before what it replaces is gone: commands that are still there lead to the same state.
        self._restore_chunks(self._made(), chunks)
        beside += [(machine_chunk_key(n), b"\x01" + chunk) for n, chunk in enumerate(chunks)]
        beside += [(machine_chunk_key(n), None) for n in range(len(chunks), head.chunks)]
        beside += [(kept, None) for kept in self._journal]
        self._journal = []
        return replace(
            head, chunks=len(chunks), snapshot_bytes=sum(map(len, chunks)), journal=0,
            journal_bytes=0,
        )  # fmt: skip

    def _step(
        self, step: MachineStep, record: Record, head: MachineHead, state: StateReader
    ) -> ApplyResult:
        if step.step is Step.VERSION:
            if step.argument <= head.version:
                return NO_CHANGE
            self._head = replace(head, version=step.argument)
            return ApplyResult((), state_writes=((MACHINE_HEAD, packed(self._head)),))
        kept = read_result(state, Seq(step.argument))
        if kept is not None and not kept.is_skipped:
            # The others made it nothing: this replica is none of theirs any more.
            return ApplyResult(
                (),
                failure=f"seq {step.argument} was applied here, and skipped by seq "
                f"{record.last_seq}: its state differs from the other replicas'",
                differs=True,
            )
        return NO_CHANGE

    def _limit(self, number: int, record: Record) -> ApplyResult:
        """From this record on these limits are in force."""
        if number <= self._limits.number:
            return NO_CHANGE
        if number > LIMITS:
            text = f"limits {number} of commands come into force, and this version of raftstore"
            return ApplyResult((), failure=f"{text} knows {LIMITS}; install a newer one")
        behind = seen_seq(record.last_seq, self._origin)
        if self._limits.number:
            behind = self._limits.behind  # those of 1 stay in force from their place on
        self._limits = LimitsInForce(number, behind)
        stored = (packed_together if number >= TOGETHER_LIMITS else packed)(self._limits)
        return ApplyResult((), state_writes=((MACHINE_LIMITS, stored),))

    def _ask(
        self,
        machine: UserStateMachine,
        key: bytes,
        request: bytes,
        view: StateView,
        head: MachineHead | None,
    ) -> CommandEnd:
        known = head or MachineHead(self._first_version)
        context = QueryContext(view, key, known.seq, known.time_ms, self._partition, known.version)
        try:
            codecs = type(machine)
            asked = codecs.queries.decode(request)
            answer = _bytes_of(codecs.answers.encode(machine.query(asked, context)))
        except RejectedError as error:
            return CommandEnd(is_rejected=True, reason=text_of(error))
        # A StorageError, too: of a read that failed the view knows, and this one is its own.
        except BaseException as error:  # noqa: BLE001 - the code is somebody else's
            self._leave_interrupts(error)
            return CommandEnd(is_rejected=True, reason=what_of(error))
        if len(answer) > RESULT_BYTES_MAX:
            text = f"the answer has {len(answer)} bytes, at most {RESULT_BYTES_MAX} are allowed"
            return CommandEnd(is_rejected=True, reason=text)
        return CommandEnd(answer)

    def _leave_interrupts(self, error: BaseException | None) -> None:
        """All that a machine raises is about the machine, for no thread of a node may end by it,
        and be it KeyboardInterrupt; but in a simulation that is somebody at the terminal."""
        if self._rules.is_interruptible and isinstance(error, KeyboardInterrupt):
            raise error


def _snapshot_of(machine: MemoryMachine) -> list[bytes]:
    try:
        # Bytes as a whole would be numbers one by one, and bytes(97) is 97 zeros.
        with any_depth():  # it is a state that commands led to, whatever their limits were
            chunks = [_bytes_of(chunk) for chunk in machine.snapshot()]
    except BaseException as error:
        raise _FailedError(f"its snapshot cannot be taken: {what_of(error)}") from error
    longest = max(map(len, chunks), default=0)
    if longest > STATE_VALUE_BYTES_MAX:
        text = f"a chunk of its snapshot has {longest} bytes, at most {STATE_VALUE_BYTES_MAX} are"
        raise _FailedError(f"{text} allowed")
    # A machine without anything to say has a snapshot all the same.
    return chunks or [b""]


def _bytes_of(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} where bytes belong: {value!r:.80}")
    return value
