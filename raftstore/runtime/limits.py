"""Limits that the operating system sets to a process."""

from __future__ import annotations

import resource
from typing import Final

FILES_BESIDE_CLIENTS: Final = 512
"""Open files of a node beside its clients: log segments, LevelDB's tables, peers."""


def raise_open_files(wanted: int) -> int:
    """Raise the soft limit of open files to ``wanted`` as far as the hard one allows.

    Returns the limit in force then; it is never lowered.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= wanted:
        return wanted if soft == unlimited else soft
    reachable = wanted if hard == unlimited else min(wanted, hard)
    if reachable > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
        return reachable
    return soft
