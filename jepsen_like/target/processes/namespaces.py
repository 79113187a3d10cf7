"""A network of its own for every node: a network namespace and a TAP device, joined by a switch.

Needs root. Clients stay in the namespace of this process, on a device of their own. A second device
here asks nodes past all faults, as a console would.

Nothing stays: devices are gone with the descriptors of this process. Names of namespaces are taken
away by ``close``, by a janitor when this process is killed, and by the next run when both were.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from jepsen_like.target.base import FaultUnavailableError
from jepsen_like.target.processes.proxy import CLIENTS, Counts, Weather
from jepsen_like.target.processes.switch import CONTROL, Fabric, Switch

TUN: Final = Path("/dev/net/tun")
TUNSETIFF: Final = 0x400454CA
IFF_TAP: Final = 0x0002
IFF_NO_PI: Final = 0x1000
TOOLS: Final = ("ip", "nsenter")
NAMED: Final = Path("/run/netns")
PORT: Final = 4480
"""Of every node, in its own namespace."""
NODES_MAX: Final = 100
CLIENTS_HOST: Final = 126
CONTROL_HOST: Final = 254
CONTROL_OFFSET: Final = 128
"""A node's second address, for the control device: its host number and this."""
NETWORKS: Final = "198.18"
"""Set aside for tests of networks (RFC 2544): a run takes one of its 256 networks of 256 hosts."""
NAME: Final = re.compile(r"raftstore-(\d+)-(\d+)-\d+-n\d+")
"""Process id of the run, when that began (clock ticks since boot), number of its network."""
_JANITOR: Final = 'cat >/dev/null; for n in "$@"; do ip netns del "$n" 2>/dev/null; done; true'
_made = itertools.count()


def why_unavailable() -> str | None:
    """The reason why namespaces cannot be used; None if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root; run it as root or with --network loopback"
    missing = [tool for tool in TOOLS if shutil.which(tool, path=_path()) is None]
    if missing:
        return (
            f"network namespaces need {' and '.join(missing)}; install iproute2 and util-linux or "
            "use --network loopback"
        )
    if not TUN.exists():
        return f"network namespaces need {TUN}, and there is none; use --network loopback"
    return None


class Namespaces:
    """The network of one run, with the faults of ``Links``; methods are thread-safe."""

    def __init__(self, nodes: Sequence[str], seed: int = 0) -> None:
        reason = why_unavailable()
        if reason is not None:
            raise FaultUnavailableError(reason)
        if len(nodes) > NODES_MAX:
            raise FaultUnavailableError(f"{len(nodes)} nodes are too many; use {NODES_MAX} or less")
        remove_stale()
        self._id = f"{os.getpid()}-{_began(os.getpid())}-{next(_made)}"
        self._names = {node: f"raftstore-{self._id}-{node}" for node in nodes}
        self._hosts = {node: number for number, node in enumerate(nodes, start=1)}
        self._network = f"{NETWORKS}.{_free_network()}"
        self.endpoints = {node: self._address(self._hosts[node]) for node in nodes}
        self.direct = {node: self._address(self._hosts[node] + CONTROL_OFFSET) for node in nodes}
        self._descriptors: dict[str, int] = {}
        self._switch: Switch | None = None
        # It ends when its stdin does, that is with this process, and takes the names away.
        self._janitor = subprocess.Popen(
            ["sh", "-c", _JANITOR, "janitor", *self._names.values()],
            stdin=subprocess.PIPE,
            env=_environment(),
            start_new_session=True,
        )
        hosts = {**self._hosts, CLIENTS: CLIENTS_HOST, CONTROL: CONTROL_HOST}
        self._fabric = Fabric({name: _mac(host) for name, host in hosts.items()}, seed)
        try:
            for port, host in hosts.items():
                self._connect(port, host)
            self._switch = Switch(self._descriptors, self._fabric)
        except BaseException:
            self.close()
            raise

    @property
    def counts(self) -> Counts:
        """Counts of what was done to packets so far."""
        return self._fabric.counts

    @property
    def weather(self) -> Weather:
        """The faults of packets between nodes."""
        return self._fabric.weather

    @weather.setter
    def weather(self, weather: Weather) -> None:
        self._fabric.weather = weather

    def command(self, node: str) -> tuple[str, ...]:
        """The words before a node's command that start it in its namespace.

        Not ``ip netns exec``: that gives it mounts of its own, which would outlast an unmount here.
        """
        return ("nsenter", f"--net={NAMED / self._names[node]}")

    def listen(self, name: str, *, is_on: bool) -> None:
        """Nothing to do: the node's own kernel refuses for a process that is down."""

    def block(self, links: Collection[tuple[str, str]]) -> None:
        """Let nothing pass on these links, in addition to those blocked already."""
        self._fabric.blocked = self._fabric.blocked | frozenset(links)

    def unblock(self) -> None:
        """Let everything pass."""
        self._fabric.blocked = frozenset()

    def reset(self, node: str | None = None) -> None:
        """RST on every connection (of the node)."""
        assert self._switch is not None
        self._switch.reset(node)

    def close(self) -> None:
        """Take devices and namespaces away; the processes in them have ended."""
        if self._switch is not None:
            self._switch.close()
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        assert self._janitor.stdin is not None
        self._janitor.stdin.close()
        self._janitor.wait()

    def _address(self, host: int) -> str:
        return f"{self._network}.{host}:{PORT}"

    def _connect(self, port: str, host: int) -> None:
        """Make the port's device, and the namespace it is in unless it stays here."""
        device = f"rs{os.getpid():x}-{self._id.rpartition('-')[2]}-{host}"
        self._descriptors[port] = _tap(device)
        addresses = [host]
        where: tuple[str, ...] = ()
        if port in self._names:
            name = self._names[port]
            addresses.append(host + CONTROL_OFFSET)
            where = ("-n", name)
            _ip("netns", "add", name)
            _ip("link", "set", device, "netns", name)
            _ip(*where, "link", "set", "lo", "up")
        _ip(*where, "link", "set", device, "address", _mac(host).hex(":"))
        for each in addresses:
            _ip(*where, "address", "add", f"{self._network}.{each}/25", "dev", device)
        _ip(*where, "link", "set", device, "up")


