"""A channel as a stream: every acknowledged message at its seq, once, on the committed log."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

from jepsen_like.calls import Action, Call
from jepsen_like.checker.verdict import Verdict
from jepsen_like.workload.base import Client, Run
from jepsen_like.workload.judging import Finding, succeeded, verdict_of
from raftstore.types import Outcome

TABLE: Final = "stream"


class PublishLog:
    """Unique messages; the committed log afterwards is the judge."""

    name = "publish_log"
    text = "unique messages; each acknowledged one stands in the committed log once, at its seq"

    def __init__(self) -> None:
        self.tables: Mapping[str, int] = {TABLE: 2}
        self._last = 0

    def client(self, index: int, rng: random.Random) -> Client:
        """Publish without end."""
        del rng
        while True:
            self._last += 1
            yield Call(Action.PUT, TABLE, f"m{self._last}", index)

    def final_client(self, rng: random.Random) -> Client:
        """One scan, so that the healed table was read too."""
        del rng
        yield Call(Action.SCAN, TABLE, final=True)

    def check(self, run: Run) -> list[Verdict]:
        """Lost, moved, doubled, and refused yet published."""
        places: dict[Any, list[tuple[int, int]]] = {}
        for (table, partition), rows in run.commits.items():
            for row in rows if table == TABLE else ():
                places.setdefault(row.key, []).append((partition, row.seq))
        findings: list[Finding] = []
        sent = succeeded(run.history, "put")
        for message in sent if run.commits else ():
            told = [tuple(place) for place in message.details.get("positions", ())]
            found = places.get(message.key, [])
            if found != told:
                text = f"message {message.key} was acknowledged at {told} and stands at {found}"
                findings.append((text, message))
        for message in run.history:
            if message.action != "put":
                continue
            if message.outcome is Outcome.NOT_APPLIED and message.key in places:
                findings.append((f"message {message.key}, called not applied, stands", message))
            elif len(places.get(message.key, ())) > 1:
                findings.append((f"message {message.key} stands more than once", message))
        judged = len(sent) if run.commits else 0
        return [verdict_of("stream", findings, judged, "acknowledged messages")]
