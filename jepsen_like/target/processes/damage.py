"""Damage to the files of a store that nobody has open."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from jepsen_like.target.base import FaultUnavailableError

PATTERNS: Final = {
    "log": "log/*.log",
    "table": "tables/*.ldb",
    "wal": "tables/*.log",
    "manifest": "tables/MANIFEST-*",
    "current": "tables/CURRENT",
    "mark": "mark",
    "identity": "raftstore.json",
}
KINDS: Final = ("flip", "truncate", "zero", "torn")
TORN_BYTES_MAX: Final = 200


def damage_file(store: Path, *, kind: str, file: str, rng: random.Random) -> str:
    """Damage one file of the store; return what was done. FaultUnavailableError: no such file."""
    if file not in PATTERNS or kind not in KINDS:
        raise FaultUnavailableError(
            f"there is no damage {kind} of {file}; kinds are {', '.join(KINDS)}, "
            f"files {', '.join(PATTERNS)}"
        )
    found = [path for path in sorted(store.glob(PATTERNS[file])) if path.stat().st_size]
    if not found:
        raise FaultUnavailableError(f"{store} has no {PATTERNS[file]} with content yet")
    path = rng.choice(found)
    data = bytearray(path.read_bytes())
    # The log is allocated ahead of its end on some systems: hit what was written.
    end = len(data.rstrip(b"\0")) or len(data)
    at = rng.randrange(end)
    if kind == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "truncate":
        del data[at:]
    elif kind == "torn":
        at = end - min(end, rng.randint(1, TORN_BYTES_MAX))
        del data[at:]
    else:
        size = min(4096, len(data) - at)
        data[at : at + size] = bytes(size)
    path.write_bytes(data)
    return f"{kind} of {path.name} at byte {at} of {end}"
