"""Splits rows into records: by partition, then into chunks; and adds up what became of them. Pure.

A key that comes twice is written once, with its last value: records of one channel travel side by
side, so an earlier value could otherwise arrive last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raftstore.client.position import Position
from raftstore.client.results import WriteAck, WriteSummary
from raftstore.client.settings import REQUEST_BYTES_MAX, REQUEST_ROWS_MAX
from raftstore.errors import PartialWriteError, RequestError
from raftstore.protocol.payload import Cell
from raftstore.rows.partitioner import partition_of
from raftstore.types import Outcome

Pair = tuple[bytes, Cell]
"""A key and its sealed value, or None for a delete."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Rows that become one record."""

    partition: int
    pairs: tuple[Pair, ...]


def split(pairs: Sequence[Pair], partitions: int) -> list[Chunk]:
    """Return the chunks of all partitions, interleaved so that channels work side by side."""
    cells: dict[int, dict[bytes, Cell]] = {}
    for key, cell in pairs:
        rows = cells.setdefault(partition_of(key, partitions), {})
        rows.pop(key, None)
        rows[key] = cell
    lanes = [list(_chunks(partition, rows.items())) for partition, rows in sorted(cells.items())]
    longest = max(map(len, lanes), default=0)
    return [lane[at] for at in range(longest) for lane in lanes if at < len(lane)]


def _chunks(partition: int, pairs: Iterable[Pair]) -> Iterable[Chunk]:
    chunk: list[Pair] = []
    size = 0
    for key, cell in pairs:
        row_bytes = len(key) + len(cell or b"")
        if chunk and (len(chunk) >= REQUEST_ROWS_MAX or size + row_bytes > REQUEST_BYTES_MAX):
            yield Chunk(partition, tuple(chunk))
            chunk, size = [], 0
        chunk.append((key, cell))
        size += row_bytes
    if chunk:
        yield Chunk(partition, tuple(chunk))


def summarise(acks: Sequence[WriteAck]) -> WriteSummary:
    """Add up records that were all acknowledged."""
    position = Position()
    for ack in acks:
        position = position.merge(ack.position)
    return WriteSummary(sum(ack.rows for ack in acks), tuple(acks), position)


def failure_of(
    keys: Sequence[bytes],
    outcomes: Sequence[tuple[Chunk, WriteAck | RequestError | None]],
) -> RequestError:
    """Return what to raise when not every record was acknowledged; None means not tried.

    If all of them ended alike, that error; else PartialWriteError with the caller's row numbers.
    """
    outcome_of: dict[bytes, Outcome] = {}
    reasons: dict[int, str] = {}
    first: RequestError | None = None
    guids: list[str] = []
    for chunk, result in outcomes:
        outcome = Outcome.NOT_APPLIED
        if isinstance(result, WriteAck):
            outcome = Outcome.OK
        elif result is not None:
            outcome = result.outcome
            first = first or result
            if outcome is Outcome.UNKNOWN and result.guid is not None:
                guids.append(result.guid)
            reasons.setdefault(chunk.partition, str(result))
        outcome_of.update((key, outcome) for key, _ in chunk.pairs)
    assert first is not None
    rows: dict[Outcome, list[int]] = {outcome: [] for outcome in Outcome}
    for number, key in enumerate(keys):
        rows[outcome_of[key]].append(number)
    if len(rows[first.outcome]) == len(keys):
        return first
    applied, refused, unknown = (
        rows[Outcome.OK],
        rows[Outcome.NOT_APPLIED],
        rows[Outcome.UNKNOWN],
    )
    why = "; ".join(f"partition {partition}: {text}" for partition, text in sorted(reasons.items()))
    return PartialWriteError(
        f"{len(applied)} of {len(keys)} rows were applied, {len(refused)} were not, "
        f"{len(unknown)} are unknown ({why})",
        applied=applied,
        not_applied=refused,
        unknown=unknown,
        guids=tuple(guids),
    )
