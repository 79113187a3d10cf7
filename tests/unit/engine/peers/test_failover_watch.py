"""Times of failovers by themselves: what begins one, what ends it, and what is reported then
(N8)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.engine.deadlines import NEVER_MS
from raftstore.engine.peers.failover_watch import CHECK_INTERVAL_MS, FailoverWatch
from raftstore.policy.failover import PENDING_MS, WAIT_MS
from raftstore.protocol.election import StepDownNotice, TransferNow
from raftstore.protocol.message import Message
from raftstore.protocol.replication import StaleTerm
from raftstore.types import ChannelId, NodeId, Role, Term, channel_id

ME, OLD, THIRD = (NodeId(f"{name}@00") for name in ("n1", "n2", "n3"))
FIRST, SECOND = (channel_id(b"orders-table-id!", number) for number in range(2))


class Bench:
    """A node with two channels that another one leads."""

    def __init__(self) -> None:
        self.channels: dict[ChannelId, Any] = {
            channel: SimpleNamespace(
                channel=channel,
                name=f"orders/{number}",
                elector=SimpleNamespace(leader=OLD, role=Role.FOLLOWER, term=Term(5)),
                core=SimpleNamespace(leader_is_ready=False),
            )
            for number, channel in enumerate((FIRST, SECOND))
        }
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.watch = FailoverWatch(ME, self.channels, self._tell)

    def _tell(self, name: str, **fields: object) -> None:
        self.told.append((name, fields))

    @property
    def runner(self) -> Any:
        """The first channel."""
        return self.channels[FIRST]

    def elect(self, leader: NodeId | None, now_ms: int, channel: ChannelId = FIRST) -> None:
        """The elector moves."""
        elector = self.channels[channel].elector
        before = (elector.term, elector.role, elector.leader)
        elector.term, elector.leader = Term(elector.term + 1), leader
        elector.role = Role.LEADER if leader == ME else Role.FOLLOWER
        self.watch.leader_changed(self.channels[channel], before, now_ms)

    def ready(self, now_ms: int) -> None:
        """The leader commits in its term."""
        self.runner.core.leader_is_ready = True
        self.watch.touched([self.runner.channel], now_ms)

    def under_way(self) -> set[ChannelId]:
        """Channels whose failover is not over."""
        return set(self.watch.under_way)

    def counted(self) -> dict[str, tuple[int, float]]:
        """Of each phase how often and how long together, in seconds."""
        return {
            labels[0][1]: (count, round(total, 3))
            for _, labels, _, total, count in self.watch.histograms()
        }


def test_failover_to_this_node_is_told_once_with_all_its_times() -> None:
    """Given a node that is lost, one event when its successor has served a read and a write."""
    bench = Bench()
    bench.watch.node_suspected(OLD, "connection lost", 900, 1_000)
    assert bench.under_way() == {FIRST, SECOND}
    bench.elect(ME, 1_100)
    bench.watch.touched([bench.runner.channel], 1_120)  # it has committed nothing yet
    bench.ready(1_150)
    bench.watch.on_read(FIRST, 1_160)
    assert bench.told == []
    bench.watch.on_write(FIRST, 1_190)
    bench.watch.on_write(FIRST, 1_200)
    bench.watch.on_read(FIRST, 1_200)
    [(name, fields)] = bench.told
    assert name == "failover"
    assert fields == {
        "channel": "orders/0", "table": "orders", "partition": 0, "old_leader": "n2",
        "new_leader": "n1", "term": 6, "cause": "connection lost", "detect_ms": 100,
        "vote_ms": 100, "ready_ms": 50, "first_read_ms": 260, "first_write_ms": 290,
        "total_ms": 250,
    }  # fmt: skip
    assert bench.watch.count == 1
    assert bench.counted() == {
        "detect": (1, 0.1), "vote": (1, 0.1), "first_read": (1, 0.26), "first_write": (1, 0.29),
    }  # fmt: skip
    assert bench.under_way() == {SECOND}


def test_failover_to_another_node_is_kept_as_it_looked_from_here() -> None:
    """N8: the node that leads now may be the next to die."""
    bench = Bench()
    bench.watch.node_suspected(OLD, "heartbeats missed", 900, 1_000)
    bench.elect(THIRD, 1_100, SECOND)
    [(name, fields)] = bench.told
    assert name == "failover_seen"
    assert fields == {
        "channel": "orders/1", "table": "orders", "partition": 1, "old_leader": "n2",
        "new_leader": "n3", "term": 6, "cause": "heartbeats missed", "detect_ms": 100,
        "vote_ms": 100,
    }  # fmt: skip
    assert bench.watch.count == 0
    assert bench.under_way() == {FIRST}


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (TransferNow(FIRST, Term(5)), "hand-over"),
        (StepDownNotice(FIRST, Term(5)), "step-down"),
        (StaleTerm(FIRST, Term(5)), None),
    ],
)
def test_leader_that_gives_up_its_role_is_the_cause(message: Message, cause: str | None) -> None:
    """It lives, so nothing of the time before counts; other messages of elections say nothing."""
    bench = Bench()
    bench.watch.on_election(bench.runner, message, 1_000)
    assert bench.under_way() == ({FIRST} if cause else set())
    bench.elect(THIRD, 1_030)
    told = [(fields["cause"], fields["detect_ms"], fields["vote_ms"]) for _, fields in bench.told]
    assert told == ([(cause, 0, 30)] if cause else [])


def test_own_leadership_that_ends_is_no_failover_that_is_watched_here() -> None:
    """The successor reports it."""
    bench = Bench()
    bench.runner.elector.leader = ME
    bench.watch.leader_suspected(bench.runner, "step-down", 1_000)
    assert bench.under_way() == set()
    bench.elect(None, 1_000)
    assert bench.under_way() == set()


def test_leader_that_is_lost_without_a_reason_is_given_one_later() -> None:
    """An election may begin before this node has noticed anything."""
    bench = Bench()
    bench.elect(None, 1_000)
    assert bench.under_way() == {FIRST}
    bench.watch.node_suspected(OLD, "connection refused", 950, 1_020)
    bench.elect(THIRD, 1_100)
    [(_, fields)] = [each for each in bench.told if each[1]["partition"] == 0]
    assert (fields["cause"], fields["detect_ms"], fields["vote_ms"]) == (
        "connection refused", 50, 100,
    )  # fmt: skip


def test_node_that_is_lost_matters_to_the_channels_it_led() -> None:
    """For the others there is no failover."""
    bench = Bench()
    bench.channels[SECOND].elector.leader = THIRD
    bench.watch.node_suspected(OLD, "connection lost", 900, 1_000)
    assert bench.under_way() == {FIRST}


def test_nothing_is_looked_at_while_nothing_is_under_way() -> None:
    """Given the last failover that is over, no timer is left, and no other call finds anything."""
    bench = Bench()
    assert bench.watch.deadlines.next_ms == NEVER_MS
    bench.watch.node_suspected(OLD, "connection lost", 900, 1_000)
    assert bench.watch.deadlines.next_ms == 1_000 + CHECK_INTERVAL_MS
    bench.watch.leader_suspected(bench.runner, "step-down", 1_200)
    assert bench.watch.deadlines.next_ms == 1_000 + CHECK_INTERVAL_MS, "it is not put off"
    bench.elect(THIRD, 1_250, SECOND)
    assert bench.watch.deadlines.next_ms == 1_000 + CHECK_INTERVAL_MS
    bench.elect(THIRD, 1_300)
    assert bench.watch.deadlines.next_ms == NEVER_MS
    bench.watch.on_read(FIRST, 1_400)
    bench.watch.on_write(FIRST, 1_400)
    assert [name for name, _ in bench.told] == ["failover_seen"] * 2


@pytest.mark.parametrize("last", ["read", "write"])
def test_timer_ends_with_the_last_failover_that_this_node_led(last: str) -> None:
    """Given either of both as the last one, no timer is left behind it."""
    bench = Bench()
    bench.channels[SECOND].elector.leader = THIRD
    bench.watch.node_suspected(OLD, "connection lost", 900, 1_000)
    bench.elect(ME, 1_100)
    calls = [bench.watch.on_read, bench.watch.on_write]
    for call in calls if last == "write" else calls[::-1]:
        assert bench.watch.deadlines.next_ms == 1_000 + CHECK_INTERVAL_MS
        call(FIRST, 1_200)
    assert bench.watch.deadlines.next_ms == NEVER_MS
    assert bench.watch.count == 1


def test_leader_that_is_not_asked_for_anything_ends_its_failover_after_a_while() -> None:
    """Given a channel that is idle, the event comes without a read and a write."""
    bench = Bench()
    bench.channels[SECOND].elector.leader = THIRD
    bench.watch.node_suspected(OLD, "connection lost", 900, 1_000)
    bench.elect(ME, 1_100)
    bench.ready(1_150)
    bench.ready(1_170)
    now_ms = 1_000
    while bench.watch.deadlines.next_ms != NEVER_MS:
        assert bench.watch.deadlines.next_ms == now_ms + CHECK_INTERVAL_MS
        bench.watch.on_timer(bench.watch.deadlines.next_ms - 1)
        now_ms = bench.watch.deadlines.next_ms
        bench.watch.on_timer(now_ms)
        assert now_ms < 2 * WAIT_MS, "it never ends"
    assert now_ms >= 1_150 + WAIT_MS
    [(name, fields)] = bench.told
    assert (name, fields["ready_ms"], fields["first_read_ms"]) == ("failover", 50, None)
    assert bench.counted()["first_read"][0] == 0
    assert bench.counted()["vote"][0] == 1


def test_failover_that_comes_to_nothing_here_is_dropped() -> None:
    """Given a channel that nobody leads for long, or one that is dropped, nothing is reported."""
    bench = Bench()
    bench.watch.node_suspected(OLD, "connection lost", 900, 1_000)
    del bench.channels[SECOND]
    bench.watch.on_timer(1_000 + CHECK_INTERVAL_MS)
    assert bench.under_way() == {FIRST}
    bench.watch.on_timer(1_000 + PENDING_MS)
    assert bench.under_way() == set()
    assert bench.watch.deadlines.next_ms == NEVER_MS
    assert bench.told == []


def test_failover_of_a_channel_that_is_gone_is_told_by_its_id() -> None:
    """Its name went with it."""
    bench = Bench()
    bench.watch.node_suspected(OLD, "connection lost", 900, 1_000)
    bench.elect(ME, 1_100)
    del bench.channels[FIRST]
    bench.watch.on_read(FIRST, 1_200)
    bench.watch.on_write(FIRST, 1_200)
    [(_, fields)] = bench.told
    assert (fields["channel"], fields["table"]) == (FIRST.hex(), "")
