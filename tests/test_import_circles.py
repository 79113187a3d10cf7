"""No modules of the library need each other in a circle, not even for type checkers alone.

Contracts between rooms are in setup.cfg; inside a room nothing else would notice a circle.
"""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

import grimp

PUBLIC = "raftstore"
"""Names everything that users import, and ``raftstore.spark``, which imports it, for type checkers
alone; running programs load that when they use it."""
NODE_OF_WORLDS = "raftstore.testing.sim_node"
WORLD_PARTS = ("raftstore.testing.sim_disk", "raftstore.testing.sim_transport")
"""Parts of a simulated node that name it for type checkers alone."""


def circle_of(arrows: Iterable[tuple[str, str]]) -> list[str]:
    """The modules of one circle, or none."""
    graph: dict[str, set[str]] = {}
    for importer, imported in arrows:
        graph.setdefault(importer, set()).add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """No modules import each other in a circle: they could not be read, tested or changed alone."""
    graph = grimp.build_graph("raftstore", exclude_type_checking_imports=False, cache_dir=None)
    arrows = {
        (importer, imported)
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
        if importer != PUBLIC and not (importer in WORLD_PARTS and imported == NODE_OF_WORLDS)
    }
    assert len(arrows) > 1_000, "the graph was not read"
    assert circle_of(arrows) == []


def test_a_circle_is_found_and_named() -> None:
    """Of three modules; a diamond is none."""
    assert circle_of([("a", "b"), ("b", "c"), ("c", "a")])[0] in "abc"
    assert circle_of([("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]) == []
