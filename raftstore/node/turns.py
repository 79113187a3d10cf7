"""One turn of a node's main loop: what all sockets and threads brought, then what follows from it.

The calls into the engine that one wake-up of the loop leads to are one turn. At its end, in this
order: messages and answers leave, the control loop is notified, the timer is armed, and the log
thread is woken. It comes last because it takes the interpreter's lock: a message that is still to
be sent would wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from raftstore.engine.node_runner import NodeRunner
from raftstore.metrics import DURATIONS_MS, FixedHistogram
from raftstore.node.logs import fields
from raftstore.node.long_lived import LongLived
from raftstore.node.system_clock import monotonic_ms
from raftstore.storage.log.writer import LogWriter
from raftstore.transport.peers import PeerNetwork
from raftstore.types import NodeId

logger = logging.getLogger("raftstore.node")

HEARTBEAT_CONTENT_MS: Final = 50
"""At most this old is what heartbeats say; it also proves that the main loop turns."""
BACKPRESSURE_LOW: Final = 0.5
"""Clients are read again when the apply queue is below this part of its bound."""


class Turns:
    """Turns of one node's main loop, from its start to its end."""

    def __init__(
        self,
        runner: NodeRunner,
        writer: LogWriter,
        network: PeerNetwork,
        *,
        endpoints: Mapping[NodeId, str],
        queued_bytes: Callable[[], int],
        queued_bytes_max: int,
        on_turn: Callable[[int], None],
    ) -> None:
        """``endpoints``: the addresses that the network knows; ``queued_bytes``: what waits to be
        applied, clients are not read above ``queued_bytes_max``; ``on_turn`` is called with when
        each turn ended, in monotonic milliseconds."""
        self._runner = runner
        self._writer = writer
        self._network = network
        self._endpoints = endpoints
        self._retired: Mapping[NodeId, object] = {}
        self._queued_bytes = queued_bytes
        self._queued_bytes_max = queued_bytes_max
        self._on_turn = on_turn
        self.long_lived = LongLived()
        self.lateness = FixedHistogram(DURATIONS_MS)
        """How late the main loop's timers ran, in ms."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due: int | None = None
        self._armed_ms = 0
        self._content_due = 0
        self._paused = False
        self._is_closed = False
        self.is_open = False
        """Calls into the engine are of a turn that has begun."""
        self._is_scheduled = False

    def begin(self) -> None:
        """Before every call into the engine: it is of the turn that is open, or opens one."""
        if self.is_open:
            return
        self.is_open = True
        self._runner.begin_turn()
        self._network.hold_frames()
        if not self._is_scheduled:
            self._is_scheduled = True
            # Behind everything that this wake-up of the loop has found: those are calls, too.
            self._loop.call_soon(self._run_end)

    def end(self) -> None:
        """End the turn now instead of behind what else the loop has found: nothing waits for it."""
        if not self.is_open:
            return
        self.is_open = False
        now = monotonic_ms()
        self._runner.end_turn(now)
        self._network.flush_frames()
        self._on_turn(now)
        if now >= self._content_due:
            self._content_due = now + HEARTBEAT_CONTENT_MS
            runner = self._runner
            self._network.set_heartbeats(
                runner.watch.heartbeats(), runner.watch.expected_heartbeats()
            )
            self._follow_endpoints()
            self._apply_backpressure()
            self.long_lived.look(len(self._runner.channels))
        self._arm(now)
        self._writer.kick()

    def close(self) -> None:
        """No timer fires any more, whatever still calls the engine while the node stops."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _run_end(self) -> None:
        self._is_scheduled = False
        if self.is_open:
            self.end()

    def _arm(self, now: int) -> None:
        if self._is_closed:
            return
        due = self._runner.next_deadline_ms()
        if self._timer is not None:
            assert self._timer_due is not None
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer_due, self._armed_ms = due, now
        self._timer = self._loop.call_later(max(0, due - now) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        assert self._timer_due is not None
        now = monotonic_ms()
        if self._timer_due:  # 0 says at once
            self.lateness.observe(max(0, now - max(self._timer_due, self._armed_ms)))
        self._timer = None
        self._timer_due = None
        if not self.is_open and self._runner.next_deadline_ms() > now:
            self._arm(now)  # what it was armed for was put off since
            return
        self.begin()
        self._runner.on_timer(now)

    def _follow_endpoints(self) -> None:
        """Addresses may change (S0.7): the catalog has the newest."""
        endpoints = self._runner.controller.reachable()
        retired = self._runner.controller.catalog.retired
        # Also if one left while this node was away, and was no endpoint here at any time (M27).
        if endpoints != self._endpoints or retired != self._retired:
            self._endpoints, self._retired = endpoints, retired
            self._network.set_peers(endpoints, retired)

    def _apply_backpressure(self) -> None:
        """A disk that is behind slows the publishers down instead of filling memory."""
        queued, limit = self._queued_bytes(), self._queued_bytes_max
        paused = queued > (limit * BACKPRESSURE_LOW if self._paused else limit)
        # S0.4: while the disk hangs, publishers are answered at once, and go elsewhere.
        paused = paused and self._runner.guard.reason is None
        if paused != self._paused:
            self._paused = paused
            self._network.pause_clients(paused=paused)
            logger.warning(
                "back-pressure", extra=fields(paused=paused, queued_bytes=queued, limit=limit)
            )
