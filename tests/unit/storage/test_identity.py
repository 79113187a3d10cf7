"""Identity of a data directory: birth, lock, marker and refusals (S0.1, S0.2, S0.7)."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from raftstore.errors import DiskFullError, StorageError, StoreIdentityError
from raftstore.storage.identity import (
    BOOT_NAME,
    CREATING_NAME,
    LOCK_NAME,
    MARKER_NAME,
    Belonging,
    StoreIdentity,
    belonging_of,
    holds_store,
    lock_stopped,
    open_or_create,
)
from raftstore.types import NodeId
from tests.storage_helpers import FaultyFiles

CLUSTER = b"cluster-id-16byt"
MEMBERS = ((NodeId("n1@aa"), "host1:4481"), (NodeId("n2@bb"), "host2:4481"))


def make_parts(directory: Path, store_uuid: bytes) -> None:
    """Stands for log, mark and tables."""
    (directory / "log").mkdir()
    (directory / "log" / "part").write_bytes(store_uuid)


def open_it(directory: Path, name: str = "n1", **options: Any) -> StoreIdentity:
    """Open the directory with small demands."""
    return open_or_create(
        directory, name, **({"create_parts": make_parts, "free_bytes_min": 0} | options)
    )


def files_of(directory: Path) -> dict[str, bytes]:
    """Everything below a directory except the lock, which names its last owner."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def test_new_directory_gets_an_identity_that_stays(tmp_path: Path) -> None:
    """S0.1: the UUID is minted once, and the node's id is name and UUID."""
    first = open_it(tmp_path / "deep" / "data")
    assert first.was_created
    assert first.cluster_id == first.accepted_proposal == b""
    assert first.members == ()
    assert str(first.node) == f"n1@{first.store_uuid.hex()}"
    first.close(is_clean=True)
    again = open_it(tmp_path / "deep" / "data")
    assert not again.was_created
    assert (again.node, again.store_uuid) == (first.node, first.store_uuid)
    assert again.boot_id != first.boot_id
    again.close(is_clean=True)
    assert open_it(tmp_path / "other").store_uuid != first.store_uuid


def test_directory_is_used_by_one_process_at_a_time(tmp_path: Path) -> None:
    """Two nodes on one store would be two voters with one identity."""
    first = open_it(tmp_path)
    with pytest.raises(StoreIdentityError, match=f"in use by pid {os.getpid()}; stop"):
        open_it(tmp_path)
    first.close(is_clean=True)
    open_it(tmp_path).close(is_clean=True)


@pytest.mark.parametrize("is_clean", [True, False])
def test_next_start_knows_how_the_last_one_ended(tmp_path: Path, is_clean: bool) -> None:
    """S0.6 needs to know whether anything unsynced may be gone."""
    open_it(tmp_path).close(is_clean=is_clean)
    second = open_it(tmp_path)
    assert second.was_stopped_cleanly == is_clean
    second.close(is_clean=False)
    assert not open_it(tmp_path).was_stopped_cleanly


def test_directory_of_another_node_is_refused_untouched(tmp_path: Path) -> None:
    """The message names both nodes and what to do."""
    open_it(tmp_path).close(is_clean=True)
    before = files_of(tmp_path)
    with pytest.raises(StoreIdentityError, match=r"belongs to node 'n1', not to 'n2'; .*--id n1"):
        open_it(tmp_path, "n2")
    assert files_of(tmp_path) == before
    open_it(tmp_path).close(is_clean=True)


def test_only_one_proposal_is_ever_accepted(tmp_path: Path) -> None:
    """S0.7: a second founding is refused, also after a restart; the same one again is fine."""
    store = open_it(tmp_path)
    store.record_proposal(CLUSTER, MEMBERS)
    for _ in range(2):
        store.record_proposal(CLUSTER, MEMBERS)
        with pytest.raises(StoreIdentityError, match="already accepted the founding of cluster"):
            store.record_proposal(b"another-cluster!", MEMBERS)
        with pytest.raises(StoreIdentityError, match="already accepted the founding of cluster"):
            store.record_proposal(CLUSTER, MEMBERS[:1])
        assert (store.accepted_proposal, store.members) == (CLUSTER, MEMBERS)
        assert store.cluster_id == b""
        store.close(is_clean=True)
        store = open_it(tmp_path)
    store.close(is_clean=True)


