"""Completion of names of tables and channels in a shell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self

import pytest
from click.shell_completion import ShellComplete

import raftstore
from raftstore.cli.main import cli
from raftstore.errors import UnavailableError


class Tables:
    """A cluster with two tables."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def tables(self) -> list[Any]:
        """One of two partitions, one of one."""
        return [
            SimpleNamespace(name="orders", partitions=2),
            SimpleNamespace(name="origins", partitions=1),
        ]


def completed(*typed: str, incomplete: str = "") -> list[str]:
    """The completions that a shell would offer."""
    found = ShellComplete(cli, {}, "raftstore", "_RAFTSTORE_COMPLETE").get_completions(
        list(typed), incomplete
    )
    return [item.value for item in found]


@pytest.mark.parametrize(
    ("typed", "incomplete", "offered"),
    [
        (("get",), "", ["orders", "origins"]),
        (("get",), "ord", ["orders"]),
        (("table", "rm"), "or", ["orders", "origins"]),
        (("check", "table"), "x", []),
        (("channel", "info"), "orders/", ["orders/0", "orders/1"]),
        (("channel", "verify"), "ori", ["origins", "origins/0"]),
        (("table", "create"), "or", []),
    ],
)
def test_names_are_completed_from_the_cluster(
    monkeypatch: pytest.MonkeyPatch, typed: tuple[str, ...], incomplete: str, offered: list[str]
) -> None:
    """Tables where a table is meant, channels where a channel is; nothing for a new name."""
    asked: list[str] = []

    def connect(endpoints: str, *, timeout: float) -> Tables:
        assert timeout <= 1
        asked.append(endpoints)
        return Tables()

    monkeypatch.setattr(raftstore, "connect", connect)
    monkeypatch.delenv("RAFTSTORE_ENDPOINTS", raising=False)
    assert completed("--endpoints", "n1:1,n2:2", *typed, incomplete=incomplete) == offered
    assert set(asked) <= {"n1:1,n2:2"}
    if offered:
        completed(*typed, incomplete=incomplete)
        assert asked[-1] == "127.0.0.1:4481"


def test_cluster_that_does_not_answer_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt shows no traceback."""

    def connect(_endpoints: str, *, timeout: float) -> Tables:
        raise UnavailableError(f"nobody answered within {timeout} s")

    monkeypatch.setattr(raftstore, "connect", connect)
    assert completed("get") == []
