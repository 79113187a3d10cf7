"""The checker of progress, and the witness that names the nodes that a fault hit."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jepsen_like.checker.progress import REPEAT_MS, STOP_MS_MAX, check_progress, stop_ms_max
from jepsen_like.checker.verdict import Validity
from jepsen_like.history import Operation
from jepsen_like.nemesis.catalogue import CATALOGUE
from jepsen_like.nemesis.fault import Fault, Heal
from jepsen_like.nemesis.witness import witnessed
from jepsen_like.runner import SimulatedRun
from jepsen_like.scene import Scene
from jepsen_like.schedule import FaultEvent
from jepsen_like.target.base import Target
from jepsen_like.workload.base import Run
from raftstore.config import ReplicationSettings
from raftstore.testing.options import draw_options
from raftstore.types import Outcome

MS = 1_000_000
HASHES = {("t", 0): {"n1": "h", "n2": "h", "n3": "h"}}


def _calls(*moments: int, silent: tuple[int, int] = (0, 0)) -> list[Operation]:
    """One strong read a second, answered within a millisecond but for those in the silence."""
    history = []
    for at in moments:
        is_silent = silent[0] <= at < silent[1]
        history.append(
            Operation(
                "c1", "get", "k", None, at * 1_000 * MS,
                None if is_silent else (at * 1_000 + 1) * MS,
                Outcome.UNKNOWN if is_silent else Outcome.OK, None,
                {"table": "t", "positions": [] if is_silent else [[0, 1]]},
            )
        )  # fmt: skip
    return history


def _fault(started: int, ended: int | None, *nodes: str, **told: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "kind": "made-up", "started": started * 1_000 * MS, "fired": True, "is_minority": True,
        "nodes": list(nodes), "links": [], **told,
    }  # fmt: skip
    return entry | ({} if ended is None else {"ended": ended * 1_000 * MS})


def test_silence_counts_only_while_somebody_asks() -> None:
    """A call that was given up long ago and one that begins later do not make one stop."""
    history = _calls(1, 2, 20)
    for at in (10, 18):
        history.append(
            Operation(
                "c2", "get", "k", None, at * 1_000 * MS, None, Outcome.UNKNOWN, None,
                {"table": "t", "positions": [], "told_at": (at + 1) * 1_000 * MS},
            )
        )  # fmt: skip
    run = Run(history, replica_hashes=HASHES)
    verdict = check_progress(run)
    assert verdict.figures["longest_stop_ms"] == 2_001
    del history[-2].details["told_at"]
    assert check_progress(run).figures["longest_stop_ms"] == 10_001


BOTH = [["n1", "n2"], ["n2", "n1"]]


@pytest.mark.parametrize(
    ("silent", "faults", "stopped"),
    [
        ((0, 0), [], False),
        ((10, 15), [_fault(10, 20, "n1")], False),
        ((10, 18), [_fault(10, 20, "n1")], True),
        ((10, 18), [], True),
        ((10, 18), [_fault(10, 20, "n1", is_minority=False)], False),
        ((10, 18), [_fault(10, 20, "n1", is_minority=False, fired=False)], True),
        ((10, 18), [_fault(10, 20, "n1"), _fault(9, 20, "n2")], False),
        ((10, 18), [_fault(10, 20, "n1"), _fault(9, 20, "n1")], True),
        ((10, 28), [_fault(10, 30, "n1"), _fault(9, 12, "n2")], True),
        ((10, 18), [_fault(10, 20, links=BOTH)], True),
        ((10, 18), [_fault(10, 20, "n3", links=BOTH)], False),
        ((10, 18), [_fault(10, 20, links=[["clients", "n1"]])], False),
        ((10, 18), [_fault(10, 20, is_everywhere=True)], True),
        ((10, 18), [_fault(10, 20, "n1"), _fault(9, 20, is_everywhere=True)], False),
        ((20, 28), [_fault(2, 3, "n1", stays=True), _fault(19, 30, "n2")], False),
        ((20, 28), [_fault(2, 3, "n1"), _fault(19, None, "n2")], True),
    ],
)
def test_progress_blames_silence_only_while_a_majority_is_whole(
    silent: tuple[int, int], faults: list[dict[str, Any]], stopped: bool
) -> None:
    """Given a silence, the run counts as stopped only if a majority was whole and connected
    meanwhile.
    """
    history = _calls(*range(40), silent=silent)
    verdict = check_progress(Run(history, {}, HASHES, faults), stop_ms=5_500)
    assert verdict.figures["stopped"] == stopped
    assert verdict.is_valid is not stopped
    if stopped:
        assert verdict.evidence
        assert all(operation.outcome is Outcome.UNKNOWN for operation in verdict.evidence[:5])


def test_progress_does_not_blame_a_channel_that_nobody_asks() -> None:
    """Silence without a question is no stop."""
    run = Run([*_calls(*range(5)), *_calls(*range(30, 40))], {}, HASHES)
    assert check_progress(run).is_valid


def test_lossy_network_excuses_the_repeats_that_it_costs_and_no_more() -> None:
    """Each lost question or answer is repeated after a second: at 20 percent loss more than six in
    a row are lost once in a thousand times. Where nothing is lost, nothing is excused."""
    assert ReplicationSettings().sync_request_timeout_ms == REPEAT_MS
    assert [stop_ms_max(loss) for loss in (0.0, 0.5, 5.0, 20.0)] == [
        STOP_MS_MAX + repeats * REPEAT_MS for repeats in (0, 1, 2, 6)
    ]


def test_progress_needs_answers_to_the_read_back() -> None:
    """A call of the read-back without an answer, or with a late one, is a violation."""
    run = Run(_calls(0, 1, 9), {}, HASHES, [_fault(1, 2, "n1", is_minority=False)])
    run.history[-1].details["final"] = True
    assert check_progress(run).is_valid
    assert check_progress(run, heal_ms=500).figures["late"] == 1
    run.history[-1].outcome = Outcome.UNKNOWN
    assert check_progress(run).figures["dead"] == 1


def test_progress_of_nothing_proves_nothing() -> None:
    """Without traffic there is no verdict."""
    assert check_progress(Run([])).validity is Validity.UNDECIDED
    assert check_progress(Run(_calls(*range(40)))).validity is Validity.UNDECIDED


def _whole(majority: tuple[str, ...], faults: list[dict[str, Any]], at: int) -> bool:
    """Second by second: nobody of the majority is hit."""
    now = [f for f in faults if f["started"] <= at * 1_000 * MS < f["ended"]]
    return not any(set(majority) & set(f["nodes"]) for f in now)


@given(seed=st.integers(0, 10**6))
def test_progress_agrees_with_looking_at_every_second(seed: int) -> None:
    """The sweep over the faults finds the windows that looking at each second finds."""
    rng = random.Random(seed)
    faults = []
    for _ in range(rng.randint(0, 6)):
        started = rng.randint(0, 30)
        victims = rng.sample(["n1", "n2", "n3"], rng.randint(1, 2))
        faults.append(_fault(started, started + rng.randint(1, 15), *victims))
    begin = rng.randint(0, 20)
    silent = (begin, begin + rng.randint(1, 15))
    history = _calls(*range(40), silent=silent)
    longest = 0
    for majority in (("n1", "n2"), ("n1", "n3"), ("n2", "n3")):
        run = 0
        for at in range(silent[0], silent[1]):
            run = run + 1 if _whole(majority, faults, at) else 0
            longest = max(longest, run)
    verdict = check_progress(Run(history, {}, HASHES, faults), stop_ms=5_500)
    assert bool(verdict.figures["stopped"]) is (longest > 5)


class _Paper(Target):
    """Does nothing, and says so."""

    def kill(self, nodes: Any) -> None: ...

    def block(self, links: Any) -> None: ...

    def unblock(self) -> None: ...

    def weather(self, **seen: Any) -> None: ...

    def swap_stores(self, first: str, second: str) -> None: ...

    def wipe(self, node: str) -> None: ...


def _seen(strike: Any, *, is_minority: bool = True) -> dict[str, Any]:
    def inject(target: Target, rng: random.Random) -> Heal:
        strike(target)
        return target.unblock

    fault = Fault("paper", "nothing", inject, is_minority=is_minority)
    entry: dict[str, Any] = {}
    fault.inject(witnessed(_Paper(), fault, entry), random.Random(1))()
    return entry


def test_witness_notes_whom_a_fault_hits() -> None:
    """Nodes, links and weather are noted in the fault's entry, for checkers and for people."""
    kill = _seen(lambda target: target.kill(("n1", "n2")), is_minority=False)
    assert (kill["nodes"], kill["is_minority"], kill["where"]) == (["n1", "n2"], False, "n1, n2")
    block = _seen(lambda target: target.block([("n1", "n2")]))
    assert (block["links"], block["where"], block["is_minority"]) == ([["n1", "n2"]], "n1-n2", True)
    assert _seen(lambda target: target.weather(loss=0.3))["is_everywhere"]
    assert _seen(lambda target: target.swap_stores("n1", "n3"))["nodes"] == ["n1", "n3"]
    wipe = _seen(lambda target: target.wipe("n2"))
    assert (wipe["nodes"], wipe["stays"]) == (["n2"], True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kill-leader", "isolate-leader", "pause-leader", "disk-full"])
def test_channels_go_on_while_a_minority_is_away_for_long(kind: str) -> None:
    """A fault that stays for fifteen seconds stops a channel for less than five."""
    assert CATALOGUE[kind].is_minority
    scene = Scene(
        seed=1, workload="register", kinds=(kind,), options=draw_options(1),
        schedule=(FaultEvent(3_000.0, kind, 15_000.0, 1),), seconds=25.0, clients=6, replay="",
    )  # fmt: skip
    result = SimulatedRun(scene, lambda _: None).run()
    (verdict,) = [verdict for verdict in result.verdicts if verdict.checker == "progress"]
    assert verdict.is_valid, verdict.summary
    assert verdict.figures["watched_s"] > 20
    assert 0 < verdict.figures["longest_stop_ms"] < 5_000
