"""Codes on the wire become the one error that has them."""

from __future__ import annotations

import pytest

from raftstore import errors
from raftstore.client.requests.outcomes import error_of
from raftstore.errors import (
    ERRORS_BY_CODE,
    ConnectionInDoubtError,
    NoReplicaAvailableError,
    RequestError,
)
from raftstore.types import Outcome, node_id

HINT = node_id("n1", b"x" * 16)


@pytest.mark.parametrize("code", sorted(ERRORS_BY_CODE))
def test_every_code_becomes_its_error_with_message_and_hint(code: str) -> None:
    """Each error can be made from what a node sends."""
    error = error_of(code, "why", leader_hint=HINT, hosts={"n1": "dead"})
    assert type(error).code == code
    assert str(error) == "why"
    assert error.leader_hint == HINT


def test_every_request_error_has_a_code_of_its_own() -> None:
    """No error that a node may answer with is missing from the table."""
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, RequestError)
        and kind not in (RequestError, errors.PartialWriteError)
    ]
    assert {kind.code: kind for kind in kinds} == ERRORS_BY_CODE


def test_reasons_per_node_survive() -> None:
    """Query errors keep one reason per node."""
    error = error_of("no_replica_available", "why", hosts={"n1": "dead"})
    assert isinstance(error, NoReplicaAvailableError)
    assert error.hosts == {"n1": "dead"}


def test_unknown_code_is_unknown_and_final() -> None:
    """Nothing is concluded from a code of another version, and nothing is tried again."""
    error = error_of("purple", "why")
    assert isinstance(error, ConnectionInDoubtError)
    assert error.outcome is Outcome.UNKNOWN
    assert not error.retriable
