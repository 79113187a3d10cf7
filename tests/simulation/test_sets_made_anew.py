"""A channel set is dropped while it is commanded, and another one takes its name, on whole nodes
(S0.8)."""

from __future__ import annotations

import hashlib

import pytest

from raftstore.protocol.admin import DropTable
from raftstore.protocol.machines import CommandAck, encode_command
from raftstore.protocol.message import Done, Failed, Message
from raftstore.protocol.publish import PubAck, PubMsg, PubReject, WriteFate
from raftstore.protocol.shared_commands import CommandFate
from raftstore.types import ChannelId, Guid, RecordKind, channel_id, make_guid
from tests.simulation.test_channelsets import World, calm
from tests.unit.state_machines.test_user_machine import INT, Counter

pytestmark = pytest.mark.slow

COMMANDS = 90


class Drops(World):
    """A world whose channel set is dropped and made anew, with a client that sees each answer."""

    def __init__(self, seed: int) -> None:
        super().__init__(Counter, calm(seed))
        self.seen: list[Message] = []
        self.cluster.add_client("raw", 78, lambda _, message: self.seen.append(message))
        self.total(3)
        self.leader = self.cluster.leaders()[self.channel]
        self.term = self.leader.runner.channels[self.channel].elector.term

    def send_raw(self, channel: ChannelId, number: int) -> Guid:
        """One attempt of a command, to the leader as it was before the drop."""
        payload = encode_command(b"k", INT.encode(1))
        digest = hashlib.blake2b(payload, digest_size=16).digest()
        guid, kind = make_guid(b"producer", number), RecordKind.MACHINE_COMMAND
        others = tuple(node for node in self.cluster.node_ids if node != self.leader.node)
        message = PubMsg(
            channel, self.term, self.leader.node, guid, digest, 1, kind, payload, relay_to=others
        )
        self.cluster.network.send("raw", self.leader.node, message)
        return guid

    def drop(self) -> None:
        """An operator asks for it; the answer comes later."""
        self.answers.clear()
        leader = self.cluster.believed_leader(channel_id(self.cluster.cluster_id, 0))
        assert leader is not None
        self.cluster.network.send("operator", leader[0], DropTable(3, "t", 5_000))

    def make_anew(self) -> None:
        """Another set under the name, once the drop is done."""
        self.wait(lambda: bool(self.answers))
        assert isinstance(self.answers[0], Done)
        self.cluster.table_channels.clear()
        self.cluster.create_table(1, "counters:Counter")
        self.wait(lambda: bool(self.cluster.table_channels))
        (self.channel,) = self.cluster.table_channels

    def refusals(self, channel: ChannelId, guid: Guid) -> set[str]:
        """Codes by which nodes refuse a command of a channel that comes again, and its outcome."""
        self.seen.clear()
        questions = (WriteFate(1, channel, guid, 500), CommandFate(2, channel, guid, 500, 1))
        self.send_raw(channel, 1)
        for node in self.cluster.node_ids:
            for question in questions:
                self.cluster.network.send("raw", node, question)
        self.run(2_000.0)
        assert len(self.seen) == 1 + len(questions) * len(self.cluster.node_ids)
        assert all(isinstance(each, Failed | PubReject) for each in self.seen)
        return {each.code for each in self.seen if isinstance(each, Failed | PubReject)}


@pytest.mark.parametrize("seed", range(1, 6))
def test_commands_under_way_are_answered_and_none_reaches_the_next_set(seed: int) -> None:
    """Each is acknowledged before the drop or refused behind it; the new set begins at nothing, and
    the old one answers nothing any more, also not after a restart."""
    world = Drops(seed)
    old = world.channel
    guids = set()
    for number in range(1, COMMANDS + 1):
        guids.add(world.send_raw(old, number))
        world.run(0.5)
        if number == COMMANDS // 3:
            world.drop()
    world.make_anew()
    world.run(2_000.0)
    acked = {each.guid: each for each in world.seen if isinstance(each, PubAck)}
    refused = {each.guid for each in world.seen if isinstance(each, PubReject)}
    assert acked.keys() | refused == guids, "each has an answer"
    assert acked
    assert refused
    assert all(isinstance(ack, CommandAck) and ack.channel == old for ack in acked.values())
    assert world.channel != old
    assert world.total(5) == 5
    first = make_guid(b"producer", 1)
    assert world.refusals(old, first) == {"unknown_channel"}
    for node in world.cluster.node_ids:
        world.cluster.nodes[node].kill("a restart")
    for node in world.cluster.node_ids:
        world.cluster.nodes[node].boot()
    assert world.total(1) == 6
    assert world.refusals(old, first) == {"unknown_channel"}
