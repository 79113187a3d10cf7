"""A machine whose state came from a backup: portions, and where seqs, terms and times go on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from raftstore.errors import CorruptRecordError, DecodeError, RaftstoreError, UnavailableError
from raftstore.machine import (
    STATE_KEY_BYTES_MAX,
    STATE_VALUE_BYTES_MAX,
    CommandContext,
    MemoryMachine,
    StateMachine,
    codec,
)
from raftstore.protocol.machine_restore import (
    PORTION_BYTES_MAX,
    RestoredCommand,
    RestoredHead,
    RestorePortion,
    encode_portion,
)
from raftstore.protocol.machines import Step, encode_command
from raftstore.record_machine import ApplyResult, CommandEnd
from raftstore.rows.sealing import seal
from raftstore.state_machines.machine_origin import read_origin
from raftstore.state_machines.machine_state import kept_ends
from raftstore.types import Guid, RecordKind, Seq, Term, make_guid
from tests.machine_bench import MachineBench

TOKEN = bytes(range(16))
OTHER = b"another restore."
SEQ_BASE, TERM_BASE = 5_000, 70
HEAD = RestoredHead(
    version=1, commands=9, time_ms=90_000, seq=Seq(4_711), seq_base=Seq(SEQ_BASE),
    term_base=Term(TERM_BASE), rows=2, chunks=0, journal=0,
)  # fmt: skip


class Ledger(StateMachine):
    """Returns all that it was given."""

    results = codec(list[Any])

    def apply(self, command: bytes, context: CommandContext) -> list[Any]:
        """Under the command's own seq."""
        given = [context.seq, context.term, context.time_ms, context.new_id()]
        context.state.put(b"seq %d" % context.seq, command)
        return given


