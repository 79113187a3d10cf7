"""Runs what a guard names, in a process whose sources may be broken.

Nothing of raftstore is imported before a guard is run: the patches are in effect by then.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutations.guard import Chaos, ClientWorlds, DiskRuns, Drawn, Worlds

_RULE = re.compile(r"\b(O[1-6]|S\d+(?:\.\d+)?)\b")


class SuiteError(Exception):
    """A guard did not run, so that nothing was shown."""


@dataclass(frozen=True, slots=True)
class Told:
    """The report of one run; both fields are None when every promise was kept."""

    violation: str | None = None
    by: str | None = None
    """The oracle or checker that saw it."""


def run_guard(guard: Drawn, seed: int) -> Told:
    """Run it once; SuiteError when it could not run."""
    match guard:
        case Worlds(options, _):
            return _run_world(seed, dict(options))
        case Chaos():
            return _run_chaos(guard, seed)
        case ClientWorlds(options, _):
            from tests.mutations.client_world import run_client_world

            return _judged(run_client_world(seed, dict(options)))
        case DiskRuns():
            from tests.mutations.disk_run import run_disk_run

            return _judged(run_disk_run(seed))


def _run_world(seed: int, changes: dict[str, str]) -> Told:
    from raftstore.testing.campaign import run_seed

    return _judged(run_seed(seed, changes).violation)


FAULT_PAUSE_S: Final = 0.6
"""Dense: a bug has little time to show itself."""


def _run_chaos(guard: Chaos, seed: int) -> Told:
    from jepsen_like.checker.verdict import Validity
    from jepsen_like.plan import Plan
    from jepsen_like.session import run_plan

    with tempfile.TemporaryDirectory(prefix="raftstore-mutations-") as directory:
        plan = Plan(
            guard.workload, guard.nemeses, "simulated", guard.seconds, seed, guard.clients,
            Path(directory), fault_pause_s=FAULT_PAUSE_S,
        )  # fmt: skip
        try:
            result = run_plan(plan, lambda _line: None)
        except Exception as error:  # noqa: BLE001 - broken code may raise anything
            return _judged(f"{type(error).__name__} in the code under test: {error}")
    if not result.history:
        # A bug of births is no answer to what the checkers of clients can see.
        told = "; ".join(verdict.summary for verdict in result.verdicts[:1])
        raise SuiteError(f"the run ended before its clients did anything: {told}")
    wrong = [verdict for verdict in result.verdicts if verdict.validity is Validity.INVALID]
    if not wrong:
        return Told()
    if any(verdict.checker == "oracle" for verdict in wrong):
        # The world ended where the oracle saw it: nothing had the time to become right again.
        wrong = [verdict for verdict in wrong if verdict.checker not in ("replicas", "progress")]
    # What clients saw says more than what the oracle saw inside.
    wrong.sort(key=lambda verdict: verdict.checker == "oracle")
    names = [
        _oracle_of(verdict.summary) if verdict.checker == "oracle" else verdict.checker
        for verdict in wrong
    ]
    return Told(f"{wrong[0].checker}: {wrong[0].summary}", ", ".join(names))


def _judged(violation: str | None) -> Told:
    return Told() if violation is None else Told(violation, _oracle_of(violation))


def _oracle_of(violation: str) -> str:
    """The promise that a violation names: O1 to O6, a rule, or what the code itself asserted."""
    if "in the code under test" in violation:
        return violation.partition(" in the code under test")[0]
    found = _RULE.search(violation)
    return "oracle" if found is None else found.group(1)
