"""Chunks of one snapshot as they are sent: pairs in key order, or parts of files.

Where a chunk begins is known when the one before was read, so that each may be asked for again. A
digest over all goes with the last one. Read on a thread of copies, one after the other; what a
read found is taken in on the node's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, NamedTuple, TypeVar, cast

from raftstore.ports.table_copy import (
    POSITION_KEY,
    CopyDigest,
    CopyPage,
    digest_of_pairs,
)
from raftstore.ports.table_files import (
    HELD_MAX,
    FileDigest,
    HeldFile,
    PartsDigest,
    TableFiles,
    digest_of_part,
)
from raftstore.ports.tables import TableSnapshot
from raftstore.protocol.replica_snapshots import SnapshotChunk, TableFilePart
from raftstore.types import ChannelId, History

Start = TypeVar("Start")
"""A place in a snapshot: behind a key (None: at the beginning), or in a file."""


class Place(NamedTuple):
    """Where a part begins."""

    file: int
    at: int


class Made(NamedTuple):
    """A chunk that was read."""

    message: SnapshotChunk | TableFilePart
    size: int
    """Bytes of content."""
    following: bytes | Place | None
    """Where the next one begins; None: it is the last."""


class Chunks(Generic[Start]):
    """The places at which the chunks of one snapshot begin, as far as they were read."""

    def __init__(self, first: Start) -> None:
        self.starts = [first]
        """For each chunk that was read, and the next one, where it begins."""
        self.last = -1
        """Number of the last chunk, once it was read."""

    def is_new(self, number: int) -> bool:
        """Whether the chunk was not read before."""
        return number == len(self.starts) - 1 and self.last < 0

    def took(self, made: Made) -> None:
        """Remember where the next chunk begins; the node's thread."""
        number = made.message.number
        if not self.is_new(number):
            return
        if made.following is None:
            self.last = number
        else:
            self.starts.append(cast("Start", made.following))


class PairChunks(Chunks[bytes | None]):
    """Chunks of a state of a table in pairs."""

    files: Final = 0
    has_quick_digests: Final = False

    def __init__(self, channel: ChannelId, snapshot: TableSnapshot) -> None:
        super().__init__(None)
        self._channel = channel
        self.snapshot = snapshot
        self.digest = CopyDigest()
        """Over all chunks that were read."""
        self.is_without_rows = False
        """The receiver is a witness: the position is all that it gets."""

    @property
    def applied(self) -> History:
        """Position of the state."""
        return self.snapshot.applied

    def read(self, snapshot_id: int, number: int, bytes_max: int) -> Made:
        """Read a chunk whose start is known."""
        is_first = self.is_new(number)
        page = self.snapshot.copy_page(self.starts[number], bytes_max)
        if self.is_without_rows:
            page = CopyPage([pair for pair in page.pairs if pair[0] == POSITION_KEY], more=False)
        digest = self.digest.add_page(page.pairs) if is_first else digest_of_pairs(page.pairs)
        is_last = not page.more
        chunk = SnapshotChunk(
            self._channel,
            snapshot_id,
            number,
            tuple(page.pairs),
            digest,
            is_last,
            self.digest.pairs if is_last else 0,
            self.digest.digest() if is_last else b"",
        )
        size = sum(len(key) + len(value) for key, value in page.pairs)
        return Made(chunk, size, None if is_last else page.pairs[-1][0])


class FileChunks(Chunks[Place]):
    """Parts of the files of a table."""

    is_without_rows: Final = False

    def __init__(
        self,
        channel: ChannelId,
        files: TableFiles,
        held: Iterable[tuple[str, int, bytes]],
        *,
        has_quick_digests: bool,
    ) -> None:
        super().__init__(Place(0, 0))
        self._channel = channel
        self.has_quick_digests = has_quick_digests
        self.kept = files
        self.files = len(files.files)
        held_files = [HeldFile(*each) for each in held][:HELD_MAX]
        self._held = {each.name: each for each in held_files}
        """What the receiver has, by its name."""
        self._found: dict[int, bytes] = {}
        """Files whose beginning it has just so, or all of them, by their number, and its digest."""
        self._digest = PartsDigest()

    @property
    def applied(self) -> History:
        """Position of the state, or one before it."""
        return self.kept.applied

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.size for file in self.kept.files)

    def read(self, snapshot_id: int, number: int, bytes_max: int) -> Made:
        """Read a part whose start is known."""
        file, at = self.starts[number]
        name, size = self.kept.files[file]
        content, is_held = b"", not at and self._is_held(file, bytes_max)
        if is_held:
            at, digest = self._held[name].size, self._found[file]
        else:
            content = self.kept.read(file, at, bytes_max)
            digest = digest_of_part(name, at, content, is_quick=self.has_quick_digests)
        is_end = at + len(content) == size
        is_last = is_end and file == self.files - 1
        if self.is_new(number):
            self._digest.add(digest)
        part = TableFilePart(
            self._channel,
            snapshot_id,
            number,
            name,
            at,
            content,
            digest,
            is_end,
            is_held,
            is_last,
            self._digest.digest() if is_last else b"",
        )
        following = Place(file + 1, 0) if is_end else Place(file, at + len(content))
        return Made(part, len(content), None if is_last else following)

    def _is_held(self, number: int, bytes_max: int) -> bool:
        """Whether the receiver has this file, or its beginning, just so: it is read to say that."""
        name, size = self.kept.files[number]
        held = self._held.get(name)
        if held is None or not 0 < held.size <= size:
            return False
        if number not in self._found:
            digest = FileDigest()
            while digest.bytes < held.size:
                left = held.size - digest.bytes
                digest.add(self.kept.read(number, digest.bytes, min(left, bytes_max)))
            if digest.digest() != held.digest:
                del self._held[name]
                return False
            self._found[number] = held.digest
        return True
