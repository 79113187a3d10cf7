"""Ablations of the Spark sink: what a write may claim, and which DataFrame fits which table."""

from __future__ import annotations

from tests.ablations.ablation import Ablation, directed

SPARK = "raftstore/spark/"
TASKS = SPARK + "tasks.py"
TABLES = SPARK + "tables.py"
ENCODING = SPARK + "encoding.py"
UPSERT = SPARK + "upsert.py"
COLUMNS = SPARK + "column_decode.py"

UNIT = "tests/unit/spark/"
TASK_TESTS = UNIT + "test_tasks.py::test_"
ROW_TESTS = UNIT + "test_encoding.py::test_"
COLUMN_TESTS = UNIT + "test_column_decode.py::test_"
CHANGE_TESTS = UNIT + "test_row_operations.py::test_"
OPTION_TESTS = UNIT + "test_options.py::test_"

SPARK_RULES: tuple[Ablation, ...] = (
    directed(
        "spark-page-seals",
        "a page is read into Spark with a row that was damaged or filed under another key",
        COLUMNS,
        "_expect(seals == np.fromiter(checksums, np.uint64, self.rows))",
        "list(checksums)",
        COLUMN_TESTS + "page_with_a_damaged_row_is_never_decoded_at_once",
    ),
    directed(
        "spark-page-ends",
        "columns of a page are taken from the rows beside them",
        COLUMNS,
        "_expect(self._at == self._ends)",
        "pass",
        COLUMN_TESTS + "rows_of_several_lengths_or_newer_schemas_are_left_to_the_other_decoder",
    ),
    directed(
        "spark-page-extensions",
        "a time of day is read as the moment so long after 1970 began",
        COLUMNS,
        "((tags == tag) & (page.byte(1) == code))",
        "(tags == tag)",
        COLUMN_TESTS + "no_bytes_are_taken_for_other_columns_than_they_are",
    ),
    directed(
        "spark-lost-table",
        "a stream goes on with a new table that lacks what its earlier batches wrote",
        "raftstore/spark/tasks.py",
        "            if streamed:\n",
        "            if False:\n",
        "tests/unit/spark/test_taking_over.py::test_stream_makes_its_table_in_batch_0_alone",
    ),
    directed(
        "spark-pin-life",
        "a job is planned with a state that the nodes give up before its tasks read it",
        "raftstore/spark/store.py",
        '        if "pinLife" in options.given and 0 < life_ms < options.pin_life_ms:\n',
        "        if False:\n",
        "tests/unit/spark/test_reader.py::"
        "test_pin_life_beyond_what_the_nodes_keep_is_refused_when_the_job_is_planned",
    ),
    directed(
        "S4.4-spark",
        "a task counts rows that nobody acknowledged",
        TASKS,
        "                writer.flush()\n",
        "",
        TASK_TESTS + "task_raises_what_the_client_concluded_when_a_record_is_in_doubt",
    ),
    directed(
        "S0.8-spark",
        "a task writes to another table of the same name",
        TASKS,
        "    if now.uuid != planned.uuid:",
        "    if False:",
        TASK_TESTS + "task_is_refused_when_the_table_was_made_anew_since_it_was_planned",
    ),
    directed(
        "spark-impossible",
        "a table is created that no row of the DataFrame fits",
        TASKS,
        "    TableSchema(options.key, schema_json)\n    try:",
        "    try:",
        TASK_TESTS + "plan_creates_nothing_when_the_table_would_be_impossible",
    ),
    directed(
        "spark-create",
        "a table is created against the option",
        TASKS,
        "    if not options.create_table:",
        "    if False:",
        TASK_TESTS + "plan_creates_nothing_when_the_table_would_be_impossible",
    ),
    directed(
        "spark-empty",
        "a task without rows connects to the cluster",
        TASKS,
        "        if first is None:\n            return Written()\n",
        '        first = first or Chunk(0, b"", 0)\n',
        TASK_TESTS + "task_does_not_connect_when_its_partition_is_empty",
    ),
    directed(
        "spark-fits",
        "a DataFrame that does not fit the table is written",
        TASKS,
        "    check_fits(table, options, schema_json)\n",
        "",
        TASK_TESTS + "frame_that_does_not_fit_is_refused_when_the_write_is_planned",
    ),
    directed(
        "spark-key",
        "rows are written under another key than the table's",
        TABLES,
        "    if options.key and options.key != table.key_columns:",
        "    if False:",
        TASK_TESTS + "frame_is_refused_when_its_columns_are_others",
    ),
    directed(
        "spark-missing-column",
        "an upsert erases the columns that the DataFrame lacks",
        TABLES,
        "        if name not in given and not (options.merge_schema",
        "        if False and not (options.merge_schema",
        TASK_TESTS + "frame_is_refused_when_its_columns_are_others",
    ),
    directed(
        "spark-unknown-column",
        "a column that the table does not have is taken",
        TABLES,
        "        if name not in declared:",
        "        if False:",
        TASK_TESTS + "frame_is_refused_when_its_columns_are_others",
    ),
    directed(
        "spark-type",
        "a column of another type is stored",
        TABLES,
        "    return "
        'declared in _WIDER.get(given, ()) or given == "void" or _is_text(given, declared)',
        "    return True",
        TASK_TESTS + "column_is_refused_when_its_type_is_another",
    ),
    directed(
        "spark-nested-type",
        "an array of another type is stored",
        TABLES,
        '        return _fits(given["elementType"], declared["elementType"])',
        "        return True",
        TASK_TESTS + "column_is_refused_when_its_type_is_another",
    ),
    directed(
        "spark-null-key",
        "a row whose key is null is dropped or misplaced",
        ENCODING,
        "            if None in columns[name]:",
        "            if False:",
        ROW_TESTS + "encoder_refuses_a_null_key_when_any_row_has_one",
    ),
    directed(
        "spark-seal",
        "rows are stored without their seal",
        ENCODING,
        "return list(seal_rows(keys, values))",
        "return list(zip(keys, values, strict=True))",
        ROW_TESTS + "encoder_keeps_values_exactly_when_they_come_from_arrow",
    ),
    directed(
        "spark-delete",
        "a delete writes rows",
        ENCODING,
        "        if self._delete:",
        "        if False:",
        ROW_TESTS + "encoder_reads_only_the_key_when_rows_are_deleted",
    ),
    directed(
        "spark-partition",
        "rows go to partitions where no reader looks for them",
        ENCODING,
        "            into[place](row)",
        "            into[(place + len(row[0])) % self._partitions](row)",
        ROW_TESTS + "chunks_hold_every_row_once_sorted_and_bounded_when_cut",
    ),
    directed(
        "spark-last",
        "of two rows with one key the earlier wins",
        ENCODING,
        "                part.sort(key=_by_key)\n",
        "                part.sort(key=_by_key, reverse=True)\n                part.reverse()\n",
        ROW_TESTS + "chunk_keeps_the_later_row_last_when_a_key_comes_twice",
    ),
    directed(
        "spark-operations",
        "inserts of a batch are written after the rows that stand behind them",
        ENCODING,
        "        for mode, part in ((INSERT, inserts), (self._mode, others)):",
        "        for mode, part in ((self._mode, others), (INSERT, inserts)):",
        CHANGE_TESTS + "order_of_operations_holds_however_chunks_are_cut",
    ),
    directed(
        "spark-insert-after",
        "an insert behind a delete of its key is written before it",
        ENCODING,
        "        if type(row) is InsertRow and row[0] not in touched:",
        "        if type(row) is InsertRow:",
        CHANGE_TESTS + "order_of_operations_holds_however_chunks_are_cut",
    ),
    directed(
        "spark-merge-type",
        "mergeSchema lets a column become another type",
        "raftstore/rows/schema_growth.py",
        '    if _plain(given["type"]) != _plain(known["type"]):',
        "    if False:",
        "tests/unit/rows/test_schema_growth.py::test_column_that_cannot_be_appended_is_refused",
    ),
    directed(
        "spark-merge-free",
        "columns are appended to a table whose rows may have any",
        "raftstore/rows/schema_growth.py",
        "    if not TableSchema(key_columns, schema_json).value_columns:",
        "    if False:",
        "tests/unit/rows/test_schema_growth.py::test_table_that_takes_any_columns_gets_none",
    ),
    directed(
        "spark-take-over",
        "a writer is taken over without the user's word",
        SPARK + "writer.py",
        '    if options.on_regression == "apply":',
        "    if True:",
        UNIT + "test_batch_writer.py::test_"
        "lower_batch_and_other_checkpoint_are_refused_in_the_task",
    ),
    directed(
        "spark-pressure",
        "a task takes rows from Spark however overloaded the nodes are",
        "raftstore/client/bulk.py",
        "        await self._slots.acquire()\n",
        "",
        UNIT
        + "test_pressure.py::test_task_takes_no_more_rows_from_spark_while_nodes_are_overloaded",
    ),
    directed(
        "metrics-writers",
        "every writer that ever was has a label of its own in the metrics",
        "raftstore/engine/writer_meters.py",
        "        for key in named[: max(0, len(named) - WRITER_LABELS_MAX)]:",
        "        for key in ():",
        "tests/unit/engine/test_coordinator.py::test_metrics_have_a_bounded_number_of_writers",
    ),
    directed(
        "spark-rows",
        "a record holds more rows than one may",
        ENCODING,
        "            full = len(self._rows[partition]) >= self._rows_max",
        "            full = False",
        ROW_TESTS + "chunks_hold_every_row_once_sorted_and_bounded_when_cut",
    ),
    directed(
        "spark-bytes",
        "a record is larger than one may be",
        ENCODING,
        "if self._rows[partition] and (full or self._sizes[partition] + size > self._bytes_max):",
        "if self._rows[partition] and full:",
        ROW_TESTS + "chunk_is_cut_before_it_grows_over_its_bytes",
    ),
    directed(
        "spark-gathered",
        "a task gathers rows without bound",
        ENCODING,
        "        while self._gathered_bytes > GATHERED_BYTES_MAX:",
        "        while False:",
        ROW_TESTS + "largest_partition_is_sent_early_when_much_is_gathered",
    ),
    directed(
        "spark-options",
        "a mistaken option is told when the first batch arrives",
        UPSERT,
        "    parsed = parse_options(texts)\n",
        '    parsed = parse_options(texts | {"partitions": "1"})\n',
        OPTION_TESTS + "upsert_refuses_bad_options_when_the_query_is_written",
    ),
    directed(
        "spark-upsert",
        "a batch of updates asks to replace the table",
        UPSERT,
        '            writing.mode("append").save()\n            _written',
        '            writing.mode("overwrite").save()\n            _written',
        OPTION_TESTS + "upsert_writes_the_batch_through_the_format_when_called_by_spark",
    ),
)
