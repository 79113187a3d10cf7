"""A cluster that runs already and belongs to somebody else: clients only, no faults of ours."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from jepsen_like.target.base import Target


class OwnCluster(Target):
    """Every fault is unavailable: this kit strikes only processes that it started itself."""

    name = "cluster"

    def __init__(self, endpoints: Sequence[str], directory: Path) -> None:
        self.endpoints = list(endpoints)
        self.directory = directory
        self.table_prefix = f"chaos_{secrets.token_hex(4)}_"
        """Before the name of each table, so that no table of the owner's is ever touched."""

    def heal(self) -> None:
        """The owner heals."""
