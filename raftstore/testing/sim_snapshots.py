"""How simulated tables are read: snapshots of a channel, and what machines see of it."""

from __future__ import annotations

from raftstore.errors import CorruptRecordError
from raftstore.ports.scrub import TableStep
from raftstore.ports.table_copy import CopyPage
from raftstore.ports.tables import Counted, ExpiryPage, Page, SealedPage
from raftstore.rows.sealing import seal
from raftstore.state_machines.expiry import channel_time
from raftstore.testing.sim_contents import SimContents
from raftstore.types import ChannelId, History, Seq


class SimSnapshot:
    """ports.TableSnapshot: a copy."""

    def __init__(
        self, channel: ChannelId, contents: SimContents, open_ones: dict[int, SimSnapshot]
    ) -> None:
        self._channel = channel
        self._contents = contents
        self._open_ones = open_ones
        self.applied: History = contents.applied
        self.applied_seq: Seq = contents.applied.seq
        open_ones[id(self)] = self

    def page(self, start: bytes, stop: bytes, limit: int, bytes_max: int | None = None) -> Page:
        """Rows of [start, stop) in key order, bounded by rows and bytes; a first row always."""
        self._check()
        return self._contents.page(start, stop, limit, bytes_max)

    def sealed_page(self, start: bytes, stop: bytes, limit: int, bytes_max: int) -> SealedPage:
        """The same page, sealed."""
        page = self.page(start, stop, limit, bytes_max)
        return SealedPage([(r.key, seal(r.key, r.value), r.seq) for r in page.rows], page.more)

    def count(self, start: bytes, stop: bytes, limit: int) -> Counted:
        """Count rows of [start, stop), at most ``limit`` of them."""
        self._check()
        keys = self._contents.shown_between(start, stop)[:limit]
        is_full = len(keys) == limit
        return Counted(len(keys), keys[-1] + b"\0" if is_full else None)

    def has_lifetimes(self) -> bool:
        """Whether any row of the channel ever had an expiry."""
        return channel_time(self._contents.state.get) > 0

    def expiries(self, start: bytes, stop: bytes, limit: int) -> ExpiryPage:
        """When the rows of [start, stop) expire that have not; at most ``limit`` rows are read."""
        self._check()
        keys = self._contents.keys_between(start, stop)
        shown = set(self._contents.shown_between(start, stop))
        rows = ((key, self._contents.rows[key].expires_ms) for key in keys[:limit] if key in shown)
        found = [(key, expires_ms) for key, expires_ms in rows if expires_ms]
        return ExpiryPage(found, keys[limit] if len(keys) > limit else b"")

    def copy_page(self, after: bytes | None, bytes_max: int) -> CopyPage:
        """All that the table consists of behind the key ``after``, each checked."""
        self._check()
        found, left = list[tuple[bytes, bytes]](), bytes_max
        for key, value in self._contents.pairs(self._channel, after):
            left -= len(key) + len(value)
            if left < 0 and found:
                return CopyPage(found, more=True)
            found.append((key, value))
        return CopyPage(found, more=False)

    def verify(self, after: bytes | None, bytes_max: int) -> TableStep:
        """Read and check what is behind the key ``after``; damage is reported and stops nothing."""
        try:
            page = self.copy_page(after, bytes_max)
        except CorruptRecordError as error:
            return TableStep(None, 0, str(error))
        size = sum(len(key) + len(value) for key, value in page.pairs)
        return TableStep(page.pairs[-1][0] if page.more else None, size)

    def state_scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` pairs of the state beside the rows in [start, stop), in key order."""
        self._check()
        return self._contents.state_between(start, stop, limit)

    def close(self) -> None:
        """Release it after its last read; closing it again does nothing."""
        self._open_ones.pop(id(self), None)

    def _check(self) -> None:
        assert id(self) in self._open_ones, "a closed snapshot was read"


class SimState:
    """record_machine.StateReader of one channel."""

    def __init__(self, contents: SimContents) -> None:
        self._contents = contents

    def get(self, key: bytes) -> bytes | None:
        """One value."""
        return self._contents.state.get(key)

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` pairs of [start, stop) in key order."""
        return self._contents.state_between(start, stop, limit)


class SimView:
    """record_machine.RecordView of one channel."""

    time_ms = 0

    def __init__(self, contents: SimContents) -> None:
        self.state = SimState(contents)
        self.row = contents.get
        self._contents = contents

    def range(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` keys and values of [start, stop)."""
        rows = self._contents.page(start, stop, limit, None).rows
        return [(row.key, row.value) for row in rows]
