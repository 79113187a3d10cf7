"""NATS document, "Catch-Up Protocol Example": its six tables, compared step by step.

Record #1 is the leader's term-start record (contract S2.2), so the example's records are the same
numbers. After every step: leader store, follower store, follower live data queue. The document
shows "5 (being persisted to the store)" in the queue of step 4: here such a record is accepted but
not yet durable.
"""

from __future__ import annotations

from raftstore.core.effects import Append, Send
from raftstore.types import FollowerMode
from tests.core_world import N1, N2, N3, World, guid


class Example:
    """The example's world: n1 leads, n3 is the follower looked at, n2 makes the quorum."""

    def __init__(self) -> None:
        self.world = World()
        self.world.sync_records_max = 1
        self.world.elect(N1)
        self.store(2, to=(N1, N2, N3))
        self.world.settle(ticks=2)

    def store(self, number: int, *, to: tuple[str, ...] = (N1, N2)) -> None:
        """A publisher publishes the record; it becomes durable at the leader."""
        self.world.publish(number, to=[node for node in self.world.nodes if node in to])
        self.world[N1].persist()

    def payload(self, number: int) -> None:
        """The publisher's payload reaches the follower."""
        self.world.publish(number, to=[N3])

    def table(self) -> tuple[list[int], list[int], list[int]]:
        """Leader store, follower store (durable), follower live queue with what it persists."""
        leader = [stored.base_seq for stored in self.world[N1].log]
        follower = [stored.base_seq for stored in self.world[N3].disk.records]
        accepted = [s.base_seq for s in self.world[N3].log if s.base_seq not in follower]
        queued = [base for base, _ in self.world[N3].replica.live_queue()]
        return list(map(int, leader)), list(map(int, follower)), [*accepted, *map(int, queued)]


def behind() -> Example:
    """Step 1: the follower was away while #3 and #4 were stored."""
    example = Example()
    world = example.world
    world[N3].crash()
    example.store(3)
    example.store(4)
    world.settle()
    world[N3].boot()
    return example


def test_worked_example_step_by_step() -> None:
    """The six tables of the design text, in order (NATS-146)."""
    example = behind()
    world = example.world

    # 1) "Leader has record #4, follower record #2."
    assert example.table() == ([1, 2, 3, 4], [1, 2], [])
    world.tick(500)
    world.deliver(N3)
    assert world[N3].replica.mode is FollowerMode.CATCHING_UP

    # 2) "record #3 has been replicated, and a new record #5 has been persisted at the leader"
    world.deliver(N1, sender=N3)
    world.deliver(N3, "MsgSync")
    world[N3].persist()
    example.store(5)
    assert example.table() == ([1, 2, 3, 4, 5], [1, 2, 3], [])

    # 3) "record #4 has been saved ... and record #5 has been ... queued in the live data queue"
    world.deliver(N3, "StoreRequest")
    world.deliver(N1, sender=N3)
    world.deliver(N3, "MsgSync")
    world[N3].persist()
    example.store(6)
    assert example.table() == ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4], [5])
    assert world[N3].replica.mode is FollowerMode.CATCHING_UP

    # 4) "The follower detects that record #5 is found in its live data queue": steady state
    world.deliver(N1, sender=N3)
    world.deliver(N3, "MsgSync")
    world.deliver(N3, "StoreRequest")
    example.store(7)
    assert example.table() == ([1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4], [5, 6])
    assert world[N3].replica.mode is FollowerMode.STEADY
    assert [e.message.seq for e in world.pick(N1, "CaughtUp")] == [5]

    # 5) "Record #6 has been persisted, and are ready to persist #7"
    world[N3].persist()
    example.payload(6)
    world[N3].persist()
    world.deliver(N3, "StoreRequest")
    assert example.table() == ([1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6], [7])

    # 6) "the follower is caught up ... they are immediately processed"
    example.payload(7)
    world[N3].persist()
    assert example.table() == ([1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7], [])


def test_stores_are_equal_byte_for_byte_after_catching_up() -> None:
    """NATS-006: nothing is lost, duplicated or reordered under constant load."""
    example = behind()
    world = example.world
    for number in range(5, 40):
        world.publish(number, to=[N1, N2] if number % 3 else [N1, N2, N3])
        world.deliver(first=3)
        if number % 4 == 0:
            for node in world.nodes.values():
                node.persist()
            world.tick(30)
    world.settle(ticks=2)
    assert world[N3].log == world[N1].log
    assert len(world[N3].log) == 39
    assert len({stored.guid for stored in world[N3].log}) == 39


def test_up_to_date_follower_gets_no_data() -> None:
    """NATS-159: "the leader sends an MsgSync containing no messages"."""
    world = World()
    world.elect(N1)
    world.settle(ticks=2)
    world[N3].crash()
    world[N3].boot()
    world.trace.clear()
    world[N3].follow(N1, world[N1].term)
    world.settle()
    batches = [e.message for _, e in world.trace if isinstance(e, Send)]
    assert [type(message).__name__ for message in batches] == [
        "MsgSyncRequest",
        "CaughtUp",
        "StoreAck",
    ]
    assert not [e for _, e in world.trace if isinstance(e, Append)]
    assert world[N3].replica.mode is FollowerMode.STEADY


def test_catching_up_follower_may_be_elected_on_its_contiguous_prefix() -> None:
    """As S1.6 has it: after a full restart somebody must lead, and the others follow its log."""
    example = behind()
    world = example.world
    for node in world.nodes.values():
        node.crash(keep=9)
        node.boot()
    assert world.try_to_elect(N3, voters=[N2, N3]) is None
    world.elect(N2, voters=[N2, N3])
    world.settle(ticks=4)
    assert world[N3].log == world[N2].log
    assert [stored.base_seq for stored in world[N3].log] == [1, 2, 3, 4, 5]


def test_leader_change_between_any_two_steps_of_the_transition() -> None:
    """NATS-194: "transition from catchup to steady state ... are there holes?" """
    for stop_after in range(12):
        example = behind()
        world = example.world
        example.store(5)
        world.tick(300)
        for _ in range(stop_after):
            if not world.deliver(N3, first=1) and not world.deliver(N1, sender=N3, first=1):
                world[N3].persist(1)
        world[N1].crash(keep=stop_after % 3)
        assert any(world.try_to_elect(node, voters=[N2, N3]) for node in (N2, N3))
        world.publish(6, to=[N2, N3])
        world.settle(ticks=4)
        world[N1].boot()
        world.settle(ticks=8)
        assert world[N1].log == world[N2].log == world[N3].log
        kept = {stored.guid for stored in world[N2].log}
        assert kept >= {guid(counter) for counter in (2, 3, 4, 6)}
