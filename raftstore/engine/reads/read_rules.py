"""How far behind a bounded read may be, and whether a state is within that: pure rules (S7.3).

Three bounds, each optional: rows not applied, time for which the state may be incomplete, and
micro-batches not applied. They are not mixed: the request's hold,
if it names any, else the table's, else the node's. A state is served only if every one holds.

What is not known is beyond every bound. The age of a state is known by round trips alone
(``raftstore.core.proof_requests``); the number of rows and batches by what the leader reported.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from raftstore.config import FRAME_BYTES_MAX
from raftstore.core.replica import DISPUTED
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.errors import (
    LagExceededError,
    LagUnknownError,
    NotUpToBoundError,
    PayloadTooLargeError,
    QueryError,
    Refusal,
    SchemaError,
    UnavailableError,
    UnknownChannelError,
)
from raftstore.protocol.machines import MachineQuery, ReplicaRead
from raftstore.protocol.reads import Bounds, Get
from raftstore.types import Role, Seq

GET_BYTES_MAX: Final = FRAME_BYTES_MAX // 2
"""Keys and values of one answer to a Get; with the rest of the answer they fit into a frame."""
BEYOND_BOUNDS: Final = (LagExceededError, LagUnknownError)
"""What ``beyond_bounds`` refuses with."""


UNBOUNDED: Final = Bounds()


class ReplicaFreshness(NamedTuple):
    """How far behind one state is; None: not known, which is infinitely far."""

    lag: int | None
    leader_info_age_ms: int | None
    """Age of the report of the leader that the lag is counted from; None: none has come."""
    as_of_ms: int | None
    """Everything committed before this moment, of the node's clock, is in the state."""
    batches_behind: tuple[int, int] | None
    """At least and at most: above its own log a replica knows only what was reported to it, and
    that a batch needs a seq."""
    is_trusted: bool
    """False when the node stood still and nobody has proven anything since."""
    now_ms: int

    @property
    def staleness_ms(self) -> int | None:
        """For how long the state may be incomplete. A clock that went back proves nothing."""
        if self.as_of_ms is None or self.as_of_ms > self.now_ms:
            return None
        return self.now_ms - self.as_of_ms


def bounds_of_request(request: ReplicaRead) -> Bounds:
    """The bounds that the request itself names."""
    return Bounds(request.max_lag, request.max_staleness_ms, request.max_batches_behind)


def too_many_keys(request: ReplicaRead, keys_max: int) -> Refusal | None:
    """Refuse what would keep the node from everything else for too long."""
    if not isinstance(request, Get) or len(request.keys) <= keys_max:
        return None
    text = f"{len(request.keys)} keys in one request, the limit is {keys_max}; split it"
    return Refusal(PayloadTooLargeError, text)


def rows_too_large(request: Get, found: int) -> Refusal:
    """Refuse what would be larger than an answer can be; ``found``: rows that are."""
    text = (
        f"the first {found} of {len(request.keys)} rows have more than the {GET_BYTES_MAX} bytes "
        "that one answer may have; ask for fewer keys at a time"
    )
    return Refusal(PayloadTooLargeError, text)


def in_doubt(runner: ChannelRunner) -> str:
    """Says that a replica may have lost acknowledged records (S0.6), and what ends that."""
    return (
        "in doubt on this node: after its last stop it may lack acknowledged records "
        f"(durability {runner.durable.durability.label}); {runner.core.doubt}"
    )


def serving_refusal(runner: ChannelRunner) -> Refusal | None:
    """Why the channel serves nothing here now, whatever the level."""
    name = runner.name
    if not runner.has_rows:  # W7
        text = "is a witness on this node and has no rows; ask another replica"
        return Refusal(UnavailableError, f"channel {name} {text}")
    if runner.stopped_reason is not None:
        return Refusal(UnavailableError, f"channel {name} stopped serving: {runner.stopped_reason}")
    if runner.core.is_disputed:  # S13
        return Refusal(UnavailableError, f"channel {name} serves nothing now: {DISPUTED}")
    if runner.core.is_recovering:  # S0.3, S0.6
        state = in_doubt(runner) if runner.core.doubt else "recovering on this node"
        return Refusal(UnavailableError, f"channel {name} is {state}; ask another replica")
    # What a damaged table says is verified, so a leader serves until another replica takes over.
    if runner.table_damage is not None and runner.elector.role is not Role.LEADER:
        text = "has a damaged table on this node, which is being replaced; ask another replica"
        return Refusal(UnavailableError, f"channel {name} {text}")
    if runner.unserved_until:  # S10
        text = "repeats an apply that a stop of this node interrupted; ask another replica"
        return Refusal(UnavailableError, f"channel {name} {text}")
    return None


def restoring_refusal(runner: ChannelRunner) -> Refusal | None:
    """Why no row of the table is read or written now: it is being filled from a backup, and part of
    a table is never taken for the whole. Asked by what serves rows, not by what keeps replicas.

    A replica of a channel set knows by its own state, too, whether it has all that came: it may be
    behind the end of a restore that the catalog knows.
    """
    is_whole = runner.commands is None or runner.commands.is_whole
    if runner.table_settings.restoring is None and is_whole:
        return None
    what = "table" if runner.commands is None else "channel set"
    text = (
        f"channel {runner.name} is of a {what} that is being restored from a backup; wait for the "
        f"restore to end, run it again if it was stopped, or drop the {what}"
    )
    return Refusal(UnavailableError, text)