def test_proposal_is_durable_before_it_is_accepted(tmp_path: Path) -> None:
    """S0.7: accept and fsync; what was not synced was not accepted."""
    ops = FaultyFiles()
    store = open_it(tmp_path, ops=ops)
    ops.calls.clear()
    store.record_proposal(CLUSTER, MEMBERS)
    steps = [("sync", MARKER_NAME + ".new"), ("rename", MARKER_NAME), ("sync", tmp_path.name + "/")]
    assert [call for call in ops.calls if call in steps] == steps
    store.close(is_clean=True)


def test_failed_proposal_is_not_accepted(tmp_path: Path) -> None:
    """A full disk at birth can be waited out; nothing was promised."""
    ops = FaultyFiles()
    store = open_it(tmp_path, ops=ops)
    ops.fail("sync", MARKER_NAME + ".new", errno.ENOSPC)
    with pytest.raises(DiskFullError):
        store.record_proposal(CLUSTER, MEMBERS)
    assert store.accepted_proposal == b""
    store.record_proposal(CLUSTER, MEMBERS)
    store.close(is_clean=True)


def test_store_belongs_to_its_cluster_for_ever(tmp_path: Path) -> None:
    """Another cluster is refused by name, however often the store is opened."""
    store = open_it(tmp_path)
    store.record_birth(CLUSTER, MEMBERS)
    store.record_birth(CLUSTER, MEMBERS)
    store.close(is_clean=True)
    store = open_it(tmp_path)
    assert store.cluster_id == store.accepted_proposal == CLUSTER
    with pytest.raises(StoreIdentityError, match="belongs to cluster"):
        store.record_birth(b"another-cluster!", MEMBERS)
    store.close(is_clean=True)


def test_store_that_joined_belongs_to_its_cluster_for_ever(tmp_path: Path) -> None:
    """M28: with its number and where the others were, in one write; the same again is fine."""
    store = open_it(tmp_path)
    assert (store.number, store.nodes_at_joining) == (0, ())
    now = ((MEMBERS[0][0], "moved:1"),)
    store.record_joining(CLUSTER, MEMBERS, now, 17)
    store.record_joining(CLUSTER, MEMBERS, (), 18)
    store.close(is_clean=True)
    store = open_it(tmp_path)
    assert (store.cluster_id, store.members) == (CLUSTER, MEMBERS)
    assert (store.number, store.nodes_at_joining) == (17, now)
    belonging = belonging_of(tmp_path, store.name)
    assert belonging is not None
    assert (belonging.members, belonging.nodes) == (MEMBERS, now)
    with pytest.raises(StoreIdentityError, match="cannot join"):
        store.record_joining(b"another-cluster!", MEMBERS, (), 1)
    store.close(is_clean=True)


def test_store_that_takes_part_in_a_founding_joins_no_cluster(tmp_path: Path) -> None:
    """S0.7: at most one, ever; that founding may end any moment."""
    store = open_it(tmp_path)
    store.record_proposal(CLUSTER, MEMBERS)
    for cluster in (CLUSTER, b"another-cluster!"):
        with pytest.raises(StoreIdentityError, match="accepted the founding of cluster"):
            store.record_joining(cluster, MEMBERS, (), 1)
    assert store.cluster_id == b""
    store.close(is_clean=True)


def test_crash_while_joining_leaves_all_or_nothing(tmp_path: Path) -> None:
    """M28: a store without a cluster asks again, under the same id."""
    ops = FaultyFiles()
    store = open_it(tmp_path, ops=ops)
    node = store.node
    ops.fail("sync", MARKER_NAME + ".new", errno.ENOSPC)
    with pytest.raises(DiskFullError):
        store.record_joining(CLUSTER, MEMBERS, (), 17)
    assert store.cluster_id == store.accepted_proposal == b""
    store.close(is_clean=True)
    store = open_it(tmp_path)
    assert (store.node, store.cluster_id) == (node, b"")
    store.record_joining(CLUSTER, MEMBERS, (), 17)
    store.close(is_clean=True)


