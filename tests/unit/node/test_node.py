"""Faults that end a node's process, and those that must not: sockets fail every day, promises never
(S0.4).
"""

from __future__ import annotations

import asyncio
import errno
import json
import time
from pathlib import Path
from threading import Event
from typing import Any, NoReturn, cast

import pytest

from raftstore.config import NodeSettings
from raftstore.errors import ConfigError, StorageError
from raftstore.node.ending import EXIT_STORAGE, LAST_PANIC_NAME
from raftstore.node.process import NodeProcess
from raftstore.storage.log.segment_log import SegmentLog
from raftstore.storage.store import Store, open_store
from raftstore.transport.endpoints import format_endpoint, open_listener
from raftstore.transport.peers import PeerNetwork
from tests.storage_helpers import SMALL

UNREACHABLE = OSError(errno.ENETUNREACH, "network is unreachable")
NO_SPACE = OSError(errno.ENOSPC, "no space left on device")


class EndedError(BaseException):
    """Stands for the end of the process."""


@pytest.fixture(autouse=True)
def exit_codes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Exit codes of the processes that ended."""
    codes: list[int] = []

    def end(code: int) -> NoReturn:
        codes.append(code)
        raise EndedError

    monkeypatch.setattr("raftstore.node.ending.os._exit", end)
    return codes


def tell(directory: Path, context: dict[str, Any]) -> None:
    """Have the loop of a node report an exception that nobody caught."""

    async def run() -> None:
        node = NodeProcess(NodeSettings(name="n1", data_dir=str(directory)))
        node._on_loop_exception(asyncio.get_running_loop(), {"message": "it happened"} | context)

    asyncio.run(run())


def last_panic(directory: Path) -> str:
    """Why the node says it ended."""
    reason = json.loads((directory / LAST_PANIC_NAME).read_text())["reason"]
    assert isinstance(reason, str)
    return reason


@pytest.mark.parametrize(
    "context",
    [
        {"exception": ConnectionResetError("reset by peer")},
        {"exception": BrokenPipeError("broken pipe"), "protocol": None},
        {"exception": UNREACHABLE, "transport": None},
        {"exception": OSError(errno.EMFILE, "too many open files"), "socket": None},
    ],
)
def test_trouble_of_a_socket_does_not_end_the_node(
    tmp_path: Path, exit_codes: list[int], context: dict[str, Any]
) -> None:
    """A peer that resets, a network out of reach and a lack of sockets pass by."""
    tell(tmp_path, context)
    assert exit_codes == []
    assert not (tmp_path / LAST_PANIC_NAME).exists()


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        ({"exception": AssertionError("no holes")}, "AssertionError('no holes')"),
        ({"exception": ValueError("bad"), "transport": None}, "ValueError('bad')"),
        ({"exception": NO_SPACE}, "no space left on device"),
        ({}, "it happened: None"),
    ],
)
def test_exception_that_nobody_caught_ends_the_node(
    tmp_path: Path, exit_codes: list[int], context: dict[str, Any], reason: str
) -> None:
    """S0.4: an assertion or an error of a file is a broken promise; going on could break more."""
    with pytest.raises(EndedError):
        tell(tmp_path, context)
    assert exit_codes == [EXIT_STORAGE]
    assert reason in last_panic(tmp_path)


def test_error_of_the_store_ends_the_node(tmp_path: Path, exit_codes: list[int]) -> None:
    """S0.4: a failed write of the log's or the tables' thread is reported, and nothing follows it.

    Shows NATS-057.
    """

    async def run() -> None:
        node = NodeProcess(NodeSettings(name="n1", data_dir=str(tmp_path)))
        node._on_storage_error(StorageError("fsync failed"))

    with pytest.raises(EndedError):
        asyncio.run(run())
    assert exit_codes == [EXIT_STORAGE]
    assert last_panic(tmp_path) == "fsync failed"


def test_panic_whose_note_hangs_ends_the_node_all_the_same(
    tmp_path: Path, exit_codes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0.4: the disk that hangs takes no note either; nobody waits for it for long."""
    monkeypatch.setattr("raftstore.node.ending.NOTE_S", 0.02)
    healed = Event()
    monkeypatch.setattr(Path, "write_text", lambda *_args, **_named: healed.wait(3.0))

    async def run() -> None:
        node = NodeProcess(NodeSettings(name="n1", data_dir=str(tmp_path)))
        node._on_storage_error(StorageError("fdatasync hangs"))

    begun = time.monotonic()
    try:
        with pytest.raises(EndedError):
            asyncio.run(run())
    finally:
        healed.set()
    assert exit_codes == [EXIT_STORAGE]
    assert time.monotonic() - begun < 2.5


