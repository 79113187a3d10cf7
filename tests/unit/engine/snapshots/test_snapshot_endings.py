"""The receiving side by itself: a change of leader or a close at each stage, bases, progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raftstore.engine.deadlines import NEVER_MS
from raftstore.protocol.node import Hole
from raftstore.protocol.replica_snapshots import AskBase, AskReplicaSnapshot
from raftstore.types import History, Seq, Term, node_name
from tests.unit.engine.receiver_bench import (
    BASE,
    GIVE_UP_MS,
    RETRY_MS,
    Receiving,
)
from tests.unit.engine.snapshots_bench import (
    CHANNEL,
    SETTINGS,
)

HOLE = Hole(Seq(3), Seq(4), Term(1), ())

# --- another leader, or no channel ----------------------------------------------------------------

Reach = Callable[[Receiving], Any]
QUESTIONS: list[tuple[Reach, str]] = [
    (Receiving.looking, "looking"),
    (Receiving.asking, "asking for an offer"),
    (Receiving.asking_base, "asking for an offer"),
]
COPIES: list[tuple[Reach, str]] = [
    (Receiving.copying, "copying"),
    (Receiving.written, "reading back"),
]
STAGES = QUESTIONS + COPIES


@pytest.mark.parametrize(("reach", "stage"), COPIES)
def test_change_of_leader_does_not_disturb_a_table_on_its_way(reach: Reach, stage: str) -> None:
    """All that is applied was committed, so it is right under every leader."""
    bench = Receiving()
    reach(bench)
    bench.receiver.leader_changed(bench.mine, bench.now_ms)
    assert (bench.stage(), bench.told()) == (stage, [])
    for number in range(3):
        bench.chunk(number)
        bench.run_steps()
    assert bench.done()[-1] == "reopen orders/3"


@pytest.mark.parametrize(("reach", "stage"), QUESTIONS)
def test_change_of_leader_ends_what_was_begun(reach: Reach, stage: str) -> None:
    """S6.2: late barriers and answers lead to nothing; it is begun anew."""
    bench = Receiving()
    reach(bench)
    assert bench.stage() == stage
    bench.done()
    bench.receiver.leader_changed(bench.mine, bench.now_ms)
    assert bench.failed() == "the leader changed"
    assert bench.done() == []
    bench.offer()
    bench.offer_base()
    bench.chunk(0)
    assert not bench.told()
    assert not bench.steps
    bench.timer(RETRY_MS)
    assert len(bench.barriers) >= 1


def test_change_of_leader_does_not_end_what_is_at_its_end() -> None:
    """S6.2: all of it is here, and committed."""
    bench = Receiving()
    bench.verified()
    bench.receiver.leader_changed(bench.mine, 2_000)
    assert bench.stage() == "switching"
    bench.durable_operation = 41
    bench.receiver.on_durable(2_000)
    bench.run_steps()
    assert bench.done()[-2:] == ["install orders/3", "reopen orders/3"]


def test_change_of_leader_of_a_channel_that_fetches_nothing_changes_nothing() -> None:
    """Nothing is due for it."""
    bench = Receiving()
    bench.receiver.leader_changed(bench.mine, 2_000)
    assert bench.due_ms == NEVER_MS
    assert not bench.told()


@pytest.mark.parametrize(("reach", "stage"), [*STAGES, (Receiving.verified, "switching")])
def test_closed_channel_ends_what_was_begun_in_silence(reach: Reach, stage: str) -> None:
    """Its table was dropped, or it is opened anew: nothing is due for it any more."""
    bench = Receiving()
    reach(bench)
    assert bench.stage() == stage
    bench.told()
    bench.done()
    bench.receiver.channel_closed(bench.mine)
    assert bench.receiver.progress(CHANNEL, 1_000) == ""
    assert bench.due_ms == NEVER_MS
    while bench.barriers:
        bench.barrier(40)
    bench.durable_operation = 41
    bench.receiver.on_durable(2_000)
    bench.receiver.advance(CHANNEL, 2_000)
    bench.run_steps()
    did = bench.done()
    assert did[-1:] == (["abandon"] if bench.copies else [])
    assert not any(one.startswith(("pause", "complete", "install", "reopen")) for one in did)
    assert not bench.sent
    assert not bench.told()


def test_channel_that_is_closed_during_the_switch_installs_nothing() -> None:
    """Another life of it opens what is there."""
    bench = Receiving()
    bench.verified()
    bench.durable_operation = 41
    bench.receiver.on_durable(2_000)
    bench.done()
    done = bench.on_thread()
    bench.receiver.channel_closed(bench.mine)
    bench.told()
    done(2_000)
    bench.run_steps()
    assert bench.done() == ["complete", "abandon"]
    assert not bench.told()


def test_failure_of_a_copy_that_was_given_up_is_no_matter() -> None:
    """The attempt behind it goes on."""
    bench = Receiving()
    bench.copying()
    bench.copies[0].fails_at = "write"
    bench.chunk(0)
    done = bench.on_thread()
    bench.chunk(1, reason="it is not kept any more")
    bench.told()
    bench.timer(RETRY_MS)
    done(RETRY_MS)
    assert bench.stage() == "looking"
    assert not bench.told()


# --- the disk here ---


@pytest.mark.parametrize("stage", ["looking", "reading back"])
def test_disk_that_does_not_answer_here_is_not_waited_for_for_ever(stage: str) -> None:
    """S0.4: the attempt fails, says so, and what the disk does later leads to nothing."""
    bench = Receiving()
    if stage == "looking":
        bench.looking()
    else:
        bench.written()
    assert bench.stage() == stage
    bench.told()
    bench.timer(GIVE_UP_MS - 1)
    assert not bench.told()
    bench.timer(GIVE_UP_MS)
    assert bench.failed() == "the disk here did not answer for 10000 ms"
    while bench.barriers:
        bench.barrier(40)
    bench.run_steps()
    assert not bench.sent
    assert not any(one.startswith(("pause", "complete")) for one in bench.done())
    assert bench.due_ms == GIVE_UP_MS + SETTINGS.retry_ms


# --- a base ---------------------------------------------------------------------------------------


def test_base_is_taken_behind_what_was_written_and_durable_before_the_channel_is_opened() -> None:
    """S0.5: pause, all that was written durable, the base, the base durable, open anew."""
    bench = Receiving()
    bench.last_operation = 41
    bench.asking_base()
    bench.now_ms = 1_100
    bench.offer_base()
    assert bench.done() == ["pause orders/3"]
    assert bench.stage() == "switching"
    assert bench.due_ms == NEVER_MS
    bench.durable_operation = 41
    bench.is_idle = False
    bench.receiver.on_durable(1_200)
    assert bench.done() == []
    bench.is_idle = True
    bench.receiver.on_durable(1_200)
    assert bench.done() == ["rebase orders/3"]
    assert bench.rebased == [BASE]
    bench.receiver.on_durable(1_300)
    bench.receiver.advance(CHANNEL, 1_300)
    assert bench.done() == []
    bench.durable_operation = 42
    bench.receiver.on_durable(1_400)
    assert bench.done() == ["reopen orders/3"]
    taken = {"channel": "orders/3", "peer": "n2", "seq": 5, "pairs": 0, "table_bytes": 0}
    assert bench.told() == [("base_taken", {**taken, "took_ms": 400})]
    assert not bench.receiver.transfers


def test_base_that_is_durable_at_once_is_opened_at_once() -> None:
    """A log may write through."""
    bench = Receiving()
    bench.durable_operation = 41
    bench.asking_base()
    bench.offer_base()
    assert bench.done() == ["pause orders/3", "rebase orders/3", "reopen orders/3"]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"reason": "it does not lead"}, "it does not lead"),
        ({"seq": Seq(41)}, "it is at seq 41, the table here needs records behind 40"),
        ({"seq": Seq(0)}, "it is at seq 0, the log here begins behind 0 already"),
        ({"folds": b"\xc1"}, "base"),
        ({"seq": Seq(6)}, "base"),
    ],
)
def test_base_that_must_not_be_taken_is_refused(changed: Any, reason: str) -> None:
    """S6.5, S12: the leader has none, it is no use, or it is damaged; nothing stops for it."""
    bench = Receiving()
    bench.asking_base()
    bench.offer_base(**changed)
    failed = bench.failed()
    assert failed == reason if reason != "base" else reason in failed, failed
    assert bench.done() == []


@pytest.mark.parametrize(
    ("held_at_most", "rows_to", "is_taken"),
    [(4, 4, True), (4, 3, False), (9, 5, True), (9, 4, False), (None, 5, True), (None, 4, False)],
)
def test_offer_of_a_base_is_refused_by_a_witness_that_holds_more(
    held_at_most: int | None, rows_to: int, *, is_taken: bool
) -> None:
    """W6: than enough voters with rows are known to have; where that is not known, of all that the
    base stands for (seq 5)."""
    bench = Receiving(rows_to=rows_to)
    bench.mine.has_rows, bench.mine.core.held_at_most = False, held_at_most
    bench.asking_base()
    bench.offer_base()
    if is_taken:
        assert bench.done() == ["pause orders/3", "rebase orders/3"]
    else:
        assert bench.failed().startswith("voters with rows are known to have what is up to seq")
        assert bench.done() == []


@pytest.mark.parametrize(
    ("acknowledged", "is_older", "is_taken"),
    [(5, False, True), (4, False, False), (0, False, False), (0, True, True)],
)
def test_base_is_taken_by_a_witness_whose_leader_knows_that_others_hold_as_much(
    acknowledged: int, *, is_older: bool, is_taken: bool
) -> None:
    """W6: who acknowledged may be down since, and reports nothing; a leader below level 8 has no
    word for it, and gives no other base."""
    bench = Receiving(rows_to=3)
    bench.mine.has_rows, bench.mine.core.held_at_most = False, 9
    bench.asking_base()
    if is_older:
        bench.older.add(bench.source())
    bench.offer_base(rows_seq=Seq(acknowledged))
    if is_taken:
        assert bench.done() == ["pause orders/3", "rebase orders/3"]
    else:
        assert bench.failed().startswith("voters with rows are known to have what is up to seq")


def test_hole_that_nobody_fills_is_covered_by_a_base_that_may_stand_for_it() -> None:
    """S0.3: the log says whether it may; who leads is no matter."""
    bench = Receiving()
    bench.mine.hole, bench.mine.core.lacks_rows = HOLE, False
    bench.hole_stays = "nothing proves that"
    bench.receiver.hole_unfilled(bench.mine, bench.now_ms)
    bench.timer()
    bench.barrier(40)
    [question] = bench.said()
    assert type(question) is AskBase
    assert question.base_max == 40
    bench.offer_base(bench.source())
    assert bench.failed(node_name(bench.asked)) == "nothing proves that"
    bench.timer(bench.due_ms)
    bench.barrier(40)
    [question] = bench.said()
    assert type(question) is AskReplicaSnapshot, "the base may need a newer table"
    changed = {"request_id": question.request_id, "snapshot_id": 0, "reason": "it has none"}
    bench.offer(bench.source(), **changed)
    assert [fields["reason"] for _, fields in bench.told()] == ["it has none"]
    assert bench.due_ms == bench.now_ms + 2 * SETTINGS.retry_ms, "twice as long each time"
    bench.timer(bench.due_ms)
    bench.barrier(40)
    [question] = bench.said()
    bench.hole_stays, bench.durable_operation = None, 41
    bench.offer_base(bench.source(), request_id=question.request_id)
    assert bench.done() == ["pause orders/3", "rebase orders/3", "reopen orders/3"]
    assert [name for name, _ in bench.told()] == ["hole_covered"]


def test_witness_waits_for_a_leader_with_a_hole_that_nobody_fills() -> None:
    """W6: a leader knows which of its records are needed."""
    bench = Receiving()
    bench.mine.hole, bench.mine.core.lacks_rows, bench.mine.has_rows = HOLE, False, False
    bench.receiver.hole_unfilled(bench.mine, bench.now_ms)
    assert bench.due_ms == NEVER_MS


def test_base_that_was_not_asked_for_does_not_help_a_replica_without_rows() -> None:
    """S0.3: it asked for a table; below any base its rows are gone."""
    bench = Receiving()
    bench.asking()
    bench.offer_base()
    assert bench.failed() == "it is at seq 5, the table here needs records behind 0"
    assert bench.done() == []


def test_base_that_contradicts_the_log_here_stops_the_channel() -> None:
    """S13: it cannot be known which of the two is the channel's."""
    bench = Receiving()
    bench.asking_base()
    asked: list[History] = []
    ours = b"o" * 16

    def chain_hash_at(history: History) -> bytes:
        asked.append(history)
        return ours

    bench.mine.core.chain_hash_at = chain_hash_at
    bench.offer_base()
    assert bench.failed() == "its chain hash is another than here"
    assert asked == [BASE.history]
    assert bench.done() == [
        f"broken: the chain hash at seq 5 is {ours.hex()} here, but "
        f"{BASE.chain_hash.hex()} in the base of n2"
    ]


