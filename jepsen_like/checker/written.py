"""Which values were written to which key, and when the earliest of those writes began."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jepsen_like.checker.facts import Row, attempts, token
from jepsen_like.history import Operation
from raftstore.types import Outcome


class Written:
    """Writes of rows outside of any batch, but for those that were answered as not applied."""

    def __init__(self, history: Iterable[Operation]) -> None:
        self._began: dict[Row, int] = {}
        for write, row in attempts(history):
            if write.outcome is not Outcome.NOT_APPLIED:
                self._began[row] = min(write.invoked, self._began.get(row, write.invoked))

    def may_show(self, read: Operation, key: Any, value: Any) -> bool:
        """Whether somebody had begun to write this value there when the read was answered."""
        began = self._began.get((token(key), token(value)))
        return began is not None and (read.returned is None or began <= read.returned)
