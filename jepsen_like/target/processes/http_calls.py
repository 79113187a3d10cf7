"""Carry a workload's calls out over HTTP: each request at another node, as by a load balancer.

A client of this kind knows addresses and JSON, and nothing else of raftstore. It sends every
request once: what became of one that was cut off in the middle is not known.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

from jepsen_like.calls import Action, Answer, Call
from raftstore.client.position import Position
from raftstore.protocol.admin import TableInfo
from raftstore.types import Level, Outcome

MARGIN_S: Final = 2.0
"""Beyond its deadline a node has so long to say that it did not keep it."""
_CUT: Final = (OSError, TimeoutError, http.client.HTTPException)
"""What a connection ends with."""


class HttpCaller:
    """One client's calls at nodes of these addresses; ``tables`` as for `Caller`."""

    def __init__(
        self,
        addresses: Sequence[str],
        tables: Mapping[str, TableInfo],
        timeout_s: float,
        rng: random.Random,
    ) -> None:
        self._addresses = addresses
        self._tables = tables
        self._timeout_s = timeout_s
        self._rng = rng
        self._last = ""

    async def call(self, call: Call) -> Answer:
        """Never raises for what the store refused, doubted or lost."""
        address = self._rng.choice([each for each in self._addresses if each != self._last])
        self._last = address
        return await asyncio.to_thread(self._ask, address, call)

    def unanswered(self, call: Call, error: str = "killed") -> Answer:
        """The answer to record for a call that got none: a write is in doubt."""
        is_write = call.action is Action.PUT
        return Answer(Outcome.UNKNOWN if is_write else Outcome.NOT_APPLIED, error=error)

    def _ask(self, address: str, call: Call) -> Answer:
        method, target, body = self._request(call)
        connection = http.client.HTTPConnection(address, timeout=self._timeout_s + MARGIN_S)
        try:
            try:
                connection.connect()
            except _CUT as error:
                return Answer(Outcome.NOT_APPLIED, error=type(error).__name__)
            try:
                connection.request(method, target, body)
                response = connection.getresponse()
                content = json.loads(response.read())
            except (*_CUT, ValueError) as error:
                return self.unanswered(call, type(error).__name__)
        finally:
            connection.close()
        if "error_code" in content:
            return _refused(content)
        return self._answer(call, content)

    def _request(self, call: Call) -> tuple[str, str, str | None]:
        """Method, target and body."""
        info = self._tables[call.table]
        options: dict[str, str | int] = {"timeout": f"{self._timeout_s}s"}
        if call.action is Action.FATE:
            return "GET", f"/v1/writes/{call.guid}?{urlencode(options)}", None
        row = f"/v1/tables/{info.name}/keys/{quote(str(call.key), safe='')}"
        if call.action is Action.PUT:
            return "PUT", f"{row}?{urlencode(options)}", json.dumps({"v": call.value})
        assert call.action is Action.GET, f"{call.action} is not asked over HTTP"
        options["level"] = call.level.value
        if call.level in (Level.BOUNDED, Level.ANY):
            options["prefer"] = "any_in_bound"  # all replicas shall show what they serve
        if call.max_lag is not None:
            options["max_lag"] = call.max_lag
        if call.max_staleness_ms is not None:
            options["max_staleness"] = f"{call.max_staleness_ms}ms"
        if call.session:
            options["at_least"] = call.session
        return "GET", f"{row}?{urlencode(options)}", None

    def _answer(self, call: Call, content: Mapping[str, Any]) -> Answer:
        if call.action is Action.FATE:
            names = ("fate", "seq", "condition", "reason")
            reported = {name: content[name] for name in names}
            return Answer(Outcome.OK, reported, served_by=content["node"])
        partition = content["partition"]
        if call.action is Action.PUT:
            return Answer(
                Outcome.OK,
                seqs=(content["seq"],),
                positions=((partition, content["seq"]),),
                session=content["position"],
                guids=(content["guid"],),
            )
        row, version = content["row"], content["version"]
        uuid = self._tables[call.table].uuid
        applied = Position.parse(content["position"]).seq_of(uuid, partition)
        seq = None if version is None else Position.parse(version).seq_of(uuid, partition)
        return Answer(
            Outcome.OK,
            None if row is None else row["v"],
            seqs=(seq or 0,),
            positions=((partition, applied or 0),),
            served_by=content["served_by"],
            lag=content["lag"],
            leader_info_age_ms=content["age_ms"],
            staleness_ms=content["staleness_ms"],
            batches_behind=content["batches_behind"],
            session=content["position"],
        )


def _refused(content: Mapping[str, Any]) -> Answer:
    is_unknown = content["outcome"] == Outcome.UNKNOWN.value
    return Answer(
        Outcome.UNKNOWN if is_unknown else Outcome.NOT_APPLIED,
        error=content["error_code"],
        guids=(content["guid"],) if content.get("guid") else (),
    )
