"""Sessions: a client sees its own writes and never goes back, on whichever replica it reads."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

from jepsen_like.calls import Action, Call
from jepsen_like.checker.verdict import Verdict
from jepsen_like.workload.base import Client, Run
from jepsen_like.workload.judging import Finding, verdict_of
from raftstore.types import Level, Outcome

TABLE: Final = "sessions"


class Sessions:
    """Each client writes rising numbers to a key of its own and reads it back with its position."""

    name = "sessions"
    text = "read your writes and monotonic reads on any replica, by the position of the session"

    def __init__(self) -> None:
        self.tables: Mapping[str, int] = {TABLE: 1}

    def client(self, index: int, rng: random.Random) -> Client:
        """Write or read; every read asks for at least what the session has seen."""
        number = 0
        seen = 0
        while True:
            if rng.random() < 0.5:
                number += 1
                answer = yield Call(Action.PUT, TABLE, f"s{index}", number)
            else:
                answer = yield Call(
                    Action.GET, TABLE, f"s{index}", level=Level.ANY, at_least=((0, seen),)
                )
            seen = max([seen, *(seq for _, seq in answer.positions)])

    def final_client(self, rng: random.Random) -> Client:
        """Nothing is left to read: sessions ended with the faults."""
        del rng
        yield Call(Action.SCAN, TABLE, final=True)

    def check(self, run: Run) -> list[Verdict]:
        """Numbers a process reads never fall below what it wrote or read before.

        After a write of unknown outcome the order of that client's writes is open: its later
        reads are judged by position only.
        """
        floor: dict[str, int] = {}
        position: dict[str, int] = {}
        open_order: dict[str, None] = {}
        findings: list[Finding] = []
        judged = 0
        for operation in run.history:
            process = operation.process
            if operation.action == "put" and operation.outcome is Outcome.UNKNOWN:
                open_order[process] = None
            if operation.outcome is not Outcome.OK or operation.action == "scan":
                continue
            at = dict(operation.details["positions"]).get(0, 0)
            value = operation.value if operation.action == "put" else operation.result or 0
            if operation.action == "get":
                judged += 1
                if at < position.get(process, 0):
                    findings.append((f"{process} went back to seq {at}", operation))
                if process not in open_order and value < floor.get(process, 0):
                    text = f"{process} read {value} after {floor[process]}"
                    findings.append((text, operation))
            floor[process] = max(floor.get(process, 0), value)
            position[process] = max(position.get(process, 0), at)
        return [verdict_of("sessions", findings, judged, "reads of sessions")]
