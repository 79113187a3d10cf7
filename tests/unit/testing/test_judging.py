"""Judgement of what clients of a state machine saw: each kind of wrong answer is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b

import pytest

from raftstore.protocol.machines import encode_command
from raftstore.protocol.records import Record
from raftstore.recipes import Counter
from raftstore.testing import Command, Operation, Query
from raftstore.testing.invariants import InvariantError
from raftstore.testing.machines.judging import Judged, WrongAnswerError, check_rows, judge
from raftstore.types import Digest, Guid, RecordKind, Seq, Term, TimestampMs
from tests.machines.broken import MemoryCounter

TOO_MUCH = 1 << 63


def guid(number: int) -> Guid:
    """Of a command."""
    return Guid(number.to_bytes(16, "big"))


def record(seq: int, command: int, name: int | None = None) -> Record:
    """A command to the key ``k`` at its place of the log."""
    payload = encode_command(b"k", Counter.commands.encode(command))
    return Record(
        Term(1), Seq(seq), 1, guid(name or seq), TimestampMs(seq * 10),
        Digest(blake2b(payload, digest_size=16).digest()), RecordKind.MACHINE_COMMAND, payload,
    )  # fmt: skip


def command(seq: int, value: int, total: int) -> Operation:
    """A command that was answered, alone on the way."""
    return Operation(
        "c", seq, Command("k", value), seq * 10.0, seq * 10.0 + 5, "ok", total, seq,
        guid=guid(seq), encoded=Counter.results.encode(total),
    )  # fmt: skip


def query(number: int, seq: int, total: int, begun_ms: float) -> Operation:
    """A linearizable query, answered from the state behind ``seq``."""
    return Operation(
        "d", number, Query("k"), begun_ms, begun_ms + 1, "ok", total, seq,
        encoded=Counter.answers.encode(total),
    )  # fmt: skip


LOG = [record(1, 3), record(2, 4), record(3, TOO_MUCH), record(4, 5)]
REJECTED = f"the total would be {TOO_MUCH + 7}, beyond {TOO_MUCH - 1}"


def seen() -> list[Operation]:
    """Operations on a right store: the third command was rejected, the last is in doubt."""
    third = replace(command(3, TOO_MUCH, 0), outcome="rejected", result=REJECTED, encoded=b"")
    fourth = Operation("c", 4, Command("k", 5), 40.0, None, "unknown", guid=guid(4))
    refused = Operation("c", 5, Command("k", 6), 50.0, 51.0, "refused", guid=guid(5))
    return [command(1, 3, 3), command(2, 4, 7), third, fourth, refused, query(1, 2, 7, 26.0),
            query(2, 4, 12, 45.0)]  # fmt: skip


def test_what_a_right_store_answered_is_right() -> None:
    """Commands in doubt count where the log has them; rejected ones change nothing."""
    judged = judge(Counter, 0, LOG, seen())
    assert judged == Judged(4, {b"k": b"12"})
    check_rows(Counter, "n1", {b"k": b"12"}, judged)


def change(at: int, **changes: object) -> Callable[[list[Operation], list[Record]], None]:
    """One operation was answered otherwise."""

    def changed(operations: list[Operation], log: list[Record]) -> None:
        del log
        operations[at] = replace(operations[at], **changes)  # type: ignore[arg-type]

    return changed


def lose(operations: list[Operation], log: list[Record]) -> None:
    """The second command is not in the log."""
    del operations, log[1]


def repeat(operations: list[Operation], log: list[Record]) -> None:
    """The first command is in the log again."""
    del operations
    log.append(record(5, 3, name=1))


def apply_refused(operations: list[Operation], log: list[Record]) -> None:
    """A refused command is in the log."""
    del operations
    log.append(record(5, 6))


@pytest.mark.parametrize(
    ("damage", "complaint", "shown"),
    [
        (lose, "ok at seq 2 7; in the log it is at seq None", 1),
        (repeat, "in the log at seq 1 and again at 5", 0),
        (apply_refused, "refused None; it is in the log at seq 5", 1),
        (change(1, seq=3), "in the log it is at seq 2", 1),
        (change(1, begun_ms=1.0, ended_ms=2.0), "began 8.0 ms after the end of command 2", 2),
        (change(5, seq=1), "it began 1.0 ms after the end of command 2", 2),
        (change(1, encoded=Counter.results.encode(4)), "a sequential run gives 7", 1),
        (change(1, outcome="rejected", result="no"), "a sequential run gives 7", 1),
        (change(2, outcome="ok"), "a sequential run rejects it", 1),
        (change(2, result="for another reason"), "a sequential run rejects it", 1),
        (change(5, encoded=Counter.answers.encode(3)), "a sequential run answers 7", 1),
        (change(5, outcome="rejected"), "a sequential run answers 7", 1),
    ],
)
def test_what_cannot_be_explained_is_found_and_shown(
    damage: Callable[[list[Operation], list[Record]], None], complaint: str, shown: int
) -> None:
    """The error has the operations that show it."""
    operations, log = seen(), list(LOG)
    damage(operations, log)
    with pytest.raises(WrongAnswerError, match=complaint) as found:
        judge(Counter, 0, log, operations)
    assert len(found.value.operations) == shown


def test_a_query_that_need_not_be_newest_may_show_an_older_state() -> None:
    """Of an older state it must show what was there, all the same."""
    old = replace(query(3, 1, 3, 60.0), is_linearizable=False)
    judge(Counter, 0, LOG, [*seen(), old])
    with pytest.raises(WrongAnswerError, match="a sequential run answers 3"):
        judge(Counter, 0, LOG, [*seen(), replace(old, encoded=Counter.answers.encode(7))])


def test_a_replica_with_another_state_is_named_with_its_keys() -> None:
    """A state that lacks a key, or has one too many, differs."""
    judged = judge(Counter, 0, LOG, seen())
    with pytest.raises(InvariantError, match=r"the state of n2 differs .* in 2 keys: .*b'11'"):
        check_rows(Counter, "n2", {b"k": b"11", b"x": b""}, judged)
    check_rows(MemoryCounter, "n2", {}, judged)
