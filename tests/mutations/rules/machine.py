"""Mutations of the machines: the catalog's compare-and-set (S0.1, S0.8), S0.4 and S10."""

from __future__ import annotations

from tests.mutations.guard import chaos, directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

CATALOGS = "tests/unit/state_machines/test_catalog.py::test_"
MEMBERS = "tests/unit/state_machines/test_catalog_members.py::test_"
TABLES = "tests/unit/state_machines/test_table.py::test_"

CONTRACT = "tests/unit/machine/test_record_machine.py::test_"

MACHINE_RULES: tuple[Mutation, ...] = (
    mutation(
        "S11-two-machines",
        "Two machines of a channel take the same kind of record.",
        Edit(
            "RecordMachine.kinds",
            "(other := found.setdefault(kind, machine)) is not machine",
            "(other := found.setdefault(kind, machine)) is None",
        ),
        directed(CONTRACT + "kind_of_two_machines_and_kind_of_the_log_are_refused"),
    ),
    mutation(
        "S6.5-needed-by-a-part",
        "A log is trimmed though a part of the machine refers to its records.",
        Edit(
            "RecordMachine.first_needed",
            "min((seq for seq in found if seq is not None), default=None)",
            "None",
        ),
        directed(CONTRACT + "oldest_needed_record_is_that_of_any_part"),
    ),
    mutation(
        "S0.4-own-kind",
        "A leader proposes a record that no machine of its channel takes.",
        Edit("PublishJudge.judged", "self._kinds and kind not in self._kinds", "False"),
        directed(
            "tests/unit/engine/channel/test_runner.py::"
            "test_record_that_no_machine_takes_is_not_proposed_by_the_node_itself"
        ),
    ),
    mutation(
        "S0.1-name",
        "Another store takes the place of a node.",
        Edit(
            "_register_node",
            "row is not None and decode_entry(row.value, NodeEntry).node != entry.node",
            "False",
        ),
        directed(CATALOGS + "register_node_is_a_conflict_when_the_name_has_another_store_uuid"),
    ),
    mutation(
        "M27-name",
        "A ticket takes the name of any node.",
        Edit(
            "_join_node",
            "taken is not None and decode_entry(taken.value, NodeEntry).node != replaced",
            "False",
        ),
        directed(MEMBERS + "name_of_a_node_is_taken_only_by_a_ticket_that_names_it"),
    ),
    mutation(
        "M27-join-retired",
        "A retired id joins again.",
        Edit("_join_node", "(left := read(retired_key(entry.node))) is not None", "False"),
        directed(MEMBERS + "retired_id_never_comes_back"),
    ),
    mutation(
        "M27-register-retired",
        "A retired id registers again.",
        Edit("_register_node", "(left := read(retired_key(entry.node))) is not None", "False"),
        directed(MEMBERS + "retired_id_never_comes_back"),
    ),
    mutation(
        "M27-placement",
        "Tables are placed on nodes that leave.",
        Edit(
            "_create_table",
            "(left := row_of_left(chain(*entry.placement), read, drains=True)) is not None",
            "False",
        ),
        directed(MEMBERS + "table_is_placed_on_no_node_that_drains_or_was_retired"),
    ),
    mutation(
        "M27-remove",
        "A node is removed by an old look at its replicas.",
        Edit(
            "_remove_node",
            "draining is None or draining.seq != command.base_seq",
            "draining is None",
        ),
        directed(MEMBERS + "node_is_removed_only_if_it_drained_since_the_proposer_looked"),
    ),
    mutation(
        "M28-used",
        "A ticket admits several nodes.",
        Edit("_join_node", "ticket.used_by == entry.node", "True"),
        directed(MEMBERS + "ticket_admits_one_id_which_may_ask_again"),
    ),
    mutation(
        "M29-once",
        "Each token for the place of a lost node brings one node more.",
        Edit("_join_node", "gone is not None", "False"),
        directed(
            MEMBERS + "node_is_replaced_once_however_many_tickets_name_it",
            MEMBERS + "ticket_for_the_place_of_a_node_that_was_removed_admits_nobody",
            "tests/unit/engine/catalog/test_replaced_once.py::test_"
            "two_tokens_for_one_lost_node_that_are_used_at_once_bring_one_node",
        ),
    ),
    mutation(
        "M29-once-replayed",
        "Replicas that apply a log of before come to other members than those that did it then.",
        Edit("_join_node", "command.format >= REPLACED_ONCE_FORMAT", "True"),
        directed(MEMBERS + "second_ticket_in_a_log_of_before_leads_to_what_it_led_to"),
    ),
    mutation(
        "M28-expired",
        "Tickets do not expire.",
        Edit("_join_node", "ticket.expires_ms <= record.timestamp_ms", "False"),
        directed(MEMBERS + "unused_ticket_expires_by_the_time_of_the_record"),
    ),
    mutation(
        "M28-forget-used",
        "Who joined is forgotten with the ticket.",
        Edit(
            "_add_ticket",
            "not entry.used_by and entry.expires_ms <= record.timestamp_ms",
            "entry.expires_ms <= record.timestamp_ms",
        ),
        directed(MEMBERS + "ticket_is_entered_once_and_expired_ones_are_forgotten"),
    ),
    mutation(
        "S0.4-catalog-kind",
        "The catalog skips a record that it does not understand.",
        Edit(
            "CatalogMachine.apply",
            'raise refuse_kind("catalog", record)',
            "return NO_CHANGE",
        ),
        directed(CATALOGS + "record_that_cannot_be_understood_stops_the_node"),
    ),
    mutation(
        "S0.4-catalog-command",
        "The catalog applies commands of a newer version.",
        Edit(
            "CatalogMachine.apply",
            "command.format > CATALOG_FORMAT",
            "False",
        ),
        directed(CATALOGS + "record_that_cannot_be_understood_stops_the_node"),
    ),
    mutation(
        "S0.4-catalog-row",
        "The catalog reads rows of a newer version.",
        Edit(
            "decode_entry",
            "entry.format > CATALOG_FORMAT",
            "False",
        ),
        directed(CATALOGS + "catalog_refuses_rows_that_this_version_cannot_read"),
    ),
    mutation(
        "S0.4-table-kind",
        "A table skips a record that it does not understand.",
        Edit(
            "writes_of",
            'raise refuse_kind("table", record)',
            "return []",
        ),
        directed(TABLES + "record_of_an_unknown_kind_stops_the_node"),
    ),
    mutation(
        "S0.4-table-payload",
        "A table skips a record that it cannot read.",
        Edit(
            "writes_of",
            "try:\n"
            "    return decode_rows(record.payload)\n"
            "except DecodeError as error:\n"
            "    raise refuse_payload(record, error) from error",
            "try:\n    return decode_rows(record.payload)\nexcept DecodeError:\n    return []",
        ),
        directed(TABLES + "record_with_a_damaged_payload_stops_the_node"),
    ),
    mutation(
        "S0.8-name",
        "A table takes the name of another one.",
        Edit(
            "_create_table",
            "(row := read(key)) is not None",
            "(row := read(key)) is not None and False",
        ),
        directed(CATALOGS + "create_table_is_a_compare_and_set_on_the_name"),
    ),
    mutation(
        "S0.8-definition",
        "A table of another definition passes for the one asked for.",
        Edit(
            "_create_table",
            "command.if_not_exists and existing.same_definition(entry)",
            "command.if_not_exists",
        ),
        directed(CATALOGS + "create_table_if_not_exists_is_ok_when_the_definition_is_the_same"),
    ),
    mutation(
        "S0.8-again",
        "A command that is applied again is called a conflict.",
        Edit(
            "_create_table",
            "existing.uuid == entry.uuid",
            "False",
        ),
        directed(CATALOGS + "create_table_is_ok_when_the_same_command_is_applied_again"),
    ),
    mutation(
        "S0.8-tombstone",
        "A dropped table leaves no trace.",
        Edit(
            "_drop_table",
            "(tomb, seal(tomb, command.entry)),",
            "",
        ),
        directed(CATALOGS + "drop_table_remembers_the_uuid_for_ever"),
    ),
    mutation(
        "S0.8-revived",
        "The UUID of a dropped table serves again.",
        Edit(
            "_create_table",
            "(dropped := read(DROPPED_PREFIX + entry.uuid)) is not None",
            "(dropped := read(DROPPED_PREFIX + entry.uuid)) is not None and False",
        ),
        directed(CATALOGS + "drop_table_remembers_the_uuid_for_ever"),
    ),
    mutation(
        "S0.8-drop",
        "A late drop removes the next table of the name.",
        Edit(
            "_drop_table",
            "row is None or decode_entry(row.value, TableEntry).uuid != command.uuid",
            "row is None",
        ),
        directed(CATALOGS + "drop_table_is_a_conflict_when_the_table_is_another_or_gone"),
    ),
    mutation(
        "S0.8-edit",
        "An edit of a table undoes another one that came first.",
        Edit(
            "_edit_table",
            "row is None\n"
            "or row.seq != command.base_seq\n"
            "or decode_entry(row.value, TableEntry).uuid != command.uuid",
            "row is None\nor decode_entry(row.value, TableEntry).uuid != command.uuid",
        ),
        directed(CATALOGS + "edit_table_is_a_conflict_when_the_entry_is_another_one_by_now"),
    ),
    mutation(
        "S0.8-edit-identity",
        "An edit meant for a dropped table changes the one that has its name now.",
        Edit(
            "_edit_table",
            "row is None\n"
            "or row.seq != command.base_seq\n"
            "or decode_entry(row.value, TableEntry).uuid != command.uuid",
            "row is None\nor row.seq != command.base_seq",
        ),
        directed(CATALOGS + "edit_table_is_a_conflict_when_the_entry_is_another_one_by_now"),
    ),
    mutation(
        "S0.8-settings-format",
        "Nodes that would skip a table's settings read its row.",
        Edit("created_format", "entry.settings == DEFAULT_SETTINGS", "True"),
        directed(CATALOGS + "only_settings_of_its_own_give_a_table_the_format_that_knows_them"),
    ),
    mutation(
        "S10-conditional",
        "A conditional write is applied whatever the row is.",
        Edit(
            "_apply_conditional",
            "present != expected",
            "False",
        ),
        directed(TABLES + "conditional_applies_only_when_the_row_is_the_expected_one"),
        chaos("cas_register", "kill-leader", "slow-link"),
    ),
    mutation(
        "machines-order",
        "What is derived from the catalog depends on the order of its rows.",
        Edit(
            "Catalog.from_rows",
            "sorted(rows)",
            "rows",
        ),
        directed(CATALOGS + "catalog_is_ordered_by_name_whatever_the_order_of_rows"),
    ),
    mutation(
        "S4.2-batch-applied-on-arrival",
        "Staged rows are written when they are committed, not when their batch is.",
        Edit(
            "StagingMachine.apply",
            "return ApplyResult((), state_writes=stage(record, view.state))",
            "from raftstore.protocol.staged import decode_staged\n"
            "\n"
            "flat = iter(decode_staged(record.payload)[1])\n"
            "pairs = tuple(zip(flat, flat, strict=True))\n"
            "return ApplyResult(pairs, state_writes=stage(record, view.state))",
        ),
        chaos("bank_batches", "kill-leader"),
    ),
)
