"""Logs of stopped nodes: what is lost is found, proven and brought back; nothing else changes."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from click.testing import CliRunner, Result

from raftstore.cli.main import cli, global_options_first
from raftstore.core.chain import digest_of
from raftstore.core.folds import advance
from raftstore.errors import ArgumentError, StoreIdentityError
from raftstore.ports.log import EMPTY_BASE
from raftstore.protocol.records import Record
from raftstore.state_machines.catalog import TableEntry, create_table_command
from raftstore.storage.files import FileOps
from raftstore.storage.identity import lock_stopped, open_or_create
from raftstore.storage.log.records import HEADER, HEADER_BYTES, RecordPosition, decode_body
from raftstore.storage.log.segment_log import SegmentLog
from raftstore.storage.stopped.logs import Filled, Refused, fill, plan_fill, stopped_logs
from raftstore.types import ChannelId, NodeId, RecordKind, channel_id, channel_table, node_id
from tests.storage_helpers import CHANNEL, OTHER, SMALL, all_records, flip_bit, record

CLUSTER: Final = b"cluster-of-tests"
METADATA: Final = channel_id(CLUSTER, 0)
CHANNELS: Final = (METADATA, CHANNEL, OTHER)
NAMES: Final = ("n1", "n2", "n3")


def uuid_of(name: str) -> bytes:
    """Of the store of a node."""
    return name.encode().ljust(16, b"-")


def make_store(
    directory: Path, name: str, records: dict[ChannelId, list[Record]], cluster: bytes = CLUSTER
) -> None:
    """A node's data directory as the node leaves it when it stops."""
    identity = open_or_create(
        directory,
        name,
        create_parts=lambda place, uuid: SegmentLog.create(FileOps(), place, uuid),
        random_bytes=lambda size: uuid_of(name)[:size],
        free_bytes_min=0,
    )
    members = tuple((node_id(one, uuid_of(one)), f"{one}:4480") for one in NAMES)
    identity.record_birth(cluster, members)
    log = SegmentLog(FileOps(), directory, identity.store_uuid, SMALL)
    rng = random.Random(name)
    waiting = {channel: list(found) for channel, found in records.items()}
    while any(waiting.values()):  # each node has the channels in an order of its own
        channel = rng.choice([one for one, found in waiting.items() if found])
        log.append(channel, [waiting[channel].pop(0)])
        if rng.random() < 0.3:
            log.flush()
    log.set_vote(CHANNEL, log.open_channel(CHANNEL).term + 9, NodeId("n2@00"))
    log.flush()
    log.close()
    identity.close(is_clean=True)


