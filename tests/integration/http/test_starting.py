"""Reports of a node that starts: the phase, how far it is, how long it takes."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import logging
from pathlib import Path
from typing import Any, NoReturn

import pytest

from raftstore.config import HttpSettings, NodeSettings, StorageSettings
from raftstore.errors import DiskFullError
from raftstore.http.server import start_http
from raftstore.node.bootstrap import opening
from raftstore.node.bootstrap.founding import waits_for_founders
from raftstore.node.bootstrap.starting import Start
from raftstore.node.http_port import HttpPort, LiveFacts
from raftstore.state_machines.table import TableMachine
from raftstore.storage.log import recovery
from raftstore.storage.store import open_store
from raftstore.types import channel_id
from tests.integration.http.test_server import address, ask
from tests.storage_helpers import CHANNEL, record, rows_record


def settings_of(directory: Path) -> NodeSettings:
    """Of a node that was not founded yet."""
    return NodeSettings(
        name="n1",
        data_dir=str(directory),
        listen="127.0.0.1:0",
        initial_cluster=(("n1", "127.0.0.1:1"), ("n2", "127.0.0.1:2"), ("n3", "127.0.0.1:3")),
        http=HttpSettings(listen="127.0.0.1:0"),
    )


def test_node_that_reads_a_long_log_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The main loop does nothing but read, for minutes: /livez and /readyz answer all the same."""
    home = tmp_path / "n1"
    store = open_store(home, "n1", StorageSettings(), free_bytes_min=0)
    for seq in range(1, 9):
        store.log.append(CHANNEL, [record(seq, payload=bytes(200_000))])
    store.log.flush()
    store.close(is_clean=True)
    settings = settings_of(tmp_path / "n1")
    http_port = HttpPort(settings, start_http)
    seen: list[tuple[int, Any]] = []
    now_ms = itertools.count(0, 1_000)
    monkeypatch.setattr(recovery, "REPORT_EVERY_BYTES", 400_000)
    monkeypatch.setattr(opening, "monotonic_ms", lambda: next(now_ms))
    read = Start.has_read

    def has_read(start: Start, done_bytes: int, total_bytes: int) -> None:
        read(start, done_bytes, total_bytes)
        connection = http.client.HTTPConnection(*address(http_port), timeout=5)
        seen.extend(ask(connection, path) for path in ("/readyz", "/livez", "/v1/tables"))
        connection.close()

    monkeypatch.setattr(Start, "has_read", has_read)
    with caplog.at_level(logging.INFO, "raftstore.node"):
        asyncio.run(_opened_and_closed(settings, http_port))
    ready, live, tables = seen[-3:]
    assert (ready[0], live[0], tables[0]) == (503, 200, 503)
    start = ready[1]["start"]
    assert start["phase"] == "reading_log"
    assert 50 <= start["percent"] < 100
    assert start["left_s"] >= 1
    assert "the node reads its log: " in tables[1]["message"]
    percents = [each[1]["start"]["percent"] for each in seen[::3]]
    assert percents == sorted(percents)
    told = [vars(each)["raftstore_fields"] for each in caplog.records if "reading" in each.msg]
    assert told
    assert {"percent", "read_mib", "total_mib", "left_s"} == set(told[0])


async def _opened_and_closed(settings: NodeSettings, http_port: HttpPort) -> None:
    listener, store = await opening.open_port_and_store(settings, http_port, asyncio.Event())
    listener.close()
    http_port.stop()
    assert store is not None
    store.close(is_clean=True)


def test_node_on_a_full_disk_says_that_it_waits_for_space(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not that it waits for a cluster that was founded long ago."""
    settings = settings_of(tmp_path / "n1")
    http_port = HttpPort(settings, start_http)
    stop = asyncio.Event()

    def full(*_arguments: object, **_options: object) -> NoReturn:
        asyncio.get_running_loop().call_soon(stop.set)
        raise DiskFullError("the disk has 5 bytes free, 67 are needed to start")

    seen: list[tuple[int, Any]] = []
    enters = Start.enters

    def entered(start: Start, name: str, doing: str) -> None:
        enters(start, name, doing)
        connection = http.client.HTTPConnection(*address(http_port), timeout=5)
        seen.append(ask(connection, "/readyz"))
        connection.close()

    monkeypatch.setattr(opening, "open_store", full)
    monkeypatch.setattr(Start, "enters", entered)
    _, store = asyncio.run(opening.open_port_and_store(settings, http_port, stop))
    assert store is None
    status, body = seen[-1]
    assert (status, body["ready"], body["start"]["phase"]) == (503, False, "disk_full")
    assert "waits for disk space: the disk has 5 bytes free, 67 are needed" in str(body["checks"])


def test_node_that_waits_for_its_founders_names_them(tmp_path: Path) -> None:
    """One of them may never have been started."""
    text = waits_for_founders(settings_of(tmp_path))
    assert text.startswith("waits for its cluster to be founded: n2, n3 must be running")


@pytest.mark.parametrize("what", ["tables", "channels"])
def test_start_says_how_many_tables_and_channels_are_open(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With percentage and estimate where /readyz reads them, and a line every few seconds."""
    facts = LiveFacts()
    now_ms = itertools.count(0, 1_000)
    start = Start(facts, lambda: next(now_ms))
    start.enters(f"opening_{what}", f"opens its {what}")
    with caplog.at_level(logging.INFO, "raftstore.node"):
        for done in (1, 2):
            start.has_opened(f"opening_{what}", what, done, 8)
    phase = facts.start
    assert phase is not None
    assert (phase.name, phase.percent, phase.left_s) == (f"opening_{what}", 25, 9)
    assert phase.text == (
        f"the node opens its {what}: 2 of 8, about 9 s left; ask another node, or retry then"
    )
    (line,) = [each for each in caplog.records if each.msg == f"opening {what}"]
    told = vars(line)["raftstore_fields"]
    assert told == {"percent": 25, "opened": 2, "total": 8, "left_s": 9}


def test_tables_that_are_opened_reach_the_phase(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Given a store with three tables, its start reports each of them as it is opened."""
    home = tmp_path / "n1"
    store = open_store(home, "n1", StorageSettings(), free_bytes_min=0)
    for number in range(3):
        channel = channel_id(bytes(16), number)
        store.log.open_channel(channel)
        store.log.append(channel, [rows_record(1, {b"key": b"value"})])
        store.tables.open_channel(channel, TableMachine())
        store.tables.apply(channel, [rows_record(1, {b"key": b"value"})])
    store.log.flush()
    store.tables.apply_queued()
    store.close(is_clean=True)
    seen: list[tuple[object, ...]] = []
    monkeypatch.setattr(Start, "has_opened", lambda _start, *told: seen.append(told))
    settings = settings_of(home)
    asyncio.run(_opened_and_closed(settings, HttpPort(settings, start_http)))
    assert seen == [("opening_tables", "tables", done, 3) for done in (1, 2, 3)]
