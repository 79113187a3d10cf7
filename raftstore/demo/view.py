"""The view for a person: a live table on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from raftstore.client.results import ClusterStatus
from raftstore.demo.load import Load, Series

PLAIN_INTERVAL_S: Final = 3.0
MESSAGES_SHOWN: Final = 8


@dataclass(slots=True)
class Scene:
    """Everything the view shows; the demo fills it in."""

    started: float = field(default_factory=time.monotonic)
    rows_stored: int = 0
    rows_total: int = 0
    rows_per_s: float = 0.0
    batches: dict[str, int] = field(default_factory=dict)
    status: ClusterStatus | None = None
    load: Load | None = None
    messages: deque[str] = field(default_factory=lambda: deque(maxlen=MESSAGES_SHOWN))


class View:
    """Shows a scene; ``tell()`` adds a line to it that stays visible."""

    def __init__(self, scene: Scene, console: Console) -> None:
        self._scene = scene
        self._console = console
        self._is_live = console.is_terminal
        self._live: Live | None = None
        self._last_line = 0.0

    def __enter__(self) -> Self:
        if self._is_live:
            self._live = Live(
                get_renderable=self._render,
                console=self._console,
                refresh_per_second=4,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def tell(self, message: str) -> None:
        """Something happened."""
        line = f"{time.monotonic() - self._scene.started:6.1f} s  {message}"
        if self._live is None:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
        else:
            self._scene.messages.append(line)

    def tick(self) -> None:
        """Called often: prints a plain line every few seconds when not on a terminal."""
        now = time.monotonic()
        if self._live is not None or now - self._last_line < PLAIN_INTERVAL_S:
            return
        self._last_line = now
        self._console.print(self._plain_line(), highlight=False, markup=False, soft_wrap=True)

    def _plain_line(self) -> str:
        scene = self._scene
        parts = [
            f"{time.monotonic() - scene.started:6.1f} s ",
            f"rows {scene.rows_stored:,} of {scene.rows_total:,} ({scene.rows_per_s:,.0f}/s)",
        ]
        if scene.load is not None:
            parts += [_series_text(series) for series in _all_series(scene.load)]
        if scene.status is not None:
            up = sum(node.status is not None for node in scene.status.nodes)
            parts.append(f"nodes {up}/{len(scene.status.nodes)}")
            parts.append(f"lag {_largest_lag(scene.status)}")
        return " | ".join(parts)

    def _render(self) -> Group:
        scene = self._scene
        head = Text(
            f"{time.monotonic() - scene.started:.0f} s   rows {scene.rows_stored:,} of "
            f"{scene.rows_total:,}   {scene.rows_per_s:,.0f} rows/s   "
            + "   ".join(f"{name}: batch {batch}" for name, batch in scene.batches.items())
        )
        parts: list[Any] = [head]
        if scene.load is not None:
            parts.append(_load_table(scene.load))
        if scene.status is not None:
            parts.append(_channel_table(scene.status))
        parts.append(Panel("\n".join(scene.messages) or " ", title="what happened"))
        return Group(*parts)


def _all_series(load: Load) -> list[Series]:
    return [load.writes, load.bounded, load.linearizable]


def _series_text(series: Series) -> str:
    failed = series.failed + series.unknown
    return (
        f"{series.name} {series.ok:,} ok {failed} failed gap {series.longest_gap_s * 1000:.0f} ms"
    )


def _load_table(load: Load) -> Table:
    table = Table("clients", "ok", "failed", "unknown", "longest gap", expand=True)
    for series in _all_series(load):
        table.add_row(
            series.name,
            f"{series.ok:,}",
            str(series.failed),
            str(series.unknown),
            f"{series.longest_gap_s * 1000:.0f} ms",
        )
    return table


def channels_of(status: ClusterStatus) -> dict[str, dict[str, dict[str, Any]]]:
    """Channel name -> node name -> that node's own report on its replica."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for node in status.nodes:
        for channel in (node.status or {}).get("channels", ()):
            name = f"{channel['table']}/{channel['partition']}"
            found.setdefault(name, {})[node.name] = channel
    return found


def _channel_table(status: ClusterStatus) -> Table:
    names = [node.name for node in status.nodes]
    heads = [
        name if node.status is not None else f"{name} (down)"
        for name, node in zip(names, status.nodes, strict=True)
    ]
    table = Table("channel", "term", *heads, expand=True)
    for channel, replicas in sorted(channels_of(status).items()):
        term = max(replica["term"] for replica in replicas.values())
        table.add_row(channel, str(term), *(_replica_text(replicas.get(name)) for name in names))
    return table


def _replica_text(replica: dict[str, Any] | None) -> str:
    if replica is None:
        return "-"
    lag = "?" if replica["lag"] is None else replica["lag"]
    return f"{'LEADER' if replica['role'] == 'leader' else replica['mode']} lag {lag}"


def _largest_lag(status: ClusterStatus) -> str:
    lags = [
        replica["lag"]
        for replicas in channels_of(status).values()
        for replica in replicas.values()
        if replica["lag"] is not None
    ]
    return str(max(lags, default=0))


def leaders_by_node(status: ClusterStatus) -> dict[str, int]:
    """How many channels each node says it leads."""
    counts = {node.name: 0 for node in status.nodes}
    for replicas in channels_of(status).values():
        for node, replica in replicas.items():
            counts[node] += replica["role"] == "leader"
    return counts
