"""A bank whose money is moved by atomic micro-batches over all partitions.

Some accounts are shared: every batch spreads the same total over all of them anew. Others belong to
one writer: its batches move money between two of them. A writer writes a batch until somebody was
answered that it is in the table, and a replay carries other rows, cut into other tasks. Now and
then another client takes a writer over while the one before is at work, or a client stages a batch,
does something else and commits it late. Between all that rows are written one by one, to other
keys.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from jepsen_like.calls import Action, Answer, Batch, Call, Wanted
from jepsen_like.checker.batches import STAMP, Bank, check_batches
from jepsen_like.checker.verdict import Verdict
from jepsen_like.workload.base import Client, Run, UniqueValues
from jepsen_like.workload.judging import judge_rows
from raftstore.types import Level, Outcome

TABLE: Final = "bank_batches"
PARTITIONS: Final = 4
SHARED: Final = tuple(f"s{number:02}" for number in range(40))
"""So many that a simulated node writes those of one partition in several steps."""
WRITERS: Final = ("jobs/a", "jobs/b", "c")
OWN: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {name: tuple(f"{name}/{number}" for number in range(5)) for name in WRITERS}
)
PLAIN: Final = tuple(f"p{number}" for number in range(12))
TOTAL: Final = 1_000
BANK: Final = Bank(SHARED, OWN, TOTAL)
DRIVEN: Final = 0.5
"""Share of batches in what a writer's own client does."""
TAKEN_OVER: Final = 0.06
"""Of another client, which takes over as if that one were dead."""
IMPATIENT_MS: Final = (60, 150, 400)
LOOKS: Final = 3
"""Keys that are read after a batch was reported."""
PAUSE_CALLS_MAX: Final = 3
"""What a late one does between staging and commit."""

Rows = tuple[tuple[str, Any], ...]


@dataclass(slots=True)
class _Job:
    """A writer's checkpoint, and what is known of its accounts."""

    done: int = 0
    """The newest batch that somebody got an answer for."""
    base: int = -1
    """The batch that ``accounts`` is of; -1: not known."""
    accounts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Plan:
    """An attempt at a batch."""

    batch: Batch
    rows: Rows
    note: dict[str, Any]


