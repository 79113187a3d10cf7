"""A window of a history as a picture: one row per process, one bar per operation.

Self-contained SVG and HTML, escaped, no scripts: the details of a bar are its tooltip. The axis
shows the order of what began and ended, in equal steps: a write may be a minute before the read
that missed it, and neither would be seen to scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from jepsen_like.checker.verdict import Verdict
from jepsen_like.explain import (
    Clock,
    describe,
    evidence_of,
    explain,
    moment,
    outcome_of,
    window,
)
from jepsen_like.history import Operation
from raftstore.types import Outcome

WIDTH = 1_100
LEFT = 90
ROW = 34
BAR = 22
TOP = 30
OTHERS_MAX = 24
"""Bars drawn of operations that the verdict does not need."""
LABELS_MAX = 8
"""Moments written along the axis."""
CHARACTER = 6.2
COLOURS = {Outcome.OK: "#cfe8cf", Outcome.NOT_APPLIED: "#e4e4e4", Outcome.UNKNOWN: "#f6e3b4"}


class _Bar(NamedTuple):
    operation: Operation
    number: int
    """As in the table of the explanation; 0: not needed for the verdict."""
    is_culprit: bool


def timeline_svg(
    verdict: Verdict, history: Sequence[Operation], clock: Clock = Clock.NANOSECONDS
) -> str:
    """The verdict's evidence within what else was under way on the same key."""
    bars = _bars(verdict, history)
    if not bars:
        return '<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10"></svg>'
    moments = sorted(
        {bar.operation.invoked for bar in bars}
        | {bar.operation.returned for bar in bars if bar.operation.returned is not None}
    )
    step = (WIDTH - LEFT - 30) / max(1, len(moments))
    places = {at: LEFT + 10 + number * step for number, at in enumerate(moments)}
    rows = {name: row for row, name in enumerate(dict.fromkeys(b.operation.process for b in bars))}
    height = ROW * len(rows) + TOP + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="11">'
    ]
    parts += [
        f'<text x="{places[at]:.1f}" y="12" fill="#666">{moment(at, moments[0], clock)}</text>'
        f'<line x1="{places[at]:.1f}" y1="16" x2="{places[at]:.1f}" y2="{height}" stroke="#eee"/>'
        for at in moments[:: -(-len(moments) // LABELS_MAX)]
    ]
    for name, row in rows.items():
        y = row * ROW + TOP
        parts.append(f'<text x="4" y="{y + 15}">{escape(name)}</text>')
        parts.append(
            f'<line x1="{LEFT}" y1="{y + ROW - 6}" x2="{WIDTH}" y2="{y + ROW - 6}" stroke="#eee"/>'
        )
    parts += [_drawn(bar, places, rows[bar.operation.process] * ROW + TOP, clock) for bar in bars]
    return "".join([*parts, "</svg>"])


def timeline_html(
    verdict: Verdict, history: Sequence[Operation], clock: Clock = Clock.NANOSECONDS
) -> str:
    """A whole page: what is wrong in words, then the picture."""
    title = f"{escape(verdict.checker)}: {verdict.validity.name}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{title}</title></head>"
        '<body style="font-family: sans-serif">'
        f"<h1>{title}</h1><p>{escape(verdict.summary)}</p>"
        f"{timeline_svg(verdict, history, clock)}"
        f"<p>{_legend(verdict, history)}</p>"
        f"<pre>{escape(explain(verdict, clock))}</pre></body></html>\n"
    )


def _legend(verdict: Verdict, history: Sequence[Operation]) -> str:
    hidden = len(_others(verdict, history)) - OTHERS_MAX
    more = f" {hidden} more that the verdict does not need are not drawn." if hidden > 0 else ""
    return (
        "Red: cannot be explained. Dark frame with a number: needed for the verdict, as in the "
        "table. Green: done. Grey: certainly not done. Yellow with a broken frame: nobody knows "
        "whether it was done. From left to right in order of time, not to scale."
        f"{more}"
    )


def _bars(verdict: Verdict, history: Sequence[Operation]) -> list[_Bar]:
    shown = evidence_of(verdict)
    numbers = {id(operation): number for number, operation in enumerate(shown, 1)}
    others = _others(verdict, history)
    if verdict.culprit is not None:
        # Those nearest to the culprit; the sort is stable.
        centre = verdict.culprit.invoked
        others.sort(key=lambda operation: abs(operation.invoked - centre))
    return [
        _Bar(
            operation,
            numbers.get(id(operation), 0),
            id(operation) in numbers and operation == verdict.culprit,
        )
        for operation in sorted(
            shown + others[:OTHERS_MAX], key=lambda one: (one.process, one.invoked)
        )
    ]


def _others(verdict: Verdict, history: Sequence[Operation]) -> list[Operation]:
    """Operations that overlap the evidence, on its key if it has but one."""
    shown = evidence_of(verdict)
    # A process has one operation at a time; the history may hold copies of what is shown.
    needed = {(operation.process, operation.invoked) for operation in shown}
    first = shown[0].key if shown else None
    is_one_key = all(operation.key == first for operation in shown)
    return [
        operation
        for operation in window(history, shown)
        if (not is_one_key or operation.key == first)
        and (operation.process, operation.invoked) not in needed
    ]


def _drawn(bar: _Bar, places: dict[int, float], y: int, clock: Clock) -> str:
    operation = bar.operation
    start = min(places)
    x = places[operation.invoked]
    is_open = operation.returned is None or operation.outcome is Outcome.UNKNOWN
    right = WIDTH - 10 if operation.returned is None else places[operation.returned]
    width = max(3.0, right - x)
    fill, stroke, line = COLOURS[operation.outcome], "#bbb", 1
    if bar.is_culprit:
        fill, stroke, line = "#f4a3a3", "#b00020", 2
    elif bar.number:
        stroke, line = "#222", 2
    title = (
        f"{operation.process}: {describe(operation)}\n{outcome_of(operation)}, "
        f"{moment(operation.invoked, start, clock)} to {moment(operation.returned, start, clock)}"
    )
    dash = ' stroke-dasharray="4 2"' if is_open else ""
    number = f"#{bar.number} " if bar.number else ""
    # The evidence is always labelled, if need be beyond its bar.
    room = len(number) + len(describe(operation)) if bar.number else int(width / CHARACTER)
    label = f"{number}{describe(operation)}"[:room] if room > 3 else ""
    return (
        f'<g><title>{escape(title)}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" '
        f'height="{BAR}" rx="3" fill="{fill}" stroke="{stroke}" stroke-width="{line}"{dash}/>'
        f'<text x="{x + 4:.1f}" y="{y + 15}">{escape(label)}</text></g>'
    )
