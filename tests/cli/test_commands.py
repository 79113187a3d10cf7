"""The command line without a cluster: options, help, exit codes and printing."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import click
import pytest
from click.testing import CliRunner, Result

import raftstore
from raftstore import errors
from raftstore.cli.common import Context
from raftstore.cli.errors import exit_code, run_guarded
from raftstore.cli.main import COMMANDS, cli, global_options_first
from raftstore.cli.status import _channels as status_channels
from raftstore.cli.status import _switch as status_switch


def run(*arguments: str) -> Result:
    """Invoke a command as ``main`` does."""
    return CliRunner().invoke(cli, global_options_first(arguments), standalone_mode=False)


class FakeClient:
    """A cluster whose tables can be dropped."""

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def drop_table(self, name: str) -> None:
        """Remember it."""
        self.dropped.append(name)


def use(monkeypatch: pytest.MonkeyPatch, client: FakeClient) -> None:
    """Have every command talk to this client."""
    monkeypatch.setattr(Context, "connect", lambda _: client)


@pytest.mark.parametrize(
    ("given", "moved"),
    [
        (["status", "-o", "json"], ["-o", "json", "status"]),
        (["get", "t", "1", "--timeout=1s", "--yes"], ["--timeout=1s", "--yes", "get", "t", "1"]),
        (["status", "-ojson"], ["-ojson", "status"]),
        (["scan", "t", "--prefix", "-old"], ["scan", "t", "--prefix", "-old"]),
        (["put", "t", "--", "-o", "json"], ["put", "t", "--", "-o", "json"]),
        (["status", "-o"], ["-o", "status"]),
        ([], []),
    ],
)
def test_global_options_stand_anywhere_before_two_dashes(
    given: list[str], moved: list[str]
) -> None:
    """They are moved to the front with their values; the rest keeps its order."""
    assert global_options_first(given) == moved


def leaves_of(command: click.Command) -> list[click.Command]:
    """The command, or all those below it that are no groups."""
    if not isinstance(command, click.Group):
        return [command]
    return [leaf for below in command.commands.values() for leaf in leaves_of(below)]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_begins_with_what_it_does(name: str) -> None:
    """Each command says what it does, and each one without sub-commands shows an example."""
    context = click.Context(cli)
    command = cli.get_command(context, name)
    assert command is not None
    assert command.help
    assert all("Example" in (leaf.help or "") for leaf in leaves_of(command))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("x"), 78),
        (errors.ArgumentError("x"), 2),
        (errors.StoreIdentityError("x"), 78),
        (errors.PersistError("x"), 70),
        (errors.UnknownTableError("x"), 9),
        (errors.ConflictError("x"), 9),
        (errors.SchemaError("x"), 9),
        (errors.QuorumTimeoutError("x"), 3),
        (errors.ConnectionInDoubtError("x"), 3),
        (errors.PartialWriteError("x", applied=[], not_applied=[0], unknown=[]), 9),
        (errors.PartialWriteError("x", applied=[], not_applied=[], unknown=[0]), 3),
        (errors.NoLeaderError("x"), 4),
        (errors.NotLeaderError("x"), 4),
        (errors.LagExceededError("x"), 4),
        (errors.NoReplicaAvailableError("x"), 4),
        (errors.ConnectionLostError("x"), 4),
        (errors.RequestTimeoutError("x"), 5),
    ],
)
def test_errors_have_their_documented_exit_codes(error: errors.RaftstoreError, code: int) -> None:
    """Usage 2, unknown 3, unavailable 4, timeout 5, refused 9, storage 70, configuration 78."""
    assert exit_code(error) == code


def test_error_is_one_sentence_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback, nothing on stdout."""

    @click.command()
    def failing() -> None:
        raise errors.SchemaError("the column 'x' is unknown")

    assert run_guarded(failing, []) == 9
    assert capsys.readouterr() == ("", "error: the column 'x' is unknown\n")


def test_unknown_table_is_told_with_the_commands_that_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The client's own remedy would be Python."""

    @click.command()
    def failing() -> None:
        raise errors.UnknownTableError("there is no table 'x'")

    assert run_guarded(failing, []) == 9
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "error: there is no table 'x'"
    assert "raftstore table create -h" in told[1]


