"""The simulated network: loss, delay, duplicates, reordering, late messages, one-way partitions."""

from __future__ import annotations

import random
from collections.abc import Callable

from raftstore.protocol.codec import decode, encode
from raftstore.protocol.message import Message
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_clock import Scheduler

LATE_MS_MAX = 3_000.0

Deliver = Callable[[str, str, Message], None]
"""(sender, receiver, message)."""


class SimNetwork:
    """Carries messages between named endpoints (node names and client names)."""

    def __init__(
        self, scheduler: Scheduler, rng: random.Random, options: SimOptions, deliver: Deliver
    ) -> None:
        self._scheduler = scheduler
        self._draw = rng.random
        self._encodes = options.encode_messages
        self._delay_min_ms = options.delay_min_ms
        self._deliver = deliver
        self._encoded: Message | None = None
        self._decoded: Message | None = None
        self._cut: dict[tuple[str, str], None] = {}
        self.loss_percent = options.loss_percent
        self.duplicate_percent = options.duplicate_message_percent
        self.delay_max_ms = options.delay_max_ms
        self.late_percent = options.late_percent
        self.bytes_per_second = 0
        """Of every directed link; 0: unlimited."""
        self.messages = 0
        self._free_at: dict[tuple[str, str], float] = {}

    def send(self, sender: str, receiver: str, message: Message) -> None:
        """Maybe deliver the message, maybe later, maybe twice."""
        self.messages += 1
        draw = self._draw
        if (self._cut and (sender, receiver) in self._cut) or draw() * 100 < self.loss_percent:
            return
        if self._encodes:
            message = self._through_wire(message)
        queued = self._queued_ms(sender, receiver, message) if self.bytes_per_second else 0.0
        least, most = self._delay_min_ms, self.delay_max_ms
        for _ in (1, 2) if draw() * 100 < self.duplicate_percent else (1,):
            delay = queued + least + (most - least) * draw()
            if draw() * 100 < self.late_percent:
                delay += LATE_MS_MAX * draw()
            self._scheduler.after(delay, self._arrive, sender, receiver, message)

    def cut(self, sender: str, receiver: str) -> None:
        """Drop everything in this one direction."""
        self._cut[sender, receiver] = None

    def cut_groups(self, group: list[str], others: list[str]) -> None:
        """Drop everything between two groups, both ways."""
        for a in group:
            for b in others:
                self.cut(a, b)
                self.cut(b, a)

    def is_cut(self, sender: str, receiver: str) -> bool:
        """Whether this direction is cut."""
        return (sender, receiver) in self._cut

    def heal_partitions(self) -> None:
        """Every direction works again."""
        self._cut.clear()

    def heal(self) -> None:
        """A perfect network from now on."""
        self.heal_partitions()
        self.loss_percent = self.duplicate_percent = self.late_percent = 0.0
        self.bytes_per_second = 0
        self.delay_max_ms = min(self.delay_max_ms, 4.0)

    def _through_wire(self, message: Message) -> Message:
        """Encoded and decoded: once for all receivers of a multicast, since messages are frozen."""
        if message is not self._encoded or self._decoded is None:
            self._encoded, self._decoded = message, decode(encode(message))
        return self._decoded

    def _queued_ms(self, sender: str, receiver: str, message: Message) -> float:
        """How long until a narrow link has carried this message behind those before it."""
        now = self._scheduler.now_ms
        begins = max(now, self._free_at.get((sender, receiver), 0.0))
        ends = begins + len(encode(message)) * 1_000.0 / self.bytes_per_second
        self._free_at[sender, receiver] = ends
        return ends - now

    def _arrive(self, sender: str, receiver: str, message: Message) -> None:
        if not self._cut or (sender, receiver) not in self._cut:
            self._deliver(sender, receiver, message)
