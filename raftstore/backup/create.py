"""Taking a backup: each table in one state of all its partitions, with who had written what, and
channel sets (``create_sets``).

A partition whose position is that of the newest backup is not read again. Of one that moved every
row is read, and only files whose content is new are written: files are cut where the rows
themselves say (``cutting``), so a change touches the file that it is in and no other. That is right
with deletes, lifetimes and logs that were trimmed (docs/decisions/0033).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from msgspec import UNSET

from raftstore.backup.claims import creation
from raftstore.backup.create_sets import SetCreation
from raftstore.backup.cutting import cut
from raftstore.backup.data_files import TableFiles
from raftstore.backup.manifest import (
    FORMAT,
    TABLES_FORMAT,
    ChannelSetBackup,
    DataFile,
    Manifest,
    PartitionBackup,
    TableBackup,
    TableDefinition,
    WriterBackup,
)
from raftstore.backup.progress import OnProgress, Progress, nobody
from raftstore.backup.repository import Repository
from raftstore.backup.restore import RESTORE_WRITER
from raftstore.client.batches.batch_writes import TableWriters
from raftstore.client.blocking.client import Client, Table
from raftstore.client.blocking.snapshots import Snapshot
from raftstore.errors import (
    ArgumentError,
    BackupError,
    SchemaError,
    UnavailableError,
    UnknownTableError,
)
from raftstore.protocol.admin import TableInfo
from raftstore.version import VERSION

IDLE_S: Final = 600.0
"""Nodes keep the states of partitions that wait for their turn so long, within
``read.scan_pin_life_ms``."""
CAPTURES_MAX: Final = 200
"""States of a table that are opened until one and what is said of its writers belong together."""
BASES_MAX: Final = 64
"""Newest backups of a place that are looked at for one of the same tables."""
PAUSE_MS_MAX: Final = 50
"""Between two of them, at another moment of the writers' own rhythm."""


def create_backup(
    client: Client,
    url: str,
    *,
    tables: Sequence[str] = (),
    channelsets: Sequence[str] = (),
    full: bool = False,
    progress: OnProgress = nobody,
) -> Manifest:
    """Write a backup of tables and channel sets to a directory or a URL of fsspec; of all there
    are, unless some of either are named.

    Each table is taken in one state: everything acknowledged before its turn is in it, and each
    micro-batch as a whole or not at all. Of a channel set each partition is taken at a position of
    its own, with all that was acknowledged before its turn. The backup exists when its manifest
    does, at the end; what a call that was stopped has written is used by the next one. ``full``:
    read and write everything again, whatever is there.

    Raises UnknownTableError, UnavailableError, BackupError, MachineStoppedError for a channel set
    with a partition that stands at a command, and SchemaError for one that is named as a table, or
    the reverse.
    """
    for what, names in (("tables", tables), ("channelsets", channelsets)):
        if isinstance(names, str):
            raise ArgumentError(f"{what}={names!r:.80} is one name; give a list of names")
    place = Repository(url)
    now_ms = time.time_ns() // 1_000_000
    named, sets = _chosen(client, tables, channelsets)
    infos = [client.table_info(name) for name in named]
    infos += [client.channelset_info(name) for name in sets]
    wanted = {info.uuid.hex() for info in infos}
    with creation(place) as claim:
        base = None if full else _newest(place, wanted)
        work = _Creation(client, place, base, again=full, progress=progress)
        taken = tuple(work.table(name) for name in named)
        of_sets = tuple(work.channelset(name) for name in sets)
        manifest = Manifest(
            format=FORMAT if of_sets else TABLES_FORMAT,
            id=_new_id(now_ms),
            created_ms=now_ms,
            raftstore=VERSION,
            cluster_id=client.cluster_status().cluster_id,
            base=None if base is None else base.id,
            new_bytes=work.new_bytes,
            tables=taken,
            channelsets=of_sets or UNSET,
        )
        place.add(manifest)
        if not claim.is_there():  # behind the manifest: a removal that begins now sees that
            place.remove_manifest(manifest.id)
            raise BackupError(
                f"{url}: backups were removed with --force while this one was made, which may have "
                "taken files from it; make it again"
            )
    return manifest


