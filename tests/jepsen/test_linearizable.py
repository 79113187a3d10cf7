"""The checkers of linearizability against recorded verdicts, each other and brute force."""

from __future__ import annotations

import json
import random
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jepsen_like.checker import jit, wgl, zones
from jepsen_like.checker.linearizable import check_linearizable
from jepsen_like.checker.models import REFUSED, Entry, Model, entries_of, model_named
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


def test_reader_reads_every_history_of_transactions() -> None:
    """Each file of elle-cli gives operations of transactions or of the bank."""
    for entry in INDEX:
        if entry["suite"] == "elle-cli":
            assert read_elle(DATA / entry["file"])


def _random_history(seed: int) -> list[Operation]:
    rng = random.Random(seed)
    operations = []
    for number in range(rng.randint(2, 6)):
        invoked = rng.randint(0, 8)
        action = rng.choice(["read", "write", "cas"] if seed % 2 else ["read", "write"])
        value: Any = [rng.randint(0, 2), rng.randint(0, 2)] if action == "cas" else number + 1
        outcome = rng.choice([Outcome.OK] * 6 + [Outcome.UNKNOWN, Outcome.NOT_APPLIED])
        returned = None if outcome is Outcome.UNKNOWN else invoked + rng.randint(0, 5)
        result = rng.randint(0, 3) if action == "read" else None
        details = {"conflict": True} if action == "cas" and rng.random() < 0.3 else {}
        operations.append(
            Operation(
                f"c{number}", action, None, value, invoked, returned, outcome, result, details
            )
        )
    return operations


def _brute(model: Model, entries: list[Entry]) -> bool:
    done = [entry for entry in entries if entry.returned is not None]
    lost = [entry for entry in entries if entry.returned is None]
    for chosen in range(1 << len(lost)):
        some = done + [entry for at, entry in enumerate(lost) if chosen >> at & 1]
        if any(_fits(model, order) for order in permutations(some)):
            return True
    return False


def _fits(model: Model, order: tuple[Entry, ...]) -> bool:
    state = model.initial
    for at, entry in enumerate(order):
        if any(o.returned is not None and o.returned < entry.call for o in order[at + 1 :]):
            return False
        state = model.step(state, entry)
        if state is REFUSED:
            return False
    return True


@pytest.mark.slow
def test_algorithms_agree_with_brute_force_on_random_histories() -> None:
    """WGL, JIT and zones say what trying every order says."""
    model = model_named("cas-register", 0)
    counts = {True: 0, False: 0}
    for seed in range(2000):
        entries = entries_of(model, _random_history(seed))
        expected = _brute(model, entries)
        counts[expected] += 1
        assert [a for a in wgl.search(model, entries) if a is not None] == [expected], seed
        assert ([a for a in jit.search(model, entries) if a is not None] == [True]) is expected
        if zones.applies(model, entries):
            assert (not zones.culprit_of(model, entries)) is expected, seed
    assert min(counts.values()) > 300


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
