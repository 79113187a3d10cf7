"""``raftstore table``: the catalog's tables."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import click

from raftstore import Client
from raftstore.cli.common import Context, parse_columns, pass_context
from raftstore.cli.names import TABLE
from raftstore.errors import RaftstoreError
from raftstore.node.units import parse_duration_ms, parse_size_bytes
from raftstore.protocol.admin import TableInfo
from raftstore.types import DurabilityName, node_name

PARTITION_S: Final = 0.05
"""So much longer than --timeout the leader of one more partition may take."""
PROGRESS_S: Final = 1.0
"""Between two lines of progress."""
ONE_REPLICA: Final = (
    "with one replica a partition is away while its node is, and a lost disk loses its rows"
)
PROGRESS_PARTITIONS_MIN: Final = 100
"""Fewer have their leaders before anybody wonders."""


@click.group()
def table() -> None:
    """Create, list, show, change and remove tables."""


@table.command()
@click.argument("name")
@click.option(
    "--key", required=True, help="Key columns, with types if wanted: tenant:string,id:long."
)
@click.option(
    "--partitions",
    type=int,
    default=8,
    show_default=True,
    help="How many parts its rows are spread over; fixed for ever.",
)
@click.option(
    "--replicas",
    type=int,
    default=3,
    show_default=True,
    help="How many nodes keep a copy of each part.",
)
@click.option("--max-lag", type=int, help="Bound of bounded reads that name none, in rows.")
@click.option(
    "--durability",
    default="fsync",
    show_default=True,
    help="When a replica counts a write as stored: fsync, once it is on its disk; buffered, once "
    "the system has it; memory, once the process has it. Fixed for ever; docs/guarantees.md says "
    "what the last two may lose.",
)
@click.option(
    "--retention-bytes",
    metavar="SIZE",
    help="Log of each partition that is kept, as in 256MiB; default: as each node is set.",
)
@click.option("--retention-records", metavar="N", help="The same in records.")
@click.option(
    "--retention-age",
    metavar="TIME",
    help="Records of the log that are older go, as in 7d; 0s: none for their age.",
)
@click.option(
    "--ttl", metavar="TIME", help="Rows live so long that are written without one, as in 30d."
)
@click.option("--schema", help="Columns in Spark's JSON form (df.schema.json()).")
@click.option("--if-not-exists", is_flag=True, help="Fine if there is one of this name already.")
@pass_context
def create(  # noqa: PLR0913 - a definition has many parts, all by name
    context: Context,
    /,
    name: str,
    *,
    key: str,
    partitions: int,
    replicas: int,
    max_lag: int | None,
    durability: DurabilityName,
    schema: str | None,
    if_not_exists: bool,
    **settings: Any,
) -> None:
    """Create a table; returns when every partition has a leader.

    Waits for --timeout and 50 ms for each partition. When that is not enough the table is there and
    goes on getting its leaders; the error says how many are missing.

    \b
    Example:
      raftstore table create orders --key order_id:long --partitions 8
    """
    own = table_properties(settings)
    columns = parse_columns(key)
    if schema is None and any(kind for _, kind in columns):
        schema = _key_schema(columns)
    with context.connect() as client, _progress(client, name, partitions):
        client.create_table(
            name,
            key=[column for column, _ in columns],
            partitions=partitions,
            replicas=replicas,
            max_lag=max_lag,
            durability=durability,
            schema=schema,
            if_not_exists=if_not_exists,
            timeout=context.timeout_s + partitions * PARTITION_S,
            **own,
        )
    context.say(f"table {name} is ready: {partitions} partitions on {replicas} replicas each")
    if replicas == 1:
        context.say("warning: " + ONE_REPLICA)


@contextmanager
def _progress(client: Client, name: str, partitions: int) -> Iterator[None]:
    """Show on a terminal how many partitions are led, while many get their leaders."""
    done = threading.Event()

    def tell() -> None:
        while not done.wait(PROGRESS_S):
            try:
                channels = client.table_info(name).channels
            except RaftstoreError:
                continue  # there is none yet, or the nodes have more to do
            led = sum(channel.leader is not None for channel in channels)
            click.echo(f"\r{led:,} of {partitions:,} partitions have a leader ", nl=False, err=True)

    teller = threading.Thread(target=tell, name="raftstore progress", daemon=True)
    if partitions >= PROGRESS_PARTITIONS_MIN and sys.stderr.isatty():
        teller.start()
    try:
        yield
    finally:
        done.set()
        if teller.is_alive():
            teller.join()
            click.echo(err=True)


def _key_schema(columns: list[tuple[str, str]]) -> str:
    fields = [
        {"name": name, "type": kind or "string", "nullable": False, "metadata": {}}
        for name, kind in columns
    ]
    return json.dumps({"type": "struct", "fields": fields})


@table.command("ls")
@pass_context
def list_tables(context: Context) -> None:
    """List all tables.

    \b
    Example:
      raftstore table ls -o json
    """
    with context.connect() as client:
        rows = [_summary(info) for info in client.tables()]
    context.show(rows, rows)


@table.command()
@click.argument("name", type=TABLE)
@pass_context
def info(context: Context, name: str) -> None:
    """Show one table: definition, placement and leaders.

    \b
    Example:
      raftstore table info orders
    """
    with context.connect() as client:
        found = client.table_info(name)
    channels: list[dict[str, Any]] = [
        {
            "partition": number,
            "leader": None if channel.leader is None else node_name(channel.leader),
            "term": channel.term,
            "replicas": ",".join(node_name(node) for node in channel.replicas),
        }
        for number, channel in enumerate(found.channels)
    ]
    definition = {**_summary(found), "schema": found.schema_json}
    if context.output != "table":
        context.show({**definition, "channels": channels})
        return
    context.show(None, [{"property": name, "value": value} for name, value in definition.items()])
    click.echo()
    context.show(None, channels)


@table.command()
@click.argument("name", type=TABLE)
@click.option("--max-lag", metavar="ROWS|none", help="Rows a bounded read may be behind.")
@click.option("--max-staleness", metavar="TIME|none", help="Time it may be behind, as in 2s.")
@click.option("--max-batches-behind", metavar="N|none", help="Micro-batches it may be behind.")
@click.option(
    "--max-replica-lag",
    metavar="ROWS|none",
    help="Writes wait for a live replica that is further behind.",
)
@click.option(
    "--standby-reads/--no-standby-reads",
    default=None,
    help="Whether replicas that do not lead serve reads that name no level.",
)
@click.option("--replicas", metavar="N", help="How many nodes keep a copy of each part, 1 to 7.")
@pass_context
def edit(context: Context, /, name: str, **options: Any) -> None:
    """Change properties of a table; every replica goes by them at once.

    What is not named stays; none removes a bound, so that the node's own counts again.

    With --replicas the cluster goes on by itself, one replica of a partition after the other;
    `raftstore table info` shows how far it is, and another number may be given meanwhile.

    \b
    Example:
      raftstore table edit orders --max-lag 1000 --max-staleness 2s
      raftstore table edit orders --max-lag none
      raftstore table edit orders --replicas 5
    """
    changes = table_properties(options)
    if not changes:
        raise click.UsageError("Name at least one property to change.")
    with context.connect() as client:
        found = client.edit_table(name, **changes)
    context.show(_summary(found), [_summary(found)])
    _say_replicas(context, found, changes)


def table_properties(options: Mapping[str, Any]) -> dict[str, Any]:
    """Properties as typed in the shell, as the client takes them: rows, bytes, seconds, or None.

    Raises UsageError for a text that is no such value.
    """
    properties: dict[str, Any] = {}
    for name, text in options.items():
        if text is None or isinstance(text, bool):
            properties |= {} if text is None else {name: text}
            continue
        try:
            properties[name] = None if text == "none" else _PROPERTIES[name](text)
        except ValueError as error:
            shown = "--" + name.replace("_", "-")
            raise click.UsageError(f"{shown} {text!r}: {error}.") from error
    return properties


def _seconds(text: str) -> float:
    return parse_duration_ms(text) / 1000


def _is_true(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("give true or false")
    return text == "true"


_PROPERTIES: Final[Mapping[str, Callable[[str], Any]]] = {
    "max_lag": int,
    "max_staleness": _seconds,
    "max_batches_behind": int,
    "max_replica_lag": int,
    "standby_reads": _is_true,
    "replicas": int,
    "retention_bytes": parse_size_bytes,
    "retention_records": int,
    "retention_age": _seconds,
    "ttl": _seconds,
}
"""How each property of a table that can be changed is read."""


@table.command()
@click.argument("name", type=TABLE)
@click.option("--set", "given", metavar="NAME=VALUE", multiple=True, help="May be repeated.")
@click.option("--unset", metavar="NAME", multiple=True, help="Back to the default; repeatable.")
@pass_context
def alter(context: Context, /, name: str, given: tuple[str, ...], unset: tuple[str, ...]) -> None:
    """Change settings and other properties of a table; every node goes by them at once.

    Names: retention-bytes, retention-records and retention-age of the log of each partition, ttl of
    rows that are written from then on without one, and what `table edit` changes: max-lag,
    max-staleness, max-batches-behind, max-replica-lag, standby-reads, replicas.

    \b
    Example:
      raftstore table alter orders --set retention-bytes=256MiB --set retention-age=7d
      raftstore table alter orders --unset retention-age
      raftstore table alter orders --set replicas=5
    """
    options: dict[str, str] = {}
    for text in (*given, *(f"{each}=none" for each in unset)):
        property_name, equals, value = text.partition("=")
        folded = property_name.strip().replace("-", "_")
        if folded not in _PROPERTIES or not equals:
            known = ", ".join(each.replace("_", "-") for each in _PROPERTIES)
            raise click.UsageError(f"{text!r} is no NAME=VALUE with one of the names {known}.")
        if folded in options:
            raise click.UsageError(f"{property_name} is given twice.")
        options[folded] = value.strip()
    if options.get("standby_reads") == "none":
        options["standby_reads"] = "true"
    if not options:
        raise click.UsageError("Name at least one property with --set or --unset.")
    changes = table_properties(options)
    with context.connect() as client:
        found = client.alter_table(name, **changes)
    context.show(_summary(found), [_summary(found)])
    _say_replicas(context, found, changes)


@table.command("rm")
@click.argument("name", type=TABLE)
@pass_context
def remove(context: Context, name: str) -> None:
    """Remove a table and all its rows, for ever.

    \b
    Example:
      raftstore --yes table rm orders
    """
    context.confirm(f"Remove table {name} and all its rows?")
    with context.connect() as client:
        client.drop_table(name)
    context.say(f"table {name} is removed")


def _say_replicas(context: Context, found: TableInfo, changes: Mapping[str, Any]) -> None:
    if "replicas" not in changes:
        return
    missing = sum(count != found.replicas for count in found.voters)
    if missing:
        context.say(
            f"{missing} of {found.partitions} partitions do not have {found.replicas} replicas "
            f"yet; it goes on by itself, and `raftstore table info {found.name}` shows how far"
        )
    if found.replicas == 1:
        context.say("warning: " + ONE_REPLICA)


def _summary(found: TableInfo) -> dict[str, Any]:
    return {
        "name": found.name,
        "key": ",".join(found.key_columns),
        "partitions": found.partitions,
        "replicas": found.replicas,
        "replicas_now": _replicas_now(found),
        "durability": found.durability,
        "max_lag": found.max_lag,
        "max_staleness_ms": found.max_staleness_ms,
        "max_batches_behind": found.max_batches_behind,
        "max_replica_lag": found.max_replica_lag,
        "standby_reads": found.standby_reads,
        "retention_bytes": found.settings.retention_bytes,
        "retention_records": found.settings.retention_records,
        "retention_age_ms": found.settings.retention_age_ms,
        "ttl_ms": found.settings.ttl_ms,
        "restoring": found.settings.restoring is not None,
        "uuid": found.uuid.hex(),
    }


def _replicas_now(found: TableInfo) -> str:
    """How many replicas the partitions have, while some do not have their number yet."""
    if not found.voters:
        return str(found.replicas)
    done = sum(count == found.replicas for count in found.voters)
    low, high = min(found.voters), max(found.voters)
    present = str(low) if low == high else f"{low} to {high}"
    return f"{present} ({done} of {len(found.voters)} partitions are done)"