def history() -> dict[ChannelId, list[Record]]:
    """The same records on every node, with their real digests, in several segments."""
    found: dict[ChannelId, list[Record]] = {}
    for channel in CHANNELS:
        seq, made = 1, []
        for number in range(20):
            payload = b"row %d of %s" % (number, channel) * (number % 5)
            one = record(seq, term=1 + number // 7, rows=1 + number % 3, payload=payload)
            made.append(msgspec.structs.replace(one, digest=digest_of(payload)))
            seq = one.last_seq + 1
        found[channel] = made
    found[METADATA] = [
        msgspec.structs.replace(one, kind=RecordKind.TERM_START) for one in found[METADATA]
    ]
    entry = TableEntry(
        name="orders",
        uuid=channel_table(CHANNEL),
        key_columns=("id",),
        partitions=2,
        replicas=3,
        durability="fsync",
        max_lag=None,
        schema_json="",
        placement=(tuple(node_id(name, uuid_of(name)) for name in NAMES),) * 2,
    )
    command = create_table_command(entry)
    found[METADATA][0] = msgspec.structs.replace(
        found[METADATA][0], kind=RecordKind.COMMAND, payload=command, digest=digest_of(command)
    )
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data directories of three stopped nodes; nobody changes them."""
    place = tmp_path_factory.mktemp("cluster")
    for name in NAMES:
        make_store(place / name, name, history())
    return place


@pytest.fixture
def stores(cluster: Path, tmp_path: Path) -> dict[str, Path]:
    """Copies of them, to be damaged."""
    shutil.copytree(cluster, tmp_path / "copies")
    return {name: tmp_path / "copies" / name for name in NAMES}


def damage(directory: Path, channel: ChannelId, number: int, byte: int = -1) -> RecordPosition:
    """Flip a bit of the n-th record of a channel: in its payload's last byte, or at ``byte``."""
    found = []
    for path in sorted((directory / "log").iterdir()):
        data, offset = path.read_bytes(), 0
        while offset < len(data):  # without checksums: some may be damaged already
            length = HEADER_BYTES + HEADER.unpack_from(data, offset)[0]
            entry = decode_body(memoryview(data)[offset + HEADER_BYTES : offset + length])
            if isinstance(entry, RecordPosition) and entry.channel == channel:
                found.append((path, offset, length, entry))
            offset += length
    path, offset, length, entry = found[number]
    flip_bit(path, offset + (length - 1 if byte < 0 else byte))
    return entry


def image(directory: Path) -> dict[str, bytes]:
    """Every byte of a directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def contents(directory: Path) -> dict[ChannelId, list[Record]]:
    """All records, as a start of the node finds them."""
    log = SegmentLog(FileOps(), directory, uuid_of(directory.name), SMALL)
    try:
        assert all(log.open_channel(channel).hole is None for channel in CHANNELS)
        assert all(log.open_channel(channel).shortfall is None for channel in CHANNELS)
        return {channel: all_records(log, channel) for channel in CHANNELS}
    finally:
        log.close()


def run(*arguments: object) -> Result:
    """A command."""
    given = global_options_first(["log", *map(str, arguments)])
    return CliRunner().invoke(cli, given, standalone_mode=False)


def checked(*directories: Path) -> tuple[int, dict[str, Any]]:
    """Exit code and answer of ``raftstore log check``, by channel id."""
    result = CliRunner().invoke(
        cli, ["-o", "json", "log", "check", *map(str, directories)], standalone_mode=False
    )
    assert result.exception is None, result.output
    found = json.loads(result.stdout)
    return result.return_value, {one["id"]: one for one in found["channels"]}


def test_same_record_damaged_on_two_of_three_is_named_and_healed(stores: dict[str, Path]) -> None:
    """Given a record damaged in two of three directories, the third refills both, and nothing that
    was there is overwritten.
    """
    lost = damage(stores["n1"], CHANNEL, 8)
    damage(stores["n2"], CHANNEL, 8)
    before = {name: image(place) for name, place in stores.items()}
    code, found = checked(*stores.values())
    assert {name: image(place) for name, place in stores.items()} == before
    assert code == 7
    channel = found[CHANNEL.hex()]
    assert channel["verdict"] == "refilled"
    assert channel["sentence"] == (
        "n1 will be refilled by n3 when it is up; n2 will be refilled by n3 when it is up"
    )
    for replica in channel["replicas"][:2]:
        (hole,) = replica["holes"]
        assert (hole["from_seq"], hole["to_seq"]) == (
            lost.base_seq,
            lost.base_seq + lost.rows - 1,
        )
        assert (hole["prev_term"], hole["next_term"]) == (2, lost.term)
        assert hole["held_by"] == ["n3"]
        end = history()[CHANNEL][-1].last_seq
        assert replica["kept"] == [{"first_seq": lost.base_seq + lost.rows, "last_seq": end}]
    assert channel["replicas"][2]["holes"] == []
    assert {one["verdict"] for name, one in found.items() if name != CHANNEL.hex()} == {"whole"}
    for name in ("n1", "n2"):
        result = run("fill", stores[name], "--from", stores["n3"], "--yes")
        assert result.return_value == 0, result.output
        assert f"filled {lost.base_seq}-{lost.base_seq + lost.rows - 1} from n3" in result.stderr
        was, now = before[name], image(stores[name])
        for file, data in was.items():
            if file.startswith("log/"):
                assert now[file].startswith(data), "something was overwritten or cut"
        assert contents(stores[name]) == history()
    assert image(stores["n3"]) == before["n3"]
    assert checked(*stores.values())[0] == 0


def test_record_lost_everywhere_is_told_and_nothing_is_written(stores: dict[str, Path]) -> None:
    """Nothing is invented; that not all nodes were looked at is said, too."""
    for place in stores.values():
        lost = damage(place, CHANNEL, 8)
    before = image(stores["n1"])
    code, found = checked(*stores.values())
    assert code == 7
    assert found[CHANNEL.hex()]["verdict"] == "lost"
    assert found[CHANNEL.hex()]["sentence"] == (
        "n1 and n2 and n3 miss records that are lost on all directories given"
    )
    result = run("fill", stores["n1"], "--from", stores["n2"], "--from", stores["n3"], "--yes")
    assert result.return_value == 7
    assert "nothing was written" in result.stderr
    assert f"{lost.base_seq}-{lost.base_seq + lost.rows - 1} is still missing" in result.stderr
    after = image(stores["n1"])
    assert {name: data for name, data in after.items() if name != "lock"} == {
        name: data for name, data in before.items() if name != "lock"
    }
    _, found = checked(stores["n1"], stores["n2"])
    assert found[CHANNEL.hex()]["sentence"].endswith("; not looked at: n3")


def test_each_gives_what_the_other_lost(stores: dict[str, Path]) -> None:
    """Two damaged logs: no third one is needed where they lost different records."""
    damage(stores["n1"], CHANNEL, 8)
    damage(stores["n2"], CHANNEL, 3)
    damage(stores["n1"], OTHER, 0)
    _, found = checked(stores["n1"], stores["n2"])
    assert found[CHANNEL.hex()]["verdict"] == "refilled"
    assert found[OTHER.hex()]["sentence"] == "n1 will be refilled by n2 when it is up"
    for name, other in (("n1", "n2"), ("n2", "n1")):
        result = run("fill", stores[name], "--from", stores[other], "--yes")
        assert result.return_value == 0, result.output
        assert contents(stores[name]) == history()


def test_majority_that_never_had_the_record_decides(stores: dict[str, Path]) -> None:
    """A record that one log alone had, and lost: a leader of the others decides."""
    log = SegmentLog(FileOps(), stores["n1"], uuid_of("n1"), SMALL)
    end = log.open_channel(CHANNEL).last_seq
    log.append(CHANNEL, [record(end + 1, term=30), record(end + 2, term=30)])
    log.flush()
    log.close()
    damage(stores["n1"], CHANNEL, 20)
    _, found = checked(*stores.values())
    assert found[CHANNEL.hex()]["verdict"] == "recovers"
    assert found[CHANNEL.hex()]["sentence"] == "n1 recovers from the leader of the others"
    result = run("fill", stores["n1"], "--from", stores["n2"], "--yes")
    assert result.return_value == 7
    assert "nothing was written" in result.stderr


def test_other_cluster_is_refused(stores: dict[str, Path], tmp_path: Path) -> None:
    """Before anything is read or written; the sentence names both."""
    make_store(tmp_path / "other", "n3", history(), b"another-cluster!")
    damage(stores["n1"], CHANNEL, 8)
    before = image(stores["n1"])
    for arguments in (
        ("fill", stores["n1"], "--from", tmp_path / "other", "--yes"),
        ("check", stores["n1"], tmp_path / "other"),
    ):
        result = run(*arguments)
        assert isinstance(result.exception, StoreIdentityError)
        assert b"another-cluster!".hex() in str(result.exception)
    assert {name for name, data in image(stores["n1"]).items() if data != before[name]} <= {"lock"}


@pytest.mark.parametrize("running", ["n1", "n3"])
def test_running_node_is_refused(stores: dict[str, Path], running: str) -> None:
    """Even reading is refused, since its log grows meanwhile."""
    damage(stores["n1"], CHANNEL, 8)
    node = open_or_create(stores[running], running, create_parts=lambda *_: None, free_bytes_min=0)
    before = image(stores["n1"])["log/0000000000000001.log"]
    for arguments in (
        ("fill", stores["n1"], "--from", stores["n3"], "--yes"),
        ("check", stores["n1"], stores["n3"]),
    ):
        result = run(*arguments)
        assert isinstance(result.exception, StoreIdentityError)
        assert f"{stores[running]} is in use by pid" in str(result.exception)
    assert image(stores["n1"])["log/0000000000000001.log"] == before
    node.close(is_clean=True)


def test_no_node_starts_while_its_log_is_looked_at(stores: dict[str, Path]) -> None:
    """Two may look at once; a start waits."""
    with stopped_logs([stores["n1"]]), stopped_logs([stores["n1"]]):
        with pytest.raises(StoreIdentityError, match="log check"):
            open_or_create(stores["n1"], "n1", create_parts=lambda *_: None, free_bytes_min=0)
        with pytest.raises(StoreIdentityError, match="in use"):
            lock_stopped(stores["n1"], is_shared=False)
    lock_stopped(stores["n1"], is_shared=False)


def test_directories_are_what_they_are_named(stores: dict[str, Path], tmp_path: Path) -> None:
    """The same one twice, and one that is no node's."""
    result = run("fill", stores["n1"], "--from", stores["n1"] / ".." / "n1", "--yes")
    assert isinstance(result.exception, ArgumentError)
    result = run("check", tmp_path)
    assert isinstance(result.exception, StoreIdentityError)
    assert "holds no raftstore.json" in str(result.exception)


def test_fill_is_asked_for_first(stores: dict[str, Path]) -> None:
    """Without a terminal only --yes is a yes."""
    damage(stores["n1"], CHANNEL, 8)
    before = image(stores["n1"])
    result = run("fill", stores["n1"], "--from", stores["n3"])
    assert "Pass --yes" in str(result.exception)
    assert {name for name, data in image(stores["n1"]).items() if data != before[name]} <= {"lock"}


def test_record_that_is_not_what_its_digest_says_is_refused(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    """Checked as running nodes check it; another source gives the right one."""
    damage(stores["n1"], CHANNEL, 8)
    wrong = history()
    wrong[CHANNEL][8] = msgspec.structs.replace(wrong[CHANNEL][8], payload=b"something else")
    make_store(tmp_path / "wrong", "n2", wrong)
    with stopped_logs(
        [stores["n1"], tmp_path / "wrong", stores["n3"]], written=stores["n1"]
    ) as logs:
        plan = plan_fill(logs[0], logs[1:])
        told = list(fill(logs[0], logs[1:], list(plan)))
    assert isinstance(told[0], Refused)
    assert told[0].source == "n2"
    assert isinstance(told[1], Filled)
    assert told[1].source == "n3"
    assert contents(stores["n1"]) == history()


def test_log_of_another_term_gives_nothing(stores: dict[str, Path], tmp_path: Path) -> None:
    """S2.4: without a record that both have held, nothing proves what belongs into the hole."""
    damage(stores["n1"], CHANNEL, 8)
    other = history()
    other[CHANNEL] = [msgspec.structs.replace(one, term=one.term + 50) for one in other[CHANNEL]]
    make_store(tmp_path / "stale", "n2", other)
    before = image(stores["n1"])
    result = run("fill", stores["n1"], "--from", tmp_path / "stale", "--yes")
    assert result.return_value == 7
    assert "nothing was written" in result.stderr
    assert {name for name, data in image(stores["n1"]).items() if data != before[name]} <= {"lock"}


def test_log_that_a_start_would_cut_is_left_to_the_start(stores: dict[str, Path]) -> None:
    """Fill cuts nothing; check says that the next start does."""
    damage(stores["n1"], CHANNEL, 8)
    last = max((stores["n1"] / "log").iterdir())
    last.write_bytes(last.read_bytes() + b"torn")
    before = image(stores["n1"])
    result = run("check", stores["n1"], stores["n3"])
    assert "the next start of the node cuts it there" in result.stderr
    result = run("fill", stores["n1"], "--from", stores["n3"], "--yes")
    assert isinstance(result.exception, StoreIdentityError)
    assert "start this node once" in str(result.exception)
    assert {name for name, data in image(stores["n1"]).items() if data != before[name]} <= {"lock"}
    # A directory that is only read may need such a start: what it holds is given all the same.
    damage(stores["n2"], CHANNEL, 8, byte=40)
    last = max((stores["n3"] / "log").iterdir())
    last.write_bytes(last.read_bytes() + b"torn")
    assert run("fill", stores["n2"], "--from", stores["n3"], "--yes").return_value == 0
    assert contents(stores["n2"]) == history()


def test_log_whose_mark_lags_is_whole_and_filled(stores: dict[str, Path]) -> None:
    """A node that was killed leaves such a mark; its start catches up, and so does fill."""
    log = SegmentLog(FileOps(), stores["n1"], uuid_of("n1"), SMALL)
    mark = (stores["n1"] / "mark").read_bytes()
    end = log.open_channel(OTHER).last_seq
    log.append(OTHER, [record(end + 1, term=3)])
    log.flush()
    log.close()
    (stores["n1"] / "mark").write_bytes(mark)
    damage(stores["n1"], CHANNEL, 8)
    _, found = checked(stores["n1"], stores["n3"])
    assert found[OTHER.hex()]["verdict"] == "whole"
    assert (stores["n1"] / "mark").read_bytes() == mark
    result = run("fill", stores["n1"], "--from", stores["n3"], "--yes")
    assert result.return_value == 0, result.output


def test_source_with_a_damaged_header_gives_what_stands_behind_it(
    stores: dict[str, Path],
) -> None:
    """The header is mended in memory: the source's files stay as they are."""
    damage(stores["n1"], CHANNEL, 8)
    damage(stores["n3"], CHANNEL, 8, byte=HEADER_BYTES - 1)
    before = image(stores["n3"])
    result = run("fill", stores["n1"], "--from", stores["n3"], "--yes")
    assert result.return_value == 0, result.output
    assert image(stores["n3"]) == before
    assert contents(stores["n1"]) == history()


@pytest.mark.slow
def test_fill_that_is_interrupted_anywhere_leaves_a_log_that_is_filled_later(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    """S0.3: what was written so far is a shorter fill, at worst with a torn end."""
    for number in (3, 4, 8):
        damage(stores["n1"], CHANNEL, number)
    damage(stores["n1"], METADATA, 11)
    last = max((stores["n1"] / "log").iterdir())
    begin = last.stat().st_size
    shutil.copytree(stores["n1"], tmp_path / "before" / "n1")
    assert run("fill", stores["n1"], "--from", stores["n3"], "--yes").return_value == 0
    data = last.read_bytes()
    seen = set()
    for end in range(begin, len(data), 59):
        place = tmp_path / str(end) / "n1"
        shutil.copytree(tmp_path / "before" / "n1", place)
        (place / "log" / last.name).write_bytes(data[:end])
        log = SegmentLog(FileOps(), place, uuid_of("n1"), SMALL)  # a start
        seen.add(sum(log.open_channel(channel).hole is not None for channel in CHANNELS))
        log.close()
        result = run("fill", place, "--from", stores["n3"], "--yes")
        assert result.return_value == 0, result.output
        assert contents(place) == history()
    assert seen == {2, 1}


def test_channels_are_told_by_the_names_of_their_tables(stores: dict[str, Path]) -> None:
    """As in the log lines of a node; by their ids where the metadata is not known so far."""
    damage(stores["n1"], OTHER, 8)
    _, found = checked(stores["n1"], stores["n2"])
    assert [one["channel"] for one in found.values()] == ["metadata", "orders/0", "orders/1"]
    result = run("fill", stores["n1"], "--from", stores["n2"], "--yes")
    assert "orders/1: filled " in result.stderr
    damage(stores["n1"], METADATA, 0)
    _, found = checked(stores["n1"])
    assert {one["channel"] for one in found.values()} == {"metadata", CHANNEL.hex(), OTHER.hex()}


def test_table_of_what_is_lost_is_for_people(stores: dict[str, Path]) -> None:
    """The holes, then one line for each channel."""
    damage(stores["n1"], CHANNEL, 8)
    damage(stores["n2"], CHANNEL, 8)
    lines = run("check", stores["n1"], stores["n2"]).stdout.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["channel", "node", "lost", "term", "kept", "held", "by"],
        ["orders/0", "n1", "16-18", "2", "19-39", "none", "of", "these"],
        ["orders/0", "n2", "16-18", "2", "19-39", "none", "of", "these"],
    ]
    assert lines[-2].split()[:5] == ["orders/0", "n1:", "1-15,", "n2:", "1-15"]
    assert lines[-2].endswith("lost on all directories given; not looked at: n3")
    assert lines[-1].split()[-1] == "whole"


def test_trimmed_log_misses_nothing_below_its_base(stores: dict[str, Path]) -> None:
    """Another log with another base refills what is damaged behind it; nothing changes a file."""
    bases = {"n1": 8, "n2": 4}
    for name, count in bases.items():
        log = SegmentLog(FileOps(), stores[name], uuid_of(name), SMALL)
        log.rebase(CHANNEL, advance(EMPTY_BASE, history()[CHANNEL][:count]))
        log.flush()
        log.close()
    lost = damage(stores["n1"], CHANNEL, 10)
    before = {name: image(place) for name, place in stores.items()}
    code, found = checked(*stores.values())
    assert {name: image(place) for name, place in stores.items()} == before
    channel = found[CHANNEL.hex()]
    assert (code, channel["verdict"]) == (7, "refilled")
    seqs = [history()[CHANNEL][count - 1].last_seq for count in bases.values()]
    assert [replica["base_seq"] for replica in channel["replicas"]] == [*seqs, 0]
    assert [replica["first_seq"] for replica in channel["replicas"]] == [
        *(seq + 1 for seq in seqs),
        1,
    ]
    (hole,) = channel["replicas"][0]["holes"]
    assert hole["from_seq"] == lost.base_seq
    assert hole["held_by"] == ["n2", "n3"]
    assert {one["verdict"] for name, one in found.items() if name != CHANNEL.hex()} == {"whole"}
    log = SegmentLog(FileOps(), stores["n1"], uuid_of("n1"), SMALL)
    assert log.base(CHANNEL).seq == seqs[0]
    log.close()
