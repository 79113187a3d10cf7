"""Errors as Spark users read them: a bracketed class first, then the sentence, then the outcome.

Spark shows only the text of what a Python source raises, so the text must carry everything. The
classes and outcomes themselves are those of ``raftstore.errors``.
"""

from __future__ import annotations

from typing import Final

from raftstore.errors import ConfigError, RaftstoreError, RequestError
from raftstore.types import Outcome

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


def bracketed(error: RaftstoreError, table: str) -> RaftstoreError:
    """Return the same error with the text ``[RAFTSTORE_…] sentence (table …, outcome …)``.

    The object stays the same one, so its class, attributes and traceback do too.
    """
    text = str(error)
    if text.startswith("["):
        return error
    if isinstance(error, ConfigError):
        error.args = (f"[RAFTSTORE_CONFIG] {text}",)
    elif isinstance(error, RequestError):
        name = _NAMES.get(error.code, error.code.upper())
        outcome = _OUTCOMES[error.outcome]
        error.args = (f"[RAFTSTORE_{name}] {text} (table {table!r}; {outcome})",)
    else:
        error.args = (f"[RAFTSTORE_FAILED] {text} (table {table!r})",)
    return error
