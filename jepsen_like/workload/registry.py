"""All workloads by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jepsen_like.workload.bank import Bank
from jepsen_like.workload.bank_batches import BankBatches
from jepsen_like.workload.base import Workload
from jepsen_like.workload.bounded_batches import BoundedBatches
from jepsen_like.workload.bounded_reads import BoundedReads
from jepsen_like.workload.bounded_time import BoundedTime
from jepsen_like.workload.cas_register import CasRegister
from jepsen_like.workload.fates import WriteFates
from jepsen_like.workload.http_sessions import HttpSessions
from jepsen_like.workload.lifetimes import Lifetimes
from jepsen_like.workload.list_append import ListAppend
from jepsen_like.workload.paged_scan import PagedScan
from jepsen_like.workload.publish_log import PublishLog
from jepsen_like.workload.register import Register
from jepsen_like.workload.scan_snapshot import ScanSnapshot
from jepsen_like.workload.sessions import BoundedSessions, LeaderSessions, Sessions
from jepsen_like.workload.table_set import TableSet

_FACTORIES: Final[tuple[Callable[[], Workload], ...]] = (
    Register, CasRegister, TableSet, ListAppend, Bank, PublishLog, BoundedReads, Sessions,
    ScanSnapshot, BoundedTime, BoundedSessions, WriteFates,
    PagedScan, BoundedBatches, HttpSessions, BankBatches, LeaderSessions,
    Lifetimes,
)  # fmt: skip

WORKLOADS: Final[dict[str, Callable[[], Workload]]] = {
    factory().name: factory for factory in _FACTORIES
}
"""Name -> factory; every run makes its own, since unique values are counted in it."""


def workload_named(name: str) -> Workload:
    """A fresh workload; ValueError lists the known ones."""
    if name not in WORKLOADS:
        raise ValueError(f"unknown workload {name!r}; known: {', '.join(WORKLOADS)}")
    return WORKLOADS[name]()
