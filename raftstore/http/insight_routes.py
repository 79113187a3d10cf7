"""Looking into things: the fate of a write, and where a read would go."""

from __future__ import annotations

from typing import Final

import msgspec

from raftstore.http.json_shapes import Explanation, Fate
from raftstore.http.queries import Reading, Timed
from raftstore.http.roles import Role
from raftstore.http.routes import Answer, Call, Route
from raftstore.http.row_routes import rows_of


async def fate(call: Call) -> Answer:
    """Answer what became of a write."""
    found = await (await call.client()).fate(call.path["guid"], timeout=call.left_s)
    body = Fate(
        fate=found.fate,
        seq=found.seq,
        position=None if found.position is None else str(found.position),
        condition=found.condition,
        reason=found.reason,
        partition=found.partition,
        node=found.node,
    )
    return Answer(body)


async def explain(call: Call) -> Answer:
    """Answer which replicas a read of the key would ask now, and why not the others."""
    rows = await rows_of(call, call.path["table"])
    key = rows.key_from_text(call.path["key"])
    options = call.params.options(call.left_s)
    found = await (await call.client()).explain_get(call.path["table"], key, **options)
    return Answer(msgspec.convert(found, Explanation, from_attributes=True))


ROUTES: Final = (
    Route(
        "GET",
        "/v1/writes/{guid}",
        "What became of a write: committed at seq, not_applied (and never will be), or unknown.",
        fate,
        Timed,
        Fate,
        errors=(404,),
        role=Role.WRITE,  # asking fences the write: what has not happened never will
        is_query=True,
    ),
    Route(
        "GET",
        "/v1/explain/{table}/{key:key}",
        "Which replicas a read of the key would ask now, in which order, and why not the others.",
        explain,
        Reading,
        Explanation,
        errors=(404,),
        is_query=True,
    ),
)
