"""pytest plugin of raftstore: a cluster and simulated worlds for tests of users.

It is a package of its own, which imports nothing of raftstore before a test asks for it: a run of
pytest that has nothing to do with raftstore pays nothing for it.

* ``raftstore_cluster``: three node processes on this machine, for all tests of the session; give it
  to ``raftstore.connect``. Their code of state machines is found where that of the tests is.
* ``raftstore_world``: ``simulate_machine`` of ``raftstore.testing``.
* ``--raftstore-seeds A..B``: simulate these seeds, whatever a test names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from raftstore.local_cluster import LocalCluster

SEEDS_VARIABLE = "RAFTSTORE_SEEDS"
"""As in ``simulate_machine``; also of test processes that pytest starts."""
NODES = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--raftstore-seeds``."""
    group = parser.getgroup("raftstore")
    group.addoption(
        "--raftstore-seeds",
        metavar="A..B",
        help="simulate these seeds of raftstore's worlds, whatever a test names",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Hand the seeds to every simulation of this run."""
    seeds = config.getoption("--raftstore-seeds")
    if not seeds:
        return
    first, dots, last = seeds.partition("..")
    if not dots or not first.isdigit() or not last.isdigit() or int(first) > int(last):
        message = f"--raftstore-seeds {seeds} is no range; write A..B, as in 1..200"
        raise pytest.UsageError(message)
    before = os.environ.get(SEEDS_VARIABLE)
    os.environ[SEEDS_VARIABLE] = seeds

    def restore() -> None:
        if before is None:
            os.environ.pop(SEEDS_VARIABLE, None)
        else:
            os.environ[SEEDS_VARIABLE] = before

    config.add_cleanup(restore)


@pytest.fixture(scope="session")
def raftstore_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three node processes on this machine, stopped when the session ends."""
    from raftstore.local_cluster import LocalCluster

    folders = [folder for folder in sys.path if folder and os.path.isdir(folder)]  # noqa: PTH112
    with pytest.MonkeyPatch.context() as patch:
        # Nodes import machines from where tests do, files beside a test among them.
        patch.setenv("PYTHONPATH", os.pathsep.join(folders))
        with LocalCluster(NODES, directory=tmp_path_factory.mktemp("raftstore")) as cluster:
            yield cluster


@pytest.fixture
def raftstore_world() -> Callable[..., Any]:
    """``simulate_machine``: a machine on simulated replicas under faults."""
    from raftstore.testing import simulate_machine

    return simulate_machine
