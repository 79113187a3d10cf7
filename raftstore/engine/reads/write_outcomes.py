"""Answers what became of writes, asked by their GUIDs of the leader (N4).

A question waits for a ReadIndex round that starts after it came, then for the commit of the write
if it is in the log and not committed; what is not committed at the deadline is unknown, for it may
still be. ``raftstore.core.write_outcome`` says why "not applied" is final.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from msgspec.structs import asdict, replace

from raftstore.config import ReadSettings
from raftstore.core.write_outcome import FENCED_MAX, WriteOutcome, WriteOutcomeFound
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.clock import Clock
from raftstore.engine.reads.read_rules import closing_refusal
from raftstore.engine.shares import Shares, Waits
from raftstore.errors import (
    NoLeaderError,
    NotLeaderError,
    OverloadedError,
    QueryError,
    Refusal,
    RequestError,
    SchemaError,
    UnknownChannelError,
)
from raftstore.protocol.message import failed
from raftstore.protocol.publish import WriteFate, WriteFateAnswer
from raftstore.protocol.reads import Served
from raftstore.protocol.shared_commands import CommandFate, CommandFateAnswer
from raftstore.types import (
    GUID_BYTES,
    Level,
    NodeId,
    Role,
    Seq,
    Term,
    guid_counter,
    guid_text,
    node_name,
)

REASONS: Final = {
    WriteOutcome.COMMITTED: "",
    WriteOutcome.NOT_APPLIED: "the leader has no such write, and refuses its guid from now on",
    WriteOutcome.UNKNOWN: "the write is too old, or its session wrote too much since; read the row",
}
PENDING_REASON: Final = "the write is in the log and not committed yet; ask again"


class WriteOutcomeRules(Protocol):
    """The reader's rules for all requests."""

    def serving_refusal(self, runner: ChannelRunner) -> Refusal | None:
        """Why the channel serves nothing here now."""

    def served_at(self, level: str, runner: ChannelRunner) -> Served:
        """The facts that an answer states of the newest state here."""


@dataclass(slots=True)
class _Question:
    """One question without an answer."""

    client: int
    request: WriteFate
    runner: ChannelRunner
    term: Term
    """Of the leadership that was asked, and that alone answers."""
    is_confirmed: bool = False
    confirmation: int = 0
    """The question whether it still leads (S7.1), by the channel's token."""


