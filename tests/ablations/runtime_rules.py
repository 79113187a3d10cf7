"""Ablations of the runtime: birth (S0.7), the end of a process (S0.4), impossible settings."""

from __future__ import annotations

from tests.ablations.ablation import Ablation, directed

BIRTH = "raftstore/node/bootstrap/birth.py"
FOUNDING = "raftstore/node/bootstrap/founding.py"
FOREIGN = "raftstore/node/bootstrap/foreign_cluster.py"
SETTINGS = "raftstore/node/settings.py"
NODE = "raftstore/node/process.py"
LINES = "raftstore/node/line_stream.py"
WATCHDOG = "raftstore/node/watchdog.py"
ENDING = "raftstore/node/ending.py"
RULES = "raftstore/node/setting_rules.py"
TURNS = "raftstore/node/turns.py"

BIRTHS = "tests/unit/node/test_birth.py::test_"
FOREIGNERS = "tests/unit/node/test_foreign_cluster.py::test_"
FOUNDINGS = "tests/unit/node/test_founding.py::test_"
ENDS = "tests/unit/node/test_node.py::test_"
STALLS = "tests/unit/node/test_watchdog.py::test_"
READERS = "tests/unit/node/test_line_stream.py::test_"
TURN_TESTS = "tests/unit/node/test_turns.py::test_"
ENGINE_TURNS = "tests/unit/engine/test_turns.py::test_"
CHECKS = "tests/unit/node/test_settings.py::test_"

BIRTH_RULES: tuple[Ablation, ...] = (
    directed(
        "S0.7-proposer",
        "every founder proposes a cluster of its own",
        BIRTH,
        "return bool(names) and node_name(self.store.node) == min(names)",
        "return bool(names)",
        BIRTHS + "only_the_lowest_name_speaks_first",
    ),
    directed(
        "S0.7-once",
        "a founder agrees to a second cluster",
        BIRTH,
        "if accepted and (accepted, self.store.members) != (cluster_id, members):",
        "if False:",
        BIRTHS + "second_proposal_is_refused_and_named",
    ),
    directed(
        "S0.7-all",
        "a cluster is born before all its founders agreed",
        BIRTH,
        "if all(node in self._accepted for node in others):",
        "if True:",
        BIRTHS + "nobody_is_born_before_all_have_accepted",
    ),
    directed(
        "S0.7-known",
        "a cluster is proposed without the founders that did not answer",
        BIRTH,
        "        if len(known) < len(infos):\n            return\n",
        "",
        BIRTHS + "only_the_lowest_name_speaks_first",
        BIRTHS + "cluster_is_born_when_messages_flow",
    ),
    directed(
        "S0.7-foreign",
        "a node of another cluster becomes a founder",
        BIRTH,
        "if foreign and foreign != self.store.accepted_proposal:",
        "if False:",
        BIRTHS + "founder_of_another_cluster_is_refused_and_named",
    ),
    directed(
        "S0.7-named",
        "a node that nobody named becomes a founder",
        BIRTH,
        "if name not in dict(self.founders):",
        "if False:",
        BIRTHS + "node_that_nobody_named_is_refused",
    ),
    directed(
        "S0.7-members",
        "founders agree to different lists of members",
        BIRTH,
        "if named != sorted(name for name, _ in self.founders):",
        "if False:",
        BIRTHS + "proposal_with_other_names_is_refused",
    ),
    directed(
        "S0.7-store",
        "a founder agrees for a store that it lost",
        BIRTH,
        "if self.store.node not in (node for node, _ in members):",
        "if False:",
        BIRTHS + "proposal_for_another_store_is_refused",
    ),
    directed(
        "S0.7-acceptance",
        "agreement to another proposal counts",
        BIRTH,
        "                if cluster_id == self.store.accepted_proposal:\n",
        "                if True:\n",
        BIRTHS + "words_about_another_proposal_change_nothing",
    ),
    directed(
        "S0.7-completion",
        "the birth of another cluster is taken for one's own",
        BIRTH,
        "if cluster_id == self.store.accepted_proposal and not self.is_born:",
        "if not self.is_born:",
        BIRTHS + "words_about_another_proposal_change_nothing",
    ),
    directed(
        "S0.7-asking",
        "a founder that missed the birth waits without end",
        BIRTH,
        "return [] if self.is_born else [(name, BirthQuery(me)) for name in others]\n",
        "return []\n",
        BIRTHS + "member_that_missed_the_completion_learns_of_it_by_asking",
    ),
    directed(
        "S0.7-founders",
        "a node without a cluster and without founders waits without end",
        FOUNDING,
        "    if not settings.initial_cluster:",
        "    if False:",
        FOUNDINGS + "store_without_a_cluster_needs_founders",
    ),
    directed(
        "S0.7-outsider",
        "a node founds a cluster that it is not part of",
        FOUNDING,
        "        if me not in names:",
        "        if False:",
        FOUNDINGS + "node_that_is_no_founder_is_refused",
    ),
    directed(
        "S0.7-configured",
        "a store serves under the configuration of another cluster",
        FOUNDING,
        "    if names and names != born:",
        "    if False:",
        FOUNDINGS + "store_of_other_founders_is_refused",
    ),
    directed(
        "S0.7-refusal",
        "a founding that is impossible is tried without end",
        FOUNDING,
        "                self._refused = error\n",
        "                pass\n",
        FOUNDINGS + "founding_ends_when_another_founder_belongs_to_a_cluster",
    ),
    directed(
        "S0.7-foreign-members",
        "a node among members of another cluster is refused without end",
        FOREIGN,
        "        return min(self._foreign.values())\n",
        "        return None\n",
        FOREIGNERS + "foreign_members_end_a_node_when_they_leave_no_quorum",
    ),
    directed(
        "S0.7-foreign-minority",
        "a wrong address of one member ends a node that could serve",
        FOREIGN,
        "return members - members // 2",
        "return 1",
        FOREIGNERS + "foreign_members_end_a_node_when_they_leave_no_quorum",
    ),
    directed(
        "S0.7-foreign-after",
        "wrong answers end a node that its own cluster accepted",
        FOREIGN,
        "if self.has_met_own or len(self._foreign) < self._fatal:",
        "if len(self._foreign) < self._fatal:",
        FOREIGNERS + "foreign_members_end_no_node_that_met_its_own_cluster",
    ),
)

