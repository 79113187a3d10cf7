"""Ablations of the Spark sink: what a write may claim, and which DataFrame fits which table."""

from __future__ import annotations

from tests.ablations.ablation import Ablation, directed

SPARK = "raftstore/spark/"
TASKS = SPARK + "tasks.py"
TABLES = SPARK + "tables.py"
ENCODING = SPARK + "encoding.py"
UPSERT = SPARK + "upsert.py"

UNIT = "tests/unit/spark/"
TASK_TESTS = UNIT + "test_tasks.py::test_"
ROW_TESTS = UNIT + "test_encoding.py::test_"
OPTION_TESTS = UNIT + "test_options.py::test_"

SPARK_RULES: tuple[Ablation, ...] = (
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
        "        if now.uuid != self.table.uuid:",
        "        if False:",
        TASK_TESTS + "task_is_refused_when_the_table_was_made_anew_since_it_was_planned",
    ),
    directed(
        "spark-impossible",
        "a table is created that no row of the DataFrame fits",
        TASKS,
        "    TableSchema(options.key, schema_json)\n    return",
        "    return",
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
        "    for name in declared:\n        if name not in given:",
        "    for name in declared:\n        if False:",
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
        "return list(zip(keys, map(seal, keys, values), strict=True))",
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
        "arrived[partition_of(row[0], self._partitions)].append(row)",
        "arrived[hash(row[0]) % self._partitions].append(row)",
        ROW_TESTS + "chunks_hold_every_row_once_sorted_and_bounded_when_cut",
    ),
    directed(
        "spark-last",
        "of two rows with one key the earlier wins",
        ENCODING,
        "        rows.sort(key=_by_key)\n",
        "        rows.sort(key=_by_key, reverse=True)\n        rows.reverse()\n",
        ROW_TESTS + "chunk_keeps_the_later_row_last_when_a_key_comes_twice",
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
        "    parse_options(texts)\n",
        "",
        OPTION_TESTS + "upsert_refuses_bad_options_when_the_query_is_written",
    ),
    directed(
        "spark-upsert",
        "a batch of updates asks to replace the table",
        UPSERT,
        '.mode("append")',
        '.mode("overwrite")',
        OPTION_TESTS + "upsert_writes_the_batch_through_the_format_when_called_by_spark",
    ),
)
