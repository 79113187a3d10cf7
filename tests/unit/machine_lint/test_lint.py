"""Lint of state machines: each planted line is found by number, and what is allowed is not."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import raftstore
import raftstore.recipes
from raftstore.machine_lint import Finding, lint_machine

HEAD = "import raftstore\n"
CLASS = "class Machine(raftstore.{base}):\n    def apply(self, command, context):\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of a user's modules; what is imported from it is forgotten afterwards."""
    known = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def linted(folder: Path, text: str) -> list[Finding]:
    """The findings in a module that has a class called Machine."""
    (folder / "linted_machine.py").write_text(text, encoding="utf-8")
    spec = importlib.util.find_spec("linted_machine")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["linted_machine"] = module
    spec.loader.exec_module(module)
    return lint_machine(module.Machine)


def in_apply(line: str, imports: str = "", *, base: str = "StateMachine") -> str:
    """A module whose machine has this line in ``apply``; it stands in the last line but one."""
    body = f"        {line}\n        return b''\n"
    return f"{imports}\n{HEAD}{CLASS.format(base=base)}{body}"


PLANTED = [
    ("now = time.time()", "import time", "time.time reads a clock"),
    ("time.sleep(1)", "import time", "time.sleep reads a clock"),
    ("now = clock()", "from time import monotonic as clock", "time.monotonic reads a clock"),
    ("now = datetime.now()", "from datetime import datetime", "datetime.datetime.now reads"),
    ("now = dt.date.today()", "import datetime as dt", "datetime.date.today reads a clock"),
    ("drawn = random.random()", "import random", "random.random draws chance"),
    ("drawn = randint(1, 6)", "from random import randint", "random.randint draws chance"),
    ("name = uuid.uuid4()", "import uuid", "uuid.uuid4 draws chance"),
    ("name = os.urandom(8)", "import os", "os.urandom draws chance"),
    ("key = secrets.token_bytes(8)", "import secrets", "secrets.token_bytes draws chance"),
    ("home = os.environ['HOME']", "import os", "os.environ reaches outside"),
    ("socket.create_connection(('h', 1))", "import socket", "socket.create_connection reaches"),
    ("threading.Thread().start()", "import threading", "threading.Thread reaches outside"),
    ("open('file')", "", "open() reaches outside"),
    ("shard = hash(command) % 8", "", "hash() differs between processes"),
    ("name = id(command)", "", "id() differs between processes"),
    ("for each in {1, 2}: context.state.put(each, b'')", "", "the order of the set `{1, 2}`"),
    ("names = list(set(command))", "", "the order of the set `set(command)`"),
    ("names = [n for n in frozenset(command)]", "", "the order of the set"),
    ("names = set(command); first = next(iter(names))", "", "the order of the set `names`"),
    ("names = set(command); first = names.pop()", "", "the order of the set `names`"),
    ("names: set[str] = command; first = next(iter(names))", "", "the order of the set `names`"),
    ("names = [*set(command).union('a')]", "", "the order of the set `set(command).union('a')`"),
    ("text = ','.join(set(command) | {1})", "", "the order of the set `set(command) | {1}`"),
    ("global LAST; LAST = command", "", "changes the variable LAST of the module"),
    ("SEEN[command] = 1", "SEEN = {}", "changes the variable SEEN of the module"),
    ("SEEN[command] = 1", "KNOWN, SEEN = {}, {}", "changes the variable SEEN of the module"),
    ("SEEN.append(command)", "SEEN = []", "changes the variable SEEN of the module"),
    ("self.total = 1", "", "`self.total` is kept in the object"),
    ("self.totals[command] = 1", "", "`self.totals[command]` is kept in the object"),
    ("self.seen.append(command)", "", "`self.seen.append` is kept in the object"),
]


@pytest.mark.parametrize(("line", "imports", "what"), PLANTED)
def test_a_line_that_may_differ_between_replicas_is_named(
    folder: Path, line: str, imports: str, what: str
) -> None:
    """Each kind of indeterminism is found, with its file and line and a way out."""
    text = in_apply(line, imports)
    found = linted(folder, text)
    assert len(found) == 1, found
    assert what in found[0].what
    assert found[0].line == text.count("\n") - 1
    assert found[0].file.endswith("linted_machine.py")
    assert found[0].remedy


@pytest.mark.parametrize(("line", "imports", "what"), PLANTED)
def test_a_comment_with_a_reason_takes_a_finding_back(
    folder: Path, line: str, imports: str, what: str
) -> None:
    """The author knows better, and says why; without a reason nothing is taken back."""
    excused = in_apply(f"{line}  # deterministic: it goes into a log line", imports)
    assert linted(folder, excused) == []
    assert len(linted(folder, in_apply(f"{line}  # deterministic:", imports))) == 1


ALLOWED = [
    ("now = context.time_ms", ""),
    ("drawn = context.chance.below(6)", ""),
    ("for each in sorted({1, 2}): pass", ""),
    ("names = sorted(n for n in set(command))", ""),
    ("known = command in {1, 2}", ""),
    ("count = len(set(command)) + max({1, 2})", ""),
    ("drawn: random.Random = command", "import random"),
    ("total = sum(command) + sum(command.values()) + sum([1])", ""),
    ("time = command; later = time.time", "import time"),
    ("total = self.add(command)", ""),
    ("table = {}; table['a'] = 1", ""),
    ("name = uuid.UUID(int=3)", "import uuid"),
    ("when = datetime.fromtimestamp(context.time_ms)", "from datetime import datetime"),
    ("path = os.path.join('a', 'b')", "import os"),
    ("size = LIMITS['a']", "LIMITS = {'a': 1}; LIMITS['b'] = 2"),
]


