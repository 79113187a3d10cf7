"""The observation of one operation, in plain values."""

from __future__ import annotations

from enum import StrEnum
from hashlib import blake2b
from typing import Any, Final, NamedTuple

KEY_HASH_BYTES: Final = 8
ROW_HASH_BYTES: Final = 16
NO_ROW: Final = b""


class Action(StrEnum):
    """The kind of an operation."""

    GET = "get"
    PUT = "put"
    DELETE = "delete"
    CHECK = "check"
    """A read of the audit itself, at another replica."""


WRITES: Final = frozenset((Action.PUT, Action.DELETE))


class Observation(NamedTuple):
    """One operation on one key, as one process saw it; times in ms of one clock that never goes
    back. A write is only observed when it was acknowledged: what became of any other is unknown,
    and unknown proves nothing."""

    action: Action
    key: bytes
    """Its hash (``hash_of_key``): rows of users stay out of evidence."""
    began_ms: float
    ended_ms: float
    seq: int
    """Of a read the position of the state that was read, of a write that of its record."""
    version: int
    """Seq of the record that wrote the row; 0: there is no row."""
    row: bytes
    """Hash of the row; ``NO_ROW``: there is none."""
    node: str = ""
    """Which node answered."""
    term: int = 0
    level: str = ""
    staleness_ms: int | None = None
    """As stated: what was committed longer ago than this is in the state."""
    lag: int | None = None
    """As stated, in rows."""
    min_seq: int = 0
    """Asked for: the state holds this position."""
    max_staleness_ms: int | None = None
    max_lag: int | None = None

    def shown(self) -> dict[str, Any]:
        """Return it as JSON has it, without what says nothing."""
        shown: dict[str, Any] = {
            name: value
            for name, value in zip(self._fields, self, strict=True)
            if value is not None and value != "" and not (name == "min_seq" and value == 0)
        }
        shown["key"], shown["row"] = self.key.hex(), self.row.hex()
        shown["began_ms"], shown["ended_ms"] = round(self.began_ms, 3), round(self.ended_ms, 3)
        return shown


def hash_of_key(key: bytes) -> bytes:
    """Return what stands for an encoded key in evidence; equal on all machines."""
    return blake2b(key, digest_size=KEY_HASH_BYTES).digest()


def hash_of_row(sealed: bytes | None) -> bytes:
    """Return what stands for a sealed row."""
    return NO_ROW if sealed is None else blake2b(sealed, digest_size=ROW_HASH_BYTES).digest()
