"""Addresses: ``host:port`` as text, the listening socket, and options of connected sockets."""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address
from typing import Final

from raftstore.errors import ConfigError

LISTEN_BACKLOG: Final = 512


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[ipv6]:port``; ConfigError names what is wrong with it."""
    host, colon, port_text = endpoint.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"the address {endpoint!r} is ambiguous: write IPv6 as [address]:port")
    if not colon or not host:
        raise ConfigError(f"the address {endpoint!r} is not host:port, as in 127.0.0.1:4481")
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65535:
        raise ConfigError(
            f"the port {port_text!r} of the address {endpoint!r} is not a number from 0 to 65535"
        )
    if not _is_host(host):
        raise ConfigError(
            f"{host!r} of the address {endpoint!r} is no host; write a name such as "
            "n1.example.org, or an IP address"
        )
    return host, int(port_text)


def _is_host(host: str) -> bool:
    """Whether the resolver can be asked for it: what has no encoding raises past OSError there."""
    if not host.isprintable() or any(sign in host for sign in " []/@"):
        return False
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def format_endpoint(host: str, port: int) -> str:
    """Join host and port to what ``parse_endpoint`` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the host; of names only localhost counts."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def open_listener(endpoint: str, *, insecure: bool) -> socket.socket:
    """Bind the node's port, non-blocking and listening; raises what its two steps raise."""
    listener = bind_listener(endpoint, insecure=insecure)
    start_listening(listener, endpoint)
    return listener


def bind_listener(endpoint: str, *, insecure: bool) -> socket.socket:
    """Bind the node's port, non-blocking; connections are refused until ``start_listening``.

    ConfigError when the address is taken, is not of this machine, or is reachable from others while
    ``insecure`` does not allow that; nothing is left open then.
    """
    host, port = parse_endpoint(endpoint)
    if not (insecure or is_loopback(host)):
        raise ConfigError(
            f"refusing to listen on {endpoint}: other machines can reach it and connections are "
            f"not protected yet; bind to 127.0.0.1 or pass --insecure"
        )
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {endpoint}: the host is not known ({error.strerror}); "
            f"use an address of this machine"
        ) from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {endpoint}: {_bind_remedy(error)}") from error
    return listener


def start_listening(listener: socket.socket, endpoint: str) -> None:
    """Let others connect; once more is fine. ConfigError, closed, when somebody else was faster."""
    try:
        listener.listen(LISTEN_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {endpoint}: {_bind_remedy(error)}") from error


def _bind_remedy(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is in use; stop the other process or choose another port with --listen"
    if error.errno == errno.EADDRNOTAVAIL:
        return "the host is no address of this machine; choose one of its own with --listen"
    if error.errno == errno.EACCES:
        return "ports below 1024 need privileges; choose a higher one with --listen"
    return f"{error.strerror}; choose another address with --listen"


def tune_socket(connected: socket.socket, *, silence_ms: int) -> None:
    """Send small frames at once, and give up a connection whose bytes nobody acknowledges.

    After ``silence_ms`` without an acknowledgement the kernel reports the connection as broken.
    Without that limit a healed network would stay unused until TCP's own, ever longer, next
    repetition; with it the connection is dialled anew.
    """
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silence_ms)
