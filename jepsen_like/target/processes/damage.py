"""Damage to the files of a store that nobody has open."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from jepsen_like.target.base import FaultUnavailableError

PATTERNS: Final = {
    "log": "log/*.log",
    "table": "tables/*/*.ldb",
    "wal": "tables/*/*.log",
    "manifest": "tables/*/MANIFEST-*",
    "current": "tables/*/CURRENT",
    "owner": "tables/raftstore-store",
    "mark": "mark",
    "identity": "raftstore.json",
}
KINDS: Final = ("flip", "truncate", "zero", "torn", "garbage", "misdirect", "append", "delete")
SECTOR_BYTES: Final = 512
PAGE_BYTES: Final = 4096
TORN_BYTES_MAX: Final = 200


def damage_file(store: Path, *, kind: str, file: str, rng: random.Random) -> str:
    """Damage one file of the store; return what was done. FaultUnavailableError: no such file.

    flip: one bit. truncate: cut anywhere. torn: lose the last bytes. zero: an empty page. garbage:
    a random sector. misdirect: a sector of another place. append: garbage behind. delete: gone.
    """
    if file not in PATTERNS or kind not in KINDS:
        raise FaultUnavailableError(
            f"there is no damage {kind} of {file}; kinds are {', '.join(KINDS)}, "
            f"files {', '.join(PATTERNS)}"
        )
    found = [path for path in sorted(store.glob(PATTERNS[file])) if path.stat().st_size]
    if not found:
        raise FaultUnavailableError(f"{store} has no {PATTERNS[file]} with content yet")
    path = rng.choice(found)
    if kind == "delete":
        path.unlink()
        return f"delete of {path.name}"
    data = bytearray(path.read_bytes())
    # The mark is allocated ahead of its end: hit what was written.
    end = len(data.rstrip(b"\0")) or len(data)
    at = _harm(data, kind, end, rng)
    path.write_bytes(data)
    return f"{kind} of {path.name} at byte {at} of {end}"


def _harm(data: bytearray, kind: str, end: int, rng: random.Random) -> int:
    """Change the bytes in place; return where. ``end``: behind the last byte that says anything."""
    at = rng.randrange(end)
    sector = slice(at, min(at + SECTOR_BYTES, len(data)))
    if kind == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "truncate":
        del data[at:]
    elif kind == "torn":
        at = end - min(end, rng.randint(1, TORN_BYTES_MAX))
        del data[at:]
    elif kind == "zero":
        size = min(PAGE_BYTES, len(data) - at)
        data[at : at + size] = bytes(size)
    elif kind == "garbage":
        data[sector] = rng.randbytes(len(data[sector]))
    elif kind == "misdirect":
        source = rng.randrange(end)
        moved = data[source : source + len(data[sector])]
        data[at : at + len(moved)] = moved
    else:
        at = len(data)
        data += rng.randbytes(rng.randint(1, SECTOR_BYTES))
    return at
