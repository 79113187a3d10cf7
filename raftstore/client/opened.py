"""Objects opened by a call: ``x = await opens(...)`` and ``async with opens(...) as x`` alike."""

from __future__ import annotations

from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from raftstore.errors import ConfigError

Parameters = ParamSpec("Parameters")
Opened = TypeVar("Opened", bound=AbstractAsyncContextManager[Any])


class Opening(Coroutine[Any, Any, Opened], AbstractAsyncContextManager[Opened]):
    """A call that has not begun: await it, or enter it.

    It is a coroutine in every respect, so it also goes into a task.
    """

    def __init__(self, call: Coroutine[Any, Any, Opened]) -> None:
        self._call = call
        self._opened: Opened | None = None

    def __await__(self) -> Generator[Any, Any, Opened]:
        return self._call.__await__()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        text = (
            f"{name!r} is of what this call opens, which was not awaited: write "
            "`client = await raftstore.aio.connect(…)`, or `async with` in the place of `await`"
        )
        raise AttributeError(text)

    def send(self, value: Any) -> Any:
        """As of a coroutine."""
        return self._call.send(value)

    def throw(self, *error: Any) -> Any:
        """As of a coroutine."""
        return self._call.throw(*error)

    def close(self) -> None:
        """As of a coroutine."""
        self._call.close()

    async def __aenter__(self) -> Opened:
        self._opened = await self._call
        entered: Opened = await self._opened.__aenter__()
        return entered

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._opened is not None
        await self._opened.__aexit__(kind, error, trace)


def opening(
    begin: Callable[Parameters, Coroutine[Any, Any, Opened]],
) -> Callable[Parameters, Opening[Opened]]:
    """Let the result of a coroutine function be entered without awaiting it first."""

    @wraps(begin)
    def call(*args: Parameters.args, **options: Parameters.kwargs) -> Opening[Opened]:
        return Opening(begin(*args, **options))

    return call


def check_loop(loop: AbstractEventLoop) -> None:
    """ConfigError unless this is the loop in which a client was made and has its connections."""
    try:
        here = get_running_loop()
    except RuntimeError:
        here = None
    if here is not loop:
        state = "was closed" if loop.is_closed() else "is another one"
        text = (
            f"this client belongs to an event loop that {state}; call raftstore.aio.connect in the "
            "loop that uses it, one client for each, or take raftstore.connect, which has its own"
        )
        raise ConfigError(text)
