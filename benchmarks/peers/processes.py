"""Start and end the processes of a peer; each writes its log next to its data."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.peers import PeerMissingError


class PeerProcesses:
    """A directory of its own and the processes in it; both are gone at the end."""

    def __init__(self, program: str, module: str) -> None:
        """PeerMissingError without the program, or the Python module of its client."""
        found = shutil.which(program)
        if found is None:
            raise PeerMissingError(f"{program} is not on PATH")
        if importlib.util.find_spec(module) is None:
            raise PeerMissingError(f"the Python package {module} is missing (extra peers)")
        self.program = found
        self.directory = Path(tempfile.mkdtemp(prefix=f"raftstore-{program}-"))
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._arguments: dict[str, tuple[str, ...]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def pids(self) -> list[int]:
        """Process ids of everything that runs."""
        return [process.pid for process in self._running.values()]

    def pid(self, name: str) -> int:
        """The process id of one of them."""
        return self._running[name].pid

    def spawn(self, name: str, *arguments: str) -> None:
        """Start the program with these arguments."""
        self._arguments[name] = arguments
        self.start(name)

    def kill(self, name: str) -> None:
        """End one of them with SIGKILL; its data stays."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def start(self, name: str) -> None:
        """Start it again as it was started first, on the data that it left."""
        with (self.directory / f"{name}.log").open("ab") as log:
            command = [self.program, *self._arguments[name]]
            self._running[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def said(self, argument: str) -> str:
        """The first line of what the program prints, say of its version."""
        said = subprocess.run([self.program, argument], capture_output=True, check=False, text=True)
        return (said.stdout or said.stderr).splitlines()[0]


def free_ports(count: int) -> list[int]:
    """Loopback ports that are free now, all different."""
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(count):
            probe = held.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
        return ports
