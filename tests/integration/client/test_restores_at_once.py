"""Two restores of one backup under one name at once: one ends it, and the other says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raftstore import backup
from raftstore.backup import restore
from raftstore.backup.restore import TableRestore
from raftstore.backup.restore_sets import SetRestore
from raftstore.client.blocking.client import Client
from raftstore.client.blocking.machines import ChannelSetState
from raftstore.errors import RaftstoreError, SchemaError, TableExistsError, UnavailableError
from tests.integration.client.fake_cluster import FakeCluster
from tests.integration.client.test_backup_of_sets import run, send, state_of

ROWS = [{"id": number} for number in range(20)]
NAMES: dict[str, dict[str, Any]] = {
    "table": {"tables": {"t": "t2"}},
    "channel set": {"channelsets": {"l": "l2"}},
}


def restored(client: Client, place: Path, what: str) -> None:
    """One more restore of the newest backup there."""
    backup.restore_backup(client, str(place), **NAMES[what])


def begin(client: Client, place: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a backup of a table, whose rows are five batches, and of a channel set."""
    send(client, "l", b"one", b"two")
    send(client, "l", b"three", partition=1)
    client.table("t").put_many(ROWS)
    monkeypatch.setattr(restore, "BATCH_ROWS", 4)
    return backup.create_backup(client, str(place)).id


def assert_whole(cluster: FakeCluster, client: Client, what: str) -> None:
    """All that is in the backup is there once, and is served."""
    if what == "table":
        assert sorted(row["id"] for row in client.table("t2").scan()) == list(range(20))
    else:
        assert state_of(cluster, "l2") == state_of(cluster, "l")
    name = {"table": "t2", "channel set": "l2"}[what]
    assert cluster.tables[name].settings.restoring is None


def once_before(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, act: Callable[[], None]
) -> None:
    """Do something before the first call of a method."""
    method = getattr(owner, name)

    def call(each: Any, *given: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, method)
        act()
        return method(each, *given, **named)

    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize(
    ("what", "owner", "name"),
    [
        ("table", TableRestore, "create"),
        ("channel set", SetRestore, "create"),
        ("table", TableRestore, "_stage"),
    ],
)
def test_restore_that_another_one_overtook_names_it_and_says_that_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, owner: type, name: str
) -> None:
    """It must not have people drop what was restored a moment ago."""

    def work(cluster: FakeCluster, client: Client) -> None:
        made = begin(client, tmp_path, monkeypatch)
        once_before(monkeypatch, owner, name, lambda: restored(client, tmp_path, what))
        for _ in range(2):  # and so does one that is begun later
            with pytest.raises(TableExistsError) as error:
                restored(client, tmp_path, what)
            text = str(error.value)
            assert f"exists: another restore of backup {made} made it and ended" in text
            assert "nothing is left to do" in text
            assert "drop" not in text
        assert_whole(cluster, client, what)

    run(work)


def test_restore_whose_batch_another_one_took_over_names_it_and_may_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written twice or lost, whichever of them goes on."""

    def dies(progress: backup.Progress) -> None:
        if progress.rows == 8:
            raise KeyboardInterrupt

    def begins_and_dies(client: Client) -> None:
        with pytest.raises(KeyboardInterrupt):
            backup.restore_backup(client, str(tmp_path), progress=dies, **NAMES["table"])

    def work(cluster: FakeCluster, client: Client) -> None:
        made = begin(client, tmp_path, monkeypatch)
        once_before(monkeypatch, TableRestore, "_stage", lambda: begins_and_dies(client))
        with pytest.raises(UnavailableError) as error:
            restored(client, tmp_path, "table")
        text = str(error.value)
        assert f"another restore of backup {made} is filling table 't2'" in text
        assert "let it end, or repeat this one when no other is under way" in text
        assert cluster.tables["t2"].settings.restoring is not None
        restored(client, tmp_path, "table")
        assert_whole(cluster, client, "table")

    run(work)


@pytest.mark.parametrize("is_done", [True, False])
def test_portion_that_a_node_refuses_is_named_with_the_restore_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_done: bool
) -> None:
    """A node takes none for a channel set that is served; any other reason stays what it is."""

    def work(cluster: FakeCluster, client: Client) -> None:
        begin(client, tmp_path, monkeypatch)

        def refuses() -> None:
            if is_done:
                restored(client, tmp_path, "channel set")
            raise SchemaError("the channel set is not being filled by this restore")

        once_before(monkeypatch, ChannelSetState, "put_portion", refuses)
        with pytest.raises(RaftstoreError) as error:
            restored(client, tmp_path, "channel set")
        assert isinstance(error.value, TableExistsError if is_done else SchemaError)
        assert ("nothing is left to do" in str(error.value)) is is_done
        if not is_done:
            restored(client, tmp_path, "channel set")
        assert_whole(cluster, client, "channel set")

    run(work)
