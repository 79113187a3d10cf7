"""Objects opened by a call: ``x = await opens(...)`` and ``async with opens(...) as x`` alike."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

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
