"""A state machine of one's own on simulated replicas under faults: ``run_machine``.

What a replicated machine has to promise is that every replica comes to the same rows from the same
records, whatever crashes and is replayed in between. Here it runs where it would run in a node,
behind the production log, and is crashed, cut off and restarted until all writes are acknowledged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from raftstore.client.writes.kinds import Write as Publication
from raftstore.errors import RequestError
from raftstore.protocol.message import Message
from raftstore.protocol.payload import decode_rows, encode_rows
from raftstore.protocol.publish import PubAck, PubMsg
from raftstore.protocol.records import Record
from raftstore.record_machine import RecordMachine
from raftstore.rows.sealing import seal, unseal
from raftstore.testing.invariants import InvariantError
from raftstore.testing.nemesis import Nemesis
from raftstore.testing.options import SimOptions, draw_options
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_publisher import SimPublisher
from raftstore.testing.sim_tables import SimTables
from raftstore.testing.simulation import BIRTH_MS_MAX, CONVERGE_MS_MAX
from raftstore.types import ChannelId, NodeId, Outcome, RecordKind, Seq

Write = Mapping[bytes, bytes | None]
"""Key -> value, None to delete: what one record carries."""

WRITE_MS_MAX = 60_000.0
"""Under faults every write is acknowledged within this."""
SCAN_ROWS_MAX = 1_000_000


def rows_of(record: Record) -> list[tuple[bytes, bytes | None]]:
    """The keys and values a record carries; nothing for records that only mark a term."""
    if record.kind is not RecordKind.ROWS:
        return []
    flat = decode_rows(record.payload)
    pairs = [(flat[at] or b"", flat[at + 1]) for at in range(0, len(flat), 2)]
    return [(key, None if value is None else unseal(key, value)) for key, value in pairs]


def run_machine(
    machine: Callable[[], RecordMachine],
    writes: Iterable[Write],
    *,
    seed: int = 1,
    options: SimOptions | None = None,
) -> dict[bytes, bytes]:
    """Replicate the writes through machines under faults; return the rows all replicas agree on.

    ``machine`` makes the machine of one replica, once per life of its node; it may keep nothing
    that it cannot find again in its rows. Each write is one record, acknowledged before the next is
    sent, and applied exactly once. ``options`` are drawn from ``seed`` unless given.
    Raises InvariantError when replicas differ, or a promise of the store is broken.
    """
    drawn = options or replace(draw_options(seed), partitions=1)
    return _MachineWorld(machine, replace(drawn, seed=seed)).run(list(writes))


class _MachineTables(SimTables):
    """Tables whose rows are computed by somebody else's machine."""

    def __init__(self, make: Callable[[], RecordMachine]) -> None:
        super().__init__()
        self._make = make

    def open_channel(self, channel: ChannelId, machine: RecordMachine) -> Seq:
        """As always, but for the machine of channels that hold a table."""
        is_table = RecordKind.ROWS in machine.kinds()
        return super().open_channel(channel, self._make() if is_table else machine)


class _MachineWorld:
    """One cluster with one table, written to by one publisher."""

    def __init__(self, machine: Callable[[], RecordMachine], options: SimOptions) -> None:
        self._cluster = SimCluster(options, make_tables=lambda: _MachineTables(machine))
        self._nemesis = Nemesis(self._cluster, options)
        own_rng = random.Random(f"publisher {options.seed}")
        self._publisher = SimPublisher(self._cluster, own_rng, self._deliver)

    def run(self, writes: list[Write]) -> dict[bytes, bytes]:
        cluster = self._cluster
        cluster.add_client("publisher", 1, self._on_message)
        cluster.start()
        cluster.create_table(1)
        self._wait(BIRTH_MS_MAX, lambda: bool(cluster.table_channels), "there is no table")
        (channel,) = cluster.table_channels
        self._nemesis.start()
        for write in writes:
            self._begin(channel, write)
            self._wait(WRITE_MS_MAX, lambda: self._publisher.is_idle, "a write is not acknowledged")
        self._nemesis.heal()
        self._wait(CONVERGE_MS_MAX, cluster.replicas_are_equal, "replicas differ")
        cluster.check_final()
        tables = cluster.nodes[cluster.node_ids[0]].tables
        rows = tables.scan(channel, b"", b"", SCAN_ROWS_MAX)[0]
        return {row.key: row.value for row in rows}

    def _wait(self, limit_ms: float, ready: Callable[[], bool], what: str) -> None:
        scheduler = self._cluster.scheduler
        scheduler.run_until(scheduler.now_ms + limit_ms, ready)
        if not ready():
            positions = self._cluster.positions()
            raise InvariantError(f"O6: {what} after {limit_ms:.0f} ms: {positions}")

    # --- publishing -------------------------------------------------------------------------------

    def _begin(self, channel: ChannelId, write: Write) -> None:
        sealed = {k: None if value is None else seal(k, value) for k, value in write.items()}
        payload = encode_rows(sealed.items())
        record = Publication(channel, RecordKind.ROWS, payload, len(write))
        self._publisher.publish(record, WRITE_MS_MAX, self._ended)

    def _deliver(self, node: NodeId, message: PubMsg) -> None:
        self._cluster.network.send("publisher", node, message)

    def _on_message(self, sender: NodeId, message: Message) -> None:
        if isinstance(message, PubAck):
            self._cluster.oracle.on_ack(message.channel, message)
        self._publisher.on_message(sender, message)

    @staticmethod
    def _ended(result: PubAck | RequestError) -> None:
        if isinstance(result, RequestError) and result.outcome is Outcome.NOT_APPLIED:
            raise InvariantError(f"the write was refused: {result.code}: {result}")
        if isinstance(result, RequestError):
            raise InvariantError(f"O6: a write is not acknowledged: {result}")
