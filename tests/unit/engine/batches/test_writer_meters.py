"""Commits are counted by writer, once each, and a writer that is forgotten stays in the sums."""

from __future__ import annotations

from typing import Any, cast

from raftstore.config import BatchSettings
from raftstore.engine.batches.coordinated_table import CoordinatedTable
from raftstore.engine.batches.writer_meters import JOBS, OTHERS, WRITER_LABELS_MAX, WriterMeters
from raftstore.protocol.batches import ALREADY, OK, CloseBatch, CommitBatch
from raftstore.state_machines.batches.txn_records import Verdict
from tests.batch_bench import CoordinatorBench, manifest_of
from tests.unit.engine.batches.test_coordinated_table import CHANNEL, Tables, leading_runner

Told = dict[tuple[str, str], tuple[float, ...]]
AGE = "raftstore_batch_last_commit_age_seconds"


def told(meters: WriterMeters, now_ms: int) -> Told:
    """(table, writer) -> batches, rows, bytes, age of the last one in seconds."""
    found: dict[tuple[str, str], list[float]] = {}
    for _, labels, value in meters.samples(now_ms):
        found.setdefault((dict(labels)["table"], dict(labels)["writer"]), []).append(value)
    return {key: tuple(values) for key, values in found.items()}


def table_of(bench: CoordinatorBench) -> CoordinatedTable:
    """The memory of the coordinator of table ``orders``."""
    return CoordinatedTable(leading_runner(), cast(Any, Tables(bench.state)), BatchSettings())


def commit(number: int, writer: str = "w") -> CommitBatch:
    """A client's commit of two rows in two chunks of 50 bytes each."""
    return CommitBatch(number, CHANNEL, writer, number, 1, manifest_of((0, 1)), b"d", 1_000)


def test_commits_of_a_writer_add_up_and_its_age_is_that_of_the_newest() -> None:
    """Seconds since it; a clock that went back makes it 0, never less."""
    meters = WriterMeters()
    meters.committed("t", "w", 3, 70, 4_000, one_shot=False)
    meters.committed("t", "w", 2, 30, 9_000, one_shot=False)
    meters.committed("u", "w", 1, 10, 6_000, one_shot=False)
    assert told(meters, 10_500) == {("t", "w"): (2, 5, 100, 1.5), ("u", "w"): (1, 1, 10, 4.5)}
    names = [name for name, labels, _ in meters.samples(0) if dict(labels)["table"] == "u"]
    assert names == [
        "raftstore_batches_committed_total",
        "raftstore_batch_rows_total",
        "raftstore_batch_bytes_total",
        AGE,
    ]
    assert {told(meters, now_ms)["t", "w"][3] for now_ms in (9_000, 8_000)} == {0}


def test_forgotten_writers_of_a_table_go_on_as_the_others_of_that_table() -> None:
    """Their totals are kept there, with the age of the newest of them."""
    meters = WriterMeters()
    meters.committed("t", "late", 1, 10, 8_000, one_shot=False)
    meters.committed("t", "early", 2, 20, 3_000, one_shot=False)
    for number in range(WRITER_LABELS_MAX):
        meters.committed("u", f"w{number}", 1, 10, 9_000, one_shot=False)
    found = told(meters, 10_000)
    assert len(found) == WRITER_LABELS_MAX + 1
    assert {writer for table, writer in found if table == "t"} == {OTHERS}
    assert found["t", OTHERS] == (2, 3, 30, 2.0)


def test_decided_batch_is_counted_once_however_many_asked_for_it() -> None:
    """One record answers all who asked; a lower number is the answer to an earlier commit."""
    meters, table = WriterMeters(), table_of(CoordinatorBench())
    meters.decided(table, [commit(1), commit(1)], Verdict(OK, n=1, rows=2), 1_000)
    meters.decided(table, [commit(1)], Verdict(OK, n=1, rows=2), 2_000)
    assert told(meters, 1_000) == {("orders", "w"): (1, 2, 100, 0)}
    meters.decided(table, [commit(2)], Verdict(OK, n=2, rows=2), 3_000)
    assert told(meters, 3_000) == {("orders", "w"): (2, 4, 200, 0)}


def test_only_commits_that_were_decided_are_counted() -> None:
    """Not what an earlier coordinator decided, what is refused, or another request."""
    bench = CoordinatorBench()
    bench.begin()
    assert bench.commit(1).n == 1
    meters, table = WriterMeters(), table_of(bench)
    meters.decided(table, [commit(1)], Verdict(OK, n=1, rows=2), 1_000)
    meters.decided(table, [commit(2)], Verdict(ALREADY, n=2, rows=2), 1_000)
    meters.decided(table, [CloseBatch(3, CHANNEL, "w", 1, 900)], Verdict(OK, n=2), 1_000)
    assert told(meters, 1_000) == {}
    meters.decided(table, [commit(2)], Verdict(OK, n=2, rows=2), 1_000)
    assert told(meters, 1_000) == {("orders", "w"): (1, 2, 100, 0)}


def test_jobs_of_a_single_batch_share_one_label() -> None:
    """Each has a writer of its own, and there are any number of them."""
    bench = CoordinatorBench()
    bench.begin("job-1", one_shot=True)
    bench.begin("w")
    meters, table = WriterMeters(), table_of(bench)
    for number, writer in enumerate(("job-1", "w", "unknown"), 1):
        meters.decided(table, [commit(number, writer)], Verdict(OK, n=number, rows=2), 1_000)
    assert {writer for _, writer in told(meters, 0)} == {JOBS, "w", "unknown"}


def test_what_jobs_and_forgotten_writers_share_takes_no_room_of_the_named() -> None:
    """However old it is: the newest writers keep a label of their own beside it."""
    meters = WriterMeters()
    meters.committed("t", "job-1", 1, 10, 0, one_shot=True)
    for number in range(WRITER_LABELS_MAX + 1):
        meters.committed("t", f"w{number}", 1, 10, 0, one_shot=False)
    meters.committed("t", "again", 1, 10, 0, one_shot=False)
    names = {writer for _, writer in told(meters, 0)}
    newest = {f"w{number}" for number in range(2, WRITER_LABELS_MAX + 1)}
    assert names == newest | {"again", JOBS, OTHERS}


def test_tables_that_are_gone_leave_no_labels_of_writers() -> None:
    """Those of other tables stay."""
    meters = WriterMeters()
    for table in ("t", "u"):
        meters.committed(table, "w", 1, 10, 0, one_shot=False)
    meters.forget_tables(["u", "w"])
    assert list(told(meters, 0)) == [("u", "w")]
