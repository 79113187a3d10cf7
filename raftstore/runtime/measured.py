"""Measurements of what is outside the engine: threads, disk and database of the process."""

from __future__ import annotations

from raftstore.engine.meters import FixedHistogram
from raftstore.requests import Histogram, Sample
from raftstore.runtime.logs import dropped_lines
from raftstore.storage.leveldb_tables import LevelDbTables


def measured(
    tables: LevelDbTables, *, fsyncs: FixedHistogram, beats: FixedHistogram, turns: FixedHistogram
) -> tuple[tuple[Sample, ...], tuple[Histogram, ...]]:
    """Return them in the conventions of Prometheus; the histograms hold milliseconds."""
    files = tuple(
        ("raftstore_leveldb_files", (("level", str(level)),), float(count))
        for level, count in enumerate(tables.files_by_level())
    )
    samples: tuple[Sample, ...] = (
        *files,
        ("raftstore_leveldb_memory_bytes", (), float(tables.memory_bytes())),
        ("raftstore_apply_queue_bytes", (), float(tables.queued_bytes())),
        ("raftstore_log_lines_dropped_total", (), float(dropped_lines())),
    )
    return samples, (
        fsyncs.shown("raftstore_fsync_duration_seconds", (), scale=0.001),
        beats.shown("raftstore_heartbeat_lateness_seconds", (), scale=0.001),
        turns.shown("raftstore_main_loop_lateness_seconds", (), scale=0.001),
    )
