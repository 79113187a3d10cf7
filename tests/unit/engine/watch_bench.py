"""A watch of two peers, driven by hand: the test says what is heard, and sees what is concluded.

The channels are stand-ins that remember how they were called; their electors do what the test says.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from raftstore.config import ElectionSettings, HeartbeatSettings, LagSettings
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.peers.peer_watch import PeerWatch
from raftstore.policy.leadership import LeadershipDigest
from raftstore.ports.log import EMPTY_BASE
from raftstore.protocol.message import Message
from raftstore.protocol.node import ChannelPosition, Heartbeat, LagReport
from raftstore.types import (
    ChannelConfig,
    ChannelId,
    DiskRoom,
    NodeId,
    Role,
    Seq,
    Term,
    channel_id,
)

ME, ONE, TWO, FAR = (NodeId(name) for name in ("n1", "n2", "n3", "n4"))
TRIO = (ME, ONE, TWO)
BOOT = b"boot one"
WALL_MS = 1_700_000_000_000
HEARTBEAT = HeartbeatSettings()
ELECTION = ElectionSettings()
JITTER_MS = ELECTION.jitter_ms
"""What the bench draws is always the most there can be."""
SILENT_MS = HEARTBEAT.missed_threshold * HEARTBEAT.send_interval_ms


class Channel:
    """A replica here; ``stands`` says when it was asked to stand, and after how long."""

    def __init__(self, number: int, members: tuple[NodeId, ...], last_seq: int) -> None:
        self.channel = channel_id(b"t" * 16, number)
        self.name = f"t/{number}"
        self.elector = SimpleNamespace(
            role=Role.FOLLOWER, term=Term(1), leader=None, next_deadline_ms=lambda: self.due_ms
        )
        self.core = SimpleNamespace(
            last_seq=Seq(last_seq),
            number=0,
            known_leader_commit_seq=Seq(0),
            knows_position=True,
            config=lambda: ChannelConfig((members,)),
            chain_hash_at_commit=lambda: (Seq(0), b""),
            tell_batches=lambda _: 0,
            gaps=lambda: (Seq(last_seq), ()),
            base=EMPTY_BASE,
            proven_ms=None,
        )
        self.hole = None
        self.parts = SimpleNamespace(tables=SimpleNamespace(applied_seq=lambda _: Seq(0)))
        self.due_ms: int | None = None
        self.stands: list[tuple[int, int]] = []
        self.claims: list[tuple[NodeId, Term, int]] = []
        self.gave_up: list[tuple[str, int]] = []
        self.is_confirmed = True
        """Whether a quorum confirms the leadership when it is asked."""
        self.asked: list[int] = []

    def suspect_leader(self, delay_ms: int, now_ms: int) -> None:
        """Stand then."""
        self.due_ms = now_ms + delay_ms
        self.stands.append((now_ms, delay_ms))

    def on_leader_claim(self, leader: NodeId, term: Term, now_ms: int) -> None:
        """Somebody says that it leads."""
        self.claims.append((leader, term, now_ms))

    def on_peer_hash(self, *_: Any, **__: Any) -> None:
        """Histories are compared elsewhere."""

    def on_leader_position(self, *_: Any) -> None:
        """Ages are kept elsewhere."""

    def request_proof(self, until_ms: int, now_ms: int) -> None:
        """Ask the voters; their confirmations come at once."""
        assert until_ms > now_ms
        self.asked.append(now_ms)
        if self.is_confirmed:
            self.core.proven_ms = now_ms

    def step_down(self, reason: str, now_ms: int) -> None:
        """Lead no more."""
        self.gave_up.append((reason, now_ms))


class WatchBench:
    """The host of a watch, and the watch; what it sends and reports comes into lists."""

    def __init__(self, **settings: Any) -> None:
        self.me = ME
        self.identity = SimpleNamespace(http="", me=ME, boot_id=b"my boot.")
        self.clock = SimpleNamespace(wall_ms=lambda: WALL_MS)
        self.outbox = SimpleNamespace(send_known=self.send_control)
        self.failovers = self
        self.tell = self.event
        self.moved = lambda _: None
        self.disk_room = lambda: DiskRoom.PLENTY
        self.channels: dict[ChannelId, Channel] = {}
        self.ids = SimpleNamespace(below=lambda limit: limit - 1)
        self.sent: list[tuple[NodeId, Message]] = []
        self.events: list[dict[str, object]] = []
        self.nodes_suspected: list[tuple[NodeId, str, int | None]] = []
        self.leaders_suspected: list[tuple[str, str]] = []
        self.watch = PeerWatch(
            cast("Any", self),
            heartbeat=settings.pop("heartbeat", HEARTBEAT),
            election=ELECTION,
            lag=LagSettings(**settings),
        )
        for node in (ONE, TWO):
            self.watch.add_peer(node, 0)
            self.watch.on_connected(node, 0)
        self.events.clear()

    # --- what a watch needs of its node -----------------------------------------------------------

    def send_control(self, to: NodeId, message: Message) -> None:
        """To a peer."""
        self.sent.append((to, message))

    def exists(self, channel: ChannelId) -> bool:
        """Every channel is in the catalog."""
        return bool(channel)

    def event(self, name: str, **fields: object) -> None:
        """A line for the operator."""
        self.events.append({"name": name, **fields})

    def node_suspected(self, node: NodeId, cause: str, heard_ms: int | None, _: int) -> None:
        """A node is believed gone."""
        self.nodes_suspected.append((node, cause, heard_ms))

    def leader_suspected(self, runner: Channel, cause: str, _: int) -> None:
        """A leader is believed to lead no more."""
        self.leaders_suspected.append((runner.name, cause))

    # --- what happens -----------------------------------------------------------------------------

    def open(
        self,
        number: int = 0,
        leader: NodeId | None = None,
        *,
        members: tuple[NodeId, ...] = TRIO,
        last_seq: int = 10,
    ) -> Channel:
        """A channel that is here, and soon led by this node."""
        channel = Channel(number, members, last_seq)
        self.channels[channel.channel] = channel
        self.watch.channel_opened(cast("ChannelRunner", channel), 0)
        if leader is not None:
            self.led(channel, leader)
        channel.stands.clear()
        return channel

    def led(self, channel: Channel, leader: NodeId | None, term: int | None = None) -> None:
        """The elector finds a leader, or that there is none."""
        elector = channel.elector
        old = (elector.term, elector.role, elector.leader)
        elector.term = Term(elector.term + 1 if term is None else term)
        elector.leader = leader
        elector.role = Role.LEADER if leader == ME else Role.FOLLOWER
        channel.due_ms = None
        self.watch.leader_changed(cast("ChannelRunner", channel), old, 0)

    def beat(
        self,
        node: NodeId,
        now_ms: int,
        *leads: Channel,
        hears_me: bool = True,
        boot_id: bytes = BOOT,
        skew_ms: int = 0,
    ) -> None:
        """A heartbeat that claims these channels, each in the term that is believed here."""
        digest = LeadershipDigest()
        for channel in leads:
            digest.add(channel.channel, channel.elector.term)
        message = Heartbeat(boot_id, 1, WALL_MS + skew_ms, digest.value, hears_me)
        assert self.watch.on_message(node, message, now_ms, now_ms)

    def keep_alive(self, node: NodeId, until_ms: int, *leads: Channel, from_ms: int = 0) -> None:
        """Heartbeats up to then, in which nothing else is said."""
        for now_ms in range(from_ms, until_ms + 1, HEARTBEAT.send_interval_ms):
            self.beat(node, now_ms, *leads)

    def check(self, now_ms: int) -> None:
        """The timer, when it is due."""
        assert self.watch.due_ms <= now_ms
        self.watch.on_timer(now_ms)

    def runner(self, channel: Channel) -> ChannelRunner:
        """The channel, as the watch takes it."""
        return cast("ChannelRunner", channel)


def report(channel: Channel, last_seq: int, commit_seq: int = 0) -> LagReport:
    """Where a replica of the channel is."""
    at = ChannelPosition(
        channel.channel, Term(1), False, Seq(0), Seq(commit_seq), Seq(last_seq), b""
    )
    return LagReport(WALL_MS, (at,))


def tell(bench: WatchBench, node: NodeId, said: LagReport, now_ms: int = 0) -> None:
    """A report of the node arrives."""
    assert bench.watch.on_message(node, said, now_ms, now_ms)
