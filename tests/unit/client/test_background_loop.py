"""The thread behind the blocking client: results, errors, forks, and no thread after the end."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from raftstore.client.asyncio_client import AsyncClient
from raftstore.client.blocking.background_loop import BackgroundLoop
from raftstore.client.blocking.client import Client
from raftstore.errors import ConfigError, RequestError, UnavailableError
from raftstore.types import Outcome


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def never(cancelled: threading.Event) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        cancelled.set()


def test_calls_return_results_and_raise_errors() -> None:
    """A call behaves like the coroutine it runs."""
    loop = BackgroundLoop("test loop")
    assert loop.call(double(4)) == 8
    with pytest.raises(ZeroDivisionError):
        loop.call(_divide())
    loop.stop()


async def _divide() -> float:
    return 1 / 0


def test_stop_leaves_no_thread_and_cancels_what_runs() -> None:
    """After stop there is no thread, nothing runs, and calls are refused; one that was cancelled
    may have been carried out."""
    loop = BackgroundLoop("test loop to stop")
    cancelled = threading.Event()
    raised: list[BaseException] = []
    caller = threading.Thread(target=_note, args=(loop, cancelled, raised))
    caller.start()
    while not loop.call(_other_tasks()):
        pass
    loop.stop()
    loop.stop()
    caller.join()
    assert cancelled.is_set()
    assert [type(error) for error in raised] == [UnavailableError]
    assert [error.outcome for error in raised if isinstance(error, RequestError)] == [
        Outcome.UNKNOWN
    ]
    assert "test loop to stop" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(UnavailableError, match="connect again"):
        loop.call(double(1))


async def _other_tasks() -> bool:
    return len(asyncio.all_tasks()) > 1


def _note(loop: BackgroundLoop, cancelled: threading.Event, raised: list[BaseException]) -> None:
    try:
        loop.call(never(cancelled))
    except BaseException as error:  # noqa: BLE001 - whatever ends it
        raised.append(error)


class _WatchedLock:
    """A lock that says when somebody wants it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.owner: int | None = None
        self.wanted = threading.Event()

    def __enter__(self) -> None:
        self.wanted.set()
        self._lock.acquire()
        self.owner = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self.owner = None
        self._lock.release()


def test_call_that_meets_stop_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread calls while another stops: the call fails with that reason, and never waits for
    ever."""
    loop = BackgroundLoop("test loop")
    lock = _WatchedLock()
    monkeypatch.setattr(loop, "_lock", lock)
    submit = asyncio.run_coroutine_threadsafe
    closer = threading.Thread(target=loop.stop)

    def submit_late(*given: Any) -> Any:
        lock.wanted.clear()
        closer.start()
        assert lock.wanted.wait(60)
        if lock.owner != threading.get_ident():
            closer.join()  # nothing keeps it from stopping before the call is handed over
        return submit(*given)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", submit_late)
    with pytest.raises(UnavailableError) as raised:
        loop.call(never(threading.Event()))
    assert raised.value.outcome is Outcome.UNKNOWN
    closer.join()


def test_stop_ends_what_cancelled_calls_begin() -> None:
    """A task that the end of another one started does not keep the thread."""
    loop = BackgroundLoop("test loop")
    started, begun, cancelled = threading.Event(), [], threading.Event()

    async def stubborn() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            begun.append(asyncio.ensure_future(never(cancelled)))
            await asyncio.sleep(0)

    caller = threading.Thread(target=_end, args=(loop, stubborn()))
    caller.start()
    assert started.wait(60)
    loop.stop()
    caller.join()
    assert cancelled.is_set()


def _end(loop: BackgroundLoop, work: Coroutine[Any, Any, None]) -> None:
    with pytest.raises(UnavailableError):
        loop.call(work)


class _SlowToClose:
    """Stands for an ``AsyncClient``: the first to close it waits for the second, who is left."""

    def __init__(self) -> None:
        self._both = asyncio.Event()
        self._is_closing = False

    async def close(self) -> None:
        if self._is_closing:
            self._both.set()
            await asyncio.Event().wait()
        self._is_closing = True
        await self._both.wait()


def test_client_may_be_closed_by_two_threads() -> None:
    """Both return without an error, and the thread is gone then."""
    loop = BackgroundLoop("test loop")
    client = Client(cast(AsyncClient, _SlowToClose()), loop)
    raised: list[BaseException] = []
    closers = [threading.Thread(target=_close, args=(client, raised)) for _ in range(2)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join()
    assert raised == []
    assert loop.is_stopped


def _close(client: Client, raised: list[BaseException]) -> None:
    try:
        client.close()
    except BaseException as error:  # noqa: BLE001 - none is expected
        raised.append(error)


def test_call_from_its_own_loop_is_refused() -> None:
    """A blocking call inside the loop would wait for itself."""
    loop = BackgroundLoop("test loop")

    async def nested() -> None:
        loop.call(double(1))

    with pytest.raises(ConfigError, match="wait for itself"):
        loop.call(nested())
    loop.stop()


def test_call_in_a_forked_process_is_refused() -> None:
    """A fork copies the client without its thread: it says so instead of hanging."""
    loop = BackgroundLoop("test loop")
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            loop.call(double(1))
        except BaseException as error:  # noqa: BLE001 - the parent judges it
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        loop.stop()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    assert said.startswith("ConfigError: this client belongs to process")
    assert "call raftstore.connect there" in said
    loop.stop()


def test_client_refuses_to_be_pickled() -> None:
    """Spark would send a client to its workers; the error says what to send instead."""
    loop = BackgroundLoop("test loop")
    with pytest.raises(TypeError, match="send the addresses"):
        pickle.dumps(Client(cast(AsyncClient, None), loop))
    loop.stop()


@pytest.mark.slow
def test_library_imports_without_its_heavy_parties() -> None:
    """``import raftstore`` needs neither Spark nor the storage nor the election library."""
    code = (
        "import sys, raftstore; "
        "heavy = {'pyspark', 'plyvel', 'pysyncobj', 'pandas', 'pyarrow'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
