"""Mutations of the engine: S0.3, S0.5, S0.6, S0.8, S1.4, S1.8, S1.9, S2.5, S7.3 and S13."""

from __future__ import annotations

from tests.mutations.guard import chaos, directed, worlds
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

KEPT = "tests/unit/engine/reports/test_kept_channels.py::test_kept_view_"
MANY = "tests/unit/engine/test_many_channels.py::test_"
LATE = "tests/unit/engine/peers/test_replica_lag.py::test_"
SERVING = "tests/unit/engine/reads/test_rules_serving.py::test_"
STALLS = "tests/unit/engine/test_storage_stalls.py::test_"
REPORTS = "tests/unit/engine/peers/test_lag_reports.py::test_"
TESTS = "tests/unit/engine/channel/test_rules_engine.py::test_"
HOLE_REPAIRS = "tests/unit/engine/channel/test_hole_repairs.py::test_"

ENGINE_RULES: tuple[Mutation, ...] = (
    mutation(
        "S0.3-deaf",
        "A replica whose log lacks a record in the middle hears leaders and candidates.",
        Edit(
            "ChannelRunner.on_replication",
            "self.is_deaf",
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
        "S0.4-hang-hand-over",
        "A leader whose disk hangs does not give its leadership away.",
        Edit(
            "Leader.on_storage_stalled",
            "self.hand_over.leave(reason, down)",
            "",
        ),
        directed(STALLS + "leadership_moves_although_network_and_heartbeats_are_well"),
    ),
    mutation(
        "S0.4-hang-step-down",
        "A leader whose disk hangs stays if nobody takes over at once.",
        Edit(
            "HandOver.on_timer",
            "self._state.emit(StepDown(stalled))",
            "self._begin_try()",
        ),
        directed(STALLS + "leader_that_hangs_refuses_writes_and_linearizable_reads_with_the_cause"),
    ),
    mutation(
        "S0.4-hang-reads",
        "A leader whose disk hangs confirms reads that it cannot answer.",
        Edit(
            "Replica._on_read",
            "state.storage_stalled is not None",
            "False",
        ),
        directed(STALLS + "leader_that_hangs_refuses_writes_and_linearizable_reads_with_the_cause"),
    ),
    mutation(
        "S0.4-hang-writes",
        "A leader whose disk hangs takes more writes.",
        Edit(
            "HandOver.leave",
            "self._sequencer.refusal = reason",
            "",
        ),
        directed(STALLS + "leader_that_hangs_refuses_writes_and_linearizable_reads_with_the_cause"),
    ),
    mutation(
        "S0.4-hang-votes",
        "A voter whose disk hangs goes on voting and standing.",
        Edit(
            "Replica.may_vote",
            "if self._state.storage_stalled is not None:\n    return False",
            "",
        ),
        directed(STALLS + "follower_that_hangs_neither_votes_nor_stands"),
    ),
    mutation(
        "S0.4-hang-barrier",
        "A hand-over waits for the disk that hangs.",
        Edit(
            "ChannelRunner.send_election",
            "isinstance(message, TermOnly)",
            "False",
        ),
        directed(
            STALLS + "step_down_that_an_operator_asks_for_does_not_wait_for_the_disk",
            STALLS + "drain_does_not_wait_for_the_disk",
        ),
    ),
    mutation(
        "S0.4-unsynced-leader",
        "What others commit fills the memory of a leader whose disk hangs.",
        Edit(
            "ChannelRunner.on_publish",
            "refusal = refusal or self.parts.guard.refusal(len(message.payload))",
            "",
        ),
        directed(STALLS + "what_is_not_on_the_disk_is_bounded_though_others_commit_it"),
    ),
    mutation(
        "S0.4-unsynced-follower",
        "What leaders send fills the memory of a follower whose disk hangs.",
        Edit(
            "ChannelRunner.on_replication",
            "type(message) in WITH_RECORDS and self.parts.guard.refusal(0) is not None",
            "False",
        ),
        directed(STALLS + "follower_drops_what_its_disk_does_not_take_and_catches_up"),
    ),
    mutation(
        "S0.4-hang-outbox",
        "Messages that wait for a disk that hangs fill the memory.",
        Edit(
            "Outbox._enqueue",
            "self.dropped += 1\nreturn",
            "self.dropped += 1",
        ),
        directed(STALLS + "messages_that_would_wait_are_dropped_and_counted"),
    ),
    mutation(
        "S0.5-hang-term",
        "A hand-over speaks of a term that is not durable.",
        Edit(
            "Outbox.send_term",
            "self._log.durable_operation() >= term_operation",
            "True",
        ),
        directed(STALLS + "term_that_is_not_durable_keeps_even_a_hand_over_back"),
    ),
    mutation(
        "S0.5-hang-only",
        "Every election message passes a disk that hangs.",
        Edit(
            "ChannelRunner.send_election",
            "isinstance(message, TermOnly)",
            "True",
        ),
        directed(STALLS + "only_what_says_a_durable_term_and_nothing_else_leaves_past_the_disk"),
    ),
    mutation(
        "S0.5-filled",
        "A replica takes part again before what was filled is durable.",
        Edit(
            "HoleRepairs.on_durable",
            "repair.is_done and repair.last_operation <= operation",
            "repair.is_done",
        ),
        directed(HOLE_REPAIRS + "replica_stays_deaf_until_what_was_filled_is_durable"),
    ),
    mutation(
        "S0.5-outbox",
        "Messages leave before what they reveal is durable.",
        Edit(
            "Outbox._enqueue",
            "is_free and operation <= self._log.durable_operation()",
            "is_free",
        ),
        directed(TESTS + "message_waits_for_the_operation_it_reveals"),
    ),
    mutation(
        "S0.5-replication",
        "Replication messages do not wait for their term.",
        Edit(
            "ChannelRunner.execute",
            "parts.outbox.send(to, message, after_operation=self.term_operation)",
            "parts.outbox.send(to, message, after_operation=0)",
        ),
        directed(TESTS + "replication_message_waits_for_its_term"),
    ),
    mutation(
        "S0.6-level",
        "A table is created whose durability nobody keeps.",
        Edit(
            "definition_problem",
            'request.durability != "fsync"',
            "False",
        ),
        directed(SERVING + "durability_that_is_not_kept_is_not_promised"),
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
        "S0.8-kept",
        "A view tells of channels that were dropped.",
        Edit(
            "ViewReport._build",
            "self._catalog is not controller.catalog",
            "self._catalog is None",
        ),
        directed(KEPT + "is_of_the_tables_that_exist"),
    ),
    mutation(
        "S0.8-reported",
        "A report of a dropped table's channel is kept for ever.",
        Edit(
            "LagReports.on_report",
            "self._parts.exists(channel)",
            "True",
        ),
        directed(REPORTS + "positions_of_dropped_tables_are_forgotten"),
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
            "PeerWatch._check_contact",
            'runner.step_down("no contact to a quorum", now_ms)',
            "pass",
        ),
        directed(TESTS + "leader_without_contact_to_a_quorum_gives_up_its_role"),
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
        "S7.3-age",
        "A position of the leader that is long past counts as its present one.",
        Edit(
            "known_lag",
            "age_ms is None or age_ms > age_max_ms",
            "age_ms is None",
        ),
        directed(
            TESTS + "old_position_of_the_leader_is_infinite_lag",
            "tests/unit/policy/test_lag.py::test_lag_is_unknown_when_word_of_the_leader_is_too_old",
            why="drawn faults end before ten seconds, but for rare long ones",
        ),
    ),
    mutation(
        "S7.3-unknown",
        "Unknown lag counts as none.",
        Edit(
            "Reader.lag",
            "None if heard is None else max(0, now_ms - heard)",
            "0 if heard is None else max(0, now_ms - heard)",
        ),
        directed(TESTS + "replica_that_never_heard_a_leader_knows_no_lag"),
    ),
    mutation(
        "S7.3-silent-message",
        "A leader that tells no position is taken for fresh.",
        Edit(
            "ChannelRunner.on_replication",
            "isinstance(message, (StoreRequest, CommitNotice, MsgSync)) and message.commit_seq",
            "isinstance(message, (StoreRequest, CommitNotice, MsgSync))",
        ),
        directed(TESTS + "leader_that_tells_no_position_makes_nobody_fresh"),
    ),
    mutation(
        "S7.3-silent-report",
        "A leader that reports no position is taken for fresh.",
        Edit(
            "LagReports.on_report",
            "position.is_leader and position.commit_seq",
            "position.is_leader",
        ),
        directed(TESTS + "leader_that_tells_no_position_makes_nobody_fresh"),
    ),
    mutation(
        "S7.3-waited",
        "A report that waited for the main loop tells a position of now.",
        Edit(
            "ChannelRunner.on_leader_position",
            "arrived_ms,",
            "now_ms,",
        ),
        directed(TESTS + "report_that_waited_for_the_main_loop_is_as_old_as_its_arrival"),
    ),
    mutation(
        "S7.3-reported",
        "A leader reports old positions before it committed in its term.",
        Edit(
            "_position",
            'commit_seq, commit_hash = Seq(0), b""',
            "pass",
        ),
        directed(TESTS + "leader_reports_no_position_before_it_committed_in_its_term"),
    ),
    mutation(
        "S7.3-committed",
        "A report that comes late takes back what is known to be committed.",
        Edit(
            "LagReports.keep",
            "told > self.committed(channel)",
            "True",
        ),
        directed(REPORTS + "report_that_comes_late_or_twice_takes_nothing_back"),
    ),
    mutation(
        "S7.3-teller",
        "A leader that tells no position any more is believed as one that does.",
        Edit(
            "LagReports.teller",
            "node if position.commit_seq else None",
            "node",
        ),
        directed(KEPT + "of_a_leader_that_tells_no_position_knows_no_lag"),
    ),
    mutation(
        "S7.3-posted",
        "Reports posted by anybody about a replica count for the end of the channel.",
        Edit(
            "RequestHandler._seen_lags",
            "self._answers.answer(client, Done(message.request_id))",
            "for channel, _, end in said:\n"
            "    told = self._watch.positions[channel][node]\n"
            '    told = __import__("msgspec").structs.replace(told, commit_seq=end)\n'
            "    self._watch.reports.keep(node, told)\n"
            "self._answers.answer(client, Done(message.request_id))",
        ),
        directed(REPORTS + "klip_35_forged_report_moves_no_bound_and_no_election"),
    ),
    mutation(
        "S7.3-view",
        "A view calls lags known however old the word of the leader is.",
        Edit(
            "CachedChannelView.view",
            "age_ms if age_ms is not None and age_ms <= self._age_max_ms else None",
            "age_ms",
        ),
        directed(KEPT + "forgets_what_is_known_when_the_leaders_word_is_too_old"),
    ),
    mutation(
        "S7.3-view-unheard",
        "A view calls lags known although no leader reported the end of the channel.",
        Edit(
            "CachedChannelView.view",
            "age_ms if age_ms is not None and age_ms <= self._age_max_ms else None",
            "(age_ms or 0) if age_ms is None or age_ms <= self._age_max_ms else None",
        ),
        directed(
            "tests/unit/engine/reports/test_views.py::"
            "test_klip_45_lags_of_a_channel_without_word_of_its_leader_are_unknown"
        ),
    ),
    mutation(
        "S7.3-kept-moved",
        "A view tells of a channel what it found before something happened to it.",
        Edit(
            "NodeRunner._after",
            "self._views_moved(*touched)",
            "",
        ),
        directed(KEPT + "follows_every_step_of_a_write"),
    ),
    mutation(
        "S7.3-kept-reported",
        "A view tells what was reported before.",
        Edit(
            "LagReports._take",
            "self._parts.moved(position.channel)",
            "pass",
        ),
        directed(KEPT + "follows_reports_of_what_is_hosted_elsewhere"),
    ),
    mutation(
        "S7.3-kept-said",
        "A view does not look again at what somebody posted.",
        Edit(
            "ChannelViewCache.views",
            "self.moved(channel)",
            "pass",
        ),
        directed(KEPT + "tells_the_newer_of_what_is_said_and_what_is_reported"),
    ),
    mutation(
        "S7.3-kept-stop",
        "The first view after a stop tells what was believed before it.",
        Edit(
            "NodeRunner._stalled",
            "self.views.all_moved()",
            "pass",
        ),
        directed(
            "tests/unit/engine/reports/test_kept_channels.py::"
            "test_first_view_after_a_stop_knows_no_position"
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
        "S10-kept-applied",
        "A view tells an applied seq that readers have left behind.",
        Edit(
            "CachedChannelView.view",
            "runner is not None and self._node.tables.applied_seq(self.channel) != "
            "self._applied_seq",
            "False",
        ),
        directed(KEPT + "tells_what_is_applied_before_the_engine_hears_of_it"),
    ),
    mutation(
        "S12-posted",
        "A heartbeat that anybody posts counts as contact with the peer.",
        Edit(
            "RequestHandler._seen_heartbeat",
            "self._watch.http_reports.on_heartbeat(node, now_ms)",
            "self._watch.http_reports.on_heartbeat(node, now_ms)\n"
            "self._watch.on_connected(node, now_ms)",
        ),
        directed(
            REPORTS + "klip_19_heartbeat_over_http_routes_again_and_connects_nobody",
            REPORTS + "beats_said_over_http_do_not_keep_a_dead_leader_in_office",
        ),
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
        "The first node that hears of a new table leads its channels.",
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
        "BLOG-31-bound",
        "Writes go on however far a live replica is behind.",
        Edit(
            "ReplicaLagGuard._behind",
            "None if late.is_left else behind",
            "None",
        ),
        directed(LATE + "blog_31_writes_wait_for_a_live_replica_that_is_further_behind"),
    ),
    mutation(
        "BLOG-31-patience",
        "A replica that never catches up stops its table.",
        Edit(
            "ReplicaLagGuard._behind",
            "late.is_left = True",
            "late.is_left = False",
        ),
        directed(LATE + "replica_that_stays_behind_is_left_until_it_has_caught_up"),
    ),
    mutation(
        "BLOG-31-again",
        "A replica that was left behind once is never waited for again.",
        Edit(
            "ReplicaLagGuard._behind",
            "watched.late.pop(node, None)",
            "watched.late.get(node)",
        ),
        directed(LATE + "replica_that_stays_behind_is_left_until_it_has_caught_up"),
    ),
    mutation(
        "BLOG-31-dead",
        "Writes wait for the dead.",
        Edit(
            "ReplicaLagGuard._behind",
            "progress.heard_ms is None or behind <= bound or not self._watch.is_up(node)",
            "progress.heard_ms is None or behind <= bound",
        ),
        directed(LATE + "dead_replica_is_not_waited_for"),
    ),
    mutation(
        "BLOG-31-new-term",
        "A new leader takes silence for lag.",
        Edit(
            "ReplicaLagGuard._behind",
            "progress.heard_ms is None or behind <= bound or not self._watch.is_up(node)",
            "behind <= bound or not self._watch.is_up(node)",
        ),
        directed(LATE + "new_leader_waits_for_nobody_of_whom_it_has_heard_nothing"),
    ),
    mutation(
        "S0.5-world",
        "Votes and terms leave the node before they are durable.",
        Edit(
            "Outbox._enqueue",
            "operation <= self._log.durable_operation()",
            "operation >= 0",
        ),
        worlds(
            seeds=range(1, 17),
            slow_disk="1",
            sync_min_ms="20",
            sync_max_ms="150",
            fault_interval_ms="150",
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
            "assert written.outcome_known, "
            'f"OK for seq {written.last_seq} before it is decided (S10)"',
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
    mutation(
        "S7.3-max-lag-ignored",
        "A bounded read is served however far the replica is behind.",
        Edit(
            "_beyond_rows",
            "lag > bound",
            "lag < 0",
        ),
        chaos("bounded_reads", "isolate-follower", "pause-follower", "slow-disk"),
    ),
    mutation(
        "S7.3-max-staleness-ignored",
        "A read bounded in time is served however old the state may be.",
        Edit(
            "_beyond_time",
            "age > bound",
            "age < 0",
        ),
        chaos("bounded_time", "isolate-follower", "pause-follower", "slow-disk"),
    ),
    mutation(
        "S7.3-batch-bound-ignored",
        "A read bounded in micro-batches is served however many the replica is behind.",
        Edit(
            "_beyond_batches",
            "most <= bound",
            "most >= 0",
        ),
        chaos("bounded_batches", "isolate-follower", "pause-follower", "slow-disk"),
    ),
    mutation(
        "S10-batch-mark-ignored",
        "After a crash in the middle of a batch the channel serves what is there of it.",
        Edit(
            "ChannelRunner.__init__",
            "parts.tables.unserved_until(channel)",
            "Seq(0)",
        ),
        directed(
            "tests/jepsen/test_batch_failpoints.py::"
            "test_channel_that_a_crash_left_in_pieces_serves_nothing_until_it_is_whole",
            why="a node that has just started hears of the commit before anybody asks it",
        ),
    ),
)
