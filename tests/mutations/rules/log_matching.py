"""Mutations of log matching and catch-up in the core: S2, S6 and S12."""

from __future__ import annotations

from tests.mutations.guard import directed, worlds
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

LESSONS = "tests/simulation/test_lessons.py::test_lesson_"
LESSON_17 = LESSONS + "17_positions_derived_from_a_log_are_right_after_each_truncation"
DERIVED = (
    "tests/unit/core/test_derived_positions.py::"
    "test_derived_positions_are_those_of_a_fresh_rebuild_after_each_cut"
)
LOG = "tests/unit/core/test_rules_log.py::test_"
SYNC = "tests/unit/core/test_catch_up.py::test_"

LOG_MATCHING_RULES: tuple[Mutation, ...] = (
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
        directed(DERIVED, LESSON_17),
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
        directed(DERIVED, LESSON_17),
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
        "S6.1-progress",
        "A follower asks for all history again after each answer.",
        Edit(
            "CatchUp._where",
            "state.verified_seq + 1",
            "1",
        ),
        directed(
            "tests/unit/core/test_catch_up_progress.py::"
            "test_each_answer_moves_on_although_one_record_fills_it",
            LESSONS + "4_record_as_large_as_the_limit_does_not_end_progress",
        ),
    ),
    mutation(
        "S6.1-held",
        "An answer that holds only what is there already counts for nothing.",
        Edit(
            "store_verified",
            "state.verified_seq = Seq(max(state.verified_seq, last_seq))\nreturn True",
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
            "meta.base_seq > state.lineage.last_seq + 1",
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
