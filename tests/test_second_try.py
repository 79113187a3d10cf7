"""The CI's second try of failed tests: for those alone, and for nothing that was wrong."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
FLAKY = """
def test_flaky(request):
    \"\"\"Fails the first time.\"\"\"
    before = request.config.rootpath / "before"
    was_there = before.exists()
    before.touch()
    assert was_there
"""
# A test that this project has not: the CI's own function is run over it, and has to fail.
SKIPPED = """
import pytest

def test_skipped():
    pytest.skip("this machine cannot")
"""
UNFINISHED = """
import time

def test_long():
    time.sleep(4.0)  # a session has three quarters of its stage: three seconds

def test_never_begun():
    assert False
"""
WRONG = """
from tests.promises import promised

def test_wrong(request):
    before = request.config.rootpath / "wrong"
    was_there = before.exists()
    before.touch()
    promised(was_there, "an acknowledged row is gone")
"""


def ci(directory: Path, tests: str, *more: str, stage_seconds: int = 400) -> tuple[int, str]:
    """Exit code and log of the CI's function, word for word."""
    script = (ROOT / ".ci" / "test").read_text(encoding="utf-8")
    found = re.search(r"^tests_once_more\(\) \{\n.*?^\}\n", script, re.MULTILINE | re.DOTALL)
    assert found is not None
    (directory / "conftest.py").write_text("from tests.conftest import *\n")
    (directory / "test_it.py").write_text(tests)
    (directory / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        ["bash", "-c", found[0] + 'tests_once_more "$@"', "ci", *more, "."],
        cwd=directory, capture_output=True, text=True, check=False, timeout=120,
        env={
            **os.environ, "PYTHONPATH": str(ROOT), "RAFTSTORE_TEST_NO_SKIPS": "1",
            "stage_seconds": str(stage_seconds), "second_tries_max": "3",
        },
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("more", [(), ("-n", "2")], ids=["alone", "workers"])
def test_flaky_test_has_its_second_try(tmp_path: Path, more: tuple[str, ...]) -> None:
    """The log has both."""
    code, log = ci(tmp_path, FLAKY, *more)
    assert code == 0, log
    assert "ran again: 1 failed tests" in log


@pytest.mark.parametrize("more", [(), ("-n", "2")], ids=["alone", "workers"])
@pytest.mark.parametrize(
    ("tests", "said"),
    [(SKIPPED, "1 skipped tests, and none may be"), (WRONG, "an acknowledged row is gone")],
    ids=["skipped", "wrong"],
)
def test_what_a_second_try_cannot_mend_fails_beside_a_flaky_test(
    tmp_path: Path, tests: str, said: str, more: tuple[str, ...]
) -> None:
    """A test that did not run, or a broken promise: each would pass, or be forgotten, again."""
    code, log = ci(tmp_path, FLAKY + tests, *more)
    assert code not in (0, 1), log
    assert said in log
    assert "ran again" not in log


def test_session_that_ended_before_its_tests_fails_beside_a_flaky_test(tmp_path: Path) -> None:
    """Those that never began are no failed tests, and would not run again."""
    code, log = ci(tmp_path, FLAKY + UNFINISHED, stage_seconds=4)
    assert code not in (0, 1), log
    assert "session-timeout" in log
    assert "ran again" not in log
