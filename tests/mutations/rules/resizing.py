"""Mutations of a table's number of replicas: what is ordered until its partitions have it."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

COUNTS = "tests/unit/policy/test_replica_counts.py::test_"
TABLES = "tests/unit/engine/catalog/test_table_replicas.py::test_"
ROWS = "tests/unit/state_machines/test_catalog.py::test_"

RESIZING_RULES: tuple[Mutation, ...] = (
    mutation(
        "resizing-majority",
        "A replica goes where the rest has no live majority.",
        Edit("_with_one_less", "has_table and _has_majority(rest, nodes)", "has_table"),
        directed(COUNTS + "replica_never_goes_where_the_rest_would_have_no_live_majority"),
    ),
    mutation(
        "resizing-waits",
        "Nobody is warned of a table that waits for replicas without end.",
        Edit("TableWait.warning", "self.waited_ms < LONG_MS", "True"),
        directed(TABLES + "table_that_waits_long_for_its_replicas_is_warned_about_with_the_remedy"),
    ),
    mutation(
        "resizing-leader",
        "The leader goes although another replica may.",
        Edit("_with_one_less", "node == leader", "False"),
        directed(COUNTS + "worst_placed_replica_goes_and_the_leader_stays"),
    ),
    mutation(
        "resizing-domains",
        "A replica comes to the node with the fewest, in whichever failure domain.",
        Edit(
            "_with_one_more",
            "(doubled(node, each.voters, nodes.domains), held[node])",
            "held[node]",
        ),
        directed(COUNTS + "replica_comes_to_a_failure_domain_that_has_none"),
    ),
    mutation(
        "resizing-few",
        "All channels of a table change at once.",
        Edit("plan_counts", "moves.add(takes)", "pass"),
        directed(COUNTS + "few_channels_change_at_a_time"),
    ),
    mutation(
        "resizing-back",
        "What was ordered for an earlier number is carried out first.",
        Edit("TableReplicas._cancel_contrary", "goes_away and not target.cancelled", "False"),
        directed(TABLES + "edit_on_the_way_turns_back"),
    ),
    mutation(
        "resizing-end",
        "A table counts as done while an order for it is open.",
        Edit(
            "TableReplicas._is_whole", "entry is None or entry.order is not None", "entry is None"
        ),
        directed(TABLES + "order_that_is_open_keeps_the_table_resizing"),
    ),
    mutation(
        "resizing-mark",
        "A number is edited on the way, and the table is taken for done.",
        Edit(
            "resized",
            "entry.is_resizing or any(count != entry.replicas for count in counts)",
            "any(count != entry.replicas for count in counts)",
        ),
        directed(TABLES + "edit_on_the_way_turns_back"),
    ),
    mutation(
        "resizing-nodes",
        "More replicas than nodes are taken, and waited for.",
        Edit("resized", "missing and len(nodes) < entry.replicas", "False"),
        directed(TABLES + "more_replicas_than_nodes_are_refused_and_nothing_is_written"),
    ),
    mutation(
        "resizing-format",
        "A node reads the entry that cannot know what it says.",
        Edit(
            "created_format",
            "any(len(group) != entry.replicas for group in entry.placement) or entry.is_resizing",
            "False",
        ),
        directed(ROWS + "entry_with_another_number_than_its_placement_is_for_newer_nodes"),
    ),
)
