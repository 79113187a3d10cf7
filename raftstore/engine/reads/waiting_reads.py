"""The reads of one node that cannot be answered yet: what each waits for, and until when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from raftstore.config import ReadSettings
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.reads.many_gets import PartId
from raftstore.engine.reads.position_waits import PositionWaits
from raftstore.engine.shares import GiveUp, Shares
from raftstore.protocol.machines import MachineQuery, ReplicaRead
from raftstore.protocol.reads import Get
from raftstore.types import ChannelId, Seq


@dataclass(slots=True)
class WaitingRead:
    """One read that cannot be answered yet."""

    client: int
    request: ReplicaRead
    runner: ChannelRunner
    deadline_ms: int
    min_seq: Seq
    confirmed: bool
    part: PartId | None = None
    """Set if the read is a part of a request for many channels."""
    confirmation: int = 0
    """The question whether this leader still leads (S7.1), by the channel's token."""
    proof_by_ms: int | None = None
    """Refused then, unless it is proven meanwhile how far the channel is committed (S7.3)."""
    proofs: int = 0
    """Round trips that ended while it waited for one."""


class WaitingReads:
    """See the module. Tokens are never used again."""

    def __init__(self, give_up: GiveUp[int], tokens: Iterator[int]) -> None:
        """``give_up``: refuse a read or a question, since others need its place; ``tokens`` number
        both."""
        self._tokens = tokens
        self._reads: dict[int, WaitingRead] = {}
        self._by_channel: dict[ChannelId, dict[int, None]] = {}
        self._unproven: dict[ChannelId, dict[int, None]] = {}
        self._positions = PositionWaits()
        self._keys: Shares[int] = Shares("bytes of keys", "read.waiting_reads_bytes_max", give_up)
        self.held: Shares[int] = Shares("waiting reads", "read.waiting_reads_max", give_up)
        """Tokens by client; questions for the fate of writes count with them."""
        self.deadlines: Deadlines[int] = Deadlines()
        """By token: of the answer, or of the proof that it waits for."""

    def __len__(self) -> int:
        """Reads without an answer."""
        return len(self._reads)

    def refusal(self, client: int, request: ReplicaRead, settings: ReadSettings) -> str | None:
        """Why no more of this client's reads may wait; None: this one may."""
        return self.held.refusal(client, settings.waiting_reads_max) or self._keys.refusal(
            client, settings.waiting_reads_bytes_max, _key_bytes(request)
        )

    def add(
        self,
        client: int,
        request: ReplicaRead,
        runner: ChannelRunner,
        deadline_ms: int,
        *,
        confirmed: bool,
        min_seq: Seq,
        part: PartId | None,
    ) -> int:
        """Have a read wait until ``min_seq`` is applied; its token."""
        token = next(self._tokens)
        self._reads[token] = WaitingRead(
            client, request, runner, deadline_ms, min_seq, confirmed, part
        )
        self.held.take(client, token)
        self._keys.take(client, token, _key_bytes(request))
        self._by_channel.setdefault(runner.channel, {})[token] = None
        self.deadlines.push(token, deadline_ms)
        return token

    def get(self, token: int) -> WaitingRead | None:
        """The read, while it waits."""
        return self._reads.get(token)

    def forget(self, token: int) -> WaitingRead | None:
        """Remove a read that waits no longer, and return it; None: it did not wait."""
        read = self._reads.pop(token, None)
        if read is not None:
            self.held.give(read.client, token)
            self._keys.give(read.client, token)
            self._positions.drop(token)
            for by_channel in (self._by_channel, self._unproven):
                tokens = by_channel.get(read.runner.channel, {})
                tokens.pop(token, None)
                if not tokens:
                    by_channel.pop(read.runner.channel, None)
            self.deadlines.cancel(token)
        return read

    def forget_all_of(self, client: int) -> list[WaitingRead]:
        """None of this client's reads waits any longer."""
        found = [self.forget(token) for token in self.held.of(client)]
        return [read for read in found if read is not None]

    def of_channel(self, channel: ChannelId) -> tuple[int, ...]:
        """The tokens of a channel."""
        return tuple(self._by_channel.get(channel, ()))

    # --- what they wait for -----------------------------------------------------------------------

    def due(self, now_ms: int) -> Iterator[tuple[int, WaitingRead]]:
        """The reads whose moment has come: that of their answer or of their proof. They are to be
        forgotten, for they have no other."""
        for token in self.deadlines.due(now_ms):
            yield token, self._reads[token]

    def await_position(self, token: int, read: WaitingRead) -> None:
        """Keep a read that is confirmed, and waits for its seq to be applied."""
        self._positions.add(read.runner.channel, read.min_seq, token)

    def await_proof(self, token: int, read: WaitingRead) -> None:
        """Keep a read that waits for a proof, or for what one said has to be applied (S7.3)."""
        self._unproven.setdefault(read.runner.channel, {})[token] = None

    def unproven(self, channel: ChannelId) -> tuple[int, ...]:
        """The reads that wait for a proof about the channel."""
        return tuple(self._unproven.get(channel, ()))

    def awaits(self, channel: ChannelId) -> bool:
        """Whether any read waits for something of the channel."""
        return channel in self._by_channel

    def reached(self, channel: ChannelId, applied: Seq) -> tuple[int, ...]:
        """The reads that may be answered now that so much of the channel is applied. Those that
        wait for a later position are not looked at, however many they are."""
        if channel not in self._by_channel:
            return ()
        return (*self._positions.take_reached(channel, applied), *self.unproven(channel))


def _key_bytes(request: ReplicaRead) -> int:
    if isinstance(request, Get):
        return sum(map(len, request.keys))
    if isinstance(request, MachineQuery):
        return len(request.key) + len(request.request)
    return len(request.start) + len(request.stop)
