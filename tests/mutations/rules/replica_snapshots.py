"""Mutations of replica snapshots: a table or a base taken from another replica."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.rules.drawn_worlds import COPIED, TRIMMED
from tests.mutations.syntax import Edit

WORLDS = "tests/unit/engine/snapshots/test_replica_snapshots.py::test_"
WAITING = "tests/unit/engine/snapshots/test_waiting_for_a_place.py::test_"
SENDER = "tests/unit/engine/snapshots/test_snapshot_sender.py::test_"
ENDINGS = "tests/unit/engine/snapshots/test_snapshot_endings.py::test_"
ANYWHERE = "tests/unit/engine/snapshots/test_bases_from_anywhere.py::test_"
REST = "tests/unit/engine/snapshots/test_snapshot_rest.py::test_"
LESSONS = "tests/simulation/test_lessons.py::test_lesson_"
COPY = "tests/unit/storage/tables/test_table_copy.py::test_"
DATABASES = "tests/unit/storage/tables/test_table_databases.py::test_"
STEPS = "tests/unit/storage/tables/test_copy_steps.py::test_"
RESTS = "tests/unit/storage/test_giving_way.py::test_"
ATTEMPTS = "tests/unit/engine/snapshots/test_attempts.py::test_"
COPIES = "tests/unit/storage/tables/test_table_copies.py::test_"
PLACES = "tests/unit/engine/snapshots/test_places.py::test_"
LARGE = "tests/unit/engine/snapshots/test_large_tables.py::test_"

REPLICA_SNAPSHOT_RULES: tuple[Mutation, ...] = (
    mutation(
        "S6.6-close-waits",
        "A node stands still while LevelDB ends what it writes of a copied table.",
        Edit(
            "close_while_serving",
            "with suppress(*DATABASE_ERRORS):\n        database.compact_range(start=BEHIND_ALL)",
            "",
        ),
        directed(COPY + "database_that_was_filled_is_waited_for_before_it_is_closed"),
    ),
    mutation(
        "S6.6-old-table-waits",
        "A node stands still while LevelDB ends what it writes of a dropped or replaced table.",
        Edit("LevelDbTables._remove", "database.close(close_while_serving)", "database.close()"),
        directed(DATABASES + "node_goes_on_beside_the_end_of_a_table"),
    ),
    mutation(
        "S6.6-no-rests",
        "Copies give no way to a main loop that is late.",
        Edit("CopySteps._take_in", "self.giving_way.took_in(since_s)", "pass"),
        directed(STEPS + "thread_of_copies_rests_before_its_next_step_while_the_main_loop_is_late"),
    ),
    mutation(
        "S6.6-waits-are-work",
        "Copies rest for the time that they waited for a processor, too.",
        Edit(
            "CopySteps.give_way_by",
            "GivingWay(self._rest_times_max, clock_s, worked_s, self._is_closing.wait, requests)",
            "GivingWay(self._rest_times_max, clock_s, clock_s, self._is_closing.wait, requests)",
        ),
        directed(STEPS + "waiting_for_a_processor_is_no_work"),
    ),
    mutation(
        "S6.6-one-sends-all",
        "All tables are asked of one node while another one sends nothing.",
        Edit("Attempts.source", "not turn", "False"),
        directed(ATTEMPTS + "tables_come_evenly_from_all_nodes"),
    ),
    mutation(
        "S6.6-large-tables-at-once",
        "Large tables come to a node beside each other.",
        Edit("Places.is_full", "each.is_large and each.moved_ms > since_ms", "False"),
        directed(PLACES + "large_tables_come_one_after_the_other"),
    ),
    mutation(
        "S6.6-unknown-is-small",
        "A table of which nobody knows yet how large it is counts as a small one.",
        Edit("Transfer.is_large", "return self.stage is not Stage.ENDING", "return False"),
        directed(PLACES + "table_of_which_no_offer_says_how_large_it_is_may_be_large"),
    ),
    mutation(
        "S6.6-waits-for-what-stands",
        "All tables of a node wait for one whose sender hangs.",
        Edit("Places.is_full", "each.moved_ms > since_ms", "True"),
        directed(PLACES + "large_table_that_does_not_move_keeps_nobody"),
    ),
    mutation(
        "S6.6-moves-and-nobody-knows",
        "A large table that takes long counts as one that stands.",
        Edit("SnapshotReceiver.step", "self.places.moved(transfer, now_ms)", "pass"),
        directed(LARGE + "large_table_is_waited_for_until_it_was_read_back"),
    ),
    mutation(
        "S6.6-waits-for-what-is-slow",
        "All tables of a node wait for one whose sender has a bad disk.",
        Edit("Places.moved", "transfer.bytes - transfer.moved_bytes >= SMALL_BYTES", "True"),
        directed(LARGE + "large_table_that_comes_slowly_is_not_waited_for"),
    ),
    mutation(
        "S6.6-catalog-waits",
        "The catalog of a node waits behind its tables.",
        Edit("Places.is_full", "runner.name == METADATA_NAME", "False"),
        directed(PLACES + "catalog_waits_for_no_table"),
    ),
    mutation(
        "S6.6-rests-for-nobody",
        "Copies to a node that nobody asks for anything rest because its main loop is late.",
        Edit("GivingWay.took_in", "self._is_asked(now_s)", "True"),
        directed(RESTS + "nothing_rests_where_nobody_asks"),
    ),
    mutation(
        "S6.6-rest-of-another-thread",
        "A thread of copies rests for what another one worked.",
        Edit(
            "GivingWay.__init__",
            "_Thread()",
            "__import__('types').SimpleNamespace(rested_at_s=0.0)",
        ),
        directed(RESTS + "each_thread_rests_for_what_it_worked_itself"),
    ),
    mutation(
        "S6.4-two-steps-at-once",
        "Two steps of one copy are done at a time.",
        Edit("CopySteps.start", "channel in self._queued", "channel in ()"),
        directed(
            STEPS + "steps_of_a_channel_are_done_one_after_the_other_and_those_of_another_"
            "beside_them"
        ),
    ),
    mutation(
        "S6.6-free-place",
        "A channel that waits for a place among the copies looks once a second.",
        Edit("Places.wake", "self._deadlines.push(channel, now_ms)", "pass"),
        directed(WAITING + "channel_without_a_place_begins_when_one_is_free"),
    ),
    mutation(
        "S6.6-base-waits",
        "The base that a copied table needs waits for a place among the tables that are copied.",
        Edit("SnapshotReceiver._begin", "self._is_base_enough(runner)", "False"),
        directed(WAITING + "base_waits_for_no_place_among_the_tables"),
    ),
    mutation(
        "S6.6-endless-rests",
        "Copies rest for ever longer, the later the main loop is.",
        Edit(
            "GivingWay.rest_s",
            "min(self._late_s / LATE_S, self._rest_times_max)",
            "self._late_s / LATE_S",
        ),
        directed(RESTS + "the_later_the_main_loop_is_the_longer_is_the_rest"),
    ),
    mutation(
        "S6.4-half-table",
        "Half a copied table serves: a generation counts although it is not said to be complete.",
        Edit(
            "is_complete",
            "not generation.number or (tables / generation.name / COMPLETE_NAME).exists()",
            "True",
        ),
        directed(COPIES + "stop_at_any_step_leaves_the_former_table_or_the_copied_one"),
    ),
    mutation(
        "S6.4-former-table",
        "The former table comes back when the copied one that replaced it is damaged.",
        Edit(
            "TablesDirectory._channels",
            "number not in (current, begun)",
            "number > current and number != begun",
        ),
        directed(COPIES + "stop_at_any_step_leaves_the_former_table_or_the_copied_one"),
    ),
    mutation(
        "S6.4-copy-read-back",
        "A copied table may hold keys that are not its channel's.",
        Edit(
            "LevelDbCopy._take_in",
            "key[:cut] != channel",
            "False",
        ),
        directed(COPIES + "keys_of_another_channel_are_found_when_a_copy_is_read_back"),
    ),
    mutation(
        "S6.4-base-replaces",
        "A base replaces all that is in the log, records behind it that were acknowledged too.",
        Edit("entry_of", "not continues(index, base)", "True"),
        TRIMMED,
    ),
    mutation(
        "S6.4-half-copied",
        "A copy is switched to with its first chunk.",
        Edit("ChunkTaking._written", "chunk.is_last", "True"),
        Edit("SnapshotReceiver._verified", "found != expected", "False"),
        Edit("SnapshotReceiver.have_all", "transfer.parts.digest() != last.all_digest", "False"),
        COPIED,
    ),
    mutation(
        "S0.3-damage-sent",
        "A damaged row is sent on to another replica.",
        Edit(
            "LevelDbReads.copy_page",
            "check_pairs(channel, keys, values)",
            "",
        ),
        directed(COPIES + "damage_at_the_sender_is_found_before_it_is_sent"),
    ),
    mutation(
        "S0.3-rows-at-once",
        "Rows that are checked many at once are taken to be well.",
        Edit("check_pairs", "not _are_well(keys[at:end], stored[at:end])", "False"),
        directed("tests/unit/storage/tables/test_pair_checks.py::test_damaged_row_is_named"),
    ),
    mutation(
        "S0.4-replaced-readers",
        "A table that a copy replaced is never removed.",
        Edit(
            "LevelDbTables.install",
            "self._applier.enqueue_job(former.retire)",
            "",
        ),
        directed(COPIES + "reader_of_the_former_table_goes_on_and_then_it_is_removed"),
    ),
    mutation(
        "S12-chunk",
        "A chunk that is not what its sender read is written.",
        Edit(
            "_write_pairs",
            "digest_of_pairs(pairs) == chunk.digest",
            "True",
        ),
        directed(WORLDS + "damaged_chunk_is_asked_for_again"),
    ),
    mutation(
        "S6.4-read-back",
        "A copied table is switched to whatever was read back of it.",
        Edit(
            "SnapshotReceiver._verified",
            "found != expected",
            "False",
        ),
        directed(WORLDS + "table_that_was_not_read_back_as_it_was_sent_is_not_switched_to"),
    ),
    mutation(
        "S6.2-snapshot",
        "A base of the former leader is taken under the next one.",
        Edit(
            "SnapshotReceiver.leader_changed",
            "transfer is not None and transfer.stage in (Stage.LOOKING, Stage.ASKING)",
            "False",
        ),
        directed(ENDINGS + "change_of_leader_ends_what_was_begun"),
    ),
    mutation(
        "S6.4-divergent-tail",
        "A tail beside another replica's table counts as committed, though it is no part of it.",
        Edit(
            "ChannelState._rebuild",
            "applied_seq if holds_applied else self.base.seq",
            "applied_seq",
        ),
        directed(
            WORLDS + "tail_that_is_no_part_of_the_channel_goes_with_the_snapshot",
            LESSONS + "3_snapshot_over_a_divergent_tail_is_installed_once",
        ),
        TRIMMED,
    ),
    mutation(
        "S6.4-tail-stays",
        "Records of another term stay behind a base that is taken.",
        Edit("entry_of", "not continues(index, base)", "False"),
        directed(LESSONS + "3_snapshot_over_a_divergent_tail_is_installed_once"),
    ),
    mutation(
        "S6.4-waiting-reads",
        "A read that waits at a replica that is replaced gets nothing until its deadline.",
        Edit("Reader.on_channel_opened", "self.on_refused(token, *refusal)", "pass"),
        directed(LESSONS + "6_reads_that_wait_below_an_installed_snapshot_are_answered"),
    ),
    mutation(
        "S6.4-waiting-sessions",
        "So does a session that waits for its own writes.",
        Edit("CommitReads.on_channel_opened", "self._try_answer(waiting, now_ms)", "False"),
        directed(LESSONS + "6_reads_that_wait_below_an_installed_snapshot_are_answered"),
    ),
    mutation(
        "S6.4-not-dropped",
        "Requests that wait for a table that is replaced learn that it was dropped.",
        Edit(
            "CatalogController.reopen",
            "table is not None or channel == self.metadata_channel",
            "False",
        ),
        directed(LESSONS + "6_reads_that_wait_below_an_installed_snapshot_are_answered"),
    ),
    mutation(
        "S0.3-lost-table",
        "A replica that lacks rows takes the leader's base, and nobody gives it the rows.",
        Edit(
            "takes_base",
            "not lacking.lacks_rows and (is_reached or lacking.is_unfilled)",
            "is_reached or lacking.is_unfilled",
        ),
        directed(WORLDS + "base_is_taken_as_far_as_the_table_allows"),
    ),
    mutation(
        "S6.5-base-staged",
        "A base is taken above the oldest staged record that the table refers to.",
        Edit(
            "why_no_base",
            "lacking.lacks_rows or base_seq > lacking.base_max",
            "lacking.lacks_rows",
        ),
        directed(WORLDS + "base_never_goes_down_nor_above_what_the_table_has"),
    ),
    mutation(
        "S6.5-table-staged",
        "A table is taken that refers to staged records below the base of the log here.",
        Edit(
            "why_no_table",
            "base_max < lacking.base_seq",
            "False",
        ),
        directed(WORLDS + "table_is_taken_if_it_is_newer_and_this_log_has_what_it_refers_to"),
    ),
    mutation(
        "S0.4-snapshot-kept",
        "The snapshot of a receiver that is gone is kept for ever.",
        Edit(
            "SnapshotSender.on_timer",
            "self._end(self.sessions[number])",
            "",
        ),
        directed(WORLDS + "snapshot_that_nobody_asks_for_is_closed"),
    ),
    mutation(
        "S12-chunks-repeated",
        "A receiver that repeats a question fills the sender's memory with copies of one chunk.",
        Edit(
            "SnapshotSender.on_ask_chunk",
            "request.number not in under_way and len(under_way) < CHUNKS_ASKED_MAX",
            "request.number not in session.wanted and len(session.wanted) < CHUNKS_ASKED_MAX",
        ),
        directed(SENDER + "receiver_that_repeats_itself_gets_each_chunk_once"),
    ),
    mutation(
        "S12-snapshot-level",
        "A node that does not know replica snapshots is asked for one.",
        Edit(
            "SnapshotParts.knows",
            "node in self.nodes_at_level(SNAPSHOT_LEVEL)",
            "True",
        ),
        directed(WORLDS + "node_of_an_older_version_is_not_asked"),
    ),
    mutation(
        "O6-copied-votes",
        "A replica whose copied table is ahead of its log does not vote, though it lost nothing.",
        Edit("Replica.may_vote", "is_able and state.keeps_promises", "False"),
        directed(WORLDS + "replica_between_table_and_base_helps_to_elect_a_leader"),
    ),
    mutation(
        "S0.3-copied-votes",
        "A replica with a copied table votes, though its log lacks what it acknowledged.",
        Edit(
            "FoundTable.keeps_promises",
            "recovered.shortfall is None and (self.ahead is None or self.is_copied)",
            "self.ahead is None or self.is_copied",
        ),
        directed(
            "tests/unit/core/test_base.py::test_"
            "s0_3_replica_that_lacks_what_it_acknowledged_does_not_vote[mark]"
        ),
    ),
    mutation(
        "S0.3-own-table-votes",
        "A replica votes whose own table proves that its log lost records.",
        Edit("FoundTable.keeps_promises", "self.ahead is None or self.is_copied", "True"),
        directed(
            "tests/unit/core/test_base.py::test_"
            "s0_3_replica_that_lacks_what_it_acknowledged_does_not_vote[own table]"
        ),
    ),
    mutation(
        "S6.5-staged-at-start",
        "A replica starts whose open attempts refer to records in front of its base.",
        Edit(
            "FoundTable.lacks_rows",
            "applied_seq if self.base_max is None else self.base_max",
            "applied_seq",
        ),
        directed(
            "tests/unit/core/test_base.py::test_i1_staged_rows_below_the_base_are_lacking_rows"
        ),
    ),
    mutation(
        "S6.4-rest-digest",
        "The rest of a table is sent behind first pairs that are not this table's.",
        Edit(
            "SnapshotSender._compared",
            "ResumePoint(chunks.starts[0] or b'', digest.pairs, digest.digest()) == rest",
            "True",
        ),
        directed(REST + "rest_behind_other_pairs_is_refused"),
    ),
    mutation(
        "S6.4-rest-position",
        "The rest of a table is sent from another position.",
        Edit("SnapshotSender._why_not_at", "here != position", "False"),
        directed(REST + "rest_of_a_table_that_is_not_here_is_refused_with_the_positions"),
    ),
    mutation(
        "S6.4-rest-trusted",
        "What an earlier life wrote of a copy counts without being read back.",
        Edit(
            "LevelDbCopy._read",
            "self._digest, self._position, self._last_key = CopyDigest(), EMPTY_HISTORY, b''",
            "",
        ),
        directed(COPIES + "copy_of_an_earlier_life_is_gone_on_with"),
    ),
    mutation(
        "S12-rest-level",
        "A node that does not know how to go on with a table is asked to.",
        Edit(
            "SnapshotParts.send",
            "isinstance(message, AskSnapshotRest)",
            "False",
        ),
        directed(REST + "question_is_not_repeated_to_a_node_that_came_back_as_an_older_version"),
    ),
    mutation(
        "O6-rest-for-ever",
        "A copy whose rest nobody has is asked for and for, and never begun anew.",
        Edit(
            "SnapshotReceiver._why_begin_anew",
            "reason is None and tries > len(self._parts.sources(transfer.runner))",
            "False",
        ),
        directed(REST + "each_replica_is_asked_for_the_rest_the_leader_last_then_it_is_begun_anew"),
    ),
    mutation(
        "S6.4-rest-lost",
        "A restart throws away what was copied.",
        Edit("TablesDirectory._channels", "number not in (current, begun)", "number != current"),
        directed(COPIES + "copy_of_an_earlier_life_is_gone_on_with"),
    ),
    mutation(
        "S6.4-switch-name",
        "A start removes a table for another one that a power cut would take back.",
        Edit(
            "TablesDirectory._channels",
            "self._ops.sync_directory(self.path / Generation(channel, current).name)",
            "pass",
        ),
        directed(
            "tests/unit/storage/tables/test_tables_directory.py::"
            "test_copied_table_counts_durably_before_the_one_it_replaces_is_removed"
        ),
    ),
    mutation(
        "S0.3-damaged-given",
        "A replica gives others a table that it is replacing because it is damaged.",
        Edit("SnapshotSender._refusal", "self._is_damaged(channel)", "False"),
        directed(REST + "table_that_is_to_be_replaced_here_is_given_to_nobody"),
    ),
    mutation(
        "S0.3-recovering-given",
        "A replica that lacks something gives others its table and its base.",
        Edit("SnapshotSender._refusal", "runner.core.is_recovering", "False"),
        directed(
            SENDER + "only_a_replica_that_serves_the_channel_gives_its_table",
            SENDER + "only_a_replica_that_serves_the_channel_gives_its_base",
        ),
    ),
    mutation(
        "S0.3-base-of-members",
        "A hole is covered by members of the configuration in front of it alone, and no witness.",
        Edit(
            "SnapshotReceiver._begin",
            "self._parts.sources(runner, anywhere=is_unfilled)",
            "self._parts.sources(runner)",
        ),
        directed(ANYWHERE + "hole_is_covered_by_the_only_node_that_is_whole"),
    ),
    mutation(
        "S6.4-overtaken",
        "A table that the log has brought further goes back to what was copied before.",
        Edit("is_overtaken", "position.seq <= applied_seq", "False"),
        directed(
            "tests/unit/engine/snapshots/test_snapshot_receiver.py::"
            "test_copy_that_the_log_has_overtaken_is_not_switched_to[False]"
        ),
    ),
    mutation(
        "S6.4-damaged-overtaken",
        "A damaged table stays because its log has come further than the copy.",
        Edit("is_overtaken", "not lacks_rows", "True"),
        directed(
            "tests/unit/engine/snapshots/test_snapshot_receiver.py::"
            "test_copy_that_the_log_has_overtaken_is_not_switched_to[True]"
        ),
    ),
    mutation(
        "O6-sender-silent",
        "A receiver waits a whole session for a sender that fell silent.",
        Edit("SnapshotReceiver._repeat", "not self._parts.is_up(transfer.source)", "False"),
        directed(
            REST + "sender_that_falls_silent_has_another_one_asked_long_before_the_session_ends"
        ),
    ),
    mutation(
        "O6-nobody-there",
        "A receiver asks a node that is down for a table, and waits for its answer.",
        Edit("SnapshotParts.sources", "self.is_up(node)", "True"),
        directed(REST + "replica_that_is_down_is_not_asked_for_a_table"),
    ),
    mutation(
        "O6-sender-died",
        "A receiver waits for a sender whose connection broke.",
        Edit(
            "SnapshotReceiver.peer_lost",
            "transfer.source == node and transfer.awaits_source",
            "False",
        ),
        directed(REST + "broken_connection_has_another_replica_asked_for_the_rest"),
    ),
    mutation(
        "S6.6-table-useless",
        "A table is taken behind which the leader's base cannot follow.",
        Edit("why_no_table", "base_max < lacking.trimmed_to - 1", "False"),
        directed(WORLDS + "table_is_taken_if_it_is_newer_and_this_log_has_what_it_refers_to"),
    ),
    mutation(
        "S12-late-question",
        "A question that came late ends the snapshot of the one that was asked since.",
        Edit("is_older", "0 < than - request_id < IDS_OF_A_LIFE", "False"),
        directed(REST + "late_question_of_the_same_life_changes_nothing"),
    ),
    mutation(
        "S0.4-copy-hangs",
        "A copy whose disk does not answer is waited for for ever.",
        Edit(
            "SnapshotReceiver._await_disk",
            "self.deadlines.push(transfer.runner.channel, transfer.give_up_ms)",
            "",
        ),
        directed(ENDINGS + "disk_that_does_not_answer_here_is_not_waited_for_for_ever"),
    ),
    mutation(
        "S12-base-size",
        "A base that no message holds is sent, which ends the connection.",
        Edit("SnapshotSender.on_ask_base", "len(base.folds) > BASE_BYTES_MAX", "False"),
        directed(REST + "base_that_no_message_holds_is_refused_with_its_size"),
    ),
    mutation(
        "O6-snapshot-ready",
        "A leader gives no snapshot before it has committed in its term, for which it may need it.",
        Edit(
            "SnapshotSender._refusal",
            "runner.core.is_recovering",
            "runner.core.is_recovering or not runner.core.leader_is_ready",
        ),
        directed(WORLDS + "leader_that_cannot_commit_without_the_receiver_gives_it_a_snapshot"),
    ),
    mutation(
        "S6.4-copy-let-go",
        "A sender keeps the files of a table for a receiver that has all of it.",
        Edit("SnapshotReceiver._ended", "self._let_go(transfer)", "pass"),
        directed(WORLDS + "sender_lets_its_snapshot_go_once_the_receiver_has_it"),
    ),
    mutation(
        "S6.4-copy-ended",
        "A sender takes the end of a copy for a question.",
        Edit(
            "SnapshotSender.on_ask_chunk",
            "0 <= session.chunks.last < request.number - CHUNKS_AHEAD",
            "False",
        ),
        directed(SENDER + "snapshot_goes_when_its_receiver_has_all_of_it"),
    ),
)
