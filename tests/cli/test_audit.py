"""`raftstore audit` shows what was found, and `raftstore check cluster` says that there is some."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from raftstore.cli.audit import audit
from raftstore.cli.check import WRONG_ANSWERS_S, wrong_answers
from raftstore.cli.common import Context
from raftstore.client.results import ClusterEvents, NodeStatus

COUNTS = {
    "keys_per_million": 1_000, "operations": 70, "dropped": 0, "violations": 1, "reported": 0,
    "last_at_wall_ms": 1_000_000,
}  # fmt: skip
FOUND = {
    "number": 4, "node": "n1", "type": "audit_violation", "at_wall_ms": 1_000_000,
    "source": "node", "kind": "stale_read", "channel": "orders/0", "text": "it is too old",
    "evidence": '[{"action":"get","seq":9}]',
}  # fmt: skip


def node(name: str, audit: Mapping[str, Any] | None) -> NodeStatus:
    """The status of one node."""
    status = None if audit is None else {"audit": audit}
    return NodeStatus(name, f"{name}@1", "127.0.0.1:1", up=True, status=status, error=None)


class FakeContext(Context):
    """A cluster that answers what the test says."""

    def __init__(self, output: str, events: tuple[Mapping[str, Any], ...]) -> None:
        super().__init__(output=output)
        self.events = events

    @contextmanager
    def connect(self) -> Iterator[Any]:  # type: ignore[override]
        """A client of it."""
        status = SimpleNamespace(nodes=(node("n1", COUNTS), node("n2", None)))
        found = ClusterEvents(self.events, {}, {"n2": "it is down"})
        yield SimpleNamespace(cluster_status=lambda: status, events=lambda *_, **__: found)


def run(output: str, *events: Mapping[str, Any], evidence: bool = False) -> Any:
    """The command, as the shell runs it."""
    arguments = ["--evidence"] if evidence else []
    context = FakeContext(output, events)
    # The help option is made by the first use of a command: it is to be that of the program.
    names = ["-h", "--help"]
    return CliRunner().invoke(
        audit, arguments, obj=context, standalone_mode=False, help_option_names=names
    )


def test_what_was_found_is_shown_with_its_operations_as_json() -> None:
    """N7: and the exit code says that something was found."""
    result = run("json", FOUND)
    assert result.return_value == 7
    shown = json.loads(result.stdout)
    assert shown["nodes"] == [{"node": "n1", **COUNTS}, {"node": "n2"}]
    assert shown["violations"] == [{**FOUND, "evidence": [{"action": "get", "seq": 9}]}]
    assert shown["not_asked"] == {"n2": "it is down"}


@pytest.mark.parametrize("evidence", [True, False])
def test_table_has_a_line_for_each_and_the_operations_if_asked_for(evidence: bool) -> None:
    """N7: what to do about it is a page."""
    result = run("table", FOUND, evidence=evidence)
    assert result.return_value == 7
    assert "kind=stale_read" in result.stdout
    assert "it is too old" in result.stdout
    assert "An audit found something" in result.stderr
    assert ("action" in result.stdout) == evidence


def test_nothing_found_is_said() -> None:
    """N7: with what was judged."""
    result = run("table")
    assert result.return_value == 0
    assert "70" in result.stdout
    assert "no answer was found wrong" in result.stderr


@pytest.mark.parametrize("text", ["no json", "{}", "[1]", None])
def test_evidence_of_a_client_that_is_no_list_of_operations_is_shown_as_it_is(text: Any) -> None:
    """N7: a client says what it likes."""
    result = run("json", {**FOUND, "evidence": text})
    assert json.loads(result.stdout)["violations"][0]["evidence"] == [{"text": text}]


def test_wrong_answer_is_critical_for_a_day() -> None:
    """N7: nodes without a report, or of older versions, are passed over."""
    nodes = [node("n1", COUNTS), node("n2", None), node("n3", {**COUNTS, "last_at_wall_ms": None})]
    assert wrong_answers(nodes, 1_000 + 120) == [
        "an audit found a wrong answer 2 min ago, by n1; run raftstore audit"
    ]
    assert wrong_answers(nodes, 1_000 + WRONG_ANSWERS_S) == []
