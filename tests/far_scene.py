"""One channel of three replicas, one of which is cut off or away and comes back far behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import structs

from raftstore.config import ReplicationSettings
from raftstore.protocol.changes import ChangePiece, Changes, ChangesAnswer
from raftstore.protocol.lifetimes import WITH_TTL, encode_with_ttl
from raftstore.protocol.message import Message
from raftstore.protocol.payload import encode_conditional, encode_mark, encode_rows
from raftstore.protocol.publish import PubAck, PubMsg
from raftstore.protocol.reads import Get
from raftstore.protocol.replica_snapshots import BaseOffer, SnapshotChunk
from raftstore.protocol.replication import MsgSync
from raftstore.rows.sealing import seal
from raftstore.testing.sim_node import SimNode
from raftstore.types import RecordKind, Seq
from tests.snapshot_world import SnapshotWorld, world_of
from tests.unit.engine.engine_world import publish, run

PATIENCE_MS = 30_000
"""The deadline of requests that have to be answered long before it."""


class Scene(SnapshotWorld):
    """One channel of three replicas, one of which is cut off and comes back far behind."""

    def __init__(self, replication: ReplicationSettings | None = None) -> None:
        """Three healthy replicas with twenty rows."""
        made = world_of(replication=replication)
        super().__init__(made.cluster, made.channel)
        self.counter = made.counter
        self.clients = 0
        self.watchers: list[Callable[[str, str, Message], None]] = []
        """See every message that is sent."""
        self.loses: Callable[[str, Message], bool] = lambda receiver, message: False
        """Which messages are lost."""
        send = self.cluster.network.send

        def seen(sender: str, receiver: str, message: Message) -> None:
            for see in self.watchers:
                see(sender, receiver, message)
            if not self.loses(receiver, message):
                send(sender, receiver, message)

        self.cluster.network.send = seen  # type: ignore[method-assign]

    # --- writing ----------------------------------------------------------------------------------

    def message(
        self,
        to: SimNode,
        rows: int = 1,
        size: int = 200,
        *,
        kind: RecordKind = RecordKind.ROWS,
        ttl_ms: int = 0,
    ) -> PubMsg:
        """The next write, of so many rows of one record."""
        self.counter += 1
        keys = [b"%06d.%d" % (self.counter, number) for number in range(rows)]
        payload = encode_rows([(key, seal(key, bytes(size))) for key in keys])
        if kind is RecordKind.CONDITIONAL:
            payload = encode_conditional(keys[0], seal(keys[0], bytes(size)), Seq(0))
        elif kind is RecordKind.BATCH_MARK:
            payload = encode_mark("orders", self.counter)
        if ttl_ms:
            kind, payload = WITH_TTL[kind], encode_with_ttl(ttl_ms, payload)
        return publish(self.cluster, to, self.channel, self.counter, payload, kind=kind, rows=rows)

    def send(self, to: SimNode, *messages: Message) -> list[Message]:
        """Send as a client of its own; its answers come into the list."""
        answers: list[Message] = []
        self.clients += 1
        name = f"client {self.clients}"
        self.cluster.add_client(
            name, 910 + self.clients, lambda _, message: answers.append(message)
        )
        for message in messages:
            self.cluster.network.send(name, to.node, message)
        return answers

    def put(self, rows: int = 1, size: int = 200, **how: Any) -> PubMsg:
        """A record of so many rows, committed and applied."""
        message = self.message(self.leader, rows, size, **how)
        [answer] = self.asked(self.leader, message)
        assert isinstance(answer, PubAck), answer
        return message

    def get(self, min_seq: int) -> Get:
        """Read the first row as of this seq or later, from any replica."""
        return Get(1, self.channel, (b"000001",), "any", None, Seq(min_seq), PATIENCE_MS)

    def delete(self, key: bytes) -> None:
        """A row is deleted."""
        self.counter += 1
        payload = encode_rows([(key, None)])
        message = publish(self.cluster, self.leader, self.channel, self.counter, payload)
        [answer] = self.asked(self.leader, message)
        assert isinstance(answer, PubAck), answer

    def page(self, after: Seq) -> Changes:
        """Changes behind a position."""
        return Changes(1, self.channel, after, 0, Seq(0), 1_000, 1 << 20, PATIENCE_MS)

    def changes(self, node: SimNode, after: int) -> list[ChangePiece]:
        """All changes behind a position, which this node has."""
        [answer] = self.asked(node, self.page(Seq(after)), ms=20)
        assert isinstance(answer, ChangesAnswer), answer
        assert answer.after == self.applied(node)
        return list(answer.pieces)

    def asked(self, to: SimNode, *messages: Message, ms: float = 500) -> list[Message]:
        """Answers of the node that come in time."""
        answers = self.send(to, *messages)
        run(self.cluster, ms)
        return answers

    def cut_others(self, away: SimNode) -> None:
        """Everything but the newest leaves the logs of the other replicas."""
        for node in self.cluster.nodes.values():
            if node is not away:
                self.cut(node)
        self.until(self.has_leader)
        run(self.cluster, 1_000)

    # --- a replica that is cut off ----------------------------------------------------------------

    def cut_off(self, node: SimNode) -> None:
        """Nothing comes to the node, or from it, but what clients say."""
        for other in self.cluster.nodes.values():
            if other is not node:
                self.cluster.network.cut(node.node, other.node)
                self.cluster.network.cut(other.node, node.node)

    def await_another(self, old: SimNode) -> None:
        """Until another node leads."""
        self.until(lambda: self.has_leader() and self.leader is not old)

    def come_back(self, node: SimNode) -> None:
        """It starts, and gets messages from all."""
        self.cluster.network.heal()
        assert node.boot()
        self.cluster.reconnect_all()

    def fill_up_to(self, seq: int) -> None:
        """The channel's log ends there."""
        core = self.core(self.leader)
        assert core.last_seq < seq, (core.last_seq, seq)
        self.put(seq - core.last_seq)
        assert core.last_seq == core.commit_seq == seq

    def core(self, node: SimNode) -> Any:
        """The node's replica."""
        assert node.runner is not None
        return node.runner.channels[self.channel].core

    def applied(self, node: SimNode) -> int:
        """How far the node's table is."""
        return node.tables.applied_seq(self.channel)

    def history_bytes_to(self, node: SimNode) -> list[int]:
        """Bytes of each part of this channel's table or log that is sent to the node."""
        sizes: list[int] = []

        def see(_sender: str, receiver: str, message: Message) -> None:
            if receiver != node.node or getattr(message, "channel", None) != self.channel:
                return
            match message:
                case SnapshotChunk():
                    sizes.append(sum(len(key) + len(value) for key, value in message.pairs))
                case MsgSync():
                    sizes.append(sum(len(record.payload) for record in message.records))
                case BaseOffer():
                    sizes.append(len(message.folds))
                case _:
                    pass

        self.watchers.append(see)
        return sizes

    def have_lead(self, node: SimNode) -> None:
        """The leader hands over to this node."""
        leader = self.leader
        assert leader.runner is not None
        runner = leader.runner.channels[self.channel]
        runner.request_hand_over(node.node, "asked", leader.clock.now_ms())
        leader._after_step()
        self.until(lambda: self.has_leader() and self.leader is node)
        self.settle()

    def retried(self, write: PubMsg) -> list[Message]:
        """Answers of the present leader to the same write."""
        leader = self.leader
        term = self.core(leader).term
        return self.asked(leader, structs.replace(write, leader=leader.node, term=term))
