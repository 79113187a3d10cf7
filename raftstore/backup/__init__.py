"""Backups: tables and channel sets in files that outlive the cluster, and back into another one.

::

    from raftstore import backup

    with raftstore.connect("127.0.0.1:4481") as client:
        backup.create_backup(client, "/backups")
        backup.restore_backup(client, "/backups", tables={"orders": "orders_of_monday"})
    backup.verify_backup("/backups").problems  # without a cluster

Guarantees: each table is in a backup in one state of all its partitions, everything acknowledged
before is in it, a micro-batch is in it as a whole or not at all, and the last batch of each writer
is that of the very state. Of a channel set each partition is in it at one committed position. A
backup exists when its manifest does. What is being restored serves nobody before it is whole.
docs/backup.md has the layout of the files.

Needs the extra ``backup``; ``raftstore.backup.aio`` has the same names for asyncio. It is a client
like any other and owns no rule of the protocol.
"""

from __future__ import annotations

from raftstore.backup import aio
from raftstore.backup.create import create_backup
from raftstore.backup.manifest import (
    ChannelSetBackup,
    DataFile,
    Manifest,
    PartitionBackup,
    StateBackup,
    TableBackup,
    TableDefinition,
    WriterBackup,
)
from raftstore.backup.progress import Progress
from raftstore.backup.remove import Removed, freed_by_each, remove_backups
from raftstore.backup.restore import Restored, RestoredTable, restore_backup
from raftstore.backup.restore_sets import RestoredChannelSet
from raftstore.backup.verify import Verified, list_backups, verify_backup

__all__ = [
    "ChannelSetBackup",
    "DataFile",
    "Manifest",
    "PartitionBackup",
    "Progress",
    "Removed",
    "Restored",
    "RestoredChannelSet",
    "RestoredTable",
    "StateBackup",
    "TableBackup",
    "TableDefinition",
    "Verified",
    "WriterBackup",
    "aio",
    "create_backup",
    "freed_by_each",
    "list_backups",
    "remove_backups",
    "restore_backup",
    "verify_backup",
]