def test_start_makes_the_marker_durable_before_it_believes_it(tmp_path: Path) -> None:
    """S0.1, S0.7: a process that was killed while it replaced the marker left a name that a power
    cut would take back, and the next one belongs to the cluster that it says."""
    ops = FaultyFiles()
    open_it(tmp_path, ops=ops).close(is_clean=False)
    store = open_it(tmp_path, ops=ops)
    store.record_birth(CLUSTER, MEMBERS)
    store.close(is_clean=False)
    ops.calls.clear()
    open_it(tmp_path, ops=ops).close(is_clean=False)
    changes = [call for call in ops.calls if call[0] in ("write", "sync", "rename")]
    assert changes[0] == ("sync", tmp_path.name + "/")


def test_files_without_a_marker_are_refused_untouched(tmp_path: Path) -> None:
    """S0.2: a directory that lost its marker does not become a new store."""
    open_it(tmp_path).close(is_clean=True)
    (tmp_path / MARKER_NAME).unlink()
    before = files_of(tmp_path)
    with pytest.raises(StoreIdentityError, match=f"but no {MARKER_NAME}"):
        open_it(tmp_path)
    assert files_of(tmp_path) == before


def test_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    """A mistyped path is reported as such."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreIdentityError, match="is no directory"):
        open_it(tmp_path / "file")


def test_newer_format_is_refused_untouched(tmp_path: Path) -> None:
    """GAP-15."""
    open_it(tmp_path).close(is_clean=True)
    facts = json.loads((tmp_path / MARKER_NAME).read_text())
    (tmp_path / MARKER_NAME).write_text(json.dumps(facts | {"format_version": 99}))
    before = files_of(tmp_path)
    with pytest.raises(StoreIdentityError, match="format version 99, this program knows 1"):
        open_it(tmp_path)
    assert files_of(tmp_path) == before


@pytest.mark.parametrize(
    "damage",
    [b"", b"not json", b"[]", b'{"format_version": 1}', None],
    ids=["empty", "garbage", "list", "fields missing", "one digit"],
)
def test_damaged_marker_is_refused(tmp_path: Path, damage: bytes | None) -> None:
    """S0.1: a flipped digit of the UUID would make this node another voter."""
    open_it(tmp_path).close(is_clean=True)
    path = tmp_path / MARKER_NAME
    if damage is None:
        facts = json.loads(path.read_text())
        digit = "0" if facts["store_uuid"][0] != "0" else "1"
        damage = json.dumps(facts | {"store_uuid": digit + facts["store_uuid"][1:]}).encode()
    path.write_bytes(damage)
    with pytest.raises(StoreIdentityError, match=r"is damaged.*whose store"):
        open_it(tmp_path)
    assert path.read_bytes() == damage


def test_creation_is_durable_step_by_step(tmp_path: Path) -> None:
    """S0.1: after a power cut the directory is a store or none: no vote was given on one that the
    next start takes for half-made and makes again."""
    ops = FaultyFiles()

    def make(directory: Path, store_uuid: bytes) -> None:
        make_parts(directory, store_uuid)
        ops.calls.append(("make", "parts"))

    open_it(tmp_path / "data", ops=ops, create_parts=make).close(is_clean=False)
    steps = [call for call in ops.calls if call[0] in ("sync", "rename", "make")]
    assert steps[: steps.index(("sync", BOOT_NAME + ".new"))] == [
        ("sync", CREATING_NAME),
        ("sync", "data/"),
        ("sync", tmp_path.name + "/"),
        ("make", "parts"),
        ("sync", "data/"),
        ("rename", MARKER_NAME),
        ("sync", "data/"),
    ]


def test_interrupted_creation_is_done_again(tmp_path: Path) -> None:
    """Nothing ever ran on a half-made store, so it may be made again, under a new UUID."""
    for crash_at in ("parts", "marker"):
        directory = tmp_path / crash_at
        ops = FaultyFiles()
        if crash_at == "marker":
            ops.fail("rename", MARKER_NAME)

        def make(directory: Path, store_uuid: bytes, crash_at: str = crash_at) -> None:
            make_parts(directory, store_uuid)
            if crash_at == "parts":
                raise OSError(errno.EIO, "I/O error")

        with pytest.raises(StorageError):
            open_it(directory, ops=ops, create_parts=make)
        assert not (directory / MARKER_NAME).exists()
        store = open_it(directory)
        assert store.was_created
        assert (directory / "log" / "part").read_bytes() == store.store_uuid
        assert sorted(path.name for path in directory.iterdir()) == [
            "boot",
            "lock",
            "log",
            MARKER_NAME,
        ]


def test_full_disk_is_told_before_anything_is_touched(tmp_path: Path) -> None:
    """GAP-13: the runtime waits and calls again."""
    ops = FaultyFiles()
    ops.free = 10 << 20
    with pytest.raises(DiskFullError, match=r"10485760 bytes free, 33554432 are needed to start"):
        open_it(tmp_path, ops=ops, free_bytes_min=32 << 20)
    assert files_of(tmp_path) == {}
    ops.free = 64 << 20
    open_it(tmp_path, ops=ops, free_bytes_min=32 << 20).close(is_clean=True)


def test_everything_of_an_interrupted_creation_is_removed(tmp_path: Path) -> None:
    """Given a creation that a crash interrupted, the next start removes all of its parts, in any
    order of the listing; the file system's own directory stays.
    """
    ops = FaultyFiles()
    ops.fail("rename", MARKER_NAME)
    with pytest.raises(StorageError):
        open_it(tmp_path, ops=ops, create_parts=make_parts)
    (tmp_path / "lost+found").mkdir()
    for number in range(20):
        (tmp_path / f"part{number}").mkdir()
        (tmp_path / f"file{number}").write_bytes(b"x")
    store = open_it(tmp_path)
    assert store.was_created
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["boot", "lock", "log", "lost+found", MARKER_NAME]


def test_belonging_is_known_from_the_birth_on(tmp_path: Path) -> None:
    """Looking touches nothing, also where there is no directory or no store."""
    place = tmp_path / "missing" / "data"
    assert belonging_of(place, "n1") is None
    assert not holds_store(place)
    assert not place.parent.exists()
    store = open_it(place)
    assert holds_store(place)
    assert belonging_of(place, "n1") is None
    store.record_proposal(CLUSTER, MEMBERS)
    assert belonging_of(place, "n1") is None, "accepted is not founded"
    store.record_birth(CLUSTER, MEMBERS)
    assert belonging_of(place, "n1") == Belonging(store.node, CLUSTER, MEMBERS)
    with pytest.raises(StoreIdentityError, match="belongs to node 'n1', not to 'n2'"):
        belonging_of(place, "n2")
    store.close(is_clean=True)


def test_stopped_store_says_whose_it_is_and_stays_locked(tmp_path: Path) -> None:
    """Readers share the lock, which is let go with the descriptor; no file changes."""
    store = open_it(tmp_path)
    store.record_birth(CLUSTER, MEMBERS)
    with pytest.raises(StoreIdentityError, match=f"in use by pid {os.getpid()}; stop"):
        lock_stopped(tmp_path, is_shared=True)
    store.close(is_clean=True)
    before = files_of(tmp_path)
    readers = [lock_stopped(tmp_path, is_shared=True) for _ in range(2)]
    for found in readers:
        assert (found.directory, found.name) == (tmp_path, "n1")
        assert found.store_uuid == store.store_uuid
        assert found.belonging == Belonging(store.node, CLUSTER, MEMBERS)
        with pytest.raises(StoreIdentityError, match="in use"):
            open_it(tmp_path)
        os.close(found.lock)
    writer = lock_stopped(tmp_path, is_shared=False)
    with pytest.raises(StoreIdentityError, match="in use"):
        lock_stopped(tmp_path, is_shared=True)
    os.close(writer.lock)
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("is_shared", [True, False])
def test_directory_without_a_founded_store_is_not_kept_locked(
    tmp_path: Path, is_shared: bool
) -> None:
    """The sentence says what it is instead, and its node can be started."""
    with pytest.raises(StoreIdentityError, match=rf"holds no {MARKER_NAME}, so it is no data"):
        lock_stopped(tmp_path, is_shared=is_shared)
    assert list(tmp_path.iterdir()) == []
    open_it(tmp_path).close(is_clean=True)
    with pytest.raises(StoreIdentityError, match="node n1, which was never part of a cluster"):
        lock_stopped(tmp_path, is_shared=is_shared)
    open_it(tmp_path).close(is_clean=True)
    marker = tmp_path / MARKER_NAME
    whole = marker.read_bytes()
    marker.write_bytes(whole[:-9])
    with pytest.raises(StoreIdentityError, match="is damaged, so it is not known whose"):
        lock_stopped(tmp_path, is_shared=is_shared)
    marker.write_bytes(whole)
    open_it(tmp_path).close(is_clean=True)


def test_start_notes_its_boot_and_its_process(tmp_path: Path) -> None:
    """S0.6: each start has an id of its own, and a clean stop is known by it."""
    boots = []
    for is_clean in (True, False, True):
        store = open_it(tmp_path)
        assert store.was_created == (not boots)
        assert store.was_stopped_cleanly == (boots == [] or boots[-1]["clean"])
        running = json.loads((tmp_path / BOOT_NAME).read_bytes())
        assert running == {"boot_id": store.boot_id.hex(), "pid": os.getpid(), "clean": False}
        assert len(store.boot_id) == 16
        assert (tmp_path / LOCK_NAME).read_bytes() == f"{os.getpid()}\n".encode()
        (tmp_path / LOCK_NAME).write_bytes(b"1234567890123456\n")
        store.close(is_clean=is_clean)
        boots.append(json.loads((tmp_path / BOOT_NAME).read_bytes()))
        assert boots[-1] == running | {"clean": is_clean}
    assert len({boot["boot_id"] for boot in boots}) == 3


@pytest.mark.parametrize("boot", [b"", b"no JSON", b"[]", b"{}", b"7", None])
def test_unknown_end_is_no_clean_one(tmp_path: Path, boot: bytes | None) -> None:
    """S0.6: whatever became of the note of the last process."""
    open_it(tmp_path).close(is_clean=True)
    if boot is None:
        (tmp_path / BOOT_NAME).unlink()
    else:
        (tmp_path / BOOT_NAME).write_bytes(boot)
    store = open_it(tmp_path)
    assert not store.was_stopped_cleanly
    assert not store.was_created
    store.close(is_clean=True)


def test_root_of_a_file_system_may_be_a_data_directory(tmp_path: Path) -> None:
    """Its lost+found is no store, and stays, also when an interrupted creation is removed."""
    place = tmp_path / "a" / "b"
    (place / "lost+found").mkdir(parents=True)

    def power_cut(directory: Path, _uuid: bytes) -> None:
        (directory / "mark").write_bytes(b"half")
        raise OSError(errno.EIO, "power cut")

    with pytest.raises(StorageError):
        open_it(place, create_parts=power_cut)
    store = open_it(place)
    assert (place / "lost+found").is_dir()
    assert not (place / "mark").exists()
    assert not (place / CREATING_NAME).exists()
    assert store.was_created
    lock = store.place()
    assert lock.path == place / LOCK_NAME
    assert lock.inode == (place / LOCK_NAME).stat().st_ino
    store.close(is_clean=True)


def test_disk_with_just_enough_space_will_do(tmp_path: Path) -> None:
    """A byte less is reported with both numbers, and the lock is let go."""
    ops = FaultyFiles()
    ops.free = 999
    with pytest.raises(DiskFullError, match="has 999 bytes free, 1000 are needed"):
        open_it(tmp_path, ops=ops, free_bytes_min=1_000)
    ops.free = 1_000
    open_it(tmp_path, ops=ops, free_bytes_min=1_000).close(is_clean=True)


def test_marker_holds_what_was_recorded_and_nothing_else(tmp_path: Path) -> None:
    """Operators read it; a copy of it can be put back."""
    store = open_it(tmp_path, random_bytes=lambda size: b"r" * size)
    store.record_birth(CLUSTER, MEMBERS)
    store.close(is_clean=True)
    facts = json.loads((tmp_path / MARKER_NAME).read_bytes())
    assert facts.pop("checksum") > 0
    assert facts == {
        "format_version": facts["format_version"],
        "store_uuid": (b"r" * 16).hex(),
        "node": "n1",
        "cluster_id": CLUSTER.hex(),
        "proposal": CLUSTER.hex(),
        "members": [list(pair) for pair in MEMBERS],
    }
