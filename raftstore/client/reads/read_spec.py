"""The specification of a read: level, bounds, position, replica, pin; checked before it is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from math import floor
from typing import Any, Final, NamedTuple, TypedDict

from raftstore.client.position import Position
from raftstore.errors import ArgumentError
from raftstore.policy.routing import Prefer
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.reads import Consistency
from raftstore.types import Level, LevelName, NodeId, PreferName, Seq

BOUND_MAX: Final = 2**63 - 1
"""What a bound may be at most: the wire has signed numbers of 64 bits."""


SPECS_MAX: Final = 256
"""Specifications that are remembered."""


class Pin(NamedTuple):
    """A state that a node keeps for the pages of a scan, or for a snapshot."""

    node: NodeId
    number: int


class ReadOptions(TypedDict, total=False):
    """Options of every read. Without any, a read is linearizable."""

    level: Level | LevelName | None
    """linearizable (default), leader, bounded, any."""
    max_lag: int | None
    """Rows a replica may be behind what it knows to be committed; chooses level bounded. 0 is not
    "equal to the leader": a write that was acknowledged a moment ago may be missing."""
    max_staleness: float | None
    """Seconds a replica may be behind; chooses level bounded."""
    max_batches_behind: int | None
    """Spark micro-batches a replica may be behind; chooses level bounded."""
    at_least: Position | str | None
    """A position the replica must have applied; waits for it. Goes with every level, and alone
    chooses level any."""
    replica: str | None
    """Ask this node only (its name or id); for checks."""
    prefer: Prefer | PreferName | None
    """Which replica first: leader, nearest, any_in_bound (spreads the load)."""
    hedge: bool | None
    """True: ask the two best replicas at once and take the newer answer. False: never ask a second
    one while the first is alive. None: only once the first has been silent for a moment."""
    columns: Sequence[str] | None
    """Only these columns of each row."""
    timeout: float | None
    """Seconds; the client's default when not given."""


class CountOptions(ReadOptions, total=False):
    """Options of ``client.count``: those of a read, and the range."""

    start: Any
    stop: Any
    prefix: Any


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """The specification of a read; its keys or range and its timeout stay with the caller.

    Equal specifications may share a request.
    """

    level: Level
    max_lag: int | None = None
    at_least: Position | None = None
    replica: str | None = None
    max_staleness_ms: int | None = None
    max_batches_behind: int | None = None
    prefer: Prefer | None = None
    hedge: bool | None = None
    columns: tuple[str, ...] | None = None
    is_level_implied: bool = False
    """Nothing but a position was asked for."""
    pin: Pin | None = None
    """Read this state: that of the first page, whatever its level and bounds were."""
    hashed: int = field(init=False, repr=False, compare=False)
    """Taken once, as every get looks for others to share a request with."""

    def __post_init__(self) -> None:
        compared = tuple([getattr(self, each.name) for each in fields(self) if each.compare])
        object.__setattr__(self, "hashed", hash(compared))

    def __hash__(self) -> int:
        """Return the same number for equal specifications."""
        return self.hashed

    @property
    def needs_leader(self) -> bool:
        """Return whether only the leader can serve it."""
        return self.level in (Level.LINEARIZABLE, Level.LEADER)

    @property
    def may_share(self) -> bool:
        """Return whether it may share a request with equal ones: it names no position, replica or
        pin, and does not say whether to ask twice."""
        return (
            self.at_least is None
            and self.replica is None
            and self.hedge is None
            and self.pin is None
        )

    @property
    def has_bound(self) -> bool:
        """Return whether the read itself says how far behind it may be."""
        bounds = (self.max_lag, self.max_staleness_ms, self.max_batches_behind)
        return any(bound is not None for bound in bounds)

    def for_table(self, table: TableInfo) -> ReadSpec:
        """Return the specification as the table's own properties make it.

        A table without standby reads is read at its leader unless the read says otherwise
        (BLOG-18); a position alone says nothing of replicas.
        """
        if self.is_level_implied and self.level is Level.ANY and not table.standby_reads:
            return replace(self, level=Level.LEADER)
        return self

    def consistency(self, min_seq: Seq = Seq(0)) -> Consistency:
        """Return how a request says it; ``min_seq`` is of the channel that it is for."""
        return Consistency(
            level=self.level.value,
            min_seq=min_seq,
            max_lag=self.max_lag,
            max_staleness_ms=self.max_staleness_ms,
            max_batches_behind=self.max_batches_behind,
            pin=0 if self.pin is None else self.pin.number,
        )

    def min_seq(self, table: TableInfo, partition: int) -> Seq:
        """Return the seq that the replica must have applied of this partition.

        Raises PositionError when the position is of another table: ignoring it would let the read
        go back behind what the caller has seen.
        """
        if self.at_least is None:
            return Seq(0)
        self.at_least.check_table(table)
        seq = self.at_least.seq_of(table.uuid, partition)
        return Seq(0) if seq is None else seq