class BankBatches(UniqueValues):
    """See the module."""

    name = "bank_batches"
    text = "money moved by atomic batches over four partitions; every snapshot finds the same sums"
    tables: Mapping[str, int] = MappingProxyType({TABLE: PARTITIONS})

    def __init__(self) -> None:
        self._jobs = {writer: _Job() for writer in WRITERS}
        self._newest = Wanted(0, ())

    def client(self, index: int, rng: random.Random) -> Client:
        """Batches, snapshots, and rows one by one."""
        # Each writer has one client of its own; two that went on for ever would fence each other.
        share = DRIVEN if index < len(WRITERS) else TAKEN_OVER
        while True:
            if rng.random() < share:
                yield from self._write(WRITERS[index % len(WRITERS)], rng)
            else:
                yield self._other(rng)

    def _other(self, rng: random.Random) -> Call:
        draw = rng.random()
        if draw < 0.45:
            return self._snapshot(rng)
        if draw < 0.7:
            return Call(Action.GET, TABLE, rng.choice((rng.choice(SHARED), rng.choice(PLAIN))))
        self._last += 1
        return Call(Action.PUT, TABLE, rng.choice(PLAIN), self._last)

    def _snapshot(self, rng: random.Random) -> Call:
        level = rng.choice((Level.LINEARIZABLE, Level.ANY))
        wanted = None
        if self._newest.n and rng.random() < 0.4:
            wanted = replace(self._newest, is_exact=rng.random() < 0.5)
            level = Level.ANY
        return Call(Action.SNAPSHOT, TABLE, level=level, wanted=wanted)

    # --- batches ----------------------------------------------------------------------------------

    def _write(self, writer: str, rng: random.Random) -> Client:
        draw = rng.random()
        plan = self._plan(writer, rng)
        if draw < 0.45:
            yield from self._tell(Action.BATCH, plan, rng)
        elif draw < 0.65:
            # It does not wait for long, and is started again at once.
            call = self._call(Action.BATCH, plan)
            answer = yield replace(call, patience_ms=rng.choice(IMPATIENT_MS))
            self._learn(plan, answer)
            if answer.outcome is Outcome.UNKNOWN:
                yield from self._tell(Action.BATCH, self._plan(writer, rng, again=plan), rng)
        elif draw < 0.85:
            # It stages, seems to be dead, and comes back: a zombie if another went on meanwhile.
            staged = yield self._call(Action.STAGE, plan)
            for _ in range(rng.randint(0, PAUSE_CALLS_MAX)):
                yield self._other(rng)
            yield from self._tell(Action.COMMIT, plan, rng, staged.token)
        else:
            # An earlier driver commits after the one that took its place.
            staged = yield self._call(Action.STAGE, plan)
            again = self._plan(writer, rng)
            staged_again = yield self._call(Action.STAGE, again)
            yield from self._tell(Action.COMMIT, plan, rng, staged.token)
            yield from self._tell(Action.COMMIT, again, rng, staged_again.token)

    def _tell(self, action: Action, plan: _Plan, rng: random.Random, token: str = "") -> Client:
        """Commit, and often look at once whether what was answered is so."""
        if action is Action.COMMIT and not token:
            return  # it was refused, or is in the table already
        answer = yield replace(self._call(action, plan), token=token)
        self._learn(plan, answer)
        if answer.outcome is Outcome.OK:
            for key in rng.sample(SHARED, LOOKS) if rng.random() < 0.5 else ():
                yield Call(Action.GET, TABLE, key)

    def _call(self, action: Action, plan: _Plan) -> Call:
        key = plan.batch.writer
        return Call(action, TABLE, key, rows=plan.rows, batch=plan.batch, note=plan.note)

    def _plan(self, writer: str, rng: random.Random, *, again: _Plan | None = None) -> _Plan:
        """An attempt at the next batch, or at that of a plan with other rows."""
        job = self._jobs[writer]
        number = job.done + rng.choice((1, 1, 1, 1, 1, 1, 1, 2, 0))  # 0: written again
        number = max(1, number) if again is None else again.batch.number
        self._last += 1
        stamp = self._last
        own = self._own_after(job, number, writer, rng)
        changed = dict(own)
        # Only what is surely in the table now can be changed in part.
        if job.base == number - 1 and job.accounts:
            changed = {key: own[key] for key in own if own[key] != job.accounts[key]}
        rows = [*_spread(SHARED, rng).items(), *changed.items()]
        rng.shuffle(rows)
        batch = Batch(writer, number, rng.choice((1, 1, 2, 3, 5)))
        if rng.random() < 0.2:
            # Speculation: another run of the first task got other rows, and lost.
            self._last += 1
            lost = tuple((key, [amount, self._last]) for key, amount in rows[:: batch.tasks])
            batch = replace(batch, lost=lost)
        note = {STAMP: stamp, "own": own}
        return _Plan(batch, tuple((key, [amount, stamp]) for key, amount in rows), note)

    def _own_after(self, job: _Job, number: int, writer: str, rng: random.Random) -> dict[str, int]:
        accounts = dict(job.accounts)
        rich = [name for name, amount in accounts.items() if amount]
        if job.base != number - 1 or not rich:
            return _spread(OWN[writer], rng)
        source = rng.choice(rich)
        target = rng.choice([name for name in accounts if name != source])
        amount = rng.randint(1, accounts[source])
        accounts[source] -= amount
        accounts[target] += amount
        return accounts

    def _learn(self, plan: _Plan, answer: Answer) -> None:
        """Move the checkpoint, as a driver does that was answered with success."""
        job, number = self._jobs[plan.batch.writer], plan.batch.number
        if answer.outcome is not Outcome.OK or number < job.done:
            return
        if number > job.done:
            job.done, job.base = number, -1
        reported = answer.value
        if not reported["already"]:
            job.base, job.accounts = number, plan.note["own"]
        if reported["n"] > self._newest.n:
            self._newest = Wanted(reported["n"], tuple(reported["vector"]))

    # --- judging ----------------------------------------------------------------------------------

    def final_client(self, rng: random.Random) -> Client:
        """One last snapshot, and the rows that were written one by one."""
        del rng
        yield Call(Action.SNAPSHOT, TABLE, final=True)
        for key in PLAIN:
            yield Call(Action.GET, TABLE, key, final=True)

    def check(self, run: Run) -> list[Verdict]:
        """Batches by themselves, plain rows as everywhere."""
        batches = check_batches(run, TABLE, BANK)
        plain = [op for op in run.history if op.action != "get" or op.key in PLAIN]
        return [batches, *judge_rows(replace(run, history=plain), self.tables)]


def _spread(names: tuple[str, ...], rng: random.Random) -> dict[str, int]:
    cuts = [0, *sorted(rng.randint(0, TOTAL) for _ in names[1:]), TOTAL]
    return {name: cuts[at + 1] - cuts[at] for at, name in enumerate(names)}
