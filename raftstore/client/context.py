"""State shared by the parts of one client."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from raftstore.client.auditing.recorder import Recorder
from raftstore.client.cluster.backoff import Backoff, Jitter
from raftstore.client.cluster.discovery import Discovery
from raftstore.client.cluster.links import Links
from raftstore.client.cluster.route_book import RouteBook
from raftstore.client.cluster.topology import Topology
from raftstore.client.cluster.vector import Floors
from raftstore.client.settings import ClientSettings
from raftstore.errors import ArgumentError, UnavailableError
from raftstore.types import NodeId

ANSWER_TIME_MS: Final = 50
"""For the way of an answer, at most."""
TIMEOUT_S_MAX: Final = 365 * 24 * 60 * 60
"""Nobody waits longer, and the wire has room for every time up to this."""


@dataclass(frozen=True, slots=True)
class Context:
    """The cluster as this client knows it, and how to reach it."""

    topology: Topology
    links: Links
    discovery: Discovery
    settings: ClientSettings
    jitter: Jitter
    book: RouteBook
    now_ms: Callable[[], int]
    """Milliseconds on the clock of the client's event loop."""
    floors: Floors = field(default_factory=Floors)
    """The newest commit that this client has seen of each table."""
    token_bytes: Callable[[int], bytes] = secrets.token_bytes
    """Return so many random bytes: the sessions of its writes (S4.5)."""
    recorder: Recorder | None = field(init=False)
    """Notes what is answered about watched keys; None: this client has no audit."""

    def __post_init__(self) -> None:
        audit = self.settings.audit
        object.__setattr__(self, "recorder", None if audit is None else Recorder(audit))

    def deadline_ms(self, timeout: float | None) -> int:
        """Return when a call that may take ``timeout`` seconds must be over."""
        return self.now_ms() + self.timeout_ms(timeout)

    def timeout_ms(self, timeout: float | None) -> int:
        """Return how long a call may take that was given ``timeout`` seconds, or none."""
        return self.settings.timeout_ms if timeout is None else timeout_in_ms(timeout)

    def home(self) -> NodeId | None:
        """Return the node that is local to this client, if it named one."""
        return self.topology.node_named(self.settings.home) if self.settings.home else None

    def node_patience_ms(self, deadline_ms: int) -> int:
        """Return how long a node may wait before it answers, so that its answer arrives in time:
        they say more than that the time is up."""
        left_ms = deadline_ms - self.now_ms()
        return max(1, left_ms - min(ANSWER_TIME_MS, left_ms // 5))

    def check_open(self) -> None:
        """Raise UnavailableError once the client was closed, so that no call goes on in vain."""
        if self.links.is_closed:
            raise UnavailableError("the client was closed; connect again")

    def backoff(self) -> Backoff:
        """Return the pauses between attempts of one call."""
        return Backoff(
            min_ms=self.settings.retry_min_ms,
            max_ms=self.settings.retry_max_ms,
            jitter=self.jitter,
        )


def timeout_in_ms(timeout: Any) -> int:
    """Return seconds as whole milliseconds; ArgumentError for what is no time to wait."""
    if not isinstance(timeout, int | float) or isinstance(timeout, bool):
        raise ArgumentError(
            f"timeout={timeout!r:.80} is no number of seconds; give one, as in timeout=5.0"
        )
    if not timeout > 0:
        raise ArgumentError(f"timeout={timeout!r} is not positive; give seconds, as in timeout=5.0")
    if timeout > TIMEOUT_S_MAX:
        raise ArgumentError(
            f"timeout={timeout!r} is more than a year ({TIMEOUT_S_MAX} seconds); give less"
        )
    return max(1, round(timeout * 1000))