def kind_refusal(request: ReplicaRead, runner: ChannelRunner) -> Refusal | None:
    """Why a channel is not asked in this way: a table has no machine to ask, a channel set no rows
    to read. To read no key asks for nothing but how fresh the replica is, of either."""
    if isinstance(request, MachineQuery):
        if runner.commands is not None:
            return None
        text = f"channel {runner.name} is of a table, which has no state machine; read its rows"
        return Refusal(SchemaError, text)
    if runner.commands is None or (isinstance(request, Get) and not request.keys):
        return None
    text = f"channel {runner.name} is of a channel set, which has no rows; query its state machine"
    return Refusal(SchemaError, text)


def closing_refusal(runner: ChannelRunner) -> Refusal:
    """The refusal of requests that wait for a channel when it is closed."""
    if runner.is_reopened:
        text = f"channel {runner.name} is opened anew on this node, from another log or table"
        return Refusal(UnavailableError, f"{text}; retry")
    return Refusal(UnknownChannelError, "the table was dropped")


def bounds_problem(bounds: Bounds) -> Refusal | None:
    """The fault of the bounds themselves."""
    if bounds == UNBOUNDED:
        return None
    for name in Bounds.__struct_fields__:
        bound = getattr(bounds, name)
        if bound is not None and bound < 0:
            return Refusal(SchemaError, f"{name} {bound} is negative; use 0 or more")
    return None


def beyond_bounds(name: str, freshness: ReplicaFreshness, bounds: Bounds) -> Refusal | None:
    """Why a state of the channel ``name`` is not served, or None (KLIP-39: the bound itself is)."""
    return (
        _beyond_rows(name, freshness, bounds.max_lag)
        or _beyond_time(name, freshness, bounds.max_staleness_ms)
        or _beyond_batches(name, freshness, bounds.max_batches_behind)
    )


def _beyond_rows(name: str, freshness: ReplicaFreshness, bound: int | None) -> Refusal | None:
    if bound is None:
        return None
    lag, age = freshness.lag, freshness.leader_info_age_ms
    if lag is None:
        known = "no leader has reported its position"
        if age is not None:
            known = f"the leader reported its position {age} ms ago, which is too long"
        if not freshness.is_trusted:
            known = "this node was paused, and no leader has proven its position since"
        return Refusal(LagUnknownError, f"lag of {name} is unknown here ({known})")
    text = f"lag {lag} > {bound} rows in {name}"
    return Refusal(LagExceededError, text) if lag > bound else None


def _beyond_time(name: str, freshness: ReplicaFreshness, bound: int | None) -> Refusal | None:
    if bound is None:
        return None
    # S7.3: what no round trip has proven is unknown, however lately the leader was heard.
    age = freshness.staleness_ms
    if age is None:
        return Refusal(
            LagUnknownError, f"age of the state of {name} is unknown here (bound {bound} ms)"
        )
    text = f"state of {name} known complete as of {age} ms ago > {bound} ms"
    return Refusal(LagExceededError, text) if age > bound else None


def _beyond_batches(name: str, freshness: ReplicaFreshness, bound: int | None) -> Refusal | None:
    if bound is None:
        return None
    behind = freshness.batches_behind
    if behind is None:
        text = f"micro-batches that {name} is behind are unknown here (bound {bound})"
        return Refusal(LagUnknownError, text)
    fewest, most = behind
    if most <= bound:
        return None
    count = f"{most}" if fewest == most else f"{fewest} to {most}"
    return Refusal(LagExceededError, f"{count} > {bound} micro-batches behind in {name}")


def may_be_proven(freshness: ReplicaFreshness, bounds: Bounds) -> bool:
    """Whether waiting may bring a state that is beyond its bounds within them.

    Rows are not waited for: a replica behind by rows refuses at once, and the client asks another.
    """
    if not freshness.is_trusted:
        return True
    if _beyond_rows("", freshness, bounds.max_lag) is not None:
        return False
    behind, bound = freshness.batches_behind, bounds.max_batches_behind
    return bound is None or (behind is not None and behind[0] <= bound)


def needs_proof(freshness: ReplicaFreshness, bounds: Bounds, proven_ms: int | None) -> bool:
    """Whether a round trip is missing, and not only the application of what is committed.

    ``proven_ms``: the newest moment for which it is proven how far the channel was committed.
    """
    if not freshness.is_trusted:
        return True
    if _beyond_batches("", freshness, bounds.max_batches_behind) is not None:
        return True
    bound = bounds.max_staleness_ms
    return bound is not None and (proven_ms is None or freshness.now_ms - proven_ms > bound)


def unconfirmed_refusal(name: str, timeout_ms: int, *, applied: Seq, committed: Seq) -> Refusal:
    """A read at the leader whose deadline passed before it might be answered: the core says so when
    a quorum confirmed the leader and what was committed is applied."""
    text = f"channel {name}: no quorum confirmed the leader"
    if applied < committed:
        text += f", or seq {applied} of {committed} that are committed is all that was applied,"
    return Refusal(QueryError, f"{text} within {timeout_ms} ms")


def late_refusal(
    name: str, request: ReplicaRead, *, applied: Seq, wanted: Seq, known_commit: Seq
) -> Refusal:
    """A read whose deadline passed before the position it must hold was applied."""
    what = f"channel {name}: applied seq {applied} has not reached {wanted}"
    took = f"within {request.timeout_ms} ms"
    if applied >= request.min_seq:  # only the confirmed position of a linearizable read is missing
        return Refusal(QueryError, f"{what} {took}")
    if wanted > known_commit:
        took += f"; seq {known_commit} is the highest known here to be committed: retry, or check"
        took += " where the position comes from"
    return Refusal(NotUpToBoundError, f"{what} {took}")
