"""The expected table of ``tests.spark.chaos`` at every moment, and readers that compare it."""

import json
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from raftstore.errors import RaftstoreError

ROWS = 40
STEP = 7
"""Each batch writes ``ROWS`` ids, and its first is this many above that of the batch before."""
TABLE = "chaos"
FIRST_S = 1_700_000_000
PAUSE_S = 0.2
"""Between two snapshots of a reader; a batch takes longer."""


def write_inputs(directory: Path, batches: int) -> None:
    """One file for each batch; Spark takes them by their times."""
    directory.mkdir(parents=True)
    for batch in range(batches):
        lines = [
            json.dumps({"id": number, "batch": batch})
            for number in range(batch * STEP, batch * STEP + ROWS)
        ]
        path = directory / f"{batch:06}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (FIRST_S + batch, FIRST_S + batch))


class Files:
    """Which input files each micro-batch is of, as Spark wrote them down before it began with it.

    One, but for a driver that died after it had listed a file and before it had planned its batch:
    the next one plans that file together with one more.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._offsets = checkpoint / "offsets"
        self._last: dict[int, int] = {}

    def look(self) -> None:
        """Learn of new batches. Spark keeps what it wrote of the last hundred."""
        for path in self._offsets.glob("[0-9]*"):
            if path.name.isdigit() and int(path.name) not in self._last:
                last = json.loads(path.read_text().splitlines()[-1])["logOffset"]
                self._last[int(path.name)] = last

    @property
    def batches(self) -> int:
        """Batches that were begun so far."""
        return len(self._last)

    def by_batch(self) -> dict[int, range]:
        """Return the files of every batch; AssertionError unless all batches were seen."""
        assert sorted(self._last) == list(range(len(self._last))), "batches went by unseen"
        return {
            batch: range(self._last.get(batch - 1, -1) + 1, last + 1)
            for batch, last in self._last.items()
        }


def rows_of(files: range) -> list[tuple[int, int]]:
    """(id, file) of each row that a micro-batch of these files writes."""
    found = {n: file for file in files for n in range(file * STEP, file * STEP + ROWS)}
    return list(found.items())


class Truth:
    """The driver that wrote each batch, learnt from the reader that sees it first; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drivers: dict[int, int] = {}

    def check(self, rows: list[dict]) -> int:
        """Return the newest batch of a state, -1 for none; AssertionError unless it is the fold of
        all batches up to that one, each once, and each of one driver, now and in later states."""
        if not rows:
            return -1
        found = {row["id"]: row["batch"] for row in rows}
        newest = max(found.values())
        expected = {number: min(newest, number // STEP) for number in range(newest * STEP + ROWS)}
        missing = sorted(set(expected) - set(found))
        assert not missing, f"up to batch {newest} {len(missing)} ids are missing: {missing[:5]}"
        wrong = {n: (found[n], expected.get(n)) for n in found if found[n] != expected.get(n)}
        assert not wrong, (
            f"up to batch {newest} (found, expected) differ: {list(wrong.items())[:5]}"
        )
        drivers: dict[int, set[int]] = {}
        for row in rows:
            drivers.setdefault(row["batch"], set()).add(row["driver"])
        mixed = {batch: each for batch, each in drivers.items() if len(each) > 1}
        assert not mixed, f"batches of several drivers: {list(mixed.items())[:5]}"
        with self._lock:
            for batch, (driver,) in drivers.items():
                known = self._drivers.setdefault(batch, driver)
                assert known == driver, f"batch {batch} was of driver {known}, now of {driver}"
        return newest

    def check_feed(self, changes: Iterable, files: dict[int, range]) -> int:
        """Return how many micro-batches the change feed shows; AssertionError unless it shows each
        row of each of them once, of one driver, the one that is in the table.

        ``files``: those of each micro-batch. Of the oldest one that is still kept, the first rows
        may be gone.
        """
        rows: dict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
        drivers: dict[int, set[int]] = defaultdict(set)
        for change in changes:
            assert change.kind == "upsert", f"a {change.kind} at seq {change.seq}"
            rows[change.batch_id][change.row["id"], change.row["batch"]] += 1
            drivers[change.batch_id].add(change.row["driver"])
        whole = [batch for batch in rows if batch == 0 or batch > min(rows)]
        for batch in whole:
            expected = Counter(rows_of(files[batch]))
            assert rows[batch] == expected, f"the feed shows of batch {batch}: {rows[batch]}"
            assert len(drivers[batch]) == 1, f"the feed shows batch {batch} of several drivers"
            known = self._drivers.get(files[batch][-1], *drivers[batch])
            assert drivers[batch] == {known}, f"the feed shows batch {batch} of {drivers[batch]}"
        gaps = set(range(min(rows, default=0), max(rows, default=-1) + 1)) - set(rows)
        assert not gaps, f"the feed passes over {sorted(gaps)[:5]}"
        return len(whole)

    @property
    def drivers(self) -> int:
        """Number of drivers whose rows are in the table."""
        with self._lock:
            return len(set(self._drivers.values()))


class Reader(threading.Thread):
    """Takes one snapshot after the other, until it is asked to stop or sees what cannot be."""

    def __init__(self, cluster, truth: Truth, level: str) -> None:
        super().__init__(name=f"reader {level}", daemon=True)
        self._cluster = cluster
        self._truth = truth
        self._level = level
        self._end = threading.Event()
        self.snapshots = 0
        self.newest = -1
        self.failure: str | None = None

    def stop(self) -> None:
        """After the snapshot that is being read."""
        self._end.set()

    def run(self) -> None:
        """Read for ever; what is out of reach is asked for again."""
        with self._cluster.connect(timeout=10.0) as client:
            while not self._end.wait(PAUSE_S):
                try:
                    with client.table(TABLE).snapshot(level=self._level) as snapshot:
                        rows = list(snapshot.scan())
                except (RaftstoreError, OSError, TimeoutError):
                    continue
                try:
                    newest = self._truth.check(rows)
                    assert newest >= self.newest, f"batch {newest} after batch {self.newest}"
                except AssertionError as error:
                    self.failure = f"{self.name}: {error}"
                    return
                self.newest = newest
                self.snapshots += 1
