"""Random queries over random rows, answered as a list in memory would answer them.

The bounds of a query are drawn without a look at the rows: a workload that asks only for what it
knows to be there is blind to rows that are missing at an edge, between two pages or two partitions.
Spark's filters have the same in ``tests/unit/spark/test_filters.py``.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftstore.aio import AsyncClient, AsyncTable
from tests.integration.client.fake_cluster import FakeCluster
from tests.integration.client.play import PATIENT, play

TYPES: dict[str, st.SearchStrategy[Any]] = {
    "long": st.integers(-3, 3) | st.sampled_from([-(2**63), 2**63 - 1]),
    "string": st.text("a\0\x7fä\U0001f600", max_size=3),
    "binary": st.binary(max_size=2) | st.sampled_from([b"\0\xff", b"\xff\xff"]),
    "boolean": st.booleans(),
    "double": st.sampled_from([float("-inf"), -1.5, 0.0, 0.1, 2.0, float("inf")]),
    "date": st.sampled_from([dt.date.min, dt.date(1969, 12, 31), dt.date.max]),
}
"""Few values of a column, so that rows share the first columns of their keys, and the edges."""
VALUES = ("x", "y")
LEVELS: list[dict[str, Any]] = [{}, {"level": "leader"}, {"level": "any"}, {"max_lag": 0}]
Row = dict[str, Any]


@dataclass
class Query:
    """A query: a range, a limit, columns."""

    bounds: dict[str, Any] = field(default_factory=dict)
    limit: int | None = None
    page: int = 3
    shape: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Case:
    """A table with rows, in what order nodes cut their pages, and what is asked of it."""

    kinds: dict[str, str]
    partitions: int
    page_rows: int
    rows: dict[tuple[Any, ...], Row]
    queries: list[Query]
    keys: list[tuple[Any, ...]]

    def found(self, query: Query) -> list[Row]:
        """Look at every row, as a list without any index does."""
        rows = [self.rows[key] for key in sorted(self.rows) if _is_within(key, query.bounds)]
        return [self.shaped(row, query.shape) for row in rows]

    def shaped(self, row: Row, shape: dict[str, Any]) -> Row:
        """Keep what of a row was asked for, in the order in which it was."""
        kept = {k: row[k] for k in self.kinds} if shape.get("keys_only") else row
        names = shape.get("columns")
        return dict(kept) if names is None else {name: kept[name] for name in names if name in kept}

    def schema_json(self) -> str:
        """Return the table's schema as Spark writes it."""
        kinds = {**self.kinds, "x": "long", "y": "string"}
        told = [{"name": n, "type": k, "nullable": True, "metadata": {}} for n, k in kinds.items()]
        return json.dumps({"type": "struct", "fields": told})


def _is_within(key: tuple[Any, ...], bounds: dict[str, Any]) -> bool:
    prefix = bounds.get("prefix")
    if isinstance(prefix, str | bytes):
        return bool(key[0].startswith(prefix))
    if prefix is not None:
        return key[: len(prefix)] == prefix
    start, stop = bounds.get("start"), bounds.get("stop")
    return (start is None or key[: len(start)] >= start) and (
        stop is None or key[: len(stop)] < stop
    )


@st.composite
def bounds_of(draw: st.DrawFn, kinds: dict[str, str]) -> dict[str, Any]:
    """Any range or prefix: of the first columns or of all, empty and upside down ones, too."""
    some = [
        st.tuples(*(TYPES[kind] for kind in list(kinds.values())[:count]))
        for count in range(1, len(kinds) + 1)
    ]
    part = st.one_of(some)
    first = next(iter(kinds.values()))
    ways: list[st.SearchStrategy[dict[str, Any]]] = [
        st.just({}),
        st.fixed_dictionaries({}, optional={"start": part, "stop": part}),
        st.fixed_dictionaries({"prefix": part}),
    ]
    if first in ("string", "binary"):
        ways.append(st.fixed_dictionaries({"prefix": TYPES[first]}))
    return draw(st.one_of(ways))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Keys of one to three columns of all types, and queries that know nothing of the rows."""
    drawn = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=3))
    kinds = {f"k{number}": kind for number, kind in enumerate(drawn)}
    key = st.tuples(*(TYPES[kind] for kind in drawn))
    values = st.tuples(st.integers(0, 9), st.text("ab", max_size=2))
    written = draw(st.dictionaries(key, values, max_size=25))
    rows = {k: dict(zip((*kinds, *VALUES), (*k, *v), strict=True)) for k, v in written.items()}
    columns = st.lists(st.sampled_from([*kinds, *VALUES]), min_size=1, unique=True)
    shape = st.fixed_dictionaries({}, optional={"columns": columns, "keys_only": st.booleans()})
    query = st.builds(
        Query,
        bounds_of(kinds),
        st.none() | st.integers(0, 30),
        st.integers(1, 9),
        shape,
        st.sampled_from(LEVELS),
    )
    return Case(
        kinds,
        draw(st.integers(1, 4)),
        draw(st.integers(1, 6)),
        rows,
        draw(st.lists(query, min_size=1, max_size=5)),
        draw(st.lists(key, max_size=12)) + draw(st.permutations(sorted(rows)))[:6],
    )


async def _paged(table: AsyncTable, query: Query) -> list[Row]:
    rows: list[Row] = []
    token: str | None = None
    asked = {**query.bounds, **query.shape, **query.options}
    while True:
        page = await table.page(limit=query.page, token=token, **asked)
        assert len(page.rows) <= query.page
        rows += page.rows
        token = page.next_token
        if token is None:
            return rows


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(cases())
def test_every_query_is_answered_as_by_a_look_at_each_row(case: Case) -> None:
    """Scans, pages, counts and lists of keys, at every level, whatever their bounds, limits and
    columns, and however nodes cut their pages."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        schema = case.schema_json()
        cluster.add_table("rows", case.partitions, key=tuple(case.kinds), schema_json=schema)
        table = client.table("rows")
        await table.put_many(case.rows.values())
        for node in cluster.nodes.values():
            node.page_rows_max = case.page_rows
        for query in case.queries:
            expected = case.found(query)
            asked = {**query.bounds, **query.shape, **query.options}
            found = [row async for row in table.scan(limit=query.limit, **asked)]
            assert found == expected[: query.limit], query
            assert [list(row) for row in found] == [list(r) for r in expected[: query.limit]]
            assert await _paged(table, query) == expected, query
            counted = await table.count(**query.bounds, **query.options)
            assert counted.rows == len(expected), query
            columns = {k: v for k, v in query.shape.items() if k == "columns"}
            many = await table.get_many(case.keys, **columns, **query.options)
            assert many == [
                case.shaped(case.rows[key], columns) if key in case.rows else None
                for key in case.keys
            ], query

    play(test, PATIENT)
