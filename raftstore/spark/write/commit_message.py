"""Messages of an atomic write's tasks to the driver, and their sum."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from raftstore.client.batches.batch_writes import BatchTicket
from raftstore.client.batches.stager import StagedParts
from raftstore.errors import OperationInDoubtError
from raftstore.spark.identity import BatchIdentity
from raftstore.spark.write.tasks import Written


@dataclass
class TaskMessage(WriterCommitMessage):
    """From one task whose every chunk a quorum has."""

    identity: BatchIdentity
    ticket: BatchTicket | None
    """Under which attempt it staged; None: it had no rows and asked nobody."""
    staged: StagedParts
    written: Written


@dataclass(frozen=True, slots=True)
class Settled:
    """All tasks of a write together."""

    identity: BatchIdentity | None
    ticket: BatchTicket | None
    staged: tuple[StagedParts, ...]
    written: Written
    tasks: int
    slowest_s: float


def settled(messages: Iterable[WriterCommitMessage | None]) -> Settled:
    """Add up the messages; raise when they are not of one attempt.

    The attempt is the one the messages name, never one that the driver's own instance might begin:
    that is another instance, and its attempt would close theirs.
    """
    done: list[TaskMessage] = []
    for message in messages:
        if not isinstance(message, TaskMessage):
            # Its rows, if it had any, would be missing from a batch that is reported as written.
            raise OperationInDoubtError(
                f"[RAFTSTORE_MESSAGE_MISSING] Spark commits without the message of a task (it gave "
                f"{message!r:.60}): nothing is committed; start the write again"
            )
        done.append(message)
    tickets = [message.ticket for message in done if message.ticket is not None]
    attempts = sorted({(ticket.attempt, ticket.verdict) for ticket in tickets})
    if len(attempts) > 1:
        said = ", ".join(f"{attempt} ({verdict})" for attempt, verdict in attempts)
        raise OperationInDoubtError(
            f"[RAFTSTORE_ATTEMPTS_MIXED] the tasks of batch {tickets[0].batch_id} wrote under "
            f"several attempts, {said}: another driver writes as {tickets[0].writer!r}, too, or "
            "the first was closed since no task had begun for stagingTtl; stop the other driver, "
            "or give more stagingTtl (nothing that these tasks staged is visible)"
        )
    return Settled(
        identity=done[0].identity if done else None,
        ticket=tickets[0] if tickets else None,
        staged=tuple(message.staged for message in done if message.staged.parts),
        written=sum((message.written for message in done), Written()),
        tasks=len(done),
        slowest_s=max((message.written.seconds for message in done), default=0.0),
    )