def remove_stale() -> list[str]:
    """Take away names that runs left which are no more; return them. Others' names stay."""
    found = [path.name for path in NAMED.iterdir()] if NAMED.is_dir() else []
    stale = [
        name
        for name in sorted(found)
        if (ours := NAME.fullmatch(name)) and _began(int(ours[1])) != int(ours[2])
    ]
    for name in stale:
        # The janitor of that run may be at it, too.
        _try_ip("netns", "del", name)
    return stale


def _began(pid: int) -> int:
    """When a process began, in clock ticks since boot: ids come again, both together do not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return -1
    return int(stat.rpartition(")")[2].split()[19])


def _free_network() -> int:
    """The third number of a network that this machine has no address and no route in."""
    known = _ip("-4", "address") + _ip("-4", "route")
    taken = {int(number) for number in re.findall(rf"\b{re.escape(NETWORKS)}\.(\d+)\.", known)}
    for step in range(256):
        number = (os.getpid() + step) % 256
        if number not in taken:
            return number
    raise FaultUnavailableError(f"every network of {NETWORKS}.0.0/16 is in use; end other runs")


def _mac(host: int) -> bytes:
    """A locally administered address."""
    return bytes((0x02, 0x72, 0x73, 0x00, 0x00, host))


def _tap(device: str) -> int:
    """A descriptor of a new device, which is gone when it closes."""
    descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    try:
        request = struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI)
        fcntl.ioctl(descriptor, TUNSETIFF, request)
    except OSError as error:
        os.close(descriptor)
        raise FaultUnavailableError(
            f"cannot make the device {device} by {TUN}: {error.strerror}; use --network loopback"
        ) from error
    return descriptor


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": _path()}


def _try_ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ("ip", *words), capture_output=True, text=True, check=False, env=_environment()
    )


def _ip(*words: str) -> str:
    done = _try_ip(*words)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise FaultUnavailableError(
            f"ip {' '.join(words)} failed: {said[0]}; use --network loopback"
        )
    return done.stdout
