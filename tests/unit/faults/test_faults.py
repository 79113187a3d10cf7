"""The fault injector: silent unless armed, exact when armed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from raftstore import faults
from raftstore.faults import Injector, Orders, SkewedClock
from raftstore.storage.faulty_files import FaultyFileOps


def _order(control: Path, **orders: object) -> None:
    aside = control.with_name("aside")
    aside.write_text(json.dumps(orders))
    aside.rename(control)


def test_nothing_is_armed_when_the_environment_names_no_file() -> None:
    """A node that is not asked to is never failed on purpose."""
    assert faults.arm({}) is None
    faults.reach("log.before-sync")
    assert faults.injector() is None


def test_every_failpoint_is_in_the_list_and_passed_somewhere() -> None:
    """The list of names is what the code passes, no more and no less."""
    root = Path(faults.__file__).parent
    passed = {
        name
        for path in root.rglob("*.py")
        if "testing" not in path.parts
        for name in re.findall(r'\b_?reach\("([^"]+)"\)', path.read_text())
    }
    assert passed == set(faults.FAILPOINTS)


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_single_failure_strikes_once_even_over_a_restart(tmp_path: Path, operation: str) -> None:
    """One ordered error is one error, and what fired is written down."""
    control = tmp_path / "faults"
    _order(control, fail=operation, number=7)
    with (tmp_path / "file").open("wb") as file:
        ops = FaultyFileOps(Injector(control))
        with pytest.raises(OSError, match="Input/output error"):
            _touch(ops, file.fileno(), operation)
        for again in (ops, FaultyFileOps(Injector(control))):
            _touch(again, file.fileno(), operation)
    assert (tmp_path / "faults.fired").read_text() == f"7 {operation}\n"


def test_a_full_disk_refuses_writes_until_it_is_mended(tmp_path: Path) -> None:
    """ENOSPC and no free bytes, and all well again when the order is gone."""
    control = tmp_path / "faults"
    ops = FaultyFileOps(Injector(control))
    _order(control, is_full=True)
    with (tmp_path / "file").open("wb") as file:
        with pytest.raises(OSError, match="No space left"):
            ops.write(file.fileno(), b"x")
        assert ops.free_bytes(tmp_path) == 0
        _order(control)
        assert ops.write(file.fileno(), b"x") == 1
    assert ops.free_bytes(tmp_path) > 0


def test_the_monotonic_clock_never_goes_back_when_jumped() -> None:
    """A jump back moves the wall clock only; a rate moves both."""
    monotonic, wall = SkewedClock(may_go_back=False), SkewedClock(may_go_back=True)
    calm, back = Orders(), Orders(clock_number=1, clock_jump_ms=-500.0, clock_rate=2.0)
    assert (monotonic.read(1000, calm), wall.read(1000, calm)) == (1000, 1000)
    assert (monotonic.read(1100, back), wall.read(1100, back)) == (1100, 600)
    assert (monotonic.read(1200, back), wall.read(1200, back)) == (1300, 800)
    over = Orders(clock_number=2)
    assert (monotonic.read(1300, over), wall.read(1300, over)) == (1500, 1300)


def _touch(ops: FaultyFileOps, descriptor: int, operation: str) -> None:
    if operation == "write":
        ops.write_all(descriptor, b"x")
    else:
        ops.datasync(descriptor)


def test_node_tells_its_own_level_unless_another_is_ordered(tmp_path: Path) -> None:
    """How a test has a node say that it is of an older version; without orders nothing changes."""
    try:
        assert faults.level(7) == 7
        control = tmp_path / "orders"
        assert faults.arm({faults.VARIABLE: str(control)}) is not None
        assert faults.level(7) == 7
        _order(control, level=0)
        assert faults.level(7) == 0
    finally:
        faults.arm({})
