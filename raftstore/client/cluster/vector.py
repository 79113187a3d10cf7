"""One state of all channels of a table out of what each of them says (docs/protocol.md).

Every commit publishes a vector: per partition, the newest commit up to it that touches it. A
reader of all channels asks each, at any replica, which commit its state holds. The highest names
the snapshot, and its vector says which commit each channel should hold: what holds it stands, what
is behind is asked again, as of that commit. Nothing can be ahead: a higher commit would have been
the highest. A reader that remembers the highest commit it ever took begins from it and so never
goes back.

Pure: messages are sent and received in ``snapshots``.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from raftstore.errors import DecodeError

Vector = tuple[int, ...]

TABLES_MAX: Final = 10_000
"""Tables whose newest commit a client remembers; the one read longest ago is forgotten first."""


class Commit(NamedTuple):
    """A commit of a table: its number, and the vector that was published with it."""

    n: int = 0
    vector: Vector = ()
    """() while there is no commit at all."""

    def at(self, partition: int) -> int:
        """Return the newest commit up to this one that touches the partition; 0 for none."""
        return self.vector[partition] if self.vector else 0


def commit_of(vector: Vector) -> Commit:
    """Return the commit that a vector is of; later ones that touched nothing have the same."""
    return Commit(max(vector, default=0), vector)


class VectorRound:
    """The answers of one round. What no store may answer raises DecodeError, always."""

    def __init__(self, partitions: int, floor: Commit = Commit()) -> None:  # noqa: B008 - immutable
        """``floor``: the snapshot is not of before this commit."""
        self._partitions = partitions
        self._top = floor
        self._found: dict[int, int] = {}
        self._check_vector(floor)

    def on_reply(self, partition: int, n: int, vector: Vector) -> None:
        """Take in which commit the state of a partition holds, and the vector known there."""
        said = Commit(n, vector)
        self._check_vector(said)
        if said.at(partition) != n:
            raise _broken(
                f"partition {partition} holds commit {n}, whose vector says {said.at(partition)}"
            )
        lower, higher = sorted((self._top, said), key=lambda commit: commit.n)
        for other in range(self._partitions):
            if lower.at(other) > higher.at(other) or (
                lower.n == higher.n and lower.at(other) != higher.at(other)
            ):
                raise _broken(
                    f"commits {lower.n} and {higher.n} say that partition {other} was touched by "
                    f"{lower.at(other)} and {higher.at(other)} last"
                )
        self._found[partition] = n
        self._top = higher

    def on_late_reply(self, partition: int, n: int) -> None:
        """Take in that a partition was read as of the commit that ``late`` names."""
        if n != self._top.at(partition):
            raise _broken(
                f"partition {partition} was asked for the state of commit "
                f"{self._top.at(partition)} and answered with that of {n}"
            )
        self._found[partition] = n

    def late(self) -> dict[int, int]:
        """Return the partitions that are behind, once all have replied, and as of which commit to
        ask them again."""
        late = {}
        for partition in range(self._partitions):
            found, wanted = self._found.get(partition, -1), self._top.at(partition)
            if found > wanted:
                raise _broken(
                    f"partition {partition} holds commit {found}, and by the vector of commit "
                    f"{self._top.n} none after {wanted} touched it"
                )
            if found < wanted:
                late[partition] = wanted
        return late

    def result(self) -> Commit:
        """Return the commit that the snapshot is of."""
        return self._top

    def _check_vector(self, commit: Commit) -> None:
        vector = commit.vector
        fits = len(vector) == self._partitions or (not vector and commit.n == 0)
        if not fits or min(vector, default=0) < 0 or max(vector, default=0) > commit.n:
            raise _broken(
                f"commit {commit.n} has the vector {vector!r:.80} over {self._partitions} "
                "partitions"
            )


class Floors:
    """The highest commit that a client has seen, of each table by its uuid."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, Commit] = OrderedDict()

    def of(self, table: bytes) -> Commit:
        """Return what no later snapshot of the table may be before."""
        return self._seen.get(table, Commit())

    def note(self, table: bytes, vector: Vector) -> None:
        """Remember what was seen, unless something newer is remembered already."""
        commit = commit_of(vector)
        if commit.n > self.of(table).n:
            self._seen[table] = commit
        if table in self._seen:
            self._seen.move_to_end(table)
        if len(self._seen) > TABLES_MAX:
            self._seen.popitem(last=False)


def _broken(what: str) -> DecodeError:
    return DecodeError(
        f"the table's channels contradict each other: {what}; nothing was read. "
        "Check the replicas with 'raftstore channel verify'"
    )
