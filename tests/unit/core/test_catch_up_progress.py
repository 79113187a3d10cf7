"""Catching up always comes nearer, however large records are and however slow a disk is (S6)."""

from __future__ import annotations

from dataclasses import replace

from raftstore.config import ReplicationSettings
from raftstore.protocol.replication import MsgSync, MsgSyncRequest
from raftstore.types import FollowerMode, NodeId, Seq
from tests.core_world import N1, N2, N3, World

LIMIT = 64
"""Bytes of one answer; records of this length are answered one by one."""
SETTINGS = ReplicationSettings(sync_batch_bytes_max=LIMIT)


def fill(world: World, counters: range, *, to: tuple[NodeId, ...] | None = None) -> None:
    """Write records each of which fills an answer of the leader."""
    for counter in counters:
        payload = f"{counter:>{LIMIT}}".encode()
        world.publish(counter, payload=payload, to=to)


def diverged(shared: int, lost: int, since: int) -> World:
    """N1 has ``shared`` records with all, ``lost`` ones that nobody committed, and N2, which leads
    since, ``since`` others there."""
    world = World(settings=SETTINGS, inflight_requests=1)
    world.elect(N1)
    world.settle()
    fill(world, range(1, shared + 1))
    world.settle(ticks=1)
    fill(world, range(100, 100 + lost), to=(N1,))
    world[N1].persist()
    world.network.clear()
    world.elect(N2, voters=(N2, N3))
    for _ in range(6):
        world.deliver(N3)
        world.deliver(N2, sender=N3)
        world[N2].persist()
        world[N3].persist()
    fill(world, range(200, 200 + since), to=(N2, N3))
    world[N2].persist()
    world.network.clear()
    world[N1].follow(N2, world[N2].term)
    world[N1].persist()
    return world


def answers_until_steady(world: World, answers_max: int) -> list[tuple[Seq, Seq]]:
    """(verified, asked from) of N1 after each answer, until it is steady."""
    seen: list[tuple[Seq, Seq]] = []
    while world[N1].replica.mode is not FollowerMode.STEADY:
        world.deliver(N2, "MsgSyncRequest", N1)
        (answer,) = world.pick(N1, "MsgSync")
        assert isinstance(answer.message, MsgSync)
        assert sum(len(r.payload) for r in answer.message.records) <= LIMIT, (
            "the limit is one record"
        )
        world.deliver(N1, "MsgSync")
        world[N1].persist()
        asked = [e.message for e in world.pick(N2, "MsgSyncRequest", N1)]
        from_seq = max((m.from_seq for m in asked if isinstance(m, MsgSyncRequest)), default=Seq(0))
        seen.append((world[N1].replica.verified_seq, from_seq))
        assert len(seen) <= answers_max, f"no end after {len(seen)} answers: {seen[-3:]}"
    return seen


def test_each_answer_moves_on_although_one_record_fills_it() -> None:
    """S2.4, S2.6: also where what is answered is held already, and where the logs part."""
    world = diverged(shared=5, lost=4, since=8)
    assert world[N1].replica.last_seq == 10
    seen = answers_until_steady(world, answers_max=20)
    verified = [at for at, _ in seen]
    assert verified == sorted(set(verified)), "an answer brought nothing"
    assert [r.guid for r in world[N1].log] == [r.guid for r in world[N2].log]
    assert len(seen) <= 8 + 2, "what is common is not sent again"


def test_replica_with_a_slower_disk_than_its_leader_gets_everything_once() -> None:
    """A replica that stores four of five records in time falls behind for as long as that lasts,
    is sent each record a bounded number of times, and is steady soon after."""
    world = World(settings=replace(SETTINGS, live_queue_messages_max=4, resend_interval_ms=50))
    world.elect(N1)
    world.settle(ticks=1)
    sent = Sent(world)
    for counter in range(1, 101):
        fill(world, range(counter, counter + 1))
        for _ in range(3):
            sent.count()
            world.deliver()
            world[N1].persist()
            world[N2].persist()
        if counter % 5:
            world[N3].persist(1)
        world.tick(10)
    behind = world[N1].replica.last_seq - world[N3].replica.durable_seq
    assert behind > 10, "the disk was not slow"
    assert world[N2].replica.mode is FollowerMode.STEADY
    rounds = 0
    while world[N3].replica.durable_seq < world[N1].replica.last_seq:
        sent.count()
        world.deliver()
        world[N3].persist(1)
        world.tick(10)
        rounds += 1
        assert rounds <= 10 * behind, "it never catches up"
    world.settle(ticks=1)
    assert world[N3].replica.mode is FollowerMode.STEADY
    assert sent.history_bytes <= 2 * 100 * LIMIT, "history was sent again and again"


class Sent:
    """Payload bytes of history on their way to N3, each answer counted once."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.history_bytes = 0
        self._seen: list[object] = []

    def count(self) -> None:
        """Look at what is on its way."""
        for envelope in self.world.pick(N3, "MsgSync"):
            if not any(envelope.message is seen for seen in self._seen):
                self._seen.append(envelope.message)
                self.history_bytes += sum(len(r.payload) for r in envelope.message.records)
