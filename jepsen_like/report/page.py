"""Put a result into one HTML page."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from jepsen_like.checker.verdict import Verdict
from jepsen_like.explain import explain
from jepsen_like.figures import SECOND_NS, origin, silences, totals
from jepsen_like.report.plots import overview_svg
from jepsen_like.result import Result
from jepsen_like.timeline import timeline_svg

REPORT_NAME = "report.html"


def write_report(result: Result, directory: Path) -> Path:
    """Write report.html beside the run; PicturesUnavailableError where an extra is missing."""
    path = directory / REPORT_NAME
    path.write_text(page(result), encoding="utf-8")
    return path


def page(result: Result) -> str:
    """The whole page as text; it refers to nothing but the history beside it."""
    # First, because it says what to install where something is missing.
    overview = overview_svg(result.history, result.faults)
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("jepsen_like.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("page.html.j2").render(
        result=result,
        overview=Markup(_inner_svg(overview)),  # noqa: S704 - made by matplotlib, which escapes
        explained=[
            (verdict, text, Markup(picture))  # noqa: S704 - the timeline escapes what it shows
            for verdict, text, picture in _explained(result)
        ],
        totals=totals(result.history),
        faults=_faults(result),
        ms=_milliseconds,
    )


def _explained(result: Result) -> list[tuple[Verdict, str, str]]:
    return [
        (verdict, explain(verdict), timeline_svg(verdict, result.history))
        for verdict in result.verdicts
        if not verdict.is_valid and verdict.evidence
    ]


def _faults(result: Result) -> list[dict[str, Any]]:
    start = origin(result.history)
    by_fault: dict[tuple[str, float], list[str]] = defaultdict(list)
    for silence in silences(result.history, result.faults):
        text = f"{silence.kind} {silence.gap_ms:.0f} ms"
        by_fault[silence.fault, silence.started_s].append(text)
    lines = []
    for fault in result.faults:
        began = (int(fault["started"]) - start) / SECOND_NS
        lines.append(
            {
                "kind": fault["kind"],
                "where": fault.get("where", ""),
                "at": began,
                "lasted": (int(fault["ended"]) - int(fault["started"])) / SECOND_NS,
                "fired": fault.get("fired", True),
                "reason": fault.get("reason", ""),
                "silences": ", ".join(by_fault[str(fault["kind"]), began]),
            }
        )
    return lines


def _milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"


def _inner_svg(document: str) -> str:
    """The svg element without the XML prologue, so that it can stand inside a page."""
    return document[document.index("<svg") :]
