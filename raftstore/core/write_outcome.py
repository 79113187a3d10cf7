"""The outcome of a write by its GUID: committed, never applied, or not known any more (N4).

Only the leader of a term knows, and only after a ReadIndex round that started after the question
came: then its log has everything that was ever committed, and no leader of a higher term has
sequenced anything. A GUID that is not in this log is then in no committed record, and

* a copy addressed to a leader of an earlier term is sequenced by nobody (S5.6);
* a copy addressed to this leader in this term is refused from now on: the GUID is *fenced* before
  the answer leaves, so a message that is still under way cannot make the answer untrue;
* nobody can have addressed a leader of a higher term before the question, for there was none.

So "not applied" is final unless the publisher itself begins another attempt afterwards. The fence
is lost with the leadership, and then it is not needed: messages of that term are of an earlier one.

What the log has forgotten (S4.5) is "unknown": a counter at or below its session's floor, and any
GUID that may be of a session that was forgotten.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from raftstore.core.dedupe import WrittenRecord
from raftstore.core.state import ChannelState
from raftstore.types import Guid, Role, Seq, Term

FENCED_MAX = 65_536
"""GUIDs fenced per leadership, about 100 bytes each."""


class WriteOutcome(Enum):
    """The known outcome of a write."""

    COMMITTED = "committed"
    PENDING = "pending"
    NOT_APPLIED = "not_applied"
    UNKNOWN = "unknown"
    OVERLOADED = "overloaded"


class WriteOutcomeFound(NamedTuple):
    """The answer to one question."""

    fate: WriteOutcome
    seq: Seq = Seq(0)
    term: Term = Term(0)
    condition: str = "none"
    """Of a conditional write: held, conflict, or unknown (applied before a restart)."""
    base_seq: Seq = Seq(0)
    """The first one of the record; ``seq`` is the last."""


class Fence:
    """GUIDs that the leader of one term has called not applied."""

    def __init__(self, fenced_max: int = FENCED_MAX) -> None:
        self._fenced_max = fenced_max
        self._guids: dict[Guid, None] = {}

    def __contains__(self, guid: Guid) -> bool:
        return guid in self._guids

    def add(self, guid: Guid) -> bool:
        """Refuse the GUID from now on; False when there is no room to remember it."""
        if guid not in self._guids and len(self._guids) >= self._fenced_max:
            return False
        self._guids[guid] = None
        assert len(self._guids) <= self._fenced_max, f"{len(self._guids)} guids are fenced"
        return True


def write_outcome_of(state: ChannelState, guid: Guid, fence: Fence) -> WriteOutcomeFound:
    """Answer at the leader, whose leadership was confirmed after the question came (S7.1)."""
    assert state.role is Role.LEADER, f"the role {state.role} reports the outcome of a write (N4)"
    assert state.stopped is None, (
        f"a stopped replica reports the outcome of a write: {state.stopped} (S13)"
    )
    written = state.dedupe.find(guid)
    if written is not None:
        return _outcome_of_written(state, written)
    # S4.5: what may have been forgotten is not known to be absent.
    if not state.dedupe.is_complete_for(guid):
        return WriteOutcomeFound(WriteOutcome.UNKNOWN)
    # S5.6: no copy that is under way may be sequenced after the answer.
    if not fence.add(guid):
        return WriteOutcomeFound(WriteOutcome.OVERLOADED)
    return WriteOutcomeFound(WriteOutcome.NOT_APPLIED)


def _outcome_of_written(state: ChannelState, written: WrittenRecord) -> WriteOutcomeFound:
    place = written.last_seq, written.term
    if written.last_seq > state.commit_seq:
        return WriteOutcomeFound(WriteOutcome.PENDING, *place)
    if not written.is_conditioned:
        return WriteOutcomeFound(WriteOutcome.COMMITTED, *place)
    is_kept = written.is_kept_by_machine
    if is_kept and not state.lineage.is_in_newest_term(state.applied_seq):
        return WriteOutcomeFound(WriteOutcome.PENDING, *place)  # it may be skipped yet (S10)
    if is_kept and written.last_seq <= state.applied_seq:
        return WriteOutcomeFound(WriteOutcome.COMMITTED, *place, base_seq=written.base_seq)
    if written.outcome_known:
        condition = "held" if written.conflict_seq is None else "conflict"
        return WriteOutcomeFound(WriteOutcome.COMMITTED, *place, condition)
    if written.last_seq > state.applied_seq:
        return WriteOutcomeFound(WriteOutcome.PENDING, *place)
    return WriteOutcomeFound(WriteOutcome.COMMITTED, *place, "unknown")
