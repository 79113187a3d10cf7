"""Identity of a store: its marker, its lock, and the one proposal of a cluster it ever accepts.

S0.1: a node is its name and the UUID minted when its store was created; a directory that lost a
part does not silently become a new store under the old id. The marker ``raftstore.json`` gets its
name when everything else exists, so the four states of a directory are distinguished:

* empty or absent: a new store is created;
* ``raftstore.json.creating`` without a marker: creation was interrupted, nothing ever ran on it; it
  is done again;
* a marker: everything it names must be there (log and mark: ``raftstore.storage.log.segment_log``);
* other files without a marker: refused, untouched.

``lock`` is held with flock as long as the process lives. All errors name the value and the remedy.
Loop thread only.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from raftstore.config import FORMAT_VERSION, MIB
from raftstore.crc import crc32
from raftstore.errors import DiskFullError, StoreIdentityError
from raftstore.storage.files import DIRECTORY_MODE, FILE_MODE, FileOps, starting
from raftstore.storage.presence import Place, place_of
from raftstore.types import NodeId, node_id

MARKER_NAME: Final = "raftstore.json"
CREATING_NAME: Final = "raftstore.json.creating"
LOCK_NAME: Final = "lock"
BOOT_NAME: Final = "boot"

PROMISES_REMEDY: Final = (
    "put back what was there when the node stopped last, which no older copy is. If that is lost, "
    "`raftstore cluster replace NAME` prints a token at any other node, and `raftstore node --id "
    "NAME --join TOKEN` with an empty --data-dir takes this node's place under a new id. The other "
    "nodes serve meanwhile"
)
"""What may be done about a store whose promises are lost (S0.1)."""

TWO_FOUNDINGS_REMEDY: Final = (
    "two foundings meet here. Compare --initial-cluster of all nodes; a node whose founding never "
    "ended, and that has never served, may be given another, empty --data-dir"
)
"""What may be done about a proposal of another cluster (S0.7)."""

FREE_BYTES_MIN: Final = 32 * MIB
"""Less free space than this at start is waited out (GAP-13)."""

Members = tuple[tuple[NodeId, str], ...]
"""(node id, advertised address) of the founding members."""


class Belonging(NamedTuple):
    """Where a store belongs since its birth (S0.7)."""

    node: NodeId
    cluster_id: bytes
    members: Members
    """The founding members."""
    nodes: Members = ()
    """Of a node that joined: where nodes of the cluster were then."""


class StoreIdentity:
    """The open and locked directory of one node. ``open_or_create`` makes it."""

    def __init__(
        self, ops: FileOps, directory: Path, facts: dict[str, Any], lock: int, boot_id: bytes
    ) -> None:
        self._ops = ops
        self._facts = facts
        self._lock = lock
        self.directory = directory
        self.boot_id = boot_id
        """16 bytes, new at every start (S0.6, S1.8)."""
        self.was_created = False
        """The store was made by this start."""
        self.was_stopped_cleanly = True
        """The process before this one ended by itself."""
        self.freed_bytes = 0
        """Size of the reserve that this start removed, since the disk was full; 0: it did not."""

    @property
    def name(self) -> str:
        """The node's label."""
        return str(self._facts["node"])

    @property
    def store_uuid(self) -> bytes:
        """16 bytes minted when the store was created."""
        return bytes.fromhex(self._facts["store_uuid"])

    @property
    def node(self) -> NodeId:
        """The node's id (S0.1)."""
        return node_id(self.name, self.store_uuid)

    @property
    def cluster_id(self) -> bytes:
        """The cluster this store was born into; b"" before birth."""
        return bytes.fromhex(self._facts["cluster_id"])

    @property
    def accepted_proposal(self) -> bytes:
        """Cluster id of the only proposal ever accepted; b"" if none (S0.7)."""
        return bytes.fromhex(self._facts["proposal"])

    @property
    def members(self) -> Members:
        """The founding members of the accepted proposal; empty if none."""
        return _members(self._facts)

    def record_proposal(self, cluster_id: bytes, members: Members) -> None:
        """Accept a proposal for the birth of a cluster, durably; the same one again is fine.

        Raises StoreIdentityError, changing nothing, when another one was accepted before.
        """
        accepted = self.accepted_proposal
        # S0.7: at most one proposal, ever.
        if accepted and (accepted, self.members) != (cluster_id, members):
            raise StoreIdentityError(
                f"node {self.name} already accepted the founding of cluster {accepted.hex()} and "
                f"cannot accept {cluster_id.hex()}: {TWO_FOUNDINGS_REMEDY}"
            )
        if not accepted:
            facts = {"proposal": cluster_id.hex(), "members": [list(pair) for pair in members]}
            self._save(self._facts | facts)

    def record_birth(self, cluster_id: bytes, members: Members) -> None:
        """All members accepted: the store now belongs to this cluster, for ever."""
        if self.cluster_id and self.cluster_id != cluster_id:
            raise StoreIdentityError(
                f"node {self.name} belongs to cluster {self.cluster_id.hex()}, "
                f"not to {cluster_id.hex()}; give each cluster its own data directory"
            )
        self.record_proposal(cluster_id, members)
        if not self.cluster_id:
            self._save(self._facts | {"cluster_id": cluster_id.hex()})

    def record_joining(
        self, cluster_id: bytes, founders: Members, nodes: Members, number: int
    ) -> None:
        """The node was registered by a cluster that exists: the store belongs to it for ever.

        One write, so that a crash leaves all of it or nothing. ``nodes`` are where nodes of the
        cluster were then. Raises StoreIdentityError, changing nothing, where the store belongs to
        another cluster or takes part in the founding of one (S0.7: at most one, ever).
        """
        if self.accepted_proposal and (self.cluster_id or b"") != cluster_id:
            raise StoreIdentityError(
                f"node {self.name} accepted the founding of cluster {self.accepted_proposal.hex()} "
                f"and cannot join {cluster_id.hex()}; give it another, empty --data-dir"
            )
        if self.cluster_id:
            return
        self._save(
            self._facts
            | {
                "cluster_id": cluster_id.hex(),
                "proposal": cluster_id.hex(),
                "members": [list(pair) for pair in founders],
                "joined": {"nodes": [list(pair) for pair in nodes], "number": number},
            }
        )

    @property
    def nodes_at_joining(self) -> Members:
        """Where nodes of the cluster were when this one joined; empty of a founder."""
        return _nodes(self._facts)

    @property
    def number(self) -> int:
        """The node's number in the metadata channel (M30); 0 of a founder."""
        return int(self._facts.get("joined", {"number": 0})["number"])

    def place(self) -> Place:
        """The lock, as this process holds it."""
        return place_of(self.directory / LOCK_NAME, self._lock)

    def close(self, *, is_clean: bool) -> None:
        """Note whether the process ended by itself with everything synced, and unlock."""
        if is_clean:
            with starting(self.directory / BOOT_NAME, "noting a clean stop"):
                _write_boot(self._ops, self.directory, self.boot_id, is_clean=True)
        os.close(self._lock)

    def _save(self, facts: dict[str, Any]) -> None:
        path = self.directory / MARKER_NAME
        with starting(path, "writing the marker"):
            self._ops.replace_file(path, _encode(facts))
        self._facts = facts


