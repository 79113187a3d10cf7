"""Settings: precedence, origins, and one clear sentence for each that cannot work."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from raftstore.config import NodeSettings
from raftstore.errors import ConfigError
from raftstore.node.setting_rules import range_of
from raftstore.node.settings import Setting, environment_variable, node_settings, resolve_settings

IDENTITY = {"node.name": ("--id", "n1"), "node.data_dir": ("--data-dir", "data")}


def node(**flags: str | bool) -> NodeSettings:
    """Settings of node n1 with flags such as ``heartbeat__window_ms="1s"``."""
    given = {name.replace("__", "."): ("--flag", value) for name, value in flags.items()}
    return node_settings(resolve_settings(flags={**IDENTITY, **given}))


def refusal_of(**flags: str | bool) -> str:
    """The sentence that refuses the flags."""
    with pytest.raises(ConfigError) as refusal:
        node(**flags)
    return str(refusal.value)


def written(directory: Path, text: str) -> Path:
    """A settings file with this content."""
    file = directory / "raftstore.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_defaults_are_those_of_config_and_pass_their_own_rules() -> None:
    """The defaults are those of the configuration and pass its rules: a node works without any
    setting.
    """
    assert node() == NodeSettings(name="n1", data_dir="data")


def test_flag_wins_over_environment_over_file_over_default(tmp_path: Path) -> None:
    """The nearer to the person who starts the node, the stronger; each value keeps its origin."""
    file = written(tmp_path, '[heartbeat]\nwindow_ms = "3s"\nsend_interval_ms = 200\n')
    environment = {
        "RAFTSTORE_HEARTBEAT_WINDOW_MS": "4s",
        "RAFTSTORE_NODE_LISTEN": "127.0.0.1:1",
    }
    settings = resolve_settings(
        file=file, environment=environment, flags={"node.listen": ("--listen", "127.0.0.1:2")}
    )
    assert settings["heartbeat.send_interval_ms"] == Setting(
        "heartbeat.send_interval_ms", 200, f"file {file}"
    )
    assert settings["heartbeat.window_ms"].value == 4_000
    assert settings["heartbeat.window_ms"].origin == "environment RAFTSTORE_HEARTBEAT_WINDOW_MS"
    assert settings["node.listen"] == Setting("node.listen", "127.0.0.1:2", "flag --listen")
    assert settings["query.max_lag"].origin == "default"


def test_every_setting_is_reachable_from_file_and_environment(tmp_path: Path) -> None:
    """Writing the default of every key changes nothing: each is known, in every place."""
    defaults = resolve_settings(flags=IDENTITY)
    lines: dict[str, list[str]] = {}
    for key, setting in defaults.items():
        section, _, name = key.partition(".")
        lines.setdefault(section, []).append(f'{name} = "{setting.text()}"')
    text = "\n".join(f"[{section}]\n" + "\n".join(lines[section]) for section in lines)
    from_file = resolve_settings(file=written(tmp_path, text))
    environment = {environment_variable(key): value.text() for key, value in defaults.items()}
    from_environment = resolve_settings(environment=environment)
    for other in (from_file, from_environment):
        assert {key: setting.value for key, setting in other.items()} == {
            key: setting.value for key, setting in defaults.items()
        }


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("[heartbeat]\nwindow = 1", "heartbeat.window_ms"),
        ("[heartbaet]\nwindow_ms = 1", "heartbeat.window_ms"),
        ("[node]\nwindow_ms = 1", "heartbeat.window_ms"),
        ("insecure = true", "node.insecure"),
    ],
)
def test_unknown_key_in_the_file_is_refused_with_a_suggestion(
    tmp_path: Path, text: str, suggestion: str
) -> None:
    """A setting that is silently ignored is worse than a node that does not start."""
    file = written(tmp_path, text)
    with pytest.raises(ConfigError, match="unknown setting") as refusal:
        resolve_settings(file=file)
    assert str(file) in str(refusal.value)
    assert f"did you mean {suggestion}?" in str(refusal.value)


def test_unknown_key_like_nothing_names_the_list_of_keys(tmp_path: Path) -> None:
    """Without a guess the message still has a remedy."""
    file = written(tmp_path, "[q]\nzzzz = 1")
    with pytest.raises(ConfigError, match="raftstore config show"):
        resolve_settings(file=file)


@pytest.mark.parametrize("variable", ["RAFTSTORE_HEARTBAET_WINDOW_MS", "RAFTSTORE_NODE_NAMES"])
def test_unknown_variable_that_reads_like_a_setting_is_refused(variable: str) -> None:
    """A misspelt variable is a misspelt setting."""
    with pytest.raises(ConfigError, match=f"unknown setting {variable}.*did you mean RAFTSTORE_"):
        resolve_settings(environment={variable: "1"})


def test_variables_of_others_are_left_alone() -> None:
    """The client's variables, and those of programs around us, are no settings of a node."""
    environment = {"RAFTSTORE_ENDPOINTS": "a:1", "RAFTSTORE_BACKUP_BUCKET": "b", "HOME": "c"}
    assert resolve_settings(environment=environment) == resolve_settings()


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot read the settings file"), ("[heartbeat", "is not valid TOML")],
)
def test_file_that_cannot_be_read_is_named(
    tmp_path: Path, content: str | None, message: str
) -> None:
    """A wrong --config is reported as such, with the path."""
    file = tmp_path / "absent.toml" if content is None else written(tmp_path, content)
    with pytest.raises(ConfigError, match=message) as refusal:
        resolve_settings(file=file)
    assert str(file) in str(refusal.value)


