"""Requests that a web page made a browser send: refused, unless the page is allowed to.

A browser sends requests wherever a page wants, also to a node on loopback, and with the password
that its user once gave. It says where the page came from (Origin, Sec-Fetch-Site); programs such
as curl send neither. A page whose own name was pointed to the node's address afterwards (DNS
rebinding) looks like one of the node, but for the Host header, which still has the page's name.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

from starlette.requests import Request

from raftstore.config import HttpSettings
from raftstore.errors import ForbiddenError
from raftstore.http.errors import unsupported_media
from raftstore.http.roles import Role
from raftstore.http.routes import Route

_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_OWN_SITES: Final = frozenset({"same-origin", "none"})
"""Of Sec-Fetch-Site: a page of the node itself, or the user by hand."""
_BODIES: Final = frozenset({"", "application/json", "application/x-www-form-urlencoded"})
"""The last one is what ``curl -d`` says. A form cannot send JSON by it; by text/plain it can."""


class Origins:
    """Decides which pages may ask for what."""

    def __init__(self, settings: HttpSettings, *, is_open: bool) -> None:
        """``is_open``: there are no users, so every client may do everything."""
        self._is_open = is_open
        self._origins = _split(settings.allowed_origins)
        own = (_host(settings.listen), _host(settings.advertise))
        self._hosts = _split(settings.allowed_hosts) | {host for host in own if host}

    def check(self, route: Route, request: Request) -> None:
        """Raise ForbiddenError, or HttpError for a body of another type."""
        if route.role is None:
            return
        headers = request.headers
        if self._is_open:
            for given in headers.getlist("host"):
                self._check_host(given)
        if request.method not in _SAFE_METHODS or route.role is not Role.READ:
            self._check_page(headers.get("host", ""), headers.get("origin"), request)
        if route.body is not None:
            _check_body(headers.get("content-type", ""))

    def _check_host(self, given: str) -> None:
        """Names without a dot are of this network: no page has one."""
        host = _host(given)
        if "." not in host.rstrip(".") and ":" not in host:
            return
        if host in self._hosts or "*" in self._hosts or _is_address(host):
            return
        raise ForbiddenError(
            f"the request is for the host {host!r:.80}, which is no name of this node; if it is, "
            "add it to http.allowed_hosts (DNS rebinding)"
        )

    def _check_page(self, host: str, origin: str | None, request: Request) -> None:
        if origin is not None and origin.lower() in self._origins:
            return
        site = request.headers.get("sec-fetch-site")
        is_own = origin is None or origin.lower().partition("://")[2] == host.lower()
        if is_own and (site is None or site in _OWN_SITES):
            return
        raise ForbiddenError(
            f"a page of {origin or 'another site'!r:.80} made this request; if it may, add its "
            "origin to http.allowed_origins"
        )


def _check_body(given: str) -> None:
    kind = given.partition(";")[0].strip().lower()
    if kind not in _BODIES and not kind.endswith("+json"):
        raise unsupported_media(kind)


def _split(given: str) -> frozenset[str]:
    return frozenset(part.strip().lower() for part in given.split(",") if part.strip())


def _host(given: str) -> str:
    """Return the host of ``host:port`` or of a Host header, without brackets."""
    text = given.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _is_address(host: str) -> bool:
    """A page has no name then that could be pointed elsewhere."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
