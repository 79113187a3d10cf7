"""Ablations of what bounds reads: time, micro-batches, positions (S7.3, S10)."""

from __future__ import annotations

from tests.ablations.ablation import CORE, Ablation, directed

RULES = "tests/unit/engine/test_read_rules.py::test_"
BOUNDS = "tests/unit/engine/test_read_bounds.py::test_"
BATCHES = "tests/unit/core/test_batches.py::test_"
COMMITS = "tests/unit/core/test_commit_evidence.py::test_"

BOUND_RULES: tuple[Ablation, ...] = (
    directed(
        "S7.3-arrival",
        "a state counts as being as young as the last message of its leader",
        "raftstore/engine/reads/reader.py",
        "as_of = core.fresh_as_of(applied)",
        "as_of = runner.leader_info_heard_ms",
        BOUNDS + "time_bound_is_not_met_by_hearing_from_a_leader_of_the_past",
    ),
    directed(
        "S7.3-commit-time",
        "a leader proves its position as of a commit, not as of the append",
        CORE + "leader.py",
        "self._state.freshness.learn(appended_ms, commit_seq)",
        "self._state.freshness.learn(self._state.now_ms, commit_seq)",
        COMMITS + "committed_record_proves_the_moment_it_was_appended",
        COMMITS + "record_from_before_a_stop_does_not_end_the_distrust",
    ),
    directed(
        "S7.3-unknown-age",
        "an unknown age is within every bound",
        "raftstore/engine/reads/read_rules.py",
        '"lag_unknown", f"age of the state of {name} is unknown here (bound {bound} ms)"\n',
        "None\n",
        RULES + "unknown_is_beyond_every_bound",
        RULES + "state_is_not_fresh_because_its_leader_was_heard_just_now",
    ),
    directed(
        "S7.3-batches-unknown",
        "micro-batches that were not told count as none",
        CORE + "batches.py",
        "count != NOT_TOLD and seq >= self._told[0]:\n            self._told = (seq, count)\n",
        "seq >= self._told[0]:\n            self._told = (seq, max(0, count))\n",
        BATCHES + "above_the_own_log_a_batch_needs_a_seq",
        BATCHES + "older_leader_tells_no_batches_and_none_are_assumed",
    ),
    directed(
        "S12-batches-more-than-seqs",
        "more micro-batches than seqs are believed",
        CORE + "batches.py",
        "        if count > seq:\n            return\n",
        "",
        BATCHES + "more_batches_than_seqs_are_not_believed",
    ),
    directed(
        "S7.3-batches-above",
        "a number of micro-batches counts for later seqs, too",
        CORE + "batches.py",
        "            return told + seq - told_seq\n",
        "            return told\n",
        BATCHES + "number_that_was_told_counts_for_the_seq_it_is_of",
    ),
    directed(
        "S10-batches-replayed",
        "a micro-batch whose mark was truncated is taken for marked already",
        CORE + "batches.py",
        "        self._marks.truncate(from_seq)\n",
        "",
        BATCHES + "mark_that_was_taken_back_is_no_reason_to_leave_out_its_repetition",
    ),
    directed(
        "S7.3-batches-anew",
        "micro-batches of a writer that began anew do not count",
        CORE + "batches.py",
        "before is not None and before.batch == batch:",
        "before is not None and before.batch >= batch:",
        BATCHES + "writer_that_began_anew_counts_from_its_first_batch",
    ),
    directed(
        "S10-batches-truncated",
        "micro-batches that were truncated count",
        CORE + "state.py",
        "        self.batches.truncate(from_seq)\n",
        "",
        "tests/unit/core/test_batches.py::test_follower_takes_back_marks_that_conflict",
    ),
    directed(
        "S7.3-at-once",
        "a read waits for a position and then is served however old the state is",
        "raftstore/engine/reads/reader.py",
        "        refusal = self._refusal(request, runner)\n"
        "        if refusal is not None and self._may_wait(refusal, request, runner):\n"
        "            self._await_proof(token, waiting, refusal)\n"
        "            return\n",
        "        refusal = self.serving_refusal(runner)\n",
        BOUNDS + "time_bound_counts_when_the_position_is_reached",
    ),
    directed(
        "S7.3-letter",
        "a position or page token with a wrong letter is another one",
        "raftstore/client/token_text.py",
        '    if zlib.crc32(packed).to_bytes(_CRC_BYTES, "big") != sealed[:_CRC_BYTES]:',
        "    if False:",
        "tests/unit/client/test_positions.py::test_position_with_one_other_letter_is_refused",
        "tests/integration/client/test_pages.py::test_page_token_with_one_other_letter_is_refused",
    ),
)
