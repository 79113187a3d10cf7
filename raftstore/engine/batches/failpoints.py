"""Where the protocol of atomic micro-batches passes failpoints (``raftstore.faults``).

The process and the simulated node call these at the same moments: when a message has arrived, and
when records of a coordinator were applied.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from raftstore.ports.tables import Answers
from raftstore.protocol.batches import APPLIED, OK, OPENED, ApplyBatchReply, CommitBatch
from raftstore.protocol.message import Message
from raftstore.state_machines.batches.txn_records import decode_verdict


def pass_message(message: Message, reach: Callable[[str], object]) -> None:
    """A message of the batch protocol has arrived and nothing was done yet."""
    if isinstance(message, CommitBatch):
        reach("batch.before-decide")
    elif isinstance(message, ApplyBatchReply) and message.reason == APPLIED:
        # The channel has applied the batch; the client that waits for it was not answered.
        reach("batch.before-ack")


def pass_answers(answers: Answers, reach: Callable[[str], object]) -> None:
    """Steps of a coordinator were applied here, on any replica; no client was answered yet.

    Among the answers may be results of users' state machines, which are no verdicts.
    """
    for _, answer in answers:
        try:
            name = decode_verdict(answer).name
        except msgspec.MsgspecError:
            continue
        if name == OPENED:
            reach("batch.after-begin")
        elif name == OK:
            reach("batch.after-decide")
