"""A replica snapshot between two stores: LevelDB, its threads, and both sides of the transfer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.config import KIB, SnapshotSettings
from raftstore.engine.snapshots.parts import SnapshotParts
from raftstore.engine.snapshots.service import ReplicaSnapshots
from raftstore.policy.levels import TABLE_FILES_LEVEL
from raftstore.ports.log import Base
from raftstore.state_machines.table import TableMachine
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from raftstore.types import ChannelConfig, NodeId, Role, Seq, Term
from tests.storage_helpers import CHANNEL, SMALL, STORE_UUID, rows_record, table_path

ROWS = 3_000
STEPS_MAX = 20_000
"""Things that happen, or times at which nothing does for a fiftieth of a second."""
GIVER, TAKER = NodeId("n1"), NodeId("n2")
SETTINGS = SnapshotSettings(chunk_bytes_max=64 * KIB)


class Side:
    """One node: real tables, and a channel that does nothing but wait."""

    def __init__(
        self,
        directory: Path,
        me: NodeId,
        other: NodeId,
        posts: SimpleQueue[Callable[[], object]],
        level: int,
    ) -> None:
        directory.mkdir()
        LevelDbTables.create(directory, STORE_UUID, SMALL)
        self.directory, self.me, self._posts = directory, me, posts
        self.tables = LevelDbTables.open(directory, STORE_UUID, SMALL)
        self.events: list[str] = []
        self.errors: list[object] = []
        self.now_ms = 0
        self.peer: Side
        self.runner: Any = SimpleNamespace(
            hole=None,
            channel=CHANNEL,
            name="t/0",
            unserved_until=0,
            stopped_reason=None,
            has_rows=True,
            ignores_peers=False,
            elector=SimpleNamespace(role=Role.LEADER, leader=GIVER),
            feed=SimpleNamespace(is_idle=True),
            pause=lambda: self.events.append("paused"),
            core=SimpleNamespace(
                leader_is_ready=True,
                lacks_rows=me is TAKER,
                is_recovering=False,
                config=lambda: ChannelConfig(((GIVER, TAKER),)),
                trimmed_to=Seq(0),
                base=Base(Term(1), Seq(5), bytes(16), b""),
            ),
        )
        self.snapshots = ReplicaSnapshots(
            SnapshotParts(
                log=SimpleNamespace(last_operation=lambda: 0, durable_operation=lambda: 0),  # type: ignore[arg-type]
                tables=self.tables,
                outbox=SimpleNamespace(send=self._send),  # type: ignore[arg-type]
                channels={CHANNEL: self.runner},
                settings=SETTINGS,
                tell=lambda name, **_: self.events.append(name),
                nodes_at_level=lambda needed: (other,) if needed <= level else (),
                reopen=self._reopen,
                first_id=1,
            )
        )
        self.tables.start(
            post=posts.put,
            on_applied=lambda *_: self.events.append("applied"),
            on_failed=self.errors.append,
            on_read=lambda done: done(self.now_ms),
        )
        self.tables.open_channel(CHANNEL, TableMachine())

    def _send(self, _to: NodeId, message: Any, *, after_operation: int) -> None:
        assert after_operation == 0
        take = self.peer.snapshots.on_message
        self._posts.put(lambda: take(self.me, message, self.now_ms))

    def _reopen(self, runner: Any) -> None:
        assert runner is self.runner
        self.runner.core.lacks_rows = False
        self.tables.open_channel(CHANNEL, TableMachine())
        self.events.append("reopened")


@pytest.mark.slow
@pytest.mark.parametrize("level", [TABLE_FILES_LEVEL - 1, TABLE_FILES_LEVEL])
def test_table_goes_from_one_store_to_another_chunk_by_chunk(tmp_path: Path, level: int) -> None:
    """S6.4: while the giver goes on writing, and readers of the former table go on reading."""
    posts: SimpleQueue[Callable[[], object]] = SimpleQueue()
    giver = Side(tmp_path / "giver", GIVER, TAKER, posts, level)
    taker = Side(tmp_path / "taker", TAKER, GIVER, posts, level)
    giver.peer, taker.peer = taker, giver

    def run_until(done: Callable[[], bool]) -> None:
        for _ in range(STEPS_MAX):
            if done():
                return
            with suppress(Empty):
                posts.get(timeout=0.02)()
            for side in (giver, taker):
                side.now_ms += 5
                side.snapshots.on_timer(side.now_ms)
            assert not giver.errors + taker.errors
        raise AssertionError(taker.events)

    try:
        for n in range(ROWS):
            giver.tables.apply(CHANNEL, [rows_record(n + 1, {b"%06d" % n: bytes(200)})])
        taker.tables.apply(CHANNEL, [rows_record(1, {b"old": b"row"})])
        run_until(lambda: giver.tables.is_idle(CHANNEL) and taker.tables.is_idle(CHANNEL))
        reader = taker.tables.snapshot(CHANNEL)
        expected = giver.tables.content_hash(CHANNEL)
        taker.snapshots.on_needed(taker.runner, 0)
        taker.snapshots.on_timer(0)
        run_until(lambda: "replica_snapshot_started" in taker.events)
        giver.tables.apply(CHANNEL, [rows_record(ROWS + 1, {b"later": b"row"})])
        run_until(lambda: "reopened" in taker.events)
        assert taker.tables.content_hash(CHANNEL) == expected
        assert [e for e in taker.events if e != "applied"] == [
            "replica_snapshot_started",
            "paused",
            "replica_snapshot_finished",
            "reopened",
        ]
        assert [row.key for row in reader.page(b"", b"", 9).rows] == [b"old"]
        reader.close()
        taker.tables.close()
        again = LevelDbTables.open(taker.directory, STORE_UUID, SMALL)
        again.open_channel(CHANNEL, TableMachine())
        assert again.content_hash(CHANNEL) == expected
        again.close()
        assert not table_path(taker.directory).exists()
    finally:
        giver.tables.close()
        taker.tables.close()
