"""Faults on purpose: crash points, a disk that fails and a clock that is off, for tests of a node.

Nothing here does anything unless the environment variable ``RAFTSTORE_FAULT_INJECTION`` names a
control file when the node starts; the node then says so in its log. The file holds one JSON object
(see ``Orders``) and is read again whenever it changes. What fired is appended to the file's
namesake with ``.fired``: ``<number> <what>`` a line, at the first time; an order to crash or to
fail once stays spent over restarts.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VARIABLE: Final = "RAFTSTORE_FAULT_INJECTION"
FAILPOINTS: Final = (
    "log.before-write",
    "log.before-sync",
    "log.after-sync",
    "vote.before-sync",
    "vote.after-sync",
    "mark.before-write",
    "mark.after-sync",
    "log.before-truncate",
    "segment.before-start",
    "floor.before-mark",
    "floor.before-unlink",
    "merge.before",
    "merge.after",
    "barrier.before-flush",
    "barrier.after-flush",
    "table.before-apply",
    "table.after-apply",
    "batch.after-begin",
    "batch.before-decide",
    "batch.after-decide",
    "batch.first-slice",
    "batch.mid-slice",
    "batch.before-last-slice",
    "batch.after-apply",
    "batch.before-ack",
    "ack.before-send",
    "ack.after-send",
    "catch-up.before-store",
    "catch-up.after-store",
    "files.before-link",
    "files.after-link",
    "copy.before-write",
    "copy.after-file",
    "copy.before-sync",
    "copy.after-sync",
    "copy.before-switch",
    "copy.after-switch",
    "join.before-claim",
    "join.before-record",
    "join.after-record",
    "replica.after-open",
    "replica.before-delete",
    "replica.before-drop",
)
"""Every name ``reach`` is called with."""
MOVES: Final = ("join.", "replica.")
"""How those begin that nodes pass where members change."""
HANGING_LOOK_S: Final = 0.02
"""How often an operation that hangs looks whether it may go on."""


@dataclass(frozen=True, slots=True)
class Orders:
    """Contents of the control file; every key may be missing."""

    number: int = 0
    """Of the order to crash, to fail, to hang or to be slow or full: a new number makes it new."""
    crash_at: str = ""
    """The process kills itself the next time it passes this failpoint."""
    fail: str = ""
    """"write" or "sync": such a call fails with EIO."""
    is_sticky: bool = False
    """All of them fail, also after a restart; otherwise the next one only."""
    is_full: bool = False
    """Every write fails with ENOSPC."""
    sync_delay_ms: float = 0.0
    hang: str = ""
    """"sync" or "apply": every sync of the log, or every write of the tables, does not return for
    as long as this is asked for; also after a restart."""
    clock_number: int = 0
    """A new number makes the next two new."""
    clock_jump_ms: float = 0.0
    clock_rate: float = 1.0
    level: int | None = None
    """The node reports this level when it starts, and reads no more than that version did."""
    power_losses: int = 0
    """Another number after each loss of its machine's power, which has started anew since."""


class SkewedClock:
    """A clock that follows orders: one that may go back (wall) or one that never does."""

    def __init__(self, *, may_go_back: bool) -> None:
        self._may_go_back = may_go_back
        self._number = 0
        self._real: float | None = None
        self._shown = 0.0
        self._rate = 1.0

    def read(self, real_ms: float, orders: Orders) -> int:
        """The time shown when it is ``real_ms``."""
        if self._real is None:
            self._real = self._shown = real_ms
        shown = self._shown + (real_ms - self._real) * self._rate
        if orders.clock_number != self._number:
            jump = orders.clock_jump_ms
            shown = real_ms + jump if self._may_go_back else shown + max(0.0, jump)
            self._number, self._rate = orders.clock_number, orders.clock_rate
            self._real, self._shown = real_ms, shown
        return int(shown)