def holds_store(directory: Path) -> bool:
    """Whether a store was ever completed in this directory."""
    return (directory / MARKER_NAME).exists()


class StoppedIdentity(NamedTuple):
    """The locked directory of a node that does not run."""

    directory: Path
    name: str
    store_uuid: bytes
    belonging: Belonging
    lock: int
    """Descriptor; closing it unlocks the directory."""


def lock_stopped(directory: Path, *, is_shared: bool) -> StoppedIdentity:
    """Keep a node from starting on its directory and say whose it is; changes no file of the store.

    ``is_shared``: for reading only, beside other readers. Raises StoreIdentityError where no
    founded store is, where a node runs, or if the marker is damaged.
    """
    if not holds_store(directory):
        raise StoreIdentityError(
            f"{directory} holds no {MARKER_NAME}, so it is no data directory of a node; name the "
            "directory that was its --data-dir"
        )
    lock = _lock(directory, is_shared=is_shared)
    try:
        with starting(directory / MARKER_NAME, "reading the marker"):
            facts = _load(directory / MARKER_NAME, None)
        name, store_uuid = str(facts["node"]), bytes.fromhex(facts["store_uuid"])
        cluster_id = bytes.fromhex(facts["cluster_id"])
        if not cluster_id:
            raise StoreIdentityError(
                f"{directory} belongs to node {name}, which was never part of a cluster: its log "
                "is empty; name directories of nodes that were"
            )
        belonging = Belonging(node_id(name, store_uuid), cluster_id, _members(facts))
    except BaseException:
        os.close(lock)
        raise
    return StoppedIdentity(directory, name, store_uuid, belonging, lock)


