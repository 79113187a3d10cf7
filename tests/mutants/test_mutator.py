"""Mutants are what they say, their names outlive other changes, and no process keeps one."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.core import quorum
from raftstore.types import ChannelConfig, NodeId, Seq
from tests.mutants import forks, reach
from tests.mutants.__main__ import chosen_mutants, known_equivalent
from tests.mutants.forks import End, Forks, NotPatchableError
from tests.mutants.mutator import Mutant, mutants_of, source_of

SAMPLE = '''
"""Text of 1 module."""
LIMIT = 5

class Box:
    """A box of 3."""

    def __init__(self) -> None:
        self.held = 0

    def __repr__(self) -> str:
        return f"{self.held + 1}"

    def room(self, a: int, b: int) -> int:
        """At most 7."""
        assert a > 0
        logger.info("held %d", a + 1)
        if a <= b and not self.full:
            raise ValueError(f"{a + 1} is too many")
        self.keep(a, b)
        return min(a, b)
'''


def changes(source: str) -> list[tuple[str, str, str]]:
    """(function, before, after) of all its mutants."""
    return [(m.function, m.before, m.after) for m in mutants_of("a.py", source)]


def test_every_operator_makes_its_change() -> None:
    """Comparisons, conditions, constants, calls, values: one place of one statement each."""
    condition = "if a <= b and (not self.full)"
    raised = "raise ValueError(f'{a + 1} is too many')"
    assert changes(SAMPLE) == [
        ("Box.__init__", "self.held = 0", "self.held = 1"),
        ("Box.room", condition, "if True"),
        ("Box.room", condition, "if False"),
        ("Box.room", condition, "if a <= b or not self.full"),
        ("Box.room", condition, "if not self.full"),
        ("Box.room", condition, "if a <= b"),
        ("Box.room", condition, "if a < b and (not self.full)"),
        ("Box.room", condition, "if a <= b and self.full"),
        ("Box.room", raised, "pass"),
        ("Box.room", "self.keep(a, b)", "pass"),
        ("Box.room", "self.keep(a, b)", "self.keep(b, a)"),
        ("Box.room", "return min(a, b)", "return max(a, b)"),
        ("Box.room", "return min(a, b)", "return min(a, b) + 1"),
    ]


def test_names_stay_when_lines_move() -> None:
    """A list of mutants judged equivalent would be wrong after every change of its file."""
    moved = SAMPLE.replace("class Box:", "OTHER = 1\n\n\nclass Box:")
    assert [m.name for m in mutants_of("a.py", moved)] == [
        m.name for m in mutants_of("a.py", SAMPLE)
    ]


def test_mutants_of_one_file_have_names_of_their_own_and_change_one_place() -> None:
    """Of a real file, some of them: each compiles, and the rest of the file stays as it is."""
    path = "raftstore/core/leader.py"
    source = source_of(path)
    found = mutants_of(path, source)
    assert len({mutant.name for mutant in found}) == len(found)
    for mutant in random.Random(1).sample(found, 20):
        changed = mutant.apply(source)
        compile(changed, path, "exec")
        assert changed != source
        assert changed.encode()[: mutant.start] == source.encode()[: mutant.start]
        assert changed.encode().endswith(source.encode()[mutant.end :])


def test_seed_decides_which_mutants_are_drawn() -> None:
    """A day's mutants are the same for everybody, and another day has others."""
    one, again = (chosen_mutants("2026-01-01", 10, ["election"], []) for _ in range(2))
    assert one == again
    assert len(one) == 10
    assert chosen_mutants("2026-01-02", 10, ["election"], []) != one


def test_equivalent_mutants_have_reasons() -> None:
    """A list without them would be the place where holes are hidden."""
    for name, reason in known_equivalent().items():
        assert name.startswith("raftstore/")
        assert " -> " in name
        assert len(reason.split()) >= 5


def test_lines_are_found_again_where_they_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a record from before a change of the source, its lines are found where they moved, and
    a new line has the tests of its function.
    """
    old = "def f(a):\n    b = a\n    return b\n"
    new = "X = 1\n\n\ndef f(a):\n    b = a\n    c = 1\n    return b\n"
    monkeypatch.setattr(reach, "source_of", lambda path: new)
    record = {
        "tests": ["slow", "fast"],
        "seconds": [2.0, 1.0],
        "sources": {"moved.py": old},
        "lines": {"moved.py": {"2": [0, 1], "3": [0]}},
    }
    told = reach.Reach(record)

    def reached(line: int) -> list[str]:
        return told.tests_of(Mutant("moved.py", "f", 4, line, line, "", "", 1, 0, 0, ""))

    assert reached(5) == ["fast", "slow"]
    assert reached(7) == ["slow"]
    assert reached(6) == ["fast", "slow"], "a new line has the tests of its function"


class Bench:
    """Forks with tests that are plain functions."""

    def __init__(self, **tests: Any) -> None:
        self.forks = Forks(lambda forks: None)
        self.forks._functions = forks._imported_functions()
        for name, function in tests.items():
            config = SimpleNamespace(hook=SimpleNamespace(pytest_runtest_protocol=self._run))
            self.forks._items[name] = SimpleNamespace(  # type: ignore[assignment]
                config=config, function=function, nodeid=name
            )

    def _run(self, item: Any, nextitem: Any) -> None:
        try:
            item.function()
        except AssertionError as error:
            self.forks._failed.append(f"{item.nodeid}: {error}")


TRIO = ChannelConfig((tuple(NodeId(name) for name in "abc"),))


def finds_the_quorum() -> None:
    """A test of one line of production code."""
    match = {NodeId("a"): Seq(3), NodeId("b"): Seq(2), NodeId("c"): Seq(1)}
    assert quorum.quorum_seq(TRIO, match) == 2


@pytest.mark.slow
def test_mutant_is_noticed_in_a_fork_and_gone_after_it() -> None:
    """The code of the function is another one there, and the same as ever here."""
    path = "raftstore/core/quorum.py"
    mutants = [m for m in mutants_of(path, source_of(path)) if m.function.startswith("quorum_seq")]
    bench = Bench(test=finds_the_quorum)
    assert bench.forks.run(None, ["test"], 0.1).end is End.PASSED
    ends = {bench.forks.run(mutant, ["test"], 0.1).end for mutant in mutants}
    assert End.FAILED in ends
    finds_the_quorum()


def test_function_that_is_not_imported_cannot_be_patched() -> None:
    """That is reported, and counted neither way."""
    bench = Bench()
    mutant = Mutant("raftstore/core/quorum.py", "nothing", 1, 1, 1, "", "", 1, 0, 0, "")
    with pytest.raises(NotPatchableError):
        bench.forks.run(mutant, [], 0.1)


@pytest.mark.slow
def test_run_that_does_not_end_is_a_hang_by_its_processor_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However busy the machine is; waiting alone is judged by whether it waits without a mutant."""
    monkeypatch.setattr(forks, "PROCESSOR_SECONDS", 1)

    def spins() -> None:
        while True:
            pass

    assert Bench(test=spins).forks.run(None, ["test"], 0).end is End.HANGS
