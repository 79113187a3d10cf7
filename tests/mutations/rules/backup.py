"""Mutations of backups: of which state one is, and what keeps part of a table from being taken for
the whole."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

ENGINE = "tests/unit/engine/catalog/test_restoring.py::test_"
READ = ENGINE + "gap_12_part_of_a_table_is_never_read"
WRITTEN = ENGINE + "gap_12_nobody_else_writes_to_a_table_that_is_not_whole"
CLIENT = "tests/integration/client/test_backup.py::test_"
AT_ONCE = "tests/integration/client/test_restores_at_once.py::test_restore_that_another_one_"
KILLED = CLIENT + "killed_restore_is_never_whole_and_goes_on_when_it_is_repeated[CommitBatch]"
STATES = "tests/unit/backup/test_states.py::test_"
DECIDED = STATES + "s10_answer_is_of_the_state_whose_batches_it_decided"
MANIFEST = "tests/unit/backup/test_manifest.py::test_"
PLACE = "tests/unit/backup/test_repository.py::test_"

REMOVING = "tests/unit/backup/test_removing.py::test_"

BACKUP_RULES: tuple[Mutation, ...] = (
    mutation(
        "backup-mark",
        "A table that is being restored is served before it is whole.",
        Edit("restoring_refusal", "runner.table_settings.restoring is None", "True"),
        directed(READ),
    ),
    mutation(
        "backup-read",
        "Rows of a table that is being restored are read by key.",
        Edit(
            "Reader._refusal",
            "self.serving_refusal(runner) or restoring_refusal(runner) or "
            "kind_refusal(request, runner) or too_many_keys(request, "
            "self._settings.get_keys_max) or bounds_problem(bounds_of_request(request))",
            "self.serving_refusal(runner) or too_many_keys(request, "
            "self._settings.get_keys_max) or bounds_problem(bounds_of_request(request))",
        ),
        directed(READ),
    ),
    mutation(
        "backup-changes",
        "Changes of a table that is being restored are shown.",
        Edit(
            "ChangeFeeds.on_request",
            "self._reader.serving_refusal(runner) or restoring_refusal(runner)",
            "self._reader.serving_refusal(runner)",
        ),
        directed(READ),
    ),
    mutation(
        "backup-snapshot",
        "A snapshot of a table that is being restored is opened.",
        Edit(
            "CommitReads._try_answer",
            "self._reader.serving_refusal(runner) or restoring_refusal(runner)",
            "self._reader.serving_refusal(runner)",
        ),
        directed(READ),
    ),
    mutation(
        "backup-at-once",
        "A restore that another one overtook says that what that one made has to be dropped.",
        Edit("Target.refuse_over_existing", "self._is_from_here()", "False"),
        directed(AT_ONCE + "overtook_names_it_and_says_that_nothing_is_left"),
    ),
    mutation(
        "backup-taken-over",
        "A restore whose batch another one took over says that some driver has to be stopped.",
        Edit("Target.beside_others", "(AttemptClosedError, WriterFencedError)", "()"),
        directed(
            "tests/integration/client/test_restores_at_once.py::"
            "test_restore_whose_batch_another_one_took_over_names_it_and_may_be_repeated"
        ),
    ),
    mutation(
        "backup-put",
        "A row that was acknowledged while its table was restored is overwritten by an older one.",
        Edit(
            "RequestHandler.on_publish",
            "refusal is None and message.kind not in _BY_RESTORES",
            "False",
        ),
        directed(WRITTEN),
    ),
    mutation(
        "backup-begin",
        "A stream begins in a table that is being restored, before its last batch is known.",
        Edit(
            "Coordinator._begin",
            "request.uuid.hex() != table.runner.table_settings.restoring",
            "False",
        ),
        directed(WRITTEN),
    ),
    mutation(
        "backup-dropped",
        "A table that was dropped cannot be restored with its writers.",
        Edit("Coordinator._begin", "verdict is None and restoring is None", "verdict is None"),
        directed(ENGINE + "restore_brings_back_writers_of_a_table_that_was_dropped"),
    ),
    mutation(
        "backup-set",
        "A table that is served is marked as one that is being restored.",
        Edit("_value_problem", "name == RESTORING", "False"),
        directed(ENGINE + "table_that_was_served_is_never_marked"),
    ),
    mutation(
        "backup-token",
        "A table is marked with what no attempt can name.",
        Edit("settings_problem", "restoring_problem(settings.restoring)", "None"),
        directed(ENGINE + "what_is_no_token_is_refused"),
    ),
    mutation(
        "backup-level",
        "A node that does not know the mark serves part of a table.",
        Edit(
            "created_format",
            "entry.durability != Durability.FSYNC.label or entry.settings.restoring is not None",
            "entry.durability != Durability.FSYNC.label",
        ),
        directed(ENGINE + "table_is_not_restored_while_a_node_would_serve_part_of_it"),
    ),
    mutation(
        "backup-state",
        "A writer's last batch is that of another state than the rows.",
        Edit("is_of_state", "tuple(decided) == tuple(vector)", "True"),
        directed(DECIDED),
    ),
    mutation(
        "backup-page",
        "A batch that was decided between two answers about writers counts as one of the state.",
        Edit(
            "is_of_state",
            "is_same and all(view.last_n < reported.next_commit for view in reported.writers)",
            "is_same",
        ),
        directed(DECIDED),
    ),
    mutation(
        "backup-unchanged",
        "A partition that moved is taken over from the backup before.",
        Edit(
            "_Creation._unchanged",
            "(before.term, before.seq) != (token.terms[number], token.seqs[number])",
            "False",
        ),
        directed(CLIENT + "unchanged_partition_is_not_read_again"),
    ),
    mutation(
        "backup-columns",
        "Files of a backup differ in their columns.",
        Edit(
            "_Creation.table",
            "known is not None and known.definition.schema_json != definition.schema_json",
            "False",
        ),
        directed(CLIENT + "columns_that_were_appended_are_in_all_files_of_the_next_backup"),
    ),
    mutation(
        "backup-anew",
        "Rows of a table that was dropped come with the definition of the next one of its name.",
        Edit("_Creation.table", "info.uuid != snapshot.token.table_uuid", "False"),
        directed(CLIENT + "table_that_is_made_anew_while_it_is_read_is_no_backup"),
    ),
    mutation(
        "backup-cut",
        "A file has as many rows as a partition.",
        Edit(
            "cut",
            "_is_cut(item[0]) or len(items) >= FILE_ROWS_MAX or size >= FILE_BYTES_MAX",
            "_is_cut(item[0])",
        ),
        directed(STATES + "files_are_bounded_in_rows_and_bytes"),
    ),
    mutation(
        "backup-manifest",
        "A manifest with a flipped digit is believed.",
        Edit("decode_manifest", "manifest.checksum != _checksum(manifest)", "False"),
        directed(MANIFEST + "every_changed_number_is_found"),
    ),
    mutation(
        "backup-newer",
        "A manifest of a later version is read as if it were of this one.",
        Edit("decode_manifest", "number > FORMAT", "False"),
        directed(MANIFEST + "newer_format_is_refused_before_anything_else_is_read"),
    ),
    mutation(
        "backup-path",
        "A manifest names a file elsewhere, which is read.",
        Edit(
            "decode_manifest",
            "not _SHA256.fullmatch(file.sha256) or file.path != path_of(file.sha256)",
            "False",
        ),
        directed(MANIFEST + "file_lies_where_its_hash_says_and_nowhere_else"),
    ),
    mutation(
        "backup-hash",
        "Rows of a damaged file are restored.",
        Edit("Repository.get", "digest != file.sha256", "False"),
        directed(PLACE + "damaged_file_is_named_with_both_hashes"),
    ),
    mutation(
        "backup-size",
        "A file that was cut off counts as written.",
        Edit("Repository.has", "self.size(file.path) == file.bytes", "True"),
        directed(PLACE + "file_of_another_size_is_written_again"),
    ),
    mutation(
        "backup-over",
        "A backup is restored over a table that exists.",
        Edit(
            "Target.refuse_over_existing",
            "found is not None and found.settings.restoring is None",
            "False",
        ),
        directed(CLIENT + "restore_over_a_table_is_refused_before_anything_is_made"),
    ),
    mutation(
        "backup-mixed",
        "Rows of two backups are mixed in a table.",
        Edit("Target._refuse_other_token", "found.settings.restoring != self._token", "False"),
        directed(CLIENT + "restore_of_another_backup_does_not_go_on_with_a_table"),
    ),
    mutation(
        "backup-again",
        "A restore that is repeated stages a batch that is in the table.",
        Edit("TableRestore.fill", "number > written", "True"),
        Edit("TableRestore._begin", "None if ticket.is_already_written else ticket", "ticket"),
        directed(KILLED),
    ),
    mutation(
        "backup-expired",
        "Rows whose time is over come back.",
        Edit("TableRestore._stage", "row.expires_ms and row.expires_ms <= now_ms", "False"),
        directed(CLIENT + "rows_live_as_long_as_they_would_have"),
    ),
    mutation(
        "backup-for-ever",
        "Rows without a lifetime get the table's.",
        Edit("TableRestore._stage", "ttl=ttl,", "ttl=ttl or None,"),
        Edit("TableRestore._write", "ttl=0,", "ttl=60,"),
        directed(CLIENT + "rows_live_as_long_as_they_would_have"),
    ),
    mutation(
        "backup-rm-shared",
        "A removed backup takes files with it that others need.",
        Edit("remove_backups", "path not in kept", "True"),
        directed(REMOVING + "removed_backup_takes_only_files_with_it_that_no_other_one_needs"),
    ),
    mutation(
        "backup-rm-unread",
        "Files are removed that a backup may need whose manifest cannot be read.",
        Edit("_others", "isinstance(manifest, BackupError)", "False"),
        directed(REMOVING + "backup_that_cannot_be_read_keeps_all_files"),
    ),
    mutation(
        "backup-rm-renamed",
        "A backup whose folder was renamed loses its files with the next removal.",
        Edit("_others", "place.renamed()", "()"),
        directed(REMOVING + "renamed_backup_keeps_all_files_until_it_is_taken_away"),
    ),
    mutation(
        "backup-base-of-others",
        "Where two clusters use a place, each reads everything again at every backup.",
        Edit("_newest", "any(uuid in wanted for uuid in held)", "True"),
        directed(CLIENT + "backup_of_other_tables_is_no_base"),
    ),
    mutation(
        "backup-rm-creation",
        "Files are removed while a backup is made that counts on them.",
        Edit("removal", '("create", "rm")', '("rm",)'),
        directed(REMOVING + "nothing_is_removed_while_a_backup_is_made"),
    ),
    mutation(
        "backup-rm-forced",
        "A backup exists whose files were taken while it was made.",
        Edit("create_backup", "not claim.is_there()", "False"),
        directed(CLIENT + "backup_whose_files_were_taken_meanwhile_is_none"),
    ),
)
