"""The protocol with one rule changed each: what the model must find wrong with it."""

from __future__ import annotations

from collections.abc import Iterator

from raftstore.protocol.batches import Manifest
from raftstore.protocol.staged import BatchApply
from raftstore.state_machines.batches.staging import ApplyPlan, Broken, Known, NotYet
from raftstore.state_machines.batches.txn_records import Verdict
from tests.model import machines
from tests.model.states import World
from tests.model.world import Model


class TimeToLiveAtTheChannel(Model):
    """A channel drops staged chunks when it likes."""

    def may_drop(self, world: World) -> Iterator[tuple[int, str, int]]:
        """Anything, at any moment."""
        for channel, number in enumerate(world.channels):
            for writer, attempt in machines.attempts_in(number):
                yield channel, writer, attempt


class PresumedAbort(Model):
    """An attempt that is not decided is called dead, and that is not written down."""

    keeps_answers = True
    checks_i4 = False

    def floor(self, world: World, writer: str, channel: int) -> int:
        """Without the term for the open attempt."""
        head = machines.table_of(world.coordinator)
        waiting = [
            entry.attempt
            for entry in machines.outbox_of(world.coordinator)
            if entry.writer == writer and channel in entry.waiting
        ]
        return 0 if head is None else min([head.next_attempt, *waiting]) - 1


class FloorIgnoresTheOutbox(Model):
    """Only the open attempt is kept, not what was decided and is on its way."""

    checks_i4 = False

    def floor(self, world: World, writer: str, channel: int) -> int:
        """Without the term for commits that are not acknowledged."""
        head = machines.table_of(world.coordinator)
        found = machines.writer_of(world.coordinator, writer)
        if head is None:
            return 0
        is_open = found is not None and found.open is not None
        return (found.open.attempt if is_open else head.next_attempt) - 1  # type: ignore[union-attr]


class CompareAndSetByBatch(Model):
    """COMMIT asks only whether the batch is the next one; of a batch that is in, it says so."""

    keeps_answers = True
    checks_i4 = False

    def success_is_own(self) -> bool:
        """Looked at by a mutation of its own."""
        return False

    def commit(self, world: World, attempt: int, manifest: Manifest) -> tuple[int, Verdict]:
        """Accepted from any attempt."""
        driver, batch = world.owners[attempt - 1]
        name, coordinator = self.name_of(driver), world.coordinator
        found = machines.writer_of(coordinator, name)
        assert found is not None
        if found.last is not None and batch <= found.last.batch_id:
            return coordinator, Verdict("ok", n=found.last.n, batch_id=batch)
        coordinator = machines.reopened(coordinator, name, batch, attempt)
        return machines.commit(coordinator, name, batch, attempt, manifest)


class CompareAndSetWithoutGarbage(CompareAndSetByBatch):
    """The same, and nothing staged is ever dropped before a commit."""

    keeps_answers = False
    checks_l1 = checks_l2 = False

    def floor(self, world: World, writer: str, channel: int) -> int:
        """No floor: channels never learn that an attempt is finished."""
        return 0


class CompareAndSetTellsOthers(CompareAndSetWithoutGarbage):
    """The same, and a driver takes a success for its own."""

    def success_is_own(self) -> bool:
        """Success of COMMIT means: my rows."""
        return True


class CompareAndSetKeepsGarbage(CompareAndSetWithoutGarbage):
    """The same, and what is left over is looked for."""

    checks_l1 = True


class SuccessAtCommit(Model):
    """A decided batch is a success at once."""

    def may_tell(self, world: World, n: int) -> bool:
        """Success is reported without a look at what the channels have applied."""
        return True

    def may_tell_already(self, world: World, n: int) -> bool:
        """As it is."""
        return super().may_tell(world, n)


class AlreadyBeforeApplied(Model):
    """COMMIT waits for the channels, ALREADY does not."""

    def may_tell_already(self, world: World, n: int) -> bool:
        """ALREADY is reported without a look at what the channels have applied."""
        return True


class NoChain(Model):
    """A channel applies a commit when it comes."""

    def apply(
        self, world: World, channel: int, batch: BatchApply
    ) -> tuple[int, ApplyPlan | NotYet | Known | Broken]:
        """Each once, in any order."""
        return machines.applied_unchained(world.channels[channel], batch)


class LowerBatchesAreDuplicates(Model):
    """A batch id up to the last one is called a duplicate, whatever checkpoint it counts in."""

    checks_l2 = False

    def lineage_of(self, driver: int) -> str:
        """Each entry of the scenario has a checkpoint of its own."""
        return f"c{self.plans[driver][0]}"

    def begin(self, world: World, driver: int, batch: int) -> tuple[int, Verdict]:
        """ALREADY for everything that is past."""
        found = machines.writer_of(world.coordinator, self.name_of(driver))
        if found is not None and found.last is not None and batch <= found.last.batch_id:
            return world.coordinator, Verdict("already", n=found.last.n)
        uuid = machines.uuid_of(driver, batch)
        return machines.begin(
            world.coordinator, self.name_of(driver), batch, uuid, "c", self.scenario.channels
        )


class CheckpointsApart(LowerBatchesAreDuplicates):
    """The rule as it is, for the same scenario."""

    def begin(self, world: World, driver: int, batch: int) -> tuple[int, Verdict]:
        """By the product."""
        return Model.begin(self, world, driver, batch)


class BeginInStreamWriter(Model):
    """The driver's instance that commits begins, too: Spark makes another one for that."""

    def commit(self, world: World, attempt: int, manifest: Manifest) -> tuple[int, Verdict]:
        """Its BEGIN comes first."""
        driver, batch = world.owners[attempt - 1]
        uuid = machines.uuid_of(100 + driver, batch)
        coordinator, _ = machines.begin(
            world.coordinator, self.name_of(driver), batch, uuid, "c", self.scenario.channels
        )
        return Model.commit(self, world._replace(coordinator=coordinator), attempt, manifest)
