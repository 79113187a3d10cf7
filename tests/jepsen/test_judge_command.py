"""raftstore-jepsen check: its verdicts, its words, and what it says of files it cannot judge."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result

from jepsen_like.cli import main
from jepsen_like.history import Operation, write_history
from raftstore.types import Outcome

DATA = Path(__file__).parent.parent / "data" / "linearizability"
MS = 1_000_000
LEVEL = {"level": "linearizable", "table": "t"}


def check(path: Path, model: str, *more: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, ["check", str(path), "--model", model, *more])


def kept(tmp_path: Path, *operations: Operation) -> Path:
    """A history file of our own."""
    path = tmp_path / "history.jsonl"
    write_history(path, operations)
    return path


def put(key: str, value: int, at: int, **details: object) -> Operation:
    """A write of one millisecond."""
    told = {"table": "t", **details}
    return Operation("c1", "put", key, value, at * MS, (at + 1) * MS, Outcome.OK, details=told)


def get(key: str, result: int | None, at: int, **details: object) -> Operation:
    """A linearizable read of one millisecond."""
    told = {**LEVEL, **details}
    return Operation("c2", "get", key, None, at * MS, (at + 1) * MS, Outcome.OK, result, told)


@pytest.mark.parametrize(
    ("file", "arguments", "status"),
    [
        ("knossos-cas-register/good-memstress3-23.edn", ("cas-register", "--init", "0"), 0),
        ("knossos-cas-register/bad-rethink-fail.edn", ("cas-register", "--init", "0"), 7),
        pytest.param(
            "knossos-mutex/bad-etcd.edn",
            ("mutex", "--init", "free"),
            7,
            marks=pytest.mark.slow,
        ),
        ("porcupine/etcd_099.log", ("cas-register",), 7),
        ("porcupine-kv/c10-bad.txt", ("kv",), 7),
        ("elle-cli/rw-register.json", ("rw-register", "--other-writers"), 0),
        ("elle-cli/rw-register.edn", ("rw-register",), 7),
        ("elle-cli/list-append-gh-30.edn", ("list-append", "--consistency", "serializable"), 7),
        ("elle-cli/bank.json", ("bank", "--total", "100"), 0),
        ("elle-cli/bank.edn", ("bank",), 0),
        ("elle-cli/bank-neg.edn", ("bank", "--total", "100"), 7),
        ("elle-cli/bank-negative-balances.json", ("bank",), 7),
    ],
)
def test_command_exits_with_the_verdict(file: str, arguments: tuple[str, ...], status: int) -> None:
    """0 valid, 7 invalid, whatever the format and the model."""
    result = check(DATA / file, *arguments)
    assert result.exit_code == status, result.output
    assert result.output.startswith("valid: " if status == 0 else "invalid: ")


def test_command_explains_an_invalid_history_and_draws_it(tmp_path: Path) -> None:
    """The words name the operation and what was left; the picture marks just that one."""
    page = tmp_path / "out.html"
    path = kept(
        tmp_path, put("k", 1, 0), put("k", 2, 10), get("k", 1, 20), get("other", None, 20),
    )  # fmt: skip
    result = check(path, "register", "--html", str(page))
    assert result.exit_code == 7
    lines = result.output.splitlines()
    assert lines[0] == (
        "invalid: read of process c2 on key 'k' answered 1, which fits no order of the operations: "
        "1 and 2 would be there at one time"
    )
    assert [line.split()[:3] for line in lines[2:5]] == [
        ["1", "c1", "0.000"], ["2", "c1", "10.000"], [">", "3", "c2"],
    ]  # fmt: skip
    assert lines[-1] == f"timeline: {page}"
    text = page.read_text(encoding="utf-8")
    svg = ET.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    labels = [node.text for node in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "#3 read k -> 1" in labels
    assert not any("other" in (label or "") for label in labels), "another key proves nothing"
    assert text.count('stroke="#b00020"') == 1


def test_command_counts_events_where_a_file_has_no_times() -> None:
    """Places in a file are never shown as milliseconds."""
    result = check(DATA / "porcupine-kv" / "c01-bad.txt", "kv")
    assert "event 59" in result.output
    assert " ms" not in result.output


def test_command_judges_conditional_puts_of_our_own_runs(tmp_path: Path) -> None:
    """A conflict says that the row was another; without an answer the put may have happened."""
    conflict = Operation(
        "c3", "put_if", "k", 5, 20 * MS, 21 * MS, Outcome.OK,
        details={"table": "t", "from": 1, "conflict": True},
    )  # fmt: skip
    assert check(kept(tmp_path, put("k", 1, 0), conflict), "cas-register").exit_code == 7
    changed = put("k", 2, 10)
    path = kept(tmp_path, put("k", 1, 0), changed, conflict, get("k", 2, 30))
    assert check(path, "cas-register").exit_code == 0
    unknown = Operation(
        "c3", "put_if", "k", 5, 20 * MS, details={"table": "t", "from": 1}
    )  # fmt: skip
    for seen, status in ((1, 0), (5, 0), (7, 7)):
        path = kept(tmp_path, put("k", 1, 0), unknown, get("k", seen, 30))
        assert check(path, "cas-register").exit_code == status
    again = kept(tmp_path, put("k", 1, 0), unknown, get("k", 5, 30), get("k", 1, 40))
    assert check(again, "cas-register").exit_code == 7


def test_command_keeps_equal_keys_of_two_tables_apart(tmp_path: Path) -> None:
    """A row of one table says nothing of another's."""
    other = get("k", None, 20, table="u")
    assert check(kept(tmp_path, put("k", 1, 0), other), "register").exit_code == 0
    assert check(kept(tmp_path, put("k", 1, 0), get("k", None, 20)), "register").exit_code == 7
    weak = get("k", None, 20, level="any")
    # It may show any state of the past: nothing here shows the newest one.
    assert check(kept(tmp_path, put("k", 1, 0), weak), "register").exit_code == 4


