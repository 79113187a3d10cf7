"""Options of the Spark sink: names as users write them, checked before anything is sent.

Spark hands option names over in lower case and everything as text; Python callers write
snake_case. Both are folded to one spelling, so ``maxBatchRows``, ``maxbatchrows`` and
``max_batch_rows`` are the same option.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast, overload

from raftstore.config import KIB, MIB, PARTITIONS_MAX, ROWS_PER_RECORD_MAX
from raftstore.errors import ConfigError
from raftstore.protocol.staged import INSERT, MERGE, UPSERT, writer_fault
from raftstore.protocol.table_settings import SETTING_LIMITS, Limits
from raftstore.types import DURABILITIES, DurabilityName

OPERATIONS: Final = ("upsert", "delete", "insert", "column")
ISOLATIONS: Final = ("batch", "row")
ON_REGRESSION: Final = ("fail", "apply")
CHANGE_COLUMN: Final = "_change_type"
"""With operation=column: what is done with each row. The changes of a table call it so, too."""

CHUNK_BYTES_LIMIT: Final = 4 * MIB
"""Upper bound of maxBatchBytes: with one more row of the largest size it still fits a frame."""

OPTION_NAMES: Final = (
    "bootstrap.servers",
    "table",
    "key",
    "partitions",
    "replicas",
    "durability",
    "createTable",
    "maxBatchRows",
    "maxBatchBytes",
    "maxInFlight",
    "requestTimeoutMs",
    "operation",
    "isolation",
    "writerId",
    "batchId",
    "lineage",
    "ignoreNullValues",
    "mergeSchema",
    "onRegression",
    "stagingTtl",
    "commitTimeoutMs",
    "retentionBytes",
    "retentionRecords",
    "retentionAge",
    "ttl",
)
SOURCE_OPTION_NAMES: Final = (
    "bootstrap.servers",
    "table",
    "level",
    "maxLagSeq",
    "maxLagMs",
    "atBatch",
    "preferReplica",
    "pinLife",
    "splitsPerChannel",
    "filterPushdown",
    "requestTimeoutMs",
    "readChangeFeed",
    "startingOffsets",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
)
"""Those of reading."""
LEVELS: Final = ("linearizable", "bounded", "any")
LAG_MAX: Final = 2**53
SPLITS_MAX: Final = 64
STREAM_ONLY: Final = (
    "readChangeFeed",
    "startingOffsets",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
)
BATCH_READ_ONLY: Final = (
    "level",
    "maxLagSeq",
    "maxLagMs",
    "atBatch",
    "pinLife",
    "splitsPerChannel",
    "filterPushdown",
)
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
"""Of startingOffsets."""
REPLICAS: Final = ("leader", "nearest", "any_in_bound")
_ALIASES: Final = {"txnappid": "writerid", "txnversion": "batchid"}
"""Delta's names for the identity of a batch."""
_BATCH_ONLY: Final = (
    "writerId",
    "batchId",
    "lineage",
    "ignoreNullValues",
    "onRegression",
    "stagingTtl",
)
_KNOWN_ELSEWHERE: Final = {
    "acks": "every write is acknowledged by a quorum; leave it out",
    "retries": "a request is repeated until its time is up; set requestTimeoutMs",
    "columnmapping": "rename the columns of the DataFrame with withColumnRenamed",
    "idfieldlist": "it is called key here",
    "keycolumn": "it is called key here",
    "operationtype": "it is called operation here",
    "changetype": "it is a column, _change_type, that is read with operation=column",
    "checkpointdir": "Spark's own is called checkpointLocation",
    "kafkabootstrapservers": "it is called bootstrap.servers here",
}
"""Options of other connectors, and of earlier plans, that have another name or no meaning here."""
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
TTL_MS_MIN: Final = 1_000
TTL_MS_MAX: Final = 7 * 86_400_000
_SPARK_NAMES: Final = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
"""Spark passes its own options along; path is the argument of save() and start()."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Every option of the sink; docs/spark.md has one line for each."""

    bootstrap_servers: str
    """Comma list of node addresses (host:port), as in Kafka."""
    table: str
    key: tuple[str, ...] = ()
    """Key columns in order; empty: the key the table has."""
    partitions: int = 8
    """For a table that is created; fixed for its life."""
    replicas: int = 3
    """For a table that is created."""
    durability: DurabilityName = "fsync"
    """The same: when a replica counts a write as stored."""
    create_table: bool = True
    """Create a missing table from the DataFrame's schema; False: refuse."""
    max_batch_rows: int = 10_000
    """Rows of one record: it is acknowledged as a whole."""
    max_batch_bytes: int = MIB
    """Bytes of one record; larger ones delay everything behind them, smaller ones cost acks."""
    max_in_flight: int = 8
    """Unacknowledged records per task; each holds up to max_batch_bytes."""
    request_timeout_ms: int = 30_000
    """For one record until it is acknowledged, retries with the same guid included."""
    operation: str = "upsert"
    """delete: remove the rows with these keys; other columns are ignored. insert: leave rows alone
    whose key is there. column: each row says which of these, in ``_change_type``."""
    isolation: str = "batch"
    """batch: visible all at once, exactly once. row: each record when it is acknowledged."""
    writer_id: str = ""
    """Who writes; empty: the streaming query, or this job alone."""
    batch_id: int | None = None
    """Of a batch that a program numbers itself; streams have Spark's."""
    lineage: str = ""
    """Of which checkpoint batch_id is; other checkpoints are refused then."""
    ignore_null_values: bool = False
    """Columns that are null, or missing, keep the value that is stored."""
    merge_schema: bool = False
    """Append the columns that the table lacks; columns that the DataFrame lacks are null."""
    on_regression: str = "fail"
    """apply: take this writer over when its checkpoint was set back or is another one."""
    staging_ttl: str = "1h"
    """An attempt that no task begins again for so long is closed."""
    commit_timeout_ms: int = 300_000
    """For a commit until every partition has applied it."""
    retention_bytes: int | None = None
    """For a table that is created: log of each partition that is kept; None: as nodes are set."""
    retention_records: int | None = None
    """Likewise, in records."""
    retention_age: str = ""
    """Likewise: records of the log that are older go."""
    ttl: str = ""
    """How long the rows live that are written, and the ttl of a table that is created; "": as the
    table says."""

    @property
    def ttl_ms(self) -> int | None:
        """The same as a number."""
        return _milliseconds(self.ttl) if self.ttl else None

    @property
    def retention_age_ms(self) -> int | None:
        """The same as a number."""
        return _milliseconds(self.retention_age) if self.retention_age else None

    @property
    def staging_ttl_ms(self) -> int:
        """The same as a number."""
        return _milliseconds(self.staging_ttl)

    @property
    def mode(self) -> int:
        """How staged rows are written (``protocol.staged``)."""
        if self.ignore_null_values:
            return MERGE
        return INSERT if self.operation == "insert" else UPSERT


