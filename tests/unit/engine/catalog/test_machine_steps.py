"""Steps of users' machines by themselves: whose word counts, what is skipped, who leads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.engine.catalog.machine_steps import (
    ASK_AGAIN_MS,
    REPORTS_MISSED_MAX,
    MachineSteps,
    StepParts,
    able_voter,
    skip_problem,
)
from raftstore.errors import Refusal, SchemaError, UnavailableError
from raftstore.ports.machine import MachineStop
from raftstore.protocol.machines import LIMITS, SkipCommand
from raftstore.protocol.node import ChannelPosition
from raftstore.types import NO_GUID, ChannelConfig, ChannelId, NodeId, Role, Seq, Term

N1, N2, N3 = (NodeId(f"n{number}@{number:032x}") for number in (1, 2, 3))
CHANNEL = ChannelId(bytes(18))
STOP = Seq(7)
NOW = 100_000
AGE_MS = REPORTS_MISSED_MAX * 1_000


def position(applied: int, committed: int = 7) -> ChannelPosition:
    """A report of another replica."""
    return ChannelPosition(CHANNEL, Term(1), False, Seq(applied), Seq(committed), Seq(9), b"")


class Bench:
    """A leader whose machine stopped at a seq, and reports that came a moment ago."""

    def __init__(self, **reported: ChannelPosition) -> None:
        self.up = {N1, N2, N3}
        self.heard_ms = dict.fromkeys((N2, N3), NOW - AGE_MS)
        self.reported = {node: reported.get(node[:2]) for node in (N2, N3)}
        self.handed: list[NodeId] = []
        self.proposed: list[bytes] = []
        """Why some node could not read the record."""
        self.answers: list[Any] = []
        self.commands = SimpleNamespace(
            stop=MachineStop(STOP, NO_GUID, "oh"), is_whole=True, watch=lambda _now: None
        )
        self.runner: Any = SimpleNamespace(
            me=N1,
            name="c/0",
            channel=CHANNEL,
            commands=self.commands,
            elector=SimpleNamespace(role=Role.LEADER),
            core=SimpleNamespace(
                leader_is_ready=True, config=lambda: ChannelConfig(((N1, N2, N3),))
            ),
            parts=SimpleNamespace(is_up=self.up.__contains__),
            request_hand_over=lambda node, _text, _now: self.handed.append(node),
        )
        lag = SimpleNamespace(report_interval_ms=1_000)
        parts: Any = SimpleNamespace(
            view=SimpleNamespace(proposals=SimpleNamespace(propose=self._propose)),
            channels={CHANNEL: self.runner},
            parts=SimpleNamespace(settings=SimpleNamespace(lag=lag)),
            answers=SimpleNamespace(answer=lambda _client, message: self.answers.append(message)),
            codes=None,
            reports=self,
        )
        self.steps = MachineSteps(
            StepParts(
                parts.view,
                parts.channels,
                parts.parts,
                parts.answers,
                parts.codes,
                parts.reports,
                lambda: LIMITS,
            )
        )

    def _propose(self, _runner: Any, payload: bytes, *_: Any, **__: Any) -> None:
        self.proposed.append(payload)

    def hosted_by(self, node: NodeId, since_ms: int) -> dict[ChannelId, ChannelPosition]:
        """As LagReports has it."""
        known = self.reported.get(node)
        is_fresh = known is not None and self.heard_ms[node] >= since_ms
        return {CHANNEL: known} if known is not None and is_fresh else {}

    def skip(self) -> str:
        """An operator's request; the refusal, or an empty text."""
        self.steps.on_skip(1, SkipCommand(9, CHANNEL, STOP), NOW)
        return self.answers[-1].message if self.answers else ""


def test_a_command_that_nobody_has_applied_is_skipped() -> None:
    """By what the others reported a moment ago."""
    bench = Bench(n2=position(6), n3=position(6))
    assert bench.skip() == ""
    assert len(bench.proposed) == 1


def test_a_command_is_not_skipped_by_an_old_report() -> None:
    """S4.4: since then its node may have got other code, have applied it and have led."""
    bench = Bench(n2=position(6), n3=position(6))
    bench.heard_ms[N3] -= 1
    assert "n3 did not report within 3000 ms whether it can apply seq 7" in bench.skip()
    assert bench.proposed == []


@pytest.mark.parametrize(
    ("other", "error", "said"),
    [
        (position(7), SchemaError, "n2 has applied seq 7, which may have been acknowledged"),
        (position(6, committed=6), UnavailableError, "n2 did not report within 3000 ms"),
        (None, UnavailableError, "n2 did not report within 3000 ms"),
    ],
)
def test_a_command_that_some_replica_has_applied_is_not_skipped(
    other: ChannelPosition | None, error: type[Exception], said: str
) -> None:
    """S4.4: it may have been acknowledged while that replica led."""
    positions = {N3: position(6)} | ({} if other is None else {N2: other})
    found = skip_problem(Bench().runner, STOP, positions, AGE_MS)
    assert isinstance(found, Refusal)
    assert found.error is error
    assert said in found.text


def test_leader_gives_its_place_to_a_voter_that_has_applied_what_it_cannot() -> None:
    """S9: the one that is furthest; it is asked again, if it did not take over."""
    bench = Bench(n2=position(7), n3=position(8))
    bench.steps.look(NOW)
    bench.steps.look(NOW + 1)
    assert bench.handed == [N3]
    bench.up.remove(N3)
    bench.heard_ms = dict.fromkeys((N2, N3), NOW + ASK_AGAIN_MS)
    bench.steps.look(NOW + ASK_AGAIN_MS)
    assert bench.handed == [N3, N2]


def test_leader_stays_where_nobody_is_known_to_do_better() -> None:
    """A command that no replica can apply is not passed round in the cluster."""
    bench = Bench(n2=position(6), n3=position(6))
    bench.steps.look(NOW)
    old = Bench(n2=position(9), n3=position(9))
    old.heard_ms = dict.fromkeys((N2, N3), NOW - AGE_MS - 1)
    old.steps.look(NOW)
    follower = Bench(n2=position(9), n3=position(9))
    follower.runner.elector.role = Role.FOLLOWER
    follower.steps.look(NOW)
    assert bench.handed == old.handed == follower.handed == []
    assert able_voter(Bench().runner, STOP, {}) is None
