"""Generations of a channel's database: a table copied from another replica replaces the one here.

``tables/<channel id in hex>`` is generation 0, ``tables/<channel id in hex>.g<N>`` is generation N.
A table that is being copied is built in the next generation, and nothing reads it before everything
in it is verified and durable. Then the file ``raftstore-complete`` is made in it: that one name is
the switch. The present generation is the highest that has this file, else generation 0; so a crash
leaves the former table or the copied one, and never half of one. All others are removed, at the
next start at the latest; but for the newest copy that is not complete, if the file
``raftstore-copying`` says of which position it is, or ``raftstore-copying-files`` that it is copied
file by file: the next life goes on with that one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from raftstore.errors import CorruptRecordError
from raftstore.storage.tables.keys import decode_applied, encode_applied
from raftstore.types import CHANNEL_ID_BYTES, EMPTY_HISTORY, ChannelId, History

TABLES_DIRECTORY: Final = "tables"
COMPLETE_NAME: Final = "raftstore-complete"
"""Its presence says that a copied table is whole; it holds the position that was copied."""
BEGUN_NAME: Final = "raftstore-copying"
"""What a table that is being copied will be: it holds the position of the one that is copied."""
BEGUN_FILES_NAME: Final = "raftstore-copying-files"
"""The same of one that is copied file by file; older versions do not know it, and remove it."""
_SUFFIX: Final = ".g"


class Generation(NamedTuple):
    """One of a channel's databases, by its number."""

    channel: ChannelId
    number: int

    @property
    def name(self) -> str:
        """The name of its directory."""
        name = self.channel.hex()
        return f"{name}{_SUFFIX}{self.number}" if self.number else name


def generation_of(path: Path) -> Generation | None:
    """The generation whose database has this path; None: it is no database."""
    name, _, number = path.name.partition(_SUFFIX)
    if len(name) != 2 * CHANNEL_ID_BYTES or name != name.lower():
        return None
    try:
        found = Generation(ChannelId(bytes.fromhex(name)), int(number or 0))
    except ValueError:
        return None
    return found if found.name == path.name else None


def generations_in(tables: Path) -> dict[ChannelId, list[int]]:
    """The generations of every channel below the directory of the tables, in ascending order.

    Raises OSError.
    """
    found: dict[ChannelId, list[int]] = {}
    for path in tables.iterdir():
        generation = generation_of(path)
        if generation is not None and path.is_dir():
            found.setdefault(generation.channel, []).append(generation.number)
    return {channel: sorted(found[channel]) for channel in sorted(found)}


def present(tables: Path, channel: ChannelId, numbers: list[int]) -> int | None:
    """Which of these generations is the channel's table; None: none of them is."""
    whole = [number for number in numbers if is_complete(tables, Generation(channel, number))]
    return max(whole, default=None)


def is_complete(tables: Path, generation: Generation) -> bool:
    """Whether it may be the channel's table: generation 0 is built by applying records alone."""
    return not generation.number or (tables / generation.name / COMPLETE_NAME).exists()


def path_of(directory: Path, channel: ChannelId) -> Path:
    """Return where the database of a channel is, or will be, in the data directory of a node."""
    tables = directory / TABLES_DIRECTORY
    zero = Generation(channel, 0)
    numbers = [
        found.number
        for path in tables.glob(f"{zero.name}{_SUFFIX}*")
        if (found := generation_of(path)) is not None
    ]
    number = present(tables, channel, numbers)
    return tables / Generation(channel, number or 0).name


def begun_position(path: Path, channel: ChannelId) -> History:
    """The position of the table that was being copied to ``path``; (0, 0): it cannot be known.

    Raises OSError.
    """
    return _position_in(path / BEGUN_NAME, channel)


def is_begun_in_files(path: Path) -> bool:
    """Whether a table was being copied to ``path`` file by file. Raises OSError."""
    return (path / BEGUN_FILES_NAME).exists()


def encode_complete(channel: ChannelId, copied: History) -> bytes:
    """Content of the file that says a copied table is whole."""
    return encode_applied(channel, copied)


def copied_position(path: Path, channel: ChannelId) -> History:
    """The position up to which the database at ``path`` was copied; (0, 0): it was built here.

    Raises OSError. A damaged file gives no position: the log is asked as of any other table.
    """
    return _position_in(path / COMPLETE_NAME, channel)


def _position_in(file: Path, channel: ChannelId) -> History:
    if not file.exists():
        return EMPTY_HISTORY
    try:
        return decode_applied(channel, file.read_bytes())
    except CorruptRecordError:
        return EMPTY_HISTORY
