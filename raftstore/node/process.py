"""The composition root: settings -> store, network, engine, threads; runs until it is stopped.

Exit codes: 0 after SIGTERM or SIGINT (leadership handed over, everything synced), 75 in the same
way because a replica here cannot catch up and the settings say so, 70 after a storage failure or an
impossible state (S0.4: nothing is answered any more), 78 for a configuration or a data directory
that cannot be used (nothing was touched).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from raftstore import faults
from raftstore.config import LEVEL, NodeSettings
from raftstore.election.conformance import check_pysyncobj
from raftstore.election.pysyncobj_elector import pysyncobj_elector_factory
from raftstore.engine.batches.failpoints import pass_answers, pass_message
from raftstore.engine.catalog.failpoints import pass_event
from raftstore.engine.node_ports import (
    CLIENT_HANDLE_SELF,
    NodeIdentity,
    NodePorts,
    retirement,
)
from raftstore.engine.node_runner import NodeRunner
from raftstore.errors import ConfigError, StorageError
from raftstore.metrics import Histogram, Sample
from raftstore.node.bootstrap.founding import Founding, refusal_before_birth, waits_for_founders
from raftstore.node.bootstrap.introductions import Introductions
from raftstore.node.bootstrap.joining import Joining
from raftstore.node.bootstrap.opening import open_port_and_store
from raftstore.node.bootstrap.starting import Start
from raftstore.node.ending import EXIT_STORAGE, end_process
from raftstore.node.engine_events import log_event
from raftstore.node.http_port import HttpPort, StartHttp
from raftstore.node.kept_events import KeptEvents
from raftstore.node.limits import within_open_files
from raftstore.node.logs import drain_lines, fields, lines_aside, lines_by_turn
from raftstore.node.machines import InstalledMachines
from raftstore.node.measured import measured
from raftstore.node.older_version import act_as
from raftstore.node.system_clock import elapsed_s, monotonic_ms, wall_ms
from raftstore.node.system_ids import SystemIds
from raftstore.node.turns import Turns
from raftstore.node.watchdog import Watchdog
from raftstore.ports.tables import Answers, Conflicts, ReadDone
from raftstore.protocol.admin import Checkpoint
from raftstore.protocol.message import Message
from raftstore.protocol.node import Hello
from raftstore.protocol.replication import MsgSync
from raftstore.protocol.tickets import parse_token
from raftstore.storage.identity import Belonging, Members, StoreIdentity
from raftstore.storage.log.writer import LogWriter
from raftstore.storage.presence import PresenceWatch
from raftstore.storage.stalls import StallWatch
from raftstore.storage.store import Store
from raftstore.storage.tables.tables_directory import channels_in
from raftstore.transport.accepting import FileReserve
from raftstore.transport.dialer import tell_failure
from raftstore.transport.endpoints import format_endpoint
from raftstore.transport.event_loop import new_event_loop
from raftstore.transport.handshake import Identity
from raftstore.transport.peers import PeerNetwork
from raftstore.types import ChannelId, NodeId, RequestId, Seq, StorageStall, node_name

logger = logging.getLogger("raftstore.node")

EXIT_OK: Final = 0
EXIT_SLOW: Final = 75
EXIT_CONFIG: Final = 78
UMASK: Final = 0o077
"""What the node makes is its user's alone: LevelDB asks for files that everybody may read."""
DRAIN_TIMEOUT_S: Final = 3.0


