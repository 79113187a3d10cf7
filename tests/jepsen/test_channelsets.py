"""State machines under chaos: a right store passes, each kind of wrong answer is found."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from jepsen_like.calls import Action, Answer, Call, argument, asked, details_of
from jepsen_like.checker.channelsets import ChannelSetLog
from jepsen_like.checker.progress import check_progress
from jepsen_like.checker.verdict import Validity
from jepsen_like.history import Operation
from jepsen_like.plan import Plan
from jepsen_like.session import UnknownNameError, run_plan
from jepsen_like.target.base import NotRunError
from jepsen_like.workload.base import Client, Run
from jepsen_like.workload.channelsets import PARTITIONS, ChannelSet, ChannelSets
from jepsen_like.workload.machine_names import channelsets_of
from jepsen_like.workload.recipe_clients import additions
from raftstore import recipes
from raftstore.errors import ArgumentError
from raftstore.machine import StateMachine
from raftstore.protocol.machines import decode_command
from raftstore.protocol.records import Record
from raftstore.recipes import Counter, Lock
from raftstore.testing import Command
from raftstore.testing.machines.local_machine import LocalMachine, Place
from raftstore.types import (
    Digest,
    Guid,
    Level,
    Outcome,
    RecordKind,
    Seq,
    Term,
    TimestampMs,
    channel_id,
    guid_text,
)

COUNTER = "raftstore.recipes.counter:Counter"
LOCK = "raftstore.recipes.lock:Lock"
UUID = bytes(16)
DOUBTFUL = 0.1
"""Of the commands: their first answer is lost."""


class RightStore:
    """Applies one call after the other, and loses some answers."""

    def __init__(self, machines: dict[str, type[StateMachine]]) -> None:
        self.history: list[Operation] = []
        self.records: dict[tuple[str, int], list[Record]] = {}
        self.machines = {
            (name, partition): LocalMachine(machine, partition=partition)
            for name, machine in machines.items()
            for partition in range(PARTITIONS)
        }
        for machine in self.machines.values():
            machine.time_ms = 0
        self._answers: dict[str, Answer] = {}
        self._rng = random.Random(1)
        self._now = 0

    def drive(self, clients: dict[str, Client], operations: int) -> None:
        """So many calls of each client, in turn; one that ends is done."""
        answers: dict[str, Answer] = {}
        for _ in range(operations):
            for process, client in tuple(clients.items()):
                try:
                    answer = answers.get(process)
                    call = next(client) if answer is None else client.send(answer)
                except StopIteration:
                    del clients[process]
                    continue
                answers[process] = self._call(call, process)

    def run(self) -> Run:
        """All that a checker may look at."""
        logs = {
            place: ChannelSetLog(
                self.records.get(place, []), dict.fromkeys(("n1", "n2"), machine.pairs())
            )
            for place, machine in self.machines.items()
        }
        return Run(deepcopy(self.history), channelsets=logs)

    def _call(self, call: Call, process: str) -> Answer:
        invoked = self._now = self._now + 1_000_000
        answer = self._query(call) if call.action is Action.QUERY else self._command(call)
        self._now += 1_000_000
        self.history.append(
            Operation(
                process, call.action.value, call.key, argument(call), invoked,
                None if answer.outcome is Outcome.UNKNOWN else self._now, answer.outcome,
                answer.value, {**asked(call), **details_of(answer, self._now)},
            )
        )  # fmt: skip
        return answer

    def _command(self, call: Call) -> Answer:
        if call.guid:
            return self._answers[call.guid]
        partition = call.note["partition"]
        records = self.records.setdefault((call.table, partition), [])
        key, command = decode_command(call.sent)
        seq = len(records) + 2
        made = Record(
            Term(1), Seq(seq), 1, Guid(self._rng.randbytes(16)),
            TimestampMs(self._now // 1_000_000),
            Digest(blake2b(call.sent, digest_size=16).digest()), RecordKind.MACHINE_COMMAND,
            call.sent,
        )  # fmt: skip
        records.append(made)
        place = Place(seq, self._now // 1_000_000, guid=bytes(made.guid), partition=partition)
        applied = self.machines[call.table, partition].apply(key, command, place)
        guid = guid_text(channel_id(UUID, partition), made.guid)
        if applied.result is None:
            answer = Answer(Outcome.OK, applied.reason, is_rejected=True, guids=(guid,))
        else:
            answer = Answer(
                Outcome.OK, 0, positions=((partition, seq),), guids=(guid,),
                received=applied.result,
            )  # fmt: skip
        self._answers[guid] = answer
        if self._rng.random() < DOUBTFUL:
            return Answer(Outcome.UNKNOWN, error="timeout", guids=(guid,))
        return answer

    def _query(self, call: Call) -> Answer:
        partition = call.note["partition"]
        key, request = decode_command(call.sent)
        machine = self.machines[call.table, partition]
        end = len(self.records.get((call.table, partition), [])) + 1
        return Answer(
            Outcome.OK, 0, positions=((partition, end),), served_by=call.node or "n1", lag=0,
            leader_info_age_ms=0, staleness_ms=0, received=machine.answer(key, request),
        )  # fmt: skip


@pytest.fixture(scope="module")
def played() -> tuple[ChannelSets, RightStore]:
    """Two machines, two clients after each other, and the read-back."""
    workload = channelsets_of([COUNTER, LOCK])
    store = RightStore({"counter": Counter, "lock": Lock})
    clients = {f"c{number}": workload.client(number, random.Random(number)) for number in range(2)}
    store.drive(clients, 300)
    store.drive({"final": workload.final_client(random.Random(9))}, 1_000)
    return workload, store


def test_what_a_right_store_did_is_valid(played: tuple[ChannelSets, RightStore]) -> None:
    """All of it is judged: results, rejections, repeats, queries at every level, both replicas."""
    workload, store = played
    verdicts = {verdict.checker: verdict for verdict in workload.check(store.run())}
    assert list(verdicts) == [
        "channelset counter", "staleness counter", "channelset lock", "staleness lock",
    ]  # fmt: skip
    assert all(verdict.is_valid for verdict in verdicts.values()), verdicts
    figures = verdicts["channelset lock"].figures
    assert min(figures["rejected"], figures["unknown"], figures["repeated"]) > 0
    assert figures["states"] == 2 * PARTITIONS
    levels = {each for each in verdicts["channelset counter"].figures if each.startswith("queries")}
    assert levels == {"queries", *(f"queries_{level.value}" for level in Level)}


def test_every_query_is_asked_of_every_node_in_the_end(
    played: tuple[ChannelSets, RightStore],
) -> None:
    """So a state in memory, which has no rows to compare, is seen at each replica."""
    _, store = played
    last = [each for each in store.history if each.process == "final"]
    final = [each for each in last if each.action == "query"]
    commands = [each for each in last if each.action == "command"]
    assert len({(each.details["table"], each.details["partition"]) for each in commands}) > 2
    assert all(each.details["guid"] and each.details["final"] for each in commands)
    assert {each.details["table"] for each in final} == {"counter", "lock"}
    assert len(final) == 2 * sum(bool(each.details["final"]) for each in final)


def first(run: Run, action: str, **wanted: object) -> Operation:
    """The first answered operation on a counter with these details."""
    return next(
        each
        for each in run.history
        if each.action == action
        and each.details["table"] == "counter"
        and "received" in each.details
        and all(each.details.get(name) == value for name, value in wanted.items())
    )


def other_result(run: Run) -> None:
    """A command was answered with another total."""
    first(run, "command", guid="").details["received"] = Counter.results.encode(10**6).hex()


def other_answer(run: Run) -> None:
    """A query of any replica shows a state that there never was."""
    first(run, "query", level="any").details["received"] = Counter.results.encode(10**6).hex()


def other_repeat(run: Run) -> None:
    """A command that was given again had another result."""
    counters = [each for each in run.history if each.details["table"] == "counter"]
    guids = {each.details["guids"][0] for each in counters if each.outcome is Outcome.OK
             and each.details["guids"] and not each.details["guid"]}  # fmt: skip
    again = next(each for each in counters if each.details["guid"] in guids)
    again.details["received"] = Counter.results.encode(10**6).hex()


def lost_command(run: Run) -> None:
    """An acknowledged command is in no log."""
    lost = first(run, "command", guid="")
    log = run.channelsets["counter", lost.details["partition"]]
    seq = lost.details["positions"][0][1]
    records = [each for each in log.records if each.last_seq != seq]
    _replace_log(run, lost.details["partition"], replace(log, records=records))


def other_state(run: Run) -> None:
    """A replica holds something else."""
    place = next(each for each, log in run.channelsets.items() if each[0] == "counter"
                 and any(log.rows["n2"]))  # fmt: skip
    rows = {**run.channelsets[place].rows, "n2": {}}
    _replace_log(run, place[1], replace(run.channelsets[place], rows=rows))


def stale_query(run: Run) -> None:
    """A linearizable query shows the state before a command that was answered before it."""
    last = [each for each in run.history if each.details["table"] == "counter"
            and each.action == "query" and each.details["level"] == "linearizable"][-1]  # fmt: skip
    partition = last.details["partition"]
    last.details["positions"] = [[partition, 1]]
    last.details["received"] = Counter.answers.encode(0).hex()


def _replace_log(run: Run, partition: int, log: ChannelSetLog) -> None:
    run.channelsets = {**run.channelsets, ("counter", partition): log}


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (other_result, "a sequential run gives"),
        (other_answer, "a sequential run answers"),
        (other_repeat, "given again under its guid it was answered"),
        (lost_command, "in the log it is at seq None"),
        (other_state, "the state of n2 differs"),
        (stale_query, "after the end of"),
    ],
)
def test_what_a_wrong_store_did_is_found_and_shown(
    played: tuple[ChannelSets, RightStore], damage: Callable[[Run], None], complaint: str
) -> None:
    """Of one channel set; the other stays valid, and the evidence is of the history."""
    workload, store = played
    run = store.run()
    damage(run)
    verdicts = {verdict.checker: verdict for verdict in workload.check(run)}
    found = verdicts["channelset counter"]
    assert found.validity is Validity.INVALID
    assert complaint in found.summary
    assert all(each in run.history for each in found.evidence)
    assert (found.culprit is None) == (damage is other_state)
    assert verdicts["channelset lock"].is_valid


def test_bounds_of_queries_are_judged(played: tuple[ChannelSets, RightStore]) -> None:
    """A lag over the bound, and an answer older than what its client had seen."""
    workload, store = played
    for change in ({"lag": 100}, {"at_least": [[0, 10**6], [1, 10**6], [2, 10**6]]}):
        run = store.run()
        first(run, "query", level="bounded", max_lag=0).details.update(change)
        verdicts = {verdict.checker: verdict.validity for verdict in workload.check(run)}
        assert verdicts["staleness counter"] is Validity.INVALID, change


def test_a_check_of_the_user_is_given_the_history(
    played: tuple[ChannelSets, RightStore],
) -> None:
    """It says what is right where the machine itself is wrong; what it raises is no verdict."""
    _, store = played
    seen: list[Any] = []

    def fails(history: list[Any]) -> None:
        seen.extend(history)
        assert len(history) < 10, "too much was done"

    def raises(history: list[Any]) -> None:
        raise KeyError(len(history))

    def never_runs(history: list[Any]) -> Any:
        yield len(history)

    sets = [
        ChannelSet("counter", COUNTER, Counter, additions, check)
        for check in (seen.extend, fails, raises, len, never_runs)
    ]
    for each, validity, said in zip(
        sets,
        (Validity.VALID, Validity.INVALID, *[Validity.UNDECIDED] * 3),
        (
            "the check of",
            "failed: too much was done",
            "the check raised KeyError",
            "and answers nothing; this one answered",
            "this one answered <generator",
        ),
        strict=True,
    ):
        verdicts = {v.checker: v for v in ChannelSets([each], {}).check(store.run())}
        assert (verdicts["check counter"].validity, said in verdicts["check counter"].summary) == (
            validity,
            True,
        )
    assert [each.begun_ms for each in seen[:50]] == sorted(each.begun_ms for each in seen[:50])
    assert {each.outcome for each in seen} >= {"ok"}


def test_without_a_log_or_an_answer_nothing_is_shown(
    played: tuple[ChannelSets, RightStore],
) -> None:
    """A history that was not judged is not called valid."""
    workload, store = played
    for run in (Run([]), replace(store.run(), channelsets={}), replace(store.run(), history=[])):
        assert {each.validity for each in workload.check(run)} >= {Validity.UNDECIDED}
        assert Validity.INVALID not in {each.validity for each in workload.check(run)}


def test_progress_knows_the_partition_of_a_call_without_an_answer() -> None:
    """A partition that answers no command while all nodes are whole has stopped."""
    details = {"table": "counter", "partition": 2, "level": "linearizable", "told_at": 8 * 10**9}
    history = [
        Operation("c", "command", "a", 1, 0, 1, Outcome.OK, 1,
                  {**details, "positions": [[2, 1]], "told_at": 1}),
        Operation("c", "command", "a", 1, 10**8, None, Outcome.UNKNOWN, None, details),
    ]  # fmt: skip
    found = check_progress(Run(history, replica_hashes={("counter", 2): dict.fromkeys("abc", "")}))
    assert "counter/2 answered nothing for 7900 ms" in found.summary


# --- names ----------------------------------------------------------------------------------------

MODULE = """
import raftstore
from raftstore.testing import Command

