"""Every error has one place, one code, one exit code; none of another library's gets through."""

from __future__ import annotations

import inspect
import re

import plyvel
import pytest

from raftstore import errors
from raftstore.cli.errors import exit_code
from raftstore.client.requests.outcomes import error_of
from raftstore.errors import ERRORS_BY_CODE, refusal_by_code
from raftstore.protocol.message import failed
from raftstore.storage.tables.leveldb_database import DATABASE_ERRORS
from raftstore.types import NodeId, Outcome

ALL = [
    found
    for found in vars(errors).values()
    if inspect.isclass(found) and issubclass(found, errors.RaftstoreError)
]
REQUEST_ERRORS = [found for found in ALL if issubclass(found, errors.RequestError)]
DOCUMENTED_EXIT_CODES = {2, 3, 4, 5, 9, 70, 78}
"""Those an error may end with; 0, 1 (no such row), 7 and 8 are answers."""


def make(cls: type[errors.RaftstoreError]) -> errors.RaftstoreError:
    """An instance of any of our errors."""
    if cls is errors.PartialWriteError:
        return errors.PartialWriteError("why", applied=[0], not_applied=[1], unknown=[])
    return cls("why")


def test_errors_are_defined_in_one_place() -> None:
    """No room has an error of its own that a caller could not catch by the documented tree."""
    for cls in _tree(errors.RaftstoreError):
        if cls.__module__.startswith("raftstore."):
            assert cls.__module__ == errors.__name__


def test_drawn_tree_names_every_error() -> None:
    """The drawing at the top of errors.py is the reference of docs and readers."""
    drawn = set(re.findall(r"\b([A-Z]\w*Error)\b", errors.__doc__ or ""))
    assert {cls.__name__ for cls in ALL} <= drawn
    assert drawn - {cls.__name__ for cls in ALL} == {"ValueError"}


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_error_has_a_documented_exit_code(cls: type[errors.RaftstoreError]) -> None:
    """Scripts decide by the exit code, so every error maps to one of the table."""
    assert exit_code(make(cls)) in DOCUMENTED_EXIT_CODES


@pytest.mark.parametrize("cls", REQUEST_ERRORS, ids=lambda cls: cls.__name__)
def test_request_error_survives_the_wire(cls: type[errors.RequestError]) -> None:
    """A code names exactly one class, so the client raises what the node meant."""
    same_code = [other for other in REQUEST_ERRORS if other.code == cls.code]
    assert same_code == [cls]
    if cls in (errors.RequestError, errors.PartialWriteError):
        assert cls.code not in ERRORS_BY_CODE, "concluded by the client, never received"
    else:
        assert type(error_of(cls.code, "why")) is cls


@pytest.mark.parametrize("cls", REQUEST_ERRORS, ids=lambda cls: cls.__name__)
def test_request_error_in_doubt_exits_with_3(cls: type[errors.RequestError]) -> None:
    """UNKNOWN is never turned into "refused" by a script's eyes (S4)."""
    error = make(cls)
    assert isinstance(error, errors.RequestError)
    assert (exit_code(error) == 3) == (error.outcome is Outcome.UNKNOWN)


def test_unknown_code_is_in_doubt() -> None:
    """A newer node's refusal proves nothing about the write (S4)."""
    error = error_of("invented", "why")
    assert error.outcome is Outcome.UNKNOWN
    assert not error.retriable


def test_storage_translates_every_error_of_leveldb() -> None:
    """An error of plyvel that the store does not catch would not stop the node (S0.4)."""
    raised = [
        found
        for found in vars(plyvel).values()
        if inspect.isclass(found) and issubclass(found, Exception)
    ]
    assert len(raised) >= 3
    assert [found for found in raised if not issubclass(found, DATABASE_ERRORS)] == []


def _tree(cls: type[errors.RaftstoreError]) -> list[type[errors.RaftstoreError]]:
    return [cls, *(below for child in cls.__subclasses__() for below in _tree(child))]


@pytest.mark.parametrize("code", sorted(ERRORS_BY_CODE))
def test_every_error_travels_by_its_own_code(code: str) -> None:
    """A refusal is made of the class, named by its code, and the caller raises that class again."""
    told = refusal_by_code(code, "why")
    answer = failed(7, told.error, told.text, leader_hint=NodeId("n2"))
    assert (answer.request_id, answer.code, answer.message) == (7, code, "why")
    raised = error_of(answer.code, answer.message, leader_hint=answer.leader_hint)
    assert (type(raised), raised.leader_hint) == (ERRORS_BY_CODE[code], "n2")
