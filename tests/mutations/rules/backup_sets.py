"""Mutations of backups of channel sets: that their state comes whole, once, and goes on behind all
that its source gave."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

ORIGIN = "tests/unit/state_machines/test_machine_origin.py::test_"
ENGINE = "tests/unit/engine/catalog/test_restoring_sets.py::test_"
CLIENT = "tests/integration/client/test_backup_of_sets.py::test_"
CODES = "tests/unit/engine/catalog/test_machine_codes.py::test_"
NUMBERS = ORIGIN + "seqs_terms_and_times_go_on_behind_all_that_were_given"
NOT_NEXT = ORIGIN + "a_portion_that_is_not_the_next_one_changes_nothing"
BEHIND = ORIGIN + "portions_behind_the_last_one_change_nothing"
PART = ORIGIN + "part_of_a_state_is_neither_asked_nor_commanded"
MALFORMED = ORIGIN + "a_portion_that_no_replica_can_apply_is_refused_before_it_is_sequenced"
EARLY = ENGINE + "gap_12_a_mark_that_is_gone_too_early_serves_no_part"
FOREIGN = ENGINE + "portions_of_another_restore_and_of_a_set_that_is_served_are_refused"
WHOLE = CLIENT + "gap_12_channel_sets_come_back_with_all_that_they_had"
PROOF = CLIENT + "a_set_is_not_served_unless_its_state_says_that_it_is_whole"
UNCHANGED = CLIENT + "unchanged_partitions_of_sets_are_not_read_again"
BEFORE = CLIENT + "everything_acknowledged_before_is_in_it"

STOPPED = CLIENT + "partition_whose_machine_stopped_ends_the_backup_at_once_with_its_reason"

BACKUP_SET_RULES: tuple[Mutation, ...] = (
    mutation(
        "set-backup-stopped",
        "A backup waits for a machine that stands at a command, and ends by a timeout.",
        Edit("ReadEngine._refused", "read.stopped is None and wait_ms is not None", "False"),
        directed(STOPPED),
    ),
    mutation(
        "set-backup-stopped-for-long",
        "A backup is not made, though another replica's machine goes on and leads in a moment.",
        Edit(
            "ReadEngine._refused",
            "min(read.deadline_ms, self._context.now_ms() + wait_ms)",
            "self._context.now_ms()",
        ),
        directed(CLIENT + "backup_waits_for_the_leader_whose_machine_goes_on"),
    ),
    mutation(
        "set-backup-seq",
        "A restored machine is given seqs that it was given before.",
        Edit("as_the_machine_sees", "seen_seq(record.last_seq, origin)", "record.last_seq"),
        directed(NUMBERS),
    ),
    mutation(
        "set-backup-term",
        "A restored machine is given terms that it was given before.",
        Edit("as_the_machine_sees", "record.term + origin.term_base", "record.term"),
        directed(NUMBERS),
    ),
    mutation(
        "set-backup-time",
        "Time goes back for a restored machine where clocks are behind those of the source.",
        Edit(
            "as_the_machine_sees", "max(record.timestamp_ms, head.time_ms)", "record.timestamp_ms"
        ),
        directed(NUMBERS),
    ),
    mutation(
        "set-backup-skipped",
        "Seqs that the source gave behind the backup are given again.",
        Edit("head_of", "source.machine_seq + SEQS_SKIPPED", "source.machine_seq"),
        directed(WHOLE),
    ),
    mutation(
        "set-backup-twice",
        "A portion that was given twice is applied twice.",
        Edit(
            "apply_portion",
            "portion.token == origin.token and portion.number < origin.portions",
            "False",
        ),
        Edit(
            "apply_portion",
            "origin.is_whole or portion.number != origin.portions",
            "origin.is_whole",
        ),
        directed(NOT_NEXT),
    ),
    mutation(
        "set-backup-order",
        "A portion is applied before those in front of it.",
        Edit(
            "apply_portion",
            "origin.is_whole or portion.number != origin.portions",
            "origin.is_whole",
        ),
        directed(NOT_NEXT),
    ),
    mutation(
        "set-backup-behind",
        "A portion overwrites what was acknowledged behind a restore.",
        Edit(
            "apply_portion",
            "origin.is_whole or portion.number != origin.portions",
            "portion.number != origin.portions",
        ),
        directed(BEHIND),
    ),
    mutation(
        "set-backup-mixed",
        "States of two backups are mixed.",
        Edit("apply_portion", "portion.token != origin.token", "False"),
        directed(NOT_NEXT),
    ),
    mutation(
        "set-backup-counted",
        "A state whose portions lack something is taken for the whole.",
        Edit("apply_portion", "counted != there", "False"),
        directed(NOT_NEXT),
    ),
    mutation(
        "set-backup-over",
        "A portion is applied by a channel set that no restore created.",
        Edit("UserMachine._portion", "not self._from_backup", "False"),
        directed(ORIGIN + "a_channel_set_that_no_restore_created_takes_no_portion"),
    ),
    mutation(
        "set-backup-part",
        "Part of a state is commanded.",
        Edit("UserMachine._ready", "self._origin is None or not self._origin.is_whole", "False"),
        directed(PART),
    ),
    mutation(
        "set-backup-version",
        "A version comes into force before there is a state, and makes a head without one.",
        Edit(
            "UserMachine.apply",
            "record.kind is RecordKind.MACHINE_STEP and not self.is_whole(view.state.get)",
            "False",
        ),
        directed(PART),
    ),
    mutation(
        "set-backup-answered",
        "A portion whose answer was lost is called one whose result is gone.",
        Edit(
            "UserMachine.kept_end",
            "kept is None and self._from_backup",
            "False",
        ),
        directed(ORIGIN + "a_portion_whose_answer_was_lost_is_answered_again"),
    ),
    mutation(
        "set-backup-check",
        "A portion is committed that no replica can apply.",
        Edit("UserMachine.check", "kind is RecordKind.MACHINE_RESTORE", "False"),
        directed(MALFORMED),
    ),
    mutation(
        "set-backup-seal",
        "A damaged value of a state is restored.",
        Edit("check_portion", "check_seal(key, sealed)", "None"),
        directed(MALFORMED),
    ),
    mutation(
        "set-backup-early",
        "A replica whose state is not whole answers once the catalog has no mark.",
        Edit("restoring_refusal", "runner.commands is None or runner.commands.is_whole", "True"),
        directed(EARLY),
    ),
    mutation(
        "set-backup-foreign",
        "A portion is taken of a restore that the channel set is not marked with.",
        Edit(
            "PublishJudge._restore_refusal",
            "token_of_portion(message.payload) == self._of.table_settings.restoring",
            "True",
        ),
        directed(FOREIGN),
    ),
    mutation(
        "set-backup-level",
        "A node that does not know where seqs go on takes part.",
        Edit(
            "created_format",
            "RESTORED_SET_FORMAT if entry.settings.from_backup else MACHINE_FORMAT",
            "MACHINE_FORMAT",
        ),
        directed(ENGINE + "channel_set_is_not_restored_while_a_node_would_go_on_by_other_numbers"),
    ),
    mutation(
        "set-backup-older",
        "A machine comes back where code is older than the version in force.",
        Edit("_restored_version", "code.version < highest", "False"),
        directed(CODES + "a_state_comes_back_only_where_all_can_go_on_with_it"),
    ),
    mutation(
        "set-backup-newer",
        "A machine comes back where code does not go back to the version in force.",
        Edit("_restored_version", "code.oldest_version > lowest", "False"),
        directed(CODES + "a_state_comes_back_only_where_all_can_go_on_with_it"),
    ),
    mutation(
        "set-backup-table",
        "Rows of a table are given as entries.",
        Edit(
            "ReplicaChecks.on_request",
            "isinstance(request, ReadEntries) and runner.commands is None",
            "False",
        ),
        directed(ENGINE + "rows_of_a_table_are_scanned_and_not_read_as_entries"),
    ),
    mutation(
        "set-backup-acknowledged",
        "A state is taken in front of what was acknowledged.",
        Edit(
            "AsyncChannelSetState.pin",
            "self._pin_at(info, partition, read.served.applied_seq, first)",
            "self._pin_at(info, partition, Seq(0), first)",
        ),
        directed(BEFORE),
    ),
    mutation(
        "set-backup-unchanged",
        "A partition of a channel set that moved is taken over from the backup before.",
        Edit(
            "SetCreation._unchanged",
            "known is None or (known.term, known.seq) != (pinned.term, pinned.seq)",
            "known is None",
        ),
        directed(UNCHANGED),
    ),
    mutation(
        "set-backup-anew",
        "The state of a channel set that was dropped has the name of the next one.",
        Edit("SetCreation.take", "self._client.channelset_info(name).uuid != info.uuid", "False"),
        directed(CLIENT + "a_set_that_is_made_anew_while_it_is_read_is_no_backup"),
    ),
    mutation(
        "set-backup-format",
        "A version before this one takes a backup with channel sets for a damaged one of tables.",
        Edit("create_backup", "FORMAT if of_sets else TABLES_FORMAT", "TABLES_FORMAT"),
        directed(CLIENT + "tables_alone_are_of_the_format_that_versions_before_read"),
    ),
    mutation(
        "set-backup-proof",
        "A channel set is served because its portions were answered, whatever its state is.",
        Edit(
            "SetRestore._fill",
            "origin is None or not origin.is_whole or origin.token.hex() != self._token",
            "False",
        ),
        directed(PROOF),
    ),
    mutation(
        "set-backup-guid",
        "A command of the source that is given again is applied again.",
        Edit("AsyncChannelSet._open_of", "raise expired", "pass"),
        directed(CLIENT + "a_guid_of_the_source_is_unknown_in_what_was_restored"),
    ),
    mutation(
        "set-backup-done",
        "A restore that is repeated goes over a channel set that is served.",
        Edit("SetRestore.is_done", "info.settings.restoring is not None", "True"),
        directed(CLIENT + "restore_that_died_between_the_marks_finishes_the_other"),
    ),
)
