"""Mutations of the end of kept outcomes: what goes, when, and which readers still get it."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

MACHINE = "tests/unit/state_machines/test_trimmed_outcomes.py::test_"
TRIMMER = "tests/unit/engine/retention/test_outcome_trimmer.py::test_"
WORLDS = "tests/unit/engine/retention/test_trimmed_outcome_worlds.py::test_"
CHANGES = "tests/unit/engine/reads/test_changes_alone.py::test_"

TRIMMED_OUTCOME_RULES: tuple[Mutation, ...] = (
    mutation(
        "S6.6-trimmed-outcomes-refused",
        "Readers of changes go by the base of the log alone, so that a replica whose log still has "
        "them passes over batches whose outcomes are trimmed.",
        Edit(
            "ChangeFeeds._first",
            "max(self._log.base(runner.channel).seq, trimmed_to(state.get))",
            "self._log.base(runner.channel).seq",
        ),
        directed(
            CHANGES
            + "s6_6_changes_whose_outcomes_are_trimmed_are_refused_though_the_log_has_them[True]",
            CHANGES + "outcome_that_goes_while_it_is_looked_up_is_refused_as_trimmed[a batch]",
        ),
    ),
    mutation(
        "S6.6-outcomes-go-meanwhile",
        "An answer is sent although outcomes went while it was made: a batch looks like none.",
        Edit("ChangeFeeds._changes", "self._check_first(runner, request.after)", "pass"),
        directed(
            CHANGES + "outcome_that_goes_while_it_is_looked_up_is_refused_as_trimmed[a batch]"
        ),
    ),
    mutation(
        "S6.6-ends-go-meanwhile",
        "Rows are counted although outcomes went while they were counted.",
        Edit("ChangeFeeds._ends", "self._check_first(runner, request.after)", "pass"),
        directed(CHANGES + "outcome_that_goes_while_it_is_looked_up_is_refused_as_trimmed[ends]"),
    ),
    mutation(
        "S6.6-trimmed-seq-falls",
        "A later leader with a lower base takes the seq back up to which outcomes are trimmed.",
        Edit("trim_outcomes", "max(to_seq, trimmed_to(state.get))", "to_seq"),
        directed(MACHINE + "seq_up_to_which_outcomes_are_trimmed_never_falls"),
    ),
    mutation(
        "S6.7-trim-names-anything",
        "A record may take more away than outcomes of records up to its seq.",
        Edit("trim_outcomes", "seq is None or seq > to_seq", "False"),
        directed(
            MACHINE + "record_that_names_anything_else_is_refused_as_damaged[9-\\x02\\x00]",
        ),
    ),
    mutation(
        "S6.6-readers-of-others",
        "A leader trims outcomes behind its own log, and asks nobody whose readers need them.",
        Edit(
            "OutcomeTrimmer._trim",
            "min((work.base_seq, *work.bases.values()))",
            "work.base_seq",
        ),
        directed(
            TRIMMER + "outcomes_in_front_of_all_bases_are_named",
            WORLDS + "reader_at_a_follower_holds_the_outcomes_of_its_log",
        ),
    ),
    mutation(
        "S6.6-outcomes-above-the-base",
        "A leader trims outcomes of records that its log still has.",
        Edit("OutcomeTrimmer._trim", "_Work(runner, base_seq)", "_Work(runner, Seq(2**62))"),
        directed(TRIMMER + "batches_count_like_conditions"),
    ),
    mutation(
        "level-outcomes",
        "Outcomes are trimmed while a node is of a version that stops at the record.",
        Edit(
            "OutcomeTrimmer.on_timer",
            "self._parts.refusal_of(RecordKind.TRIM_OUTCOMES) is None",
            "True",
        ),
        directed(TRIMMER + "nothing_is_trimmed_while_a_node_reads_no_such_records"),
    ),
    mutation(
        "S6.7-trimmed-twice",
        "Another record names what the last one has named, which is not applied yet.",
        Edit(
            "OutcomeTrimmer._is_under_way", "work.is_open or applied_seq < work.named_seq", "False"
        ),
        directed(TRIMMER + "records_are_made_one_after_the_other_and_soon"),
    ),
    mutation(
        "S6.7-trim-unbounded",
        "All old outcomes are read and named at once.",
        Edit("old_outcomes", "len(found) < OUTCOMES_MAX", "True"),
        Edit("old_outcomes", "min(limit, OUTCOMES_MAX - len(found))", "limit"),
        directed(MACHINE + "as_many_small_outcomes_are_named_as_a_record_takes"),
    ),
    mutation(
        "S6.7-trimmed-bytes",
        "Files keep what a TRIM_OUTCOMES record removed: a merge counts removed rows alone.",
        Edit("Merges._are_removed", "trimmed_bytes(source, job.state.channel)", "0"),
        directed(
            "tests/unit/storage/tables/test_trimmed_outcomes.py::"
            "test_outcomes_of_before_are_given_back_although_the_table_did_not_grow"
        ),
    ),
)
