"""Logs of stopped nodes, side by side: which records each one misses and which one holds them.

For ``raftstore log``, when nodes cannot heal each other because those that hold the records cannot
be started. Holes are found by the code of a start and filled by the proofs and the writer of
running nodes (``protocol.node.Hole``, ``engine.channel.hole_repairs.fault_of``,
``SegmentLog.fill``).

A directory stays locked while it is open here: no node starts on it meanwhile. Bounds: one segment
and the index (20 bytes a record) of each log in memory; ``STEP_BYTES_MAX`` of records at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from raftstore.config import MIB, StorageSettings
from raftstore.engine.channel.hole_repairs import fault_of
from raftstore.errors import ArgumentError, CorruptRecordError, NewerFormatError, StoreIdentityError
from raftstore.protocol.node import Hole
from raftstore.protocol.records import Record
from raftstore.record_machine import LOG_KINDS, DictView, Row
from raftstore.rows.sealing import unseal
from raftstore.state_machines.catalog import Catalog
from raftstore.state_machines.registry import CATALOG, make_machine
from raftstore.storage.files import FileOps
from raftstore.storage.identity import StoppedIdentity, lock_stopped
from raftstore.storage.log.index import ChannelIndex
from raftstore.storage.log.recovery import OnLogRead, unheard
from raftstore.storage.log.segment_log import SegmentLog
from raftstore.storage.stopped.read_only_files import ReadOnlyFiles
from raftstore.types import ChannelId, Seq, Term, channel_id, channel_partition

STEP_BYTES_MAX: Final = 4 * MIB
"""Payload that is read, written and synced at a time."""
_END: Final = Seq(2**62)


class StoppedLog:
    """The log of a stopped node, as its next start would find it; nothing is written."""

    def __init__(self, identity: StoppedIdentity, on_read: OnLogRead = unheard) -> None:
        self.identity = identity
        self.label = identity.name
        """How it is distinguished from the others."""
        files = ReadOnlyFiles()
        self.log = SegmentLog(
            files, identity.directory, identity.store_uuid, StorageSettings(), on_read=on_read
        )
        self.repairs = tuple(dict.fromkeys(files.repairs))
        """Files that the next start of the node would mend by itself, by changing them."""

    @property
    def cluster_id(self) -> bytes:
        """The cluster of the node."""
        return self.identity.belonging.cluster_id


@contextmanager
def stopped_logs(
    directories: Sequence[Path], *, written: Path | None = None, on_read: OnLogRead = unheard
) -> Iterator[list[StoppedLog]]:
    """Lock and read the directories of one cluster's stopped nodes; ``written``: one to be filled.

    Raises ArgumentError for a directory that is named twice, and StoreIdentityError for one whose
    node runs, that is no node's, or that is of another cluster than the first.
    """
    places = [directory.resolve() for directory in directories]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise ArgumentError(f"{directories[number]} is named twice; name each directory once")
    locks: list[StoppedIdentity] = []
    found: list[StoppedLog] = []
    try:
        # All of them are locked and compared before the first log is read, which may take long.
        for directory in directories:
            lock = lock_stopped(directory, is_shared=directory != written)
            locks.append(lock)
        for identity in locks[1:]:
            _refuse_other_cluster(locks[0], identity)
        for identity in locks:
            opened = StoppedLog(identity, on_read)
            found.append(opened)
        names = [one.label for one in found]
        for one in found:
            if names.count(one.label) > 1:  # a copy that was made earlier, say
                one.label = f"{one.label} ({one.identity.directory})"
        yield found
    finally:
        for one in found:
            one.log.close()
        for identity in locks:
            os.close(identity.lock)


def _refuse_other_cluster(first: StoppedIdentity, other: StoppedIdentity) -> None:
    clusters = first.belonging.cluster_id, other.belonging.cluster_id
    if clusters[0] != clusters[1]:
        raise StoreIdentityError(
            f"{other.directory} belongs to cluster {clusters[1].hex()}, {first.directory} to "
            f"cluster {clusters[0].hex()}: their records have nothing to do with each other; name "
            "directories of one cluster"
        )


def catalog_of(logs: Sequence[StoppedLog]) -> Catalog:
    """The tables, for their names; empty if no log names them."""
    channel = channel_id(logs[0].cluster_id, 0)
    # Of logs that still hold the first record: the tables are made of all of them.
    lengths = [
        -index.last_seq if (index := one.log.index_of(channel)) and not index.base.seq else 0
        for one in logs
    ]
    log = logs[lengths.index(min(lengths))].log
    rows: dict[bytes, Row] = {}
    at = Seq(1)
    machine = make_machine(CATALOG)
    try:
        while log.index_of(channel) and (
            records := log.read(channel, at, to_seq=_END, bytes_max=STEP_BYTES_MAX)
        ):
            for record in records:
                if record.kind in LOG_KINDS:
                    continue
                for key, sealed in machine.apply(record, DictView(rows)).writes:
                    rows.pop(key, None)
                    if sealed is not None:
                        rows[key] = Row(key, unseal(key, sealed), record.last_seq)
            at = Seq(records[-1].last_seq + 1)
        return Catalog.from_rows(((row.key, row.value, row.seq) for row in rows.values()), at)
    except (CorruptRecordError, NewerFormatError):
        return Catalog.empty()  # then channels are named by their ids


def channel_name(channel: ChannelId, catalog: Catalog, cluster_id: bytes) -> str:
    """As the log lines of a node have it: table/partition; the id where the table is not known."""
    if channel == channel_id(cluster_id, 0):
        return "metadata"
    table = catalog.table_of(channel)
    return channel.hex() if table is None else f"{table.name}/{channel_partition(channel)}"


# --- which log can give what to which -------------------------------------------------------------


class Gap(NamedTuple):
    """Records that one log misses. ``to_seq < from_seq``: it is not known which."""

    from_seq: Seq
    to_seq: Seq
    prev_term: Term | None
    """Of the record in front of it; 0: there is none; None: not known."""
    next_term: Term | None
    """Of its last record if that is known, else of the record behind it; None: not known."""


def gaps_of(index: ChannelIndex) -> list[Gap]:
    """All holes of a channel's log, in their order."""
    gaps = []
    before = index
    for part in index.kept:
        first = part.before or (part.lineage[0] if part.lineage else None)
        next_term = None if first is None or part.is_suspect else first.term
        is_known = before.start_seq == 0 or before.lineage or before.before is not None
        prev_term = before.end.term if is_known else None
        gaps.append(Gap(Seq(before.last_seq + 1), part.start_seq, prev_term, next_term))
        before = part
    return gaps


