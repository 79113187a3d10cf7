"""The event loop of measured clients: uvloop for all stores alike, where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from raftstore.transport.event_loop import new_event_loop

Result = TypeVar("Result")


def run_client(main: Coroutine[Any, Any, Result], event_loop: str = "auto") -> Result:
    """``asyncio.run`` on the loop of this name; most of what a client costs is its loop."""
    with asyncio.Runner(loop_factory=partial(new_event_loop, event_loop)) as runner:
        return runner.run(main)