def belonging_of(directory: Path, name: str) -> Belonging | None:
    """Which cluster the store of node ``name`` belongs to, founded by whom; touches nothing.

    None without a store, or before the birth. Raises StoreIdentityError for another node's store,
    another format's, or a damaged marker.
    """
    with starting(directory, "opening the data directory"):
        if not holds_store(directory):
            return None
        facts = _load(directory / MARKER_NAME, name)
    if not facts["cluster_id"]:
        return None
    node = node_id(name, bytes.fromhex(facts["store_uuid"]))
    return Belonging(node, bytes.fromhex(facts["cluster_id"]), _members(facts), _nodes(facts))


def open_or_create(
    directory: Path,
    name: str,
    *,
    create_parts: Callable[[Path, bytes], None],
    ops: FileOps | None = None,
    random_bytes: Callable[[int], bytes] = os.urandom,
    free_bytes_min: int = FREE_BYTES_MIN,
    make_room: Callable[[int], int] = lambda _: 0,
) -> StoreIdentity:
    """Lock the directory and learn or make its identity.

    ``create_parts(directory, store uuid)`` makes log, mark and tables of a new store; ``make_room``
    is called with the bytes that a full disk lacks, and returns how many it has freed. Raises
    StoreIdentityError (another node's, another format's, in use, or pieces missing), DiskFullError
    (wait and call again) or StorageError; a refused directory is left untouched.
    """
    ops = ops or FileOps()
    with starting(directory, "opening the data directory"):
        _refuse_unmarked(directory)
        directory.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    lock = _lock(directory)
    try:
        with starting(directory, "opening the data directory"):
            freed_bytes = _make_room(ops, directory, free_bytes_min, make_room)
            is_new = not (directory / MARKER_NAME).exists()
            if is_new:
                _create(ops, directory, name, random_bytes(16), create_parts)
            else:
                # S0.1, S0.7: a killed process may have left a name that no power cut would leave.
                ops.sync_directory(directory)
            facts = _load(directory / MARKER_NAME, name)
            identity = StoreIdentity(ops, directory, facts, lock, random_bytes(16))
            identity.was_created = is_new
            identity.freed_bytes = freed_bytes
            identity.was_stopped_cleanly = is_new or stopped_cleanly(directory)
            _write_boot(ops, directory, identity.boot_id, is_clean=False)
            return identity
    except BaseException:
        os.close(lock)
        raise


def _refuse_unmarked(directory: Path) -> None:
    if not directory.exists():
        return
    if not directory.is_dir():
        raise StoreIdentityError(f"{directory} is no directory; choose another --data-dir")
    names = {path.name for path in directory.iterdir()} - {LOCK_NAME, "lost+found"}
    if names and not names & {MARKER_NAME, CREATING_NAME}:
        raise StoreIdentityError(
            f"data directory {directory} holds {min(names)} but no {MARKER_NAME}: it is no "
            "raftstore directory, or lost the file that says whose it is; choose another one or "
            "put the file back"
        )


def _lock(directory: Path, *, is_shared: bool = False) -> int:
    path = directory / LOCK_NAME
    flags = os.O_RDONLY if is_shared else os.O_RDWR | os.O_CREAT
    with starting(path, "locking the data directory"):
        descriptor = os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise StoreIdentityError(
            f"data directory {directory} is in use by pid {owner}; stop that process or choose "
            "another --data-dir (a running `raftstore log check` writes no pid: wait for its end)"
        ) from error
    if is_shared:
        return descriptor
    try:
        # Only for the text above; the lock itself is the kernel's, so a full disk does not matter.
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        pass
    return descriptor


