"""The state of a channel set as a backup takes it, and as a restore brings it back.

Taking: the state of a partition is pinned at one replica, behind all that was acknowledged before,
and its entries are read from that pin. Bringing back: portions are published to the partition's
leader like commands, each is a record of the log (docs/decisions/0042).
"""

# ruff: noqa: ASYNC109 - timeout is what our callers expect to name, here as in blocking.py

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from raftstore.client.admin import Admin
from raftstore.client.cluster.topology import witnesses_of
from raftstore.client.comparing.questions import ReplicaQuestions
from raftstore.client.context import Context
from raftstore.client.reads.channel_reads import ChannelReads
from raftstore.client.reads.read_spec import ReadSpec
from raftstore.client.writes.kinds import Write
from raftstore.client.writes.publisher import Publisher
from raftstore.errors import RaftstoreError, RejectedError, RequestError, UnavailableError
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.machine_restore import RestorePortion, encode_portion
from raftstore.protocol.machines import CommandAck
from raftstore.types import ChannelId, Level, NodeId, RecordKind, Seq, Term

PIN_WAIT_MS: Final = 5_000
"""A replica that has not applied what is wanted within this is passed over."""
PAGE_WAIT_MS: Final = 30_000
"""For a page of a pinned state: others may come first."""
STOPPED_WAIT_MS: Final = 3_000
"""A leader whose machine stopped gives its leadership to a replica whose machine goes on; that
there is one it learns from reports, which come every second. Nothing else happens by itself."""
LINEARIZABLE: Final = ReadSpec(Level.LINEARIZABLE)

Entry = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class PinnedPartition:
    """The state of one partition at one position, which a node keeps for a while."""

    channel: ChannelId
    node: NodeId
    pin: int
    term: Term
    seq: Seq


class AsyncChannelSetState:
    """See the module; made by ``client.channelset_state(name)``, which asks nobody."""

    def __init__(
        self,
        name: str,
        context: Context,
        admin: Admin,
        channel_reads: ChannelReads,
        publisher: Publisher,
    ) -> None:
        self.name = name
        self._context = context
        self._admin = admin
        self._channel_reads = channel_reads
        self._publisher = publisher

    # --- taking it --------------------------------------------------------------------------------

    async def pin(
        self, info: TableInfo, partition: int, *, timeout: float | None = None
    ) -> PinnedPartition:
        """Pin the state of a partition: all that was acknowledged before the call is in it.

        MachineStoppedError: its machine stands at a command, wherever it runs.
        """
        deadline_ms = self._context.deadline_ms(timeout)
        channel = info.channels[partition].channel
        read = await self._channel_reads.get(
            channel, (), LINEARIZABLE, deadline_ms, stopped_wait_ms=STOPPED_WAIT_MS
        )
        first = read.served.node
        return await self._pin_at(info, partition, read.served.applied_seq, first)

    async def pin_at(self, info: TableInfo, partition: int, seq: int) -> PinnedPartition:
        """Pin the state of a partition at any replica that has applied this seq."""
        return await self._pin_at(info, partition, Seq(seq), info.channels[partition].leader)

    async def entries(
        self, pinned: PinnedPartition, prefix: bytes
    ) -> AsyncGenerator[Sequence[Entry], None]:
        """Iterate over pages of the entries whose keys begin with a prefix, in key order."""
        questions = ReplicaQuestions(self._context, pinned.channel)
        after, more = b"", True
        while more:
            answer = await questions.entries(pinned.node, pinned.pin, prefix, after, PAGE_WAIT_MS)
            if answer.entries:
                yield answer.entries
                after = answer.entries[-1][0]
            more = answer.more

    async def close(self, pinned: PinnedPartition) -> None:
        """Notify the node that the state is needed no longer."""
        ReplicaQuestions(self._context, pinned.channel).close(pinned.node, pinned.pin)

    async def _pin_at(
        self, info: TableInfo, partition: int, seq: Seq, first: NodeId | None
    ) -> PinnedPartition:
        placed = info.channels[partition]
        questions = ReplicaQuestions(self._context, placed.channel)
        nodes = [node for node in placed.replicas if node not in witnesses_of(placed)]
        reasons: list[str] = []
        for node in sorted(nodes, key=lambda node: node != first):
            try:
                answer = await questions.pin(node, seq, PIN_WAIT_MS)
            except RaftstoreError as error:
                reasons.append(str(error))
                continue
            return PinnedPartition(
                placed.channel, node, answer.pin, answer.applied_term, answer.applied_seq
            )
        raise UnavailableError(
            f"no replica of {info.name}/{partition} gives its state as of seq {seq} "
            f"({'; '.join(reasons)}); retry when more nodes are up"
        )

    # --- bringing it back -------------------------------------------------------------------------

    async def create(
        self, definition: Mapping[str, Any], *, timeout: float | None = None
    ) -> TableInfo:
        """Create the channel set as one that is being filled.

        ``definition``: the fields of CreateTable, with the token in its settings and the versions
        that come back.
        """
        deadline_ms = self._context.deadline_ms(timeout)
        return await self._admin.create_channelset(
            self.name, dict(definition), deadline_ms, if_not_exists=True
        )

    async def put_portion(
        self, channel: ChannelId, portion: RestorePortion, *, timeout: float | None = None
    ) -> Seq:
        """Have a portion applied by all replicas; return the seq of its record.

        Given again it is applied no second time. RejectedError: it is not the next one.
        """
        deadline_ms = self._context.deadline_ms(timeout)
        write = Write(channel, RecordKind.MACHINE_RESTORE, encode_portion(portion), 1)
        try:
            ack = await self._publisher.publish(write, deadline_ms)
        except RequestError as error:
            error.guid = None  # it is known by its number, and given again without a guid
            raise
        if isinstance(ack, CommandAck) and ack.is_rejected:
            raise RejectedError(f"{self.name}: portion {portion.number} is not taken: {ack.reason}")
        return ack.last_seq
