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
JUDGED = [entry for entry in INDEX if entry["suite"] != "elle-cli"]


def _initial(recorded: Any) -> int | None:
    return recorded if isinstance(recorded, int) else None


@pytest.mark.slow
def test_checker_agrees_with_every_recorded_verdict() -> None:
    """All recorded histories of registers, mutexes and kv stores are judged as recorded."""
    wrong = []
    for entry in JUDGED:
        model = model_named(entry["model"].split()[0], _initial(entry["init"]))
        verdict = check_linearizable(model, read_any(DATA / entry["file"]))
        if verdict.validity is not (Validity.VALID if entry["valid"] else Validity.INVALID) or (
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
    """The exit status tells the verdict."""
    path = DATA / "knossos-cas-register" / "bad-immediate-failure.edn"
    arguments = ["check", str(path), "--model", "cas-register", "--init", "0"]
    assert CliRunner().invoke(main, arguments).exit_code == 7
