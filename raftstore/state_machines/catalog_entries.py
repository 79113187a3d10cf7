"""Formats of the catalog's commands and rows, its entries of nodes, and how entries are read."""

from __future__ import annotations

from typing import Final, Protocol, TypeVar

import msgspec

from raftstore.errors import CorruptRecordError, NewerFormatError
from raftstore.types import NodeId, Small31

CATALOG_FORMAT: Final = 9
"""Newest version of commands and rows read here. A newer one stops the node: it could not keep the
catalog."""

FIRST_FORMAT: Final = 1
"""Of every command and row that nodes of the first version can read, too."""

EDITED_FORMAT: Final = 2
"""Of the command that edits a table and of the row that it writes: older nodes stop there, for they
would serve the table by rules that do not hold any more."""

SETTINGS_FORMAT: Final = 3
"""Of the commands that create or edit a table which has settings of its own, and of its row: older
nodes stop there, for they would not go by them."""

DURABILITY_FORMAT: Final = 4
"""Of the same where the table's durability is below ``fsync`` (S0.6): older nodes stop there, for
they could not be asked by a replica that may have lost records. Also of a table that is being
restored, which older nodes would serve before it is whole."""

MEMBERS_FORMAT: Final = 5
"""Of commands by which nodes join, drain and leave, and of their rows: older nodes stop there, for
they would take part with nodes that are retired."""

SWITCH_FORMAT: Final = 6
"""Of the command that turns even leaders on or off, and of its row: older nodes stop there, for
they would go by their settings."""

MACHINE_FORMAT: Final = 7
"""Of commands that create or edit a channel set, and of its row: older nodes stop there, for they
would serve it as a table."""

RESTORED_SET_FORMAT: Final = 8
"""Of the same where the state of a channel set came from a backup: older nodes stop there, for they
would give its machine seqs that others were given before."""

REPLACED_ONCE_FORMAT: Final = 9
"""Of the command by which a node takes the place of another: older nodes stop there, for they would
enter it also where that place was taken already."""

NODE_PREFIX: Final = b"n/"


class Entry(Protocol):
    """The value of a row."""

    @property
    def format(self) -> int:
        """The format that a reader must know."""


_Entry = TypeVar("_Entry", bound=Entry)


class NodeEntry(msgspec.Struct, frozen=True):
    """A registered node, where it can be reached (addresses may change, S0.7) and its level.

    Versions without levels skip the field, and write entries without it: those are at level 0.
    """

    node: NodeId
    endpoint: str
    format: Small31 = FIRST_FORMAT
    level: Small31 = 0
    failure_domain: str = ""
    """What fails together with it, such as a rack; empty: it did not say. Versions below level 6
    skip the field, and write entries without it."""


def node_key(name: str) -> bytes:
    """Key of the row of a node."""
    return NODE_PREFIX + name.encode()


def decode_entry(value: bytes, kind: type[_Entry]) -> _Entry:
    """Read the value of a row; CorruptRecordError or NewerFormatError where that is impossible."""
    try:
        entry = msgspec.msgpack.decode(value, type=kind)
    except ValueError as error:  # of msgspec, or of a text that is no UTF-8
        raise CorruptRecordError(
            f"{len(value)} bytes of the catalog are no {kind.__name__}: {error}; "
            "compare them with another replica"
        ) from error
    if entry.format > CATALOG_FORMAT:
        raise newer_format(entry.format)
    return entry


def newer_format(number: int) -> NewerFormatError:
    """The error about a format that this version does not know."""
    return NewerFormatError(
        f"catalog format {number} is newer than {CATALOG_FORMAT}; run a newer version on this node"
    )
