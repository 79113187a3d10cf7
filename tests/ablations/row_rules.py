"""Ablations of rows: seals, payloads, the order of keys, the partitioner, and declared types."""

from __future__ import annotations

from tests.ablations.ablation import Ablation, Edit, directed

ROWS = "raftstore/rows/"
SEALING = ROWS + "sealing.py"
PAYLOAD = "raftstore/protocol/payload.py"
KEYS = ROWS + "keys.py"
COLUMNS = ROWS + "columns.py"
SCHEMA = ROWS + "schema.py"

UNIT = "tests/unit/rows/"
PAYLOADS = "tests/unit/protocol/test_payload.py::test_"
KEY_TESTS = UNIT + "test_keys.py::test_"
SCHEMAS = UNIT + "test_schema.py::test_"
NOT_APPLICABLE = PAYLOADS + "check_payload_refuses_what_a_replica_could_not_apply"
WRONG_ROW = SCHEMAS + "row_is_refused_with_column_value_and_remedy"
WRONG_TYPE = SCHEMAS + "row_is_refused_when_a_value_does_not_fit_its_declared_type"

STORED: tuple[Ablation, ...] = (
    directed(
        "rows-seal",
        "a damaged value is answered",
        SEALING,
        'if crc32(value, crc32(key)).to_bytes(4, "big") != sealed[:SEAL_BYTES]:',
        "if False:",
        PAYLOADS + "unseal_raises_when_a_bit_of_key_or_value_changed",
    ),
    Ablation(
        "rows-seal-key",
        "a value that was filed under another key is answered",
        (
            Edit(SEALING, "return crc32(value, crc32(key))", "return crc32(value)"),
            Edit(SEALING, "if crc32(value, crc32(key))", "if crc32(value)"),
        ),
        (PAYLOADS + "unseal_raises_when_a_bit_of_key_or_value_changed",),
    ),
    directed(
        "rows-float",
        "two keys of a float column are one and the same for Spark",
        COLUMNS,
        "    return single\n",
        "    return number\n",
        SCHEMAS + "float_column_holds_what_spark_reads_of_it",
    ),
    directed(
        "rows-nested-type",
        "a table takes values inside others that Spark cannot read back",
        COLUMNS,
        '            parse_column_type(spec["elementType"])\n',
        "",
        SCHEMAS + "definition_is_refused_when_no_table_can_have_it",
    ),
    directed(
        "rows-payload-seal",
        "a row that no reader can read is committed",
        PAYLOAD,
        "    check_seals(cast(list[bytes], flat[::2]), flat[1::2])",
        "    pass",
        PAYLOADS + "check_payload_refuses_a_row_whose_seal_is_wrong",
    ),
    directed(
        "rows-payload-pairs",
        "a payload whose last key has no value is committed",
        PAYLOAD,
        "if not flat or len(flat) % 2 or not all(flat[::2]):",
        "if not flat or not all(flat[::2]):",
        PAYLOADS + "decode_rows_raises_decode_error_when_malformed",
    ),
    directed(
        "rows-payload-count",
        "a record counts other rows than it holds",
        PAYLOAD,
        "if len(flat) != 2 * rows or rows > ROWS_PER_RECORD_MAX:",
        "if False:",
        NOT_APPLICABLE,
    ),
    directed(
        "rows-payload-key",
        "a key over the limit is committed",
        PAYLOAD,
        "if (longest := max(map(len, cast(list[bytes], flat[::2])))) > KEY_BYTES_MAX:",
        "if False:",
        NOT_APPLICABLE,
    ),
    directed(
        "rows-payload-value",
        "a value over the limit is committed",
        PAYLOAD,
        "if sizes and (min(sizes) < SEAL_BYTES or max(sizes) > VALUE_BYTES_MAX + SEAL_BYTES):",
        "if False:",
        NOT_APPLICABLE,
    ),
    directed(
        "rows-payload-kind",
        "a publisher writes records about the log",
        PAYLOAD,
        "    elif kind is RecordKind.BATCH_MARK:\n        decode_mark(payload)\n",
        "    else:\n        return\n    if kind is RecordKind.BATCH_MARK:\n",
        NOT_APPLICABLE,
    ),
    directed(
        "rows-partitioner",
        "keys move to other partitions",
        ROWS + "partitioner.py",
        "return (crc32(key) * _MULTIPLIER % 2**32) % partitions",
        "return crc32(key) % partitions",
        PAYLOADS + "partition_of_stays_as_it_is_stored",
    ),
)

