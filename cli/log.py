"""``raftstore log``: logs of stopped nodes, looked at and filled without a cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from raftstore.cli.common import Context, pass_context
from raftstore.cli.errors import EXIT_DIFFERENCE
from raftstore.config import MIB
from raftstore.storage.stopped.logs import (
    Gap,
    Refused,
    StoppedLog,
    catalog_of,
    channel_name,
    fill,
    holes_left,
    plan_fill,
    stopped_logs,
)
from raftstore.storage.stopped.survey import ChannelFound, ReplicaFound, Verdict, survey

DIRECTORY = click.Path(path_type=Path)


class LogProgress:
    """Shows on a terminal how much of a log was read."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._shown = ""

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        shown = f"{done_bytes / MIB:.0f} of {total_bytes / MIB:.0f} MiB {self._verb}"
        if sys.stderr.isatty() and total_bytes > MIB and shown != self._shown:
            self._shown = shown
            click.echo(f"\r{shown}", nl=done_bytes == total_bytes, err=True)


@click.group()
def log() -> None:
    """Look for lost records in the logs of stopped nodes, and bring them back."""


@log.command()
@click.argument("directories", type=DIRECTORY, nargs=-1, required=True)
@pass_context
def check(context: Context, directories: tuple[Path, ...]) -> int:
    """Say what the log in each data directory misses, and which of the others holds it; exit code 7
    if anything is missing.

    For stopped nodes of one cluster; changes nothing. The verdict of a channel says what happens
    when the nodes of these directories are started: it is whole, another node will refill it, it
    recovers from a leader, or records of it are lost on all directories given.

    \b
    Example:
      raftstore log check /mnt/n1/data /mnt/n2/data /mnt/n3/data
    """
    with stopped_logs(directories, on_read=LogProgress("read")) as logs:
        for one in logs:
            for note in one.log.notes:
                context.say(f"{one.label}: {note}")
        # Before ``survey``, which uses up the indexes of the logs.
        stores = [_store(one) for one in logs]
        channels = survey(logs)
    if context.output == "table":
        holes = [row for found in channels for row in _hole_rows(found)]
        if holes:
            context.show(None, holes)
            click.echo()
        context.show(None, [_verdict_row(found) for found in channels])
    else:
        context.show({"stores": stores, "channels": [_channel(found) for found in channels]})
    bad = [found for found in channels if found.verdict is not Verdict.WHOLE]
    if not bad:
        return 0
    lost = sum(found.verdict is Verdict.LOST for found in bad)
    text = f"{len(bad)} of {len(channels)} channels miss records"
    if lost:
        text += f"; {lost} of them miss some that these directories do not hold"
    context.say(text)
    return EXIT_DIFFERENCE


def _store(one: StoppedLog) -> dict[str, Any]:
    return {
        "node": one.label,
        "directory": str(one.identity.directory),
        "log_bytes": one.log.size_bytes(),
        "notes": list(one.log.notes),
    }


def _channel(found: ChannelFound) -> dict[str, Any]:
    return {
        "channel": found.name,
        "id": found.channel.hex(),
        "verdict": found.verdict.value,
        "sentence": found.sentence,
        "replicas": [_replica(replica) for replica in found.replicas],
    }


def _replica(found: ReplicaFound) -> dict[str, Any]:
    return {
        "node": found.node,
        "first_seq": found.first_seq,
        "base_seq": found.base.seq,
        "base_term": found.base.term,
        "last_seq": found.end.seq,
        "last_term": found.end.term,
        "holes": [
            {**hole.gap._asdict(), "held_by": list(hole.held_by), "is_filled": hole.is_filled}
            for hole in found.holes
        ],
        "kept": [{"first_seq": first, "last_seq": last} for first, last in found.kept],
        "acknowledged": None if found.shortfall is None else found.shortfall._asdict(),
    }


def _hole_rows(found: ChannelFound) -> list[dict[str, Any]]:
    return [
        {
            "channel": found.name,
            "node": replica.node,
            "lost": _range(hole.gap),
            "term": _terms(hole.gap),
            "kept": ", ".join(f"{first}-{last}" for first, last in replica.kept),
            "held by": ", ".join(hole.held_by) or "none of these",
        }
        for replica in found.replicas
        for hole in replica.holes
    ]


def _range(gap: Gap) -> str:
    if gap.to_seq < gap.from_seq:
        return f"from {gap.from_seq}, not known how many"
    return f"{gap.from_seq}-{gap.to_seq}"


def _terms(gap: Gap) -> str:
    first, last = ("?" if term is None else str(term) for term in (gap.prev_term, gap.next_term))
    return first if first == last else f"{first}-{last}"


def _verdict_row(found: ChannelFound) -> Mapping[str, Any]:
    return {
        "channel": found.name,
        "log": ", ".join(
            f"{one.node}: {'-' if one.first_seq is None else f'{one.first_seq}-{one.end.seq}'}"
            for one in found.replicas
        ),
        "verdict": found.sentence,
    }


@log.command("fill")
@click.argument("directory", type=DIRECTORY)
@click.option(
    "--from",
    "others",
    metavar="OTHER",
    type=DIRECTORY,
    multiple=True,
    required=True,
    help="Data directory of another stopped node of the cluster; may be given several times.",
)
@pass_context
def fill_log(context: Context, directory: Path, *, others: Sequence[Path]) -> int:
    """Bring the records that the log in DIRECTORY lost from the logs of other stopped nodes; exit
    code 7 if some are still missing.

    Only records that are proven to be the lost ones are taken, as running nodes do it. They are
    written behind the end of the log: nothing in it is overwritten or cut, and the other
    directories are not changed. A fill that was interrupted can be repeated.

    \b
    Example:
      raftstore log fill /mnt/n1/data --from /mnt/n3/data
    """
    progress = LogProgress("read")
    with stopped_logs([directory, *others], written=directory, on_read=progress) as logs:
        target, *sources = logs
        catalog = catalog_of(logs)
        names = {
            channel: channel_name(channel, catalog, target.cluster_id)
            for channel in target.log.channels()
        }
        damaged = [name for name in names if target.log.open_channel(name).hole is not None]
        if not damaged:
            context.say(f"the log of {target.label} has no holes; nothing was written")
            return 0
        plan = plan_fill(target, sources)
        rows = []
        if plan:
            context.confirm(
                f"Fill holes of {len(plan)} channels in the log of {target.label} at {directory}?"
            )
            for done in fill(target, sources, list(plan)):
                name = names[done.channel]
                if isinstance(done, Refused):
                    context.say(f"{name}: records of {done.source} were refused: {done.reason}")
                    continue
                rows.append({**done._asdict(), "channel": name, "id": done.channel.hex()})
                context.say(
                    f"{name}: filled {done.from_seq}-{done.to_seq} from {done.source} "
                    f"({done.records} records, {done.payload_bytes / MIB:.1f} MiB)"
                )
        left = holes_left(target, LogProgress("read again"))
    context.show(rows, rows)
    for channel, gaps in left.items():
        lost = ", ".join(map(_range, gaps))
        context.say(f"{names[channel]}: {lost} is still missing")
    if not plan:
        context.say(
            "none of the directories given holds what is missing, or nothing proves that it is the "
            "same; nothing was written"
        )
    return EXIT_DIFFERENCE if left else 0
