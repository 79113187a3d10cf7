"""The committed commands of channel sets and the states of their replicas, read from the stores of
nodes that were stopped after the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from jepsen_like.checker.channelsets import ChannelSetLog
from raftstore.config import StorageSettings
from raftstore.protocol.records import Record
from raftstore.rows.sealing import unseal
from raftstore.storage.stopped.tables import opened_table, tables_in, verified_rows
from raftstore.storage.store import open_store
from raftstore.storage.tables.generations import TABLES_DIRECTORY, present
from raftstore.types import ChannelId, Seq, channel_id

BYTES_MAX: Final = 1 << 40
Sets = Mapping[str, tuple[bytes, int]]
"""Name -> UUID and number of partitions."""


def read_channelsets(
    stores: Mapping[str, Path], node: str, sets: Sets
) -> dict[tuple[str, int], ChannelSetLog]:
    """Records in the log of ``node`` that it applied, and the state of every replica.

    ``stores``: node -> data directory. All must be down, and have caught up.
    """
    records = _records(stores[node], node, sets)
    found = {}
    for (name, partition), log in records.items():
        channel = channel_id(sets[name][0], partition)
        rows = {each: _rows(store, channel) for each, store in stores.items()}
        found[name, partition] = ChannelSetLog(
            log, {each: pairs for each, pairs in rows.items() if pairs is not None}
        )
    return found


def _records(store: Path, node: str, sets: Sets) -> dict[tuple[str, int], list[Record]]:
    opened = open_store(store, node, StorageSettings(), free_bytes_min=0)
    try:
        found = {}
        for name, (uuid, partitions) in sets.items():
            for partition in range(partitions):
                channel = channel_id(uuid, partition)
                applied = opened.tables.stored_position(channel).seq
                found[name, partition] = opened.log.read(
                    channel, Seq(1), to_seq=Seq(applied), bytes_max=BYTES_MAX
                )
        return found
    finally:
        opened.close(is_clean=False)


def _rows(store: Path, channel: ChannelId) -> dict[bytes, bytes] | None:
    """The state of a machine at one replica; None: there is no replica here."""
    number = present(store / TABLES_DIRECTORY, channel, tables_in(store).get(channel, []))
    if number is None:
        return None
    with opened_table(store, channel, number) as (source, reads):
        return {
            key: bytes(unseal(key, sealed))
            for key, sealed, _, _ in verified_rows(source, reads, channel)
        }
