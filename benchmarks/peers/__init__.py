"""Other stores on loopback, for comparisons in one run: three processes, or one of Redis.

They come from the machine's own packages (Debian: ``etcd-server``, ``nats-server``,
``redis-server``) and their clients from the extra ``peers``. One that is not there is named as
such, and the rest goes on.
"""

from __future__ import annotations

from typing import Final

NOT_INSTALLED: Final = "not installed"
NODES: Final = 3
START_TIMEOUT_S: Final = 60.0


class PeerMissingError(Exception):
    """The peer's server or its client is not installed; the text says which."""
