"""Rules that no tool checks for us: sizes, leftovers, docstrings, order-free iteration, honest
settings.

Each rule is a function from source text to findings, so that the tests below can show that it
finds a planted sample before the whole tree is held to it.
"""

from __future__ import annotations

import ast
import gc
import io
import re
import tokenize
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DECISIONS = ROOT / "docs" / "decisions"
PROGRAMS = ("raftstore", "cli", "pyspark_raftstore", "pytest_raftstore")
OTHERS = ("tests", "benchmarks", "jepsen_like", "examples")
PURE_ROOMS = ("core", "policy", "state_machines", "rows", "protocol", "engine")
TEXTS = (".ci", "docs", "Makefile", "pyproject.toml", "setup.cfg", "README.md", ".gitignore")

VAGUE = frozenset({"Who", "Whom", "Whose", "Who" + "ever", "What", "Whatever", "Nobody"})
FRAGMENT = frozenset({"And", "But", "Nor", "Or", "Also", "Else", "Unless", "Though", "Although"})
"""A description that begins with one of these needs the name of its function to be understood."""
PRONOUN = frozenset({"O" + "f", "I" + "t", "The" + "y", "S" + "o", "Thos" + "e"})
"""Likewise of a class or function outside of tests: it says what it is, or what it does."""
FILE_LINES_MAX = 650
"""About 500 is the guide. One idea that needs more lines stays whole: pressed against a limit,
files are split where they can be, not where a reader would."""
TEST_FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 60

# What no file may hold: words for work that is not done, and switches that turn a check off. Here
# and below such words are written in pieces, so that a search for them does not find the rule.
LEFTOVER = re.compile(
    r"\b(" + "|".join(("TO" "DO", "FIX" "ME", "XX" "X", "HA" "CK")) + r")\b"
    r"|prag" r"ma: no cover|type: ig" r"nore\s*(#|$)"
)  # fmt: skip
PRIVATE = re.compile(
    r"(?<![a-z])(?:"
    + "|".join(("who" "ever", "hear" "say", r"wi" r"sh\w*", "straight" " way"))
    + r")(?![a-z])",
    re.IGNORECASE,
)  # fmt: skip
"""Words of our own for a caller, a report, a read specification and the fast path."""
HOMONYMS = {
    r"\b(?:nodes?|leaders?|replicas?|peers?|followers?|coordinator) to" r"ld\b": "reported",
    r"\b(?:format|version) lev" r"els?\b": "protocol level",
    r"\bChannelMa" r"rks\b": "ActiveChannels",
    r"\b(?:apply|enqueue|queue|next|rows_of)_pa" r"rt\b|\bPa" r"rtWriter\b": "piece",
    r"\bLINEA" r"GE_BYTES_MAX\b": "CHECKPOINT_BYTES_MAX",
    r"\bforeign (?:protocol|tag|position)\b": "another",
    r"\bto" r"ld apart\b|\bbe to" r"ld from\b": "distinguished",
    r"-1: not to" r"ld\b|\b(?:position|level|lag|fate|commit|outcome)s? (?:that )?"
    r"(?:is|was|are|were|be|been) to" r"ld\b(?! to\b)": "reported",
    r"\b(?:own|last|recent|newest) wo" r"rd\b(?!s)|\bwo" r"rd of (?:a|the) leader": "report",
}  # fmt: skip
"""Names that stood for something else as well, each with the one that the glossary has."""
TOLD = re.compile(
    r"(?<![\w.`])(?:" + "|".join(("told", "te" r"lls?", "telling", "hears?")) + r")(?![\w`(=])",
    re.IGNORECASE,
)
"""Verbs for too many things: a node reports, notifies, answers, asks or gets; a record states."""
HOMONYM = re.compile("|".join(f"({pattern})" for pattern in HOMONYMS))
TOLD_INSTEAD = "speaks of what is told or heard: say reported, notified, answered, states or gets"
DECISION = re.compile(r"\bdecisions/(\d+)((?:-[\w-]+\.md)?)|\]\((\d{4})(-[\w-]+\.md)")
"""A decision record named by its path, with its whole name or the number alone; or linked."""
MACHINE_PATH = re.compile(r"(?<![\w.}$])/(?:" + "|".join(("work", "root", r"home/\w+")) + r")/")

