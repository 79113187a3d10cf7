"""Files of other programs that take the space of a node's disk, and give it back."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from jepsen_like.target.base import FaultUnavailableError

NAME: Final = "another-program's-file"


def take_all_but(disk: Path, left_bytes: int) -> int:
    """Take what is free of the file system, all but so many bytes; return the bytes taken.

    Blocks are reserved and not written, so it takes a moment whatever their number.
    """
    facts = os.statvfs(disk)
    wanted = facts.f_bavail * facts.f_frsize - left_bytes
    if wanted <= 0:
        raise FaultUnavailableError(f"{disk} has no more than {left_bytes} bytes free already")
    descriptor = os.open(disk / NAME, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
    try:
        while wanted > facts.f_frsize:
            try:
                os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, wanted)
            except OSError:
                # The file's own description needs some, too, and the node writes meanwhile.
                wanted //= 2
            facts = os.statvfs(disk)
            wanted = min(wanted, facts.f_bavail * facts.f_frsize - left_bytes)
        return os.fstat(descriptor).st_size
    except OSError as error:
        raise FaultUnavailableError(f"{disk} cannot be filled: {error}") from error
    finally:
        os.close(descriptor)


def give_back(disk: Path) -> None:
    """Remove the file; a file system that has lost its power forgets it by itself, or later."""
    with contextlib.suppress(OSError):
        (disk / NAME).unlink()
