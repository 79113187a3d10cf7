"""Steps of users' state machines that their leaders propose: an operator has a command skipped, or
a newer version comes into force.

A command is skipped only where the leader itself stands at it, and no replica may be ahead: what a
replica has applied may have been acknowledged while it led. A leader that stands at a command which
another voter has applied lacks code, or has older one: it gives the leadership to that voter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from raftstore.engine.catalog.machine_codes import Codes, MachineCodes
from raftstore.engine.catalog.table_commands import CatalogView
from raftstore.engine.channel.channel_parts import ChannelParts
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.channel.user_commands import UserCommands
from raftstore.engine.client_answers import ClientAnswers
from raftstore.errors import (
    NotLeaderError,
    Refusal,
    RequestError,
    SchemaError,
    UnavailableError,
    refusal_by_code,
)
from raftstore.protocol.machines import (
    MachineCode,
    SkipCommand,
    Step,
    encode_limits,
    encode_step,
)
from raftstore.protocol.message import Done, failed
from raftstore.protocol.node import ChannelPosition
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.types import ChannelId, NodeId, RecordKind, Role, Seq, node_name

ASK_AGAIN_MS: Final = 5_000
"""Between two looks of a leader whose code is newer than the version in force."""
REPORTS_MISSED_MAX: Final = 3
"""A position counts if its node has reported it within so many intervals of reports."""


class Reports(Protocol):
    """The reports of other nodes (``LagReports``)."""

    def hosted_by(self, node: NodeId, since_ms: int) -> Mapping[ChannelId, ChannelPosition]:
        """The positions in a node's newest report; none if it came before that."""


@dataclass(frozen=True, slots=True)
class StepParts:
    """The parts of a node that the steps of machines work with."""

    view: CatalogView
    channels: Mapping[ChannelId, ChannelRunner]
    parts: ChannelParts[ChannelRunner]
    answers: ClientAnswers
    codes: MachineCodes
    reports: Reports
    newest_limits: Callable[[], int]
    """The newest set of limits of commands that every node knows."""


class MachineSteps:
    """Proposes steps in the channels that one node leads."""

    def __init__(self, parts: StepParts) -> None:
        self._of = parts
        self._asked_ms: dict[ChannelId, int] = {}
        """When a leader looked last whether its version may come into force."""

    # --- skipped commands -------------------------------------------------------------------------

    def on_skip(self, client: int, request: SkipCommand, now_ms: int) -> None:
        """An operator has the command skipped at which the channel's machine stopped."""
        runner = self._of.channels.get(request.channel)
        if runner is None or runner.elector.role is not Role.LEADER:
            hint = None if runner is None else runner.elector.leader
            text = "this node does not lead the channel"
            refused = failed(request.request_id, NotLeaderError, text, leader_hint=hint)
            self._of.answers.answer(client, refused)
            return
        problem = skip_problem(runner, request.seq, self._fresh(runner, now_ms), self._age_max_ms())
        if problem is not None:
            self._answer(client, request, problem)
            return

        def done(answer: PubAck | PubReject, at_ms: int) -> None:
            del at_ms
            if isinstance(answer, PubReject):
                error, text = refusal_by_code(answer.code, answer.message)
                self._answer(client, request, Refusal(error, text))
            else:
                self._of.answers.answer(client, Done(request.request_id))

        payload = encode_step(Step.SKIP, request.seq)
        self._of.view.proposals.propose(runner, payload, done, now_ms, kind=RecordKind.MACHINE_STEP)

    def _answer(self, client: int, request: SkipCommand, refusal: Refusal) -> None:
        error: type[RequestError] = refusal.error
        self._of.answers.answer(client, failed(request.request_id, error, refusal.text))

    # --- what the other replicas report -----------------------------------------------------------

    def _age_max_ms(self) -> int:
        return REPORTS_MISSED_MAX * self._of.parts.settings.lag.report_interval_ms

    def _fresh(self, runner: ChannelRunner, now_ms: int) -> dict[NodeId, ChannelPosition]:
        """Positions of the other replicas that were reported a moment ago: what a node said before
        it was restarted with other code says nothing of what it has applied since."""
        since_ms, channel = now_ms - self._age_max_ms(), runner.channel
        found: dict[NodeId, ChannelPosition] = {}
        for node in runner.core.config().members:
            position = self._of.reports.hosted_by(node, since_ms).get(channel)
            if node != runner.me and position is not None:
                found[node] = position
        return found

    # --- versions and leaders ---------------------------------------------------------------------

    def look(self, now_ms: int) -> None:
        """Where this node leads: whether all replicas have a newer version than that in force, and
        whether another voter goes on where the machine here has stopped."""
        for channel, runner in self._of.channels.items():
            commands = runner.commands
            if commands is None:
                continue
            commands.watch(now_ms)
            if runner.elector.role is not Role.LEADER or not runner.core.leader_is_ready:
                self._asked_ms.pop(channel, None)
                continue
            asked_ms = self._asked_ms.get(channel)
            if asked_ms is not None and now_ms < asked_ms + ASK_AGAIN_MS:
                continue
            if commands.stop is None:
                self._asked_ms[channel] = now_ms
                self._look_at(runner, commands, now_ms)
                continue
            able = able_voter(runner, commands.stop.seq, self._fresh(runner, now_ms))
            if able is not None:
                self._asked_ms[channel] = now_ms
                text = (
                    f"its state machine stopped here at seq {commands.stop.seq}, which "
                    f"{node_name(able)} has applied"
                )
                runner.request_hand_over(able, text, now_ms)

    def _look_at(self, runner: ChannelRunner, commands: UserCommands, now_ms: int) -> None:
        table = self._of.view.catalog.table_of(runner.channel)
        if table is None:
            return
        if not commands.is_whole:
            return
        get = partial(self._of.parts.tables.state_get, runner.channel)
        if commands.machine.limits_in_force(get) < (limits := self._of.newest_limits()):
            self._raise_limits(runner, limits, now_ms)
        in_force = commands.machine.version_in_force(get)
        self._of.codes.find(table.machine, partial(self._compare, runner, in_force), now_ms)

    def _raise_limits(self, runner: ChannelRunner, limits: int, now_ms: int) -> None:
        """From one place of the log on a command may do, and leaves, what these say."""

        def done(answer: PubAck | PubReject, at_ms: int) -> None:
            del answer, at_ms  # where it came to nothing it is proposed with a later look

        self._of.view.proposals.propose(
            runner, encode_limits(limits), done, now_ms, kind=RecordKind.MACHINE_LIMITS
        )

    def _compare(self, runner: ChannelRunner, in_force: int, own: MachineCode, now_ms: int) -> None:
        """This node's code is known: if it is newer than what is in force, ask the others."""
        if own.problem or own.version <= in_force:
            return
        if self._of.channels.get(runner.channel) is not runner:
            return  # it was dropped, or opened anew, while the code was imported
        config = runner.core.config()
        # S0.8: a witness has no rows, and so no machine.
        hosts = [node for node in config.members if not config.is_witness(node)]

        def decide(codes: Codes, at_ms: int) -> None:
            version = next_version(in_force, hosts, codes)
            if version is not None and runner.elector.role is Role.LEADER:
                self._propose(runner, version, at_ms)

        self._of.codes.ask(own.machine, hosts, decide, now_ms)

    def _propose(self, runner: ChannelRunner, version: int, now_ms: int) -> None:
        def done(answer: PubAck | PubReject, at_ms: int) -> None:
            del at_ms
            if isinstance(answer, PubAck):
                self._of.parts.tell("machine_version", channel=runner.name, version=version)

        payload = encode_step(Step.VERSION, version)
        self._of.view.proposals.propose(runner, payload, done, now_ms, kind=RecordKind.MACHINE_STEP)


