"""Options of the Spark sink: names as users write them, checked before anything is sent.

Spark hands option names over in lower case and everything as text; Python callers write
snake_case. Both are folded to one spelling, so ``maxBatchRows``, ``maxbatchrows`` and
``max_batch_rows`` are the same option.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from raftstore.config import KIB, MIB, PARTITIONS_MAX, ROWS_PER_RECORD_MAX
from raftstore.errors import ConfigError

OPERATIONS: Final = ("upsert", "delete")

CHUNK_BYTES_LIMIT: Final = 4 * MIB
"""Upper bound of maxBatchBytes: with one more row of the largest size it still fits a frame."""

OPTION_NAMES: Final = (
    "bootstrap.servers",
    "table",
    "key",
    "partitions",
    "replicas",
    "createTable",
    "maxBatchRows",
    "maxBatchBytes",
    "maxInFlight",
    "requestTimeoutMs",
    "operation",
)
_SPARK_NAMES: Final = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
"""Spark passes its own options along; path is the argument of save() and start()."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Everything the sink may be told; docs/spark.md has one line for each."""

    bootstrap_servers: str
    """Comma list of node addresses (host:port), as in Kafka."""
    table: str
    key: tuple[str, ...] = ()
    """Key columns in order; empty: the key the table has."""
    partitions: int = 8
    """For a table that is created; fixed for its life."""
    replicas: int = 3
    """For a table that is created."""
    create_table: bool = True
    """Create a missing table from the DataFrame's schema; False: refuse."""
    max_batch_rows: int = 10_000
    """Rows of one record: a record is acknowledged and becomes visible as a whole."""
    max_batch_bytes: int = MIB
    """Bytes of one record; larger ones delay everything behind them, smaller ones cost acks."""
    max_in_flight: int = 8
    """Unacknowledged records per task; each holds up to max_batch_bytes."""
    request_timeout_ms: int = 30_000
    """For one record until it is acknowledged, retries with the same guid included."""
    operation: str = "upsert"
    """delete: remove the rows with these keys; other columns are ignored."""


def parse_options(given: Mapping[str, str]) -> SinkOptions:
    """Check options from Spark; raise ConfigError naming option, value and remedy."""
    options = {_fold(name): value for name, value in given.items()}
    _refuse_unknown(given)
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
            'or name it in save("name") or start("name")'
        )
    if path and path != table:
        raise ConfigError(
            f"[RAFTSTORE_OPTION_INVALID] two tables are named, {table!r} as option and {path!r} "
            "in save() or start(): name one"
        )
    chunk_bytes = _integer(options, "maxBatchBytes", MIB, KIB, CHUNK_BYTES_LIMIT)
    return SinkOptions(
        bootstrap_servers=servers,
        table=table,
        key=_columns(options.get("key", "")),
        partitions=_integer(options, "partitions", 8, 1, PARTITIONS_MAX),
        replicas=_integer(options, "replicas", 3, 1, 99),
        create_table=_boolean(options, "createTable", default=True),
        max_batch_rows=_integer(options, "maxBatchRows", 10_000, 1, ROWS_PER_RECORD_MAX),
        max_batch_bytes=chunk_bytes,
        max_in_flight=_integer(options, "maxInFlight", 8, 1, 1_000),
        request_timeout_ms=_integer(options, "requestTimeoutMs", 30_000, 1, 3_600_000),
        operation=_one_of(options, "operation", OPERATIONS),
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
    _refuse_unknown(given)
    known = {_fold(name): name for name in OPTION_NAMES}
    return {known.get(_fold(name), name): option_text(value) for name, value in given.items()}


def _fold(name: str) -> str:
    return name.lower().replace("_", "").replace(".", "")


def _refuse_unknown(given: Mapping[str, object]) -> None:
    known = {_fold(name): name for name in OPTION_NAMES}
    for name in given:
        if _fold(name) in known or name.lower() in _SPARK_NAMES:
            continue
        close = difflib.get_close_matches(_fold(name), known, n=1)
        remedy = (
            f"did you mean {known[close[0]]!r}?"
            if close
            else f"there are {', '.join(OPTION_NAMES)}"
        )
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


def _integer(options: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = options.get(_fold(name))
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


def _boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(_fold(name))
    if text is None:
        return default
    if text.strip().lower() not in {"true", "false"}:
        raise ConfigError(f"[RAFTSTORE_OPTION_INVALID] {name} is {text!r}: give true or false")
    return text.strip().lower() == "true"


def _one_of(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = options.get(_fold(name), allowed[0]).strip().lower()
    if value not in allowed:
        raise ConfigError(
            f"[RAFTSTORE_OPTION_INVALID] {name} is {value!r}: give {' or '.join(allowed)}"
        )
    return value
