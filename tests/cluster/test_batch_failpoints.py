"""Real nodes are killed at every named place of a micro-batch; all of it comes back whole."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from raftstore.client.blocking.client import Client
from raftstore.errors import RaftstoreError
from raftstore.faults import FAILPOINTS, VARIABLE
from raftstore.local_cluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
BATCH_POINTS = tuple(name for name in FAILPOINTS if name.startswith("batch."))
NAMES = ["n1", "n2", "n3"]
WAIT_S = 60.0
READ_S = 20.0
TABLE = "t"
KEYS = range(72)
TEXT = "x" * 100_000
"""Of each row, so that a partition writes more than three slices of one MiB."""


class _Store:
    """Three nodes that take orders, and a writer whose batches give every row their number."""

    def __init__(self, cluster: LocalCluster, client: Client, orders: Path) -> None:
        self.cluster = cluster
        self.client = client
        self.table = client.table(TABLE)
        self._orders = orders
        self._number = 0
        client.create_table(TABLE, key="k", partitions=2, timeout=WAIT_S)

    def order(self, nodes: Iterable[str], failpoint: str) -> None:
        """Let these nodes die there; "" takes that back."""
        self._number += 1
        for node in nodes:
            draft = self._orders / f"{node}.draft"
            draft.write_text(json.dumps({"number": self._number, "crash_at": failpoint}))
            draft.rename(self._orders / node)

    def revive(self) -> None:
        """Start the nodes that are down."""
        for node in NAMES:
            if node not in self.cluster.running():
                self.cluster.start(node)

    def write(self, number: int, timeout: float = WAIT_S) -> bool:
        """Write the batch; True when it was in the table already."""
        rows = [{"k": key, "v": number, "text": TEXT} for key in KEYS]
        return self.table.write_batch(rows, writer="w", batch_id=number, timeout=timeout).already

    def seen(self) -> int:
        """The number that all rows have in a snapshot."""
        with self.table.snapshot(timeout=READ_S) as snapshot:
            found = {row["k"]: row["v"] for row in snapshot.scan(timeout=READ_S)}
        assert set(found) == set(KEYS)
        [number] = set(found.values())
        return number

    def coordinator(self) -> str:
        """The leader of partition 0; partition 1 is led by another node, so that its
        acknowledgements travel.
        """
        leaders: list[str | None] = []

        def is_apart() -> bool:
            with contextlib.suppress(RaftstoreError):
                channels = self.client.table_info(TABLE, timeout=WAIT_S).channels
                leaders[:] = [each.leader for each in channels]
                if leaders[0] is not None and leaders[0] == leaders[1]:
                    self.client.step_down(f"{TABLE}/1", timeout=WAIT_S)
            return len(leaders) == 2 and None not in leaders and leaders[0] != leaders[1]

        _wait(is_apart, "one node leads both partitions for ever")
        assert leaders[0] is not None
        return leaders[0].partition("@")[0]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[_Store]:
    """Running nodes with a table."""
    orders = {name: {VARIABLE: str(tmp_path / name)} for name in NAMES}
    nodes = LocalCluster(nodes=3, directory=tmp_path / "nodes", environment=orders)
    with nodes as cluster, cluster.connect(timeout=WAIT_S) as client:
        made = _Store(cluster, client, tmp_path)
        made.write(0)
        yield made


def _wait(ready: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + WAIT_S
    while not ready():
        assert time.monotonic() < end, otherwise
        time.sleep(0.05)


@pytest.mark.parametrize("victims", ["coordinator", "everybody"])
def test_batches_are_whole_after_kills_at_every_place(store: _Store, victims: str) -> None:
    """The one who leads partition 0 dies there, or every node that comes by; the replay is the
    batch that there was, or it is written now, and no reader finds a row of another one."""
    cluster = store.cluster
    for number, failpoint in enumerate(BATCH_POINTS, 1):
        store.revive()
        coordinator = store.coordinator()
        armed = [coordinator] if victims == "coordinator" else NAMES
        store.order(armed, failpoint)

        patience = itertools.chain([1.5, 3.0], itertools.repeat(6.0))

        def has_struck(number: int = number, patience: Iterator[float] = patience) -> bool:
            with contextlib.suppress(RaftstoreError):
                store.write(number, timeout=next(patience))
            return len(cluster.running()) < len(NAMES)

        _wait(has_struck, f"nobody passed {failpoint}")
        store.order(armed, "")
        seen: list[int] = []

        def is_back(seen: list[int] = seen) -> bool:
            store.revive()  # one that has just died may still count as running
            with contextlib.suppress(RaftstoreError):
                seen.append(store.seen())
            return bool(seen)

        _wait(is_back, f"no snapshot after {failpoint}")
        assert seen[-1] in (number - 1, number), failpoint
        assert store.write(number) or seen[-1] == number - 1, failpoint
        assert store.seen() == number, failpoint
