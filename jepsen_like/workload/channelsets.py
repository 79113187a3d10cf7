"""Users' state machines, several in one cluster: each a channel set, judged by its own class."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypedDict

from jepsen_like.calls import Action, Answer, Call, details_of
from jepsen_like.checker.channelsets import check_channelset, check_history, take_answer
from jepsen_like.checker.fates import check_fates
from jepsen_like.checker.staleness import check_staleness
from jepsen_like.checker.verdict import Verdict
from jepsen_like.target.base import NotRunError
from jepsen_like.workload.base import Client, Run
from raftstore.client.machines.json_values import to_json
from raftstore.client.writes.write_outcomes import parse_guid
from raftstore.errors import ArgumentError, SchemaError
from raftstore.machine import StateMachine
from raftstore.protocol.machines import encode_command
from raftstore.rows.partitioner import partition_of
from raftstore.testing import Command, Operation, Query
from raftstore.testing.machines.local_machine import as_key
from raftstore.testing.machines.workload import Asked, Script
from raftstore.testing.machines.world import Check
from raftstore.types import Level, Outcome

NAME: Final = "channelsets"
PARTITIONS: Final = 3
"""Of each channel set: a few, so that leaders are on several nodes."""
OPERATIONS_MAX: Final = 1 << 40
"""Of a client: as many as there is time for."""
REPEATS_MAX: Final = 3
"""Times that a command in doubt is given again under its guid."""
REPEATED_SHARE: Final = 0.03
"""Of the commands that were answered: they are given again, too, and must be answered the same."""
READ_BACK_MAX: Final = 50
"""Questions of a channel set that are asked again after healing."""


class Bounds(TypedDict, total=False):
    """Bounds of a query."""

    max_lag: int
    max_staleness_ms: int


LEVELS: Final[Sequence[tuple[Level, Bounds]]] = (
    (Level.LINEARIZABLE, {}), (Level.LINEARIZABLE, {}), (Level.LINEARIZABLE, {}),
    (Level.LEADER, {}), (Level.ANY, {}), (Level.BOUNDED, {"max_lag": 0}),
    (Level.BOUNDED, {"max_lag": 20}), (Level.BOUNDED, {"max_staleness_ms": 200}),
    (Level.BOUNDED, {"max_lag": 50, "max_staleness_ms": 2_000}),
)  # fmt: skip
"""Of queries, with bounds; levels any and bounded also name what their client has seen."""


@dataclass(frozen=True, slots=True)
class ChannelSet:
    """One channel set of a run."""

    name: str
    machine_name: str
    """As the catalog has it."""
    machine: type[StateMachine]
    clients: Callable[..., Any]
    """As ``simulate_machine`` takes a workload."""
    check: Check | None = None
    """As ``simulate_machine`` takes a check of the history."""


@dataclass(slots=True)
class _Known:
    """Findings of the clients of a channel set, for the read-back."""

    asked: dict[bytes, Query] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)
    """Partition -> the highest seq that anybody was answered with."""
    commands: dict[int, Call] = field(default_factory=dict)
    """Partition -> the newest command that was answered, to be given again under its guid."""


class ChannelSets:
    """Every client sends commands and queries to every channel set in turn."""

    name = NAME
    text = "state machines of users, by --machine: exactly once, as a sequential run answers"

    def __init__(self, sets: Sequence[ChannelSet], environment: Mapping[str, str]) -> None:
        self.sets = tuple(sets)
        self.tables: Mapping[str, int] = dict.fromkeys((each.name for each in sets), PARTITIONS)
        self.machines = {each.name: each.machine_name for each in sets}
        """Which of the tables are channel sets, and of which machine."""
        self.environment = environment
        """Variables of the nodes, by which they find the machines."""
        self._known = {each.name: _Known() for each in sets}
        self._nodes: set[str] = set()
        self._started = 0

    def client(self, index: int, rng: random.Random) -> Client:
        """One client of each channel set, asked in turn by chance."""
        self._started += 1
        name = f"client {index}.{self._started}"
        users = [_User(each, self._known[each.name], name, rng) for each in self.sets]
        while True:
            yield from self._watched(rng.choice(users).operation())

    def _watched(self, calls: Client) -> Client:
        answer: Answer | None = None
        while True:
            try:
                call = next(calls) if answer is None else calls.send(answer)
            except StopIteration:
                return
            answer = yield call
            if answer.served_by is not None:
                self._nodes.add(answer.served_by)

    def final_client(self, rng: random.Random) -> Client:
        """Ask what was asked, at the leader and at each node that ever answered; before that give
        the newest command of each partition again."""
        for each in self.sets:
            known = self._known[each.name]
            yield from (replace(again, final=True) for again in known.commands.values())
            asked = list(known.asked.items())
            for sent, query in rng.sample(asked, min(len(asked), READ_BACK_MAX)):
                call = _call(Action.QUERY, each, query, sent, final=True)
                answer = yield call
                for partition, seq in answer.positions:
                    known.newest[partition] = max(known.newest.get(partition, 0), seq)
                partition = call.note["partition"]
                at_least = ((partition, known.newest.get(partition, 0)),)
                for node in sorted(self._nodes):
                    yield _call(
                        Action.QUERY, each, query, sent,
                        level=Level.ANY, at_least=at_least, node=node,
                    )  # fmt: skip

    def check(self, run: Run) -> list[Verdict]:
        """Each channel set by a sequential run of its machine, and by the bounds of its queries."""
        verdicts = []
        for each in self.sets:
            judged = check_channelset(run.history, run.channelsets, each.name, each.machine)
            verdicts.append(judged)
            # A history that nothing explains is no history to check.
            if each.check is not None and judged.is_valid:
                verdicts.append(
                    check_history(run.history, run.channelsets, each.name, each.machine, each.check)
                )
            if judged.figures["queries"]:
                stale = check_staleness(run, each.name)
                verdicts.append(
                    Verdict(
                        f"{stale.checker} {each.name}", stale.validity, stale.summary,
                        stale.evidence, stale.culprit, stale.figures,
                    )
                )  # fmt: skip
        fates = check_fates(run)
        return verdicts if fates is None else [*verdicts, fates]

    def try_out(self) -> None:
        """Draw a first operation for each channel set; ArgumentError or SchemaError where there is
        none, before anything is started."""
        for each in self.sets:
            user = _User(each, _Known(), "client 0", random.Random(0))
            try:
                next(user.operation())
            except NotRunError as error:
                raise ArgumentError(str(error)) from error


class _User:
    """One client of one channel set."""

    def __init__(self, of: ChannelSet, known: _Known, name: str, rng: random.Random) -> None:
        self._of = of
        self._known = known
        self._name = name
        self._rng = random.Random(rng.randrange(1 << 40))
        self._began = 0
        self._script = self._new_script()
        self._last: Operation | None = None
        self._seen: dict[int, int] = {}
        self._count = 0

    def operation(self) -> Client:
        """The next operation of its script, and what follows from its answer."""
        asked = self._next()
        sent = self._encoded(asked)
        if isinstance(asked, Command):
            call = _call(Action.COMMAND, self._of, asked, sent)
            answer = yield from self._command(call)
        else:
            if len(self._known.asked) < READ_BACK_MAX:
                self._known.asked[sent] = asked
            call = self._query(asked, sent)
            answer = yield call
        for partition, seq in answer.positions:
            self._seen[partition] = max(self._seen.get(partition, 0), seq)
            self._known.newest[partition] = max(self._known.newest.get(partition, 0), seq)
        self._last = self._as_operation(asked, answer)

    def _command(self, call: Call) -> Generator[Call, Answer, Answer]:
        """A command in doubt is given again; an answered one now and then (S4.5)."""
        answer = yield call
        for _ in range(REPEATS_MAX):
            if answer.outcome is not Outcome.UNKNOWN or not answer.guids:
                break
            repeated = yield _again(call, answer)
            if repeated.outcome is Outcome.OK:
                answer = repeated
        if answer.outcome is Outcome.OK and answer.guids:
            again = _again(call, answer)
            self._known.commands[call.note["partition"]] = again
            if self._rng.random() < REPEATED_SHARE:
                yield again
        return answer

    def _query(self, asked: Query, sent: bytes) -> Call:
        level, bounds = self._rng.choice(LEVELS)
        partition = partition_of(as_key(asked.key), PARTITIONS)
        at_least: tuple[tuple[int, int], ...] = ()
        if level in (Level.ANY, Level.BOUNDED):
            at_least = ((partition, self._seen.get(partition, 0)),)
        return _call(Action.QUERY, self._of, asked, sent, level=level, at_least=at_least, **bounds)

    def _next(self) -> Asked:
        """The workload's next operation; one that came to its end begins anew."""
        try:
            asked = self._script.next(self._last)
            if asked is None:
                self._script, self._last = self._new_script(), None
                asked = self._script.next(None)
        except Exception as error:
            raise self._refusal(f"raised {type(error).__name__}: {error}") from error
        if asked is None:
            raise self._refusal("ended before it gave an operation")
        return asked

    def _encoded(self, asked: Asked) -> bytes:
        machine = self._of.machine
        try:
            if isinstance(asked, Command):
                return encode_command(as_key(asked.key), machine.commands.encode(asked.value))
            return encode_command(as_key(asked.key), machine.queries.encode(asked.request))
        except SchemaError as error:
            raise self._refusal(f"gave {asked!r:.200}: {error}") from error

    def _refusal(self, what: str) -> NotRunError:
        return NotRunError(f"the workload of {self._of.machine_name} {what}; correct it")

    def _new_script(self) -> Script:
        self._began += 1
        seed = self._rng.randrange(1 << 40)
        name = f"{self._name}.{self._began}"
        return Script(self._of.clients, seed, name, OPERATIONS_MAX)

    def _as_operation(self, asked: Asked, answer: Answer) -> Operation:
        """The answer for the workload."""
        self._count += 1
        guid = bytes(parse_guid(answer.guids[0])[1]) if answer.guids else b""
        made = Operation(self._name, self._count, asked, 0.0, guid=guid)
        machine = self._of.machine
        codec = machine.results if isinstance(asked, Command) else machine.answers
        take_answer(made, answer.outcome, answer.value, details_of(answer, 0), codec)
        return made


def _call(  # noqa: PLR0913 - as calls have
    action: Action,
    of: ChannelSet,
    asked: Asked,
    sent: bytes,
    *,
    level: Level = Level.LINEARIZABLE,
    at_least: Iterable[tuple[int, int]] = (),
    node: str | None = None,
    final: bool = False,
    max_lag: int | None = None,
    max_staleness_ms: int | None = None,
) -> Call:
    value = asked.value if isinstance(asked, Command) else asked.request
    key = as_key(asked.key)
    return Call(
        action,
        of.name,
        key.decode(errors="backslashreplace"),
        to_json(value),
        level=level,
        max_lag=max_lag,
        max_staleness_ms=max_staleness_ms,
        at_least=tuple(at_least),
        node=node,
        sent=sent,
        final=final,
        note={"partition": partition_of(key, PARTITIONS)},
    )


def _again(call: Call, answer: Answer) -> Call:
    """The same command under the guid that it had."""
    return Call(
        call.action, call.table, call.key, call.value, guid=answer.guids[0], sent=call.sent,
        note=call.note,
    )  # fmt: skip
