"""Scans in pages while every row is written again and again, nodes crash and networks break.

Every write sets all rows of the table in one record, so a state is recognised by any of its rows: a
scan that goes on from a pin shows one state only, that of its first page, or it ends refused.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace

import pytest

from raftstore.protocol.message import Failed, Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubMsg
from raftstore.protocol.reads import ClosePin, Scan, ScanAnswer
from raftstore.rows.sealing import seal, unseal
from raftstore.testing.nemesis import Nemesis
from raftstore.testing.options import draw_options
from raftstore.testing.sim_cluster import SimCluster
from raftstore.types import ChannelId, NodeId, RecordKind, Seq, make_guid

KEYS = [b"%02d" % number for number in range(12)]
PAGE_ROWS = 2
PATIENCE_MS = 400.0
WRITE_INTERVAL_MS = 10.0
END_MS = 20_000.0


class Scanner:
    """One client that scans the table in pages at one replica after the other."""

    def __init__(self, cluster: SimCluster, name: str, handle: int, channel: ChannelId) -> None:
        self._cluster = cluster
        self._name = name
        self._channel = channel
        self._request = 0
        self._awaited: int | None = None
        self._at: NodeId | None = None
        self._pin = 0
        self._keys: list[bytes] = []
        self._states: set[tuple[bytes, int]] = set()
        self._applied: set[int] = set()
        self.ends: Counter[str] = Counter()
        cluster.add_client(name, handle, self._on_message)
        self._begin()

    def _begin(self) -> None:
        self._at = self._cluster.rng.choice(self._cluster.node_ids)
        self._pin = 0
        self._keys, self._states, self._applied = [], set(), set()
        self._ask(keep=True)

    def _ask(self, *, keep: bool = False) -> None:
        self._request += 1
        self._awaited = self._request
        start = self._keys[-1] + b"\0" if self._keys else b""
        assert self._at is not None
        scan = Scan(
            self._request, self._channel, start, b"", PAGE_ROWS, "any", None, Seq(0),
            int(PATIENCE_MS), keep=keep, pin=self._pin,
        )  # fmt: skip
        self._cluster.network.send(self._name, self._at, scan)
        self._cluster.scheduler.after(PATIENCE_MS, self._give_up, self._request)

    def _give_up(self, request: int) -> None:
        if request == self._awaited:
            self._end("silence")

    def _end(self, how: str) -> None:
        self.ends[how] += 1
        self._begin()

    def _on_message(self, sender: NodeId, message: Message) -> None:
        if getattr(message, "request_id", None) != self._awaited:
            return  # of an earlier page, or doubled by the network
        self._awaited = None
        if isinstance(message, Failed):
            self._end(message.code if self._keys else "first page refused")
            return
        assert isinstance(message, ScanAnswer)
        assert sender == message.served.node == self._at
        assert message.served.pinned == bool(self._keys)
        self._applied.add(message.served.applied_seq)
        for key, value, seq in message.rows:
            assert value is not None
            self._keys.append(key)
            self._states.add((unseal(key, value), seq))
        assert len(self._applied) == 1
        assert len(self._states) <= 1, f"a scan of {sender} shows {self._states}"
        if not message.more:
            assert self._keys in ([], KEYS)
            if self._pin:
                self._cluster.network.send(
                    self._name, sender, ClosePin(0, self._channel, self._pin)
                )
            self._end("empty" if not self._keys else "complete")
            return
        self._pin = message.pin
        assert self._pin
        pause_ms = self._cluster.rng.expovariate(1 / (3 * WRITE_INTERVAL_MS))
        self._cluster.scheduler.after(pause_ms, self._go_on, self._request)

    def _go_on(self, request: int) -> None:
        if request == self._request:
            self._ask()


class Writer:
    """Sets every row, over and over, at the believed leader; it expects no answers."""

    def __init__(self, cluster: SimCluster, channel: ChannelId) -> None:
        self._cluster = cluster
        self._channel = channel
        self._session = cluster.rng.randbytes(8)
        self._writes = 0
        cluster.add_client("writer", 1, lambda _sender, _message: None)
        self._write()

    def _write(self) -> None:
        cluster = self._cluster
        cluster.scheduler.after(WRITE_INTERVAL_MS, self._write)
        found = cluster.believed_leader(self._channel)
        if found is None:
            return
        self._writes += 1
        value = b"%d" % self._writes
        payload = encode_rows([(key, seal(key, value)) for key in KEYS])
        message = PubMsg(
            channel=self._channel, term=found[1], leader=found[0],
            guid=make_guid(self._session, self._writes),
            digest=hashlib.blake2b(payload, digest_size=16).digest(),
            rows=len(KEYS), kind=RecordKind.ROWS, payload=payload,
        )  # fmt: skip
        for node in cluster.node_ids:
            cluster.network.send("writer", node, message)


def scanned_world(seed: int) -> Counter[str]:
    """Run one world; how its scans ended."""
    options = replace(draw_options(seed), partitions=1)
    cluster = SimCluster(options)
    cluster.start()
    cluster.create_table(1)
    cluster.scheduler.run_until(10_000.0)
    [channel] = cluster.table_channels
    nemesis = Nemesis(cluster, options)
    nemesis.start()
    Writer(cluster, channel)
    scanners = [Scanner(cluster, f"scanner {n}", 10 + n, channel) for n in range(3)]
    cluster.scheduler.run_until(cluster.scheduler.now_ms + END_MS)
    ends: Counter[str] = Counter()
    for scanner in scanners:
        ends += scanner.ends
    return ends


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "expired"), [(2, False), (3, False), (6, False), (24, True)])
def test_pinned_scan_shows_one_state_or_is_refused(seed: int, expired: bool) -> None:
    """Crashes, partitions and lost messages end a scan; they never mix states.

    In the last world a node is back from a crash within the reader's patience, and says so.
    """
    ends = scanned_world(seed)
    assert ends["complete"] > 20
    assert ends["silence"] > 20
    assert not expired or ends["page_expired"] > 0
