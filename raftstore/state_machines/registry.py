"""The machines of channels by name: the only place at which nodes come to a concrete one.

A table, the catalog and a witness are entries of one list, and each name that is none of theirs is
that of a user's machine: ``package.module:Class``, or an entry point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from raftstore.record_machine import MachineRules, MachineSource, RecordMachine
from raftstore.state_machines.catalog_machine import CatalogMachine
from raftstore.state_machines.table import TableMachine
from raftstore.state_machines.user_machine import UserMachine
from raftstore.state_machines.witness import WitnessMachine

TABLE: Final = "raftstore.table"
CATALOG: Final = "raftstore.catalog"
WITNESS: Final = "raftstore.witness"

REGISTERED: Final[Mapping[str, Callable[[], RecordMachine]]] = {
    TABLE: TableMachine,
    CATALOG: CatalogMachine,
    WITNESS: WitnessMachine,
}


@dataclass(frozen=True, slots=True)
class MachinePlace:
    """The partition that a user's machine is made for, and the way to its code."""

    partition: int
    first_version: int
    rules: MachineRules
    load: Callable[[str], MachineSource]
    from_backup: bool = False
    """Its state comes from a backup: without one it is not empty but not whole."""


def make_machine(name: str, place: MachinePlace | None = None) -> RecordMachine:
    """The machine of this name for one replica. Loads no code yet: what a node lacks is said when
    the first command comes."""
    make = REGISTERED.get(name)
    if make is not None:
        return make()
    assert place is not None, f"{name!r} is none of {sorted(REGISTERED)}"
    return UserMachine(
        partial(place.load, name),
        partition=place.partition,
        first_version=place.first_version,
        rules=place.rules,
        from_backup=place.from_backup,
    )
