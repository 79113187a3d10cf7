"""Ablations of the storage: S0.1, S0.2, S0.3, S2.1, S0.4, S0.7, S0.8, S1.3, S10 and S13."""

from __future__ import annotations

from tests.ablations.ablation import STORAGE, Ablation, directed

LOG = STORAGE + "log.py"
UNIT = "tests/unit/storage/"

STORAGE_RULES: tuple[Ablation, ...] = (
    directed(
        "S0.4-unsynced-counted",
        "what is on the disk counts for ever as if it were not",
        LOG,
        "        self._unsynced_bytes -= self._taken_bytes.popleft()\n",
        "",
        "tests/contract/test_message_log.py::"
        "test_bytes_that_are_not_on_the_disk_are_counted_until_they_are",
    ),
    directed(
        "S0.1-directory",
        "a node starts on the store of another",
        STORAGE + "identity.py",
        '    if facts["node"] != name:',
        "    if False:",
        UNIT + "test_identity.py::test_directory_of_another_node_is_refused_untouched",
    ),
    directed(
        "S0.1-marker",
        "a damaged identity is believed",
        STORAGE + "identity.py",
        '    if facts.get("checksum") != _checksum(facts):',
        "    if False:",
        UNIT + "test_identity.py::test_damaged_marker_is_refused",
    ),
    directed(
        "S0.1-presence",
        "a node goes on writing to files that were removed",
        STORAGE + "presence.py",
        "if place in before and not self._is_stopped.is_set():",
        "if False:",
        UNIT + "test_presence.py::test_what_is_taken_away_is_told",
    ),
    directed(
        "S0.1-presence-twice",
        "a mark that the node replaces itself counts as taken away",
        STORAGE + "mark.py",
        "        self.place = place_of(self._path, self._descriptor)\n",
        "",
        UNIT + "test_presence.py::test_new_segments_and_marks_are_no_loss",
    ),
    directed(
        "S0.1-owner-checksum",
        "a flipped bit makes tables those of another store",
        STORAGE + "leveldb_database.py",
        'if not owner or (checksum and checksum != f"{crc32(owner):08x}\\n".encode()):',
        "if not owner:",
        UNIT + "test_leveldb_tables.py::test_flipped_bit_is_not_taken_for_another_store",
    ),
    directed(
        "S0.2-pieces",
        "a log without its vote record starts, or the reverse",
        LOG,
        "if has_log and has_mark:",
        "if True:",
        UNIT + "test_recovery.py::test_log_without_mark_or_mark_without_log_is_refused",
    ),
    directed(
        "S0.3-mark",
        "a lost acknowledged tail goes unnoticed",
        STORAGE + "recovery.py",
        "if self._held.get(channel, {}).get(term, 0) < seq:",
        "if False:",
        UNIT + "test_recovery.py::test_lost_end_is_noticed_by_the_mark",
    ),
    directed(
        "S0.3-start",
        "the mark stays behind the last group commit before a crash",
        LOG,
        "        self._mark_what_was_found(mark)\n        self._reader",
        "        self._reader",
        UNIT
        + "test_recovery.py::test_start_lets_the_mark_cover_what_it_lagged_behind_at_the_crash",
    ),
    directed(
        "S0.2-first-segment",
        "a kill while a damaged log is cut leaves no log",
        STORAGE + "recovery.py",
        "        self._ops.replace_file(segment_path(self._directory, 1), header)\n",
        "        segment_path(self._directory, 1).unlink(missing_ok=True)\n"
        "        self._ops.create_file(segment_path(self._directory, 1), header)\n",
        UNIT + "test_recovery_cuts.py::test_kill_while_the_log_is_cut_leaves_a_log_to_start_on",
    ),
    directed(
        "S0.3-crc",
        "a damaged record is read, and served to other nodes",
        STORAGE + "records.py",
        "    if crc32(view[HEADER_BYTES:]) != crc:",
        "    if False:",
        UNIT + "test_recovery.py::test_read_verifies_each_record",
    ),
    directed(
        "S0.3-crc-fields",
        "a record's damaged fields are believed at the start",
        STORAGE + "records.py",
        "    if crc32(meta) != _META_CRC.unpack_from(head, HEADER_BYTES + _META.size)[0]:",
        "    if False:",
        UNIT + "test_recovery.py::test_start_up_scan_verifies_the_fields_it_returns",
    ),
    directed(
        "S2.1-gap",
        "a log takes a record that leaves a gap",
        LOG,
        "            if record.base_seq != index.last_seq + 1 or record.rows < 1:",
        "            if False:",
        "tests/contract/test_message_log.py::"
        "test_append_is_refused_when_it_leaves_a_gap_and_the_log_stops",
    ),
    directed(
        "S10-order",
        "records are applied out of their order",
        STORAGE + "applied_channel.py",
        "            if record.base_seq != self.queued_seq + 1 or self.in_pieces:",
        "            if False:",
        "tests/contract/test_table_store.py::"
        "test_record_is_refused_when_it_leaves_a_gap_or_comes_twice",
    ),
    directed(
        "S0.3-votes",
        "the mark lags behind votes",
        STORAGE + "group_commit.py",
        "if batch.is_urgent:",
        "if False:",
        UNIT + "test_mark.py::test_mark_covers_votes_without_lag",
    ),
    directed(
        "S0.3-votes-before-records",
        "the mark lags behind a vote that shares its group commit with a later append",
        LOG,
        "            is_urgent |= operation.is_urgent\n",
        "            is_urgent = operation.is_urgent\n",
        UNIT + "test_mark.py::test_mark_covers_votes_without_lag",
    ),
    directed(
        "S0.3-unmarked",
        "a vote in one channel lets the mark forget what another acknowledged",
        STORAGE + "group_commit.py",
        "self._mark.write(self._unmarked | batch.rows)",
        "self._mark.write(batch.rows)",
        UNIT + "test_mark.py::test_vote_keeps_what_the_mark_lags_behind_in_another_channel",
    ),
    directed(
        "S1.3-mark",
        "a vote that only the mark still knows is given again in its term",
        STORAGE + "recovery.py",
        "            index.voted_for = row.voted_for\n",
        "            pass\n",
        UNIT
        + "test_recovery.py::test_vote_of_a_term_that_the_log_still_knows_is_taken_from_the_mark",
    ),
    directed(
        "S0.1-created",
        "a power cut turns a store that voted back into a half-made one",
        STORAGE + "identity.py",
        "    ops.rename(creating, directory / MARKER_NAME)\n    ops.sync_directory(directory)\n",
        "    ops.rename(creating, directory / MARKER_NAME)\n",
        UNIT + "test_identity.py::test_creation_is_durable_step_by_step",
    ),
    directed(
        "S0.4-poison",
        "a log goes on after a failed write",
        LOG,
        "        self.committer.failure = self.committer.failure or reason\n",
        "",
        "tests/contract/test_message_log.py::"
        "test_append_is_refused_when_it_leaves_a_gap_and_the_log_stops",
    ),
    directed(
        "S0.7-one-proposal",
        "a store accepts a second founding proposal",
        STORAGE + "identity.py",
        "if accepted and (accepted, self.members) != (cluster_id, members):",
        "if False:",
        UNIT + "test_identity.py::test_only_one_proposal_is_ever_accepted",
    ),
    directed(
        "S0.8-dropped",
        "the id of a dropped table is used again",
        LOG,
        "            if channel in self._dropped:\n",
        "            if False:\n",
        "tests/contract/test_message_log.py::test_dropped_channel_is_refused_for_ever",
    ),
    directed(
        "S0.8-beside",
        "what lies beside the rows of a dropped channel stays",
        STORAGE + "keys.py",
        '    return channel + b"\\xff"\n',
        '    return channel + b"\\x02"\n',
        "tests/contract/test_table_store.py::test_channel_that_goes_leaves_no_key_of_any_sort",
    ),
    directed(
        "S0.4-newer-log",
        "what only a newer version can read is cut off the log as damage",
        STORAGE + "records.py",
        "    return NewerFormatError(\n",
        "    return DamagedEntryError(\n",
        UNIT + "test_recovery.py::test_record_of_a_newer_version_is_refused_untouched",
        UNIT + "test_store.py::test_store_of_a_newer_version_is_left_as_it_is",
    ),
    directed(
        "S10-atomic",
        "the applied position is not in the batch of its rows",
        STORAGE + "applier.py",
        "                self._batch.put(applied_key(channel), encode_applied(channel, "
        "state.unflushed))\n",
        "                pass\n",
        UNIT + "test_leveldb_tables.py::test_rows_and_position_are_one_atomic_batch",
    ),
    directed(
        "S13-vote",
        "the log stores a changed vote or a lower term",
        LOG,
        "        if term < index.term or (\n",
        "        if False and (\n",
        "tests/contract/test_message_log.py::test_vote_is_refused_when_it_changes_within_its_term",
    ),
)
