"""Nodes that end by themselves or take a foreign store are a violation; faults explain the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from jepsen_like.checker.injections import check_faults
from jepsen_like.checker.nodes import check_nodes
from jepsen_like.checker.verdict import Validity
from jepsen_like.plan import Plan
from jepsen_like.session import run_plan
from jepsen_like.target.base import FaultUnavailableError
from jepsen_like.target.processes.deaths import Death, NodeWatch, last_words
from jepsen_like.target.simulated import SimulatedTarget

STORE = "run/n1"
FAILED = 'event="panic" reason="Task exception was never retrieved: AssertionError()"'
EIO = f"writing failed on {STORE}/log/1.log: Input/output error; the node stops"
ENOSPC = f"writing failed on {STORE}/log/1.log: No space left on device; the node stops"
MARK = f"the mark {STORE}/mark is damaged: it must not vote"
TABLES = "LevelDB failed: Corruption: bad block; the node stops, its tables are rebuilt"


def death(code: int, said: str, *fired: str, damaged: bool = False, foreign: bool = False) -> Death:
    """An end of n1."""
    return Death("n1", code, said, STORE, fired, damaged, foreign)


@pytest.mark.parametrize(
    "explained",
    [
        death(70, EIO, "write"),
        death(70, EIO, "clock", "sync"),
        death(70, ENOSPC, "full"),
        death(78, MARK, foreign=True),
        death(70, TABLES, damaged=True),
        death(-9, "", "log.before-sync"),
        death(78, "n1 already belongs to cluster c", foreign=True),
        death(78, "the port is in use"),
    ],
    ids=lambda one: f"{one.code} {one.cause}",
)
def test_node_that_a_fault_ended_is_no_violation(explained: Death) -> None:
    """Each ends the way that its fault must end it."""
    assert check_nodes(NodeWatch([explained])).validity is Validity.VALID


@pytest.mark.parametrize(
    "unexplained",
    [
        death(70, FAILED),
        death(70, FAILED, "write", "sync", "full", "log.before-sync", damaged=True, foreign=True),
        death(70, EIO),
        death(70, EIO, "full", "slow", damaged=True),
        death(70, ENOSPC, "sync"),
        death(70, MARK),
        death(70, TABLES, "sync"),
        death(-9, "", "sync", damaged=True),
        death(-11, "", "log.before-sync", damaged=True),
        death(78, "unknown setting", damaged=True),
        death(1, "", "sync"),
        death(0, ""),
    ],
    ids=lambda one: f"{one.code} {one.said[:20]} {','.join(one.fired)}",
)
def test_node_that_ended_by_itself_is_a_violation_and_its_last_words_are_told(
    unexplained: Death,
) -> None:
    """An assertion stays one, whatever faults had struck the node before."""
    verdict = check_nodes(NodeWatch([death(70, EIO, "write"), unexplained]))
    assert verdict.validity is Validity.INVALID
    assert unexplained.text in verdict.summary


def test_node_that_serves_on_a_store_not_its_own_is_a_violation() -> None:
    """S0.1: seen by the run, and no matter of luck with the workload."""
    verdict = check_nodes(NodeWatch([], ["n1 started on a store that is another's"]))
    assert verdict.validity is Validity.INVALID
    assert "another's" in verdict.summary


def test_last_words_of_a_node_are_its_panic_though_more_follows() -> None:
    """A traceback or the end of another thread may come after it."""
    assert last_words(f"INFO one\n{FAILED}\nmore\n\n") == FAILED
    assert last_words("INFO one\nerror: two\n\n") == "error: two"
    assert last_words("") == ""


# --- faults that met nothing ----------------------------------------------------------------------

FIRED = {"kind": "loss", "fired": True}
MISSED = {"kind": "kill-leader", "fired": False, "reason": "n1 did not run"}
STARVED = {"kind": "machine-starved", "by": "machine"}


@pytest.mark.parametrize(
    ("faults", "validity"),
    [
        ([FIRED, MISSED], Validity.VALID),
        ([MISSED, MISSED], Validity.UNDECIDED),
        ([MISSED, STARVED], Validity.UNDECIDED),
        ([], Validity.UNDECIDED),
    ],
)
def test_wanted_faults_of_which_none_struck_prove_nothing(
    faults: list[dict[str, object]], validity: Validity
) -> None:
    """Times of the machine are no faults that were meant."""
    verdict = check_faults(faults)
    assert verdict.validity is validity
    assert (MISSED["reason"] in verdict.summary) is (
        validity is not Validity.VALID and MISSED in faults
    )


@pytest.mark.slow
@pytest.mark.parametrize("refuses", [True, False])
def test_run_is_undecided_when_its_target_refuses_every_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, refuses: bool
) -> None:
    """The same run with its faults is valid."""

    def refuse(*_: object) -> None:
        raise FaultUnavailableError("this target cannot")

    if refuses:
        monkeypatch.setattr(SimulatedTarget, "kill", refuse)
    plan = Plan(
        workload="register", nemeses=("kill-leader",), target="simulated", seconds=5.0,
        seed=1, clients=2,        directory=tmp_path,
    )  # fmt: skip
    result = run_plan(plan, lambda _: None)
    assert result.validity is (Validity.UNDECIDED if refuses else Validity.VALID)


@pytest.mark.slow
def test_simulated_run_watches_leaders_under_faults_and_asks_each_fate_once(tmp_path: Path) -> None:
    """More terms are seen than the last one, and no write in doubt is asked about twice."""
    plan = Plan(
        workload="register", nemeses=("kill-leader",), target="simulated", seconds=12.0,
        seed=2, clients=4, directory=tmp_path, fault_pause_s=1.0,
    )  # fmt: skip
    result = run_plan(plan, lambda _: None)
    (status,) = [verdict for verdict in result.verdicts if verdict.checker == "status"]
    channels = {(table, at) for table, _, at in (n.partition("/") for n in result.replica_hashes)}
    assert status.figures["terms"] > len(channels) + 1  # and the metadata channel
    asked = [op.details["guid"] for op in result.history if op.action == "fate"]
    assert asked
    assert len(asked) == len(set(asked))
