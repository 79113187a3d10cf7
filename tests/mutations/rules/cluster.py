"""Mutations of the rules across nodes: health, lag (S7.3), routing, leadership and placement."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

ROUTES = "tests/unit/policy/test_routing.py::test_"
KLIP_12 = "tests/design/test_klip_12_routing.py::test_"
DIGESTS = "tests/unit/policy/test_leadership.py::test_"
PEER = "tests/unit/policy/test_health.py::test_"
LAGS = "tests/unit/policy/test_lag.py::test_"
PLACES = "tests/unit/policy/test_placement.py::test_"

CLUSTER_RULES: tuple[Mutation, ...] = (
    mutation(
        "S1.8-digest-term",
        "Heartbeats do not tell in which term a channel is led.",
        Edit(
            "_hash",
            'channel + term.to_bytes(8, "big")',
            "channel",
        ),
        directed(DIGESTS + "digest_differs_when_only_the_term_does"),
    ),
    mutation(
        "S1.8-digest-twice",
        "A leadership that is entered twice vanishes.",
        Edit(
            "LeadershipDigest.add",
            "(channel, term) not in self._pairs",
            "True",
        ),
        directed(DIGESTS + "digest_does_not_cancel_when_a_pair_is_added_twice"),
    ),
    mutation(
        "S7.3-lag-leader",
        "Lag is known although no leader was ever heard.",
        Edit(
            "known_lag",
            "age_ms is None or age_ms > age_max_ms",
            "(age_ms or 0) > age_max_ms",
        ),
        directed(LAGS + "lag_is_unknown_when_no_leader_was_ever_heard"),
    ),
    mutation(
        "S7.3-lag-term",
        "A leader of the past vouches for lag.",
        Edit(
            "LagTable._heard_leader",
            "term >= known.leader_term",
            "True",
        ),
        directed(LAGS + "lag_is_unknown_when_only_a_leader_of_the_past_goes_on_talking"),
    ),
    mutation(
        "S7.3-lag-end",
        "The end of a channel goes back.",
        Edit(
            "LagTable.on_positions",
            "max(known.commit_seq, position.commit_seq)",
            "position.commit_seq",
        ),
        directed(LAGS + "end_never_goes_back_and_lag_is_its_distance"),
    ),
    mutation(
        "S7.3-routing-unknown",
        "A replica of unknown lag serves bounded reads.",
        Edit(
            "_beyond",
            "NO_LAG_INFORMATION",
            "None",
        ),
        directed(ROUTES + "nodes_to_query_orders_and_refuses"),
    ),
    mutation(
        "S7.3-routing-bound",
        "A replica beyond the bound serves bounded reads.",
        Edit(
            "_beyond",
            "known > bound",
            "False",
        ),
        directed(ROUTES + "nodes_to_query_orders_and_refuses"),
    ),
    mutation(
        "S7.3-routing-time",
        "A bound of time is not looked at.",
        Edit(
            "_refusal",
            "max_time_lag_ms",
            "None",
        ),
        directed(ROUTES + "nodes_to_query_keeps_every_bound_that_is_given"),
    ),
    mutation(
        "S7.3-routing-batches",
        "A bound of micro-batches is not looked at.",
        Edit(
            "_refusal",
            "max_batches_behind",
            "None",
        ),
        directed(ROUTES + "nodes_to_query_keeps_every_bound_that_is_given"),
    ),
    mutation(
        "health-missed",
        "One heartbeat more than the threshold must be missed.",
        Edit(
            "HealthTable._decide",
            "missed >= settings.missed_threshold",
            "missed > settings.missed_threshold",
        ),
        directed(PEER + "peer_goes_down_between_three_and_four_intervals_after_its_last_heartbeat"),
    ),
    mutation(
        "health-received",
        "One heartbeat brings a dead peer back.",
        Edit(
            "HealthTable._decide",
            "settings.received_threshold",
            "1",
        ),
        directed(PEER + "peer_stays_down_when_only_a_burst_arrives"),
    ),
    mutation(
        "health-delay",
        "A heartbeat on its way counts as missed.",
        Edit(
            "HealthTable._slot_of",
            "now_ms - interval_ms // 2",
            "now_ms",
        ),
        directed(PEER + "peer_goes_down_between_three_and_four_intervals_after_its_last_heartbeat"),
    ),
    mutation(
        "health-discovered",
        "A peer missed heartbeats before it was discovered.",
        Edit(
            "HealthTable._decide",
            "missed = min(missed, self._slot_of(peer.since_ms, heard_ms))",
            "",
        ),
        directed(PEER + "peer_never_heard_goes_down_after_the_threshold_from_its_discovery"),
    ),
    mutation(
        "health-standstill",
        "A node that stood still takes all others for dead.",
        Edit(
            "HealthTable.check",
            "late_ms > limit_ms + self.settings.check_interval_ms",
            "False",
        ),
        directed(PEER + "no_peer_goes_down_when_this_node_stood_still"),
    ),
    mutation(
        "health-interval",
        "A node that looks as seldom as it may takes itself for late each time.",
        Edit(
            "HealthTable.check",
            "late_ms > limit_ms + self.settings.check_interval_ms",
            "late_ms >= limit_ms",
        ),
        directed(PEER + "silent_peer_is_found_with_every_window_and_check_interval"),
    ),
    mutation(
        "health-excuse",
        "A node that is always late never finds anybody dead.",
        Edit(
            "HealthTable.check",
            "stood_still and now_ms - self._excused_ms >= self.settings.window_ms",
            "stood_still",
        ),
        directed(PEER + "dead_peer_is_found_by_a_node_that_is_always_late"),
    ),
    mutation(
        "health-unread",
        "Who is behind with reading takes the others for dead.",
        Edit(
            "HealthTable._heard_until",
            "min(listened_ms, now_ms)",
            "now_ms",
        ),
        directed(PEER + "no_peer_goes_down_while_its_heartbeats_may_wait_unread"),
    ),
    mutation(
        "health-late",
        "Who is late itself takes the others for dead.",
        Edit(
            "HealthTable._heard_until",
            "min(listened_ms, now_ms) - self._late_ms",
            "min(listened_ms, now_ms)",
        ),
        directed(PEER + "peer_goes_down_as_much_later_as_this_node_was_late_itself"),
    ),
    mutation(
        "health-late-for-ever",
        "A node that was late for long finds nobody dead for as long.",
        Edit(
            "HealthTable.listened",
            "min(late_ms, self.settings.window_ms)",
            "late_ms",
        ),
        directed(PEER + "peer_goes_down_as_much_later_as_this_node_was_late_itself"),
    ),
    mutation(
        "health-deaf",
        "A node that reads nothing any more never finds anybody dead.",
        Edit(
            "HealthTable._heard_until",
            "listened_ms is None or now_ms - listened_ms > self.settings.window_ms",
            "listened_ms is None",
        ),
        directed(PEER + "dead_peer_is_found_although_nobody_listens_for_a_whole_window"),
    ),
    mutation(
        "health-refused",
        "Heartbeats of a process that ended speak for its address.",
        Edit(
            "HealthTable.connection_lost",
            "peer.arrivals.clear()",
            "",
        ),
        directed(PEER + "refused_peer_comes_up_only_by_heartbeats_from_after_the_refusal"),
    ),
    mutation(
        "health-unknown",
        "A node that nobody discovered counts as up.",
        Edit(
            "HealthTable.is_up",
            "self.state(node) not in (HealthState.DOWN, None)",
            "self.state(node) is not HealthState.DOWN",
        ),
        directed(PEER + "peers_are_judged_apart"),
    ),
    mutation(
        "health-memory",
        "A flood of heartbeats uses up the memory.",
        Edit(
            "HealthTable.add_peer",
            "maxlen=2 * (self._slots() + 1),",
            "",
        ),
        directed(PEER + "memory_of_a_peer_is_bounded_when_heartbeats_flood"),
    ),
    mutation(
        "health-flood",
        "Heartbeats that come often push those of older slots out, and a live peer stays down.",
        Edit(
            "HealthTable._remember",
            "len(arrivals) > 1 and arrived_ms - arrivals[-2] < interval_ms",
            "False",
        ),
        directed(PEER + "live_peer_comes_up_however_often_it_sends"),
    ),
    mutation(
        "health-oldest",
        "A heartbeat in the oldest slot of the window is forgotten before it counts.",
        Edit(
            "HealthTable._decide",
            "heard_ms - self.settings.window_ms - self.settings.send_interval_ms // 2",
            "heard_ms - self.settings.window_ms",
        ),
        directed(PEER + "live_peer_comes_up_although_it_must_be_heard_for_the_whole_window"),
    ),
    mutation(
        "routing-dead",
        "A dead node is asked.",
        Edit(
            "_refusal",
            "replica.state is HealthState.DOWN",
            "False",
        ),
        directed(
            ROUTES + "nodes_to_query_orders_and_refuses",
            KLIP_12 + "klip_38_a_node_known_to_be_down_is_never_asked",
        ),
    ),
    mutation(
        "routing-leader",
        "The leader is not asked first.",
        Edit(
            "_by_freshness",
            "not replica.is_leader,",
            "",
        ),
        directed(
            ROUTES + "nodes_to_query_orders_and_refuses",
            KLIP_12 + "klip_37_the_active_is_asked_first_although_it_is_behind",
        ),
    ),
    mutation(
        "routing-suspect",
        "A node whose connection broke is asked before others.",
        Edit(
            "_by_freshness",
            "replica.state is HealthState.SUSPECT,",
            "",
        ),
        directed(
            ROUTES + "nodes_to_query_orders_and_refuses",
            KLIP_12 + "klip_49_a_suspect_node_is_asked_last",
        ),
    ),
    mutation(
        "routing-broken",
        "A node is down as soon as a connection to it breaks.",
        Edit(
            "ViewReport._node_view",
            "state is HealthState.SUSPECT and node.settings.heartbeat.enable",
            "False",
        ),
        directed(KLIP_12 + "klip_49_a_suspect_node_is_asked_last"),
    ),
    mutation(
        "routing-lag",
        "A replica far behind is asked before a near one.",
        Edit(
            "_by_freshness",
            "inf if replica.lag is None else replica.lag,",
            "",
        ),
        directed(
            ROUTES + "nodes_to_query_orders_and_refuses",
            KLIP_12 + "klip_37_the_active_is_asked_first_then_standbys_by_smallest_lag",
        ),
    ),
    mutation(
        "routing-turns",
        "The first of the replicas within the bound takes all the load.",
        Edit(
            "_in_turn",
            "turn % len(healthy)",
            "0",
        ),
        directed(
            ROUTES + "nodes_to_query_takes_turns_among_those_in_bound",
            KLIP_12 + "klip_37_prefer_any_in_bound_spreads_reads",
        ),
    ),
    mutation(
        "routing-only",
        "Another replica is asked than the named one.",
        Edit(
            "nodes_to_query",
            "only is not None and replica.node != only",
            "False",
        ),
        directed(ROUTES + "nodes_to_query_asks_only_the_named_replica"),
    ),
    mutation(
        "placement-nodes",
        "A table gets fewer replicas than it was promised.",
        Edit(
            "place_table",
            "len(candidates) < replicas",
            "False",
        ),
        directed(PLACES + "placement_is_refused_with_both_numbers_when_nodes_are_too_few"),
    ),
    mutation(
        "placement-load",
        "Replicas pile up on the first nodes.",
        Edit(
            "_Load._load",
            "self._held[node], self._led[node], node",
            "0, 0, node",
        ),
        directed(PLACES + "placement_is_complete_and_balanced"),
    ),
    mutation(
        "placement-leaders",
        "Leaderships pile up.",
        Edit(
            "_Load.group",
            "(led[node], self._led_in[self._domain[node]])",
            "-led[node]",
        ),
        directed(PLACES + "placement_of_many_tables_keeps_leaders_balanced"),
    ),
)