SETTING_RULES: tuple[Ablation, ...] = (
    directed(
        "runtime-loopback",
        "a node listens beyond this machine unasked",
        RULES,
        "if not settings.insecure and not is_loopback(host):",
        "if False:",
        CHECKS + "contradicting_settings_are_refused",
    ),
    directed(
        "runtime-unknown-key",
        "a misspelt setting is ignored",
        SETTINGS,
        "            if key not in known:\n"
        '                raise _unknown_key(key, known=known, where=f"file {file}")\n',
        "            if key not in known:\n                continue\n",
        CHECKS + "unknown_key_in_the_file_is_refused_with_a_suggestion",
    ),
    directed(
        "runtime-unknown-variable",
        "a misspelt variable is ignored",
        SETTINGS,
        "if close or variable.startswith(sections):",
        "if False:",
        CHECKS + "unknown_variable_that_reads_like_a_setting_is_refused",
    ),
    directed(
        "runtime-range",
        "a setting may have any value",
        RULES,
        "if not allowed.low <= value <= allowed.high:",
        "if False:",
        CHECKS + "impossible_value_is_refused_with_what_is_allowed",
    ),
    directed(
        "S3.5-notice-setting",
        "idle followers may be left without the commit position for long",
        RULES,
        '    "replication.commit_notice_interval_ms": Range(1, 49),\n',
        "",
        CHECKS + "impossible_value_is_refused_with_what_is_allowed",
    ),
    directed(
        "runtime-founder",
        "a node is given a list of founders without itself",
        RULES,
        "if settings.name not in dict(members):",
        "if False:",
        CHECKS + "contradicting_settings_are_refused",
    ),
    directed(
        "runtime-twice",
        "two founders share a name or an address",
        RULES,
        "            if label in seen:",
        "            if False:",
        CHECKS + "contradicting_settings_are_refused",
    ),
    directed(
        "runtime-wildcard",
        "a node tells others an address that nobody can connect to",
        RULES,
        "    if _is_wildcard(host):",
        "    if False:",
        CHECKS + "contradicting_settings_are_refused",
    ),
    directed(
        "runtime-window",
        "heartbeats are forgotten before enough of them can be missed",
        RULES,
        "if heartbeat.window_ms < needed:",
        "if False:",
        CHECKS + "contradicting_settings_are_refused",
    ),
    directed(
        "runtime-contact",
        "a leader gives up while its followers still stick to it",
        RULES,
        "if election.quorum_contact_ms < election.sticky_ms:",
        "if False:",
        CHECKS + "contradicting_settings_are_refused",
    ),
    directed(
        "runtime-live-queue",
        "what arrives during a catch-up does not fit its queue",
        RULES,
        "if replication.live_queue_bytes_max < needed:",
        "if False:",
        CHECKS + "contradicting_settings_are_refused",
    ),
)

