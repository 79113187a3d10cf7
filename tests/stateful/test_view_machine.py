"""The views that a node keeps of its channels equal a view computed from nothing.

Five simulated nodes, tables of three replicas, so that every node hosts some channels and knows
others by reports only. After every call into every engine the kept channels are compared with
``tests.unit.engine.view_oracle``; after every rule also as they would be later, with nothing
more having happened: when the last report of a leader is too old, for one.
"""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from raftstore.protocol.admin import (
    CreateTable,
    DropTable,
    EditTable,
    SeenHeartbeat,
    SeenLags,
    StepDown,
)
from raftstore.protocol.message import Message
from raftstore.protocol.payload import encode_mark, encode_rows
from raftstore.protocol.replica_orders import OrderReplicas
from raftstore.rows.sealing import seal
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.testing.sim_runner import WatchedRunner
from raftstore.types import ChannelId, MemberRole, RecordKind, Seq, node_name
from tests.unit.engine.engine_world import ask, publish, run
from tests.unit.engine.view_oracle import channels_of

NODES = 5
TABLES_MAX = 3
LATER_MS = (0, 1, 9_000, 10_001)
"""Within the age at which a leader's word counts, and beyond it."""

some = st.integers(0, NODES - 1)


def checked(after: Callable[[WatchedRunner], None]) -> Callable[[WatchedRunner], None]:
    """The end of a call into the engine, then a look at what it keeps."""

    def ended(runner: WatchedRunner) -> None:
        after(runner)
        compare(runner, runner.clock.now_ms)

    return ended


def compare(runner: WatchedRunner, now_ms: int) -> None:
    """The kept view and the one from nothing, at this moment."""
    kept = runner.views._build(now_ms).channels
    for seen, expected in zip(kept, channels_of(runner, now_ms), strict=True):
        assert seen == expected, runner.me


