"""Power loss without root: take back what a killed node wrote and never synced.

The node keeps a journal of its unsynced writes (``raftstore.storage.faulty_files``). After the kill
each file loses them as a disk without power may: all of them, all but a first few (the last of
those torn), or any of them, which leaves holes. LevelDB's write-ahead logs are never synced: any
end of one may go. What LevelDB syncs itself (tables, MANIFEST) stays.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Final

KEEP: Final = ("none", "first", "any", "all")


def lose_unsynced(journal: Path, store: Path, rng: random.Random) -> list[str]:
    """Do that to the store of a dead node, and empty its journal; return what was lost."""
    pending: dict[str, list[dict[str, Any]]] = {}
    for text in journal.read_bytes().splitlines():
        line = json.loads(text)
        if "synced" in line:
            pending.pop(line["synced"], None)
        else:
            pending.setdefault(line["path"], []).append(line)
    said = []
    for name, writes in sorted(pending.items()):
        path = Path(name)
        if path.exists():
            said += _take_back(path, writes, rng)
    for path in sorted((store / "tables").glob("*/*.log")):
        said += _cut(path, rng)
    journal.write_bytes(b"")
    return said


def _take_back(path: Path, writes: list[dict[str, Any]], rng: random.Random) -> list[str]:
    data = bytearray(path.read_bytes())
    written = [bytes(data[each["at"] : each["at"] + each["length"]]) for each in writes]
    for each in reversed(writes):
        old = bytes.fromhex(each["old"])
        data[each["at"] : each["at"] + len(old)] = old
    del data[writes[0]["size"] :]
    keep = rng.choice(KEEP)
    first = rng.randrange(len(writes)) if keep == "first" else len(writes)
    lost = 0
    for number, (each, new) in enumerate(zip(writes, written, strict=True)):
        kept = new
        if keep == "none" or number > first or (keep == "any" and rng.random() < 0.5):
            kept = b""
        elif number == first:
            kept = new[: rng.randrange(len(new) + 1)]
        lost += len(new) - len(kept)
        if kept:
            data.extend(bytes(max(0, each["at"] - len(data))))
            data[each["at"] : each["at"] + len(kept)] = kept
    path.write_bytes(data)
    return [f"{path.name}: {lost} bytes of {len(writes)} writes"] if lost else []


def _cut(path: Path, rng: random.Random) -> list[str]:
    size = path.stat().st_size
    keep = rng.choice((size, rng.randint(0, size)))
    with path.open("r+b") as file:
        file.truncate(keep)
    return [f"{path.name}: {size - keep} bytes"] if keep < size else []
