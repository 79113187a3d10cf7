"""Mutations of the changes of a table: what is reported, and that all replicas report the same."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

CONTRACT = "tests/contract/test_changes.py::test_"

CHANGE_RULES: tuple[Mutation, ...] = (
    mutation(
        "S4.2-changes",
        "A replica answers for records that it has not applied.",
        Edit(
            "ChangeFeeds.on_request",
            "applied < max(request.after, request.to_seq)",
            "False",
        ),
        directed(
            CONTRACT + "positions_that_are_not_there_are_refused_with_the_remedy",
            "tests/simulation/test_lessons.py::"
            "test_lesson_19_feed_from_a_future_position_waits_and_tells_nothing_old",
        ),
    ),
    mutation(
        "changes-condition",
        "A conditional write that did not hold is reported as a change.",
        Edit(
            "ChangeFeeds._pieces",
            "outcome == HELD",
            "outcome",
        ),
        directed(CONTRACT + "each_kind_of_record_shows_what_it_really_changed"),
    ),
    mutation(
        "changes-inserted",
        "Rows that were there already are reported as inserted.",
        Edit(
            "ChangeFeeds._batch",
            'outcome.data if header.mode == INSERT else b""',
            'b""',
        ),
        directed(CONTRACT + "each_kind_of_record_shows_what_it_really_changed"),
    ),
    mutation(
        "changes-truncated",
        "The rows that a batch replaced stay for who follows the changes.",
        Edit(
            "ChangeFeeds._batch",
            "batch.mode == TRUNCATE and sub == 0",
            "False",
        ),
        directed(CONTRACT + "each_kind_of_record_shows_what_it_really_changed"),
    ),
    mutation(
        "changes-first-run",
        "A batch that is applied again says what it found of its own rows.",
        Edit(
            "StagingMachine.outcomes_of",
            "mode == UPSERT or is_complete(*of, state_get)",
            "mode == UPSERT",
        ),
        directed(CONTRACT + "batch_that_a_crash_cut_anywhere_shows_the_same_changes"),
    ),
)
