"""Ablations of whoever writes atomic batches: the client, and Spark's tasks and driver."""

from __future__ import annotations

from tests.ablations.ablation import Ablation, directed

WRITES = "raftstore/client/batches/batch_writes.py"
STAGER = "raftstore/client/batches/stager.py"
WRITER = "raftstore/spark/write/writer.py"
MESSAGES = "raftstore/spark/write/commit_message.py"
IDENTITY = "raftstore/spark/identity.py"
TASKS = "raftstore/spark/write/tasks.py"
UPSERT = "raftstore/spark/write/upsert.py"

CLIENT = "tests/integration/client/test_batch_writes.py::test_"
SPARK = "tests/unit/spark/test_batch_writer.py::test_"
OPTIONS = "tests/unit/spark/test_options.py::test_"

SENDING_RULES: tuple[Ablation, ...] = (
    directed(
        "send-level",
        "batches are sent to nodes that cannot read them",
        WRITES,
        "        if reason is not None:\n",
        "        if False:\n",
        CLIENT + "nothing_is_sent_while_a_node_is_of_an_older_version",
    ),
    directed(
        "send-regression",
        "a writer that is past its batch is told that nobody knows",
        WRITES,
        "        return error if self.is_told_by_refusals else Asked.final(self, error)",
        "        return Asked.final(self, error)",
        CLIENT + "lower_batch_or_other_checkpoint_is_refused_until_the_writer_is_adopted",
    ),
    directed(
        "send-already",
        "a batch that is in the table is committed again",
        WRITES,
        "        if ticket.is_already_written:\n            return result_of(",
        "        if False:\n            return result_of(",
        CLIENT + "batch_is_seen_at_once_and_only_once",
    ),
    directed(
        "send-hung",
        "a coordinator that hangs holds a batch up for as long as it may take",
        WRITES,
        "            until_ms = min(deadline_ms, context.now_ms() + 2 * ASK_MS_MAX)",
        "            until_ms = deadline_ms",
        CLIENT + "coordinator_that_hangs_is_asked_again",
    ),
    directed(
        "send-replace",
        "a replacement leaves rows in partitions that got none",
        WRITES,
        "    if MODES[mode] == TRUNCATE:\n",
        "    if False:\n",
        CLIENT + "manifest_lists_tasks_and_partitions_in_order",
    ),
    directed(
        "send-winners",
        "two attempts of one task count",
        WRITES,
        "    if len({partition_id for partition_id, _ in winners}) != len(winners):",
        "    if False:",
        CLIENT + "manifest_that_cannot_be_is_refused_before_anything_is_sent",
    ),
    directed(
        "send-same-table",
        "an attempt of a dropped table goes on in one of its name",
        WRITES,
        "    if ticket.table_uuid != info.uuid:",
        "    if False:",
        CLIENT + "ticket_of_another_table_or_of_a_written_batch_stages_nothing",
    ),
    directed(
        "send-expired",
        "a chunk whose guid expired fails its task",
        STAGER,
        "            except GuidExpiredError:",
        "            except ZeroDivisionError:",
        CLIENT + "chunk_is_staged_again_under_a_new_guid_when_its_guid_expired",
    ),
    directed(
        "spark-mixed",
        "tasks of several attempts are committed together",
        MESSAGES,
        "    if len(attempts) > 1:",
        "    if False:",
        SPARK + "second_driver_fences_the_first",
    ),
    directed(
        "spark-replay",
        "a replayed batch is staged although it is in the table",
        WRITER,
        "            if ticket.is_already_written:\n                for _ in batches:",
        "            if False:\n                for _ in batches:",
        SPARK + "replay_finds_its_batch_written_and_stages_nothing",
    ),
    directed(
        "spark-drain",
        "a task of a replayed batch leaves Spark's rows where they are",
        WRITER,
        "                for _ in batches:\n                    pass",
        "                for _ in ():\n                    pass",
        SPARK + "replay_finds_its_batch_written_and_stages_nothing",
    ),
    directed(
        "spark-attempt",
        "the driver begins an attempt of its own, which ends that of its tasks",
        WRITER,
        "            ticket = ticket or self._begin(store, identity)",
        "            ticket = self._begin(store, replace(identity, uuid=self.identity.uuid))",
        SPARK + "micro_batch_is_visible_when_it_is_committed_and_not_before",
    ),
    directed(
        "spark-lineage",
        "a new checkpoint under an old name is taken for the old one",
        IDENTITY,
        "writer=writer, lineage=query, batch_id",
        'writer=writer, lineage="", batch_id',
        SPARK + "lower_batch_and_other_checkpoint_are_refused_in_the_task",
    ),
    directed(
        "spark-lineage-upsert",
        "foreachBatch does not tell which checkpoint its numbers are of",
        UPSERT,
        '            writing = writing.option("lineage", parsed.lineage or query)\n',
        "",
        OPTIONS + "upsert_writes_the_batch_through_the_format_when_called_by_spark",
    ),
    directed(
        "spark-unknown-writer",
        "a batch whose writer nobody can tell is written under none",
        WRITER,
        "        if ticket is None and not identity.is_known:",
        "        if False:",
        SPARK + "micro_batch_without_tasks_is_committed_where_the_checkpoint_can_be_read",
    ),
    directed(
        "spark-too-old",
        "a write to nodes of older versions fails in its tasks instead of before",
        TASKS,
        '        if options.isolation == "batch":',
        "        if False:",
        SPARK + "write_is_refused_before_any_task_where_it_cannot_work",
    ),
    directed(
        "spark-abort",
        "an attempt that Spark gave up can still commit",
        WRITER,
        "        for ticket in tickets:\n",
        "        for ticket in ():\n",
        SPARK + "attempt_is_given_up_when_spark_aborts",
    ),
)