class SilentNetwork:
    """A network that has nothing to close."""

    async def close(self) -> None:
        """Nothing is open."""


def close_node(directory: Path) -> list[bool]:
    """Stop a node; return how its store was closed: whether it was called clean."""
    store = open_store(directory, "n1", SMALL, free_bytes_min=0)
    closed: list[bool] = []
    original = Store.close

    async def run() -> None:
        node = NodeProcess(NodeSettings(name="n1", data_dir=str(directory)))
        await node._close(store, cast(PeerNetwork, SilentNetwork()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "close", lambda _, *, is_clean: closed.append(is_clean))
        try:
            asyncio.run(run())
        except EndedError:
            pass
        finally:
            original(store, is_clean=False)
    return closed


def test_stop_closes_the_store_cleanly_after_the_last_flush(
    tmp_path: Path, exit_codes: list[int]
) -> None:
    """Everything is on the disk, so the next start need not ask for anything."""
    assert close_node(tmp_path) == [True]
    assert exit_codes == []


def test_stop_whose_last_flush_fails_ends_without_a_clean_close(
    tmp_path: Path, exit_codes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0.4: a store that may lack its end must not be called clean."""

    def fail(_: SegmentLog) -> None:
        raise StorageError("the log cannot be written: no space left on device")

    monkeypatch.setattr(SegmentLog, "flush", fail)
    assert close_node(tmp_path) == []
    assert exit_codes == [EXIT_STORAGE]
    assert "no space left" in last_panic(tmp_path)


def test_node_whose_port_is_taken_touches_nothing(tmp_path: Path) -> None:
    """A first start that is refused leaves no store that belongs to nobody."""

    async def run(endpoint: str) -> None:
        members = (("n1", endpoint),)
        await NodeProcess(
            NodeSettings(
                name="n1", data_dir=str(tmp_path / "n1"), listen=endpoint, initial_cluster=members
            )
        ).run()

    with open_listener("127.0.0.1:0", insecure=False) as other:
        endpoint = format_endpoint(*other.getsockname())
        with pytest.raises(ConfigError, match=f"cannot listen on {endpoint}: the port is in use"):
            asyncio.run(run(endpoint))
    assert list(tmp_path.iterdir()) == []


def test_last_line_is_the_reason_when_it_cannot_be_noted(
    tmp_path: Path, exit_codes: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Operators are asked to look there, and a full disk takes no note."""
    with pytest.raises(EndedError):
        tell(tmp_path / "missing", {"exception": NO_SPACE})
    assert exit_codes == [EXIT_STORAGE]
    last = caplog.records[-1]
    told = last.raftstore_fields  # type: ignore[attr-defined]
    assert "no space left on device" in told["reason"]
    assert "No such file" in told["not_noted"]


def test_directory_that_is_gone_ends_the_node_and_gets_no_note(
    tmp_path: Path, exit_codes: list[int]
) -> None:
    """S0.1: what is at its place is not this node's."""

    async def run() -> None:
        node = NodeProcess(NodeSettings(name="n1", data_dir=str(tmp_path)))
        node._on_directory_gone("it was removed")

    with pytest.raises(EndedError):
        asyncio.run(run())
    assert exit_codes == [EXIT_STORAGE]
    assert list(tmp_path.iterdir()) == []
