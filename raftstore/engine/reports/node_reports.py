"""Reports of a node on itself and on the cluster: status, metrics, views."""

from __future__ import annotations

from typing import Any

from raftstore.engine.clock import Clock
from raftstore.engine.node_ports import NodePorts
from raftstore.engine.reports.cluster_info import ClusterInfoReport
from raftstore.engine.reports.metrics_report import metrics
from raftstore.engine.reports.node_parts import NodeParts
from raftstore.engine.reports.status_report import node_status
from raftstore.engine.reports.view_report import ViewReport
from raftstore.metrics import Histogram, Sample


class NodeReports:
    """All reports of one node, with what its process adds."""

    def __init__(self, parts: NodeParts, clock: Clock, ports: NodePorts) -> None:
        self._parts = parts
        self._clock = clock
        self.ports = ports
        self.views = ViewReport(parts)
        self.cluster_info = ClusterInfoReport(parts, self.views)

    def status(self) -> dict[str, Any]:
        """The JSON-shaped state of the node."""
        reserve_bytes = self.ports.reserve_bytes()
        status = node_status(self._parts, self._clock.now_ms, reserve_bytes)
        return status | self.ports.extra_status()

    def metrics(self) -> tuple[tuple[Sample, ...], tuple[Histogram, ...]]:
        """Everything that is counted and measured."""
        samples, histograms = self.ports.extra_metrics()
        own_samples, own_histograms = metrics(self._parts, self._clock.now_ms)
        return (*own_samples, *samples), (*own_histograms, *histograms)
