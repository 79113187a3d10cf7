"""Simulated tables that are copied in files: a model of LevelDB's, with the rows in some of them.

A file has some pairs, as they are stored and unchecked, and a name that goes with its content: what
did not change between two states is in the same files. One more names all of a state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from raftstore.config import KIB
from raftstore.crc import crc32
from raftstore.errors import CorruptRecordError, StorageError
from raftstore.ports.table_copy import Pair, ResumePoint
from raftstore.ports.table_files import FileDigest, HeldFile, TableFile, is_file_name
from raftstore.storage.tables.keys import MARKER, POSITION
from raftstore.storage.tables.pair_checks import check_pairs
from raftstore.testing.sim_contents import SimContents
from raftstore.testing.sim_copies import SimCopies, Staged
from raftstore.types import ChannelId, History

FILE_BYTES: Final = 4 * KIB
MANIFEST: Final = "MANIFEST-000001"
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode
_decode_names: Final = msgspec.msgpack.Decoder(list[str]).decode


class SimTableFiles:
    """ports.TableFiles: the content of each file."""

    def __init__(
        self, channel: ChannelId, contents: SimContents, applied: History, kept: dict[int, object]
    ) -> None:
        self.applied = applied
        self._kept = kept
        self._contents = _files_of(channel, contents)
        self.files = tuple(TableFile(name, len(self._contents[name])) for name in self._contents)
        kept[id(self)] = self

    def read(self, number: int, at: int, bytes_max: int) -> bytes:
        """Bytes of one of them."""
        assert id(self) in self._kept, "files were read that nobody keeps"
        return self._contents[self.files[number].name][at : at + bytes_max]

    def close(self) -> None:
        """Keep them no longer; doing it again does nothing."""
        self._kept.pop(id(self), None)


def _files_of(channel: ChannelId, contents: SimContents) -> dict[str, bytes]:
    files, some, size = dict[str, bytes](), list[Pair](), 0

    def end() -> None:
        content = _encode(some)
        files[f"{crc32(content):06d}.ldb"] = content
        some.clear()

    for key, value in contents.stored_pairs(channel):
        some.append((key, value))
        size += len(key) + len(value)
        if size >= FILE_BYTES:
            end()
            size = 0
    if some:
        end()
    files[MANIFEST] = _encode(list(files))
    return files


class SimFilesCopy:
    """ports.FilesCopy: contents that are no table of any channel until they are complete."""

    in_files = True

    def __init__(
        self,
        channel: ChannelId,
        staged: Staged,
        copies: SimCopies,
        reach: Callable[[str], bool],
    ) -> None:
        self.channel = channel
        self._staged = staged
        self._copies = copies
        self._reach = reach
        self._at = ""
        """The file that is written."""
        self._written: set[str] = set()
        self._contents = SimContents()
        self._pairs = 0

    @property
    def position(self) -> History:
        """The position of the table that is copied, as it was offered."""
        return self._staged.position

    def look(self, bytes_max: int) -> bool:
        """Everything at once."""
        del bytes_max
        for files in (self._staged.files, self._staged.parts):
            files.pop(MANIFEST, None)
        return True

    def held(self) -> tuple[HeldFile, ...]:
        """The files that are there, and what is there of others."""
        found = list[HeldFile]()
        for name, content in (self._staged.files | self._staged.parts).items():
            digest = FileDigest()
            digest.add(content)
            found.append(HeldFile(name, digest.bytes, digest.digest()))
        return tuple(found)

    def begin(self, position: History) -> None:
        """A sender has the table of this position, or of a later one."""
        self._staged.position = position
        self._copies.staged[self.channel] = self._staged
        self._written.clear()
        self._at = ""

    def write(self, pairs: list[Pair]) -> None:
        """Never: this copy has files and no pairs."""
        raise AssertionError(f"a table that is copied in files takes no {len(pairs)} pairs")

    def resume_point(self) -> ResumePoint:
        """No point: there are no pairs."""
        return ResumePoint(b"", 0, b"")

    def write_part(self, name: str, at: int, content: bytes, *, is_last: bool) -> None:
        """Take in the next part of a file; a whole one survives a power cut."""
        parts = self._staged.parts
        if at == 0:
            self._at, parts[name] = name, b""
        is_next = name == self._at and len(parts.get(name, b"")) == at
        if not is_file_name(name) or name in self._written or not is_next:
            raise CorruptRecordError(f"a copied table cannot have {name!r} from byte {at} now")
        if not self._reach("copy.before-write"):
            parts[name] += content
            if is_last:
                self._end_file(name)

    def keep(self, name: str, *, is_whole: bool) -> None:
        """The sender has one of the held files just so, or one that begins so."""
        files, parts = self._staged.files, self._staged.parts
        if name not in files | parts or name in self._written:
            raise CorruptRecordError(f"a copied table has no file {name!r} of an earlier attempt")
        if name not in parts:
            parts[name] = files.pop(name)
        self._at = name
        if is_whole:
            self._end_file(name)

    def _end_file(self, name: str) -> None:
        self._staged.files[name] = self._staged.parts.pop(name)
        self._written.add(name)
        self._reach("copy.after-file")

    def finish(self) -> None:
        """All files are there."""
        if not self._reach("copy.before-sync"):
            files = self._staged.files
            for name in [name for name in files if name not in self._written]:
                del files[name]
            if MANIFEST not in files or set(_decode_names(files[MANIFEST])) - set(files):
                raise CorruptRecordError("a copied table lacks files that its MANIFEST names")
            self._reach("copy.after-sync")

    def verify(self, bytes_max: int) -> bool:
        """Read and check everything."""
        del bytes_max
        self._contents, self._pairs = SimContents(), 0
        files = self._staged.files
        for name in _decode_names(files[MANIFEST]):
            pairs = _decode(files[name])
            keys, values = [key for key, _ in pairs], [value for _, value in pairs]
            if MARKER in keys:
                raise StorageError("the table was taken in the middle of a record")
            if not self._pairs and keys[0] != POSITION:
                raise CorruptRecordError("a copied table does not begin with its position")
            check_pairs(self.channel, keys, values)
            self._contents.take(self.channel, pairs)
            self._pairs += len(pairs)
        return True

    def found(self) -> tuple[bytes, int, History]:
        """Pairs and applied position as they were read."""
        return b"", self._pairs, self._contents.applied

    def complete(self) -> None:
        """The switch: from now on this is the channel's table after a crash."""
        if not self._reach("copy.before-switch"):
            self._copies.staged.pop(self.channel, None)
            self._copies.switched[self.channel] = self._contents
            self._reach("copy.after-switch")

    def abandon(self) -> None:
        """Remove it."""
        if self._copies.staged.get(self.channel) is self._staged:
            del self._copies.staged[self.channel]
