"""Mutations of hot standbys and planned switches of leaders (FIP-05 to FIP-20, M18)."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

COMMIT = "tests/unit/core/test_rules_commit.py::test_"
HAND_OVER = "tests/unit/core/test_hand_over.py::test_"

STANDBY_RULES: tuple[Mutation, ...] = (
    mutation(
        "S9-applied",
        "A leadership goes to a replica whose table lacks what its log holds.",
        Edit("HandOver.advance", "progress.applied_seq < state.last_seq", "False"),
        directed(COMMIT + "hand_over_waits_until_the_targets_table_shows_everything"),
    ),
    mutation(
        "S9-near",
        "Writes stop although the table of the successor is thousands of rows behind.",
        Edit("HandOver._is_near", "left <= self._state.settings.hand_over_lag_max", "True"),
        directed(
            HAND_OVER + "writes_go_on_until_the_target_is_near",
            HAND_OVER + "target_that_never_gets_near_costs_no_write",
        ),
    ),
    mutation(
        "S9-ask-again",
        "A successor is asked once what it has applied, and the question is lost.",
        Edit("HandOver.on_timer", "self.advance()", "pass"),
        directed(HAND_OVER + "target_is_asked_again_for_what_it_has_applied"),
    ),
    mutation(
        "S9-ending-node",
        "A node that stops waits for the tables of others until it is killed.",
        Edit("HandOver.on_timer", "self._needs_applied = False", "pass"),
        directed(HAND_OVER + "node_that_stops_waits_for_no_table_twice"),
    ),
    mutation(
        "M18-hands-over",
        "A learner that was elected leaves it to the others to find out who can lead.",
        Edit(
            "Leader._on_config_committed",
            "now.has_member(state.own_id) and self.hand_over.yield_lead(ONLY_UNTIL)",
            "False",
        ),
        directed(HAND_OVER + "learner_that_leads_hands_over_to_the_first_voter_with_its_log"),
    ),
)
