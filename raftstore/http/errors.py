"""Errors over HTTP: which status, which body, when to try again."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec

from raftstore import errors
from raftstore.errors import QueryError, RaftstoreError, RequestError
from raftstore.types import Outcome, node_name

RETRY_AFTER_S: Final = "1"

STATUS_BY_ERROR: Final[tuple[tuple[type[RaftstoreError], HTTPStatus], ...]] = (
    (errors.ConfigError, HTTPStatus.BAD_REQUEST),
    (errors.SchemaError, HTTPStatus.BAD_REQUEST),
    (errors.PayloadTooLargeError, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (errors.UnknownTableError, HTTPStatus.NOT_FOUND),
    (errors.TableExistsError, HTTPStatus.CONFLICT),
    (errors.ConflictError, HTTPStatus.PRECONDITION_FAILED),
    (errors.RejectedError, HTTPStatus.CONFLICT),
    (errors.UnknownMachineError, HTTPStatus.CONFLICT),
    (errors.GuidReuseError, HTTPStatus.CONFLICT),
    (errors.GuidFencedError, HTTPStatus.CONFLICT),
    (errors.StoreTooOldError, HTTPStatus.CONFLICT),
    (errors.UnknownNodeError, HTTPStatus.NOT_FOUND),
    (errors.JoinRefusedError, HTTPStatus.CONFLICT),
    (errors.StillMemberError, HTTPStatus.CONFLICT),
    (errors.ChangePendingError, HTTPStatus.CONFLICT),
    (errors.ChangeDoneError, HTTPStatus.CONFLICT),
    (errors.AuthenticationError, HTTPStatus.UNAUTHORIZED),
    (errors.ForbiddenError, HTTPStatus.FORBIDDEN),
    (errors.OverloadedError, HTTPStatus.TOO_MANY_REQUESTS),
    (errors.NoSpaceError, HTTPStatus.INSUFFICIENT_STORAGE),
    (errors.PageExpiredError, HTTPStatus.GONE),
    (errors.SnapshotExpiredError, HTTPStatus.GONE),
    (errors.DataLossError, HTTPStatus.GONE),
    (errors.BatchRegressionError, HTTPStatus.CONFLICT),
    (errors.AttemptClosedError, HTTPStatus.CONFLICT),
    (errors.BatchIncompleteError, HTTPStatus.CONFLICT),
    (QueryError, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.NotLeaderError, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.NoLeaderError, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.MachineStoppedError, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.UnavailableError, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.UnknownChannelError, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.RequestTimeoutError, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.TransportError, HTTPStatus.SERVICE_UNAVAILABLE),
)
"""The first match counts; a write whose outcome is unknown is 504 whatever its error."""


class HostReason(msgspec.Struct, frozen=True):
    """Why one node did not serve the request."""

    host: str
    reason: str


class ErrorBody(msgspec.Struct, frozen=True):
    """Every answer that is no success."""

    error_code: str
    """Stable name; docs/errors.md has them all."""
    message: str
    outcome: str
    """not_applied: it did not happen and will not; unknown: it may have."""
    retriable: bool
    """Whether the same request may succeed later."""
    leader: str | None = None
    """Node that leads the channel, where that would help."""
    hosts: tuple[HostReason, ...] = ()
    """One reason per node that was asked."""
    guid: str | None = None
    """Of a write: ask GET /v1/writes/{guid} what became of it."""
    position: str | None = None
    """Of a lost conditional write: the row's present version."""


class HttpError(Exception):
    """A request that is refused before any node is asked."""

    def __init__(
        self, status: HTTPStatus, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})


def bad_request(message: str) -> HttpError:
    """A request that could not mean anything."""
    return HttpError(HTTPStatus.BAD_REQUEST, "bad_request", message)


def unsupported_media(kind: str) -> HttpError:
    """A body of a type that a page may send to any site without asking."""
    return HttpError(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        "unsupported_media_type",
        f"the body is said to be {kind!r:.60}; send Content-Type: application/json",
    )


def too_many_logins(text: str, seconds: str) -> HttpError:
    """A login that is not checked now."""
    return HttpError(
        HTTPStatus.TOO_MANY_REQUESTS,
        "too_many_logins",
        f"{text}; try again in {seconds} s, or use a token (HTTP Bearer)",
        {"Retry-After": seconds},
    )


def status_of(error: RaftstoreError) -> HTTPStatus:
    """Status of an error; 500 for what should not have reached a user."""
    if isinstance(error, RequestError) and error.outcome is Outcome.UNKNOWN:
        return HTTPStatus.GATEWAY_TIMEOUT
    for kind, status in STATUS_BY_ERROR:
        if isinstance(error, kind):
            return status
    return HTTPStatus.INTERNAL_SERVER_ERROR


def describe(error: Exception) -> tuple[HTTPStatus, ErrorBody, dict[str, str]]:
    """Status, body and headers of an error."""
    if isinstance(error, HttpError):
        body = ErrorBody(error.code, str(error), Outcome.NOT_APPLIED.value, retriable=False)
        return error.status, body, error.headers
    if not isinstance(error, RaftstoreError):
        text = "the node failed to answer; its log has the reason"
        body = ErrorBody("internal", text, Outcome.UNKNOWN.value, retriable=False)
        return HTTPStatus.INTERNAL_SERVER_ERROR, body, {}
    status = status_of(error)
    headers: dict[str, str] = {}
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        headers["Retry-After"] = RETRY_AFTER_S
    if status is HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Basic realm="raftstore", Bearer realm="raftstore"'
    return status, _body(error), headers


def _body(error: RaftstoreError) -> ErrorBody:
    if not isinstance(error, RequestError):
        is_config = isinstance(error, errors.ConfigError)
        return ErrorBody(
            "bad_request" if is_config else "unavailable",
            str(error),
            Outcome.NOT_APPLIED.value if is_config else Outcome.UNKNOWN.value,
            retriable=not is_config,
        )
    hosts = error.hosts if isinstance(error, QueryError) else {}
    position = error.position if isinstance(error, errors.ConflictError) else None
    return ErrorBody(
        error_code=error.code,
        message=str(error),
        outcome=error.outcome.value,
        retriable=error.retriable,
        leader=None if error.leader_hint is None else node_name(error.leader_hint),
        hosts=tuple(HostReason(host, reason) for host, reason in sorted(hosts.items())),
        guid=error.guid,
        position=position,
    )