UNUSED = {
    "raftstore.election.fixed_elector": "a fixed leader, for tests of programs that embed a node",
}
"""Modules that only tests import, each with its reason; remove a line when a program uses it."""

Rule = Callable[[str, str], Iterator[str]]


def long_files(name: str, source: str) -> Iterator[str]:
    """A file that no longer fits one idea."""
    limit = TEST_FILE_LINES_MAX if name.startswith("tests/") else FILE_LINES_MAX
    lines = source.count("\n")
    if lines > limit:
        yield f"{name} has {lines} lines; allowed are {limit}, split it"


def long_functions(name: str, source: str) -> Iterator[str]:
    """A function that no longer fits a screen, its docstring left out."""
    for function in _functions(source):
        first = function.body[0]
        assert function.end_lineno is not None
        lines = function.end_lineno - function.lineno + 1
        if ast.get_docstring(function) is not None:
            assert first.end_lineno is not None
            lines -= first.end_lineno - first.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield f"{name}:{function.lineno} {function.name} has {lines} lines; split it"


def leftovers(name: str, source: str) -> Iterator[str]:
    """Notes to oneself, debugging aids, and checks switched off without a reason."""
    if LEFTOVER.search(source):  # in a comment or elsewhere, which only tokens show
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT and LEFTOVER.search(token.string):
                yield f"{name}:{token.start[0]} has the leftover {token.string!r}"
    # Examples and benchmarks print on purpose: that is what they are for.
    may_print = name.startswith(("examples/", "benchmarks/"))
    for call in _calls(source):
        called = call.func.id if isinstance(call.func, ast.Name) else ""
        if called == "breakpoint" or (called == "print" and not may_print):
            yield f"{name}:{call.lineno} calls {called}()"


def missing_docstrings(name: str, source: str) -> Iterator[str]:
    """A module that does not say what it is for; a test that does not say what it promises."""
    if source.strip() and ast.get_docstring(_parse(source)) is None:
        yield f"{name} has no module docstring"
    if name.startswith("tests/"):
        for function in _functions(source):
            is_test = function.name.startswith("test_")
            if is_test and not (ast.get_docstring(function) or "").strip():
                yield f"{name}:{function.lineno} {function.name} does not say what it promises"


