"""Ablations of the changes of a table: what is told, and that it is told the same by everybody."""

from __future__ import annotations

from tests.ablations.ablation import Ablation, directed

FEEDS = "raftstore/engine/reads/changes.py"
MACHINE = "raftstore/state_machines/table.py"
CONTRACT = "tests/contract/test_changes.py::test_"

CHANGE_RULES: tuple[Ablation, ...] = (
    directed(
        "changes-condition",
        "a conditional write that did not hold is told as a change",
        FEEDS,
        "            if outcome == HELD:",
        "            if outcome:",
        CONTRACT + "each_kind_of_record_shows_what_it_really_changed",
    ),
    directed(
        "changes-inserted",
        "rows that were there already are told as inserted",
        FEEDS,
        '                bits = outcome.data if header.mode == INSERT else b""\n',
        '                bits = b""\n',
        CONTRACT + "each_kind_of_record_shows_what_it_really_changed",
    ),
    directed(
        "changes-truncated",
        "the rows that a batch replaced stay for who follows the changes",
        FEEDS,
        "        truncates = batch.mode == TRUNCATE and sub == 0\n",
        "        truncates = False\n",
        CONTRACT + "each_kind_of_record_shows_what_it_really_changed",
    ),
    directed(
        "changes-first-run",
        "a batch that is applied again tells what it found of its own rows",
        MACHINE,
        "        if mode == UPSERT or is_complete(*of, state_get):",
        "        if mode == UPSERT:",
        CONTRACT + "batch_that_a_crash_cut_anywhere_shows_the_same_changes",
    ),
    directed(
        "S4.2-changes",
        "a replica answers for records that it has not applied",
        FEEDS,
        "        if applied < max(request.after, request.to_seq):",
        "        if False:",
        CONTRACT + "positions_that_are_not_there_are_refused_with_the_remedy",
    ),
)
