"""Names of things: the key by which a command or a query is sent."""

from __future__ import annotations

from typing import Final

import raftstore

NAME_BYTES_MAX: Final = 512


def name_of(context: raftstore.CommandContext | raftstore.QueryContext) -> bytes:
    """The key as a name; RejectedError where it is empty or too long to be a key of the state."""
    if not 0 < len(context.key) <= NAME_BYTES_MAX:
        message = f"a name of {len(context.key)} bytes; allowed are 1 to {NAME_BYTES_MAX}"
        raise raftstore.RejectedError(message)
    return context.key
