"""One client per process, shared by the tasks that a Python worker runs one after the other.

A client for each task would open a producer session in every channel it writes to, and sessions are
what nodes have to remember.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import raftstore
from raftstore.errors import RaftstoreError

_Key = tuple[int, str, int]
_clients: Final[dict[_Key, raftstore.Client]] = {}
_lock: Final = threading.Lock()


@contextmanager
def shared(servers: str, timeout_ms: int) -> Iterator[raftstore.Client]:
    """Give this process's client of a cluster; one that saw an error is closed, not kept.

    A client that a fork carried along is left alone: its threads live in the other process.
    """
    key = (os.getpid(), servers, timeout_ms)
    with _lock:
        client = _clients.pop(key, None)
    if client is None:
        client = raftstore.connect(servers, timeout=timeout_ms / 1000)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    with _lock:
        before, _clients[key] = _clients.get(key), client
    if before is not None:
        before.close()  # two threads had one each; one is enough


def close_all() -> None:
    """Close what this process keeps."""
    with _lock:
        mine = [key for key in _clients if key[0] == os.getpid()]
        clients = [_clients.pop(key) for key in mine]
    for client in clients:
        with suppress(RaftstoreError):
            client.close()


atexit.register(close_all)