def vague_docstrings(name: str, source: str) -> Iterator[str]:
    """A description that begins with a pronoun for its noun, or in the middle of a sentence."""
    for node in ast.walk(_parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = (ast.get_docstring(node) or "").partition(" ")[0]
            is_pronoun = (
                first in PRONOUN
                and not isinstance(node, ast.Module)
                and not name.startswith("tests/")
            )
            if first in VAGUE or first in FRAGMENT or is_pronoun:
                line = getattr(node, "lineno", 1)
                yield f"{name}:{line} begins with {first!r}; say first what the thing is"


def private_words(name: str, source: str) -> Iterator[str]:
    """A word of our own where the field has one."""
    for number, line in enumerate(source.splitlines(), start=1):
        found = PRIVATE.search(line)
        if found:
            yield f"{name}:{number} says {found[0]!r}; the glossary has a word for it"


def homonyms(name: str, source: str) -> Iterator[str]:
    """A name of two things."""
    words = tuple(HOMONYMS.values())
    for number, line in enumerate(source.splitlines(), start=1):
        found = HOMONYM.search(line)
        if found:
            word = words[(found.lastindex or 1) - 1]
            yield f"{name}:{number} says {found[0]!r}; the glossary says {word!r}"


def told_things(name: str, source: str) -> Iterator[str]:
    """A description in which something speaks, where the field has a verb for what it does."""
    if TOLD.search(source):
        for number, text in _prose(name, source):
            if TOLD.search(text):
                yield f"{name}:{number} {TOLD_INSTEAD}"


def skipped_or_sleeping_tests(name: str, source: str) -> Iterator[str]:
    """A test that may not run, or waits for a time instead of an event."""
    if not name.startswith("tests/"):
        return
    for call in _calls(source):
        called = ast.unparse(call.func)
        if called in ("pytest.skip", "pytest.importorskip", "pytest.mark.skip"):
            yield f"{name}:{call.lineno} skips; a test that did not run has shown nothing"
        # Real processes have no virtual time: polling them is tests/cluster's own affair.
        is_sleep = called in ("time.sleep", "asyncio.sleep")
        is_yield = [ast.unparse(argument) for argument in call.args] == ["0"]
        if is_sleep and not is_yield and not name.startswith(("tests/cluster/", "tests/spark/")):
            yield f"{name}:{call.lineno} sleeps; wait for what should happen"


def lost_cancellations(name: str, source: str) -> Iterator[str]:
    """``asyncio.wait_for``: in Python 3.11 it may swallow the cancellation of its caller."""
    for call in _calls(source):
        if ast.unparse(call.func) == "asyncio.wait_for":
            yield f"{name}:{call.lineno} calls asyncio.wait_for; use asyncio.timeout"


def unordered_iterations(name: str, source: str) -> Iterator[str]:
    """Iteration over a set in a pure room: its order differs between processes (PYTHONHASHSEED)."""
    if not _is_pure(name):
        return
    known = frozenset(_names_of_sets(source))
    for node in ast.walk(_parse(source)):
        iterated: list[ast.expr] = []
        if isinstance(node, ast.For | ast.comprehension):
            iterated.append(node.iter)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "list",
            "tuple",
            "enumerate",
        ):
            iterated += node.args[:1]
        for expression in iterated:
            if _is_set(expression) or _last_name(expression) in known:
                yield f"{name}:{expression.lineno} iterates over a set; sort it or keep a dict"


def machine_paths(name: str, source: str) -> Iterator[str]:
    """A path of one developer's machine."""
    for number, line in enumerate(source.splitlines(), start=1):
        found = MACHINE_PATH.search(line)
        if found:
            yield f"{name}:{number} has the machine path {found[0]!r}"


def missing_decisions(name: str, source: str) -> Iterator[str]:
    """A decision record that was renamed, or never written."""
    for number, line in enumerate(source.splitlines(), start=1):
        for found in DECISION.finditer(line):
            pattern = "".join(group or "" for group in found.groups())
            pattern += "" if pattern.endswith(".md") else "-*.md"
            if len(list(DECISIONS.glob(pattern))) != 1:
                yield f"{name}:{number} names {found[0]!r}, which is no record in docs/decisions"


def misnumbered(names: Iterable[str]) -> Iterator[str]:
    """Records of decisions of which two share a number, or one is missing before them."""
    for number, name in enumerate(sorted(names), start=1):
        if not name.startswith(f"{number:04}-"):
            yield f"docs/decisions/{name} is record {number} in order; count on without gaps"
            return


PYTHON_RULES: tuple[Rule, ...] = (
    long_files,
    long_functions,
    leftovers,
    missing_docstrings,
    vague_docstrings,
    private_words,
    homonyms,
    told_things,
    skipped_or_sleeping_tests,
    lost_cancellations,
    unordered_iterations,
    machine_paths,
)

LONG_FUNCTION = "def grow():\n" + "    x = 1\n" * FUNCTION_LINES_MAX
PATH = "/" + "work" + "/somewhere"

