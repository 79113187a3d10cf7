"""The contract of everything behind a channel: kinds belong to one machine, and nothing else is
known of it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import ClassVar

import pytest

import raftstore
from raftstore.core.sequencer import PUBLISHED_KINDS
from raftstore.errors import DecodeError
from raftstore.protocol.records import Record
from raftstore.record_machine import (
    DEFAULT_RULES,
    LOG_KINDS,
    ApplyResult,
    DictView,
    RecordMachine,
    RecordView,
    Row,
    is_expired,
)
from raftstore.rows.sealing import seal
from raftstore.state_machines.registry import REGISTERED, MachinePlace, make_machine
from raftstore.storage.tables.applied_channel import AppliedChannel
from raftstore.types import EMPTY_HISTORY, RecordKind, Seq
from tests.storage_helpers import CHANNEL, record, rows_record

PACKAGE = Path(raftstore.__file__).parent
CONTRACT = {"RecordMachine", "PieceMachine", "CommandMachine"}
ROOMS = ("core", "engine", "node", "policy", "ports", "storage", "testing")


class Noting(RecordMachine):
    """Takes some kinds and notes its records."""

    def __init__(self, *kinds: RecordKind) -> None:
        self.KINDS = frozenset(kinds)  # type: ignore[misc]
        self.seen: list[RecordKind] = []

    def apply(self, record: Record, view: RecordView) -> ApplyResult:
        """Write one row under the number of the kind."""
        self.seen.append(record.kind)
        return ApplyResult((), time_ms=view.time_ms + 1)


class Whole(Noting):
    """Shares the log of its channel with a part."""

    PARTS: ClassVar = (Noting(RecordKind.STAGED), Noting(RecordKind.TXN))


def users() -> RecordMachine:
    """The host of a machine of users, which is never loaded here."""
    return make_machine("jobs:Jobs", MachinePlace(0, 1, DEFAULT_RULES, pytest.fail))


def test_each_kind_that_is_published_belongs_to_one_machine_of_one_sort_of_channel() -> None:
    """S11: a record that two machines take would be applied twice, one that none takes ends the
    nodes."""
    machines = [make() for make in REGISTERED.values()] + [users()]
    owners = [kind for machine in machines for kind in machine.kinds()]
    assert sorted(owners) == sorted(set(RecordKind) - LOG_KINDS)
    assert set(owners) == PUBLISHED_KINDS


def test_records_go_to_the_part_of_their_kind_and_those_of_the_log_to_none() -> None:
    """A record that no part takes goes to the machine itself, which refuses it."""
    machine = Whole(RecordKind.ROWS)
    channel = AppliedChannel(CHANNEL, machine, EMPTY_HISTORY, EMPTY_HISTORY)
    for kind in (RecordKind.ROWS, RecordKind.STAGED, RecordKind.TXN, RecordKind.COMMAND):
        assert channel.compute(record(1, kind=kind), DictView()) is not None
    for kind in LOG_KINDS:
        assert channel.compute(record(1, kind=kind), DictView()) is None
    staging, coordinator = Whole.PARTS
    assert machine.seen == [RecordKind.ROWS, RecordKind.COMMAND]
    assert (staging.seen, coordinator.seen) == ([RecordKind.STAGED], [RecordKind.TXN])
    assert channel.time_ms == 4, "each is given the channel time of the one before"


def test_kind_of_two_machines_and_kind_of_the_log_are_refused() -> None:
    """When the channel is opened, and not by what its replicas make of it."""
    with pytest.raises(ValueError, match="records of kind 5 belong to Whole and Noting"):
        Whole(RecordKind.STAGED).kinds()
    with pytest.raises(ValueError, match="records of kind 0 are of the log"):
        Noting(RecordKind.TERM_START).kinds()


def test_clients_send_a_channel_nothing_that_its_machine_does_not_name() -> None:
    """S0.4: once committed, a record that nobody can apply would stop all replicas."""
    with pytest.raises(DecodeError, match="a catalog takes no records of clients, such as kind 3"):
        make_machine("raftstore.catalog").check(RecordKind.COMMAND, b"", 1)
    with pytest.raises(DecodeError, match="a table takes no commands"):
        make_machine("raftstore.table").check(RecordKind.MACHINE_COMMAND, b"", 1)
    with pytest.raises(DecodeError, match="a channel set takes commands"):
        users().check(RecordKind.ROWS, b"", 1)


def test_oldest_needed_record_is_that_of_any_part() -> None:
    """S6.5: one log serves all of them, so it is trimmed below the oldest."""

    class Needing(Noting):
        def __init__(self, kind: RecordKind, needed: Seq | None) -> None:
            super().__init__(kind)
            self.needed = needed

        def first_needed(self, state: object) -> Seq | None:
            return self.needed

    class Parts(Noting):
        PARTS = (
            Needing(RecordKind.STAGED, Seq(9)),
            Needing(RecordKind.TXN, Seq(7)),
            Needing(RecordKind.EXPIRE, None),
        )

    assert Parts().first_needed(DictView().state) == 7
    assert Noting().first_needed(DictView().state) is None


def test_view_of_dictionaries_is_enough_to_try_a_machine() -> None:
    """A table's machine, without a store."""
    rows = {b"b": Row(b"b", b"1", Seq(1)), b"a": Row(b"a", b"2", Seq(2))}
    view = DictView(rows, {b"\x02x": b"s"})
    assert view.range(b"", b"", 5) == [(b"a", b"2"), (b"b", b"1")]
    assert view.range(b"a", b"b", 5) == view.range(b"", b"", 1) == [(b"a", b"2")]
    assert (view.state.get(b"\x02x"), view.state.scan(b"\x02", b"\x03", 9)) == (
        b"s",
        [(b"\x02x", b"s")],
    )
    result = make_machine("raftstore.table").apply(rows_record(3, {b"c": b"3"}), view)
    assert list(result.writes) == [(b"c", seal(b"c", b"3"))]


