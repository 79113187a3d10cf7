"""Mutations of trimming: how far the base of a log may move, and what has to be durable before."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.rules.drawn_worlds import CUT_OFF, STAGED
from tests.mutations.syntax import Edit

ENGINE = "tests/unit/engine/retention/test_retention.py::test_"
FLOORS = "tests/unit/engine/retention/test_floors_alone.py::test_"
READERS = "tests/unit/engine/reads/test_change_readers.py::test_"
FLOOR = "tests/unit/storage/log/test_log_floor.py::test_"
TRIMMER = "tests/unit/engine/retention/test_trimmed_channels.py::test_"
SETTINGS = "tests/unit/engine/catalog/test_table_settings.py::test_"
TRIMMING = "tests/unit/core/test_trimming.py::test_"
STEPS = "tests/unit/engine/retention/test_trimmer_alone.py::test_"
MERGES = "tests/unit/storage/tables/test_merges.py::test_"
MERGER = "tests/unit/engine/retention/test_merger_alone.py::test_"
BARRIERS = "tests/unit/storage/tables/test_barriers.py::test_"

TRIMMING_RULES: tuple[Mutation, ...] = (
    mutation(
        "S6.6-dear-log",
        "A log many times as large as the table is kept for a replica that is behind.",
        Edit(
            "Floors._slow_replicas",
            "self._slow_bytes_max(runner)",
            "self._settings.slow_replica_bytes",
        ),
        directed(FLOORS + "no_log_is_kept_for_a_replica_that_a_copy_of_the_table_is_cheaper_for"),
    ),
    mutation(
        "S6.4-barrier-write",
        "A flush that failed counts as one that did not, since LevelDB raises nothing for it.",
        Edit(
            "Barriers.take",
            "database.put(BARRIER_KEY, encode_applied(channel, applied))",
            "",
        ),
        directed(BARRIERS + "r5_2a_barrier_on_a_full_disk_stops_the_node_and_tells_no_position"),
    ),
    mutation(
        "S6.4-barrier-flush",
        "What is applied counts as durable although nothing was synced.",
        Edit(
            "Barriers.take",
            "database.compact_range(start=BEHIND_ALL_KEYS[0], stop=BEHIND_ALL_KEYS[1])",
            "",
        ),
        directed(BARRIERS + "what_a_barrier_tells_survives_a_power_cut"),
    ),
    mutation(
        "S0.4-merge-write",
        "A merge that failed counts as one that did not, since LevelDB raises nothing for it.",
        Edit(
            "Merges._merge_range",
            "_note(source, left, (KEPT if work.keeps else size) if is_over else None)",
            "",
        ),
        directed(MERGES + "s0_4_merge_that_failed_stops_the_node"),
    ),
    mutation(
        "S0.4-dropped-merge",
        "The table of a dropped channel is closed under its merge.",
        Edit(
            "ChannelDatabase._is_unused",
            "self._is_retired and not self._shown and not self._holds",
            "self._is_retired and not self._shown",
        ),
        directed(MERGES + "table_that_is_dropped_meanwhile_is_closed_behind_its_merge"),
    ),
    mutation(
        "retention-merge-flush",
        "LevelDB is asked to merge a memory table that it has not written yet.",
        Edit(
            "Merges._step",
            "source.compact_range(start=BEHIND_ALL_KEYS[0], stop=BEHIND_ALL_KEYS[1])",
            "",
        ),
        directed(MERGES + "large_table_is_merged_a_range_of_keys_at_a_time"),
    ),
    mutation(
        "retention-merge-readers",
        "What an open snapshot keeps counts as given back.",
        Edit("Merges._step", "job.database.removed_shown(removed)", "removed"),
        directed(MERGES + "merge_for_removed_rows_waits_until_nothing_shows_them"),
    ),
    mutation(
        "retention-merge-kept",
        "What readers had a merge keep stays when they are gone, until the table is written to.",
        Edit("Merges._may_have_kept", "job.state.is_kept_for_readers", "False"),
        directed(MERGES + "merge_for_growth_waits_for_snapshots_unless_it_is_urgent"),
    ),
    mutation(
        "retention-merge-busy",
        "What is written to a table while it is merged counts as what it takes when it is merged.",
        Edit("Merges._may_have_kept", "job.state.was_merged_busy", "False"),
        directed(MERGES + "rows_written_while_a_table_was_merged_are_merged_when_it_is_quiet"),
    ),
    mutation(
        "retention-merge-last-level",
        "Files of LevelDB's last level keep what they kept for readers.",
        Edit("Merges._merge_range", "work.rewrites", "False"),
        directed(MERGES + "rows_that_a_reader_had_a_merge_keep_in_many_files_are_given_back"),
    ),
    mutation(
        "retention-merge-restart",
        "Files of LevelDB's last level keep what they kept for readers of before a restart.",
        Edit("Merges._step", "is_removed or job.state.is_kept_for_readers", "False"),
        directed(MERGES + "rows_that_a_reader_had_a_merge_keep_are_given_back_behind_a_restart"),
    ),
    mutation(
        "retention-merge-restart-unsaid",
        "A merge that kept something for readers does not say so to a next life of the node.",
        Edit("Merges._merge_range", "KEPT if work.keeps else size", "size"),
        directed(
            MERGES + "older_versions_that_a_reader_had_a_merge_keep_are_given_back_behind_a_restart"
        ),
    ),
    mutation(
        "retention-merge-restart-unheard",
        "A node does not look whether a merge of an earlier life kept something for readers.",
        Edit("Merges._look_back", "stored is not None and state.merged_bytes == KEPT", "False"),
        directed(
            MERGES + "older_versions_that_a_reader_had_a_merge_keep_are_given_back_behind_a_restart"
        ),
    ),
    mutation(
        "retention-merge-kept-counts-as-none",
        "A table of which a merge kept something for readers counts as never merged.",
        Edit("Merges._merge_range", "work.keeps, size", "work.keeps, KEPT"),
        directed(MERGES + "table_of_which_a_merge_kept_something_is_not_merged_all_the_time"),
    ),
    mutation(
        "retention-merge-border",
        "A merge removes the row at the border of two of its ranges.",
        Edit("never_stored", "key + bytes(2 * KEY_BYTES_MAX)", "key"),
        directed(MERGES + "row_at_the_border_of_two_ranges_stays"),
    ),
    mutation(
        "retention-merge-asked-once",
        "Nobody asks again for a quiet table of which readers had a merge keep something.",
        Edit("Merger._on_step", "seen.is_asked_quiet and not step.keeps", "seen.is_asked_quiet"),
        directed(MERGER + "quiet_table_is_asked_again_while_readers_kept_what_should_have_gone"),
    ),
    mutation(
        "retention-merge-in-vain",
        "A table is merged again and again for removed rows that a reader is shown.",
        Edit("Merges._step", "job.is_urgent and is_grown", "job.is_urgent"),
        directed(MERGES + "merge_for_removed_rows_waits_until_nothing_shows_them"),
    ),
    mutation(
        "retention-merge-few-rows",
        "Large rows that a few small ones replaced stay on the disk.",
        Edit("Merges._removed_bytes", "len(sizes) < SAMPLED_ROWS", "False"),
        directed(MERGES + "large_rows_that_a_few_small_ones_replaced_are_given_back"),
    ),
    mutation(
        "retention-merge-versions",
        "Nothing is given back while overwriting batches follow each other, each with a state of "
        "before that is kept.",
        Edit("Merges._step", "not is_removed", "True"),
        directed(MERGES + "rows_removed_before_the_oldest_snapshot_are_given_back_at_once"),
    ),
    mutation(
        "retention-merge-always-behind",
        "Nothing is given back while the tables stay behind.",
        Edit("Merger._waits_for_tables", "now_ms - self._behind_since_ms < BEHIND_MS_MAX", "True"),
        directed(MERGER + "tables_that_stay_behind_are_merged_all_the_same"),
    ),
    mutation(
        "retention-merge-pause",
        "Tables are merged one after the other, and writes wait.",
        Edit("Merger._on_step", "max(PAUSE_MS_MIN, factor * took_ms)", "PAUSE_MS_MIN"),
        directed(MERGER + "pause_is_several_times_as_long_as_the_merge[step0-4]"),
    ),
    mutation(
        "S6.4-barrier-reopened",
        "A barrier of the table that a channel had before counts for the one that it has now.",
        Edit("Trimmer.channel_closed", "self._barriers.pop(runner.channel, None)", ""),
        directed(TRIMMER + "barrier_is_taken_once_for_what_it_made_durable"),
    ),
    mutation(
        "retention-dropped",
        "What a dropped table left in the newest segment stays until others fill it.",
        Edit("Trimmer._goal", "log.leave_segment(goal)", ""),
        directed(TRIMMER + "segments_of_dropped_channels_are_given_back_although_the_log_is_short"),
    ),
    mutation(
        "retention-dropped-history",
        "The end of a small table costs all others the history of their changes.",
        Edit("Trimmer._goal", "max(FREED_BYTES_MIN, kept // FREED_SHARE)", "FREED_BYTES_MIN"),
        directed(TRIMMER + "dropped_records_are_not_worth_much_history_of_others"),
    ),
    mutation(
        "retention-merge-behind",
        "Tables are merged while they are behind.",
        Edit(
            "Merger.on_timer",
            "self._asked_ms is None and not self._waits_for_tables(now_ms)",
            "self._asked_ms is None",
        ),
        directed(MERGER + "nothing_is_merged_while_the_tables_are_behind"),
    ),
    mutation(
        "S6.5-staged",
        "Staged rows that a batch may still list are cut off the log.",
        Edit(
            "first_needed",
            "min((Seq(unpacked(stored, ChunkRef).base_seq) for _, stored in chunks), default=None)",
            "None",
        ),
        directed(BARRIERS + "i1_base_stays_below_the_oldest_staged_record"),
        STAGED,
    ),
    mutation(
        "S6.6-older-version",
        "Logs are trimmed while a node of the cluster knows no base.",
        Edit("Floors.older", "level < SNAPSHOT_LEVEL", "False"),
        directed(STEPS + "s6_6_nothing_is_cut_while_a_node_knows_no_base"),
    ),
    mutation(
        "S6.5-base-size",
        "A base that no log holds is made.",
        Edit("Trimmer._cut", "len(base.folds) > BASE_BYTES_MAX", "False"),
        directed(STEPS + "base_that_is_too_large_for_a_log_and_a_message_is_not_made"),
    ),
    mutation(
        "S6.5-trim-applied",
        "Records leave the log before the table has them.",
        Edit("ChannelState.trim", "base.seq > self.applied_seq", "base.seq > self.last_seq"),
        directed(
            TRIMMING
            + "s6_5_nothing_goes_that_is_not_committed_durable_and_applied_here[unapplied-8]"
        ),
    ),
    mutation(
        "S6.5-trim-down",
        "The base of a log goes down, or moves to where it is.",
        Edit("ChannelState.trim", "is_evidence or base.seq <= self.base.seq", "is_evidence"),
        directed(TRIMMING + "s6_5_base_never_goes_down"),
    ),
    mutation(
        "S6.5-trim-evidence",
        "A replica that stopped, or that lacks records, cuts off what it is compared by.",
        Edit(
            "ChannelState.trim",
            "self.stopped is not None or self.recovering is not None",
            "False",
        ),
        directed(TRIMMING + "replica_that_is_damaged_or_stopped_keeps_its_log"),
    ),
    mutation(
        "S13-trim",
        "A log begins behind a record that it never held.",
        Edit(
            "ChannelState.trim",
            "is_known and self.lineage.holds(base.term, base.seq)",
            "True",
        ),
        directed(TRIMMING + "s13_base_of_another_log_stops_the_node"),
    ),
    mutation(
        "S6.6-trim-asked",
        "A follower whose base moved up while it asked from below it stops its node.",
        Edit("CatchUp.on_sync", "is_below and request.from_seq", "False"),
        directed(TRIMMING + "follower_that_was_verified_below_a_base_that_moved_asks_anew"),
    ),
    mutation(
        "S6.4-before-barrier",
        "The base moves up to what a power cut may take back.",
        Edit("Trimmer._on_barrier", "Seq(min(work.wanted, barrier.base_max))", "work.wanted"),
        directed(ENGINE + "s6_4_base_waits_for_the_barrier_and_stays_below_it"),
        STAGED,
    ),
    mutation(
        "S6.4-no-barrier",
        "The base moves up to what is applied, whether it would survive a power cut or not.",
        Edit(
            "Trimmer._look",
            "self._tables.start_barrier(runner.channel, partial(self._on_barrier, work))",
            "self._on_barrier(work, Barrier(self._tables.applied_seq(runner.channel), "
            "self._tables.base_max(runner.channel)), now_ms)",
        ),
        CUT_OFF,
    ),
    mutation(
        "S6.5-open-attempts",
        "A barrier forgets the staged rows of the state that it makes durable.",
        Edit(
            "SimTables.base_max",
            "applied if needed is None else Seq(min(applied, needed - 1))",
            "applied",
        ),
        directed(ENGINE + "i1_open_attempt_holds_the_base_until_its_batch_is_applied"),
        STAGED,
    ),
    mutation(
        "S6.6-slow-replica",
        "Records go that another replica still lacks.",
        Edit("Floors.lowest", "not floor.is_given_up and floor.seq < limit", "False"),
        directed(ENGINE + "records_stay_for_a_replica_that_is_behind_until_there_are_too_many"),
    ),
    mutation(
        "S6.6-never-heard",
        "A replica of which nothing was heard yet lacks nothing.",
        Edit(
            "Floors._slow_replicas",
            "runner.core.base.seq if position is None else position.applied_seq",
            "runner.core.last_seq if position is None else position.applied_seq",
        ),
        directed(ENGINE + "s6_5_replica_that_was_never_heard_of_holds_everything"),
    ),
    mutation(
        "S6.6-stale-word",
        "A replica whose last report is older than the base is taken for one that was given up.",
        Edit(
            "Floors._judged",
            "floor.seq < core.base.seq and key in self._given_up",
            "floor.seq < core.base.seq",
        ),
        directed(ENGINE + "last_word_of_a_replica_from_before_a_base_holds_that_base"),
    ),
    mutation(
        "retention-bound",
        "A dead replica has the logs of the others grow for ever.",
        Edit("Floors._judged", "held <= floor.bytes_max and not self._is_overfull()", "True"),
        directed(ENGINE + "records_stay_for_a_replica_that_is_behind_until_there_are_too_many"),
    ),
    mutation(
        "retention-reader",
        "Changes go while somebody reads them.",
        Edit("ChangeReaders.positions", "of_channel == channel", "False"),
        directed(ENGINE + "records_stay_for_a_reader_of_changes_that_asks_here"),
    ),
    mutation(
        "retention-readers-many",
        "Every connection that ever read changes is remembered.",
        Edit("ChangeReaders.asked", "len(self._asked) > READERS_MAX", "False"),
        directed(READERS + "no_more_readers_are_remembered_than_the_bound_says"),
    ),
    mutation(
        "retention-given-up",
        "Floors that were given up are remembered when their owners are long gone.",
        Edit("Floors._forget_others", "key[1:] not in owners", "False"),
        directed(FLOORS + "floors_that_were_given_up_are_forgotten_with_their_owners"),
    ),
    mutation(
        "retention-table",
        "How much log a table asks for counts for nothing.",
        Edit(
            "Trimmer._kept_most",
            "node.channel_records if own.retention_records is None else own.retention_records",
            "node.channel_records",
        ),
        directed(TRIMMER + "retention_of_a_table_counts_instead_of_the_nodes"),
    ),
    mutation(
        "retention-table-edit",
        "A node goes by what a table asked for when it was opened.",
        Edit("CatalogController._follow", "runner.table_settings = table.settings", ""),
        directed(
            SETTINGS + "gap_10_retention_of_a_table_is_changed_on_every_replica_without_a_restart"
        ),
    ),
    mutation(
        "retention-single",
        "The log of the only replica is cut, which its tables are built from after damage.",
        Edit(
            "Trimmer._may_trim",
            "self._settings.single_replica or len(core.config().members) > 1",
            "True",
        ),
        directed(ENGINE + "log_of_the_only_replica_is_trimmed_only_if_asked[False]"),
    ),
    mutation(
        "retention-carry",
        "A channel without records keeps the oldest segment for ever.",
        Edit("Trimmer._carry", "log.rebase(runner.channel, runner.core.base)", ""),
        directed(ENGINE + "idle_channel_does_not_keep_the_segments_of_the_others"),
    ),
    mutation(
        "retention-again",
        "A segment that waits to be removed is removed once more.",
        Edit(
            "SegmentLog.begin_floor",
            "sorted(number for number in self._segments if number >= self._floor)",
            "sorted(self._segments)",
        ),
        directed(FLOOR + "floor_that_rises_again_before_it_is_durable_removes_each_segment_once"),
    ),
)
