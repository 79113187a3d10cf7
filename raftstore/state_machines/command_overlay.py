"""Rows and state between two commands of one record: what the first ones wrote, over what the
records before left. All of it is one atomic batch in the end, so nobody else sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raftstore.record_machine import RecordView, Row, StateReader
from raftstore.rows.sealing import unseal
from raftstore.types import Seq


class ViewOver:
    """record_machine.RecordView over another one."""

    def __init__(self, view: RecordView) -> None:
        self._view = view
        self.rows: dict[bytes, bytes | None] = {}
        """Sealed, as they go into the batch; None: removed."""
        self._seqs: dict[bytes, Seq] = {}
        self.state = StateOver(view.state)
        self.time_ms = view.time_ms

    def take(
        self,
        seq: Seq,
        writes: Iterable[tuple[bytes, bytes | None]],
        beside: Iterable[tuple[bytes, bytes | None]] = (),
    ) -> None:
        """A command at this seq was applied: the next one sees what it wrote."""
        for key, sealed in writes:
            self.rows[key] = sealed
            self._seqs[key] = seq
        self.state.written.update(beside)

    def row(self, key: bytes) -> Row | None:
        """One row."""
        if key not in self.rows:
            return self._view.row(key)
        sealed = self.rows[key]
        return None if sealed is None else Row(key, bytes(unseal(key, sealed)), self._seqs[key])

    def range(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` keys and values of rows of [start, stop), an empty ``stop`` is the
        end."""
        own = {
            key: None if sealed is None else bytes(unseal(key, sealed))
            for key, sealed in self.rows.items()
            if key >= start and (not stop or key < stop)
        }
        # Rows that were removed must not take the places of those behind them.
        return _laid_over(dict(self._view.range(start, stop, limit + len(own))), own, limit)


class StateOver:
    """record_machine.StateReader over another one."""

    def __init__(self, state: StateReader) -> None:
        self._state = state
        self.written: dict[bytes, bytes | None] = {}

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        return self.written[key] if key in self.written else self._state.get(key)

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` pairs of [start, stop) in the order of the keys."""
        own = {key: value for key, value in self.written.items() if start <= key < stop}
        return _laid_over(dict(self._state.scan(start, stop, limit + len(own))), own, limit)


def _laid_over(
    found: Mapping[bytes, bytes], own: Mapping[bytes, bytes | None], limit: int
) -> list[tuple[bytes, bytes]]:
    pairs = sorted({**found, **own}.items())
    return [(key, value) for key, value in pairs if value is not None][:limit]