class _Place(NamedTuple):
    term: Term
    base_seq: Seq
    rows: int


class Given(NamedTuple):
    """Records that some logs can give to another one."""

    to: str
    from_seq: Seq
    to_seq: Seq
    holders: tuple[str, ...]


def _places(index: ChannelIndex, hole: Hole) -> list[_Place]:
    """The answer of ``SegmentLog.refill``, by the index alone: records it names are intact."""
    found = index.part_serving(hole)
    if found is None:
        return []
    part, to_seq = found
    places: list[_Place] = []
    for at in range(part.locate(hole.from_seq), len(part)):
        first = Seq(part.base_seqs[at])
        last = part.base_seqs[at + 1] - 1 if at + 1 < len(part) else part.last_seq
        term = part.term_at(first)
        if last > to_seq or term is None:
            break
        places.append(_Place(term, first, last - first + 1))
    return places if places and places[0].base_seq == hole.from_seq else []


def heal(indexes: Mapping[str, ChannelIndex], damaged: Sequence[str]) -> list[Given]:
    """Fill the holes of the damaged ones from all others, in these indexes alone.

    As the nodes would if exactly they were up. Each step fills a record, so it ends.
    """
    given: list[Given] = []
    is_moving = True
    while is_moving:
        is_moving = False
        for name in damaged:
            hole = indexes[name].hole()
            if hole is None:
                continue
            offers = {other: _places(indexes[other], hole) for other in indexes if other != name}
            best = max(offers.values(), key=len, default=[])
            if not best:
                continue
            for term, base_seq, rows in best:
                indexes[name].fill(term, base_seq, rows, position=0, length=0)
            end = Seq(best[-1].base_seq + best[-1].rows - 1)
            able = [other for other, places in offers.items() if places]
            # Reported is where the records were, not where the steps before brought them.
            held = [other for other in able if not _was_given(given, other, hole.from_seq)]
            holders = tuple(held or able)
            given.append(Given(name, hole.from_seq, end, holders))
            is_moving = True
    return given