def test_config_show_tells_where_a_value_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment over default, with the name of the variable."""
    monkeypatch.setenv("RAFTSTORE_HEARTBEAT_WINDOW_MS", "3s")
    result = run("config", "show", "--origin", "-o", "json")
    rows = {row["key"]: row for row in json.loads(result.stdout)}
    assert rows["heartbeat.window_ms"] == {
        "key": "heartbeat.window_ms",
        "value": "3s",
        "origin": "environment RAFTSTORE_HEARTBEAT_WINDOW_MS",
    }
    assert rows["read.scan_rows_max"]["origin"] == "default"


def test_config_validate_checks_a_file_as_a_node_would(tmp_path: Path) -> None:
    """Exit code 78 with the reason; what the file leaves to flags is given as flags."""
    file = tmp_path / "n1.toml"
    file.write_text('[node]\nname = "n1"\n')
    assert "node.data_dir is not set" in str(run("config", "validate", str(file)).exception)
    fine = run("config", "validate", str(file), "--data-dir", str(tmp_path / "data"))
    assert fine.exception is None
    assert "a node named n1 can start" in fine.stderr
    assert not (tmp_path / "data").exists()
    file.write_text('[node]\nname = "n1"\ndata_dir = "d"\n[http]\nusers_file = "absent"\n')
    error = run("config", "validate", str(file)).exception
    assert isinstance(error, errors.ConfigError)
    assert exit_code(error) == 78
    assert "absent" in str(error)
    file.write_text('[node]\nname = "n1"\ndata_dir = "d"\nnaem = 1\n')
    assert "naem" in str(run("config", "validate", str(file)).exception)


@pytest.mark.parametrize(
    ("own", "shown"),
    [
        ({"role": "leader", "mode": "steady", "lag": 0}, "leader"),
        ({"role": "follower", "mode": "steady", "lag": 0}, "lag 0"),
        ({"role": "follower", "mode": "catching_up", "lag": None}, "lag ? catching_up"),
        ({"role": "follower", "mode": "steady", "lag": 0, "member": "voter"}, "lag 0"),
        ({"role": "follower", "mode": "steady", "lag": 3, "member": "reader"}, "reader lag 3"),
        ({"role": "follower", "mode": "steady", "lag": 3, "member": "witness"}, "witness"),
        ({"role": "candidate", "mode": "steady", "lag": 7}, "candidate lag 7"),
    ],
)
def test_status_tells_a_replica_in_few_words(own: dict[str, Any], shown: str) -> None:
    """Three replicas of a channel fit into 80 columns; what is as it should be is left out."""
    node = SimpleNamespace(
        name="n1",
        status={
            "channels": [{"table": "orders", "partition": 0, "term": 3, "commit_seq": 9, **own}]
        },
    )
    found: Any = SimpleNamespace(nodes=[node])
    assert status_channels(found)[0]["n1"] == shown


@pytest.mark.parametrize(
    ("reported", "switch"),
    [((None, None), None), ((None, {}), None), (({"switch": None}, {"switch": False}), False)],
)
def test_status_says_what_an_operator_made_of_even_leaders(
    reported: tuple[dict[str, Any] | None, ...],
    switch: bool | None,
) -> None:
    """Nodes that are down, or of an older version, say nothing of it."""
    nodes = [SimpleNamespace(status=None if own is None else {"leaders": own}) for own in reported]
    found: Any = SimpleNamespace(nodes=nodes)
    assert status_switch(found) is switch


def test_yaml_output_holds_every_value() -> None:
    """Lists of maps become YAML sequences; scalars are written as JSON."""
    result = run("config", "show", "-o", "yaml")
    assert '- key: "node.name"\n' in result.stdout


def test_table_rm_needs_yes_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removing rows for ever is never a slip of a script."""
    client = FakeClient()
    use(monkeypatch, client)
    assert isinstance(run("table", "rm", "orders").exception, click.UsageError)
    assert client.dropped == []
    assert run("table", "rm", "orders", "--yes").exception is None
    assert client.dropped == ["orders"]


def test_local_cluster_is_public() -> None:
    """``raftstore.LocalCluster`` is imported when it is first used."""
    assert raftstore.LocalCluster.__name__ == "LocalCluster"


@pytest.mark.parametrize(
    ("given", "is_told"), [((), True), (("--endpoints", "127.0.0.1:4491"), False)]
)
def test_unreachable_default_names_the_option_that_says_where_the_nodes_are(
    given: tuple[str, ...], is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first command of a new user meets no node at the default address."""

    def refuse(*_: object, **__: object) -> None:
        raise errors.UnavailableError("no node answered; check that one runs there")

    monkeypatch.setattr(raftstore, "connect", refuse)
    told = str(run("status", *given).exception)
    assert told.startswith("no node answered; check that one runs there")
    assert told.endswith("name a node with --endpoints or RAFTSTORE_ENDPOINTS") == is_told
