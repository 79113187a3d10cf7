"""A channel's table on its way to another node as the files that its database consists of.

Files never change once they are written, so that keeping them is keeping the state: the table goes
on meanwhile. Nobody looks at rows before they are at the other side.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from xxhash import xxh3_128

from raftstore.ports.table_copy import DIGEST_BYTES, TableCopy
from raftstore.types import History

HELD_MAX: Final = 8_192
"""Files that a receiver says it has already, at most; others are sent again."""
_NAME: Final = re.compile(r"[0-9]{6,20}\.ldb|MANIFEST-[0-9]{6,20}")


class TableFile(NamedTuple):
    """One of the files of a table."""

    name: str
    size: int
    """In bytes."""


class HeldFile(NamedTuple):
    """One that the receiver has, or its beginning."""

    name: str
    size: int
    """In bytes, as far as it is there."""
    digest: bytes
    """As ``digest_of_file`` takes it."""


class TableFiles(Protocol):
    """The files of one state of a table, kept until ``close`` whatever becomes of the table.

    Made by ``TableStore.start_files``; everything is called on a thread of copies.
    """

    @property
    def applied(self) -> History:
        """The position that is applied in them, or an earlier one: records go on being applied
        while they are taken, and the files themselves say up to which one."""

    @property
    def files(self) -> tuple[TableFile, ...]:
        """Their names and sizes, the one that names all others last."""

    def read(self, number: int, at: int, bytes_max: int) -> bytes:
        """Bytes of one of them from ``at`` on. Raises StorageError: the node stops (S0.4)."""

    def close(self) -> None:
        """Keep them no longer."""


class FilesCopy(TableCopy, Protocol):
    """A table that is being built aside from another replica's files; as ``TableCopy``, but for
    ``write`` and ``resume_point``. ``verify`` checks every row, since nobody else did, and
    ``found`` has no digest."""

    def look(self, bytes_max: int) -> bool:
        """Read on through what files an earlier attempt left, about so many bytes; True when that
        was all. It comes before ``held``."""

    def held(self) -> tuple[HeldFile, ...]:
        """The files that were found, at most HELD_MAX; no other is there any more."""

    def begin(self, position: History) -> None:
        """A sender has the table of this position, or of a later one."""

    def write_part(self, name: str, at: int, content: bytes, *, is_last: bool) -> None:
        """Take in the next part of a file; ``is_last``: it is whole."""

    def keep(self, name: str, *, is_whole: bool) -> None:
        """The sender has one of the held files just so; or one that begins so and goes on."""


def is_file_name(name: str) -> bool:
    """Whether a file of a table may have this name; a peer says it, and it must lead nowhere."""
    return _NAME.fullmatch(name) is not None


def digest_of_part(name: str, at: int, content: bytes, *, is_quick: bool) -> bytes:
    """Digest of a part of a file, DIGEST_BYTES bytes.

    It finds damage on the way, and nobody forges it: a peer that sends a wrong table may as well
    send its digest. So the quick one is as good, and takes a fiftieth of the other one's time.
    """
    place = b"%s/%d/" % (name.encode(), at)
    hasher = xxh3_128(place) if is_quick else blake2b(place, digest_size=DIGEST_BYTES)
    hasher.update(content)
    return hasher.digest()


class FileDigest:
    """Digest of a file whose parts come one after the other."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=DIGEST_BYTES)
        self.bytes = 0

    def add(self, content: bytes) -> None:
        """Take in the next part."""
        self._hash.update(content)
        self.bytes += len(content)

    def digest(self) -> bytes:
        """Return DIGEST_BYTES bytes."""
        return self._hash.digest()


class PartsDigest:
    """Digest over the digests of all parts of all files in their order: each byte is hashed once,
    and no part can be missing, twice or in another one's place."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=DIGEST_BYTES)
        self.parts = 0

    def add(self, digest: bytes) -> None:
        """Take in the digest of the next part."""
        self._hash.update(digest)
        self.parts += 1

    def digest(self) -> bytes:
        """Return DIGEST_BYTES bytes."""
        return self._hash.digest()
