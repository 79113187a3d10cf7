"""The rows of one table at any position, as the committed log gives them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Mapping


class RowHistory:
    """The rows of one table at any position."""

    def __init__(self) -> None:
        self._versions: dict[Hashable, tuple[int, list[int], list[Hashable]]] = {}

    def learn(self, partition: int, key: Hashable, seq: int, value: Hashable) -> None:
        """The next version of a row."""
        _, seqs, values = self._versions.setdefault(key, (partition, [], []))
        seqs.append(seq)
        values.append(value)

    def at(self, positions: Mapping[int, int], key: Hashable) -> Hashable:
        """The row's value at these positions; None when absent, or in no partition of them."""
        partition, seqs, values = self._versions.get(key, (0, [], []))
        found = bisect_right(seqs, positions.get(partition, 0))
        return values[found - 1] if found else None

    def seq_after(self, positions: Mapping[int, int], key: Hashable, value: Hashable) -> int | None:
        """The first seq beyond the positions that gave the row this value; None: there is none."""
        partition, seqs, values = self._versions.get(key, (0, [], []))
        for at in range(bisect_right(seqs, positions.get(partition, 0)), len(seqs)):
            if values[at] == value:
                return seqs[at]
        return None

    def all(self, positions: Mapping[int, int]) -> dict[Hashable, Hashable]:
        """Every row that is there."""
        rows = {key: self.at(positions, key) for key in self._versions}
        return {key: value for key, value in rows.items() if value is not None}
