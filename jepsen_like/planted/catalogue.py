"""All planted bugs, in the order of the contract, and what cannot be planted yet."""

from __future__ import annotations

from jepsen_like.planted.answer_bugs import COMMIT_BUGS, OUTCOME_BUGS, READ_BUGS
from jepsen_like.planted.batch_bugs import BATCH_BUGS
from jepsen_like.planted.bug import PlantedBug
from jepsen_like.planted.client_bugs import CLIENT_BUGS
from jepsen_like.planted.log_bugs import ELECTION_BUGS, LOG_BUGS
from jepsen_like.planted.query_bugs import QUERY_BUGS
from jepsen_like.planted.store_bugs import STORE_BUGS


class UnknownBugError(ValueError):
    """Nothing of this name is planted."""


def _order(bug: PlantedBug) -> tuple[int, int]:
    major, _, minor = bug.rule.removeprefix("S").partition(".")
    return int(major), int(minor or 0)


PLANTED: tuple[PlantedBug, ...] = tuple(
    sorted(
        (
            *ELECTION_BUGS,
            *LOG_BUGS,
            *COMMIT_BUGS,
            *OUTCOME_BUGS,
            *READ_BUGS,
            *QUERY_BUGS,
            *STORE_BUGS,
            *CLIENT_BUGS,
            *BATCH_BUGS,
        ),
        key=_order,
    )
)

NOT_YET: tuple[tuple[str, str, str], ...] = (
    ("S6.4", "a snapshot replaces acknowledged records before it is complete", "snapshots"),
    ("S6.5", "the log is compacted above its snapshot", "snapshots"),
    ("S6.6", "a request below the leader's first seq is answered with a gap", "snapshots"),
    ("S8", "a configuration takes effect without both majorities", "membership"),
    ("S0.1", "a node whose store was replaced votes under its old id", "membership"),
)
"""(rule, what would be broken, the feature it needs): planted together with that feature."""


def bug_named(name: str) -> PlantedBug:
    """Return the bug; UnknownBugError names those there are."""
    for bug in PLANTED:
        if bug.name == name:
            return bug
    known = ", ".join(bug.name for bug in PLANTED)
    raise UnknownBugError(f"no bug named {name!r} is planted; there are {known}")
