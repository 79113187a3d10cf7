"""Snapshots over several channels while commits are decided and applied: I6 and I7.

Vectors and heads are the product's: from ``apply_txn`` and ``plan_apply``. A replica may be behind
by any number of batches; a reader asks each channel at another moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import chain, combinations
from typing import NamedTuple

from raftstore.state_machines.batches.staging import BatchHead
from tests.model import machines
from tests.model.states import Violation

Touched = tuple[int, ...]
Vector = tuple[int, ...]


@cache
def histories(commits: tuple[Touched, ...], channels: int) -> tuple[tuple[BatchHead, ...], ...]:
    """Per channel the heads of its states, oldest first, once all commits are applied."""
    coordinator = machines.EMPTY
    states = [machines.EMPTY] * channels
    heads = [[BatchHead(0, 0, (0,) * channels)] for _ in range(channels)]
    for number, touched in enumerate(commits, start=1):
        uuid = machines.uuid_of(0, number)
        coordinator, opened = machines.begin(coordinator, "w", number, uuid, "c", channels)
        for channel in touched:
            chunk = ("w", opened.attempt, 0, 0)
            states[channel] = machines.staged(states[channel], chunk)
        manifest = machines.manifest_of("w", opened.attempt, (touched,), (0,), False, channels)
        coordinator, made = machines.commit(coordinator, "w", number, opened.attempt, manifest)
        for channel, batch in machines.pushes_of(coordinator, made.n):
            states[channel], _ = machines.applied(states[channel], batch)
            heads[channel].append(machines.head_of(states[channel]))
    return tuple(map(tuple, heads))


class Session(NamedTuple):
    """A reader between its snapshots: the highest (n, V) it has seen, and what it has read of the
    snapshot that it takes: per channel (n, V) of the reply."""

    floor: tuple[int, Vector]
    replies: tuple[tuple[int, Vector] | None, ...]
    taken: tuple[tuple[int, Vector], ...] = ()


class Reading(NamedTuple):
    """Which commits are decided, how many each channel has applied, and the reader."""

    commits: tuple[Touched, ...]
    applied: tuple[int, ...]
    session: Session


class Readers:
    """One reader that takes two snapshots, each in one round, from replicas that may be behind."""

    has_session_floor = True
    takes_latest = False
    asks_for_a_token = False

    def __init__(self, channels: int, commits_max: int) -> None:
        self.channels = channels
        self.commits_max = commits_max
        self.subsets = tuple(
            chain.from_iterable(
                combinations(range(channels), size) for size in range(1, channels + 1)
            )
        )

    def initial(self) -> Reading:
        """Nothing is written and nothing read."""
        nothing = (0,) * self.channels
        session = Session((0, nothing), (None,) * self.channels)
        return Reading((), nothing, session)

    def moves(self, state: Reading) -> Iterator[tuple[str, Reading]]:
        """A commit is decided, a channel applies one, a replica answers, a snapshot is done."""
        if len(state.commits) < self.commits_max:
            for touched in self.subsets:
                decided = (*state.commits, touched)
                yield f"COMMIT {len(decided)} on {touched}", state._replace(commits=decided)
        heads = histories(state.commits, self.channels)
        for channel in range(self.channels):
            if state.applied[channel] + 1 < len(heads[channel]):
                applied = list(state.applied)
                applied[channel] += 1
                text = f"APPLY {heads[channel][applied[channel]].n} ch{channel}"
                yield text, state._replace(applied=tuple(applied))
        if len(state.session.taken) < 2:
            yield from self._reads(state, heads)

    def _reads(
        self, state: Reading, heads: tuple[tuple[BatchHead, ...], ...]
    ) -> Iterator[tuple[str, Reading]]:
        session = state.session
        missing = [c for c, reply in enumerate(session.replies) if reply is None]
        for channel in missing:
            for head in heads[channel][: state.applied[channel] + 1]:
                replies = list(session.replies)
                replies[channel] = (head.n, head.vector)
                heard = session._replace(replies=tuple(replies))
                yield f"read ch{channel} = {head.n}", state._replace(session=heard)
                if self.asks_for_a_token:  # one replica of one channel reports n for all
                    token = session._replace(replies=((head.n, head.vector),) * self.channels)
                    yield f"token {head.n} of ch{channel}", state._replace(session=token)
        if not missing:
            yield from self._take(state, heads)

    def _take(
        self, state: Reading, heads: tuple[tuple[BatchHead, ...], ...]
    ) -> Iterator[tuple[str, Reading]]:
        session = state.session
        replies = [reply for reply in session.replies if reply is not None]
        candidates = [*replies, session.floor] if self.has_session_floor else replies
        n, vector = max(candidates)
        if self.takes_latest:
            self._check_torn(state, tuple(reply[0] for reply in replies))
        for channel, (found, _) in enumerate(replies):
            if not (self.takes_latest or self.asks_for_a_token) and found > vector[channel]:
                raise Violation(f"a reply of ch{channel} lies above the vector {vector}")
            # Late ones are read again, as of the vector: possible once the channel is so far.
            if vector[channel] > heads[channel][state.applied[channel]].n:
                return
        self._check(state, n, vector)
        fresh = Session((n, vector), (None,) * self.channels, (*session.taken, (n, vector)))
        yield f"snapshot {n}", state._replace(session=fresh)

    def _check(self, state: Reading, n: int, vector: Vector) -> None:
        if vector != self._vector_of(state, n):
            raise Violation(f"I6: the snapshot at {n} reads {vector}")
        for before_n, before in state.session.taken:
            if n < before_n or any(new < old for new, old in zip(vector, before, strict=True)):
                raise Violation(f"I7: a snapshot at {n} follows one at {before_n}")

    def _check_torn(self, state: Reading, found: Vector) -> None:
        prefixes = [self._vector_of(state, n) for n in range(len(state.commits) + 1)]
        if found not in prefixes:
            raise Violation(f"I6: torn, the channels are at {found}")

    def _vector_of(self, state: Reading, n: int) -> Vector:
        """The fold of the first n commits, from the commits themselves."""
        return tuple(
            max((m for m, touched in enumerate(state.commits[:n], 1) if c in touched), default=0)
            for c in range(self.channels)
        )


class LatestOfEachChannel(Readers):
    """A snapshot is whatever each channel has now."""

    takes_latest = True


class NoSessionFloor(Readers):
    """Each snapshot begins from nothing."""

    has_session_floor = False


class TokenReaders(Readers):
    """The position comes from one replica; then each channel is read as of it."""

    asks_for_a_token = True


class TokenWithoutSessionFloor(TokenReaders):
    """The same, beginning from nothing each time."""

    has_session_floor = False