# Broken on purpose, as texts that nothing runs; each rule has to find its own.
PLANTED = [
    (long_files, "raftstore/a.py", "x = 1\n" * (FILE_LINES_MAX + 1)),
    (long_files, "tests/a.py", "x = 1\n" * (TEST_FILE_LINES_MAX + 1)),
    (long_functions, "raftstore/a.py", LONG_FUNCTION),
    (leftovers, "raftstore/a.py", "x = 1  # TO" + "DO: later\n"),
    (leftovers, "raftstore/a.py", "x = 1  # prag" + "ma: no cover\n"),
    (leftovers, "raftstore/a.py", "x = f()  # type: ig" + "nore\n"),
    (vague_docstrings, "raftstore/a.py", '"""What ' + 'it is."""\n'),
    (vague_docstrings, "tests/unit/engine/a.py", '"""Nob' + 'ody waits."""\n'),
    (vague_docstrings, "cli/a.py", 'def f():\n    """Who' + 'ever asks."""\n'),
    (vague_docstrings, "raftstore/a.py", 'class A:\n    """O' + 'f one node."""\n'),
    (vague_docstrings, "cli/a.py", 'def f():\n    """I' + 't is gone."""\n'),
    (private_words, "tests/a.py", "# Who" + "ever asks is answered.\n"),
    (private_words, "jepsen_like/a.py", "def the_wi" + "sh_of(caller): ...\n"),
    (private_words, "raftstore/engine/a.py", "# It waits for who" + "ever asks.\n"),
    (private_words, "cli/a.py", "x = 'by hear" + "say'\n"),
    (vague_docstrings, "tests/a.py", 'def f():\n    """Al' + 'so when it is closed."""\n'),
    (homonyms, "raftstore/a.py", "# as far as the leader to" + "ld it\n"),
    (homonyms, "tests/a.py", "tables.apply_pa" + "rt(channel, piece)\n"),
    (homonyms, "docs/a.md", "its format lev" + "el\n"),
    (homonyms, "docs/a.md", "Both are to" + "ld apart.\n"),
    (homonyms, "raftstore/a.py", "x = 'the fate was to" + "ld'\n"),
    (homonyms, "raftstore/a.py", "# the last wo" + "rd of it\n"),
    (told_things, "raftstore/a.py", '"""The leader te' + 'lls its peers."""\n'),
    (told_things, "cli/a.py", "x = 1\n# it he" + "ars of it\n"),
    (told_things, "docs/a.md", "It is to" + "ld at once.\n"),
    (told_things, "tests/a.py", "x = 1  # the node te" + "lls it\n"),
    (leftovers, "raftstore/a.py", "print(1)\n"),
    (leftovers, "tests/a.py", "breakpoint()\n"),
    (missing_docstrings, "raftstore/a.py", "x = 1\n"),
    (missing_docstrings, "tests/a.py", '"""Doc."""\ndef test_x():\n    pass\n'),
    (skipped_or_sleeping_tests, "tests/a.py", "pytest.sk" + "ip('no Java')\n"),
    (skipped_or_sleeping_tests, "tests/a.py", "time.sleep(0.1)\n"),
    (lost_cancellations, "raftstore/a.py", "await asyncio.wait_for(x, 1)\n"),
    (unordered_iterations, "raftstore/core/a.py", "for x in {1, 2}:\n    pass\n"),
    (unordered_iterations, "raftstore/core/a.py", "y = [x for x in set(z)]\n"),
    (unordered_iterations, "raftstore/types.py", "y: set[str] = f()\nfor x in y:\n    pass\n"),
    (unordered_iterations, "raftstore/engine/a.py", "s.y = set()\nx = list(s.y)\n"),
    (machine_paths, "raftstore/a.py", f"x = '{PATH}'\n"),
    (missing_decisions, "raftstore/a.py", "# see docs/deci" + "sions/9999\n"),
    (
        missing_decisions,
        "raftstore/a.py",
        "# see docs/deci" + "sions/0017.\n# or decis" + "ions/17\n",
    ),
    (missing_decisions, "docs/a.md", "[why](deci" + "sions/0017-ranges-in-tapes.md)\n"),
    (missing_decisions, "docs/decisions/a.md", "[0016](" + "0016-ranges-in-types.md)\n"),
]

