"""``raftstore channel verify``: the replicas of a channel compared."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

import click

from raftstore import Client, ReplicaComparison
from raftstore.cli.common import Context, pass_context, rows_of
from raftstore.cli.errors import EXIT_DIFFERENCE, EXIT_NOT_COMPARED
from raftstore.cli.names import CHANNEL_OR_TABLE
from raftstore.cli.placed import channels_named
from raftstore.client.cluster.topology import witnesses_of
from raftstore.client.comparing.comparison import Progress
from raftstore.client.comparing.results import ComparedReplica, ComparisonProgress
from raftstore.client.results import ReplicaDigest
from raftstore.protocol.admin import TableInfo
from raftstore.rows.key_text import JsonRows
from raftstore.types import Seq, node_name

PAUSE_S: Final = 0.2
"""Between two looks at replicas that are not at one position."""
BAR_CHARS: Final = 30
"""Of a bar that shows how far it is."""


@click.command()
@click.argument("name", type=CHANNEL_OR_TABLE)
@click.option("--deep", is_flag=True, help="Compare histories, and tables entry by entry.")
@click.option(
    "--keys",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="So many differing keys of a channel are named at most (with --deep).",
)
@pass_context
def verify(context: Context, name: str, *, deep: bool, keys: int) -> int:
    """Compare the content of all replicas of a channel, or of each channel of a table; exit code 7
    if they differ.

    Only what two replicas hold at the same position can be compared. Waits for them to meet there,
    --timeout at most for each channel; exit code 8 if they did not, which says nothing about their
    content.

    With --deep the replicas agree on a position while writes go on. Their histories are compared
    first, by chain hashes over the part of the log that all of them have, which is read again; then
    their tables entry by entry. Where they differ the differing records and keys are named, --keys
    at most, and exit code 7 says so. A node reads scrub.verify_second_bytes_max in a second for it.

    \b
    Example:
      raftstore channel verify orders/3
      raftstore channel verify orders
      raftstore --timeout 60s channel verify orders/3
      raftstore channel verify orders --deep
      raftstore channel verify orders/3 --deep --keys 100 -o json
    """
    codes = set()
    with context.connect() as client:
        table, numbers = channels_named(client, name)
        if deep:
            return _verify_deep(context, client, table, numbers, keys)
        rows: list[dict[str, Any]] = []
        for done, number in enumerate(numbers):
            if len(numbers) > 1 and sys.stderr.isatty():
                click.echo(f"\r{done} of {len(numbers)} channels compared", nl=False, err=True)
            placed = table.channels[number]
            without_rows = witnesses_of(placed)
            replicas = [node_name(node) for node in placed.replicas if node not in without_rows]
            found, code = _compare(client, table.name, number, replicas, context.timeout_s)
            rows += [_digest_row(table.name, number, part) for part in found]
            codes.add(code)
            if code:
                context.say(_verdict(f"{table.name}/{number}", code, context.timeout_s))
    context.show(rows, rows)
    return _worst(codes)


def _worst(codes: Iterable[int]) -> int:
    """A difference is worse than what nobody could compare."""
    return next((code for code in (EXIT_DIFFERENCE, EXIT_NOT_COMPARED) if code in codes), 0)


def _digest_row(table: str, number: int, part: ReplicaDigest) -> dict[str, Any]:
    return {
        "channel": f"{table}/{number}",
        "node": part.node,
        "digest": part.digest,
        "rows": part.rows,
        "seq": part.applied_seq,
    }


def _verdict(channel_name: str, code: int, timeout_s: float) -> str:
    if code == EXIT_DIFFERENCE:
        return f"different: replicas of {channel_name} hold other rows at the same position"
    return (
        f"not compared: the replicas of {channel_name} were not at one position within "
        f"{timeout_s:g} s; verify again while less is written, or with more --timeout"
    )


def _compare(
    client: Client, table: str, number: int, replicas: Sequence[str], timeout_s: float
) -> tuple[list[ReplicaDigest], int]:
    """Look again at who is behind, until all are at one position or two of them differ at one."""
    give_up = time.monotonic() + timeout_s
    newest: dict[str, ReplicaDigest] = {}
    while True:
        end = max((part.applied_seq for part in newest.values()), default=Seq(0))
        for replica in replicas:
            if replica not in newest or newest[replica].applied_seq < end:
                newest[replica] = _digest(client, table, number, replica)
        found = list(newest.values())
        digests: dict[Seq, set[str]] = {}
        for part in found:
            digests.setdefault(part.applied_seq, set()).add(part.digest)
        if any(len(different) > 1 for different in digests.values()):
            return found, EXIT_DIFFERENCE
        if len(digests) == 1:
            return found, 0
        if time.monotonic() >= give_up:
            return found, EXIT_NOT_COMPARED
        time.sleep(PAUSE_S)


def _digest(client: Client, table: str, number: int, replica: str) -> ReplicaDigest:
    for part in client.content_hash(table, replica, partition=number).partitions:
        return part
    raise click.ClickException(f"{replica} has no replica of {table}/{number} any more")


# --- with --deep ----------------------------------------------------------------------------------


def _verify_deep(
    context: Context, client: Client, table: TableInfo, numbers: Sequence[int], keys_max: int
) -> int:
    found: list[ReplicaComparison] = []
    for done, number in enumerate(numbers):
        name = f"{table.name}/{number}"
        with _progress(f"{name} ({done + 1} of {len(numbers)})") as tell:
            found.append(
                client.compare_replicas(
                    name, keys_max=keys_max, progress=tell, timeout=context.timeout_s
                )
            )
    rows = None if table.machine else rows_of(table)
    reported = [_shown(comparison, rows) for comparison in found]
    if context.output == "table":
        _show_deep(context, found, reported)
    else:
        context.show(reported)
    for comparison in found:
        for line in _deep_verdict(comparison):
            context.say(line)
    return _worst({_deep_code(comparison) for comparison in found})


def _deep_code(comparison: ReplicaComparison) -> int:
    if comparison.is_different:
        return EXIT_DIFFERENCE
    return 0 if comparison.is_whole else EXIT_NOT_COMPARED


def _shown(comparison: ReplicaComparison, rows: JsonRows | None) -> dict[str, Any]:
    """All of it, as JSON has it."""
    reported = asdict(comparison)
    for key in reported["keys"]:
        if key["kind"] == "row" and rows is not None:
            key["key"] = rows.row_to_json(key["key"])
    verdict = {EXIT_DIFFERENCE: "different", EXIT_NOT_COMPARED: "not compared"}
    return {**reported, "verdict": verdict.get(_deep_code(comparison), "equal")}


def _show_deep(
    context: Context, found: Sequence[ReplicaComparison], reported: Sequence[Mapping[str, Any]]
) -> None:
    replicas = [
        {
            "channel": comparison.channel,
            "node": replica.node,
            "log": "" if replica.base_seq is None else f"{replica.base_seq}..{comparison.log_to}",
            "chain hash": replica.chain_hash,
            "seq": replica.applied_seq,
            "entries": comparison.entries,
            "verdict": _replica_verdict(replica),
        }
        for comparison in found
        for replica in comparison.replicas
    ]
    histories = [
        {
            "channel": one["channel"],
            "history of": history["node"],
            "equal to": history["equal_to"],
            "differs at": history["differs_at"],
            "its record": history["record"],
            "of others": history["others"],
            "damage": history["damage"],
        }
        for one in reported
        for history in one["histories"]
    ]
    keys = [
        {"channel": one["channel"], key["kind"]: key["key"], **_digests(key["digests"])}
        for one in reported
        for key in one["keys"]
    ]
    ranges = [
        {"channel": one["channel"], **part, "replicas": ",".join(part["replicas"])}
        for one in reported
        for part in one["ranges"]
    ]
    context.show(None, replicas)
    for rows in (histories, keys, ranges):
        if rows:
            click.echo()
            context.show(None, rows)


def _replica_verdict(replica: ComparedReplica) -> str:
    if replica.differs:
        return "different"
    return "not compared" if replica.not_compared else "equal"


def _digests(digests: Mapping[str, str | None]) -> dict[str, str]:
    return {node: "none" if digest is None else digest for node, digest in digests.items()}


def _deep_verdict(comparison: ReplicaComparison) -> Iterator[str]:
    name = comparison.channel
    for replica in comparison.replicas:
        if replica.not_compared:
            yield f"not compared: {replica.node} of {name}: {replica.not_compared}"
    if comparison.more_ranges:
        yield f"{comparison.more_ranges} more parts of {name} differ"
    if comparison.is_different:
        wrong = [replica.node for replica in comparison.replicas if replica.differs]
        yield (
            f"different: {', '.join(wrong)} of {name}; see docs/operations.md, "
            '"Replicas that differ", for what to do'
        )


@contextmanager
def _progress(name: str) -> Iterator[Progress | None]:
    """A bar on a terminal, drawn again when it is longer."""
    if not sys.stderr.isatty():
        yield None
        return
    drawn = ""

    def tell(at: ComparisonProgress) -> None:
        nonlocal drawn
        done = min(BAR_CHARS, at.done * BAR_CHARS // max(1, at.total))
        percent = min(100, at.done * 100 // max(1, at.total))
        line = f"\r{name} {at.part} [{'#' * done}{'.' * (BAR_CHARS - done)}] {percent:3} % "
        if line != drawn:
            drawn = line
            click.echo(line, nl=False, err=True)

    try:
        yield tell
    finally:
        if drawn:
            click.echo(err=True)