def names_in(file: Path) -> tuple[set[str], set[str]]:
    """All names that a file mentions, and those that it asks isinstance or issubclass about."""
    mentioned, asked = set[str](), set[str]()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Name):
            mentioned.add(node.id)
        elif isinstance(node, ast.alias):
            mentioned.add(node.name)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("isinstance", "issubclass"):
                found = ast.walk(node.args[1])
                asked |= {each.id for each in found if isinstance(each, ast.Name)}
    return mentioned, asked


def concrete_machines() -> set[str]:
    """Every class of the package that is a machine behind a channel, or a part of one."""
    found: set[str] = set()
    for file in (PACKAGE / "state_machines").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                found |= {node.name} if bases & CONTRACT else set()
    return found


def test_store_engine_and_simulator_know_the_contract_alone() -> None:
    """A special case for one machine there is a door that other machines do not have."""
    concrete = concrete_machines()
    assert {"TableMachine", "CatalogMachine", "UserMachine", "StagingMachine"} <= concrete
    files = [file for room in ROOMS for file in (PACKAGE / room).rglob("*.py")]
    assert len(files) > 200
    for file in files:
        mentioned, asked = names_in(file)
        assert not mentioned & concrete, f"{file}: the registry alone names machines"
        assert not asked & CONTRACT, f"{file}: the contract says what a machine can do"


def test_applying_asks_for_no_kind_of_record() -> None:
    """In the store and in the simulator alike: a kind belongs to a machine, by its table."""
    files = [*(PACKAGE / "storage" / "tables").rglob("*.py"), PACKAGE / "testing" / "sim_tables.py"]
    assert len(files) > 20
    feed = PACKAGE / "engine" / "channel" / "apply_feed.py"
    for file in (*files, feed):
        assert "RecordKind." not in file.read_text(), f"{file}: a special case for one kind"


def test_row_ends_at_its_time_and_one_without_a_time_never() -> None:
    """0 is no time; the bytes of a row are those of its key and value."""
    assert [is_expired(at_ms, 5) for at_ms in (0, 1, 4, 5, 6)] == [False, True, True, True, False]
    assert Row(b"key", b"value", Seq(1)).size == 8
