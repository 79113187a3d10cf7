"""Mutations of the writers of atomic batches: the client, and Spark's tasks and driver."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

CLIENT = "tests/integration/client/test_batch_writes.py::test_"
OPTIONS = "tests/unit/spark/test_options.py::test_"
SPARK = "tests/unit/spark/test_batch_writer.py::test_"

SENDING_RULES: tuple[Mutation, ...] = (
    mutation(
        "send-level",
        "Batches are sent to nodes that cannot read them.",
        Edit(
            "BatchWrites.check_level",
            "reason is None",
            "True",
        ),
        directed(CLIENT + "nothing_is_sent_while_a_node_is_of_an_older_version"),
    ),
    mutation(
        "send-regression",
        "A writer that is past its batch is informed that nobody knows.",
        Edit(
            "_AskedOfBatch.final",
            "error if self.ends_by_refusals else Asked.final(self, error)",
            "Asked.final(self, error)",
        ),
        directed(CLIENT + "lower_batch_or_other_checkpoint_is_refused_until_the_writer_is_adopted"),
    ),
    mutation(
        "send-already",
        "A batch that is in the table is committed again.",
        Edit(
            "BatchWrites.commit",
            "ticket.is_already_written",
            "False",
        ),
        directed(CLIENT + "batch_is_seen_at_once_and_only_once"),
    ),
    mutation(
        "send-hung",
        "A coordinator that hangs holds a batch up for as long as it may take.",
        Edit(
            "BatchWrites._ask",
            "min(deadline_ms, context.now_ms() + 2 * ASK_MS_MAX)",
            "deadline_ms",
        ),
        directed(CLIENT + "coordinator_that_hangs_is_asked_again"),
    ),
    mutation(
        "send-replace",
        "A replacement leaves rows in partitions that got none.",
        Edit(
            "manifest_of",
            "MODES[mode] == TRUNCATE",
            "False",
        ),
        directed(CLIENT + "manifest_lists_tasks_and_partitions_in_order"),
    ),
    mutation(
        "send-winners",
        "Two attempts of one task count.",
        Edit(
            "manifest_of",
            "len({partition_id for partition_id, _ in winners}) != len(winners)",
            "False",
        ),
        directed(CLIENT + "manifest_that_cannot_be_is_refused_before_anything_is_sent"),
    ),
    mutation(
        "send-same-table",
        "An attempt of a dropped table goes on in one of its name.",
        Edit(
            "check_same_table",
            "ticket.table_uuid != info.uuid",
            "False",
        ),
        directed(CLIENT + "ticket_of_another_table_or_of_a_written_batch_stages_nothing"),
    ),
    mutation(
        "send-expired",
        "A chunk whose guid expired fails its task.",
        Edit(
            "AsyncStager._stage",
            "GuidExpiredError",
            "ZeroDivisionError",
        ),
        directed(CLIENT + "chunk_is_staged_again_under_a_new_guid_when_its_guid_expired"),
    ),
    mutation(
        "spark-mixed",
        "Tasks of several attempts are committed together.",
        Edit(
            "settled",
            "len(attempts) > 1",
            "False",
        ),
        directed(SPARK + "second_driver_fences_the_first"),
    ),
    mutation(
        "spark-replay",
        "A replayed batch is staged although it is in the table.",
        Edit(
            "BatchTask._write",
            "ticket.is_already_written",
            "False",
        ),
        directed(SPARK + "replay_finds_its_batch_written_and_stages_nothing"),
    ),
    mutation(
        "spark-drain",
        "A task of a replayed batch leaves Spark's rows where they are.",
        Edit(
            "BatchTask._write",
            "for _ in batches: ...",
            "for _ in (): ...",
        ),
        directed(SPARK + "replay_finds_its_batch_written_and_stages_nothing"),
    ),
    mutation(
        "spark-attempt",
        "The driver begins an attempt of its own, which ends that of its tasks.",
        Edit(
            "BatchTask._commit",
            "ticket or self._begin(store, identity)",
            "self._begin(store, replace(identity, uuid=self.identity.uuid))",
        ),
        directed(SPARK + "micro_batch_is_visible_when_it_is_committed_and_not_before"),
    ),
    mutation(
        "spark-lineage",
        "A new checkpoint under an old name is taken for the old one.",
        Edit(
            "in_task",
            "lineage=query,",
            'lineage="",',
        ),
        directed(SPARK + "lower_batch_and_other_checkpoint_are_refused_in_the_task"),
    ),
    mutation(
        "spark-lineage-upsert",
        "foreachBatch does not tell which checkpoint its numbers are of.",
        Edit(
            "upsert",
            'writing = writing.option("lineage", parsed.lineage or query)',
            "",
        ),
        directed(OPTIONS + "upsert_writes_the_batch_through_the_format_when_called_by_spark"),
    ),
    mutation(
        "spark-unknown-writer",
        "A batch whose writer nobody can tell is written under none.",
        Edit(
            "BatchTask._commit",
            "ticket is None and not identity.is_known",
            "False",
        ),
        directed(SPARK + "micro_batch_without_tasks_is_committed_where_the_checkpoint_can_be_read"),
    ),
    mutation(
        "spark-too-old",
        "A write to nodes of older versions fails in its tasks instead of before.",
        Edit(
            "find_table",
            'options.isolation == "batch"',
            "False",
        ),
        directed(SPARK + "write_is_refused_before_any_task_where_it_cannot_work"),
    ),
    mutation(
        "spark-abort",
        "An attempt that Spark gave up can still commit.",
        Edit(
            "BatchTask.abort",
            "for ticket in tickets: ...",
            "for ticket in (): ...",
        ),
        directed(SPARK + "attempt_is_given_up_when_spark_aborts"),
    ),
)