class Injector:
    """Carries orders out; thread-safe."""

    def __init__(self, control: Path) -> None:
        self._control = control
        self._fired = self.beside(".fired")
        self._lock = threading.Lock()
        self._stamp = (0, 0)
        self._orders = Orders()
        self._monotonic = SkewedClock(may_go_back=False)
        self._wall = SkewedClock(may_go_back=True)
        self._spent = set(self._lines())

    def beside(self, suffix: str) -> Path:
        """The control file's namesake with this ending."""
        return self._control.with_name(self._control.name + suffix)

    def orders(self) -> Orders:
        """The faults asked for now; a missing file asks for none."""
        try:
            facts = self._control.stat()
        except FileNotFoundError:
            return Orders()
        stamp = (facts.st_mtime_ns, facts.st_ino)
        if stamp != self._stamp:
            self._orders = Orders(**json.loads(self._control.read_text(encoding="utf-8")))
            self._stamp = stamp
        return self._orders

    def reach(self, failpoint: str) -> None:
        """Die here if that is what is asked for."""
        orders = self.orders()
        if orders.crash_at == failpoint and self._is_first(orders.number, failpoint):
            os.kill(os.getpid(), signal.SIGKILL)

    def before_write(self) -> None:
        """Raise the OSError a write shall meet."""
        orders = self.orders()
        if orders.is_full:
            self._is_first(orders.number, "full")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._fail(orders, "write")

    def before_sync(self) -> None:
        """Wait as long as the slow disk does, then raise the OSError a sync shall meet."""
        self.hang("sync")
        orders = self.orders()
        if orders.sync_delay_ms:
            self._is_first(orders.number, "slow")
            time.sleep(orders.sync_delay_ms / 1000)
        self._fail(orders, "sync")

    def hang(self, operation: str) -> None:
        """Do not return while such an operation shall hang."""
        while (orders := self.orders()).hang == operation:
            self._is_first(orders.number, f"hang-{operation}")
            time.sleep(HANGING_LOOK_S)

    def monotonic_ms(self, real_ms: float) -> int:
        """The monotonic clock as ordered; it never goes back."""
        orders = self.orders()
        if orders.clock_number:
            self._is_first(orders.clock_number, "clock")
        with self._lock:
            return self._monotonic.read(real_ms, orders)

    def wall_ms(self, real_ms: float) -> int:
        """The wall clock as ordered."""
        with self._lock:
            return self._wall.read(real_ms, self.orders())

    def _fail(self, orders: Orders, operation: str) -> None:
        if orders.fail != operation:
            return
        if self._is_first(orders.number, operation) or orders.is_sticky:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _is_first(self, number: int, what: str) -> bool:
        line = f"{number} {what}"
        with self._lock:
            if line in self._spent:
                return False
            self._spent.add(line)
            with self._fired.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            return True

    def _lines(self) -> list[str]:
        if not self._fired.exists():
            return []
        return self._fired.read_text(encoding="utf-8").splitlines()


armed: Injector | None = None
"""The injector of this process, if any; read it where it is asked for with every message."""


def arm(environment: Mapping[str, str]) -> Injector | None:
    """Take orders from the control file the environment names; None: there is none."""
    global armed  # noqa: PLW0603 - one process is one node
    control = environment.get(VARIABLE)
    armed = None if not control else Injector(Path(control))
    return armed


def injector() -> Injector | None:
    """The armed injector, if any."""
    return armed


def level(real: int) -> int:
    """The level that the node reports: its own, unless another is ordered."""
    ordered = None if armed is None else armed.orders().level
    return real if ordered is None else ordered


def power_losses() -> int:
    """A number that is another one after each loss of the machine's power that was played."""
    return 0 if armed is None else armed.orders().power_losses


def reach(failpoint: str) -> None:
    """Pass a failpoint: nothing, unless a crash is ordered here."""
    if armed is not None:
        armed.reach(failpoint)


def hang(operation: str) -> None:
    """Do not return while such an operation is ordered to hang."""
    if armed is not None:
        armed.hang(operation)
