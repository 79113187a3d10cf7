"""Commits of each writer of micro-batches, counted where they are decided.

Writers are named by programs and there may be any number of them, so labels are bounded: the newest
``WRITER_LABELS_MAX`` of a node have one of their own, those of jobs that write a single batch share
one, and what is forgotten goes on under another one. So sums over the writers of a table never fall
while its coordinator stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from raftstore.engine.batches.coordinated_table import CoordinatedTable
from raftstore.metrics import Sample
from raftstore.protocol.batches import OK, CommitBatch
from raftstore.protocol.requests import BatchRequest
from raftstore.state_machines.batches.txn_records import Verdict
from raftstore.state_machines.batches.txn_state import read_writer

WRITER_LABELS_MAX: Final = 64
"""Writers of one node with a label of their own."""
JOBS: Final = "(jobs)"
OTHERS: Final = "(others)"

_Writer = tuple[str, str]
"""A table and the writer's name."""


@dataclass(slots=True)
class _Written:
    batches: int = 0
    rows: int = 0
    size: int = 0
    at_ms: int = 0

    def add(self, other: _Written) -> None:
        """Count what another one counted, too."""
        self.batches += other.batches
        self.rows += other.rows
        self.size += other.size
        self.at_ms = max(self.at_ms, other.at_ms)


class WriterMeters:
    """Counted on the main loop, read when somebody asks for metrics."""

    def __init__(self) -> None:
        self._written: dict[_Writer, _Written] = {}
        """The writer that committed last is the last one."""

    def decided(
        self,
        table: CoordinatedTable,
        requests: Iterable[BatchRequest],
        verdict: Verdict,
        now_ms: int,
    ) -> None:
        """A record of the coordinator led to this verdict. A batch is counted once: the answer to
        one that was decided before has a lower number."""
        for asked in requests:
            if isinstance(asked, CommitBatch) and verdict.name == OK and verdict.n > table.counted:
                table.counted = verdict.n
                writer = read_writer(asked.writer, table.state)
                self.committed(
                    table.runner.name.rpartition("/")[0],
                    asked.writer,
                    verdict.rows,
                    sum(part.bytes for part in asked.manifest.parts),
                    now_ms,
                    one_shot=writer is not None and writer.one_shot,
                )

    def committed(
        self, table: str, writer: str, rows: int, size: int, now_ms: int, *, one_shot: bool
    ) -> None:
        """A batch of so many rows and staged bytes was decided."""
        key = (table, JOBS if one_shot else writer)
        written = self._written.pop(key, None) or _Written()
        written.add(_Written(1, rows, size, now_ms))
        self._written[key] = written
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        named = [key for key in self._written if key[1] not in (JOBS, OTHERS)]
        for key in named[: max(0, len(named) - WRITER_LABELS_MAX)]:
            others = self._written.setdefault((key[0], OTHERS), _Written())
            others.add(self._written.pop(key))

    def forget_tables(self, tables: Iterable[str]) -> None:
        """Only these tables exist."""
        exist = set(tables)
        for key in [key for key in self._written if key[0] not in exist]:
            del self._written[key]

    def samples(self, now_ms: int) -> Iterator[Sample]:
        """Totals, and how long ago the last batch was."""
        for (table, writer), written in self._written.items():
            labels = (("table", table), ("writer", writer))
            yield "raftstore_batches_committed_total", labels, float(written.batches)
            yield "raftstore_batch_rows_total", labels, float(written.rows)
            yield "raftstore_batch_bytes_total", labels, float(written.size)
            age_s = max(0, now_ms - written.at_ms) / 1000
            yield "raftstore_batch_last_commit_age_seconds", labels, age_s