class WriteOutcomes:
    """The questions of one node."""

    def __init__(  # noqa: PLR0917 - each is one thing that it works with
        self,
        me: NodeId,
        clock: Clock,
        answers: ClientAnswers,
        rules: WriteOutcomeRules,
        settings: ReadSettings,
        held: Shares[int],
        tokens: Iterator[int],
    ) -> None:
        """``held``: what clients have waiting, reads and questions; ``tokens`` number both."""
        self._me = me
        self._clock = clock
        self._answers = answers
        self._rules = rules
        self._settings = settings
        self._tokens = tokens
        self.open: Waits[_Question] = Waits(held)
        """Questions without an answer, by token."""

    def __len__(self) -> int:
        """Questions without an answer."""
        return len(self.open)

    def on_request(
        self, client: int, request: WriteFate, runner: ChannelRunner | None, now_ms: int
    ) -> None:
        """A client's question."""
        refusal = self._refusal(client, request, runner)
        if refusal is not None:
            leader = None if runner is None else runner.elector.leader
            self._fail(client, request, *refusal, leader=leader)
            return
        assert runner is not None
        token = next(self._tokens)
        deadline_ms = now_ms + max(1, request.timeout_ms)
        question = _Question(client, request, runner, runner.elector.term)
        self.open.add(client, token, question, deadline_ms)
        question.confirmation = runner.request_read(
            partial(self.on_confirmed, token), partial(self.on_refused, token), now_ms
        )

    def on_confirmed(self, token: int, _: Seq) -> None:
        """S7.1: a round that started after the question came found that this node leads."""
        question = self.open.get(token)
        if question is not None:
            question.is_confirmed = True
            self._try_answer(token, question)

    def on_refused(self, token: int, error: type[RequestError], message: str) -> None:
        """The leadership was lost, or nobody confirmed it."""
        question = self.open.pop(token)
        if question is not None:
            leader = question.runner.elector.leader
            self._fail(question.client, question.request, error, message, leader=leader)

    def on_applied(self, runner: ChannelRunner) -> None:
        """Look again: applied records are committed, and a write asked about may be one."""
        if not self.open.waits:
            return
        for token in self.open:
            question = self.open.get(token)
            if question is not None and question.runner is runner and question.is_confirmed:
                self._try_answer(token, question)

    def on_client_gone(self, client: int) -> None:
        """Forget everything that the client waited for."""
        self._drop_unconfirmed(question for _, question in self.open.pop_all_of(client))

    def give_up(self, token: int, text: str) -> None:
        """Others need its place."""
        question = self.open.get(token)
        if question is not None:
            self._drop_unconfirmed([question])
            self.on_refused(token, OverloadedError, text)

    def _drop_unconfirmed(self, over: Iterable[_Question]) -> None:
        """The core need not confirm what nobody waits for: its places are for others."""
        tokens: dict[ChannelRunner, set[int]] = {}
        for question in over:
            if not question.is_confirmed:
                tokens.setdefault(question.runner, set()).add(question.confirmation)
        for runner, dropped in tokens.items():
            runner.drop_reads(frozenset(dropped), self._clock.now_ms)

    def on_timer(self, now_ms: int) -> None:
        """Answer what has waited long enough."""
        late: list[_Question] = []
        for token in self.open.due(now_ms):
            question = self.open.get(token)
            assert question is not None
            if question.is_confirmed:
                self._try_answer(token, question, is_last=True)
                continue
            late.append(question)
            text = (
                f"channel {question.runner.name}: no quorum confirmed the leader, or what is "
                f"committed is not applied there, within {question.request.timeout_ms} ms"
            )
            self.on_refused(token, QueryError, text)
        self._drop_unconfirmed(late)

    def on_channel_closed(self, runner: ChannelRunner) -> None:
        """The table was dropped, or the channel is opened anew."""
        refusal = closing_refusal(runner)
        for token in self.open:
            question = self.open.get(token)
            if question is not None and question.runner is runner:
                self.on_refused(token, *refusal)

    def _refusal(
        self, client: int, request: WriteFate, runner: ChannelRunner | None
    ) -> Refusal | None:
        if runner is None:
            return Refusal(UnknownChannelError, "this node does not host the channel")
        if len(request.guid) != GUID_BYTES or guid_counter(request.guid) < 1:
            guid = guid_text(request.channel, request.guid)
            text = f"guid {guid} needs {GUID_BYTES} bytes with a counter from 1 at its end"
            return Refusal(SchemaError, text)
        refusal = self._rules.serving_refusal(runner)
        if refusal is not None:
            return refusal
        elector = runner.elector
        if elector.role is not Role.LEADER:
            if elector.leader is None:
                return Refusal(
                    NoLeaderError, f"channel {runner.name} has no leader known to this node; retry"
                )
            leader = node_name(elector.leader)
            return Refusal(NotLeaderError, f"channel {runner.name} is led by {leader}, ask there")
        full = self.open.shares.refusal(client, self._settings.waiting_reads_max)
        return None if full is None else Refusal(OverloadedError, full)

    def _try_answer(self, token: int, question: _Question, *, is_last: bool = False) -> None:
        runner, request = question.runner, question.request
        # S7.1: a round of an earlier leadership confirms nothing of this one, whose log may lack
        # a write that others still hold.
        is_of_term = runner.elector.term == question.term
        found = runner.core.tell_write_outcome(request.guid) if is_of_term else None
        if found is None:
            text = f"the leadership of {runner.name} ended; ask the new leader"
            self.on_refused(token, NotLeaderError, text)
        elif found.fate is WriteOutcome.OVERLOADED:
            text = f"the leader refuses {FENCED_MAX} guids in this term, its limit; read the row"
            self.on_refused(token, OverloadedError, text)
        elif found.fate is not WriteOutcome.PENDING:
            self._answer(token, question, found, REASONS[found.fate])
        elif is_last:
            # S4.1: it is in the log of this leader and may still commit.
            unknown = WriteOutcomeFound(WriteOutcome.UNKNOWN)
            self._answer(token, question, unknown, PENDING_REASON)

    def _answer(
        self, token: int, question: _Question, found: WriteOutcomeFound, reason: str
    ) -> None:
        self.open.pop(token)
        answer = WriteFateAnswer(
            request_id=question.request.request_id,
            fate=found.fate.value,
            seq=Seq(found.seq),
            term=found.term,
            condition=found.condition,
            reason=reason,
            served=self._rules.served_at(Level.LINEARIZABLE.value, question.runner),
        )
        if isinstance(question.request, CommandFate):
            answer = _of_command(answer, question.request, question.runner, found.base_seq)
        self._answers.answer(question.client, answer)

    def _fail(
        self,
        client: int,
        request: WriteFate,
        error: type[RequestError],
        message: str,
        *,
        leader: NodeId | None,
    ) -> None:
        hosts = {node_name(self._me): message}
        answer = failed(request.request_id, error, message, leader_hint=leader, hosts=hosts)
        self._answers.answer(client, answer)


def _of_command(
    answer: WriteFateAnswer, request: CommandFate, runner: ChannelRunner, base_seq: Seq
) -> CommandFateAnswer:
    """The same of one command of the record."""
    end = None
    if answer.fate == WriteOutcome.COMMITTED.value and runner.commands is not None:
        seq = Seq(base_seq + request.place - 1)
        if base_seq <= seq <= answer.seq:
            end = runner.commands.kept_end(seq)
            answer = replace(answer, seq=seq)
        else:
            count = answer.seq - base_seq + 1
            reason = f"the record has {count} commands, and none at place {request.place}"
            answer = replace(answer, fate=WriteOutcome.UNKNOWN.value, reason=reason)
    return CommandFateAnswer(**asdict(answer), end=end)
