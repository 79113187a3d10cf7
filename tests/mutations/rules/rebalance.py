"""Mutations of rebalances: plans, moves and their states, cancelling, throttling (FIP-13 to 29)."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

PLANS = "tests/unit/policy/test_rebalance.py::test_"
ROWS = "tests/unit/state_machines/test_catalog_rebalance.py::test_"
STEPS = "tests/unit/engine/catalog/test_move_steps.py::test_"
WORLD = "tests/unit/engine/catalog/test_rebalance.py::test_"
MANY = "tests/unit/engine/catalog/test_many_moves.py::test_"
HELD_UP = "tests/unit/engine/catalog/test_rebalance_states.py::test_"
SPARE = HELD_UP + "n11_move_waits_while_it_would_leave_the_channel_without_a_spare"

REBALANCE_RULES: tuple[Mutation, ...] = (
    mutation(
        "FIP-23-domains",
        "A plan leaves replicas of a channel in one failure domain that could be in two.",
        Edit("_ReplicaBoard._best_target", "self._domain[target] not in used", "True"),
        directed(PLANS + "failure_domains_come_before_even_counts"),
    ),
    mutation(
        "FIP-23-tagged",
        "A plan leaves what a node holds that is to hold nothing.",
        Edit("plan_rebalance", "board.free_leaving()", "()"),
        directed(PLANS + "node_that_leaves_gives_everything_away_learners_too"),
    ),
    mutation(
        "FIP-23-work",
        "All replicas of a node are looked at for each node of a domain that none may enter.",
        Edit("_ReplicaBoard._reaches", "found is None", "True"),
        directed(PLANS + "work_of_a_plan_grows_with_the_replicas_and_not_with_their_square"),
    ),
    mutation(
        "FIP-13-at-once",
        "All moves of a rebalance begin at once.",
        Edit("Rebalancer._look_at", "moves.add(entry.move.targets)", "pass"),
        directed(MANY + "as_many_channels_move_at_a_time_as_the_cluster_carries"),
    ),
    mutation(
        "FIP-13-on-their-way",
        "Orders that are on their way into the catalog do not count, and others are given beside.",
        Edit("Rebalancer._open_moves", "self._ordered | opened", "opened"),
        directed(MANY + "as_many_channels_move_at_a_time_as_the_cluster_carries"),
    ),
    mutation(
        "FIP-13-taker",
        "A node that joined is copied to by as many as the whole cluster may move at a time.",
        Edit("OpenMoves.may_take", "self._taking[node] < MOVES_OF_TAKER_MAX", "True"),
        directed(MANY + "node_that_joined_takes_few_replicas_at_a_time"),
    ),
    mutation(
        "FIP-13-waits",
        "A move that waits for others is not cancelled with its rebalance.",
        Edit("Rebalancer._rests", "not rebalance.is_cancelled", "True"),
        directed(MANY + "moves_that_wait_for_others_end_with_the_rebalance"),
    ),
    mutation(
        "FIP-23-copies",
        "A node gives a new one so much that the others give as much to it.",
        Edit("_ReplicaBoard.level_counts", "count != -self._count(node)", "False"),
        directed(PLANS + "no_more_replicas_are_copied_than_the_nodes_below_their_share_lack"),
    ),
    mutation(
        "FIP-13-one",
        "A second rebalance begins while one is open.",
        Edit("_begin", "row is not None and last is not None and last.is_open", "False"),
        directed(ROWS + "rebalance_is_one_at_a_time_and_a_repeated_request_is_the_same"),
    ),
    mutation(
        "FIP-29-forward",
        "A late step takes a move back, or is taken from another state than the one seen.",
        Edit(
            "_step",
            "entry.state is not command.before",
            "False",
        ),
        directed(ROWS + "state_of_a_move_goes_forward_only_from_the_state_that_was_seen"),
    ),
    mutation(
        "FIP-28-ended",
        "A rebalance ends while a move of it is under way.",
        Edit("_end", "not state.is_end", "False"),
        directed(ROWS + "rebalance_ends_only_when_every_move_has"),
    ),
    mutation(
        "FIP-29-order-id",
        "The order of a move has another id each time that a leader looks.",
        Edit(
            "order_id",
            "hashlib.blake2b(rebalance + channel, digest_size=ORDER_ID_BYTES).digest()",
            "hashlib.blake2b(channel, digest_size=ORDER_ID_BYTES).digest()",
        ),
        directed(STEPS + "order_is_given_for_the_row_that_was_seen_under_an_id_of_its_own"),
    ),
    mutation(
        "FIP-21-shrinking",
        "A move is completed while the old replica is still there.",
        Edit("_shrink", "not left or facts.stuck", "True"),
        directed(STEPS + "move_is_completed_when_the_old_replica_is_gone"),
    ),
    mutation(
        "FIP-28-cancel",
        "A cancelled rebalance leaves the order of a move open.",
        Edit("_while_open", "facts.rebalance.is_cancelled or entry.ends_as is not None", "False"),
        directed(STEPS + "cancelling_undoes_what_is_under_way_and_begins_nothing"),
    ),
    mutation(
        "FIP-28-orphan",
        "An order that shows after its move has ended goes on alone.",
        Edit("next_move_step", "order is not None and not order.target.cancelled", "False"),
        directed(STEPS + "order_that_shows_after_its_move_was_cancelled_is_cancelled_too"),
    ),
    mutation(
        "FIP-28-timeout",
        "A move to a node that is dead waits for ever.",
        Edit("Rebalancer._stuck", "waited_ms < self._settings.stuck_ms", "True"),
        directed(WORLD + "fip_28_new_replica_dies_and_the_move_times_out_with_the_reason"),
    ),
    mutation(
        "N11-waits",
        "An order is given although the node that it needs is down.",
        Edit("Rebalancer._why_wait", "not self._replicas.is_up(node)", "False"),
        directed(WORLD + "moves_wait_until_their_node_is_up_and_time_out_at_last"),
    ),
    mutation(
        "N11-spare",
        "An order is given that leaves its channel fewer nodes to lose.",
        Edit("Rebalancer._why_wait", "then < spare", "False"),
        directed(SPARE),
    ),
    mutation(
        "N11-quorum",
        "An order is given while too few voters of its channel are up.",
        Edit("Rebalancer._why_wait", "min(spare, then) < 0", "False"),
        directed(SPARE),
    ),
    mutation(
        "FIP-13-switching",
        "A move whose channel has two sets of voters in force looks as if it were catching up.",
        Edit("_seen_state", "config.is_joint", "False"),
        directed(HELD_UP + "fip_13_move_is_switching_while_two_sets_of_voters_are_in_force"),
    ),
    mutation(
        "FIP-23-throttle",
        "Nodes send tables as fast as they are set to, whatever operators say.",
        Edit("SnapshotSender.second_bytes", "min(most, self._throttle() or most)", "most"),
        directed(WORLD + "throttle_bounds_what_every_node_sends"),
    ),
    mutation(
        "FIP-23-replace",
        "A node that is gone is replaced at once.",
        Edit("Replacer.look", "now_ms - since_ms < self._after_ms", "False"),
        directed(WORLD + "node_that_is_gone_for_long_is_replaced_by_itself"),
    ),
)
