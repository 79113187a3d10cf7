"""A call of a simulated client that takes several questions, each answered before the next."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final

import msgspec

from jepsen_like.calls import Answer
from raftstore.client.writes.kinds import Write
from raftstore.errors import ERRORS_BY_CODE, RequestError
from raftstore.protocol.message import Failed, Message, Request
from raftstore.protocol.publish import PubAck
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_publisher import OnEnd
from raftstore.types import ChannelId, NodeId, Outcome

ATTEMPT_MS: Final = 400.0
PAUSE_MS: Final = 30.0
FIRST_NUMBER: Final = 1_000_000_000
"""Above the numbers of a client's other requests, whose late answers are none of ours."""
PINNED_TRIES: Final = 3
"""A node that keeps a state and does not answer may be gone with it."""

ANY: Final = NodeId("")
"""The address of any replica of the channel."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request, a record to be published, or a message without an answer."""

    channel: ChannelId
    message: Write | Request
    to: NodeId | None = None
    """None: the leader of the channel; `ANY`: any replica."""
    is_answered: bool = True


@dataclass(frozen=True, slots=True)
class Heard:
    """An answer, and who gave it."""

    message: Message
    sender: NodeId


class RefusedError(Exception):
    """A question was refused for good, or not answered in time."""

    def __init__(self, code: str, outcome: Outcome) -> None:
        super().__init__(code)
        self.code = code
        self.outcome = outcome


Script = Generator[Question, Heard, Answer]
"""Raises `RefusedError` when what it needs was refused."""


class SimTalk:
    """Asks the questions of one script after the other until it returns its answer."""

    def __init__(
        self,
        cluster: SimCluster,
        name: str,
        publish: Callable[[Write, float, OnEnd], object],
    ) -> None:
        """``publish`` writes a record, within so many ms."""
        self._cluster = cluster
        self._publish = publish
        self._name = name
        self._script: Script | None = None
        self._done: Callable[[Answer], None] | None = None
        self._deadline_ms = 0.0
        self._open: Question | None = None
        self._number = FIRST_NUMBER
        """Of the request that is open; others are void."""
        self._tries = 0

    def begin(self, script: Script, done: Callable[[Answer], None], deadline_ms: float) -> None:
        """Play the script; ``done`` is called with its answer, within the deadline."""
        self._script, self._done, self._deadline_ms = script, done, deadline_ms
        self._step(None)

    def stop(self) -> None:
        """The process is gone, and nobody waits any more."""
        self._script = self._done = self._open = None

    def on_message(self, sender: NodeId, message: Message) -> None:
        """Take an answer to a request."""
        if self._open is None or getattr(message, "request_id", None) != self._number:
            return
        if isinstance(message, Failed):
            self._refused(message.code)
        else:
            self._step(Heard(message, sender))

    # --- inside -----------------------------------------------------------------------------------

    def _step(self, heard: Heard | RefusedError | None) -> None:
        script = self._script
        assert script is not None
        while True:
            self._open, self._tries = None, 0
            try:
                if isinstance(heard, RefusedError):
                    question = script.throw(heard)
                else:
                    question = next(script) if heard is None else script.send(heard)
            except StopIteration as reported:
                self._end(reported.value)
                return
            except RefusedError as error:
                self._end(Answer(error.outcome, error=error.code))
                return
            if question.is_answered:
                break
            assert question.to is not None
            assert isinstance(question.message, Request)
            self._cluster.network.send(self._name, question.to, question.message)
            heard = None
        self._open = question
        self._send(question)

    def _end(self, answer: Answer) -> None:
        done, self._done, self._script = self._done, None, None
        assert done is not None
        done(answer)

    def _send(self, question: Question) -> None:
        cluster = self._cluster
        is_gone = question.to not in (None, ANY) and self._tries >= PINNED_TRIES
        if is_gone or cluster.scheduler.now_ms >= self._deadline_ms:
            self._step(RefusedError("timeout", Outcome.UNKNOWN))
            return
        self._number += 1
        if isinstance(question.message, Write):
            left_ms = self._deadline_ms - cluster.scheduler.now_ms
            self._publish(question.message, left_ms, self._published)
            return
        pause = ATTEMPT_MS if self._was_sent(question) else PAUSE_MS
        cluster.scheduler.after(pause, self._again, question, self._number)

    def _was_sent(self, question: Question) -> bool:
        cluster, message, to = self._cluster, question.message, question.to
        if to is None:
            found = cluster.believed_leader(question.channel)
            if found is None:
                return False
            to = found[0]
        elif to == ANY:
            to = cluster.rng.choice(cluster.replicas(question.channel))
        assert isinstance(message, Request)
        request = msgspec.structs.replace(message, request_id=self._number)
        cluster.network.send(self._name, to, request)
        self._tries += 1
        return True

    def _published(self, result: PubAck | RequestError) -> None:
        if isinstance(result, PubAck):
            self._step(Heard(result, ANY))
        else:
            self._step(RefusedError(result.code, result.outcome))

    def _again(self, question: Question, number: int) -> None:
        if question is self._open and number == self._number:
            self._send(question)

    def _refused(self, code: str) -> None:
        error = ERRORS_BY_CODE[code]
        question = self._open
        assert question is not None
        # What is kept no longer does not come back: only a new snapshot helps.
        is_final = not error.retriable or code == "snapshot_expired"
        if not is_final and question.to in (None, ANY):
            self._number += 1
            self._cluster.scheduler.after(PAUSE_MS, self._again, question, self._number)
        else:
            self._step(RefusedError(code, error.outcome))
