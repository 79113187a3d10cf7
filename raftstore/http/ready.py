"""/readyz: whether queries would find a replica, by table, level and bound (N9); /healthz.

Decided from the node's own view by the rules that route queries: a load balancer takes a node out
exactly when the application's reads would be refused there. Nothing here restarts anybody: that is
/livez, which never depends on data.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from raftstore.errors import UnknownTableError
from raftstore.http.cluster_routes import own_view
from raftstore.http.errors import bad_request
from raftstore.http.queries import Count63, Duration, Timed, duration_ms
from raftstore.http.roles import Role
from raftstore.http.routes import Answer, Call, Route
from raftstore.node.http_port import StartPhase
from raftstore.policy.views import Readiness, readiness
from raftstore.protocol.admin import ClusterViewAnswer
from raftstore.protocol.reads import Bounds
from raftstore.types import Level, LevelName, node_name

CATALOG: Final = "catalog"
REASONS_MAX: Final = 100
"""So many partitions are listed; more of them are only counted."""


class ReadyParams(Timed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tables that have to be served for the node to be ready."""

    table: Annotated[str, Meta(description="Only this table; default: all.")] | None = None
    level: Annotated[LevelName, Meta(description="Level of the reads that must be served.")] = (
        "bounded"
    )
    max_lag: (
        Annotated[
            Count63, Meta(description="Rows a replica may be behind what it knows to be committed.")
        ]
        | None
    ) = None
    max_staleness: Annotated[Duration, Meta(description="Time a replica may be behind.")] | None = (
        None
    )
    max_batches_behind: (
        Annotated[Count63, Meta(description="Micro-batches a replica may be behind.")] | None
    ) = None
    verbose: Annotated[bool, Meta(description="List what is ready, too.")] = False
    exclude: (
        Annotated[str, Meta(description="Tables or table/partition not to look at, by comma.")]
        | None
    ) = None


class Check(msgspec.Struct, frozen=True):
    """One partition, or the catalog."""

    name: str
    ready: bool
    nodes: list[str]
    """Who would be asked, in this order."""
    reason: str
    """Why the others would not; empty if there are none."""


class Start(msgspec.Struct, frozen=True):
    """The phase of a node that does not serve yet."""

    phase: str
    """starting, disk_full, reading_log, opening_tables, opening_channels, joining or founding."""
    message: str
    percent: int | None
    """How much of the phase is done; null: not known."""
    left_s: int | None
    """Seconds that the rest of it will take; null: not known."""


class Ready(msgspec.Struct, frozen=True):
    """Whether everything that was asked about is ready."""

    ready: bool
    checked: int
    failed: int
    checks: list[Check]
    start: Start | None = None
    """null: the node has started."""


async def ready(call: Call) -> Answer:
    """Answer whether reads of this level and bound find a replica, seen from this node."""
    params: ReadyParams = call.params
    bounds = Bounds(
        params.max_lag,
        None
        if params.max_staleness is None
        else duration_ms("max_staleness", params.max_staleness),
        params.max_batches_behind,
    )
    if bounds != Bounds() and params.level != Level.BOUNDED.value:
        raise bad_request(f"bounds belong to level bounded, not {params.level}; leave one out")
    names_tables = params.table is not None or params.exclude is not None or params.verbose
    shows_names = await _may_see_names(call, is_needed=names_tables)
    if call.gateway.facts.start is not None:
        return not_started(call.gateway.facts.start)
    view = await own_view(call)
    return judged(view, Level(params.level), bounds, params, shows_names=shows_names)


async def healthy(call: Call) -> Answer:
    """Answer the same of every table, by its own bounds, else the node's."""
    shows_names = await _may_see_names(call, is_needed=False)
    if call.gateway.facts.start is not None:
        return not_started(call.gateway.facts.start)
    view = await own_view(call)
    return judged(view, Level.BOUNDED, Bounds(), ReadyParams(), shows_names=shows_names)


async def _may_see_names(call: Call, *, is_needed: bool) -> bool:
    """Whether the caller may know which tables there are: with users, only who may read them."""
    guard = call.gateway.guard
    if guard.is_open:
        return True
    if not is_needed and "authorization" not in call.request.headers:
        return False  # a load balancer: ready or not is all that it asks
    await call.check_role(Role.READ)
    return True


def not_started(phase: StartPhase) -> Answer:
    """Return 503 with what the node is doing, and how long it will take."""
    start = Start(phase.name, phase.text, phase.percent, phase.left_s)
    body = Ready(False, 1, 1, [Check("start", False, [], phase.text)], start)
    return Answer(body, HTTPStatus.SERVICE_UNAVAILABLE)


def judged(
    view: ClusterViewAnswer,
    level: Level,
    bounds: Bounds,
    params: ReadyParams,
    *,
    shows_names: bool = True,
) -> Answer:
    """Return 200 or 503 with the reasons; without names only whether everything is ready."""
    is_complete = view.age_ms is not None
    excluded = set() if params.exclude is None else {t.strip() for t in params.exclude.split(",")}
    partitions = tuple(readiness(view, level, bounds, table=params.table))
    if params.table is not None and not partitions and is_complete:
        raise UnknownTableError(f"there is no table {params.table!r}")
    checks = list(_checks(partitions, excluded))
    is_known = params.table is not None and bool(partitions)
    if CATALOG not in excluded and not is_known:
        # S1.9: a copy that may be incomplete says nothing of the tables it does not have.
        reason = "" if is_complete else "this node's copy of the catalog may be incomplete"
        checks.append(Check(CATALOG, is_complete, [], reason))
    failed = [check for check in checks if not check.ready]
    shown = checks if params.verbose else failed
    status = HTTPStatus.SERVICE_UNAVAILABLE if failed else HTTPStatus.OK
    if not shows_names:
        return Answer(Ready(not failed, 0, 0, []), status)
    return Answer(Ready(not failed, len(checks), len(failed), shown[:REASONS_MAX]), status)


def _checks(partitions: Iterable[Readiness], excluded: set[str]) -> Iterable[Check]:
    for found in partitions:
        name = f"{found.table}/{found.partition}"
        if found.table not in excluded and name not in excluded:
            nodes = [node_name(node) for node in found.nodes]
            yield Check(name, found.is_ready, nodes, found.reason)


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/readyz",
        "200 when reads of a level and bound find a replica for every partition; bounds that are "
        "not given are the table's, else the node's. Of all tables the catalog counts, too.",
        ready,
        ReadyParams,
        Ready,
        success=(200, 503),
        errors=(404,),
        role=None,
    ),
    Route(
        "GET",
        "/healthz",
        "/readyz of all tables by their own bounds, else the node's.",
        healthy,
        Timed,
        Ready,
        success=(200, 503),
        role=None,
    ),
)
