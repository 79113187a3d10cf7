"""The code of users' machines on a node: where it is looked for, and what is no machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftstore.config import MachineSettings
from raftstore.errors import ConfigError, UnknownMachineError
from raftstore.node.machines import InstalledMachines
from raftstore.node.settings import node_settings, resolve_settings

CODE = """
import raftstore

class Counter(raftstore.StateMachine):
    version = 3
    oldest_version = 2
    def apply(self, command, context):
        return b""

class Unfinished(raftstore.StateMachine):
    pass

class Zero(Counter):
    version = 0

class Asking(Counter):
    def __init__(self, name):
        self.name = name

class Wordy(Counter):
    results = {}

plain = 5
"""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory with a module of machines, which nobody imports behind the test."""
    (tmp_path / "my_counters.py").write_text(CODE)
    (tmp_path / "my_broken.py").write_text("1 / 0")
    (tmp_path / "my_ending.py").write_text("raise GeneratorExit('half \\udc80')")
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before
    for name in ("my_counters", "my_broken"):
        sys.modules.pop(name, None)


def test_a_file_beside_the_program_is_found_in_the_directories_of_the_node(
    directory: Path,
) -> None:
    """No package has to be installed to try a machine."""
    machines = InstalledMachines([str(directory)])
    source = machines.load("my_counters:Counter")
    assert (source.version, source.oldest_version) == (3, 2)
    assert source.make().apply(b"", None) == b""  # type: ignore[arg-type]
    assert machines.load("my_counters:Counter") is source


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my_nothing:Counter", "ModuleNotFoundError: No module named 'my_nothing'; install"),
        ("my_broken:Counter", "ZeroDivisionError"),
        ("my_counters:Missing", "has no attribute 'Missing'"),
        ("my_counters:plain", "is 5, and no class derived from raftstore.StateMachine"),
        ("my_counters:Unfinished", "lacks apply; write these methods"),
        ("my_counters:Asking", "cannot be made without arguments (TypeError: Asking.__init__()"),
        ("my_counters:Wordy", "has results = {}, which is no codec; give raftstore.BYTES"),
        ("my_ending:Counter", "my_ending:Counter: GeneratorExit: half \\udc80; install"),
        ("my_counters:Zero", "has version 0 and oldest_version 2"),
        ("my_counters", "is neither module:Class nor an entry point"),
        ("os.path:join()", "names no module and class; write package.module:Class"),
    ],
)
def test_what_is_no_machine_is_refused_with_its_reason(
    directory: Path, name: str, said: str
) -> None:
    """It can be mended, without a restart if the module is new."""
    with pytest.raises(UnknownMachineError) as refused:
        InstalledMachines([str(directory)]).load(name)
    assert said in str(refused.value)


def test_code_that_the_lint_cannot_deal_with_is_loaded_all_the_same(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It only advises, and the caller is the loop of a node."""

    def fails(machine: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr("raftstore.node.machines.lint_machine", fails)
    found: list[object] = []
    machines = InstalledMachines([str(directory)], lambda _, fields: found.append(fields["why"]))
    assert machines.load("my_counters:Counter").version == 3
    assert found == ["its code cannot be looked through: RecursionError: too deep"]


def test_directories_are_a_list_or_a_text_with_commas(tmp_path: Path) -> None:
    """Each of them has to be there."""
    file = tmp_path / "node.toml"
    file.write_text(
        f'[node]\nname = "n1"\ndata_dir = "d"\n[machines]\npath = ["{tmp_path}", "."]\n'
    )
    settings = node_settings(resolve_settings(file=file))
    assert settings.machines.directories == (str(tmp_path), ".")
    assert MachineSettings(" a , b,").directories == ("a", "b")
    file.write_text('[node]\nname = "n1"\ndata_dir = "d"\n[machines]\npath = "/not/there"\n')
    with pytest.raises(ConfigError, match=r"machines\.path names '/not/there', which is no dire"):
        node_settings(resolve_settings(file=file))
