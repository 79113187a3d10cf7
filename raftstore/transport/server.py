"""The one listening port: accept, read the Hello within a deadline, sort by purpose."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from raftstore.errors import RemoteProtocolError, UnsupportedVersionError
from raftstore.protocol.codec import decode, encode_frame_of
from raftstore.protocol.framing import HEADER_BYTES, ReceiveBuffer, body_length
from raftstore.protocol.node import Goodbye, Hello
from raftstore.transport.accepting import Acceptor, FileReserve
from raftstore.transport.connection import HELLO_BYTES_MAX
from raftstore.transport.handshake import GoodbyeCode, Refusal
from raftstore.transport.log_fields import fields

logger = logging.getLogger("raftstore.transport")

HELLO_TIMEOUT_MS: Final = 3_000
GREETINGS_MAX: Final = 128
"""Connections without a Hello yet. Beyond it the one that has waited longest makes room: silent
strangers must not use up the node's files, nor keep peers out."""

Adopt = Callable[[socket.socket, Hello], None]
"""Takes over an accepted socket whose Hello was accepted; exactly the Hello was read from it."""


class Server:
    """Accepts connections on the loop that starts it."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        files: FileReserve,
        judge: Callable[[Hello], Refusal | None],
        adopt: Adopt,
    ) -> None:
        self._judge = judge
        self._adopt = adopt
        self._greeting: dict[asyncio.Task[Hello | None], socket.socket] = {}
        self._loop = asyncio.get_running_loop()
        self._is_crowded = False
        self._acceptor = Acceptor(listener, files, "binary", self._on_accepted)

    async def close(self) -> None:
        """Stop listening; adopted connections are not ours any more."""
        self._acceptor.close()
        for task in self._greeting:
            task.cancel()
        if self._greeting:
            await asyncio.wait(tuple(self._greeting))
        await asyncio.sleep(0)  # the last one was closed, or adopted at this very moment

    def _on_accepted(self, accepted: socket.socket) -> None:
        if len(self._greeting) >= GREETINGS_MAX:
            self._dismiss_oldest()
        task = self._loop.create_task(self._greet(accepted))
        self._greeting[task] = accepted
        task.add_done_callback(self._greeted)

    def _dismiss_oldest(self) -> None:
        if not self._is_crowded:  # one line until the crowd is gone
            self._is_crowded = True
            logger.warning(
                "strangers dismissed",
                extra=fields(reason=f"{GREETINGS_MAX} connections have not said Hello yet"),
            )
        for task in self._greeting:
            if not task.cancelling():
                task.cancel()
                return

    def _greeted(self, task: asyncio.Task[Hello | None]) -> None:
        """Hand the socket over or close it, also when its task never got a turn."""
        accepted = self._greeting.pop(task)
        self._is_crowded = self._is_crowded and bool(self._greeting)
        hello = None if task.cancelled() or task.exception() else task.result()
        if hello is None:
            accepted.close()
        else:
            self._adopt(accepted, hello)

    async def _greet(self, accepted: socket.socket) -> Hello | None:
        """The Hello of somebody welcome; None when it was refused or went away."""
        try:
            hello = await self._read_hello(accepted)
            refusal = hello if isinstance(hello, Refusal) else self._judge(hello)
            if refusal is not None:
                await self._refuse(accepted, refusal)
        except OSError:
            return None
        return hello if isinstance(hello, Hello) and refusal is None else None

    async def _read_hello(self, accepted: socket.socket) -> Hello | Refusal:
        """Exactly one frame is read, so the socket can be handed to another loop as it is."""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_MS / 1000):
                header = await self._read(accepted, HEADER_BYTES)
                length = body_length(header, HELLO_BYTES_MAX)
                body = await self._read(accepted, length)
            message = decode(_checked(header, body))
        except TimeoutError:
            return Refusal(
                GoodbyeCode.HELLO_TIMEOUT,
                f"no Hello within {HELLO_TIMEOUT_MS} ms; speak the raftstore protocol here",
            )
        except UnsupportedVersionError as error:
            return Refusal(GoodbyeCode.UNSUPPORTED_VERSION, str(error))
        except RemoteProtocolError as error:
            return Refusal(GoodbyeCode.MALFORMED, str(error))
        if not isinstance(message, Hello):
            return Refusal(
                GoodbyeCode.UNEXPECTED_MESSAGE,
                f"a {type(message).__name__} came before Hello; the sender is broken",
            )
        return message

    @staticmethod
    async def _read(accepted: socket.socket, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        data = b""
        while len(data) < size:
            more = await loop.sock_recv(accepted, size - len(data))
            if not more:
                raise ConnectionResetError
            data += more
        return data

    @staticmethod
    async def _refuse(accepted: socket.socket, refusal: Refusal) -> None:
        logger.warning(
            "connection refused",
            extra=fields(code=str(refusal.code), reason=refusal.message),
        )
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(
            accepted, encode_frame_of(Goodbye(code=refusal.code, message=refusal.message))
        )
        accepted.shutdown(socket.SHUT_WR)
        # Bytes left unread would turn the close into a reset that overtakes the Goodbye.
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                while await loop.sock_recv(accepted, 65_536):
                    pass


def _checked(header: bytes, body: bytes) -> bytes:
    """The body, its checksum verified by the frame buffer."""
    return bytes(ReceiveBuffer(HELLO_BYTES_MAX).feed(header + body)[0])
