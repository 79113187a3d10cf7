"""A client of a channel set in a simulated world: its commands are the production publisher's."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from raftstore.client.writes.kinds import Write
from raftstore.client.writes.write_outcomes import parse_guid
from raftstore.errors import DecodeError, RequestError
from raftstore.machine import StateMachine
from raftstore.protocol.machines import CommandAck, MachineAnswer, MachineQuery, encode_command
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.publish import PubAck, PubMsg
from raftstore.protocol.reads import Served
from raftstore.rows.partitioner import partition_of
from raftstore.testing.machines.local_machine import as_key
from raftstore.testing.machines.workload import Command, Operation, Query, Script
from raftstore.testing.sim_clock import DriftingClock
from raftstore.testing.sim_outcomes import Outcomes
from raftstore.testing.sim_publisher import SimPublisher
from raftstore.testing.sim_reads import (
    Knew,
    check_lag,
    check_leader_read,
    check_level,
    knows,
)
from raftstore.testing.sim_transport import ROUNDING_MS
from raftstore.types import ChannelId, Level, NodeId, Outcome, RecordKind, Seq, Term

if TYPE_CHECKING:
    from raftstore.testing.sim_cluster import SimCluster

HANDLE: Final = 5_000
DEADLINES_MS: Final = (300.0, 1_000.0, 3_000.0, 3_000.0, 3_000.0)
"""Of a command, drawn for each: the short ones end with outcomes that are not known."""
QUERY_MS: Final = 800.0
"""Before a query counts as refused."""
PATIENCE_MS: Final = 500
"""How long a node may wait until it may answer."""
PAUSE_MS: Final = (1.0, 40.0)
LEVELS: Final[tuple[tuple[Level, Mapping[str, int]], ...]] = (
    (Level.LINEARIZABLE, {}), (Level.LINEARIZABLE, {}), (Level.LINEARIZABLE, {}),
    (Level.LEADER, {}), (Level.ANY, {}), (Level.ANY, {}), (Level.BOUNDED, {"max_lag": 0}),
    (Level.BOUNDED, {"max_lag": 5}), (Level.BOUNDED, {"max_staleness_ms": 300}),
)  # fmt: skip
"""Of queries, with bounds. One of level any or bounded may also name what its client has seen."""


class _Before(NamedTuple):
    """The facts of the moment in which a query was sent."""

    acked: Mapping[Term, Seq]
    knew: Knew | None
    node: NodeId
    clock: DriftingClock
    clock_ms: int
    """Of the node that was asked, and what it showed."""

    def as_of_ms(self, age_ms: int) -> float:
        """When the state was complete that was so old at the earliest moment of the query: what
        machines are asked away from the node's loop may take any time."""
        return self.clock.showed_ms(self.clock_ms - age_ms - ROUNDING_MS)