class Sums(MemoryMachine):
    """Keeps a list in memory."""

    results = codec(list[Any])

    def __init__(self) -> None:
        self.kept: list[list[Any]] = []

    def apply(self, command: bytes, context: CommandContext) -> list[Any]:
        """All so far."""
        self.kept.append([context.seq, context.time_ms, context.new_id(), command])
        return self.kept

    def snapshot(self) -> Iterable[bytes]:
        """A chunk for each."""
        return [msgspec.msgpack.encode(each) for each in self.kept]

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Become that."""
        self.kept = [msgspec.msgpack.decode(chunk) for chunk in chunks]


def rows(*pairs: tuple[bytes, bytes]) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((key, seal(key, value)) for key, value in pairs)


FIRST = RestorePortion(TOKEN, 0, rows((b"a", b"1")))
LAST = RestorePortion(TOKEN, 1, rows((b"b", b"2")), head=HEAD)


def put(bench: MachineBench, portion: RestorePortion) -> CommandEnd:
    """Have a portion applied; what was answered."""
    result: ApplyResult = bench.apply(
        bench.record(RecordKind.MACHINE_RESTORE, encode_portion(portion))
    )
    assert result.failure is None
    assert result.answer is not None
    return kept_ends(result.answer)[0]


def restored(machine: type[StateMachine] = Ledger) -> MachineBench:
    bench = MachineBench(machine, from_backup=True)
    assert put(bench, FIRST) == put(bench, LAST) == CommandEnd()
    return bench


def test_state_and_head_are_those_of_the_backup_with_the_last_portion() -> None:
    """Before it there is nothing to be asked; behind it all that the machine had."""
    bench = MachineBench(Ledger, from_backup=True)
    assert put(bench, FIRST) == CommandEnd()
    assert not bench.user.is_whole(bench.state.get)
    assert put(bench, LAST) == CommandEnd()
    assert bench.user.is_whole(bench.state.get)
    assert bench.rows == {b"a": b"1", b"b": b"2"}
    head = bench.head
    assert (head.version, head.commands, head.time_ms, head.seq) == (1, 9, 90_000, 4_711)
    assert (head.results, head.first_result) == (1, 2)
    bench.restart()
    assert bench.user.is_whole(bench.state.get)


def test_seqs_terms_and_times_go_on_behind_all_that_were_given() -> None:
    """The log here begins anew: a machine that files things under seqs would overwrite its own."""
    bench = restored()
    first = Ledger.results.decode(bench.command(b"x").result)
    second = Ledger.results.decode(bench.command(b"y").result)
    assert first[:3] == [SEQ_BASE + 3, TERM_BASE + 1, 90_000]
    assert second[:2] == [SEQ_BASE + 4, TERM_BASE + 1]
    assert second[2] >= first[2]
    assert first[3] != second[3]
    assert (bench.head.seq, bench.head.commands) == (SEQ_BASE + 4, 11)
    assert bench.result(3) is not None, "results are found by the seqs of the log here"
    bench.restart()
    assert Ledger.results.decode(bench.command(b"z").result)[0] == SEQ_BASE + 5


def test_time_is_that_of_the_log_once_it_is_later() -> None:
    """It is never earlier than that of the command before."""
    early = msgspec.structs.replace(HEAD, time_ms=500)
    bench = MachineBench(Ledger, from_backup=True)
    put(bench, FIRST)
    put(bench, msgspec.structs.replace(LAST, head=early))
    assert Ledger.results.decode(bench.command(b"x").result)[2] == 1_003


def test_a_machine_in_memory_comes_with_snapshot_and_commands() -> None:
    """A command since the snapshot is given to it as it was: ids come out as they did."""
    source = MachineBench(Sums)
    for text in (b"one", b"two", b"three"):
        source.command(text)
    before: list[list[Any]] = Sums.results.decode(source.command(b"four").result)
    chunks = tuple(enumerate(map(msgspec.msgpack.encode, before[:2])))
    journal = tuple(
        RestoredCommand(
            Seq(seq), Term(1), 1_000 + seq, make_guid(b"writer..", seq), 1,
            encode_command(b"k", command),
        )
        for seq, _, _, command in before[2:]
    )  # fmt: skip
    head = msgspec.structs.replace(HEAD, rows=0, chunks=2, journal=2, time_ms=1_004, seq=Seq(4))
    bench = MachineBench(Sums, from_backup=True)
    assert put(bench, RestorePortion(TOKEN, 0, chunks=chunks)) == CommandEnd()
    assert put(bench, RestorePortion(TOKEN, 1, journal=journal, head=head)) == CommandEnd()
    after = Sums.results.decode(bench.command(b"five").result)
    assert after[:4] == before
    assert after[4][0] == SEQ_BASE + 3
    assert (bench.head.chunks, bench.head.journal) == (2, 3)
    bench.restart()
    assert Sums.results.decode(bench.command(b"six").result)[:5] == after


@pytest.mark.parametrize(
    ("portion", "reason"),
    [
        (FIRST, ""),
        (RestorePortion(TOKEN, 2, rows((b"c", b"3"))), "1 portions were applied, so 2 is not next"),
        (RestorePortion(OTHER, 1, rows((b"a", b"9"))), f"is that of restore {TOKEN.hex()}"),
        (
            msgspec.structs.replace(LAST, head=msgspec.structs.replace(HEAD, rows=3)),
            r"hold (2, 0, 0) keys, chunks and commands, and the last one says (3, 0, 0)",
        ),
        (
            msgspec.structs.replace(LAST, head=msgspec.structs.replace(HEAD, journal=1)),
            "the last one says (2, 0, 1)",
        ),
    ],
)
def test_a_portion_that_is_not_the_next_one_changes_nothing(
    portion: RestorePortion, reason: str
) -> None:
    """One that was given twice is answered as before; any other is refused in words."""
    bench = MachineBench(Ledger, from_backup=True)
    put(bench, FIRST)
    before = dict(bench.rows), dict(bench.state)
    kept = put(bench, portion)
    assert (bench.rows, bench.state) == before
    assert kept.is_rejected is bool(reason)
    assert reason in kept.reason
    assert put(bench, LAST) == CommandEnd(), "it goes on"


def test_portions_behind_the_last_one_change_nothing() -> None:
    """A restore that was thought dead wakes up behind commands that were acknowledged."""
    bench = restored()
    bench.command(b"x")
    before = dict(bench.rows), dict(bench.state)
    assert put(bench, FIRST) == put(bench, LAST) == CommandEnd()
    kept = put(bench, RestorePortion(TOKEN, 2, rows((b"a", b"9"))))
    assert "2 portions were applied, the last of them" in kept.reason
    assert (bench.rows, bench.state) == before


def test_a_channel_set_that_no_restore_created_takes_no_portion() -> None:
    """Its catalog may say anything by then."""
    bench = MachineBench(Ledger)
    bench.command(b"x")
    before = dict(bench.rows), dict(bench.state)
    assert "was not created by a restore" in put(bench, FIRST).reason
    assert (bench.rows, bench.state) == before


def test_part_of_a_state_is_neither_asked_nor_commanded() -> None:
    """It gets no version, which would make a head for it."""
    bench = MachineBench(Ledger, from_backup=True)
    for _ in range(2):
        assert "is on its way in from a backup" in bench.failing(b"x")
        with pytest.raises(UnavailableError, match="is on its way in from a backup"):
            bench.user.query(b"k", b"", bench, bench.state.get)
        before = dict(bench.state)
        assert bench.step(Step.VERSION, 7) is None
        assert bench.state == before
        put(bench, FIRST)
    memory = MachineBench(Sums, from_backup=True)
    asked = memory.user.query_memory(b"k", b"", memory.view().state)
    assert (asked.is_rejected, "on its way in" in asked.reason) == (True, True)


def test_a_portion_whose_answer_was_lost_is_answered_again() -> None:
    """Results of commands behind it are their own."""
    bench = MachineBench(Ledger, from_backup=True)
    put(bench, FIRST)
    assert bench.user.kept_end(Seq(1), bench.view().state) == CommandEnd()
    put(bench, LAST)
    assert bench.user.kept_end(Seq(1), bench.view().state) == CommandEnd()
    assert bench.user.kept_end(Seq(2), bench.view().state) == CommandEnd()
    assert bench.user.kept_end(Seq(3), bench.view().state) is None
    kept = bench.command(b"x")
    assert bench.user.kept_end(Seq(3), bench.view().state) == kept
    origin = read_origin(bench.state.get)
    assert origin is not None
    assert (origin.portions, origin.end_seq) == (2, 2)


def test_machines_without_a_backup_are_given_what_the_log_says() -> None:
    """Their state is byte by byte that of nodes of the version before."""
    bench = MachineBench(Ledger)
    assert Ledger.results.decode(bench.command(b"x").result)[:3] == [1, 1, 1_001]
    assert read_origin(bench.state.get) is None
    assert {key[:2] for key in bench.state} == {b"\x02\x08", b"\x02\x09"}


LONG = b"k" * (STATE_KEY_BYTES_MAX + 1)
WIDE = b"v" * (STATE_VALUE_BYTES_MAX + 1)
COMMAND = RestoredCommand(Seq(1), Term(1), 1, Guid(bytes(16)), 1, b"\xc1")


@pytest.mark.parametrize(
    ("portion", "text"),
    [
        (RestorePortion(TOKEN, 0, rows((b"", b"1"))), "a key of a restored state has 0 bytes"),
        (RestorePortion(TOKEN, 0, rows((LONG, b"1"))), "a key of a restored state has 1025 bytes"),
        (RestorePortion(TOKEN, 0, rows((b"a", WIDE))), "the value of b'a' has 1048577 bytes"),
        (RestorePortion(TOKEN, 0, ((b"a", b"abc"),)), "the value of b'a' has -1 bytes"),
        (RestorePortion(TOKEN, 0, ((b"a", b"0000x"),)), "does not match its checksum"),
        (RestorePortion(TOKEN, 0, chunks=((0, WIDE),)), "chunk 0 of a snapshot has 1048577 bytes"),
        (RestorePortion(TOKEN, 0, chunks=((2**32, b""),)), "has no chunk 4294967296"),
        (RestorePortion(TOKEN, 0, journal=(COMMAND,)), "is no command of a state machine"),
        (RestorePortion(b"short", 0), "is no portion of a restored state"),
        (RestorePortion(TOKEN, 0, rows(*((b"%d" % n, WIDE[1:]) for n in range(5)))), "has 52"),
    ],
)
def test_a_portion_that_no_replica_can_apply_is_refused_before_it_is_sequenced(
    portion: RestorePortion, text: str
) -> None:
    """Once committed it would end them all."""
    bench = MachineBench(Ledger, from_backup=True)
    with pytest.raises(RaftstoreError, match=text) as refused:
        bench.user.check(RecordKind.MACHINE_RESTORE, encode_portion(portion), 1)
    assert isinstance(refused.value, DecodeError | CorruptRecordError)
    with pytest.raises(DecodeError, match="occupies 1 seq, not 2"):
        bench.user.check(RecordKind.MACHINE_RESTORE, encode_portion(FIRST), 2)
    bench.user.check(RecordKind.MACHINE_RESTORE, encode_portion(FIRST), 1)
    assert PORTION_BYTES_MAX > 2 * STATE_VALUE_BYTES_MAX
