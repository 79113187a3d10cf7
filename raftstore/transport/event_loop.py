"""Event loops for raftstore's own threads: uvloop where it is installed, else asyncio's.

Both run the same code; with uvloop a node needs less processor time for each wake-up. A program
that uses the asyncio client chooses its loop itself.
"""

from __future__ import annotations

import asyncio
from typing import cast

from raftstore.errors import ConfigError


def new_event_loop(name: str) -> asyncio.AbstractEventLoop:
    """Return a new loop of this name of ``EVENT_LOOPS``; ConfigError: uvloop is not installed."""
    if name == "asyncio":
        return asyncio.new_event_loop()
    try:
        import uvloop
    except ImportError as error:
        if name == "auto":
            return asyncio.new_event_loop()
        raise ConfigError(
            f"event_loop is uvloop, which cannot be used here ({error}); install uvloop, or set "
            "event_loop to asyncio"
        ) from error
    return cast(asyncio.AbstractEventLoop, uvloop.new_event_loop())


def another_like(loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
    """Return a new loop of the same kind, for another thread of the same program."""
    is_uvloop = type(loop).__module__.partition(".")[0] == "uvloop"
    return new_event_loop("uvloop" if is_uvloop else "asyncio")
