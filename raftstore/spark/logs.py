"""The log of the sink, visible wherever its parts run."""

from __future__ import annotations

import logging
import sys

_log = logging.getLogger("raftstore.spark")


def visible_log() -> logging.Logger:
    """Return the logger; its lines go to stderr where logging is not set up.

    ``commit`` runs in a short-lived Python process of Spark's, which no user code can configure.
    """
    if not logging.getLogger().handlers and not _log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        _log.addHandler(handler)
        _log.setLevel(logging.INFO)
    return _log