class NodeProcess:
    """One node, from opening its directory to its exit code. Implements ``NetworkHandler``."""

    def __init__(self, settings: NodeSettings, start_http: StartHttp | None = None) -> None:
        self._settings = settings
        self._files = FileReserve.of_process(settings.storage.files_reserved)
        self._http = HttpPort(settings, start_http, self._files)
        self._loop = asyncio.get_running_loop()
        self._ids = SystemIds()
        self._stop = asyncio.Event()
        self._runner: NodeRunner | None = None
        self._writer: LogWriter | None = None
        self._network: PeerNetwork | None = None
        self._store: Store | None = None
        self._presence: PresenceWatch | None = None
        self._founding: Founding | None = None
        self._turns: Turns | None = None
        self._introductions: Introductions | None = None
        self._meeting: asyncio.Task[None] | None = None
        self._refused: ConfigError | None = None
        self._exit_code = EXIT_OK
        self._endpoints: dict[NodeId, str] = {}
        self._advertise = settings.advertise
        self._level = act_as(faults.level(LEVEL))
        self._stalls = StallWatch()
        self._watchdog: Watchdog | None = None

    # --- life -------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Start, serve, stop; return the exit code."""
        self._loop.set_exception_handler(self._on_loop_exception)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop.set)
        self._loop.add_signal_handler(signal.SIGUSR1, self._checkpoint)
        self._watchdog = watchdog = Watchdog(
            self._stalls, self._settings.storage, node=self._settings.name, end=self._panic
        )
        try:
            return await self._live(watchdog)
        finally:
            watchdog.close()

    async def _live(self, watchdog: Watchdog) -> int:
        listener, store = await open_port_and_store(
            self._settings, self._http, self._stop, self._stalls
        )
        if store is None:
            return EXIT_OK
        self._store = store
        self._presence = store.watch_presence(self._on_directory_gone)
        for note in store.notes:
            logger.warning(note)
        host, port = listener.getsockname()[:2]
        self._advertise = self._advertise or format_endpoint(host, port)
        network = PeerNetwork(
            self._identity(),
            listener,
            self,
            transport=self._settings.transport,
            heartbeat=self._settings.heartbeat,
            files=self._files,
            now_ms=monotonic_ms,
            wall_ms=wall_ms,
        )
        self._network = network
        where = fields(endpoint=self._advertise, http=self._http.endpoint, pid=os.getpid())
        logger.info("listening", extra=where)
        try:
            if await self._be_born(store, network):
                self._start(store, network)
                self._meet_members(store)
                await self._stop.wait()
                watchdog.stopping()
                await asyncio.to_thread(self._http.stop)  # what it has under way needs the node
                if self._refused is None:
                    await self._drain()
        finally:
            await self._close(store, network)
        if self._refused is not None:
            raise self._refused
        logger.info("stopped", extra=fields(exit_code=self._exit_code))
        return self._exit_code

    async def _be_born(self, store: Store, network: PeerNetwork) -> bool:
        """S0.7: found the cluster with the others, unless the store belongs to one already."""
        self._founding = founding = Founding(
            store.identity, self._settings, self._advertise, self._identity, self._ids.uuid()
        )
        if self._settings.join and not store.identity.cluster_id:
            Start(self._http.facts, monotonic_ms).enters(
                "joining", "waits to be taken into its cluster; ask another node"
            )
            token = parse_token(self._settings.join)
            joining = Joining(store.identity, token, self._advertise, self._level)
            if not await joining.wait_until_joined(self._stop):
                return False
        if not store.identity.cluster_id:
            Start(self._http.facts, monotonic_ms).enters(
                "founding", waits_for_founders(self._settings)
            )
        if not await founding.wait_until_born(self._stop):
            return False
        first = store.identity.nodes_at_joining or store.identity.members
        members = dict(first) | dict(self._configured(store))
        self._endpoints = members | {store.identity.node: self._advertise}
        network.born(self._identity(), self._endpoints)
        return True

    def _configured(self, store: Store) -> Members:
        """The founding members where the configuration says they are now.

        Addresses may change, all of them at once too; who answers there is checked (S0.7).
        """
        configured = dict(self._settings.initial_cluster)
        return tuple(
            (node, configured[node_name(node)])
            for node, _ in store.identity.members
            if node_name(node) in configured
        )

    def _node_identity(self, store: Store) -> NodeIdentity:
        identity = store.identity
        return NodeIdentity(
            me=identity.node,
            cluster_id=identity.cluster_id,
            boot_id=identity.boot_id,
            members=identity.members,
            nodes=identity.nodes_at_joining,
            number=Seq(identity.number),
            configured=self._configured(store),
            advertise=self._advertise,
            pid=os.getpid(),
            http=self._http.endpoint,
            level=self._level,
            failure_domain=self._settings.failure_domain,
        )

    def _with_its_past(self, runner: NodeRunner) -> NodeRunner:
        """N8: failovers that earlier lives of the node noticed are reported, too."""
        kept = KeptEvents(Path(self._settings.data_dir))
        runner.ring.restore(kept.events())
        runner.ring.keep = kept.keep
        return runner

    def _ports(self, store: Store, network: PeerNetwork, watchdog: Watchdog) -> NodePorts:
        """The outside of the node as the engine sees it."""
        return NodePorts(
            log=store.log,
            tables=store.tables,
            transport=network,
            ids=self._ids,
            elector_factory=pysyncobj_elector_factory(self._settings.election),
            wall_ms=wall_ms,
            on_halt=self._panic,
            on_give_up=self._give_up,
            on_retired=self._retire,
            on_event=self._on_event,
            stall=watchdog.stall,
            free_bytes=lambda: store.space.newest,
            reserve_bytes=lambda: store.space.reserve.kept_bytes,
            extra_status=lambda: {"traffic": network.traffic.totals()},
            extra_metrics=self._measured,
            machines=InstalledMachines(self._settings.machines.directories, self._on_finding),
        )

    def _on_finding(self, name: str, values: dict[str, object]) -> None:
        """On the thread that imports a user's machine: an event of the node, on its own thread."""

        def tell() -> None:
            if self._runner is None:
                log_event(name, values)
            else:
                self._runner.events.tell(name, **values)

        with suppress(RuntimeError):  # the loop is closed: the process is about to end
            self._loop.call_soon_threadsafe(tell)

    @staticmethod
    def _on_event(name: str, values: dict[str, object]) -> None:
        if faults.armed is not None:
            pass_event(name, faults.reach)
        log_event(name, values)

    def _start(self, store: Store, network: PeerNetwork) -> None:
        identity, watchdog = store.identity, self._watchdog
        assert watchdog is not None
        runner = NodeRunner(
            self._node_identity(store), self._ports(store, network, watchdog), self._settings
        )
        post = self._loop.call_soon_threadsafe
        self._writer = LogWriter(
            store.log,
            post=post,
            on_durable=self._on_durable,
            on_failed=self._on_storage_error,
            now_ms=monotonic_ms,
            stalls=self._stalls,
            on_written=self._on_written,
        )
        store.tables.start(
            post=post,
            on_applied=self._on_applied,
            on_failed=self._on_storage_error,
            on_read=self._on_read,
            stalls=self._stalls,
            clock_s=elapsed_s,
            requests=lambda: runner.meters.requests_begun,
        )
        self._runner = self._with_its_past(runner)
        self._turns = Turns(
            runner,
            self._writer,
            network,
            endpoints=self._endpoints,
            queued_bytes=store.tables.queued_bytes,
            on_turn=self._http.facts.turned,
            queued_bytes_max=self._settings.storage.apply_queue_bytes_max,
        )
        self._turns.begin()
        self._open_channels(runner, identity)
        watchdog.attend(post, self._on_stall)
        self._turns.long_lived.started(len(runner.channels))
        logger.info(
            "started",
            extra=fields(
                id=identity.node,
                cluster=identity.cluster_id.hex(),
                channels=len(runner.channels),
                log_bytes=store.log.size_bytes(),
            ),
        )

    def _open_channels(self, runner: NodeRunner, identity: StoreIdentity) -> None:
        """Learn what log and tables hold of each, which may take long; then the node serves."""
        start = Start(self._http.facts, monotonic_ms)
        start.enters("opening_channels", "opens its channels; ask another node, or retry later")
        runner.start(monotonic_ms(), partial(start.has_opened, "opening_channels", "channels"))
        self._http.facts.belongs_to(identity.node, identity.cluster_id)

    def _measured(self) -> tuple[tuple[Sample, ...], tuple[Histogram, ...]]:
        """Metrics of the threads, the disk and the database of this process."""
        assert self._store is not None
        assert self._writer is not None
        assert self._network is not None
        assert self._turns is not None
        return measured(
            self._store.tables,
            files=self._files,
            clients=self._network.client_samples(),
            fsyncs=self._writer.commit_times,
            beats=self._network.beats_late,
            turns=self._turns.lateness,
        )

    def _meet_members(self, store: Store) -> None:
        """S0.7: among members of another cluster this node would only be refused, for ever."""
        identity = store.identity
        self._introductions = introductions = Introductions(
            self._settings,
            Belonging(
                identity.node, identity.cluster_id, identity.members, identity.nodes_at_joining
            ),
        )

        async def meet() -> None:
            try:
                await introductions.watch()
            except ConfigError as error:
                self._refused = error
                self._stop.set()

        self._meeting = self._loop.create_task(meet())
        self._meeting.add_done_callback(tell_failure)

    async def _drain(self) -> None:
        """Hand every leadership over, bounded in time (S9)."""
        runner = self._runner
        assert runner is not None
        logger.info("stopping", extra=fields(reason="signal"))
        assert self._turns is not None
        self._turns.begin()
        runner.begin_drain(monotonic_ms())
        deadline = self._loop.time() + DRAIN_TIMEOUT_S
        # The engine notifies no one when it is done.
        while not runner.drain.is_done() and self._loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def _close(self, store: Store, network: PeerNetwork) -> None:
        if self._watchdog is not None:
            self._watchdog.stopping()
        await asyncio.to_thread(self._http.stop)
        if self._turns is not None:
            self._turns.close()
        if self._meeting is not None:
            self._meeting.cancel()
            await asyncio.wait({self._meeting})
        if self._founding is not None:
            await self._founding.close()
        await network.close()
        self._runner = None
        if self._writer is not None:
            self._writer.stop()
            await asyncio.sleep(0)  # the completion of the last group commit is on its way
        if self._presence is not None:
            self._presence.stop()
        try:
            store.log.flush()
            store.log.take_promises_back()  # S0.6, NATS-017: all is synced
        except StorageError as error:
            self._panic(str(error))
        store.close(is_clean=True)

    # --- NetworkHandler ---------------------------------------------------------------------------

    def on_peer_message(self, peer: NodeId, message: Message, arrived_ms: int) -> None:
        """A message of an authenticated peer."""
        runner = self._in_turn()
        if runner is not None:
            is_history = type(message) is MsgSync
            now_ms = arrived_ms  # it was read just now
            if faults.armed is not None:
                if is_history:
                    faults.reach("catch-up.before-store")
                pass_message(message, faults.reach)
                now_ms = monotonic_ms()
            runner.on_peer_message(peer, message, arrived_ms, now_ms)
            if is_history:
                self._end_turn()
                faults.reach("catch-up.after-store")

    def on_peer_connected(self, peer: NodeId, hello: Hello) -> None:
        """Our bulk connection to the peer is open."""
        if self._founding is not None:
            self._founding.on_member_connected(peer)
        if self._introductions is not None:
            self._introductions.on_accepted()
        runner = self._in_turn()
        if runner is not None:
            runner.on_peer_connected(
                peer, hello.advertise, hello.level, monotonic_ms(), hello.failure_domain
            )

    def on_peer_lost(self, peer: NodeId, *, refused: bool) -> None:
        """A connection from or to the peer broke, or nobody listens there."""
        runner = self._in_turn()
        if runner is not None:
            runner.on_peer_lost(peer, monotonic_ms(), refused=refused)

    def on_stranger(self, node: NodeId, advertise: str) -> None:
        """A peer of this cluster was refused, since this node does not know it."""
        runner = self._in_turn()
        if runner is not None:
            runner.controller.on_stranger(node, advertise, monotonic_ms())

    def on_retired(self) -> None:
        """M27: it was away when the catalog said so, and gets no catalog any more."""
        assert self._store is not None
        identity = self._store.identity
        self._retire(retirement(identity.node, identity.cluster_id))

    def on_listened(self, until_ms: int, late_ms: int) -> None:
        """Every heartbeat that had come by then was reported before this."""
        if self._runner is not None:
            self._runner.watch.health.listened(until_ms, late_ms)

    def on_client_message(self, client: int, message: Message) -> None:
        """A client's message; before birth everything is refused."""
        runner = self._in_turn()
        if runner is not None:
            if faults.armed is not None:
                pass_message(message, faults.reach)
            runner.on_client_message(client, message, monotonic_ms())
            return
        assert self._network is not None
        self._network.reply(client, refusal_before_birth(message, joins=bool(self._settings.join)))

    def on_client_gone(self, client: int) -> None:
        """Release everything held for the client."""
        runner = self._in_turn()
        if runner is not None:
            runner.on_client_gone(client, monotonic_ms())

    def client_waits(self, client: int) -> bool:
        """Whether something is under way for the client."""
        return self._runner is not None and self._runner.inbox.holds_for(client)

    def on_birth_message(self, message: Message) -> Message | None:
        """A founder's message."""
        return None if self._founding is None else self._founding.on_message(message)

    # --- completions ----------------------------------------------------------------------------

    def _in_turn(self) -> NodeRunner | None:
        """The engine, for a call that belongs to the present turn; None before birth."""
        runner = self._runner
        if runner is not None:
            assert self._turns is not None
            if not self._turns.is_open:
                self._turns.begin()
        return runner

    def _end_turn(self) -> None:
        assert self._turns is not None
        self._turns.end()

    def _checkpoint(self) -> None:
        """SIGUSR1: sync what was acknowledged before it was on the disk; an event says when."""
        runner = self._in_turn()
        if runner is None:
            logger.warning("no checkpoint: the node is not ready yet")
            return
        runner.requests.checkpoints.on_request(CLIENT_HANDLE_SELF, Checkpoint(RequestId(0)))
        self._end_turn()

    def _on_durable(self, operation: int) -> None:
        runner = self._in_turn()
        if runner is not None:
            is_faulty = faults.armed is not None
            if is_faulty:
                faults.reach("ack.before-send")
            runner.on_log_durable(operation, monotonic_ms())
            self._end_turn()  # acknowledgements leave before the next group commit begins
            if is_faulty:
                faults.reach("ack.after-send")

    def _on_written(self, operation: int) -> None:
        runner = self._in_turn()
        if runner is not None:
            runner.on_log_written(operation, monotonic_ms())
            self._end_turn()

    def _on_applied(
        self, channel: ChannelId, applied_seq: Seq, conflicts: Conflicts, answers: Answers
    ) -> None:
        runner = self._in_turn()
        if runner is not None:
            if answers and faults.armed is not None:
                pass_answers(answers, faults.reach)
            runner.on_applied(channel, applied_seq, conflicts, monotonic_ms(), answers)

    def _on_read(self, done: ReadDone) -> None:
        runner = self._in_turn()
        if runner is not None:
            runner.on_read(done, monotonic_ms())

    def _on_stall(self, stall: StorageStall | None) -> None:
        runner = self._in_turn()
        if runner is not None:
            runner.on_storage_stalled(stall, monotonic_ms())

    # --- failures ---------------------------------------------------------------------------------

    def _on_storage_error(self, error: StorageError) -> None:
        self._panic(str(error))

    def _on_loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception nobody caught is a broken promise somewhere: stop rather than go on."""
        del loop
        error = context.get("exception")
        if isinstance(error, ConnectionError):
            return  # its connection_lost follows
        if isinstance(error, OSError) and ("transport" in context or "socket" in context):
            # A network or a host is out of reach, or no more sockets are to be had.
            logger.warning("socket", extra=fields(reason=f"{context.get('message')}: {error}"))
            return
        logger.critical("unexpected exception", exc_info=error)
        self._panic(f"{context.get('message')}: {error!r}")

    def _on_directory_gone(self, reason: str) -> None:
        """The watching thread: what this node acknowledges would be lost (S0.1)."""
        # What is in its place is not this node's, so nothing is noted there.
        end_process(None, self._settings.name, wall_ms(), reason)

    def _give_up(self, reason: str) -> None:
        """NATS-147: leave in order; the turn at hand goes on."""
        logger.critical("cannot keep up", extra=fields(reason=reason, exit_code=EXIT_SLOW))
        self._exit_code = EXIT_SLOW
        self._stop.set()

    def _retire(self, reason: str) -> None:
        """M27: the node has left its cluster for ever; the turn at hand goes on."""
        if self._refused is None:
            logger.critical("retired", extra=fields(reason=reason, exit_code=EXIT_CONFIG))
        self._refused = ConfigError(reason)
        self._stop.set()

    def _panic(self, reason: str) -> NoReturn:
        """S0.4: say why, then vanish; nothing queued leaves any more."""
        end_process(Path(self._settings.data_dir), self._settings.name, wall_ms(), reason)

    def _identity(self) -> Identity:
        assert self._store is not None
        identity = self._store.identity
        return Identity(
            identity.node,
            identity.cluster_id,
            identity.boot_id,
            self._advertise,
            self._level,
            self._settings.failure_domain,
        )


def run_node(
    settings: NodeSettings,
    *,
    start_http: StartHttp | None = None,
    allow_untested_pysyncobj: bool = False,
) -> int:
    """Run one node until it is stopped; return its exit code. ``start_http`` serves HTTP, if any.

    Raises ConfigError (exit code 78) before anything is touched: bad settings, an unknown
    pysyncobj, a data directory of another node or cluster, a port in use.
    """
    if not __debug__:
        raise ConfigError(
            "python -O strips the assertions that stop a broken node; start it without -O"
        )
    with lines_aside():
        return _run_node(settings, start_http, allow_untested_pysyncobj=allow_untested_pysyncobj)


def _run_node(
    settings: NodeSettings, start_http: StartHttp | None, *, allow_untested_pysyncobj: bool
) -> int:
    if faults.arm(os.environ) is not None:
        logger.warning("faults are injected", extra=fields(control=os.environ[faults.VARIABLE]))
    os.umask(UMASK)
    found = check_pysyncobj(allow_untested=allow_untested_pysyncobj)
    logger.info(found)
    settings = within_open_files(settings, channels_in(Path(settings.data_dir)))
    try:
        with asyncio.Runner(loop_factory=partial(new_event_loop, settings.event_loop)) as runner:
            return runner.run(_run(settings, start_http))
    except ConfigError:
        raise
    except StorageError as error:
        logger.critical("panic", extra=fields(reason=str(error), exit_code=EXIT_STORAGE))
        drain_lines()
        return EXIT_STORAGE


async def _run(settings: NodeSettings, start_http: StartHttp | None) -> int:
    with lines_by_turn(asyncio.get_running_loop().call_soon):
        return await NodeProcess(settings, start_http).run()