class SimUser:
    """One client: an operation at a time, as its script says."""

    def __init__(
        self,
        cluster: SimCluster,
        index: int,
        machine: type[StateMachine],
        script: Script,
        outcomes: Outcomes,
        on_end: Callable[[Operation], None],
    ) -> None:
        self.name = f"client {index}"
        self.handle = HANDLE + index
        self.is_stopped = False
        self.operations: list[Operation] = []
        self._cluster = cluster
        self._machine = machine
        self._script = script
        self._outcomes = outcomes
        self._on_end = on_end
        # Of its own: the faults of a seed stay the same, whatever the clients do.
        self._rng = random.Random(f"{self.name} {cluster.options.seed}")
        own_rng = random.Random(f"publisher of {self.name} {cluster.options.seed}")
        self._publisher = SimPublisher(cluster, own_rng, self._deliver)
        self._open: Operation | None = None
        self._query: MachineQuery | None = None
        self._before: _Before | None = None
        self._seen: dict[ChannelId, Seq] = {}
        """The newest state that was shown to this client."""
        self.levels: Counter[str] = Counter()
        """Answers by the level of the query."""
        cluster.add_client(self.name, self.handle, self._on_message)

    @property
    def is_idle(self) -> bool:
        """No operation is open."""
        return self._open is None

    @property
    def is_done(self) -> bool:
        """Its script is at its end."""
        return self._open is None and self.is_stopped

    @property
    def scripted(self) -> int:
        """How many operations of its script it came to."""
        return self._script.number

    def start(self) -> None:
        """Begin after a moment."""
        self._pause()

    def do(self, asked: Command | Query) -> None:
        """One operation now; until it has an outcome this client is not idle."""
        cluster = self._cluster
        key = as_key(asked.key)
        channels = cluster.table_channels
        channel = channels[partition_of(key, len(channels))]
        number = len(self.operations) + 1
        operation = Operation(self.name, number, asked, cluster.scheduler.now_ms, channel=channel)
        self.operations.append(operation)
        self._open = operation
        self._outcomes.started += 1
        if isinstance(asked, Command):
            self._command(channel, key, asked)
        else:
            self._ask(operation, channel, key, asked)

    def _pause(self) -> None:
        self._cluster.scheduler.after(self._rng.uniform(*PAUSE_MS), self._begin)

    def _begin(self) -> None:
        if self.is_stopped or self._open is not None:
            return
        asked = self._script.next(self.operations[-1] if self.operations else None)
        if asked is None:
            self.is_stopped = True
        else:
            self.do(asked)

    # --- commands ---------------------------------------------------------------------------------

    def _command(self, channel: ChannelId, key: bytes, asked: Command) -> None:
        payload = encode_command(key, self._machine.commands.encode(asked.value))
        record = Write(channel, RecordKind.MACHINE_COMMAND, payload, 1)
        self._publisher.publish(record, self._rng.choice(DEADLINES_MS), self._command_ended)

    def _deliver(self, node: NodeId, message: PubMsg) -> None:
        """An attempt leaves; a payload may miss one replica."""
        operation = self._open
        if operation is not None and operation.is_command:
            operation.guid = bytes(message.guid)
        missed = self._rng.random() * 100 < self._cluster.options.payload_loss_percent
        if node == message.leader or not missed:
            self._cluster.network.send(self.name, node, message)

    def _command_ended(self, result: PubAck | RequestError) -> None:
        operation = self._open
        assert operation is not None
        if isinstance(result, RequestError):
            refused = result.outcome is Outcome.NOT_APPLIED
            if refused and result.guid is not None:
                self._cluster.oracle.on_not_applied(*parse_guid(result.guid))
            self._outcomes.not_applied += refused
            self._outcomes.unknown += not refused
            self._end(operation, "refused" if refused else "unknown", f"{result.code}: {result}")
            return
        assert isinstance(result, CommandAck), f"a command was answered with {result}"
        self._outcomes.ok += 1
        operation.seq = result.last_seq
        if result.is_rejected:
            self._end(operation, "rejected", result.reason)
        else:
            self._take(operation, result.result, is_answer=False)

    # --- queries ----------------------------------------------------------------------------------

    def _ask(self, operation: Operation, channel: ChannelId, key: bytes, asked: Query) -> None:
        cluster, (level, bounds) = self._cluster, self._rng.choice(LEVELS)
        operation.is_linearizable = level is Level.LINEARIZABLE
        target = self._rng.choice(cluster.node_ids)
        found = cluster.believed_leader(channel)
        if level in (Level.LINEARIZABLE, Level.LEADER) and found is not None:
            target = found[0]
        min_seq = Seq(0)
        if level in (Level.ANY, Level.BOUNDED) and self._rng.random() < 0.5:
            min_seq = self._seen.get(channel, min_seq)
        request = self._machine.queries.encode(asked.request)
        self._query = MachineQuery(
            operation.number, channel, key, request, level.value, bounds.get("max_lag"), min_seq,
            PATIENCE_MS, bounds.get("max_staleness_ms"),
        )  # fmt: skip
        acked = dict(cluster.oracle.acknowledged_in.get(channel, {}))
        clock = cluster.nodes[target].clock
        knew = knows(cluster, target, channel)
        self._before = _Before(acked, knew, target, clock, clock.now_ms())
        cluster.network.send(self.name, target, self._query)
        cluster.scheduler.after(QUERY_MS, self._timed_out, operation)

    def _timed_out(self, operation: Operation) -> None:
        if self._open is operation:
            self._query_refused(operation, "no answer came in time")

    def _query_refused(self, operation: Operation, why: str) -> None:
        self._outcomes.reads_refused += 1
        self._end(operation, "refused", why)

    def _on_message(self, sender: NodeId, message: Message) -> None:
        if isinstance(message, PubAck):
            self._cluster.oracle.on_ack(message.channel, message)
        self._publisher.on_message(sender, message)
        operation = self._open
        number = getattr(message, "request_id", None)
        if operation is None or operation.is_command or number != operation.number:
            return
        if isinstance(message, Failed):
            self._query_refused(operation, str(message))
        elif isinstance(message, MachineAnswer):
            self._outcomes.reads_ok += 1
            self._check_served(message.served)
            operation.seq = message.served.applied_seq
            if message.is_rejected:
                self._end(operation, "rejected", message.reason)
            else:
                self._take(operation, message.answer, is_answer=True)

    def _check_served(self, served: Served) -> None:
        """S7.3: the answer is within what its level promises, and states its lag rightly."""
        query, before = self._query, self._before
        assert query is not None
        assert before is not None
        check_level(query, served)
        check_lag(self._cluster, served, before.knew)
        check_leader_read(query.level, served, before.acked)
        if served.node == before.node and self._cluster.nodes[before.node].clock is before.clock:
            self._cluster.oracle.on_served(query.channel, served, before.as_of_ms)
        self.levels[query.level] += 1

    # --- ends -------------------------------------------------------------------------------------

    def _take(self, operation: Operation, encoded: bytes, *, is_answer: bool) -> None:
        operation.encoded = bytes(encoded)
        codec = self._machine.answers if is_answer else self._machine.results
        try:
            value = codec.decode(operation.encoded)
        except DecodeError as error:
            value = error
        self._end(operation, "ok", value)

    def _end(self, operation: Operation, outcome: str, result: object) -> None:
        operation.outcome, operation.result = outcome, result
        operation.ended_ms = self._cluster.scheduler.now_ms
        channel = ChannelId(operation.channel)
        self._seen[channel] = max(self._seen.get(channel, Seq(0)), Seq(operation.seq))
        self._open = None
        self._on_end(operation)
        self._pause()
