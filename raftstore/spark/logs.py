"""The log of the sink, heard wherever its parts run."""

from __future__ import annotations

import logging
import sys

_log = logging.getLogger("raftstore.spark")


def visible_log() -> logging.Logger:
    """Return the logger, heard on stderr where nobody has set up logging.

    ``commit`` runs in a short-lived Python process of Spark's, which no user code can configure.
    """
    if not logging.getLogger().handlers and not _log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        _log.addHandler(handler)
        _log.setLevel(logging.INFO)
    return _log
