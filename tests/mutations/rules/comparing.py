"""Mutations of comparing the replicas of a channel: one position, each entry, and no more at a time
than a node has room for; and of what files state of lifetimes."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

FEED = "tests/unit/engine/channel/test_apply_feed.py::test_"
FILES = "tests/cli/test_row_files.py::test_"
COMPARISON = "tests/unit/client/test_comparison.py::test_"
CHECKS = "tests/unit/engine/healing/test_replica_checks.py::test_"

COMPARING_RULES: tuple[Mutation, ...] = (
    mutation(
        "compare-applied",
        "A state is pinned while records up to its position are being applied.",
        Edit("ApplyFeed._submit", "if self._outstanding:\n    return", ""),
        directed(FEED + "somebody_sees_the_table_at_a_position_and_nothing_behind_it"),
    ),
    mutation(
        "compare-position",
        "Records behind the position at which a state is pinned are applied with those before it.",
        Edit("ApplyFeed._submit_records", "halt is not None and record.last_seq >= halt", "False"),
        directed(FEED + "position_is_seen_in_the_middle_of_what_was_read_from_the_log"),
    ),
    mutation(
        "compare-digest",
        "A log that is read again is not held against the digests of its records.",
        Edit("_fault", "digest_of(record.payload) != record.digest", "False"),
        directed(CHECKS + "record_that_is_not_what_its_digest_tells_ends_the_walk"),
    ),
    mutation(
        "compare-pace",
        "Who compares replicas has a node read as fast as it can.",
        Edit("ReplicaChecks._paid", "size * 1_000 // self._second_bytes_max", "0"),
        directed(CHECKS + "what_is_read_in_a_second_is_bounded"),
    ),
    mutation(
        "compare-many",
        "Any number of clients has a channel stop at positions.",
        Edit("ApplyFeed.halt_at", "len(self._halts) >= HALTS_MAX", "False"),
        directed(FEED + "so_many_may_wait_for_positions"),
        directed(CHECKS + "no_more_clients_wait_for_states_than_the_bound_says"),
    ),
    mutation(
        "compare-blame",
        "Of two replicas that differ one is said to be wrong.",
        Edit("ChannelComparison._judge", "any(count == most for _, count in rest)", "False"),
        directed(COMPARISON + "two_replicas_only_differ"),
    ),
    mutation(
        "compare-halves",
        "Only the first half of a part that differs is looked into.",
        Edit(
            "ChannelComparison._locate",
            "parts.append((middle, last, max(1, entries - entries_left)))",
            "",
        ),
        directed(COMPARISON + "differing_entries_are_named"),
    ),
    mutation(
        "export-expiry",
        "Rows of a file get the ttl of the table, and not the rest of their own lifetime.",
        Edit("RowImport.write", "ttl_of(row.expires_ms, at_ms)", "None"),
        directed(FILES + "rows_expire_when_they_would_have[None-rows.jsonl]"),
    ),
    mutation(
        "export-for-ever",
        "A row that does not expire gets the ttl of the table that it is imported into.",
        Edit(
            "columns_of_line",
            "FOR_EVER if line[EXPIRES] is None else parse_moment(line[EXPIRES])",
            "NOT_STATED if line[EXPIRES] is None else parse_moment(line[EXPIRES])",
        ),
        directed(FILES + "rows_expire_when_they_would_have[18000000-rows.jsonl]"),
    ),
)