def test_base_that_the_log_here_confirms_is_taken() -> None:
    """S13: the same chain hash."""
    bench = Receiving()
    bench.durable_operation = 99
    bench.asking_base()
    bench.mine.core.chain_hash_at = lambda history: BASE.chain_hash
    bench.offer_base()
    assert bench.done()[-1] == "reopen orders/3"


# --- for people -----------------------------------------------------------------------------------


def test_progress_tells_the_source_the_stage_and_the_rate() -> None:
    """20 of about 90 bytes in 2 s: 10 bytes/s, and 7 s for the other 70."""
    bench = Receiving()
    assert bench.receiver.progress(CHANNEL, 1_000) == ""
    bench.looking()
    assert bench.receiver.progress(CHANNEL, 1_000) == "replica snapshot from n2: looking"
    bench.barrier(40)
    bench.offer()
    copying = "replica snapshot from n2: copying, "
    told = f"{copying}0 of about 90 bytes, 0 bytes/s, 90 s left"
    assert bench.receiver.progress(CHANNEL, 1_000) == told
    bench.chunk(0)
    bench.run_steps()
    told = f"{copying}20 of about 90 bytes, 10 bytes/s, 7 s left"
    assert bench.receiver.progress(CHANNEL, 3_000) == told
    told = f"{copying}20 of about 90 bytes, 20000 bytes/s, 0 s left"
    assert bench.receiver.progress(CHANNEL, 1_000) == told
    bench.receiver.transfers[CHANNEL].table_bytes = 10
    told = f"{copying}20 of about 10 bytes, 10 bytes/s, 0 s left"
    assert bench.receiver.progress(CHANNEL, 3_000) == told
    bench = Receiving()
    bench.asking()
    bench.offer(table_bytes=0)
    told = f"{copying}0 of about 0 bytes, 0 bytes/s, 0 s left"
    assert bench.receiver.progress(CHANNEL, 3_000) == told


def test_base_that_the_leader_does_not_give_is_asked_for_ever_more_rarely() -> None:
    """Twice the pause each time, a session's time at most; what the core learns is acted on at
    once, and a table is asked for as often as before."""
    bench = Receiving(session_ms=500)
    pauses = []
    for attempt in range(6):
        bench.mine.core.lacks_rows, bench.mine.core.trimmed_to = False, Seq(6)
        bench.receiver.needed(bench.mine, bench.now_ms)
        bench.timer()
        bench.barrier(40)
        [question] = bench.said()
        assert isinstance(question, AskBase), attempt
        bench.offer_base(request_id=question.request_id, reason="it is too large")
        pauses.append(bench.due_ms - bench.now_ms)
        bench.now_ms = bench.due_ms
    first = SETTINGS.retry_ms
    assert pauses == [first, 2 * first, 4 * first, 500, 500, 500]
    bench.mine.core.lacks_rows = True
    bench.timer()
    bench.barrier(40)
    [question] = bench.said()
    assert isinstance(question, AskReplicaSnapshot)
    bench.offer(request_id=question.request_id, snapshot_id=0, reason="it is busy")
    assert bench.due_ms - bench.now_ms == first