def parse_options(given: Mapping[str, str]) -> SinkOptions:
    """Check options from Spark; raise ConfigError naming option, value and remedy."""
    options = {_ALIASES.get(folded(name), folded(name)): value for name, value in given.items()}
    _refuse_unknown(given, OPTION_NAMES)
    servers, table = _place(options)
    chunk_bytes = _integer(options, "maxBatchBytes", MIB, KIB, CHUNK_BYTES_LIMIT)
    parsed = SinkOptions(
        bootstrap_servers=servers,
        table=table,
        key=_columns(options.get("key", "")),
        partitions=_integer(options, "partitions", 8, 1, PARTITIONS_MAX),
        replicas=_integer(options, "replicas", 3, 1, 99),
        durability=cast("DurabilityName", _one_of(options, "durability", DURABILITIES)),
        create_table=_boolean(options, "createTable", default=True),
        max_batch_rows=_integer(options, "maxBatchRows", 10_000, 1, ROWS_PER_RECORD_MAX),
        max_batch_bytes=chunk_bytes,
        max_in_flight=_integer(options, "maxInFlight", 8, 1, 1_000),
        request_timeout_ms=_integer(options, "requestTimeoutMs", 30_000, 1, 3_600_000),
        operation=_one_of(options, "operation", OPERATIONS),
        isolation=_one_of(options, "isolation", ISOLATIONS),
        writer_id=options.get("writerid", "").strip(),
        batch_id=_integer(options, "batchId", None, 0, 2**63 - 1),
        lineage=options.get("lineage", ""),
        ignore_null_values=_boolean(options, "ignoreNullValues", default=False),
        merge_schema=_boolean(options, "mergeSchema", default=False),
        on_regression=_one_of(options, "onRegression", ON_REGRESSION),
        staging_ttl=_duration(options, "stagingTtl", "1h", TTL_MS_MIN, TTL_MS_MAX),
        commit_timeout_ms=_integer(options, "commitTimeoutMs", 300_000, 1, 86_400_000),
        retention_bytes=_limited(options, "retentionBytes"),
        retention_records=_limited(options, "retentionRecords"),
        retention_age=_lasting(options, "retentionAge", SETTING_LIMITS["retention_age_ms"]),
        ttl=_lasting(options, "ttl", SETTING_LIMITS["ttl_ms"]._replace(low=TTL_MS_MIN)),
    )
    _refuse_contradictions(parsed, options)
    return parsed


