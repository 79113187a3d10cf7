"""Places of the batch protocol where a process can be made to end: each is passed at its moment."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.engine.batches.failpoints import pass_answers, pass_message
from raftstore.protocol.batches import (
    ALREADY,
    APPEND,
    APPLIED,
    OK,
    OPENED,
    ApplyBatchReply,
    CommitBatch,
    Manifest,
    ResolveWriter,
)
from raftstore.state_machines.batches.txn_records import Verdict, encode_verdict
from raftstore.state_machines.machine_state import CommandEnd
from raftstore.state_machines.state_keys import packed
from raftstore.types import Seq, Term, channel_id

CHANNEL, TARGET = (channel_id(b"t" * 16, number) for number in range(2))


def passed(message: Any) -> list[str]:
    """Places that a message passes when it arrives."""
    places: list[str] = []
    pass_message(message, places.append)
    return places


@pytest.mark.parametrize(
    ("reason", "places"), [(APPLIED, ["batch.before-ack"]), ("busy", []), ("not_yet", [])]
)
def test_channel_that_applied_a_batch_says_so_before_the_client_is_told(
    reason: str, places: list[str]
) -> None:
    """S11: a coordinator that ends here leaves a batch that is applied and not acknowledged."""
    assert passed(ApplyBatchReply(CHANNEL, Term(1), TARGET, 3, 3, reason)) == places


def test_commit_is_passed_before_anything_is_decided() -> None:
    """S11: a coordinator that ends here has decided nothing; no other request comes by."""
    manifest = Manifest(APPEND, (), (), 0)
    commit = CommitBatch(1, CHANNEL, "orders", 4, 1, manifest, b"d" * 16, 100)
    assert passed(commit) == ["batch.before-decide"]
    assert passed(ResolveWriter(CHANNEL, Term(1), TARGET, ("orders",))) == []


def test_decisions_are_passed_when_they_were_applied_and_before_a_client_is_told() -> None:
    """S11: in the order of the records; a step that changed nothing is no decision."""
    places: list[str] = []
    verdicts = [OPENED, ALREADY, OK, "done"]
    pass_answers(
        tuple((Seq(number), encode_verdict(Verdict(name))) for number, name in enumerate(verdicts)),
        places.append,
    )
    assert places == ["batch.after-begin", "batch.after-decide"]


def test_results_of_state_machines_are_no_decisions() -> None:
    """A node with faults on purpose goes on when it applied a command of a channel set."""
    places: list[str] = []
    results = [CommandEnd(b"7"), CommandEnd(is_rejected=True, reason=OK)]
    answers = [packed(result) for result in results] + [encode_verdict(Verdict(OK))]
    pass_answers(tuple((Seq(number), each) for number, each in enumerate(answers)), places.append)
    assert places == ["batch.after-decide"]
