"""Ablations of levels: what newer versions write waits until every node can read it."""

from __future__ import annotations

from tests.ablations.ablation import Ablation, directed

KEEPER = "raftstore/engine/catalog/controller.py"
WORLDS = "tests/unit/engine/test_levels.py::test_"
PURE = "tests/unit/policy/test_levels.py::test_"
CORE = "tests/unit/core/test_sequencer.py::test_"

LEVEL_RULES: tuple[Ablation, ...] = (
    directed(
        "level-lowest",
        "the newest node decides what all must be able to read",
        "raftstore/policy/levels.py",
        "    return min(levels, default=0)\n",
        "    return max(levels, default=0)\n",
        PURE + "lowest_level_is_that_of_the_oldest_node",
        WORLDS + "what_an_older_node_cannot_read_is_refused_until_it_is_upgraded",
    ),
    directed(
        "level-records",
        "a leader sequences records that some node cannot read",
        "raftstore/engine/request_handler.py",
        "refusal = host.keeper.refusal_of(message.kind)",
        "refusal = None",
        WORLDS + "what_an_older_node_cannot_read_is_refused_until_it_is_upgraded",
    ),
    directed(
        "level-commands",
        "a table is edited while some node would stop at the command",
        "raftstore/engine/catalog/table_commands.py",
        "refusal=self._view.refusal_of_format(EDITED_FORMAT)",
        "refusal=None",
        WORLDS + "what_an_older_node_cannot_read_is_refused_until_it_is_upgraded",
    ),
    directed(
        "level-downgrade",
        "the catalog is believed although the node itself told less",
        KEEPER,
        "node: min(level, self._told_levels.get(node, level)) for node, level in levels.items()",
        "node: level for node, level in levels.items()",
        WORLDS + "downgrade_is_believed_before_the_catalog_says_it",
    ),
    directed(
        "level-unknown",
        "a node that told this leader nothing is entered as an old one",
        KEEPER,
        "level = self._told_levels.get(node, 0 if known is None else known.level)",
        "level = self._told_levels.get(node, 0)",
        WORLDS + "new_metadata_leader_keeps_the_level_of_a_node_that_is_away",
    ),
    directed(
        "level-storm",
        "a level is registered again and again while its command is under way",
        KEEPER,
        "            if self._registering.get(node) == (endpoint, level):\n",
        "            if False:\n",
        WORLDS + "level_is_proposed_once_while_its_command_is_under_way",
    ),
    directed(
        "level-outcome",
        "a write that has a seq already is called too new",
        "raftstore/core/sequencer.py",
        "        if verdict is not Verdict.NEW:\n",
        "        if verdict is not Verdict.NEW and refusal is None:\n",
        CORE + "refusal_of_the_engine_changes_no_outcome",
        WORLDS + "mark_that_was_written_before_a_downgrade_keeps_its_outcome",
    ),
    directed(
        "level-spark",
        "a query fails because one node cannot read marks yet",
        "raftstore/spark/write/row_writer.py",
        "    except StoreTooOldError as error:\n",
        "    except ZeroDivisionError as error:\n",
        "tests/unit/spark/test_datasource.py::"
        "test_batch_goes_on_without_its_mark_while_a_node_could_not_read_it",
    ),
)
