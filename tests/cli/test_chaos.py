"""``raftstore chaos``: names, a run on virtual time, its report, exit codes, unkind input."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.history import Operation
from jepsen_like.power_losses import PowerLossFigures
from jepsen_like.result import Result as ChaosResult
from jepsen_like.session import catalogue
from jepsen_like.target.base import NotRunError
from jepsen_like.target.processes.runner import RunFailedError
from raftstore.cli.main import main
from raftstore.types import Outcome

LOCK = "raftstore.recipes.lock:Lock"
CLIENTS = "jepsen_like.workload.recipe_clients"


@dataclass(frozen=True, slots=True)
class Ended:
    """The exit code and output of a command."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """The program as a user starts it."""

    def run(*arguments: str) -> Ended:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        shown = capsys.readouterr()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0, shown.out, shown.err)

    return run


def kept(directory: Path, validity: Validity) -> Path:
    """A run on disk with this verdict."""
    history = [Operation("c1", "put", "k", 1, 0, 2_000_000, Outcome.OK)]
    ChaosResult(
        target="simulated",
        workload="register",
        nemeses=(),
        seed=1,
        options={},
        seconds=1.0,
        verdicts=[Verdict("register", validity, "said by the test", tuple(history))],
        history=history,
        faults=[],
        replay="raftstore chaos run --workload register",
    ).save(directory)
    return directory


def test_list_names_every_workload_and_fault_with_what_it_does(
    invoke: Callable[..., Ended],
) -> None:
    """A user chooses from this list."""
    shown = invoke("chaos", "list").output
    for row in catalogue():
        assert row["name"] in shown
        assert len(row["what"]) > 10


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ((), "give --workload NAME .* or --machine MODULE:CLASS"),
        (("--workload", "bank", "--machine", "recipes"), "and not both"),
        (("--workload", "bank", "--path", "."), "--path is where modules of --machine are"),
        (("--machine", "nowhere:Sum"), "the machine nowhere:Sum cannot be loaded here"),
        (("--machine", "recipes", "--simulated"), "runs on processes"),
        (("--machine", "recipes", "--cluster", "127.0.0.1:1"), "runs on processes"),
        (("--machine", "recipes", "--nemesis", "kil-leader"), "did you mean 'kill-leader'"),
        (("--machine", "recipes", "--workload", ""), "and not both"),
        (("--machine", ""), "--machine '': no machine is named"),
        (("--machine", f"{LOCK}="), "no workload is named; write module:Class,"),
        (("--machine", f"{LOCK}={CLIENTS}:lockers,"), "no check is named; write module:Class,"),
    ],
)
def test_machines_that_cannot_run_are_refused_with_the_remedy(
    invoke: Callable[..., Ended], options: tuple[str, ...], complaint: str
) -> None:
    """Before anything is started."""
    ended = invoke("chaos", "run", *options)
    assert ended.exit_code == 2
    assert re.search(complaint, ended.stderr)


@pytest.mark.slow
def test_simulated_run_under_a_fault_is_judged_kept_and_reported(
    invoke: Callable[..., Ended], tmp_path: Path
) -> None:
    """Verdicts on the screen; history, figures and a page in the directory."""
    out = tmp_path / "run"
    plan = ("--workload", "register", "--nemesis", "kill-leader", "--time-limit", "4")
    result = invoke("-o", "json", "chaos", "run", *plan, "--seed", "3", "--out", str(out))
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert shown["validity"] == "VALID"
    assert shown["operations"] > 50
    assert {fault["kind"] for fault in shown["faults"]} == {"kill-leader"}
    assert "--seed 3" in shown["replay"]
    assert len((out / "history.jsonl").read_text().splitlines()) >= shown["operations"]

    assert invoke("chaos", "report", str(out)).exit_code == 0
    page = (out / "report.html").read_text()
    assert "kill-leader" in page
    assert shown["replay"] in page


@pytest.mark.slow
def test_same_plan_gives_the_same_run(invoke: Callable[..., Ended], tmp_path: Path) -> None:
    """The replay line replays."""
    plan = ("chaos", "run", "--workload", "table_set", "--nemesis", "pause-leader,loss")
    histories = []
    for name in ("one", "two"):
        out = tmp_path / name
        assert invoke(*plan, "--time-limit", "6", "--out", str(out)).exit_code == 0
        histories.append((out / "history.jsonl").read_bytes())
    assert histories[0] == histories[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("validity", "code"),
    [(Validity.VALID, 0), (Validity.INVALID, 7), (Validity.UNDECIDED, 4)],
)
def test_exit_code_of_a_report_is_that_of_its_worst_verdict(
    invoke: Callable[..., Ended], tmp_path: Path, validity: Validity, code: int
) -> None:
    """A script can distinguish a violation from a run that proved nothing."""
    assert invoke("chaos", "report", str(kept(tmp_path, validity))).exit_code == code


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--workload", "regster"), "no workload 'regster'; did you mean 'register'?"),
        (
            ("--workload", "register", "--nemesis", "kill-leadr"),
            "no fault 'kill-leadr'; did you mean 'kill-leader'?",
        ),
        (("--workload", "register", "--time-limit", "0"), "0.0 is not in the range"),
        (("--workload", ""), "there is no workload ''; there are register"),
        (
            ("--workload", "register", "--nemesis", ""),
            "--nemesis '' names nothing at place 1; give names with a comma between them, or leave",
        ),
        (
            ("--workload", "register", "--nemesis", "kill-leader,"),
            "--nemesis 'kill-leader,' names nothing at place 2",
        ),
        (
            ("--workload", "register", "--nemesis", "loss, kill-leader,loss"),
            "--nemesis names 'loss' twice; name it once",
        ),
        (("--workload", "register", "--cluster", ""), "--cluster '' names nothing at place 1"),
        (
            ("--workload", "register", "--cluster", "127.0.0.1:1,,127.0.0.1:2"),
            "names nothing at place 2",
        ),
        (
            ("--workload", "register", "--network", "namespaces"),
            "--network namespaces is a network of --processes; name them too",
        ),
    ],
)
def test_run_refuses_what_it_does_not_know(
    invoke: Callable[..., Ended],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    expected: str,
) -> None:
    """Before anything is started or left, with the name that was probably meant."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = invoke("chaos", "run", *arguments)
    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []
    assert expected in " ".join(result.output.split())


