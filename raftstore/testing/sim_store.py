"""The disk of a simulated node: the production log on simulated files, over its starts.

``commit`` does at one moment of virtual time what the thread of ``raftstore.storage.log.writer``
does, by the same functions. ``kill`` and ``crash`` end the process, or the machine, also in the
middle of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from raftstore.config import StorageSettings
from raftstore.errors import PromisesLostError, StorageError
from raftstore.storage.log.group_commit import Batch
from raftstore.storage.log.mark import BOOT_BYTES
from raftstore.storage.reconcile import reconcile
from raftstore.testing.invariants import InvariantError
from raftstore.testing.log_truth import LogTruth
from raftstore.testing.sim_files import ProcessEndedError, SimFiles
from raftstore.testing.sim_log import SimLog
from raftstore.testing.sim_tables import SimTables

COMMIT_OPERATIONS_MAX: Final = 8
"""Operations on the disk behind its writes that a group commit which is broken off gets to."""
START_OPERATIONS: Final = 5
"""Of a new segment: the last one is synced, the new one created, written, synced, and its name."""

Harm = Callable[[SimLog, SimFiles], bool]
"""Damages files; returns whether there was anything to damage."""


class SimStore:
    """The store of one simulated node; outlives its processes."""

    def __init__(self, name: str, seed: int, reach: Callable[[str], bool]) -> None:
        """``reach`` is called with the failpoints that are passed; True: the process ends there."""
        self._name = name
        self._reach = reach
        # Of its own, so that a world without disk faults is the world that it was.
        self.rng = random.Random(f"{seed}/{name}/disk")
        self.files = SimFiles(self.rng, Path("/") / name)
        self.truth = LogTruth(name)
        self.uuid = self.rng.randbytes(16)
        SimLog.create(self.files, self.files.root, self.uuid)
        self.files.sync_directory(self.files.root)
        self.log: SimLog
        """Of the present process, or of the last one; there is none before the first start."""
        self.batch: Batch | None = None
        """The group commit that is under way."""
        self.commits = 0
        self._boots = 0
        """Of the machine."""
        self._is_written = False
        """The system has the group commit that is under way (S0.6)."""
        self.must_refuse: str | None = None
        """What was done to the files: the next start has to refuse them."""
        self.may_refuse = False
        """A bit of the mark flipped: a start may refuse it, and never starts again then."""
        self._is_committing = False
        self._is_marked = True
        """The mark covers the last group commit: it was idle, or held a vote (S0.3)."""

    def open(self, tables: SimTables, settings: StorageSettings) -> None:
        """Start from what is there, as a node does.

        Raises StorageError, and InvariantError if intact files are refused, unusable ones are
        opened, or others come back than were promised.
        """
        self.batch = None
        self._is_marked = True
        struck = self.files.struck
        try:
            boot = self._boots.to_bytes(BOOT_BYTES, "big")
            log = SimLog(self.files, self.truth, self.uuid, settings, self._pass, boot)
            reconcile(log, tables)
        except StorageError as error:
            self.files.end_process()
            if self.may_refuse and isinstance(error, PromisesLostError):
                self.must_refuse = "a bit of its mark flipped"
                raise
            if self.must_refuse is None and self.files.struck == struck:
                message = f"S0.3: {self._name} refuses an intact log: {error}"
                raise InvariantError(message) from error
            raise
        if self.must_refuse is not None:
            raise InvariantError(f"S0.1: {self._name} started although {self.must_refuse}")
        self.files.live_on()
        self.may_refuse = False
        copied = {each: tables.copied_position(each) for each in tables.stored_channels()}
        self.truth.check(log, copied)
        self.log = log

    def begin(self) -> Batch:
        """Take what waits for one group commit."""
        self.batch, self._is_written = self.log.take_pending(), False
        assert self.batch is not None
        self.commits += 1
        return self.batch

    def write(self, batch: Batch) -> None:
        """Hand a group commit to the system; ``commit`` follows. Raises as that does."""
        self._is_committing = True
        try:
            self.log.committer.write(batch)
            self._is_written = True
        finally:
            self._is_committing = False

    def commit(self, batch: Batch | None) -> None:
        """Write and sync a group commit, or (None) let the mark cover what it lags behind.

        Raises StorageError, and ProcessEndedError at the failpoint where the node is to die.
        """
        self._is_committing = True
        durable_position = self.log.durable_position
        try:
            if batch is None:
                self.log.committer.write_mark()
            else:
                self._finish(batch)
            self.log.covered_position = durable_position
            self._is_marked = batch is None or batch.is_urgent
        finally:
            self._is_committing = False
            self.batch = None

    def _finish(self, batch: Batch) -> None:
        if self._is_written:
            self.log.committer.sync(batch)
        else:
            self.log.committer.write_and_sync(batch)

    def kill(self) -> None:
        """The process ends; what the system was handed survives, and that takes no time."""
        self._break_off(is_written=True)
        self.files.end_process()

    def crash(self) -> None:
        """The power goes; what was not synced survives in part."""
        self._break_off(is_written=False)
        self._lose_power()

    def _lose_power(self) -> None:
        self._boots += 1
        self.files.lose_power()

    def damage(self, harm: Harm) -> bool:
        """The process has ended some time after its last write: do ``harm`` to what it wrote, which
        the mark has to notice (S0.3)."""
        batch, self.batch = self.batch, None
        is_harmed = False
        with suppress(StorageError):
            if batch is not None:
                self._finish(batch)
                self.log.completed(batch)
                self._is_marked = batch.is_urgent
            if not self._is_marked:
                self.log.committer.write_mark()
            is_harmed = harm(self.log, self.files)
            # What was damaged under the process before stays so where nothing is found to harm now.
            self.truth.is_damaged |= is_harmed
        self._lose_power()
        return is_harmed

    def flip(self, harm: Harm) -> bool:
        """Do ``harm`` to the files of the node that runs."""
        is_harmed = harm(self.log, self.files)
        if is_harmed:
            self.truth.is_damaged = self.truth.is_damaged_live = True
        return is_harmed

    def _break_off(self, *, is_written: bool) -> None:
        """A group commit that is under way gets to some operation on the disk and no further."""
        batch, self.batch = self.batch, None
        if batch is None or self.log.committer.failure is not None:
            return
        least = sum(1 if isinstance(step, bytes) else START_OPERATIONS for step in batch.steps)
        least = 0 if self._is_written else least
        first = least if is_written else 0
        self.files.end_after(self.rng.randint(first, least + COMMIT_OPERATIONS_MAX))
        with suppress(ProcessEndedError, StorageError):
            self._finish(batch)

    def _pass(self, failpoint: str) -> None:
        """A process that dies within a group commit writes nothing more."""
        if self._reach(failpoint) and self._is_committing:
            raise ProcessEndedError(failpoint)
