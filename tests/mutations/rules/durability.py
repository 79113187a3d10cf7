"""Mutations of durability below ``fsync``: S0.6."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

DOUBT = "tests/unit/core/test_doubt.py::test_"
EARLY = "tests/unit/engine/channel/test_stored_early.py::test_"
MARK = "tests/unit/storage/log/test_promised_durability.py::test_"
WORLD = "tests/unit/engine/test_durability_worlds.py::test_"


CHECKPOINTS = "tests/unit/engine/test_checkpoints.py::test_"

DURABILITY_RULES: tuple[Mutation, ...] = (
    mutation(
        "S0.6-ready",
        "A node whose replica is in doubt is ready for reads that it refuses.",
        Edit("route_of", "node not in unable", "True"),
        directed(
            "tests/unit/policy/test_views.py::"
            "test_n9_replica_that_serves_nothing_makes_no_partition_ready"
        ),
    ),
    mutation(
        "S0.6-explain",
        "An explanation sends a read to a replica in doubt, which refuses it.",
        Edit("explain_read", "node not in refusing", "True"),
        directed(
            "tests/unit/client/test_explanation.py::"
            "test_replica_that_serves_nothing_is_not_asked_and_says_why"
        ),
    ),
    mutation(
        "S0.6-checkpoint-early",
        "A checkpoint is answered before the log of its last channel is on the disk.",
        Edit("Checkpoints._on_synced", "not self._left", "self._durable"),
        directed(CHECKPOINTS + "answer_comes_when_the_last_channel_is_synced_and_names_what_is"),
    ),
    mutation(
        "S0.6-checkpoint-joined",
        "A request for a checkpoint is answered by the one that began before it.",
        Edit(
            "Checkpoints.on_request",
            "self._next.append(waiting)",
            "(self._answered if self._left else self._next).append(waiting)",
        ),
        directed(CHECKPOINTS + "request_that_comes_meanwhile_is_answered_by_the_next_checkpoint"),
    ),
    mutation(
        "S0.6-checkpoint-promises",
        "Writes behind a checkpoint count at the level that its mark takes back.",
        Edit(
            "PromisedDurability.take_back",
            "self._operation, self._tracker.in_force = None, Durability.FSYNC",
            "self._operation = None",
        ),
        directed(CHECKPOINTS + "nothing_is_promised_from_the_request_on"),
    ),
    mutation(
        "S0.6-no-doubt",
        "A replica that may have lost acknowledged records takes part as if it had not.",
        Edit("ChannelState._learn_doubt", "recovered.in_doubt", "False"),
        directed(WORLD + "replica_that_is_away_and_may_hold_it_is_waited_for"),
    ),
    mutation(
        "S0.6-votes-in-doubt",
        "A replica in doubt votes before it knows what it may have lost.",
        Edit(
            "Replica.may_vote",
            "doubt is not None and (doubt.target is None or candidate < doubt.target)",
            "False",
        ),
        directed(DOUBT + "replica_in_doubt_asks_all_others_and_takes_no_part"),
    ),
    mutation(
        "S0.6-forgets-target",
        "A replica in doubt votes by the end of its own log.",
        Edit("Replica.may_vote", "candidate < doubt.target", "False"),
        directed(DOUBT + "end_of_a_leader_is_a_target"),
    ),
    mutation(
        "S0.6-below-target",
        "A replica takes part again before its log has come to the target.",
        Edit(
            "ChannelState._follow_target",
            "self._lacking is None and self.lineage.last >= target",
            "True",
        ),
        directed(DOUBT + "end_of_a_leader_is_a_target"),
    ),
    mutation(
        "S0.6-majority-tells",
        "The ends of some replicas are enough for a target.",
        Edit("Doubt.on_answer", "len(self._answers) < len(others)", "False"),
        directed(DOUBT + "without_a_leader_all_have_to_answer_in_a_term_above_its_own"),
    ),
    mutation(
        "S0.6-any-leader",
        "The end of the leader of a lower term is believed.",
        Edit("Doubt.on_answer", "answer.term >= term", "True"),
        directed(DOUBT + "leader_of_a_lower_term_is_not_believed"),
    ),
    mutation(
        "S0.6-earlier-lives",
        "Answers to questions of earlier rounds and lives are believed.",
        Edit("Doubt.on_answer", "answer.request_id != self._request_id", "False"),
        directed(DOUBT + "answer_to_an_earlier_round_or_life_is_not_believed"),
    ),
    mutation(
        "S0.6-unfenced",
        "All ends are believed in a term in which records may still be under way.",
        Edit(
            "Doubt.on_answer",
            "term > self._stopped_term and all((each.term == term for each in answers))",
            "True",
        ),
        directed(DOUBT + "without_a_leader_all_have_to_answer_in_a_term_above_its_own"),
    ),
    mutation(
        "S0.6-target-stays",
        "A target is never replaced, although nobody may hold that much any more.",
        Edit(
            "Doubt.on_answer",
            "self.target = answer.history",
            "self.target = self.target or answer.history",
        ),
        directed(DOUBT + "newer_answer_replaces_the_target"),
    ),
    mutation(
        "S0.6-unmarked",
        "Records count before they are durable although the mark does not say so yet.",
        Edit(
            "DurableTracker._counts",
            "not waiting.is_rows or self.in_force is Durability.FSYNC",
            "not waiting.is_rows",
        ),
        Edit(
            "DurableTracker._counts",
            "self.in_force is Durability.MEMORY",
            "self.durability is Durability.MEMORY",
        ),
        directed(EARLY + "nothing_counts_early_before_the_mark_says_so"),
    ),
    mutation(
        "S0.6-any-kind",
        "Steps of micro-batches and new terms count before they are durable.",
        Edit(
            "DurableTracker._counts",
            "not waiting.is_rows or self.in_force is Durability.FSYNC",
            "self.in_force is Durability.FSYNC",
        ),
        directed(EARLY + "nothing_counts_behind_a_record_of_another_kind"),
    ),
    mutation(
        "S0.6-other-boot",
        "Another boot of the machine leaves no doubt at buffered.",
        Edit("ChannelIndex.learn_doubt", "row.boot != boot", "False"),
        directed(MARK + "stop_leaves_a_doubt_where_it_may_have_cost_records"),
    ),
    mutation(
        "S0.6-forgotten-doubt",
        "The next start forgets that a replica is in doubt.",
        Edit("ChannelIndex.learn_doubt", "row.in_doubt", "False"),
        directed(MARK + "doubt_ends_where_the_log_says_so_and_not_before"),
    ),
    mutation(
        "S0.6-failed-sync",
        "A sync that failed leaves no doubt about what the system was handed.",
        Edit("GroupCommitter._do", "isinstance(error, StorageError)", "False"),
        directed(MARK + "failed_sync_leaves_a_doubt_although_the_machine_goes_on"),
    ),
)
