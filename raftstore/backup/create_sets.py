"""Taking channel sets into a backup: each partition in the state of one committed position.

The head of a machine says what its state consists of; what was read is held against it. A
partition whose position is that of the newest backup is not read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from raftstore.backup import state_files
from raftstore.backup.cutting import cut
from raftstore.backup.manifest import (
    ChannelSetBackup,
    DataFile,
    Manifest,
    StateBackup,
    TableDefinition,
)
from raftstore.client.blocking.client import Client
from raftstore.client.blocking.machines import ChannelSetState
from raftstore.client.machines.channel_set_state import PinnedPartition
from raftstore.client.position import Position
from raftstore.errors import (
    BackupError,
    MachineStoppedError,
    PageExpiredError,
    RequestTimeoutError,
    TransportError,
    UnavailableError,
    UnknownTableError,
)
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.machine_restore import RestoredCommand
from raftstore.protocol.machines import JUDGING_LIMITS
from raftstore.protocol.replica_checks import ROW_ENTRY
from raftstore.rows.sealing import unseal
from raftstore.state_machines.machine_journal import JournalEntry, entries_one_by_one
from raftstore.state_machines.machine_origin import MachineOrigin
from raftstore.state_machines.machine_state import LimitsInForce, MachineHead
from raftstore.state_machines.state_keys import (
    JOURNAL,
    MACHINE_CHUNKS,
    MACHINE_HEAD,
    MACHINE_LIMITS,
    MACHINE_ORIGIN,
    TOGETHER_FORMAT,
    packed,
    unpacked,
)
from raftstore.types import Guid, Seq, Term

ATTEMPTS: Final = 3
"""At one state, which a node may have given up, or with which it may have gone down."""
_GONE: Final = (PageExpiredError, RequestTimeoutError, TransportError, UnavailableError)
Put = Callable[[bytes, int], DataFile]
"""Writes a file of so many entries unless it is there."""


class SetCreation:
    """The channel sets of one backup under way."""

    def __init__(
        self,
        client: Client,
        base: Manifest | None,
        *,
        has: Callable[[DataFile], bool],
        put: Put,
        done: Callable[[str, int], None],
    ) -> None:
        """``has``: whether a file is there; ``done`` gets how many entries were taken."""
        self._client = client
        known = () if base is None else base.sets
        self._known: Final[Mapping[str, ChannelSetBackup]] = {each.uuid: each for each in known}
        self._has = has
        self._put = put
        self._done = done

    def take(self, name: str) -> ChannelSetBackup:
        """Take one channel set."""
        info = self._client.channelset_info(name)
        known = self._known.get(info.uuid.hex())
        partitions = tuple(
            self._partition(info, number, None if known is None else known.partitions[number])
            for number in range(info.partitions)
        )
        position = Position(
            {
                (info.uuid, number): (each.term, each.seq)
                for number, each in enumerate(partitions)
                if each.seq
            }
        )
        if self._client.channelset_info(name).uuid != info.uuid:
            raise UnknownTableError(
                f"channel set {name!r} was dropped and created again while it was read; make the "
                "backup again"
            )
        return ChannelSetBackup(
            name=name,
            uuid=info.uuid.hex(),
            machine=info.machine,
            position=str(position),
            definition=TableDefinition.of(info),
            partitions=partitions,
        )

    def _partition(self, info: TableInfo, number: int, known: StateBackup | None) -> StateBackup:
        state = self._client.channelset_state(info.name)
        for left in reversed(range(ATTEMPTS)):
            pinned = _pinned(state, info, number)
            try:
                taken = self._unchanged(known, pinned) or self._read(state, info, number, pinned)
            except _GONE:
                if not left:
                    raise
            else:
                self._done(info.name, taken.entries)
                return taken
            finally:
                state.close(pinned)
        raise AssertionError("the last attempt neither ended nor raised")

    def _unchanged(self, known: StateBackup | None, pinned: PinnedPartition) -> StateBackup | None:
        """The partition as the base has it, if nothing can have changed since."""
        if known is None or (known.term, known.seq) != (pinned.term, pinned.seq):
            return None
        return known if all(map(self._has, known.files)) else None

    def _read(
        self, state: ChannelSetState, info: TableInfo, number: int, pinned: PinnedPartition
    ) -> StateBackup:
        head = _one(state, pinned, MACHINE_HEAD, MachineHead) or MachineHead(info.machine_version)
        origin = _one(state, pinned, MACHINE_ORIGIN, MachineOrigin) or MachineOrigin(b"")
        limits = _one(state, pinned, MACHINE_LIMITS, LimitsInForce) or LimitsInForce()
        of = f"{info.name}/{number}"
        rows = self._files(
            ((key[1:], sealed) for key, sealed in _all(state, pinned, ROW_ENTRY)),
            state_files.encode_rows,
        )
        chunks = self._files(
            ((key[2:], value[1:]) for key, value in _beside(state, pinned, MACHINE_CHUNKS)),
            lambda found: state_files.encode_chunks(
                [(int.from_bytes(key, "big"), chunk) for key, chunk in found]
            ),
        )
        journal = self._files(
            _journal(_beside(state, pinned, JOURNAL)),
            lambda found: state_files.encode_journal(
                [_command(int.from_bytes(key, "big"), value) for key, value in found]
            ),
        )
        counted = _count(chunks), _count(journal)
        if counted != (head.chunks, head.journal):
            raise BackupError(
                f"the state of {of} at seq {pinned.seq} has {counted} chunks and commands, and its "
                f"head says {(head.chunks, head.journal)}; compare the replicas (raftstore channel "
                "verify)"
            )
        return StateBackup(
            term=pinned.term,
            seq=pinned.seq,
            version=head.version,
            commands=head.commands,
            time_ms=head.time_ms,
            last_seq=head.seq,
            machine_term=Term(pinned.term + origin.term_base),
            machine_seq=Seq(pinned.seq + origin.seq_base),
            rows=rows,
            chunks=chunks,
            journal=journal,
            limits=min(limits.number, JUDGING_LIMITS),
            limits_behind=limits.behind,
        )

    def _files(
        self,
        entries: Iterator[tuple[bytes, bytes]],
        encode: Callable[[Sequence[tuple[bytes, bytes]]], bytes],
    ) -> tuple[DataFile, ...]:
        return tuple(self._put(encode(part), len(part)) for part in cut(entries))


def _pinned(state: ChannelSetState, info: TableInfo, number: int) -> PinnedPartition:
    try:
        return state.pin(info, number)
    except MachineStoppedError as error:
        raise MachineStoppedError(
            f"{error}; then make the backup again, or name what else is to be in it (tables=, "
            "channelsets=; --table, --channelset)"
        ) from error


def _all(
    state: ChannelSetState, pinned: PinnedPartition, prefix: bytes
) -> Iterator[tuple[bytes, bytes]]:
    for page in state.entries(pinned, prefix):
        yield from page


def _beside(
    state: ChannelSetState, pinned: PinnedPartition, prefix: bytes
) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the state beside the rows; CorruptRecordError for what was damaged."""
    return ((key, unseal(key, sealed)) for key, sealed in _all(state, pinned, prefix))


def _one(state: ChannelSetState, pinned: PinnedPartition, key: bytes, kind: Any) -> Any:
    """The value under one key of the state beside the rows; None: there is none."""
    return next(
        (
            unpacked(value, kind, TOGETHER_FORMAT)
            for found, value in _beside(state, pinned, key)
            if found == key
        ),
        None,
    )


def _journal(entries: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The commands of the journal one by one, as backups of every version have them: seqs and
    stored entries."""
    for key, stored in entries:
        for seq, entry in entries_one_by_one(key, stored):
            yield seq.to_bytes(8, "big"), packed(entry)


def _command(seq: int, stored: bytes) -> RestoredCommand:
    entry = unpacked(stored, JournalEntry)
    return RestoredCommand(
        Seq(seq), Term(entry.term), entry.timestamp_ms, Guid(entry.guid), entry.version,
        entry.payload,
    )  # fmt: skip


def _count(files: Sequence[DataFile]) -> int:
    return sum(file.rows for file in files)
