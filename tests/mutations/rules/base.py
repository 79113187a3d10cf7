"""Mutations of a log's base and of the folds that stand for what it removed (S6.5, S6.6, S6.7)."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.rules.drawn_worlds import ROTTING, TRIMMED
from tests.mutations.syntax import Edit

BASE = "tests/unit/core/test_base.py::test_"
FOLDS = "tests/unit/core/test_folds.py::test_"
LOG = "tests/unit/storage/log/test_log_base.py::test_"

BASE_RULES: tuple[Mutation, ...] = (
    mutation(
        "S6.7-floor",
        "A session begins anew at a base: what is at or below its floor may be written again.",
        Edit(
            "DedupeTable.restore",
            "_Session(unsure_to, floor, last_seq)",
            "_Session(unsure_to, 0, last_seq)",
        ),
        directed(FOLDS + "s6_7_folds_restored_at_any_cut_go_on_as_those_of_the_whole_log"),
    ),
    mutation(
        "S6.7-grouping",
        "What is forgotten of micro-batches depends on how many are uncommitted.",
        Edit(
            "BatchCounts.commit",
            "len(self._ends) - self._uncommitted - self._marks_max",
            "len(self._ends) - self._marks_max",
        ),
        directed(FOLDS + "s6_7_folds_depend_on_no_grouping_of_commits_and_on_no_tail_that_went"),
    ),
    mutation(
        "S6.7-timestamp",
        "The newest timestamp of a base is that of a record that was truncated.",
        Edit(
            "UncommittedTail.truncate",
            "_, size, self.last_timestamp_ms = self.records.pop()",
            "_, size, _ = self.records.pop()",
        ),
        directed(FOLDS + "s6_7_folds_depend_on_no_grouping_of_commits_and_on_no_tail_that_went"),
    ),
    mutation(
        "S13-folds",
        "Folds of another log are taken for those of the base.",
        Edit("Folds._restore", "self.chain.last != base.chain_hash", "False"),
        directed(FOLDS + "folds_of_another_log_are_refused"),
    ),
    mutation(
        "S12-outcomes",
        "A base may bring more outcomes than a channel remembers.",
        Edit(
            "DedupeTable.restore", "_check_sizes(held, self._sessions_max, self._outcomes_max)", ""
        ),
        directed(FOLDS + "base_that_brings_more_than_is_remembered_is_refused"),
    ),
    mutation(
        "S4.5-base",
        "A write below the base is taken for new when it is tried again.",
        Edit(
            "Folds._restore",
            "fold.restore(bytes(found.state), base.seq)",
            "if fold is not self.dedupe:\n    fold.restore(bytes(found.state), base.seq)",
        ),
        directed(
            BASE + "s4_5_retry_of_a_write_below_the_base_is_acknowledged_with_its_place",
            "tests/simulation/test_lessons.py::"
            "test_lesson_6_writes_in_flight_and_retries_below_a_snapshot_are_answered",
        ),
        TRIMMED,
    ),
    mutation(
        "S6.5-commit",
        "A replica starts with what its table says as its commit seq, below its base or not.",
        Edit(
            "ChannelState._forget_applied",
            "max(self.base.seq, min(applied_seq, self.last_seq))",
            "min(applied_seq, self.last_seq)",
        ),
        directed(BASE + "commit_seq_at_the_start_is_neither_below_the_base_nor_beyond_the_end"),
    ),
    mutation(
        "S6.5-truncate",
        "A truncation may reach below the base.",
        Edit("ChannelState.truncate", "from_seq <= self.base.seq", "False"),
        directed(BASE + "s6_5_truncation_at_or_below_the_base_stops_the_node"),
    ),
    mutation(
        "S6.5-truncate-log",
        "The log writes down a truncation of records that it does not hold.",
        Edit("SegmentLog.truncate", "from_seq <= index.base.seq", "False"),
        directed(LOG + "s6_5_truncation_at_or_below_the_base_stops_the_log"),
    ),
    mutation(
        "S6.5-locate",
        "The log finds a record at its wrong end for a seq at or below the base.",
        Edit(
            "ChannelIndex.locate",
            "not self.start_seq < seq <= self.last_seq",
            "seq > self.last_seq",
        ),
        directed(LOG + "nothing_is_found_at_or_below_the_base"),
    ),
    mutation(
        "S6.5-lacks-rows",
        "A replica whose table is below its base takes part as soon as its log is the leader's.",
        Edit("Follower._check_recovered", "state.lacks_rows", "False"),
        directed(BASE + "r10_table_below_the_base_needs_a_snapshot_and_takes_part_in_nothing"),
    ),
    mutation(
        "S6.5-applies",
        "A table below the base gets the records behind the gap.",
        Edit(
            "ChannelState.emit_commit",
            "(self.commit_seq, apply_to) != self._announced and not self.lacks_rows",
            "(self.commit_seq, apply_to) != self._announced",
        ),
        directed(BASE + "r10_table_below_the_base_needs_a_snapshot_and_takes_part_in_nothing"),
        ROTTING,
    ),
    mutation(
        "S6.6-probe",
        "A follower offers terms of below its base.",
        Edit(
            "CatchUp._where",
            "state.lineage.newest(below=self._probe_below, above=state.base.seq)",
            "state.lineage.newest(below=self._probe_below)",
        ),
        directed(BASE + "follower_offers_no_run_that_ends_at_or_below_its_base"),
    ),
    mutation(
        "S6.6-guess",
        "A follower takes records that begin below its base.",
        Edit("CatchUp.on_sync", "message.from_seq <= state.base.seq", "False"),
        directed(BASE + "s2_4_answer_from_below_the_base_is_a_guess_and_is_not_taken"),
    ),
    mutation(
        "S6.6-verified",
        "A late copy of a record below the base has a follower ask for what follows it.",
        Edit("CatchUp._where", "state.verified_seq > state.base.seq", "state.verified_seq > 0"),
        directed(BASE + "late_store_request_from_below_the_base_does_not_move_the_question_there"),
    ),
    mutation(
        "S6.6-gap",
        "A leader sends the records behind a gap to a follower below its base.",
        Edit("history_for", "serve.from_seq < serve.first_seq", "False"),
        directed(
            BASE + "s6_6_leader_serves_nothing_below_its_base",
            why="a follower takes no records that do not follow its own (S2.4)",
        ),
    ),
    mutation(
        "S6.6-first-seq",
        "A leader says that it holds everything since the first record.",
        Edit("Leader._on_sync_request", "Seq(state.base.seq + 1)", "Seq(1)"),
        directed(BASE + "s6_6_leader_serves_nothing_below_its_base"),
    ),
    mutation(
        "S6.6-trimmed",
        "A follower does not notice that history was trimmed.",
        Edit("CatchUp.on_sync", "message.from_seq < message.first_seq", "False"),
        directed(BASE + "s6_6_follower_below_the_leaders_base_says_that_it_needs_a_snapshot"),
        TRIMMED,
    ),
    mutation(
        "S6.6-changes",
        "A reader of changes below the base is informed that nothing changed.",
        Edit("ChangeFeeds._check_first", "after < first_seq", "False"),
        directed(
            "tests/unit/engine/reads/test_changes_alone.py::"
            "test_s6_6_changes_below_the_base_are_refused_with_the_first_position",
            "tests/simulation/test_lessons.py::"
            "test_lesson_19_feed_from_positions_that_were_just_cut",
        ),
    ),
)
