"""Mutations of replica snapshots in files: the files of a table, kept, sent, taken and read."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

KEPT = "tests/unit/storage/tables/test_table_files.py::test_"
COPY = "tests/unit/storage/tables/test_files_copy.py::test_"
SENT = "tests/unit/engine/snapshots/test_files_sent.py::test_"
TAKEN = "tests/unit/engine/snapshots/test_files_taken.py::test_"
WORLDS = "tests/unit/engine/snapshots/test_tables_in_files.py::test_"

TABLE_FILES_RULES: tuple[Mutation, ...] = (
    mutation(
        "S6.4-version",
        "Files of a table are kept although LevelDB removed one of them meanwhile.",
        Edit("_link_version", "return None", "continue"),
        directed(KEPT + "version_that_goes_while_it_is_linked_is_not_believed"),
    ),
    mutation(
        "S6.4-file-size",
        "A file that is not as long as its MANIFEST says is given to another replica.",
        Edit("_link_version", "linked.stat().st_size != size", "False"),
        directed(KEPT + "file_that_is_not_as_long_as_it_was_is_not_given"),
    ),
    mutation(
        "S6.4-files-unflushed",
        "Files of a table are kept before its memory table is written out.",
        Edit(
            "Barriers.start",
            "barrier = self.take(channel, machine, database, shared)\nbehind()",
            "behind()\nbarrier = self.take(channel, machine, database, shared)",
        ),
        directed(KEPT + "files_have_all_that_was_applied_before"),
    ),
    mutation(
        "S6.4-files-shown",
        "The files of a table are given while a record is written to it in pieces.",
        Edit("LevelDbTables.start_files", "None if is_shown else path", "path"),
        directed(KEPT + "what_readers_are_not_shown_is_given_to_nobody"),
    ),
    mutation(
        "S6.4-half-record",
        "A table is taken with some pieces of a record.",
        Edit("LevelDbFilesCopy._take_rows", "MARKER in keys", "False"),
        directed(COPY + "what_is_no_table_of_the_channel_is_refused"),
    ),
    mutation(
        "NATS-169-links-session",
        "Files of a table stay after the session of the replica that copied it.",
        Edit(
            "SnapshotSender._close",
            "self._close_files(session.channel, session.chunks.kept)",
            "pass",
        ),
        directed(
            SENT + "files_go_when_nobody_asks_when_all_was_read_and_with_the_channel",
            WORLDS + "files_that_nobody_asks_for_are_let_go",
        ),
    ),
    mutation(
        "NATS-169-links-unserved",
        "Files of a table stay that were kept for a session that never began.",
        Edit(
            "SnapshotSender._open_files",
            "files is not None and (reason is not None or not request.in_files)",
            "False",
        ),
        directed(SENT + "files_that_are_not_served_in_the_end_are_let_go"),
    ),
    mutation(
        "NATS-169-links-stop",
        "Files of a table stay when the node stops.",
        Edit("KeptFiles.close", "files.close()", "pass"),
        directed(KEPT + "links_end_with_the_node_and_at_its_next_start"),
    ),
    mutation(
        "NATS-169-links-crash",
        "Files of a table stay for ever when the node was killed.",
        Edit(
            "TablesDirectory._clear_leftovers",
            "(REMOVING_SUFFIX, COPYING_SUFFIX)",
            "REMOVING_SUFFIX",
        ),
        directed(KEPT + "links_end_with_the_node_and_at_its_next_start"),
    ),
    mutation(
        "S12-part",
        "A part of a file is written that is not what its sender read.",
        Edit(
            "_write_part",
            "digest == part.digest",
            "True",
        ),
        directed(
            TAKEN + "part_that_is_not_what_it_says_is_asked_for_again",
            WORLDS + "damaged_part_is_asked_for_again",
        ),
    ),
    mutation(
        "S12-digests-unasked",
        "Parts of files have digests that the receiver does not know.",
        Edit(
            "SnapshotSender._open_files",
            "request.quick_digests",
            "True",
        ),
        directed(
            SENT + "parts_are_sent_in_order_with_their_digests_and_again_if_they_are_lost",
            WORLDS
            + "parts_have_quick_digests_unless_a_node_of_an_earlier_version_sends_them[True]",
        ),
    ),
    mutation(
        "S12-digests-untold",
        "A receiver takes digests of the kind that it asked for, whatever it is sent.",
        Edit(
            "SnapshotReceiver.on_offer",
            "offer.table_bytes, offer.quick_digests",
            "offer.table_bytes, True",
        ),
        directed(
            TAKEN + "digests_of_parts_are_of_the_kind_that_was_offered[False]",
            TAKEN + "files_are_written_read_and_switched_to",
        ),
    ),
    mutation(
        "S6.4-all-parts",
        "Files are opened that are not all that was sent.",
        Edit("SnapshotReceiver.have_all", "transfer.parts.digest() != last.all_digest", "False"),
        directed(TAKEN + "parts_that_are_not_all_that_was_sent_are_not_opened"),
    ),
    mutation(
        "S6.4-offered",
        "A table is switched to that is not as far as was offered.",
        Edit(
            "SnapshotReceiver._verified",
            "position.seq > offered.seq or position == offered",
            "True",
        ),
        directed(
            TAKEN + "table_is_as_far_as_was_offered_or_further",
            WORLDS + "table_that_is_not_as_far_as_was_offered_is_not_switched_to",
        ),
    ),
    mutation(
        "S13-file-seals",
        "Rows of files are not checked, by the sender nor by the receiver.",
        Edit("LevelDbFilesCopy._take_rows", "check_pairs(self.channel, keys, values)", "pass"),
        directed(COPY + "what_is_no_table_of_the_channel_is_refused"),
    ),
    mutation(
        "S13-file-keys",
        "A table is taken with keys that are not its channel's.",
        Edit("LevelDbFilesCopy._check_others", "key not in OWN_KEYS", "False"),
        directed(COPY + "what_is_no_table_of_the_channel_is_refused"),
    ),
    mutation(
        "S6.4-file-end",
        "A table in files is taken without its last rows, whose block is damaged.",
        Edit("LevelDbFilesCopy._read", "chain(found, errors_at_end(found))", "iter(found)"),
        directed(COPY + "file_that_is_missing_or_damaged_is_noticed_wherever_it_is"),
    ),
    mutation(
        "S13-file-names",
        "A peer names a file anywhere on the disk.",
        Edit("LevelDbFilesCopy.write_part", "not is_file_name(name)", "False"),
        directed(COPY + "name_that_is_no_files_leads_nowhere"),
    ),
    mutation(
        "S6.4-stray-file",
        "Files of another attempt stay in a table that is copied.",
        Edit(
            "LevelDbFilesCopy.finish",
            "path.name not in self._written and path.name != BEGUN_FILES_NAME",
            "False",
        ),
        directed(COPY + "file_of_another_attempt_goes_unless_the_sender_has_it"),
    ),
    mutation(
        "S6.4-file-synced",
        "A whole file has its name before it is on the disk.",
        Edit("LevelDbFilesCopy._end_file", "self._ops.datasync(self._descriptor)", "pass"),
        directed(COPY + "disk_that_fails_costs_the_copy"),
    ),
    mutation(
        "S6.4-held-sent",
        "A sender takes a file for one that it has because the name and the size are the same.",
        Edit("FileChunks._is_held", "digest.digest() != held.digest", "False"),
        directed(SENT + "file_that_is_another_one_under_the_same_name_is_sent"),
    ),
    mutation(
        "S6.4-held-taken",
        "A receiver keeps a file that it did not tell of.",
        Edit("_write_part", "transfer.held.get(part.name) != part.digest", "False"),
        directed(TAKEN + "file_that_was_not_told_is_not_kept"),
    ),
    mutation(
        "S13-files-refused",
        "A sender is not told that nobody can read its table.",
        Edit("SnapshotReceiver._refuse_files", "transfer.stage is Stage.VERIFYING", "False"),
        directed(TAKEN + "files_that_are_no_table_are_refused_and_come_in_pairs_then"),
    ),
    mutation(
        "O6-files-again",
        "Files that are no table are asked for again and again.",
        Edit("SnapshotReceiver._refuse_files", "self._attempts.files_failed(channel)", "pass"),
        directed(TAKEN + "files_that_are_no_table_are_refused_and_come_in_pairs_then"),
    ),
    mutation(
        "S13-refused-looked-at",
        "A table that another replica could not read is not looked at.",
        Edit("SnapshotSender.on_files_refused", "self.on_refused(runner, now_ms)", "pass"),
        directed(
            SENT + "refused_files_have_the_table_looked_at",
            WORLDS + "damaged_table_of_the_sender_is_refused_and_looked_at",
        ),
    ),
    mutation(
        "S12-files-asked",
        "A node of an older version is asked for files.",
        Edit(
            "SnapshotParts.gives_files",
            "node in self.nodes_at_level(TABLE_FILES_LEVEL)",
            "True",
        ),
        directed(TAKEN + "files_are_asked_of_nodes_that_know_them_and_by_replicas_with_rows"),
    ),
    mutation(
        "S12-files-given",
        "A node that came back as an older version is given files.",
        Edit("SnapshotSender.on_ask", "sender in self._nodes_at_level(TABLE_FILES_LEVEL)", "True"),
        directed(SENT + "only_who_knows_files_and_asks_for_rows_gets_files"),
    ),
    mutation(
        "S6.4-files-half",
        "A copy in files ends with its first file.",
        Edit("FileChunks.read", "is_end and file == self.files - 1", "is_end"),
        directed(SENT + "parts_are_sent_in_order_with_their_digests_and_again_if_they_are_lost"),
    ),
)
