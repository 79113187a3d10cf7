"""State of a replica in any role: its log in outline, positions, and the effects so far.

Invariants (NATS words in brackets): ``applied_seq <= commit_seq``; ``durable_seq`` [stored_seq] and
``commit_seq`` never exceed ``last_seq``; a follower's ``commit_seq`` only advances up to
``verified_seq`` (S3.5); what is at or below ``commit_seq`` is never truncated (S2.5). None
but ``verified_seq`` is below the base of the log (S6.5), and ``applied_seq`` when rows are lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from raftstore.config import CatchUpSettings, MembershipSettings, ReplicationSettings
from raftstore.core.commit_proofs import Freshness
from raftstore.core.dedupe import WrittenRecord
from raftstore.core.doubt import UNKNOWN_END, Doubt
from raftstore.core.effects import (
    Append,
    CommitAdvanced,
    ConfigCommitted,
    DoubtEnded,
    Effect,
    Halt,
    HistoriesDiffer,
    ModeChanged,
    Rebase,
    ReplicaSnapshotNeeded,
    Send,
    SendIfKnown,
    StepDown,
    StopServing,
    Truncate,
)
from raftstore.core.flapping import Flapping
from raftstore.core.folds import Folds
from raftstore.core.found_table import FOUND_TABLE, FoundTable
from raftstore.core.refused_writes import RefusedWrites
from raftstore.ports.log import Base, RecoveredChannel
from raftstore.protocol.log_ends import LogEnd
from raftstore.protocol.records import Record
from raftstore.protocol.replication import ReplicationMessage
from raftstore.types import (
    EMPTY_HISTORY,
    FOUNDING_NUMBER,
    ChangeTarget,
    ChannelConfig,
    ChannelId,
    FollowerMode,
    Guid,
    History,
    NodeId,
    ReplicaId,
    ReplicaNumber,
    Role,
    Seq,
    Term,
)

WON_TERMS_MAX: Final = 1_024
"""Terms that are remembered as won; of older ones a replica does not know whether it led them."""
RECORDS_AT_ONCE: Final = 1_024
"""Records of the log that are learnt before what is applied of them is forgotten again."""


class ChannelState:
    """Facts of one channel on one node, and the only place that changes its log."""

    storage_stalled: str | None = None
    """What the disk of this node does not finish (S0.4)."""
    catch_up: CatchUpSettings = CatchUpSettings()
    membership: MembershipSettings = MembershipSettings()
    payloads_repaired = 0
    """Payloads that other replicas gave since the start."""
    stored_seq: Seq
    """What may be acknowledged, and counted by a leader: at ``fsync`` what is durable (S0.6)."""
    doubt: Doubt | None = None
    """It may have lost acknowledged records (S0.6)."""
    stopped: str | None = None
    halted: str | None = None
    target: ChangeTarget | None = None
    """The order of this node's applied catalog; None: none is open (M22)."""
    config_seq_reported = Seq(0)
    """Of the newest configuration that the catalog has a report of."""
    is_removed = False
    """M13: a leader said that committed configurations name this replica no more."""
    is_disputed = False
    """A peer has another history: nothing is served before a quorum has shown which is right."""

    def __init__(  # noqa: PLR0913 - what is recovered, and what it is to be
        self,
        *,
        me: NodeId,
        channel: ChannelId,
        creation_config: ChannelConfig,
        settings: ReplicationSettings,
        durability: str,
        recovered: RecoveredChannel,
        records: Iterable[Record],
        applied_seq: Seq,
        found: FoundTable = FOUND_TABLE,
        first_round_id: int = 0,
        number: ReplicaNumber = FOUNDING_NUMBER,
    ) -> None:
        """``found``, ``first_round_id``, ``number``: as for ``Replica``."""
        self.me, self.number = me, number
        self.channel = channel
        self.settings = settings
        self.durability = durability
        self.now_ms = self.wall_offset_ms = 0
        # The leader, as the elector reports it.
        self.term: Term = recovered.term
        self.role = Role.FOLLOWER
        self.leader: NodeId | None = None
        self.term_leader: NodeId | None = None
        self.mode, self.mode_reason = FollowerMode.CATCHING_UP, "opened"
        # The log in outline: what its base stands for, and every record behind it.
        self.base = recovered.base
        self.folds = folds = Folds(
            creation_config, base=recovered.base, hashes_max=settings.chain_hashes_max
        )
        self.lineage, self.tail, self.chain = folds.lineage, folds.tail, folds.chain
        self.batches, self.dedupe, self.configs = folds.batches, folds.dedupe, folds.configs
        # Positions.
        self.durable_seq = self.stored_seq = recovered.last_seq
        self.durable_term: Term = recovered.term
        self.verified_seq = Seq(0)
        """Follower: our log equals the log of this term's leader up to here (S3.4)."""
        # S6.5: only what was committed is ever removed from a log.
        self.commit_seq = self.leader_commit = recovered.base.seq
        self.applied_seq = Seq(0)
        self.sync_request_id = 0
        """Of the last MsgSyncRequest: no two have the same one, also not of two lives (S12)."""
        self.freshness = Freshness()
        self.flapping, self.refused = Flapping(), RefusedWrites()
        # Why it may not take part.
        self.recovering: History | None = found.recovering(recovered)
        # S5.6: writes this node may have sequenced as leader and that left its log again.
        self._removed_guids: dict[Guid, None] = {}
        self._doubtful_term: Term = recovered.term
        self._won_terms: dict[Term, None] = {}
        # Effects of the present step.
        self._out: list[Effect] = []
        self._batch: list[Record] = []
        self._announced: tuple[Seq, Seq] = (Seq(0), Seq(0))
        self.lacks_rows = found.lacks_rows(recovered, applied_seq)
        # S0.3: without rows it does nothing at all; with all that it promised it may vote.
        self.keeps_promises = not self.lacks_rows and found.keeps_promises(recovered)
        self._rebuild(recovered, records, applied_seq, holds_applied=found.ahead is None)
        self._learn_doubt(recovered, first_round_id)

    def _rebuild(
        self,
        recovered: RecoveredChannel,
        records: Iterable[Record],
        applied_seq: Seq,
        *,
        holds_applied: bool,
    ) -> None:
        # S6.4: a table from another replica says nothing of a tail that may be no part of its
        # channel: what is committed of this log, only its leader can know.
        self._found_applied_seq = applied_seq
        committed_seq = applied_seq if holds_applied else self.base.seq
        for number, record in enumerate(records, 1):
            self._follow(record)
            if number % RECORDS_AT_ONCE == 0:
                self._forget_applied(committed_seq)
        assert self.last_seq == recovered.last_seq, (
            f"the outline ends at seq {self.last_seq}, the log at {recovered.last_seq}"
        )
        # What is applied was committed; the table may know more than a damaged log (S0.3).
        self.applied_seq = applied_seq
        self._forget_applied(committed_seq)
        self.leader_commit = Seq(max(self.commit_seq, applied_seq))
        self._announced = (self.commit_seq, self.commit_seq)
        if self.lacks_rows:
            self.recovering = max(self.base.history, self.recovering or EMPTY_HISTORY)
            self.emit(ReplicaSnapshotNeeded(applied_seq, Seq(self.base.seq + 1)))

    def _forget_applied(self, applied_seq: Seq) -> None:
        """Forget records that are applied, but for what their outlines need."""
        self.commit_seq = Seq(max(self.base.seq, min(applied_seq, self.last_seq)))
        self.folds.commit(self.commit_seq)
        self.dedupe.forget_applied(self.commit_seq)

    # --- one step ---------------------------------------------------------------------------------

    def emit(self, effect: Effect) -> None:
        """Ask for something."""
        self._out.append(effect)

    def send(self, to: NodeId, message: ReplicationMessage) -> None:
        """Ask for a message to be sent."""
        self._out.append(Send(to, message))

    def send_if_known(self, to: NodeId, message: ReplicationMessage) -> None:
        """The same for a kind that came with a level."""
        self._out.append(SendIfKnown(to, message))

    def halt(self, reason: str) -> None:
        """S0.4, S13: an impossible state; nothing else of this step may leave."""
        if self.halted is None:
            self.halted = f"{reason} (term {self.term}, last {self.last_seq})"

    def stop_serving(self, reason: str) -> None:
        """S13: two histories differ where they must not: stop, keep both stores."""
        if self.stopped is None:
            self.stopped, self.is_disputed = reason, False
            self.emit(StopServing(reason))
            if self.role is Role.LEADER:
                self.emit(StepDown(reason))

    def set_mode(self, mode: FollowerMode, reason: str) -> None:
        """Change the follower's mode, or why it is in it, and say so (NATS-131)."""
        if (self.mode, self.mode_reason) != (mode, reason):
            assert self.role is not Role.LEADER, f"the mode of a leader would be {mode} (S6.1)"
            self.mode, self.mode_reason = mode, reason
            self.emit(ModeChanged(mode, reason))

    def take_effects(self) -> list[Effect]:
        """End of a step: everything asked for, in the order the engine must keep."""
        if self._batch:
            self.flush_batch()
        commit_seq = self.commit_seq
        if self._announced != (commit_seq, commit_seq) or self.durable_seq < commit_seq:
            self.emit_commit()
        effects, self._out = self._out, []
        if self.halted is not None:
            return [Halt(self.halted)]
        # The positions of this module's docstring; applied ones may exceed a damaged log (S0.3).
        last_seq = self.lineage.last_seq
        assert self.commit_seq <= last_seq, f"committed {self.commit_seq} of {last_seq}"
        assert self.durable_seq <= last_seq, f"durable {self.durable_seq} of {last_seq} (S0.5)"
        assert self.verified_seq <= last_seq, f"verified {self.verified_seq} of {last_seq} (S3.4)"
        assert self.base.seq <= self.commit_seq, (
            f"the base is at {self.base.seq}, committed are {self.commit_seq} (S6.5)"
        )
        assert self.commit_seq <= self.leader_commit, (
            f"committed {self.commit_seq}, reported by leaders are {self.leader_commit} (S3.5)"
        )
        assert self.durable_term <= self.term, (
            f"term {self.durable_term} is durable and the present one is {self.term} (S0.5)"
        )
        return effects

    def flush_batch(self) -> None:
        """Ask for the appends gathered so far (one group for the log)."""
        if self._batch:
            self._out.append(Append(tuple(self._batch)))
            self._batch = []

    def emit_commit(self) -> None:
        """S10: apply in order, never above what is durable here."""
        apply_to = Seq(min(self.commit_seq, self.durable_seq))
        if (self.commit_seq, apply_to) != self._announced and not self.lacks_rows:
            old_commit, old_apply_to = self._announced
            assert self.commit_seq >= old_commit, (
                f"the commit seq fell from {old_commit} to {self.commit_seq} (S2.5)"
            )
            assert apply_to >= old_apply_to, (
                f"records up to {old_apply_to} were to be applied, now only to {apply_to} (S10)"
            )
            self._announced = (self.commit_seq, apply_to)
            self._out.append(CommitAdvanced(self.commit_seq, apply_to))

    # --- the log ----------------------------------------------------------------------------------

    @property
    def last_seq(self) -> Seq:
        """End of the accepted log, durable or not (S1.2)."""
        return self.lineage.last_seq

    @property
    def uncommitted_records(self) -> int:
        """Records above the commit seq."""
        return len(self.tail.records)

    def append(self, record: Record) -> None:
        """Add a record at the end of the log; durable when the engine says so."""
        assert record.term <= self.term, (
            f"a record of term {record.term} is appended in term {self.term} (S1.5)"
        )
        assert self.stopped is None, f"a record is appended to a stopped log: {self.stopped} (S13)"
        try:
            self.folds.append(record)
        except ValueError:  # of msgspec, or of a text that is no UTF-8
            self._refuse_config(record)
        self._batch.append(record)

    def _follow(self, record: Record) -> None:
        try:
            self.folds.append(record)
        except ValueError:  # of msgspec, or of a text that is no UTF-8
            self._refuse_config(record)

    def _refuse_config(self, record: Record) -> None:
        self.halt(f"the configuration record at seq {record.last_seq} cannot be decoded")

    def truncate(self, from_seq: Seq) -> bool:
        """S2.5: remove a tail proven to conflict with the leader's log; False if that must not be.

        The caller has the proof: the leader of this term has another term at ``from_seq``.
        """
        # S6.5: what the base stands for was committed, and nothing is left to be cut.
        if from_seq <= self.base.seq:
            self.halt(f"truncation from seq {from_seq} at or below the base {self.base.seq}")
            return False
        # S2.5: what is committed never goes: cutting it means the protocol was broken somewhere.
        if from_seq <= self.commit_seq:
            self.halt(f"truncation from seq {from_seq} below the commit seq {self.commit_seq}")
            return False
        # S12: two logs that are equal below this seq have the same records there, so one ends in
        # front of it here; a peer that says otherwise describes no log.
        if self.chain.at(from_seq - 1) is None:
            return False
        assert from_seq <= self.last_seq, f"nothing to cut at {from_seq} above {self.last_seq}"
        # S13: both stores are kept as they are; and only a follower has anything that conflicts.
        assert self.stopped is None, f"a stopped log is cut: {self.stopped} (S13)"
        assert self.role is not Role.LEADER, f"the leader of {self.term} cuts its own log (S2.5)"
        self.flush_batch()
        for guid in self.dedupe.uncommitted_from(from_seq):
            self._remember_removed(guid)
        self.folds.truncate(from_seq)
        self.durable_seq = Seq(min(self.durable_seq, from_seq - 1))
        self.stored_seq = Seq(min(self.stored_seq, from_seq - 1))
        self.verified_seq = Seq(min(self.verified_seq, from_seq - 1))
        assert self.last_seq == from_seq - 1, (
            f"a cut at seq {from_seq} left a log that ends at seq {self.last_seq} (S2.5)"
        )
        self.emit(Truncate(from_seq))
        return True

    def trim(self, base: Base) -> None:
        """S6.5: records up to ``base`` leave the log, unless it begins there or behind it already.

        What a replica keeps that lacks or contradicts something is evidence: it is not trimmed.
        """
        is_evidence = self.stopped is not None or self.recovering is not None
        if is_evidence or base.seq <= self.base.seq:
            return
        # S6.5: what is applied was committed, and is durable in this log (S10).
        if base.seq > self.applied_seq:
            self.halt(
                f"the log is to begin behind seq {base.seq}, the table is at {self.applied_seq}"
            )
            return
        is_known = self.chain.may_end(base.seq, base.chain_hash)
        if not (is_known and self.lineage.holds(base.term, base.seq)):
            self.halt(f"the base {tuple(base.history)} is none of this log (S13)")
            return
        self.flush_batch()
        self.base = base
        self.emit(Rebase(base))

    def _remember_removed(self, guid: Guid) -> None:
        self._removed_guids[guid] = None
        if len(self._removed_guids) > self.settings.uncommitted_records_max:
            del self._removed_guids[next(iter(self._removed_guids))]
            self._doubtful_term = self.term

    def won(self, term: Term) -> None:
        """This replica leads in ``term``: only in such terms may it have sequenced anything."""
        assert self.role is Role.LEADER, f"term {term} is won in the role {self.role} (S1.5)"
        assert term == self.term, f"term {term} is won in term {self.term} (S1.4)"
        assert term not in self._won_terms, f"term {term} was won twice by this replica (S13)"
        self._won_terms[term] = None
        if len(self._won_terms) > WON_TERMS_MAX:
            oldest = next(iter(self._won_terms))
            del self._won_terms[oldest]
            self._doubtful_term = max(self._doubtful_term, oldest)

    def may_have_sequenced(self, guid: Guid, term: Term) -> bool:
        """Whether this node, as leader of ``term``, may have given the write a seq (S4.1, S5.6)."""
        if term <= self._doubtful_term:
            return True
        if term not in self._won_terms:
            return False  # S5.6: only the leader of that term ever sequences it
        if guid in self._removed_guids:
            return True
        # S4.5: what was forgotten may be committed, which nobody finds any more.
        return self.dedupe.find(guid) is not None or not self.dedupe.is_complete_for(guid)

    # --- the configuration ------------------------------------------------------------------------

    @property
    def own_id(self) -> ReplicaId:
        """This life of this node's replica: it too counts by its number (M4)."""
        return ReplicaId(self.me, self.number)

    @property
    def is_witness(self) -> bool:
        """The newest configuration names it as a replica without rows."""
        config = self.configs.current
        return config.is_witness(self.me) and config.number_of(self.me) == self.number

    # --- positions --------------------------------------------------------------------------------

    def advance_commit(self, commit_seq: Seq) -> list[Seq]:
        """Raise the commit seq to the record that ends there; return the records committed now."""
        assert self.commit_seq < commit_seq <= self.lineage.last_seq, (
            f"commit seq {self.commit_seq} to {commit_seq} of {self.lineage.last_seq} (S3.1, S3.5)"
        )
        assert commit_seq <= self.verified_seq or self.role is Role.LEADER, (
            f"a follower commits {commit_seq}, verified are {self.verified_seq} (S3.5)"
        )
        is_applied = self.commit_seq < self._found_applied_seq
        self.commit_seq = commit_seq
        known_seq = self.configs.committed.seq
        self.folds.commit(commit_seq)
        if self.configs.committed.seq > known_seq:
            self.emit_config()
        if is_applied:
            # What became of these is in the table since it came here, and no caller waits for it.
            self.dedupe.forget_applied(Seq(min(commit_seq, self._found_applied_seq)))
        self.leader_commit = max(self.leader_commit, self.commit_seq)
        if self._batch:
            self.flush_batch()
        self.emit_commit()
        return self.tail.committed

    def emit_config(self) -> None:
        """M21: say which configuration is committed, unless it is that of the creation."""
        if self.configs.committed.seq:
            self.emit(ConfigCommitted(*self.configs.committed))

    # --- doubt (S0.6) -----------------------------------------------------------------------------

    def _learn_doubt(self, recovered: RecoveredChannel, first_request_id: int) -> None:
        self._lacking = self.recovering
        """How far the log has to come, whatever else may be lost."""
        if recovered.in_doubt:
            self.doubt = Doubt(
                self.me,
                self.channel,
                recovered.term,
                first_request_id=first_request_id,
                emit=self.emit,
            )
            self.recovering = UNKNOWN_END

    def ask_log_ends(self) -> None:
        """Begin a round of questions if one is due."""
        if self.doubt is not None and self.doubt.due_ms <= self.now_ms:
            self.doubt.ask(self.configs.current, self.term, self.lineage.last, self.now_ms)
            self._follow_target()

    def on_log_end(self, sender: NodeId, answer: LogEnd) -> None:
        """The answer of a voter."""
        if self.doubt is not None:
            config, own = self.configs.current, self.lineage.last
            self.doubt.on_answer(sender, answer, config, self.term, own)
            self._follow_target()

    def _follow_target(self) -> None:
        """S0.6: what the log has to come to, beside what it is known to lack; maybe it has."""
        assert self.doubt is not None, "a target without a doubt"
        target = self.doubt.target
        if target is None:
            return
        self.recovering = max(target, self._lacking or EMPTY_HISTORY)
        if self._lacking is None and self.lineage.last >= target:
            self.has_recovered()

    def has_recovered(self) -> None:
        """S0.3, S0.6: the log holds all that was acknowledged here and that any replica holds."""
        assert self.role is not Role.LEADER, "a leader was recovering (S0.3)"
        self.recovering = self._lacking = None
        if self.doubt is not None:
            self.doubt = None
            self.flush_batch()
            self.emit(DoubtEnded())

    def apply_outcomes(
        self, applied_seq: Seq, conflicts: tuple[tuple[Seq, Seq], ...]
    ) -> list[WrittenRecord]:
        """The state machine came this far: return the conditioned records whose effect is known."""
        # S10: only what is committed is applied; what an earlier life applied was (S0.3).
        assert applied_seq <= self.commit_seq or applied_seq <= self.applied_seq, (
            f"seq {applied_seq} is applied, committed are {self.commit_seq}"
        )
        assert applied_seq <= self.durable_seq or applied_seq <= self.applied_seq, (
            f"seq {applied_seq} is applied, durable are {self.durable_seq} (S10)"
        )
        self.applied_seq = max(self.applied_seq, applied_seq)
        return self.dedupe.on_applied(applied_seq, dict(conflicts))

    def on_persisted(self, durable_seq: Seq, durable_term: Term, stored_seq: Seq = Seq(0)) -> None:
        """The engine's word on durability (it clips what was truncated)."""
        assert durable_term >= self.durable_term, (
            f"the durable term would fall from {self.durable_term} to {durable_term} (S0.5)"
        )
        assert durable_seq >= self.durable_seq, (
            f"the durable seq would fall from {self.durable_seq} to {durable_seq} (S0.5)"
        )
        self.durable_seq = Seq(min(durable_seq, self.lineage.last_seq))
        self.stored_seq = Seq(min(max(durable_seq, stored_seq), self.lineage.last_seq))
        self.durable_term = durable_term

    def check_hash(self, whose: NodeId, seq: Seq, commit_hash: bytes) -> None:
        """S13: compare chain hashes where both sides are committed."""
        if not commit_hash or seq > self.commit_seq:
            return
        ours = self.chain.at(seq)
        if ours is None or ours == commit_hash or self.is_disputed or self.stopped is not None:
            return
        # Which of the two is wrong only a quorum can decide; until then it may be this one.
        self.is_disputed = True
        self.emit(HistoriesDiffer(whose, seq))