END_RULES: tuple[Ablation, ...] = (
    directed(
        "S0.4-uncaught",
        "a node goes on after an exception that nobody caught",
        NODE,
        "        self._panic(f\"{context.get('message')}: {error!r}\")\n",
        "",
        ENDS + "exception_that_nobody_caught_ends_the_node",
    ),
    directed(
        "S0.4-uncaught-file",
        "an error of a file passes for one of a socket",
        NODE,
        'if isinstance(error, OSError) and ("transport" in context or "socket" in context):',
        "if isinstance(error, OSError):",
        ENDS + "exception_that_nobody_caught_ends_the_node",
    ),
    directed(
        "S0.4-store",
        "a node goes on after an error of its store",
        NODE,
        "        self._panic(str(error))\n\n    def _on_loop",
        "        del error\n\n    def _on_loop",
        ENDS + "error_of_the_store_ends_the_node",
    ),
    directed(
        "S0.4-last-flush",
        "a store whose last flush failed is called clean",
        NODE,
        "            self._panic(str(error))\n",
        "            del error\n",
        ENDS + "stop_whose_last_flush_fails_ends_without_a_clean_close",
    ),
    directed(
        "runtime-reset",
        "a peer that resets its connection ends the node",
        NODE,
        "if isinstance(error, ConnectionError):",
        "if False:",
        ENDS + "trouble_of_a_socket_does_not_end_the_node",
    ),
    directed(
        "runtime-unreachable",
        "a network out of reach ends the node",
        NODE,
        'if isinstance(error, OSError) and ("transport" in context or "socket" in context):',
        "if False:",
        ENDS + "trouble_of_a_socket_does_not_end_the_node",
    ),
)

STALL_RULES: tuple[Ablation, ...] = (
    directed(
        "S0.4-hang-limit",
        "a node whose disk hangs lives on for ever",
        WATCHDOG,
        "            if stall is not None and stall.for_ms >= limit_ms:",
        "            if False:",
        STALLS + "operation_that_hangs_is_told_then_ends_the_node_with_its_cause",
    ),
    directed(
        "S0.4-hang-told",
        "a node whose disk hangs keeps its leaderships",
        WATCHDOG,
        "            if found is not None and found.for_ms >= patience_ms:",
        "            if False:",
        STALLS + "operation_that_hangs_is_told_then_ends_the_node_with_its_cause",
    ),
    directed(
        "S0.4-hang-stopped-process",
        "a process that was stopped takes that for a disk that hangs",
        WATCHDOG,
        "            self.look(min(round((now - before) * 1000), 2 * TICK_MS))",
        "            self.look(round((now - before) * 1000))",
        STALLS + "time_in_which_the_process_was_stopped_is_no_stall",
    ),
    directed(
        "S0.4-hang-loop",
        "a main loop that hangs in the store lives on for ever",
        WATCHDOG,
        "            if place is not None:",
        "            if False:",
        STALLS + "main_loop_that_hangs_in_the_store_ends_the_node",
    ),
    directed(
        "S0.4-hang-stop",
        "a node that was told to stop waits for its disk for ever",
        WATCHDOG,
        "        if stopping_ms is not None and settings.stall_stop_ms < limit_ms:",
        "        if False:",
        STALLS + "node_that_stops_waits_for_its_disk_for_less_time",
    ),
    directed(
        "S0.4-hang-stop-whole",
        "a node that was told to stop never ends",
        WATCHDOG,
        "        if stopping_ms is not None and now_ms - stopping_ms >= STOP_MS_MAX:",
        "        if False:",
        STALLS + "stop_as_a_whole_is_bounded",
    ),
    directed(
        "S0.4-hang-order",
        "a node ends before it gives its leaderships away",
        RULES,
        "        if storage.stall_limit_ms <= patience_ms:",
        "        if False:",
        CHECKS + "contradicting_settings_are_refused",
    ),
)

