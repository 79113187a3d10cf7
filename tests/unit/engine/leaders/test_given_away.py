"""Leaderships that nodes gave away by themselves: who stays away from what, and for how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from raftstore.engine.leaders.given_away import REPORTED_MAX, GivenAway
from raftstore.types import NodeId, Role, Term, channel_id

ME, B, C, D = NodeId("a"), NodeId("b"), NodeId("c"), NodeId("d")
METADATA = channel_id(b"m" * 16, 0)
RESPECT_MS = 60_000
TERM = Term(4)
LED = (TERM, Role.LEADER, ME)


class Bench:
    """A node that leads channels in one term, and its memory of those that it gave away."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        metadata = SimpleNamespace(config=lambda: SimpleNamespace(voters=(ME, B)))
        parts: Any = SimpleNamespace(
            me=ME,
            node=SimpleNamespace(clock=self),
            controller=SimpleNamespace(metadata_channel=METADATA, metadata=metadata),
        )
        self.given = GivenAway(parts, RESPECT_MS)

    def runner(self, number: int, role: Role = Role.LEADER, channel: Any = None) -> Any:
        """The replica of a channel."""
        elector = SimpleNamespace(role=role, term=TERM)
        return SimpleNamespace(channel=channel or channel_id(b"t" * 16, number), elector=elector)

    def give(self, number: int, *, until_ms: int = 5_000, before: Any = LED) -> None:
        """An operator asks, and another node leads."""
        self.given.asked(self.runner(number), until_ms)
        self.given.leader_changed(self.runner(number, Role.FOLLOWER), before, self.now_ms)

    def mine(self, *up: NodeId) -> set[int]:
        """Numbers of channels that stay away from this node."""
        kept = self.given.kept(up or (ME, B, C), self.now_ms)
        return {int.from_bytes(channel[-2:], "big") for channel, node in kept if node == ME}


def test_channel_that_an_operator_moved_stays_away_for_a_while() -> None:
    """It does not where nobody else could lead it, or it was given back."""
    bench = Bench()
    bench.give(1)
    assert bench.mine() == {1}
    assert bench.mine(B) == set(), "it is down: nothing is planned for it"
    bench.now_ms += RESPECT_MS - 1
    assert bench.mine() == {1}
    bench.now_ms += 1
    assert (bench.mine(), bench.given.report(B)) == (set(), ())
    bench.give(1, until_ms=bench.now_ms)
    assert bench.mine() == {1}
    bench.given.asked(bench.runner(1), 10**9)
    bench.given.leader_changed(bench.runner(1), LED, bench.now_ms)
    assert bench.mine() == set()


def test_loss_that_is_not_the_operators_doing_keeps_nothing_away() -> None:
    """Of another term, too late, not asked for, by a replica that did not lead; and the metadata
    channel, which is about the planner.
    """
    bench = Bench()
    bench.give(1, until_ms=bench.now_ms - 1)
    bench.give(2, before=(Term(3), Role.LEADER, ME))
    bench.give(3, before=(TERM, Role.FOLLOWER, B))
    bench.given.leader_changed(bench.runner(4, Role.FOLLOWER), LED, bench.now_ms)
    bench.given.asked(bench.runner(0, channel=METADATA), 5_000)
    follower = bench.runner(0, Role.FOLLOWER, channel=METADATA)
    bench.given.leader_changed(follower, LED, bench.now_ms)
    assert bench.mine() == set()
    bench.given.leader_changed(bench.runner(3, Role.FOLLOWER), LED, bench.now_ms)
    assert bench.mine() == {3}, "the hand-over was still asked for"


def test_voters_of_the_metadata_channel_alone_are_sent_the_newest_with_what_is_left() -> None:
    """Any of them may plan next; a report has an end."""
    bench = Bench()
    for number in range(REPORTED_MAX + 2):
        bench.give(number)
    bench.now_ms += 400
    bench.give(1)  # once more, so it is new
    assert bench.given.report(C) == ()
    report = bench.given.report(B)
    assert len(report) == REPORTED_MAX
    assert report[-1] == (channel_id(b"t" * 16, 1), RESPECT_MS)
    assert report[0] == (channel_id(b"t" * 16, 3), RESPECT_MS - 400)


def test_newest_report_of_a_node_counts_and_no_longer_than_this_node_respects() -> None:
    """An empty one takes all back; a node that is down is asked for nothing."""
    bench = Bench()
    one, other = channel_id(b"t" * 16, 1), channel_id(b"t" * 16, 2)

    def kept(*up: NodeId) -> set[Any]:
        return bench.given.kept(up or (B, C), bench.now_ms)

    bench.given.on_report(B, ((one, 500), (other, 10 * RESPECT_MS)), bench.now_ms)
    bench.given.on_report(C, ((one, 500),), bench.now_ms)
    assert kept() == {(one, B), (other, B), (one, C)}
    assert kept(C, D) == {(one, C)}
    bench.now_ms += 500
    assert kept() == {(other, B)}
    bench.given.on_report(C, (), bench.now_ms)
    bench.given.on_report(B, ((one, 500),), bench.now_ms)
    assert kept() == {(one, B)}
    bench.given.on_report(B, (), bench.now_ms)
    bench.given.on_report(B, (), bench.now_ms)
    assert kept() == set()
