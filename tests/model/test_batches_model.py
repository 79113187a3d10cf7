"""All interleavings of small worlds of micro-batches, and of what goes wrong with other rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.model import mutations, other_protocols, readers, rude
from tests.model.other_protocols import Aborts, Arrivals, explore
from tests.model.search import Found, search
from tests.model.states import BatchPlan, Scenario, WriterPlan
from tests.model.world import Model

BOTH, FIRST, SECOND, NONE = (((0, 1),), ((0,),), ((1,),), ((),))


def plan(*batches: tuple[tuple[int, ...], ...], truncates: int = 0) -> tuple[BatchPlan, ...]:
    """Batches of one driver; the one with number ``truncates`` replaces the table."""
    return tuple(
        BatchPlan(tasks, truncate=number == truncates)
        for number, tasks in enumerate(batches, start=1)
    )


def one(*drivers: tuple[BatchPlan, ...], **options: Any) -> Scenario:
    """One writer with these drivers."""
    return Scenario((WriterPlan("w", drivers),), **options)


APPEND = (plan(BOTH, FIRST), plan(SECOND, BOTH))
"""The second driver writes the same batches to other channels."""
TWO_TASKS = ((0, 1), (1,))
TWO_WRITERS = (
    WriterPlan("v", (plan(BOTH, truncates=1),)),
    WriterPlan("w", (plan(BOTH),)),
)

SMALL = {
    "append, 2 attempts": one(*APPEND, attempts_max=2),
    "overwrite in batch 2": one(
        plan(BOTH, FIRST, truncates=2), plan(SECOND, FIRST, truncates=2), attempts_max=2
    ),
    "empty batches": one(plan(NONE, BOTH), plan(FIRST, NONE), attempts_max=2),
    "2 writers, one replaces": Scenario(TWO_WRITERS, attempts_max=2),
    "2 tasks begin": one(plan(TWO_TASKS), plan(TWO_TASKS), attempts_max=2, tasks_begin=True),
}
LARGER = {
    "append, 3 attempts": one(*APPEND, attempts_max=3),
    "3 channels": one(
        plan(((0, 1, 2),), ((2,),)), plan(((1,),), ((0, 2),)), channels=3, attempts_max=2
    ),
    "3 drivers, 1 batch": one(plan(FIRST), plan(SECOND), plan(FIRST), attempts_max=3),
    "task with 2 runs": one(plan(BOTH), plan(NONE), attempts_max=2, runs=2),
}
STATES = {
    "append, 2 attempts": 8_151,
    "overwrite in batch 2": 7_329,
    "empty batches": 1_646,
    "2 writers, one replaces": 14_050,
    "2 tasks begin": 26_035,
    "append, 3 attempts": 74_302,
    "3 channels": 27_895,
    "3 drivers, 1 batch": 39_986,
    "task with 2 runs": 21_663,
}
"""Of each world, counted once: fewer would mean that something can no longer happen in it."""
STATES_MAX = 150_000


def found_in(model: Model) -> Found:
    """A search to its end."""
    return search(model, states_max=STATES_MAX)


def run_of(found: Found) -> str:
    """The violation of a run and the path to it."""
    return f"{found.violation} after {found.path}"


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_small_worlds_are_complete_without_a_violation(name: str) -> None:
    """I1 to I5, L1 and L2 hold in every state of every interleaving (I2)."""
    found = found_in(Model(SMALL[name]))
    assert found.violation is None, run_of(found)
    assert found.states >= STATES[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGER)
def test_larger_worlds_are_complete_without_a_violation(name: str) -> None:
    """The same with more attempts, channels and writers."""
    found = found_in(Model(LARGER[name]))
    assert found.violation is None, run_of(found)
    assert found.states >= STATES[name]


@pytest.mark.slow
def test_answers_that_travel_for_ever_do_no_harm() -> None:
    """I4 makes it so: here every answer to RESOLVE is kept and delivered at any later moment."""

    class LateAnswers(Model):
        keeps_answers = True

    found = found_in(LateAnswers(one(plan(BOTH), plan(SECOND), attempts_max=2)))
    assert found.violation is None, run_of(found)


@pytest.mark.slow
def test_world_is_not_empty() -> None:
    """Both drivers win, are fenced, learn that it is done; attempts end early; garbage goes."""
    found = found_in(Model(SMALL["append, 2 attempts"]))
    for move in (
        "d0 success by OK b1",
        "d1 success by OK b1",
        "d1 success by ALREADY b1",
        "d0 hears writer_fenced",
        "CLOSE a1",
        "APPLY 2 ch0",
        "ACK 1 ch1",
        "ch0 drops w up to a1 by F",
    ):
        assert move in found.seen


# --- one rule changed each ------------------------------------------------------------------------

ONE_BATCH = one(plan(BOTH), plan(SECOND), attempts_max=2)
SAME_WRITER_TWICE = Scenario(
    (WriterPlan("w", (plan(BOTH),)), WriterPlan("w", (plan(SECOND),))), attempts_max=2
)
CHAINED = Scenario(
    (WriterPlan("v", (plan(FIRST),)), WriterPlan("w", (plan(FIRST),))), attempts_max=2
)

MUTATIONS: dict[str, tuple[type[Model], Scenario, str]] = {
    "time to live at the channel": (mutations.TimeToLiveAtTheChannel, ONE_BATCH, "I1"),
    "presumed abort, not recorded": (mutations.PresumedAbort, ONE_BATCH, "I1"),
    "F ignores commits under way": (mutations.FloorIgnoresTheOutbox, ONE_BATCH, "I1"),
    "COMMIT by batch id only": (mutations.CompareAndSetByBatch, ONE_BATCH, "I1"),
    "the same, without garbage collection": (
        mutations.CompareAndSetTellsOthers,
        ONE_BATCH,
        "for rows of attempt",
    ),
    "the same, garbage": (mutations.CompareAndSetKeepsGarbage, ONE_BATCH, "L1"),
    "success at COMMIT": (mutations.SuccessAtCommit, ONE_BATCH, "success by OK"),
    "ALREADY before it is applied": (
        mutations.AlreadyBeforeApplied,
        ONE_BATCH,
        "success by ALREADY",
    ),
    "no chain, two writers": (mutations.NoChain, CHAINED, "I3"),
    "duplicates without lineage": (
        mutations.LowerBatchesAreDuplicates,
        SAME_WRITER_TWICE,
        "committed 0 times",
    ),
    "manifests are believed": (rude.DecidedUnseen, ONE_BATCH, "I1"),
    "one channel holds its part": (rude.OneYesIsEnough, ONE_BATCH, "I1"),
    "BEGIN in streamWriter()": (mutations.BeginInStreamWriter, ONE_BATCH, "cannot be committed"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_finds_its_counterexample(name: str) -> None:
    """A model that finds nothing wrong with wrong rules would say nothing about right ones."""
    kind, scenario, text = MUTATIONS[name]
    found = found_in(kind(scenario))
    assert found.violation is not None
    assert text in found.violation, run_of(found)


RUDE = {
    "one batch": ONE_BATCH,
    "overwrite": one(plan(BOTH, truncates=1), plan(SECOND, truncates=1), attempts_max=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUDE)
def test_what_nobody_staged_is_never_decided(name: str) -> None:
    """I1 with drivers that commit at any moment, and answers that count however late."""
    found = found_in(rude.RudeDrivers(RUDE[name]))
    assert found.violation is None, run_of(found)
    for move in ("ch1 holds its part of a1", "COMMIT a2 b1 -> n1", "CLOSE a1"):
        assert move in found.seen


def test_late_verdict_loses_committed_rows() -> None:
    """Presumed abort: the way of the answer is part of the counterexample (I5)."""
    found = found_in(mutations.PresumedAbort(ONE_BATCH))
    assert any("COMMIT a1" in move for move in found.path), run_of(found)


@pytest.mark.slow
def test_compare_and_set_without_garbage_collection_loses_nothing() -> None:
    """Given compare-and-set without garbage collection, no row is lost; only the meaning of success
    is broken, and garbage stays.
    """
    found = found_in(mutations.CompareAndSetWithoutGarbage(ONE_BATCH))
    assert found.violation is None, run_of(found)


@pytest.mark.slow
def test_chain_mutation_needs_two_writers() -> None:
    """With one writer rule 5 alone orders its batches: the chain is there for the others (I3)."""
    found = found_in(mutations.NoChain(one(*APPEND, attempts_max=2)))
    assert found.violation is None, run_of(found)


@pytest.mark.slow
def test_other_checkpoint_under_the_same_writer_is_refused() -> None:
    """Lineage: no success is reported for rows of another checkpoint."""
    found = found_in(mutations.CheckpointsApart(SAME_WRITER_TWICE))
    assert found.violation is None, run_of(found)
    assert "d1 hears batch_regression" in found.seen


def test_other_protocols_find_their_counterexample() -> None:
    """Three protocols that need no coordinator's record break within a few steps."""
    on_arrival = explore(Arrivals(), other_protocols.rows_applied_on_arrival)
    assert on_arrival[-1] in (
        "B is acknowledged, the table has ['r0', 'r0']",
        "B is acknowledged, the table has ['r1', 'r1']",
        "A is acknowledged, the table has ['r0', 'r0']",
        "A is acknowledged, the table has ['r1', 'r1']",
    )
    markers = explore(Arrivals(), other_protocols.markers_per_channel)
    assert "rows of A and B are mixed" in markers[-1]
    unordered = explore(Aborts(), other_protocols.unordered_attempts)
    assert unordered == (
        "abort X",
        "drop X",
        "abort Y",
        "late COMMIT X is accepted, its chunks are gone",
    )


# --- readers --------------------------------------------------------------------------------------


def first_violation(model: readers.Readers) -> str:
    """The first violation that readers of the model see; "" if there is none."""

    def moves(state: readers.Reading) -> Iterator[tuple[str, readers.Reading]]:
        return model.moves(state)

    return " ".join(explore(model.initial(), moves)[-1:])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [readers.Readers, readers.TokenReaders])
@pytest.mark.parametrize(("channels", "commits"), [(2, 2), (2, 3)])
def test_snapshots_are_whole_and_never_go_back(
    kind: type[readers.Readers], channels: int, commits: int
) -> None:
    """I6 and I7: one round over any replicas, the newest vector seen, and the session's floor."""
    assert first_violation(kind(channels, commits)) == ""


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (readers.LatestOfEachChannel, "I6: torn"),
        (readers.NoSessionFloor, "I7"),
        (readers.TokenWithoutSessionFloor, "I7"),
    ],
)
def test_readers_with_other_rules_find_their_counterexample(
    kind: type[readers.Readers], text: str
) -> None:
    """The latest of each channel is torn; without a floor a session goes back."""
    assert text in first_violation(kind(2, 2))