class ViewMachine(RuleBasedStateMachine):
    """Everything that may change what a node knows of a channel."""

    def __init__(self) -> None:
        super().__init__()
        self._watching = patch.object(WatchedRunner, "_after", checked(WatchedRunner._after))
        self._watching.start()
        self.counter = 0
        self.tables = 0

    @initialize(seed=st.integers(1, 50))
    def start(self, seed: int) -> None:
        """One table, and everybody well."""
        options = SimOptions(seed=seed, nodes=NODES, partitions=2, evict_percent=20)
        self.cluster = SimCluster(options)
        self.cluster.start()
        self.cluster.create_table(2)
        run(self.cluster, 4_000)
        assert self.cluster.table_channels

    def teardown(self) -> None:
        """Other tests run on the engine as it is."""
        self._watching.stop()

    @property
    def nodes(self) -> list[SimNode]:
        """All of them, in the order of their names."""
        return list(self.cluster.nodes.values())

    def after(self, ms: float) -> None:
        """Let this much time pass and look at everybody."""
        run(self.cluster, ms)
        for node in self.nodes:
            if node.runner is not None and not node.is_paused:
                for later_ms in LATER_MS:
                    compare(node.runner, node.clock.now_ms() + later_ms)

    def led(self, number: int) -> tuple[ChannelId, SimNode] | None:
        """A channel of a table with its leader."""
        leaders = self.cluster.leaders()
        metadata = self.cluster.expected_channels()[0]
        found = [(ChannelId(c), node) for c, node in sorted(leaders.items()) if c != metadata]
        return found[number % len(found)] if found else None

    def tell_metadata(self, message: Message) -> None:
        """A command of an operator, if somebody leads the catalog."""
        leader = self.cluster.leaders().get(self.cluster.expected_channels()[0])
        if leader is not None:
            ask(self.cluster, leader, message)
        self.after(600)

    # --- what may happen --------------------------------------------------------------------------

    @rule(which=st.integers(0, 9), marks=st.booleans(), ms=st.sampled_from((1, 20, 300)))
    def write(self, which: int, marks: bool, ms: int) -> None:
        """Rows, or the mark of a micro-batch: appended, acknowledged, committed, applied."""
        led = self.led(which)
        if led is None:
            return
        self.counter += 1
        payload = encode_rows([(b"k", seal(b"k", b"%d" % self.counter))])
        kind = RecordKind.ROWS
        if marks:
            payload, kind = encode_mark("w", self.counter), RecordKind.BATCH_MARK
        channel, leader = led
        message = publish(self.cluster, leader, channel, self.counter, payload, kind=kind)
        ask(self.cluster, leader, message)
        self.after(ms)

    @rule(ms=st.sampled_from((1, 30, 400, 1_100, 3_000)))
    def wait(self, ms: int) -> None:
        """Reports, heartbeats and timers; ages grow."""
        self.after(ms)

    @rule(which=some, kills=st.booleans())
    def stop(self, which: int, kills: bool) -> None:
        """A node dies; its peers see the connection break."""
        node = self.nodes[which]
        if sum(node.is_up for node in self.nodes) > NODES - 2:
            if kills:
                node.kill("drawn")
            else:
                node.crash("drawn")
        self.after(50)

    @rule()
    def boot(self) -> None:
        """Start every node that is down."""
        for node in self.nodes:
            if not node.is_up:
                node.boot()
        self.after(300)

    @rule(which=some, ms=st.sampled_from((200, 2_000)))
    def stand_still(self, which: int, ms: int) -> None:
        """A node is stopped and goes on: first it learns what waited."""
        node = self.nodes[which]
        node.pause()
        self.after(ms)
        node.resume()
        self.after(20)

    @rule(which=some)
    def cut(self, which: int) -> None:
        """A node is alone."""
        alone = self.nodes[which].node
        others = [node.node for node in self.nodes if node.node != alone]
        self.cluster.network.cut_groups([alone], [str(node) for node in others])
        self.after(700)

    @rule()
    def heal(self) -> None:
        """The network is whole again."""
        self.cluster.network.heal()
        self.cluster.reconnect_all()
        self.after(300)

    @rule(which=st.integers(0, 9))
    def hand_over(self, which: int) -> None:
        """A leader gives its channel away."""
        led = self.led(which)
        if led is not None:
            ask(self.cluster, led[1], StepDown(9, led[0]))
        self.after(200)

    @rule(to=some, about=some, table=st.integers(0, TABLES_MAX), seq=st.integers(0, 40))
    def say(self, to: int, about: int, table: int, seq: int) -> None:
        """Somebody posts the position of a replica over HTTP."""
        node = self.nodes[to]
        name = "t" if table == 0 else f"t{table}"
        lags = ((name, 0, Seq(seq), Seq(seq)), (name, 1, Seq(seq // 2), Seq(seq)))
        ask(self.cluster, node, SeenLags(11, self.nodes[about].node, 1, lags))
        ask(self.cluster, node, SeenHeartbeat(12, self.nodes[about].node, 1))
        self.after(30)

    @precondition(lambda self: self.tables < TABLES_MAX)
    @rule()
    def create(self) -> None:
        """A table of two partitions."""
        self.tables += 1
        name = f"t{self.tables}"
        self.tell_metadata(CreateTable(3, name, ("k",), 2, 3, "fsync", None, "", True, 2_000))

    @rule(table=st.integers(1, TABLES_MAX))
    def drop(self, table: int) -> None:
        """A table goes; its name may come back."""
        self.tell_metadata(DropTable(4, f"t{table}", 2_000))

    @rule(bound=st.integers(1, 9))
    def edit(self, bound: int) -> None:
        """The catalog becomes another, its channels stay."""
        for node in self.nodes:
            if node.runner is not None and "t" in node.runner.controller.catalog.tables:
                uuid = node.runner.controller.catalog.tables["t"].uuid
                self.tell_metadata(EditTable(5, "t", uuid, {"max_lag": bound}, 2_000))
                return

    @rule(
        partition=st.integers(0, 1),
        places=st.permutations(range(NODES)),
        last=st.sampled_from(MemberRole),
        ms=st.sampled_from((20, 1_000, 12_000)),
    )
    def order(self, partition: int, places: list[int], last: MemberRole, ms: int) -> None:
        """A channel's replicas become others; the last of them may be a reader or a witness."""
        names = [node_name(self.nodes[place].node) for place in places[:4]]
        learners = witnesses = ()
        if last is MemberRole.READER:
            names, learners = names[:3], (names[3],)
        elif last is MemberRole.WITNESS:
            witnesses = (names[2],)
        self.counter += 1
        channel = self.cluster.table_channels[partition]
        order = self.counter.to_bytes(16)
        voters = tuple(names[:3])
        self.tell_metadata(
            OrderReplicas(6, channel, voters, order, "", 2_000, learners, False, witnesses)
        )
        self.after(ms)


TestKeptViewsAreThoseFromNothing = pytest.mark.slow(ViewMachine.TestCase)
TestKeptViewsAreThoseFromNothing.settings = settings(
    max_examples=max(10, settings.default.max_examples // 5), stateful_step_count=25
)
