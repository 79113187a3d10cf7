"""Inputs of a node by themselves: each has its own time, and reaches its parts in order.

Every part is a stand-in that notes its calls; the node is the production one.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.engine.node_runner import NodeRunner
from raftstore.protocol.batches import ResolveWriter
from raftstore.protocol.election import TransferNow, VoteReply
from raftstore.protocol.node import LeadershipRequest
from raftstore.protocol.reads import ClosePin
from raftstore.protocol.replica_snapshots import AskSnapshotChunk
from raftstore.protocol.replication import ReadIndexRequest, ReplicationBundle
from raftstore.types import ChannelId, NodeId, Seq, Term, channel_id

ME, PEER, OTHER = NodeId("n1@00"), NodeId("n2@00"), NodeId("n3@00")
FIRST, SECOND, STRANGE = (channel_id(b"t" * 16, number) for number in range(3))
NOW = 1_200
CLIENT = 5
END = [("reader.many.flush",), ("_schedule.settle",)]
"""What every call ends with that is a turn by itself."""

Calls = list[tuple[Any, ...]]


class Part:
    """A part of the node: its methods note that they were called, and when."""

    def __init__(self, calls: Calls, name: str, clock: Any, **known: Any) -> None:
        self.__dict__.update(known, _calls=calls, _name=name, _clock=clock)

    def __getattr__(self, called: str) -> Callable[..., None]:
        def call(*of: Any, **by_name: Any) -> None:
            assert self._clock.now_ms == NOW, "what a call leads to is of the call's time"
            self._calls.append((f"{self._name}.{called}", *of, *by_name.items()))

        return call


class Bench:
    """A node with two channels, last called at 1,000 and due at 1,150."""

    def __init__(self) -> None:
        self.calls: Calls = []
        self.moved: list[ChannelId] = []
        self.node = NodeRunner.__new__(NodeRunner)
        self.clock: Any = SimpleNamespace(now_ms=1_000)
        self.channels = {channel: self._channel(channel) for channel in (FIRST, SECOND)}
        self.watch = self._part("watch", due_ms=NOW, on_message=self._is_of_the_watch)
        self.is_of_the_watch = self.is_of_retention = self.is_of_leaders = True
        self.is_of_reports = True
        parts: Any = self.node
        parts.clock, parts.channels, parts.watch = self.clock, self.channels, self.watch
        parts._settings = SimpleNamespace(read=SimpleNamespace(stall_guard_ms=500))
        parts._deadlines = (SimpleNamespace(next_ms=1_150), SimpleNamespace(next_ms=1_190))
        parts._schedule = self._part("_schedule", take_touched=self._take_touched)
        parts._active = self._part("_active", touched=self.moved)
        parts._positions_moved = self._part("positions", known=None).moved
        parts._views_moved = self._part("views", known=None).moved
        parts.reader = self._part("reader", many=self._part("reader.many"))
        parts.outbox = self._part("outbox", mail=self._part("outbox.mail"))
        parts.guard = self._part("guard", reason="the disk hangs")
        parts.failovers = self._part("failovers", under_way={})
        parts.space = self._part("space", is_low=False)
        parts.halt = SimpleNamespace(reason=None)
        parts.identity = SimpleNamespace(members=((PEER, "host-b:1"), (OTHER, "host-c:1")))
        for name in (
            "_idle", "batches", "controller", "drain", "events", "hashes", "inbox",
            "repairs", "retention", "expirer", "snapshots", "healing", "views",
        ):  # fmt: skip
            setattr(parts, name, self._part(name))
        parts.retention = self._part("retention", on_message=self._is_of_retention)
        parts.leaders = self._part("leaders", on_message=self._is_of_leaders)
        parts.controller = self._part("controller", on_message=self._is_of_reports)

    def _is_of_leaders(self, *of: Any) -> bool:
        self.calls.append(("leaders.on_message", *of))
        return self.is_of_leaders

    def _is_of_reports(self, *of: Any) -> bool:
        self.calls.append(("controller.on_message", *of))
        return self.is_of_reports

    def _is_of_retention(self, *of: Any) -> bool:
        self.calls.append(("retention.on_message", *of))
        return self.is_of_retention

    def _part(self, name: str, **known: Any) -> Any:
        return Part(self.calls, name, self.clock, **known)

    def _channel(self, channel: ChannelId) -> Any:
        leader = PEER if channel == FIRST else ME
        name = "first" if channel == FIRST else "second"
        return self._part(name, channel=channel, elector=SimpleNamespace(leader=leader))

    def _is_of_the_watch(self, *of: Any) -> bool:
        assert self.clock.now_ms == NOW
        self.calls.append(("watch.on_message", *of))
        return self.is_of_the_watch

    def _take_touched(self) -> list[ChannelId]:
        assert self.clock.now_ms == NOW
        moved = self.moved.copy()
        self.moved.clear()
        return moved

    def of(self, act: Callable[[NodeRunner], None]) -> Calls:
        """The calls that an input leads to, without the end of a turn, which each has."""
        self.calls.clear()
        act(self.node)
        assert self.clock.now_ms == NOW
        assert self.calls[-2:] == END
        return self.calls[:-2]


# --- messages of peers ----------------------------------------------------------------------------


@pytest.mark.parametrize("channel", [FIRST, STRANGE])
def test_replication_goes_to_its_channel_and_creates_none(channel: ChannelId) -> None:
    """S0.8: given a message for a channel that is not here, nothing happens."""
    message = ReadIndexRequest(channel, Term(3), 1)
    calls = Bench().of(lambda node: node.on_peer_message(PEER, message, NOW - 5, NOW))
    told = [("first.on_replication", PEER, message, NOW)]
    assert calls == (told if channel == FIRST else [])


def test_messages_of_a_bundle_reach_their_channels_in_order() -> None:
    """Each as if it had come by itself."""
    each = tuple(ReadIndexRequest(channel, Term(3), 1) for channel in (SECOND, STRANGE, FIRST))
    bundle = ReplicationBundle((), (), (), each, ())
    calls = Bench().of(lambda node: node.on_peer_message(PEER, bundle, NOW, NOW))
    assert [call[0] for call in calls if "on_" in call[0]] == [
        "second.on_replication",
        "first.on_replication",
    ]
    assert calls[0][1:] == (PEER, each[0], NOW)


@pytest.mark.parametrize("channel", [FIRST, STRANGE])
def test_election_message_is_told_to_who_counts_failovers_and_to_the_channel(
    channel: ChannelId,
) -> None:
    """The count comes first: what the channel does with the message may end the failover."""
    bench, message = Bench(), TransferNow(channel, Term(3))
    calls = bench.of(lambda node: node.on_peer_message(PEER, message, NOW, NOW))
    runner = bench.channels[FIRST]
    expected = [
        ("_active.touch", FIRST),
        ("failovers.on_election", runner, message, NOW),
        ("first.on_election", PEER, message, NOW),
    ]
    assert calls == (expected if channel == FIRST else [])


def test_leadership_is_declined_while_space_is_low() -> None:
    """S9: it would be given away at once. Other messages of elections are taken."""
    bench = Bench()
    bench.node.space.__dict__["is_low"] = True
    transfer, term = TransferNow(FIRST, Term(3)), Term(3)
    assert bench.of(lambda node: node.on_peer_message(PEER, transfer, NOW, NOW)) == []
    vote = VoteReply(FIRST, term, term, granted=True)
    assert bench.of(lambda node: node.on_peer_message(PEER, vote, NOW, NOW)) != []


def test_messages_of_batches_go_to_the_batches() -> None:
    """Not to any channel by itself: they are of tables."""
    message = ResolveWriter(FIRST, Term(1), SECOND, ("w",))
    calls = Bench().of(lambda node: node.on_peer_message(PEER, message, NOW, NOW))
    assert calls == [("batches.on_message", PEER, message, NOW)]


def test_message_about_replica_snapshots_goes_to_them() -> None:
    """They are of no term, so no channel fences them."""
    bench, message = Bench(), AskSnapshotChunk(FIRST, 7, 0)
    calls = bench.of(lambda node: node.on_peer_message(PEER, message, NOW, NOW))
    assert calls == [("snapshots.on_message", PEER, message, NOW)]


def test_other_messages_are_offered_to_one_part_after_the_other() -> None:
    """The watch gets when the message arrived, and says whether it was for it (S12)."""
    bench, message = Bench(), LeadershipRequest()
    heard = ("watch.on_message", PEER, message, NOW - 5, NOW)
    assert bench.of(lambda node: node.on_peer_message(PEER, message, NOW - 5, NOW)) == [heard]
    bench.is_of_the_watch = False
    offered = ("retention.on_message", PEER, message)
    assert bench.of(lambda node: node.on_peer_message(PEER, message, NOW - 5, NOW)) == [
        heard,
        offered,
    ]
    bench.is_of_retention = False
    moved = ("leaders.on_message", PEER, message, NOW)
    calls = bench.of(lambda node: node.on_peer_message(PEER, message, NOW - 5, NOW))
    assert calls == [heard, offered, moved]
    bench.is_of_leaders = False
    reported = ("controller.on_message", PEER, message, NOW)
    calls = bench.of(lambda node: node.on_peer_message(PEER, message, NOW - 5, NOW))
    assert calls == [heard, offered, moved, reported]
    bench.is_of_reports = False
    repaired = ("repairs.on_message", PEER, message, NOW)
    calls = bench.of(lambda node: node.on_peer_message(PEER, message, NOW - 5, NOW))
    assert calls == [heard, offered, moved, reported, repaired]


# --- other inputs ---------------------------------------------------------------------------------


def test_node_that_starts_opens_channels_before_other_parts_begin() -> None:
    """S1.9: the catalog opens channels, and the others look at them."""

    def on_opened(done: int, total: int) -> None:
        """Take the progress."""

    calls = Bench().of(lambda node: node.start(NOW, on_opened))
    assert calls == [
        ("controller.start", NOW, on_opened),
        ("retention.start", NOW),
        ("healing.start", NOW),
        ("space.start", NOW),
    ]


def test_new_connection_to_a_leader_has_its_channels_probe_it_again() -> None:
    """Messages in flight are lost; channels of other leaders lost nothing."""
    calls = Bench().of(lambda node: node.on_peer_connected(PEER, "host-d:1", 7, NOW, "r1"))
    assert calls == [
        ("watch.on_connected", PEER, NOW),
        ("controller.on_introduced", PEER, "host-d:1", 7, "r1"),
        ("_active.touch", FIRST),
        ("first.on_leader_reachable_again", NOW),
    ]


@pytest.mark.parametrize("refused", [True, False])
def test_lost_connection_is_told_to_the_watch_and_to_transfers(refused: bool) -> None:
    """Whether nobody listens there any more is part of it (S1.8)."""
    calls = Bench().of(lambda node: node.on_peer_lost(PEER, NOW, refused=refused))
    lost = ("watch.on_lost", PEER, NOW, ("refused", refused))
    assert calls == [lost, ("snapshots.on_peer_lost", PEER, NOW)]


def test_messages_and_ends_of_clients_go_to_the_inbox() -> None:
    """S12: it knows what is held for each of them."""
    bench, message = Bench(), ClosePin(1, FIRST, b"p")
    calls = bench.of(lambda node: node.on_client_message(CLIENT, message, NOW))
    assert calls == [("inbox.on_message", CLIENT, message, NOW)]
    assert bench.of(lambda node: node.on_client_gone(CLIENT, NOW)) == [("inbox.on_gone", CLIENT)]


def test_durable_operation_releases_what_waited_before_channels_go_on() -> None:
    """S0.5: what they send next leaves behind it."""
    assert Bench().of(lambda node: node.on_log_durable(9, NOW)) == [
        ("outbox.release", 9),
        ("repairs.on_durable", 9),
        ("_schedule.on_log_durable", 9, NOW),
        ("snapshots.on_durable", NOW),
    ]


@pytest.mark.parametrize("channel", [FIRST, STRANGE])
def test_applied_records_are_told_to_their_channel(channel: ChannelId) -> None:
    """One that was closed while its records were being applied gets nothing."""
    calls = Bench().of(lambda node: node.on_applied(channel, Seq(4), ("c",), NOW, ("a",)))
    told = [("first.on_applied", 4, ("c",), NOW, ("a",))]
    assert calls == (told if channel == FIRST else [])


def test_long_read_that_is_done_is_told_to_the_reader() -> None:
    """With the time of the call: the read may be over meanwhile."""

    def done(now_ms: int) -> None:
        raise AssertionError(now_ms)

    assert Bench().of(lambda node: node.on_read(done, NOW)) == [("reader.on_read", done, NOW)]


@pytest.mark.parametrize("stall", [object(), None])
def test_disk_that_hangs_is_told_to_every_channel_with_the_nodes_reason(stall: Any) -> None:
    """S0.4: the guard judges first, since it is asked by what the channels do then."""
    assert Bench().of(lambda node: node.on_storage_stalled(stall, NOW)) == [
        ("guard.changed", stall),
        ("first.on_storage_stalled", "the disk hangs", NOW),
        ("second.on_storage_stalled", "the disk hangs", NOW),
    ]


@pytest.mark.parametrize(("due_ms", "is_due"), [(NOW, True), (NOW - 1, True), (NOW + 1, False)])
def test_timer_runs_whatever_may_be_due(due_ms: int, is_due: bool) -> None:
    """Channels first, and the watch when its own time has come."""
    bench = Bench()
    bench.watch.__dict__["due_ms"] = due_ms
    calls = bench.of(lambda node: node.on_timer(NOW))
    watch = [("watch.on_timer", NOW)] if is_due else []
    later = ["_idle", "reader", "controller", "hashes", "repairs", "space"]
    later += ["retention", "expirer", "leaders", "snapshots", "healing", "failovers", "batches"]
    others = [(f"{part}.on_timer", NOW) for part in later]
    assert calls == [("_schedule.on_timer", NOW), *watch, *others]


def test_node_is_due_with_the_first_of_its_parts() -> None:
    """The watch of peers is one of them."""
    bench = Bench()
    assert bench.node.next_deadline_ms() == 1_150
    bench.watch.__dict__["due_ms"] = 1_149
    assert bench.node.next_deadline_ms() == 1_149


def test_node_that_is_to_stop_drains() -> None:
    """S9: SIGTERM."""
    assert Bench().of(lambda node: node.begin_drain(NOW)) == [("drain.begin",)]


# --- the end of a call, and turns -----------------------------------------------------------------


def test_what_a_call_moved_is_looked_at_anew_at_once() -> None:
    """S7.3: reports and views; and failovers, if any is under way."""
    bench = Bench()
    bench.moved.extend([FIRST, SECOND, STRANGE])
    bench.node.failovers.under_way.update({SECOND: None})
    assert bench.of(lambda node: node.on_client_gone(CLIENT, NOW))[1:] == [
        ("positions.moved", FIRST, SECOND, STRANGE),
        ("views.moved", FIRST, SECOND, STRANGE),
        ("failovers.touched", [FIRST, SECOND, STRANGE], NOW),
    ]


@pytest.mark.parametrize("reason", [None, "two leaders"])
def test_calls_of_a_turn_settle_and_send_together(reason: str | None) -> None:
    """S0.4: one message to each peer instead of many; none once there is a reason to halt."""
    bench = Bench()
    node, bench.clock.now_ms = bench.node, NOW
    node.begin_turn()
    node.on_client_gone(CLIENT, NOW)
    bench.moved.append(FIRST)
    node.on_client_gone(CLIENT, NOW)
    before_end = [
        ("outbox.mail.hold",),
        ("inbox.on_gone", CLIENT),
        ("inbox.on_gone", CLIENT),
        ("positions.moved", FIRST),
        ("views.moved", FIRST),
    ]
    assert bench.calls == before_end
    bench.calls.clear()
    node.halt.reason = reason
    bench.clock.now_ms = 0
    node.end_turn(NOW)
    dropped = [("outbox.mail.drop",)] if reason is not None else []
    assert bench.calls == [*END, *dropped, ("outbox.mail.flush",)]
    assert bench.of(lambda node: node.on_client_gone(CLIENT, NOW)) == [("inbox.on_gone", CLIENT)]
