"""A whole cluster on this machine, as real processes: for tests, notebooks and the demo.

::

    with raftstore.LocalCluster(nodes=3) as cluster, cluster.connect() as client:
        client.create_table("orders", key="order_id")
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from raftstore.client.blocking.client import Client, connect
from raftstore.errors import ConfigError, RaftstoreError, RequestError

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 15.0
POLL_S: Final = 0.05
LOOPBACK: Final = "127.0.0.1"
PORT_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Where Linux says which ports outgoing connections take theirs."""
LOWEST_PORT: Final = 20_000
"""Well-known servers listen below."""
PORTS_TRIED_MAX: Final = 1_000
HTTP_NAME: Final = "http.json"
ENDPOINTS_NAME: Final = "endpoints.json"
"""Remembers the ports in the cluster's directory: its nodes look for each other there again."""
LOCK_NAME: Final = "cluster.lock"
"""Locked with flock while a cluster runs in the directory."""


@dataclass(slots=True)
class _Member:
    name: str
    endpoint: str
    directory: Path
    advertise: str
    listen: str = ""
    """Where it listens, if not at its endpoint."""
    command: tuple[str, ...] = ()
    """What starts its process somewhere else, say in a network namespace."""
    http: str = ""
    token: str = ""
    """Of a node that is no founder: what it joins by."""
    process: subprocess.Popen[bytes] | None = None
    waker: subprocess.Popen[bytes] | None = None
    """Wakes the paused process when this one ends: asleep it would not notice, and stay."""


