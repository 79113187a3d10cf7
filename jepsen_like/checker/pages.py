"""Pages: those of one scan are of one state, in key order, and together all of its rows."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

from jepsen_like.checker.facts import Findings, is_answered, positions_of, shown, table_of, token
from jepsen_like.checker.row_history import RowHistory
from jepsen_like.checker.verdict import Verdict
from jepsen_like.history import Operation
from jepsen_like.workload.base import Run

_KINDS: Final = ("torn", "moved", "unordered", "overlong")
_Row = tuple[Hashable, Hashable]


def check_pages(run: Run, table: str) -> Verdict:
    """Judge every scan of the table that was read page by page.

    Moved: a later page gives another position than the first. Unordered: a key comes twice, or
    before one that is smaller. Overlong: a page has more rows than asked for. Torn: the rows of
    the pages so far are not those of the position, up to the last key that was read.
    """
    return _Judge(run, table).verdict()


class _Judge:
    def __init__(self, run: Run, table: str) -> None:
        self._findings = Findings("pages", *_KINDS)
        self._rows = RowHistory()
        self._has_log = False
        for (name, partition), log in run.commits.items():
            for row in log if name == table else ():
                self._has_log = True
                if row.is_row and not row.is_conflict:
                    self._rows.learn(partition, token(row.key), row.seq, token(row.value))
        self._scans: dict[str, list[Operation]] = {}
        for operation in run.history:
            if operation.action == "page" and table_of(operation) == table:
                self._learn(operation)

    def _learn(self, page: Operation) -> None:
        name = f"{page.process} {page.details.get('scan')}"
        if page.details.get("is_first") or name not in self._scans:
            self._scans[name] = []
        if is_answered(page):
            self._scans[name].append(page)

    def verdict(self) -> Verdict:
        pages = later = 0
        for scan in self._scans.values():
            pages += len(scan)
            later += max(0, len(scan) - 1)
            self._judge(scan)
        figures = {"scans": len(self._scans), "pages": pages, "later_pages": later}
        doubt = None if later else "no scan went beyond its first page"
        sound = f"{pages} pages of {len(self._scans)} scans are each of one state"
        return self._findings.verdict(figures, sound, doubt)

    def _judge(self, scan: Sequence[Operation]) -> None:
        found: list[_Row] = []
        for page in scan:
            rows = _rows_of(page)
            limit = page.details.get("limit")
            if isinstance(limit, int) and len(rows) > limit:
                text = f"{page.process} asked for {limit} rows and was given {len(rows)}"
                self._findings.add("overlong", text, page)
            if positions_of(page) != positions_of(scan[0]):
                text = (
                    f"{page.process} was given a page of {shown(positions_of(page))} after one of "
                    f"{shown(positions_of(scan[0]))}"
                )
                self._findings.add("moved", text, page, scan[0])
            keys = [key for key, _ in (*found[-1:], *rows)]
            if any(not _is_before(first, second) for first, second in pairwise(keys)):
                text = f"{page.process} was given {shown(keys)}, which are not in order"
                self._findings.add("unordered", text, page, scan[0])
            found += rows
            if self._has_log:
                self._judge_rows(scan[0], page, found)

    def _judge_rows(self, first: Operation, page: Operation, found: Sequence[_Row]) -> None:
        """A page that is not full is the last; one that is says nothing of what comes behind it."""
        is_whole = len(_rows_of(page)) < (page.details.get("limit") or 0)
        expected = self._rows.all(positions_of(first))
        if found and not is_whole:
            last = found[-1][0]
            expected = {
                key: value
                for key, value in expected.items()
                if key == last or _is_before(key, last)
            }
        if dict(found) != expected:
            text = (
                f"{page.process} read {shown(dict(found))} by pages at "
                f"{shown(positions_of(first))}, committed there is {shown(expected)}"
            )
            self._findings.add("torn", text, page, first)


def _rows_of(page: Operation) -> list[_Row]:
    found: Iterable[Any] = page.result.items() if isinstance(page.result, dict) else ()
    return [(token(key), token(value)) for key, value in found]


def _is_before(first: Hashable, second: Hashable) -> bool:
    return isinstance(first, str) and isinstance(second, str) and first < second
