"""Drivers, tasks and the network around the product's coordinator and channels, as a state space.

Every request stays deliverable for ever, any number of times: that is loss, doubling and any delay.
A driver that takes no more steps has crashed; the next driver of its writer starts from Spark's
commit log at any moment, while the older one may go on (a zombie). An attempt's time may be over at
any moment. A channel that takes no steps is unavailable.

Checked in every state and step (docs/protocol.md): I1 pin, I2 batch ids rise, I3 chain, I4 F never
falls, I5 success means committed once and applied everywhere, and from every state L1 (without any
driver, decided commits reach their channels and no staged chunk stays) and L2 (a new driver of each
writer commits all that is left).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from raftstore.protocol.batches import Manifest
from raftstore.protocol.staged import BatchApply
from raftstore.state_machines.batches.staging import ApplyPlan, Broken, Known, NotYet
from raftstore.state_machines.batches.txn_records import Verdict
from tests.model import machines
from tests.model.states import (
    ALREADY,
    COMMITS,
    ENDED,
    RUNS,
    UNKNOWN,
    WAITS,
    BatchPlan,
    Decided,
    Driver,
    Scenario,
    Violation,
    World,
)

Move = tuple[str, World]


class Model:
    """The protocol as it is; mutations override its rules."""

    keeps_answers = False
    """Whether answers to RESOLVE travel on their own instead of arriving when they are given."""
    checks_i4 = True
    checks_l1 = True
    checks_l2 = True

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.plans = [
            (index, plan, number == 0)
            for index, writer in enumerate(scenario.writers)
            for number, plan in enumerate(writer.drivers)
        ]
        self._settled: set[object] = set()
        self._finished: set[object] = set()

    # --- the rules that mutations change ----------------------------------------------------------

    def floor(self, world: World, writer: str, channel: int) -> int:
        """The coordinator's answer to RESOLVE."""
        return machines.floor(world.coordinator, writer, channel)

    def begin(self, world: World, driver: int, batch: int) -> tuple[int, Verdict]:
        """BEGIN arrives at the coordinator."""
        uuid = machines.uuid_of(driver, batch)
        name, lineage = self.name_of(driver), self.lineage_of(driver)
        return machines.begin(world.coordinator, name, batch, uuid, lineage, self.scenario.channels)

    def commit(self, world: World, attempt: int, manifest: Manifest) -> tuple[int, Verdict]:
        """COMMIT arrives at the coordinator."""
        driver, batch = world.owners[attempt - 1]
        return machines.commit(world.coordinator, self.name_of(driver), batch, attempt, manifest)

    def apply(
        self, world: World, channel: int, batch: BatchApply
    ) -> tuple[int, ApplyPlan | NotYet | Known | Broken]:
        """APPLY arrives at a channel."""
        return machines.applied(world.channels[channel], batch)

    def may_send(self, world: World, needed: set[tuple[int, int, int, int]]) -> bool:
        """Whether a driver sends COMMIT: when all that it lists was acknowledged."""
        return needed <= world.acked

    def may_decide(self, world: World, attempt: int, runs: tuple[int, ...]) -> bool:
        """Whether a COMMIT that arrived is written down. What such drivers list is there."""
        return True

    def may_tell(self, world: World, n: int) -> bool:
        """Whether success of a commit may be reported (COMMIT)."""
        heads = tuple(max(each, default=0) for each in world.applied)
        return not machines.waits(world.coordinator, n, heads)

    def may_tell_already(self, world: World, n: int) -> bool:
        """Whether success of a commit may be reported (ALREADY)."""
        return self.may_tell(world, n)

    def may_drop(self, world: World) -> Iterator[tuple[int, str, int]]:
        """(channel, writer, attempts up to) that channels may drop by themselves: none."""
        return iter(())

    def lineage_of(self, driver: int) -> str:
        """The checkpoint of a driver."""
        return "c"

    def success_is_own(self) -> bool:
        """Whether a COMMIT that succeeds must have been decided with its own attempt."""
        return True

    # --- shape ------------------------------------------------------------------------------------

    def name_of(self, driver: int) -> str:
        """The writer of a driver."""
        return self.scenario.writers[self.plans[driver][0]].name

    def plan_of(self, driver: int, batch: int) -> BatchPlan:
        """How a driver cuts a batch."""
        return self.plans[driver][1][batch - 1]

    def initial(self) -> World:
        """Nothing has happened."""
        scenario = self.scenario
        return World(
            coordinator=machines.EMPTY,
            channels=(machines.EMPTY,) * scenario.channels,
            applied=((),) * scenario.channels,
            owners=(),
            begun=frozenset(),
            tasks_on=frozenset(),
            acked=frozenset(),
            asked=(),
            commits=(),
            drivers=(Driver(),) * len(self.plans),
            log=(0,) * len(scenario.writers),
            told=((0,) * scenario.channels,) * len(scenario.writers) if self.keeps_answers else (),
        )

    # --- moves ------------------------------------------------------------------------------------

    def moves(self, world: World) -> Iterator[Move]:
        """Everything that may happen next."""
        for driver in range(len(self.plans)):
            yield from self._driver_moves(world, driver)
        yield from self._deliveries(world)
        yield from self.settling(world)
        if self.keeps_answers:
            yield from self._late_answers(world)

    def settling(self, world: World) -> Iterator[Move]:
        """Steps that need no driver: APPLY, ACK, the end of attempts, RESOLVE."""
        yield from self._pushes(world)
        yield from self._acknowledgements(world)
        for writer in self.scenario.writers:
            found = machines.writer_of(world.coordinator, writer.name)
            if found is not None and found.open is not None:
                after = machines.close(world.coordinator, writer.name, found.open.attempt)
                yield f"CLOSE a{found.open.attempt}", world._replace(coordinator=after)
        for channel in range(self.scenario.channels):
            for writer_name, _ in machines.attempts_in(world.channels[channel]):
                up_to = self.floor(world, writer_name, channel)
                yield from self._drop(world, channel, writer_name, up_to, "F")
        for channel, writer_name, up_to in self.may_drop(world):
            yield from self._drop(world, channel, writer_name, up_to, "its own clock")

    def _pushes(self, world: World) -> Iterator[Move]:
        for n, made in enumerate(world.commits, start=1):
            for channel, batch in made.pushes:
                if n not in world.applied[channel]:
                    yield from self._apply(world, n, channel, batch)

    def _acknowledgements(self, world: World) -> Iterator[Move]:
        for channel, done in enumerate(world.applied):
            for n in done:
                after = machines.acknowledge(world.coordinator, channel, n)
                if after != world.coordinator:
                    yield f"ACK {n} ch{channel}", world._replace(coordinator=after)

    def _driver_moves(self, world: World, driver: int) -> Iterator[Move]:
        writer, plan, is_first = self.plans[driver]
        now = world.drivers[driver]
        if now.phase == WAITS:
            batch = world.log[writer] + 1
            if batch <= len(plan) and (is_first or world.drivers[driver - 1].phase != WAITS):
                yield f"d{driver} starts at b{batch}", self._at_batch(world, driver, batch)
        elif now.phase == RUNS:
            yield from self._learn_begin(world, driver, now)
            yield from self._send_commit(world, driver, now)
        elif now.phase == COMMITS:
            yield from self._learn_commit(world, driver, now)

    def _learn_begin(self, world: World, driver: int, now: Driver) -> Iterator[Move]:
        answers = [
            attempt
            for attempt, owner in enumerate(world.owners, start=1)
            if owner == (driver, now.batch)
        ]
        _, verdict = self.begin(world, driver, now.batch)
        if verdict.name == "already" and self.may_tell_already(world, verdict.n):
            answers.append(ALREADY)
        if verdict.code:
            yield f"d{driver} hears {verdict.code}", self._with(world, driver, Driver(ENDED))
        unknown = [task for task, known in enumerate(now.known) if known == UNKNOWN]
        groups = [[task] for task in unknown] if self.scenario.tasks_begin else [unknown]
        for answer, tasks in product(answers, groups):
            if tasks:
                known = tuple(
                    answer if task in tasks else other for task, other in enumerate(now.known)
                )
                heard = self._with(world, driver, now._replace(known=known))
                if answer > 0:
                    on = {(answer, task) for task in tasks}
                    heard = heard._replace(tasks_on=world.tasks_on | on)
                told = "ALREADY" if answer == ALREADY else f"a{answer}"
                yield f"d{driver} tasks {tasks} hear {told}", heard

    def _send_commit(self, world: World, driver: int, now: Driver) -> Iterator[Move]:
        if UNKNOWN in now.known:
            return
        attempt = now.known[0]
        if any(known != attempt for known in now.known):
            # Attempts of one batch that differ: a BEGIN of another driver came in between.
            yield f"d{driver} has mixed attempts", self._with(world, driver, Driver(ENDED))
            return
        if attempt == ALREADY:
            yield self._success(world, driver, now, f"d{driver} success by ALREADY b{now.batch}")
            return
        plan = self.plan_of(driver, now.batch)
        for runs in product(range(self.scenario.runs), repeat=len(plan.tasks)):
            needed = {
                (attempt, task, runs[task], channel)
                for task, where in enumerate(plan.tasks)
                for channel in where
            }
            if self.may_send(world, needed):
                sent = self._with(world, driver, now._replace(phase=COMMITS))
                asked = (*world.asked, (attempt, runs))
                yield f"d{driver} sends COMMIT a{attempt}", sent._replace(asked=asked)

    def _learn_commit(self, world: World, driver: int, now: Driver) -> Iterator[Move]:
        attempt = now.known[0]
        made = [n for n, each in enumerate(world.commits, start=1) if each.attempt == attempt]
        if made:
            if self.may_tell(world, made[0]):
                yield self._success(world, driver, now, f"d{driver} success by OK b{now.batch}")
            return
        (runs,) = [runs for asked, runs in world.asked if asked == attempt]
        _, verdict = self.commit(world, attempt, self.manifest(world, attempt, runs))
        if verdict.code:
            yield f"d{driver} hears {verdict.code}", self._with(world, driver, Driver(ENDED))
        elif verdict.n <= len(world.commits) and self.may_tell(world, verdict.n):
            yield self._success(world, driver, now, f"d{driver} success by DUP b{now.batch}")

    def _success(self, world: World, driver: int, now: Driver, told: str) -> Move:
        """I5, checked when it is reported; then Spark's log, and the next batch."""
        writer = self.plans[driver][0]
        made = [
            (n, each)
            for n, each in enumerate(world.commits, start=1)
            if each.batch == now.batch and self.plans[each.owner][0] == writer
        ]
        if len(made) != 1:
            raise Violation(f"I5: {told}, which was committed {len(made)} times")
        ((n, each),) = made
        stale = [c for c, _ in each.pushes if n not in world.applied[c]]
        if stale:
            raise Violation(f"I5: {told}, and channels {stale} have not applied it")
        if self.success_is_own() and "ALREADY" not in told and each.attempt != now.known[0]:
            raise Violation(f"I5: {told}, for rows of attempt {each.attempt}")
        if self.lineage_of(driver) != self.lineage_of(each.owner):
            raise Violation(f"I5: {told}, for rows of another checkpoint")
        log = list(world.log)
        log[writer] = max(log[writer], now.batch)
        world = world._replace(log=tuple(log))
        if now.batch < len(self.plans[driver][1]):
            return told, self._at_batch(world, driver, now.batch + 1)
        return told, self._with(world, driver, Driver(ENDED))

    def _deliveries(self, world: World) -> Iterator[Move]:
        for driver, batch in sorted(world.begun):
            after, verdict = self.begin(world, driver, batch)
            if after != world.coordinator and len(world.owners) < self.scenario.attempts_max:
                opened = world._replace(coordinator=after, owners=(*world.owners, (driver, batch)))
                assert verdict.attempt == len(opened.owners)
                yield f"BEGIN d{driver} b{batch} -> a{verdict.attempt}", opened
        for attempt, task in sorted(world.tasks_on):
            driver, batch = world.owners[attempt - 1]
            where = self.plan_of(driver, batch).tasks[task]
            for run, channel in product(range(self.scenario.runs), where):
                yield from self._stage(world, (attempt, task, run, channel))
        for attempt, runs in world.asked:
            if self.may_decide(world, attempt, runs):
                yield from self._commit(world, attempt, runs)

    def _stage(self, world: World, what: tuple[int, int, int, int]) -> Iterator[Move]:
        attempt, task, run, channel = what
        chunk = (self.name_of(world.owners[attempt - 1][0]), attempt, task, run)
        after = machines.staged(world.channels[channel], chunk)
        if after != world.channels[channel] or what not in world.acked:
            staged = self._with_channel(world, channel, after)
            yield (
                f"STAGE a{attempt} task {task}/{run} ch{channel}",
                staged._replace(acked=world.acked | {what}),
            )

    def _commit(self, world: World, attempt: int, runs: tuple[int, ...]) -> Iterator[Move]:
        driver, batch = world.owners[attempt - 1]
        after, verdict = self.commit(world, attempt, self.manifest(world, attempt, runs))
        if after == world.coordinator or verdict.code or verdict.n <= len(world.commits):
            return
        made = Decided(driver, attempt, batch, machines.pushes_of(after, verdict.n))
        decided = world._replace(coordinator=after, commits=(*world.commits, made))
        yield f"COMMIT a{attempt} b{batch} -> n{verdict.n}", decided

    def _apply(self, world: World, n: int, channel: int, batch: BatchApply) -> Iterator[Move]:
        after, plan = self.apply(world, channel, batch)
        if isinstance(plan, Broken):
            raise Violation(f"I1: APPLY {n} ch{channel}: {plan.reason}")
        if isinstance(plan, ApplyPlan):
            applied = list(world.applied)
            applied[channel] = (*applied[channel], n)
            done = self._with_channel(world, channel, after)
            yield f"APPLY {n} ch{channel}", done._replace(applied=tuple(applied))

    def _drop(
        self, world: World, channel: int, writer: str, up_to: int, why: str
    ) -> Iterator[Move]:
        after = machines.dropped(world.channels[channel], writer, up_to)
        if after != world.channels[channel]:
            dropped = self._with_channel(world, channel, after)
            yield f"ch{channel} drops {writer} up to a{up_to} by {why}", dropped

    def _late_answers(self, world: World) -> Iterator[Move]:
        for index, writer in enumerate(self.scenario.writers):
            for channel in range(self.scenario.channels):
                up_to = self.floor(world, writer.name, channel)
                before = world.told[index][channel]
                if up_to > before:
                    row = list(world.told[index])
                    row[channel] = up_to
                    told = list(world.told)
                    told[index] = tuple(row)
                    text = f"F({writer.name}, ch{channel}) = {up_to} leaves"
                    yield text, world._replace(told=tuple(told))
                yield from self._drop(world, channel, writer.name, before, "a late F")

    # --- small changes ----------------------------------------------------------------------------

    def manifest(self, world: World, attempt: int, runs: tuple[int, ...]) -> Manifest:
        """The manifest that the driver of an attempt sends."""
        driver, batch = world.owners[attempt - 1]
        plan = self.plan_of(driver, batch)
        return machines.manifest_of(
            self.name_of(driver), attempt, plan.tasks, runs, plan.truncate, self.scenario.channels
        )

    def _at_batch(self, world: World, driver: int, batch: int) -> World:
        tasks = len(self.plan_of(driver, batch).tasks)
        now = Driver(RUNS, batch, (UNKNOWN,) * tasks)
        return self._with(world, driver, now)._replace(begun=world.begun | {(driver, batch)})

    @staticmethod
    def _with(world: World, driver: int, now: Driver) -> World:
        drivers = (*world.drivers[:driver], now, *world.drivers[driver + 1 :])
        return world._replace(drivers=drivers)

    @staticmethod
    def _with_channel(world: World, channel: int, after: int) -> World:
        channels = (*world.channels[:channel], after, *world.channels[channel + 1 :])
        return world._replace(channels=channels)

    # --- promises ---------------------------------------------------------------------------------

    def check(self, world: World) -> None:
        """I1, I2, I3 in one state."""
        newest: dict[int, int] = {}
        for n, made in enumerate(world.commits, start=1):
            writer = self.plans[made.owner][0]
            if made.batch <= newest.get(writer, 0):
                raise Violation(f"I2: n{n} is batch {made.batch} after {newest[writer]}")
            newest[writer] = made.batch
            for channel, batch in made.pushes:
                is_done = n in world.applied[channel]
                if not is_done and not machines.has_all(world.channels[channel], batch):
                    raise Violation(f"I1: chunks of n{n} are gone from ch{channel}")
        for channel, done in enumerate(world.applied):
            chain = [
                n for n, made in enumerate(world.commits, start=1) if channel in dict(made.pushes)
            ]
            if list(done) != chain[: len(done)]:
                raise Violation(f"I3: ch{channel} applied {list(done)} of the chain {chain}")

    def check_step(self, before: World, after: World) -> None:
        """I4 in one step."""
        if self.checks_i4 and before.coordinator != after.coordinator:
            for writer in self.scenario.writers:
                for channel in range(self.scenario.channels):
                    old = self.floor(before, writer.name, channel)
                    if self.floor(after, writer.name, channel) < old:
                        raise Violation(f"I4: F({writer.name}, ch{channel}) fell from {old}")

    def settle(self, world: World) -> World:
        """L1: what happens without drivers, to its end."""
        passed = []
        while True:
            shape = (world.coordinator, world.channels, world.applied, world.commits)
            if shape in self._settled:
                break
            passed.append(shape)
            move = next(self.settling(world), None)
            if move is None:
                self._check_settled(world)
                break
            world = move[1]
        self._settled.update(passed)
        return world

    def _check_settled(self, world: World) -> None:
        for n, made in enumerate(world.commits, start=1):
            for channel, _ in made.pushes:
                if n not in world.applied[channel]:
                    raise Violation(f"L1: n{n} never reaches ch{channel}")
        if machines.outbox_of(world.coordinator):
            raise Violation("L1: the outbox never empties")
        for channel, number in enumerate(world.channels):
            if machines.attempts_in(number):
                raise Violation(f"L1: {machines.attempts_in(number)} stay in ch{channel} for ever")

    def finish(self, world: World) -> None:
        """L2: for each writer a new driver commits all that is left, and it settles."""
        shape = (world.coordinator, world.channels, world.applied, world.commits, world.log)
        if shape in self._finished:
            return
        self._finished.add(shape)
        for index, writer in enumerate(self.scenario.writers):
            last = max(d for d, (w, _, _) in enumerate(self.plans) if w == index)
            for batch in range(world.log[index] + 1, len(writer.drivers[-1]) + 1):
                world = self._whole_batch(world, last, batch)
        self._run_out(world)

    def _whole_batch(self, world: World, driver: int, batch: int) -> World:
        """One batch of a driver that nobody disturbs."""
        name, plan = self.name_of(driver), self.plan_of(driver, batch)
        uuid = machines.uuid_of(200 + driver, batch)
        lineage = self.lineage_of(driver)
        after, verdict = machines.begin(
            world.coordinator, name, batch, uuid, lineage, self.scenario.channels
        )
        world = world._replace(coordinator=after)
        if verdict.name == "opened":
            world = self._with_owner(world, verdict.attempt, driver, batch)
            for task, where in enumerate(plan.tasks):
                for channel in where:
                    chunk = (name, verdict.attempt, task, 0)
                    held = machines.staged(world.channels[channel], chunk)
                    world = self._with_channel(world, channel, held)
            runs = (0,) * len(plan.tasks)
            decided = next(self._commit(world, verdict.attempt, runs), None)
            if decided is None:
                raise Violation(f"L2: batch {batch} of {name} cannot be committed")
            world = decided[1]
        elif verdict.name != "already":
            raise Violation(f"L2: a new driver of {name} hears {verdict.code} for batch {batch}")
        return self._run_out(world)

    @staticmethod
    def _with_owner(world: World, attempt: int, driver: int, batch: int) -> World:
        owners = [*world.owners, *[(driver, batch)] * (attempt - len(world.owners))]
        return world._replace(owners=tuple(owners))

    def _run_out(self, world: World) -> World:
        while (move := next(self.settling(world), None)) is not None:
            world = move[1]
        self._check_settled(world)
        return world
