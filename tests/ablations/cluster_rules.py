"""Ablations of the rules across nodes: health, lag (S7.3), routing, leadership and placement."""

from __future__ import annotations

from tests.ablations.ablation import Ablation, directed

CLUSTER = "raftstore/cluster/"
HEALTH = "raftstore/policy/health.py"
LAG = "raftstore/policy/lag.py"
ROUTING = "raftstore/policy/routing.py"
LEADERSHIP = "raftstore/policy/leadership.py"
PLACEMENT = "raftstore/policy/placement.py"

UNIT = "tests/unit/policy/"
PEER = UNIT + "test_health.py::test_"
LAGS = UNIT + "test_lag.py::test_"
ROUTES = UNIT + "test_routing.py::test_"
DIGESTS = UNIT + "test_leadership.py::test_"
PLACES = UNIT + "test_placement.py::test_"

HEALTH_RULES: tuple[Ablation, ...] = (
    directed(
        "health-missed",
        "one heartbeat more than the threshold must be missed",
        HEALTH,
        "if missed >= settings.missed_threshold:",
        "if missed > settings.missed_threshold:",
        PEER + "peer_goes_down_between_three_and_four_intervals_after_its_last_heartbeat",
    ),
    directed(
        "health-received",
        "one heartbeat brings a dead peer back",
        HEALTH,
        "if received < settings.received_threshold:",
        "if received < 1:",
        PEER + "peer_stays_down_when_only_a_burst_arrives",
    ),
    directed(
        "health-delay",
        "a heartbeat on its way counts as missed",
        HEALTH,
        "max(0, now_ms - interval_ms // 2 - moment_ms) // interval_ms",
        "max(0, now_ms - moment_ms) // interval_ms",
        PEER + "peer_goes_down_between_three_and_four_intervals_after_its_last_heartbeat",
    ),
    directed(
        "health-discovered",
        "a peer missed heartbeats before it was discovered",
        HEALTH,
        "        missed = min(missed, self._slot_of(peer.since_ms, heard_ms))\n",
        "",
        PEER + "peer_never_heard_goes_down_after_the_threshold_from_its_discovery",
    ),
    directed(
        "health-standstill",
        "a node that stood still takes all others for dead",
        HEALTH,
        "stood_still = late_ms > limit_ms + self.settings.check_interval_ms",
        "stood_still = False",
        PEER + "no_peer_goes_down_when_this_node_stood_still",
    ),
    directed(
        "health-interval",
        "a node that looks as seldom as it may takes itself for late each time",
        HEALTH,
        "stood_still = late_ms > limit_ms + self.settings.check_interval_ms",
        "stood_still = late_ms >= limit_ms",
        PEER + "silent_peer_is_found_with_every_window_and_check_interval",
    ),
    directed(
        "health-excuse",
        "a node that is always late never finds anybody dead",
        HEALTH,
        "if stood_still and now_ms - self._excused_ms >= self.settings.window_ms:",
        "if stood_still:",
        PEER + "dead_peer_is_found_by_a_node_that_is_always_late",
    ),
    directed(
        "health-unread",
        "who is behind with reading takes the others for dead",
        HEALTH,
        "return min(listened_ms, now_ms) - self._late_ms",
        "return now_ms - self._late_ms",
        PEER + "no_peer_goes_down_while_its_heartbeats_may_wait_unread",
    ),
    directed(
        "health-late",
        "who is late itself takes the others for dead",
        HEALTH,
        "return min(listened_ms, now_ms) - self._late_ms",
        "return min(listened_ms, now_ms)",
        PEER + "peer_goes_down_as_much_later_as_this_node_was_late_itself",
    ),
    directed(
        "health-late-for-ever",
        "a node that was late for long finds nobody dead for as long",
        HEALTH,
        "self._late_ms = min(late_ms, self.settings.window_ms)",
        "self._late_ms = late_ms",
        PEER + "peer_goes_down_as_much_later_as_this_node_was_late_itself",
    ),
    directed(
        "health-deaf",
        "a node that reads nothing any more never finds anybody dead",
        HEALTH,
        "listened_ms is None or now_ms - listened_ms > self.settings.window_ms",
        "listened_ms is None",
        PEER + "dead_peer_is_found_although_nobody_listens_for_a_whole_window",
    ),
    directed(
        "health-refused",
        "heartbeats of a process that ended speak for its address",
        HEALTH,
        "        peer.arrivals.clear()\n",
        "",
        PEER + "refused_peer_comes_up_only_by_heartbeats_from_after_the_refusal",
    ),
    directed(
        "health-unknown",
        "a node that nobody discovered counts as up",
        HEALTH,
        "return self.state(node) not in (HealthState.DOWN, None)",
        "return self.state(node) is not HealthState.DOWN",
        PEER + "peers_are_judged_apart",
    ),
    directed(
        "health-memory",
        "a flood of heartbeats uses up the memory",
        HEALTH,
        "deque(maxlen=2 * (self._slots() + 1))",
        "deque()",
        PEER + "memory_of_a_peer_is_bounded_when_heartbeats_flood",
    ),
    directed(
        "health-flood",
        "heartbeats that come often push those of older slots out, and a live peer stays down",
        HEALTH,
        "if len(arrivals) > 1 and arrived_ms - arrivals[-2] < interval_ms:",
        "if False:",
        PEER + "live_peer_comes_up_however_often_it_sends",
    ),
    directed(
        "health-oldest",
        "a heartbeat in the oldest slot of the window is forgotten before it counts",
        HEALTH,
        "expired_ms = heard_ms - self.settings.window_ms - self.settings.send_interval_ms // 2",
        "expired_ms = heard_ms - self.settings.window_ms",
        PEER + "live_peer_comes_up_although_it_must_be_heard_for_the_whole_window",
    ),
)

