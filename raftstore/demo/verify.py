"""The proof at the end: every replica holds exactly what Spark computes by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyarrow import parquet

from raftstore.aio import AsyncClient
from raftstore.demo.load import PUTS_TABLE
from raftstore.errors import RequestError

EXAMPLES_MAX: Final = 5
"""Differences shown per table and replica; all are counted."""
SETTLE_TIMEOUT_S: Final = 30.0
SETTLE_PAUSE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Comparison:
    """One table on one replica against what must be there."""

    table: str
    replica: str
    rows: int
    missing: int
    extra: int
    different: int
    examples: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """Nothing is missing, extra or different."""
        return not (self.missing or self.extra or self.different)


Rows = dict[tuple[Any, ...], dict[str, Any]]


def expected_rows(path: Path, key: tuple[str, ...]) -> Rows:
    """Spark's own batch result, by key."""
    table = parquet.read_table(path)
    return {tuple(row[name] for name in key): row for row in table.to_pylist()}


async def stored_rows(client: AsyncClient, table: str, replica: str, key: tuple[str, ...]) -> Rows:
    """Every row of the table as one replica holds it, read through the client."""
    found: Rows = {}
    async for row in client.table(table).scan(level="any", replica=replica, timeout=30.0):
        found[tuple(row[name] for name in key)] = row
    return found


def compare(table: str, replica: str, expected: Rows, stored: Rows) -> Comparison:
    """Count and show the differences; a missing column counts as null."""
    missing = [key for key in expected if key not in stored]
    extra = [key for key in stored if key not in expected]
    different = [
        key for key, row in expected.items() if key in stored and not _is_same(row, stored[key])
    ]
    examples = [f"missing {expected[key]}" for key in missing[:EXAMPLES_MAX]]
    examples += [f"extra {stored[key]}" for key in extra[:EXAMPLES_MAX]]
    examples += [f"{stored[key]} is not {expected[key]}" for key in different[:EXAMPLES_MAX]]
    return Comparison(
        table,
        replica,
        len(stored),
        len(missing),
        len(extra),
        len(different),
        tuple(examples[:EXAMPLES_MAX]),
    )


def _is_same(expected: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    names = {**expected, **stored}
    return all(expected.get(name) == stored.get(name) for name in names)


async def wait_until_settled(client: AsyncClient, tables: list[str], replicas: list[str]) -> bool:
    """True when every replica of every table has the same content at the same position."""
    deadline = asyncio.get_running_loop().time() + SETTLE_TIMEOUT_S
    while asyncio.get_running_loop().time() < deadline:
        try:
            if await replicas_are_equal(client, tables, replicas):
                return True
        except RequestError:
            pass  # a node is not back yet
        await asyncio.sleep(SETTLE_PAUSE_S)
    return False


async def replicas_are_equal(client: AsyncClient, tables: list[str], replicas: list[str]) -> bool:
    """Compare the content hashes of all replicas."""
    for table in tables:
        digests = [(await client.content_hash(table, replica)).content() for replica in replicas]
        if any(digest != digests[0] for digest in digests):
            return False
    return True


async def check_puts(
    client: AsyncClient,
    replica: str,
    acknowledged: Mapping[int, str],
    in_doubt: Mapping[int, str],
) -> Comparison:
    """Every acknowledged put is there; one in doubt may be, with its own text only."""
    stored = await stored_rows(client, PUTS_TABLE, replica, ("id",))
    expected: Rows = {(n,): {"id": n, "text": text} for n, text in acknowledged.items()}
    expected |= {(n,): {"id": n, "text": text} for n, text in in_doubt.items() if (n,) in stored}
    return compare(PUTS_TABLE, replica, expected, stored)
