"""A switch between network devices, in user space: every packet may be lost, late, twice or cut.

One port per node, one for clients, one for control past all faults. A port is a descriptor of
which a read gives one Ethernet frame and a write sends one: a TAP device, or a socket in tests.

Unlike the proxies of loopback it works below TCP. What is lost here is repeated by the kernel, as
on a real wire: the store meets silence and delay, and connections that break.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import random
import select
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from jepsen_like.target.processes.packets import (
    ACK,
    BROADCAST,
    FIN,
    RST,
    SYN,
    TYPE_ARP,
    TYPE_IPV4,
    Segment,
    ethernet_type,
    read_segment,
    reset_of,
)
from jepsen_like.target.processes.proxy import CLIENTS, Counts, Weather

CONTROL: Final = "control"
"""The port that no fault touches."""
FRAME_BYTES: Final = 65_536
BURST: Final = 64
"""Frames taken from one port before the others have their turn."""
REORDERED_BY_S: Final = 0.005
"""How long a packet is held so that later ones overtake it."""
QUEUED_MAX: Final = 20_000
"""Frames on their way; more are lost, as in any switch."""
CALL_TIMEOUT_S: Final = 10.0

Flow = tuple[bytes, int, bytes, int]


class Fabric:
    """The rules by which a switch passes frames on; no clock and no descriptor of its own."""

    def __init__(self, macs: Mapping[str, bytes], seed: int = 0) -> None:
        self.weather = Weather()
        self.blocked: frozenset[tuple[str, str]] = frozenset()
        self.counts = Counts()
        self.rng = random.Random(seed)
        self._macs = dict(macs)
        self._ports = {mac: name for name, mac in macs.items()}
        self._free_at: dict[tuple[str, str], float] = {}
        self._latest: dict[tuple[str, str], float] = {}
        self._heard: dict[Flow, Segment] = {}
        self._doomed: set[Flow] = set()
        self._finished: set[Flow] = set()

    def pass_on(self, source: str, frame: bytes, now_s: float) -> list[tuple[float, str, bytes]]:
        """When which frame goes to which port."""
        kind = ethernet_type(frame)
        if kind == TYPE_ARP:
            # Neighbours stay known: a cut is between hosts, not in their tables.
            return [(now_s, name, frame) for name in self._addressed(source, frame)]
        if kind != TYPE_IPV4:
            return []
        found: list[tuple[float, str, bytes]] = []
        for name in self._addressed(source, frame):
            if CONTROL in (source, name):
                found.append((now_s, name, frame))
            elif self._is_ended(source, frame, found, now_s):
                continue
            else:
                dues = self._dues((source, name), len(frame), now_s)
                found += [(due, name, frame) for due in dues]
        return found

    def reset(self, node: str | None) -> list[tuple[str, bytes]]:
        """RST to both ends of every connection (of the node): which frame goes to which port."""
        found: list[tuple[str, bytes]] = []
        for flow, heard in list(self._heard.items()):
            ends = self._ports.get(heard.source_mac), self._ports.get(heard.destination_mac)
            if ends[0] is None or ends[1] is None or node not in (None, *ends):
                continue
            del self._heard[flow]
            # Who has received more than it acknowledged ignores this one: its next packet shows it.
            self._doomed.add(flow)
            self.counts.resets += 1
            found.append((ends[0], reset_of(heard)))
        return found

    def _addressed(self, source: str, frame: bytes) -> list[str]:
        if frame[:6] == BROADCAST:
            return [name for name in self._macs if name != source]
        name = self._ports.get(frame[:6])
        return [] if name is None or name == source else [name]

    def _is_ended(
        self, source: str, frame: bytes, found: list[tuple[float, str, bytes]], now_s: float
    ) -> bool:
        """Remember connections; answer what comes on one that was reset."""
        heard = read_segment(frame)
        if heard is None:
            return False
        if heard.flags & (SYN | RST):
            self._doomed -= {heard.flow, heard.flow_back}
            self._finished -= {heard.flow, heard.flow_back}
            self._heard.pop(heard.flow, None)
            if heard.flags & RST:
                self._heard.pop(heard.flow_back, None)
                return False
        if heard.flow in self._doomed:
            found.append((now_s, source, reset_of(heard)))
            return True
        if heard.flags & FIN:
            self._finished.add(heard.flow)
            self._heard.pop(heard.flow, None)
        elif heard.flags & ACK and heard.flow not in self._finished:
            self._heard[heard.flow] = heard
        return False

    def _dues(self, link: tuple[str, str], size: int, now_s: float) -> list[float]:
        """When the packet arrives: once, never or twice."""
        weather, counts, rng = self.weather, self.counts, self.rng
        if link in self.blocked:
            counts.blocked += 1
            return []
        if CLIENTS in link:
            counts.passed += 1
            return [now_s]
        if rng.random() < weather.loss:
            counts.lost += 1
            return []
        due = now_s + rng.uniform(*weather.delay_ms) / 1000
        if weather.bytes_per_second:
            due = max(due, self._free_at.get(link, 0.0)) + size / weather.bytes_per_second
            self._free_at[link] = due
        # A wire keeps the order: only what is held on purpose is overtaken.
        due = self._latest[link] = max(due, self._latest.get(link, 0.0))
        if due > now_s:
            counts.delayed += 1
        counts.passed += 1
        dues = [due]
        if rng.random() < weather.duplicate:
            counts.duplicated += 1
            dues.append(due)
        if rng.random() < weather.reorder:
            counts.reordered += 1
            dues[0] += REORDERED_BY_S
        return dues


class Switch:
    """Carries frames between the ports on a thread of its own; methods are thread-safe.

    Descriptors are non-blocking and stay the caller's, who closes them after ``close``.
    """

    def __init__(self, ports: Mapping[str, int], fabric: Fabric) -> None:
        self.fabric = fabric
        self._ports = dict(ports)
        self._names = {descriptor: name for name, descriptor in ports.items()}
        self._queue: list[tuple[float, int, str, bytes]] = []
        self._number = 0
        self._orders: list[Callable[[], None]] = []
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_over = False
        self._poll = select.poll()
        for descriptor in (*self._names, self._wake_read):
            self._poll.register(descriptor, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name="switch", daemon=True)
        self._thread.start()

    def reset(self, node: str | None) -> None:
        """RST on every connection (of the node)."""
        self._order(lambda: self._send_all(self.fabric.reset(node)))

    def close(self) -> None:
        """End the thread; frames on their way are gone."""
        if self._is_over:
            return
        self._is_over = True
        self._wake()
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _order(self, what: Callable[[], None]) -> None:
        """Done on the thread: it alone touches queue and connections."""
        is_done = threading.Event()

        def carry_out() -> None:
            what()
            is_done.set()

        self._orders.append(carry_out)
        self._wake()
        is_done.wait(CALL_TIMEOUT_S)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"!")

    # --- on the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_over:
            for descriptor, _ in self._poll.poll(self._patience_ms()):
                if descriptor == self._wake_read:
                    os.read(descriptor, FRAME_BYTES)
                else:
                    self._take(descriptor)
            while self._orders:
                self._orders.pop(0)()
            self._deliver()

    def _patience_ms(self) -> float | None:
        if not self._queue:
            return None
        return max(0.0, (self._queue[0][0] - time.monotonic()) * 1000)

    def _take(self, descriptor: int) -> None:
        source = self._names[descriptor]
        now = time.monotonic()
        for _ in range(BURST):
            try:
                frame = os.read(descriptor, FRAME_BYTES)
            except BlockingIOError:
                return
            except OSError:
                frame = b""
            if not frame:
                # The device is gone: who is on it is cut off, everybody else goes on.
                self._poll.unregister(descriptor)
                return
            for due, name, each in self.fabric.pass_on(source, frame, now):
                if due <= now:
                    self._send(name, each)
                elif len(self._queue) < QUEUED_MAX:
                    self._number += 1
                    heapq.heappush(self._queue, (due, self._number, name, each))

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._queue and self._queue[0][0] <= now:
            _, _, name, frame = heapq.heappop(self._queue)
            self._send(name, frame)

    def _send_all(self, frames: Collection[tuple[str, bytes]]) -> None:
        for name, frame in frames:
            self._send(name, frame)

    def _send(self, name: str, frame: bytes) -> None:
        """A port that takes no more, or whose device is down, loses it."""
        with contextlib.suppress(OSError):
            os.write(self._ports[name], frame)
