"""Mutations of levels: what newer versions write waits until every node can read it."""

from __future__ import annotations

from tests.mutations.guard import directed, worlds
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

CORE = "tests/unit/core/test_sequencer.py::test_"
PURE = "tests/unit/policy/test_levels.py::test_"
HOLES = "tests/unit/engine/channel/test_hole_repairs.py::test_"
SETTINGS = "tests/unit/engine/catalog/test_table_settings.py::test_"
FATES = "tests/integration/client/test_fates.py::test_"
ALONE = "tests/unit/engine/catalog/test_controller_alone.py::test_"
BATCHES = "tests/integration/client/test_batch_writes.py::test_"
WORLDS = "tests/unit/engine/channel/test_levels.py::test_"

LEVEL_RULES: tuple[Mutation, ...] = (
    mutation(
        "level-lowest",
        "The newest node decides what all must be able to read.",
        Edit(
            "lowest_level",
            "min(levels, default=0)",
            "max(levels, default=0)",
        ),
        directed(
            PURE + "lowest_level_is_that_of_the_oldest_node",
            WORLDS + "what_an_older_node_cannot_read_is_refused_until_it_is_upgraded",
        ),
    ),
    mutation(
        "level-records",
        "A leader sequences records that some node cannot read.",
        Edit(
            "RequestHandler.on_publish",
            "self._controller.refusal_of(message.kind)",
            "None",
        ),
        worlds(seeds=range(1, 13), rolling_upgrades="yes", many_bounds="yes"),
        directed(WORLDS + "what_an_older_node_cannot_read_is_refused_until_it_is_upgraded"),
    ),
    mutation(
        "level-commands",
        "A table is edited while some node would stop at the command.",
        Edit(
            "TableCommands.on_edit_table",
            "self._view.refusal_of_format(edited_format(edited))",
            "None",
        ),
        directed(WORLDS + "what_an_older_node_cannot_read_is_refused_until_it_is_upgraded"),
    ),
    mutation(
        "level-registered",
        "A node that has not registered yet is taken for one of an older version.",
        Edit("CatalogController._refusal", "node not in known", "False"),
        directed(ALONE + "kind_or_format_is_refused_while_a_node_cannot_read_it"),
    ),
    mutation(
        "level-waits",
        "A batch is refused while nodes of a new cluster have not registered.",
        Edit("BatchWrites.check_level", "self._all_registered()", "True"),
        directed(BATCHES + "batch_waits_for_nodes_that_register_in_the_first_moments_of_a_cluster"),
    ),
    mutation(
        "level-settings",
        "A table gets settings that some node would not go by.",
        Edit(
            "TableCommands._create",
            "self._view.refusal_of_format(created_format(entry))",
            "None",
        ),
        directed(SETTINGS + "setting_is_refused_while_a_node_could_not_go_by_it"),
    ),
    mutation(
        "level-settings-told",
        "Settings are sent to a leader that skips them: the table is made without.",
        Edit("LeaderRequests._try", "link.level < asked.level", "False"),
        directed(FATES + "settings_are_not_sent_to_a_leader_that_would_skip_them"),
    ),
    mutation(
        "level-downgrade",
        "The catalog is believed although the node itself reported less.",
        Edit(
            "CatalogController.levels",
            "min(level, self._known_levels.get(node, level))",
            "level",
        ),
        directed(WORLDS + "downgrade_is_believed_before_the_catalog_says_it"),
    ),
    mutation(
        "level-earlier-life",
        "A node believes the highest level that a peer ever reported, also after its downgrade.",
        Edit(
            "CatalogController.on_introduced",
            "self._known_levels[node] = level",
            "self._known_levels[node] = max(level, self._known_levels.get(node, 0))",
        ),
        worlds(seeds=range(1, 9), rolling_upgrades="yes", turn_max_ms="3", partitions="3"),
        directed(WORLDS + "downgrade_is_believed_before_the_catalog_says_it"),
    ),
    mutation(
        "level-bundles",
        "A peer is sent messages of many channels in one before it reported that it reads them.",
        Edit(
            "KnownLevels.takes_bundles",
            "self.by_node.get(node, 0) >= LEVEL_OF_BUNDLES",
            "True",
        ),
        worlds(seeds=range(1, 9), rolling_upgrades="yes", turn_max_ms="3", partitions="3"),
    ),
    mutation(
        "level-refills",
        "A node that came back as an older version is answered what it does not know.",
        Edit(
            "HoleRepairs._send",
            "to in self._nodes_at_level(REFILL_LEVEL)",
            "True",
        ),
        directed(HOLES + "node_that_came_back_older_is_neither_answered_nor_asked_again"),
    ),
    mutation(
        "level-unknown",
        "A node that reported nothing to this leader is entered as an old one.",
        Edit(
            "CatalogController._register_nodes",
            "self._known_levels.get(node, entry.level)",
            "self._known_levels.get(node, 0)",
        ),
        directed(WORLDS + "new_metadata_leader_keeps_the_level_of_a_node_that_is_away"),
    ),
    mutation(
        "level-storm",
        "A level is registered again and again while its command is under way.",
        Edit(
            "CatalogController._register_nodes",
            "self._registering.get(node) == asked",
            "False",
        ),
        directed(WORLDS + "level_is_proposed_once_while_its_command_is_under_way"),
    ),
    mutation(
        "level-outcome",
        "A write that has a seq already is called too new.",
        Edit(
            "Sequencer.admit",
            "verdict is not Verdict.NEW",
            "verdict is not Verdict.NEW and refusal is None",
        ),
        directed(
            CORE + "refusal_of_the_engine_changes_no_outcome",
            WORLDS + "mark_that_was_written_before_a_downgrade_keeps_its_outcome",
        ),
    ),
    mutation(
        "level-spark",
        "A query fails because one node cannot read marks yet.",
        Edit(
            "_mark",
            "StoreTooOldError",
            "ZeroDivisionError",
        ),
        directed(
            "tests/unit/spark/test_datasource.py::"
            "test_batch_goes_on_without_its_mark_while_a_node_could_not_read_it"
        ),
    ),
)
