"""Copies of tables on their way to a simulated node, and what a crash leaves of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from raftstore.ports.table_copy import CopyDigest, Pair, ResumePoint
from raftstore.testing.sim_contents import SimContents
from raftstore.types import ChannelId, History


@dataclass(slots=True, eq=False)
class Staged:
    """A copy that is not complete, as the disk holds it."""

    position: History
    batches: list[list[Pair]] = field(default_factory=list)
    in_files: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    """Whole files, if it is copied in these."""
    parts: dict[str, bytes] = field(default_factory=dict)
    """Files that are not whole, as far as they are there."""
    is_durable: bool = False

    def lose_power(self, chance: random.Random) -> None:
        """The newest batches may be gone, as LevelDB loses what it had not written out."""
        if not self.is_durable:
            del self.batches[chance.randint(0, len(self.batches)) :]
        for name, content in self.parts.items():
            self.parts[name] = content[: chance.randint(0, len(content))]


class SimCopies:
    """All of one simulated node."""

    def __init__(self) -> None:
        self.staged: dict[ChannelId, Staged] = {}
        self.switched: dict[ChannelId, SimContents] = {}
        """Copied tables that are complete: after a crash they are the channels' own."""

    def forget(self, channel: ChannelId) -> None:
        """The channel is not here any more."""
        self.staged.pop(channel, None)
        self.switched.pop(channel, None)

    def lose_power(self) -> None:
        """Lose some of what was not durable."""
        chance = random.Random(sum(len(each.batches) for each in self.staged.values()))
        for staged in self.staged.values():
            staged.lose_power(chance)


class SimCopy:
    """ports.TableCopy: contents that are no table of any channel until they are complete."""

    in_files = False

    def __init__(
        self,
        channel: ChannelId,
        staged: Staged,
        copies: SimCopies,
        reach: Callable[[str], bool],
    ) -> None:
        self.channel = channel
        self._staged = staged
        self._copies = copies
        self._reach = reach
        self._contents = SimContents()
        self._digest = CopyDigest()
        self._last_key = b""

    @property
    def position(self) -> History:
        """The position of the table that is copied."""
        return self._staged.position

    def write(self, pairs: list[Pair]) -> None:
        """Take in what comes next in key order."""
        if not self._reach("copy.before-write"):
            self._copies.staged[self.channel] = self._staged
            self._staged.batches.append(pairs)

    def finish(self) -> None:
        """All pairs are written."""
        if not self._reach("copy.before-sync"):
            self._staged.is_durable = True
            self._reach("copy.after-sync")

    def verify(self, bytes_max: int) -> bool:
        """Read everything back."""
        del bytes_max
        self._contents, self._digest, self._last_key = SimContents(), CopyDigest(), b""
        for pairs in self._staged.batches:
            self._contents.take(self.channel, pairs)
            self._digest.add(pairs)
            self._last_key = pairs[-1][0]
        return True

    def found(self) -> tuple[bytes, int, History]:
        """Digest, pairs and applied position as they were read back."""
        return self._digest.digest(), self._digest.pairs, self._contents.applied

    def resume_point(self) -> ResumePoint:
        """How far what was read back goes."""
        return ResumePoint(self._last_key, self._digest.pairs, self._digest.digest())

    def complete(self) -> None:
        """The switch: from now on this is the channel's table after a crash."""
        if not self._reach("copy.before-switch"):
            self._copies.staged.pop(self.channel, None)
            self._copies.switched[self.channel] = self._contents
            self._reach("copy.after-switch")

    def abandon(self) -> None:
        """Remove it."""
        if self._copies.staged.get(self.channel) is self._staged:
            del self._copies.staged[self.channel]
