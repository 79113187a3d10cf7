"""Links between processes that can be cut, slowed and garbled without root.

One listener per node stands in front of it: the node advertises that address. The first frame of
every connection, the Hello, says who dials, so one listener serves every directed link to its node.
What the dialler sends travels on the link (dialler, node), what comes back on (node, dialler).

A blocked link between nodes loses whole frames, new connections stay silent. Clients do not repeat
what TCP has taken, so their links stand still and go on where they were.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from raftstore.protocol.codec import decode
from raftstore.protocol.framing import HEADER_BYTES, body_length
from raftstore.protocol.node import Hello
from raftstore.transport.endpoints import parse_endpoint
from raftstore.types import NodeId, node_name

CLIENTS: Final = "clients"
STEP_S: Final = 0.02
"""How often a link that stands still looks whether it may go on."""
CALL_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Weather:
    """Faults of frames between nodes; shares in 0..1, bytes_per_second 0: unlimited."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay_ms: tuple[float, float] = (0.0, 0.0)
    bytes_per_second: int = 0


@dataclass(slots=True)
class Counts:
    """Counts of what was done to frames so far: the proof that a fault struck."""

    passed: int = 0
    blocked: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    delayed: int = 0
    resets: int = 0


class Links:
    """The proxies in front of all nodes, on a thread of their own; methods are thread-safe."""

    def __init__(self, targets: Mapping[str, str], seed: int = 0) -> None:
        self.weather = Weather()
        self.blocked: frozenset[tuple[str, str]] = frozenset()
        self.counts = Counts()
        self.rng = random.Random(seed)
        self.direct = dict(targets)
        """Where nodes listen: past all faults."""
        self._listeners: dict[str, socket.socket] = {}
        self._open: dict[tuple[str, str], list[asyncio.StreamWriter]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        self.endpoints: dict[str, str] = {}
        for name in self.direct:
            self.listen(name, is_on=True)

    def listen(self, name: str, *, is_on: bool) -> None:
        """A node that is down is refused at once, as by its own machine."""
        self._call(self._listen(name, is_on=is_on))

    def add(self, name: str, endpoint: str) -> str:
        """Stand in front of one more node; the address that others use."""
        self.direct[name] = endpoint
        self.listen(name, is_on=True)
        return self.endpoints[name]

    def remove(self, name: str) -> None:
        """Stand there no more."""
        self.listen(name, is_on=False)
        self.direct.pop(name, None)
        self.endpoints.pop(name, None)

    def block(self, links: Collection[tuple[str, str]]) -> None:
        """Let nothing pass on these links, in addition to those blocked already."""
        self.blocked = self.blocked | frozenset(links)

    def unblock(self) -> None:
        """Let everything pass."""
        self.blocked = frozenset()

    def reset(self, node: str | None = None) -> None:
        """RST on every connection (of the node)."""
        self._call(self._reset(node))

    def close(self) -> None:
        """End all connections and the thread."""
        if self._loop.is_closed():
            return
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- on the loop ------------------------------------------------------------------------------

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CALL_TIMEOUT_S)

    async def _listen(self, name: str, *, is_on: bool) -> None:
        loop = asyncio.get_running_loop()
        listener = self._listeners.get(name)
        if is_on and listener is None:
            port = parse_endpoint(self.endpoints[name])[1] if name in self.endpoints else 0
            listener = socket.create_server(("127.0.0.1", port))
            listener.setblocking(False)
            self.endpoints[name] = f"127.0.0.1:{listener.getsockname()[1]}"
            self._listeners[name] = listener
            loop.add_reader(listener, self._on_dialled, name, listener)
        elif listener is not None and not is_on:
            del self._listeners[name]
            loop.remove_reader(listener)
            listener.close()

    def _on_dialled(self, name: str, listener: socket.socket) -> None:
        """Not asyncio's server: that loses connections it accepts while it is being closed."""
        try:
            accepted, _ = listener.accept()
        except OSError:
            return  # The dialler has gone again.
        accepted.setblocking(False)
        task = asyncio.ensure_future(self._serve(name, accepted))
        # asyncio itself refers to it weakly once the dialler has sent its last byte.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, name: str, accepted: socket.socket) -> None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(sock=accepted)
            await self._accept(name, reader, writer)

    async def _accept(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one connection until either side ends it."""
        writers = [writer]
        key = (CLIENTS, name)
        try:
            first = await _read_frame(reader)
            hello = decode(first[HEADER_BYTES:])
            if isinstance(hello, Hello) and hello.node:
                key = (node_name(NodeId(hello.node)), name)
            self._open.setdefault(key, []).append(writer)
            # As a SYN is repeated, until its sender gives up.
            await self.until_open(key)
            host, port = parse_endpoint(self.direct[name])
            far_reader, far = await asyncio.open_connection(host, port)
            writers.append(far)
            self._open[key].append(far)
            far.write(first)
            await _first_of(
                Pipe(self, key, reader, far, starts_with_hello=False).run(),
                Pipe(self, (name, key[0]), far_reader, writer, starts_with_hello=True).run(),
            )
        except (OSError, EOFError, ValueError):
            pass  # The connection ended, or what came on it was no message.
        finally:
            for each in writers:
                if each in self._open.get(key, ()):
                    self._open[key].remove(each)
                each.transport.abort()

    async def until_open(self, link: tuple[str, str]) -> None:
        """Return once the link is not blocked."""
        while link in self.blocked:
            self.counts.blocked += 1
            await asyncio.sleep(STEP_S)

    async def _reset(self, node: str | None) -> None:
        for (source, destination), writers in self._open.items():
            if node not in (None, source, destination):
                continue
            for writer in tuple(writers):
                raw = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
                self.counts.resets += 1

    async def _close(self) -> None:
        for name in self.direct:
            await self._listen(name, is_on=False)
        # What was accepted just now shall have begun: a task that never ran closes nothing.
        await asyncio.sleep(STEP_S)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(STEP_S)  # the loop closes the sockets in its next turns


class Pipe:
    """One direction of one connection."""

    def __init__(
        self,
        links: Links,
        link: tuple[str, str],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        starts_with_hello: bool,
    ) -> None:
        self._is_hello = starts_with_hello
        self._links = links
        self._link = link
        self._reader = reader
        self._writer = writer
        self._held: bytes | None = None
        self._due = 0.0
        self._queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def run(self) -> None:
        """Carry frames until an end closes."""
        if CLIENTS in self._link:
            await self._run_client()
        else:
            await _first_of(self._take(), self._deliver())

    async def _run_client(self) -> None:
        while data := await self._reader.read(65_536):
            await self._links.until_open(self._link)
            self._writer.write(data)
            await self._writer.drain()

    async def _take(self) -> None:
        while True:
            frame = await _read_frame(self._reader)
            for each in self._weathered(frame, is_spared=self._is_hello):
                await self._queue.put((self._due_of(each), each))
            self._is_hello = False

    async def _deliver(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, frame = await self._queue.get()
            if due > loop.time():
                self._links.counts.delayed += 1
                await asyncio.sleep(due - loop.time())
            self._links.counts.passed += 1
            self._writer.write(frame)
            await self._writer.drain()

    def _weathered(self, frame: bytes, *, is_spared: bool) -> list[bytes]:
        """The frames that leave for one that came: none, itself, itself twice, or with the one held
        back.
        """
        weather, counts, rng = self._links.weather, self._links.counts, self._links.rng
        if self._link in self._links.blocked:
            counts.blocked += 1
            return []
        if is_spared:
            return [frame]
        if rng.random() < weather.loss:
            counts.lost += 1
            return []
        frames = [frame]
        if rng.random() < weather.duplicate:
            counts.duplicated += 1
            frames.append(frame)
        if self._held is not None:
            frames.append(self._held)
            self._held = None
        elif rng.random() < weather.reorder:
            counts.reordered += 1
            self._held = frames.pop()
        return frames

    def _due_of(self, frame: bytes) -> float:
        weather = self._links.weather
        now = asyncio.get_running_loop().time()
        due = now + self._links.rng.uniform(*weather.delay_ms) / 1000
        self._due = max(self._due, due)
        if weather.bytes_per_second:
            self._due += len(frame) / weather.bytes_per_second
        return self._due


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    header = await reader.readexactly(HEADER_BYTES)
    return header + await reader.readexactly(body_length(header))


async def _first_of(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run all until the first ends; cancel the others."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
