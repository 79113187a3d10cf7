"""Orders to nodes to fail at places, by their fault control files (``raftstore.faults``)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from raftstore.faults import VARIABLE


class Orders:
    """The control files of all nodes, in the run's directory."""

    def __init__(
        self, directory: Path, nodes: Collection[str], environment: Mapping[str, str]
    ) -> None:
        self._directory = directory
        self._environment = environment
        self._orders: dict[str, dict[str, Any]] = {node: {} for node in nodes}
        self._number = 0

    def add(self, node: str) -> dict[str, str]:
        """One more node; the variables that it gets."""
        self._orders[node] = {}
        return self.environment[node]

    @property
    def environment(self) -> dict[str, dict[str, str]]:
        """The variables of each node: those of all, and the place of its orders."""
        return {
            node: {**self._environment, VARIABLE: str(self._file(node).absolute())}
            for node in self._orders
        }

    def beside(self, node: str, suffix: str) -> Path:
        """A file that belongs to the node's orders."""
        file = self._file(node)
        return file.with_name(file.name + suffix)

    def next_number(self) -> int:
        """The number of an order: the node writes it down when it strikes."""
        self._number += 1
        return self._number

    def change(self, node: str, **orders: Any) -> None:
        """These, beside those in force."""
        self.replace(node, {**self._orders[node], **orders})

    def replace(self, node: str, orders: dict[str, Any]) -> None:
        """These and no others."""
        self._orders[node] = orders
        aside = self.beside(node, ".new")
        aside.write_text(json.dumps(orders), encoding="utf-8")
        aside.rename(self._file(node))

    def fired(self, node: str) -> tuple[str, ...]:
        """Orders that struck: ``number what``."""
        path = self.beside(node, ".fired")
        return tuple(path.read_text().splitlines()) if path.exists() else ()

    def has_fired(self, node: str, number: int) -> bool:
        """This one struck."""
        return any(line.split()[0] == str(number) for line in self.fired(node))

    def _file(self, node: str) -> Path:
        return self._directory / f"{node}.faults"
