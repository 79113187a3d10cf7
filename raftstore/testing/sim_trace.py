"""The trace of a simulated world: every event enters a digest, the ones that explain a run are
kept.

Nothing is formatted before somebody asks for lines or for the digest, so that a world without a
violation pays next to nothing for being traced.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Any, NamedTuple

KEPT_EVENTS_MAX = 100_000
"""Kept events of one world; the digest goes on without them."""
KEPT_MESSAGES_MAX = 4_000
_PENDING_MAX = 8_192
"""Events that wait to be folded into the digest together."""


class TraceEvent(NamedTuple):
    """Something a node, the network or a fault did."""

    at_ms: float
    name: str
    fields: dict[str, object]

    def line(self) -> str:
        """Time, name and fields on one line."""
        text = " ".join(f"{key}={value}" for key, value in self.fields.items())
        return f"{self.at_ms:10.2f} {self.name} {text}"


class Trace:
    """The history of one world, in the order of virtual time."""

    def __init__(self) -> None:
        self.kept: list[TraceEvent] = []
        self.keeps_messages = False
        """Whether the last delivered messages are kept too: for scripts of failed worlds."""
        self.messages: deque[TraceEvent] = deque(maxlen=KEPT_MESSAGES_MAX)
        self._digest = hashlib.blake2b(digest_size=16)
        self._pending: list[tuple[Any, ...]] = []

    def add(self, at_ms: float, name: str, fields: dict[str, object]) -> None:
        """Record an event; its fields are not changed afterwards."""
        event = TraceEvent(at_ms, name, fields)
        if len(self.kept) < KEPT_EVENTS_MAX:
            self.kept.append(event)
        self._pending.append(event)

    def add_message(self, at_ms: float, sender: str, receiver: str, kind: str) -> None:
        """Record that a message arrived."""
        if self.keeps_messages:
            sent = {"node": receiver.partition("@")[0], "from": sender.partition("@")[0]}
            self.messages.append(TraceEvent(at_ms, "message", {**sent, "kind": kind}))
        self._pending.append((at_ms, sender, receiver, kind))
        if len(self._pending) >= _PENDING_MAX:
            self._fold()

    def lines(self) -> list[str]:
        """The kept events, one line each."""
        return [event.line() for event in self.kept]

    def digest(self) -> str:
        """Equal for two runs of one seed, on every machine and with every hash seed."""
        self._fold()
        return self._digest.hexdigest()

    def _fold(self) -> None:
        reported = [event.line() if type(event) is TraceEvent else event for event in self._pending]
        self._digest.update(repr(reported).encode())
        self._pending.clear()
