"""One client per process and cluster."""

import os

import pytest

import raftstore
from raftstore.spark import connections
from raftstore.spark.connections import close_all, shared


class Client:
    """Remembers whether it was closed."""

    def __init__(self):
        self.is_closed = False

    def close(self):
        self.is_closed = True


@pytest.fixture
def made(monkeypatch):
    """Every client that was connected, with what it was asked for."""
    clients = []

    def connect(servers, *, timeout):
        clients.append((servers, timeout, Client()))
        return clients[-1][2]

    monkeypatch.setattr(raftstore, "connect", connect)
    monkeypatch.setattr(connections, "_clients", {})
    return clients


def test_client_is_kept_for_the_next_task(made):
    """Of the same cluster and timeout."""
    with shared("a:1", 500) as first:
        pass
    with shared("a:1", 500) as second:
        assert second is first
    with shared("a:1", 600), shared("b:1", 500):
        pass
    assert [(servers, timeout) for servers, timeout, _ in made] == [
        ("a:1", 0.5),
        ("a:1", 0.6),
        ("b:1", 0.5),
    ]
    close_all()
    assert all(client.is_closed for _, _, client in made)


def test_client_that_saw_an_error_is_closed(made):
    """The cluster may be another one by the next time."""
    with pytest.raises(ZeroDivisionError), shared("a:1", 500) as first:
        raise ZeroDivisionError
    assert first.is_closed
    with shared("a:1", 500) as second:
        assert second is not first


def test_two_at_once_have_one_each_and_one_is_kept(made):
    """A client is lent to one task at a time."""
    with shared("a:1", 500) as first, shared("a:1", 500) as second:
        assert first is not second
    assert [client.is_closed for _, _, client in made] == [False, True]


def test_client_of_the_parent_process_is_left_alone(made, monkeypatch):
    """After a fork its threads are not here; closing it would end the parent's connections."""
    with shared("a:1", 500) as parents:
        pass
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with shared("a:1", 500) as own:
        assert own is not parents
    close_all()
    assert (own.is_closed, parents.is_closed) == (True, False)
