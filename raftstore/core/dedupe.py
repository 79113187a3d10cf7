"""Recognises a retried write by its GUID, from the log alone (S4.5, S4.6).

A GUID is a producer session and a counter. What a session has written is a function of the log, so
a new leader knows exactly what its log knows:

* ``committed`` part: per session a *floor* and at most GUID_WINDOW outcomes above it. A counter at
  or below the floor is *expired*: it cannot be known any more whether it was applied.
* ``uncommitted`` part: one outcome per record above the commit seq; a truncation takes them back.

Bounds: GUID_WINDOW outcomes per session and ``OUTCOMES_MAX`` per channel (the oldest in the log
goes first, and raises the floor of its session), PRODUCER_SESSIONS_MAX sessions (the one that wrote
longest ago is forgotten). All of them count what is in the log: no clock takes part, nor does the
timestamp of a record, which is of the clock of the leader that made it (S10).

A *retry* that is not found may be of a session that was forgotten. What was forgotten ended at a
known seq. So a retry is new only with proof that it is younger: its publisher says after which seq
the write began (``PubMsg.after_seq``), and every session that may be meant had ended by then.
Without that proof it is expired, however long ago anything was forgotten. A first attempt that
states its age is judged alike, in case it is a late copy; one that states none is new.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice, pairwise
from typing import Annotated, ClassVar

import msgspec

from raftstore.config import GUID_WINDOW, PRODUCER_SESSIONS_MAX
from raftstore.protocol.records import Record
from raftstore.types import (
    NO_GUID,
    Count63,
    Digest,
    Guid,
    RecordKind,
    RecordRows,
    Seq,
    Term,
    guid_counter,
    guid_parts,
    guid_session,
    make_guid,
)

OUTCOMES_MAX = 65_536
"""Outcomes remembered per channel over all sessions, about 0.5 KB each: a retry may come until so
many later writes of the channel are committed."""

CONDITIONED_KINDS = frozenset(
    {
        RecordKind.CONDITIONAL,
        RecordKind.CONDITIONAL_WITH_TTL,
        RecordKind.COMMAND,
        RecordKind.MACHINE_COMMAND,
        RecordKind.MACHINE_STEP,
        RecordKind.MACHINE_LIMITS,
        RecordKind.MACHINE_COMMANDS,
        RecordKind.MACHINE_RESTORE,
    }
)
"""Kinds whose effect is known only once the state machine has applied them."""

KEPT_BY_MACHINE = frozenset(
    {RecordKind.MACHINE_COMMAND, RecordKind.MACHINE_COMMANDS, RecordKind.MACHINE_RESTORE}
)
"""Of these, the kinds whose effect the machine keeps in its state, by seq: a restart or a base
takes nothing of it."""


class WrittenRecord(msgspec.Struct, gc=False):
    """Where the write of a GUID stands in the log, and what came of it."""

    base_seq: Seq
    last_seq: Seq
    term: Term
    digest: bytes
    kind: RecordKind
    outcome_known: bool
    """False for a conditioned record until it is applied here; for ever if that was before a
    restart, or if the log's base has passed it: a base says where a write is, and no more."""
    conflict_seq: Seq | None = None

    @property
    def is_conditioned(self) -> bool:
        """Whether only the state machine knows the effect."""
        return self.kind in CONDITIONED_KINDS

    @property
    def is_kept_by_machine(self) -> bool:
        """Whether the effect is in the state of the machine, once it is applied."""
        return self.kind in KEPT_BY_MACHINE


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


_SessionName = Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
_Counter = Annotated[int, msgspec.Meta(ge=0)]
"""MessagePack has no form for one that does not fit into a GUID."""


class _SessionState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A session as a base keeps it."""

    name: _SessionName
    unsure_to: Seq
    floor: _Counter
    last_seq: Seq


class _OutcomeState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A write as a base keeps it; its condition is not among that (``outcome_known``)."""

    session: Count63
    """Which of the sessions, by its place among them."""
    counter: _Counter
    last_seq: Seq
    rows: RecordRows
    term: Term
    kind: RecordKind
    digest: Digest


