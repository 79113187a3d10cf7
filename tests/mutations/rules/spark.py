"""Mutations of the Spark sink: what a write may claim, and which DataFrame fits which table."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

UNIT = "tests/unit/spark/"
ROW_TESTS = "tests/unit/spark/test_encoding.py::test_"
COLUMN_TESTS = "tests/unit/spark/test_column_rows.py::test_"
TASK_TESTS = "tests/unit/spark/test_tasks.py::test_"
CHANGE_TESTS = "tests/unit/spark/test_row_operations.py::test_"
CHANGED = "tests/unit/spark/test_changes.py::test_"
DECODE_TESTS = "tests/unit/spark/test_column_decode.py::test_"
OPTION_TESTS = "tests/unit/spark/test_options.py::test_"
SCHEMA_GROWTH = "tests/unit/rows/test_schema_growth.py::test_"

SPARK_RULES: tuple[Mutation, ...] = (
    mutation(
        "S0.8-spark",
        "A task writes to another table of the same name.",
        Edit(
            "refuse_other_table",
            "uuid != planned.uuid",
            "False",
        ),
        directed(TASK_TESTS + "task_is_refused_when_the_table_was_made_anew_since_it_was_planned"),
    ),
    mutation(
        "S0.8-spark-state",
        "A job reads the state of another table of the same name.",
        Edit(
            "RaftStoreReader.partitions",
            "refuse_other_table(token.table_uuid, self._table)",
            "",
        ),
        directed(
            UNIT + "test_reader.py::test_state_of_a_table_made_anew_while_the_job_is"
            "_planned_is_refused"
        ),
    ),
    mutation(
        "S0.8-spark-begin",
        "A task stages rows in another table of the same name, split for other partitions.",
        Edit(
            "BatchTask._begin",
            "refuse_other_table(ticket.table_uuid, self.table)",
            "",
        ),
        directed(
            UNIT + "test_batch_writer.py::test_task_stages_nothing_in_a_table_that_was"
            "_made_anew_before_it_began"
        ),
    ),
    mutation(
        "S0.8-spark-changes",
        "A stream of changes goes on with the rows of another table of the same name.",
        Edit(
            "ChangeStreamReader.read",
            "self._refuse_other(store.definition(name))\nyield from decoder.decode(number, pieces)",
            "yield from decoder.decode(number, pieces)",
        ),
        directed(CHANGED + "task_ends_when_its_table_was_made_anew_since_it_was_planned"),
    ),
    mutation(
        "S0.8-spark-changes-none",
        "A stream of changes passes over a table because another of its name has none there.",
        Edit(
            "ChangeStreamReader.read",
            "for pieces in store.change_pieces(self._options, number, after, to_seq): ...\n"
            "self._refuse_other(store.definition(name))",
            "for pieces in store.change_pieces(self._options, number, after, to_seq): ...",
        ),
        directed(CHANGED + "task_ends_when_its_table_was_made_anew_since_it_was_planned"),
    ),
    mutation(
        "S0.8-spark-changes-first",
        "A task asks for a partition that another table of the same name does not have.",
        Edit(
            "ChangeStreamReader.read",
            "self._refuse_other(store.table_info(name))",
            "",
        ),
        directed(CHANGED + "task_ends_when_its_table_was_made_anew_since_it_was_planned"),
    ),
    mutation(
        "S0.8-spark-offsets",
        "Positions in another table of the same name are reported as those of the stream's.",
        Edit(
            "ChangeStreamReader._ends",
            "self._refuse_other(store.definition(name))",
            "",
        ),
        directed(CHANGED + "driver_takes_no_offsets_of_a_table_made_anew_while_it_asks"),
    ),
    mutation(
        "S4.4-spark",
        "A task counts rows that nobody acknowledged.",
        Edit(
            "SinkTask.run",
            "writer.flush()",
            "",
        ),
        directed(TASK_TESTS + "task_raises_what_the_client_concluded_when_a_record_is_in_doubt"),
    ),
    mutation(
        "spark-page-seals",
        "A page is read into Spark with a row that was damaged or filed under another key.",
        Edit(
            "_Page.check_seals",
            "_expect(seals == np.fromiter(checksums, np.uint64, self.rows))",
            "list(checksums)",
        ),
        directed(DECODE_TESTS + "page_with_a_damaged_row_is_never_decoded_at_once"),
    ),
    mutation(
        "spark-page-ends",
        "Columns of a page are taken from the rows beside them.",
        Edit(
            "_Page.check_ends",
            "_expect(self._at == self._ends)",
            "pass",
        ),
        directed(
            DECODE_TESTS + "rows_of_several_lengths_or_newer_schemas_are_left_to_the_other_decoder"
        ),
    ),
    mutation(
        "spark-page-extensions",
        "A time of day is read as the moment so long after 1970 began.",
        Edit(
            "_counts",
            "(tags == tag) & (page.byte(1) == code)",
            "tags == tag",
        ),
        directed(DECODE_TESTS + "no_bytes_are_taken_for_other_columns_than_they_are"),
    ),
    mutation(
        "spark-lost-table",
        "A stream goes on with a new table that lacks what its earlier batches wrote.",
        Edit(
            "find_table",
            "if streamed: ...",
            "if False: ...",
        ),
        directed(UNIT + "test_taking_over.py::test_stream_makes_its_table_in_batch_0_alone"),
    ),
    mutation(
        "spark-pin-life",
        "A job is planned with a state that the nodes give up before its tasks read it.",
        Edit(
            "ClientStore.open_snapshot",
            '"pinLife" in options.given and 0 < life_ms < options.pin_life_ms',
            "False",
        ),
        directed(
            UNIT + "test_reader.py::test_pin_life_beyond_what_the_nodes_keep_is_refused"
            "_when_the_job_is_planned"
        ),
    ),
    mutation(
        "spark-map-keys",
        "Of two instants of one hour by the clock one is lost as the key of a map.",
        Edit(
            "_hashable",
            "key.astimezone(UTC)",
            "key",
        ),
        directed(ROW_TESTS + "map_keeps_both_keys_of_an_hour_that_is_there_twice"),
    ),
    mutation(
        "spark-filter-exact",
        "A filter is applied with another bound than the query's.",
        Edit(
            "_Column.encoded",
            "isinstance(checked, float) and not math.isnan(checked) and checked != value",
            "isinstance(checked, float) and False",
        ),
        directed(UNIT + "test_filters.py::test_literals_that_the_column_cannot_hold_are_left"),
    ),
    mutation(
        "spark-lookup-rounded",
        "A look-up finds the row of another key, which pandas rounded.",
        Edit(
            "Lookup._key_series",
            "is_rounded and (series.abs() >= EXACT_FLOATS_END).any()",
            "False and (series.abs() >= EXACT_FLOATS_END).any()",
        ),
        directed(UNIT + "test_lookup.py::test_lookup_refuses_keys_that_pandas_rounded"),
    ),
    mutation(
        "spark-impossible",
        "A table is created that no row of the DataFrame fits.",
        Edit(
            "_create_table",
            "TableSchema(options.key, schema_json)",
            "",
        ),
        directed(TASK_TESTS + "plan_creates_nothing_when_the_table_would_be_impossible"),
    ),
    mutation(
        "spark-create",
        "A table is created against the option.",
        Edit(
            "_create_table",
            "not options.create_table",
            "False",
        ),
        directed(TASK_TESTS + "plan_creates_nothing_when_the_table_would_be_impossible"),
    ),
    mutation(
        "spark-empty",
        "A task without rows connects to the cluster.",
        Edit(
            "SinkTask.run",
            "if first is None:\n    return Written()",
            'first = first or Chunk(0, b"", 0)',
        ),
        directed(TASK_TESTS + "task_does_not_connect_when_its_partition_is_empty"),
    ),
    mutation(
        "spark-fits",
        "A DataFrame that does not fit the table is written.",
        Edit(
            "find_table",
            "try:\n"
            "    table = store.table_info(options.table)\n"
            "except UnknownTableError:\n"
            "    if streamed:\n"
            "        raise _lost(options, streamed) from None\n"
            "    table = _create_table(store, options, schema_json)\n"
            "check_fits(table, options, schema_json)\n"
            "return _append_columns(store, table, schema_json) if options.merge_schema "
            "else table",
            "try:\n"
            "    table = store.table_info(options.table)\n"
            "except UnknownTableError:\n"
            "    if streamed:\n"
            "        raise _lost(options, streamed) from None\n"
            "    table = _create_table(store, options, schema_json)\n"
            "    return _append_columns(store, table, schema_json) if "
            "options.merge_schema else table",
        ),
        directed(TASK_TESTS + "frame_that_does_not_fit_is_refused_when_the_write_is_planned"),
    ),
    mutation(
        "spark-key",
        "Rows are written under another key than the table's.",
        Edit(
            "check_fits",
            "options.key and options.key != table.key_columns",
            "False",
        ),
        directed(TASK_TESTS + "frame_is_refused_when_its_columns_are_others"),
    ),
    mutation(
        "spark-missing-column",
        "An upsert erases the columns that the DataFrame lacks.",
        Edit(
            "_check_columns",
            "name not in given",
            "False",
        ),
        directed(TASK_TESTS + "frame_is_refused_when_its_columns_are_others"),
    ),
    mutation(
        "spark-unknown-column",
        "A column that the table does not have is taken.",
        Edit(
            "_check_columns",
            "name not in declared",
            "False",
        ),
        directed(TASK_TESTS + "frame_is_refused_when_its_columns_are_others"),
    ),
    mutation(
        "spark-type",
        "A column of another type is stored.",
        Edit(
            "_fits_simple",
            'declared in _WIDER.get(given, ()) or given == "void" or _is_text(given, declared)',
            "True",
        ),
        directed(TASK_TESTS + "column_is_refused_when_its_type_is_another"),
    ),
    mutation(
        "spark-nested-type",
        "An array of another type is stored.",
        Edit(
            "_fits",
            '_fits(given["elementType"], declared["elementType"])',
            "True",
        ),
        directed(TASK_TESTS + "column_is_refused_when_its_type_is_another"),
    ),
    mutation(
        "spark-null-key",
        "A row whose key is null is dropped or misplaced.",
        Edit(
            "RowEncoder.encode",
            "None in columns[name]",
            "False",
        ),
        directed(ROW_TESTS + "encoder_refuses_a_null_key_when_any_row_has_one"),
    ),
    mutation(
        "spark-seal",
        "Rows are stored without their seal.",
        Edit(
            "RowEncoder._encoded",
            "seal_rows(keys, values)",
            "zip(keys, values, strict=True)",
        ),
        directed(ROW_TESTS + "encoder_keeps_values_exactly_when_they_come_from_arrow"),
    ),
    mutation(
        "spark-delete",
        "A delete writes rows.",
        Edit(
            "RowEncoder._encoded",
            "self._delete",
            "False",
        ),
        directed(ROW_TESTS + "encoder_reads_only_the_key_when_rows_are_deleted"),
    ),
    mutation(
        "spark-partition",
        "Rows go to partitions where no reader looks for them.",
        Edit(
            "Chunker._gather_rows",
            "into[place](row)",
            "into[(place + len(row[0])) % self._partitions](row)",
        ),
        directed(ROW_TESTS + "chunks_hold_every_row_once_sorted_and_bounded_when_cut"),
    ),
    mutation(
        "spark-last",
        "Of two rows with one key the earlier wins.",
        Edit(
            "Chunker._cut",
            "part.sort(key=_by_key)",
            "part.sort(key=_by_key, reverse=True)\npart.reverse()",
        ),
        directed(ROW_TESTS + "chunk_keeps_the_later_row_last_when_a_key_comes_twice"),
    ),
    mutation(
        "spark-operations",
        "Inserts of a batch are written after the rows that stand behind them.",
        Edit(
            "Chunker._cut",
            "(INSERT, inserts), (self._mode, others),",
            "(self._mode, others), (INSERT, inserts),",
        ),
        directed(CHANGE_TESTS + "order_of_operations_holds_however_chunks_are_cut"),
    ),
    mutation(
        "spark-insert-after",
        "An insert behind a delete of its key is written before it.",
        Edit(
            "_apart",
            "type(row) is InsertRow and row[0] not in touched",
            "type(row) is InsertRow",
        ),
        directed(CHANGE_TESTS + "order_of_operations_holds_however_chunks_are_cut"),
    ),
    mutation(
        "spark-merge-type",
        "mergeSchema lets a column become another type.",
        Edit(
            "_refuse_other_type",
            '_plain(given["type"]) != _plain(known["type"])',
            "False",
        ),
        directed(SCHEMA_GROWTH + "column_that_cannot_be_appended_is_refused"),
    ),
    mutation(
        "spark-merge-free",
        "Columns are appended to a table whose rows may have any.",
        Edit(
            "grown_schema",
            "not TableSchema(key_columns, schema_json).value_columns",
            "False",
        ),
        directed(SCHEMA_GROWTH + "table_that_takes_any_columns_gets_none"),
    ),
    mutation(
        "spark-take-over",
        "A writer is taken over without the user's word.",
        Edit(
            "plan_batch",
            'options.on_regression == "apply"',
            "True",
        ),
        directed(
            UNIT + "test_batch_writer.py::test_lower_batch_and_other_checkpoint_are"
            "_refused_in_the_task"
        ),
    ),
    mutation(
        "metrics-writers",
        "Every writer that ever was has a label of its own in the metrics.",
        Edit(
            "WriterMeters._forget_oldest",
            "named[: max(0, len(named) - WRITER_LABELS_MAX)]",
            "()",
        ),
        directed(
            "tests/unit/engine/batches/test_coordinator.py::test_metrics_have_a_bounded_number_of_writers"
        ),
    ),
    mutation(
        "spark-rows",
        "A record holds more rows than one may.",
        Edit(
            "Chunker._gather",
            "held.count >= self._rows_max",
            "False",
        ),
        directed(ROW_TESTS + "chunks_hold_every_row_once_sorted_and_bounded_when_cut"),
    ),
    mutation(
        "spark-bytes",
        "A record is larger than one may be.",
        Edit(
            "Chunker._gather",
            "full or held.size + size > self._bytes_max",
            "full",
        ),
        directed(ROW_TESTS + "chunk_is_cut_before_it_grows_over_its_bytes"),
    ),
    mutation(
        "spark-columns-null-key",
        "A row whose key is null is written under another key when its batch is encoded at once.",
        Edit(
            "key_parts",
            "make is None or column.null_count",
            "make is None",
        ),
        directed(COLUMN_TESTS + "row_that_cannot_be_written_is_told_as_it_is_one_by_one"),
    ),
    mutation(
        "spark-columns-text",
        "Bytes that are no text are written as one when their batch is encoded at once.",
        Edit(
            "_texts",
            "_contents(column, _TEXT_LENGTHS, valid) if _is_unicode(column) else None",
            "_contents(column, _TEXT_LENGTHS, valid)",
        ),
        directed(COLUMN_TESTS + "row_that_cannot_be_written_is_told_as_it_is_one_by_one"),
    ),
    mutation(
        "spark-columns-nul",
        "A NUL ends a key when its batch is encoded at once.",
        Edit(
            "_content_keys",
            'pc.replace_substring(column.cast(pa.binary()), b"\\0", b"\\0\\xff")',
            "column.cast(pa.binary())",
        ),
        directed(COLUMN_TESTS + "key_has_the_same_bytes_when_its_column_is_encoded_at_once"),
    ),
    mutation(
        "spark-columns-size",
        "A value larger than nodes take is sent when its batch is encoded at once.",
        Edit(
            "ColumnEncoder._values",
            "values if lengths_of(values).max() <= VALUE_BYTES_MAX else None",
            "values",
        ),
        directed(COLUMN_TESTS + "row_that_cannot_be_written_is_told_as_it_is_one_by_one"),
    ),
    mutation(
        "spark-columns-seal",
        "Values are sealed without their keys when their batch is encoded at once.",
        Edit(
            "_sealed",
            "value_checksums(values.to_pylist(), crcs)",
            "key_crcs(values.to_pylist())",
        ),
        directed(COLUMN_TESTS + "value_has_the_same_bytes_when_its_column_is_encoded_at_once"),
    ),
    mutation(
        "spark-columns-partition",
        "Rows encoded at once go to partitions where no reader looks for them.",
        Edit(
            "ColumnRows.by_partition",
            "partitions_of_crcs(self.crcs, partitions)",
            "self.crcs % partitions",
        ),
        directed(COLUMN_TESTS + "chunks_are_the_same_however_their_batches_are_encoded"),
    ),
    mutation(
        "spark-columns-last",
        "Of two rows with one key that are encoded at once the earlier wins.",
        Edit(
            "ColumnRows.by_partition",
            "order[start:stop]",
            "order[start:stop][::-1]",
        ),
        directed(COLUMN_TESTS + "chunks_are_the_same_however_their_batches_are_encoded"),
    ),
    mutation(
        "spark-columns-order",
        "Rows encoded at once are not in the order of their keys.",
        Edit(
            "sorted_payload",
            "pc.all(pc.less_equal(keys[:-1], keys[1:])).as_py() is not False",
            "True",
        ),
        directed(COLUMN_TESTS + "chunks_are_the_same_however_their_batches_are_encoded"),
    ),
    mutation(
        "spark-columns-rows",
        "A record of rows encoded at once holds more of them than one may.",
        Edit(
            "Chunker._gather_packed",
            "stop = min(stop, start + self._rows_max - held.count)",
            "",
        ),
        directed(COLUMN_TESTS + "chunks_are_the_same_however_their_batches_are_encoded"),
    ),
    mutation(
        "spark-columns-bytes",
        "A record of rows encoded at once is larger than one may be.",
        Edit(
            "Chunker._gather_packed",
            'int(np.searchsorted(ends, taken + self._bytes_max - held.size, "right"))',
            "len(places)",
        ),
        directed(COLUMN_TESTS + "chunks_are_the_same_however_their_batches_are_encoded"),
    ),
    mutation(
        "spark-columns-memory",
        "Rows that wait for others of their partition keep whole batches in memory.",
        Edit(
            "PackedRows.take",
            "self.keys.take(numbers), self.packed.take(numbers),",
            "*(array[places[0]:places[-1] + 1] for array in self),",
        ),
        directed(COLUMN_TESTS + "gathered_rows_keep_no_others_in_memory"),
    ),
    mutation(
        "spark-gathered",
        "A task gathers rows without bound.",
        Edit(
            "Chunker.add",
            "self._gathered_bytes > GATHERED_BYTES_MAX",
            "False",
        ),
        directed(ROW_TESTS + "largest_partition_is_sent_early_when_much_is_gathered"),
    ),
    mutation(
        "spark-options",
        "A mistaken option is reported when the first batch arrives.",
        Edit(
            "upsert",
            "texts,",
            'texts | {"partitions": "1"},',
        ),
        directed(OPTION_TESTS + "upsert_refuses_bad_options_when_the_query_is_written"),
    ),
    mutation(
        "spark-upsert",
        "A batch of updates asks to replace the table.",
        Edit(
            "upsert",
            'writing.mode("append").save()\n_written[place] = now',
            'writing.mode("overwrite").save()\n_written[place] = now',
        ),
        directed(OPTION_TESTS + "upsert_writes_the_batch_through_the_format_when_called_by_spark"),
    ),
)
