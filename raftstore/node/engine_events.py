"""Events of the engine as log lines."""

from __future__ import annotations

import logging
from typing import Final

from raftstore.node.logs import fields
from raftstore.types import NodeId, node_name

logger = logging.getLogger("raftstore.node")

_LOUD: Final = {
    "stop_serving": logging.ERROR,
    "unexpected_message": logging.WARNING,
    "storage_stalled": logging.ERROR,
    "disk_low": logging.WARNING,
    "machine_finding": logging.WARNING,
    "machine_stopped": logging.ERROR,
    "machine_slow": logging.ERROR,
}


def log_event(name: str, values: dict[str, object]) -> None:
    """Write one event; values that are no plain ones are left out."""
    level = _LOUD.get(name, logging.INFO)
    if logger.isEnabledFor(level):
        shown = {
            key: node_name(NodeId(str(value))) if key in ("to", "leader", "peer") else value
            for key, value in values.items()
            if isinstance(value, (str, int, float, bool))
        }
        logger.log(level, name, extra=fields(**shown))