ANY_STATE: Final = ReadSpec(Level.ANY)
"""Whatever state a replica has."""


def pinned(pin: Pin) -> ReadSpec:
    """Return how to read a pinned state."""
    return ReadSpec(Level.ANY, pin=pin)


_known_specs: Final[dict[tuple[Any, ...], ReadSpec]] = {}


def spec_of(options: ReadOptions) -> ReadSpec:
    """Check options; ArgumentError names what is unknown, impossible or contradicts another.

    What was checked is remembered: a program has few kinds of reads and many of each.
    """
    if "timeout" in options:
        options = options.copy()
        del options["timeout"]
    given = tuple(options.items())
    # Types count: True is no number of rows, although it equals 1.
    key = (given, tuple([type(value) for _, value in given]))
    try:
        known = _known_specs.get(key)
    except TypeError:  # columns in a list, or nonsense
        return _checked_spec(options)
    if known is None:
        known = _checked_spec(options)
        if "at_least" in options:
            return known  # positions seldom come twice
        if len(_known_specs) >= SPECS_MAX:
            _known_specs.clear()
        _known_specs[key] = known
    return known


def _checked_spec(options: ReadOptions) -> ReadSpec:
    for name in options:
        if name not in ReadOptions.__annotations__:
            known = ", ".join(ReadOptions.__annotations__)
            raise ArgumentError(f"a read has no option {name!r}; there are {known}")
    bounds: dict[str, int | None] = {
        "max_lag": count_of("max_lag", options.get("max_lag"), "rows"),
        "max_staleness": duration_ms("max_staleness", options.get("max_staleness")),
        "max_batches_behind": count_of(
            "max_batches_behind", options.get("max_batches_behind"), "micro-batches"
        ),
    }
    at_least = options.get("at_least")
    given_level = options.get("level")
    given = [name for name, bound in bounds.items() if bound is not None]
    level = _level(given_level, has_bound=bool(given), has_position=at_least is not None)
    if given and level is not Level.BOUNDED:
        name = given[0]
        raise ArgumentError(
            f"{name}={options[name]} has no meaning at level {level.value}; "  # type: ignore[literal-required]
            "use level bounded"
        )
    return ReadSpec(
        level=level,
        max_lag=bounds["max_lag"],
        max_staleness_ms=bounds["max_staleness"],
        max_batches_behind=bounds["max_batches_behind"],
        at_least=None if at_least is None else Position.parse(at_least),
        replica=_text("replica", options.get("replica")),
        prefer=prefer_of(options.get("prefer")),
        hedge=_flag("hedge", options.get("hedge")),
        columns=_columns(options.get("columns")),
        is_level_implied=given_level is None and not given,
    )


def count_of(name: str, given: Any, unit: str) -> int | None:
    """Return a bound; ArgumentError for what is no whole number from 0 on."""
    if given is None:
        return None
    if type(given) is not int or not 0 <= given <= BOUND_MAX:
        raise ArgumentError(f"{name}={given!r} is no number of {unit}; use 0 or more")
    return given


def duration_ms(name: str, seconds: Any) -> int | None:
    """Return seconds as whole milliseconds; ArgumentError for what is no duration.

    Rounded down, as a bound is never loosened; what floating point adds or lacks is not counted.
    """
    if seconds is None:
        return None
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds * 1000 <= BOUND_MAX:  # NaN is in no range
        raise ArgumentError(f"{name}={seconds!r} is no number of seconds; use 0 or more, as in 2.5")
    milliseconds: int = floor(round(seconds * 1000, 6))
    return milliseconds


def prefer_of(given: Any) -> Prefer | None:
    """Return the order of replicas by its name; ArgumentError for an unknown one."""
    if given is None:
        return None
    try:
        return Prefer(given)
    except ValueError:
        known = ", ".join(Prefer)
        raise ArgumentError(f"prefer={given!r} is unknown; use one of {known}") from None


def _text(name: str, given: Any) -> str | None:
    if given is not None and not isinstance(given, str):
        raise ArgumentError(f"{name}={given!r} is no text")
    return given


def _flag(name: str, given: Any) -> bool | None:
    if given is not None and type(given) is not bool:
        raise ArgumentError(f"{name}={given!r} is neither True nor False")
    return given


def _columns(given: Any) -> tuple[str, ...] | None:
    if given is None:
        return None
    columns = () if isinstance(given, str | bytes) or not isinstance(given, Sequence) else given
    if not columns or not all(isinstance(name, str) and name for name in columns):
        raise ArgumentError(f"columns={given!r} is no list of column names; give one or more")
    return tuple(dict.fromkeys(columns))


def _level(given: Level | str | None, *, has_bound: bool, has_position: bool) -> Level:
    if given is None:
        if has_bound:
            return Level.BOUNDED
        return Level.ANY if has_position else Level.LINEARIZABLE
    try:
        return Level(given)
    except ValueError:
        levels = ", ".join(level.value for level in Level)
        raise ArgumentError(f"the level {given!r} is unknown; use one of {levels}") from None
