"""Tables and channel sets on their way in alike: a name in the catalog, and the mark with the token
of the restore."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from raftstore.backup.manifest import ChannelSetBackup, Manifest, TableBackup
from raftstore.client.blocking.client import Client
from raftstore.errors import (
    AttemptClosedError,
    BackupError,
    RaftstoreError,
    RejectedError,
    SchemaError,
    StoreTooOldError,
    TableExistsError,
    UnavailableError,
    WriterFencedError,
)
from raftstore.protocol.admin import TableInfo

LEVEL_LOOKS: Final = 50
LEVEL_PAUSE_S: Final = 0.2
"""So often, with pauses, a cluster is asked to create a table that some node could not read."""
BEGINNING_S: Final = 60.0
"""Creating a table, with a leader for each partition, may take so long."""

SourceT = TypeVar("SourceT", TableBackup, ChannelSetBackup)


def token_of(manifest: Manifest, source: TableBackup | ChannelSetBackup, name: str) -> str:
    """Return the token of the restore of one table or channel set: the same each time that it is
    repeated."""
    what = f"{manifest.id}/{manifest.checksum}/{source.uuid}/{name}"
    return hashlib.sha256(what.encode()).hexdigest()[:32]


class Target(ABC, Generic[SourceT]):
    """One table or channel set on its way in."""

    WHAT: str
    """What it is, in messages."""
    OPTION: str
    """Of the shell, by which it gets another name."""

    def __init__(self, client: Client, manifest: Manifest, source: SourceT, name: str) -> None:
        self._client = client
        self.source: SourceT = source
        self._token = token_of(manifest, source, name)
        self._backup = manifest.id
        self.name = name

    @abstractmethod
    def fill(self) -> Iterator[int]:
        """Write what is missing; yield how many rows of the backup each step was."""

    @abstractmethod
    def is_done(self) -> bool:
        """Whether an earlier call with the same arguments finished it."""

    @abstractmethod
    def create(self) -> None:
        """Create it as one that is being restored."""

    def check(self) -> bool:
        """Return whether an earlier call with the same arguments created it and did not finish;
        TableExistsError if that was a restore of something else."""
        found = self._found()
        if found is None or found.settings.restoring is None:
            return False
        self._refuse_other_token(found)
        return True

    def _refuse_other_token(self, found: TableInfo) -> None:
        if found.settings.restoring != self._token:
            raise TableExistsError(
                f"{self.WHAT} {self.name!r} is being restored from another backup; finish that "
                f"one, or drop the {self.WHAT} first"
            )

    def refuse_over_existing(self) -> None:
        """Raise TableExistsError over one that is whole: names of tables and channel sets are of
        one kind."""
        found = self._found()
        if found is not None and found.settings.restoring is None:
            if self._is_from_here():
                raise TableExistsError(
                    f"{self.WHAT} {self.name!r} exists: another restore of backup {self._backup} "
                    "made it and ended, so nothing is left to do; for a second copy give another "
                    f"name ({self.OPTION} {self.source.name}=NAME)"
                )
            what = "channel set" if found.machine else "table"
            raise TableExistsError(
                f"{what} {self.name!r} exists, and a backup is never restored over one; give "
                f"another name ({self.OPTION} {self.source.name}=NAME), or drop the {what} first"
            )

    def _is_from_here(self) -> bool:
        """Whether what has the name is what this restore makes, as far as can be found out."""
        try:
            return self.is_done()
        except RaftstoreError:
            return False

    @contextmanager
    def beside_others(self) -> Iterator[None]:
        """Say of what went wrong while something was made or written that another restore of the
        same did it, where that is so."""
        try:
            yield
        except (RejectedError, SchemaError, TableExistsError):
            self.refuse_over_existing()
            raise
        except (AttemptClosedError, WriterFencedError) as error:
            self.refuse_over_existing()
            raise UnavailableError(
                f"another restore of backup {self._backup} is filling {self.WHAT} {self.name!r}, "
                f"and went on with what this one was writing ({error}); nothing is lost: let it "
                "end, or repeat this one when no other is under way, and it goes on there"
            ) from error

    def _found(self) -> TableInfo | None:
        both = (*self._client.tables(), *self._client.channelsets())
        return {info.name: info for info in both}.get(self.name)

    def _created(self) -> TableInfo:
        """The table or channel set, if it is still the one that this restore fills."""
        info = self._found()
        self.refuse_over_existing()
        if info is None or info.settings.restoring is None:
            raise BackupError(
                f"{self.WHAT} {self.name!r} was dropped while it was restored; repeat it"
            )
        self._refuse_other_token(info)
        return info

    @staticmethod
    def _when_levels_are_known(create: Callable[[], object]) -> None:
        """Nodes that have just been started have not reported their level yet: they are waited
        for."""
        for left in reversed(range(LEVEL_LOOKS)):
            try:
                create()
            except StoreTooOldError:
                if not left:
                    raise
                time.sleep(LEVEL_PAUSE_S)
            else:
                return