KEY_ORDER: tuple[Ablation, ...] = (
    directed(
        "rows-key-sign",
        "negative numbers are ordered above positive ones",
        KEYS,
        "return _TAG_U64.pack(_INT, value + _SIGN)",
        "return _TAG_U64.pack(_INT, value & _ALL)",
        KEY_TESTS + "key_bytes_order_as_values_do_within_a_type",
    ),
    directed(
        "rows-key-float",
        "negative doubles are ordered backwards",
        KEYS,
        "bits ^ (_ALL if bits & _SIGN else _SIGN)",
        "bits ^ _SIGN",
        KEY_TESTS + "key_bytes_order_as_values_do_within_a_type",
    ),
    directed(
        "rows-key-zero",
        "0.0 and -0.0 are two keys",
        KEYS,
        "_DOUBLE.pack(value or 0.0)",
        "_DOUBLE.pack(value)",
        KEY_TESTS + "key_of_nan_is_one_key_above_infinity",
    ),
    directed(
        "rows-key-nan",
        "nan is as many keys as it has bit patterns",
        KEYS,
        "    if isnan(value):",
        "    if False:",
        KEY_TESTS + "key_of_nan_is_one_key_above_infinity",
    ),
    directed(
        "rows-key-escape",
        "a text that holds NUL ends there",
        KEYS,
        'return _STR_TAG + body.replace(b"\\0", b"\\0\\xff") + _END',
        "return _STR_TAG + body + _END",
        KEY_TESTS + "composite_key_bytes_order_as_tuples_do",
        KEY_TESTS + "key_is_restored_with_its_types_when_decoded",
    ),
    directed(
        "rows-key-decimal",
        "1.0 and 1.00 are two keys",
        KEYS,
        'text = "".join(map(str, digits)).strip("0")',
        'text = "".join(map(str, digits)).lstrip("0")',
        KEY_TESTS + "key_of_equal_decimals_is_one_key",
    ),
    directed(
        "rows-key-zone",
        "one instant is a key for every zone",
        KEYS,
        "(value.astimezone(UTC) - _EPOCH_UTC) // _MICROSECOND)",
        "(value.replace(tzinfo=UTC) - _EPOCH_UTC) // _MICROSECOND)",
        KEY_TESTS + "key_of_an_instant_is_the_same_in_every_zone",
    ),
    directed(
        "rows-key-tag",
        "a calendar day passes for a moment",
        KEYS,
        "    date: encode_date,\n",
        "    date: lambda value: encode_datetime(datetime(value.year, value.month, value.day)),\n",
        KEY_TESTS + "key_is_restored_with_its_types_when_decoded",
    ),
    directed(
        "rows-prefix",
        "a prefix scan misses what begins with its last byte",
        KEYS,
        'return trimmed[:-1] + bytes((trimmed[-1] + 1,)) if trimmed else b""',
        "return trimmed",
        KEY_TESTS + "prefix_range_holds_exactly_the_keys_of_the_prefix",
    ),
)

TYPES: tuple[Ablation, ...] = (
    directed(
        "rows-int-range",
        "a number too large for its column is stored",
        COLUMNS,
        "        if low <= number <= high:",
        "        if True:",
        WRONG_TYPE,
    ),
    directed(
        "rows-float-exact",
        "a whole number loses digits in a double column",
        COLUMNS,
        "    if isinstance(value, int) and int(number) != value:",
        "    if False:",
        WRONG_ROW,
    ),
    directed(
        "rows-decimal-scale",
        "a decimal loses digits behind the point",
        COLUMNS,
        "if (exact := number.quantize(unit, context=context)) != number:",
        "if (exact := number.quantize(unit, context=context)) is None:",
        WRONG_ROW,
    ),
    directed(
        "rows-unknown-column",
        "a column that the table does not have is dropped silently",
        SCHEMA,
        "        if found + len(self.key_columns) != len(row):",
        "        if False:",
        WRONG_ROW,
    ),
    directed(
        "rows-key-columns",
        "a key of some of its columns names a row",
        SCHEMA,
        "        if len(values) != len(self.key_columns):\n            raise SchemaError(",
        "        if False:\n            raise SchemaError(",
        SCHEMAS + "key_of_is_refused_when_it_does_not_name_one_row",
    ),
    directed(
        "rows-value-size",
        "a value over the limit is sent",
        SCHEMA,
        "        if len(value) > VALUE_BYTES_MAX:",
        "        if False:",
        SCHEMAS + "oversized_value_names_the_largest_column_with_sizes",
    ),
)

ROW_RULES: tuple[Ablation, ...] = (*STORED, *KEY_ORDER, *TYPES)
