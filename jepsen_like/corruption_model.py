"""A small store with a known content: what every answer is compared to after damage."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from raftstore.config import KIB, StorageSettings
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.records import Record
from raftstore.rows.sealing import seal
from raftstore.state_machines.table import TableMachine
from raftstore.storage.store import Store, open_store
from raftstore.types import (
    ChannelId,
    Guid,
    NodeId,
    RecordKind,
    Seq,
    Term,
    channel_id,
    make_guid,
)

NODE: Final = "n1"
VOTERS: Final = tuple(NodeId(f"{name}@{'00' * 16}") for name in ("n1", "n2", "n3"))
CHANNELS: Final = tuple(channel_id(b"corruption-table", number) for number in range(3))
KEYS: Final = 12
VALUE_BYTES: Final = (8, 4_500)
"""So many that a channel's LevelDB writes several files: it makes one of each 64 KiB at least."""
STEPS: Final = (40, 120)
REOPEN_SHARE: Final = 0.04
TRUNCATE_SHARE: Final = 0.08
VOTE_SHARE: Final = 0.15
Rows = dict[bytes, tuple[bytes, int]]
"""Row key -> value and the last seq of the record that wrote it."""


@dataclass(slots=True)
class ChannelModel:
    """The contents of one channel at the end, and everything it ever held."""

    term: Term = Term(0)
    voted_for: NodeId | None = None
    records: list[Record] = field(default_factory=list)
    rows: dict[int, Rows] = field(default_factory=lambda: {0: {}})
    """Applied seq -> the rows then."""
    ever: dict[tuple[int, int], Record] = field(default_factory=dict)
    """(term, base_seq) -> record, truncated ones too."""
    writes: dict[bytes, list[tuple[bytes, bytes | None]]] = field(default_factory=dict)
    """Payload -> its rows, so that the model does not rest on the code it judges."""
    applied: int = 0

    @property
    def last_seq(self) -> int:
        """Last seq of the log."""
        return self.records[-1].last_seq if self.records else 0


@dataclass(slots=True)
class StoreModel:
    """The whole store; everything in it is durable and covered by the mark."""

    store_uuid: bytes
    cluster_id: bytes
    channels: dict[ChannelId, ChannelModel]
    dropped: ChannelId | None = None


def settings_of(rng: random.Random) -> StorageSettings:
    """Small files, so that there are several of every kind."""
    return StorageSettings(
        segment_bytes=rng.choice((4 * KIB, 16 * KIB, 1024 * KIB)),
        log_cache_bytes=0,
        write_buffer_bytes=64 * KIB,
        block_cache_bytes=0,
    )


def attach(store: Store, channel: ChannelId) -> int:
    """Let the tables apply the channel; return its applied seq."""
    return store.tables.open_channel(channel, TableMachine())


def open_model_store(directory: Path, settings: StorageSettings) -> Store:
    """Open it without threads."""
    store = open_store(directory, NODE, settings, free_bytes_min=0)
    store.tables.report_to(post=_ignore, on_applied=_ignore, on_failed=_ignore)
    return store


def make_store(directory: Path, rng: random.Random, settings: StorageSettings) -> StoreModel:
    """Write a random but legal history into an empty directory; close it; return its contents."""
    store = open_model_store(directory, settings)
    members = tuple((voter, "127.0.0.1:1") for voter in VOTERS)
    store.identity.record_birth(b"corruption-of-it", members)
    model = StoreModel(
        store.identity.store_uuid,
        store.identity.cluster_id,
        {channel: ChannelModel() for channel in CHANNELS},
    )
    for channel in CHANNELS:
        attach(store, channel)
    for _ in range(rng.randint(*STEPS)):
        channel = rng.choice(CHANNELS)
        _step(store, model.channels[channel], channel, rng)
        if rng.random() < REOPEN_SHARE:
            store.close(is_clean=rng.random() < 0.5)
            store = open_model_store(directory, settings)
            for each in CHANNELS:
                attach(store, each)
    if rng.random() < 0.3:
        model.dropped = rng.choice(CHANNELS)
        store.log.drop_channel(model.dropped)
        store.log.flush()
        store.tables.drop(model.dropped)
        store.tables.apply_queued()
        del model.channels[model.dropped]
    store.close(is_clean=rng.random() < 0.5)
    return model