@pytest.mark.parametrize(("line", "imports"), ALLOWED)
def test_what_is_the_same_on_all_replicas_is_not_named(
    folder: Path, line: str, imports: str
) -> None:
    """A lint with false alarms would be switched off."""
    assert linted(folder, in_apply(line, imports)) == []


def test_a_memory_machine_may_keep_its_state_in_itself(folder: Path) -> None:
    """Its snapshot has what it keeps."""
    text = in_apply("self.total = command", base="MemoryMachine")
    assert linted(folder, text) == []


def test_sums_of_floats_of_a_dict_are_named(folder: Path) -> None:
    """A restored dict may have its values in another order, and their sum another last bit."""
    annotated = "    parts: dict[str, float]\n    def query(self, request, context):\n"
    text = in_apply("self.parts = command", base="MemoryMachine") + annotated
    found = linted(folder, text + "        return sum(self.parts.values())\n")
    assert [finding.line for finding in found] == [text.count("\n") + 1]
    assert "order in which floats are added" in found[0].what
    assert linted(folder, text + "        return math.fsum(self.parts.values())\n") == []


def test_mutable_attributes_of_the_class_are_named(folder: Path) -> None:
    """All partitions of a node would share them."""
    text = in_apply("pass") + "    seen = []\n    kinds = ('a', 'b')\n"
    found = linted(folder, text)
    assert [finding.line for finding in found] == [text.count("\n") - 1]
    assert "shared by all partitions" in found[0].what


def test_functions_that_a_machine_uses_are_read_too(folder: Path) -> None:
    """A clock in a helper is a clock; one in a program beside the machine is none of it."""
    helper = "import time\ndef now(): return time.time()\ndef unused(): return time.time()\n"
    (folder / "clocks_of_mine.py").write_text(helper, encoding="utf-8")
    found = linted(folder, in_apply("at = now()", "from clocks_of_mine import now"))
    assert [(Path(each.file).name, each.line) for each in found] == [("clocks_of_mine.py", 2)]
    own = "def main():\n    import time\n    return time.time()\n"
    assert linted(folder, in_apply("pass", own)) == []
    found = linted(folder, in_apply("at = helped()", own.replace("main", "helped")))
    assert [finding.line for finding in found] == [3]


def test_name_that_is_no_module_leads_into_none(folder: Path) -> None:
    """A variable may be called like a file beside the machine."""
    helper = "import time\ndef now(): return time.time()\n"
    (folder / "command.py").write_text(helper, encoding="utf-8")
    assert linted(folder, in_apply("at = command.now()")) == []
    assert len(linted(folder, in_apply("at = clock.now()", "import command as clock"))) == 1


def test_modules_that_use_each_other_are_read_once(folder: Path) -> None:
    """The reading comes to an end."""
    for name, other in (("even", "odd"), ("odd", "even")):
        code = (
            f"import {other}_of_mine\ndef {name}(n): return open(n) or {other}_of_mine.{other}(n)\n"
        )
        (folder / f"{name}_of_mine.py").write_text(code, encoding="utf-8")
    assert len(linted(folder, in_apply("at = even(1)", "from even_of_mine import even"))) == 2


@pytest.mark.parametrize("bases", ["Base", "raftstore.StateMachine, Base"])
def test_base_classes_are_read_too(folder: Path, bases: str) -> None:
    """A machine is all that it inherits, behind our own classes, too."""
    own = "raftstore.StateMachine" if bases == "Base" else "object"
    base = f"import random\n{HEAD}class Base({own}):\n"
    base += "    def apply(self, command, context):\n        return random.random()\n"
    found = linted(folder, f"{base}class Machine({bases}):\n    version = 2\n")
    assert [finding.line for finding in found] == [base.count("\n")]


def test_class_that_is_defined_again_is_read_as_it_is_now(folder: Path) -> None:
    """As Python does."""
    first, again = in_apply("at = open('file')"), in_apply("pass")
    assert linted(folder, first + again) == []
    assert len(linted(folder, again + first)) == 1


def test_what_init_sets_up_is_no_state_and_what_apply_changes_there_is(folder: Path) -> None:
    """Attributes of a configuration never change."""
    begins = "    def __init__(self):\n        self.total = 0\n"
    text = in_apply("self.total = command").replace("    def apply", f"{begins}    def apply")
    assert [finding.line for finding in linted(folder, text)] == [text.count("\n") - 1]


def test_a_class_without_a_file_is_reported_as_not_checked(folder: Path) -> None:
    """Silence would look like a clean bill."""
    made: type[raftstore.StateMachine] = type(
        "Made", (raftstore.StateMachine,), {"apply": lambda *_: b"", "__module__": "nowhere"}
    )
    (finding,) = lint_machine(made)
    assert "cannot be read, so it is not checked" in finding.what
    text = in_apply("at = open('file')")
    linted(folder, text)
    base = sys.modules["linted_machine"].Machine
    found = lint_machine(type("Made", (base,), {"__module__": "nowhere"}))
    assert [each.line for each in found] == [text.count("\n") - 1, 0]  # the others are checked


@pytest.mark.parametrize("name", raftstore.recipes.__all__)
def test_recipes_are_clean(name: str) -> None:
    """Machines that we ship pass what we ask of others."""
    assert lint_machine(getattr(raftstore.recipes, name)) == []
