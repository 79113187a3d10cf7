"""Drivers that commit what nobody staged, and channels that are asked before a batch is decided."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model import machines
from tests.model.states import World
from tests.model.world import Model, Move


class RudeDrivers(Model):
    """COMMIT is sent at any moment, whatever became of its chunks.

    A yes of a channel is kept and counts at any later moment: after its chunks were dropped, after
    the attempt ended, after another leader took over. A no changes nothing, so it is no move.
    """

    def may_send(self, world: World, needed: set[tuple[int, int, int, int]]) -> bool:
        """Always."""
        return True

    def may_decide(self, world: World, attempt: int, runs: tuple[int, ...]) -> bool:
        """When each channel with a part once said that it holds it."""
        return all(
            (attempt, runs, part.partition) in world.held
            for part in self.manifest(world, attempt, runs).parts
            if part.chunks
        )

    def moves(self, world: World) -> Iterator[Move]:
        """With the answers of channels."""
        yield from super().moves(world)
        for attempt, runs in world.asked:
            manifest = self.manifest(world, attempt, runs)
            writer = self.name_of(world.owners[attempt - 1][0])
            for part in manifest.parts:
                told = (attempt, runs, part.partition)
                channel = world.channels[part.partition]
                if told not in world.held and machines.holds(
                    channel, writer, attempt, manifest, part
                ):
                    text = f"ch{part.partition} holds its part of a{attempt}"
                    yield text, world._replace(held=world.held | {told})


class DecidedUnseen(RudeDrivers):
    """A manifest is believed without asking the channels."""

    def may_decide(self, world: World, attempt: int, runs: tuple[int, ...]) -> bool:
        """Always."""
        return True


class OneYesIsEnough(RudeDrivers):
    """The first channel that holds its part lets the batch be decided."""

    def may_decide(self, world: World, attempt: int, runs: tuple[int, ...]) -> bool:
        """By any of them."""
        return any(told[:2] == (attempt, runs) for told in world.held)
