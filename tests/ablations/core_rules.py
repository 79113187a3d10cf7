"""Ablations of the core: S0.3, S0.5, S1.2, S1.4, S2-S7, S9, S10, S13 on one replica."""

from __future__ import annotations

from tests.ablations.ablation import CORE, Ablation, Edit, directed
from tests.ablations.outcome_rules import OUTCOMES

LOG = "tests/unit/core/test_rules_log.py::test_"
COMMIT = "tests/unit/core/test_rules_commit.py::test_"
HAND_OVER = "tests/unit/core/test_hand_over.py::test_"
SEQUENCING = "tests/unit/core/test_sequencer.py::test_"
CATCHING_UP = "tests/unit/core/test_catch_up.py::test_"
SYNC = "tests/unit/core/test_catch_up.py::test_"
DERIVED = (
    "tests/unit/core/test_derived_positions.py::"
    "test_derived_positions_are_those_of_a_fresh_rebuild_after_each_cut"
)
QUORUM = "tests/unit/core/test_quorum.py::test_"

REPLICA = CORE + "replica.py"
STATE = CORE + "state.py"
LEADER = CORE + "leader.py"
FOLLOWER = CORE + "follower.py"
SEQUENCER = CORE + "sequencer.py"
CATCH_UP = CORE + "catch_up.py"

IDENTITY_AND_TERMS: tuple[Ablation, ...] = (
    directed(
        "S0.3-ack",
        "a recovering replica acknowledges",
        FOLLOWER,
        "if state.recovering is not None:\n            self._check_recovered(match)",
        "if False:\n            self._check_recovered(match)",
        LOG + "recovering_replica_acks_nothing_until_it_is_past_its_mark",
    ),
    directed(
        "S0.3-may-vote",
        "a recovering replica says that it may vote",
        REPLICA,
        "return self._state.recovering is None and self._state.stopped is None",
        "return self._state.stopped is None",
        LOG + "recovering_replica_does_not_vote",
    ),
    directed(
        "S0.5-ack-term",
        "a follower acks before its term is durable",
        FOLLOWER,
        " or state.durable_term != state.term:",
        ":",
        LOG + "follower_acks_nothing_before_its_term_is_durable",
    ),
    directed(
        "S0.5-leader-term",
        "a leader counts itself before its term is durable",
        LEADER,
        "if state.durable_term == state.term:",
        "if True:",
        LOG + "leader_does_not_count_itself_before_its_term_is_durable",
    ),
    directed(
        "S1.2-accepted",
        "votes compare the durable history only",
        REPLICA,
        "return self._state.lineage.last\n",
        "return History(\n"
        "            self._state.lineage.term_at(self._state.durable_seq),\n"
        "            self._state.durable_seq,\n"
        "        )\n",
        LOG + "history_in_elections_is_what_was_accepted_durable_or_not",
    ),
    directed(
        "S13-two-leaders-core",
        "two leaders of one term go unnoticed by the core",
        REPLICA,
        "if known is not None and event.leader not in (None, known):",
        "if False:",
        LOG + "second_leader_of_a_term_stops_the_node",
    ),
    directed(
        "S13-lower-term",
        "a term may decrease",
        REPLICA,
        "if event.term < state.term:",
        "if False:",
        LOG + "lower_term_stops_the_node",
    ),
    directed(
        "S13-chain-hash",
        "different histories below the commit seq go unnoticed",
        STATE,
        "if ours is not None and ours != commit_hash:",
        "if False:",
        LOG + "other_chain_hash_at_a_committed_seq_stops_serving",
    ),
)

CATCHING_UP: tuple[Ablation, ...] = (
    directed(
        "S1.6-stands",
        "a replica that is catching up neither votes nor stands",
        REPLICA,
        "return self._state.recovering is None and self._state.stopped is None",
        "return self._state.mode is FollowerMode.STEADY and self._state.stopped is None",
        "tests/design/test_nats_catch_up.py::"
        "test_catching_up_follower_may_be_elected_on_its_contiguous_prefix",
    ),
)

