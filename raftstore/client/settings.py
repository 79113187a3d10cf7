"""Times and limits of a client; the defaults fit one data centre."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raftstore.client.auditing.audit import Audit
from raftstore.config import EVENT_LOOPS, MIB
from raftstore.errors import ArgumentError, ConfigError
from raftstore.policy.routing import Prefer
from raftstore.types import PreferName

REQUEST_ROWS_MAX: Final = 1_000
"""Rows of one record of ``put_many``: applied and acknowledged as a whole."""
REQUEST_BYTES_MAX: Final = 1 * MIB
"""Bytes of one record of ``put_many`` (one larger row makes a record of its own)."""
KEYS_PER_GET: Final = 1_000
"""Keys of one request of ``get_many``."""
SCAN_PAGE_ROWS: Final = 1_000
"""Rows of one page of a scan, per channel."""
PAGE_ROWS_MAX: Final = 10_000
"""Rows of one ``page``."""
PAGE_ROWS_MIN: Final = 16
"""Rows of a page that are asked for at a time, per channel, at least."""
ANSWERS_AT_ONCE: Final = 4
"""Pages or parts that one call waits for at a time: each answer may have megabytes, and a node
gives up a client for which too many bytes wait."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Every setting of a client besides where the cluster is. Times in milliseconds."""

    timeout_ms: int = 5_000
    """Deadline of a call that names none; retries and fail-overs happen within it."""
    connect_timeout_ms: int = 1_000
    reconnect_min_ms: int = 50
    reconnect_max_ms: int = 1_000
    """Pause between attempts to reach a node that does not answer, doubled up to this."""
    warm_up_ms: int = 250
    """How long the first write of a channel waits for connections to all replicas; later writes
    and missing replicas go by way of the leader."""
    retry_min_ms: int = 10
    retry_max_ms: int = 250
    """Back-off between attempts at the same leader, doubled up to this, with jitter."""
    last_call_ms: int = 50
    """A write that was refused is not sent again this shortly before its deadline: certainly not
    applied is a better outcome than unknown."""
    suspect_ms: int = 300
    """A leader that has not answered for this long: ask the others who leads."""
    grace_ms: int = 100
    """A write whose leader was succeeded waits this long after it was sent for a last answer."""
    resend_ms: int = 3_000
    """A write without answer is sent again with its guid (after the nodes' quorum timeout)."""
    hedge_ms: int = 50
    """A read at a replica that has said nothing for this long is also sent to the next one."""
    refresh_first_ms: int = 5
    refresh_min_ms: int = 25
    """Between two rounds of asking for leaders, however many calls want to know: from the first of
    them, for a planned change of leader takes some 15 ms, by half longer each time up to the
    second."""
    seek_ms: int = 50
    """A call that waits for a leader says so again after this long; the search goes on until
    then."""
    refresh_interval_ms: int = 5_000
    """Background refresh of the catalog."""
    channel_bytes_max: int = 8 * MIB
    """Written to one channel and not answered yet; further writes wait. A write of one row counts
    1 KiB more than its bytes."""
    client_bytes_max: int = 16 * MIB
    """The same over all channels: what a connection to one node may have to carry."""
    answer_bytes_max: int | None = None
    """Rows that one call may hold: a page ends there, and many keys are refused. Default: what the
    caller asks for, who has to hold it anyway."""
    prefer: Prefer | PreferName = "leader"
    """Which replica within the bound is asked first, where a read does not say: leader, nearest or
    any_in_bound."""
    is_operator: bool = False
    """Ask on connections that nodes keep places for when all others are taken: for programs by
    which people mend a cluster, such as the command line."""
    event_loop: str = "auto"
    """The loop of the thread behind ``raftstore.connect``: auto, asyncio or uvloop; auto is uvloop
    where it is installed. ``raftstore.aio`` runs on its caller's loop."""
    audit: Audit | None = None
    """Judges what this client is answered (``Audit``); None: nothing is judged."""
    home: str = ""
    """Name or id of the node that is local to this client: asked first by prefer=nearest, and
    among equals."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, int) and not isinstance(value, bool) and value < 1:
                raise ConfigError(f"{name}={value} is not positive; use 1 or more")
        if self.audit is not None and not isinstance(self.audit, Audit):
            raise ConfigError(f"audit={self.audit!r:.80} is no raftstore.Audit; give one, or None")
        if self.event_loop not in EVENT_LOOPS:
            known = ", ".join(EVENT_LOOPS)
            raise ConfigError(f"event_loop={self.event_loop!r} is unknown; use one of {known}")
        if self.prefer not in tuple(Prefer):
            known = ", ".join(Prefer)
            raise ConfigError(f"prefer={self.prefer!r} is unknown; use one of {known}")


def checked_settings(given: ClientSettings | None) -> ClientSettings:
    """Return the settings given, or those of a client for which none are; ArgumentError for
    anything else."""
    if given is None:
        return ClientSettings()
    if not isinstance(given, ClientSettings):
        raise ArgumentError(
            f"settings={given!r:.80} are no ClientSettings; give one, as in "
            "settings=raftstore.ClientSettings(timeout_ms=5000), or none"
        )
    return given
