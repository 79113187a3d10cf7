"""Codes on the wire <-> exceptions: the one place that turns a refusal into an error."""

from __future__ import annotations

from collections.abc import Mapping

from raftstore.errors import (
    ERRORS_BY_CODE,
    ConnectionInDoubtError,
    QueryError,
    RequestError,
)
from raftstore.types import NodeId


def error_of(
    code: str,
    message: str,
    *,
    leader_hint: NodeId | None = None,
    hosts: Mapping[str, str] | None = None,
) -> RequestError:
    """Return the error a node answered with.

    A code this version does not know is UNKNOWN: nothing may be concluded from it (S4).
    """
    cls = ERRORS_BY_CODE.get(code)
    if cls is None:
        error: RequestError = ConnectionInDoubtError(
            f"the node answered {code!r}, which this version does not know: {message}; "
            "install the same raftstore version on both sides"
        )
        error.retriable = False
    elif issubclass(cls, QueryError):
        error = cls(message, hosts=dict(hosts or {}))
    else:
        error = cls(message)
    error.leader_hint = leader_hint
    return error
