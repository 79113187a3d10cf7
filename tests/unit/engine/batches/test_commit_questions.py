"""When each part of a commit is asked for, and what its answers make of the commit."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

from raftstore.config import BatchSettings
from raftstore.engine.batches.commit_checks import ASK_MS_MAX, CommitChecks
from raftstore.protocol.batches import AskStaged, ChannelPart, CommitBatch, Manifest
from raftstore.types import Term, channel_id

TABLE = b"t" * 16
WINNERS = ((0, 5), (1, 6))
PUSH_MS = BatchSettings().push_ms


def commit(*parts: int, empty: tuple[int, ...] = ()) -> CommitBatch:
    """A commit of chunks in these partitions, which only empties some others."""
    listed = tuple(
        ChannelPart(number, *((0, 0, 0, 0) if number in empty else (2, 30, 400, 5)))
        for number in sorted((*parts, *empty))
    )
    manifest = Manifest(1, WINNERS, listed, 30 * len(parts))
    return CommitBatch(1, channel_id(TABLE, 0), "writer", 12, 34, manifest, b"digest", 1_000)


def bench() -> CommitChecks:
    """The questions of a table's first channel, led in term 8."""
    runner = SimpleNamespace(channel=channel_id(TABLE, 0), elector=SimpleNamespace(term=Term(8)))
    return CommitChecks(cast("Any", runner), BatchSettings())


def asked(checks: CommitChecks, now_ms: int) -> list[tuple[int, int]]:
    """Token and partition of what is asked now."""
    return [(each.token, each.part.partition) for each in checks.next_questions(now_ms)]


def test_question_names_the_attempt_and_the_part() -> None:
    """Its channel compares with what is staged there."""
    checks, request = bench(), commit(3)
    assert checks.add(70, request, 100)
    [question] = checks.next_questions(100)
    assert question == AskStaged(
        channel=channel_id(TABLE, 0),
        term=Term(8),
        target=channel_id(TABLE, 3),
        token=70,
        writer="writer",
        attempt=34,
        winners=WINNERS,
        part=request.manifest.parts[0],
    )
    assert checks.request_of(70) == request


def test_parts_without_chunks_are_not_asked_for() -> None:
    """They only say that the channel is emptied; without any other there is nothing to ask."""
    checks = bench()
    assert checks.add(70, commit(1, empty=(0, 2)), 100)
    assert asked(checks, 100) == [(70, 1)]
    assert not checks.add(71, commit(empty=(0, 1)), 100)
    assert asked(checks, 100_000) == [(70, 1)]
    assert not checks.is_open(71, 0)


def test_part_is_asked_for_again_after_pauses_that_double_up_to_5_s() -> None:
    """Each part has its own; one that is not due keeps no other back."""
    checks = bench()
    checks.add(70, commit(0), 0)
    moments = []
    for now_ms in range(0, 20_000, 100):
        if asked(checks, now_ms):
            moments.append(now_ms)
            due_ms = checks.next_deadline_ms()
            assert due_ms is not None
            assert asked(checks, due_ms - 1) == []
    pauses = [after - before for before, after in pairwise(moments)]
    assert moments[0] == 0
    assert pauses == [PUSH_MS, 400, 800, 1_600, 3_200, ASK_MS_MAX, ASK_MS_MAX]
    checks.add(71, commit(1, 2), 17_000)
    assert asked(checks, 17_000) == [(71, 1), (71, 2)]


def test_deadline_is_the_next_question() -> None:
    """Of all commits; without one there is none."""
    checks = bench()
    assert checks.next_deadline_ms() is None
    checks.add(70, commit(0), 500)
    checks.add(71, commit(1), 300)
    assert checks.next_deadline_ms() == 300
    assert asked(checks, 300) == [(71, 1)]
    assert checks.next_deadline_ms() == 300 + PUSH_MS
    checks.forget(71)
    assert checks.next_deadline_ms() == 500


def test_commit_goes_on_with_the_last_yes() -> None:
    """A channel that confirmed the commit is not asked again; the last confirmation yields the
    commit.
    """
    checks, request = bench(), commit(0, 1)
    checks.add(70, request, 0)
    assert checks.is_open(70, 0)
    assert checks.confirm(70, 0) is None
    assert (checks.is_open(70, 0), checks.is_open(70, 1)) == (False, True)
    assert asked(checks, 0) == [(70, 1)]
    assert checks.confirm(70, 1) == request
    assert not checks.is_open(70, 1)
    assert checks.next_deadline_ms() is None


def test_answers_that_come_while_questions_are_sent_are_heeded() -> None:
    """The channel of a part may be led here, and say yes, or the commit end, between two."""
    checks = bench()
    checks.add(70, commit(0, 1, 2), 0)
    questions = checks.next_questions(0)
    assert next(questions).part.partition == 0
    checks.confirm(70, 1)
    assert [question.part.partition for question in questions] == [2]
    questions = checks.next_questions(PUSH_MS)
    next(questions)
    checks.forget(70)
    assert list(questions) == []


def test_replica_that_names_a_leader_sends_the_question_there_once_each_time() -> None:
    """Two that name each other must not keep it going round."""
    checks = bench()
    checks.add(70, commit(0, 1), 0)
    sent = list(checks.next_questions(0))
    assert checks.again(70, 0) == sent[0]
    assert checks.again(70, 0) is None
    assert checks.again(70, 1) == sent[1]
    assert asked(checks, PUSH_MS) == [(70, 0), (70, 1)]
    assert checks.again(70, 0) == sent[0]
    assert checks.again(70, 0) is None


def test_no_of_a_channel_tells_what_is_listed_and_what_is_staged() -> None:
    """Nothing was decided, so the client may stage the rest and commit again."""
    checks = bench()
    checks.add(70, commit(4), 0)
    verdict = checks.refusal(70, 4, 1, 17)
    assert (verdict.name, verdict.code) == ("refused", "batch_incomplete")
    for said in ("attempt 34", "'writer'", "batch 12", "2 chunks with 30 rows in partition 4"):
        assert said in verdict.message
    assert "1 with 17 rows" in verdict.message