def _refuse_contradictions(parsed: SinkOptions, options: Mapping[str, str]) -> None:
    if parsed.isolation == "row":
        given = [name for name in _BATCH_ONLY if folded(name) in options]
        given += ["operation=insert"] if parsed.operation == "insert" else []
        if given:
            raise ConfigError(
                f"[RAFTSTORE_OPTION_INVALID] {', '.join(given)} cannot be had with isolation=row: "
                "leave isolation out"
            )
    if parsed.ignore_null_values and parsed.operation not in ("upsert", "column"):
        raise ConfigError(
            f"[RAFTSTORE_OPTION_INVALID] ignoreNullValues has no meaning for "
            f"operation={parsed.operation}: leave one of them out"
        )
    if parsed.merge_schema and parsed.operation == "delete":
        raise ConfigError(
            "[RAFTSTORE_OPTION_INVALID] mergeSchema has no meaning for operation=delete, which "
            "looks at key columns alone: leave one of them out"
        )
    fault = writer_fault(parsed.writer_id) if parsed.writer_id else None
    if fault is not None:
        raise ConfigError(f"[RAFTSTORE_OPTION_INVALID] {fault}: shorten writerId")
    if parsed.batch_id is not None and not parsed.writer_id:
        raise ConfigError(
            "[RAFTSTORE_WRITER_ID_MISSING] batchId is set without writerId: name who numbers the "
            'batches with .option("writerId", "name")'
        )


def _place(options: Mapping[str, str]) -> tuple[str, str]:
    """Return the servers and the table."""
    servers = options.get("bootstrapservers", "").strip()
    if not servers:
        raise ConfigError(
            "[RAFTSTORE_OPTION_MISSING] bootstrap.servers is not set: "
            'add .option("bootstrap.servers", "host:port,host:port")'
        )
    path = options.get("path", "").strip()
    table = options.get("table", path).strip()
    if not table:
        raise ConfigError(
            '[RAFTSTORE_OPTION_MISSING] no table is named: add .option("table", "name") '
            'or name it in save("name"), start("name") or load("name")'
        )
    if path and path != table:
        raise ConfigError(
            f"[RAFTSTORE_OPTION_INVALID] two tables are named, {table!r} as option and {path!r} "
            "in save(), start() or load(): name one"
        )
    return servers, table


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Every option of reading; docs/spark.md has one line for each."""

    bootstrap_servers: str
    table: str
    level: str = "linearizable"
    """linearizable: everything acknowledged before the job is read; bounded: within max_lag_seq and
    max_lag_ms, the table's own bounds without them; any: it may be older."""
    max_lag_seq: int | None = None
    """Rows that the state may be behind."""
    max_lag_ms: int | None = None
    """Time for which the state may lack what was committed."""
    at_batch: tuple[str, int] | None = None
    """The state after this batch of this writer, and no other."""
    prefer_replica: str = "leader"
    """Which replica is asked first; all of them may serve."""
    pin_life: str = "2m"
    """How long the nodes keep what is read while no task reads it."""
    splits_per_channel: int = 1
    """Spark partitions that read one partition of the table, at most."""
    filter_pushdown: bool = False
    """Read only the keys that the filters of the query leave."""
    request_timeout_ms: int = 30_000
    read_change_feed: bool = False
    """What changes, as a stream."""
    starting_offsets: str = LATEST
    """Where a stream without a checkpoint begins: earliest, latest, or JSON by partition."""
    max_offsets_per_trigger: int | None = None
    """Rows of one micro-batch, in whole records and batches."""
    fail_on_data_loss: bool = True
    """False: go on with what is there, and log what is not."""
    given: tuple[str, ...] = ()
    """Options of streams, or of reads that are none, which were set."""

    @property
    def pin_life_ms(self) -> int:
        """The same as a number."""
        return _milliseconds(self.pin_life)