def _chosen(
    client: Client, tables: Sequence[str], channelsets: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Names of tables and of channel sets; what is on its way in is left out unless it is named."""
    if not tables and not channelsets:
        both = client.tables(), client.channelsets()
        named, sets = (
            [info.name for info in each if info.settings.restoring is None] for each in both
        )
        return named, sets
    named, sets = list(dict.fromkeys(tables)), list(dict.fromkeys(channelsets))
    machines = {info.name for info in client.channelsets()}
    for name in named:
        if name in machines:
            raise SchemaError(
                f"{name!r} is a channel set and no table; name it among the channel sets "
                "(channelsets=, --channelset)"
            )
        _refuse_restoring("table", client.table_info(name))
    for name in sets:
        _refuse_restoring("channel set", client.channelset_info(name))
    return named, sets


def _newest(place: Repository, wanted: Collection[str]) -> Manifest | None:
    """The newest backup with any of these tables or channel sets that can be read: others are of
    other ones, or of another cluster that uses the place; a damaged one is passed over, its files
    are not known."""
    for backup_id in reversed(place.ids()[-BASES_MAX:]):
        with suppress(BackupError):
            manifest = place.manifest(backup_id)
            held = [table.uuid for table in manifest.tables] + [each.uuid for each in manifest.sets]
            if any(uuid in wanted for uuid in held):
                return manifest
    return None


def _new_id(now_ms: int) -> str:
    begun = datetime.fromtimestamp(now_ms / 1000, UTC)
    return f"{begun:%Y%m%dT%H%M%S}{now_ms % 1000:03}Z-{secrets.token_hex(3)}"


def _refuse_restoring(what: str, info: TableInfo) -> None:
    if info.settings.restoring is not None:
        raise UnavailableError(
            f"{what} {info.name!r} is being restored from a backup and is not whole; wait for "
            "that, or leave it out"
        )


class _Creation:
    """One backup under way."""

    def __init__(
        self,
        client: Client,
        place: Repository,
        base: Manifest | None,
        *,
        again: bool,
        progress: OnProgress,
    ) -> None:
        self._client = client
        self._place = place
        self._again = again
        self._progress = progress
        known = () if base is None else base.tables
        self._known: Final[Mapping[str, TableBackup]] = {table.uuid: table for table in known}
        self._sets = SetCreation(client, base, has=place.has, put=self._put, done=self._done)
        self._rows = 0
        self.new_bytes = 0

    def channelset(self, name: str) -> ChannelSetBackup:
        """Take one channel set."""
        return self._sets.take(name)

    def table(self, name: str) -> TableBackup:
        """Take one table."""
        table = self._client.table(name)
        snapshot, writers = captured(table, name)
        with snapshot:
            # Read behind the state, so that it has every column that rows of the state have.
            info = self._client.table_info(name)
            if info.uuid != snapshot.token.table_uuid:
                raise UnknownTableError(
                    f"table {name!r} was dropped and created again while it was read; make the "
                    "backup again"
                )
            definition = TableDefinition.of(info)
            known = self._known.get(info.uuid.hex())
            if known is not None and known.definition.schema_json != definition.schema_json:
                known = None  # its files lack columns for other readers
            has_expiries = info.settings.ttl_ms is not None or snapshot.has_expiries()
            files = TableFiles(definition)
            partitions = tuple(
                self._unchanged(known, snapshot, number)
                or self._partition(files, snapshot, number, name, has_expiries=has_expiries)
                for number in range(info.partitions)
            )
            return TableBackup(
                name=name,
                uuid=info.uuid.hex(),
                commit=snapshot.n,
                position=str(snapshot.position),
                definition=definition,
                partitions=partitions,
                writers=writers,
            )

    def _unchanged(
        self, known: TableBackup | None, snapshot: Snapshot, number: int
    ) -> PartitionBackup | None:
        """The partition as the base has it, if nothing can have changed since."""
        if known is None:
            return None
        before, token = known.partitions[number], snapshot.token
        # Rows that expire are removed by a record, so they move the position, too (S10).
        if (before.term, before.seq) != (token.terms[number], token.seqs[number]):
            return None
        if not all(self._place.has(file) for file in before.files):
            return None
        self._rows += before.rows
        return before

    def _partition(
        self,
        files: TableFiles,
        snapshot: Snapshot,
        number: int,
        name: str,
        *,
        has_expiries: bool,
    ) -> PartitionBackup:
        found: list[DataFile] = []
        for items in cut(item for page in snapshot.pages(number) for item in page):
            expiries: Mapping[bytes, int] = {}
            if has_expiries:
                stop = items[-1][0] + b"\0"
                expiries = snapshot.expiries(number, start=items[0][0], stop=stop)
            content = files.encode(items, expiries)
            found.append(self._put(content, len(items)))
            self._done(name, len(items))
        token = snapshot.token
        return PartitionBackup(token.terms[number], token.seqs[number], tuple(found))

    def _put(self, content: bytes, rows: int) -> DataFile:
        """Write a file unless it is there."""
        file, written = self._place.put(content, rows, again=self._again)
        self.new_bytes += written
        return file

    def _done(self, name: str, rows: int) -> None:
        self._rows += rows
        self._progress(Progress(name, self._rows, None))


def captured(table: Table, name: str) -> tuple[Snapshot, tuple[WriterBackup, ...]]:
    """Open a state of a table, and return it with the writers of its batches as of that very state.

    The coordinator is asked before and after the state was opened: where it has decided no batch
    with rows that is not in the state, and none is in the state that it has not decided, what it
    says of writers belongs to the state. UnavailableError when batches follow each other too
    closely for that.
    """
    for _ in range(CAPTURES_MAX):
        before = table.writers()
        snapshot = table.snapshot(idle=IDLE_S)
        try:
            for reported in (before, table.writers()):
                if is_of_state(reported, snapshot.vector):
                    return snapshot, _writers(reported)
        except BaseException:
            snapshot.close()
            raise
        snapshot.close()
        time.sleep(secrets.randbelow(PAUSE_MS_MAX) / 1000)
    raise UnavailableError(
        f"batches of table {name!r} follow each other so closely that in {CAPTURES_MAX} attempts "
        "no state was found between two of them; make the backup again when fewer writers write"
    )


def is_of_state(reported: TableWriters, vector: Sequence[int]) -> bool:
    """Whether the coordinator's answer is of the state of this vector.

    Batches without rows touch no partition: they do not make another state. The last of the
    writers' answers may be newer than the first, which the vector is of.
    """
    decided = reported.vector or (0,) * len(vector)
    is_same = tuple(decided) == tuple(vector)
    return is_same and all(view.last_n < reported.next_commit for view in reported.writers)


def _writers(reported: TableWriters) -> tuple[WriterBackup, ...]:
    """Return the writers that have a next batch: a job of its own has none."""
    return tuple(
        WriterBackup(view.writer, view.lineage or "", view.last_batch)
        for view in reported.writers
        if view.last_batch >= 0 and not view.one_shot and view.writer != RESTORE_WRITER
    )
