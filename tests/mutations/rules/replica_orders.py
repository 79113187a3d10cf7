"""Mutations of orders for the replicas of channels, and of reports about them (M14, M20, M21)."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.rules.drawn_worlds import MEMBERS
from tests.mutations.syntax import Edit

ROWS = "tests/unit/state_machines/test_catalog_replicas.py::test_"

ORDER_RULES: tuple[Mutation, ...] = (
    mutation(
        "M20-one",
        "An order is taken while another one is open.",
        Edit("_change", "seq != command.base_seq or entry.order is not None", "False"),
        directed(ROWS + "m20_order_is_a_compare_and_set_and_one_at_a_time"),
    ),
    mutation(
        "M20-set",
        "An order is taken that was judged by another state of the row.",
        Edit(
            "_change",
            "seq != command.base_seq or entry.order is not None",
            "entry.order is not None",
        ),
        directed(ROWS + "m20_order_is_a_compare_and_set_and_one_at_a_time"),
    ),
    mutation(
        "M20-guid",
        "A request that is made again is another order.",
        Edit("_change", "order is not None and order.guid == command.guid", "False"),
        directed(ROWS + "same_request_is_the_same_order"),
    ),
    mutation(
        "M14-number",
        "A replica that an order adds has the number of the creation.",
        Edit(
            "_change",
            "ReplicaNumber(change) if node in added else config.number_of(node)",
            "config.number_of(node)",
        ),
        directed(ROWS + "m20_order_names_new_replicas_by_its_own_seq"),
        MEMBERS,
    ),
    mutation(
        "M27-order",
        "An order places a replica on a node that drains or has left.",
        Edit("_change", "(left := row_of_left(added, read, drains=True)) is not None", "False"),
        directed(
            ROWS + "m27_order_never_places_a_replica_on_a_node_that_drains_or_has_left",
        ),
    ),
    mutation(
        "M21-newer",
        "A late report takes the place of a newer one.",
        Edit("_report", "command.config_seq <= entry.config_seq", "False"),
        directed(ROWS + "m21_report_applies_only_if_it_is_newer"),
    ),
    mutation(
        "M21-ended",
        "An order ends with the first configuration of it that is reported.",
        Edit(
            "_report",
            "order is not None and config.ended and config.change == order.target.change",
            "order is not None and config.change == order.target.change",
        ),
        directed(ROWS + "order_ends_by_the_record_that_says_so"),
    ),
    mutation(
        "M21-another",
        "The end of an older order ends the one that is open.",
        Edit(
            "_report",
            "order is not None and config.ended and config.change == order.target.change",
            "order is not None and config.ended",
        ),
        directed(ROWS + "order_ends_by_the_record_that_says_so"),
    ),
    mutation(
        "S0.8-order",
        "A late report brings the replicas of a dropped table back.",
        Edit(
            "_founding",
            "not entry.has_channel(channel)",
            "False",
        ),
        directed(ROWS + "dropped_table_takes_its_orders_with_it"),
    ),
)