LAG_RULES: tuple[Ablation, ...] = (
    directed(
        "S7.3-lag-age",
        "lag is known from old word of the leader",
        LAG,
        "if age_ms is None or age_ms > age_max_ms:",
        "if age_ms is None:",
        LAGS + "lag_is_unknown_when_word_of_the_leader_is_too_old",
    ),
    directed(
        "S7.3-lag-leader",
        "lag is known although no leader was ever heard",
        LAG,
        "if age_ms is None or age_ms > age_max_ms:",
        "if (age_ms or 0) > age_max_ms:",
        LAGS + "lag_is_unknown_when_no_leader_was_ever_heard",
    ),
    directed(
        "S7.3-lag-term",
        "a leader of the past vouches for lag",
        LAG,
        "        if term >= known.leader_term:",
        "        if True:",
        LAGS + "lag_is_unknown_when_only_a_leader_of_the_past_goes_on_talking",
    ),
    directed(
        "S7.3-lag-end",
        "the end of a channel goes back",
        LAG,
        "            known.commit_seq = max(known.commit_seq, position.commit_seq)",
        "            known.commit_seq = position.commit_seq",
        LAGS + "end_never_goes_back_and_lag_is_its_distance",
    ),
)

ROUTING_RULES: tuple[Ablation, ...] = (
    directed(
        "S7.3-routing-unknown",
        "a replica of unknown lag serves bounded reads",
        ROUTING,
        "        return NO_LAG_INFORMATION",
        "        return None",
        ROUTES + "nodes_to_query_orders_and_refuses",
    ),
    directed(
        "S7.3-routing-bound",
        "a replica beyond the bound serves bounded reads",
        ROUTING,
        "    if known > bound:",
        "    if False:",
        ROUTES + "nodes_to_query_orders_and_refuses",
    ),
    directed(
        "routing-dead",
        "a dead node is asked",
        ROUTING,
        "    if replica.state is HealthState.DOWN:",
        "    if False:",
        ROUTES + "nodes_to_query_orders_and_refuses",
    ),
    directed(
        "routing-leader",
        "the leader is not asked first",
        ROUTING,
        "        not replica.is_leader,\n",
        "",
        ROUTES + "nodes_to_query_orders_and_refuses",
    ),
    directed(
        "routing-suspect",
        "a node whose connection broke is asked before others",
        ROUTING,
        "        replica.state is HealthState.SUSPECT,\n        not replica.is_leader",
        "        not replica.is_leader",
        ROUTES + "nodes_to_query_orders_and_refuses",
    ),
    directed(
        "routing-lag",
        "a replica far behind is asked before a near one",
        ROUTING,
        "        inf if replica.lag is None else replica.lag,\n        replica.node != local",
        "        replica.node != local",
        ROUTES + "nodes_to_query_orders_and_refuses",
    ),
    directed(
        "routing-turns",
        "the first of the replicas within the bound takes all the load",
        ROUTING,
        "    at = turn % len(healthy)",
        "    at = 0",
        ROUTES + "nodes_to_query_takes_turns_among_those_in_bound",
    ),
    directed(
        "S7.3-routing-time",
        "a bound of time is not looked at",
        ROUTING,
        "replica.time_lag_ms, max_time_lag_ms,",
        "replica.time_lag_ms, None,",
        ROUTES + "nodes_to_query_keeps_every_bound_that_is_given",
    ),
    directed(
        "S7.3-routing-batches",
        "a bound of micro-batches is not looked at",
        ROUTING,
        "replica.batches_behind, max_batches_behind,",
        "replica.batches_behind, None,",
        ROUTES + "nodes_to_query_keeps_every_bound_that_is_given",
    ),
    directed(
        "routing-only",
        "another replica is asked than the named one",
        ROUTING,
        "        if only is not None and replica.node != only:",
        "        if False:",
        ROUTES + "nodes_to_query_asks_only_the_named_replica",
    ),
)

