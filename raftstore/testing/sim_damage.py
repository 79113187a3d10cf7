"""Harm done to the files of a node that is stopped: what a disk loses silently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from raftstore.storage.log.mark import MARK_NAME
from raftstore.testing.sim_files import SimFiles
from raftstore.testing.sim_log import SimLog
from raftstore.types import ChannelId, Seq

LOST_BYTES_MAX: Final = 3_000
"""Of the end of the log: about a dozen operations."""


class Holder(Protocol):
    """Another node."""

    @property
    def log(self) -> SimLog:
        """Its log."""


def lose_the_end(log: SimLog, files: SimFiles) -> bool:
    """The last file of the log is shorter than what was synced, or ends in other bytes."""
    rng = files.rng
    path = max(path for path in files.paths() if path.parent == log.directory)
    size = files.size_bytes(path)
    lost = rng.randint(1, min(size, LOST_BYTES_MAX))
    match rng.randrange(3):
        case 0:
            files.damage(path, size - lost, bytes(lost))
        case 1:
            files.damage(path, size - lost, rng.randbytes(lost))
        case _:
            files.cut(path, size - lost)
    return True


def flip_a_record(
    log: SimLog,
    files: SimFiles,
    others: Sequence[Holder],
    others_max: int,
    committed: Callable[[ChannelId], Seq],
    newest: int = 0,
    *,
    may_hit: Callable[[ChannelId], bool] | None = None,
) -> bool:
    """A bit of some record flips, if another node holds that record; or if it is not ``committed``
    and every other node is up and lacks nothing, so that they can go on without it.

    ``may_hit``: the log is open and learns nothing of it, and only such channels are damaged.

    The first one on a disk is anywhere in its entry, the others in a payload: what a damaged entry
    was can be proven for one of them, and of two that are not known a log proves too little.
    """
    found = log.draw_entry(files.rng, newest, covered=may_hit is not None)
    if found is None:
        return False
    channel, record, path, offset, length = found
    if may_hit is not None and not may_hit(channel):
        return False
    is_held = any(other.log.holds_durably(channel, record) for other in others)
    is_needed = record.base_seq <= committed(channel) or len(others) < others_max
    if not is_held and (is_needed or not all(other.log.is_whole(channel) for other in others)):
        return False
    payload = len(record.payload)
    if not files.is_scarred:
        files.is_scarred = True
        flip_a_bit(files, path, offset + files.rng.randrange(length))
    elif payload:
        flip_a_bit(files, path, offset + length - 1 - files.rng.randrange(payload))
    else:
        return False
    if may_hit is not None:
        log.note_flip(channel, record)
    return True


def flip_payload(log: SimLog, files: SimFiles, channel: ChannelId, at: int) -> bool:
    """A bit of the payload of a channel's n-th record flips."""
    path, offset, length = log.entry_at(channel, at)
    flip_a_bit(files, path, offset + length - 1)
    return True


def flip_the_mark(log: SimLog, files: SimFiles) -> bool:
    """A bit of the mark's first entry flips: the node no longer knows how it voted (S0.1)."""
    del log
    flip_a_bit(files, files.root / MARK_NAME, files.rng.randrange(20))
    return True


def flip_in_the_mark(log: SimLog, files: SimFiles) -> bool:
    """A bit of the mark flips anywhere; what the node writes there next may repair it."""
    del log
    path = files.root / MARK_NAME
    used = files.durable_bytes(path, 0, files.size_bytes(path)).rstrip(b"\0")
    flip_a_bit(files, path, files.rng.randrange(len(used)))
    return True


def flip_a_bit(files: SimFiles, path: Path, offset: int) -> None:
    """Damage one bit of a file."""
    (before,) = files.durable_bytes(path, offset, 1)
    files.damage(path, offset, bytes((before ^ 1 << files.rng.randrange(8),)))
