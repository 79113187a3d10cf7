"""The memory of one table's coordinator: pushes, acknowledgements, and waiting clients."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftstore.config import BatchSettings
from raftstore.engine.batches.coordinated_table import PUSH_MS_MAX, CoordinatedTable, Waiter
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.ports.tables import TableStore
from raftstore.protocol.batches import OK, CommitBatch
from raftstore.protocol.table_settings import DEFAULT_SETTINGS
from raftstore.state_machines.batches.txn_records import Trim, Verdict
from raftstore.state_machines.state_keys import manifest_key
from raftstore.types import ChannelId, NodeId, Role, Seq, Term, channel_id
from tests.batch_bench import CoordinatorBench, DictState, manifest_of

TABLE = b"orders-table-id!"
CHANNEL = channel_id(TABLE, 0)
LEADER = NodeId("n1")
SETTINGS = BatchSettings(push_ms=200, ask_ms=1_000)


class Tables:
    """The state beside the rows, and how far it is applied."""

    def __init__(self, state: DictState) -> None:
        self.state = state
        self.applied = Seq(0)
        self.on_snapshot_read: Callable[[], object] = lambda: None

    def state_get(self, channel: ChannelId, key: bytes) -> bytes | None:
        return self.state.get(key)

    def state_scan(
        self, channel: ChannelId, start: bytes, stop: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        return self.state.scan(start, stop, limit)

    def applied_seq(self, channel: ChannelId) -> Seq:
        return self.applied

    def snapshot(self, channel: ChannelId) -> Any:
        kept = DictState()
        kept.write(self.state.items())

        def state_scan(*of: Any) -> list[tuple[bytes, bytes]]:
            self.on_snapshot_read()
            return kept.scan(*of)

        return SimpleNamespace(state_scan=state_scan, close=lambda: None)


def leading_runner(term: int = 3) -> Any:
    """Partition 0, led here and ready."""
    elector = SimpleNamespace(term=Term(term), role=Role.LEADER, leader=LEADER)
    core = SimpleNamespace(commit_seq=Seq(0), last_seq=Seq(0), leader_is_ready=True)
    return SimpleNamespace(
        channel=CHANNEL,
        name="orders/0",
        elector=elector,
        core=core,
        table_settings=DEFAULT_SETTINGS,
        commands=None,
    )


def two_commits() -> tuple[CoordinatorBench, CoordinatedTable]:
    """Commit 1 waits for partition 1, commit 2 for partitions 0 and 1."""
    bench = CoordinatorBench()
    for writer in ("u", "v"):
        bench.begin(writer)
    assert bench.commit(1, "u", parts=(1,)).n == 1
    assert bench.commit(2, "v", parts=(0, 1)).n == 2
    runner = cast(ChannelRunner, leading_runner())
    return bench, CoordinatedTable(runner, cast(TableStore, Tables(bench.state)), SETTINGS)


def pushed(table: CoordinatedTable, now_ms: int) -> list[tuple[int, int, int]]:
    """(partition, commit, the one before it there) that is sent now."""
    return [(partition, m.n, m.prev) for partition, m in table.next_pushes(now_ms)]


def waiter(token: int) -> Waiter:
    """A client whose commit was decided."""
    request = CommitBatch(token, CHANNEL, "u", 1, 1, manifest_of((1,)), b"d", 1_000)
    return Waiter(client=token, request=request, token=token)


def test_channel_hears_of_its_commits_one_at_a_time_and_in_order() -> None:
    """Rule 4: the second of two that wait for one channel follows when the first is applied."""
    _, table = two_commits()
    assert pushed(table, 0) == [(1, 1, 0), (0, 2, 0)]
    assert pushed(table, 199) == []
    assert table.ack(0, 2)
    assert table.ack(1, 1)
    assert pushed(table, 199) == [(1, 2, 1)], "at once, whatever the first one waited"
    assert table.ack(1, 2)
    assert pushed(table, 10_000) == []


def test_push_without_an_answer_is_repeated_at_growing_intervals() -> None:
    """A channel without a leader is not asked without end, nor forgotten."""
    _, table = two_commits()
    table.ack(0, 2)
    sent = [now for now in range(0, 40_000, 100) if pushed(table, now)]
    gaps = [after - before for before, after in pairwise(sent)]
    assert gaps[:5] == [200, 400, 800, 1_600, 3_200]
    assert set(gaps[5:]) == {PUSH_MS_MAX}
    table.ack(1, 1)
    assert pushed(table, 40_000) == [(1, 2, 1)]
    assert pushed(table, 40_199) == []
    assert pushed(table, 40_200) == [(1, 2, 1)], "another commit begins anew"


def test_acknowledgement_counts_once_and_never_back() -> None:
    """A late answer of an earlier state says nothing."""
    _, table = two_commits()
    assert table.ack(1, 2)
    assert not table.ack(1, 2)
    assert not table.ack(1, 1)
    assert table.acked == {1: 2}
    assert pushed(table, 0) == [(0, 2, 0)]


def test_commit_that_is_taken_out_meanwhile_is_sent_to_nobody() -> None:
    """The thread that applies may be further than what it reported: a new leader that looked into
    the outbox finds no manifest behind it, and has nothing to say of that commit."""
    bench, table = two_commits()
    bench.step(Trim(((1, 1),)))
    assert pushed(table, 0) == [(0, 2, 0)]
    assert 1 not in table.pushes
    table.refresh()
    assert pushed(table, 0) == [(1, 2, 1)], "which is the next one there"


def test_commit_in_the_outbox_without_its_manifest_is_a_fault() -> None:
    """They are written and removed in one batch."""
    bench, table = two_commits()
    bench.state.write(((manifest_key(1), None),))
    with pytest.raises(AssertionError, match="has its manifest"):
        pushed(table, 0)


def test_late_word_of_an_earlier_commit_does_not_hasten_the_next_push() -> None:
    """It is answered by the channel, or repeated when its time has come."""
    bench, _ = two_commits()
    bench.step(Trim(((1, 1),)))
    runner = cast(ChannelRunner, leading_runner())
    table = CoordinatedTable(runner, cast(TableStore, Tables(bench.state)), SETTINGS)
    assert pushed(table, 0) == [(0, 2, 0), (1, 2, 1)]
    assert table.ack(1, 1), "which this leader had not heard"
    assert pushed(table, 100) == []
    assert pushed(table, 200) == [(0, 2, 0), (1, 2, 1)]


def test_client_hears_when_its_own_commit_is_applied_everywhere() -> None:
    """Rule 5: not when another commit of the same channel is, nor one of its channels."""
    _, table = two_commits()
    verdict = Verdict(OK)
    table.add_gate(1, waiter(1), verdict)
    table.add_gate(2, waiter(2), verdict)

    def passed() -> list[int]:
        return [gate.n for gate in table.take_passed()]

    assert (passed(), table.pending, table.first_pending()) == ([], 2, 1)
    table.ack(0, 2)
    assert passed() == []
    table.ack(1, 1)
    assert (passed(), table.pending, table.first_pending()) == ([1], 1, 2)
    assert [gate.n for gate in table.gates.values()] == [2]
    table.ack(1, 2)
    assert (passed(), table.pending, table.first_pending()) == ([2], 0, None)
    assert passed() == []


def test_client_that_waited_too_long_is_told_nothing_more() -> None:
    """Its answer was "pending"; others wait on."""
    _, table = two_commits()
    late, other = waiter(1), waiter(2)
    table.add_gate(1, late, Verdict(OK))
    table.add_gate(1, other, Verdict(OK))
    table.forget(late)
    table.ack(1, 1)
    assert [gate.waiter for gate in table.take_passed()] == [other]


def test_news_are_what_the_log_does_not_have_yet() -> None:
    """The next record carries them; a timer writes one down only when there are some."""
    bench, table = two_commits()
    table.stepped_ms = 500
    assert table.news() == ()
    assert not table.trim_due(10_000)
    table.ack(1, 1)
    assert table.news() == ((1, 1),)
    table.ack(0, 1)  # it applied a commit that does not wait for it
    assert table.news() == ((1, 1),)
    assert not table.trim_due(1_499)
    assert table.trim_due(1_500)
    bench.step(Trim(table.news()))
    table.refresh()
    assert table.news() == ()
    assert bench.pending() == [(2, (0, 1))]
    table.ack(0, 2)
    table.ack(1, 2)
    assert table.news() == ((0, 2), (1, 2))


def test_push_ends_when_the_log_shows_what_an_earlier_leader_heard() -> None:
    """Then nobody waits for its answer, and it is not repeated."""
    bench, table = two_commits()
    pushed(table, 0)
    bench.step(Trim(((1, 2), (0, 2))))
    table.refresh()
    assert table.pushes == {}
    assert pushed(table, 10_000) == []
    assert table.is_everywhere(1)
    assert table.is_everywhere(2)


def test_message_tells_what_was_decided_to_the_channel_of_its_partition() -> None:
    """In the name of this leadership."""
    bench, table = two_commits()
    message = table.message(2, 1)
    batch = bench.apply_of(2, 1)
    assert (message.channel, message.term) == (CHANNEL, Term(3))
    assert message.target == channel_id(TABLE, 1)
    told = {name: getattr(message, name) for name in batch.__struct_fields__}
    assert told == {name: getattr(batch, name) for name in batch.__struct_fields__}


def test_push_ends_for_the_channel_alone_that_has_applied_the_commit() -> None:
    """As an earlier leader wrote it down; the other one is asked again when its time has come."""
    bench, _ = two_commits()
    bench.step(Trim(((1, 1),)))
    runner = cast(ChannelRunner, leading_runner())
    table = CoordinatedTable(runner, cast(TableStore, Tables(bench.state)), SETTINGS)
    assert pushed(table, 0) == [(0, 2, 0), (1, 2, 1)]
    bench.step(Trim(((0, 2),)))
    table.refresh()
    assert set(table.pushes) == {1}
    assert pushed(table, 199) == []
    assert pushed(table, 200) == [(1, 2, 1)]


def test_channel_that_does_not_answer_holds_up_no_other() -> None:
    """The next commit of the others goes out at once."""
    bench, table = two_commits()
    assert pushed(table, 0) == [(1, 1, 0), (0, 2, 0)]
    bench.begin("x")
    bench.commit(3, "x", parts=(0,))
    table.refresh()
    table.ack(0, 2)
    assert pushed(table, 100) == [(0, 3, 2)]


def test_manifest_of_a_decided_commit_is_read_once_and_kept_while_it_is_pushed() -> None:
    """Reads and memory are bounded by what waits."""
    bench, table = two_commits()
    reads: list[bytes] = []
    get = bench.state.get
    bench.state.get = lambda key: reads.append(key) or get(key)  # type: ignore[method-assign,func-returns-value]
    table.message(1, 1)
    first = len(reads)
    assert first > 0
    table.message(1, 1)
    assert len(reads) == first
    table.refresh()
    table.message(1, 1)
    assert len(reads) == first
    bench.step(Trim(((1, 1),)))
    table.refresh()
    assert table._decided == {}


def test_outbox_is_read_again_only_for_a_commit_that_it_does_not_show() -> None:
    """Thousands of clients may wait for one commit."""
    bench, table = two_commits()
    scans: list[bytes] = []
    scan = bench.state.scan

    def counted(start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        scans.append(start)
        return scan(start, stop, limit)

    bench.state.scan = counted  # type: ignore[method-assign]
    assert not table.is_everywhere(1)
    assert scans == []
    bench.begin("x")
    bench.commit(3, "x", parts=(0,))
    assert not table.is_everywhere(3), "which is decided, and not reported yet"
    assert scans != []
    table.ack(1, 1)
    assert table.news() is table.news()


def test_state_is_current_when_all_that_is_committed_is_applied() -> None:
    """Then what it does not have was never decided."""
    bench, _ = two_commits()
    runner, tables = leading_runner(), Tables(bench.state)
    table = CoordinatedTable(runner, cast(TableStore, tables), SETTINGS)
    told = []
    for applied in (4, 5, 6):
        runner.core.commit_seq, tables.applied = Seq(5), Seq(applied)
        told.append(table.is_current)
    assert told == [False, True, True]


def test_attempt_that_the_log_has_no_room_for_is_refused_unasked() -> None:
    """Each seq that is not applied may have opened one; two are in the state."""
    bench, _ = two_commits()
    runner, tables = leading_runner(), Tables(bench.state)
    table = CoordinatedTable(runner, cast(TableStore, tables), SETTINGS)
    entry = cast(Any, SimpleNamespace(partitions=2))

    def is_asked(attempt: int, *, applied: int) -> bool:
        runner.core.last_seq, tables.applied = Seq(7), Seq(applied)
        request = CommitBatch(1, CHANNEL, "u", 1, attempt, manifest_of((1,)), b"d", 1_000)
        return table.judge(request, entry) is None

    assert [is_asked(attempt, applied=4) for attempt in (2, 5, 6)] == [True, True, False]
    # The thread that applies may be ahead of what this one has heard of the log.
    assert [is_asked(attempt, applied=8) for attempt in (2, 3)] == [True, False]
