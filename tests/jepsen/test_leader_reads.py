"""The checker of reads at level leader."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jepsen_like.checker.leader_reads import check_leader_reads
from jepsen_like.checker.verdict import Validity
from jepsen_like.history import Operation
from raftstore.types import Outcome


def put(
    at: int, value: int, seq: int, term: int = 1, *, who: str = "c1", is_known: bool = True
) -> Operation:
    """A write of the process's own key."""
    details = {"table": "t", "positions": [[0, seq]], "term": term} if is_known else {"table": "t"}
    outcome = Outcome.OK if is_known else Outcome.UNKNOWN
    return Operation(who, "put", who, value, at, at + 1, outcome, details=details)


def get(
    at: int, value: int | None, seq: int, applied: int, term: int = 1, *, level: str = "leader"
) -> Operation:
    """A read of it, of the row as of ``seq``, in the state at ``applied``."""
    details = {
        "table": "t", "positions": [[0, applied]], "term": term, "seqs": [seq], "level": level,
    }  # fmt: skip
    return Operation("c1", "get", "c1", None, at, at + 1, Outcome.OK, value, details)


PUT = put(0, 1, 10)


@pytest.mark.parametrize(
    ("history", "validity", "found"),
    [
        ([PUT, get(5, 1, 10, 12)], Validity.VALID, None),
        ([PUT, get(5, 1, 10, 9)], Validity.INVALID, "position"),
        ([PUT, get(5, None, 0, 12)], Validity.INVALID, "value"),
        ([PUT, put(2, 2, 11), get(5, 1, 10, 12)], Validity.INVALID, "value"),
        ([put(0, 0, 9, is_known=False), PUT, get(5, 0, 9, 12)], Validity.INVALID, "value"),
        # A deposed leader may miss what its successor acknowledged, and nothing of its own term.
        ([PUT, put(2, 2, 11, term=2), get(5, 1, 10, 10)], Validity.VALID, None),
        ([PUT, put(2, 2, 11, term=2), get(5, None, 0, 9)], Validity.INVALID, "position"),
        ([PUT, get(5, None, 0, 9, term=2)], Validity.INVALID, "position"),
        ([put(0, 1, 10, term=2), get(5, None, 0, 9, term=1)], Validity.UNDECIDED, None),
        # What was given up may be applied late; it is newer then.
        ([put(0, 0, 0, is_known=False), PUT, get(5, 0, 11, 12)], Validity.VALID, None),
        # Others' writes, writes after the read, and other levels are judged elsewhere.
        ([put(0, 1, 10, who="c2"), get(5, None, 0, 9)], Validity.UNDECIDED, None),
        ([get(0, None, 0, 9), put(5, 1, 10)], Validity.UNDECIDED, None),
        ([PUT, get(5, None, 0, 9, level="any")], Validity.UNDECIDED, None),
        ([], Validity.UNDECIDED, None),
    ],
)
def test_read_at_the_leader_shows_what_its_session_was_acknowledged(
    history: list[Operation], validity: Validity, found: str | None
) -> None:
    """S7.0: neither the state nor the row is older than the acknowledged writes of the session."""
    verdict = check_leader_reads(history)
    assert verdict.validity is validity
    kinds = [kind for kind in ("position", "value") if verdict.figures[kind]]
    assert kinds[:1] == ([found] if found else [])


PLANTED = """
import random
from tests.mutations.catalogue import mutation_named
from tests.mutations.source_patch import install

install(mutation_named("S7.0-leader").edits)

from jepsen_like.runner import SimulatedRun
from jepsen_like.scene import Scene
from jepsen_like.schedule import draw_schedule
from jepsen_like.target import sim_client
from raftstore.testing.options import draw_options

SEED = 3
sim_client.check_leader_read = lambda *told: None
faults = ("slow-disk", "pause-follower")
schedule = draw_schedule(random.Random(SEED), faults, until_ms=3_000, pause_ms=600)
scene = Scene(SEED, "leader_sessions", faults, draw_options(SEED), schedule, 4.0, 6, "")
result = SimulatedRun(scene, lambda _: None).run()
print(*[verdict.checker for verdict in result.verdicts if not verdict.is_valid])
"""


@pytest.mark.slow
def test_checker_alone_catches_a_leader_that_does_not_wait_for_what_it_acknowledged() -> None:
    """On real nodes there is no oracle beside it: here the world's own is switched off."""
    done = subprocess.run(
        [sys.executable, "-c", PLANTED], capture_output=True, text=True, check=True, timeout=120
    )
    assert "leader_reads" in done.stdout.split()
