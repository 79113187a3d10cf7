"""Settings that each table may have for itself: what they mean, and which values can be.

They are kept in the catalog, in a row of ``state_machines.catalog.SETTINGS_FORMAT``, and every node
goes by an edit as soon as its copy of the catalog has it. What has no value is decided by each
node's own settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from raftstore.config import MIB
from raftstore.protocol.lifetimes import TTL_MS_MAX
from raftstore.types import Count63

DAY_MS: Final = 24 * 3_600_000


class TableSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one table; None: the setting of each node counts."""

    retention_bytes: Count63 | None = None
    """Log of each partition; when there is more, the older half goes
    (``retention.channel_bytes``)."""
    retention_records: Count63 | None = None
    """The same in records (``retention.channel_records``)."""
    retention_age_ms: Count63 | None = None
    """Records of the log that are older go, however few there are; 0: none for their age
    (``retention.age_ms``)."""
    ttl_ms: Count63 | None = None
    """How long rows live that are written without a lifetime of their own; None: for ever. Clients
    go by it, as the lifetime travels with the rows."""


DEFAULT_SETTINGS: Final = TableSettings()
"""Of a table that was told none, and of all tables before there were any."""


class Limits(NamedTuple):
    """Smallest and largest value of a setting, and what it counts."""

    low: int
    high: int
    unit: str


SETTING_LIMITS: Final[Mapping[str, Limits]] = {
    "retention_bytes": Limits(1 * MIB, 1024 * 1024 * MIB, "bytes"),
    "retention_records": Limits(1_000, 2**31 - 1, "records"),
    "retention_age_ms": Limits(0, 366 * DAY_MS, "milliseconds"),
    "ttl_ms": Limits(1, TTL_MS_MAX, "milliseconds"),
}
"""By the name of the field; wide, as those of a node's settings."""


def setting_problem(name: str, value: Any) -> str | None:
    """Why a setting cannot have this value, or None."""
    low, high, unit = SETTING_LIMITS[name]
    if value is None or (type(value) is int and low <= value <= high):
        return None
    return f"{name}={value!r:.80} is outside {low} to {high} {unit}; give one of these, or none"


def settings_problem(settings: TableSettings) -> str | None:
    """Why a table cannot have these settings, or None; tells the first that is wrong."""
    for name in SETTING_LIMITS:
        if (problem := setting_problem(name, getattr(settings, name))) is not None:
            return problem
    return None
