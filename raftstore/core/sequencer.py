"""The leader judges a publish, gives it its place and answers it (S4, S5.6, S9, S10)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from raftstore.config import PAYLOAD_BYTES_MAX, ROWS_PER_RECORD_MAX
from raftstore.core.chain import digest_of
from raftstore.core.dedupe import Verdict, WrittenRecord
from raftstore.core.effects import Reply
from raftstore.core.pending import Waiter, WaitingPublishers
from raftstore.core.refused_writes import HeldRefusal, RefusedAttempt
from raftstore.core.state import ChannelState
from raftstore.core.write_outcome import Fence
from raftstore.errors import (
    ConnectionInDoubtError,
    GuidExpiredError,
    GuidFencedError,
    GuidReuseError,
    LeadershipLostError,
    NotLeaderError,
    OverloadedError,
    PayloadTooLargeError,
    QuorumTimeoutError,
    Refusal,
    RequestError,
    SchemaError,
    UnavailableError,
)
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.protocol.records import Record
from raftstore.types import (
    DIGEST_BYTES,
    GUID_BYTES,
    PUBLISHED_SEQ_MAX,
    WALL_MS_MAX,
    Guid,
    RecordKind,
    Role,
    Seq,
    guid_counter,
    guid_text,
)

PUBLISHED_KINDS = frozenset(
    {
        RecordKind.ROWS,
        RecordKind.CONDITIONAL,
        RecordKind.COMMAND,
        RecordKind.BATCH_MARK,
        RecordKind.STAGED,
        RecordKind.BATCH_APPLY,
        RecordKind.TXN,
        RecordKind.ROWS_WITH_TTL,
        RecordKind.CONDITIONAL_WITH_TTL,
        RecordKind.EXPIRE,
        RecordKind.TRIM_OUTCOMES,
        RecordKind.MACHINE_COMMAND,
        RecordKind.MACHINE_STEP,
        RecordKind.MACHINE_LIMITS,
        RecordKind.MACHINE_COMMANDS,
        RecordKind.MACHINE_RESTORE,
    }
)
"""What a publisher may send; the engine takes some of them from its own node only."""


def reject(
    state: ChannelState,
    client: int,
    asked: PubMsg | Waiter | RefusedAttempt,
    error: type[RequestError],
    text: str,
) -> None:
    """Answer a publisher with an error; ``asked`` says which attempt is answered."""
    message = PubReject(
        channel=state.channel,
        term=state.term,
        guid=asked.guid,
        code=error.code,
        message=text,
        leader_hint=state.leader,
        attempt=asked.attempt,
    )
    state.emit(Reply(client, message))


def refuse_not_leader(state: ChannelState, client: int, message: PubMsg) -> None:
    """The publisher addressed this node, but it does not lead that term (S5.6).

    NOT_APPLIED is answered only when this node certainly never gave the write a seq; a second copy
    of a message whose first copy was sequenced before a step-down is in doubt (S4.1).
    """
    if state.may_have_sequenced(message.guid, message.term):
        text = f"the leadership of term {message.term} ended while the write was in doubt; retry it"
        reject(state, client, message, LeadershipLostError, text)
        return
    text = f"this node does not lead term {message.term} (the channel is at term {state.term})"
    if state.leader is None and state.refused.is_expected(state.now_ms):
        _hold(state, client, message, Refusal(NotLeaderError, text))
    else:
        reject(state, client, message, NotLeaderError, text)


def _hold(state: ChannelState, client: int, message: PubMsg, refusal: Refusal) -> None:
    attempt = RefusedAttempt(message.guid, message.attempt)
    if not state.refused.hold(client, attempt, refusal, state.now_ms):
        reject(state, client, message, *refusal)


def answer_held(state: ChannelState, held: Iterable[HeldRefusal]) -> None:
    """Answer publishers who waited for the name of the next leader."""
    for each in held:
        reject(state, each.client, each.asked, *each.refusal)


def oversized(message: PubMsg) -> Refusal | None:
    """S12: why no replica, whatever its role, takes this payload: code and text."""
    size = len(message.payload)
    if size <= PAYLOAD_BYTES_MAX:
        return None
    text = f"a payload of {size} bytes is over the limit of {PAYLOAD_BYTES_MAX}; split it"
    return Refusal(PayloadTooLargeError, text)


REFUSED_MAX = 65_536
"""Refused writes remembered per leadership, about 100 bytes each; a retry that is accepted, or
``refused_keep_ms``, ends the memory."""


class _Refused(NamedTuple):
    attempt: int
    at_ms: int


class Sequencer:
    """Publishing at the leader of one term."""

    def __init__(self, state: ChannelState, replicas_holding: Callable[[Seq], int]) -> None:
        self._state = state
        self._replicas_holding = replicas_holding
        self._waiting = WaitingPublishers(quorum_timeout_ms=state.settings.quorum_timeout_ms)
        self.next_deadline_ms = self._waiting.next_deadline_ms
        """When the next publisher must be answered."""
        self._is_unsettled = False
        """Publishers wait for results that were applied and may change yet."""
        self._refused: dict[Guid, _Refused] = {}  # the longest ago first
        self.fence = Fence()
        self.refusal: str | None = None
        """Why no new write is accepted now (S9); None while they are."""
        self.hands_over = False
        """That is because another replica is about to lead."""

    # --- a publish arrives ------------------------------------------------------------------------

    def admit(self, client: int, message: PubMsg, refusal: Refusal | None = None) -> Record | None:
        """Judge a publish addressed to this leader in this term; the record to append, if any.

        ``refusal`` is the engine's, of new writes only.
        """
        state = self._state
        # S5.6: only the leader addressed, in the term addressed, may give the write a seq.
        assert message.leader == state.me, f"a write for {message.leader} comes to {state.me}"
        assert message.term == state.term, f"a write for {message.term} in term {state.term}"
        # Known writes first: whatever is wrong with this copy, an earlier one has its outcome.
        verdict, written = state.dedupe.judge(
            message.guid,
            message.digest,
            in_doubt=message.attempt > 0 and not message.is_settled,
            after_seq=message.after_seq,
        )
        if verdict is not Verdict.NEW:
            self._answer_known(client, message, verdict, written)
            return None
        if message.guid in self.fence:  # N4: its fate was reported, and stays as it was reported
            text = f"guid {guid_text(state.channel, message.guid)} was answered as not applied, and"
            text += " is refused since; write again with another guid"
            reject(state, client, message, GuidFencedError, text)
            return None
        # Levels: what some node could not read is refused before it gets a seq.
        refusal = _malformed(message) or refusal or self._refusal(message)
        if refusal is not None:
            if not self._remember_refused(message):
                # A late copy of it could not be distinguished from a new write: promise nothing.
                text = (
                    f"the leader remembers {REFUSED_MAX} refused writes, which is its limit; retry"
                )
                refusal = Refusal(ConnectionInDoubtError, text)
            if self.hands_over and refusal.text == self.refusal:
                _hold(state, client, message, refusal)
            else:
                reject(state, client, message, *refusal)
            return None
        self._refused.pop(message.guid, None)  # from here on the log knows it
        return Record(
            term=state.term,
            base_seq=Seq(state.last_seq + 1),
            rows=message.rows,
            guid=message.guid,
            timestamp_ms=self.next_timestamp_ms(),
            digest=message.digest,
            kind=message.kind,
            payload=message.payload,
        )

    def knows(self, guid: Guid, attempt: int) -> bool:
        """Whether this attempt of the write has its seq or its answer, or never gets a seq here."""
        before = self._refused.get(guid)
        is_refused = before is not None and attempt <= before.attempt
        return is_refused or guid in self.fence or self._state.dedupe.find(guid) is not None

    def next_timestamp_ms(self) -> int:
        """S10: wall clock of the leader, but always after the record before.

        At the end of its range it stands still: nobody could read a later one (S12).
        """
        state = self._state
        wall_ms = state.now_ms + state.wall_offset_ms
        return min(max(wall_ms, state.tail.last_timestamp_ms + 1), WALL_MS_MAX)

    def await_outcome(self, client: int, message: PubMsg) -> None:
        """Its record is in the log: answer when the outcome is certain (S4.1, S4.4)."""
        written = self._state.dedupe.find(message.guid)
        assert written is not None, "the record of a write that was just appended"
        assert written.last_seq == self._state.lineage.last_seq, (
            f"the write at seq {written.last_seq} is not the newest, which is "
            f"{self._state.lineage.last_seq} (S4.5)"
        )
        self._waiting.add(client, message, written, self._state.now_ms)

    # --- outcomes ---------------------------------------------------------------------------------

    def on_committed(self, last_seq: Seq) -> None:
        """S4.4: OK, unless only the state machine knows what came of it."""
        assert last_seq <= self._state.commit_seq, (
            f"seq {last_seq} is called committed, committed are {self._state.commit_seq} (S4.4)"
        )
        record = self._waiting.find(last_seq)
        if record is not None and record.written.outcome_known:
            self._answer_all(record.written)

    def on_outcome(self, written: WrittenRecord) -> None:
        """The state machine has applied a conditioned record."""
        if self._is_settled(written):
            self._answer_all(written)
        else:
            self._is_unsettled = True

    def on_applied(self) -> None:
        """Answer those who waited until results stay as they are."""
        if not self._is_unsettled:
            return
        waiting = self._waiting.up_to(self._state.applied_seq)
        settled = [record.written for record in waiting if self._is_settled(record.written)]
        self._is_unsettled = len(settled) < len(waiting)
        for written in settled:
            self._answer_all(written)

    def _is_settled(self, written: WrittenRecord) -> bool:
        """S10: whether no record from before the term is left that makes an applied command nothing
        (``MachineStep``). This node may have applied one, with code that others did not have, which
        those who led before had skipped: it meets that record before its own term start."""
        state = self._state
        return not written.is_kept_by_machine or state.lineage.is_in_newest_term(state.applied_seq)

    def on_timer(self) -> None:
        """S4.1: a quorum timeout is UNKNOWN; the record stays and may still commit."""
        state = self._state
        for waiter in self._waiting.take_overdue(state.now_ms):
            took = f"within {state.settings.quorum_timeout_ms} ms; retry with the same guid"
            text = f"no durable quorum for seq {waiter.last_seq} {took}"
            if waiter.last_seq <= state.commit_seq:
                text = f"seq {waiter.last_seq} is committed, it was not applied here {took}"
            if state.storage_stalled is not None:
                text = f"{text}; {state.storage_stalled}"
            reject(state, waiter.client, waiter, QuorumTimeoutError, text)

    def on_leadership_lost(self) -> None:
        """S4.3: the next leader decides what becomes of them, so they are UNKNOWN."""
        for waiter in self._waiting.take_all():
            text = f"the leader stepped down before seq {waiter.last_seq} was committed; retry"
            if self._state.storage_stalled is not None:
                text = f"{text} ({self._state.storage_stalled})"
            reject(self._state, waiter.client, waiter, LeadershipLostError, text)

    @property
    def waiting(self) -> int:
        """Publishers without an answer."""
        return len(self._waiting)

    # --- rules ------------------------------------------------------------------------------------

    def _answer_known(
        self, client: int, message: PubMsg, verdict: Verdict, written: WrittenRecord | None
    ) -> None:
        state, guid = self._state, message.guid
        if verdict is Verdict.EXPIRED:  # S4.5: UNKNOWN, never a second application
            text = (
                f"counter {guid_counter(guid)} is too old to know whether it was applied; "
                "read the row to see"
            )
            reject(state, client, message, GuidExpiredError, text)
            return
        assert written is not None, f"the verdict {verdict} without a record"
        if verdict is Verdict.REUSED:  # S4.6
            text = (
                f"guid {guid_text(state.channel, guid)} was used before with another payload "
                f"(seq {written.last_seq}); give each write its own"
            )
            reject(state, client, message, GuidReuseError, text)
        elif written.last_seq > state.commit_seq:
            # S4.5: a duplicate of an uncommitted record waits for its commit.
            self._wait(client, message, written)
        elif not self._is_settled(written):
            self._is_unsettled = True
            self._wait(client, message, written)
        elif written.outcome_known:
            self._acknowledge(client, guid, written)
        elif written.last_seq > state.applied_seq:
            self._wait(client, message, written)
        elif written.is_kept_by_machine:
            self._acknowledge(client, guid, written)  # the engine reads the result in the state
        else:  # applied before a restart: whether its condition held is not known any more
            text = f"seq {written.last_seq} was applied before a restart; read the row to see"
            reject(state, client, message, GuidExpiredError, text)

    def _wait(self, client: int, message: PubMsg, written: WrittenRecord) -> None:
        if len(self._waiting) >= 2 * self._state.settings.uncommitted_records_max:
            text = f"{len(self._waiting)} publishers wait already; retry with the same guid"
            reject(self._state, client, message, QuorumTimeoutError, text)
            return
        self._waiting.add(client, message, written, self._state.now_ms)

    def _refusal(self, message: PubMsg) -> Refusal | None:
        """Why a new write gets no seq now: then it certainly is not applied (S4.1)."""
        state, settings = self._state, self._state.settings
        before = self._refused.get(message.guid)
        if before is not None and message.attempt <= before.attempt:
            # S5.6: a second copy of a refused message must not make that answer untrue.
            text = (
                f"attempt {message.attempt} of this write came again, and attempt "
                f"{before.attempt} was refused; retry with a higher attempt"
            )
            return Refusal(UnavailableError, text)
        if self.refusal is not None:
            return Refusal(UnavailableError, self.refusal)
        if state.uncommitted_records >= settings.uncommitted_records_max:
            limit = settings.uncommitted_records_max
            count = state.uncommitted_records
            text = (
                f"{count} records of the channel wait to be committed, the limit is {limit} "
                "(replication.uncommitted_records_max); retry later"
            )
            return Refusal(OverloadedError, text)
        held = state.tail.bytes + len(message.payload)
        if state.uncommitted_records and held > settings.uncommitted_bytes_max:
            limit = settings.uncommitted_bytes_max
            text = (
                f"{held} bytes of the channel would wait to be committed, the limit is {limit} "
                "(replication.uncommitted_bytes_max); retry later"
            )
            return Refusal(OverloadedError, text)
        if state.last_seq + message.rows > PUBLISHED_SEQ_MAX:
            text = (
                f"the log of the channel ends at seq {state.last_seq}, and no record may end above "
                f"{PUBLISHED_SEQ_MAX}; write to a new table"
            )
            return Refusal(UnavailableError, text)
        return None

    def _answer_all(self, written: WrittenRecord) -> None:
        for waiter in self._waiting.take(written.last_seq):
            self._acknowledge(waiter.client, waiter.guid, written)

    def _remember_refused(self, message: PubMsg) -> bool:
        """S5.6: keep the newest refused attempt; False when there is no room to."""
        now_ms, idle_ms = self._state.now_ms, self._state.settings.refused_keep_ms
        while self._refused and next(iter(self._refused.values())).at_ms + idle_ms <= now_ms:
            del self._refused[next(iter(self._refused))]
        before = self._refused.pop(message.guid, None)
        if len(self._refused) >= REFUSED_MAX:
            return False
        attempt = message.attempt if before is None else max(message.attempt, before.attempt)
        self._refused[message.guid] = _Refused(attempt, now_ms)
        return True

    def _acknowledge(self, client: int, guid: Guid, written: WrittenRecord) -> None:
        state = self._state
        assert written.last_seq <= state.commit_seq, (
            f"OK for seq {written.last_seq}, committed are {state.commit_seq} (S4.4)"
        )
        is_decided = written.outcome_known
        if written.is_kept_by_machine:
            is_decided = written.last_seq <= state.applied_seq and self._is_settled(written)
        assert is_decided, f"OK for seq {written.last_seq} before it is decided (S10)"
        assert state.role is Role.LEADER, f"OK from the role {state.role} (S4.4)"
        conflict = written.conflict_seq
        assert conflict is None or conflict < written.base_seq, (
            f"the row of seq {conflict} was in the way of seq {written.base_seq} (S10)"
        )
        message = PubAck(
            channel=state.channel,
            term=state.term,
            guid=guid,
            base_seq=written.base_seq,
            last_seq=written.last_seq,
            record_term=written.term,
            durability=state.durability,
            replicas_acked=self._replicas_holding(written.last_seq),
            conflict=conflict is not None,
            conflict_seq=Seq(0) if conflict is None else conflict,
        )
        state.emit(Reply(client, message))


def _malformed(message: PubMsg) -> Refusal | None:
    """The fault of the message itself, whichever replica leads; None if there is none."""
    too_large = oversized(message)
    if too_large is not None:
        return too_large
    if not 1 <= message.rows <= ROWS_PER_RECORD_MAX:
        text = f"a record has 1 to {ROWS_PER_RECORD_MAX} rows, not {message.rows}; split the write"
        return Refusal(SchemaError, text)
    if message.kind not in PUBLISHED_KINDS:
        return Refusal(SchemaError, f"records of kind {int(message.kind)} cannot be published")
    if len(message.guid) != GUID_BYTES or guid_counter(message.guid) < 1:
        guid = guid_text(message.channel, message.guid)
        return Refusal(SchemaError, f"guid {guid} needs 16 bytes with a counter from 1 at its end")
    if len(message.digest) != DIGEST_BYTES or digest_of(message.payload) != message.digest:
        return Refusal(SchemaError, "the payload does not match its digest; send it again")
    return None
