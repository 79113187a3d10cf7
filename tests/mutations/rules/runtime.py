"""Mutations of the runtime: birth (S0.7), the end of a process (S0.4), impossible settings."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

FOREIGNERS = "tests/unit/node/test_foreign_cluster.py::test_"
ENDS = "tests/unit/node/test_node.py::test_"
BIRTHS = "tests/unit/node/test_birth.py::test_"
CHECKS = "tests/unit/node/test_settings.py::test_"
STALLS = "tests/unit/node/test_watchdog.py::test_"
FOUNDINGS = "tests/unit/node/test_founding.py::test_"
READERS = "tests/unit/node/test_line_stream.py::test_"
CLUSTERS = "tests/unit/local_cluster/test_directories.py::test_"

RUNTIME_RULES: tuple[Mutation, ...] = (
    mutation(
        "local-directory",
        "A second local cluster begins in the directory of one that runs.",
        Edit("LocalCluster._claim", "fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)", ""),
        directed(CLUSTERS + "second_cluster_in_a_directory_is_refused_while_the_first_runs"),
    ),
    mutation(
        "S0.4-uncaught",
        "A node goes on after an exception that nobody caught.",
        Edit(
            "NodeProcess._on_loop_exception",
            "self._panic(f\"{context.get('message')}: {error!r}\")",
            "",
        ),
        directed(ENDS + "exception_that_nobody_caught_ends_the_node"),
    ),
    mutation(
        "S0.4-uncaught-file",
        "An error of a file passes for one of a socket.",
        Edit(
            "NodeProcess._on_loop_exception",
            'isinstance(error, OSError) and ("transport" in context or "socket" in context)',
            "isinstance(error, OSError)",
        ),
        directed(ENDS + "exception_that_nobody_caught_ends_the_node"),
    ),
    mutation(
        "S0.4-store",
        "A node goes on after an error of its store.",
        Edit(
            "NodeProcess._on_storage_error",
            "self._panic(str(error))",
            "del error",
        ),
        directed(ENDS + "error_of_the_store_ends_the_node"),
    ),
    mutation(
        "S0.4-last-flush",
        "A store whose last flush failed is called clean.",
        Edit(
            "NodeProcess._close",
            "self._panic(str(error))",
            "del error",
        ),
        directed(ENDS + "stop_whose_last_flush_fails_ends_without_a_clean_close"),
    ),
    mutation(
        "S0.4-note-hangs",
        "The end waits for a note on a disk that hangs.",
        Edit(
            "_noted",
            "NOTE_S,",
            "",
        ),
        directed(ENDS + "panic_whose_note_hangs_ends_the_node_all_the_same"),
    ),
    mutation(
        "S0.4-hang-limit",
        "A node whose disk hangs runs on for ever.",
        Edit(
            "Watchdog._why_end",
            "stall is not None and stall.for_ms >= limit_ms",
            "False",
        ),
        directed(STALLS + "operation_that_hangs_is_told_then_ends_the_node_with_its_cause"),
    ),
    mutation(
        "S0.4-hang-told",
        "A node whose disk hangs keeps its leaderships.",
        Edit(
            "Watchdog.stall",
            "found is not None and found.for_ms >= patience_ms",
            "False",
        ),
        directed(STALLS + "operation_that_hangs_is_told_then_ends_the_node_with_its_cause"),
    ),
    mutation(
        "S0.4-hang-stopped-process",
        "A process that was stopped takes that for a disk that hangs.",
        Edit(
            "Watchdog._run",
            "min(round((now - before) * 1000), 2 * TICK_MS)",
            "round((now - before) * 1000)",
        ),
        directed(STALLS + "time_in_which_the_process_was_stopped_is_no_stall"),
    ),
    mutation(
        "S0.4-hang-loop",
        "A main loop that hangs in the store is never ended.",
        Edit(
            "Watchdog._why_end",
            "place is not None",
            "False",
        ),
        directed(STALLS + "main_loop_that_hangs_in_the_store_ends_the_node"),
    ),
    mutation(
        "S0.4-hang-stop",
        "A node that was asked to stop waits for its disk for ever.",
        Edit(
            "Watchdog._why_end",
            "stopping_ms is not None and settings.stall_stop_ms < limit_ms",
            "False",
        ),
        directed(STALLS + "node_that_stops_waits_for_its_disk_for_less_time"),
    ),
    mutation(
        "S0.4-hang-stop-whole",
        "A node that was asked to stop never ends.",
        Edit(
            "Watchdog._why_end",
            "stopping_ms is not None and now_ms - stopping_ms >= STOP_MS_MAX",
            "False",
        ),
        directed(STALLS + "stop_as_a_whole_is_bounded"),
    ),
    mutation(
        "S0.4-hang-order",
        "A node ends before it gives its leaderships away.",
        Edit(
            "_check_stalls",
            "storage.stall_limit_ms <= patience_ms",
            "False",
        ),
        directed(CHECKS + "contradicting_settings_are_refused"),
    ),
    mutation(
        "S0.7-proposer",
        "Every founder proposes a cluster of its own.",
        Edit(
            "Birth.is_proposer",
            "bool(names) and node_name(self.store.node) == min(names)",
            "bool(names)",
        ),
        directed(BIRTHS + "only_the_lowest_name_speaks_first"),
    ),
    mutation(
        "S0.7-once",
        "A founder agrees to a second cluster.",
        Edit(
            "Birth._on_proposal",
            "accepted and (accepted, self.store.members) != (cluster_id, members)",
            "False",
        ),
        directed(BIRTHS + "second_proposal_is_refused_and_named"),
    ),
    mutation(
        "S0.7-all",
        "A cluster is born before all its founders agreed.",
        Edit(
            "Birth._complete_if_all_accepted",
            "all(node in self._accepted for node in others)",
            "True",
        ),
        directed(BIRTHS + "nobody_is_born_before_all_have_accepted"),
    ),
    mutation(
        "S0.7-known",
        "A cluster is proposed without the founders that did not answer.",
        Edit(
            "Birth.propose_if_ready",
            "if len(known) < len(infos):\n    return",
            "",
        ),
        directed(
            BIRTHS + "only_the_lowest_name_speaks_first",
            BIRTHS + "cluster_is_born_when_messages_flow",
        ),
    ),
    mutation(
        "S0.7-foreign",
        "A node of another cluster becomes a founder.",
        Edit(
            "Birth._on_info",
            "foreign and foreign != self.store.accepted_proposal",
            "False",
        ),
        directed(BIRTHS + "founder_of_another_cluster_is_refused_and_named"),
    ),
    mutation(
        "S0.7-named",
        "A node that nobody named becomes a founder.",
        Edit(
            "Birth._on_info",
            "name not in dict(self.founders)",
            "False",
        ),
        directed(BIRTHS + "node_that_nobody_named_is_refused"),
    ),
    mutation(
        "S0.7-members",
        "Founders agree to different lists of members.",
        Edit(
            "Birth._on_proposal",
            "named != sorted(name for name, _ in self.founders)",
            "False",
        ),
        directed(BIRTHS + "proposal_with_other_names_is_refused"),
    ),
    mutation(
        "S0.7-store",
        "A founder agrees for a store that it lost.",
        Edit(
            "Birth._on_proposal",
            "self.store.node not in (node for node, _ in members)",
            "False",
        ),
        directed(BIRTHS + "proposal_for_another_store_is_refused"),
    ),
    mutation(
        "S0.7-acceptance",
        "Agreement to another proposal counts.",
        Edit(
            "Birth.on_message",
            "if cluster_id == self.store.accepted_proposal: ...",
            "if True: ...",
        ),
        directed(BIRTHS + "words_about_another_proposal_change_nothing"),
    ),
    mutation(
        "S0.7-completion",
        "The birth of another cluster is taken for one's own.",
        Edit(
            "Birth.on_message",
            "cluster_id == self.store.accepted_proposal and not self.is_born",
            "not self.is_born",
        ),
        directed(BIRTHS + "words_about_another_proposal_change_nothing"),
    ),
    mutation(
        "S0.7-asking",
        "A founder that missed the birth waits without end.",
        Edit(
            "Birth.next_messages",
            "[] if self.is_born else [(name, BirthQuery(me)) for name in others]",
            "[]",
        ),
        directed(BIRTHS + "member_that_missed_the_completion_learns_of_it_by_asking"),
    ),
    mutation(
        "S0.7-founders",
        "A node without a cluster and without founders waits without end.",
        Edit(
            "check_founders_are_named",
            "not settings.initial_cluster",
            "False",
        ),
        directed(FOUNDINGS + "store_without_a_cluster_needs_founders"),
    ),
    mutation(
        "S0.7-outsider",
        "A node founds a cluster that it is not part of.",
        Edit(
            "Founding._check_founders",
            "me not in names",
            "False",
        ),
        directed(FOUNDINGS + "node_that_is_no_founder_is_refused"),
    ),
    mutation(
        "S0.7-configured",
        "A store serves under the configuration of another cluster.",
        Edit(
            "check_founders_agree",
            "names and names != born",
            "False",
        ),
        directed(FOUNDINGS + "store_of_other_founders_is_refused"),
    ),
    mutation(
        "S0.7-refusal",
        "A founding that is impossible is tried without end.",
        Edit(
            "Founding._take",
            "self._refused = error",
            "pass",
        ),
        directed(FOUNDINGS + "founding_ends_when_another_founder_belongs_to_a_cluster"),
    ),
    mutation(
        "S0.7-foreign-members",
        "A node among members of another cluster is refused without end.",
        Edit(
            "ForeignCluster.verdict",
            "min(self._foreign.values())",
            "None",
        ),
        directed(FOREIGNERS + "foreign_members_end_a_node_when_they_leave_no_quorum"),
    ),
    mutation(
        "S0.7-foreign-minority",
        "A wrong address of one member ends a node that could serve.",
        Edit(
            "ForeignCluster._fatal",
            "members - members // 2",
            "1",
        ),
        directed(FOREIGNERS + "foreign_members_end_a_node_when_they_leave_no_quorum"),
    ),
    mutation(
        "S0.7-foreign-after",
        "Wrong answers end a node that its own cluster accepted.",
        Edit(
            "ForeignCluster.verdict",
            "self.has_met_own or len(self._foreign) < self._fatal",
            "len(self._foreign) < self._fatal",
        ),
        directed(FOREIGNERS + "foreign_members_end_no_node_that_met_its_own_cluster"),
    ),
    mutation(
        "S3.5-notice-setting",
        "Idle followers may be left without the commit position for long.",
        Edit(
            "SPECIAL_RANGES",
            '"replication.commit_notice_interval_ms": Range(1, 49),',
            "",
        ),
        directed(CHECKS + "impossible_value_is_refused_with_what_is_allowed"),
    ),
    mutation(
        "runtime-reset",
        "A peer that resets its connection ends the node.",
        Edit(
            "NodeProcess._on_loop_exception",
            "isinstance(error, ConnectionError)",
            "False",
        ),
        directed(ENDS + "trouble_of_a_socket_does_not_end_the_node"),
    ),
    mutation(
        "runtime-unreachable",
        "A network out of reach ends the node.",
        Edit(
            "NodeProcess._on_loop_exception",
            'isinstance(error, OSError) and ("transport" in context or "socket" in context)',
            "False",
        ),
        directed(ENDS + "trouble_of_a_socket_does_not_end_the_node"),
    ),
    mutation(
        "runtime-lines-bound",
        "Lines that nobody reads fill the memory.",
        Edit(
            "LineStream.write",
            "self._size + len(text) > WAITING_BYTES_MAX",
            "False",
        ),
        directed(READERS + "full_pipe_delays_nobody_and_its_lost_lines_are_told"),
    ),
    mutation(
        "runtime-lines-told",
        "Lost lines are not reported.",
        Edit(
            "LineStream._take",
            "self.dropped > self._reported",
            "False",
        ),
        directed(READERS + "full_pipe_delays_nobody_and_its_lost_lines_are_told"),
    ),
    mutation(
        "runtime-loopback",
        "A node listens beyond this machine unasked.",
        Edit(
            "_check_addresses",
            "not settings.insecure and not is_loopback(host)",
            "False",
        ),
        directed(CHECKS + "contradicting_settings_are_refused"),
    ),
    mutation(
        "runtime-unknown-key",
        "A misspelt setting is ignored.",
        Edit(
            "_read_file",
            'raise _unknown_key(key, known=known, where=f"file {file}")',
            "continue",
        ),
        directed(CHECKS + "unknown_key_in_the_file_is_refused_with_a_suggestion"),
    ),
    mutation(
        "runtime-unknown-variable",
        "A misspelt variable is ignored.",
        Edit(
            "_read_environment",
            "close or variable.startswith(sections)",
            "False",
        ),
        directed(CHECKS + "unknown_variable_that_reads_like_a_setting_is_refused"),
    ),
    mutation(
        "runtime-range",
        "A setting may have any value.",
        Edit(
            "check_number",
            "not allowed.low <= value <= allowed.high",
            "False",
        ),
        directed(CHECKS + "impossible_value_is_refused_with_what_is_allowed"),
    ),
    mutation(
        "runtime-founder",
        "A node is given a list of founders without itself.",
        Edit(
            "_check_initial_cluster",
            "settings.name not in dict(members)",
            "False",
        ),
        directed(CHECKS + "contradicting_settings_are_refused"),
    ),
    mutation(
        "runtime-twice",
        "Two founders share a name or an address.",
        Edit(
            "_check_initial_cluster",
            "label in seen",
            "False",
        ),
        directed(CHECKS + "contradicting_settings_are_refused"),
    ),
    mutation(
        "runtime-wildcard",
        "A node gives others an address that nobody can connect to.",
        Edit(
            "_check_addresses",
            "_is_wildcard(host)",
            "False",
        ),
        directed(CHECKS + "contradicting_settings_are_refused"),
    ),
    mutation(
        "runtime-window",
        "Heartbeats are forgotten before enough of them can be missed.",
        Edit(
            "_check_heartbeat",
            "heartbeat.window_ms < needed",
            "False",
        ),
        directed(CHECKS + "contradicting_settings_are_refused"),
    ),
    mutation(
        "runtime-contact",
        "A leader gives up while its followers still stick to it.",
        Edit(
            "_check_election",
            "election.quorum_contact_ms < election.sticky_ms",
            "False",
        ),
        directed(CHECKS + "contradicting_settings_are_refused"),
    ),
    mutation(
        "runtime-live-queue",
        "What arrives during a catch-up does not fit its queue.",
        Edit(
            "_check_replication",
            "replication.live_queue_bytes_max < needed",
            "False",
        ),
        directed(CHECKS + "contradicting_settings_are_refused"),
    ),
    mutation(
        "node-last-words",
        "A refused node waits until its reason is read.",
        Edit(
            "run_guarded",
            'say_in_time if arguments[:1] == ["node"] else _say',
            "_say",
        ),
        directed(
            "tests/cli/test_blocked_errors.py::"
            "test_refused_node_ends_with_its_code_although_nobody_reads_why"
        ),
    ),
    mutation(
        "S7.3-turn-position",
        "A report in the middle of a turn states positions of before the turn.",
        Edit(
            "NodeRunner._after",
            "self._positions_moved(*touched)",
            "pass",
        ),
        directed(
            "tests/unit/engine/test_turns.py::"
            "test_report_within_a_turn_tells_what_the_turn_has_done_before",
        ),
    ),
    mutation(
        "S7.3-noted",
        "A channel does not say that something happened to it.",
        Edit(
            "ChannelRunner._step",
            "self.parts.active.touched[self.channel] = None",
            "",
        ),
        directed(
            "tests/unit/engine/channel/test_runner.py::"
            "test_every_input_notes_the_channel_before_the_core_moves",
        ),
    ),
    mutation(
        "S7.3-turn-stop",
        "A stop of the process within a turn is not noticed.",
        Edit(
            "NodeRunner.end_turn",
            "self._begin(now_ms)",
            "self.now_ms = now_ms",
        ),
        directed(
            "tests/unit/engine/test_turns.py::test_stop_of_the_process_within_a_turn_is_noticed",
        ),
    ),
    mutation(
        "turn-order",
        "The log thread is woken before the messages of the turn leave.",
        Edit(
            "Turns.end",
            "self._runner.end_turn(now)",
            "self._runner.end_turn(now)\nself._writer.kick()",
        ),
        directed(
            "tests/unit/node/test_turns.py::"
            "test_calls_of_one_wake_up_are_one_turn_that_wakes_the_log_last",
        ),
    ),
    mutation(
        "turn-together",
        "Each socket's messages are a turn by themselves.",
        Edit(
            "Turns.begin",
            "self._loop.call_soon(self._run_end)",
            "self._run_end()",
        ),
        directed(
            "tests/unit/node/test_turns.py::"
            "test_calls_of_one_wake_up_are_one_turn_that_wakes_the_log_last",
        ),
    ),
    mutation(
        "turn-deadlines",
        "Every call of a turn arms the timers of the channels.",
        Edit(
            "NodeRunner._after",
            "if not self._is_in_turn:\n    self._settle()",
            "self._settle()",
        ),
        directed(
            "tests/unit/engine/test_turns.py::"
            "test_deadlines_of_a_turn_are_asked_for_once_at_its_end",
        ),
    ),
    mutation(
        "S0.4-turn-halt",
        "A node that halted sends what the turn still held.",
        Edit(
            "NodeRunner.end_turn",
            "self.outbox.mail.drop()",
            "pass",
        ),
        directed(
            "tests/unit/engine/test_turns.py::"
            "test_messages_of_a_turn_leave_at_its_end_unless_the_node_halted",
        ),
    ),
    mutation(
        "S2.4-turn-records",
        "Records are put into one StoreRequest although the term before them is another.",
        Edit(
            "_together",
            "first.base_seq == last.last_seq + 1 and message.prev_term == last.term",
            "first.base_seq == last.last_seq + 1",
        ),
        directed(
            "tests/unit/engine/channel/test_peer_mail.py::"
            "test_store_requests_that_do_not_follow_each_other_stay_apart",
        ),
    ),
    mutation(
        "S3.4-turn-acks",
        "Of two acks of a turn the later one is sent, not the one that says more.",
        Edit(
            "_together",
            "return message if message.match_seq >= before.match_seq else before",
            "return message",
        ),
        directed(
            "tests/unit/engine/channel/test_peer_mail.py::test_newest_ack_of_a_channel_and_term_is_left",
        ),
    ),
    mutation(
        "S1.4-turn-terms",
        "An ack of one term replaces that of another.",
        Edit(
            "merged",
            "key = (kind, message.channel, message.term)",
            "key = (kind, message.channel, 0)",
        ),
        directed(
            "tests/unit/engine/channel/test_peer_mail.py::test_newest_ack_of_a_channel_and_term_is_left",
        ),
    ),
    mutation(
        "levels-bundles",
        "A node of an older version is sent the messages of many channels in one.",
        Edit(
            "PeerMail._send_all",
            "if len(messages) > 1 and self._takes_bundles(to):\n    messages = bundled(messages)",
            "messages = bundled(messages)",
        ),
        directed(
            "tests/unit/engine/channel/test_peer_mail.py::test_peer_of_an_older_version_gets_no_bundle",
        ),
    ),
)
