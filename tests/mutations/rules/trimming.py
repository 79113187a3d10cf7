"""Mutations of trimming: how far the base of a log may move, and what has to be durable before."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

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
)
