"""Latency and throughput over time with the fault windows shaded, as SVG text."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jepsen_like.figures import (
    MILLISECOND_NS,
    SECOND_NS,
    by_kind,
    origin,
    per_second,
)
from jepsen_like.history import Operation
from raftstore.types import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS_MAX = 4_000
"""Latency points drawn of each kind; more would only make the file heavy."""
UNFINISHED_MS = 10_000.0
"""Where operations without an answer are drawn on the latency axis."""
COLOURS = ("#1b6ca8", "#2f9e44", "#e8a33d", "#8a4fbf", "#3aa6a6", "#b5651d", "#666666", "#c2255c")
OUTCOME_MARKERS = {Outcome.OK: ".", Outcome.NOT_APPLIED: "x", Outcome.UNKNOWN: "v"}


class PicturesUnavailableError(Exception):
    """matplotlib is not installed."""


def overview_svg(history: Sequence[Operation], faults: Sequence[Mapping[str, Any]]) -> str:
    """Throughput above, latency below, on one time axis.

    Raises PicturesUnavailableError where matplotlib is not installed.
    """
    try:
        import matplotlib as mpl

        mpl.use("svg")
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise PicturesUnavailableError(
            "the report's pictures need matplotlib; install it with: pip install 'raftstore[chaos]'"
        ) from error
    # The same run gives the same file, byte for byte.
    with mpl.rc_context({"svg.hashsalt": "raftstore", "font.size": 9}):
        figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(11, 6.5))
        try:
            start = origin(history)
            _draw_throughput(above, history, start)
            _draw_latency(below, history, start)
            for axes in (above, below):
                _shade(axes, faults, start)
            figure.tight_layout()
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "raftstore"})
        finally:
            plt.close(figure)
    return buffer.getvalue()


def _draw_throughput(axes: Axes, history: Sequence[Operation], start: int) -> None:
    end = max((o.returned or o.invoked for o in history), default=start)
    seconds = (end - start) // SECOND_NS + 1
    for colour, (kind, operations) in zip(COLOURS * 4, by_kind(history).items(), strict=False):
        counts = per_second(operations, start, seconds)
        axes.step(range(seconds), counts, where="post", label=kind, color=colour, linewidth=1.2)
    axes.set_ylabel("successes a second")
    axes.set_ylim(bottom=0)
    if history:
        axes.legend(loc="upper right", fontsize=8)


def _draw_latency(axes: Axes, history: Sequence[Operation], start: int) -> None:
    for colour, (_, operations) in zip(COLOURS * 4, by_kind(history).items(), strict=False):
        step = max(1, len(operations) // POINTS_MAX)
        for outcome, marker in OUTCOME_MARKERS.items():
            # Failures are few and matter: none of them is thinned out.
            chosen = [o for o in operations if o.outcome is outcome]
            chosen = chosen[::step] if outcome is Outcome.OK else chosen
            axes.plot(
                [(operation.invoked - start) / SECOND_NS for operation in chosen],
                [_latency_ms(operation) for operation in chosen],
                marker,
                color=colour,
                markersize=3 if outcome is Outcome.OK else 5,
                alpha=0.5 if outcome is Outcome.OK else 0.9,
            )
    axes.set_yscale("log")
    axes.set_ylabel("latency, ms (x refused, ▾ unknown)")
    axes.set_xlabel("seconds")


def _latency_ms(operation: Operation) -> float:
    if operation.returned is None:
        return UNFINISHED_MS
    return max(0.001, (operation.returned - operation.invoked) / MILLISECOND_NS)


def _shade(axes: Axes, faults: Sequence[Mapping[str, Any]], start: int) -> None:
    kinds = sorted({str(fault["kind"]) for fault in faults})
    colour_of = dict(zip(kinds, COLOURS[::-1] * (1 + len(kinds) // len(COLOURS)), strict=False))
    for fault in faults:
        if fault.get("fired", True):
            began = (int(fault["started"]) - start) / SECOND_NS
            ended = (int(fault["ended"]) - start) / SECOND_NS
            colour = colour_of[str(fault["kind"])]
            axes.axvspan(began, max(ended, began + 0.05), color=colour, alpha=0.13, linewidth=0)