LINE_RULES: tuple[Ablation, ...] = (
    directed(
        "runtime-lines-bound",
        "lines that nobody reads fill the memory",
        LINES,
        "        if self._size + len(text) > WAITING_BYTES_MAX:",
        "        if False:",
        READERS + "full_pipe_delays_nobody_and_its_lost_lines_are_told",
    ),
    directed(
        "runtime-lines-told",
        "lost lines are not told",
        LINES,
        "            if self.dropped > self._told:",
        "            if False:",
        READERS + "full_pipe_delays_nobody_and_its_lost_lines_are_told",
    ),
    directed(
        "S0.4-note-hangs",
        "the end waits for a note on a disk that hangs",
        ENDING,
        "    note.join(NOTE_S)\n",
        "    note.join()\n",
        ENDS + "panic_whose_note_hangs_ends_the_node_all_the_same",
    ),
    directed(
        "node-last-words",
        "a refused node waits for whoever reads why",
        "raftstore/cli/errors.py",
        'say_in_time if arguments[:1] == ["node"] else _say',
        "_say",
        "tests/cli/test_blocked_errors.py"
        "::test_refused_node_ends_with_its_code_although_nobody_reads_why",
    ),
)

TURN_RULES: tuple[Ablation, ...] = (
    directed(
        "turn-order",
        "the log thread is woken before the messages of the turn leave",
        TURNS,
        "        self._network.flush_frames()\n",
        "        self._writer.kick()\n        self._network.flush_frames()\n",
        TURN_TESTS + "calls_of_one_wake_up_are_one_turn_that_wakes_the_log_last",
    ),
    directed(
        "turn-together",
        "each socket's messages are a turn by themselves",
        TURNS,
        "            self._loop.call_soon(self._run_end)\n",
        "            self._run_end()\n",
        TURN_TESTS + "calls_of_one_wake_up_are_one_turn_that_wakes_the_log_last",
    ),
    directed(
        "turn-deadlines",
        "every call of a turn arms the timers of the channels",
        "raftstore/engine/node_runner.py",
        "        if not self._is_in_turn:\n            self._settle()\n",
        "        self._settle()\n",
        ENGINE_TURNS + "deadlines_of_a_turn_are_asked_for_once_at_its_end",
    ),
    directed(
        "S7.3-turn-position",
        "a report in the middle of a turn tells positions of before the turn",
        "raftstore/engine/node_runner.py",
        "                self.watch.moved(channel)\n",
        "                pass\n",
        ENGINE_TURNS + "report_within_a_turn_tells_what_the_turn_has_done_before",
    ),
    directed(
        "S7.3-turn-stop",
        "a stop of the process within a turn is not noticed",
        "raftstore/engine/node_runner.py",
        "        self._is_in_turn = False\n        self._begin(now_ms)\n",
        "        self._is_in_turn = False\n        self.now_ms = now_ms\n",
        ENGINE_TURNS + "stop_of_the_process_within_a_turn_is_noticed",
    ),
)

RUNTIME_RULES: tuple[Ablation, ...] = (
    *BIRTH_RULES,
    *END_RULES,
    *LINE_RULES,
    *SETTING_RULES,
    *STALL_RULES,
    *TURN_RULES,
)