LEADERS_AND_PLACES: tuple[Ablation, ...] = (
    directed(
        "S1.8-digest-term",
        "heartbeats do not tell in which term a channel is led",
        LEADERSHIP,
        '    data = channel + term.to_bytes(8, "big")',
        "    data = channel",
        DIGESTS + "digest_differs_when_only_the_term_does",
    ),
    directed(
        "S1.8-digest-twice",
        "a leadership that is entered twice vanishes",
        LEADERSHIP,
        "        if (channel, term) not in self._pairs:",
        "        if True:",
        DIGESTS + "digest_does_not_cancel_when_a_pair_is_added_twice",
    ),
    directed(
        "placement-nodes",
        "a table gets fewer replicas than it was promised",
        PLACEMENT,
        "    if len(candidates) < replicas:",
        "    if False:",
        PLACES + "placement_is_refused_with_both_numbers_when_nodes_are_too_few",
    ),
    directed(
        "placement-load",
        "replicas pile up on the first nodes",
        PLACEMENT,
        "key=lambda node: (held[node], led[node])",
        "key=lambda node: 0",
        PLACES + "placement_is_complete_and_balanced",
    ),
    directed(
        "placement-leaders",
        "leaderships pile up",
        PLACEMENT,
        "leader = min(chosen, key=lambda node: led[node])",
        "leader = min(chosen)",
        PLACES + "placement_of_many_tables_keeps_leaders_balanced",
    ),
    directed(
        "placement-order",
        "a placement depends on the order in which nodes are named",
        PLACEMENT,
        "candidates = sorted(dict.fromkeys(nodes))",
        "candidates = list(dict.fromkeys(nodes))",
        PLACES + "placement_is_complete_and_balanced",
    ),
)

CLUSTER_RULES: tuple[Ablation, ...] = (
    *HEALTH_RULES,
    *LAG_RULES,
    *ROUTING_RULES,
    *LEADERS_AND_PLACES,
)
