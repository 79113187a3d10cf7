"""Which part of the tree needs which: ``python -m tests.reference.picture`` counts.

A part of a room is a folder, or a module that lies beside the folders. An arrow leads from a part
to another that it imports, for type checkers alone too. A floor is a step of the longest chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from graphlib import TopologicalSorter
from typing import Final, NamedTuple

import click
import grimp

ROOMS: Final = ("engine", "client", "storage", "spark")
PACKAGES: Final = ("raftstore", *(f"raftstore.{room}" for room in ROOMS))


class Picture(NamedTuple):
    """Parts of a package, arrows between them, and the floors that they stand on."""

    parts: int
    arrows: int
    floors: int


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph("raftstore", exclude_type_checking_imports=False, cache_dir=None)


@cache
def needs_of(package: str) -> Mapping[str, tuple[str, ...]]:
    """For each part of a package the other parts that it imports, both in order."""
    graph, depth = _graph(), package.count(".") + 1
    found: dict[str, dict[str, None]] = {}
    for module in sorted(graph.modules):
        if not module.startswith(package + "."):
            continue
        part = module.split(".")[depth]
        needed = found.setdefault(part, {})
        for imported in graph.find_modules_directly_imported_by(module):
            if imported.startswith(package + ".") and imported.split(".")[depth] != part:
                needed[imported.split(".")[depth]] = None
    return {part: tuple(sorted(needed)) for part, needed in found.items()}


def picture_of(package: str) -> Picture:
    """Count; raises graphlib.CycleError if parts need each other in a circle."""
    needs = needs_of(package)
    floors: dict[str, int] = {}
    for part in TopologicalSorter(needs).static_order():
        floors[part] = 1 + max((floors[below] for below in needs[part]), default=0)
    return Picture(len(needs), sum(map(len, needs.values())), max(floors.values()))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Print the numbers of each package, and what each of its parts needs."""
    for package in PACKAGES:
        parts, arrows, floors = picture_of(package)
        click.echo(f"{package}: {parts} parts, {arrows} arrows, {floors} floors")
        for part, needed in sorted(needs_of(package).items()):
            click.echo(f"  {part}: {', '.join(needed) or 'none'}")


if __name__ == "__main__":
    main()
