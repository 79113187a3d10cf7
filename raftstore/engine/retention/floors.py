"""Floors of a channel's log: what still needs records, by name, and for how much of the log.

A *floor* is a seq behind which records are needed. Some may never be cut above: the state that
survives a power cut, staged rows of open attempts. Others are a courtesy with a bound: for a
replica that is behind, for a reader of changes. Beyond its bound such a floor is given up, which
its event names with the owner; the owner learns of it when it asks for what is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from raftstore.config import MIB, RetentionSettings
from raftstore.core.quorum import rows_seq
from raftstore.engine.channel.outbox import Outbox
from raftstore.engine.channel.proposals import Proposals
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.clock import Clock
from raftstore.engine.node_ports import Tell
from raftstore.engine.peers.peer_watch import PeerWatch
from raftstore.engine.reads.change_readers import ChangeReaders
from raftstore.errors import Refusal
from raftstore.policy.levels import SNAPSHOT_LEVEL
from raftstore.ports.log import MessageLog
from raftstore.ports.tables import TableStore
from raftstore.protocol.node import ChannelPosition
from raftstore.types import ChannelId, NodeId, RecordKind, Seq, node_name

APPLIED: Final = "applied"
"""The table survives a power cut only up to there."""
OPEN_ATTEMPTS: Final = "open_attempts"
"""Staged rows of a micro-batch that may still be applied; bounded by ``batch.attempt_ttl_ms``."""
SLOW_REPLICA: Final = "slow_replica"
"""A replica that has applied no more; bounded by ``retention.slow_replica_bytes``, and where it is
less by what its table costs."""
TRANSFER: Final = "replica_snapshot"
"""A replica that takes a snapshot here and needs the records behind it; bounded by
``snapshot.session_ms`` without a question, and like a slow replica."""
READER: Final = "reader_of_changes"
"""Somebody who reads changes here; bounded by ``retention.reader_bytes``."""

DISK_SPACE: Final = "disk_space"
"""The disk has no room for the base entry that would be written first."""

OLDER_VERSION: Final = "older_version"
"""A node that knows no base: it could neither follow a log that begins behind one nor read its own
back after a downgrade. Until it is upgraded everything stays."""
WITNESS: Final = "witness"
"""Here is a witness: its records are needed until so many voters have them in their tables or logs
that a quorum has one of these (W6). It is never given up."""
BASE_SIZE: Final = "base_size"
"""The base would be larger than a log or a message can hold."""

GIVEN_UP: Final = "retention_floor_given_up"

SHORT_LOG_BYTES: Final = 64 * MIB
"""So much log is soon sent, however small the table is."""
TABLES_LONG: Final = 2
"""Log of more than so many times the bytes of the table takes a replica longer than a copy of it:
each record goes through its log and LevelDB, while a table comes in the files that it has."""

NOT_HEARD: Final[Mapping[NodeId, ChannelPosition]] = MappingProxyType({})


class Floor(NamedTuple):
    """Records behind ``seq`` are needed."""

    name: str
    owner: str
    """Of several with one name."""
    seq: Seq
    bytes_max: int | None
    """Of log that is kept for it; None: it is never given up."""
    is_given_up: bool = False


Source = Callable[[ChannelRunner], Iterable[Floor]]
"""Names floors of a channel, such as transfers that are under way."""


@dataclass(frozen=True, slots=True)
class RetentionParts:
    """The parts of a node that retention works with."""

    me: NodeId
    channels: Mapping[ChannelId, ChannelRunner]
    log: MessageLog
    tables: TableStore
    watch: PeerWatch
    readers: ChangeReaders
    clock: Clock
    node_levels: Callable[[], Mapping[NodeId, int]]
    """Of all nodes of the cluster."""
    settings: RetentionSettings
    segment_bytes: int
    tell: Tell
    proposals: Proposals
    refusal_of: Callable[[RecordKind], Refusal | None]
    """Why a record of this kind must not be written yet."""
    outbox: Outbox
    nodes_at_level: Callable[[int], tuple[NodeId, ...]]
    """The other nodes that reported at least this level."""
    is_space_low: Callable[[], bool] = lambda: False
    """The disk is nearly full: what only a courtesy keeps goes."""
    claim: Callable[[int], bool] = lambda _: True
    """Whether so many bytes may be written to free space."""


class Floors:
    """Register of one node's floors."""

    def __init__(self, parts: RetentionParts) -> None:
        self._me = parts.me
        self._log = parts.log
        self._tables = parts.tables
        self._readers = parts.readers
        self._settings = parts.settings
        self._watch = parts.watch
        self._tell = parts.tell
        self._node_levels = parts.node_levels
        self._is_space_low = parts.is_space_low
        self._given_up: dict[tuple[ChannelId, str, str], None] = {}
        self.given_up_total = 0
        self.sources: list[Source] = []
        """Others that need records; all of them are asked."""

    def of(self, runner: ChannelRunner, now_ms: int) -> list[Floor]:
        """Floors of a channel but those of its own table, given up or not."""
        found = [Floor(OLDER_VERSION, name, runner.core.base.seq, None) for name in self.older()]
        found += [*self._slow_replicas(runner), *self._change_readers(runner, now_ms)]
        if not runner.has_rows:
            found.append(Floor(WITNESS, "", self.rows_seq(runner, runner.core.last_seq), None))
        for source in self.sources:
            found += source(runner)
        self._forget_others(runner.channel, found)
        return [self._judged(runner, floor) for floor in found]

    def lowest(self, runner: ChannelRunner, limit: Seq, now_ms: int) -> tuple[Seq, Floor | None]:
        """How far up to ``limit`` the log may go, and what keeps it from going further."""
        lowest: Floor | None = None
        for floor in self.of(runner, now_ms):
            if not floor.is_given_up and floor.seq < limit:
                limit, lowest = floor.seq, floor
        return limit, lowest

    def older(self) -> list[str]:
        """Names of nodes whose version knows no base, as far as is known (S6.6)."""
        levels = self._node_levels().items()
        return [node_name(node) for node, level in levels if level < SNAPSHOT_LEVEL]

    def keep_for_transfers(self, pinned: Callable[[ChannelId], Mapping[NodeId, Seq]]) -> None:
        """Keep for each replica that takes a snapshot of a channel here what is behind its seq."""
        bytes_max = self._settings.slow_replica_bytes

        def transfers(runner: ChannelRunner) -> list[Floor]:
            found = pinned(runner.channel).items()
            return [Floor(TRANSFER, node_name(to), seq, bytes_max) for to, seq in found]

        self.sources.append(transfers)

    def channel_closed(self, runner: ChannelRunner) -> None:
        """Nothing of it is reported again."""
        self._readers.channel_closed(runner.channel)
        self._given_up = {key: None for key in self._given_up if key[0] != runner.channel}

    def _forget_others(self, channel: ChannelId, found: Iterable[Floor]) -> None:
        """Readers and transfers come and go, each under another name: what was given up for those
        that are gone is not kept."""
        mine = [key for key in self._given_up if key[0] == channel]
        if mine:
            owners = {(floor.name, floor.owner) for floor in found}
            for key in mine:
                if key[1:] not in owners:
                    del self._given_up[key]

    def _is_overfull(self) -> bool:
        return self._is_space_low() or self._log.size_bytes() > self._settings.log_bytes_max

    def _slow_replicas(self, runner: ChannelRunner) -> Iterator[Floor]:
        """Floors for slow replicas, at followers, too: one that leads next is asked for the same
        records."""
        known = self._watch.positions.get(runner.channel, NOT_HEARD)
        progress = runner.core.progress()
        bytes_max = self._slow_bytes_max(runner)
        for node in runner.core.config().members:
            if node == self._me:
                continue
            # A crash cannot take back what is applied there: its log had it durably (S10).
            position, reported = known.get(node), progress.get(node)
            seq = runner.core.base.seq if position is None else position.applied_seq
            if reported is not None and reported.heard_ms is not None:
                seq = max(seq, reported.applied_seq)  # a leader gets it with each acknowledgement
            yield Floor(SLOW_REPLICA, node_name(node), seq, bytes_max)

    def _slow_bytes_max(self, runner: ChannelRunner) -> int:
        """Log that is kept for a replica that is behind: none that costs it more than a copy of the
        table does. A witness has no table, and cannot say what one costs."""
        most = self._settings.slow_replica_bytes
        if most <= SHORT_LOG_BYTES or not runner.has_rows:
            return most
        return min(
            most, max(SHORT_LOG_BYTES, TABLES_LONG * self._tables.table_bytes(runner.channel))
        )

    def rows_seq(self, runner: ChannelRunner, limit: Seq) -> Seq:
        """W6: up to where, and not above ``limit``, a witness here is not needed. What a voter with
        rows has applied it held durably before, and no crash takes it back (S10). What another life
        of its replica said is not its word (M4). One that is cut off gives way to the configuration
        before, so all count that may."""
        known = self._watch.positions.get(runner.channel, NOT_HEARD)
        lowest = limit
        for _, _, config in runner.core.known_configs():
            held = {
                node: position.applied_seq
                for node, position in known.items()
                if position.replica == config.number_of(node)
            }
            lowest = min(lowest, rows_seq(config, held))
        return lowest

    def _change_readers(self, runner: ChannelRunner, now_ms: int) -> Iterator[Floor]:
        for client, seq in self._readers.positions(runner.channel, now_ms):
            if seq < runner.core.base.seq:
                continue  # the answer says that this is gone
            yield Floor(READER, f"client {client}", seq, self._settings.reader_bytes)

    def _judged(self, runner: ChannelRunner, floor: Floor) -> Floor:
        """The floor, given up if the log that is kept for it is too much."""
        if floor.bytes_max is None:
            return floor
        channel, core = runner.channel, runner.core
        key = (channel, floor.name, floor.owner)
        if floor.seq < core.base.seq and key in self._given_up:
            return floor._replace(is_given_up=True)  # what it is for is gone
        # The last report of a replica may be older than what it was trimmed by.
        behind = Seq(max(floor.seq, core.base.seq))
        held = self._log.extent(channel).bytes_between(behind, core.last_seq)
        if held <= floor.bytes_max and not self._is_overfull():
            self._given_up.pop(key, None)
            return floor
        if key not in self._given_up:
            self._given_up[key] = None
            self.given_up_total += 1
            self._tell(
                GIVEN_UP,
                channel=runner.name,
                floor=floor.name,
                owner=floor.owner,
                seq=floor.seq,
                bytes_max=floor.bytes_max,
            )
        return floor._replace(is_given_up=True)
