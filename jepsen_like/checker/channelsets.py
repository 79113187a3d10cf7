"""Channel sets: every answer of a user's state machine is held against a sequential run of it.

The judgement is that of simulated worlds (``raftstore.testing``): the committed log says in which
order commands took effect, those with unknown outcomes among them, so the run of the machine over
the log says what each command and each query had to be answered, and real time says whether the
order is allowed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from jepsen_like.checker.facts import positions_of, table_of, window
from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.history import Operation
from raftstore.client.writes.write_outcomes import command_guid
from raftstore.errors import DecodeError, SchemaError
from raftstore.machine import Codec, StateMachine
from raftstore.protocol.machines import decode_command
from raftstore.protocol.records import Record
from raftstore.protocol.shared_commands import commands_in
from raftstore.testing.invariants import InvariantError
from raftstore.testing.machines import workload
from raftstore.testing.machines.judging import WrongAnswerError, check_rows, judge
from raftstore.testing.machines.world import CHECK_MANNER, Check
from raftstore.types import Level, Outcome, RecordKind

COMMAND: Final = "command"
QUERY: Final = "query"
_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ChannelSetLog:
    """One partition of a channel set, as it was found in the stores after the run."""

    records: Sequence[Record]
    """All that is committed."""
    rows: Mapping[str, Mapping[bytes, bytes]] = field(default_factory=dict)
    """Node -> the state of the machine there; empty for a machine in memory."""


def check_channelset(
    history: Sequence[Operation],
    logs: Mapping[tuple[str, int], ChannelSetLog],
    name: str,
    machine: type[StateMachine],
) -> Verdict:
    """Judge the commands and queries of one channel set by its committed logs.

    INVALID: a command is not where its client was answered that it is, or there twice, or there
    although it was refused; a command given again under its guid was answered in another way; an
    answer is not that of a sequential run; the order of the log contradicts time; the state of a
    replica is not that of the run. UNDECIDED without a log, or without an answered command.
    """
    partitions = sorted(partition for of, partition in logs if of == name)
    figures = _figures(history, name)
    for partition in partitions:
        log = logs[name, partition]
        try:
            operations = operations_of(history, name, partition, machine, log.records)
            judged = judge(machine, partition, log.records, operations)
            for node, rows in sorted(log.rows.items()):
                check_rows(machine, node, rows, judged)
                figures["states"] += 1
        except InvariantError as error:
            shown = error.operations if isinstance(error, WrongAnswerError) else ()
            evidence = window(*(history[each.number] for each in shown))
            culprit = history[shown[-1].number] if shown else None
            text = f"{name}/{partition}: {error}"
            return Verdict(_checker(name), Validity.INVALID, text, evidence, culprit, figures)
        figures["in_log"] += judged.commands
    if not partitions or not figures["commands"]:
        why = "no command was answered" if partitions else "there is no log to judge answers by"
        return Verdict(_checker(name), Validity.UNDECIDED, why, figures=figures)
    text = (
        f"{figures['commands']} commands ({figures['rejected']} rejected, {figures['unknown']} "
        f"in doubt, {figures['repeated']} given again) and {figures['queries']} queries are those "
        f"of a sequential run of {figures['in_log']} commands, as are {figures['states']} states "
        "of replicas"
    )
    return Verdict(_checker(name), Validity.VALID, text, figures=figures)


def check_history(
    history: Sequence[Operation],
    logs: Mapping[tuple[str, int], ChannelSetLog],
    name: str,
    machine: type[StateMachine],
    check: Check,
) -> Verdict:
    """Judge a channel set by a function of its user: INVALID when that raises AssertionError.

    It is given all operations in the order in which they began, as in a simulated world. One that
    answers something, as a generator or a coroutine that never ran, has shown nothing: UNDECIDED.
    """
    operations = [
        operation
        for of, partition in sorted(logs)
        if of == name
        for operation in operations_of(
            history, name, partition, machine, logs[of, partition].records
        )
    ]
    checker, figures = f"check {name}", {"operations": len(operations)}
    try:
        answer = check(sorted(operations, key=lambda operation: operation.begun_ms))
    except AssertionError as error:
        text = f"the check of the history failed: {error}"
        return Verdict(checker, Validity.INVALID, text, figures=figures)
    except Exception as error:  # noqa: BLE001 - a function of a user may raise anything
        text = f"the check raised {type(error).__name__}: {error}; correct it"
        return Verdict(checker, Validity.UNDECIDED, text, figures=figures)
    if answer is not None:
        text = f"{CHECK_MANNER}; this one answered {answer!r:.80}"
        return Verdict(checker, Validity.UNDECIDED, text, figures=figures)
    if not operations:
        text = "there was nothing to check"
        return Verdict(checker, Validity.UNDECIDED, text, figures=figures)
    text = f"the check of {len(operations)} operations passed"
    return Verdict(checker, Validity.VALID, text, figures=figures)


def operations_of(
    history: Sequence[Operation],
    name: str,
    partition: int,
    machine: type[StateMachine],
    records: Iterable[Record] = (),
) -> list[workload.Operation]:
    """The operations on one partition, in the words of the test kit; ``number`` is the place in
    the history.

    What was sent several times under one guid is one command, which began when it was sent first.
    A rejection names no place, so it has the one at which its guid is found. Queries that were
    rejected are left out: nobody knows which state rejected them.
    """
    places = {
        bytes(command.guid): command.last_seq
        for record in records
        for command in commands_in(record)
        if command.kind is RecordKind.MACHINE_COMMAND
    }
    found: list[workload.Operation] = []
    by_guid: dict[bytes, workload.Operation] = {}
    for number, operation in enumerate(history):
        if operation.action not in (COMMAND, QUERY) or table_of(operation) != name:
            continue
        if operation.details.get("partition") != partition:
            continue
        made = _operation(operation, number, machine)
        if operation.action == QUERY:
            if made.outcome != "rejected":
                found.append(made)
            continue
        if made.outcome == "rejected":
            made.seq = places.get(made.guid, 0)
        first = by_guid.get(made.guid) if made.guid else None
        if first is None:
            found.append(made)
            by_guid[made.guid] = made
        else:
            _merge(first, made)
    return found


def _merge(first: workload.Operation, again: workload.Operation) -> None:
    """Take the outcome of the same command that was given again."""
    ended = ("ok", "rejected")
    first.begun_ms = min(first.begun_ms, again.begun_ms)
    if again.outcome not in ended:
        return
    if first.outcome in ended:
        one = (first.outcome, first.seq, first.encoded, first.result)
        if one != (again.outcome, again.seq, again.encoded, again.result):
            text = f"{first}; given again under its guid it was answered {again}"
            raise WrongAnswerError(text, (first, again))
        return
    for name in ("outcome", "seq", "encoded", "result", "ended_ms"):
        setattr(first, name, getattr(again, name))


def _operation(
    operation: Operation, number: int, machine: type[StateMachine]
) -> workload.Operation:
    details = operation.details
    key, sent = decode_command(bytes.fromhex(details["sent"]))
    is_command = operation.action == COMMAND
    asked: workload.Command | workload.Query
    if is_command:
        asked = workload.Command(key, machine.commands.decode(sent))
    else:
        asked = workload.Query(key, machine.queries.decode(sent))
    made = workload.Operation(
        client=operation.process,
        number=number,
        asked=asked,
        begun_ms=operation.invoked / _MS,
        ended_ms=None if operation.returned is None else operation.returned / _MS,
        is_linearizable=details.get("level") == Level.LINEARIZABLE.value,
        guid=_guid(details),
    )
    codec = machine.results if is_command else machine.answers
    take_answer(made, operation.outcome, operation.result, details, codec)
    return made


def take_answer(
    operation: workload.Operation,
    outcome: Outcome,
    value: Any,
    details: Mapping[str, Any],
    codec: Codec[Any],
) -> None:
    """Give an operation of the test kit the outcome that its client saw."""
    if outcome is not Outcome.OK:
        operation.outcome = "refused" if outcome is Outcome.NOT_APPLIED else "unknown"
        operation.result = details.get("error")
        return
    if details.get("is_rejected"):
        operation.outcome, operation.result = "rejected", value
        return
    operation.outcome = "ok"
    operation.seq = next((seq for _, seq in details.get("positions", ())), 0)
    operation.encoded = bytes.fromhex(details.get("received", ""))
    try:
        operation.result = codec.decode(operation.encoded)
    except (DecodeError, SchemaError) as error:
        operation.result = error


def _guid(details: Mapping[str, Any]) -> bytes:
    """The guid of a command: the one it was answered with, or given again under."""
    names = [*(details.get("guids") or ()), details.get("guid") or ""]
    return bytes(command_guid(names[0])) if names[0] else b""


def _checker(name: str) -> str:
    return f"channelset {name}"


def _figures(history: Iterable[Operation], name: str) -> dict[str, int]:
    counts = ("commands", "rejected", "unknown", "repeated", "queries", "states", "in_log")
    figures = Counter(dict.fromkeys(counts, 0))
    for operation in history:
        if table_of(operation) != name:
            continue
        is_answered = operation.outcome is Outcome.OK
        if operation.action == COMMAND:
            figures["commands"] += is_answered
            figures["rejected"] += bool(operation.details.get("is_rejected"))
            figures["unknown"] += operation.outcome is Outcome.UNKNOWN
            figures["repeated"] += bool(operation.details.get("guid"))
        elif operation.action == QUERY and is_answered and positions_of(operation):
            figures["queries"] += 1
            figures[f"queries_{operation.details.get('level')}"] += 1
    return figures
