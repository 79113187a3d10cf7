"""Writers and attempts at the coordinator: how they end, are taken over, forgotten and listed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.errors import CorruptRecordError, NewerFormatError
from raftstore.state_machines.batches.coordinator import apply_txn
from raftstore.state_machines.batches.txn_records import Adopt, Close, Remove, Trim, Verdict
from raftstore.state_machines.batches.txn_state import (
    floor_for,
    read_writer,
    view_of,
    waiting_for,
    writers,
)
from raftstore.types import RecordKind
from tests.batch_bench import CoordinatorBench, Log, committed, opened

DAY_MS: Final = 86_400_000
JUMPS_MS: Final = (1, 60_000, DAY_MS, -DAY_MS, 400 * DAY_MS)
Move = Callable[[CoordinatorBench], Verdict]
STEPS: Final[tuple[Move, ...]] = (
    *(lambda bench, n=n: bench.begin(f"job{n}", one_shot=True) for n in range(4)),
    *(lambda bench, n=n: bench.begin(f"job{n}", uuid=2, one_shot=True) for n in range(2)),
    *(lambda bench, n=n: bench.commit(n + 1, f"job{n}") for n in range(4)),
    lambda bench: bench.begin("job0", 2, 3),
    lambda bench: bench.step(Remove("job1")),
    lambda bench: bench.step(Adopt("job2", None)),
    lambda bench: bench.step(Trim(((0, 2), (1, 2)))),
)
"""Steps of a few jobs, some of which begin again."""


def test_close_ends_only_the_attempt_that_is_open() -> None:
    """A late COMMIT loses against the CLOSE of its attempt; other attempts do not notice."""
    bench = opened()
    assert bench.step(Close("w", 1)).name == "done"
    assert bench.step(Close("nobody", 2)).name == "done"
    assert read_writer("w", bench.state).open is not None  # type: ignore[union-attr]
    bench.step(Close("w", 2))
    assert bench.commit(2, batch_id=7).code == "writer_fenced"
    assert bench.begin(batch_id=7, uuid=2).attempt == 3, "the number is not given again"


def test_acknowledgements_trim_the_outbox_cumulatively() -> None:
    """A channel that has applied n has applied all before it that touch it."""
    bench = CoordinatorBench()
    for batch in (1, 2, 3):
        bench.begin(batch_id=batch, uuid=batch)
        bench.commit(batch, batch_id=batch)
    bench.step(Trim(((0, 2),)))
    assert bench.pending() == [(1, (1,)), (2, (1,)), (3, (0, 1))]
    assert waiting_for(3, bench.state, {0: 3}) == (1,)
    bench.step(Trim(((0, 1), (1, 1))))  # late and doubled ones change nothing
    assert bench.pending() == [(2, (1,)), (3, (0, 1))]
    assert waiting_for(1, bench.state) == ()
    bench.step(Trim(((1, 3), (0, 3))))
    assert bench.pending() == []
    kept = {key[:2] for key, _ in bench.state.items()}
    assert kept == {b"\x03\x00", b"\x03\x01"}, "the table and its writers are all that stays"


def test_vector_of_an_old_commit_is_at_least_its_own() -> None:
    """When its manifest is gone, ALREADY gives the present vector: nothing is ever behind it."""
    bench = committed()
    bench.step(Trim(((0, 1), (1, 1))))
    bench.begin("v", 1, 9)
    bench.commit(2, "v", parts=(1,))
    verdict = bench.begin(batch_id=5)
    assert (verdict.n, verdict.vector) == (1, (1, 2))


def test_adopted_writer_begins_at_any_batch_of_its_new_checkpoint() -> None:
    """The operator's word replaces the guard against rolled-back checkpoints, and fences."""
    bench = opened()
    assert bench.step(Adopt("w", "x")).name == "done"
    assert bench.commit(2, batch_id=7).code == "writer_fenced"
    assert bench.begin(batch_id=0, uuid=5).code == "batch_regression"
    assert bench.begin(batch_id=0, uuid=5, lineage="x").attempt == 3
    assert bench.step(Adopt("nobody", "x")).code == "schema"


def test_adopted_writer_without_a_lineage_takes_the_next_that_comes() -> None:
    """Given an adopted writer without a lineage, the next one that begins sets it: an operator need
    not know the id of the new checkpoint.
    """
    bench = committed()
    bench.step(Adopt("w", None))
    assert bench.begin(batch_id=0, lineage="new").name == "opened"
    assert bench.begin(batch_id=0, lineage="c").code == "batch_regression"


def test_removed_writer_is_gone_and_its_commits_are_not() -> None:
    """Given a removed writer, its decided commits still reach their channels."""
    bench = committed()
    bench.step(Remove("w"))
    assert read_writer("w", bench.state) is None
    assert bench.pending() == [(1, (0, 1))]
    assert floor_for("w", 0, bench.state) == 0
    bench.step(Trim(((0, 1),)))
    assert floor_for("w", 0, bench.state) == 1
    assert bench.step(Remove("w")).name == "done"


