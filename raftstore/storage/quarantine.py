"""Where damaged bytes are put aside for inspection: ``quarantine/log-0000``, ``tables-0001``, ….

Nothing reads them again. An operator may remove any of them, so a new place is numbered behind the
highest that is left, never by how many there are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from raftstore.storage.files import FileOps

QUARANTINE_DIRECTORY: Final = "quarantine"

_NUMBER: Final = re.compile(r"-([0-9]+)$")


def free_place(ops: FileOps, directory: Path, kind: str) -> Path:
    """Return a path below the quarantine of a store at which nothing is yet."""
    quarantine = directory / QUARANTINE_DIRECTORY
    ops.make_directory(quarantine, may_exist=True)
    matches = (_NUMBER.search(name) for name in ops.names(quarantine))
    highest = max((int(match[1]) for match in matches if match), default=-1)
    return quarantine / f"{kind}-{highest + 1:04d}"
