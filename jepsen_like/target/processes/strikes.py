"""Strikes on a cluster, and whether they hit: a fault that met nothing is no fault."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Strike:
    """One thing that was done, and how to see whether it really happened."""

    what: str
    nodes: tuple[str, ...]
    has_happened: Callable[[], bool] = lambda: True
    otherwise: str = ""


class Strikes:
    """Everything done since it was last asked for. ``frames``: what was done to frames so far."""

    def __init__(self, frames: Callable[[], dict[str, int]]) -> None:
        self._frames = frames
        self._strikes: list[Strike] = []

    def note(
        self,
        what: str,
        nodes: Collection[str],
        has_happened: Callable[[], bool] = lambda: True,
        otherwise: str = "",
    ) -> None:
        """Something was done to these nodes."""
        self._strikes.append(Strike(what, tuple(nodes), has_happened, otherwise))

    def note_frames(self, what: str, nodes: Collection[str], counted: tuple[str, ...]) -> None:
        """Note an order that has happened once a frame more is among those ``counted``."""
        before = self._frames()

        def is_more() -> bool:
            now = self._frames()
            return any(now[name] > before[name] for name in counted)

        self.note(what, nodes, is_more, "no frame met it")

    def take(self) -> list[Strike]:
        """Everything since the last call."""
        taken, self._strikes = self._strikes, []
        return taken
