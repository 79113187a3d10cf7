"""The one listening port: accept, read the Hello within a deadline, sort by purpose."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from raftstore.errors import RemoteProtocolError, UnsupportedVersionError
from raftstore.messages import Goodbye, Hello
from raftstore.transport.handshake import GoodbyeCode, Refusal
from raftstore.transport.log_fields import fields
from raftstore.wire.codec import decode, encode_frame_of
from raftstore.wire.framing import HEADER_BYTES, ReceiveBuffer, body_length

logger = logging.getLogger("raftstore.transport")

HELLO_TIMEOUT_MS: Final = 3_000
HELLO_BYTES_MAX: Final = 4_096
"""A stranger's first frame is small, or it is no Hello."""

Adopt = Callable[[socket.socket, Hello], None]
"""Takes over an accepted socket whose Hello was accepted; exactly the Hello was read from it."""


class Server:
    """Accepts connections on the loop that starts it."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        judge: Callable[[Hello], Refusal | None],
        adopt: Adopt,
    ) -> None:
        self._listener = listener
        self._judge = judge
        self._adopt = adopt
        self._greeting: dict[asyncio.Task[None], None] = {}
        self._task = asyncio.get_running_loop().create_task(self._accept())

    async def close(self) -> None:
        """Stop listening; adopted connections are not ours any more."""
        tasks = [self._task, *self._greeting]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listener)
            except OSError as error:  # too many open files: let others close some
                logger.warning("accept failed", extra=fields(reason=str(error)))
                await asyncio.sleep(0.1)
                continue
            accepted.setblocking(False)
            task = loop.create_task(self._greet(accepted))
            self._greeting[task] = None
            task.add_done_callback(self._greeting.pop)

    async def _greet(self, accepted: socket.socket) -> None:
        adopted = False
        try:
            hello = await self._read_hello(accepted)
            refusal = hello if isinstance(hello, Refusal) else self._judge(hello)
            if refusal is not None:
                await self._refuse(accepted, refusal)
            elif isinstance(hello, Hello):
                adopted = True
                self._adopt(accepted, hello)
        except OSError:
            return  # it went away while greeting
        finally:
            if not adopted:
                accepted.close()

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
