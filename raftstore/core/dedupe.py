"""Recognises a retried write by its GUID, from the log alone (S4.5, S4.6).

A GUID is a producer session and a counter. What a session has written is a function of the log, so
a new leader knows exactly what its log knows:

* ``committed`` part: per session a *floor* and at most GUID_WINDOW outcomes above it. A counter at
  or below the floor is *expired*: nobody can tell any more whether it was applied.
* ``uncommitted`` part: one outcome per record above the commit seq; a truncation takes them back.

Bounds: GUID_WINDOW outcomes per session and ``OUTCOMES_MAX`` per channel (the oldest in the log
goes first, and raises the floor of its session), PRODUCER_SESSIONS_MAX sessions (the one that wrote
longest ago is forgotten). All of them count what is in the log: no clock takes part, nor does the
timestamp of a record, which is of the clock of the leader that made it (S10).

A *retry* that is not found may be of a session that was forgotten. What was forgotten ended at a
known seq. So a retry is new only with proof that it is younger: its publisher says after which seq
the write began (``PubMsg.after_seq``), and every session that may be meant had ended by then.
Without that proof it is expired, however long ago anything was forgotten. A first attempt that
tells its age is judged alike, in case it is a late copy; one that tells none is new.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from raftstore.config import GUID_WINDOW, PRODUCER_SESSIONS_MAX
from raftstore.protocol.records import Record
from raftstore.types import (
    NO_GUID,
    Guid,
    RecordKind,
    Seq,
    Term,
    guid_counter,
    guid_session,
    make_guid,
)

OUTCOMES_MAX = 65_536
"""Outcomes remembered per channel over all sessions, about 0.5 KB each: a retry may come until so
many later writes of the channel are committed."""

CONDITIONED_KINDS = frozenset({RecordKind.CONDITIONAL, RecordKind.COMMAND})
"""Kinds whose effect is known only once the state machine has applied them."""


class WrittenRecord(msgspec.Struct, gc=False):
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
    """The verdict of this log on a GUID and digest."""

    NEW = "new"
    DUPLICATE = "duplicate"
    REUSED = "reused"
    EXPIRED = "expired"


@dataclass(slots=True)
class _Session:
    """A producer session: its floor, and the counters above it whose outcomes are remembered."""

    unsure_to: Seq
    """An earlier life of it may have written up to this seq and was forgotten; 0: it had none."""
    floor: int = 0
    last_seq: Seq = Seq(0)
    counters: list[int] = field(default_factory=list)


class DedupeTable:
    """Outcomes of the GUIDs in one log."""

    def __init__(
        self,
        *,
        window: int = GUID_WINDOW,
        sessions_max: int = PRODUCER_SESSIONS_MAX,
        outcomes_max: int = OUTCOMES_MAX,
    ) -> None:
        assert min(window, sessions_max, outcomes_max) >= 1
        self._window = window
        self._sessions_max = sessions_max
        self._outcomes_max = outcomes_max
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()  # wrote longest ago first
        self._outcomes: OrderedDict[Guid, WrittenRecord] = OrderedDict()  # in the log's order
        self.repeated = 0
        """Writes that were recognised, since this replica was started."""
        self._forgotten_seq = Seq(0)  # no session that was forgotten wrote above it
        self._tail: deque[tuple[Guid, WrittenRecord]] = deque()
        self._tail_by_guid: dict[Guid, WrittenRecord] = {}

    # --- asking -----------------------------------------------------------------------------------

    def find(self, guid: Guid) -> WrittenRecord | None:
        """The record of this GUID, if the log (or what is remembered of it) has one."""
        written = self._tail_by_guid.get(guid)
        return self._outcomes.get(guid) if written is None else written

    def is_complete_for(self, guid: Guid) -> bool:
        """Whether a GUID that is not found was certainly never committed (N4).

        Unlike a retry, a question proves no age: so a session that was forgotten may be the one of
        any GUID that has no session here.
        """
        session = self._sessions.get(guid_session(guid))
        if session is None:
            return self._forgotten_seq == 0
        return session.unsure_to == 0 and guid_counter(guid) > session.floor

    def judge(
        self, guid: Guid, digest: bytes, *, in_doubt: bool, after_seq: Seq = Seq(0)
    ) -> tuple[Verdict, WrittenRecord | None]:
        """Tell a new write from a retry.

        ``in_doubt``: an earlier attempt may have been sequenced. ``after_seq``: the publisher's
        word that nothing of this GUID is at or below that seq.
        """
        written = self.find(guid)
        if written is not None:
            self.repeated += 1
            # S4.6: one GUID names one payload, or replicas would store different ones.
            same = written.digest == digest
            return (Verdict.DUPLICATE if same else Verdict.REUSED), written
        session = self._sessions.get(guid_session(guid))
        # S4.5: at or below the floor nobody knows; never a second application.
        expired = session is not None and guid_counter(guid) <= session.floor
        forgotten_to = self._forgotten_seq if session is None else session.unsure_to
        # S4.5: without proof of age, what may have been forgotten is not new; and who tells the age
        # of a first attempt is held to it, for this may be a copy that comes late.
        expired |= (in_doubt or after_seq > 0) and after_seq < forgotten_to
        return (Verdict.EXPIRED if expired else Verdict.NEW), None

    @property
    def sessions(self) -> int:
        """Sessions remembered."""
        return len(self._sessions)

    @property
    def outcomes(self) -> int:
        """Outcomes remembered, uncommitted ones included."""
        return len(self._outcomes) + len(self._tail)

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
        self._tail.append((record.guid, written))
        self._tail_by_guid[record.guid] = written
        return written

    def truncate(self, from_seq: Seq) -> list[Guid]:
        """Take back uncommitted records from ``from_seq`` on; return their GUIDs."""
        removed: list[Guid] = []
        while self._tail and self._tail[-1][1].base_seq >= from_seq:
            guid, written = self._tail.pop()
            if self._tail_by_guid.get(guid) is written:
                del self._tail_by_guid[guid]
            removed.append(guid)
        return removed

    def commit(self, commit_seq: Seq) -> None:
        """Fold records up to ``commit_seq`` into their sessions."""
        while self._tail and self._tail[0][1].last_seq <= commit_seq:
            guid, written = self._tail.popleft()
            if self._tail_by_guid.get(guid) is written:
                del self._tail_by_guid[guid]
            self._remember(guid, written)

    # --- sessions ---------------------------------------------------------------------------------

    def _remember(self, guid: Guid, written: WrittenRecord) -> None:
        name, counter = guid_session(guid), guid_counter(guid)
        session = self._sessions.get(name)
        if session is None:
            # It may have written before, in what was forgotten.
            session = self._sessions[name] = _Session(self._forgotten_seq)
        self._sessions.move_to_end(name)
        session.last_seq = written.last_seq
        if counter > session.floor and guid not in self._outcomes:
            insort(session.counters, counter)
            self._outcomes[guid] = written
            if len(session.counters) > self._window:
                self._raise_floor(name, session, session.counters[0])
        self._shrink()

    def _raise_floor(self, name: bytes, session: _Session, floor: int) -> None:
        """Forget the outcomes up to a counter: of what is at or below it nothing can be told."""
        count = bisect_right(session.counters, floor)
        for counter in session.counters[:count]:
            del self._outcomes[make_guid(name, counter)]
        del session.counters[:count]
        session.floor = floor

    def _shrink(self) -> None:
        """Keep the bounds, one record at a time: alike wherever the same records were committed."""
        while len(self._outcomes) > self._outcomes_max:
            oldest = next(iter(self._outcomes))
            name = guid_session(oldest)
            self._raise_floor(name, self._sessions[name], guid_counter(oldest))
        while len(self._sessions) > self._sessions_max:
            name, session = self._sessions.popitem(last=False)
            for counter in session.counters:
                del self._outcomes[make_guid(name, counter)]
            self._forgotten_seq = session.last_seq
