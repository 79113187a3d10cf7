"""Mutations of what bounds reads: time, micro-batches, positions (S7.3, S10)."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

BOUNDS = "tests/unit/engine/reads/test_read_bounds.py::test_"
BATCHES = "tests/unit/core/test_batches.py::test_"
RULES = "tests/unit/engine/reads/test_read_rules.py::test_"
COMMITS = "tests/unit/core/test_commit_evidence.py::test_"

BOUND_RULES: tuple[Mutation, ...] = (
    mutation(
        "S7.3-arrival",
        "A state counts as being as young as the last message of its leader.",
        Edit(
            "Reader.freshness",
            "core.fresh_as_of(applied)",
            "runner.leader_info_heard_ms",
        ),
        directed(BOUNDS + "time_bound_is_not_met_by_hearing_from_a_leader_of_the_past"),
    ),
    mutation(
        "S7.3-commit-time",
        "A leader proves its position as of a commit, not as of the append.",
        Edit(
            "Leader._learn_freshness",
            "appended_ms,",
            "self._state.now_ms,",
        ),
        directed(
            COMMITS + "committed_record_proves_the_moment_it_was_appended",
            COMMITS + "record_from_before_a_stop_does_not_end_the_distrust",
        ),
    ),
    mutation(
        "S7.3-unknown-age",
        "An unknown age is within every bound.",
        Edit(
            "_beyond_time",
            "Refusal(LagUnknownError, "
            'f"age of the state of {name} is unknown here (bound {bound} ms)")',
            "None",
        ),
        directed(
            RULES + "unknown_is_beyond_every_bound",
            RULES + "state_is_not_fresh_because_its_leader_was_heard_just_now",
        ),
    ),
    mutation(
        "S7.3-batches-unknown",
        "Micro-batches that were not reported count as none.",
        Edit(
            "BatchCounts.reported",
            "if count != NOT_REPORTED and seq >= self._reported[0]:\n"
            "    self._reported = (seq, count)",
            "if seq >= self._reported[0]:\n    self._reported = (seq, max(0, count))",
        ),
        directed(
            BATCHES + "above_the_own_log_a_batch_needs_a_seq",
            BATCHES + "older_leader_tells_no_batches_and_none_are_assumed",
        ),
    ),
    mutation(
        "S7.3-batches-above",
        "A number of micro-batches counts for later seqs, too.",
        Edit(
            "BatchCounts.at_most",
            "reported + seq - reported_seq",
            "reported",
        ),
        directed(BATCHES + "number_that_was_told_counts_for_the_seq_it_is_of"),
    ),
    mutation(
        "S7.3-batches-anew",
        "Micro-batches of a writer that began anew do not count.",
        Edit(
            "BatchMarks.is_replay",
            "before.batch == batch",
            "before.batch >= batch",
        ),
        directed(BATCHES + "writer_that_began_anew_counts_from_its_first_batch"),
    ),
    mutation(
        "S7.3-at-once",
        "A read waits for a position and then is served however old the state is.",
        Edit(
            "Reader._try_answer",
            "refusal = self._refusal(request, runner)\n"
            "if refusal is not None and self._may_wait(refusal, request, runner):\n"
            "    self._await_proof(token, waiting, refusal)\n"
            "    return",
            "refusal = self.serving_refusal(runner)",
        ),
        directed(BOUNDS + "time_bound_counts_when_the_position_is_reached"),
    ),
    mutation(
        "S7.3-letter",
        "A position or page token with a wrong letter is another one.",
        Edit(
            "token_bytes",
            'crc32(packed).to_bytes(_CRC_BYTES, "big") != sealed[:_CRC_BYTES]',
            "False",
        ),
        directed(
            "tests/unit/client/test_positions.py::test_position_with_one_other_letter_is_refused",
            "tests/integration/client/test_pages.py::"
            "test_page_token_with_one_other_letter_is_refused",
        ),
    ),
    mutation(
        "S10-batches-replayed",
        "A micro-batch whose mark was truncated is taken for marked already.",
        Edit(
            "BatchCounts.truncate",
            "self._marks.truncate(from_seq)",
            "",
        ),
        directed(BATCHES + "mark_that_was_taken_back_is_no_reason_to_leave_out_its_repetition"),
    ),
    mutation(
        "S10-batches-truncated",
        "Micro-batches that were truncated count.",
        Edit(
            "Folds.truncate",
            "fold.truncate(from_seq)",
            "if fold is not self.batches:\n    fold.truncate(from_seq)",
        ),
        directed(
            BATCHES + "follower_takes_back_marks_that_conflict",
            "tests/simulation/test_lessons.py::test_lesson_17_"
            "positions_derived_from_a_log_are_right_after_each_truncation",
        ),
    ),
    mutation(
        "S12-batches-more-than-seqs",
        "More micro-batches than seqs are believed.",
        Edit(
            "BatchCounts.reported",
            "if count > seq:\n    return",
            "",
        ),
        directed(BATCHES + "more_batches_than_seqs_are_not_believed"),
    ),
)
