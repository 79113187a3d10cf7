"""``python -m jepsen_like.slow_replica [--seconds N]``: a replica that cannot keep up (NATS-147).

Three real nodes, of which n3 was away. It is given its history record by record, one question at a
time, while clients write faster than that: its distance grows in each window. With
``catchup.slow_action = retire`` its node and its leader have to report it, and the replica has to
be whole again once nobody writes; with ``exit`` the node has to end with exit code 75.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from raftstore.client.blocking.client import Client
from raftstore.errors import RaftstoreError
from raftstore.local_cluster import LocalCluster

NAMES: Final = ("n1", "n2", "n3")
SLOW: Final = "n3"
TABLE: Final = "t"
RECORDS: Final = 2_000
"""That the replica lacks when it comes back."""
WRITERS: Final = 4
EXIT_GAVE_UP: Final = 75
HISTORY: Final = {"RAFTSTORE_REPLICATION_SYNC_BATCH_RECORDS_MAX": "1"}
"""History is given a record at a time."""
NARROW: Final = {
    **HISTORY,
    "RAFTSTORE_CATCHUP_INFLIGHT_REQUESTS": "1",
    "RAFTSTORE_CATCHUP_SLOW_WINDOWS": "1",
    "RAFTSTORE_CATCHUP_SLOW_WINDOW_MS": "10s",
    "RAFTSTORE_REPLICATION_LIVE_QUEUE_MESSAGES_MAX": "2",
}
"""It is asked for one question at a time, and records that are written meanwhile are not queued."""
CALL_S: Final = 10.0
POLL_S: Final = 0.2


def tell(line: str) -> None:
    """Say how far it is."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def writers(cluster: LocalCluster) -> Iterator[None]:
    """Clients that write single rows as fast as they are acknowledged."""
    done = Event()

    def write(number: int) -> None:
        with cluster.connect(timeout=CALL_S) as client:
            table = client.table(TABLE)
            for key in range(sys.maxsize):
                if done.is_set():
                    return
                with contextlib.suppress(RaftstoreError):
                    table.put({"k": f"{number}-{key % 1_000}", "v": key})

    threads = [Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


class Trial:
    """A cluster whose n3 is to fall behind. Raises AssertionError for what is not as it should."""

    def __init__(self, cluster: LocalCluster, client: Client, patience_s: float) -> None:
        self._cluster = cluster
        self._client = client
        self._patience_s = patience_s
        client.create_table(TABLE, key="k", partitions=1, timeout=CALL_S)

    def fall_behind(self) -> None:
        """n3 misses some records, and comes back."""
        if SLOW in self._cluster.running():
            self._cluster.stop(SLOW)
        table = self._client.table(TABLE)
        for key in range(RECORDS):
            table.put({"k": f"old-{key % 100}", "v": key}, timeout=CALL_S)
        self._cluster.start(SLOW)

    def events(self, kind: str) -> list[Mapping[str, Any]]:
        """Events of a type, of all nodes that answer."""
        return list(self._client.events((kind,)).events)

    def until(self, what: str, is_so: Callable[[], object]) -> float:
        """Wait for something; return the seconds that it took."""
        began = time.monotonic()
        while not is_so():
            assert time.monotonic() - began < self._patience_s, f"never seen: {what}"
            time.sleep(POLL_S)
        return time.monotonic() - began

    def is_whole(self) -> bool:
        """Whether all replicas are equal."""
        with contextlib.suppress(RaftstoreError):
            found = self._client.compare_replicas(f"{TABLE}/0", timeout=CALL_S)
            assert not found.is_different, found
            return found.is_whole
        return False

    def retire(self) -> None:
        """Reported by its node and by its leader, and whole again later."""
        self.fall_behind()
        with writers(self._cluster):
            took = self.until("cannot_complete", lambda: self.events("cannot_complete"))
            self.until("replica_cannot_complete", lambda: self.events("replica_cannot_complete"))
            [said] = self.events("cannot_complete")[:1]
            assert (said["node"], said["action"]) == (SLOW, "retire"), said
            [led] = self.events("replica_cannot_complete")[:1]
            assert (led["replica"], led["node"] != SLOW) == (SLOW, True), led
            assert SLOW in self._cluster.running(), "with retire its node goes on"
        tell(f"retire: reported by {SLOW} and by {led['node']} after {took:.0f} s")
        tell(f"retire: whole again after {self.until('equal replicas', self.is_whole):.0f} s")

    def exit(self) -> None:
        """Its node ends by itself."""
        self.fall_behind()
        with writers(self._cluster):
            took = self.until("the end of n3", lambda: SLOW in self._cluster.ended())
        code = self._cluster.ended()[SLOW]
        assert code == EXIT_GAVE_UP, f"{SLOW} ended with {code}"
        tell(f"exit: {SLOW} ended with code {code} after {took:.0f} s")


def run(patience_s: float) -> None:
    """Both actions, one after the other."""
    with tempfile.TemporaryDirectory(prefix="raftstore-slow-") as directory:
        environment = {name: dict(NARROW if name == SLOW else HISTORY) for name in NAMES}
        nodes = LocalCluster(nodes=3, directory=Path(directory), environment=environment)
        with nodes as cluster, cluster.connect(timeout=CALL_S) as client:
            trial = Trial(cluster, client, patience_s)
            trial.retire()
            environment[SLOW]["RAFTSTORE_CATCHUP_SLOW_ACTION"] = "exit"
            trial.exit()


def main() -> int:
    """Run both, and report what was seen."""
    parser = argparse.ArgumentParser(prog="python -m jepsen_like.slow_replica")
    parser.add_argument("--seconds", type=float, default=90.0, help="patience for each step")
    run(parser.parse_args().seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
