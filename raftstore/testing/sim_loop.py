"""An asyncio event loop on the virtual time of a simulated world.

As much of a loop as the real client uses: callbacks, timers, futures and tasks. Everything runs
when the world's scheduler says so, in its order; there are no sockets and no threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, cast

from raftstore.testing.sim_clock import Scheduler

# ruff: noqa: SLF001 - to be the running loop, a loop has to say so where asyncio looks


class SchedulerLoop:
    """The event loop of one world, with the methods of a loop that the client uses."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    @property
    def _as_loop(self) -> asyncio.AbstractEventLoop:
        return cast("asyncio.AbstractEventLoop", self)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be the running loop of this thread."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self._as_loop)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    def time(self) -> float:
        """Virtual seconds."""
        return self._scheduler.now_ms / 1_000

    def get_debug(self) -> bool:
        """Never."""
        return False

    def is_closed(self) -> bool:
        """Never: it ends with its world."""
        return False

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """At this virtual time, behind what is due already."""
        handle = asyncio.Handle(callback, args, self._as_loop, context)
        self._scheduler.after(0.0, self._run, handle, callback, args, context)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """At that virtual time, or a moment later."""
        handle = asyncio.TimerHandle(when, callback, args, self._as_loop, context)
        # Never early: seconds as floats may fall short of the millisecond that was meant.
        self._scheduler.at(when * 1_000 + 0.001, self._run, handle, callback, args, context)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call it so many virtual seconds from now."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self._as_loop)

    def create_task(
        self, coroutine: Coroutine[Any, Any, None], *, name: str | None = None
    ) -> asyncio.Task[None]:
        """A task that runs on this loop."""
        task = asyncio.Task(coroutine, loop=self._as_loop, name=name)
        task._log_destroy_pending = False  # type: ignore[attr-defined] # worlds end in the middle
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Raise an exception that nobody awaits: it ends the world, instead of passing unseen."""
        error = context.get("exception")
        raise error if isinstance(error, Exception) else RuntimeError(str(context.get("message")))

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled handle is skipped when its time comes."""

    def _run(
        self,
        handle: asyncio.Handle,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> None:
        if handle.cancelled():
            return
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self._as_loop)
        try:
            if context is None:
                callback(*args)
            else:
                context.run(callback, *args)
        finally:
            asyncio._set_running_loop(before)
