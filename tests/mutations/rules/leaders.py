"""Mutations of even leaders: who plans, what may move, and who may refuse (NATS-001)."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

PLANS = "tests/unit/policy/test_leader_balance.py::test_"
STAYS = "tests/unit/engine/leaders/test_settled.py::test_"
SETTLED = "tests/unit/engine/leaders/test_settled.py::test_"
EVEN = "tests/unit/engine/leaders/test_even_leaders.py::test_"
ADMIN = "tests/integration/client/test_admin.py::test_"
COMMAND = "tests/cli/test_rebalance.py::test_"

LEADERS_RULES: tuple[Mutation, ...] = (
    mutation(
        "leaders-look",
        "Each hand-over that ends is a look at all channels, and nothing else gets done meanwhile.",
        Edit("LeaderBalancer.leader_changed", "max(now_ms, soon_ms)", "now_ms"),
        directed(
            "tests/unit/engine/leaders/test_many_leaders.py::test_"
            "hand_overs_that_end_together_are_one_look"
        ),
    ),
    mutation(
        "leaders-goal",
        "A plan ends although some node has two leaders more than another that could have one.",
        Edit("_Board.improving_path", "loads[start] - least < 2", "loads[start] - least < 3"),
        directed(PLANS + "no_other_choice_of_leaders_is_more_even"),
    ),
    mutation(
        "leaders-paths",
        "Only a node that takes the place of another is given leaders, never one behind a third.",
        Edit("_Board._path_from", "layer = found", "return None"),
        directed(PLANS + "a_node_without_the_replicas_is_reached_through_a_third_one"),
    ),
    mutation(
        "leaders-end",
        "Channels go to the first node of their placement whatever it leads already: without end.",
        Edit(
            "_Board.prefer_first_nodes",
            "self._loads[order[0]] < self._loads[leader]",
            "self._loads[order[0]] <= self._loads[leader]",
        ),
        directed(PLANS + "first_node_of_a_placement_that_leads_as_many_gets_no_more"),
    ),
    mutation(
        "leaders-tolerance",
        "A single leader more or fewer is worth moving.",
        Edit(
            "LeaderPlan.is_uneven",
            "abs(self.after[node] - led) > TOLERANCE",
            "self.after[node] != led",
        ),
        directed(PLANS + "one_more_or_fewer_than_even_is_not_worth_a_move"),
    ),
    mutation(
        "leaders-drain",
        "A node that drains keeps what it leads.",
        Edit(
            "LeaderBalancer._balance",
            "plan_moves(led, targets, self._leaving(), domains)",
            "plan_moves(led, targets, (), domains)",
        ),
        directed(EVEN + "a_node_that_drains_or_is_tagged_leads_nothing_after_a_while"),
    ),
    mutation(
        "leaders-off",
        "Leaders are made even although an operator has turned that off.",
        Edit("LeaderBalancer.is_on", "switch is None", "True"),
        directed(EVEN + "an_operator_turns_it_off_and_on_for_every_planner"),
    ),
    mutation(
        "leaders-asked",
        "What an operator moved is forgotten with the node that planned.",
        Edit("SettledLeaders.respect", "{channel for channel, _ in asked_for}", "()"),
        directed(EVEN + "what_an_operator_moved_stays_when_another_node_plans"),
    ),
    mutation(
        "leaders-at-once",
        "All moves of a plan begin at once.",
        Edit("LeaderBalancer._balance", "plan.moves[:room]", "plan.moves"),
        directed(EVEN + "no_more_moves_at_a_time_than_the_setting_allows"),
    ),
    mutation(
        "leaders-calm",
        "Moves begin while nodes come and go.",
        Edit("LeaderBalancer._is_calm", "now_ms - self._nodes_since_ms >= calm_ms", "True"),
        directed(EVEN + "nothing_moves_before_the_nodes_have_been_the_same_for_a_while"),
    ),
    mutation(
        "leaders-failover",
        "Moves begin while channels elect the successors of their leaders.",
        Edit("LeaderBalancer._is_calm", "now_ms - since_ms < calm_ms", "False"),
        directed(EVEN + "channels_that_lose_their_leaders_hold_the_moves_up_for_a_moment_only"),
    ),
    mutation(
        "leaders-planner",
        "A node that plans again goes on with what it knew when it did so before.",
        Edit("LeaderBalancer._look", "self._settled.clear()", "pass"),
        directed(EVEN + "a_node_that_plans_again_waits_as_a_new_planner_does"),
    ),
    mutation(
        "leaders-view",
        "Leaders are moved by what a node knows that was started a moment ago.",
        Edit("_whole_view", "knows_replicas(view)", "True"),
        directed(
            COMMAND + "a_node_that_was_started_a_moment_ago_is_asked_until_it_knows_the_others"
        ),
    ),
    mutation(
        "leaders-new",
        "A leader that was just elected or moved is moved.",
        Edit(
            "SettledLeaders._is_settled",
            "now_ms - seen.since_ms >= self._settings.calm_ms",
            "True",
        ),
        directed(STAYS + "leader_that_is_new_stays_for_a_moment"),
    ),
    mutation(
        "leaders-respect",
        "A leader goes back at once to the node that gave it away, for whatever reason.",
        Edit(
            "SettledLeaders.look",
            "now_ms + self._settings.respect_ms",
            "now_ms",
        ),
        directed(SETTLED + "leadership_that_a_live_node_gave_away_stays_for_longer"),
    ),
    mutation(
        "leaders-restart",
        "A step-down of before a restart is still respected after it.",
        Edit("LeaderBalancer._look_at_nodes", "self._settled.nodes_changed()", "pass"),
        directed(EVEN + "what_an_operator_moved_ends_with_a_restart"),
    ),
    mutation(
        "leaders-pause",
        "A move that failed is tried again at once.",
        Edit(
            "LeaderBalancer._led",
            "now_ms >= until_ms and self._settled.may_move(channel, now_ms) "
            "and self._parts.knows_moves(leader)",
            "self._settled.may_move(channel, now_ms) and self._parts.knows_moves(leader)",
        ),
        directed(EVEN + "a_move_without_an_answer_is_given_up_and_tried_later_and_later"),
    ),
    mutation(
        "leaders-level",
        "A node that does not know the messages is asked to lead.",
        Edit(
            "LeaderParts.knows_moves",
            "self.levels.by_node.get(node, 0) >= LEADER_MOVE_LEVEL",
            "True",
        ),
        directed(EVEN + "a_node_of_an_earlier_version_is_asked_for_nothing"),
    ),
    mutation(
        "leaders-deposed",
        "Any node that asks another one to lead is obeyed.",
        Edit("MoveRequests.on_take_lead", "sender != self._parts.planner", "False"),
        directed(EVEN + "only_the_planner_is_obeyed"),
    ),
    mutation(
        "leaders-trouble",
        "A node whose disk is full takes leaderships.",
        Edit("MoveRequests._why_not_lead", "node.guard.space.is_low", "False"),
        directed(EVEN + "a_node_in_trouble_refuses_to_lead_until_it_is_over"),
    ),
    mutation(
        "leaders-starved",
        "A node that stands still again and again takes leaderships.",
        Edit("MoveRequests.stood_still", "self._stood_still_ms = now_ms", "pass"),
        directed(EVEN + "a_node_in_trouble_refuses_to_lead_until_it_is_over"),
    ),
    mutation(
        "leaders-behind",
        "A leader hands over while a replica is far behind, and takes no writes until it is not.",
        Edit(
            "MoveRequests._why_not_hand_over",
            "progress.heard_ms is None or behind > BEHIND_MAX",
            "False",
        ),
        directed(EVEN + "a_leader_whose_follower_is_behind_hands_nothing_over"),
    ),
    mutation(
        "leaders-operator",
        "A move takes the place of a hand-over that an operator has asked for.",
        Edit(
            "TableCommands.is_handing_over",
            "waiting.was_leader == asked and waiting.channels == (runner.channel,)",
            "False",
        ),
        directed(EVEN + "a_leader_that_an_operator_has_hand_over_is_not_asked_for_another_node"),
    ),
    mutation(
        "leaders-term",
        "A leader hands over for a request that was meant for an earlier term.",
        Edit(
            "MoveRequests._why_not_hand_over",
            "(elector.role, elector.term) != (Role.LEADER, term)",
            "elector.role != Role.LEADER",
        ),
        directed(EVEN + "a_request_that_is_wrong_is_refused_by_the_leader"),
    ),
    mutation(
        "leaders-lane",
        "Real nodes end the connection on which they are asked to lead.",
        Edit(
            "TO_ACCEPTOR",
            "_members(ElectionMessage, NodeMessage, GapReport, LeaderMoveMessage, TrimmingMessage, "
            "CopyReport, MachineMessage)",
            "_members(ElectionMessage, NodeMessage, GapReport, TrimmingMessage, CopyReport, "
            "MachineMessage)",
        ),
        directed(
            "tests/unit/transport/test_handshake.py"
            "::test_control_connections_take_all_that_nodes_send_over_them"
        ),
    ),
    mutation(
        "leaders-known",
        "A hand-over whose new leader is known is called unknown.",
        Edit(
            "Admin.step_down",
            "leader is None or not is_new or to not in (None, leader.node)",
            "True",
        ),
        directed(ADMIN + "step_down_is_done_once_the_wanted_leader_is_known"),
    ),
    mutation(
        "leaders-of-replicas-that-left",
        "Leaderships that went with their replica stay, as if somebody asked for it.",
        Edit("SettledLeaders.look", "seen.given_by not in replicas", "False"),
        directed(SETTLED + "leadership_that_goes_with_its_replica_was_asked_for_by_nobody"),
    ),
)
