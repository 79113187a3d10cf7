"""``raftstore backup``: tables and channel sets in files that outlive the cluster, and back into
another one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from raftstore.cli.common import Context, pass_context
from raftstore.cli.errors import EXIT_DIFFERENCE
from raftstore.cli.row_files import rows_progress
from raftstore.errors import RaftstoreError

if TYPE_CHECKING:
    from raftstore.backup import Manifest

PLACE = click.argument("place")


@click.group("backup")
def backups() -> None:
    """Make, list, check, restore and remove backups.

    PLACE is a directory or a URL of fsspec, as in s3://bucket/backups. Needs `pip install
    'raftstore[backup]'`.
    """


@backups.command()
@PLACE
@click.option(
    "--table", "tables", multiple=True, metavar="NAME", help="Only this table; may be repeated."
)
@click.option(
    "--channelset",
    "channelsets",
    multiple=True,
    metavar="NAME",
    help="Only this channel set; may be repeated.",
)
@click.option("--full", is_flag=True, help="Read and write all of it, whatever is there.")
@pass_context
def create(
    context: Context,
    /,
    place: str,
    *,
    tables: tuple[str, ...],
    channelsets: tuple[str, ...],
    full: bool,
) -> None:
    """Write a backup of all tables and channel sets, or of some.

    Each table is in it as it was at one moment, and each micro-batch as a whole or not at all. Each
    partition of a channel set is in it as it was at one position.
    Partitions that did not change since the newest backup of the place are not read again, and
    files that are there are not written again. A backup that was stopped is none; what it wrote is
    used by the next one.

    \b
    Example:
      raftstore backup create /backups
      raftstore backup create s3://bucket/backups --table orders --channelset counters
    """
    from raftstore.backup import create_backup

    with context.connect() as client, rows_progress("rows backed up") as tell:
        made = create_backup(
            client,
            place,
            tables=tables,
            channelsets=channelsets,
            full=full,
            progress=lambda report: tell(report.rows),
        )
    reported = _shown(made)
    positions = {each.name: each.position for each in made.parts}
    context.show({**reported, "positions": positions}, [reported])


@backups.command("ls")
@PLACE
@pass_context
def list_all(context: Context, /, place: str) -> None:
    """List the backups of a place, the oldest first; needs no cluster.

    Each is complete by itself. BASE is the one whose unchanged files were used again, NEW how many
    bytes it added, OWN the bytes that no other backup needs: what removing it would free.

    \b
    Example:
      raftstore backup ls /backups
    """
    from raftstore.backup import freed_by_each, list_backups

    listed = list_backups(place)
    own = freed_by_each(each for _, each in listed if not isinstance(each, RaftstoreError))
    rows = [
        {"backup": backup_id, "error": str(found)}
        if isinstance(found, RaftstoreError)
        else {**_shown(found), "own": own[found.id]}
        for backup_id, found in listed
    ]
    context.show(rows, rows)
    if not rows:
        context.say(f"there is no backup in {place}")


@backups.command()
@PLACE
@click.argument("backup", required=False)
@pass_context
def verify(context: Context, /, place: str, backup: str | None) -> int:
    """Read every file of a backup, the newest one by default, and check it; needs no cluster.

    Checked are the hash of each file, its rows, their order and partition, the checksum that each
    row got from its writer, and the columns; likewise the states of channel sets. Exit code 7 when
    something is wrong.

    \b
    Example:
      raftstore backup verify /backups
      raftstore backup verify /backups 20261123T152235123Z-1a2b3c
    """
    from raftstore.backup import verify_backup

    with rows_progress("rows checked") as tell:
        found = verify_backup(place, backup, progress=lambda report: tell(report.rows))
    reported: dict[str, Any] = {
        "backup": found.backup,
        "tables": found.tables,
        "channelsets": found.channelsets,
        "files": found.files,
        "rows": found.rows,
        "bytes": found.bytes,
        "problems": len(found.problems),
    }
    context.show({**reported, "problems": list(found.problems)}, [reported])
    for problem in found.problems:
        context.say(problem)
    return EXIT_DIFFERENCE if found.problems else 0


@backups.command()
@PLACE
@click.argument("backup", required=False)
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="NAME[=NEW]",
    help="Only this table, under another name if one is given; may be repeated.",
)
@click.option(
    "--channelset",
    "channelsets",
    multiple=True,
    metavar="NAME[=NEW]",
    help="The same of a channel set.",
)
@click.option("--replicas", type=click.IntRange(1), help="Of each partition.  [default: as before]")
@pass_context
def restore(
    context: Context,
    /,
    place: str,
    backup: str | None,
    *,
    tables: tuple[str, ...],
    channelsets: tuple[str, ...],
    replicas: int | None,
) -> None:
    """Restore tables and channel sets of a backup, the newest one by default, as new ones.

    Nothing of them can be read, written or commanded before all of them are whole. Writers of
    micro-batches, Spark's streams among them, go on behind their last batch. A channel set needs
    its machine on the nodes, in a version that goes on where the backup's was; guids of commands to
    the source are not known in it. Refused over what exists. A restore that was stopped goes on
    when it is repeated; to give it up, drop what it made.

    \b
    Example:
      raftstore backup restore /backups
      raftstore backup restore /backups 20261123T152235123Z-1a2b3c --table orders=orders_of_monday
    """
    from raftstore.backup import restore_backup

    with context.connect() as client, rows_progress("rows restored") as tell:
        done = restore_backup(
            client,
            place,
            backup,
            tables=_renamed("--table", tables),
            channelsets=_renamed("--channelset", channelsets),
            replicas=replicas,
            progress=lambda report: tell(report.rows),
        )
    rows: list[dict[str, Any]] = [
        {
            "table": table.name,
            "from": table.source,
            "rows": table.rows,
            "expired": table.expired,
            "writers": table.writers,
        }
        for table in done.tables
    ]
    sets: list[dict[str, Any]] = [
        {
            "channelset": each.name,
            "from": each.source,
            "machine": each.machine,
            "entries": each.entries,
            "commands": each.commands,
        }
        for each in done.channelsets
    ]
    context.show({"backup": done.backup, "tables": rows, "channelsets": sets}, [*rows, *sets])


@backups.command()
@PLACE
@click.argument("backup", nargs=-1)
@click.option(
    "--force", is_flag=True, help="No other process creates or removes backups, though it looks so."
)
@pass_context
def rm(context: Context, /, place: str, backup: tuple[str, ...], *, force: bool) -> None:
    """Remove backups, and the files that none of the others needs; needs no cluster.

    Every backup is complete by itself, so any may go, also one that others name as their BASE.
    Without BACKUP only files go that no backup needs: those of a create or an rm that was stopped.
    Refused while a backup is being created, and while another one cannot be read.

    \b
    Example:
      raftstore backup rm /backups 20261123T152235123Z-1a2b3c
      raftstore backup rm /backups
    """
    from raftstore.backup import remove_backups

    what = f"backups {', '.join(backup)}" if backup else "files that no backup needs"
    context.confirm(f"Remove {what} of {place}.")
    done = remove_backups(place, backup, force=force)
    reported = {"backups": len(done.backups), "files": done.files, "bytes": done.bytes}
    context.show({**reported, "backups": list(done.backups)}, [reported])


def _renamed(option: str, given_names: tuple[str, ...]) -> dict[str, str]:
    """``orders=older`` -> {"orders": "older"}; the name alone stays."""
    names: dict[str, str] = {}
    for given in given_names:
        source, _, target = given.partition("=")
        if not source or given.endswith("="):
            raise click.UsageError(f"{option} {given!r} gives no name; give NAME or NAME=NEW.")
        if source in names:
            raise click.UsageError(f"{option} names {source} twice; leave one out.")
        names[source] = target or source
    return names


def _shown(made: Manifest) -> dict[str, Any]:
    at = datetime.fromtimestamp(made.created_ms / 1000, UTC)
    return {
        "backup": made.id,
        "at": at.isoformat(timespec="seconds"),
        "tables": len(made.tables),
        "channelsets": len(made.sets),
        "rows": made.rows,
        "bytes": made.bytes,
        "new": made.new_bytes,
        "base": made.base,
    }
