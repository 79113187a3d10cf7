"""The cluster: status, lags, heartbeats and lag reports of the sources, liveness."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from raftstore.errors import UnavailableError
from raftstore.http.errors import bad_request
from raftstore.http.json_shapes import Live, Ok
from raftstore.http.queries import Count63, Timed
from raftstore.http.roles import Role
from raftstore.http.routes import Answer, Call, Route
from raftstore.http.status_shape import (
    ClusterStatusBody,
    LagsBody,
    all_lags,
    cluster_status,
    lag_rows,
)
from raftstore.protocol.admin import ClusterView, ClusterViewAnswer, SeenHeartbeat, SeenLags
from raftstore.types import Seq

Port = Annotated[int, Meta(ge=1, le=65535)]


class HostInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which node: its advertised address."""

    host: Annotated[str, Meta(min_length=1, max_length=255)]
    port: Port


class HeartbeatBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /heartbeat (KLIP-19)."""

    host_info: HostInfo = msgspec.field(name="hostInfo")
    timestamp: Count63
    epoch_of_node: Count63 = 0


class ReportedLag(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One partition of a lag report."""

    current_offset_position: Count63
    end_offset_position: Count63
    offset_lag: int | None = None
    time_lag_ms: int | None = None


class ReportedStore(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One table of a lag report."""

    lag_by_partition: dict[Annotated[str, Meta(pattern="^[0-9]{1,6}$")], ReportedLag]


class LagReportBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Body of POST /reportlag and /lag (KLIP-35)."""

    host_info: HostInfo
    update_time_ms: Count63
    state_store_lags: dict[str, ReportedStore]


async def own_view(call: Call) -> ClusterViewAnswer:
    """Ask the node for its viewpoint."""
    answer = await call.gateway.ask_own_node(ClusterView)
    if not isinstance(answer, ClusterViewAnswer):
        raise UnavailableError(f"the node answered a view with {type(answer).__name__}")
    return answer


async def cluster_status_of(call: Call) -> Answer:
    """Show the cluster from this node's viewpoint."""
    view = await own_view(call)
    return Answer(cluster_status(view, call.gateway.wall_ms(), call.gateway.layout))


async def lags(call: Call) -> Answer:
    """Show the lags of all nodes as this node knows them."""
    return Answer(all_lags(await own_view(call), call.gateway.wall_ms()))


async def heartbeat(call: Call) -> Answer:
    """Register a heartbeat: it counts for health, never for elections."""
    body: HeartbeatBody = call.body
    node = f"{body.host_info.host}:{body.host_info.port}"
    await call.gateway.ask_own_node(
        lambda request_id: SeenHeartbeat(request_id, node, body.timestamp)
    )
    return Answer(Ok())


async def report_lag(call: Call) -> Answer:
    """Register a lag report: it orders routing, never moves a bound."""
    body: LagReportBody = call.body
    node = f"{body.host_info.host}:{body.host_info.port}"
    rows = lag_rows(body.state_store_lags)
    for table, partition, current, end in rows:
        if current > end:
            raise bad_request(
                f"{table}/{partition}: the current position {current} is beyond the end {end}"
            )
    reported = tuple(
        (table, number, Seq(current), Seq(end)) for table, number, current, end in rows
    )
    await call.gateway.ask_own_node(
        lambda request_id: SeenLags(request_id, node, body.update_time_ms, reported)
    )
    return Answer(Ok())


async def live(call: Call) -> Answer:
    """Answer whether the process should be left running; never depends on data."""
    facts = call.gateway.facts
    ms_ago = call.gateway.now_ms() - facts.turned_ms if facts.turned_ms else None
    is_alive = ms_ago is None or ms_ago <= call.gateway.http.live_stall_ms
    status = HTTPStatus.OK if is_alive else HTTPStatus.SERVICE_UNAVAILABLE
    return Answer(Live(is_alive, ms_ago), status)


def _report_route(path: str) -> Route:
    return Route(
        "POST",
        path,
        "A lag report of a node; it only orders the routing of the node asked.",
        report_lag,
        Timed,
        Ok,
        body=LagReportBody,
        role=Role.NODE,
    )


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/clusterStatus",
        "The cluster from this node's viewpoint: nodes, roles, positions, lags.",
        cluster_status_of,
        Timed,
        ClusterStatusBody,
    ),
    Route("GET", "/lags", "Lags of all nodes as this node knows them.", lags, Timed, LagsBody),
    Route("GET", "/v1/lags", "The same as /lags.", lags, Timed, LagsBody),
    Route(
        "POST",
        "/heartbeat",
        "A heartbeat of a node; counts for health as this node sees it.",
        heartbeat,
        Timed,
        Ok,
        body=HeartbeatBody,
        role=Role.NODE,
    ),
    _report_route("/reportlag"),
    _report_route("/lag"),
    Route(
        "GET",
        "/livez",
        "200 while the process should be left running; never depends on data.",
        live,
        Timed,
        Live,
        success=(200, 503),
        role=None,
    ),
)
