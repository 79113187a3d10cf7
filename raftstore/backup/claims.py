"""Creations and removals of backups that are under way in a place, so that neither takes files from
the other.

A creation goes on with files that are there already, and its manifest, which names them, is written
last; a removal takes away what no manifest names. So each makes a file of its own first and then
looks for those of the other kind: of two that begin together at least one sees the other and gives
up. A process that is killed leaves its file behind, and only an operator can know that it is dead.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from raftstore.backup.repository import Repository
from raftstore.errors import BackupError

Work = Literal["create", "rm"]
"""As the commands are called."""
FOLDER: Final = "claims"


class _Claim(msgspec.Struct, frozen=True):
    """Content of the file: of use to people only."""

    work: str
    begun: str
    host: str
    process: int


class Claim:
    """A creation's or removal's own file."""

    def __init__(self, place: Repository, work: Work) -> None:
        now = datetime.fromtimestamp(time.time_ns() // 10**9, UTC)
        self._place = place
        self.name: Final = f"{work}-{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
        self._path = f"{FOLDER}/{self.name}"
        claim = _Claim(work, now.isoformat(), socket.gethostname(), os.getpid())
        place.write(self._path, msgspec.json.encode(claim))

    def is_there(self) -> bool:
        """False: a removal with force has taken its process for dead."""
        return self._place.size(self._path) is not None

    def end(self) -> None:
        """Take it away: the work is done or given up."""
        self._place.remove(self._path)


@contextmanager
def creation(place: Repository) -> Iterator[Claim]:
    """For as long as a backup is created; BackupError while backups are removed."""
    claim = Claim(place, "create")
    try:
        for name in _names(place, "rm", claim):
            raise BackupError(
                f"{place.url}: backups are being removed ({_said(place, name)}); create one when "
                "that has ended, or, if that process is dead, run backup rm with --force first"
            )
        yield claim
    finally:
        claim.end()


@contextmanager
def removal(place: Repository, *, force: bool) -> Iterator[None]:
    """For as long as backups are removed; BackupError while one is created, or others are removed.

    ``force``: the processes of those are dead.
    """
    claim = Claim(place, "rm")
    try:
        others = [name for work in ("create", "rm") for name in _names(place, work, claim)]
        for name in others:
            if force:
                place.remove(f"{FOLDER}/{name}")
                continue
            raise BackupError(
                f"{place.url}: another command has not ended ({_said(place, name)}); remove "
                "backups when it has, or, if its process is dead, with --force"
            )
        yield
    finally:
        claim.end()


def _names(place: Repository, work: Work, own: Claim) -> list[str]:
    """Files of the others."""
    found = (name for name in place.names(FOLDER) if name.startswith(f"{work}-"))
    return sorted(name for name in found if name != own.name)


def _said(place: Repository, name: str) -> str:
    try:
        claim = msgspec.json.decode(place.read(f"{FOLDER}/{name}"), type=_Claim)
    except (msgspec.MsgspecError, BackupError):
        return name
    return f"backup {claim.work}, begun {claim.begun}, process {claim.process} on {claim.host}"
