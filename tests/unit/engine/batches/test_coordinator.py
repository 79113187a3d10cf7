"""The coordinator of micro-batches on a running node: requests, records, and what is answered."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from raftstore.engine.batches import coordinated_table
from raftstore.engine.batches.writer_meters import JOBS, OTHERS, WRITER_LABELS_MAX, WriterMeters
from raftstore.protocol.admin import Metrics, MetricsAnswer
from raftstore.protocol.batches import (
    ALREADY,
    OK,
    OPENED,
    BatchAnswer,
    EditWriter,
    Writers,
    WritersAnswer,
)
from raftstore.protocol.message import Done, Failed, Message
from raftstore.types import Role
from tests.unit.engine.batch_world import BatchWorld, refusal
from tests.unit.engine.engine_world import ask, run


def test_tasks_of_one_batch_get_one_attempt_and_cost_one_record() -> None:
    """Rule 1: BEGIN is idempotent by its uuid, however many tasks send it at once."""
    world = BatchWorld.start()
    before = world.seqs()
    answers = world.tell(*(world.begin_request(1) for _ in range(20)))
    assert [(a.verdict, a.attempt) for a in answers if isinstance(a, BatchAnswer)] == [
        (OPENED, 1)
    ] * 20
    assert world.seqs() == before + 1
    assert world.begin(1).attempt == 1
    assert world.seqs() == before + 1


def test_newer_attempt_of_a_writer_fences_the_older_one() -> None:
    """Rule 1: the attempt that was open before can never commit."""
    world = BatchWorld.start()
    assert world.begin(1, b"a" * 16).attempt == 1
    assert world.begin(1, b"b" * 16).attempt == 2
    [late] = world.tell(world.commit_request(1, 1))
    assert refusal(late) == "writer_fenced"
    assert world.commit(2, 1).verdict == OK


def test_empty_batch_is_decided_and_replayed_as_already_done() -> None:
    """Rule 4: it touches no channel; b = last.b is ALREADY, and below it a regression."""
    world = BatchWorld.start()
    world.begin(5)
    answer = world.commit(1, 5)
    assert (answer.verdict, answer.n, answer.rows) == (OK, 1, 0)
    replay = world.begin(5, b"b" * 16)
    assert (replay.verdict, replay.attempt, replay.n) == (ALREADY, 1, 1)
    [older] = world.tell(world.begin_request(4, b"c" * 16))
    assert refusal(older) == "batch_regression"


def test_late_words_of_earlier_attempts_change_no_later_one() -> None:
    """A COMMIT and a CLOSE that were under way until the next attempt, or the next batch, had
    staged its rows neither commit nor end it."""
    world = BatchWorld.start()
    late: list[Message] = []
    attempts: list[int] = []
    committed: set[int] = set()
    for batch_id, uuid in ((1, b"a" * 16), (1, b"b" * 16), (2, b"c" * 16)):
        attempt = world.begin(batch_id, uuid).attempt
        attempts.append(attempt)
        for partition in (0, 1):
            world.stage(attempt, partition, {b"k": b"attempt %d" % attempt})
        before = [world.get(partition, b"k") for partition in (0, 1)]
        refused = [answer for answer in world.tell(*late) if not isinstance(answer, Done)]
        assert {refusal(answer) for answer in refused if isinstance(answer, Failed)} <= {
            "writer_fenced"
        }
        told = {a.attempt for a in refused if isinstance(a, BatchAnswer) and a.verdict == OK}
        assert told <= committed, "an attempt that was fenced is called committed"
        assert [world.get(partition, b"k") for partition in (0, 1)] == before
        [writer] = _writers(world).writers
        assert writer.open_attempt == attempt, "a late word ended an attempt of later"
        late += [world.commit_request(attempt, batch_id), world.close_request(attempt)]
        if (batch_id, len(attempts)) != (1, 1):
            assert world.commit(attempt, batch_id).verdict == OK
            committed.add(attempt)
            value = b"attempt %d" % attempt
            assert [world.get(partition, b"k") for partition in (0, 1)] == [[value], [value]]
    assert attempts == [1, 2, 3]


def test_closed_attempt_can_not_commit() -> None:
    """CLOSE is a record of the coordinator that a late COMMIT loses against (rule 6)."""
    world = BatchWorld.start()
    world.begin(1)
    [done] = world.tell(world.close_request(1))
    assert isinstance(done, Done)
    [late] = world.tell(world.commit_request(1, 1))
    assert refusal(late) == "writer_fenced"


@pytest.mark.slow
def test_attempt_that_nobody_goes_on_with_is_closed_by_its_time() -> None:
    """The leader's own clock asks, the record decides."""
    world = BatchWorld.start()
    world.tell(world.begin_request(1, ttl_ms=20_000))
    run(world.cluster, 15_000)
    world.tell(world.begin_request(1, ttl_ms=20_000))  # a task that begins it again
    run(world.cluster, 15_000)
    [writer] = _writers(world).writers
    assert writer.open_attempt == 1
    run(world.cluster, 10_000)
    [late] = world.tell(world.commit_request(1, 1))
    assert refusal(late) == "writer_fenced"


def test_only_the_leader_of_partition_0_coordinates() -> None:
    """Others name who does."""
    world = BatchWorld.start()
    leader = world.leader()
    other = next(node for node in world.cluster.nodes.values() if node is not leader)
    answers = ask(world.cluster, other, world.begin_request(1))
    run(world.cluster, 500)
    [answer] = answers
    assert isinstance(answer, Failed)
    assert (answer.code, answer.leader_hint) == ("not_leader", leader.node)