def _make_room(
    ops: FileOps, directory: Path, free_bytes_min: int, make_room: Callable[[int], int]
) -> int:
    """Refuse a full disk, unless room can be made; return how many bytes that has freed."""
    freed = 0
    free = ops.free_bytes(directory)
    if free < free_bytes_min:
        freed = make_room(free_bytes_min - free)
        free = ops.free_bytes(directory)
    if free < free_bytes_min:
        raise DiskFullError(
            f"the disk of {directory} has {free} bytes free, {free_bytes_min} are needed to start; "
            "free some space, the node starts by itself then"
        )
    return freed


def _create(
    ops: FileOps,
    directory: Path,
    name: str,
    store_uuid: bytes,
    create_parts: Callable[[Path, bytes], None],
) -> None:
    facts = {
        "format_version": FORMAT_VERSION,
        "store_uuid": store_uuid.hex(),
        "node": name,
        "cluster_id": "",
        "proposal": "",
        "members": [],
    }
    creating = directory / CREATING_NAME
    if creating.exists():
        _remove_half_made(directory)
    ops.create_file(creating, _encode(facts))
    # The parent's entry too: a store must not vanish with its directory and come back as a new one.
    ops.sync_directory(directory.parent)
    create_parts(directory, store_uuid)
    ops.sync_directory(directory)
    # One rename makes the store exist and ends its creation: there is no state with both names.
    ops.rename(creating, directory / MARKER_NAME)
    ops.sync_directory(directory)


def _remove_half_made(directory: Path) -> None:
    """Remove what an interrupted creation left; no node ever ran on it."""
    for path in directory.iterdir():
        if path.name in (LOCK_NAME, CREATING_NAME, "lost+found"):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    (directory / CREATING_NAME).unlink()


def _members(facts: dict[str, Any]) -> Members:
    return tuple((NodeId(node), address) for node, address in facts["members"])


def _nodes(facts: dict[str, Any]) -> Members:
    joined = facts.get("joined", {"nodes": []})
    return tuple((NodeId(node), address) for node, address in joined["nodes"])


def _encode(facts: dict[str, Any]) -> bytes:
    content = {key: value for key, value in facts.items() if key != "checksum"}
    return json.dumps(content | {"checksum": _checksum(content)}, indent=2).encode() + b"\n"


def _checksum(facts: dict[str, Any]) -> int:
    content = {key: value for key, value in facts.items() if key != "checksum"}
    return crc32(json.dumps(content, sort_keys=True).encode())


def _load(path: Path, name: str | None) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_bytes())
    except ValueError:
        facts = None
    if not isinstance(facts, dict) or "format_version" not in facts:
        raise StoreIdentityError(_damaged(path))
    if facts["format_version"] != FORMAT_VERSION:
        raise StoreIdentityError(
            f"{path} has format version {facts['format_version']}, this program knows "
            f"{FORMAT_VERSION}; start the raftstore that wrote it"
        )
    if facts.get("checksum") != _checksum(facts):
        raise StoreIdentityError(_damaged(path))
    if name is None:
        return facts
    if facts["node"] != name:
        raise StoreIdentityError(
            f"data directory {path.parent} belongs to node {facts['node']!r}, not to {name!r}; "
            f"start it with --id {facts['node']} or choose another --data-dir"
        )
    return facts


def _damaged(path: Path) -> str:
    return (
        f"{path} is damaged, so it is not known whose store this is (S0.1); put a copy of this "
        "file back, which does not change any more once the cluster is founded, or "
        f"{PROMISES_REMEDY}"
    )


def stopped_cleanly(directory: Path) -> bool:
    """Whether the last process on the directory ended by itself, with everything synced."""
    try:
        return bool(json.loads((directory / BOOT_NAME).read_bytes())["clean"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write_boot(ops: FileOps, directory: Path, boot_id: bytes, *, is_clean: bool) -> None:
    facts = {"boot_id": boot_id.hex(), "pid": os.getpid(), "clean": is_clean}
    ops.replace_file(directory / BOOT_NAME, json.dumps(facts).encode() + b"\n")
