"""Mutations of rows: seals, payloads, the order of keys, the partitioner, and declared types."""

from __future__ import annotations

from tests.mutations.guard import directed, disk_runs
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

SCHEMAS = "tests/unit/rows/test_schema.py::test_"
PAYLOADS = "tests/unit/protocol/test_payload.py::test_"
WRONG_ROW = "tests/unit/rows/test_schema.py::test_row_is_refused_with_column_value_and_remedy"
WRONG_TYPE = (
    "tests/unit/rows/test_schema.py::"
    "test_row_is_refused_when_a_value_does_not_fit_its_declared_type"
)
NESTED_WRONG = (
    "tests/unit/rows/test_nested.py::test_row_is_refused_when_a_part_does_not_fit_its_declared_type"
)
KEY_TESTS = "tests/unit/rows/test_keys.py::test_"
NOT_APPLICABLE = (
    "tests/unit/protocol/test_payload.py::test_check_payload_refuses_what_a_replica_could_not_apply"
)

ROW_RULES: tuple[Mutation, ...] = (
    mutation(
        "rows-seal",
        "The seal of a row is not verified when it is read.",
        Edit(
            "unseal",
            'crc32(value, crc32(key)).to_bytes(4, "big") != sealed[:SEAL_BYTES]',
            "False",
        ),
        directed(PAYLOADS + "unseal_raises_when_a_bit_of_key_or_value_changed"),
        disk_runs(),
        also=("S0.3",),
    ),
    mutation(
        "rows-seal-key",
        "A value that was filed under another key is answered.",
        Edit(
            "seal",
            "crc32(key),",
            "",
        ),
        Edit(
            "unseal",
            "crc32(key),",
            "",
        ),
        directed(PAYLOADS + "unseal_raises_when_a_bit_of_key_or_value_changed"),
    ),
    mutation(
        "rows-float",
        "Two keys of a float column are one and the same for Spark.",
        Edit(
            "_check_single",
            "return single",
            "return number",
        ),
        directed(SCHEMAS + "float_column_holds_what_spark_reads_of_it"),
    ),
    mutation(
        "rows-nested-type",
        "A table takes values inside others that Spark cannot read back.",
        Edit(
            "_parse_nested",
            'element = parse_column_type(spec["elementType"]).part',
            'element = nested.Part("any", _check_any, _check_any)',
        ),
        directed(SCHEMAS + "definition_is_refused_when_no_table_can_have_it"),
    ),
    mutation(
        "rows-nested-part",
        "A list holds a part of another type, and ends every Parquet export of its table.",
        Edit(
            "array_check",
            "[None if item is None else element(item) for item in value]",
            "list(value)",
        ),
        directed(NESTED_WRONG),
    ),
    mutation(
        "rows-nested-key",
        "A map loses one of two keys that its type holds as the same.",
        Edit("map_check", "len(checked) != len(given)", "False"),
        directed(NESTED_WRONG),
    ),
    mutation(
        "rows-nested-field",
        "A struct holds a field that its type does not have, which no Spark job sees.",
        Edit("struct_check", "part is None", "False"),
        directed(NESTED_WRONG),
    ),
    mutation(
        "rows-exact-export",
        "A Parquet export has 2 where an old row holds 2.5.",
        Edit("parquet_writer", "is_exact=True,", ""),
        directed(
            "tests/cli/test_row_files.py::"
            "test_parquet_export_names_the_row_that_an_older_version_wrote_with_another_type"
        ),
    ),
    mutation(
        "rows-payload-seal",
        "A row that no reader can read is committed.",
        Edit(
            "check_payload",
            "check_seals(cast(list[bytes], flat[::2]), flat[1::2])",
            "pass",
        ),
        directed(PAYLOADS + "check_payload_refuses_a_row_whose_seal_is_wrong"),
    ),
    mutation(
        "rows-payload-pairs",
        "A payload whose last key has no value is committed.",
        Edit(
            "decode_rows",
            "not flat or len(flat) % 2 or not all(flat[::2])",
            "not flat or not all(flat[::2])",
        ),
        directed(PAYLOADS + "decode_rows_raises_decode_error_when_malformed"),
    ),
    mutation(
        "rows-payload-count",
        "A record counts other rows than it holds.",
        Edit(
            "check_payload",
            "len(flat) != 2 * rows or rows > ROWS_PER_RECORD_MAX",
            "False",
        ),
        directed(NOT_APPLICABLE),
    ),
    mutation(
        "rows-payload-key",
        "A key over the limit is committed.",
        Edit(
            "check_payload",
            "(longest := max(map(len, cast(list[bytes], flat[::2])))) > KEY_BYTES_MAX",
            "False",
        ),
        directed(NOT_APPLICABLE),
    ),
    mutation(
        "rows-payload-value",
        "A value over the limit is committed.",
        Edit(
            "check_payload",
            "sizes and (min(sizes) < SEAL_BYTES or max(sizes) > VALUE_BYTES_MAX + SEAL_BYTES)",
            "False",
        ),
        directed(NOT_APPLICABLE),
    ),
    mutation(
        "rows-payload-kind",
        "A publisher writes records about the log.",
        Edit(
            "check_payload",
            "if kind is RecordKind.CONDITIONAL:\n"
            "    key, sealed, _ = decode_conditional(payload)\n"
            "    flat: list[Cell] = [key, sealed]\n"
            "elif kind is RecordKind.ROWS:\n"
            "    flat = decode_rows(payload)\n"
            "elif kind is RecordKind.BATCH_MARK:\n"
            "    decode_mark(payload)\n"
            "    if rows != 1:\n"
            '        raise DecodeError(f"the end of a micro-batch occupies 1 seq, '
            'not {rows}")\n'
            "    return\n"
            "else:\n"
            "    raise DecodeError(\n"
            '        "a table takes rows, conditional writes and ends of '
            'micro-batches, not records of "\n'
            '        f"kind {kind:d}"\n'
            "    )",
            "if kind is RecordKind.CONDITIONAL:\n"
            "    key, sealed, _ = decode_conditional(payload)\n"
            "    flat: list[Cell] = [key, sealed]\n"
            "elif kind is RecordKind.ROWS:\n"
            "    flat = decode_rows(payload)\n"
            "else:\n"
            "    return\n"
            "if kind is RecordKind.BATCH_MARK:\n"
            "    if rows != 1:\n"
            '        raise DecodeError(f"the end of a micro-batch occupies 1 seq, '
            'not {rows}")\n'
            "    return\n"
            "else:\n"
            "    raise DecodeError(\n"
            '        "a table takes rows, conditional writes and ends of '
            'micro-batches, not records of "\n'
            '        f"kind {kind:d}"\n'
            "    )",
        ),
        directed(NOT_APPLICABLE),
    ),
    mutation(
        "rows-partitioner",
        "Keys move to other partitions.",
        Edit(
            "partition_of",
            "crc32(key) * _MULTIPLIER % 2**32",
            "crc32(key)",
        ),
        directed(PAYLOADS + "partition_of_stays_as_it_is_stored"),
    ),
    mutation(
        "rows-key-sign",
        "Negative numbers are ordered above positive ones.",
        Edit(
            "encode_int",
            "value + _SIGN",
            "value & _ALL",
        ),
        directed(KEY_TESTS + "key_bytes_order_as_values_do_within_a_type"),
    ),
    mutation(
        "rows-key-float",
        "Negative doubles are ordered backwards.",
        Edit(
            "encode_float",
            "_ALL if bits & _SIGN else _SIGN",
            "_SIGN",
        ),
        directed(KEY_TESTS + "key_bytes_order_as_values_do_within_a_type"),
    ),
    mutation(
        "rows-key-zero",
        "0.0 and -0.0 are two keys.",
        Edit(
            "encode_float",
            "value or 0.0",
            "value",
        ),
        directed(KEY_TESTS + "key_of_nan_is_one_key_above_infinity"),
    ),
    mutation(
        "rows-key-nan",
        "Nan is as many keys as it has bit patterns.",
        Edit(
            "encode_float",
            "isnan(value)",
            "False",
        ),
        directed(KEY_TESTS + "key_of_nan_is_one_key_above_infinity"),
    ),
    mutation(
        "rows-key-escape",
        "A text that holds NUL ends there.",
        Edit(
            "encode_str",
            'body.replace(b"\\0", b"\\0\\xff")',
            "body",
        ),
        directed(
            KEY_TESTS + "composite_key_bytes_order_as_tuples_do",
            KEY_TESTS + "key_is_restored_with_its_types_when_decoded",
        ),
    ),
    mutation(
        "rows-key-decimal",
        "1.0 and 1.00 are two keys.",
        Edit(
            "encode_decimal",
            '"".join(map(str, digits)).strip',
            '"".join(map(str, digits)).lstrip',
        ),
        directed(KEY_TESTS + "key_of_equal_decimals_is_one_key"),
    ),
    mutation(
        "rows-key-zone",
        "One instant is a key for every zone.",
        Edit(
            "encode_datetime",
            "value.astimezone(UTC)",
            "value.replace(tzinfo=UTC)",
        ),
        directed(KEY_TESTS + "key_of_an_instant_is_the_same_in_every_zone"),
    ),
    mutation(
        "rows-key-tag",
        "A calendar day passes for a moment.",
        Edit(
            "_ENCODERS",
            "date: encode_date,",
            "date: lambda value: encode_datetime(datetime(value.year, value.month, value.day)),",
        ),
        directed(KEY_TESTS + "key_is_restored_with_its_types_when_decoded"),
    ),
    mutation(
        "rows-prefix",
        "A prefix scan misses what begins with its last byte.",
        Edit(
            "after_prefix",
            'trimmed[:-1] + bytes((trimmed[-1] + 1,)) if trimmed else b""',
            "trimmed",
        ),
        directed(KEY_TESTS + "prefix_range_holds_exactly_the_keys_of_the_prefix"),
    ),
    mutation(
        "rows-int-range",
        "A number too large for its column is stored.",
        Edit(
            "_int_check",
            "low <= number <= high",
            "True",
        ),
        directed(WRONG_TYPE),
    ),
    mutation(
        "rows-float-exact",
        "A whole number loses digits in a double column.",
        Edit(
            "_check_float",
            "isinstance(value, int) and int(number) != value",
            "False",
        ),
        directed(WRONG_ROW),
    ),
    mutation(
        "rows-decimal-scale",
        "A decimal loses digits behind the point.",
        Edit(
            "_decimal_type",
            "(exact := number.quantize(unit, context=context)) != number",
            "(exact := number.quantize(unit, context=context)) is None",
        ),
        directed(WRONG_ROW),
    ),
    mutation(
        "rows-unknown-column",
        "A column that the table does not have is dropped silently.",
        Edit(
            "TableSchema._checked_values",
            "found + len(self.key_columns) != len(row)",
            "False",
        ),
        directed(WRONG_ROW),
    ),
    mutation(
        "rows-key-columns",
        "A key of some of its columns names a row.",
        Edit(
            "TableSchema.encode_key",
            "len(values) != len(self.key_columns)",
            "False",
        ),
        directed(SCHEMAS + "key_of_is_refused_when_it_does_not_name_one_row"),
    ),
    mutation(
        "rows-value-size",
        "A value over the limit is sent.",
        Edit(
            "TableSchema.encode_value",
            "len(value) > VALUE_BYTES_MAX",
            "False",
        ),
        directed(SCHEMAS + "oversized_value_names_the_largest_column_with_sizes"),
    ),
)
