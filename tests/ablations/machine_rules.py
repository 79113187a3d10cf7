"""Ablations of the machines: the catalog's compare-and-set (S0.1, S0.8), S0.4 and S10."""

from __future__ import annotations

from tests.ablations.ablation import Ablation, directed

CATALOG = "raftstore/state_machines/catalog.py"
TABLE = "raftstore/state_machines/table.py"
CATALOGS = "tests/unit/state_machines/test_catalog.py::test_"
TABLES = "tests/unit/state_machines/test_table.py::test_"

MACHINE_RULES: tuple[Ablation, ...] = (
    directed(
        "S0.8-name",
        "a table takes the name of another one",
        CATALOG,
        "    if (row := read(key)) is not None:",
        "    if (row := read(key)) is not None and False:",
        CATALOGS + "create_table_is_a_compare_and_set_on_the_name",
    ),
    directed(
        "S0.8-definition",
        "a table of another definition passes for the one asked for",
        CATALOG,
        "if command.if_not_exists and existing.same_definition(entry):",
        "if command.if_not_exists:",
        CATALOGS + "create_table_if_not_exists_is_ok_when_the_definition_is_the_same",
    ),
    directed(
        "S0.8-again",
        "a command that is applied again is called a conflict",
        CATALOG,
        "        if existing.uuid == entry.uuid:\n",
        "        if False:\n",
        CATALOGS + "create_table_is_ok_when_the_same_command_is_applied_again",
    ),
    directed(
        "S0.8-tombstone",
        "a dropped table leaves no trace",
        CATALOG,
        "ApplyResult(((key, None), (tomb, seal(tomb, command.entry))))",
        "ApplyResult(((key, None),))",
        CATALOGS + "drop_table_remembers_the_uuid_for_ever",
    ),
    directed(
        "S0.8-revived",
        "the UUID of a dropped table serves again",
        CATALOG,
        "    if (dropped := read(DROPPED_PREFIX + entry.uuid)) is not None:",
        "    if (dropped := read(DROPPED_PREFIX + entry.uuid)) is not None and False:",
        CATALOGS + "drop_table_remembers_the_uuid_for_ever",
    ),
    directed(
        "S0.8-drop",
        "a late drop removes the next table of the name",
        CATALOG,
        "if row is None or _decode(row.value, TableEntry).uuid != command.uuid:",
        "if row is None:",
        CATALOGS + "drop_table_is_a_conflict_when_the_table_is_another_or_gone",
    ),
    directed(
        "S0.8-edit",
        "an edit of a table undoes another one that came first",
        CATALOG,
        "        or row.seq != command.base_seq\n",
        "",
        CATALOGS + "edit_table_is_a_conflict_when_the_entry_is_another_one_by_now",
    ),
    directed(
        "S0.8-edit-identity",
        "an edit meant for a dropped table changes the one that has its name now",
        CATALOG,
        "        or _decode(row.value, TableEntry).uuid != command.uuid\n    ):",
        "    ):",
        CATALOGS + "edit_table_is_a_conflict_when_the_entry_is_another_one_by_now",
    ),
    directed(
        "S0.1-name",
        "another store takes the place of a node",
        CATALOG,
        "if row is not None and _decode(row.value, NodeEntry).node != entry.node:",
        "if False:",
        CATALOGS + "register_node_is_a_conflict_when_the_name_has_another_store_uuid",
    ),
    directed(
        "S0.4-catalog-kind",
        "the catalog skips a record that it does not understand",
        CATALOG,
        '            raise refuse_kind("catalog", record)\n',
        "            return NO_CHANGE\n",
        CATALOGS + "record_that_cannot_be_understood_stops_the_node",
    ),
    directed(
        "S0.4-catalog-command",
        "the catalog applies commands of a newer version",
        CATALOG,
        "        if command.format > CATALOG_FORMAT:",
        "        if False:",
        CATALOGS + "record_that_cannot_be_understood_stops_the_node",
    ),
    directed(
        "S0.4-catalog-row",
        "the catalog reads rows of a newer version",
        CATALOG,
        "    if entry.format > CATALOG_FORMAT:",
        "    if False:",
        CATALOGS + "catalog_refuses_rows_that_this_version_cannot_read",
    ),
    directed(
        "S0.4-table-kind",
        "a table skips a record that it does not understand",
        TABLE,
        'rows stay as they are\n        raise refuse_kind("table", record)',
        "rows stay as they are\n        return []",
        TABLES + "record_of_an_unknown_kind_stops_the_node",
    ),
    directed(
        "S0.4-table-payload",
        "a table skips a record that it cannot read",
        TABLE,
        "            except DecodeError as error:\n"
        "                raise refuse_payload(record, error) from error\n",
        "            except DecodeError:\n                return []\n",
        TABLES + "record_with_a_damaged_payload_stops_the_node",
    ),
    directed(
        "S10-conditional",
        "a conditional write overwrites another version",
        TABLE,
        "        if present != expected:",
        "        if False:",
        TABLES + "conditional_applies_only_when_the_row_is_the_expected_one",
    ),
    directed(
        "machines-order",
        "what is derived from the catalog depends on the order of its rows",
        CATALOG,
        "        for key, value, seq in sorted(rows):",
        "        for key, value, seq in rows:",
        CATALOGS + "catalog_is_ordered_by_name_whatever_the_order_of_rows",
    ),
)
