"""Levels: who may not be sent yet what newer versions write."""

from __future__ import annotations

import pytest

from raftstore.config import LEVEL
from raftstore.policy.levels import (
    LEVEL_OF_FORMAT,
    LEVEL_OF_KIND,
    LEVEL_OF_LIMITS,
    lowest_level,
    newest_limits,
    why_format_is_too_new,
    why_kind_is_too_new,
)
from raftstore.protocol.machines import LIMITS
from raftstore.state_machines.catalog_entries import CATALOG_FORMAT, FIRST_FORMAT
from raftstore.types import NodeId, RecordKind

N1, N2, N3 = NodeId("n1@00"), NodeId("n2@01"), NodeId("n3@02")
FIRST_KINDS = {
    RecordKind.TERM_START,
    RecordKind.ROWS,
    RecordKind.CONFIG,
    RecordKind.COMMAND,
    RecordKind.CONDITIONAL,
}
"""What the first version wrote and read."""


def test_lowest_level_is_that_of_the_oldest_node() -> None:
    """One node that could not read on is enough; who knows of no node knows of no level."""
    assert lowest_level([2, 1, 3]) == 1
    assert lowest_level([2, 0]) == 0
    assert lowest_level([]) == 0


def test_every_kind_and_format_since_the_first_version_has_a_level() -> None:
    """A kind without one would stop nodes of the first version; this version reads them all."""
    assert set(RecordKind) - set(LEVEL_OF_KIND) == FIRST_KINDS
    assert set(LEVEL_OF_FORMAT) == set(range(FIRST_FORMAT + 1, CATALOG_FORMAT + 1))
    for levels in (LEVEL_OF_KIND, LEVEL_OF_FORMAT):
        assert all(1 <= level <= LEVEL for level in levels.values())


def test_limits_of_commands_are_the_newest_that_every_node_knows() -> None:
    """A replica stops at limits that its version does not know."""
    assert set(LEVEL_OF_LIMITS) == set(range(1, LIMITS + 1))
    assert [newest_limits([LEVEL, level]) for level in (0, 8, 9, 10, 11)] == [0, 0, 1, 1, 2]
    assert newest_limits([]) == 0


@pytest.mark.parametrize("kind", sorted(LEVEL_OF_KIND))
def test_newer_kind_is_refused_until_every_node_reads_it(kind: RecordKind) -> None:
    """The text names the nodes that are behind, and no other."""
    needed = LEVEL_OF_KIND[kind]
    text = why_kind_is_too_new(kind, {N1: needed, N2: needed - 1, N3: 0})
    assert text is not None
    assert f"n2 is at level {needed - 1}, n3 is at level 0; upgrade these nodes" in text
    assert "n1" not in text
    assert ("isolation=row" in text) == (needed == 1 and kind is not RecordKind.BATCH_MARK)
    assert ("without a lifetime" in text) == (needed == 5)
    assert why_kind_is_too_new(kind, {}) is not None
    assert why_kind_is_too_new(kind, {N1: needed, N2: needed + 1}) is None


@pytest.mark.parametrize("kind", sorted(FIRST_KINDS))
def test_kind_of_the_first_version_is_never_refused(kind: RecordKind) -> None:
    """Writes go on while a cluster is upgraded."""
    assert why_kind_is_too_new(kind, {N1: 0}) is None
    assert why_kind_is_too_new(kind, {}) is None


def test_newer_command_is_refused_until_every_node_reads_it() -> None:
    """A node of an older version would stop at it."""
    text = why_format_is_too_new(2, {N1: 0, N2: 1})
    assert text is not None
    assert "catalog commands of format 2 need level 1 on every node, but n1 is at level 0" in text
    assert why_format_is_too_new(2, {N1: 1}) is None
    assert why_format_is_too_new(1, {N1: 0}) is None
