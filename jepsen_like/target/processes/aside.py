"""Files taken out of a store on purpose, kept until the fault is over, and put back.

A node whose mark, identity or whole directory is gone stays out under its id for good (S0.1): only
a change of members could replace it. The fault shows that it does; then the very bytes come back,
since nothing ran on them meanwhile, and the run goes on with a whole cluster.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

REFUSALS: Final = (
    "must not vote",
    "not known whose store this is",
    "is not known any more",
    "already belongs to cluster",
    "belongs to node",
)
"""Of these one is in the log of a node that does not go on with what it found."""
STARTED: Final = 'event="started"'
"""In the log of a node that goes on."""
KEPT: Final = ("lost+found",)


class Aside:
    """Files kept for one node. ``log_bytes``: how long its log was before it met the loss."""

    def __init__(self, store: Path, keep: Path, log: Path) -> None:
        self._store = store
        self._keep = keep
        self._log = log
        self._log_bytes = log.stat().st_size if log.exists() else 0
        self.is_whole = False
        """Everything was taken: whatever the node made of that, it is not its store."""
        keep.mkdir(parents=True)

    def take(self, name: str) -> None:
        """Keep a copy of one file; damage follows."""
        shutil.copy2(self._store / name, self._keep / name)

    def take_all(self) -> None:
        """Move everything away."""
        self.is_whole = True
        for path in list(self._store.iterdir()):
            if path.name not in KEPT:
                shutil.move(path, self._keep / path.name)

    def refusal(self) -> str | None:
        """The line in which the node refused the store; None if there is none."""
        lines = self._said()
        return next((each for each in lines if any(text in each for text in REFUSALS)), None)

    def went_on(self) -> bool:
        """The node runs without what was taken; one that is still starting has not said so."""
        return self.refusal() is None and any(STARTED in each for each in self._said())

    def put_back(self) -> None:
        """The node is down: what it made of the loss goes, what was kept comes back."""
        kept = [path.name for path in self._keep.iterdir()]
        for path in list(self._store.iterdir()):
            if path.name in kept or (self.is_whole and path.name not in KEPT):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name in kept:
            shutil.move(self._keep / name, self._store / name)
        self.drop()

    def drop(self) -> None:
        """Nothing will be put back."""
        shutil.rmtree(self._keep)

    def _said(self) -> list[str]:
        """Lines of the node since the loss."""
        with self._log.open("rb") as file:
            file.seek(self._log_bytes)
            return file.read().decode(errors="replace").splitlines()
