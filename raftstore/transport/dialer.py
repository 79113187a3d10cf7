"""Keeps one outgoing connection to one peer alive: dial, hold, and dial again after a loss.

Runs on whichever loop starts it: bulk connections on the main loop, control connections on the
control loop. A loss is followed by one dial at once, because a refused connection is the fastest
proof that nobody is there; then back-off, with jitter: peers that lost a node at the same moment
do not all come back to it at the same moments.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from raftstore.config import TransportSettings
from raftstore.errors import ConfigError
from raftstore.protocol.message import Message
from raftstore.protocol.node import Hello
from raftstore.transport.connection import FlushQueue, FramedProtocol
from raftstore.transport.endpoints import parse_endpoint
from raftstore.transport.handshake import (
    TO_DIALLER,
    CloseReason,
    GoodbyeCode,
    Identity,
    Purpose,
    Refusal,
    check_acceptor,
)
from raftstore.transport.log_fields import fields
from raftstore.transport.names import connect
from raftstore.transport.version_notes import VersionNotes
from raftstore.types import NodeId, node_name

logger = logging.getLogger("raftstore.transport")

SILENCE_MS: Final = 3_000
"""A peer that does not acknowledge bytes for this long is dialled anew: after a healed partition
the next repetition of TCP could be as far away as the partition was long."""


def tell_failure(task: asyncio.Task[None]) -> None:
    """Done-callback: a task that nobody awaits must not fail in silence (S0.4)."""
    if not task.cancelled():
        task.result()


class Dialer:
    """One outgoing connection to ``peer``. All methods belong to its loop."""

    def __init__(  # noqa: PLR0913 - what is dialled, and those that are notified
        self,
        peer: NodeId,
        endpoint: str,
        *,
        purpose: Purpose,
        identity: Identity,
        settings: TransportSettings,
        on_connected: Callable[[NodeId, Hello], None],
        on_lost: Callable[[NodeId, bool], None],
        flushes: FlushQueue | None = None,
        on_refused: Callable[[CloseReason], None] = lambda _: None,
    ) -> None:
        """``on_connected(peer, its Hello)``; ``on_lost(peer, refused)``
        after every loss and once for every series of refused dials. ``flushes``: who writes.
        ``on_refused``: the node there does not take the connection, for this reason."""
        self.peer = peer
        self.endpoint = endpoint
        self._purpose = purpose
        self._identity = identity
        self._settings = settings
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._on_refused = on_refused
        self._flushes = flushes or FlushQueue(asyncio.get_running_loop())
        self._connection: FramedProtocol | None = None
        self._is_refusal_logged = False
        self._logged_reason: CloseReason | None = None
        self._notes = VersionNotes()
        self._wake = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(tell_failure)

    @property
    def connection(self) -> FramedProtocol | None:
        """The open connection, if there is one."""
        connection = self._connection
        return connection if connection is not None and connection.is_open else None

    def send(self, frame: bytes) -> bool:
        """Queue a frame; False (dropped) while away or when the queue is full."""
        connection = self._connection
        return connection is not None and connection.send(frame)

    def hurry(self, advertised: str = "") -> None:
        """The peer may be back (it dialled us), and says where it is (S0.7): dial it there now."""
        self.endpoint = advertised or self.endpoint
        self._wake.set()

    async def close(self) -> None:
        """Stop dialling and close the connection."""
        self._task.cancel()
        await asyncio.wait({self._task})
        if self._connection is not None:
            self._connection.close("closing", "the node is stopping")
            self._connection.abort()
            await self._connection.closed

    async def _run(self) -> None:
        delay_ms = self._settings.reconnect_min_ms
        is_second_chance = False
        while True:
            # Before dialling: who says meanwhile where it is now is dialled there without a pause.
            self._wake.clear()
            refused = await self._dial()
            if self._connection is not None:
                if await self._hold(self._connection):
                    delay_ms = self._settings.reconnect_min_ms
                    is_second_chance = False
                    continue
                # One that ends at once each time (two processes with one identity replace each
                # other for ever) is dialled with back-off, but only after a second chance.
                is_second_chance = not is_second_chance
                if is_second_chance:
                    continue
            elif refused and not self._is_refusal_logged:
                self._is_refusal_logged = True
                self._on_lost(self.peer, True)
            with suppress(TimeoutError):
                # Not wait_for: Python 3.11's forgets a cancellation that meets the event, and
                # then close() waits for ever.
                async with asyncio.timeout(random.uniform(delay_ms / 2, delay_ms) / 1000):
                    await self._wake.wait()
            delay_ms = min(2 * delay_ms, self._settings.reconnect_max_ms)

    async def _hold(self, connection: FramedProtocol) -> bool:
        """Wait for the end of an open connection; True if it lasted longer than any back-off."""
        loop = asyncio.get_running_loop()
        opened_s = loop.time()
        self._is_refusal_logged = False
        self._logged_reason = None
        # Shielded: cancelling this task must not cancel what close() waits for.
        await asyncio.shield(connection.closed)
        self._connection = None
        self._notes.on_closed(self.peer, connection)
        self._on_lost(self.peer, False)
        return loop.time() - opened_s >= self._settings.reconnect_max_ms / 1000

    async def _dial(self) -> bool:
        """One attempt; True if nobody listened there."""
        try:
            host, port = parse_endpoint(self.endpoint)
        except ConfigError as error:  # whatever somebody configured or advertised: it may change
            self._log_once(CloseReason(GoodbyeCode.BAD_ADDRESS, str(error), by_peer=False))
            return False
        connection: FramedProtocol | None = None
        try:
            async with asyncio.timeout(self._settings.connect_timeout_ms / 1000):
                connection = await connect(self._protocol, host, port)
                await connection.settled
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        finally:
            if connection is not None and not connection.is_open:
                self._log_once(connection.reason)
                connection.abort()
        return False

    def _log_once(self, reason: CloseReason | None) -> None:
        """One line for a series of attempts that fail for the same reason."""
        if reason is None or reason == self._logged_reason:
            return
        self._logged_reason = reason
        self._on_refused(reason)
        logger.warning(
            "peer refused",
            extra=fields(peer=node_name(self.peer), code=str(reason.code), reason=reason.message),
        )

    def _protocol(self) -> FramedProtocol:
        return FramedProtocol(
            owner=self,
            hello=self._identity.hello(self._purpose, self.peer),
            accepts=TO_DIALLER[self._purpose],
            flushes=self._flushes,
            queue_bytes_max=self._settings.peer_queue_bytes_max,
            silence_ms=SILENCE_MS,
        )

    # --- connection.Owner ---

    def check_hello(self, hello: Hello) -> Refusal | None:
        """The peer at that address must be the one we mean (S0.1, S12)."""
        return check_acceptor(hello, self._identity, self.peer)

    def on_open(self, connection: FramedProtocol) -> None:
        """Both Hellos are through."""
        self._connection = connection
        assert connection.remote is not None
        self._on_connected(self.peer, connection.remote)

    def on_message(self, connection: FramedProtocol, message: Message, frame_bytes: int) -> None:
        """Nothing is accepted on dialled peer connections; the protocol refused it already."""

    def on_unknown_request(self, connection: FramedProtocol, kind: int, request_id: int) -> bool:
        """Nodes ask each other by messages that both know."""
        del connection, kind, request_id
        return False

    def on_refused_request(self, connection: FramedProtocol, request_id: int, reason: str) -> bool:
        """Nodes ask each other by messages that both know."""
        del connection, request_id, reason
        return False

    def on_closed(self, connection: FramedProtocol) -> None:
        """The run loop waits for ``closed`` itself."""

    def on_writable(self, connection: FramedProtocol) -> None:
        """Peers do not wait: what does not fit is dropped and caught up."""

    def on_unwritable(self, connection: FramedProtocol) -> None:
        """The same."""

    def on_partial(self, connection: FramedProtocol, *, is_new: bool) -> None:
        """Only a Hello or a Goodbye comes back on it."""
