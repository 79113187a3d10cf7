"""Simulated worlds of users' machines: the shipped ones hold, planted bugs are found."""

from __future__ import annotations

from typing import Any

import pytest

import raftstore
from raftstore import recipes
from raftstore.engine.reads import read_rules
from raftstore.state_machines.user_machine import UserMachine
from raftstore.testing import Command, MachineSimulationError, Query, simulate_machine
from raftstore.types import Level
from tests.machines import broken
from tests.machines.unique_index import UniqueIndex
from tests.machines.worlds import WORLDS, World, additions

PLANTED_SEEDS = "1..50"


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_machine_holds_under_faults(name: str) -> None:
    """Exactly once, linearizable, equal on all replicas; and each keeps its own promise."""
    world = WORLDS[name]
    runs = simulate_machine(world.machine, world.workload, seeds=1, check=world.check)
    assert runs.commands >= 20
    assert runs.crashes > 0


@pytest.mark.slow
def test_a_machine_in_memory_holds_under_faults() -> None:
    """Its snapshots and the commands behind them lead to the same wherever they are taken."""
    assert simulate_machine(broken.MemoryCounter, additions, seeds=2).commands >= 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "machine", "model", "complaint"),
    [
        ("counter", broken.RandomCounter, None, "a sequential run"),
        ("counter", broken.ForgetfulCounter, None, "a sequential run gives"),
        ("lock", broken.UnfencedLock, None, "the check of the history failed: .* came after"),
        ("election", broken.HastyElection, None, "Resign.* ended another term"),
        ("queue", broken.OvertakingQueue, None, "items overtook each other"),
        ("ledger", broken.GenerousLedger, None, "the check of the history failed: .* are there"),
        ("unique_index", broken.StickyIndex, UniqueIndex, "rejected .* a sequential run gives"),
        ("rate_limiter", broken.CheapLimiter, None, "permits in"),
    ],
)
def test_a_planted_bug_is_found(
    name: str,
    machine: type[raftstore.StateMachine],
    model: type[raftstore.StateMachine] | None,
    complaint: str,
) -> None:
    """Within few seeds, by the machine itself, by a model, or by a check of what clients saw."""
    world: World = WORLDS[name]
    with pytest.raises(MachineSimulationError, match=complaint) as found:
        simulate_machine(
            machine,
            world.workload,
            seeds=PLANTED_SEEDS,
            model=model,
            check=world.check,
            shrink=False,
        )
    assert f"--raftstore-seeds {found.value.seed}..{found.value.seed}" in str(found.value)


@pytest.mark.slow
def test_a_command_that_a_replica_applies_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result, or the state of the replica, is not that of a sequential run."""
    run: Any = UserMachine._run

    def twice(self: UserMachine, machine: Any, record: Any, *rest: Any) -> Any:
        first = run(self, machine, record, *rest)
        return first if record.last_seq % 5 else run(self, machine, record, *rest)

    monkeypatch.setattr(UserMachine, "_run", twice)
    with pytest.raises(MachineSimulationError, match="a sequential run"):
        simulate_machine(recipes.Counter, additions, seeds=PLANTED_SEEDS, shrink=False)


@pytest.mark.slow
def test_a_replica_that_does_not_mind_the_bounds_of_a_query_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Queries are asked at every level, and their answers held against its promise."""
    runs = simulate_machine(recipes.Counter, additions, seeds=3)
    assert set(runs.by_level) == {level.value for level in Level}
    monkeypatch.setattr(read_rules, "_beyond_rows", lambda *_: None)
    with pytest.raises(MachineSimulationError, match=r"a read of MachineQuery.* was served"):
        simulate_machine(recipes.Counter, additions, seeds=12, shrink=False)


class Stopping(recipes.Counter):
    """Raises at a certain total."""

    def apply(self, command: int, context: raftstore.CommandContext) -> int:
        total = super().apply(command, context)
        assert total < 60, "that was too much"
        return total


@pytest.mark.slow
def test_a_machine_that_raises_is_named_and_its_operations_are_shrunk() -> None:
    """The message has the seq, what was raised, how to replay it, and fewer operations."""
    with pytest.raises(MachineSimulationError) as found:
        simulate_machine(Stopping, additions, seeds=[3])
    text = str(found.value)
    assert "Stopping, seed 3: the machine stopped at the command with seq" in text
    assert "that was too much" in text
    assert "--raftstore-seeds 3..3" in text
    assert len(found.value.history) < 120


@pytest.mark.slow
def test_a_seed_is_the_same_world_again() -> None:
    """A failure can be replayed."""
    seen = []

    def note(history: list[Any]) -> None:
        seen.append([str(each) for each in history])

    for _ in range(2):
        simulate_machine(recipes.Counter, additions, seeds=[4], operations=10, check=note)
    assert seen[0] == seen[1]
    assert len(seen[0]) >= 30


@pytest.mark.slow
def test_a_check_that_never_ran_passes_no_world() -> None:
    """A generator function only looks like a check."""

    def never_runs(history: list[Any]) -> Any:
        yield len(history)

    with pytest.raises(AssertionError, match="answers nothing; this one answered <generator"):
        simulate_machine(
            recipes.Counter, additions, seeds=[4], operations=10, check=never_runs, shrink=False
        )


def test_wrong_arguments_are_refused() -> None:
    """A run that would check nothing never passes."""
    with pytest.raises(raftstore.ArgumentError, match="would check nothing"):
        simulate_machine(recipes.Counter, additions, seeds=[])
    with pytest.raises(raftstore.ArgumentError, match="clients=0 would check nothing; give 1"):
        simulate_machine(recipes.Counter, additions, clients=0)
    with pytest.raises(raftstore.ArgumentError, match="operations=-1 would check nothing; give 1"):
        simulate_machine(recipes.Counter, additions, operations=-1)
    with pytest.raises(ValueError, match="unknown simulation option 'nods'"):
        simulate_machine(recipes.Counter, additions, seeds=1, nods=5)
    with pytest.raises(ValueError, match="is no range"):
        simulate_machine(recipes.Counter, additions, seeds="1-5")
    assert Command("a", 1) != Query("a", 1)
