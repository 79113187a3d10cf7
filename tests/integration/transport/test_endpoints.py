"""Addresses and the listening socket: one clear sentence for each mistake."""

from __future__ import annotations

import socket

import pytest

from raftstore.errors import ConfigError
from raftstore.transport.endpoints import (
    format_endpoint,
    is_loopback,
    open_listener,
    parse_endpoint,
    tune_socket,
)


@pytest.mark.parametrize(
    ("endpoint", "parts"),
    [
        ("127.0.0.1:4481", ("127.0.0.1", 4481)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_endpoint_is_split_and_joined_again(endpoint: str, parts: tuple[str, int]) -> None:
    """Host and port, IPv6 in brackets."""
    assert parse_endpoint(endpoint) == parts
    assert format_endpoint(*parts) == endpoint


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [
        ("", "'' is not host:port"),
        ("4481", "'4481' is not host:port"),
        (":4481", "':4481' is not host:port"),
        ("::1:4481", "'::1:4481' is ambiguous: write IPv6 as"),
        ("n1:", "port '' of the address 'n1:' is not a number from 0 to 65535"),
        ("n1:65536", "port '65536'"),
        ("n1:-1", "port '-1'"),
        ("n1:٣", "port '٣'"),
        ("a..b:4481", "'a..b' of the address 'a..b:4481' is no host"),
        ("x" * 64 + ":4481", "is no host"),
        ("n\0:4481", "is no host"),
        ("n 1:4481", "is no host"),
        ("[n1:4481", "is no host"),
    ],
)
def test_what_is_no_endpoint_is_named_with_its_mistake(endpoint: str, text: str) -> None:
    """The error quotes the address and says what is expected."""
    with pytest.raises(ConfigError) as caught:
        parse_endpoint(endpoint)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("db.example", False),
    ],
)
def test_only_loopback_is_held_for_private(host: str, expected: bool) -> None:
    """Only addresses that are certainly this machine's own count as private."""
    assert is_loopback(host) is expected


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1", "db.example"])
def test_address_that_others_reach_needs_consent(host: str) -> None:
    """Beyond loopback nothing is bound unless --insecure says so."""
    with pytest.raises(ConfigError, match=r"other machines can reach it.*--insecure"):
        open_listener(f"{host}:0", insecure=False)


def test_consent_opens_all_addresses() -> None:
    """With --insecure the node listens where it was asked to."""
    with open_listener("0.0.0.0:0", insecure=True) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"
        assert not listener.getblocking()


def test_port_in_use_is_named_with_the_remedy() -> None:
    """Host, port, and what to do; the one who has it is not disturbed."""
    with open_listener("127.0.0.1:0", insecure=False) as first:
        endpoint = format_endpoint(*first.getsockname())
        with pytest.raises(ConfigError, match=rf"listen on {endpoint}: the port is in use; .*--l"):
            open_listener(endpoint, insecure=False)
        with socket.create_connection(first.getsockname()):
            first.accept()[0].close()


def test_address_of_another_machine_is_named_with_the_remedy() -> None:
    """A documentation address (RFC 5737) is nobody's."""
    with pytest.raises(ConfigError, match=r"listen on 192\.0\.2\.1:4481: .* no address of this"):
        open_listener("192.0.2.1:4481", insecure=True)


def test_unknown_host_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that does not resolve is a setting to correct."""

    def resolve_nothing(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve_nothing)
    with pytest.raises(ConfigError, match=r"db\.example:1: the host is not known \(Name or"):
        open_listener("db.example:1", insecure=True)


def test_connection_whose_bytes_nobody_acknowledges_is_given_up() -> None:
    """After a partition the kernel ends the connection, so that it is dialled anew."""
    with open_listener("127.0.0.1:0", insecure=False) as listener:
        with socket.create_connection(listener.getsockname()) as connected:
            tune_socket(connected, silence_ms=3_000)
            assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 3_000
            assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        listener.accept()[0].close()
