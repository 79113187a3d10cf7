"""Measurements of what is outside the engine: threads, disk and database of the process."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator
from math import inf
from pathlib import Path
from typing import Final

from raftstore.metrics import FixedHistogram, Histogram, Sample
from raftstore.node.logs import dropped_lines
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from raftstore.transport.accepting import FileReserve

_DESCRIPTORS: Final = Path("/dev/fd")
"""A name for each open file of the process that looks."""


def measured(
    tables: LevelDbTables,
    *,
    files: FileReserve,
    clients: Iterable[Sample],
    fsyncs: FixedHistogram,
    beats: FixedHistogram,
    turns: FixedHistogram,
) -> tuple[tuple[Sample, ...], tuple[Histogram, ...]]:
    """Return them in the conventions of Prometheus; the histograms hold milliseconds."""
    tables_files = tuple(
        ("raftstore_leveldb_files", (("level", str(level)),), float(count))
        for level, count in enumerate(tables.files_by_level())
    )
    samples: tuple[Sample, ...] = (
        *tables_files,
        *_open_files(files),
        *clients,
        ("raftstore_leveldb_memory_bytes", (), float(tables.memory_bytes())),
        ("raftstore_apply_queue_bytes", (), float(tables.queued_bytes())),
        ("raftstore_copy_rests_seconds_total", (), tables.rested_s),
        ("raftstore_log_lines_dropped_total", (), float(dropped_lines())),
    )
    return samples, (
        fsyncs.shown("raftstore_fsync_duration_seconds", (), scale=0.001),
        beats.shown("raftstore_heartbeat_lateness_seconds", (), scale=0.001),
        turns.shown("raftstore_main_loop_lateness_seconds", (), scale=0.001),
    )


def _open_files(files: FileReserve) -> Iterator[Sample]:
    """Yield open files and their limit, and how often a port accepted nothing for their sake."""
    if _DESCRIPTORS.is_dir():
        yield ("raftstore_open_files", (), float(sum(1 for _ in _DESCRIPTORS.iterdir())))
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield ("raftstore_open_files_max", (), inf if limit == resource.RLIM_INFINITY else float(limit))
    for port, count in sorted(files.refused.items()):
        yield ("raftstore_accept_paused_total", (("port", port),), float(count))
