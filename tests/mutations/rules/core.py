"""Mutations of the core: S0.3, S0.5, S1.2, S1.4, S2-S7, S9, S10, S13 on one replica."""

from __future__ import annotations

from tests.mutations.guard import chaos, directed, worlds
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

HAND_OVER = "tests/unit/core/test_hand_over.py::test_"
QUORUM = "tests/unit/core/test_quorum.py::test_"
COMMIT = "tests/unit/core/test_rules_commit.py::test_"
DERIVED = (
    "tests/unit/core/test_derived_positions.py::"
    "test_derived_positions_are_those_of_a_fresh_rebuild_after_each_cut"
)
LOG = "tests/unit/core/test_rules_log.py::test_"
SEQUENCING = "tests/unit/core/test_sequencer.py::test_"
SYNC = "tests/unit/core/test_catch_up.py::test_"

CORE_RULES: tuple[Mutation, ...] = (
    mutation(
        "S0.3-ack",
        "A recovering replica acknowledges.",
        Edit(
            "Follower.finish",
            "if state.recovering is not None: ...\n"
            "if match > self._acked_seq or self._is_ack_wanted: ...",
            "if False: ...\nif match > self._acked_seq or self._is_ack_wanted: ...",
        ),
        directed(LOG + "recovering_replica_acks_nothing_until_it_is_past_its_mark"),
    ),
    mutation(
        "S0.3-may-vote",
        "A replica that lost acknowledged records votes and stands all the same.",
        Edit(
            "Replica.may_vote",
            "self._state.recovering is None and self._state.stopped is None",
            "self._state.stopped is None",
        ),
        directed(
            LOG + "recovering_replica_does_not_vote",
            why="what a replica lost at the end of its log is a hole to it, and a replica with a "
            "hole hears no election message at all (S0.3-deaf): of 1,674 in ten worlds 24 came "
            "through, in 200 worlds none did harm; worlds notice S0.3-hole-votes, which takes both "
            "rules away",
        ),
    ),
    mutation(
        "S0.3-hole-votes",
        "A replica whose log lacks acknowledged records hears candidates, votes and stands.",
        Edit("ChannelRunner.on_election", "self.is_deaf", "False"),
        Edit(
            "Replica.may_vote",
            "self._state.recovering is None and self._state.stopped is None",
            "self._state.stopped is None",
        ),
        worlds(damage_percent="40", fault_interval_ms="150"),
    ),
    mutation(
        "S0.5-ack-term",
        "A follower acks before its term is durable.",
        Edit(
            "Follower.finish",
            "state.leader is None or state.stopped is not None or state.durable_term != state.term",
            "state.leader is None or state.stopped is not None",
        ),
        directed(LOG + "follower_acks_nothing_before_its_term_is_durable"),
    ),
    mutation(
        "S0.5-leader-term",
        "A leader counts itself before its term is durable.",
        Edit(
            "Leader._matches",
            "state.durable_term == state.term",
            "True",
        ),
        directed(LOG + "leader_does_not_count_itself_before_its_term_is_durable"),
    ),
    mutation(
        "S1.2-accepted",
        "A voter reports the durable end of its log instead of the accepted one.",
        Edit(
            "Replica.history",
            "self._state.lineage.last",
            "History(\n"
            "    self._state.lineage.term_at(self._state.durable_seq),\n"
            "    self._state.durable_seq,\n"
            ")",
        ),
        directed(
            LOG + "history_in_elections_is_what_was_accepted_durable_or_not",
            why="one of the six rules that random chaos does not guard",
        ),
    ),
    mutation(
        "S1.6-stands",
        "A replica that is catching up neither votes nor stands.",
        Edit(
            "Replica.may_vote",
            "self._state.recovering is None",
            "self._state.mode is FollowerMode.STEADY",
        ),
        directed(
            "tests/design/test_nats_catch_up.py::"
            "test_catching_up_follower_may_be_elected_on_its_contiguous_prefix"
        ),
    ),
    mutation(
        "S2.2-term-start",
        "A new leader appends no record of its term.",
        Edit(
            "Leader.start",
            "self._replicate(record, inlined=True)",
            "",
        ),
        directed(LOG + "leader_appends_a_term_start_record_before_anything_else"),
        worlds(),
    ),
    mutation(
        "S2.3-prev-term",
        "A StoreRequest names its own term as the term of the record before.",
        Edit(
            "Leader._replicate",
            "state.lineage.term_at(state.last_seq)",
            "state.term",
        ),
        directed(
            LOG + "store_request_carries_the_term_of_the_record_before",
            why="a mismatch only costs a catch-up, which brings the right records",
        ),
    ),
    mutation(
        "S2.4-live",
        "Live records are taken by their seq alone.",
        Edit(
            "continues",
            "state.lineage.holds(entry.prev_term, entry.meta.base_seq - 1)",
            "entry.meta.base_seq - 1 <= state.last_seq",
        ),
        directed(LOG + "live_record_is_not_appended_after_a_record_of_another_term"),
        worlds(seeds=range(1, 13)),
    ),
    mutation(
        "S2.4-history",
        "Fetched history is taken by its seq alone.",
        Edit(
            "CatchUp.on_sync",
            "not state.lineage.holds(message.prev_term, message.from_seq - 1)",
            "message.from_seq - 1 > state.last_seq",
        ),
        directed(
            LOG + "history_is_not_appended_after_a_record_of_another_term",
            why="the lineage finds the match point (S2.6), and fetched records are "
            "compared by term",
        ),
    ),
    mutation(
        "S2.4-held",
        "A held record waits for its payload again.",
        Edit(
            "Follower._take",
            "state.lineage.holds(meta.term, meta.base_seq)",
            "False",
        ),
        directed(LOG + "held_record_is_acknowledged_without_waiting_for_its_payload"),
    ),
    mutation(
        "S2.4-conflict",
        "A tail that conflicts with the leader's log stays, and counts as verified.",
        Edit(
            "store_verified",
            "not state.lineage.holds(record.term, record.base_seq)",
            "record.base_seq > state.last_seq",
        ),
        directed(LOG + "conflicting_tail_is_cut_and_replaced_in_one_step"),
        worlds(),
    ),
    mutation(
        "S2.5-below-commit",
        "A committed record may be truncated.",
        Edit(
            "ChannelState.truncate",
            "from_seq <= self.commit_seq",
            "False",
        ),
        directed(LOG + "truncation_below_the_commit_seq_stops_the_node"),
    ),
    mutation(
        "S2.5-on-leader-change",
        "A follower cuts its log to its own commit seq when the leader changes.",
        Edit(
            "Replica._become_follower",
            "self._follower = Follower(self._state, self._payloads)",
            "if self._state.last_seq > self._state.commit_seq:\n"
            "    self._state.truncate(Seq(self._state.commit_seq + 1))\n"
            "self._follower = Follower(self._state, self._payloads)",
        ),
        directed(LOG + "uncommitted_tail_stays_when_the_leader_changes"),
        worlds(seeds=range(1, 13)),
    ),
    mutation(
        "S2.5-derived-chain",
        "Chain hashes of records that were cut off stay.",
        Edit(
            "Folds.truncate",
            "fold.truncate(from_seq)",
            "if fold is not self.chain:\n    fold.truncate(from_seq)",
        ),
        directed(DERIVED),
    ),
    mutation(
        "S2.5-derived-configs",
        "A configuration stays that was cut off the log.",
        Edit(
            "Folds.truncate",
            "fold.truncate(from_seq)",
            "if fold is not self.configs:\n    fold.truncate(from_seq)",
        ),
        directed(DERIVED),
    ),
    mutation(
        "S2.5-derived-writes",
        "A write that was cut off the log is taken for one that is in it.",
        Edit(
            "Folds.truncate",
            "fold.truncate(from_seq)",
            "if fold is not self.dedupe:\n    fold.truncate(from_seq)",
        ),
        directed(DERIVED),
    ),
    mutation(
        "S2.6-lineage",
        "The match point is the leader's end of a common term.",
        Edit(
            "Lineage.match_point",
            "min(end_seq, self._ends[index])",
            "self._ends[index]",
        ),
        directed(
            "tests/unit/core/test_history.py::"
            "test_match_point_is_the_end_of_the_largest_common_term",
            why="the follower verifies the point (S2.4) and asks again, which only takes longer",
        ),
    ),
    mutation(
        "S3.1-old-term",
        "A leader commits a record of an old term as soon as a majority holds it.",
        Edit(
            "Leader.advance_commit",
            "state.lineage.term_at(held) != state.term",
            "False",
        ),
        directed(
            COMMIT + "record_of_an_old_term_does_not_commit_by_counting",
            COMMIT + "figure_8_commits_nothing_that_a_later_term_may_still_replace",
            why="one of the six rules that random chaos does not guard",
        ),
    ),
    mutation(
        "S3.1-joint",
        "The stronger majority of a joint configuration decides.",
        Edit(
            "quorum_seq",
            "min(best, held)",
            "max(best, held)",
        ),
        directed(QUORUM + "quorum_seq_needs_both_majorities_when_joint"),
    ),
    mutation(
        "S3.1-majority",
        "A commit waits for every replica, so that one slow disk delays all writes.",
        Edit(
            "quorum_seq",
            "majority(len(seqs)) - 1",
            "-1",
        ),
        directed(
            "tests/simulation/test_slow_replica.py::"
            "test_commits_and_reads_do_not_wait_for_a_slow_minority"
        ),
    ),
    mutation(
        "S3.2-match-maximum",
        "A late ack lowers the match of a follower.",
        Edit(
            "Progress.on_ack",
            "max(self.match_seq, min(ack.match_seq, last_seq))",
            "min(ack.match_seq, last_seq)",
        ),
        directed(
            "tests/unit/core/test_progress.py::test_match_is_a_maximum_so_late_acks_change_nothing"
        ),
    ),
    mutation(
        "S3.3-own-sync",
        "A leader counts itself before its own sync.",
        Edit(
            "Leader._matches",
            "state.durable_seq",
            "state.last_seq",
        ),
        directed(
            COMMIT + "leader_counts_itself_only_after_its_own_sync",
            why="one of the six rules that random chaos does not guard",
        ),
    ),
    mutation(
        "S3.4-log-end",
        "A follower acknowledges the end of its log, verified or not.",
        Edit(
            "Follower.finish",
            "Seq(min(state.verified_seq, state.durable_seq))",
            "state.durable_seq",
        ),
        directed(
            COMMIT + "follower_acks_what_is_verified_and_never_its_end",
            why="one of the six rules that random chaos does not guard",
        ),
    ),
    mutation(
        "S3.4-durable",
        "A follower acks before its sync.",
        Edit(
            "Follower.finish",
            "Seq(min(state.verified_seq, state.durable_seq))",
            "state.verified_seq",
        ),
        directed(COMMIT + "follower_acks_nothing_before_it_is_durable"),
        worlds(seeds=range(1, 17), slow_disk="1", sync_min_ms="2", sync_max_ms="150"),
    ),
    mutation(
        "S3.4-any-term",
        "Acks of any term count.",
        Edit(
            "Replica._on_received",
            "event.message.term != state.term or state.stopped is not None",
            "state.stopped is not None",
        ),
        Edit(
            "Leader._on_ack",
            "ack.term == self._term",
            "True",
        ),
        directed(
            LOG + "ack_of_another_term_is_not_counted",
            why="one of the six rules that random chaos does not guard: the engine fences "
            "such acks, too",
        ),
    ),
    mutation(
        "S3.5-verified",
        "A follower commits what it has not verified against its leader.",
        Edit(
            "Follower._advance_commit",
            "state.verified_seq",
            "state.last_seq",
        ),
        directed(COMMIT + "follower_commits_only_what_it_verified"),
        worlds(),
    ),
    mutation(
        "S3.5-notice",
        "An idle follower never learns the last commit.",
        Edit(
            "Leader.advance_commit",
            "self._arm_notice()",
            "",
        ),
        directed(COMMIT + "idle_followers_learn_the_commit_seq_within_the_notice_interval"),
    ),
    mutation(
        "S3.6-outsiders",
        "Learners and outsiders count towards a commit.",
        Edit(
            "quorum_seq",
            "(match.get(node, 0) for node in group)",
            "match.values()",
        ),
        directed(
            QUORUM + "quorum_seq_ignores_outsiders_and_learners",
            why="the worlds have no learners before membership changes",
        ),
    ),
    mutation(
        "S4.2-uncommitted",
        "Uncommitted records are applied.",
        Edit(
            "ChannelState.emit_commit",
            "Seq(min(self.commit_seq, self.durable_seq))",
            "self.durable_seq",
        ),
        directed(COMMIT + "uncommitted_record_is_not_applied"),
        worlds(seeds=range(1, 13)),
    ),
    mutation(
        "S6.1-progress",
        "A follower asks for all history again after each answer.",
        Edit(
            "CatchUp._where",
            "state.verified_seq + 1",
            "1",
        ),
        directed(
            "tests/unit/core/test_catch_up_progress.py::"
            "test_each_answer_moves_on_although_one_record_fills_it"
        ),
    ),
    mutation(
        "S6.1-held",
        "An answer that holds only what is there already counts for nothing.",
        Edit(
            "store_verified",
            "state.verified_seq = Seq(max(state.verified_seq, record.last_seq))\nreturn True",
            "return True",
        ),
        Edit(
            "store_verified",
            "state.append(record)",
            "state.append(record)\n"
            "state.verified_seq = Seq(max(state.verified_seq, record.last_seq))",
        ),
        directed(SYNC + "answers_with_nothing_new_do_not_wait_for_the_disk"),
    ),
    mutation(
        "S6.1-source",
        "History of any member is taken.",
        Edit(
            "Follower.on_message",
            "sender != state.leader",
            "False",
        ),
        directed(
            LOG + "history_of_anybody_but_the_leader_is_discarded",
            why="one of the six rules that random chaos does not guard: nobody else sends any",
        ),
    ),
    mutation(
        "S6.2-restart",
        "What the old leader verified counts for the new one.",
        Edit(
            "Replica._become_follower",
            "self._follower = Follower(self._state, self._payloads)",
            "",
        ),
        directed(LOG + "new_leader_is_probed_from_nothing_verified"),
    ),
    mutation(
        "S6.3-drain",
        "The live queue drains without log matching.",
        Edit(
            "Follower._take",
            "not continues(state, head)",
            "False",
        ),
        directed(LOG + "steady_follower_leaves_the_live_queue_only_by_log_matching"),
    ),
    mutation(
        "S8-rollback",
        "A configuration stays in force when its record is cut off.",
        Edit(
            "ConfigStack.truncate",
            "self._stack[-1][0] >= from_seq and len(self._stack) > 1",
            "False",
        ),
        directed("tests/unit/core/test_configs.py::test_configuration_rolls_back_with_truncation"),
    ),
    mutation(
        "S9-next",
        "A node that stops asks one voter only.",
        Edit(
            "HandOver.on_timer",
            "self._keeps_trying",
            "False",
        ),
        directed(HAND_OVER + "node_that_stops_asks_the_next_voter_when_one_does_not_take_over"),
    ),
    mutation(
        "S10-durable",
        "Records are applied before they are durable.",
        Edit(
            "ChannelState.emit_commit",
            "Seq(min(self.commit_seq, self.durable_seq))",
            "self.commit_seq",
        ),
        directed(COMMIT + "committed_record_is_not_applied_before_it_is_durable_here"),
    ),
    mutation(
        "S10-timestamp",
        "Timestamps follow the leader's clock backwards.",
        Edit(
            "Sequencer.next_timestamp_ms",
            "max(wall_ms, state.tail.last_timestamp_ms + 1)",
            "wall_ms",
        ),
        directed(COMMIT + "timestamp_follows_the_record_before_whatever_the_clock_says"),
    ),
    mutation(
        "S12-sync-answer",
        "A batch that answers another question is taken because its id is the same.",
        Edit(
            "CatchUp.on_sync",
            "request.from_seq not in (0, message.from_seq)",
            "False",
        ),
        directed(SYNC + "answer_to_another_question_is_no_answer_even_with_the_same_id"),
    ),
    mutation(
        "S12-sync-id",
        "Requests of a node before and after a restart have the same ids.",
        Edit(
            "Replica.__init__",
            "self._state.sync_request_id = first_round_id",
            "",
        ),
        directed(SYNC + "requests_after_a_restart_and_of_two_leaders_have_other_ids"),
    ),
    mutation(
        "S12-payload-leader",
        "A leader stores a payload over the bound.",
        Edit(
            "_malformed",
            "too_large is not None",
            "False",
        ),
        directed(SEQUENCING + "leader_refuses_a_payload_over_the_bound_and_stores_nothing"),
    ),
    mutation(
        "S12-payload-follower",
        "A follower holds a payload over the bound.",
        Edit(
            "Replica._on_publish",
            "too_large is not None",
            "False",
        ),
        directed(SEQUENCING + "follower_refuses_a_payload_over_the_bound_and_holds_nothing"),
    ),
    mutation(
        "S12-last-timestamp",
        "Timestamps leave the range in which they can be read.",
        Edit(
            "Sequencer.next_timestamp_ms",
            "min(max(wall_ms, state.tail.last_timestamp_ms + 1), WALL_MS_MAX)",
            "max(wall_ms, state.tail.last_timestamp_ms + 1)",
        ),
        directed(COMMIT + "timestamp_stands_still_at_the_end_of_its_range"),
    ),
    mutation(
        "S12-last-seq",
        "A record may end behind the last position.",
        Edit(
            "BaseSeq",
            "BASE_SEQ_MAX",
            "SEQ_MAX",
        ),
        directed(
            "tests/unit/core/test_follower.py::"
            "test_follower_tells_the_end_of_the_last_record_that_can_be_named"
        ),
    ),
    mutation(
        "S13-two-leaders-core",
        "Two leaders of one term go unnoticed by the core.",
        Edit(
            "Replica._on_role_changed",
            "known is not None and event.leader not in (None, known)",
            "False",
        ),
        directed(LOG + "second_leader_of_a_term_stops_the_node"),
    ),
    mutation(
        "S13-lower-term",
        "A term may decrease.",
        Edit(
            "Replica._on_role_changed",
            "event.term < state.term",
            "False",
        ),
        directed(LOG + "lower_term_stops_the_node"),
    ),
    mutation(
        "S13-chain-hash",
        "Different histories below the commit seq go unnoticed.",
        Edit(
            "ChannelState.check_hash",
            "ours is not None and ours != commit_hash",
            "False",
        ),
        directed(
            LOG + "other_chain_hash_at_a_committed_seq_stops_serving",
            why="it guards against other bugs, and there is none to notice",
        ),
    ),
    mutation(
        "S0.5-ack-before-fsync",
        "A record counts as durable when it was handed to the log.",
        Edit(
            "ChannelState.append",
            "self._batch.append(record)",
            "self._batch.append(record)\nself.durable_seq = record.last_seq",
        ),
        worlds(slow_disk="1", sync_min_ms="2", sync_max_ms="150"),
    ),
    mutation(
        "S3.2-acks-counted-instead-of-members",
        "Acks are counted, the leader's own too: two of one member are taken for two members'.",
        Edit(
            "Leader.advance_commit",
            "held = quorum_seq(state.configs.current, self._matches())",
            "told = self.__dict__.setdefault('told', [])\n"
            "told[:] = sorted([*told, *self._matches().values()])[-9:]\n"
            "held = told[-(len(state.configs.current.voters) // 2 + 1)]",
        ),
        worlds(),
    ),
    mutation(
        "S3.4-equal-length-taken-for-equal",
        "A log as long as the leader's is taken for the leader's log.",
        Edit(
            "Follower._on_commit_notice",
            "state.lineage.holds(notice.last_term, notice.last_seq)",
            "notice.last_seq <= state.last_seq",
        ),
        worlds(),
    ),
    mutation(
        "S4.2-uncommitted-records-served",
        "Records are applied and read before they are committed.",
        Edit(
            "ChannelState.emit_commit",
            "Seq(min(self.commit_seq, self.durable_seq))",
            "self.durable_seq if self.commit_seq > 20 else Seq(\n"
            "    min(self.commit_seq, self.durable_seq)\n"
            ")",
        ),
        chaos("list_append", "kill-leader", "isolate-leader"),
    ),
    mutation(
        "S4.4-ack-before-commit",
        "A write is acknowledged when the leader has written it.",
        Edit(
            "Leader.on_publish",
            "self.sequencer.await_outcome(client, message)",
            "self.sequencer._acknowledge(\n"
            "    client, message.guid, self._state.dedupe.find(message.guid)\n"
            ")",
        ),
        Edit(
            "Sequencer._acknowledge",
            'assert written.last_seq <= state.commit_seq, f"OK for seq {written.last_seq}, '
            'committed are {state.commit_seq} (S4.4)"',
            "",
        ),
        Edit(
            "Sequencer._acknowledge",
            "assert written.outcome_known, "
            'f"OK for seq {written.last_seq} before it is decided (S10)"',
            "",
        ),
        chaos("bank", "kill-leader", "isolate-leader"),
    ),
    mutation(
        "S4.5-dedupe-forgotten-after-failover",
        "A new leader knows only the writes of its own term.",
        Edit(
            "Replica._become_leader",
            "state.won(state.term)",
            "state.won(state.term)\nstate.dedupe.__init__()",
        ),
        chaos("publish_log", "kill-leader", "pause-leader"),
    ),
    mutation(
        "S5.6-sequenced-for-another-leader",
        "A leader sequences what was addressed to another leader.",
        Edit(
            "Replica._on_publish",
            "message.leader != state.me",
            "message.leader != state.me and self._leader is None",
        ),
        Edit(
            "Replica._on_publish",
            "self._leader is None or message.term != state.term",
            "self._leader is None",
        ),
        worlds(range(1, 201), fault_interval_ms="200"),
    ),
    mutation(
        "S6.1-fetched-payload-not-verified",
        "A fetched record is stored whatever its digest says.",
        Edit(
            "CatchUp._take",
            "record.base_seq != expected or digest_of(record.payload) != record.digest",
            "record.base_seq != expected",
        ),
        directed(
            SYNC + "record_that_is_not_what_its_digest_says_is_not_taken",
            why="the simulated network and disks damage no payload",
        ),
    ),
    mutation(
        "S6.2-verified-survives-the-leader",
        "What was verified against the old leader counts for the new one.",
        Edit(
            "Follower.__init__",
            "state.verified_seq = Seq(0)",
            "",
        ),
        directed(
            LOG + "new_leader_is_probed_from_nothing_verified",
            why="what is verified is durable mostly, and a truncation takes it back (S2.5)",
        ),
    ),
    mutation(
        "S6.3-live-queue-drained-blindly",
        "A steady follower drains the live queue without contiguity and log matching.",
        Edit(
            "Follower._take",
            "meta.base_seq > state.last_seq + 1",
            "False",
        ),
        Edit(
            "Follower._take",
            "not continues(state, head)",
            "False",
        ),
        worlds(),
    ),
)
