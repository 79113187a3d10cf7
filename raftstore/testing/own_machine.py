"""A state machine of one's own on simulated replicas under faults: ``run_machine``.

What a replicated machine has to promise is that every replica comes to the same rows from the same
records, whatever crashes and is replayed in between. Here it runs where it would run in a node,
behind the production log, and is crashed, cut off and restarted until all writes are acknowledged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from msgspec.structs import replace as replace_fields

from raftstore.ports.machine import StateMachine
from raftstore.protocol.message import Message
from raftstore.protocol.payload import decode_rows, encode_rows
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.protocol.records import Record
from raftstore.rows.sealing import seal, unseal
from raftstore.state_machines.table import TableMachine
from raftstore.testing.invariants import InvariantError
from raftstore.testing.nemesis import Nemesis
from raftstore.testing.options import SimOptions, draw_options
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_tables import SimTables
from raftstore.testing.sim_workload import ERROR_BY_CODE
from raftstore.testing.simulation import BIRTH_MS_MAX, CONVERGE_MS_MAX
from raftstore.types import ChannelId, NodeId, RecordKind, Seq, Term, make_guid

Write = Mapping[bytes, bytes | None]
"""Key -> value, None to delete: what one record carries."""

ATTEMPT_MS = 400.0
PAUSE_MS = 30.0
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
    machine: Callable[[], StateMachine],
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

    def __init__(self, make: Callable[[], StateMachine]) -> None:
        super().__init__()
        self._make = make

    def open_channel(self, channel: ChannelId, machine: StateMachine) -> Seq:
        """As always, but for the machine of channels that hold a table."""
        is_table = isinstance(machine, TableMachine)
        return super().open_channel(channel, self._make() if is_table else machine)


class _MachineWorld:
    """One cluster with one table, written to by one publisher."""

    def __init__(self, machine: Callable[[], StateMachine], options: SimOptions) -> None:
        self._cluster = SimCluster(options, make_tables=lambda: _MachineTables(machine))
        self._nemesis = Nemesis(self._cluster, options)
        self._session = self._cluster.rng.randbytes(8)
        self._open: PubMsg | None = None
        """The write that is not acknowledged yet; its leader and term are filled in when sent."""
        self._sent = 0
        self._turn = 0
        """Rises with every attempt and answer; timers of older turns are void."""

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
            self._wait(WRITE_MS_MAX, lambda: self._open is None, "a write is not acknowledged")
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
        self._sent += 1
        sealed = {k: None if value is None else seal(k, value) for k, value in write.items()}
        payload = encode_rows(sealed.items())
        self._open = PubMsg(
            channel=channel,
            term=Term(0),
            leader=self._cluster.node_ids[0],
            guid=make_guid(self._session, self._sent),
            digest=hashlib.blake2b(payload, digest_size=16).digest(),
            rows=len(write),
            kind=RecordKind.ROWS,
            payload=payload,
            attempt=-1,
        )
        self._attempt(self._turn)

    def _attempt(self, turn: int) -> None:
        """Send the write, to whoever leads, under its one GUID (S4.5); again until it is OK."""
        if turn != self._turn or self._open is None:
            return
        self._turn += 1
        cluster = self._cluster
        found = cluster.believed_leader(self._open.channel)
        if found is None:
            cluster.scheduler.after(PAUSE_MS, self._attempt, self._turn)
            return
        self._open = replace_fields(
            self._open, leader=found[0], term=found[1], attempt=self._open.attempt + 1
        )
        for node in cluster.node_ids:
            cluster.network.send("publisher", node, self._open)
        cluster.scheduler.after(ATTEMPT_MS, self._attempt, self._turn)

    def _on_message(self, sender: NodeId, message: Message) -> None:
        del sender
        sent = self._open
        if sent is None or not isinstance(message, PubAck | PubReject):
            return
        if message.guid != sent.guid:
            return
        if isinstance(message, PubAck):
            self._cluster.oracle.on_ack(sent.channel, message)
            self._open = None
        elif message.attempt == sent.attempt:
            if not ERROR_BY_CODE[message.code].retriable:
                raise InvariantError(f"the write was refused: {message.code}: {message.message}")
            self._turn += 1
            self._cluster.scheduler.after(PAUSE_MS, self._attempt, self._turn)
