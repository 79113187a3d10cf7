"""Mutations of what a node's store remembers of replicas that were removed (S0.1, S0.3, S1.3)."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

LOG = "tests/unit/storage/log/test_log_removals.py::test_"
STORE = "tests/unit/storage/test_store.py::test_"

REMOVAL_RULES: tuple[Mutation, ...] = (
    mutation(
        "S0.1-removed-opened",
        "A replica that was removed from a node is opened there again.",
        Edit(
            "SegmentLog.open_channel",
            "number is not None and number <= index.removed_number",
            "False",
        ),
        directed(LOG + "s0_1_removed_replica_is_never_opened_again"),
    ),
    mutation(
        "S1.3-removed-vote",
        "A later replica forgets the term and the vote of the one that was removed.",
        Edit(
            "ChannelIndex.after",
            "index.removed, index.term, index.voted_for = (removal, term, voted_for)",
            "index.removed = removal",
        ),
        directed(LOG + "s0_1_removed_replica_is_never_opened_again"),
    ),
    mutation(
        "S0.3-removed-lost",
        "A removal that the log lost and the mark knows is forgotten.",
        Edit("LogRecovery._compare", "self._adopt_removal(channel, row)", "pass"),
        directed(LOG + "s0_3_replica_stays_removed_when_the_log_lost_the_entry"),
    ),
    mutation(
        "S0.3-removed-again",
        "A log that lost the entry of a removal does not say it again.",
        Edit("LogRecovery._adopt_removal", "self._log.removals.append(channel)", "pass"),
        directed(LOG + "s0_3_replica_stays_removed_when_the_log_lost_the_entry"),
    ),
    mutation(
        "S0.3-removed-promise",
        "What a removed replica promised is asked of the one that came after it.",
        Edit("LogRecovery._has_held", "in_log != in_mark", "False"),
        directed(LOG + "s0_3_promise_of_a_removed_replica_is_none_of_the_later_ones"),
    ),
    mutation(
        "S6.5-removed-floor",
        "Records behind a floor count as those of a replica that was removed below it.",
        Edit("LogRecovery._index", "removed.segment < self._floor.segment", "False"),
        directed(LOG + "removal_outlives_the_segment_that_says_so"),
    ),
    mutation(
        "S0.3-removed-urgent",
        "The mark lags the removal of a replica.",
        Edit(
            "SegmentLog._write_removal",
            "self._buffer(channel, row, (data,), len(data), opens=opens, is_urgent=True)",
            "self._buffer(channel, row, (data,), len(data), opens=opens)",
        ),
        directed(LOG + "mark_with_a_removed_replica_is_refused_by_programs_that_know_none"),
    ),
    mutation(
        "S0.1-removed-table",
        "The table of a removed replica stays when a crash came before it was removed.",
        Edit(
            "reconcile",
            "if log.is_dropped(channel) or log.is_gone(channel):\n"
            "    tables.reset_channel(channel)\n"
            "    continue",
            "if log.is_dropped(channel):\n    tables.reset_channel(channel)\n    continue",
        ),
        directed(STORE + "table_of_a_removed_replica_is_removed_at_the_next_start"),
    ),
)
