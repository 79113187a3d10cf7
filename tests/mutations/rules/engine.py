"""Mutations of the engine's channels and elections: S0.3, S0.6, S0.8, S1, S2.5, S4, S7.4, S13."""

from __future__ import annotations

from tests.mutations.guard import chaos, directed, worlds
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

MANY = "tests/unit/engine/test_many_channels.py::test_"
SERVING = "tests/unit/engine/reads/test_rules_serving.py::test_"
REPORTS = "tests/unit/engine/peers/test_lag_reports.py::test_"
TESTS = "tests/unit/engine/channel/test_rules_engine.py::test_"
HOLE_REPAIRS = "tests/unit/engine/channel/test_hole_repairs.py::test_"

ENGINE_RULES: tuple[Mutation, ...] = (
    mutation(
        "S0.3-deaf",
        "A replica whose log lacks a record in the middle listens to leaders and candidates.",
        Edit(
            "ChannelRunner.on_replication",
            "self.ignores_peers",
            "False",
        ),
        directed(HOLE_REPAIRS + "replica_with_a_hole_takes_no_part"),
        worlds(flip_percent="40", damage_percent="0"),
    ),
    mutation(
        "S0.3-old-leader",
        "A leader of an older term says what was never acknowledged.",
        Edit(
            "HoleRepairs.on_refill",
            "answer.leader_term >= runner.elector.term",
            "True",
        ),
        directed(HOLE_REPAIRS + "leader_of_our_term_decides_about_what_nobody_else_has_held"),
    ),
    mutation(
        "S0.3-serving",
        "A recovering replica answers reads.",
        Edit(
            "serving_refusal",
            "runner.core.is_recovering",
            "False",
        ),
        directed(SERVING + "recovering_replica_serves_nothing"),
    ),
    mutation(
        "S0.6-level",
        "A table is created whose durability some node does not know.",
        Edit(
            "created_format",
            "entry.durability != Durability.FSYNC.label",
            "False",
        ),
        directed(
            "tests/unit/engine/test_durability_worlds.py::"
            "test_table_below_fsync_is_refused_while_a_node_does_not_know_it"
        ),
    ),
    mutation(
        "S0.8-unknown-channel",
        "A message for an unknown channel is looked at.",
        Edit(
            "NodeRunner._replicate",
            "if runner is not None: ...",
            "if True: ...",
        ),
        directed(TESTS + "message_for_an_unknown_channel_creates_nothing"),
    ),
    mutation(
        "S1.4-lower",
        "Messages of a past term are not refused.",
        Edit(
            "admits",
            "message.term < elector.term",
            "False",
        ),
        directed(TESTS + "message_of_a_past_term_is_answered_with_the_present_one"),
    ),
    mutation(
        "S1.4-higher",
        "A higher term is not adopted.",
        Edit(
            "admits",
            "elector.observe_term(message.term)",
            "",
        ),
        directed(TESTS + "message_of_a_later_term_is_adopted"),
    ),
    mutation(
        "S1.8-late-word",
        "A word of a lost node that comes late stills every suspicion for good.",
        Edit(
            "PeerWatch._check",
            "self._suspect_silent(now_ms)",
            "",
        ),
        directed(MANY + "word_of_a_lost_node_that_arrives_late_does_not_still_the_suspicion"),
    ),
    mutation(
        "S1.8-connected",
        "A peer that connects counts as leading what it led before its restart.",
        Edit(
            "PeerWatch.on_connected",
            "peer.claimed_ms is None",
            "True",
        ),
        directed(MANY + "connection_alone_claims_no_leadership"),
    ),
    mutation(
        "S1.8-living-is-not-leading",
        "Every live peer counts as leading what it led once.",
        Edit(
            "PeerWatch.heard_leader",
            "peer.claimed_ms",
            "peer.last_heard_ms",
        ),
        directed(MANY + "leader_that_steps_down_and_cannot_be_asked_is_replaced"),
    ),
    mutation(
        "S1.8-claims",
        "A leader that claims its channel no more is believed in for ever.",
        Edit(
            "PeerWatch.on_leadership_list",
            "claimed.get(runner.channel) != runner.elector.term",
            "False",
        ),
        directed(TESTS + "leader_that_restarts_unseen_is_replaced"),
    ),
    mutation(
        "S1.8-contact",
        "A leader without contact to a quorum leads on.",
        Edit(
            "QuorumContact._check_nodes",
            "runner.step_down(NO_CONTACT, now_ms)",
            "pass",
        ),
        directed(
            "tests/unit/engine/peers/test_watch_leaders.py::"
            "test_leader_gives_up_when_it_has_had_no_contact_for_long_enough"
        ),
    ),
    mutation(
        "S1.9-restart",
        "A restarted node waits for the catalog before it serves its tables.",
        Edit(
            "CatalogController.start",
            "self.on_catalog_applied(now_ms)",
            "",
        ),
        directed(SERVING + "restarted_node_serves_its_tables_without_the_metadata_channel"),
    ),
    mutation(
        "S1.9-ready",
        "A node whose copy of the catalog may be incomplete calls itself ready.",
        Edit(
            "judged",
            "view.age_ms is not None",
            "True",
        ),
        directed(
            "tests/integration/http/test_monitoring.py::"
            "test_readyz_of_a_table_that_a_complete_catalog_does_not_have_is_404"
        ),
    ),
    mutation(
        "S1.9-complete",
        "A copy of the catalog that may be incomplete says that it is not.",
        Edit(
            "ClusterInfoReport.answer",
            "age if lag == 0 else None",
            "age",
        ),
        directed(TESTS + "copy_of_the_catalog_that_may_be_incomplete_has_no_age"),
    ),
    mutation(
        "S2.5-clipping",
        "What was cut is reported durable when its write completes.",
        Edit(
            "DurableTracker.truncated",
            "((op, Seq(min(seq, keep))) for op, seq in self.pending)",
            "self.pending",
        ),
        directed(
            TESTS + "truncated_record_is_never_reported_durable",
            why="the end of the log bounds what the core takes for durable",
        ),
    ),
    mutation(
        "S4.1-hand-over",
        "A hand-over that goes on is called not applied.",
        Edit(
            "TableCommands.check_waiting",
            "OperationInDoubtError",
            "UnavailableError",
        ),
        directed(
            TESTS + "hand_over_that_is_not_seen_to_end_in_time_is_in_doubt",
            TESTS + "table_without_all_leaders_in_time_is_in_doubt",
        ),
    ),
    mutation(
        "S7.4-deposed",
        "Routing follows the last node that reported that it leads, deposed or not.",
        Edit(
            "LagReports._hint",
            "hint is None or term >= hint.term",
            "True",
        ),
        directed(REPORTS + "leader_that_was_deposed_and_does_not_know_it_is_no_hint"),
    ),
    mutation(
        "S13-serving",
        "A replica whose history differs answers reads.",
        Edit(
            "serving_refusal",
            "runner.stopped_reason is not None",
            "False",
        ),
        directed(SERVING + "replica_that_stopped_serving_answers_nothing"),
    ),
    mutation(
        "S13.1-once",
        "A hash that came too early is never compared.",
        Edit(
            "ChannelRunner.on_peer_hash",
            "self.core.commit_seq",
            "0",
        ),
        directed(TESTS + "engine_compares_a_reported_hash_when_its_own_commit_reaches_it"),
    ),
    mutation(
        "preferred-opening",
        "The first node that learns of a new table leads its channels.",
        Edit(
            "PeerWatch.channel_opened",
            "runner.core.last_seq",
            "step_ms",
        ),
        directed(MANY + "new_table_is_led_by_its_preferred_replicas"),
    ),
    mutation(
        "preferred-down",
        "A preferred replica that is down is waited for.",
        Edit(
            "PeerWatch.candidacy_delay_ms",
            "node in (self._me, runner.elector.leader) or not self.is_up(node)",
            "node in (self._me, runner.elector.leader)",
        ),
        directed(MANY + "new_table_is_led_soon_where_its_preferred_replica_is_down"),
    ),
    mutation(
        "election-repeats",
        "Voters that answer late are asked as often as ever.",
        Edit(
            "VotingElector._repeat_requests",
            "self._resend_pause_ms = min(2 * self._resend_pause_ms, longest_ms)",
            "assert longest_ms",
        ),
        directed(
            "tests/unit/election/test_candidacy.py::test_lost_requests_are_repeated_until_answered"
        ),
    ),
    mutation(
        "S4.2-applied-beyond-the-commit",
        "The engine hands one batch to the tables that reaches beyond the commit seq.",
        Edit(
            "ChannelRunner.execute",
            "self.feed.advance(apply_to)",
            'self.feed.advance(apply_to if self.name[0] == "_" else self.core.durable_seq)',
        ),
        Edit(
            "Sequencer._acknowledge",
            'assert written.last_seq <= state.commit_seq, f"OK for seq {written.last_seq}, '
            'committed are {state.commit_seq} (S4.4)"',
            "",
        ),
        Edit(
            "Sequencer._acknowledge",
            'assert is_decided, f"OK for seq {written.last_seq} before it is decided (S10)"',
            "",
        ),
        Edit(
            "ChannelState.apply_outcomes",
            "assert applied_seq <= self.commit_seq or applied_seq <= self.applied_seq, "
            'f"seq {applied_seq} is applied, committed are {self.commit_seq}"',
            "",
        ),
        chaos("scan_snapshot", "kill-leader", "isolate-leader"),
    ),
)