class Sum(raftstore.StateMachine):
    commands = raftstore.codec(int)
    def apply(self, command, context):
        return b""

class Sum2(Sum):
    pass

def workload(rng):
    return Command("a", 1)

def of_texts(rng):
    return Command("a", "text")

def of_nothing(rng, name):
    return
    yield

def of_what_is_none(rng):
    return 7
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a module that is not installed."""
    (tmp_path / "chaos_sums.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "chaos_raises.py").write_text("1 / 0", encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "chaos_sums", raising=False)
    return tmp_path


def test_machines_are_found_by_path_with_the_workload_of_their_module(folder: Path) -> None:
    """Each has a channel set of its own, and nodes find the same directory."""
    named = ["chaos_sums:Sum", "chaos_sums:Sum", "chaos_sums:Sum2=chaos_sums:workload", LOCK]
    made = channelsets_of(named, [folder])
    assert list(made.tables) == ["sum", "sum_2", "sum2", "lock"]
    assert made.machines["sum2"] == "chaos_sums:Sum2"
    assert made.environment == {"RAFTSTORE_MACHINES_PATH": str(folder)}


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nowhere:Sum", "the machine nowhere:Sum cannot be loaded here"),
        ("chaos_sums:Sum=chaos_sums:none", "the workload chaos_sums:none cannot be loaded"),
        ("chaos_sums:Sum=chaos_sums", "the workload chaos_sums cannot be loaded"),
        ("chaos_sums:Sum=chaos_sums:__name__", "the workload chaos_sums:__name__ is no function"),
        ("chaos_sums:Sum=chaos_sums:workload,chaos_sums:no", "the check .* cannot be loaded"),
        ("chaos_sums:Sum=chaos_sums:of_texts", "the workload of chaos_sums:Sum gave .*'text'"),
        ("chaos_sums:Sum=chaos_sums:of_nothing", "ended before it gave an operation"),
        ("chaos_sums:Sum=chaos_sums:of_what_is_none", "the workload gave 7; give"),
        ("tests.machines.queue:Queue", "there is no workload"),
        ("", "--machine '': no machine is named; write module:Class"),
        ("=chaos_sums:workload", "no machine is named"),
        ("chaos_sums:Sum=", "no workload is named"),
        ("chaos_sums:Sum= ,chaos_sums:workload", "no workload is named"),
        ("chaos_sums:Sum=,chaos_sums:workload", "no workload is named"),
        ("chaos_sums:Sum=chaos_sums:workload,", "no check is named; write .*=module:workload,mod"),
        ("chaos_sums:Sum=chaos_sums:workload,a:b,c:d", "the check a:b,c:d cannot be loaded"),
        ("chaos_sums:Sum=chaos_sums:workload=", "the workload chaos_sums:workload= cannot be load"),
        ("recipes=chaos_sums:workload", "the machine recipes cannot be loaded"),
        ("recipes,", "the machine recipes, cannot be loaded"),
        ("chaos_sums:Sum=chaos_raises:x", "chaos_raises:x cannot be loaded .ZeroDivisionError"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(
    folder: Path, name: str, complaint: str
) -> None:
    """With the name and the remedy."""
    with pytest.raises(ArgumentError, match=complaint):
        channelsets_of([name], [folder])


def test_recipes_stands_for_all_that_are_shipped() -> None:
    """Each has a workload."""
    shipped = {type_.__name__ for type_ in map(recipes.__dict__.get, recipes.__all__) if type_}
    assert {each.machine.__name__ for each in channelsets_of(["recipes"]).sets} == shipped


def test_machines_run_on_processes_alone(tmp_path: Path) -> None:
    """Simulated worlds are the test kit's, and somebody else's stores are not read."""
    for target in ("simulated", "cluster"):
        plan = Plan("channelsets", (), target, 1.0, 1, 1, tmp_path, machines=(COUNTER,))
        with pytest.raises(UnknownNameError, match="simulate_machine"):
            run_plan(plan, lambda _: None)
    plan = Plan(
        "channelsets", (), "processes", 1.0, 1, 1, tmp_path, machines=(COUNTER, LOCK),
        paths=(tmp_path,),
    )  # fmt: skip
    assert f"--path {tmp_path} --machine {COUNTER} --machine {LOCK} --time-limit" in plan.replay


def test_a_workload_that_raises_ends_the_run_with_its_name() -> None:
    """It says nothing about the store."""
    count = 0

    def clients(rng: random.Random) -> Any:
        nonlocal count
        count += 1
        if count > 1:
            raise KeyError(rng.random())
        return Command("a", 1)

    workload = ChannelSets([ChannelSet("counter", COUNTER, Counter, clients)], {})
    client = workload.client(0, random.Random(1))
    next(client)
    with pytest.raises(NotRunError, match=r"recipes\.counter:Counter raised KeyError"):
        client.send(Answer(Outcome.NOT_APPLIED))
