"""The checkers of sums and of equal replicas."""

from __future__ import annotations

import pytest

from jepsen_like.checker.bank import check_bank
from jepsen_like.checker.replicas import check_replicas
from jepsen_like.checker.verdict import Validity
from jepsen_like.history import Operation
from jepsen_like.workload.base import Run
from raftstore.types import Outcome


@pytest.mark.parametrize(
    ("balances", "validity"),
    [
        ({"a": 4, "b": 6}, Validity.VALID),
        ({"a": 4, "b": 5}, Validity.INVALID),
        ({"a": -1, "b": 11}, Validity.INVALID),
        ({}, Validity.INVALID),
    ],
)
def test_bank_judges_sum_and_sign(balances: dict[str, int], validity: Validity) -> None:
    """A read with another sum, or with a negative balance, is INVALID and named."""
    read = Operation("c1", "read", returned=1, outcome=Outcome.OK, result=balances)
    verdict = check_bank([read], 10)
    assert verdict.validity is validity
    assert verdict.culprit is (read if validity is Validity.INVALID else None)


def test_bank_is_undecided_when_nothing_was_read() -> None:
    """A history without an answered read proves nothing."""
    assert check_bank([Operation("c1", "read")], 10).validity is Validity.UNDECIDED


@pytest.mark.parametrize(
    ("nodes", "validity"),
    [
        ({"n1": "x", "n2": "x"}, Validity.VALID),
        ({"n1": "x", "n2": "y"}, Validity.INVALID),
        ({}, Validity.UNDECIDED),
    ],
)
def test_replicas_compares_hashes(nodes: dict[str, str], validity: Validity) -> None:
    """Replicas that differ are INVALID; a channel without hashes is not called equal."""
    assert check_replicas(Run([], replica_hashes={("t", 0): nodes})).validity is validity
