"""The order in which the chunks of a batch are applied."""

from __future__ import annotations

import pytest

from raftstore.protocol.staged import INSERT, MERGE, UPSERT
from raftstore.state_machines.batches.staging import ChunkRef, _in_order


def ref(partition: int, number: int, mode: int) -> ChunkRef:
    """A chunk of a task."""
    return ChunkRef(1, 1, 1, 9, mode, b"d", "w", 1, partition, 7, number)


@pytest.mark.parametrize(
    ("modes", "order"),
    [
        ((INSERT, UPSERT, INSERT, UPSERT), [0, 1, 2, 3]),
        ((INSERT, INSERT, INSERT, INSERT), [0, 1, 2, 3]),
        ((MERGE, UPSERT, MERGE, UPSERT), [0, 1, 2, 3]),
        ((INSERT, MERGE, UPSERT, INSERT), [1, 2, 0, 3]),
    ],
)
def test_chunks_are_applied_task_by_task_and_inserts_last_where_others_merge(
    modes: tuple[int, ...], order: list[int]
) -> None:
    """S10: of two rows with one key the last one stays; a merge would keep columns of a row that
    an insert of the same batch wrote."""
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    refs = [ref(*place, mode) for place, mode in zip(places, modes, strict=True)]
    found = _in_order(refs[::-1])
    assert [refs.index(one) for one in found] == order
