"""Mutations of the tools that look at stores and compare replicas."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

INSPECT = "tests/cli/test_inspect.py::test_"

INSPECTING_RULES: tuple[Mutation, ...] = (
    mutation(
        "S0.1-inspect-copy",
        "Looking at a stopped node's table opens it where it is, and LevelDB writes to it.",
        Edit(
            "opened_table",
            "open_checked(copy, settings, share_of(settings, 1))",
            "open_checked(directory / TABLES_DIRECTORY / name, settings, share_of(settings, 1))",
        ),
        directed(INSPECT + "nothing_in_the_directory_changes"),
    ),
    mutation(
        "S0.3-export-partial",
        "Of a damaged table the rows that can be verified are exported although nobody asked.",
        Edit("_export", "Skipped() if partial else None", "Skipped()"),
        directed(INSPECT + "damaged_table_is_told_and_exported_only_when_asked"),
    ),
    mutation(
        "S0.3-export-behind",
        "An export of a damaged table ends at the damage.",
        Edit(
            "verified_rows",
            "None if resumed else _first_behind_damage(source, at, end)",
            "None",
        ),
        directed(INSPECT + "damaged_table_is_told_and_exported_only_when_asked"),
    ),
    mutation(
        "S6.5-inspect-rows",
        "A store is told to be whole although rows are in neither its log nor its tables.",
        Edit("_damage_of", "(lacks := found.lacks_rows) is not None", "False"),
        directed(INSPECT + "s6_5_rows_that_are_in_neither_log_nor_table_are_told"),
    ),
    mutation(
        "S0.3-inspect-damage",
        "A damaged table is reported and the command ends as if the store were whole.",
        Edit("_damage_of", "found.table is not None and found.table.damage is not None", "False"),
        directed(INSPECT + "damaged_table_is_told_and_exported_only_when_asked"),
    ),
)