def test_catalog_has_no_micro_batches() -> None:
    """Its channel is no partition of a table: a request there changes nothing, on any node."""
    world = BatchWorld.start()
    leader = next(
        node
        for node in world.cluster.nodes.values()
        if node.runner.channels[node.runner.metadata_channel].elector.role is Role.LEADER
    )
    catalog = leader.runner.metadata_channel
    end = leader.runner.channels[catalog].core.last_seq
    requests = [
        msgspec.structs.replace(request, channel=catalog)
        for request in (
            world.begin_request(1),
            world.commit_request(1, 1),
            world.close_request(1),
            EditWriter(901, catalog, "w", "remove", None, 1_000),
            Writers(902, catalog, 1_000),
        )
    ]
    answers = ask(world.cluster, leader, *requests)
    run(world.cluster, 2_000)
    assert [refusal(answer) for answer in answers] == ["unknown_channel"] * 5
    assert leader.runner.channels[catalog].core.last_seq == end
    assert world.begin(1).attempt == 1


def test_writers_are_listed_with_what_they_did_last() -> None:
    """For operators: last batch, open attempt, checkpoint."""
    world = BatchWorld.start()
    world.begin(1)
    world.commit(1, 1)
    world.begin(2, b"b" * 16)
    answer = _writers(world)
    [writer] = answer.writers
    assert (writer.writer, writer.last_batch, writer.last_n) == ("orders", 1, 1)
    assert (writer.open_batch, writer.open_attempt) == (2, 2)
    assert (answer.next_commit, answer.outbox, answer.applied_everywhere) == (2, 0, 1)


def test_writers_beyond_one_answer_are_told_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, and each answer says whether there are more behind it."""
    monkeypatch.setattr(coordinated_table, "WRITERS_MAX", 2)
    world = BatchWorld.start()
    for number, name in enumerate(("c", "a", "e", "b", "d")):
        world.tell(world.begin_request(1, b"%016d" % number, name))
    answers = [_writers(world, after) for after in ("", "b", "d", "e")]
    told = [([view.writer for view in answer.writers], answer.more) for answer in answers]
    assert told == [(["a", "b"], True), (["c", "d"], True), (["e"], False), ([], False)]


@pytest.mark.parametrize(
    "request_of",
    [
        lambda world: world.close_request(1, writer="w" * 257),
        lambda world: EditWriter(900, world.channels[0], "", "remove", None, 1_000),
        lambda world: EditWriter(900, world.channels[0], "w", "adopt", "l" * 257, 1_000),
        lambda world: EditWriter(900, world.channels[0], "w", "praise", None, 1_000),
    ],
    ids=["long writer", "no writer", "long lineage", "unknown action"],
)
def test_bad_names_enter_no_record(request_of: Callable[[BatchWorld], Message]) -> None:
    """S12: what is refused leaves no trace in the log."""
    world = BatchWorld.start()
    before = world.seqs()
    [answer] = world.tell(request_of(world), ms=500)
    assert refusal(answer) == "schema"
    assert world.seqs() == before


def _writers(world: BatchWorld, after: str = "") -> WritersAnswer:
    [answer] = world.tell(Writers(900, world.channels[0], 1_000, after=after))
    assert isinstance(answer, WritersAnswer)
    return answer


# --- metrics --------------------------------------------------------------------------------------


def written(world: BatchWorld) -> dict[tuple[str, str], float]:
    """Counters of each writer of batches in the leader's metrics."""
    [answer] = world.tell(Metrics(99))
    assert isinstance(answer, MetricsAnswer)
    return {
        (name, dict(labels)["writer"]): value
        for name, labels, value in answer.samples
        if name.startswith("raftstore_batch")
    }


def test_metrics_tell_what_each_writer_committed_once() -> None:
    """Batches, rows, bytes and the age of the last one; what is asked for again counts once."""
    world = BatchWorld.start()
    world.begin(1)
    world.stage(1, 0, {b"a": b"1", b"b": b"2"})
    world.tell(world.commit_request(1, 1), world.commit_request(1, 1))
    world.begin(2, b"b" * 16)
    world.commit(2, 2)
    assert world.begin(2, b"c" * 16).verdict == ALREADY
    found = written(world)
    assert found["raftstore_batches_committed_total", "orders"] == 2
    assert found["raftstore_batch_rows_total", "orders"] == 2
    size = sum(ref.size for refs in world.staged.values() for ref in refs)
    assert found["raftstore_batch_bytes_total", "orders"] == size > 0
    before = found["raftstore_batch_last_commit_age_seconds", "orders"]
    run(world.cluster, 5_000)
    assert written(world)["raftstore_batch_last_commit_age_seconds", "orders"] >= before + 5


def test_metrics_have_a_bounded_number_of_writers() -> None:
    """The newest have a label each, jobs share one, and nothing is lost from the sum."""
    meters = WriterMeters()
    for number in range(WRITER_LABELS_MAX + 10):
        meters.committed("t", f"w{number}", 2, 10, 1_000 * number, one_shot=False)
        meters.committed("t", f"job-{number}", 1, 10, 1_000 * number, one_shot=True)
        meters.committed("t", "steady", 1, 10, 1_000 * number, one_shot=False)
    names = {dict(labels)["writer"] for _, labels, _ in meters.samples(0)}
    assert len(names) == WRITER_LABELS_MAX + 2
    assert {"steady", JOBS, OTHERS, f"w{WRITER_LABELS_MAX + 9}"} <= names
    assert "w0" not in names
    rows = [value for name, _, value in meters.samples(0) if name == "raftstore_batch_rows_total"]
    assert sum(rows) == 4 * (WRITER_LABELS_MAX + 10)
    meters.forget_tables(["another"])
    assert list(meters.samples(0)) == []
