"""Which workloads meet which faults on real processes: every workload, every kind of fault."""

from __future__ import annotations

from typing import Final

from jepsen_like.workload.channelsets import NAME as CHANNELSETS

COMBINATIONS: Final[tuple[tuple[str, str], ...]] = (
    ("bank_batches", "kill-leader,kill-all,pause-leader"),
    ("bank_batches", "crash-at-failpoint"),
    ("bank_batches", "isolate-leader,partition-halves,partition-ring,one-way-in"),
    ("bank_batches", "all"),
    ("register", "kill-leader"),
    ("register", "isolate-leader,pause-leader"),
    ("register", "clock-strobe,clock-forward,clock-back,step-down"),
    ("register", "all"),
    ("cas_register", "kill-quorum,kill-all"),
    ("cas_register", "partition-halves,partition-ring,partition-bridge"),
    ("cas_register", "crash-at-failpoint"),
    ("table_set", "kill-follower,rolling-restart"),
    ("table_set", "one-way-in,one-way-out,flapping"),
    ("table_set", "torn-tail,flip-log,truncate-log"),
    ("list_append", "kill-leader,isolate-follower"),
    ("list_append", "loss,duplicates,reorder,reset"),
    ("bank", "slow-link,narrow-link,clients-cut"),
    ("bank", "sync-error,sync-error-sticky,write-error"),
    ("bank", "all"),
    ("publish_log", "disk-full,slow-disk"),
    ("register", "disk-hang,kill-follower"),
    ("table_set", "disk-nearly-full,kill-leader"),
    ("publish_log", "power-loss-one,power-loss-quorum,power-loss-all"),
    ("bounded_reads", "pause-short,pause-follower,slow-link"),
    ("bounded_time", "pause-short,one-way-in,slow-disk"),
    ("leader_sessions", "kill-leader,pause-follower,slow-disk"),
    ("bounded_sessions", "kill-leader,clock-hour,partition-halves"),
    ("bounded_reads", "flip-table,truncate-table"),
    ("sessions", "kill-leader,partition-ring,step-down"),
    ("sessions", "all"),
    ("scan_snapshot", "kill-all,pause-all"),
    ("write_fates", "kill-leader,loss,slow-disk"),
    ("write_fates", "publish-to-one,pause-leader,partition-ring"),
    ("paged_scan", "kill-follower,pause-short,flip-table"),
    ("bounded_batches", "pause-follower,one-way-in,clock-hour-back"),
    ("http_sessions", "kill-leader,pause-leader,clock-hour-back"),
    ("scan_snapshot", "flip-mark,flip-identity,kill-follower"),
    ("lifetimes", "clock-forward,clock-back,clock-hour,clock-hour-back,kill-leader"),
    (CHANNELSETS, "kill-leader,pause-leader,partition-halves,disk-hang,publish-again"),
)
"""(workload, faults by comma), in the order in which they run; for channel sets there are the state
machines that are shipped."""


def name_of(combination: tuple[str, str]) -> str:
    """How the ledger calls it."""
    workload, nemeses = combination
    return f"{workload} x {nemeses}"
