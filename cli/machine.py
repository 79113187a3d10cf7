"""``raftstore machine``: channel sets, and the state machines of users behind them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import click
import msgspec

import raftstore
from raftstore.cli.common import Context, json_text, pass_context
from raftstore.cli.data import given_options, read_options
from raftstore.client.machines.code import Codecs
from raftstore.client.machines.json_values import from_json, to_json
from raftstore.client.results import ClusterStatus
from raftstore.errors import SchemaError
from raftstore.machine import Codec
from raftstore.protocol.admin import TableInfo
from raftstore.types import DurabilityName, node_name

PARTITION_S: Final = 0.05
"""So much longer than --timeout the leader of one more partition may take."""

bytes_option = click.option(
    "--bytes",
    "is_bytes",
    is_flag=True,
    help="What is sent is this text as bytes, and so is what comes back; no codec.",
)
partition_option = click.option(
    "--partition", type=click.IntRange(0), help="This partition, instead of that of the key."
)


@click.group()
@click.option(
    "--path",
    "paths",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory with the machine's module, where it is not installed; its codecs are used.",
)
def machine(paths: tuple[Path, ...]) -> None:
    """Create, list and use channel sets: state machines of your own.

    Commands, results, requests and answers are JSON, as the codecs of the machine's class have it;
    where the class is not installed here they are text. docs/state-machines.md shows how to write
    one.

    \b
    Example:
      raftstore machine create counters mypkg.counters:Counter
      raftstore machine command counters visits 1
      raftstore machine query counters visits
    """
    sys.path[:0] = [str(path.resolve()) for path in paths]


@machine.command()
@click.argument("name")
@click.argument("machine")
@click.option(
    "--partitions",
    type=int,
    default=8,
    show_default=True,
    help="How many independent machines its keys are spread over; fixed for ever.",
)
@click.option(
    "--replicas",
    type=int,
    default=3,
    show_default=True,
    help="How many nodes keep a copy of each partition.",
)
@click.option("--max-lag", type=int, help="Bound of bounded queries that name none, in commands.")
@click.option(
    "--durability",
    default="fsync",
    show_default=True,
    help="When a replica counts a command as stored, as of tables: fsync, buffered, memory.",
)
@click.option("--if-not-exists", is_flag=True, help="Fine if there is one of this name already.")
@pass_context
def create(
    context: Context,
    /,
    name: str,
    machine: str,
    *,
    partitions: int,
    replicas: int,
    max_lag: int | None,
    durability: DurabilityName,
    if_not_exists: bool,
) -> None:
    """Create a channel set; returns when every partition has a leader.

    MACHINE is package.module:Class, or the name of an entry point of the group raftstore.machines.
    Every node must be able to import it; the error names one that is not.

    \b
    Example:
      raftstore machine create counters mypkg.counters:Counter --partitions 4
    """
    with context.connect() as client:
        client.create_channelset(
            name,
            machine,
            partitions=partitions,
            replicas=replicas,
            max_lag=max_lag,
            durability=durability,
            if_not_exists=if_not_exists,
            timeout=context.timeout_s + partitions * PARTITION_S,
        )
    context.say(f"channel set {name} is ready: {partitions} partitions on {replicas} replicas each")


@machine.command("ls")
@pass_context
def list_machines(context: Context) -> None:
    """List all channel sets.

    \b
    Example:
      raftstore machine ls -o json
    """
    with context.connect() as client:
        rows = [_summary(info) for info in client.channelsets()]
    context.show(rows, rows)


@machine.command()
@click.argument("name")
@pass_context
def info(context: Context, name: str) -> None:
    """Show one channel set: its machine, who leads each partition, and why one stopped.

    \b
    Example:
      raftstore machine info counters
    """
    with context.connect() as client:
        found = client.channelset_info(name)
        stops = _stops(client.cluster_status(), name)
    channels: list[dict[str, Any]] = [
        {
            "partition": number,
            "leader": None if channel.leader is None else node_name(channel.leader),
            "term": channel.term,
            "replicas": ",".join(node_name(node) for node in channel.replicas),
            "stopped": stops.get(number),
        }
        for number, channel in enumerate(found.channels)
    ]
    definition = _summary(found)
    if context.output != "table":
        context.show({**definition, "channels": channels})
        return
    context.show(None, [{"property": name, "value": value} for name, value in definition.items()])
    click.echo()
    context.show(None, channels)


@machine.command()
@click.argument("name")
@click.argument("key")
@click.argument("command")
@partition_option
@click.option(
    "--guid",
    help="Of an error with an unknown outcome: the same command, applied once in all.",
)
@bytes_option
@click.option("--provenance", is_flag=True, help="Also where the command is in the log.")
@pass_context
def command(
    context: Context,
    /,
    name: str,
    key: str,
    command: str,
    *,
    partition: int | None,
    guid: str | None,
    is_bytes: bool,
    provenance: bool,
) -> None:
    """Have a command applied, exactly once, and print its result.

    COMMAND is JSON. It goes to the partition of KEY. Exit code 3 when the outcome is unknown; the
    error then has a guid, with which the same command may be given again.

    \b
    Example:
      raftstore machine command counters visits 1
      raftstore machine command queue jobs 'send the letter' --bytes
    """
    with context.connect() as client:
        channelset = client.channelset(name, codec=raftstore.BYTES if is_bytes else None)
        codecs = channelset.codecs()
        given = _value(codecs, codecs.commands, _json(command, is_bytes=is_bytes))
        if partition is None:
            done = channelset.command_result(key, given, guid=guid)
        else:
            done = channelset.command_to_partition(partition, given, key=key, guid=guid)
    _say_if_bytes(context, codecs)
    shown: Any = to_json(done.result)
    if provenance:
        shown = {
            "result": shown,
            "position": str(done.position),
            "partition": done.partition,
            "seq": done.seq,
            "term": done.term,
            "durability": done.durability,
            "replicas_acked": done.replicas_acked,
            "guid": done.guid,
        }
    _print(context, shown)


@machine.command()
@click.argument("name")
@click.argument("key", required=False)
@click.argument("request", required=False)
@read_options
@partition_option
@click.option("--all", "is_all", is_flag=True, help="Ask every partition; answers in their order.")
@bytes_option
@click.option("--provenance", is_flag=True, help="Also by whom and how fresh.")
@pass_context
def query(
    context: Context,
    /,
    name: str,
    key: str | None,
    request: str | None,
    *,
    partition: int | None,
    is_all: bool,
    is_bytes: bool,
    provenance: bool,
    **options: Any,
) -> None:
    """Ask a machine, at any level of consistency, and print its answer.

    REQUEST is JSON; without one the machine gets an empty question. With --all or --partition the
    KEY is left out.

    \b
    Example:
      raftstore machine query counters visits
      raftstore machine query counters visits --max-lag 100
      raftstore machine query counters --all
    """
    if is_all or partition is not None:
        if request is not None:
            raise click.UsageError("With --all or --partition give the request alone, and no key.")
        key, request = None, key
    elif key is None:
        raise click.UsageError("Name a key, or give --partition or --all.")
    given = given_options(options)
    with context.connect() as client:
        channelset = client.channelset(name, codec=raftstore.BYTES if is_bytes else None)
        asked = None if request is None else _json(request, is_bytes=is_bytes)
        codecs = channelset.codecs()
        asked = _value(codecs, codecs.queries, asked)
        _say_if_bytes(context, codecs)
        if is_all:
            _print(context, [to_json(each) for each in channelset.query_all(asked, **given)])
            return
        if partition is not None:
            result = channelset.query_partition(partition, asked, **given)
        else:
            assert key is not None
            result = channelset.query_result(key, asked, **given)
    shown: Any = to_json(result.answer)
    if provenance:
        shown = {
            "answer": shown,
            "partition": result.partition,
            "node": result.node,
            "level": result.level.value,
            "lag": result.lag,
            "leader_info_age_ms": result.leader_info_age_ms,
            "staleness_ms": result.staleness_ms,
            "applied_seq": result.applied_seq,
            "position": str(result.applied_position),
        }
    _print(context, shown)


@machine.command()
@click.argument("name")
@click.argument("partition", type=click.IntRange(0))
@click.argument("seq", type=click.IntRange(1))
@pass_context
def skip(context: Context, /, name: str, partition: int, seq: int) -> None:
    """Make the command nothing at which the machine of a partition stopped.

    For a command that no version of the machine can apply. SEQ is what the error and `raftstore
    machine info` name; any other is refused. Better, where it can be done: install code that can
    apply it on all nodes and start them again.

    \b
    Example:
      raftstore machine skip counters 3 1842
    """
    context.confirm(f"Skip command {seq} of {name}/{partition} for ever?")
    with context.connect() as client:
        client.skip_command(name, partition, seq)
    context.say(f"command {seq} of {name}/{partition} is skipped")


@machine.command("rm")
@click.argument("name")
@pass_context
def remove(context: Context, name: str) -> None:
    """Remove a channel set with all its state.

    \b
    Example:
      raftstore machine rm counters --yes
    """
    context.confirm(f"Remove the channel set {name} with all its state?")
    with context.connect() as client:
        client.drop_channelset(name)
    context.say(f"channel set {name} is removed")


def _stops(status: ClusterStatus, name: str) -> dict[int, str]:
    """Why machines stopped, or at what they have been for long, by partition."""
    return {
        own["partition"]: f"on {node.name}: {own.get('slow_machine') or own['reason']}"
        for node in status.nodes
        for own in (() if node.status is None else node.status["channels"])
        if own["table"] == name and (own["mode"] == "stopped" or own.get("slow_machine"))
    }


def _summary(info: TableInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "machine": info.machine,
        "version": info.machine_version,
        "partitions": info.partitions,
        "replicas": info.replicas,
        "durability": info.durability,
        "max_lag": info.max_lag,
        "restoring": info.settings.restoring is not None,
        "leaderless": sum(channel.leader is None for channel in info.channels),
    }


def _json(text: str, *, is_bytes: bool) -> Any:
    if is_bytes:
        return text
    try:
        return msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeError) as error:
        raise click.UsageError(
            f"{text!r:.60} is not JSON ({error}); write text with quotes, as in '\"text\"', or "
            "give --bytes."
        ) from error


def _value(codecs: Codecs, codec: Codec[Any], given: Any) -> Any:
    """Make of JSON what a codec takes; the error says how a class that is not here is found."""
    try:
        return from_json(codec, given)
    except SchemaError as error:
        if not codecs.lacks:
            raise
        raise SchemaError(f"{error}. {_remedy(codecs)}") from error


def _remedy(codecs: Codecs) -> str:
    """How the class of a machine that is not here is found."""
    return (
        f"{codecs.lacks.partition(', so')[0]}: to use its codecs, name the directory of its "
        "module, as in: raftstore machine --path DIR ..."
    )


def _say_if_bytes(context: Context, codecs: Codecs) -> None:
    """Say so, for bytes look like no value of the machine."""
    if codecs.lacks:
        context.say(f"shown as bytes: {_remedy(codecs)}")


def _print(context: Context, shown: Any) -> None:
    """A result: an object like a row, anything else as it is."""
    if context.output != "table" or isinstance(shown, dict):
        context.show(shown)
    else:
        click.echo(shown if isinstance(shown, str) else json_text(shown))