def apply_rest(store: Store, channel: ChannelId, model: ChannelModel) -> None:
    """Apply what the log holds up to the model's applied seq, as a node does after its start."""
    applied = store.tables.applied_seq(channel)
    if applied < model.applied:
        records = store.log.read(
            channel, Seq(applied + 1), to_seq=Seq(model.applied), bytes_max=1 << 40
        )
        store.tables.apply(channel, records)
        store.tables.apply_queued()


def rows_of(store: Store, channel: ChannelId) -> Rows:
    """Everything the tables hold of the channel, by single reads and by one through all rows."""
    found = {}
    for key in (_key(number) for number in range(KEYS)):
        row = store.tables.get(channel, key)
        if row is not None:
            found[key] = (row.value, int(row.seq))
    _, rows, _ = store.tables.content_hash(channel)
    if rows != len(found):
        found[b"rows that no single read finds"] = (b"%d" % rows, 0)
    return found


def _step(store: Store, model: ChannelModel, channel: ChannelId, rng: random.Random) -> None:
    drawn = rng.random()
    if drawn < VOTE_SHARE or model.term == 0:
        model.term = Term(model.term + 1)
        model.voted_for = rng.choice((None, *VOTERS))
        store.log.set_vote(channel, model.term, model.voted_for)
    elif drawn < VOTE_SHARE + TRUNCATE_SHARE and model.last_seq > model.applied:
        loose = [each for each in model.records if each.base_seq > model.applied]
        first = rng.choice(loose).base_seq
        model.records = [each for each in model.records if each.base_seq < first]
        store.log.truncate(channel, first)
        # Only a leader of a later term has another record there (S2.5).
        model.term, model.voted_for = Term(model.term + 1), None
        store.log.set_vote(channel, model.term, None)
    else:
        _append(store, model, channel, rng)
    store.log.flush()
    _apply(store, model, channel, rng)


def _append(store: Store, model: ChannelModel, channel: ChannelId, rng: random.Random) -> None:
    records = []
    for _ in range(rng.randint(1, 3)):
        record = _record(model, rng)
        model.records.append(record)
        model.ever[record.term, record.base_seq] = record
        records.append(record)
    store.log.append(channel, records)


def _apply(store: Store, model: ChannelModel, channel: ChannelId, rng: random.Random) -> None:
    """Commit some of what is there, and apply it."""
    ready = [each for each in model.records if each.base_seq > model.applied]
    ready = ready[: rng.randint(0, len(ready))]
    if not ready:
        return
    store.tables.apply(channel, ready)
    store.tables.apply_queued()
    rows = dict(model.rows[model.applied])
    for record in ready:
        for key, value in model.writes[record.payload]:
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = (value, record.last_seq)
        model.rows[record.last_seq] = dict(rows)
    model.applied = ready[-1].last_seq


def _record(model: ChannelModel, rng: random.Random) -> Record:
    keys = rng.sample(range(KEYS), rng.randint(1, 2))
    pairs = [(_key(key), rng.randbytes(rng.randint(*VALUE_BYTES))) for key in keys]
    changed = [(key, None if rng.random() < 0.1 else value) for key, value in pairs]
    sealed = [(key, None if value is None else seal(key, value)) for key, value in changed]
    payload = encode_rows(sealed)
    model.writes[payload] = changed
    base = Seq(model.last_seq + 1)
    return Record(
        term=model.term,
        base_seq=base,
        rows=len(changed),
        guid=Guid(make_guid(rng.randbytes(8), base)),
        timestamp_ms=1_700_000_000_000 + base,
        digest=rng.randbytes(16),
        kind=RecordKind.ROWS,
        payload=payload,
    )


def _key(number: int) -> bytes:
    return b"row-%02d" % number


def _ignore(*_said: object) -> None:
    """There is no loop."""
