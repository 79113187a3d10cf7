"""Mutations of how orders for replicas are judged (M20)."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

ORDERS = "tests/unit/engine/catalog/test_replica_commands.py::test_"

ORDERING_RULES: tuple[Mutation, ...] = (
    mutation(
        "M20-stuck",
        "An order is taken that cannot be carried out with the nodes that are up.",
        Edit("ReplicaCommands._judged", "refusal is None and not request.is_forced", "False"),
        directed(ORDERS + "what_cannot_be_ordered_is_refused_with_the_value"),
    ),
    mutation(
        "M20-pending",
        "An order is proposed while another one is open.",
        Edit("ReplicaCommands._why_not", "entry.target is not None", "False"),
        directed(ORDERS + "order_that_is_cancelled_ends_where_it_is"),
    ),
)