def parse_source_options(given: Mapping[str, str]) -> SourceOptions:
    """Check options of reading; raise ConfigError naming option, value and remedy."""
    options = {folded(name): value for name, value in given.items()}
    _refuse_unknown(given, SOURCE_OPTION_NAMES)
    servers, table = _place(options)
    max_lag_seq = _integer(options, "maxLagSeq", None, 0, LAG_MAX)
    max_lag_ms = _integer(options, "maxLagMs", None, 0, LAG_MAX)
    is_bounded = max_lag_seq is not None or max_lag_ms is not None
    parsed = SourceOptions(
        bootstrap_servers=servers,
        table=table,
        level=_one_of({"level": "bounded"} | options if is_bounded else options, "level", LEVELS),
        max_lag_seq=max_lag_seq,
        max_lag_ms=max_lag_ms,
        at_batch=_batch(options.get("atbatch")),
        prefer_replica=_one_of(options, "preferReplica", REPLICAS),
        pin_life=_duration(options, "pinLife", "2m", TTL_MS_MIN, TTL_MS_MAX),
        splits_per_channel=_integer(options, "splitsPerChannel", 1, 1, SPLITS_MAX),
        filter_pushdown=_boolean(options, "filterPushdown", default=False),
        request_timeout_ms=_integer(options, "requestTimeoutMs", 30_000, 1, 3_600_000),
        read_change_feed=_boolean(options, "readChangeFeed", default=False),
        starting_offsets=_starting_offsets(options.get("startingoffsets", LATEST)),
        max_offsets_per_trigger=_integer(options, "maxOffsetsPerTrigger", None, 1, 2**63 - 1),
        fail_on_data_loss=_boolean(options, "failOnDataLoss", default=True),
        given=tuple(n for n in (*STREAM_ONLY, *BATCH_READ_ONLY) if folded(n) in options),
    )
    if is_bounded and parsed.level != "bounded":
        raise ConfigError(
            f"[RAFTSTORE_OPTION_INVALID] maxLagSeq and maxLagMs have no meaning at "
            f"level={parsed.level}: leave level out, or them"
        )
    if parsed.at_batch is not None and (is_bounded or "level" in options):
        raise ConfigError(
            "[RAFTSTORE_OPTION_INVALID] atBatch names one state, however old: leave level, "
            "maxLagSeq and maxLagMs out"
        )
    return parsed


def _batch(text: str | None) -> tuple[str, int] | None:
    """Return a batch by its writer, whose name may have colons, and its number."""
    if text is None:
        return None
    writer, _, number = text.strip().rpartition(":")
    fault = writer_fault(writer)
    if fault is not None or not re.fullmatch("[0-9]{1,18}", number):
        raise ConfigError(
            f"[RAFTSTORE_OPTION_INVALID] atBatch is {text!r}: give the writer and the number of "
            'its batch, as in "orders-job:17"'
        )
    return writer, int(number)


def _starting_offsets(text: str) -> str:
    """Fold the words; JSON is read when the table is known."""
    word = text.strip().lower()
    if word in (EARLIEST, LATEST):
        return word
    if not word.startswith("{"):
        raise ConfigError(
            f"[RAFTSTORE_OPTION_INVALID] startingOffsets is {text!r:.60}: give earliest, latest or "
            'JSON by partition, as in {"0": 1234, "1": 88}'
        )
    return text.strip()


def refuse_overwrite(options: SinkOptions) -> None:
    """Raise ConfigError unless these options can replace a table."""
    if options.isolation == "row":
        raise ConfigError(
            f"[RAFTSTORE_OVERWRITE_UNSUPPORTED] table {options.table!r} cannot be replaced at "
            "once row by row: leave isolation=row out, or write in append mode (each row is an "
            "upsert by key)"
        )
    if options.mode != UPSERT or options.operation != "upsert":
        raise ConfigError(
            f"[RAFTSTORE_OVERWRITE_UNSUPPORTED] table {options.table!r} is replaced by the rows as "
            "they are: leave operation and ignoreNullValues out, or write in append mode"
        )


