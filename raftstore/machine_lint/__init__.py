"""Lint of state machines, which finds by reading what their code must not do: ``lint_machine``.

Purpose: say at registration, with file and line, that a machine reads a clock, draws random
numbers, talks to the outside, depends on the order of a set or of hashes, or keeps state where no
replica finds it again. It reads the classes of the machine and the functions of its own package
that they use; libraries are not read. It runs nothing, so it can be wrong both ways: a comment
``# deterministic: reason`` on the line takes a finding back, and ``check_machine`` and simulated
worlds (``raftstore.testing``) look at what a machine does.
"""

from __future__ import annotations

from raftstore.machine import StateMachine
from raftstore.machine_lint.finding import Finding
from raftstore.machine_lint.rules import findings_in
from raftstore.machine_lint.sources import reachable

__all__ = ["Finding", "lint_machine"]


def lint_machine(machine: type[StateMachine]) -> list[Finding]:
    """Places in the machine's code at which replicas may come to differ, by file and line."""
    parts, unread = reachable(machine)
    found = dict.fromkeys(finding for part in parts for finding in findings_in(part))
    return sorted([*unread, *found], key=lambda finding: (finding.file, finding.line))