MEMBERSHIP: tuple[Ablation, ...] = (
    directed(
        "S8-rollback",
        "a configuration stays in force when its record is cut off",
        CORE + "configs.py",
        "        while self._stack[-1][0] >= from_seq and len(self._stack) > 1:",
        "        while False:",
        "tests/unit/core/test_configs.py::test_configuration_rolls_back_with_truncation",
    ),
)

LOG_MATCHING: tuple[Ablation, ...] = (
    directed(
        "S2.2-term-start",
        "a new leader appends no term-start record",
        LEADER,
        "        self._replicate(record, inlined=True)\n",
        "",
        LOG + "leader_appends_a_term_start_record_before_anything_else",
    ),
    directed(
        "S2.3-prev-term",
        "StoreRequest names its own term as the one before",
        LEADER,
        "prev_term=state.lineage.term_at(state.last_seq),",
        "prev_term=state.term,",
        LOG + "store_request_carries_the_term_of_the_record_before",
    ),
    directed(
        "S2.4-live",
        "a live record is taken by its seq alone",
        CATCH_UP,
        "return state.lineage.holds(entry.prev_term, entry.meta.base_seq - 1)",
        "return entry.meta.base_seq - 1 <= state.last_seq",
        LOG + "live_record_is_not_appended_after_a_record_of_another_term",
    ),
    directed(
        "S2.4-history",
        "fetched history is taken by its seq alone",
        CATCH_UP,
        "if not state.lineage.holds(message.prev_term, message.from_seq - 1):",
        "if message.from_seq - 1 > state.last_seq:",
        LOG + "history_is_not_appended_after_a_record_of_another_term",
    ),
    directed(
        "S2.4-held",
        "a held record waits for its payload again",
        FOLLOWER,
        "if state.lineage.holds(meta.term, meta.base_seq):",
        "if False:",
        LOG + "held_record_is_acknowledged_without_waiting_for_its_payload",
    ),
    directed(
        "S2.4-conflict",
        "a conflicting tail stays in the log",
        CATCH_UP,
        "if not state.lineage.holds(record.term, record.base_seq):",
        "if record.base_seq > state.last_seq:",
        LOG + "conflicting_tail_is_cut_and_replaced_in_one_step",
    ),
    directed(
        "S2.5-below-commit",
        "a committed record may be truncated",
        STATE,
        "if from_seq <= self.commit_seq:",
        "if False:",
        LOG + "truncation_below_the_commit_seq_stops_the_node",
    ),
    directed(
        "S2.5-on-leader-change",
        "a follower cuts to its commit seq when the leader changes",
        REPLICA,
        '        """S6.2: nothing learned from another leadership is continued."""\n',
        "        if self._state.last_seq > self._state.commit_seq:\n"
        "            self._state.truncate(Seq(self._state.commit_seq + 1))\n",
        LOG + "uncommitted_tail_stays_when_the_leader_changes",
    ),
    directed(
        "S2.5-derived-chain",
        "chain hashes of records that were cut off stay",
        STATE,
        "        self.chain.truncate(from_seq)\n",
        "",
        DERIVED,
    ),
    directed(
        "S2.5-derived-configs",
        "a configuration stays that was cut off the log",
        STATE,
        "        self.configs.truncate(from_seq)\n",
        "",
        DERIVED,
    ),
    directed(
        "S2.5-derived-writes",
        "a write that was cut off the log is taken for one that is in it",
        STATE,
        "for guid in self.dedupe.truncate(from_seq):",
        "for guid in ():",
        DERIVED,
    ),
    directed(
        "S6.1-progress",
        "a follower asks for all history again after each answer",
        CATCH_UP,
        "            return Seq(state.verified_seq + 1), ()\n",
        "            return Seq(1), ()\n",
        "tests/unit/core/test_catch_up_progress.py::"
        "test_each_answer_moves_on_although_one_record_fills_it",
    ),
    directed(
        "S6.1-held",
        "an answer that holds only what is there already counts for nothing",
        CATCH_UP,
        "        state.append(record)\n    state.verified_seq",
        "        state.append(record)\n        state.verified_seq",
        SYNC + "answers_with_nothing_new_do_not_wait_for_the_disk",
    ),
    directed(
        "S2.6-lineage",
        "the match point is the leader's end of a common term",
        CORE + "history.py",
        "return min(end_seq, self._ends[index])",
        "return self._ends[index]",
        "tests/unit/core/test_history.py::test_match_point_is_the_end_of_the_largest_common_term",
    ),
    directed(
        "S6.1-source",
        "history of anybody is taken",
        FOLLOWER,
        "if sender != state.leader:",
        "if False:",
        LOG + "history_of_anybody_but_the_leader_is_discarded",
    ),
    directed(
        "S6.2-restart",
        "what the old leader verified counts for the new one",
        REPLICA,
        "        self._follower = Follower(self._state, self._payloads)\n        reason, ",
        "        reason, ",
        LOG + "new_leader_is_probed_from_nothing_verified",
    ),
    directed(
        "S6.3-drain",
        "the live queue drains without log matching",
        FOLLOWER,
        "if not continues(state, head):\n            return self._leave_steady(",
        "if False:\n            return self._leave_steady(",
        LOG + "steady_follower_leaves_the_live_queue_only_by_log_matching",
    ),
)

