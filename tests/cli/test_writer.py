"""``raftstore writer`` without a cluster."""

from __future__ import annotations

import json
from typing import Any, Self

import click
import pytest
from click.testing import CliRunner, Result

from raftstore.cli.common import Context
from raftstore.cli.main import cli, global_options_first
from raftstore.client.batches.batch_writes import TableWriters
from raftstore.protocol.batches import WriterView

VIEWS = (
    WriterView("nightly", 20, 7, 3, -1, -1, "", one_shot=False, at_ms=1_700_000_000_000),
    WriterView("query", -1, -1, -1, 0, 8, "checkpoint", one_shot=False, at_ms=1_700_000_001_000),
)


class FakeClient:
    """A table with two writers; remembers what is changed."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def table(self, name: str) -> Self:
        """Itself."""
        assert name == "views"
        return self

    def writers(self, writer: str = "") -> TableWriters:
        """Those asked for."""
        found = tuple(view for view in VIEWS if writer in ("", view.writer))
        return TableWriters(found, 4, 1, (3, 2), 2)

    def adopt_writer(self, table: str, writer: str, *, lineage: str | None) -> None:
        """Remember it."""
        self.calls.append(("adopt", table, writer, lineage))

    def remove_writer(self, table: str, writer: str) -> None:
        """Remember it."""
        self.calls.append(("rm", table, writer))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """The client that every command talks to."""
    fake = FakeClient()
    monkeypatch.setattr(Context, "connect", lambda _: fake)
    return fake


def run(*arguments: str) -> Result:
    """Invoke a command as ``main`` does."""
    return CliRunner().invoke(cli, global_options_first(arguments), standalone_mode=False)


def test_writers_are_listed_with_their_last_and_their_open_batch(client: FakeClient) -> None:
    """Numbers that are not there are null."""
    told = json.loads(run("writer", "ls", "views", "-o", "json").stdout)
    assert (told["commits"], told["applied_everywhere"], told["waiting"]) == (3, 2, 1)
    first, second = told["writers"]
    assert (first["last_batch"], first["commit"], first["open_batch"]) == (20, 3, None)
    assert (second["last_batch"], second["open_batch"], second["open_attempt"]) == (None, 0, 8)
    assert second["at"] == "2023-11-14T22:13:21+00:00"
    assert "nightly" in run("writer", "ls", "views").stdout


def test_one_writer_is_shown_or_missed(client: FakeClient) -> None:
    """By its whole name."""
    shown = json.loads(run("writer", "show", "views", "query", "-o", "json").stdout)
    assert shown["lineage"] == "checkpoint"
    failure = run("writer", "show", "views", "quer").exception
    assert isinstance(failure, click.ClickException)
    assert "has no writer 'quer'" in failure.message


def test_writer_is_changed_only_by_the_users_word(client: FakeClient) -> None:
    """Both commands can lead to batches that are written twice."""
    for command in ("adopt", "rm"):
        assert isinstance(run("writer", command, "views", "query").exception, click.UsageError)
    assert client.calls == []
    assert run("writer", "adopt", "views", "query", "--lineage", "c2", "--yes").exception is None
    assert run("writer", "adopt", "views", "query", "--yes").exception is None
    assert run("writer", "rm", "views", "query", "--yes").exception is None
    assert client.calls == [
        ("adopt", "views", "query", "c2"),
        ("adopt", "views", "query", None),
        ("rm", "views", "query"),
    ]
