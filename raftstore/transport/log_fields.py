"""Named values of a log line, in the shape ``raftstore.node.logs`` formats."""

from __future__ import annotations


def fields(**values: object) -> dict[str, dict[str, object]]:
    """The ``extra`` argument of a logging call."""
    return {"raftstore_fields": values}
