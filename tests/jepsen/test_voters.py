"""The voters over the time of a run, and what that makes of a stop: majorities of then, not of the
end."""

from __future__ import annotations

from typing import Any

import pytest

from jepsen_like.checker.progress import check_progress
from jepsen_like.checker.voters import VoterSets
from jepsen_like.history import Operation
from jepsen_like.workload.base import Run
from raftstore.types import Outcome

SECOND = 1_000_000_000
T0 = ("t", 0)
TRIO, PAIR, QUAD = (frozenset(names.split()) for names in ("n1 n2 n3", "n1 n2", "n1 n2 n3 n4"))
HASHES = {T0: {"n1": "h", "n2": "h", "n3": "h"}}


def looked(*looks: tuple[int, tuple[frozenset[str], ...]]) -> VoterSets:
    """Looks at these seconds, and what they saw."""
    voters = VoterSets()
    for at, groups in looks:
        voters.note(T0, at * SECOND, groups)
    return voters


def deciding(voters: VoterSets, *names: str, end: int = 40) -> list[tuple[int, int]]:
    """Seconds in which these nodes, and no fewer, could decide alone."""
    found = voters.deciding(T0, end * SECOND)
    return [(a // SECOND, b // SECOND) for group, a, b in found if group == frozenset(names)]


def test_change_is_taken_for_begun_at_the_look_before() -> None:
    """A set that was seen first may have decided since somebody looked last, with the old one."""
    voters = looked((5, (TRIO,)), (9, (TRIO,)), (10, (QUAD,)))
    assert deciding(voters, "n1", "n2") == [(0, 9)]
    assert deciding(voters, "n1", "n2", "n3") == [(0, 40)]
    assert deciding(voters, "n1", "n2", "n4") == [(0, 40)]
    assert deciding(voters, "n1", "n4") == []


def test_while_two_sets_may_decide_a_majority_of_each_is_needed() -> None:
    """As in a joint configuration, or while an order is open; looks that follow at once count,
    too."""
    voters = looked((1, (TRIO,)), (2, (TRIO, PAIR)), (3, (PAIR,)), (4, (TRIO,)))
    assert deciding(voters, "n1", "n3") == [(0, 1), (4, 40)]
    assert deciding(voters, "n1", "n2") == [(0, 40)]


def test_look_that_no_replica_answered_says_nothing() -> None:
    """No partition is without voters."""
    voters = looked((1, (TRIO,)), (2, ()), (3, (TRIO,)))
    assert T0 in voters
    assert deciding(voters, "n2", "n3") == [(0, 40)]
    assert ("t", 1) not in voters


def calls(silent: range) -> list[Operation]:
    """A strong read a second, not answered in these seconds."""
    return [
        Operation(
            "c1", "get", "k", None, at * SECOND, None if at in silent else at * SECOND + 1,
            Outcome.UNKNOWN if at in silent else Outcome.OK, None,
            {"table": "t", "positions": [] if at in silent else [[0, 1]]},
        )
        for at in range(40)
    ]  # fmt: skip


def down(node: str, started: int, ended: int) -> dict[str, Any]:
    """A node that a fault of a minority hits."""
    return {
        "kind": "made-up", "started": started * SECOND, "ended": ended * SECOND, "fired": True,
        "is_minority": True, "nodes": [node], "links": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("looks", "node", "is_blamed"),
    [
        (((5, (PAIR,)),), "n2", False),
        (((5, (PAIR,)),), "n3", True),
        (((5, (TRIO,)),), "n2", True),
        (((5, (TRIO,)), (9, (PAIR,)), (30, (TRIO,))), "n2", False),
        (((5, (TRIO,)), (9, (TRIO, PAIR)), (12, (TRIO,))), "n2", True),
    ],
)
def test_stop_is_blamed_on_majorities_of_those_who_voted_then(
    looks: tuple[tuple[int, tuple[frozenset[str], ...]], ...], node: str, is_blamed: bool
) -> None:
    """Of two voters both are needed, though three have replicas in the end; a change that is over
    excuses nothing."""
    run = Run(calls(range(12, 22)), {}, HASHES, [down(node, 11, 23)], voters=looked(*looks))
    assert bool(check_progress(run).figures["stopped"]) is is_blamed


def test_partition_whose_members_stay_is_judged_by_its_replicas() -> None:
    """Voters of one partition say nothing of another's."""
    voters = VoterSets()
    voters.note(("t", 1), 0, (PAIR,))
    run = Run(calls(range(12, 22)), {}, HASHES, [down("n2", 11, 23)], voters=voters)
    assert check_progress(run).figures["stopped"]
