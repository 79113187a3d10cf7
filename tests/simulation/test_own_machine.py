"""A machine of one's own on simulated replicas: the example of the docstring, and what it finds."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

import raftstore.testing
from raftstore.protocol.records import Record
from raftstore.record_machine import ApplyResult, RecordMachine, RecordView
from raftstore.rows.sealing import seal
from raftstore.testing import SimOptions, rows_of, run_machine
from raftstore.testing.invariants import InvariantError

WRITES = [{b"k%d" % (number % 5): b"%d" % number} for number in range(40)]


class Newest(RecordMachine):
    """Keeps what was written last."""

    def apply(self, record: Record, view: RecordView) -> ApplyResult:
        """Write what the record says."""
        del view
        pairs = rows_of(record)
        return ApplyResult([(key, None if v is None else seal(key, v)) for key, v in pairs])


@pytest.mark.slow
def test_example_of_the_docstring_runs() -> None:
    """The example in the docstring of ``raftstore.testing`` runs and passes."""
    text = (raftstore.testing.__doc__ or "").partition("::\n")[2]
    names: dict[str, Any] = {}
    exec(compile(textwrap.dedent(text), "example", "exec"), names)
    names["test_sums_count_every_write_once"]()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_machine_ends_with_what_was_written_last(seed: int) -> None:
    """Under faults every write is applied in order, once."""
    rows = run_machine(Newest, [*WRITES, {b"k0": None}], seed=seed)
    assert rows == {b"k%d" % n: b"%d" % (35 + n) for n in range(1, 5)}


@pytest.mark.slow
def test_machine_that_is_no_function_of_its_rows_is_found_out() -> None:
    """A counter in memory differs between replicas that restarted at different times."""

    class Forgetful(Newest):
        def __init__(self) -> None:
            self.applied = 0

        def apply(self, record: Record, view: RecordView) -> ApplyResult:
            del view
            self.applied += 1
            text = b"%d" % self.applied
            return ApplyResult([(key, seal(key, text)) for key, _ in rows_of(record)])

    with pytest.raises(InvariantError, match="replicas differ"):
        run_machine(Forgetful, WRITES, seed=1)


@pytest.mark.slow
def test_machine_that_depends_on_its_replica_is_found_out() -> None:
    """Given a state machine that writes what only one replica knows, the world fails with different
    replicas.
    """
    names: Iterator[int] = iter(range(1_000))

    class Personal(Newest):
        def __init__(self) -> None:
            self.name = b"%d" % next(names)

        def apply(self, record: Record, view: RecordView) -> ApplyResult:
            del view
            return ApplyResult([(key, seal(key, self.name)) for key, _ in rows_of(record)])

    with pytest.raises(InvariantError, match="replicas differ"):
        run_machine(Personal, WRITES[:5], seed=1, options=SimOptions(seed=1, partitions=1))
