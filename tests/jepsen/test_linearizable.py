"""The checkers of linearizability against recorded verdicts, each other and brute force."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jepsen_like.checker.linearizable import check_linearizable
from jepsen_like.checker.models import model_named
from jepsen_like.checker.verdict import Validity
from jepsen_like.cli import main
from jepsen_like.formats import read_any, read_elle
from jepsen_like.history import HistoryError, Operation
from raftstore.types import Outcome

DATA = Path(__file__).parent.parent / "data" / "linearizability"
INDEX = json.loads((DATA / "index.json").read_text(encoding="utf-8"))
UNOBSERVED = ("good-mongodb-v0-ack-rollback-.edn", "good-mongodb-v0-ack-rollback-11.edn")
"""Recorded as valid, and any store would be: no read and no condition in them was answered."""
JUDGED = [entry for entry in INDEX if entry["suite"] != "elle-cli"]


def _initial(recorded: Any) -> int | None:
    return recorded if isinstance(recorded, int) else None


@pytest.mark.slow
def test_checker_agrees_with_every_recorded_verdict() -> None:
    """All recorded histories of registers, mutexes and kv stores are judged as recorded.

    Shows GAP-16.
    """
    wrong = []
    for entry in JUDGED:
        model = model_named(entry["model"].split()[0], _initial(entry["init"]))
        verdict = check_linearizable(model, read_any(DATA / entry["file"]))
        expected = Validity.VALID if entry["valid"] else Validity.INVALID
        if Path(entry["file"]).name in UNOBSERVED:
            expected = Validity.UNDECIDED
        if verdict.validity is not expected or (
            not entry["valid"] and (verdict.culprit is None or not verdict.evidence)
        ):
            wrong.append(entry["file"])
    assert len(JUDGED) == 116
    assert wrong == []


@pytest.mark.slow
def test_reader_reads_every_history_of_transactions() -> None:
    """Each file of elle-cli gives operations of transactions or of the bank."""
    for entry in INDEX:
        if entry["suite"] == "elle-cli":
            assert read_elle(DATA / entry["file"])


def _write_then_read(written: Outcome, returned: int | None, invoked: int) -> Validity:
    write = Operation("c1", "write", None, 1, 0, returned, written)
    read = Operation("c2", "read", None, None, invoked, 9, Outcome.OK, 1)
    return check_linearizable(model_named("register"), [write, read]).validity


@pytest.mark.parametrize(
    ("model", "operations", "validity"),
    [
        ("register", [], Validity.UNDECIDED),
        ("register", [("write", 1, None, None), ("read", None, None, None)], Validity.UNDECIDED),
        ("register", [("write", 1, 3, None)], Validity.UNDECIDED),
        ("register", [("write", 1, 3, None), ("read", None, 4, 1)], Validity.VALID),
        ("cas-register", [("cas", [None, 1], 3, None)], Validity.VALID),
        ("kv", [("put", "a", 3, None), ("append", "b", 4, None)], Validity.UNDECIDED),
        ("kv", [("put", "a", 3, None), ("get", None, 4, "a")], Validity.VALID),
        ("mutex", [("acquire", None, 3, None)], Validity.VALID),
    ],
)
def test_history_without_an_answer_that_tells_of_the_state_proves_nothing(
    model: str, operations: list[tuple[str, Any, int | None, Any]], validity: Validity
) -> None:
    """Writes fit whatever the store did with them: somebody must have looked."""
    history = [
        Operation(
            "c1", action, None, value, 2 * at, None if returned is None else 2 * at + 1,
            Outcome.UNKNOWN if returned is None else Outcome.OK, result,
        )
        for at, (action, value, returned, result) in enumerate(operations)
    ]  # fmt: skip
    assert check_linearizable(model_named(model), history).validity is validity


def test_never_returned_write_may_be_read_but_a_refused_one_not() -> None:
    """UNKNOWN may take effect; NOT_APPLIED never does."""
    assert _write_then_read(Outcome.UNKNOWN, None, 5) is Validity.VALID
    assert _write_then_read(Outcome.NOT_APPLIED, 2, 5) is Validity.INVALID


def test_operations_that_touch_at_one_instant_are_concurrent() -> None:
    """Intervals are closed: a read may miss a write that returns as the read begins."""
    for invoked, expected in ((3, Validity.VALID), (4, Validity.INVALID)):
        write = Operation("c1", "write", None, 1, 0, 3, Outcome.OK)
        read = Operation("c2", "read", None, None, invoked, 9, Outcome.OK, None)
        verdict = check_linearizable(model_named("register"), [write, read])
        assert verdict.validity is expected


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.edn", "[{:a"), ("b.json", "{"), ("c.log", "x"), ("d.jsonl", "{}"), ("e.txt", "{:type}")],
)
def test_reader_refuses_malformed_history(tmp_path: Path, name: str, text: str) -> None:
    """Each format names what is wrong instead of guessing."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(HistoryError):
        read_any(path)
    result = CliRunner().invoke(main, ["check", str(path), "--model", "register"])
    assert result.exit_code == 2


def test_command_exits_7_for_an_invalid_history() -> None:
    """The exit status states the verdict."""
    path = DATA / "knossos-cas-register" / "bad-immediate-failure.edn"
    arguments = ["check", str(path), "--model", "cas-register", "--init", "0"]
    assert CliRunner().invoke(main, arguments).exit_code == 7
