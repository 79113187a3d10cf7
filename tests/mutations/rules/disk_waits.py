"""Mutations of what waits for the disk in the engine, and of a disk that hangs: S0.4 and S0.5."""

from __future__ import annotations

from tests.mutations.guard import directed, worlds
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

SPACE = "tests/unit/engine/channel/test_disk_space.py::test_"
TAKEN = "tests/unit/engine/channel/test_taken_records.py::test_gap_13_"
TRIMMED = "tests/unit/engine/retention/test_trimmed_channels.py::test_"
RECEIVER = "tests/unit/engine/snapshots/test_snapshot_receiver.py::test_"
LAGS = "tests/unit/engine/peers/test_lag_reports_alone.py::test_"
STALLS = "tests/unit/engine/test_storage_stalls.py::test_"
TESTS = "tests/unit/engine/channel/test_rules_engine.py::test_"
HOLE_REPAIRS = "tests/unit/engine/channel/test_hole_repairs.py::test_"

DISK_WAITS_RULES: tuple[Mutation, ...] = (
    mutation(
        "GAP-13-refuse",
        "A node goes on taking writes until its disk is full, which ends it.",
        Edit("DiskSpace._judge", "free < _mark(self._bytes_min, is_below=self.is_low)", "False"),
        directed(
            SPACE + "gap_13_leader_that_finds_no_successor_refuses_writes_and_recovers_by_itself",
            SPACE + "marks_are_left_a_quarter_above_where_they_were_met",
        ),
    ),
    mutation(
        "GAP-13-hand-over",
        "A leader without space keeps its leadership, and its channels take no writes.",
        Edit("DiskSpace.on_timer", "self._give_away(now_ms)", ""),
        directed(
            SPACE + "gap_13_leader_without_space_gives_its_leadership_to_a_replica_that_has_some"
        ),
    ),
    mutation(
        "GAP-13-decline",
        "A replica without space takes a leadership over, and gives it back, for ever.",
        Edit("NodeRunner.on_peer_message", "kind is TransferNow and self.space.is_low", "False"),
        directed(
            SPACE + "gap_13_leader_that_finds_no_successor_refuses_writes_and_recovers_by_itself"
        ),
    ),
    mutation(
        "GAP-13-follower",
        "A follower takes records until its disk is full.",
        Edit("StorageGuard.takes_records", "not self.space.is_exhausted", "True"),
        directed(SPACE + "gap_13_followers_without_space_go_on_as_long_as_they_can"),
        worlds(seeds=range(1, 9), full_disk_percent="25", value_bytes="2000"),
    ),
    mutation(
        "GAP-13-beginning",
        "A leader between two full disks commits nothing of its term, and no read is answered.",
        Edit("taken", "isinstance(message, (StoreRequest, MsgSync))", "False"),
        directed(
            TAKEN + "reads_go_on_when_the_leader_and_a_follower_fill_within_one_look[1]",
            TAKEN + "reads_go_on_when_the_leader_dies_and_a_full_follower_lacks_the_newest_rows",
        ),
    ),
    mutation(
        "GAP-13-beginning-alone",
        "A full follower takes the writes of a new term with its beginning.",
        Edit("_beginning", "each.term < message.term or each.kind in _OF_LEADERS", "True"),
        directed(TAKEN + "answer_with_writes_of_the_new_term_is_taken_up_to_them"),
    ),
    mutation(
        "GAP-13-beginning-space",
        "What new leaders need fills the space that frees space.",
        Edit(
            "StorageGuard.takes_beginning",
            "self.space.claim(more_bytes, kept_part=2)",
            "self.space.claim(more_bytes)",
        ),
        directed(TAKEN + "what_frees_space_keeps_its_half_of_the_second_mark[33554431-False]"),
    ),
    mutation(
        "GAP-13-asked",
        "A replica without space has a leader send it a megabyte of history each second.",
        Edit("asked", "not guard.space.is_exhausted", "True"),
        directed(TAKEN + "little_history_is_asked_for_while_none_of_it_is_taken"),
    ),
    mutation(
        "GAP-13-catalog",
        "No table can be removed once no disk has more than the second mark.",
        Edit(
            "StorageGuard.takes_records", "is_catalog and self.space.claim(CATALOG_BYTES)", "False"
        ),
        directed(SPACE + "gap_13_table_can_be_removed_while_no_node_has_space[67108863]"),
    ),
    mutation(
        "GAP-13-between-looks",
        "What a node logs between two looks at its disk fills what the marks keep free.",
        Edit("StorageGuard._note_log", "self.space.is_near", "False"),
        directed(SPACE + "guard_counts_the_log_before_records_are_taken_near_the_marks_only[True]"),
    ),
    mutation(
        "GAP-13-unwritten",
        "What a slow disk has yet to write of the log fills what the marks keep free.",
        Edit("DiskSpace._look", "free - self._unwritten_bytes()", "free"),
        directed(SPACE + "what_a_slow_disk_has_yet_to_write_counts_at_each_look"),
    ),
    mutation(
        "GAP-13-create",
        "A table is proposed that no node has room for, and whether it was created is unknown.",
        Edit("TableCommands.on_create_table", "self._refuse_full(*asked, placement)", "False"),
        directed(
            SPACE + "gap_13_creating_a_table_names_the_disk_if_no_node_takes_changes_of_the_catalog"
            "[with_a_leader]"
        ),
    ),
    mutation(
        "GAP-13-quorum",
        "A leader with room proposes what the full disks of a quorum never store.",
        Edit("QuorumRoom._without", "not self._disks.has_room(node, wanted)", "False"),
        directed(
            SPACE + "gap_13_creating_a_table_names_the_full_disks_of_followers",
            SPACE + "gap_13_write_that_no_quorum_has_room_for_is_refused_with_the_names_of_the_"
            "disks",
        ),
    ),
    mutation(
        "GAP-13-room-again",
        "A disk that was full counts as full for ever.",
        Edit("LagReports.on_report", "self._room_of.pop(sender, None)", "pass"),
        directed(LAGS + "room_of_a_disk_is_what_its_node_reported_last"),
    ),
    mutation(
        "GAP-13-no-leader",
        "A cluster that has no catalog for lack of space says that it has no leader.",
        Edit(
            "TableCommands._refuse_unless_leader",
            "(full := self._no_space()) is not None",
            "False",
        ),
        directed(
            SPACE + "gap_13_creating_a_table_names_the_disk_if_no_node_takes_changes_of_the_catalog"
            "[fresh]"
        ),
    ),
    mutation(
        "B8-copy",
        "A table is copied to a disk that has no room for it, and the node ends.",
        Edit("SnapshotReceiver.on_offer", "self._shortage(offer.table_bytes)", "None"),
        directed(RECEIVER + "b8_copy_that_does_not_fit_the_disk_is_not_begun"),
    ),
    mutation(
        "B8-copy-goes-on",
        "A copy goes on although others have filled the disk meanwhile.",
        Edit(
            "ChunkTaking.on_chunk",
            "self._shortage(left_bytes)",
            "None",
        ),
        directed(RECEIVER + "b8_copy_ends_when_the_rest_of_it_has_no_room_any_more"),
    ),
    mutation(
        "GAP-13-commands",
        "A table cannot be removed to free space.",
        Edit(
            "StorageGuard.write_refusal",
            "self.space.refusal() if is_client else None",
            "self.space.refusal()",
        ),
        directed(SPACE + "gap_13_table_can_be_removed_while_no_node_has_space"),
    ),
    mutation(
        "GAP-13-trim",
        "Logs stay as long as ever while the disk is nearly full.",
        Edit(
            "Trimmer._bytes_wanted",
            "self._segment_bytes if self._is_space_low() else self._settings.log_bytes",
            "self._settings.log_bytes",
        ),
        directed(TRIMMED + "gap_13_log_is_cut_as_far_as_it_can_be_while_the_disk_is_nearly_full"),
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
            "self._state.emit(StepDown(steps_down))",
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
            "Replica.may_stand",
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
            "refusal = refusal or self.parts.guard.write_refusal(size, is_client=is_client)",
            "",
        ),
        directed(STALLS + "what_is_not_on_the_disk_is_bounded_though_others_commit_it"),
    ),
    mutation(
        "S0.4-unsynced-follower",
        "What leaders send fills the memory of a follower whose disk hangs.",
        Edit("taken", "type(message) not in WITH_RECORDS", "True"),
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
            "ChannelRunner._send",
            "send, after = self.parts.outbox.send, self.term_operation",
            "send, after = self.parts.outbox.send, 0",
        ),
        directed(TESTS + "replication_message_waits_for_its_term"),
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
        "GAP-13-claim",
        "Granted room is granted again, until the next look at the disk.",
        Edit("DiskSpace.has_room", "free - self._claimed_bytes - more_bytes", "free - more_bytes"),
        directed(SPACE + "what_frees_space_may_use_most_of_what_the_second_mark_keeps"),
    ),
    mutation(
        "GAP-13-base-room",
        "A base entry is written to a disk that has no room for it, which ends the node.",
        Edit("Trimmer._cut", "not self._claim(len(base.folds))", "False"),
        directed(TRIMMED + "gap_13_base_is_written_only_while_there_is_room_for_it"),
    ),
    mutation(
        "GAP-13-carry-room",
        "A base is written anew on a disk that has no room for it.",
        Edit("Trimmer._carry", "is_all and self._claim(len(runner.core.base.folds))", "is_all"),
        directed(TRIMMED + "gap_13_base_is_written_anew_only_while_there_is_room_for_it"),
    ),
    mutation(
        "GAP-13-merge-room",
        "Tables are merged on a disk that has no room for the new files.",
        Edit(
            "Merger.on_timer",
            "runner is not None and self._claim(MERGE_STEP_BYTES)",
            "runner is not None",
        ),
        directed(
            "tests/unit/engine/retention/test_merger_alone.py::"
            "test_gap_13_nothing_is_merged_without_room_for_the_new_files"
        ),
    ),
)