def test_one_shot_writers_are_forgotten_by_the_number_of_later_ones() -> None:
    """A million jobs leave a bounded memory: the log alone decides, alike everywhere (S10)."""
    bench = CoordinatorBench(one_shots_max=2)
    for number in (1, 2, 3):
        bench.begin(f"job{number}", one_shot=True)
        bench.commit(number, f"job{number}")
        bench.step(Trim(((0, number), (1, number))))
    for number, name in ((3, "already"), (2, "already"), (1, "opened")):
        assert bench.begin(f"job{number}", one_shot=True).name == name
    assert bench.commit(1, "job1").code == "writer_fenced"  # UNKNOWN: it was committed


def test_s4_5_clock_that_jumps_ahead_forgets_no_one_shot_writer() -> None:
    """S10: a leader a year ahead must not have a batch that is begun again look new."""
    bench = CoordinatorBench()
    bench.begin("job", one_shot=True)
    bench.commit(1, "job")
    bench.log.now_ms += 365 * 86_400_000
    bench.step(Trim(((0, 1), (1, 1))))
    assert bench.begin("job", uuid=2, one_shot=True).name == "already"


def test_one_shot_limit_that_fell_is_reached_step_by_step() -> None:
    """A commit forgets a bounded number of writers, however many are too many."""
    bench = CoordinatorBench()
    for number in range(1, 41):
        bench.begin(f"job{number}", one_shot=True)
        bench.commit(number, f"job{number}")
    bench.one_shots_max = 4
    for number in (41, 42, 43):
        bench.begin(f"job{number}", one_shot=True)
        bench.commit(number, f"job{number}")
        assert len(writers(bench.state, "", 100)) == max(4, 41 - 16 * (number - 40) + number - 41)


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(JUMPS_MS)), max_size=30))
def test_s4_5_timestamps_take_no_part_in_any_verdict(steps: list[tuple[Move, int]]) -> None:
    """The same steps by leaders whose clocks jump by days lead to the same."""
    jumping, steady = CoordinatorBench(one_shots_max=2), CoordinatorBench(one_shots_max=2)
    for step, jump_ms in steps:
        jumping.log.now_ms = max(1, jumping.log.now_ms + jump_ms)
        steady.log.now_ms += 1
        assert step(jumping) == step(steady)


def test_one_shot_writer_that_never_committed_leaves_with_its_attempt() -> None:
    """A job that died is closed by its time to live, and nothing of it stays."""
    bench = CoordinatorBench()
    bench.begin("job", one_shot=True)
    bench.step(Close("job", 1))
    assert [key[:2] for key, _ in bench.state.items()] == [b"\x03\x00"]


def _pass_by(bench: CoordinatorBench, jobs: int) -> None:
    """So many other jobs write their batches."""
    for number in range(jobs):
        attempt = bench.begin(f"other{number}", one_shot=True).attempt
        assert bench.commit(attempt, f"other{number}").name == "ok"


@pytest.mark.parametrize("end", ["adopted", "removed", "stream", "committed_again"])
def test_time_of_a_one_shot_writer_ends_with_what_it_was_of(end: str) -> None:
    """No late end of a job forgets the writer that has its name now."""
    bench = CoordinatorBench(one_shots_max=3)
    bench.begin("w", one_shot=True)
    bench.commit(1)
    if end == "adopted":
        bench.step(Adopt("w", None))
    elif end == "removed":
        bench.step(Remove("w"))
    bench.begin(batch_id=2, uuid=2, one_shot=end == "committed_again")
    bench.commit(2, batch_id=2)
    _pass_by(bench, 2 if end == "committed_again" else 3)
    assert bench.begin(batch_id=2).name == "already"


def test_stream_with_the_name_of_a_job_keeps_its_attempt() -> None:
    """The job's time ends nothing that began after it."""
    bench = CoordinatorBench(one_shots_max=3)
    bench.begin("w", one_shot=True)
    bench.commit(1)
    bench.begin(batch_id=2, uuid=2)
    _pass_by(bench, 4)
    assert bench.commit(2, batch_id=2).name == "ok"


def test_writers_are_listed_in_pages() -> None:
    """Operators see who writes, what is open, and who needs the coordinator's memory."""
    bench = opened()
    bench.begin("a", 3, 4, lineage="")
    found = writers(bench.state, "", 10)
    assert [name for name, _ in found] == ["a", "w"]
    assert [name for name, _ in writers(bench.state, "a", 10)] == ["w"]
    view = view_of(*found[1])
    assert (view.last_batch, view.last_attempt, view.last_n) == (5, 1, 1)
    assert (view.open_batch, view.open_attempt, view.lineage) == (7, 2, "c")
    assert (view_of(*found[0]).last_n, view_of(*found[0]).open_attempt) == (-1, 3)


@pytest.mark.parametrize(
    ("payload", "error"),
    [(b"", CorruptRecordError), (b"\x01\xc0", CorruptRecordError), (b"\x02", NewerFormatError)],
)
def test_step_that_cannot_be_read_stops_the_node(payload: bytes, error: type[Exception]) -> None:
    """S0.4: skipping it would part this replica from the others."""
    with pytest.raises(error):
        apply_txn(Log().record(RecordKind.TXN, payload), CoordinatorBench().state)
