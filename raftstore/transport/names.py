"""Looks up host names; only the callers that need a name wait for it.

A name server that does not answer keeps getaddrinfo for many seconds, and a thread in it cannot be
ended. asyncio looks names up in its few executor threads and waits for them at the end: a handful
of such names would hold up all others, and the end of the process. So each name has a thread of its
own, a daemon, and never a second one while the first hangs.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from threading import Thread
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

P = TypeVar("P", bound=asyncio.BaseProtocol)


async def connect(new_protocol: Callable[[], P], host: str, port: int) -> P:
    """Connect to the first address of the host that takes us; OSError as the last one fails."""
    loop = asyncio.get_running_loop()
    *others, last = await lookups().addresses(host)
    for address in others:
        with suppress(OSError):
            return (await loop.create_connection(new_protocol, address, port))[1]
    return (await loop.create_connection(new_protocol, last, port))[1]


def lookups() -> NameLookups:
    """The lookups of the running loop."""
    return _OF_LOOPS.setdefault(asyncio.get_running_loop(), NameLookups())


class NameLookups:
    """Lookups of names for one loop, at most one thread for each name."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Future[list[str]]] = {}

    async def addresses(self, host: str) -> list[str]:
        """Addresses of the host, in the order of the system; raises OSError when there is none.

        The caller bounds the time; a look-up that hangs then goes on for the next caller.
        """
        if _is_address(host):
            return [host]
        found = self._under_way.get(host)
        if found is None:
            loop = asyncio.get_running_loop()
            found = self._under_way[host] = loop.create_future()
            found.add_done_callback(lambda done: self._ended(host, done))
            thread = Thread(target=_look_up, args=(loop, found, host), daemon=True)
            thread.name = f"raftstore-name-{host}"
            thread.start()
        return await asyncio.shield(found)

    def _ended(self, host: str, done: asyncio.Future[list[str]]) -> None:
        del self._under_way[host]
        if not done.cancelled():
            done.exception()  # nobody may be waiting any more


_OF_LOOPS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, NameLookups]] = WeakKeyDictionary()


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _look_up(loop: asyncio.AbstractEventLoop, found: asyncio.Future[list[str]], host: str) -> None:
    """On the thread."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))
    except (OSError, UnicodeError) as error:
        failure = error if isinstance(error, OSError) else OSError(f"{host!r} is no name: {error}")
        _tell(loop, found, lambda: found.set_exception(failure))
    else:
        _tell(loop, found, lambda: found.set_result(addresses))


def _tell(
    loop: asyncio.AbstractEventLoop, found: asyncio.Future[list[str]], end: Callable[[], None]
) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(lambda: None if found.done() else end())