@pytest.mark.parametrize(
    ("key", "raw", "message"),
    [
        ("heartbeat.window_ms", "0", "allowed is 1ms to 24h"),
        ("heartbeat.missed_threshold", "-1", "heartbeat.missed_threshold is -1"),
        ("heartbeat.missed_threshold", "two", "write a whole number"),
        ("heartbeat.missed_threshold", "+-5", "write a whole number"),
        ("heartbeat.missed_threshold", "²", "write a whole number"),
        ("heartbeat.missed_threshold", "٣", "write a whole number"),
        ("heartbeat.missed_threshold", "9" * 5_000, "write a whole number"),
        ("heartbeat.window_ms", "soon", "'soon' is not a duration"),
        ("storage.segment_bytes", "1KiB", "allowed is 16MiB to 4GiB"),
        ("storage.segment_bytes", "64MB", "'64MB' is not a size"),
        ("replication.commit_notice_interval_ms", "50ms", "allowed is 1ms to 49ms"),
        ("heartbeat.stall_limit_ms", "1ms", "allowed is 200ms to 24h"),
        ("node.insecure", "maybe", "write true or false"),
        ("node.initial_cluster", "n1", "write name=host:port"),
    ],
)
def test_impossible_value_is_refused_with_what_is_allowed(key: str, raw: str, message: str) -> None:
    """The sentence names the key, the value, where it came from, and the remedy."""
    with pytest.raises(ConfigError) as refusal:
        resolve_settings(environment={environment_variable(key): raw})
    assert key in str(refusal.value)
    assert message in str(refusal.value)


def test_number_in_the_file_must_not_be_a_truth_value(tmp_path: Path) -> None:
    """``true`` is an int to Python, never to the reader of a settings file."""
    file = written(tmp_path, "[heartbeat]\nwindow_ms = true")
    with pytest.raises(ConfigError, match="write a duration"):
        resolve_settings(file=file)


