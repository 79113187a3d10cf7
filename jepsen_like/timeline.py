"""A window of a history as a picture: one row per process, one bar per operation.

Self-contained SVG and HTML, escaped, no scripts: the details of a bar are its tooltip.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from jepsen_like.checker.verdict import Verdict
from jepsen_like.explain import describe, explain, milliseconds, window
from jepsen_like.history import Operation
from raftstore.types import Outcome

WIDTH = 1_100
LEFT = 90
ROW = 34
BAR = 22
OPERATIONS_MAX = 400
"""Bars drawn; the evidence is always among them."""
LABEL_WIDTH = 60
"""Narrower bars carry no text, only a tooltip."""
CHARACTER = 6.2
COLOURS = {Outcome.OK: "#cfe8cf", Outcome.NOT_APPLIED: "#e4e4e4", Outcome.UNKNOWN: "#f6e3b4"}


def timeline_svg(verdict: Verdict, history: Sequence[Operation]) -> str:
    """The verdict's evidence within what else was under way."""
    shown = _chosen(verdict, history)
    if not shown:
        return '<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10"></svg>'
    began = min(operation.invoked for operation in shown)
    ended = max(operation.returned or operation.invoked for operation in shown)
    scale = (WIDTH - LEFT - 20) / max(1, ended - began)
    processes = {name: row for row, name in enumerate(dict.fromkeys(o.process for o in shown))}
    height = ROW * len(processes) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="11">'
    ]
    for name, row in processes.items():
        y = row * ROW + 20
        parts.append(f'<text x="4" y="{y + 15}">{escape(name)}</text>')
        parts.append(
            f'<line x1="{LEFT}" y1="{y + ROW - 4}" x2="{WIDTH}" y2="{y + ROW - 4}" stroke="#eee"/>'
        )
    for operation in shown:
        y = processes[operation.process] * ROW + 20
        parts.append(_bar(operation, verdict, began, scale, y))
    parts.append(
        f'<text x="{LEFT}" y="12" fill="#666">0</text>'
        f'<text x="{WIDTH - 20}" y="12" fill="#666" text-anchor="end">'
        f"{milliseconds(ended, began)}</text></svg>"
    )
    return "".join(parts)


def timeline_html(verdict: Verdict, history: Sequence[Operation]) -> str:
    """A whole page: what is wrong in words, then the picture."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(verdict.checker)}: {verdict.validity.name}</title></head>"
        '<body style="font-family: sans-serif">'
        f"<h1>{escape(verdict.checker)}: {verdict.validity.name}</h1>"
        f"<pre>{escape(explain(verdict))}</pre>{timeline_svg(verdict, history)}"
        "<p>Green: done. Grey: certainly not done. Yellow, open to the right: nobody knows. "
        "Dark frame: needed for the verdict. Red: cannot be explained.</p></body></html>"
    )


def _chosen(verdict: Verdict, history: Sequence[Operation]) -> list[Operation]:
    evidence = list(verdict.evidence)
    if verdict.culprit is not None and verdict.culprit not in evidence:
        evidence.append(verdict.culprit)
    others = [o for o in window(history, evidence) if o not in evidence]
    shown = evidence + others[: max(0, OPERATIONS_MAX - len(evidence))]
    return sorted(shown, key=lambda operation: (operation.process, operation.invoked))


def _bar(operation: Operation, verdict: Verdict, began: int, scale: float, y: int) -> str:
    x = LEFT + max(0, operation.invoked - began) * scale
    is_open = operation.returned is None or operation.outcome is Outcome.UNKNOWN
    right = (
        WIDTH - 10 if operation.returned is None else LEFT + (operation.returned - began) * scale
    )
    width = max(3.0, right - x)
    if operation == verdict.culprit:
        fill, stroke = "#f4a3a3", "#b00020"
    elif operation in verdict.evidence:
        fill, stroke = COLOURS[operation.outcome], "#222"
    else:
        fill, stroke = COLOURS[operation.outcome], "#bbb"
    title = (
        f"{operation.process}: {describe(operation)}\n{operation.outcome.name}, "
        f"{milliseconds(operation.invoked, began)} to {milliseconds(operation.returned, began)}"
    )
    dash = ' stroke-dasharray="4 2"' if is_open else ""
    label = describe(operation)[: max(0, int(width / CHARACTER))] if width >= LABEL_WIDTH else ""
    return (
        f'<g><title>{escape(title)}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" '
        f'height="{BAR}" rx="3" fill="{fill}" stroke="{stroke}"{dash}/>'
        f'<text x="{x + 4:.1f}" y="{y + 15}">{escape(label)}</text></g>'
    )
