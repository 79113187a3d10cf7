"""Mutations of a log's base and of the folds that stand for what it removed (S6.5, S6.6, S6.7)."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

FOLDS = "tests/unit/core/test_folds.py::test_"

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
)
