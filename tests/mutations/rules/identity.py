"""Mutations of a store's identity and life: S0.1, S0.2, S0.7 and S0.8."""

from __future__ import annotations

from tests.mutations.guard import directed, disk_runs
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

UNIT = "tests/unit/storage/"
DAMAGED = UNIT + "tables/test_damaged_tables.py::test_"
LOG = "tests/cli/test_log.py::test_"
MESSAGE_LOG = "tests/contract/test_message_log.py::test_"

RESERVE = UNIT + "test_space_reserve.py::test_"

IDENTITY_RULES: tuple[Mutation, ...] = (
    mutation(
        "GAP-13-reserve",
        "A node that another program leaves no space waits, beside a file that keeps some for it.",
        Edit("_make_room", "make_room(free_bytes_min - free)", "0"),
        directed(RESERVE + "gap_13_start_on_a_full_disk_removes_the_reserve"),
    ),
    mutation(
        "GAP-13-reserve-wasted",
        "A start removes its reserve although that is not enough for it, and waits without one.",
        Edit("SpaceReserve.make_room", "self.look() >= missing_bytes", "True"),
        directed(RESERVE + "gap_13_start_on_a_full_disk_removes_the_reserve"),
    ),
    mutation(
        "GAP-13-reserve-room",
        "The reserve takes the space that writes need: the node refuses them because of it.",
        Edit("SpaceReserve.restore", "free_bytes >= self._room_bytes", "True"),
        directed(
            RESERVE + "reserve_takes_its_bytes_from_the_disk_where_the_node_stays_above_its_mark"
        ),
    ),
    mutation(
        "S0.1-directory",
        "A node starts on the store of another.",
        Edit(
            "_load",
            'facts["node"] != name',
            "False",
        ),
        directed(UNIT + "test_identity.py::test_directory_of_another_node_is_refused_untouched"),
    ),
    mutation(
        "S0.1-marker",
        "A damaged identity is believed.",
        Edit(
            "_load",
            'facts.get("checksum") != _checksum(facts)',
            "False",
        ),
        directed(UNIT + "test_identity.py::test_damaged_marker_is_refused"),
    ),
    mutation(
        "S0.1-marker-name",
        "A start believes a marker that a killed process left and no power cut would leave.",
        Edit("open_or_create", "ops.sync_directory(directory)", "pass"),
        directed(
            UNIT + "test_identity.py::test_start_makes_the_marker_durable_before_it_believes_it"
        ),
    ),
    mutation(
        "S0.1-presence",
        "A node goes on writing to files that were removed.",
        Edit(
            "PresenceWatch._run",
            "place in before and not self._is_stopped.is_set()",
            "False",
        ),
        directed(UNIT + "test_presence.py::test_what_is_taken_away_is_told"),
    ),
    mutation(
        "S0.1-presence-twice",
        "A mark that the node replaces itself counts as taken away.",
        Edit(
            "MarkFile._rewrite",
            "self.place = self._ops.place(self._path, self._descriptor)",
            "",
        ),
        directed(UNIT + "test_presence.py::test_new_segments_and_marks_are_no_loss"),
    ),
    mutation(
        "S0.1-owner-checksum",
        "A flipped bit makes tables those of another store.",
        Edit(
            "TablesDirectory._check_owner",
            'not owner or (checksum and checksum != f"{crc32(owner):08x}\\n".encode())',
            "not owner",
        ),
        directed(DAMAGED + "flipped_bit_is_not_taken_for_another_store"),
    ),
    mutation(
        "S0.1-created",
        "A power cut turns a store that voted back into a half-made one.",
        Edit(
            "_create",
            "ops.rename(creating, directory / MARKER_NAME)\nops.sync_directory(directory)",
            "ops.rename(creating, directory / MARKER_NAME)",
        ),
        directed(UNIT + "test_identity.py::test_creation_is_durable_step_by_step"),
    ),
    mutation(
        "S0.2-pieces",
        "A log without its vote record starts, or the reverse.",
        Edit(
            "check_pieces",
            "has_log and has_mark",
            "True",
        ),
        directed(
            UNIT + "log/test_recovery.py::test_log_without_mark_or_mark_without_log_is_refused"
        ),
    ),
    mutation(
        "S0.2-first-segment",
        "A kill while a damaged log is cut leaves no log.",
        Edit(
            "LogRecovery._cut",
            "self._ops.replace_file(path, header)",
            "self._ops.unlink(path)\nself._ops.create_file(path, header)",
        ),
        directed(
            UNIT
            + "log/test_recovery_cuts.py::test_kill_while_the_only_segment_is_mended_leaves_a_log"
        ),
    ),
    mutation(
        "S0.7-stopped-cluster",
        "Logs of two clusters are compared.",
        Edit(
            "_refuse_other_cluster",
            "clusters[0] != clusters[1]",
            "False",
        ),
        directed(LOG + "other_cluster_is_refused"),
    ),
    mutation(
        "S0.7-one-proposal",
        "A store accepts a second founding proposal.",
        Edit(
            "StoreIdentity.record_proposal",
            "accepted and (accepted, self.members) != (cluster_id, members)",
            "False",
        ),
        directed(UNIT + "test_identity.py::test_only_one_proposal_is_ever_accepted"),
    ),
    mutation(
        "S0.8-dropped",
        "The id of a dropped table is used again.",
        Edit(
            "SegmentLog._open",
            "channel in self._dropped",
            "False",
        ),
        directed(MESSAGE_LOG + "dropped_channel_is_refused_for_ever"),
        disk_runs(),
    ),
    mutation(
        "S0.8-absent",
        "A channel is deleted because no row of the catalog names its table.",
        Edit(
            "CatalogController._close_dropped",
            "channel_table(channel) in self.catalog.dropped",
            "channel != node.metadata_channel and self.catalog.table_of(channel) is None",
        ),
        directed(
            "tests/unit/engine/catalog/test_catalog_replay.py::"
            "test_catalog_without_its_rows_deletes_nothing"
        ),
    ),
    mutation(
        "S0.2-half-a-store-starts",
        "A log without its mark starts with a new one.",
        Edit(
            "check_pieces",
            "has_log and has_mark",
            "True",
        ),
        Edit(
            "MarkFile.open",
            'raise mark._refusal("is missing")',
            "cls.create(ops, path, store_uuid)",
        ),
        disk_runs(),
    ),
    mutation(
        "S0.7-second-founding-accepted",
        "A store accepts a second founding proposal.",
        Edit(
            "StoreIdentity.record_proposal",
            "accepted and (accepted, self.members) != (cluster_id, members)",
            "False",
        ),
        Edit(
            "StoreIdentity.record_proposal",
            "not accepted",
            "True",
        ),
        disk_runs(),
    ),
    mutation(
        "S0.8-drop-forgotten",
        "A dropped table is forgotten by the next start, and its id is free again.",
        Edit(
            "LogRecovery._apply",
            "self._take_out(entry, number)",
            "pass",
        ),
        Edit(
            "LogRecovery._compare",
            "row.dropped",
            "row.dropped and False",
        ),
        disk_runs(),
    ),
)