class LocalCluster:
    """Node processes n1, n2, … on free loopback ports. Ends them when closed, or with the parent.

    ``directory``: where data and logs go; a temporary one, removed at the end, if not given.
    ``extra``: further arguments of ``raftstore node``. ``environment``: node -> variables it gets.
    ``http``: whether each node serves HTTP, too, on another free port.
    Entering it raises ConfigError while another cluster runs in the directory.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        directory: Path | str | None = None,
        extra: tuple[str, ...] = (),
        environment: Mapping[str, Mapping[str, str]] | None = None,
        http: bool = False,
    ) -> None:
        if nodes < 1:
            raise ConfigError(f"a cluster has at least 1 node, not {nodes}; give nodes=1 or more")
        self._is_temporary = directory is None
        self._lock: int | None = None
        self.directory = Path(directory or tempfile.mkdtemp(prefix="raftstore-cluster-"))
        self._extra = extra
        self._environment = environment or {}
        names = [f"n{number}" for number in range(1, nodes + 1)]
        self.directory.mkdir(parents=True, exist_ok=True)
        self._members = {
            name: _Member(name, endpoint, self.directory / name, endpoint)
            for name, endpoint in _endpoints(self.directory / ENDPOINTS_NAME, names).items()
        }
        self._founders = tuple(self._members.values())
        if http:
            taken = self.endpoints
            for name, endpoint in _endpoints(self.directory / HTTP_NAME, names, taken).items():
                self._members[name].http = endpoint

    # --- life -------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self._claim()
            for name in self._members:
                self._spawn(name)
            self.wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every node process and remove a temporary directory."""
        for name in self._members:
            self._dismiss_waker(name)
        running = [m.process for m in self._members.values() if m.process is not None]
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in running:
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._is_temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def wait_until_ready(self, timeout: float = START_TIMEOUT_S) -> None:
        """Wait until every running node serves and the catalog has a leader."""
        deadline = time.monotonic() + timeout
        last = "no node answered"
        while time.monotonic() < deadline:
            self._check_processes()
            try:
                with self.connect(timeout=5.0) as client:
                    status = client.cluster_status(timeout=5.0)
                    serving = [node.name for node in status.nodes if node.status is not None]
                    if set(self.running()) <= set(serving) and status.metadata_channel.leader:
                        return
                    last = f"only {', '.join(serving) or 'no node'} serve so far"
            except RequestError as error:
                last = str(error)
            except RaftstoreError as error:
                last = str(error)
            time.sleep(POLL_S)
        raise RaftstoreError(
            f"the cluster in {self.directory} was not ready after {timeout:.0f} s: {last}; "
            "see the logs there"
        )

    # --- what it is -------------------------------------------------------------------------------

    def advertise(self, endpoints: Mapping[str, str]) -> None:
        """Before the start: nodes and clients use these addresses, say of proxies (by node)."""
        for name, endpoint in endpoints.items():
            self._member(name).advertise = endpoint

    def place(self, name: str, *, listen: str, command: tuple[str, ...]) -> None:
        """Before the start: the node listens there and is started through this command, which must
        become the node's process itself (as ``nsenter`` does). ``advertise`` says how to reach it.
        """
        member = self._member(name)
        member.listen, member.command = listen, command

    @property
    def endpoints(self) -> list[str]:
        """``host:port`` of every node as others use it, up or not."""
        return [member.advertise for member in self._members.values()]

    def endpoints_by_node(self) -> dict[str, str]:
        """Node name -> ``host:port`` it listens on."""
        return {member.name: member.endpoint for member in self._members.values()}

    def http_by_node(self) -> dict[str, str]:
        """Node name -> ``host:port`` of its HTTP interface; empty where there is none."""
        return {member.name: member.http for member in self._members.values()}

    def running(self) -> list[str]:
        """Names of the nodes whose process is alive."""
        return [
            member.name
            for member in self._members.values()
            if member.process is not None and member.process.poll() is None
        ]

    def ended(self) -> dict[str, int]:
        """Exit codes of the nodes that were started and are not running (negative: a signal)."""
        codes = {m.name: m.process.poll() for m in self._members.values() if m.process is not None}
        return {name: code for name, code in codes.items() if code is not None}

    def pid(self, name: str) -> int:
        """Process id of a running node."""
        return self._running(name).pid

    def log_file(self, name: str) -> Path:
        """Where the node writes its log lines."""
        return self.directory / f"{name}.log"

    def connect(self, timeout: float | None = None) -> Client:
        """A blocking client of this cluster."""
        return connect(self.endpoints, timeout=timeout)

    # --- what can be done to a node ---------------------------------------------------------------

    def kill(self, name: str) -> None:
        """Kill -9, and wait until the process is gone. ConfigError when it is gone already."""
        self._running(name)
        self.kill_all([name])

    def kill_all(self, names: Collection[str]) -> None:
        """Kill -9 to every one of them before any is waited for; who ended by itself is reaped."""
        started = [name for name in names if self._member(name).process is not None]
        for name in started:
            self._dismiss_waker(name)
        for name in started:
            process = self._member(name).process
            assert process is not None
            process.kill()
        for name in started:
            self._reap(name)

    def stop(self, name: str, timeout: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM, and wait; return the exit code."""
        process = self._running(name)
        if self._member(name).waker is not None:
            self.resume(name)
        process.terminate()
        code = process.wait(timeout)
        self._reap(name)
        return code

    def start(self, name: str) -> None:
        """Start a node that was killed or stopped, on its old directory and port."""
        member = self._member(name)
        if member.process is not None and member.process.poll() is None:
            raise ConfigError(f"node {name} is running already")
        if member.process is not None:
            self._reap(name)
        self._spawn(name)

    def join(
        self,
        name: str,
        token: str,
        *,
        environment: Mapping[str, str] | None = None,
        advertise: Callable[[str], str] = lambda endpoint: endpoint,
    ) -> None:
        """Start a new node that joins by a token of `join_token`, under a name that none here has,
        or that one had which was forgotten. It is of this cluster until it is forgotten; a cluster
        that is opened again in the directory has its founders only.

        ``advertise``: gives the address that others use for its endpoint, say of a proxy.
        """
        if name in self._members:
            raise ConfigError(f"there is a node {name!r} already; forget it, or use another name")
        directory = self.directory / name
        if directory.exists():
            raise ConfigError(f"{directory} holds a node's data; remove it, or use another name")
        (endpoint,) = _free_endpoints(1)
        self._members[name] = _Member(name, endpoint, directory, advertise(endpoint), token=token)
        if environment is not None:
            self._environment = {**self._environment, name: environment}
        self._spawn(name)

    def forget(self, name: str) -> None:
        """A node has left the cluster, or its disk is lost: its process ends, if it has not, and
        what it stored is removed."""
        self.kill_all([name])
        member = self._members.pop(name)
        shutil.rmtree(member.directory, ignore_errors=True)

    def pause(self, name: str) -> None:
        """SIGSTOP: the process stands still and knows nothing of it."""
        process = self._running(name)
        process.send_signal(signal.SIGSTOP)
        member = self._member(name)
        if member.waker is None:
            member.waker = subprocess.Popen(
                ["/bin/sh", "-c", 'read _; kill -CONT "$1"', "waker", str(process.pid)],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )

    def resume(self, name: str) -> None:
        """SIGCONT."""
        self._running(name).send_signal(signal.SIGCONT)
        self._dismiss_waker(name)

    # --- inside -----------------------------------------------------------------------------------

    def _claim(self) -> None:
        """Lock the directory: a second cluster in it would take these nodes for its own, which are
        at the same addresses."""
        self._lock = os.open(self.directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{self.directory} is in use by another cluster; stop that one, or use another "
                "directory"
            ) from None

    def _member(self, name: str) -> _Member:
        if name not in self._members:
            raise ConfigError(f"there is no node {name!r}; there are {', '.join(self._members)}")
        return self._members[name]

    def _running(self, name: str) -> subprocess.Popen[bytes]:
        process = self._member(name).process
        if process is None or process.poll() is not None:
            raise ConfigError(f"node {name} is not running; start it first")
        return process

    def _reap(self, name: str) -> None:
        process = self._member(name).process
        assert process is not None
        process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def _dismiss_waker(self, name: str) -> None:
        """Before the process may end: its id must not be signalled when it is another's."""
        member = self._member(name)
        if member.waker is not None:
            member.waker.kill()
            member.waker.wait()
            assert member.waker.stdin is not None
            member.waker.stdin.close()
            member.waker = None

    def _spawn(self, name: str) -> None:
        member = self._member(name)
        founders = ",".join(f"{m.name}={m.advertise}" for m in self._founders)
        belongs = ("--join", member.token) if member.token else ("--initial-cluster", founders)
        arguments = [
            *member.command,
            sys.executable,
            "-m",
            "raftstore.cli.main",
            "node",
            "--id",
            name,
            "--data-dir",
            str(member.directory),
            "--listen",
            member.listen or member.endpoint,
            "--http",
            member.http,
            "--advertise",
            member.advertise,
            *belongs,
            # The pipe on stdin ends with this process, however it ends, and so does the node.
            "--exit-with-parent",
            *self._extra,
        ]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RAFTSTORE_")}
        # Its nodes share one disk, and many of them would fill it.
        environment["RAFTSTORE_STORAGE_RESERVE_BYTES"] = "0"
        environment.update(self._environment.get(name, {}))
        with self.log_file(name).open("ab") as log:
            member.process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def _check_processes(self) -> None:
        for member in self._members.values():
            code = None if member.process is None else member.process.poll()
            if code is not None and code != -signal.SIGKILL:
                tail = self.log_file(member.name).read_text(errors="replace").splitlines()[-3:]
                raise RaftstoreError(
                    f"node {member.name} ended with exit code {code}: {' '.join(tail)}"
                )


def _endpoints(file: Path, names: list[str], taken: Collection[str] = ()) -> dict[str, str]:
    """The addresses of the cluster in this directory; new ones, not ``taken``, for a new one."""
    if file.exists():
        known: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
        if list(known) != names:
            raise ConfigError(
                f"{file.parent} holds a cluster of the nodes {', '.join(known)}; start it with "
                f"{len(known)} nodes or use another directory"
            )
        return known
    free = [end for end in _free_endpoints(len(names) + len(taken)) if end not in taken]
    found = dict(zip(names, free, strict=False))
    file.write_text(json.dumps(found), encoding="utf-8")
    return found


def _free_endpoints(count: int) -> list[str]:
    """Loopback ports that are free now; the listeners stay open until all are found.

    A node keeps its port while it is down, and nobody else may be given it meanwhile. So they are
    not of the range of which outgoing connections take theirs, where the system reports that range.
    """
    with contextlib.ExitStack() as held:
        endpoints = []
        for port in _candidates():
            probe = held.enter_context(socket.socket())
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue  # somebody listens there
            endpoints.append(f"{LOOPBACK}:{probe.getsockname()[1]}")
            if len(endpoints) == count:
                return endpoints
        raise RaftstoreError(f"fewer than {count} ports of {LOOPBACK} are free; stop some servers")


def _candidates() -> Iterator[int]:
    """Ports to try, in no order that two clusters would share; then whatever the system gives."""
    below = _outgoing_from()
    ports = range(LOWEST_PORT, below)
    yield from random.sample(ports, min(len(ports), PORTS_TRIED_MAX))
    yield from repeat(0, PORTS_TRIED_MAX)


def _outgoing_from() -> int:
    """The first port that outgoing connections may take; LOWEST_PORT where the system does not
    report it."""
    try:
        return int(PORT_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return LOWEST_PORT