def test_run_says_why_there_are_no_namespaces(
    invoke: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without root: one sentence, and nothing is in the way of the next run."""
    monkeypatch.setattr("os.geteuid", lambda: 65_534)
    plan = ("--workload", "register", "--processes", "--network", "namespaces")
    result = invoke("chaos", "run", *plan, "--out", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert "network namespaces need root" in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


def test_run_does_not_write_over_another_run(invoke: Callable[..., Ended], tmp_path: Path) -> None:
    """A history that proved something is not lost by a repeated command."""
    (tmp_path / "history.jsonl").write_text("{}\n")
    result = invoke("chaos", "run", "--workload", "register", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "is not empty" in result.output
    assert (tmp_path / "history.jsonl").read_text() == "{}\n"


def test_report_says_that_a_directory_holds_no_run(
    invoke: Callable[..., Ended], tmp_path: Path
) -> None:
    """With the command that makes one."""
    result = invoke("chaos", "report", str(tmp_path / "nothing"))
    assert result.exit_code != 0
    assert "holds no finished run" in result.output
    assert "raftstore chaos run --out" in result.output


@pytest.mark.parametrize(
    ("figures", "code"),
    [
        (PowerLossFigures(pulls=1, acknowledged=9), 0),
        (PowerLossFigures(pulls=1, in_doubt=9), 4),
        (PowerLossFigures(pulls=1, acknowledged=9, violations=["lost [1]"]), 7),
        (PowerLossFigures(pulls=1, violations=["made up [1]"]), 7),
    ],
)
def test_pulled_plugs_prove_nothing_without_an_acknowledged_write(
    invoke: Callable[..., Ended],
    monkeypatch: pytest.MonkeyPatch,
    figures: PowerLossFigures,
    code: int,
) -> None:
    """Nothing can be lost where nothing was promised."""
    monkeypatch.setattr("raftstore.cli.chaos.run_power_losses", lambda *_, **__: figures)
    assert invoke("chaos", "power", "--count", "1").exit_code == code


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (NotRunError("another program took a port of n2; run it again"), 4, "not run: another"),
        (RunFailedError("the cluster in x was not whole"), 7, "INVALID: the cluster in x was not"),
    ],
)
def test_a_run_without_a_result_tells_whose_fault_that_is(
    invoke: Callable[..., Ended],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: Exception,
    code: int,
    said: str,
) -> None:
    """The machine's: neither passed nor violated. The store's: a violation."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("raftstore.cli.chaos.run_plan", fail)
    out = str(tmp_path / "out")
    ended = invoke("chaos", "run", "--workload", "register", "--processes", "--out", out)
    assert ended.exit_code == code
    assert said in ended.stderr
