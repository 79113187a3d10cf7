"""Judgement of a world with a user's machine: every answer is held against a sequential run.

The log says in which order commands took effect, those with unknown outcomes among them. A run of
the specification in this order gives the result of each and the answer at each position; with the
order of answers in time that is linearizability, with the order as its proof. The specification is
the machine itself, away from replicas and faults, unless there is a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from raftstore.errors import RejectedError
from raftstore.machine import MemoryMachine, StateMachine
from raftstore.protocol.machines import decode_command
from raftstore.protocol.records import Record
from raftstore.protocol.shared_commands import commands_in
from raftstore.testing.invariants import InvariantError
from raftstore.testing.machines.local_machine import LocalMachine, Place, as_key
from raftstore.testing.machines.workload import Operation, Query
from raftstore.types import RecordKind

SHOWN_MAX: Final = 6
"""Keys that a message names at most."""


class WrongAnswerError(InvariantError):
    """The log cannot explain what clients saw; ``operations`` are those that show it."""

    def __init__(self, text: str, operations: Sequence[Operation] = ()) -> None:
        super().__init__(text)
        self.operations = tuple(operations)


@dataclass(frozen=True, slots=True)
class Judged:
    """One partition, as it was judged."""

    commands: int
    """In its log."""
    pairs: Mapping[bytes, bytes]
    """The state that the specification ends with."""


def judge(
    specification: type[StateMachine],
    partition: int,
    records: Sequence[Record],
    operations: Sequence[Operation],
) -> Judged:
    """Hold the operations on one partition against its committed log; raises WrongAnswerError."""
    records = [command for record in records for command in commands_in(record)]
    _check_once(records, operations)
    _check_order_in_time(operations)
    return _check_answers(specification, partition, records, operations)


def _check_once(records: Sequence[Record], operations: Sequence[Operation]) -> None:
    """A command is in the log once if it was answered, and never if it certainly did not happen."""
    places: dict[bytes, int] = {}
    for record in records:
        if record.kind is RecordKind.MACHINE_COMMAND:
            if record.guid in places:
                first = places[record.guid]
                _fail(f"a command is in the log at seq {first} and again at {record.last_seq}")
            places[bytes(record.guid)] = record.last_seq
    for operation in operations:
        if not operation.is_command:
            continue
        seq = places.get(operation.guid)
        if operation.outcome in ("ok", "rejected") and seq != operation.seq:
            _fail(f"{operation}; in the log it is at seq {seq}", operation)
        if operation.outcome == "refused" and seq is not None:
            _fail(f"{operation}; it is in the log at seq {seq}", operation)


def _check_order_in_time(operations: Iterable[Operation]) -> None:
    """An operation that began when another had ended is behind it."""
    answered = [each for each in operations if each.outcome in ("ok", "rejected")]
    begins = sorted((each for each in answered if _is_ordered(each)), key=lambda e: e.begun_ms)
    ends = sorted(begins, key=lambda each: each.ended_ms or 0.0)
    newest: Operation | None = None
    at = 0
    for operation in begins:
        while at < len(ends) and (ends[at].ended_ms or 0.0) < operation.begun_ms:
            if newest is None or ends[at].seq > newest.seq:
                newest = ends[at]
            at += 1
        if newest is None:
            continue
        is_behind = operation.seq > newest.seq or (
            operation.seq == newest.seq and not operation.is_command
        )
        if not is_behind:
            later_ms = operation.begun_ms - (newest.ended_ms or 0)
            text = f"{operation}; it began {later_ms:.1f} ms after the end of {newest}"
            _fail(text, newest, operation)


def _is_ordered(operation: Operation) -> bool:
    return operation.is_command or operation.is_linearizable


def _check_answers(
    specification: type[StateMachine],
    partition: int,
    records: Sequence[Record],
    operations: Sequence[Operation],
) -> Judged:
    """Results and answers are those of the specification at the same place."""
    answered = [each for each in operations if each.outcome in ("ok", "rejected")]
    commands = {each.guid: each for each in answered if each.is_command}
    queries = sorted((e for e in answered if not e.is_command), key=lambda each: each.seq)
    local = LocalMachine(specification, partition=partition)
    local.time_ms = 0
    asked = count = 0
    for record in records:
        while asked < len(queries) and queries[asked].seq < record.last_seq:
            _check_query(local, queries[asked])
            asked += 1
        if record.kind is RecordKind.MACHINE_COMMAND:
            count += 1
            _check_command(local, record, commands.get(bytes(record.guid)))
    for query in queries[asked:]:
        _check_query(local, query)
    return Judged(count, local.pairs())


def _check_command(local: LocalMachine, record: Record, operation: Operation | None) -> None:
    key, command = decode_command(record.payload)
    place = Place(
        seq=record.last_seq,
        time_ms=record.timestamp_ms,
        term=record.term,
        guid=bytes(record.guid),
        partition=local.partition,
    )
    try:
        applied = local.apply(key, command, place)
    except Exception as error:  # noqa: BLE001 - whatever a machine raises stops a partition
        _fail(f"the command at seq {place.seq} raises {type(error).__name__}: {error}")
    if operation is None:
        return  # nobody knows its outcome
    if applied.result is None:
        if operation.outcome != "rejected" or operation.result != applied.reason:
            _fail(f"{operation}; a sequential run rejects it: {applied.reason}", operation)
    elif operation.outcome != "ok" or operation.encoded != applied.result:
        expected = local.machine.results.decode(applied.result)
        _fail(f"{operation}; a sequential run gives {expected!r:.200}", operation)


def _check_query(local: LocalMachine, operation: Operation) -> None:
    assert isinstance(operation.asked, Query)
    request = local.machine.queries.encode(operation.asked.request)
    try:
        expected = local.answer(as_key(operation.asked.key), request)
    except RejectedError as error:
        if operation.outcome != "rejected":
            _fail(f"{operation}; a sequential run rejects it: {error}", operation)
        return
    if operation.outcome != "ok" or operation.encoded != expected:
        answer = local.machine.answers.decode(expected)
        _fail(f"{operation}; a sequential run answers {answer!r:.200}", operation)


def check_rows(
    machine: type[StateMachine], node: str, rows: Mapping[bytes, bytes], judged: Judged
) -> None:
    """A replica's state is that of the specification; a ``MemoryMachine`` has no rows."""
    if issubclass(machine, MemoryMachine) or rows == judged.pairs:
        return
    keys = sorted({*rows, *judged.pairs})
    wrong = [key for key in keys if rows.get(key) != judged.pairs.get(key)]
    shown = "; ".join(
        f"{key!r:.80}: {rows.get(key)!r:.80} instead of {judged.pairs.get(key)!r:.80}"
        for key in wrong[:SHOWN_MAX]
    )
    what = f"the state of {node} differs from that of a sequential run"
    _fail(f"{what} in {len(wrong)} keys: {shown}")


def _fail(text: str, *operations: Operation) -> NoReturn:
    raise WrongAnswerError(text, operations)
