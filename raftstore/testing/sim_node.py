"""One simulated node: the production NodeRunner over simulated ports, with crashes and restarts.

What survives a crash is what the simulated log and tables kept; everything else (NodeRunner, core,
electors) is built anew from it, as in a real process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from raftstore.audit.settings import AuditSettings
from raftstore.config import LEVEL, NodeSettings
from raftstore.election.pysyncobj_elector import pysyncobj_elector_factory
from raftstore.engine.audit import EVENT as AUDIT_EVENT
from raftstore.engine.batches.failpoints import pass_answers, pass_message
from raftstore.engine.catalog.failpoints import pass_event
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.node_ports import NodeIdentity, NodePorts
from raftstore.errors import StorageError
from raftstore.protocol.members import JoinAccepted
from raftstore.protocol.message import Message
from raftstore.protocol.node import Heartbeat
from raftstore.protocol.replication import MsgSync
from raftstore.storage.log.group_commit import Batch
from raftstore.storage.log.writer import IDLE_MARK_S
from raftstore.testing.invariants import InvariantError
from raftstore.testing.sim_clock import WALL_START_MS, DriftingClock
from raftstore.testing.sim_disk import SimDisk
from raftstore.testing.sim_files import ProcessEndedError
from raftstore.testing.sim_host import SimHost
from raftstore.testing.sim_log import SimLog
from raftstore.testing.sim_runner import SimIds, WatchedRunner
from raftstore.testing.sim_store import Harm, SimStore
from raftstore.testing.sim_transport import SimTransport
from raftstore.types import NodeId, Role, Seq, StorageStall, node_name

FULL_LOOK_STEPS = 64
"""Every so many steps the oracle looks at all channels of the node, touched or not."""
READ_MIN_MS, READ_MAX_MS = 0.05, 5.0
"""How long the thread of long reads takes for one."""
WRITE_MS_MAX = 5.0
"""How long it takes at most until the system has a group commit; then it is synced."""
PAUSED_LOOK_MS = 50.0
"""How often a paused node is offered a broken connection."""
AUDIT: Final = AuditSettings(keys_per_million=1_000_000)
"""Nodes judge all that they answer: what their audit finds ends a world, rightly or not."""

WITHOUT_LINKS: Final = 0.25
"""So many nodes give their tables in pairs."""


class SimNode:
    """A named place with a disk, on which a NodeRunner lives most of the time."""

    def __init__(  # noqa: PLR0915 - one attribute after the other
        self,
        cluster: SimHost,
        node: NodeId,
        settings: NodeSettings,
        joined: JoinAccepted | None = None,
    ) -> None:
        """``joined``: the answer by which it became a node of the cluster; None: a founder."""
        self.cluster = cluster
        self._joined = joined
        self.node = node
        self.name = node_name(node)
        self.settings = replace(settings, audit=AUDIT)
        self.incarnation = 0
        self.runner: WatchedRunner | None = None
        # Of founders by name, so that their worlds stay; another node may have the same name later.
        label = self.name if joined is None else node
        self.store = SimStore(label, cluster.options.seed, self._reach_in_log)
        self.tables = cluster.make_tables()
        self.free_bytes: int | None = None
        """Of its disk; None: the node does not look."""
        self.level = LEVEL
        """Of the version that is installed here; it changes while the node is down."""
        self.known_levels: dict[NodeId, int] = {}
        """Peer -> the level that it reported on the last connection that this life made to it."""
        self.ends: list[tuple[float, str, str]] = []
        """When, how ("crash": the power went, or "kill") and why its processes ended."""
        self._rng = cluster.rng
        # Of its own, so that a world without long reads is the world that it was.
        self._read_rng = random.Random(f"{cluster.options.seed}/{self.name}")
        self._turn_rng = random.Random(f"turns {cluster.options.seed}/{self.name}")
        self._is_in_turn = False
        self._applying = self._reading = False
        self._timer_at: float | None = None
        self._heartbeats = 0
        self._steps = 0
        self._held: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []
        self.is_paused = False
        self.extra_sync_ms = 0.0
        """Each sync takes this much longer."""
        self.wall_offset_ms = 0.0
        """The wall clock shows this much more than it should."""
        self.refused: str | None = None
        """Why a node never starts from this disk: it is not the one the cluster knows (S0.1)."""
        self.failpoint: str | None = None
        """The node dies the next time it passes here."""
        self.is_dying = False
        """It passed there, and nothing it does before the present step ends reaches anybody."""
        self.held_sends: list[tuple[Callable[..., None], tuple[object, ...]]] | None = None
        self.tables.reach = self.reach
        links = random.Random(f"links {cluster.options.seed}/{self.name}").random()
        self.tables.has_links = links >= WITHOUT_LINKS
        self.clock = self._new_clock()
        self.disk = SimDisk(self, cluster.scheduler)

    # --- life -------------------------------------------------------------------------------------

    @property
    def crashes(self) -> int:
        """How often its process ended."""
        return len(self.ends)

    @property
    def is_up(self) -> bool:
        """A NodeRunner lives here now."""
        return self.runner is not None

    def boot(self) -> bool:
        """Start from what the disk holds, unless the disk is refused or fails; whether it runs."""
        assert self.runner is None
        if self.refused is not None or not self._open_store():
            if self.refused is not None:
                self.cluster.trace("refused", node=self.name, why=self.refused)
            return False
        self.incarnation += 1
        self._applying = self._reading = self._is_in_turn = False
        self._timer_at = None
        self.known_levels = {}
        self.clock = self._new_clock()
        cluster = self.cluster
        joined = self._joined
        identity = NodeIdentity(
            me=self.node,
            cluster_id=cluster.cluster_id,
            boot_id=self._rng.randbytes(8),
            members=tuple((node, node_name(node)) for node in cluster.founders),
            nodes=() if joined is None else joined.nodes,
            number=Seq(0) if joined is None else joined.number,
            advertise=self.name,
            level=self.level,
        )
        ports = NodePorts(
            log=self.log,
            tables=self.tables,
            transport=SimTransport(self),
            ids=SimIds(self._rng),
            elector_factory=pysyncobj_elector_factory(self.settings.election),
            wall_ms=self._wall_ms,
            on_halt=self._halt,
            on_event=self._event,
            stall=self.disk.stall,
            free_bytes=self._free_bytes,
            on_retired=self.retire,
            machines=cluster.machines,
        )
        self.runner = WatchedRunner(identity, ports, self.settings)
        self.runner.start(self.clock.now_ms())
        self._after_step()
        cluster.scheduler.after(0.0, self._heartbeat, self.incarnation)
        cluster.node_connected(self.node)
        return True

    def _free_bytes(self) -> int | None:
        if self.cluster.options.full_disk_percent:
            files = self.store.files
            return files.free_bytes(files.root)
        return self.free_bytes

    def _open_store(self) -> bool:
        """Start as a real node does with log and tables; False: it failed."""
        store = self.store
        try:
            store.open(self.tables, self.settings.storage)
        except ProcessEndedError:
            self.cluster.trace("crash", node=self.name, why="power loss during a start")
            store.crash()
        except StorageError as error:
            if store.must_refuse is None:
                self.cluster.trace("disk_error", node=self.name, error=str(error))
            else:
                self.refused = str(error)
        else:
            return True
        return False

    @property
    def log(self) -> SimLog:
        """The log of the present process, or of the last one."""
        return self.store.log

    def crash(self, why: str) -> None:
        """Lose everything volatile, and a random part of what was not synced."""
        if self.runner is None:
            return
        self._die("crash", why)
        self.store.crash()
        self.tables.crash(self._rng)
        self.cluster.node_gone(self.node)

    def kill(self, why: str) -> None:
        """End the process: what the system was handed survives, what the process held does not."""
        if self.runner is None:
            return
        self._die("kill", why)
        self.store.kill()
        self.tables.crash(self._rng, keeps_all=True)
        self.cluster.node_gone(self.node)

    def damage(self, why: str, harm: Harm) -> bool:
        """End the process some time after its last write, then do ``harm`` to what it wrote, which
        the mark has to notice (S0.3). Returns whether there was anything to harm."""
        if self.runner is None:
            return False
        self._die("crash", why)
        is_harmed = self.store.damage(harm)
        self.tables.crash(self._rng)
        self.cluster.node_gone(self.node)
        return is_harmed

    def retire(self, reason: str) -> None:
        """End the process behind the present step: the node has left the cluster for ever (M27)."""
        self.cluster.scheduler.after(0.0, self._leave, self.incarnation, reason)

    def _leave(self, incarnation: int, reason: str) -> None:
        if incarnation == self.incarnation and self.runner is not None:
            self.kill("retired")
            self.lose(reason)

    def lose(self, reason: str) -> None:
        """Its disk is never started from again; the process has ended."""
        assert self.runner is None
        self.refused = reason
        self.cluster.node_left(self.node)

    def pause(self) -> None:
        """SIGSTOP: nothing happens here until ``resume``; what arrives waits, clocks go on."""
        if self.runner is not None:
            self.is_paused = True

    def resume(self) -> None:
        """SIGCONT: everything that waited happens now, in order."""
        self.is_paused = False
        held, self._held = self._held, []
        for incarnation, action, arguments in held:
            if incarnation == self.incarnation and self.runner is not None:
                action(*arguments)

    def shift_clock(self, *, jump_ms: float, rate: float) -> None:
        """The monotonic clock jumps ahead and runs at this rate until the node restarts."""
        if self.runner is not None:
            self.clock.shift(jump_ms=jump_ms, rate=rate)
            self._timer_at = None
            self._arm_timer(self.runner)

    def reach(self, failpoint: str) -> bool:
        """The node passes a named place; True when it dies there (nothing leaves it any more)."""
        if failpoint == self.failpoint:
            self.failpoint = None
            self.is_dying = True
            self.cluster.trace("failpoint", node=self.name, at=failpoint)
        return self.is_dying

    def _reach_in_log(self, failpoint: str) -> bool:
        """The log passes a named place; True when the node dies there."""
        return self.failpoint is not None and self.runner is not None and self.reach(failpoint)

    def _ends_here(self, failpoint: str) -> bool:
        """Between steps: pass a named place and, if ordered, die there."""
        if self.failpoint is not None and self.reach(failpoint):
            self.kill(f"failpoint {failpoint}")
        return self.runner is None

    def _has_died(self) -> bool:
        """Note that it passed its failpoint: nothing more happens here."""
        if self.is_dying:
            self.kill("failpoint")
        return self.runner is None

    def _die(self, how: str, why: str) -> None:
        self.runner = None
        self.ends.append((self.cluster.scheduler.now_ms, how, why))
        self.is_paused = self.is_dying = False
        self._held = []
        self.cluster.trace(how, node=self.name, why=why)

    def _waits(self, action: Callable[..., None], *arguments: object) -> bool:
        """Keep the action for later when the node is paused."""
        if self.is_paused:
            self._held.append((self.incarnation, action, arguments))
        return self.is_paused

    # --- inputs -----------------------------------------------------------------------------------

    def on_message(self, sender: NodeId, message: Message) -> None:
        """A peer's message arrived."""
        runner = self.runner
        if runner is None or (self.is_paused and self._waits(self.on_message, sender, message)):
            return
        if self.failpoint is not None:
            pass_message(message, self.reach)
            if self._has_died():
                return
        is_sync = self.failpoint is not None and type(message) is MsgSync
        if is_sync and self._ends_here("catch-up.before-store"):
            return
        now = self.clock.now_ms()
        self._enter_turn(runner)
        runner.on_peer_message(sender, message, now, now)
        if type(message) is Heartbeat and not runner.looked_at:
            return  # only the time of a peer's last sign has changed, and no timer with it
        self._after_step()
        if is_sync:
            self._ends_here("catch-up.after-store")

    def on_client_message(self, client: int, message: Message) -> None:
        """A client's message arrived."""
        if self.is_paused and self._waits(self.on_client_message, client, message):
            return
        if self.failpoint is not None:
            pass_message(message, self.reach)
        if self.runner is not None and not self._has_died():
            self._enter_turn(self.runner)
            self.runner.on_client_message(client, message, self.clock.now_ms())
            self._after_step()

    def on_peer_connected(self, node: NodeId, level: int) -> None:
        """A connection to a peer was established."""
        if self.runner is not None and not self._waits(self.on_peer_connected, node, level):
            self.known_levels[node] = level
            self.runner.on_peer_connected(node, node_name(node), level, self.clock.now_ms())
            self._after_step()

    def on_stranger(self, node: NodeId, advertise: str) -> None:
        """A peer was refused, since this node does not know it."""
        if self.runner is not None and not self._waits(self.on_stranger, node, advertise):
            self.runner.controller.on_stranger(node, advertise, self.clock.now_ms())
            self._after_step()

    def on_peer_lost(self, node: NodeId, *, refused: bool) -> None:
        """A connection to a peer broke."""
        if self.is_paused:
            self.cluster.scheduler.after(PAUSED_LOOK_MS, self._lost_later, node, refused)
        elif self.runner is not None:
            self.runner.on_peer_lost(node, self.clock.now_ms(), refused=refused)
            self._after_step()

    def _lost_later(self, node: NodeId, refused: bool) -> None:  # noqa: FBT001 - a timer's argument
        self.on_peer_lost(node, refused=refused)

    def hand_over_all(self) -> None:
        """An operator asks every leader here to hand over (S9)."""
        if self.runner is not None and not self.is_paused:
            now = self.clock.now_ms()
            for runner in list(self.runner.channels.values()):
                if runner.elector.role is Role.LEADER:
                    runner.request_hand_over(None, "asked", now)
            self.runner.on_timer(now)
            self._after_step()

    # --- driving ----------------------------------------------------------------------------------

    def _enter_turn(self, runner: WatchedRunner) -> None:
        """Gather what arrives from now on in one turn for a while, in worlds with turns."""
        most_ms = self.cluster.options.turn_max_ms
        if most_ms and not self._is_in_turn:
            self._is_in_turn = True
            runner.begin_turn()
            lasts_ms = self._turn_rng.uniform(0.0, most_ms)
            self.cluster.scheduler.after(lasts_ms, self._end_turn, self.incarnation)

    def _end_turn(self, incarnation: int) -> None:
        if incarnation != self.incarnation or self.runner is None:
            return
        if self.is_paused and self._waits(self._end_turn, incarnation):
            return
        self._is_in_turn = False
        self.runner.end_turn(self.clock.now_ms())
        self._after_step()

    def _after_step(self) -> None:
        runner = self.runner
        if runner is None:
            return
        if self.is_dying:
            self.kill("failpoint")
            return
        self._steps += 1
        if self._steps % FULL_LOOK_STEPS == 0:
            changed: Iterable[ChannelRunner] = runner.channels.values()
            runner.looked_at.clear()
        else:
            changed = runner.take_changed()
        self.cluster.oracle.after_step(self.node, self.incarnation, changed)
        if runner.halt.reason is not None:
            self.crash(f"halted: {runner.halt.reason}")
            return
        if self.store.batch is None and self.store.log.is_behind():
            self._start_sync()
        if not self._applying and self.tables.has_queued():
            self._start_apply()
        if not self._reading and self.tables.has_reads():
            self._start_read()
        self._arm_timer(runner)

    def _start_sync(self) -> None:
        batch = self.store.begin()
        delay = self._rng.uniform(
            self.cluster.options.sync_min_ms, self.cluster.options.sync_max_ms
        )
        delay += self.extra_sync_ms
        if batch.is_awaited:
            after_ms = self._rng.uniform(0.0, min(delay, WRITE_MS_MAX))
            self.cluster.scheduler.after(after_ms, self._written, self.incarnation, batch)
        self.cluster.scheduler.after(delay, self.sync_completed, self.incarnation, batch)

    def on_disk_stall(self, stall: StorageStall | None) -> None:
        """The watchdog reports that the disk hangs, or goes on."""
        if self.runner is not None and not self._waits(self.on_disk_stall, stall):
            self.runner.on_storage_stalled(stall, self.clock.now_ms())
            self._after_step()

    def sync_completed(self, incarnation: int, batch: Batch) -> None:
        """The log writer has finished a group commit, unless the disk hangs."""
        if incarnation != self.incarnation or self.runner is None:
            return
        if self.is_paused and self._waits(self.sync_completed, incarnation, batch):
            return
        if self.disk.holds(incarnation, batch) or not self._commit(batch):
            return
        self.runner.on_log_durable(self.log.completed(batch), self.clock.now_ms())
        self._after_step()
        if self.is_up and self.store.batch is None:
            after = self.cluster.scheduler.after
            after(IDLE_MARK_S * 1_000, self._mark_when_idle, incarnation, self.store.commits)

    def _written(self, incarnation: int, batch: Batch) -> None:
        """The log writer has handed a group commit to the system (S0.6), unless the disk hangs."""
        if incarnation != self.incarnation or self.runner is None or batch is not self.store.batch:
            return
        if self.is_paused and self._waits(self._written, incarnation, batch):
            return
        if not self.disk.is_hanging and self._does(self.store.write, batch):
            self.runner.on_log_written(batch.operation, self.clock.now_ms())
            self._after_step()

    def _commit(self, batch: Batch | None) -> bool:
        """Do what the log writer's thread does; False when the node ended meanwhile."""
        return self._does(self.store.commit, batch)

    def _does(self, step: Callable[[Any], None], batch: Batch | None) -> bool:
        try:
            step(batch)
        except ProcessEndedError:
            self.kill("failpoint")
            return False
        except StorageError as error:
            self.cluster.trace("disk_error", node=self.name, error=str(error))
            end = self.kill if self.store.rng.random() < 0.5 else self.crash
            end(f"disk error: {error}")
            return False
        return True

    def _mark_when_idle(self, incarnation: int, commits: int) -> None:
        """The log writer lets the mark cover everything when nothing was written for a while."""
        store = self.store
        is_idle = store.batch is None and store.commits == commits
        if incarnation != self.incarnation or self.runner is None or not is_idle:
            return
        if not (self.is_paused or self.disk.is_hanging):
            self._commit(None)

    def _start_apply(self) -> None:
        self._applying = True
        delay = self._rng.uniform(0.05, self.cluster.options.apply_max_ms)
        self.cluster.scheduler.after(delay, self._applied, self.incarnation)

    def _applied(self, incarnation: int) -> None:
        if incarnation != self.incarnation or self.runner is None:
            return
        if self.is_paused and self._waits(self._applied, incarnation):
            return
        self._applying = False
        if self._ends_here("table.before-apply"):
            return
        if not self.tables.has_queued():  # the channel was closed meanwhile
            self._after_step()
            return
        channel, applied_seq, conflicts, answers = self.tables.apply_next()
        if self.failpoint is not None:
            pass_answers(answers, self.reach)
        if self._has_died() or self._ends_here("table.after-apply"):
            return
        self.runner.on_applied(channel, applied_seq, conflicts, self.clock.now_ms(), answers)
        self._after_step()

    def _start_read(self) -> None:
        self._reading = True
        delay = self._read_rng.uniform(READ_MIN_MS, READ_MAX_MS)
        self.cluster.scheduler.after(delay, self._read, self.incarnation)

    def _read(self, incarnation: int) -> None:
        if incarnation != self.incarnation or self.runner is None:
            return
        if self.is_paused and self._waits(self._read, incarnation):
            return
        self._reading = False
        try:
            done = self.tables.read_next()
        except StorageError as error:
            self.cluster.trace("disk_error", node=self.name, error=str(error))
            self.crash(f"disk error: {error}")
            return
        self.runner.on_read(done, self.clock.now_ms())
        self._after_step()

    def _arm_timer(self, runner: WatchedRunner) -> None:
        due = self.clock.virtual_ms(runner.next_deadline_ms())
        armed = self._timer_at
        if armed is not None and due >= armed - 0.001:
            return  # mostly: it wakes early enough already
        due = max(due, self.cluster.scheduler.now_ms)
        if armed is None or due < armed - 0.001:
            self._timer_at = due
            self.cluster.scheduler.at(due, self._timer, self.incarnation, due)

    def _timer(self, incarnation: int, due: float) -> None:
        if incarnation != self.incarnation or self.runner is None or due != self._timer_at:
            return
        if self.is_paused and self._waits(self._timer, incarnation, due):
            return
        self._timer_at = None
        now = self.clock.now_ms()
        if now >= self.runner.next_deadline_ms():
            self.runner.on_timer(now)
            percent = self.cluster.options.evict_percent
            if percent and self._rng.random() * 100 < percent:
                self._evict(self.runner)
        self._after_step()
        self._avoid_spinning(incarnation, due)

    def _avoid_spinning(self, incarnation: int, due: float) -> None:
        """Rounding of a drifting clock: look again a moment later."""
        if self._timer_at is not None and self._timer_at <= due and self.is_up:
            self._timer_at = due + 0.5
            self.cluster.scheduler.at(self._timer_at, self._timer, incarnation, self._timer_at)

    @staticmethod
    def _evict(runner: WatchedRunner) -> None:
        for channel in runner.channels.values():
            channel.elector.evict()

    def _heartbeat(self, incarnation: int) -> None:
        """The control thread of a real node: sends on its own, whatever the loop does."""
        if incarnation != self.incarnation or self.runner is None:
            return
        if self.is_paused and self._waits(self._heartbeat, incarnation):
            return
        self._heartbeats += 1
        self.cluster.look_at_peers(self)
        for peer, (digest, hears) in self.runner.watch.heartbeats().items():
            beat = Heartbeat(
                self.runner.identity.boot_id, self._heartbeats, self._wall_ms(), digest, hears
            )
            self.cluster.network.send(self.node, peer, beat)
        interval = self.settings.heartbeat.send_interval_ms / self.clock.rate
        self.cluster.scheduler.after(interval, self._heartbeat, incarnation)

    # --- ports ------------------------------------------------------------------------------------

    def _new_clock(self) -> DriftingClock:
        spread = self.cluster.options.clock_rate_spread
        return DriftingClock(
            self.cluster.scheduler,
            start_ms=self.cluster.rng.uniform(0.0, 1e6),
            rate=1.0 + self.cluster.rng.uniform(-spread, spread),
        )

    def _wall_ms(self) -> int:
        return WALL_START_MS + int(self.cluster.scheduler.now_ms + self.wall_offset_ms)

    def _halt(self, reason: str) -> None:
        self.cluster.halted(self.name, reason)

    def _event(self, name: str, fields: dict[str, object]) -> None:
        if self.failpoint is not None:
            pass_event(name, self.reach)
        self.cluster.trace(name, node=self.name, **fields)
        # What a client reports it says itself; none in a world has an audit, but some are rude.
        if name == AUDIT_EVENT and fields["source"] == "node":
            raise InvariantError(f"the audit of {self.name} found {fields['kind']}: {fields}")
