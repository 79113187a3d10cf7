"""Errors as Spark users read them: a bracketed class first, then the sentence, then the outcome.

Spark shows only the text of what a Python source raises, so the text must carry everything. The
classes and outcomes themselves are those of ``raftstore.errors``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from raftstore.errors import ConfigError, RaftstoreError, RequestError
from raftstore.types import Outcome

P = ParamSpec("P")
T = TypeVar("T")

_NAMES: Final = {
    "unknown_table": "TABLE_NOT_FOUND",
    "schema": "SCHEMA_MISMATCH",
    "request_error": "WRITE_FAILED",
}
"""Where the name users know from Spark differs from the code on the wire."""

_OUTCOMES: Final = {
    Outcome.UNKNOWN: "outcome UNKNOWN: rows may have been applied, writing them again is harmless",
    Outcome.NOT_APPLIED: "outcome NOT_APPLIED: the rows of this request were not written",
}

_ATOMIC_OUTCOMES: Final = {
    Outcome.UNKNOWN: "outcome UNKNOWN: the batch is in the table as a whole or not at all, and a "
    "start of the job that names the same writer and batch learns which",
    # Nothing about the batch itself: an attempt before this one may have written it.
    Outcome.NOT_APPLIED: "outcome NOT_APPLIED: nothing of this attempt is visible",
}
_REMEDIES: Final = {
    "batch_regression": "; an operator adopts a writer with 'raftstore writer adopt'",
    "writer_fenced": "; stop the other driver, then start this one again",
    "unavailable": "; check bootstrap.servers, and that the nodes run",
}
"""What to do, where the words of the cluster do not end with it."""


def brief(call: Callable[P, T]) -> Callable[P, T]:
    """Raise our errors without the way they took: Spark shows that first, and the sentence last.

    Errors that are not ours keep their traceback: they are mistakes, and it is all there is.
    """

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except RaftstoreError as error:
            raise error.with_traceback(None) from None

    return called


def bracketed(error: RaftstoreError, table: str, *, is_atomic: bool = False) -> RaftstoreError:
    """Return the same error with the text ``[RAFTSTORE_…] sentence (table …, outcome …)``.

    The object stays the same one, so its class and attributes do too; its traceback is cut, for
    Spark shows that first. Raise it ``from None``.
    """
    error.__traceback__ = None
    text = str(error)
    if text.startswith("["):
        return error
    if isinstance(error, ConfigError):
        error.args = (f"[RAFTSTORE_CONFIG] {text}",)
    elif isinstance(error, RequestError):
        name = _NAMES.get(error.code, error.code.upper())
        outcome = (_ATOMIC_OUTCOMES if is_atomic else _OUTCOMES)[error.outcome]
        remedy = _REMEDIES.get(error.code, "")
        error.args = (f"[RAFTSTORE_{name}] {_one_line(text)} (table {table!r}; {outcome}){remedy}",)
    else:
        error.args = (f"[RAFTSTORE_FAILED] {text} (table {table!r})",)
    return error


def _one_line(text: str) -> str:
    """Texts of nodes and systems, as one line."""
    return " ".join(text.split())


_READ_NAMES: Final = _NAMES | {"page_expired": "SNAPSHOT_EXPIRED", "request_error": "READ_FAILED"}
_NO_TABLE_REMEDY: Final = (
    "; a write in append mode with the option key creates a table, and so does 'raftstore table "
    "create'"
)
_PIN_REMEDY: Final = (
    "; a snapshot without readers is kept for the option pinLife, none for longer than the nodes' "
    "setting read.scan_pin_life_ms: read the table again, with more of either"
)


def bracketed_read(error: RaftstoreError, table: str) -> RaftstoreError:
    """Return the error of a read with the text ``[RAFTSTORE_…] sentence (table …)``.

    Its traceback is cut; raise it ``from None``.
    """
    error.__traceback__ = None
    text = str(error)
    if text.startswith("["):
        return error
    code = error.code if isinstance(error, RequestError) else ""
    name = _READ_NAMES.get(code, code.upper()) or "FAILED"
    remedies = {"SNAPSHOT_EXPIRED": _PIN_REMEDY, "TABLE_NOT_FOUND": _NO_TABLE_REMEDY}
    remedy = remedies.get(name, "")
    error.args = (f"[RAFTSTORE_{name}] {text} (table {table!r}){remedy}",)
    return error