CLEAN = [
    (long_functions, "raftstore/a.py", 'def f():\n    """Doc' + "\n" * 80 + '"""\n    return 1\n'),
    (leftovers, "raftstore/a.py", "x = 'print(1)'  # type: ignore[arg-type]\n"),
    (leftovers, "benchmarks/a.py", "print(1)\n"),
    (homonyms, "raftstore/a.py", "# what the leader reported, or was told\n"),
    (vague_docstrings, "tests/a.py", 'def f():\n    """I' + 't goes on."""\n'),
    (told_things, "raftstore/a.py", "to" + "ld = te" + "ll(1)\n"),
    (told_things, "docs/a.md", "`te" + "ll`, `to" + "ld_level`, foreto" + "ld\n"),
    (missing_docstrings, "raftstore/core/__init__.py", ""),
    (skipped_or_sleeping_tests, "tests/a.py", "asyncio.sleep(0)\n"),
    (skipped_or_sleeping_tests, "raftstore/a.py", "time.sleep(1)\n"),
    (lost_cancellations, "raftstore/a.py", "async with asyncio.timeout(1):\n    await x\n"),
    (unordered_iterations, "raftstore/core/a.py", "y: set[str] = f()\nx = sorted(y)\nz = x in y\n"),
    (unordered_iterations, "raftstore/client/a.py", "for x in {1, 2}:\n    pass\n"),
    (machine_paths, "docs/a.md", "network/" + "root/ and ~/home\n"),
    (missing_decisions, "docs/a.md", "[why](decisions/0017-ranges-in-types.md)\n"),
]


@pytest.mark.parametrize(("rule", "name", "source"), PLANTED)
def test_rule_finds_planted_sample(rule: Rule, name: str, source: str) -> None:
    """A rule that finds nothing where something is would make the tree look tidy for ever."""
    assert len(list(rule(name, source))) == 1


@pytest.mark.parametrize(("rule", "name", "source"), CLEAN)
def test_rule_is_silent_on_what_is_allowed(rule: Rule, name: str, source: str) -> None:
    """A rule with false alarms would be switched off."""
    assert list(rule(name, source)) == []


@pytest.mark.slow
@pytest.mark.parametrize("rule", PYTHON_RULES, ids=lambda rule: rule.__name__)
def test_every_python_file_is_tidy(rule: Rule) -> None:
    """The library, the programs and the tests keep the rule."""
    files = _python_files()
    assert len(files) > 100, "the tree was not found"
    assert [finding for name, source in files for finding in rule(name, source)] == []


def test_no_text_names_a_path_of_one_machine() -> None:
    """Documents, scripts and settings work on every machine."""
    texts = [(name, text) for name, text in _text_files() if text]
    assert [finding for name, text in texts for finding in machine_paths(name, text)] == []


def test_no_page_uses_a_name_of_two_things() -> None:
    """Decisions and the table of mutations are as they were written."""
    kept = ("docs/decisions/", "docs/mutations.md", "docs/requirements.md")
    texts = [(name, text) for name, text in _text_files() if not name.startswith(kept)]
    assert [finding for name, text in texts for finding in homonyms(name, text)] == []


def test_no_page_speaks_of_what_is_reported_as_if_it_were_speech() -> None:
    """Decisions and the table of mutations are as they were written."""
    kept = ("docs/decisions/", "docs/mutations.md", "docs/requirements.md")
    texts = [(n, text) for n, text in _text_files() if n.endswith(".md") and not n.startswith(kept)]
    assert [finding for name, text in texts for finding in told_things(name, text)] == []


def test_every_decision_that_is_named_exists() -> None:
    """A reader who asks why finds the reasons, also after a record was renamed."""
    files = [*_python_files(), *_text_files()]
    named = [(name, text) for name, text in files if DECISION.search(text)]
    assert len(named) > 10, "references were not found"
    assert [finding for name, text in named for finding in missing_decisions(name, text)] == []


def test_decisions_are_numbered_without_gaps() -> None:
    """A number names one record: two that are written at the same time don't share one."""
    assert list(misnumbered(["0001-a.md", "0002-b.md"])) == []
    assert len(list(misnumbered(["0001-a.md", "0002-b.md", "0002-c.md"]))) == 1
    assert len(list(misnumbered(["0001-a.md", "0003-c.md"]))) == 1
    assert len(list(misnumbered(["0001-a.md", "second.md"]))) == 1
    assert list(misnumbered(path.name for path in DECISIONS.iterdir())) == []


