"""``check_machine`` finds what would make replicas differ, and names the command."""

from __future__ import annotations

import pytest

import raftstore
from raftstore.testing import MachineDefectError, check_machine
from tests.unit.testing import checked_machines as machines

COMMANDS = [("k", number) for number in (1, 2, -1, 3, 4)]
QUERIES = [("k", b"")]


@pytest.mark.slow
def test_a_deterministic_machine_passes_in_other_processes_too() -> None:
    """All ways lead to the same."""
    assert check_machine(machines.Good, COMMANDS, queries=QUERIES, processes=2) == 5


@pytest.mark.parametrize(
    ("machine", "named"),
    [
        (machines.LosesAField, "command 2 of 5, applied after a restart, is .* restore"),
        (machines.KeepsInItself, "command 2 of 5, applied after a restart, is .* context.state"),
        (machines.Draws, "command 1 of 5, applied once more, is .* chance"),
        (machines.RejectsLate, r"command 3 \(rejected: below 0\) changed the state"),
        (machines.ChangesInQuery, "a query behind command 1 changed the state"),
    ],
)
def test_a_defect_that_one_process_shows_is_named(
    machine: type[raftstore.StateMachine], named: str
) -> None:
    """The first command that makes a difference, what the difference is, and the remedy."""
    with pytest.raises(MachineDefectError, match=named):
        check_machine(machine, COMMANDS, queries=[] if "Keeps" in machine.__name__ else QUERIES,
                      processes=0)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("machine", [machines.AsksTheClock, machines.Hashes])
def test_a_defect_that_only_another_process_shows_is_named(
    machine: type[raftstore.StateMachine],
) -> None:
    """Hash seeds and clocks differ between nodes, and stay the same within a process."""
    with pytest.raises(MachineDefectError, match=r"command 1 of 5, applied in another process"):
        check_machine(machine, COMMANDS)
    assert check_machine(machine, COMMANDS, processes=0) == 5


def test_a_check_of_nothing_is_refused() -> None:
    """It would always pass."""
    with pytest.raises(raftstore.ArgumentError, match="commands is empty"):
        check_machine(machines.Good, [])
    with pytest.raises(raftstore.ArgumentError, match="processes=3"):
        check_machine(machines.Good, COMMANDS, processes=3)


def test_a_class_that_cannot_be_imported_is_refused_with_the_remedy() -> None:
    """It is never silently left out of the check in another process."""

    class Inside(machines.Good):
        pass

    with pytest.raises(raftstore.ArgumentError, match="top level of a file, or pass processes=0"):
        check_machine(Inside, COMMANDS)
    assert check_machine(Inside, COMMANDS, processes=0) == 5
