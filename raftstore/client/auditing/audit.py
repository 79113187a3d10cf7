"""``Audit``: what the clients of a process observe and judge together (N7)."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final

from raftstore.audit.finding import AuditFinding
from raftstore.audit.judge import Judge
from raftstore.audit.observation import Observation
from raftstore.audit.sampling import KeySample
from raftstore.errors import ArgumentError
from raftstore.types import ChannelId

FINDINGS_KEPT: Final = 64
"""The newest, for the program to look at; those that no client has delivered yet likewise."""
CHECKS_MAX: Final = 1_000.0
KEYS_MAX: Final = 1_000_000
OnViolation = Callable[[AuditFinding], None]


@dataclass(frozen=True, slots=True)
class AuditCounts:
    """Counts of what an audit has done so far; numbers only grow."""

    operations: int
    """Reads and acknowledged writes of watched keys that were judged, checks included."""
    checks: int
    """Rows that were read again at another replica."""
    checks_failed: int
    """Checks without an answer: the replica was behind, or could not be asked."""
    dropped: int
    """Operations whose row was not judged, as more than ``keys_max`` keys were watched."""
    violations: int
    reported: int
    """Violations that a node took a report of."""


class Audit:
    """Judges what clients are answered about a share of all keys. Give it to ``connect``.

    One audit may serve all clients of a process, whose clocks are one: what one of them knows to be
    committed the others may not be answered without.

    ``sample``: share of the keys that are watched, from 0 to 1; of a watched key every get, put and
    delete is judged. ``keys_max``: so many of them at once, up to 8 KiB of memory each. ``rotate``:
    seconds until other keys are watched. ``checks``: watched rows read again at another replica in
    a second, at most. ``evidence``: a file to which violations are appended as JSON lines.
    ``on_violation`` is called with each ``AuditFinding``, on the client's own thread, and must
    return at once. Violations are logged (``raftstore.client``) and reported to a node in any case.
    """

    def __init__(
        self,
        sample: float = 0.01,
        *,
        keys_max: int = 1_024,
        rotate: float = 600.0,
        checks: float = 2.0,
        evidence: str | Path | None = None,
        on_violation: OnViolation | None = None,
    ) -> None:
        """Raises ArgumentError for a value that cannot be."""
        self.sample = _number("sample", sample, 0.0, 1.0)
        if type(keys_max) is not int or not 1 <= keys_max <= KEYS_MAX:
            raise ArgumentError(
                f"keys_max={keys_max!r} is no number of keys from 1 to {KEYS_MAX}; give one"
            )
        self.checks = _number("checks", checks, 0.0, CHECKS_MAX)
        self.evidence = None if evidence is None else Path(evidence)
        self.on_violation = on_violation
        self._rotate_ms = 1_000 * _number("rotate", rotate, 1.0, 86_400.0)
        self._judge = Judge(keys_max=keys_max)
        self._keys = KeySample(self.sample, secrets.token_bytes(8))
        self._rotate_at_ms = self.now_ms() + self._rotate_ms
        self._lock = Lock()
        self._findings: deque[AuditFinding] = deque(maxlen=FINDINGS_KEPT)
        self._undelivered: deque[AuditFinding] = deque(maxlen=FINDINGS_KEPT)
        self.checks_done = self.checks_failed = self.reported = 0

    def __repr__(self) -> str:
        return f"<Audit of {self.sample:.2%} of all keys: {self.counts()}>"

    # --- for programs ----------------------------------------------------------------------------

    @property
    def findings(self) -> tuple[AuditFinding, ...]:
        """Return the newest violations, the oldest of them first."""
        with self._lock:
            return tuple(self._findings)

    def counts(self) -> AuditCounts:
        """Return what was done so far."""
        judge = self._judge
        return AuditCounts(
            operations=judge.observed,
            checks=self.checks_done,
            checks_failed=self.checks_failed,
            dropped=judge.dropped,
            violations=judge.violations,
            reported=self.reported,
        )

    # --- for clients -----------------------------------------------------------------------------

    @staticmethod
    def now_ms() -> float:
        """Return the moment on the one clock of the process; never that of a loop, which stands
        still within a turn."""
        return time.monotonic() * 1_000

    def watches(self, key: bytes) -> bool:
        """Return whether a key is watched."""
        return self._keys.has(key)

    def observe(self, channel: ChannelId, name: str, seen: Observation) -> None:
        """Judge an operation on a watched key."""
        with self._lock:
            if seen.ended_ms >= self._rotate_at_ms:
                self._rotate_at_ms = seen.ended_ms + self._rotate_ms
                self._keys.turn()
                self._judge.rotate()
            found = self._judge.observe(channel, name, seen)
            self._findings.extend(found)
            self._undelivered.extend(found)

    def take_undelivered(self) -> AuditFinding | None:
        """Return the oldest violation that no client has logged and reported yet, if any; it is
        this one's to do."""
        with self._lock:
            return self._undelivered.popleft() if self._undelivered else None


def _number(name: str, given: Any, low: float, high: float) -> float:
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not low <= given <= high:  # NaN is in no range
        raise ArgumentError(f"{name}={given!r} is no number from {low:g} to {high:g}; give one")
    return float(given)
