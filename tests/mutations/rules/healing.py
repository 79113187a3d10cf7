"""Mutations of healing while a node runs: what a scrubber finds, and how it is made good."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.rules.drawn_worlds import ROTTING
from tests.mutations.syntax import Edit

SCRUB = "tests/unit/storage/log/test_log_scrub.py::test_"
WORLDS = "tests/unit/engine/healing/test_healing_worlds.py::test_"
DIVERGENCE = "tests/unit/engine/healing/test_divergence_worlds.py::test_"
REPLICA = "tests/unit/core/test_replica.py::test_"
SCRUBBER = "tests/unit/engine/healing/test_scrubber_alone.py::test_"
WALKS = "tests/unit/engine/healing/test_chain_walks.py::test_"
READ_RULES = "tests/unit/engine/reads/test_read_rules.py::test_"

HEALING_RULES: tuple[Mutation, ...] = (
    mutation(
        "S13-dispute-served",
        "A replica whose history is another than a peer's serves before a quorum has answered.",
        Edit("serving_refusal", "runner.core.is_disputed", "False"),
        directed(READ_RULES + "channel_that_may_not_serve_says_why"),
    ),
    mutation(
        "S13-dispute-votes",
        "A replica whose history is another than a peer's votes before a quorum has answered.",
        Edit("Replica.may_stand", "self._state.is_disputed", "False"),
        directed(REPLICA + "dispute_ends_when_a_quorum_has_the_history_that_is_here"),
    ),
    mutation(
        "S13-divergent-serves",
        "A replica goes on serving although a quorum has another history.",
        Edit("Divergences._is_another", "runner.on_broken(reason, now_ms)", ""),
        directed(DIVERGENCE + "minority_is_quarantined_and_whole_again[False]"),
    ),
    mutation(
        "S13-quarantined-votes",
        "A replica votes although a quorum has another history.",
        Edit(
            "Replica.may_stand",
            "self._state.recovering is None and self._state.stopped is None",
            "self._state.recovering is None",
        ),
        directed(DIVERGENCE + "minority_is_quarantined_and_whole_again[False]"),
    ),
    mutation(
        "S13-divergent-leads",
        "A leader stays although a quorum has another history.",
        Edit(
            "ChannelState.stop_serving",
            "if self.role is Role.LEADER:\n    self.emit(StepDown(reason))",
            "",
        ),
        directed(DIVERGENCE + "leader_that_differs_steps_down_first"),
    ),
    mutation(
        "S13-judged-by-one",
        "One replica's history counts as the channel's without a quorum that has it.",
        Edit("Divergences._judge", "not has_quorum(config, having)", "False"),
        directed(DIVERGENCE + "channel_stops_without_a_majority_for_one_history"),
    ),
    mutation(
        "S13-trimmed-hash-claimed",
        "A replica that trims its log while it is asked for a chain hash says that no record ended "
        "there.",
        Edit("ChainWalks._go_on", "walk.seq < base.seq", "False"),
        directed(WALKS + "log_that_is_trimmed_during_the_walk_does_not_know[waiting]"),
    ),
    mutation(
        "S0.3-removed-counts-as-damaged",
        "A segment that is removed while it is read counts as damaged.",
        Edit("Scrubber._read_log", "damage.segment < self._log.floor()", "False"),
        directed(SCRUBBER + "segment_that_was_removed_meanwhile_is_no_damage[True]"),
    ),
    mutation(
        "S13-promise-forgotten",
        "A quarantined replica forgets with its history that it had acknowledged it.",
        Edit(
            "LogScrub.doubt",
            "index.shortfall = max(index.last_part.end, index.shortfall or EMPTY_HISTORY)",
            "",
        ),
        directed(SCRUB + "forgotten_log_remembers_what_it_promised"),
    ),
    mutation(
        "S13-forgotten-at-a-start",
        "A start takes a history that was put aside for one that was never acknowledged.",
        Edit("Replacing._go_on", "self._log.give_up(channel)", "self._log.last_operation()"),
        directed(DIVERGENCE + "crash_while_it_is_refetched_leaves_it_recovering[True]"),
    ),
    mutation(
        "S13-table-kept",
        "A quarantined replica keeps its table, and fetches the log alone.",
        Edit(
            "Replacing._go_on",
            "self._tables.install(channel, at.copy, keeps_former=True)",
            "",
        ),
        directed(DIVERGENCE + "minority_is_quarantined_and_whole_again[True]"),
    ),
    mutation(
        "heal-scrub-checksum",
        "A scrubber passes over an entry whose checksum does not match.",
        Edit("_verified", "crc32(view[body : body + length]) != crc", "False"),
        directed(SCRUB + "every_flipped_bit_is_found_while_the_log_is_open"),
    ),
    mutation(
        "heal-scrub-chain",
        "A scrubber passes over an entry that does not continue the one before it.",
        Edit("_verified", "chain is not None and next_chain(chain, length, crc) != link", "False"),
        directed(SCRUB + "every_flipped_bit_is_found_while_the_log_is_open"),
    ),
    mutation(
        "heal-scrub-end",
        "Everything behind a damage of the written segment is lost again in each pass.",
        Edit("LogScrub._damaged", "stop if after is not None else offset", "stop"),
        directed(SCRUB + "damage_without_an_end_in_the_written_segment_loses_nothing_yet"),
    ),
    mutation(
        "heal-lose-recovering",
        "A replica that found a record of its log damaged forgets that it had promised it.",
        Edit(
            "ChannelIndex.lose_records_in",
            "self.shortfall = max(self.last_part.end, self.shortfall or EMPTY_HISTORY)",
            "",
        ),
        directed(SCRUB + "lost_record_is_the_hole_that_a_start_would_find[1]"),
        ROTTING,
    ),
    mutation(
        "heal-base-anew",
        "A base entry that was hit is written anew from a replica that knows an older base only.",
        Edit("LogRepairs.found", "self._log.base(channel)", "runner.core.base"),
        directed(WORLDS + "base_entry_is_written_anew_as_the_log_has_it"),
    ),
    mutation(
        "heal-damaged-block",
        "A scrubber passes over a damaged block of a table.",
        Edit("Scrubber._read_table", "step.damage and is_here", "False"),
        directed(WORLDS + "damaged_table_is_replaced_by_a_replica_snapshot_while_it_runs[True]"),
        ROTTING,
    ),
    mutation(
        "heal-log-hand-over",
        "A leader becomes deaf to have its log made good, and nobody leads for a while.",
        Edit("LogRepairs._may_begin", "leads(runner)", "False"),
        directed(WORLDS + "leader_hands_over_before_its_log_is_made_good"),
    ),
    mutation(
        "heal-log-others",
        "A replica becomes deaf although nobody is up who could fill its hole.",
        Edit("LogRepairs._may_begin", "not others_up(runner)", "False"),
        directed(WORLDS + "nobody_is_made_deaf_while_no_other_replica_is_up"),
    ),
    mutation(
        "heal-table-serves",
        "A follower serves reads from a table of which a part is known to be damaged.",
        Edit("serving_refusal", "runner.table_damage is not None", "False"),
        directed(READ_RULES + "channel_that_may_not_serve_says_why"),
    ),
    mutation(
        "heal-table-leader",
        "A leader with a damaged table refuses all reads before another one leads.",
        Edit("serving_refusal", "runner.elector.role is not Role.LEADER", "True"),
        directed(READ_RULES + "leader_with_a_damaged_table_serves_until_another_one_leads"),
    ),
    mutation(
        "heal-table-trim",
        "A log is cut while an older table is on its way to its place.",
        Edit("Trimmer._may_trim", "runner.table_damage is not None", "False"),
        directed(WORLDS + "log_is_not_cut_while_a_table_is_replaced"),
    ),
)