def option_text(value: object) -> str:
    """Write a Python value as Spark options are written: lists by comma, true and false."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return ",".join(str(part) for part in value)
    return str(value)


def option_names(given: Mapping[str, Any]) -> dict[str, str]:
    """Rename keyword arguments to option names; raise ConfigError for one that does not exist."""
    _refuse_unknown(given, OPTION_NAMES)
    known = {folded(name): name for name in OPTION_NAMES}
    known |= {alias: known[name] for alias, name in _ALIASES.items()}
    return {known.get(folded(name), name): option_text(value) for name, value in given.items()}


def check_names(given: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return arguments under the spelling in ``names``; raise ConfigError for an unknown one."""
    _refuse_unknown(given, names)
    known = {folded(name): name for name in names}
    return {known[folded(name)]: value for name, value in given.items()}


def folded(name: str) -> str:
    """Return the one spelling of an option's name."""
    return name.lower().replace("_", "").replace(".", "")


def _refuse_unknown(given: Mapping[str, object], names: tuple[str, ...]) -> None:
    known = {folded(name): name for name in names}
    aliases = _ALIASES if names is OPTION_NAMES else {}
    for name in given:
        if folded(name) in known or folded(name) in aliases or name.lower() in _SPARK_NAMES:
            continue
        close = difflib.get_close_matches(folded(name), known, n=1)
        remedy = f"did you mean {known[close[0]]!r}?" if close else f"there are {', '.join(names)}"
        remedy = _KNOWN_ELSEWHERE.get(folded(name), remedy)
        raise ConfigError(f"[RAFTSTORE_OPTION_UNKNOWN] there is no option {name!r}: {remedy}")


def _columns(text: str) -> tuple[str, ...]:
    if not text.strip():
        return ()
    columns = tuple(part.strip() for part in text.split(","))
    if "" in columns or len(set(columns)) != len(columns):
        raise ConfigError(
            f"[RAFTSTORE_OPTION_INVALID] key is {text!r}: "
            'list each key column once, as in "tenant,order_id"'
        )
    return columns


@overload
def _integer(options: Mapping[str, str], name: str, default: int, low: int, high: int) -> int: ...


@overload
def _integer(
    options: Mapping[str, str], name: str, default: None, low: int, high: int
) -> int | None: ...


def _integer(
    options: Mapping[str, str], name: str, default: int | None, low: int, high: int
) -> int | None:
    text = options.get(folded(name))
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise ConfigError(
            f"[RAFTSTORE_OPTION_INVALID] {name} is {text!r}: "
            f"give a whole number from {low} to {high}"
        )
    return value


def _limited(options: Mapping[str, str], name: str) -> int | None:
    """A setting of a table that is created."""
    snake = re.sub("([A-Z])", r"_\1", name).lower()
    limits = SETTING_LIMITS[snake]
    return _integer(options, name, None, limits.low, limits.high)


def _lasting(options: Mapping[str, str], name: str, limits: Limits) -> str:
    """A duration that may be left out."""
    if folded(name) not in options:
        return ""
    return _duration(options, name, "", limits.low, limits.high)


def _duration(options: Mapping[str, str], name: str, default: str, low: int, high: int) -> str:
    text = options.get(folded(name), default).strip().lower()
    if not low <= _milliseconds(text) <= high:
        raise ConfigError(
            f'[RAFTSTORE_OPTION_INVALID] {name} is {text!r}: give a duration, as in "90m" or '
            f'"1h", from {low // 1_000}s to {high // 86_400_000}d'
        )
    return text


def _milliseconds(text: str) -> int:
    """Return what a duration means; -1 if it is none."""
    match = re.fullmatch(r"([0-9]{1,12})(ms|s|m|h|d)", text)
    return int(match[1]) * _UNITS_MS[match[2]] if match else -1


def _boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(folded(name))
    if text is None:
        return default
    if text.strip().lower() not in {"true", "false"}:
        raise ConfigError(f"[RAFTSTORE_OPTION_INVALID] {name} is {text!r}: give true or false")
    return text.strip().lower() == "true"


def _one_of(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = options.get(folded(name), allowed[0]).strip().lower()
    if value not in allowed:
        choices = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
        raise ConfigError(f"[RAFTSTORE_OPTION_INVALID] {name} is {value!r}: give {choices}")
    return value
