"""Acknowledgements before the sync, as the mark remembers them over stops (S0.6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftstore import faults
from raftstore.config import StorageSettings
from raftstore.errors import PersistError
from raftstore.faults import Injector
from raftstore.storage.files import FileOps
from raftstore.storage.log.machine_boot import machine_boot
from raftstore.storage.log.mark import Floor, MarkFile, MarkRow
from raftstore.storage.log.segment_log import SegmentLog
from raftstore.storage.log.segments import LOG_DIRECTORY, segment_path
from raftstore.types import Durability, History, NodeId, Seq, Term
from tests.storage_helpers import CHANNEL, OTHER, STORE_UUID, FaultyFiles, create_log, record

HERE, LATER = bytes([1]) * 16, bytes([2]) * 16
"""Two boots of the machine."""


def start(directory: Path, boot: bytes = HERE, ops: FileOps | None = None) -> SegmentLog:
    """The next start of a node on this directory."""
    return SegmentLog(ops or FileOps(), directory, STORE_UUID, StorageSettings(), boot=boot)


def is_in_doubt(log: SegmentLog) -> bool:
    """Whether the channel may lack acknowledged records."""
    return log.open_channel(CHANNEL).in_doubt


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log with one record, durable."""
    log = create_log(tmp_path)
    log.append(CHANNEL, [record(1)])
    log.flush()
    log.close()
    return tmp_path


@pytest.mark.parametrize(
    ("durability", "boot", "doubts"),
    [
        (Durability.FSYNC, LATER, False),
        (Durability.BUFFERED, HERE, False),
        (Durability.BUFFERED, LATER, True),
        (Durability.MEMORY, HERE, True),
        (Durability.MEMORY, LATER, True),
    ],
)
def test_stop_leaves_a_doubt_where_it_may_have_cost_records(
    directory: Path, durability: Durability, boot: bytes, *, doubts: bool
) -> None:
    """S0.6: at buffered the end of the machine, at memory that of the process."""
    log = start(directory)
    log.promise(CHANNEL, durability)
    log.append(OTHER, [record(1)])
    log.flush()
    log.close()
    log = start(directory, boot)
    assert is_in_doubt(log) is doubts
    assert not log.open_channel(OTHER).in_doubt
    log.close()
    assert is_in_doubt(start(directory, boot)) is doubts, "until the channel is whole again"


def test_doubt_ends_where_the_log_says_so_and_not_before(directory: Path) -> None:
    """S0.6: neither records nor votes end it."""
    log = start(directory)
    log.promise(CHANNEL, Durability.MEMORY)
    log.flush()
    log.close()
    log = start(directory)
    log.append(CHANNEL, [record(2)])
    log.set_vote(CHANNEL, Term(9), NodeId("a@1"))
    log.flush()
    log.close()
    log = start(directory)
    assert is_in_doubt(log)
    log.end_doubt(CHANNEL)
    log.close()
    log = start(directory)
    assert is_in_doubt(log), "that was not durable"
    log.end_doubt(CHANNEL)
    log.flush()
    log.close()
    assert not is_in_doubt(start(directory))


def test_checkpoint_and_clean_stop_take_the_promise_back(directory: Path) -> None:
    """NATS-017: everything is synced then, so that no stop costs anything."""
    for ends in (
        lambda log: log.promise(CHANNEL, Durability.FSYNC),
        SegmentLog.take_promises_back,
    ):
        log = start(directory)
        log.promise(CHANNEL, Durability.MEMORY)
        log.flush()
        ends(log)
        log.flush()
        log.close()
        assert not is_in_doubt(start(directory, LATER))


def test_promise_is_in_the_mark_when_it_is_durable(directory: Path) -> None:
    """S0.6: what was acknowledged early is never in front of it."""
    log = start(directory)
    log.promise(CHANNEL, Durability.BUFFERED)
    log.committer.write_and_sync(log.take_pending())
    rows = MarkFile.open(FileOps(), directory / "mark", STORE_UUID).rows
    assert (rows[CHANNEL].durability, rows[CHANNEL].boot) == (Durability.BUFFERED, HERE)


def test_failed_sync_leaves_a_doubt_although_the_machine_goes_on(directory: Path) -> None:
    """S0.4, S0.6: what the system was handed is dropped then, and was acknowledged."""
    ops = FaultyFiles()
    log = start(directory, ops=ops)
    log.promise(CHANNEL, Durability.BUFFERED)
    log.flush()
    log.append(CHANNEL, [record(2)])
    ops.fail("sync", segment_path(directory / LOG_DIRECTORY, 1).name)
    batch = log.take_pending()
    log.committer.write(batch)
    with pytest.raises(PersistError):
        log.committer.sync(batch)
    log.close()
    assert is_in_doubt(start(directory))


def test_mark_of_either_form_keeps_floor_and_rows(tmp_path: Path) -> None:
    """GAP-15: the newer form is written only while some channel needs it."""
    path = tmp_path / "mark"
    MarkFile.create(FileOps(), path, STORE_UUID)
    plain = MarkRow(Term(3), NodeId("a@1"), History(Term(3), Seq(9)))
    early = plain._replace(durability=Durability.BUFFERED, boot=HERE)
    doubting = plain._replace(durability=Durability.MEMORY, in_doubt=True)
    forms = []
    mark = MarkFile.open(FileOps(), path, STORE_UUID)
    for rows, floor in (
        ({CHANNEL: plain}, None),
        ({CHANNEL: early, OTHER: doubting}, None),
        ({CHANNEL: plain}, Floor(3, 77)),
        ({OTHER: plain}, Floor(4, 78)),
    ):
        mark.write(rows)
        if floor is not None:
            mark.raise_floor(floor, {})
        mark.close()
        before = mark.rows
        mark = MarkFile.open(FileOps(), path, STORE_UUID)
        assert (mark.rows, mark.floor) == (before, floor)
        forms.append(mark._version)
    assert forms == [1, 3, 3, 2]


def test_boot_of_the_machine_is_its_own_where_the_system_tells_it(tmp_path: Path) -> None:
    """S0.6: where it does not, every process counts as another one."""
    assert machine_boot() == machine_boot()
    assert len(machine_boot()) == 16
    told = tmp_path / "boot_id"
    told.write_text("6c1e9a7e-35c2-4c1a-9a77-0a3d4b8f2e10\n", encoding="ascii")
    assert machine_boot(told).hex() == "6c1e9a7e35c24c1a9a770a3d4b8f2e10"
    assert len(machine_boot(tmp_path / "missing")) == 16


def test_played_loss_of_power_is_another_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine itself goes on: without it a node would believe that the system has kept all."""
    control, told = tmp_path / "orders", tmp_path / "boot_id"
    control.write_text('{"power_losses": 3}')
    told.write_text("6c1e9a7e-35c2-4c1a-9a77-0a3d4b8f2e10\n", encoding="ascii")
    monkeypatch.setattr(faults, "armed", Injector(control))
    assert machine_boot(told).hex() == "6c1e9a7e35c24c1a9a770a3d4b8f2e13"