def _was_given(given: Sequence[Given], name: str, seq: Seq) -> bool:
    return any(step.to == name and step.from_seq <= seq <= step.to_seq for step in given)


# --- filling --------------------------------------------------------------------------------------


class Filled(NamedTuple):
    """Records that were brought and are durable."""

    channel: ChannelId
    source: str
    from_seq: Seq
    to_seq: Seq
    records: int
    payload_bytes: int


class Refused(NamedTuple):
    """Records that were offered and do not fit."""

    channel: ChannelId
    source: str
    reason: str


def plan_fill(target: StoppedLog, sources: Sequence[StoppedLog]) -> dict[ChannelId, list[Given]]:
    """Records that ``fill`` would bring, by channel; this uses the indexes of ``target`` up."""
    plan = {}
    for channel in target.log.channels():
        mine = target.log.index_of(channel)
        if mine is None or not mine.kept:
            continue
        indexes = {target.label: mine}
        for source in sources:
            if (theirs := source.log.index_of(channel)) is not None:
                indexes[source.label] = theirs
        if given := heal(indexes, [target.label]):
            plan[channel] = given
    return plan


def fill(
    target: StoppedLog,
    sources: Sequence[StoppedLog],
    channels: Sequence[ChannelId],
    *,
    ops: FileOps | None = None,
) -> Iterator[Filled | Refused]:
    """Append what the sources prove to have been lost to the log of ``target``; durable when this
    returns.

    Nothing that is on the disk is overwritten or cut, so a crash leaves what a start takes: a log
    with fewer holes and maybe a torn end (S0.3, S2.4). Raises StoreIdentityError, before anything
    is written, where a start would first have to mend the log; PersistError where writing fails.
    """
    if target.repairs:
        raise StoreIdentityError(
            f"{target.repairs[0]} is damaged where the next start of {target.label} mends it by "
            "itself, by changing the file; start this node once, stop it, and fill then"
        )
    identity = target.identity
    log = SegmentLog(ops or FileOps(), identity.directory, identity.store_uuid, StorageSettings())
    try:
        for channel in channels:
            yield from _fill_channel(log, channel, sources)
    finally:
        log.close()


def holes_left(target: StoppedLog, on_read: OnLogRead = unheard) -> dict[ChannelId, list[Gap]]:
    """Records that the log misses now, read from the disk again; by channel."""
    log = StoppedLog(target.identity, on_read).log
    try:
        found = {channel: log.index_of(channel) for channel in log.channels()}
        return {
            name: gaps
            for name, index in found.items()
            if index is not None and (gaps := gaps_of(index))
        }
    finally:
        log.close()


def _fill_channel(
    log: SegmentLog, channel: ChannelId, sources: Sequence[StoppedLog]
) -> Iterator[Filled | Refused]:
    refused: set[str] = set()
    while (hole := log.open_channel(channel).hole) is not None:
        for source in sources:
            if source.label in refused:
                continue
            records = _proven(source, channel, hole)
            fault = fault_of(tuple(records), hole)
            if fault is not None:
                refused.add(source.label)
                yield Refused(channel, source.label, fault)
            elif records:
                log.fill(channel, records)
                log.flush()
                size = sum(len(record.payload) for record in records)
                first, last = records[0].base_seq, records[-1].last_seq
                yield Filled(channel, source.label, first, last, len(records), size)
                break
        else:
            return


def _proven(source: StoppedLog, channel: ChannelId, hole: Hole) -> list[Record]:
    """Records from the start of the hole on, if that log was equal to this one there (S2.4)."""
    return source.log.refill(channel, hole, bytes_max=STEP_BYTES_MAX)
