"""Findings of the lint are shown where machines are registered: at clients and in nodes' logs."""

from __future__ import annotations

import random

import pytest

import raftstore
from raftstore.client.definitions import warn_of_findings
from raftstore.node.machines import InstalledMachines
from raftstore.recipes import Counter


class Drawing(raftstore.StateMachine):
    """Draws numbers."""

    def apply(self, command: bytes, context: raftstore.CommandContext) -> bytes:
        return b"%d" % random.randrange(6)


def test_a_class_with_findings_is_warned_of_when_a_channel_set_is_created() -> None:
    """Its author sees file, line and remedy; names and clean classes are passed over."""
    with pytest.warns(UserWarning, match=r"test_registration\.py:\d+: random\.randrange draws"):
        warn_of_findings(Drawing)
    warn_of_findings(Counter)
    warn_of_findings("raftstore.recipes.counter:Counter")


def test_a_node_logs_findings_once_when_it_loads_a_machine() -> None:
    """The operator sees them, too, and the machine runs."""
    events: list[tuple[str, dict[str, object]]] = []
    machines = InstalledMachines((), lambda name, values: events.append((name, values)))
    name = f"{__name__}:Drawing"
    for _ in range(2):
        assert machines.load(name).make is Drawing
    ((event, values),) = events
    assert (event, values["machine"]) == ("machine_finding", name)
    assert "random.randrange draws chance" in str(values["why"])
    machines.load("raftstore.recipes.counter:Counter")
    assert len(events) == 1
