"""The thread behind the blocking client: results, errors, forks, and no thread after the end."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import threading
import warnings
from typing import cast

import pytest

from raftstore.client.asyncio_client import AsyncClient
from raftstore.client.background_loop import BackgroundLoop
from raftstore.client.blocking import Client
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
