"""Mutations of trimming: how far the base of a log may move, and what has to be durable before."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

TRIMMING = "tests/unit/core/test_trimming.py::test_"
BARRIERS = "tests/unit/storage/test_barriers.py::test_"

TRIMMING_RULES: tuple[Mutation, ...] = (
    mutation(
        "S6.4-barrier-write",
        "A flush that failed counts as one that did not, since LevelDB raises nothing for it.",
        Edit(
            "Barriers.take",
            "database.put(BARRIER_KEY, encode_applied(channel, applied))",
            "",
        ),
        directed(BARRIERS + "r5_2a_barrier_on_a_full_disk_stops_the_node_and_tells_no_position"),
    ),
    mutation(
        "S6.4-barrier-flush",
        "What is applied counts as durable although nothing was synced.",
        Edit(
            "Barriers.take",
            "database.compact_range(start=_BEHIND_ALL_KEYS[0], stop=_BEHIND_ALL_KEYS[1])",
            "",
        ),
        directed(BARRIERS + "what_a_barrier_tells_survives_a_power_cut"),
    ),
    mutation(
        "S6.5-staged",
        "Staged rows that a batch may still list are cut off the log.",
        Edit(
            "first_needed",
            "min((Seq(unpacked(stored, ChunkRef).base_seq) for _, stored in chunks), default=None)",
            "None",
        ),
        directed(BARRIERS + "i1_base_stays_below_the_oldest_staged_record"),
    ),
    mutation(
        "S6.5-trim-applied",
        "Records leave the log before the table has them.",
        Edit("ChannelState.trim", "base.seq > self.applied_seq", "base.seq > self.last_seq"),
        directed(
            TRIMMING
            + "s6_5_nothing_goes_that_is_not_committed_durable_and_applied_here[unapplied-8]"
        ),
    ),
    mutation(
        "S6.5-trim-down",
        "The base of a log goes down, or moves to where it is.",
        Edit("ChannelState.trim", "is_evidence or base.seq <= self.base.seq", "is_evidence"),
        directed(TRIMMING + "s6_5_base_never_goes_down"),
    ),
    mutation(
        "S6.5-trim-evidence",
        "A replica that stopped, or that lacks records, cuts off what it is compared by.",
        Edit(
            "ChannelState.trim",
            "self.stopped is not None or self.recovering is not None",
            "False",
        ),
        directed(TRIMMING + "replica_that_is_damaged_or_stopped_keeps_its_log"),
    ),
    mutation(
        "S13-trim",
        "A log begins behind a record that it never held.",
        Edit(
            "ChannelState.trim",
            "is_known and self.lineage.holds(base.term, base.seq)",
            "True",
        ),
        directed(TRIMMING + "s13_base_of_another_log_stops_the_node"),
    ),
    mutation(
        "S6.6-trim-asked",
        "A follower whose base moved up while it asked from below it stops its node.",
        Edit("CatchUp.on_sync", "is_below and request.from_seq", "False"),
        directed(TRIMMING + "follower_that_was_verified_below_a_base_that_moved_asks_anew"),
    ),
)
