"""``raftstore inspect``: the store of a stopped node, described and exported without changing
it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click

from raftstore.cli.common import Context, pass_context
from raftstore.cli.errors import EXIT_DIFFERENCE
from raftstore.cli.expiries import NOT_STATED
from raftstore.cli.log import DIRECTORY, LogProgress
from raftstore.cli.parquet_files import ExpiringPage, parquet_writer
from raftstore.cli.row_files import (
    STDIO,
    ExpiringRow,
    format_option,
    in_place,
    rows_progress,
    shape_of,
    write_lines,
)
from raftstore.errors import SchemaError
from raftstore.protocol.admin import TableInfo
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import unseal
from raftstore.state_machines.catalog import TableEntry
from raftstore.storage.stopped.stores import (
    StoppedStore,
    StoredChannel,
    StoreFound,
    stopped_store,
)
from raftstore.storage.stopped.tables import SealedRow, Skipped
from raftstore.types import ChannelId, node_name

PAGE_ROWS: Final = 5_000
"""Rows of a Parquet file that are encoded at once."""


@click.command()
@click.argument("directory", type=DIRECTORY)
@click.option(
    "--export",
    "exported",
    nargs=2,
    metavar="CHANNEL FILE",
    help="Write the rows of one channel (table/partition, or its id) to a file; - is stdout.",
)
@format_option
@click.option("--overwrite", is_flag=True, help="Replace the file if there is one.")
@click.option("--partial", is_flag=True, help="Export what can be verified of a damaged table.")
@pass_context
def inspect(
    context: Context,
    directory: Path,
    *,
    exported: tuple[str, str] | None,
    shape: str | None,
    overwrite: bool,
    partial: bool,
) -> int:
    """Say what the data directory of a stopped node holds, all of it verified; exit code 7 if
    anything in it is damaged.

    Changes nothing. Shows whose store it is, its formats, and of every channel the base and end of
    its log, what was promised (term, vote, last acknowledged record), the generation and position
    of its table, rows and bytes. With --export the rows of one channel are written as they were
    applied, which says nothing of the other replicas; `raftstore export` reads a running cluster.

    \b
    Example:
      raftstore inspect /mnt/n1/data
      raftstore inspect /mnt/n1/data -o json
      raftstore inspect /mnt/n1/data --export orders/3 orders-3.jsonl
    """
    if exported is None and (partial or overwrite or shape):
        raise click.UsageError("--format, --overwrite and --partial belong to --export.")
    with stopped_store(directory, LogProgress("read")) as store:
        if exported is not None:
            return _export(context, store, *exported, shape, overwrite=overwrite, partial=partial)
        found = store.inspect(_tell_tables)
    if context.output == "table":
        context.show(None, [_store_row(found)])
        click.echo()
        context.show(None, [_channel_row(channel) for channel in found.channels])
    else:
        context.show(_store(found))
    for note in found.notes:
        context.say(note)
    for sentence in found.damage:
        context.say(sentence)
    return EXIT_DIFFERENCE if found.damage else 0


def _tell_tables(done: int, total: int) -> None:
    if sys.stderr.isatty() and total:
        click.echo(f"\r{done} of {total} tables verified", nl=done == total, err=True)


# --- what is shown --------------------------------------------------------------------------------


def _store(found: StoreFound) -> dict[str, Any]:
    identity = found.identity
    return {
        "directory": str(identity.directory),
        "node": identity.name,
        "node_id": identity.belonging.node,
        "store_uuid": identity.store_uuid.hex(),
        "cluster_id": identity.belonging.cluster_id.hex(),
        "members": [
            {"node": node_name(node), "address": address}
            for node, address in identity.belonging.members
        ],
        "stopped_cleanly": found.is_clean,
        "formats": dict(found.formats),
        "log": None
        if found.log_bytes is None
        else {"bytes": found.log_bytes, "first_segment": found.first_segment},
        "channels": [_channel(channel) for channel in found.channels],
        "notes": list(found.notes),
        "damage": list(found.damage),
    }


def _channel(found: StoredChannel) -> dict[str, Any]:
    promise, log, table = found.promise, found.log, found.table
    return {
        "channel": found.name,
        "id": found.channel.hex(),
        "promise": None
        if promise is None
        else {
            "term": promise.term,
            "voted_for": None if promise.voted_for is None else node_name(promise.voted_for),
            "durable": promise.durable._asdict(),
        },
        "log": None
        if log is None
        else {
            "base": {**log.base.history._asdict(), "chain_hash": log.base.chain_hash.hex()},
            "end": log.end._asdict(),
            "lineage": [{"term": run.term, "end_seq": run.end_seq} for run in log.lineage],
            "records": log.records,
            "gaps": [gap._asdict() for gap in log.gaps],
            "acknowledged": None if log.shortfall is None else log.shortfall._asdict(),
        },
        "table": None
        if table is None
        else {
            "generation": table.present,
            "generations": list(table.generations),
            "applied": None if table.applied is None else table.applied._asdict(),
            "rows": table.rows,
            "bytes": table.disk_bytes,
            "digest": table.digest or None,
            "damage": table.damage,
        },
    }


def _store_row(found: StoreFound) -> dict[str, Any]:
    whole = _store(found)
    return {
        "node": whole["node"],
        "cluster": whole["cluster_id"],
        "formats": ", ".join(f"{name} {number}" for name, number in found.formats.items()),
        "stopped": "cleanly" if found.is_clean else "not cleanly",
        "log bytes": found.log_bytes,
        "channels": len(found.channels),
        "verdict": f"{len(found.damage)} damaged" if found.damage else "verified",
    }


def _channel_row(found: StoredChannel) -> dict[str, Any]:
    log, table, promise = found.log, found.table, found.promise
    damage = [] if table is None or table.damage is None else ["table damaged"]
    if log is not None and (log.gaps or log.shortfall):
        damage.append("log lacks records")
    if found.lacks_rows is not None:
        damage.append("table lacks rows")
    return {
        "channel": found.name,
        "base": None if log is None else log.base.seq,
        "end": None if log is None else f"{log.end.term}/{log.end.seq}",
        "promised": None if promise is None else f"{promise.durable.term}/{promise.durable.seq}",
        "term": None if promise is None else promise.term,
        "applied": None if table is None or table.applied is None else table.applied.seq,
        "generation": None if table is None else table.present,
        "rows": None if table is None else table.rows,
        "bytes": None if table is None else table.disk_bytes,
        "verdict": "; ".join(damage) or "verified",
    }


# --- export ---------------------------------------------------------------------------------------


def _export(
    context: Context,
    store: StoppedStore,
    name: str,
    file: str,
    shape: str | None,
    *,
    overwrite: bool,
    partial: bool,
) -> int:
    shape = shape_of(file, shape)
    if file == STDIO and shape == "parquet":
        raise click.UsageError("Parquet is not written to stdout; name a file.")
    if file != STDIO and not overwrite and Path(file).exists():
        raise click.UsageError(f"{file} exists; pass --overwrite to replace it.")
    channel = store.channel_of(name)
    info = _info(store, channel)
    pages_to = parquet_writer(info) if shape == "parquet" else None
    skipped = Skipped() if partial else None
    with (
        store.rows(channel, skipped) as (applied, has_lifetimes, rows),
        rows_progress("rows written") as tell,
    ):
        expires = has_lifetimes or info.settings.ttl_ms is not None
        if pages_to is not None:
            written = in_place(
                Path(file), lambda path: pages_to(_pages(rows), path, tell, expires=expires)
            )
        else:
            written = write_lines(info, _rows(info, rows, expires=expires), file, tell)
    reported: dict[str, Any] = {
        "channel": store.name_of(channel),
        "file": file,
        "rows": written,
        "applied": applied._asdict(),
        "rows_damaged": 0 if skipped is None else skipped.rows,
        "ranges_damaged": [] if skipped is None else skipped.ranges,
    }
    if file == STDIO:
        context.say(f"{written} rows of channel {reported['channel']} at seq {applied.seq}")
    else:
        context.show(reported, [{name: reported[name] for name in ("channel", "file", "rows")}])
    if skipped is None or not (skipped.rows or skipped.ranges):
        return 0
    if skipped.rows:
        context.say(f"{skipped.rows} rows are left out: they do not match their checksums")
    for damaged in skipped.ranges:
        context.say(f"rows are missing {damaged}")
    return EXIT_DIFFERENCE


def _info(store: StoppedStore, channel: ChannelId) -> TableInfo:
    """The table of a channel as ``raftstore export`` knows it."""
    entry: TableEntry | None = store.catalog.table_of(channel)
    if entry is None:
        raise SchemaError(
            f"channel {store.name_of(channel)} is of no table that {store.directory} names, so "
            "its rows cannot be read; name a channel of a table, or the directory of another node"
        )
    return TableInfo(
        entry.name,
        entry.uuid,
        entry.key_columns,
        entry.partitions,
        entry.replicas,
        entry.durability,
        entry.max_lag,
        entry.schema_json,
        (),
        settings=entry.settings,
    )


def _pages(rows: Iterator[SealedRow]) -> Iterator[ExpiringPage]:
    while page := list(islice(rows, PAGE_ROWS)):
        expiries = {key: expires_ms for key, _, _, expires_ms in page if expires_ms}
        yield [(key, sealed, seq) for key, sealed, seq, _ in page], expiries


def _rows(info: TableInfo, rows: Iterator[SealedRow], *, expires: bool) -> Iterator[ExpiringRow]:
    schema = TableSchema(info.key_columns, info.schema_json)
    for key, sealed, _, expires_ms in rows:
        row = schema.key_value_to_row(key, unseal(key, sealed))
        yield row, expires_ms if expires else NOT_STATED
