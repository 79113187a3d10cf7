"""Settings that each table may have for itself: what they mean, and which values can be.

They are kept in the catalog, in a row of ``state_machines.catalog_entries.SETTINGS_FORMAT``, and
every node goes by an edit as soon as its copy of the catalog has it. What has no value is decided
by each node's own settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from raftstore.config import MIB
from raftstore.protocol.lifetimes import TTL_MS_MAX
from raftstore.types import Count63

DAY_MS: Final = 24 * 3_600_000


class TableSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The settings of one table; None: the setting of each node counts."""

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
    restoring: str | None = None
    """The token (``RESTORE_TOKEN``) of the restore by which the table is being filled; while it
    is set, nodes serve no row of the table and take only the batches of that restore. None: the
    table is whole. A table is created with it, and it is only ever removed."""
    from_backup: bool = False
    """Of a channel set: its state came from a backup, or comes, so a partition without one is not
    empty but not whole. For ever; of a table it says nothing."""


DEFAULT_SETTINGS: Final = TableSettings()
"""Of a table that was given none, and of all tables before there were any."""


RESTORE_TOKEN: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
"""16 bytes in hexadecimal: the uuid of the attempts at batches by which a restore writes."""


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


def restoring_problem(token: Any) -> str | None:
    """Why a new table cannot be filled by the restore of this token, or None."""
    if token is None or (isinstance(token, str) and RESTORE_TOKEN.fullmatch(token)):
        return None
    return f"restoring={token!r:.80} is no token of a restore; give 32 hexadecimal digits, or none"


def settings_problem(settings: TableSettings) -> str | None:
    """Why a table cannot have these settings, or None; names the first that is wrong."""
    for name in SETTING_LIMITS:
        if (problem := setting_problem(name, getattr(settings, name))) is not None:
            return problem
    return restoring_problem(settings.restoring)
