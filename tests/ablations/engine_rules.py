"""Ablations of the engine: S0.3, S0.5, S0.6, S0.8, S1.4, S1.8, S1.9, S2.5, S7.3 and S13."""

from __future__ import annotations

from tests.ablations.ablation import ENGINE, Ablation, directed

RUNNER = ENGINE + "channel_runner.py"
WATCH = ENGINE + "peer_watch.py"
TESTS = "tests/unit/engine/test_rules_engine.py::test_"
REPORTS = "tests/unit/engine/test_lag_reports.py::test_"
SERVING = "tests/unit/engine/test_rules_serving.py::test_"

ENGINE_RULES: tuple[Ablation, ...] = (
    directed(
        "S0.3-serving",
        "a recovering replica answers reads",
        ENGINE + "reads.py",
        "if runner.core.is_recovering:  # S0.3",
        "if False:",
        SERVING + "recovering_replica_serves_nothing",
    ),
    directed(
        "S0.6-level",
        "a table is created whose durability nobody keeps",
        ENGINE + "table_definition.py",
        '    if request.durability != "fsync":',
        "    if False:",
        SERVING + "durability_that_is_not_kept_is_not_promised",
    ),
    directed(
        "S1.9-restart",
        "a restarted node waits for the catalog before it serves its tables",
        ENGINE + "catalog_keeper.py",
        "        node.add_channel(runner, now_ms)\n        self.on_catalog_applied(now_ms)\n",
        "        node.add_channel(runner, now_ms)\n",
        SERVING + "restarted_node_serves_its_tables_without_the_metadata_channel",
    ),
    directed(
        "S13-serving",
        "a replica whose history differs answers reads",
        ENGINE + "reads.py",
        "        if runner.stopped_reason is not None:\n            return",
        "        if False:\n            return",
        SERVING + "replica_that_stopped_serving_answers_nothing",
    ),
    directed(
        "S0.5-outbox",
        "messages leave before what they reveal is durable",
        ENGINE + "outbox.py",
        "if not lane and operation <= self._log.durable_operation():",
        "if not lane:",
        TESTS + "message_waits_for_the_operation_it_reveals",
    ),
    directed(
        "S0.5-replication",
        "replication messages do not wait for their term",
        ENGINE + "channel_effects.py",
        "host.outbox.send(to, message, after_operation=runner.term_operation)",
        "host.outbox.send(to, message, after_operation=0)",
        TESTS + "replication_message_waits_for_its_term",
    ),
    directed(
        "S0.8-unknown-channel",
        "a message for an unknown channel is looked at",
        ENGINE + "node_runner.py",
        "if runner is not None:  # S0.8: a message never creates a channel",
        "if True:",
        TESTS + "message_for_an_unknown_channel_creates_nothing",
    ),
    directed(
        "S1.4-lower",
        "messages of a past term are not refused",
        RUNNER,
        "if message.term < self.elector.term:",
        "if False:",
        TESTS + "message_of_a_past_term_is_answered_with_the_present_one",
    ),
    directed(
        "S1.4-higher",
        "a higher term is not adopted",
        RUNNER,
        "            self.elector.observe_term(message.term)\n            return False",
        "            return False",
        TESTS + "message_of_a_later_term_is_adopted",
    ),
    directed(
        "S1.8-claims",
        "a leader that claims its channel no more is believed in for ever",
        WATCH,
        "if claimed.get(runner.channel) != runner.elector.term:",
        "if False:",
        TESTS + "leader_that_restarts_unseen_is_replaced",
    ),
    directed(
        "S2.5-clipping",
        "a truncated record is reported durable",
        ENGINE + "durable_tracker.py",
        "self.pending = deque((op, Seq(min(seq, keep))) for op, seq in self.pending)",
        "self.pending = deque(self.pending)",
        TESTS + "truncated_record_is_never_reported_durable",
    ),
    directed(
        "S1.8-contact",
        "a leader without contact to a quorum leads on",
        WATCH,
        'runner.step_down("no contact to a quorum", now_ms)',
        "pass",
        TESTS + "leader_without_contact_to_a_quorum_gives_up_its_role",
    ),
    directed(
        "S7.3-age",
        "old information about the leader counts as fresh",
        "raftstore/cluster/lag.py",
        "if age_ms is None or age_ms > age_max_ms:",
        "if age_ms is None:",
        TESTS + "old_position_of_the_leader_is_infinite_lag",
    ),
    directed(
        "S7.3-unknown",
        "unknown lag counts as none",
        ENGINE + "reads.py",
        "age = None if heard is None else",
        "age = 0 if heard is None else",
        TESTS + "replica_that_never_heard_a_leader_knows_no_lag",
    ),
    directed(
        "S7.3-silent-message",
        "a leader that tells no position is taken for fresh",
        RUNNER,
        "if isinstance(message, (StoreRequest, CommitNotice, MsgSync)) and message.commit_seq:",
        "if isinstance(message, (StoreRequest, CommitNotice, MsgSync)):",
        TESTS + "leader_that_tells_no_position_makes_nobody_fresh",
    ),
    directed(
        "S7.3-silent-report",
        "a leader that reports no position is taken for fresh",
        WATCH,
        "if position.is_leader and position.commit_seq:",
        "if position.is_leader:",
        TESTS + "leader_that_tells_no_position_makes_nobody_fresh",
    ),
    directed(
        "S7.3-reported",
        "a leader reports old positions before it committed in its term",
        WATCH,
        'commit_seq, commit_hash = Seq(0), b""  # S7.3: it does not know the position of its term',
        "pass",
        TESTS + "leader_reports_no_position_before_it_committed_in_its_term",
    ),
    directed(
        "S7.3-committed",
        "a report that comes late takes back what is known to be committed",
        ENGINE + "lag_reports.py",
        "if before is not None and before.commit_seq > position.commit_seq:",
        "if False:",
        REPORTS + "report_that_comes_late_or_twice_takes_nothing_back",
    ),
    directed(
        "S7.3-hearsay",
        "what anybody posts about a replica counts for the end of the channel",
        ENGINE + "client_desk.py",
        "        host.watch.hearsay.on_positions(node, said, now_ms)\n",
        "        host.watch.hearsay.on_positions(node, said, now_ms)\n"
        "        for channel, _, end in said:\n"
        "            told = host.watch.positions[channel][node]\n"
        '            told = __import__("msgspec").structs.replace(told, commit_seq=end)\n'
        "            host.watch.reports.keep(node, told)\n",
        REPORTS + "klip_35_forged_report_moves_no_bound_and_no_election",
    ),
    directed(
        "S12-hearsay",
        "a heartbeat that anybody posts counts as contact with the peer",
        ENGINE + "client_desk.py",
        "            self._host.watch.hearsay.on_heartbeat(node, now_ms)\n",
        "            self._host.watch.hearsay.on_heartbeat(node, now_ms)\n"
        "            self._host.watch.on_connected(node, now_ms)\n",
        REPORTS + "klip_19_heartbeat_over_http_routes_again_and_connects_nobody",
        REPORTS + "beats_said_over_http_do_not_keep_a_dead_leader_in_office",
    ),
    directed(
        "S7.3-view",
        "a view calls lags known although no leader told the end of the channel",
        ENGINE + "view_report.py",
        "        lag = known_lag(self.end_seq, found, self.age_ms, age_max_ms)\n",
        "        lag = known_lag(self.end_seq, found, 0, age_max_ms)\n",
        "tests/unit/engine/test_views.py::test_klip_45_lags_of_a_channel_without_word_of_its_leader_"
        "are_unknown",
    ),
    directed(
        "S1.9-ready",
        "a node whose copy of the catalog may be incomplete calls itself ready",
        "raftstore/serving/ready.py",
        "is_complete = view.age_ms is not None",
        "is_complete = True",
        "tests/integration/serving/test_monitoring.py::test_readyz_of_a_table_that_a_complete_"
        "catalog_does_not_have_is_404",
    ),
    directed(
        "S0.8-reported",
        "a report of a dropped table's channel is kept for ever",
        WATCH,
        "if self._host.exists(position.channel):  # S0.8",
        "if True:  # S0.8",
        REPORTS + "positions_of_dropped_tables_are_forgotten",
    ),
    directed(
        "S1.9-complete",
        "a copy of the catalog that may be incomplete says that it is not",
        ENGINE + "catalog_keeper.py",
        "age_ms=age if lag == 0 else None,",
        "age_ms=age,",
        TESTS + "copy_of_the_catalog_that_may_be_incomplete_has_no_age",
    ),
    directed(
        "S4.1-hand-over",
        "a hand-over that goes on is called not applied",
        ENGINE + "table_commands.py",
        'waiting.request_id, "operation_in_doubt", text',
        'waiting.request_id, "unavailable", text',
        TESTS + "hand_over_that_is_not_seen_to_end_in_time_is_in_doubt",
        TESTS + "table_without_all_leaders_in_time_is_in_doubt",
    ),
    directed(
        "S13.1-once",
        "a hash that came too early is never compared",
        RUNNER,
        "compared = (seq, commit_hash, self.core.commit_seq)",
        "compared = (seq, commit_hash, 0)",
        TESTS + "engine_compares_a_reported_hash_when_its_own_commit_reaches_it",
    ),
)
