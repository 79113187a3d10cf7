"""Why processes ended that nobody stopped: by a fault that was fired, or by themselves.

A node that ends itself has seen a promise broken (an assertion, S13, an exception nobody expected).
Under real processes nothing else shows that: it is started again, and clients hardly notice.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from raftstore.faults import FAILPOINTS

EXIT_STORAGE: Final = 70
EXIT_CONFIG: Final = 78
PANIC: Final = 'event="panic"'
PORT_TAKEN: Final = "the port is in use"
"""How a node says that (`raftstore.transport.endpoints`)."""
SAID_MAX: Final = 600
"""Characters of a node's last words that are shown."""
_BROKEN_DISK: Final = os.strerror(errno.EIO)
_FULL_DISK: Final = (os.strerror(errno.ENOSPC), "no space left")
_HANGING_DISK: Final = "has not finished"
_DAMAGE: Final = ("LevelDB failed", "checksum")
"""What a running node says of its own files; at the start it names their directory."""


@dataclass(frozen=True, slots=True)
class Death:
    """One end of a process that nobody asked for, and the faults its node had met by then."""

    node: str
    code: int
    """Negative: a signal."""
    said: str
    """Its panic, or else its last words."""
    store: str
    """Where its data is: only complaints about its own files name that."""
    fired: Sequence[str] = ()
    """What orders of the fault control file did to it, other deaths' crashes left out."""
    damaged: bool = False
    """Its files were damaged, now or earlier in the run: damage may be met late."""
    is_foreign: bool = False
    """Its store is another's, or gone."""

    @property
    def cause(self) -> str | None:
        """The fault that explains it; None: it ended by itself."""
        if self.code == -signal.SIGKILL:
            return next((what for what in self.fired if what in FAILPOINTS), None)
        if self.code == EXIT_CONFIG:
            if PORT_TAKEN in self.said:
                return "another program took its port"
            return "a store that is not its own" if self.is_foreign else None
        if self.code != EXIT_STORAGE:
            return None
        if _BROKEN_DISK in self.said:
            return _BROKEN_DISK if {"write", "sync"} & set(self.fired) else None
        if any(text in self.said for text in _FULL_DISK):
            return _FULL_DISK[0] if "full" in self.fired else None
        if _HANGING_DISK in self.said:
            return "a disk that hangs" if "hang-sync" in self.fired else None
        is_of_files = self.store in self.said or any(text in self.said for text in _DAMAGE)
        return "damage to its files" if self.damaged and is_of_files else None

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.node} ended with {self.code}: {self.said or 'it said nothing'}"


@dataclass(slots=True)
class NodeWatch:
    """The ends of a run's nodes, beside what clients saw."""

    deaths: list[Death] = field(default_factory=list)
    trespasses: list[str] = field(default_factory=list)
    """Nodes that served on a store that is not theirs (S0.1)."""


def last_words(log: str) -> str:
    """The last words of a process that ended: its panic with the reason, else the end of what it
    said."""
    lines = [line for line in log.splitlines() if line.strip()]
    panics = [line for line in lines if PANIC in line]
    return (panics or lines or [""])[-1][-SAID_MAX:]