class _State(msgspec.Struct, frozen=True, array_like=True):
    """The committed part as a base keeps it."""

    forgotten_seq: Seq
    sessions: list[_SessionState]
    """The one that wrote longest ago first."""
    outcomes: list[_OutcomeState]
    """In the order of the log."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_State)


class DedupeTable:
    """Outcomes of the GUIDs in one log."""

    NAME: ClassVar = "dedupe"
    FORMAT: ClassVar = 1
    KINDS: ClassVar = frozenset(RecordKind)
    HEEDS_COMMITS: ClassVar = True

    def __init__(
        self,
        *,
        window: int = GUID_WINDOW,
        sessions_max: int = PRODUCER_SESSIONS_MAX,
        outcomes_max: int = OUTCOMES_MAX,
    ) -> None:
        assert min(window, sessions_max, outcomes_max) >= 1, (
            f"{window} {sessions_max} {outcomes_max}"
        )
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
        self._unapplied: deque[WrittenRecord] = deque()  # conditioned records, in seq order

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
        """Distinguish a new write from a retry.

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
        # S4.5: without proof of age, what may have been forgotten is not new; and a sender that
        # states the age of a first attempt is held to it, for this may be a copy that comes late.
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

    def append(self, record: Record) -> None:
        """Learn a record at the log's end, if a publisher made it."""
        if record.guid == NO_GUID:
            return
        is_conditioned = record.kind in CONDITIONED_KINDS
        written = WrittenRecord(
            base_seq=record.base_seq,
            last_seq=Seq(record.base_seq + record.rows - 1),
            term=record.term,
            digest=record.digest,
            kind=record.kind,
            outcome_known=not is_conditioned,
        )
        assert not self._tail or self._tail[-1][1].last_seq < record.base_seq, (
            f"a write at seq {record.base_seq} would follow {self._tail[-1][1].last_seq} (S2.1)"
        )
        self._tail.append((record.guid, written))
        self._tail_by_guid[record.guid] = written
        if is_conditioned:
            self._unapplied.append(written)

    def uncommitted_from(self, from_seq: Seq) -> list[Guid]:
        """GUIDs of the uncommitted records from ``from_seq`` on, newest first."""
        count = 0
        while count < len(self._tail) and self._tail[-1 - count][1].base_seq >= from_seq:
            count += 1
        return [guid for guid, _ in islice(reversed(self._tail), count)]

    def truncate(self, from_seq: Seq) -> None:
        """Take back uncommitted records from ``from_seq`` on."""
        while self._tail and self._tail[-1][1].base_seq >= from_seq:
            guid, written = self._tail.pop()
            if self._tail_by_guid.get(guid) is written:
                del self._tail_by_guid[guid]
        while self._unapplied and self._unapplied[-1].base_seq >= from_seq:
            self._unapplied.pop()

    def commit(self, commit_seq: Seq) -> None:
        """Fold records up to ``commit_seq`` into their sessions."""
        while self._tail and self._tail[0][1].last_seq <= commit_seq:
            guid, written = self._tail.popleft()
            if self._tail_by_guid.get(guid) is written:
                del self._tail_by_guid[guid]
            self._remember(guid, written)

    # --- sessions ---------------------------------------------------------------------------------

    def _remember(self, guid: Guid, written: WrittenRecord) -> None:
        name, counter = guid_parts(guid)
        session = self._sessions.get(name)
        if session is None:
            # It may have written before, in what was forgotten.
            session = self._sessions[name] = _Session(self._forgotten_seq)
        self._sessions.move_to_end(name)
        # S10: what is remembered is a function of the log, so it is learnt in the log's order.
        assert written.last_seq > session.last_seq, (
            f"seq {written.last_seq} is learnt after {session.last_seq} of the same session"
        )
        session.last_seq = written.last_seq
        if counter > session.floor and guid not in self._outcomes:
            insort(session.counters, counter)
            self._outcomes[guid] = written
            if len(session.counters) > self._window:
                self._raise_floor(name, session, session.counters[0])
        if len(self._outcomes) > self._outcomes_max or len(self._sessions) > self._sessions_max:
            self._shrink()

    def _raise_floor(self, name: bytes, session: _Session, floor: int) -> None:
        """Forget the outcomes up to a counter: of what is at or below it nothing can be known."""
        count = bisect_right(session.counters, floor)
        for counter in session.counters[:count]:
            del self._outcomes[make_guid(name, counter)]
        del session.counters[:count]
        assert floor >= session.floor, (
            f"the floor would fall from {session.floor} to {floor} (S4.5)"
        )
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
            assert session.last_seq > self._forgotten_seq, (
                f"a session of seq {session.last_seq} outlived one of {self._forgotten_seq} (S4.5)"
            )
            self._forgotten_seq = session.last_seq

    # --- what came of conditioned records ---------------------------------------------------------

    def on_applied(self, applied_seq: Seq, conflicts: Mapping[Seq, Seq]) -> list[WrittenRecord]:
        """The state machine came this far: return the conditioned records whose effect is known."""
        known: list[WrittenRecord] = []
        while self._unapplied and self._unapplied[0].last_seq <= applied_seq:
            written = self._unapplied.popleft()
            assert not written.outcome_known, f"seq {written.last_seq} is decided twice (S10)"
            written.outcome_known = True
            written.conflict_seq = conflicts.get(written.last_seq)
            known.append(written)
        return known

    def forget_applied(self, applied_seq: Seq) -> None:
        """These were applied in another life: what came of them is not known."""
        while self._unapplied and self._unapplied[0].last_seq <= applied_seq:
            self._unapplied.popleft()

    # --- a base -----------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The committed part."""
        assert not self._tail, "a base is of committed records"
        places = {name: place for place, name in enumerate(self._sessions)}
        return _encoder.encode(
            _State(
                self._forgotten_seq,
                [
                    _SessionState(name, held.unsure_to, held.floor, held.last_seq)
                    for name, held in self._sessions.items()
                ],
                [
                    _OutcomeState(
                        places[guid_session(guid)],
                        guid_counter(guid),
                        written.last_seq,
                        written.last_seq - written.base_seq + 1,
                        written.term,
                        written.kind,
                        written.digest,
                    )
                    for guid, written in self._outcomes.items()
                ],
            )
        )

    def restore(self, state: bytes, base_seq: Seq) -> None:
        """Become what was encoded. Raises ValueError for what no log has."""
        held = _decoder.decode(state)
        _check_sizes(held, self._sessions_max, self._outcomes_max)
        wrote = [held.forgotten_seq, *(session.last_seq for session in held.sessions)]
        ends = [Seq(0), *(outcome.last_seq for outcome in held.outcomes), Seq(base_seq + 1)]
        if any(after <= before for before, after in pairwise(ends)):
            raise ValueError(f"outcomes that are not in the order of a log up to {base_seq}")
        if any(after <= before for before, after in pairwise(wrote)) or wrote[-1] > base_seq:
            raise ValueError(f"sessions that are not in the order of a log up to {base_seq}")
        self._forgotten_seq = held.forgotten_seq
        for name, unsure_to, floor, last_seq in map(msgspec.structs.astuple, held.sessions):
            if unsure_to > held.forgotten_seq:
                raise ValueError(f"a session that is unsure up to {unsure_to}")
            self._sessions[name] = _Session(unsure_to, floor, last_seq)
        if len(self._sessions) != len(held.sessions):
            raise ValueError("a session comes twice")
        for outcome in held.outcomes:
            self._restore_outcome(held, outcome)

    def _restore_outcome(self, held: _State, outcome: _OutcomeState) -> None:
        if outcome.session >= len(held.sessions):
            raise ValueError(f"an outcome of session {outcome.session} of {len(held.sessions)}")
        name, last_seq = held.sessions[outcome.session].name, outcome.last_seq
        session, guid = self._sessions[name], make_guid(name, outcome.counter)
        is_full = len(session.counters) >= self._window
        if outcome.counter <= session.floor or last_seq > session.last_seq or is_full:
            raise ValueError(f"an outcome at seq {last_seq} that its session does not have")
        if guid in self._outcomes or outcome.rows > last_seq:
            raise ValueError(f"an outcome at seq {last_seq} that no log has")
        insort(session.counters, outcome.counter)
        self._outcomes[guid] = WrittenRecord(
            base_seq=Seq(last_seq - outcome.rows + 1),
            last_seq=last_seq,
            term=outcome.term,
            digest=outcome.digest,
            kind=outcome.kind,
            outcome_known=outcome.kind not in CONDITIONED_KINDS,
        )


def _check_sizes(held: _State, sessions_max: int, outcomes_max: int) -> None:
    for what, count, most in (
        ("sessions", len(held.sessions), sessions_max),
        ("outcomes", len(held.outcomes), outcomes_max),
    ):
        if count > most:
            raise ValueError(f"{count} {what}, and {most} are remembered at most")
