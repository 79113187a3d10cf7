"""Recognises a retried write by its GUID, from the log alone (S4.5, S4.6).

A GUID is a producer session and a counter. What a session has written is a function of the log, so
a new leader knows exactly what its log knows:

* ``committed`` part: per session a *floor* and the newest GUID_WINDOW outcomes above it. A counter
  at or below the floor is *expired*: nobody can tell any more whether it was applied.
* ``uncommitted`` part: one outcome per record above the commit seq; a truncation takes them back.

Bounds: GUID_WINDOW outcomes per session, ``OUTCOMES_MAX`` per channel (the longest silent session
is reduced to its floor), PRODUCER_SESSIONS_MAX sessions (the longest silent one is forgotten). A
session silent for ``guid_session_idle_ms`` in record timestamps keeps only its floor. No local
clock takes part (S10).

Publishers give up a GUID within ``guid_session_idle_ms`` of its first attempt. So a *retry* that is
not found is in doubt only if a session was forgotten that wrote within that time: then it counts as
expired, because the forgotten session may be its own.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import msgspec

from raftstore.config import GUID_WINDOW, PRODUCER_SESSIONS_MAX
from raftstore.messages import Record
from raftstore.types import (
    NO_GUID,
    Guid,
    RecordKind,
    Seq,
    Term,
    guid_counter,
    guid_session,
)

OUTCOMES_MAX = 262_144
"""Outcomes remembered per channel over all sessions (about 60 MB at worst)."""

CONDITIONED_KINDS = frozenset({RecordKind.CONDITIONAL, RecordKind.COMMAND})
"""Kinds whose effect is known only once the state machine has applied them."""


class WrittenRecord(msgspec.Struct):
    """Where the write of a GUID stands in the log, and what came of it."""

    base_seq: Seq
    last_seq: Seq
    term: Term
    digest: bytes
    kind: RecordKind
    outcome_known: bool
    """False for a conditioned record until it is applied here (and after a restart, for ever)."""
    conflict_seq: Seq | None = None

    @property
    def is_conditioned(self) -> bool:
        """Whether only the state machine knows the effect."""
        return self.kind in CONDITIONED_KINDS


class Verdict(Enum):
    """What a GUID and digest mean to this log."""

    NEW = "new"
    DUPLICATE = "duplicate"
    REUSED = "reused"
    EXPIRED = "expired"


@dataclass(slots=True)
class _Session:
    """Outcomes of one producer session above its floor."""

    floor: int = 0
    last_ms: int = 0
    is_unsure: bool = False
    """It may have had an earlier life that was forgotten."""
    counters: list[int] = field(default_factory=list)
    outcomes: dict[int, WrittenRecord] = field(default_factory=dict)


class _IdleSession(NamedTuple):
    """What is left of a session that has been silent for long."""

    floor: int
    last_ms: int
    is_unsure: bool = False


class DedupeTable:
    """Outcomes of the GUIDs in one log."""

    def __init__(
        self,
        *,
        session_idle_ms: int,
        window: int = GUID_WINDOW,
        sessions_max: int = PRODUCER_SESSIONS_MAX,
        outcomes_max: int = OUTCOMES_MAX,
    ) -> None:
        assert min(session_idle_ms, window, sessions_max, outcomes_max) >= 1
        self._session_idle_ms = session_idle_ms
        self._window = window
        self._sessions_max = sessions_max
        self._outcomes_max = outcomes_max
        self._active: dict[bytes, _Session] = {}  # least recently written first
        self._idle: dict[bytes, _IdleSession] = {}  # longest idle first
        self._outcomes = 0
        self.repeated = 0
        """Writes that were recognised, since this replica was started."""
        self._forgotten_ms: int | None = None  # newest timestamp of any forgotten session
        self._tail: deque[tuple[Guid, int, WrittenRecord]] = deque()
        self._tail_by_guid: dict[Guid, WrittenRecord] = {}

    # --- asking -----------------------------------------------------------------------------------

    def find(self, guid: Guid) -> WrittenRecord | None:
        """The record of this GUID, if the log (or what is remembered of it) has one."""
        written = self._tail_by_guid.get(guid)
        if written is not None:
            return written
        session = self._active.get(guid_session(guid))
        return None if session is None else session.outcomes.get(guid_counter(guid))

    def is_complete_for(self, guid: Guid) -> bool:
        """Whether a GUID that is not found was certainly never committed (N4).

        Unlike a retry, a question may come at any time: so a session that was forgotten counts
        however long ago it wrote, and may be the one of any GUID that has no session here.
        """
        session = guid_session(guid)
        known, idle = self._active.get(session), self._idle.get(session)
        if known is not None:
            return not known.is_unsure and guid_counter(guid) > known.floor
        if self._forgotten_ms is not None:
            return False
        return idle is None or guid_counter(guid) > idle.floor

    def judge(
        self, guid: Guid, digest: bytes, *, attempt: int, now_ms: int
    ) -> tuple[Verdict, WrittenRecord | None]:
        """Tell a new write from a retry.

        ``attempt`` counts the publisher's retries; ``now_ms`` is the timestamp a record would get.
        """
        written = self.find(guid)
        if written is not None:
            self.repeated += 1
            # S4.6: one GUID names one payload, or replicas would store different ones.
            same = written.digest == digest
            return (Verdict.DUPLICATE if same else Verdict.REUSED), written
        session = guid_session(guid)
        known = self._active.get(session)
        idle = self._idle.get(session)
        floor = idle.floor if idle is not None else known.floor if known is not None else None
        # S4.5: at or below the floor nobody knows; never a second application.
        expired = floor is not None and guid_counter(guid) <= floor
        if floor is None or any(s is not None and s.is_unsure for s in (known, idle)):
            expired |= attempt > 0 and self._may_be_forgotten(now_ms)
        return (Verdict.EXPIRED if expired else Verdict.NEW), None

    def _may_be_forgotten(self, now_ms: int) -> bool:
        """Whether a write that is still being retried may be in a forgotten session."""
        forgotten_ms = self._forgotten_ms
        return forgotten_ms is not None and now_ms - forgotten_ms <= self._session_idle_ms

    @property
    def sessions(self) -> int:
        """Sessions remembered."""
        return len(self._active) + len(self._idle)

    @property
    def outcomes(self) -> int:
        """Outcomes remembered, uncommitted ones included."""
        return self._outcomes + len(self._tail)

    # --- following the log ------------------------------------------------------------------------

    def append(self, record: Record) -> WrittenRecord | None:
        """Learn a record at the log's end; None if no publisher made it."""
        if record.guid == NO_GUID:
            return None
        written = WrittenRecord(
            base_seq=record.base_seq,
            last_seq=record.last_seq,
            term=record.term,
            digest=record.digest,
            kind=record.kind,
            outcome_known=record.kind not in CONDITIONED_KINDS,
        )
        self._tail.append((record.guid, record.timestamp_ms, written))
        self._tail_by_guid[record.guid] = written
        return written

    def truncate(self, from_seq: Seq) -> list[Guid]:
        """Take back uncommitted records from ``from_seq`` on; return their GUIDs."""
        removed: list[Guid] = []
        while self._tail and self._tail[-1][2].base_seq >= from_seq:
            guid, _, written = self._tail.pop()
            if self._tail_by_guid.get(guid) is written:
                del self._tail_by_guid[guid]
            removed.append(guid)
        return removed

    def commit(self, commit_seq: Seq) -> None:
        """Fold records up to ``commit_seq`` into their sessions."""
        while self._tail and self._tail[0][2].last_seq <= commit_seq:
            guid, timestamp_ms, written = self._tail.popleft()
            if self._tail_by_guid.get(guid) is written:
                del self._tail_by_guid[guid]
            self._remember(guid, timestamp_ms, written)

    # --- sessions ---------------------------------------------------------------------------------

    def _remember(self, guid: Guid, timestamp_ms: int, written: WrittenRecord) -> None:
        name, counter = guid_session(guid), guid_counter(guid)
        session = self._active.pop(name, None)
        if session is None:
            session = self._wake(name)
        self._active[name] = session  # now the most recently written
        session.last_ms = timestamp_ms
        if counter > session.floor and counter not in session.outcomes:
            insort(session.counters, counter)
            session.outcomes[counter] = written
            self._outcomes += 1
            if len(session.counters) > self._window:
                session.floor = session.counters.pop(0)
                del session.outcomes[session.floor]
                self._outcomes -= 1
        self._shrink(timestamp_ms)

    def _wake(self, name: bytes) -> _Session:
        """A session writes for the first time, or again after a silence."""
        idle = self._idle.pop(name, None)
        if idle is not None:
            return _Session(floor=idle.floor, is_unsure=idle.is_unsure)
        return _Session(is_unsure=self._forgotten_ms is not None)

    def _shrink(self, now_ms: int) -> None:
        """Keep the bounds; at most a few sessions change per record, amortised."""
        while len(self._active) > 1:
            name = next(iter(self._active))
            silent = now_ms - self._active[name].last_ms > self._session_idle_ms
            if not silent and self._outcomes <= self._outcomes_max:
                break
            session = self._active.pop(name)
            self._outcomes -= len(session.outcomes)
            highest = max(session.floor, *session.counters, 0)
            self._idle[name] = _IdleSession(highest, session.last_ms, session.is_unsure)
        while len(self._active) + len(self._idle) > self._sessions_max:
            if self._idle:
                last_ms = self._idle.pop(next(iter(self._idle))).last_ms
            else:
                session = self._active.pop(next(iter(self._active)))
                self._outcomes -= len(session.outcomes)
                last_ms = session.last_ms
            self._forgotten_ms = max(self._forgotten_ms or 0, last_ms)
