"""Mutations of base entries in the log, and of the floor below which its segments go (S6.5)."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

REBASE = "tests/unit/storage/log/test_log_rebase.py::test_"
FLOOR = "tests/unit/storage/log/test_log_floor.py::test_"
HOLES = "tests/unit/storage/log/test_holes.py::test_"
ENDINGS = "tests/unit/engine/snapshots/test_snapshot_endings.py::test_"
TRIMMED = "tests/unit/engine/channel/test_trimmed_holes.py::test_"
RECONCILE = "tests/unit/storage/test_reconcile.py::test_"
STOPS = REBASE + "s6_5_base_that_goes_down_or_contradicts_the_log_stops_it"
CRASH = FLOOR + "s6_5_crash_at_every_operation_of_a_new_floor_loses_nothing"

FLOOR_RULES: tuple[Mutation, ...] = (
    mutation(
        "S6.5-rebase-down",
        "The base of a log goes down in its files.",
        Edit("refusal_of", "base.seq < 1 or base.seq < known.seq", "base.seq < 1"),
        directed(STOPS + "[lower]"),
    ),
    mutation(
        "S13-rebase-hash",
        "A base with another hash than the one known takes its place.",
        Edit(
            "refusal_of",
            "not is_held or base.chain_hash != known.chain_hash",
            "not is_held",
        ),
        directed(STOPS + "[another hash]"),
    ),
    mutation(
        "S13-rebase-older",
        "A base of an older term follows one of a newer term.",
        Edit("refusal_of", "base.term < known.term", "False"),
        directed(STOPS + "[of an older term]"),
    ),
    mutation(
        "S2.1-rebase-within",
        "A base that ends within a record replaces the log that holds the record.",
        Edit(
            "refusal_of",
            "not continues(index, base) and index.term_known(base.seq) == base.term",
            "False",
        ),
        directed(REBASE + "base_in_the_middle_of_a_record_stops_the_log"),
    ),
    mutation(
        "S0.3-rebase-hole",
        "A log with a hole begins behind a base, and what is behind the hole stays unproven.",
        Edit("refusal_of", "is_held and index.kept", "False"),
        directed(REBASE + "s0_3_channel_with_a_hole_keeps_its_records_but_for_a_base_beyond_them"),
    ),
    mutation(
        "S0.3-cover-promise",
        "A base stands for a hole behind which more was acknowledged than it covers.",
        Edit("why_hole_stays", "continues(index, base) or base.history >= promised", "True"),
        directed(REBASE + "s0_3_base_stands_for_a_hole_if_it_covers_all_that_was_promised"),
    ),
    mutation(
        "S0.3-cover-within",
        "A base stands for a hole that goes on behind it.",
        Edit("why_hole_stays", "base.seq < hole.to_seq", "False"),
        directed(REBASE + "s0_3_base_stands_for_a_hole_if_it_covers_all_that_was_promised"),
    ),
    mutation(
        "S6.4-cover-kept",
        "What was acknowledged behind a hole goes when a base stands for it.",
        Edit(
            "continues",
            "any(part.holds(base) or part.before == base.history for part in index.kept)",
            "False",
        ),
        directed(REBASE + "s0_3_records_stay_behind_a_base_that_stands_for_a_hole"),
    ),
    mutation(
        "S1.5-cover-term",
        "A replica whose log ends with a later term than its own stands in an earlier one.",
        Edit("entry_of", "max(base.term, index.term)", "index.term"),
        directed(REBASE + "s1_5_term_is_never_below_that_of_the_base"),
    ),
    mutation(
        "S0.3-cover-judged",
        "A base takes the place of a hole, whatever the log has acknowledged behind it.",
        Edit("SnapshotParts.why_not_behind", "runner.hole is not None", "False"),
        directed(ENDINGS + "hole_that_nobody_fills_is_covered_by_a_base_that_may_stand_for_it"),
    ),
    mutation(
        "O6-cover",
        "Two damaged replicas wait for a leader, with holes that everybody else trimmed.",
        Edit("HoleRepairs._in_vain", "self.on_unfilled(repair.runner, now_ms)", "pass"),
        directed(TRIMMED + "two_logs_lost_what_the_third_one_trimmed_and_no_leader_is_needed"),
    ),
    mutation(
        "W6-cover",
        "A witness with a hole begins behind the base of a replica that knows not what it needs.",
        Edit("SnapshotReceiver.hole_unfilled", "runner.has_rows", "True"),
        directed(ENDINGS + "witness_waits_for_a_leader_with_a_hole_that_nobody_fills"),
    ),
    mutation(
        "S0.3-rebase-forgotten",
        "A base that replaces a log counts as all that was acknowledged behind a hole.",
        Edit(
            "LogRecovery._begin_behind",
            "self._held[channel] = {}",
            "pass",
        ),
        directed(REBASE + "s0_3_channel_with_a_hole_keeps_its_records_but_for_a_base_beyond_them"),
    ),
    mutation(
        "S0.3-rebase-held",
        "A promise that the base stands for counts as broken.",
        Edit(
            "LogRecovery._has_held",
            "promised <= index.base.history",
            "False",
        ),
        directed(REBASE + "s0_3_promise_of_a_log_that_was_replaced_is_kept_by_the_base"),
    ),
    mutation(
        "S0.3-rebase-urgent",
        "The mark lags a base that replaced the log.",
        Edit(
            "SegmentLog.rebase",
            '{"is_urgent": replaces, "forgets": replaces}',
            '{"is_urgent": False, "forgets": replaces}',
        ),
        directed(REBASE + "base_that_replaces_the_log_is_in_the_mark_at_once"),
    ),
    mutation(
        "S0.3-rebase-once",
        "A base that replaces a log is written once.",
        Edit("SegmentLog.rebase", "parts.append(entry)", "pass"),
        directed(
            REBASE + "s0_3_damaged_base_that_replaced_a_log_brings_nothing_of_it_back"
            "[True-the first]"
        ),
    ),
    mutation(
        "S0.3-rebase-end",
        "A start takes no notice of where a log ended when its base was written.",
        Edit(
            "LogRecovery._begin_behind",
            "index.settle(base, entry.end)",
            "index.begin_behind(base)",
        ),
        directed(
            REBASE + "s0_3_damaged_base_that_replaced_a_log_brings_nothing_of_it_back"
            "[False-the first]"
        ),
    ),
    mutation(
        "S0.3-base-lost",
        "Records above the floor that meet no base entry count as a whole log.",
        Edit(
            "LogRecovery._add",
            "index.kept.append(last)",
            "if begins:\n    last = index\n    last.start_seq = last.last_seq = Seq(base_seq - 1)\n"
            "else:\n    index.kept.append(last)",
        ),
        directed(FLOOR + "s0_3_channel_that_lost_its_base_entry_is_recovering"),
    ),
    mutation(
        "S0.3-base-front",
        "A log above its floor is taken for damaged where its records begin.",
        Edit("LogRecovery._is_front_open", "self._floor.segment > 1 and not len(index)", "False"),
        directed(FLOOR + "s6_5_floor_is_held_by_the_channel_that_needs_the_oldest_segment"),
    ),
    mutation(
        "S0.3-front-filled",
        "A record behind one that was filled counts as damaged if what stood between them is gone.",
        Edit(
            "LogRecovery._add",
            "not index.kept or self._front_fills.pop(channel, base_seq) < base_seq",
            "not index.kept",
        ),
        directed(FLOOR + "s0_3_record_behind_one_that_was_filled_is_kept_behind_a_floor[lost0]"),
    ),
    mutation(
        "S0.3-front-given-up",
        "What says that a log was found whole takes its records above the floor from it.",
        Edit("LogRecovery._give_up", "self._is_front_open(index) and index.kept", "False"),
        directed(FLOOR + "s0_3_what_was_found_whole_stays_whole_behind_a_floor"),
    ),
    mutation(
        "S0.3-front-kept",
        "What was given up comes back above the floor.",
        Edit(
            "LogRecovery._forget_given_up",
            "base_seq <= index.last_part.last_seq",
            "False",
        ),
        directed(FLOOR + "s0_3_what_was_given_up_stays_so_behind_a_floor"),
    ),
    mutation(
        "S0.3-cut-part",
        "A channel forgets its promise when the part behind its hole was cut where it begins.",
        Edit(
            "LogRecovery._compare",
            "max(index.last_part.end, promised, known)",
            "max(index.last_part.end, known)",
        ),
        directed(
            HOLES + "promise_is_not_forgotten_when_the_record_in_front_of_a_truncation_is_damaged"
        ),
    ),
    mutation(
        "S6.5-floor-mark",
        "Segments go before the mark says that they are not needed.",
        Edit(
            "GroupCommitter._raise_floor",
            "self._mark.raise_floor(raised.floor, self._unmarked | rows)\nself._unmarked = {}",
            "",
        ),
        Edit(
            "GroupCommitter._raise_floor",
            "self._ops.sync_directory(self._directory)",
            "self._ops.sync_directory(self._directory)\n"
            "self._mark.raise_floor(raised.floor, self._unmarked | rows)\nself._unmarked = {}",
        ),
        directed(CRASH, FLOOR + "s6_5_order_is_bases_then_mark_then_files"),
    ),
    mutation(
        "S6.5-floor-synced",
        "The mark states a floor before the base entries are durable that stand for what goes.",
        Edit(
            "GroupCommitter._sync",
            "self._segments.sync()\nself._raise_floor(batch.floor, batch.rows)",
            "self._raise_floor(batch.floor, batch.rows)",
        ),
        directed(CRASH, FLOOR + "s6_5_order_is_bases_then_mark_then_files"),
    ),
    mutation(
        "S6.5-floor-records",
        "Only the newest base entry of a channel holds the floor back, not its records.",
        Edit("ChannelIndex.live_from", "segment_of(self.positions[0])", "self.base_segment or 1"),
        directed(FLOOR + "s6_5_floor_is_held_by_the_channel_that_needs_the_oldest_segment"),
    ),
    mutation(
        "S6.5-floor-base",
        "The newest base entry of a channel does not hold the floor back.",
        Edit(
            "ChannelIndex.live_from",
            "[self.base_segment] if self.base_segment else []",
            "list[int]()",
        ),
        directed(
            REBASE + "present_base_again_moves_only_the_place_where_it_is_stored",
            FLOOR + "s6_5_base_entry_of_an_idle_channel_is_needed",
        ),
    ),
    mutation(
        "S6.5-floor-filled",
        "Where a filled record is counts for those behind it.",
        Edit("ChannelIndex.live_from", "self.has_fills and len(self)", "False"),
        directed(FLOOR + "s6_5_record_that_was_filled_leaves_the_oldest_one_needed"),
    ),
    mutation(
        "S6.5-floor-hole",
        "Segments go that tell which records of a channel are missing.",
        Edit(
            "LogFacts.live_from",
            "self._floor if index.kept else index.live_from()",
            "index.live_from()",
        ),
        directed(FLOOR + "s0_3_channel_with_a_hole_holds_the_floor_back"),
    ),
    mutation(
        "S6.5-floor-needed",
        "A floor may be asked for above what a channel needs.",
        Edit("SegmentLog.begin_floor", "not self._floor < segment <= self.floor_max()", "False"),
        directed(FLOOR + "s6_5_floor_above_what_is_needed_stops_the_log"),
    ),
    mutation(
        "S6.5-floor-chain",
        "The mark states another chain at the floor than its segment continues.",
        Edit(
            "SegmentLog.begin_floor",
            "self._segments[segment].previous_chain",
            "self._chain",
        ),
        directed(FLOOR + "s6_5_floor_is_held_by_the_channel_that_needs_the_oldest_segment"),
    ),
    mutation(
        "S0.1-floor-foreign",
        "A segment of another store that is below the floor is removed before it is refused.",
        Edit(
            "LogRecovery._check_removable",
            "self._refuse_foreign(path, self._ops.read_start(path, SEGMENT_HEADER_BYTES))",
            "pass",
        ),
        directed(FLOOR + "s0_1_nothing_is_removed_from_a_log_that_is_refused[foreign]"),
    ),
    mutation(
        "GAP-15-floor",
        "Programs that know no floor open a store that has one.",
        Edit(
            "MarkFile._rewrite",
            "FORMAT_VERSION if self.floor is None else FLOOR_FORMAT",
            "FORMAT_VERSION",
        ),
        directed(FLOOR + "store_that_was_never_trimmed_stays_in_format_1"),
    ),
    mutation(
        "S10-rebuild",
        "Rows are built again from a log that lost the entry of its base.",
        Edit(
            "LogFacts.holds_all",
            "index.base.seq == 0 and (self._floor == 1 or len(index) > 0)",
            "index.base.seq == 0",
        ),
        directed(RECONCILE + "rows_stay_when_the_entry_of_the_base_is_damaged"),
    ),
    mutation(
        "S10-rebuild-base",
        "Rows are built again from a log that begins behind a base.",
        Edit(
            "LogFacts.holds_all",
            "index.base.seq == 0 and (self._floor == 1 or len(index) > 0)",
            "self._floor == 1 or len(index) > 0",
        ),
        directed(RECONCILE + "rows_are_built_again_only_from_a_log_that_holds_all"),
    ),
)
