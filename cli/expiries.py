"""Expiries of rows in files: written by exports beside the columns, and taken by imports.

A line has a member ``$expires`` beside the columns of the row, a Parquet file such a column of
timestamps. Null says that the row does not expire, whatever ttl the table has that it comes into;
without the member the table's ttl counts, as for every row that is written without one. Files of
tables without lifetimes have none of it, and are as they always were. A column that is itself named
so has one more ``$`` in lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from raftstore.errors import SchemaError
from raftstore.protocol.lifetimes import TTL_MS_MAX

EXPIRES: Final = "$expires"
FOR_EVER: Final = 0
"""The row does not expire."""
NOT_STATED: Final = -1
"""The file says nothing of it."""
_ESCAPED: Final = re.compile(r"\$+expires")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def line_of(columns: Mapping[str, Any], expires_ms: int) -> dict[str, Any]:
    """Return the members of a row's line; ``columns``: its values as JSON has them."""
    line = {f"${name}" if _ESCAPED.fullmatch(name) else name: columns[name] for name in columns}
    if expires_ms != NOT_STATED:
        line[EXPIRES] = None if expires_ms == FOR_EVER else moment_text(expires_ms)
    return line


def columns_of_line(line: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the columns of a line, and when the row expires; SchemaError for what is no moment."""
    columns = {
        name[1:] if _ESCAPED.fullmatch(name) else name: value
        for name, value in line.items()
        if name != EXPIRES
    }
    if EXPIRES not in line:
        return columns, NOT_STATED
    return columns, FOR_EVER if line[EXPIRES] is None else parse_moment(line[EXPIRES])


def moment_text(expires_ms: int) -> str:
    """Return a moment as files have it: ``2026-12-01T00:00:00.000Z``."""
    moment = _EPOCH + expires_ms * _MILLISECOND
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def parse_moment(given: Any) -> int:
    """Return a moment in ms since 1970, at least 1; SchemaError when it is none."""
    wanted = "give a moment as 2026-12-01T00:00:00Z, or null for a row that does not expire"
    if not isinstance(given, str):
        raise SchemaError(f"{EXPIRES} {given!r:.60} is no text; {wanted}")
    try:
        moment = datetime.fromisoformat(given)
    except ValueError as error:
        raise SchemaError(f"{EXPIRES} {given!r:.60} is no moment ({error}); {wanted}") from error
    if moment.tzinfo is None:
        raise SchemaError(f"{EXPIRES} {given!r:.60} has no time zone; {wanted}")
    return max(1, (moment - _EPOCH) // _MILLISECOND)


def ttl_of(expires_ms: int, now_ms: int) -> int | None:
    """Return how long a row lives from now on; None: as the table says, 0: for ever, below 0: it
    has expired. SchemaError when it would live longer than any row may."""
    if expires_ms == NOT_STATED:
        return None
    if expires_ms == FOR_EVER:
        return 0
    left_ms = expires_ms - now_ms
    if left_ms > TTL_MS_MAX:
        raise SchemaError(
            f"{EXPIRES} {moment_text(expires_ms)} is more than "
            f"{TTL_MS_MAX // (366 * 24 * 3_600_000)} years ahead; rows that live longer do not "
            "expire, which null says"
        )
    return left_ms if left_ms > 0 else -1