def test_settings_of_the_checks_are_in_one_file() -> None:
    """An empty table in pyproject.toml would silently switch setup.cfg's section off."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert sorted(project["tool"]) == ["ruff", "setuptools"]
    checks = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    assert "[metadata]" not in checks
    assert "[options" not in checks


@pytest.mark.slow
def test_every_module_is_used_somewhere() -> None:
    """A module that nobody names is dead, however well it is tested by itself."""
    sources = _python_files()
    modules = {
        name.removesuffix(".py").replace("/", ".").replace("cli.", "raftstore.cli.", 1)
        if name.startswith("cli/")
        else name.removesuffix(".py").replace("/", ".")
        for name, _ in sources
        if name.startswith(PROGRAMS) and not name.endswith(("__init__.py", "__main__.py"))
    }
    programs = "\n".join(source for name, source in sources if not name.startswith("tests/"))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = _dotted_names(programs + project)
    assert sorted(modules - named) == sorted(UNUSED)


def _dotted_names(text: str) -> set[str]:
    """Each dotted name in the text, its beginnings, and what an import puts together."""
    named = set()
    for found in set(re.findall(r"\w+(?:\.\w+)+", text)):
        parts = found.split(".")
        named |= {".".join(parts[:length]) for length in range(2, len(parts) + 1)}
    for room, imported in set(re.findall(r"from ([\w.]+) import ([^\n]*)", text)):
        named |= {f"{room}.{name}" for name in re.findall(r"\w+", imported)}
    return named


# --- reading the tree ----------------------------------------------------------------------------


@cache
def _python_files() -> tuple[tuple[str, str], ...]:
    return tuple(
        (path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for top in (*PROGRAMS, *OTHERS)
        for path in sorted((ROOT / top).rglob("*.py"))
        # The link to cli/ would show its files twice.
        if "raftstore/cli/" not in path.relative_to(ROOT).as_posix()
    )


def _text_files() -> Iterator[tuple[str, str]]:
    for top in TEXTS:
        start = ROOT / top
        for path in sorted(start.rglob("*")) if start.is_dir() else [start]:
            if path.is_file():
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


@pytest.fixture(autouse=True, scope="module")
def no_collections() -> Iterator[None]:
    """Trees stay for the whole module: searching them for garbage took most of its time."""
    gc.disable()
    yield
    gc.enable()


@cache
def _parse(source: str) -> ast.Module:
    return ast.parse(source)


@cache
def _functions(source: str) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]:
    return tuple(
        node
        for node in ast.walk(_parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@cache
def _calls(source: str) -> tuple[ast.Call, ...]:
    return tuple(node for node in ast.walk(_parse(source)) if isinstance(node, ast.Call))


def _prose(name: str, source: str) -> Iterator[tuple[int, str]]:
    """Each line of a page, or of the comments and descriptions of a file, with its number."""
    lines = source.splitlines()
    if not name.endswith(".py"):
        yield from enumerate(lines, start=1)
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(_parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            first, last = node.lineno, node.end_lineno or node.lineno
            yield from enumerate(lines[first - 1 : last], start=first)


def _is_pure(name: str) -> bool:
    room = name.removeprefix("raftstore/").partition("/")[0]
    words = ("types", "config", "errors", "metrics", "ports")
    return name.startswith("raftstore/") and (
        room in PURE_ROOMS or room.removesuffix(".py") in words
    )


def _is_set(expression: ast.expr) -> bool:
    if isinstance(expression, ast.Set | ast.SetComp):
        return True
    return isinstance(expression, ast.Call) and ast.unparse(expression.func) in (
        "set",
        "frozenset",
    )


def _names_of_sets(source: str) -> Iterable[str]:
    """Names and attributes of the module that are declared or assigned as sets."""
    for node in ast.walk(_parse(source)):
        if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
            if re.match(r"(set|frozenset)\b", ast.unparse(node.annotation)):
                yield node.arg if isinstance(node, ast.arg) else _last_name(node.target)
        elif isinstance(node, ast.Assign) and _is_set(node.value):
            yield from (_last_name(target) for target in node.targets)


def _last_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""
