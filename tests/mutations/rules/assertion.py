"""Mutations of assertions, and of the judgements that keep messages away from them (S12)."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

ASSERTED = "tests/unit/core/test_assertions.py::test_"
HOSTILE = "tests/unit/core/test_hostile_leader.py::test_"


ELECTED = "tests/unit/election/test_election_assertions.py::test_"
LOGGED = "tests/unit/storage/log/test_log_assertions.py::test_"
MARKED = "tests/unit/storage/log/test_mark.py::test_"
BATCHED = "tests/unit/state_machines/test_coordinator.py::test_"
STAGED = "tests/unit/state_machines/test_staging.py::test_"
TRACKED = "tests/unit/engine/channel/test_durable_tracker.py::test_"
TABLED = "tests/unit/state_machines/test_table.py::test_"


def _unasserted(
    name: str, text: str, function: str, condition: str, test: str, *, where: str = ASSERTED
) -> Mutation:
    return mutation(name, text, Edit(function, condition, "True"), directed(where + test))


ASSERTION_RULES: tuple[Mutation, ...] = (
    _unasserted(
        "S0.3-assert-acks",
        "A replica that lacks acknowledged records acknowledges others.",
        "Follower._acknowledge",
        "state.recovering is None",
        "a_replica_that_lacks_what_it_acknowledged_confirms_nothing",
    ),
    _unasserted(
        "S0.3-assert-confirms",
        "A replica that lacks acknowledged records confirms reads.",
        "Follower._confirm_reads",
        "state.recovering is None",
        "a_replica_that_lacks_what_it_acknowledged_confirms_nothing",
    ),
    _unasserted(
        "S1.4-assert-won",
        "A leader commits in a term that it did not win.",
        "Leader.advance_commit",
        "state.term == self._term",
        "a_leader_commits_in_the_term_that_it_won",
    ),
    _unasserted(
        "S1.4-assert-falls",
        "A machine whose term falls goes unnoticed.",
        "GuardedMachine._mirror",
        "self.term >= before",
        "a_term_never_falls",
        where=ELECTED,
    ),
    _unasserted(
        "S1.5-assert-role",
        "A role and the leader that it names may differ.",
        "GuardedMachine._set_role",
        "(role is Role.LEADER) == (leader == self.me)",
        "a_leader_is_the_node_that_leads",
        where=ELECTED,
    ),
    _unasserted(
        "S1.5-assert-fixed-role",
        "The role of a fixed elector and its leader may differ.",
        "FixedElector._move",
        "(role is Role.LEADER) == (leader == self._host.me)",
        "a_leader_is_the_node_that_leads",
        where=ELECTED,
    ),
    _unasserted(
        "S6.3-assert-drain",
        "A follower takes from its live queue while history is missing.",
        "Follower._drain",
        "self._state.mode is FollowerMode.STEADY",
        "only_a_steady_follower_takes_from_its_live_queue",
    ),
    _unasserted(
        "S7.3-assert-times",
        "Moments that a replica keeps as proofs fall unnoticed.",
        "Freshness.learn",
        "not before or self._times[before - 1] <= known_ms",
        "moments_that_a_replica_keeps_rise",
    ),
    _unasserted(
        "S0.5-assert-new",
        "What is durable already is appended again.",
        "DurableTracker.appended",
        "last_seq > self.durable_seq",
        "what_is_appended_is_not_durable_yet",
        where=TRACKED,
    ),
    _unasserted(
        "S0.3-assert-leader",
        "A leader that lacks acknowledged records is not found out.",
        "Leader.__init__",
        "state.recovering is None",
        "a_recovering_replica_never_leads",
    ),
    _unasserted(
        "S0.5-assert-durable-term",
        "A durable term that falls goes unnoticed.",
        "ChannelState.on_persisted",
        "durable_term >= self.durable_term",
        "the_durable_term_never_falls",
    ),
    _unasserted(
        "S0.5-assert-adopted-term",
        "A term that is durable before it is adopted goes unnoticed.",
        "ChannelState.take_effects",
        "self.durable_term <= self.term",
        "a_term_that_was_never_adopted_is_not_durable",
    ),
    _unasserted(
        "S1.5-assert-append",
        "A record of a term to come is appended.",
        "ChannelState.append",
        "record.term <= self.term",
        "a_record_of_a_term_to_come_is_not_appended",
    ),
    _unasserted(
        "S1.5-assert-lineage",
        "A log whose terms fall goes unnoticed.",
        "Lineage.append",
        "not self._terms or term > self._terms[-1]",
        "terms_never_fall_along_a_log",
    ),
    _unasserted(
        "S2.5-assert-commit",
        "A commit seq that falls goes unnoticed.",
        "ChannelState.emit_commit",
        "self.commit_seq >= old_commit",
        "the_commit_seq_told_to_the_engine_never_falls",
    ),
    _unasserted(
        "S3.5-assert-verified",
        "A follower commits what is not verified.",
        "ChannelState.advance_commit",
        "commit_seq <= self.verified_seq or self.role is Role.LEADER",
        "a_follower_commits_only_what_is_verified",
    ),
    _unasserted(
        "S10-assert-applied",
        "What is applied before it is committed goes unnoticed.",
        "ChannelState.apply_outcomes",
        "applied_seq <= self.commit_seq or applied_seq <= self.applied_seq",
        "only_what_is_committed_is_applied",
    ),
    _unasserted(
        "S13-assert-won-once",
        "A term that is won twice goes unnoticed.",
        "ChannelState.won",
        "term not in self._won_terms",
        "a_term_is_won_once",
    ),
    _unasserted(
        "S2.5-assert-leader-append-only",
        "A leader cuts its own log.",
        "ChannelState.truncate",
        "self.role is not Role.LEADER",
        "a_leader_never_cuts_its_own_log",
    ),
    _unasserted(
        "S13-assert-stopped-append",
        "A record is appended to a log that was stopped.",
        "ChannelState.append",
        "self.stopped is None",
        "a_stopped_log_stays_as_it_is",
    ),
    _unasserted(
        "S13-assert-stopped-cut",
        "A log that was stopped is cut.",
        "ChannelState.truncate",
        "self.stopped is None",
        "a_stopped_log_stays_as_it_is",
    ),
    _unasserted(
        "S10-assert-durable",
        "What is applied before it is durable goes unnoticed.",
        "ChannelState.apply_outcomes",
        "applied_seq <= self.durable_seq or applied_seq <= self.applied_seq",
        "only_what_is_durable_is_applied",
    ),
    _unasserted(
        "S0.5-assert-durable-seq",
        "A durable seq that falls goes unnoticed.",
        "ChannelState.on_persisted",
        "durable_seq >= self.durable_seq",
        "the_durable_seq_never_falls",
    ),
    _unasserted(
        "S6.5-assert-base",
        "A base of records that are not committed goes unnoticed.",
        "ChannelState.take_effects",
        "self.base.seq <= self.commit_seq",
        "a_base_is_of_committed_records",
    ),
    _unasserted(
        "S2.2-assert-term-start",
        "A term whose records begin before its leader is taken up.",
        "Leader.start",
        "state.lineage.last.term < state.term",
        "a_term_begins_with_its_term_start_record",
    ),
    _unasserted(
        "S2.1-assert-told-seq",
        "Followers are sent a record that does not follow.",
        "Leader._replicate",
        "record.base_seq == state.lineage.last_seq + 1",
        "followers_are_told_of_the_next_record_only",
    ),
    _unasserted(
        "S13-assert-stopped-ack",
        "A replica that stopped acknowledges.",
        "Follower._acknowledge",
        "state.stopped is None",
        "a_stopped_replica_confirms_nothing",
    ),
    _unasserted(
        "S6.3-assert-gap",
        "A follower is steady behind a gap.",
        "CatchUp.leave",
        "self._queue_continues()",
        "no_follower_is_steady_behind_a_gap",
    ),
    _unasserted(
        "S5.6-assert-leadership",
        "A write for another leader gets a seq.",
        "Sequencer.admit",
        "message.leader == state.me",
        "a_write_for_another_leadership_gets_no_seq[leader]",
    ),
    _unasserted(
        "S5.6-assert-term",
        "A write for another term gets a seq.",
        "Sequencer.admit",
        "message.term == state.term",
        "a_write_for_another_leadership_gets_no_seq[term]",
    ),
    _unasserted(
        "S7.1-assert-round",
        "A round of reads begins within another.",
        "ReadRounds._start_round",
        "self._round is None",
        "one_round_of_reads_at_a_time",
    ),
    _unasserted(
        "S7.3-assert-proof",
        "Two proofs are asked for at a time.",
        "ProofRequests._begin",
        "self._sent_ms is None",
        "one_proof_is_asked_for_at_a_time",
    ),
    _unasserted(
        "S13-assert-fate",
        "A replica that stopped says what became of a write.",
        "write_outcome_of",
        "state.stopped is None",
        "only_a_leader_that_serves_tells_of_a_write",
    ),
    _unasserted(
        "S6.7-assert-folds",
        "A base is made of folds of different records.",
        "Folds.base",
        "self.chain.last_seq == seq",
        "what_is_derived_from_a_log_ends_where_it_ends",
    ),
    _unasserted(
        "S1.3-assert-asked",
        "A term is won without its votes.",
        "GuardedMachine.win",
        "self._asked_term == self.term",
        "a_term_is_won_by_the_votes_that_were_asked_for",
        where=ELECTED,
    ),
    _unasserted(
        "S13-assert-winner",
        "Another than its winner is followed in a term.",
        "GuardedMachine._set_role",
        "leader is None or leader == self.term_leader",
        "only_the_winner_of_a_term_is_followed_in_it",
        where=ELECTED,
    ),
    _unasserted(
        "S1.3-assert-told-vote",
        "A vote is announced that was not given.",
        "VotingElector._reply_vote",
        "not granted or (self.term, self.voted_for) == (vote_term, candidate)",
        "only_a_vote_that_was_given_is_told",
        where=ELECTED,
    ),
    _unasserted(
        "S2.1-assert-fixed-term",
        "A named leader leads the same term twice.",
        "FixedElector._move",
        "role is not Role.LEADER or term > self._term",
        "a_named_leader_keeps_the_rules_of_terms",
        where=ELECTED,
    ),
    _unasserted(
        "S0.5-assert-written",
        "A group commit is written twice.",
        "GroupCommitter._write",
        "batch.operation > self._operation",
        "group_commits_are_written_in_order_and_once",
        where=LOGGED,
    ),
    _unasserted(
        "S0.3-assert-segment",
        "A segment is started behind a gap.",
        "SegmentWriter.start",
        "number == self._number + 1",
        "segments_have_no_gap",
        where=LOGGED,
    ),
    _unasserted(
        "S0.3-assert-cut",
        "Another segment than the last one is cut.",
        "LogRecovery._cut",
        "cut.segment == self._number_of_last",
        "only_the_last_segment_is_cut",
        where=LOGGED,
    ),
    _unasserted(
        "S0.8-assert-mark",
        "The mark promises something of a dropped channel.",
        "MarkFile.write",
        "held is None or row.dropped or not held.dropped",
        "mark_promises_nothing_of_a_dropped_channel",
        where=MARKED,
    ),
    _unasserted(
        "S1.3-assert-mark",
        "The mark takes a vote back.",
        "MarkFile.write",
        "held is None or row.dropped or row.term > held.term "
        "or held.voted_for in (None, row.voted_for)",
        "mark_never_takes_a_vote_back",
        where=MARKED,
    ),
    _unasserted(
        "S10-assert-attempt",
        "Another attempt than the open one is decided.",
        "_commit",
        "found.open.attempt == step.attempt",
        "no_batch_is_opened_or_decided_behind_a_later_one",
        where=BATCHED,
    ),
    _unasserted(
        "S6.1-assert-ahead",
        "History is fetched without an end ahead of the disk.",
        "CatchUp._take",
        "len(self._undurable) <= SYNC_BATCHES_UNDURABLE_MAX",
        "history_is_fetched_a_bounded_number_of_batches_ahead_of_the_disk",
    ),
    mutation(
        "S6.3-assert-history",
        "A steady follower takes history.",
        Edit(
            "CatchUp.on_sync",
            'assert state.mode is FollowerMode.CATCHING_UP, "a steady follower waits for history '
            '(S6.3)"',
            "",
        ),
        directed(ASSERTED + "only_a_follower_that_catches_up_takes_history"),
    ),
    _unasserted(
        "S1.8-assert-successor",
        "A leader gives up and nobody is to stand.",
        "VotingElector.step_down",
        "self._deadline_ms is not None or self._arm_wanted",
        "somebody_stands_after_a_leader_that_gives_up",
        where=ELECTED,
    ),
    _unasserted(
        "S1.8-assert-round",
        "A round of an election that nothing ends goes unnoticed.",
        "VotingElector._start_pre_vote",
        "self._deadline_ms is not None",
        "every_round_of_an_election_ends_by_itself",
        where=ELECTED,
    ),
    _unasserted(
        "S1.5-assert-resign",
        "A term is given up by a node that does not lead it.",
        "GuardedMachine.resign",
        "leader != self.me or self.role is Role.LEADER",
        "a_term_is_given_up_once_and_by_its_leader",
        where=ELECTED,
    ),
    _unasserted(
        "S10-assert-commits",
        "A batch is decided under a lower number than the one before it.",
        "_commit",
        "found.last is None or n > found.last.n",
        "numbers_of_a_writer_rise_with_its_batches",
        where=BATCHED,
    ),
    _unasserted(
        "S10-assert-chain",
        "A batch is applied behind itself.",
        "apply_for",
        "prev < entry.n",
        "commits_in_the_outbox_wait_for_channels_and_follow_each_other",
        where=BATCHED,
    ),
    _unasserted(
        "S10-assert-applied-batch",
        "A batch is applied at a seq in front of the one before it.",
        "plan_apply",
        "head.seq < record.base_seq",
        "batches_are_applied_in_the_order_of_the_log",
        where=STAGED,
    ),
    _unasserted(
        "S10-assert-condition",
        "A condition is decided by a later row.",
        "_apply_conditional",
        "present < record.base_seq",
        "a_condition_is_decided_by_rows_before_it",
        where=TABLED,
    ),
    mutation(
        "S12-term-of-metadata",
        "A follower takes metadata whose terms fall, or exceed the leader's.",
        Edit("Follower._on_store_request", "not before <= meta.term <= request.term", "False"),
        directed(HOSTILE + "metadata_of_a_term_that_cannot_follow_is_refused"),
    ),
    mutation(
        "S12-term-of-history",
        "Catch-up takes records whose terms fall, or exceed the leader's.",
        Edit("CatchUp._take", "not term <= record.term <= message.term", "False"),
        directed(HOSTILE + "history_of_a_term_that_cannot_follow_is_refused"),
    ),
    mutation(
        "S12-record-cut-in-two",
        "A log is cut in the middle of a record.",
        Edit("ChannelState.truncate", "self.chain.at(from_seq - 1) is None", "False"),
        directed(HOSTILE + "no_record_is_cut_in_two"),
    ),
    mutation(
        "S12-longer-record",
        "A held record counts as verified to the end that a message gives it.",
        Edit(
            "store_verified",
            "state.lineage.holds(record.term, record.last_seq)",
            "True",
        ),
        Edit(
            "Follower._take",
            "state.lineage.holds(meta.term, meta.last_seq)",
            "True",
        ),
        directed(HOSTILE + "a_held_record_cannot_be_longer_than_it_is"),
    ),
)
