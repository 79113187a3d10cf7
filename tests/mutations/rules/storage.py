"""Mutations of a node's log and its mark: S0.3, S0.4, S0.5, S1.3, S2.1 and S13."""

from __future__ import annotations

from tests.mutations.guard import directed, disk_runs, worlds
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

UNIT = "tests/unit/storage/"
LOG = "tests/cli/test_log.py::test_"
MESSAGE_LOG = "tests/contract/test_message_log.py::test_"

FORGOTTEN = "tests/unit/storage/log/test_forgotten_promises.py::test_"

STORAGE_RULES: tuple[Mutation, ...] = (
    mutation(
        "S0.3-forgotten-mark",
        "A log forgets records that were acknowledged, and the mark does not have the newest yet.",
        Edit("GroupCommitter._write", "batch.forgets", "False"),
        directed(
            FORGOTTEN + "what_was_acknowledged_last_stays_promised_wherever_power_is_lost[give_up]"
        ),
    ),
    mutation(
        "S0.3-forgotten-base",
        "A start that finds a log put aside, and not that it was given up, takes it for truncated.",
        Edit(
            "LogRecovery._begin_behind",
            "base == EMPTY_BASE or (entry.replaces and index.kept)",
            "entry.replaces and index.kept",
        ),
        directed(
            FORGOTTEN
            + "what_was_acknowledged_last_stays_promised_wherever_power_is_lost[put_aside]"
        ),
    ),
    mutation(
        "S0.3-mark",
        "A log that lost acknowledged records starts as if it had all.",
        Edit(
            "LogRecovery._compare",
            "not self._has_held(channel, row)",
            "False",
        ),
        directed(UNIT + "log/test_recovery.py::test_lost_end_is_noticed_by_the_mark"),
        disk_runs(),
        worlds(damage_percent="40"),
    ),
    mutation(
        "S0.3-start",
        "The mark stays behind the last group commit before a crash.",
        Edit(
            "SegmentLog.__init__",
            "self._mark_what_was_found(mark)",
            "",
        ),
        directed(
            UNIT + "log/test_recovery.py::test_start_lets_the_mark_cover_what_it_lagged"
            "_behind_at_the_crash"
        ),
        worlds(damage_percent="40"),
    ),
    mutation(
        "S0.3-hole-body",
        "A damaged entry takes everything behind it away.",
        Edit(
            "damage_at",
            "_damaged_body(data, offset, chain)",
            "None",
        ),
        directed(UNIT + "log/test_recovery.py::test_flipped_bit_costs_the_record_it_hits"),
        worlds(flip_percent="40", damage_percent="0"),
    ),
    mutation(
        "S0.3-hole-header",
        "An intact record is lost with its header.",
        Edit(
            "_damaged_header",
            "_whole(offset, end, crc, after)",
            "None",
        ),
        directed(UNIT + "log/test_recovery.py::test_flipped_bit_in_a_header_is_mended"),
    ),
    mutation(
        "S0.3-hole-chain",
        "What looks like an entry is believed although it does not continue the chain.",
        Edit(
            "_damaged_header",
            "next_chain(after, length, body_crc) == link",
            "length < 1000",
        ),
        directed(UNIT + "log/test_holes.py::test_log_within_a_payload_is_not_taken_for_the_log"),
        worlds(flip_percent="40", damage_percent="0"),
    ),
    mutation(
        "S0.3-hole-term",
        "A record behind damage continues what was there before by its seq alone.",
        Edit(
            "LogRecovery._add",
            "damages == 0 or is_single or term == last.end.term",
            "True",
        ),
        directed(
            UNIT + "log/test_holes.py::test_records_that_were_replaced_within_the_damage_are"
            "_not_believed"
        ),
    ),
    mutation(
        "S0.3-hole-witness",
        "A hole is filled from a log that was never equal.",
        Edit(
            "ChannelIndex.part_serving",
            "common,",
            "",
        ),
        directed(UNIT + "log/test_holes.py::test_nothing_is_given_to_a_log_that_was_never_equal"),
    ),
    mutation(
        "S0.3-hole-prev",
        "A hole is filled behind records that the other log does not hold.",
        Edit(
            "ChannelIndex.part_serving",
            "known != hole.prev_term",
            "False",
        ),
        directed(UNIT + "log/test_holes.py::test_nothing_is_given_to_a_log_that_was_never_equal"),
    ),
    mutation(
        "S0.3-give-up",
        "What was given up counts as held after a restart.",
        Edit(
            "LogRecovery._give_up",
            "held = self._held[channel] = {}",
            "held = {}",
        ),
        directed(UNIT + "log/test_holes.py::test_what_is_given_up_stays_promised"),
    ),
    mutation(
        "S0.3-give-up-unmarked",
        "A start leaves the mark behind where a channel has a hole.",
        Edit(
            "SegmentLog._mark_what_was_found",
            "{name: index.next_mark_row() for name, index in self._channels.items()}",
            "{name: index.next_mark_row() for name, index in self._channels.items() "
            "if index.is_whole}",
        ),
        directed(
            UNIT + "log/test_holes.py::"
            "test_what_is_given_up_stays_promised_although_the_mark_lagged"
        ),
    ),
    mutation(
        "S0.3-stopped-lock",
        "A log is read while its node writes it.",
        Edit(
            "_lock",
            "fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | "
            "fcntl.LOCK_NB)",
            "if not is_shared:\n    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        ),
        directed(LOG + "running_node_is_refused"),
    ),
    mutation(
        "S0.3-stopped-digest",
        "An offline fill takes records that running nodes would refuse.",
        Edit(
            "_fill_channel",
            "fault_of(tuple(records), hole)",
            "None",
        ),
        directed(LOG + "record_that_is_not_what_its_digest_says_is_refused"),
    ),
    mutation(
        "S0.3-stopped-repairs",
        "An offline fill cuts the end of the log first.",
        Edit(
            "fill",
            "if target.repairs: ...",
            "if False: ...",
        ),
        directed(LOG + "log_that_a_start_would_cut_is_left_to_the_start"),
    ),
    mutation(
        "S0.3-stopped-read-only",
        "Looking at a stopped log writes its mark.",
        Edit(
            "SegmentLog._mark_what_was_found",
            "unmarked and not self._ops.is_read_only",
            "unmarked",
        ),
        directed(LOG + "log_whose_mark_lags_is_whole_and_filled"),
    ),
    mutation(
        "S0.3-crc",
        "The checksum of a record is not verified when it is read from the log.",
        Edit(
            "decode_record",
            "crc32(view[HEADER_BYTES:]) != crc",
            "False",
        ),
        directed(UNIT + "log/test_recovery.py::test_read_verifies_each_record"),
        disk_runs(),
    ),
    mutation(
        "S0.3-crc-fields",
        "A record's damaged fields are believed at the start.",
        Edit(
            "decode_record_head",
            "crc32(meta) != _META_CRC.unpack_from(head, HEADER_BYTES + _META.size)[0]",
            "False",
        ),
        directed(UNIT + "log/test_recovery.py::test_start_up_scan_verifies_the_fields_it_returns"),
        worlds(range(1, 201), flip_percent="40", damage_percent="0"),
    ),
    mutation(
        "S0.3-votes",
        "The mark lags behind votes.",
        Edit(
            "GroupCommitter._sync",
            "batch.is_urgent",
            "False",
        ),
        directed(UNIT + "log/test_mark.py::test_mark_covers_votes_without_lag"),
    ),
    mutation(
        "S0.3-votes-before-records",
        "The mark lags behind a vote that shares its group commit with a later append.",
        Edit(
            "next_batch",
            "is_urgent |= operation.is_urgent",
            "is_urgent = operation.is_urgent",
        ),
        directed(UNIT + "log/test_mark.py::test_mark_covers_votes_without_lag"),
    ),
    mutation(
        "S0.3-unmarked",
        "A vote in one channel lets the mark forget what another acknowledged.",
        Edit(
            "GroupCommitter._sync",
            "self._unmarked | batch.rows",
            "batch.rows",
        ),
        directed(
            UNIT + "log/test_mark.py::test_vote_keeps_what_the_mark_lags_behind_in_another_channel"
        ),
    ),
    mutation(
        "S0.3-names",
        "The name of a new log file is lost with the power.",
        Edit(
            "SegmentWriter.start",
            "self._ops.sync_directory(self._directory)",
            "",
        ),
        directed(UNIT + "log/test_log.py::test_new_segment_is_durable_before_it_is_used"),
        worlds(),
    ),
    mutation(
        "S0.3-names-start",
        "A start believes names that a killed process left and no power cut would leave.",
        Edit(
            "LogRecovery.run",
            "self._ops.sync_directory(self._directory)",
            "pass",
        ),
        directed(
            UNIT + "log/test_log_faults.py::test_start_makes_names_durable_before_it_believes_them"
        ),
    ),
    mutation(
        "S0.3-names-mark",
        "A start believes a mark that a killed process left and no power cut would leave.",
        Edit("MarkFile.open", "ops.sync_directory(path.parent)", "pass"),
        directed(
            UNIT + "log/test_mark.py::"
            "test_vote_is_kept_after_a_process_was_killed_while_it_replaced_the_mark"
        ),
    ),
    mutation(
        "S0.3-torn-end",
        "A torn end stays in the log, in front of what is written next.",
        Edit("LogRecovery._cut", "self._ops.truncate(descriptor, cut.offset)", ""),
        directed(UNIT + "log/test_recovery.py::test_torn_tail_is_cut_off_at_whatever_byte_it_ends"),
    ),
    mutation(
        "S0.3-cut-synced",
        "A power cut brings back what a start has cut off.",
        Edit("LogRecovery._cut", "self._ops.datasync(descriptor)", ""),
        directed(UNIT + "log/test_recovery_cuts.py::test_cut_is_durable_before_the_start_goes_on"),
    ),
    mutation(
        "S0.3-synced-before-believed",
        "A start believes what a killed process wrote and no power cut would leave.",
        Edit("FileOps.read_file", "self.datasync(descriptor)", ""),
        directed(
            UNIT + "log/test_log_faults.py::test_unsynced_pages_of_a_dead_process_are_not_believed"
        ),
    ),
    mutation(
        "S0.3-stale-pages",
        "A start believes pages that a failed sync left in memory alone.",
        Edit("FileOps.read_file", "self.forget_cached(descriptor)", ""),
        directed(
            UNIT + "log/test_log_faults.py::test_unsynced_pages_of_a_dead_process_are_not_believed"
        ),
    ),
    mutation(
        "S0.4-unsynced-counted",
        "What is on the disk counts for ever as if it were not.",
        Edit(
            "SegmentLog.completed",
            "self._unsynced_bytes -= self._taken_bytes.popleft()",
            "",
        ),
        directed(MESSAGE_LOG + "bytes_that_are_not_on_the_disk_are_counted_until_they_are"),
    ),
    mutation(
        "S0.4-poison",
        "A log goes on after a read that failed.",
        Edit(
            "SegmentLog._poison",
            "self.committer.failure = self.committer.failure or reason",
            "",
        ),
        directed(MESSAGE_LOG + "append_is_refused_when_it_leaves_a_gap_and_the_log_stops"),
        disk_runs(),
    ),
    mutation(
        "S0.4-newer-log",
        "What only a newer version can read is cut off the log as damage.",
        Edit(
            "_newer",
            "NewerFormatError(\n"
            '    f"{what} of the log has the unknown kind {kind}, its checksums fit: '
            'it was written by a "\n'
            '    "newer raftstore; run a newer version on this node"\n'
            ")",
            "DamagedEntryError(\n"
            '    f"{what} of the log has the unknown kind {kind}, its checksums fit: '
            'it was written by a "\n'
            '    "newer raftstore; run a newer version on this node"\n'
            ")",
        ),
        directed(
            UNIT + "log/test_recovery.py::test_record_of_a_newer_version_is_refused_untouched",
            UNIT + "test_store.py::test_store_of_a_newer_version_is_left_as_it_is",
        ),
    ),
    mutation(
        "S1.3-mark",
        "A vote that only the mark still knows is given again in its term.",
        Edit(
            "LogRecovery._adopt_vote",
            "index.voted_for = row.voted_for",
            "pass",
        ),
        directed(
            UNIT + "log/test_recovery.py::test_vote_of_a_term_that_the_log_still_knows_is"
            "_taken_from_the_mark"
        ),
        worlds(damage_percent="40"),
    ),
    mutation(
        "S2.1-gap",
        "A log takes a record that leaves a gap.",
        Edit(
            "SegmentLog._append",
            "record.base_seq != index.last_seq + 1 or record.rows < 1",
            "False",
        ),
        directed(MESSAGE_LOG + "append_is_refused_when_it_leaves_a_gap_and_the_log_stops"),
    ),
    mutation(
        "S13-vote",
        "The log stores a changed vote or a lower term.",
        Edit(
            "SegmentLog.set_vote",
            "term < index.term or (\n"
            "    term == index.term and index.voted_for is not None and voted_for != "
            "index.voted_for\n"
            ")",
            "False and (\n"
            "    term == index.term and index.voted_for is not None and voted_for != "
            "index.voted_for\n"
            ")",
        ),
        directed(MESSAGE_LOG + "vote_is_refused_when_it_changes_within_its_term"),
    ),
    mutation(
        "S0.3-hole-filled-without-a-witness",
        "A node fills another's hole although nothing proves that their logs were ever equal.",
        Edit(
            "ChannelIndex.part_serving",
            "common,",
            "",
        ),
        Edit(
            "ChannelIndex.part_serving",
            "known != hole.prev_term",
            "False",
        ),
        directed(UNIT + "log/test_holes.py::test_nothing_is_given_to_a_log_that_was_never_equal"),
        worlds(flip_percent="50", flip_newest="4", damage_percent="0", fault_interval_ms="150"),
    ),
    mutation(
        "S0.3-mark-never-follows",
        "The mark does not follow the group commits.",
        Edit(
            "GroupCommitter._sync",
            "dict(batch.rows)",
            "{}",
        ),
        disk_runs(),
        worlds(damage_percent="40"),
    ),
    mutation(
        "S0.3-vote-not-marked",
        "A vote is only in the log, and lost with its end.",
        Edit(
            "GroupCommitter._sync",
            "self._unmarked | batch.rows",
            "self._unmarked",
        ),
        disk_runs(),
        worlds(damage_percent="40"),
    ),
    mutation(
        "S0.4-handle-reused-after-a-failed-write",
        "A log goes on after a write or a sync that failed.",
        Edit(
            "GroupCommitter._do",
            "self.failure = str(error)",
            "",
        ),
        disk_runs(),
    ),
    mutation(
        "S0.5-sync-forgotten",
        "A group commit completes when it is written, not when it is synced.",
        Edit(
            "GroupCommitter._sync_with_mark_behind",
            "self._segments.sync()\nreturn",
            "return",
        ),
        disk_runs(),
        worlds(),
    ),
    mutation(
        "S0.3-hole-behind-a-hole",
        "A record that was filled is lost when the log is damaged in front of it.",
        Edit(
            "LogRecovery._fill",
            "index.hole_starting_at(base_seq, end)",
            "0 if index.kept and base_seq == index.last_seq + 1 else None",
        ),
        directed(
            UNIT + "log/test_holes.py::test_what_was_filled_is_kept_when_the_log_is_damaged_again"
            "_before_it"
        ),
    ),
    mutation(
        "S0.3-behind-a-lost-fill",
        "With a record that was filled all go that were filled behind it.",
        Edit("LogRecovery._fill", "channel not in self._lost_fills", "True"),
        directed(
            UNIT + "log/test_holes.py::test_what_was_filled_is_kept_when_what_was_filled_before_it"
            "_is_damaged"
        ),
    ),
    mutation(
        "S0.3-segment-synced",
        "A new segment is started while the last one is not on the disk.",
        Edit(
            "SegmentWriter.start",
            "if self._descriptor >= 0: ...",
            "",
        ),
        worlds(),
    ),
    mutation(
        "S0.3-found-whole",
        "A channel that lost nothing lacks its next record at the start after the next.",
        Edit("SegmentLog.__init__", "self.give_up(channel)", "pass"),
        directed(
            UNIT + "log/test_holes.py::test_channel_that_was_found_whole_behind_damage_stays_whole"
        ),
    ),
    mutation(
        "S0.3-start-recovered",
        "The mark stays behind the records that ended a recovery before a crash.",
        Edit(
            "SegmentLog._mark_what_was_found",
            "self._channels.items()",
            "tuple((name, at) for name, at in self._channels.items() if at.shortfall is None)",
        ),
        directed(
            UNIT + "log/test_recovery_cuts.py::test_mark_covers_at_the_start_what_got_a_channel"
            "_beyond_its_loss"
        ),
    ),
    mutation(
        "S1.3-vote-not-persisted",
        "The term is stored with a change of vote, the vote itself is not.",
        Edit(
            "SegmentLog._write_vote",
            "index.voted_for",
            "None",
        ),
        Edit(
            "_decode_rows",
            "name if flags & _VOTED else None",
            "None",
        ),
        disk_runs(),
        worlds(),
    ),
    mutation(
        "S0.4-damaged-range",
        "A range whose rows are all in damaged blocks is read as an empty one.",
        Edit("iterated", "raw.seek(start)", "pass"),
        directed(
            UNIT
            + "tables/test_damaged_ranges.py::test_read_of_damaged_rows_fails_and_tells_no_rows"
        ),
    ),
    mutation(
        "S0.4-damaged-end",
        "A range whose last rows are in damaged blocks ends before them.",
        Edit("errors_at_end", "found.prev()", "pass"),
        directed(
            UNIT
            + "tables/test_damaged_ranges.py"
            + "::test_range_whose_last_block_is_damaged_does_not_end_before_it"
        ),
    ),
)