def test_command_says_undecided_when_the_budget_ends(tmp_path: Path) -> None:
    """Exit status 4, and what to do."""
    changes = [[a, b] for a in range(4) for b in range(4) if a != b] * 2
    operations = [
        Operation(f"c{n}", "cas", None, change, 0, 100, Outcome.OK)
        for n, change in enumerate(changes)
    ]
    operations.append(Operation("r", "read", None, None, 101, 102, Outcome.OK, 9))
    result = check(kept(tmp_path, *operations), "cas-register", "--init", "0", "--budget", "256")
    assert result.exit_code == 4
    assert "allow a larger budget" in result.output


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", "", "holds no operation"),
        ("a.edn", "", "holds no operation"),
        ("a.edn", "[{:process 1 :type :invoke :f :read} {:process 1", "line 1 of"),
        ("a.edn", "[{:process 1 :type :ok :f :read}]", "ends an operation that never began"),
        ("a.jsonl", '{"process": "c1"}\n', "line 1 of"),
        ("a.jsonl", "\n[1]\n", "line 2 of"),
        ("a.jsonl", "not json\n", "line 1 of"),
        ("a.json", "{", "is no json"),
        ("a.log", "INFO  jepsen.util - 0 :hello", "line 1 of"),
        ("a.log", "something else", "holds no event of a jepsen log"),
    ],
)
def test_command_names_what_is_malformed(tmp_path: Path, name: str, text: str, said: str) -> None:
    """One sentence with the place and the remedy, exit status 2, never a traceback."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    result = check(path, "cas-register")
    assert result.exit_code == 2
    assert said in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_command_refuses_bytes_that_are_no_text(tmp_path: Path) -> None:
    """A database file given by mistake."""
    for name in ("a.edn", "a.jsonl", "a.bin"):
        path = tmp_path / name
        path.write_bytes(b"\xff\xfe\x00\x01")
        result = check(path, "register")
        assert result.exit_code == 2
        assert "cannot be read" in result.output


def test_command_refuses_what_is_not_there_or_unknown(tmp_path: Path) -> None:
    """The file, the model, the first state, the place of the timeline."""
    good = kept(tmp_path, put("k", 1, 0))
    for result, said in (
        (check(tmp_path / "none.edn", "register"), "does not exist"),
        (check(tmp_path, "register"), "is a directory"),
        (check(good, "registre"), "is not one of"),
        (check(good, "mutex", "--init", "3"), "use free or held"),
        (check(good, "register", "--budget", "0"), "is not in the range"),
        (check(good, "register", "--html", str(tmp_path / "no" / "a.html")), "cannot be written"),
        (check(good, "mutex"), "the action 'put' is unknown to the model mutex"),
        (check(good, "bank"), "the action 'put' is unknown to the model bank"),
        (check(good, "list-append"), "is no action of the model list-append"),
    ):
        assert result.exit_code == 2, result.output
        assert said in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("model", "wrong", "said"),
    [
        ("cas-register", {"action": "cas", "value": [1]}, "give a pair of expected and new"),
        ("register", {"action": "write", "details": {"conflict": True}}, "no condition"),
        ("kv", {"action": "put", "value": 3}, "the model kv knows strings"),
        ("register", {"action": "read", "returned": 1}, "returned at 1, before it"),
        ("register", {"action": "delete"}, "is no action of the model register"),
        ("register", {"action": "put_if", "details": {"from": 1}}, "use cas-register"),
        ("cas-register", {"action": "put_if"}, "does not say what it compared"),
    ],
)
def test_command_refuses_operations_that_make_no_sense(
    tmp_path: Path, model: str, wrong: dict[str, object], said: str
) -> None:
    """A verdict over them would be a guess."""
    plain = Operation("c1", "read", "k", None, 5, 6, Outcome.OK).as_json() | {"details": {}}
    path = tmp_path / "history.jsonl"
    path.write_text(json.dumps(plain | wrong) + "\n", encoding="utf-8")
    result = check(path, model)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.split())
