"""A channel's table on its way from one node to another, as the engine uses it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain, islice
from struct import Struct
from typing import Final, NamedTuple, Protocol

from raftstore.types import ChannelId, History

DIGEST_BYTES: Final = 16
POSITION_KEY: Final = b"\x00"
"""The first key of a table: its applied position."""
Pair = tuple[bytes, bytes]
"""A key without the channel's id, and the stored value, seals included."""

_SIZES: Final = Struct(">II")
_pack_sizes: Final = _SIZES.pack
PAIRS_JOINED: Final = 512
"""Pairs that are joined and hashed in one call each; beside the hash other threads go on."""


class CopyPage(NamedTuple):
    """Some of what a table consists of, in key order, and whether there is more behind it."""

    pairs: list[Pair]
    more: bool


class ResumePoint(NamedTuple):
    """The first pairs of a table, in key order: another table with the same ones goes on there."""

    after: bytes
    """Key of the last of them."""
    pairs: int
    digest: bytes
    """Over all of them, as ``CopyDigest`` takes it."""


class _Joined(NamedTuple):
    """Some pairs as they are hashed, with their sizes in front of them."""

    content: bytes
    pairs: int
    bytes: int
    """Of keys and values."""


def _joined(pairs: Iterable[Pair]) -> Iterator[_Joined]:
    rest = iter(pairs)
    while some := tuple(islice(rest, PAIRS_JOINED)):
        yield _joined_columns(*zip(*some, strict=True))


def _joined_columns(keys: Sequence[bytes], values: Sequence[bytes]) -> _Joined:
    # Calls for all of them at once: a loop over the pairs takes twice as long.
    sizes = map(_pack_sizes, map(len, keys), map(len, values))
    content = b"".join(chain.from_iterable(zip(sizes, keys, values, strict=True)))
    return _Joined(content, len(keys), len(content) - len(keys) * _SIZES.size)


class CopyDigest:
    """Digest over all that a table consists of: rows, states, and its applied position.

    Of one position every replica's rows are the same; outcomes of earlier writes may differ, so
    this is of one snapshot and no content hash.
    """

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=DIGEST_BYTES)
        self.pairs = 0
        self.bytes = 0

    def add(self, pairs: Iterable[Pair]) -> None:
        """Take in what comes next in key order."""
        for joined in _joined(pairs):
            self._take(joined)

    def add_columns(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """The same, for pairs whose keys and values are apart."""
        for at in range(0, len(keys), PAIRS_JOINED):
            end = at + PAIRS_JOINED
            self._take(_joined_columns(keys[at:end], values[at:end]))

    def add_page(self, pairs: Iterable[Pair]) -> bytes:
        """The same, for what is a page; return the digest of the page alone."""
        page = CopyDigest()
        for joined in _joined(pairs):
            self._take(joined)
            page._take(joined)
        return page.digest()

    def _take(self, joined: _Joined) -> None:
        self._hash.update(joined.content)
        self.pairs += joined.pairs
        self.bytes += joined.bytes

    def digest(self) -> bytes:
        """Return DIGEST_BYTES bytes."""
        return self._hash.digest()


def digest_of_pairs(pairs: Iterable[Pair]) -> bytes:
    """The same of one page."""
    page = CopyDigest()
    page.add(pairs)
    return page.digest()


class TableCopy(Protocol):
    """A table that is being built aside from another replica's (S6.4); nothing reads it yet.

    What is written outlives the process, in part; ``verify`` and ``resume_point`` find what of it
    is there. Made on the node's thread; everything else is called on the threads of copies, one
    after the other (``TableStore.start_copy_step``). Raises StorageError: then the copy is of no
    use and is to be abandoned, and the channel's table is what it was.
    """

    @property
    def channel(self) -> ChannelId:
        """Id of the channel that gets the table."""

    @property
    def position(self) -> History:
        """The position of the table that is copied."""

    @property
    def in_files(self) -> bool:
        """Whether it is built from files (``ports.table_files.FilesCopy``), not from pairs."""

    def write(self, pairs: list[Pair]) -> None:
        """Take in what comes next in key order."""

    def resume_point(self) -> ResumePoint:
        """How far what was read back goes; the next pair to be written is the one behind."""

    def finish(self) -> None:
        """All pairs are written: make them durable."""

    def verify(self, bytes_max: int) -> bool:
        """Read on, about so many bytes; True when everything was read back. The next call begins
        anew."""

    def found(self) -> tuple[bytes, int, History]:
        """Digest, pairs and applied position as they were read back."""

    def complete(self) -> None:
        """The switch: from now on this is the channel's table after a crash.

        Raises PersistError: which of the two it is is unknown, and the node stops (S0.4).
        """

    def abandon(self) -> None:
        """Remove it, unless it is complete."""
