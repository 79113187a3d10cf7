"""How a read is wished for: level, bounds, position, replica; checked before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from raftstore.client.position import Position
from raftstore.errors import ConfigError
from raftstore.types import Level, Seq


class ReadOptions(TypedDict, total=False):
    """Options of every read. Without any, a read is linearizable."""

    level: Level | str
    """linearizable (default), leader, bounded, any."""
    max_lag: int | None
    """Rows a replica may be behind; chooses level bounded. 0: nothing known to be missing."""
    max_staleness: float | None
    """Seconds a replica may be behind: not available yet, refused."""
    at_least: Position | str | None
    """A position the replica must have applied; chooses level any, waits for it."""
    replica: str | None
    """Ask this node only (its name or id); for checks."""
    timeout: float | None
    """Seconds; the client's default when not given."""


@dataclass(frozen=True, slots=True)
class ReadWish:
    """Checked options; ``timeout`` stays with the caller."""

    level: Level
    max_lag: int | None
    at_least: Position | None
    replica: str | None

    @property
    def needs_leader(self) -> bool:
        """Return whether only the leader can serve it."""
        return self.level in (Level.LINEARIZABLE, Level.LEADER)

    def min_seq(self, table_uuid: bytes, partition: int) -> Seq:
        """Return the seq that the replica must have applied of this partition."""
        seq = None if self.at_least is None else self.at_least.seq_of(table_uuid, partition)
        return Seq(0) if seq is None else seq


def read_wish(options: ReadOptions) -> ReadWish:
    """Check options; ConfigError names what is unknown, impossible or contradicts another."""
    for name in options:
        if name not in ReadOptions.__annotations__:
            known = ", ".join(ReadOptions.__annotations__)
            raise ConfigError(f"a read has no option {name!r}; there are {known}")
    if options.get("max_staleness") is not None:
        raise ConfigError(
            f"max_staleness={options['max_staleness']} is not available yet; "
            "bound the lag in rows with max_lag, or read at the leader"
        )
    max_lag = options.get("max_lag")
    at_least = options.get("at_least")
    level = _level(options.get("level"), max_lag, has_position=at_least is not None)
    if max_lag is not None:
        if type(max_lag) is not int or max_lag < 0:
            raise ConfigError(f"max_lag={max_lag!r} is no number of rows; use 0 or more")
        if level is not Level.BOUNDED:
            raise ConfigError(
                f"max_lag={max_lag} has no meaning at level {level.value}; use level bounded"
            )
    return ReadWish(
        level=level,
        max_lag=max_lag,
        at_least=None if at_least is None else Position.parse(at_least),
        replica=options.get("replica"),
    )


def _level(given: Level | str | None, max_lag: int | None, *, has_position: bool) -> Level:
    if given is None:
        if max_lag is not None:
            return Level.BOUNDED
        return Level.ANY if has_position else Level.LINEARIZABLE
    try:
        return Level(given)
    except ValueError:
        levels = ", ".join(level.value for level in Level)
        raise ConfigError(f"the level {given!r} is unknown; use one of {levels}") from None
