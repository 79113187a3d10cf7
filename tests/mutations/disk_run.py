"""Random runs of one real store on real files: its promises hold after every fault.

A run is a number of starts of one store. In between it is written to and read from, and every
start ends with a fault: the process is killed, a write, a sync or a read fails, power is lost,
files rot, are cut or vanish, somebody founds a second cluster. A model knows what was promised:
what was acknowledged comes back, or its channel is *recovering*; and nothing is ever answered that
was not written.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import plyvel

from raftstore.config import KIB, MIB, StorageSettings
from raftstore.errors import (
    CorruptRecordError,
    PersistError,
    StorageError,
    StoreIdentityError,
    UnknownChannelError,
)
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.records import Record
from raftstore.rows.sealing import seal
from raftstore.state_machines.table import TableMachine
from raftstore.storage.files import FileOps
from raftstore.storage.log.mark import MARK_NAME
from raftstore.storage.log.segments import LOG_DIRECTORY
from raftstore.storage.store import Store, open_store
from raftstore.storage.tables.generations import path_of
from raftstore.storage.tables.keys import rows_end, rows_prefix
from raftstore.types import (
    ChannelId,
    Guid,
    NodeId,
    RecordKind,
    Seq,
    Term,
    channel_id,
    make_guid,
)

STARTS: Final = 16
STEPS_MAX: Final = 16
ALL: Final = Seq(2**62)
CHANNELS: Final = tuple(channel_id(bytes(range(16)), number) for number in range(3))
CLUSTERS: Final = (b"the-first-cluste", b"another-cluster!")
FOUNDERS: Final = ((NodeId("n1@00"), "n1:1"), (NodeId("n2@01"), "n2:1"))
SETTINGS: Final = StorageSettings(
    segment_bytes=2 * KIB,
    log_cache_bytes=1 * KIB,
    group_commit_bytes_max=64 * KIB,
    write_buffer_bytes=1 * MIB,
    block_cache_bytes=1 * MIB,
)


class _RottenRowError(Exception):
    """A row does not match its seal, as it should: the next start builds the tables again."""


class BrokenPromiseError(AssertionError):
    """The store broke a promise; the text names the rule."""


class _Files(FileOps):
    """Real files that fail when asked to, and know how much of each was synced."""

    def __init__(self) -> None:
        self.failing: str | None = None
        """"write", "sync" or "read": the next one fails with EIO."""
        self.synced: dict[Path, int] = {}
        self._paths: dict[int, Path] = {}

    def open(self, path: Path, flags: int) -> int:
        descriptor = super().open(path, flags)
        self._paths[descriptor] = path
        return descriptor

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        self._fail("write")
        return super().write(descriptor, data)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        self._fail("read")
        return super().pread(descriptor, size, offset)

    def datasync(self, descriptor: int) -> None:
        self._fail("sync")
        super().datasync(descriptor)
        self.synced[self._paths[descriptor]] = os.fstat(descriptor).st_size

    def _fail(self, operation: str) -> None:
        if self.failing == operation:
            self.failing = None
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@dataclass(slots=True)
class _Model:
    """The expected state of one channel."""

    records: list[Record] = field(default_factory=list)
    values: list[tuple[bytes, bytes]] = field(default_factory=list)
    """(key, value) of each record."""
    durable: int = 0
    """Records that were synced."""
    marked: int = 0
    """Records the mark covers: those of all group commits but the last (S0.3)."""
    applied: int = 0
    vote: tuple[Term, NodeId | None] = (Term(0), None)
    is_dropped: bool = False

    def cut(self, kept: int) -> None:
        """The rest did not survive, and was not promised."""
        del self.records[kept:], self.values[kept:]
        self.durable = kept
        self.marked = min(self.marked, kept)

    def row(self, key: bytes) -> bytes | None:
        """The value of a key after what was applied."""
        found = None
        for written, value in self.values[: self.applied]:
            found = value if written == key else found
        return found


class DiskRun:
    """One run, drawn from its seed."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._rng = random.Random(f"disk {seed}")
        self._holder = directory
        self._stores = 0
        self._files = _Files()
        self._new_store()

    def run(self) -> None:
        """Live; BrokenPromiseError when a promise was broken."""
        faults: tuple[Callable[[], None], ...] = (
            self._kill,
            self._write_error,
            self._sync_error,
            self._read_error,
            self._rot_in_the_log,
            self._rot_in_a_row,
            self._lose_the_end,
            self._lose_a_piece,
            self._found_again,
        )
        for _ in range(STARTS):
            if not self._start():
                self._new_store()
                continue
            for _ in range(self._rng.randint(1, STEPS_MAX)):
                self._step()
            self._rng.choice(faults)()

    def _new_store(self) -> None:
        """An empty directory, as after a disk was replaced."""
        self._stores += 1
        self._directory = self._holder / f"store-{self._stores}"
        self._directory.mkdir()
        self._models = {channel: _Model() for channel in CHANNELS}
        self._founded = False
        self._is_damaged = False

    def _open(self) -> Store:
        return open_store(self._directory, "n1", SETTINGS, ops=self._files, free_bytes_min=0)

    # --- a start ----------------------------------------------------------------------------------

    def _start(self) -> bool:
        """Open and compare; False when the store rightly refuses to go on."""
        try:
            self._store = self._open()
        except StorageError as error:
            if self._is_damaged:
                return False
            raise BrokenPromiseError(f"S0.3: an undamaged store was refused: {error}") from error
        is_recovering = False
        try:
            for channel, model in self._models.items():
                is_recovering |= self._check_channel(channel, model)
        except _RottenRowError:
            self._store.close(is_clean=False)
            return self._start()
        self._is_damaged = False
        if is_recovering:
            self._store.close(is_clean=False)
        return not is_recovering

    def _check_channel(self, channel: ChannelId, model: _Model) -> bool:
        """Compare a channel with its model; whether it is recovering."""
        log, tables = self._store.log, self._store.tables
        if model.is_dropped:
            self._check_dropped(channel)
            return False
        found = log.open_channel(channel)
        if (found.term, found.voted_for) != model.vote:
            raise BrokenPromiseError(
                f"S1.3: the vote {model.vote} came back as {(found.term, found.voted_for)}"
            )
        survived = log.read(channel, Seq(1), to_seq=ALL, bytes_max=ALL)
        if survived != model.records[: len(survived)]:
            raise BrokenPromiseError("S0.3: other records came back than were written")
        if found.shortfall is not None:
            if not self._is_damaged:
                raise BrokenPromiseError("S0.3: recovering although nothing was lost")
            return True
        required = model.marked if self._is_damaged else model.durable
        if len(survived) < required:
            raise BrokenPromiseError(
                f"S0.3: {required} records were acknowledged, {len(survived)} came back, and the "
                "channel is not recovering"
            )
        applied = model.records[model.applied - 1].last_seq if model.applied else Seq(0)
        position = tables.open_channel(channel, TableMachine())
        if position != applied and not self._is_damaged:
            raise BrokenPromiseError(f"S10: seq {applied} was applied, the tables say {position}")
        model.cut(len(survived))
        model.applied = sum(record.last_seq <= position for record in model.records)
        self._check_rows(channel, model)
        return False

    def _check_dropped(self, channel: ChannelId) -> None:
        try:
            self._store.log.open_channel(channel)
        except UnknownChannelError:
            return
        raise BrokenPromiseError("S0.8: the id of a dropped table is used again")

    def _check_rows(self, channel: ChannelId, model: _Model) -> None:
        for key in {key: None for key, _ in model.values}:
            try:
                row = self._store.tables.get(channel, key)
            except CorruptRecordError as error:
                if not self._is_damaged:
                    raise
                raise _RottenRowError from error
            if (None if row is None else row.value) != model.row(key):
                raise BrokenPromiseError(f"S0.3: row {key!r} was answered with a wrong value")

    # --- what a healthy store does ----------------------------------------------------------------

    def _step(self) -> None:
        channel = self._rng.choice(CHANNELS)
        model = self._models[channel]
        if model.is_dropped:
            self._check_dropped(channel)
            return
        draw = self._rng.random()
        if draw < 0.45:
            self._append(channel, model)
        elif draw < 0.65:
            self._commit()
        elif draw < 0.75:
            self._flush()
        elif draw < 0.85:
            self._vote(channel, model)
        elif draw < 0.98:
            self._apply(channel, model)
        elif channel == CHANNELS[-1]:
            self._store.log.drop_channel(channel)
            self._store.tables.drop(channel)
            model.is_dropped = True
            self._flush()

    def _append(self, channel: ChannelId, model: _Model) -> None:
        records = []
        for _ in range(self._rng.randint(1, 4)):
            seq = len(model.records) + 1
            key, value = b"k%d" % self._rng.randrange(5), self._rng.randbytes(40)
            payload = encode_rows([(key, seal(key, value))])
            record = Record(
                term=Term(1), base_seq=Seq(seq), rows=1,
                guid=Guid(make_guid(b"session!", seq)), timestamp_ms=1_700_000_000_000 + seq,
                digest=hashlib.blake2b(payload, digest_size=16).digest(), kind=RecordKind.ROWS,
                payload=payload,
            )  # fmt: skip
            records.append(record)
            model.records.append(record)
            model.values.append((key, value))
        self._store.log.append(channel, records)

    def _commit(self) -> None:
        """One group commit, whose mark follows with the next one."""
        batch = self._store.log.take_pending()
        if batch is None:
            return
        self._store.log.committer.write_and_sync(batch)
        self._store.log.completed(batch)
        for model in self._models.values():
            model.marked = model.durable
            model.durable = len(model.records)

    def _flush(self) -> None:
        self._store.log.flush()
        for model in self._models.values():
            model.marked = model.durable = len(model.records)

    def _vote(self, channel: ChannelId, model: _Model) -> None:
        model.vote = (Term(model.vote[0] + 1), self._rng.choice((None, FOUNDERS[0][0])))
        self._store.log.set_vote(channel, *model.vote)
        self._commit()
        for other in self._models.values():
            other.marked = other.durable  # S0.3: the mark covers a vote without lag

    def _apply(self, channel: ChannelId, model: _Model) -> None:
        """Only what is durable is ever applied."""
        if model.applied < model.durable:
            self._store.tables.apply(channel, model.records[model.applied : model.durable])
            self._store.tables.apply_queued()
            model.applied = model.durable
        self._check_rows(channel, model)

    # --- how a start ends -------------------------------------------------------------------------

    def _kill(self) -> None:
        """Kill the process: bytes handed to the system survive, those that waited in the process do
        not.
        """
        self._close()
        for model in self._models.values():
            model.cut(model.durable)

    def _close(self) -> None:
        self._store.close(is_clean=False)

    def _write_error(self) -> None:
        self._fail_commit("write")

    def _sync_error(self) -> None:
        self._fail_commit("sync")

    def _fail_commit(self, operation: str) -> None:
        """S0.4: after an error nothing goes on; what was not synced may be gone, in part."""
        channel = CHANNELS[0]
        self._append(channel, self._models[channel])
        self._files.failing = operation
        try:
            self._store.log.flush()
        except PersistError:
            self._check_poisoned(channel)
        else:
            raise BrokenPromiseError(f"S0.4: a failed {operation} was not noticed")
        self._close()
        for path in sorted((self._directory / LOG_DIRECTORY).iterdir()):
            durable = self._files.synced.get(path, 0)
            if path.stat().st_size > durable:
                os.truncate(path, self._rng.randint(durable, path.stat().st_size))

    def _read_error(self) -> None:
        """S0.4: an error of a read ends the store, too."""
        self._flush()
        self._files.failing = "read"
        for channel, model in self._models.items():
            if model.is_dropped:
                continue
            try:
                found = self._store.log.read(channel, Seq(1), to_seq=ALL, bytes_max=ALL)
            except PersistError:
                self._check_poisoned(CHANNELS[0])
                break
            if found != model.records:
                raise BrokenPromiseError("S0.3: a read answered other records than were written")
        self._files.failing = None
        self._close()

    def _check_poisoned(self, channel: ChannelId) -> None:
        try:
            self._store.log.read(channel, Seq(1), to_seq=ALL, bytes_max=ALL)
            self._store.log.take_pending()
        except PersistError:
            return
        raise BrokenPromiseError("S0.4: the log goes on after an error")

    def _rot_in_the_log(self) -> None:
        """A bit flips under a running store, then it is started again."""
        self._flush()
        segments = sorted((self._directory / LOG_DIRECTORY).iterdir())
        path = self._rng.choice(segments)
        _flip(path, self._rng.randrange(path.stat().st_size), self._rng)
        self._is_damaged = True
        for channel, model in self._models.items():
            try:
                found = self._store.log.read(channel, Seq(1), to_seq=ALL, bytes_max=ALL)
            except (CorruptRecordError, PersistError, UnknownChannelError):
                continue
            if found != model.records:
                raise BrokenPromiseError("S0.3: a rotten record was read as if it were whole")
        self._close()

    def _rot_in_a_row(self) -> None:
        """LevelDB verifies blocks; what rots before it writes them only the seal can see."""
        self._close()
        for model in self._models.values():
            model.cut(model.durable)
        channel = self._rng.choice(CHANNELS)
        path = path_of(self._directory, channel)
        if not path.exists():
            return  # nothing of it is applied
        database = plyvel.DB(str(path))
        rows = list(database.iterator(start=rows_prefix(channel), stop=rows_end(channel)))
        if rows:
            key, stored = self._rng.choice(rows)
            database.put(key, stored[:-1] + bytes([stored[-1] ^ 1]))
            self._is_damaged = True
        database.close()

    def _lose_the_end(self) -> None:
        """The last file of the log is shorter than what was synced."""
        self._close()
        for model in self._models.values():
            del model.records[model.durable :], model.values[model.durable :]
        path = max((self._directory / LOG_DIRECTORY).iterdir())
        os.truncate(path, self._rng.randint(0, path.stat().st_size))
        self._is_damaged = True

    def _lose_a_piece(self) -> None:
        """S0.2: the log without its mark, or the reverse, is refused; whole again, it starts."""
        self._kill()
        piece = self._directory / self._rng.choice((MARK_NAME, LOG_DIRECTORY))
        aside = self._holder / "aside"
        piece.rename(aside)
        try:
            store = self._open()
        except StorageError:
            pass
        else:
            store.close(is_clean=False)
            raise BrokenPromiseError(f"S0.2: a store without its {piece.name} was started")
        aside.rename(piece)

    def _found_again(self) -> None:
        """S0.7: one founding is accepted, ever."""
        identity = self._store.identity
        if not self._founded:
            identity.record_proposal(CLUSTERS[0], FOUNDERS)
            self._founded = True
        try:
            identity.record_proposal(CLUSTERS[1], FOUNDERS)
        except StoreIdentityError:
            pass
        if (identity.accepted_proposal, identity.members) != (CLUSTERS[0], FOUNDERS):
            raise BrokenPromiseError("S0.7: a second founding was accepted")
        self._kill()


def _flip(path: Path, offset: int, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << rng.randrange(8)
    with path.open("r+b") as file:
        file.write(data)


def run_disk_run(seed: int) -> str | None:
    """Run one store; return the violation, None when every promise was kept."""
    with tempfile.TemporaryDirectory(prefix="raftstore-disk-run-") as directory:
        try:
            DiskRun(Path(directory), seed).run()
        except BrokenPromiseError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - nothing may ever be raised in a run
            return f"{type(error).__name__} in the code under test: {error}"
    return None
