"""Mutations of failure domains: where replicas of one partition go (NATS-001)."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

PLACEMENT = "tests/unit/policy/test_placement.py::test_"
EVACUATION = "tests/unit/policy/test_evacuation.py::test_"
CONTROLLER = "tests/unit/engine/catalog/test_controller_alone.py::test_"
LEADERS = "tests/unit/policy/test_leader_balance.py::test_"
COMMANDS = "tests/unit/engine/catalog/test_table_commands_alone.py::test_"

DOMAIN_RULES: tuple[Mutation, ...] = (
    mutation(
        "domains-spread",
        "Replicas of a partition share a failure domain though another one is free.",
        Edit("_Load.group", "used[self._domain[node]] <= least", "True"),
        directed(PLACEMENT + "replicas_are_spread_over_as_many_failure_domains_as_there_are"),
    ),
    mutation(
        "domains-none",
        "Nodes that said nothing are taken for nodes that fail together.",
        Edit("domain_of", "domains.get(node) or node", "domains.get(node, '')"),
        directed(PLACEMENT + "node_without_a_failure_domain_is_one_by_itself"),
    ),
    mutation(
        "domains-table",
        "The failure domains of the catalog are forgotten where a table is placed.",
        Edit("TableCommands.on_create_table", "self._view.catalog.domains()", "{}"),
        directed(COMMANDS + "new_table_is_spread_over_failure_domains"),
    ),
    mutation(
        "domains-evacuation",
        "A replica that leaves a node goes wherever the fewest are.",
        Edit("_evacuated", "(doubled(node, stay, domains), held[node])", "held[node]"),
        directed(EVACUATION + "replica_goes_to_a_failure_domain_that_has_none_of_the_others"),
    ),
    mutation(
        "domains-leaders",
        "Leaders that cannot be even are left in one failure domain.",
        Edit("plan_moves", "board.spread_over_domains()", "pass"),
        directed(LEADERS + "leaders_that_cannot_be_even_are_spread_over_failure_domains"),
    ),
    mutation(
        "domains-preferred",
        "The first node of a placement leads, whatever its failure domain leads already.",
        Edit("_Board.prefer_first_nodes", "self._shares.gain(leader, order[0]) < 0", "False"),
        directed(
            LEADERS + "first_node_of_a_placement_leads_only_where_domains_stay_as_near_to_"
            "their_shares"
        ),
    ),
    mutation(
        "domains-restart",
        "A node that was started with another failure domain keeps its old one in the catalog.",
        Edit(
            "CatalogController._register_nodes",
            "self._known_domains.get(node, entry.failure_domain)",
            "entry.failure_domain",
        ),
        directed(CONTROLLER + "node_is_registered_anew_with_another_failure_domain"),
    ),
    mutation(
        "domains-silence",
        "A node that nothing is heard of loses its failure domain.",
        Edit(
            "CatalogController._register_nodes",
            "self._known_domains.get(node, entry.failure_domain)",
            "self._known_domains.get(node, '')",
        ),
        directed(CONTROLLER + "node_is_registered_anew_with_another_failure_domain"),
    ),
)