COMMIT_RULES: tuple[Ablation, ...] = (
    directed(
        "S3.1-old-term",
        "a record of an old term commits by counting",
        LEADER,
        "if state.lineage.term_at(held) != state.term:",
        "if False:",
        COMMIT + "record_of_an_old_term_does_not_commit_by_counting",
    ),
    directed(
        "S3.1-figure-8",
        "a majority for an old record is called committed",
        LEADER,
        "if state.lineage.term_at(held) != state.term:",
        "if False:",
        COMMIT + "figure_8_commits_nothing_that_a_later_term_may_still_replace",
    ),
    directed(
        "S3.1-joint",
        "the stronger majority of a joint configuration decides",
        CORE + "quorum.py",
        "min(best, held)",
        "max(best, held)",
        QUORUM + "quorum_seq_needs_both_majorities_when_joint",
    ),
    directed(
        "S3.2-match-maximum",
        "a late ack lowers the match of a follower",
        CORE + "progress.py",
        "max(self.match_seq, min(ack.match_seq, last_seq))",
        "min(ack.match_seq, last_seq)",
        "tests/unit/core/test_progress.py::test_match_is_a_maximum_so_late_acks_change_nothing",
    ),
    directed(
        "S3.3-own-sync",
        "a leader counts itself before its own sync",
        LEADER,
        "match[state.me] = state.durable_seq",
        "match[state.me] = state.last_seq",
        COMMIT + "leader_counts_itself_only_after_its_own_sync",
    ),
    directed(
        "S3.4-log-end",
        "a follower acks the end of its log",
        FOLLOWER,
        "match = Seq(min(state.verified_seq, state.durable_seq))",
        "match = state.durable_seq",
        COMMIT + "follower_acks_what_is_verified_and_never_its_end",
    ),
    directed(
        "S3.4-durable",
        "a follower acks before its sync",
        FOLLOWER,
        "match = Seq(min(state.verified_seq, state.durable_seq))",
        "match = state.verified_seq",
        COMMIT + "follower_acks_nothing_before_it_is_durable",
    ),
    Ablation(
        "S3.4-any-term",
        "acks of any term count",
        (
            Edit(
                REPLICA,
                "if event.message.term != state.term or state.stopped is not None:",
                "if state.stopped is not None:",
            ),
            Edit(
                LEADER,
                'assert ack.term == self._term, "acks of another term do not count (S1.4)"',
                "assert self._term",
            ),
        ),
        tests=(LOG + "ack_of_another_term_is_not_counted",),
    ),
    directed(
        "S3.5-verified",
        "a follower commits what it has not verified",
        FOLLOWER,
        "commit_seq = Seq(min(state.leader_commit, state.verified_seq))",
        "commit_seq = Seq(min(state.leader_commit, state.last_seq))",
        COMMIT + "follower_commits_only_what_it_verified",
    ),
    directed(
        "S3.5-notice",
        "an idle follower never learns the last commit",
        LEADER,
        "        self.reads.advance()\n        self._arm_notice()\n",
        "        self.reads.advance()\n",
        COMMIT + "idle_followers_learn_the_commit_seq_within_the_notice_interval",
    ),
    directed(
        "S3.6-strangers",
        "learners and strangers are counted",
        CORE + "quorum.py",
        "sorted((match.get(node, 0) for node in group), reverse=True)",
        "sorted(match.values(), reverse=True)",
        QUORUM + "quorum_seq_ignores_strangers_and_learners",
    ),
    directed(
        "S3.1-majority",
        "a commit waits for every replica, so that one slow disk delays all writes",
        CORE + "quorum.py",
        "held = seqs[majority(len(seqs)) - 1] if seqs else 0",
        "held = seqs[-1] if seqs else 0",
        "tests/simulation/test_slow_replica.py::"
        "test_commits_and_reads_do_not_wait_for_a_slow_minority",
    ),
    directed(
        "S4.2-uncommitted",
        "uncommitted records are applied",
        STATE,
        "apply_to = Seq(min(self.commit_seq, self.durable_seq))",
        "apply_to = self.durable_seq",
        COMMIT + "uncommitted_record_is_not_applied",
    ),
    directed(
        "S9-next",
        "a node that stops asks one voter only",
        CORE + "hand_over.py",
        "        elif self._keeps_trying:",
        "        elif False:",
        HAND_OVER + "node_that_stops_asks_the_next_voter_when_one_does_not_take_over",
    ),
    directed(
        "S12-sync-answer",
        "a batch that answers another question is taken because its id is the same",
        CATCH_UP,
        "        if request.from_seq not in (0, message.from_seq):",
        "        if False:",
        SYNC + "answer_to_another_question_is_no_answer_even_with_the_same_id",
    ),
    directed(
        "S12-sync-id",
        "requests of two lives of a node have the same ids",
        REPLICA,
        "        self._state.sync_request_id = first_round_id\n",
        "",
        SYNC + "requests_of_two_lives_and_of_two_leaders_have_other_ids",
    ),
    directed(
        "S12-payload-leader",
        "a leader stores a payload over the bound",
        SEQUENCER,
        "    too_large = oversized(message)\n    if too_large is not None:",
        "    too_large = oversized(message)\n    if False:",
        SEQUENCING + "leader_refuses_a_payload_over_the_bound_and_stores_nothing",
    ),
    directed(
        "S12-payload-follower",
        "a follower holds a payload over the bound",
        REPLICA,
        "            if too_large is not None:",
        "            if False:",
        SEQUENCING + "follower_refuses_a_payload_over_the_bound_and_holds_nothing",
    ),
    directed(
        "S10-durable",
        "records are applied before they are durable",
        STATE,
        "apply_to = Seq(min(self.commit_seq, self.durable_seq))",
        "apply_to = self.commit_seq",
        COMMIT + "committed_record_is_not_applied_before_it_is_durable_here",
    ),
    directed(
        "S10-timestamp",
        "timestamps follow the leader's clock backwards",
        SEQUENCER,
        "min(max(wall_ms, state.last_timestamp_ms + 1), WALL_MS_MAX)",
        "min(wall_ms, WALL_MS_MAX)",
        COMMIT + "timestamp_follows_the_record_before_whatever_the_clock_says",
    ),
    directed(
        "S12-last-timestamp",
        "timestamps leave the range in which they can be read",
        SEQUENCER,
        "min(max(wall_ms, state.last_timestamp_ms + 1), WALL_MS_MAX)",
        "max(wall_ms, state.last_timestamp_ms + 1)",
        COMMIT + "timestamp_stands_still_at_the_end_of_its_range",
    ),
    directed(
        "S12-last-seq",
        "a record may end behind the last position",
        "raftstore/types.py",
        "Annotated[int, Meta(ge=1, le=BASE_SEQ_MAX)]",
        "Annotated[int, Meta(ge=1, le=SEQ_MAX)]",
        "tests/unit/core/test_follower.py::"
        "test_follower_tells_the_end_of_the_last_record_that_can_be_named",
    ),
)

CORE_RULES: tuple[Ablation, ...] = (
    *IDENTITY_AND_TERMS,
    *CATCHING_UP,
    *MEMBERSHIP,
    *LOG_MATCHING,
    *COMMIT_RULES,
    *OUTCOMES,
)