def able_voter(
    runner: ChannelRunner, seq: Seq, positions: Mapping[NodeId, ChannelPosition]
) -> NodeId | None:
    """A voter that has applied the command at ``seq``; None: nobody is known to be able to, as
    where the command itself is to blame."""
    config = runner.core.config()
    able = [
        node
        for node in config.voters
        if node in positions
        and positions[node].applied_seq >= seq
        and not config.is_witness(node)
        and runner.parts.is_up(node)
    ]
    return max(able, key=lambda node: (positions[node].applied_seq, node), default=None)


def skip_problem(
    runner: ChannelRunner,
    seq: Seq,
    positions: Mapping[NodeId, ChannelPosition],
    age_max_ms: int,
) -> Refusal | None:
    """Why the leader does not make the command at ``seq`` nothing; None: it may. ``positions``:
    those that were reported within ``age_max_ms``."""
    stop = None if runner.commands is None else runner.commands.stop
    if stop is None or stop.seq != seq:
        where = "goes on" if stop is None else f"stopped at seq {stop.seq}"
        text = f"{runner.name}: the state machine {where}, so seq {seq} is not skipped; see"
        return Refusal(SchemaError, f"{text} `raftstore machine info`")
    config = runner.core.config()
    for node in config.members:
        if node == runner.me or config.is_witness(node):
            continue
        position = positions.get(node)
        if position is None or position.commit_seq < seq:
            text = (
                f"{runner.name}: {node_name(node)} did not report within {age_max_ms} ms whether "
                f"it can apply seq {seq}; retry when it is up, or remove that replica"
            )
            return Refusal(UnavailableError, text)
        if position.applied_seq >= seq:
            text = (
                f"{runner.name}: {node_name(node)} has applied seq {seq}, which may have been "
                "acknowledged; install its code on the other nodes and restart them"
            )
            return Refusal(SchemaError, text)
    return None


def next_version(in_force: int, hosts: list[NodeId], codes: Codes) -> int | None:
    """The version that may come into force; None: the one in force stays.

    All hosts have said what they have: one that is away may have older code.
    """
    known = [codes[node] for node in hosts if node in codes]
    if len(known) < len(hosts) or any(code.problem for code in known):
        return None
    version = min(code.version for code in known)
    # Each has to apply what is ahead of the step, too.
    if version <= in_force or any(code.oldest_version > in_force for code in known):
        return None
    return version
