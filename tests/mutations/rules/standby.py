"""Mutations of hot standbys and planned switches of leaders (FIP-05 to FIP-20, M18)."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

STANDBYS = "tests/unit/policy/test_standbys.py::test_"
JUDGED = "tests/unit/engine/leaders/test_standbys.py::test_"
EVEN = "tests/unit/engine/leaders/test_even_leaders.py::test_"
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
        "S9-ask-at-once",
        "A successor that gets the last record after its commit is asked a moment later.",
        Edit("HandOver._ask_applied", "equal <= self._were_asked", "True"),
        directed(HAND_OVER + "target_that_gets_equal_after_the_commit_is_asked_at_once"),
    ),
    mutation(
        "S9-successor",
        "A refused write does not name the leader that its publisher could go to a moment later.",
        Edit(
            "Sequencer.admit",
            "self.hands_over and refusal.text == self.refusal",
            "False",
        ),
        directed(HAND_OVER + "refused_write_is_answered_with_the_name_of_the_successor"),
    ),
    mutation(
        "S9-between-leaders",
        "A leader that has handed over sends publishers away before it knows where to.",
        Edit("refuse_not_leader", "state.refused.is_expected(state.now_ms)", "False"),
        directed(HAND_OVER + "refused_write_is_answered_with_the_name_of_the_successor"),
    ),
    mutation(
        "S9-no-successor",
        "Refused writes wait for a leader without end where none is expected.",
        Edit("RefusedWrites.is_expected", "now_ms < self._expected_until_ms", "True"),
        directed(
            HAND_OVER + "write_at_a_leader_that_was_deposed_without_a_word_is_refused_at_once"
        ),
    ),
    mutation(
        "S9-refused-in-time",
        "A refused write is not answered while nobody takes over.",
        Edit("RefusedWrites.due_ms", "self._held[0].due_ms if self._held else None", "None"),
        directed(HAND_OVER + "refused_writes_that_wait_have_a_deadline"),
    ),
    mutation(
        "S9-refused-bound",
        "Any number of refused writes wait.",
        Edit("RefusedWrites.hold", "len(self._held) >= HELD_MAX", "False"),
        directed(HAND_OVER + "refused_writes_that_wait_are_bounded"),
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
    mutation(
        "FIP-17-enters-equal",
        "A standby counts as in sync as soon as it is near, and goes in and out by turns.",
        Edit("InSyncStandbys.judge", "applied_seq < self._ends.get(node, end_seq)", "False"),
        directed(
            STANDBYS + "standby_enters_when_it_has_applied_everything",
            STANDBYS + "standby_stays_within_the_bound_and_leaves_beyond_it",
        ),
    ),
    mutation(
        "FIP-18-leaves",
        "A standby that falls behind stays in sync.",
        Edit("InSyncStandbys.judge", "why_not or lag > self._max_lag", "why_not"),
        directed(
            STANDBYS + "standby_stays_within_the_bound_and_leaves_beyond_it",
            STANDBYS + "nobody_in_sync_is_ever_beyond_the_bound_or_silent",
        ),
    ),
    mutation(
        "FIP-17-silent",
        "A standby whose node fell silent stays in sync.",
        Edit("Standbys._look", "node in silent", "False"),
        directed(JUDGED + "standby_that_falls_silent_leaves_and_comes_back"),
    ),
    mutation(
        "FIP-17-lost-at-once",
        "A node that is lost stays in sync in the views and reports that are kept.",
        Edit("PeerWatch._note_up", "self._report_up_changed(peer.node)", "pass"),
        directed(JUDGED + "node_that_is_lost_is_in_sync_with_nobody_at_once_in_views_and_reports"),
    ),
    mutation(
        "FIP-17-another-life",
        "What an earlier life of a replica had applied counts for the present one.",
        Edit("Standbys.on_position", "position.replica != config.number_of(sender)", "False"),
        directed(JUDGED + "what_another_life_of_a_replica_reports_is_not_counted"),
    ),
    mutation(
        "FIP-07-own-standby",
        "A leader is a standby of itself.",
        Edit("hot_standbys", "node != leader and is_hot_standby_candidate(config, node)", "True"),
        directed(STANDBYS + "leader_is_no_standby_of_itself"),
    ),
    mutation(
        "FIP-14-moves",
        "The planner has leaderships moved to replicas whose tables are late.",
        Edit("Standbys.why_not_in_sync", "known is not None and node in known.standbys", "True"),
        directed(EVEN + "a_leader_hands_nothing_over_to_a_replica_that_is_no_standby_in_sync"),
    ),
)