def test_text_setting_must_be_a_string(tmp_path: Path) -> None:
    """A port alone is no address."""
    with pytest.raises(ConfigError, match=r"node\.listen is 4481 .*write a string"):
        resolve_settings(file=written(tmp_path, "[node]\nlisten = 4481"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"node__name": "a@b"}, "node.name is 'a@b'"),
        ({"node__data_dir": ""}, "node.data_dir is not set"),
        ({"node__failure_domain": "rack 1"}, "node.failure_domain is 'rack 1'"),
        ({"node__failure_domain": "r" * 64}, "or none"),
        ({"node__log_level": "loud"}, "allowed are debug, info, warning, error"),
        ({"node__event_loop": "trio"}, "allowed are auto, asyncio, uvloop"),
        ({"node__listen": "0.0.0.0:4481", "node__advertise": "n1:4481"}, "--insecure"),
        ({"node__listen": "0.0.0.0:4481", "node__insecure": True}, "set --advertise"),
        ({"node__listen": "4481"}, "write host:port"),
        ({"node__listen": "127.0.0.1:65536"}, "a port of 0 to 65535"),
        ({"node__advertise": "127.0.0.1:0"}, "a port of 1 to 65535"),
        ({"node__advertise": "::1:4481"}, "write IPv6 as [address]:port"),
        ({"node__initial_cluster": "n1=a..b:1"}, "is no host"),
        ({"node__initial_cluster": "n2=a:1,n3=b:1"}, "but not this node, 'n1'"),
        ({"node__initial_cluster": "n1=a:1,n2=a:1"}, "names 'a:1' twice"),
        ({"node__initial_cluster": "n1=a:1,n1=b:1"}, "names 'n1' twice"),
        ({"node__initial_cluster": "n1=a:1,n/2=b:1"}, "node.name is 'n/2'"),
        ({"heartbeat__window_ms": "200ms"}, "heartbeat.missed_threshold (3)"),
        ({"heartbeat__received_threshold": "30"}, "heartbeat.received_threshold (30)"),
        ({"heartbeat__check_interval_ms": "299ms"}, "at most read.stall_guard_ms (250ms)"),
        (
            {"heartbeat__check_interval_ms": "301ms"},
            "at most heartbeat.missed_threshold (3) x heartbeat.send_interval_ms (100ms), 300ms",
        ),
        (
            {"heartbeat__check_interval_ms": "300ms", "heartbeat__stall_limit_ms": "599ms"},
            "allowed is 600ms or more, 2 x heartbeat.check_interval_ms",
        ),
        (
            {"lag__report_interval_ms": "10s"},
            "allowed is less than read.leader_info_age_max_ms (10s)",
        ),
        ({"read__leader_info_age_max_ms": "1s"}, "lag.report_interval_ms is 1s"),
        ({"query__prefer": "neerest"}, "allowed are leader, nearest, any_in_bound"),
        (
            {
                "replication__live_queue_bytes_max": "8MiB",
                "replication__sync_batch_bytes_max": "8MiB",
            },
            "allowed is 16MiB or more",
        ),
        (
            {
                "replication__live_queue_messages_max": "4095",
                "replication__sync_batch_records_max": "2048",
            },
            "live_queue_messages_max is 4095; allowed is 4096 or more, 2 x "
            "replication.sync_batch_records_max (2048): raise the one or lower the other",
        ),
        (
            {"catchup__slow_action": "leave"},
            "catchup.slow_action is 'leave'; allowed are retire, exit, ignore",
        ),
        ({"catchup__slow_window_ms": "9s"}, "catchup.slow_window_ms is 9s"),
        ({"catchup__inflight_requests": "0"}, "catchup.inflight_requests is 0"),
        (
            {"storage__stall_limit_ms": "2s"},
            "allowed is more than storage.stall_handover_ms (2s)",
        ),
        (
            {"storage__stall_limit_ms": "9s"},
            "allowed is more than storage.tables_stall_handover_ms (10s)",
        ),
        ({"retention__log_bytes": "255MiB"}, "allowed is 256MiB or more, 4 x storage.segment"),
        ({"retention__log_bytes_max": "255MiB"}, "allowed is retention.log_bytes (256MiB) or more"),
        ({"election__backoff_min_ms": "1s"}, "at most election.backoff_max_ms (450ms)"),
        ({"election__quorum_contact_ms": "300ms"}, "election.sticky_ms (400ms) or more"),
        ({"transport__reconnect_min_ms": "2s"}, "at most transport.reconnect_max_ms (1s)"),
    ],
)
def test_contradicting_settings_are_refused(flags: dict[str, str | bool], message: str) -> None:
    """Given settings that contradict each other, they are refused before anything is started or
    written: a live queue that holds less than two batches of history, too (NATS-141).
    """
    assert message in refusal_of(**flags)


def test_more_founders_than_sensible_are_refused() -> None:
    """Ten voters of the metadata channel only make every commit slower."""
    members = ",".join(f"n{number}=host{number}:1" for number in range(1, 11))
    assert "has 10 members; allowed are 1 to 9" in refusal_of(node__initial_cluster=members)


def test_initial_cluster_is_read_from_text_and_table(tmp_path: Path) -> None:
    """The file may list the founders as a table, one line each."""
    expected = (("n1", "a:1"), ("n2", "b:1"))
    text = '[node.initial_cluster]\nn1 = "a:1"\nn2 = "b:1"\n'
    settings = resolve_settings(file=written(tmp_path, text))
    assert settings["node.initial_cluster"].value == expected
    assert node(node__initial_cluster=" n1=a:1, n2=b:1,").initial_cluster == expected


def test_every_number_has_a_range_that_holds_its_default() -> None:
    """A default outside its own range could not even be written down."""
    for field in dataclasses.fields(NodeSettings):
        if not isinstance(field.default_factory, type):
            continue
        for inner in dataclasses.fields(field.default_factory):
            if not isinstance(inner.default, int) or isinstance(inner.default, bool):
                continue
            allowed = range_of(f"{field.name}.{inner.name}")
            assert allowed.low <= inner.default <= allowed.high, inner.name
