"""Limits that the operating system sets to a process, and what a node does within them.

A node whose connections could use up its files would stop in the middle of its work, since its
store opens files, too: each channel has a LevelDB of its own. So the limit is looked at before
anything is opened: the soft limit is raised as far as the hard one allows, and where that is not
enough fewer connections and fewer channels are allowed.
"""

from __future__ import annotations

import logging
import resource
from dataclasses import replace
from typing import Final

from raftstore.config import NodeSettings
from raftstore.errors import ConfigError
from raftstore.node.logs import fields
from raftstore.transport.server import GREETINGS_MAX

logger = logging.getLogger("raftstore.node")

FILES_BESIDE_CONNECTIONS: Final = 256
"""Open files of a node beside accepted connections and channels: log segments, peers, threads."""
FILES_PER_CHANNEL: Final = 4
"""Open files of a channel's LevelDB: its lock, its MANIFEST, its write-ahead log, its own notes.
Table files are mapped, or opened for a read where too many are."""
CHANNELS_MIN: Final = 64
"""Channels beside those there are already for which a node always keeps files."""
BEYOND_LIMITS: Final = GREETINGS_MAX + 16
"""Connections that no setting counts: binary ones without a Hello, HTTP ones that only probe."""
CONNECTIONS_MIN: Final = 64
"""A node that can take no more than this of clients and HTTP together is of no use."""


def within_open_files(settings: NodeSettings, channels: int = 0) -> NodeSettings:
    """Return the settings with as many connections and channels as the limit of open files allows.

    ``channels``: as many there are already. Raises ConfigError when the limit leaves room for next
    to no connections.
    """
    clients, http = settings.transport.client_connections_max, settings.http.connections_max
    channels_min = channels + CHANNELS_MIN
    beside = FILES_BESIDE_CONNECTIONS + BEYOND_LIMITS + settings.storage.files_reserved
    beside += FILES_PER_CHANNEL * channels_min
    wanted = beside + clients + http
    more = max(0, settings.storage.channels_max - channels_min)
    allowed = raise_open_files(wanted + FILES_PER_CHANNEL * more)
    if allowed >= wanted:
        room = channels_min + (allowed - wanted) // FILES_PER_CHANNEL
        return _with_channels(settings, room)
    room = allowed - beside
    if room < CONNECTIONS_MIN:
        raise ConfigError(
            f"{allowed} open files are allowed, which leaves {max(0, room)} for connections; raise "
            f"LimitNOFILE (ulimit -n) to {wanted}, or to {beside + CONNECTIONS_MIN} at least"
        )
    http_share = max(1, room * http // (clients + http))
    lowered = replace(
        _with_channels(settings, channels_min),
        transport=replace(settings.transport, client_connections_max=room - http_share),
        http=replace(settings.http, connections_max=http_share),
    )
    logger.warning(
        "few open files",
        extra=fields(
            reason=f"{allowed} open files are allowed, {wanted} may be needed: "
            f"transport.client_connections_max is {room - http_share} instead of {clients}, "
            f"http.connections_max {http_share} instead of {http}",
            remedy=f"raise LimitNOFILE (ulimit -n) to {wanted}",
        ),
    )
    return lowered


def _with_channels(settings: NodeSettings, room: int) -> NodeSettings:
    channels_max = min(settings.storage.channels_max, room)
    return replace(settings, storage=replace(settings.storage, channels_max=channels_max))


def raise_open_files(wanted: int) -> int:
    """Raise the soft limit of open files to ``wanted`` as far as the hard one allows.

    Returns the limit in force then; it is never lowered.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= wanted:
        return wanted if soft == unlimited else soft
    reachable = wanted if hard == unlimited else min(wanted, hard)
    if reachable > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
        return reachable
    return soft
