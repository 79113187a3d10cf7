"""docs/queries.md and the README keep their word about reads: examples run, and names are
reported."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import msgspec
import pytest

from raftstore.cli.main import cli, global_options_first
from raftstore.client.reads.read_spec import ReadOptions
from raftstore.errors import NoReplicaAvailableError, RequestError
from raftstore.http.app import ROUTES
from raftstore.local_cluster import LocalCluster
from raftstore.node.settings import resolve_settings
from raftstore.policy.routing import Prefer
from raftstore.types import Level
from tests.reference.pages import commands, setting_texts

ROOT = Path(__file__).parent.parent
QUERIES = (ROOT / "docs" / "queries.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINE = re.compile(r"^ *(raftstore [a-z-].*)$", re.MULTILINE)
BLOCK = re.compile(r"^```(?:text|sh)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
HEARD_S = 10.0
"""By then every replica has heard of a commit."""
PYTHON = re.findall(r"```python\n(.*?)```", QUERIES, flags=re.DOTALL)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three nodes that serve HTTP."""
    with LocalCluster(nodes=3, http=True) as started:
        yield started


@pytest.mark.cluster
@pytest.mark.parametrize("example", PYTHON)
def test_python_examples_run(example: str) -> None:
    """They work as they stand."""
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.cluster
@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples are lines for curl")
@pytest.mark.parametrize("text", [QUERIES, README], ids=["queries.md", "README.md"])
def test_lines_for_curl_run(text: str, cluster: LocalCluster) -> None:
    """One after the other, each at another node: any of them answers."""
    lines = re.findall(r"^curl .*$", text, flags=re.MULTILINE)
    assert len(lines) > 3
    nodes = list(cluster.http_by_node().values())
    for number, line in enumerate(lines):
        assert "localhost:4480" in line
        told = line.replace("localhost:4480", nodes[number % len(nodes)])
        done = _curl(told)
        # A bounded read may miss the row that a line before has written, until its replica has
        # heard of the commit: with one row, one that answers without it is within any bound.
        given_up = time.monotonic() + HEARD_S
        while "max_lag=" in line and '"found":false' in done.stdout:
            assert time.monotonic() < given_up, f"{line}: {done.stdout}"
            done = _curl(told)
        # Ready for bounded reads is a node that has heard how far replicas are.
        while "/readyz" in line and '"ready":false' in done.stdout:
            assert time.monotonic() < given_up, f"{line}: {done.stdout}"
            done = _curl(told)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"


def _curl(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*shlex.split(line), "--silent", "--show-error", "--fail-with-body"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.cluster
def test_levels_survive_what_the_table_of_levels_says() -> None:
    """Two of three nodes are killed: weaker levels go on, for as long as the page says."""
    with LocalCluster(nodes=3) as cluster, cluster.connect(timeout=5) as client:
        client.create_table("orders", key="order_id", partitions=1)
        orders = client.table("orders")
        ack = orders.put({"order_id": 1})
        assert orders.get(1, replica="n3", at_least=ack.position) == {"order_id": 1}
        assert orders.get(1, replica="n3", max_staleness=0.5) == {"order_id": 1}
        cluster.kill("n1")
        cluster.kill("n2")
        assert orders.get(1, level="any") == {"order_id": 1}
        assert orders.get(1, at_least=ack.position) == {"order_id": 1}
        assert orders.get(1, max_lag=0) == {"order_id": 1}
        assert orders.get(1, max_staleness=60.0) == {"order_id": 1}
        with pytest.raises(NoReplicaAvailableError):
            orders.get(1, max_staleness=0.001, timeout=1)
        with pytest.raises(RequestError):
            orders.get(1, timeout=1)


def test_every_option_of_a_read_is_told() -> None:
    """Levels, options and orders are all on the page (KLIP-54)."""
    words = set(re.findall(r"[\w.]+", QUERIES))
    # `timeout` is in a sentence; the others are in tables and headings.
    assert set(ReadOptions.__annotations__) - words == set()
    assert {level.value for level in Level} - words == set()
    assert {prefer.value for prefer in Prefer} - words == set()


def test_settings_that_the_pages_name_exist() -> None:
    """A page that names a setting of long ago sends people searching."""
    known = set(resolve_settings())
    sections = {name.partition(".")[0] for name in known}
    for page in (ROOT / "docs").glob("*.md"):
        named = re.findall(r"`([a-z]+\.[a-z_]+)`", page.read_text(encoding="utf-8"))
        found = {name for name in named if name.partition(".")[0] in sections}
        unknown = {name for name in found - known if f"{name}_ms" not in known}
        # Files and Spark's options look like settings, and are none.
        unknown = {name for name in unknown if not name.endswith((".py", ".md", ".json", ".log"))}
        assert unknown == set(), page.name


def test_every_setting_route_parameter_and_option_is_documented() -> None:
    """KLIP-54: nothing can be asked for that no page explains."""
    docs = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
    for name in setting_texts():
        section, _, key = name.partition(".")
        part = docs["configuration.md"].partition(f"\n## [{section}]\n")[2].partition("\n## ")[0]
        assert f"| `{key}` |" in part, name
    for route in ROUTES:
        head = f"### {route.method} {re.sub(r':[a-z]+}', '}', route.path)}\n"
        part = docs["http-api.md"].partition(head)[2].partition("\n### ")[0]
        assert part, head
        in_path = re.findall(r"{(\w+)", route.path)
        named = [field.encode_name for field in msgspec.structs.fields(route.params)]
        for name in (*in_path, *named, *route.headers):
            assert f"| `{name}` |" in part, f"{head}{name}"
    for name, command, _ in commands():
        part = docs["cli.md"].partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert part, name
        for parameter in command.params:
            for option in () if getattr(parameter, "hidden", False) else parameter.opts:
                shown = option if option.startswith("-") else option.upper()
                assert shown in part, f"{name} {option}"


def test_examples_of_the_command_line_can_be_given() -> None:
    """Every line of `-h` and of the pages that begins with `raftstore` has options that exist."""
    lines = [line for _, command, _ in commands() for line in LINE.findall(command.help or "")]
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            lines += LINE.findall(block)
    assert len(lines) > 50
    for line in lines:
        words = re.split(r"\s+[#|>\\]|\s{3,}", line)[0]
        arguments = global_options_first(shlex.split(words)[1:])
        with suppress(click.exceptions.Exit):  # -h, --version
            problem = problem_with(arguments)
            assert problem is None or "does not exist" in problem, line  # a file of the reader's


def problem_with(arguments: list[str]) -> str | None:
    """Why the command line would refuse the arguments; nothing is run."""
    try:
        context = cli.make_context("raftstore", arguments)
        command: click.Command = cli
        while isinstance(command, click.Group):
            rest = [*context._protected_args, *context.args]
            if not rest and command.invoke_without_command:
                break
            name, found, rest = command.resolve_command(context, rest)
            assert found is not None
            context = found.make_context(name, rest, parent=context)
            command = found
    except click.UsageError as error:
        return f"{type(error).__name__}: {error.format_message()}"
    return None


def test_commands_that_the_pages_name_exist() -> None:
    """Commands of two words are among them, as `raftstore check cluster`."""
    context = cli.make_context("raftstore", ["-h"], resilient_parsing=True)
    known = set(cli.list_commands(context))
    for page in (ROOT / "docs").glob("*.md"):
        for name in re.findall(r"`raftstore ([a-z]+)\b", page.read_text(encoding="utf-8")):
            assert name in known, f"{page.name}: raftstore {name}"
