"""The switch between namespaces: what passes, what does not, and what is counted."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from jepsen_like.target.processes.packets import (
    ACK,
    BROADCAST,
    ETHERNET,
    FIN,
    IPV4,
    PROTOCOL_TCP,
    RST,
    SYN,
    TCP,
    TYPE_ARP,
    TYPE_IPV4,
    checksum,
    read_segment,
)
from jepsen_like.target.processes.proxy import CLIENTS, Weather
from jepsen_like.target.processes.switch import CONTROL, Fabric, Switch

MACS = {name: bytes(5) + bytes([at]) for at, name in enumerate(("n1", "n2", CLIENTS, CONTROL))}
PATIENCE_S = 10.0


def _packet(source: str, destination: str, number: int = 0, flags: int = ACK) -> bytes:
    """A TCP segment that acknowledges ``number``."""
    segment = TCP.pack(1000, 4480, 77, number, 5 << 4, flags, 0, 0, 0)
    size = IPV4.size + TCP.size
    addresses = MACS[source][-4:], MACS[destination][-4:]
    head = IPV4.pack(0x45, 0, size, 0, 0, 64, PROTOCOL_TCP, 0, *addresses)
    return ETHERNET.pack(MACS[destination], MACS[source], TYPE_IPV4) + head + segment


@pytest.fixture
def fabric() -> Fabric:
    """Two nodes, clients, and the control host, which no fault touches."""
    return Fabric(MACS, seed=1)


def _arrivals(fabric: Fabric, source: str, destination: str, count: int = 1) -> list[list[float]]:
    """When each of so many packets arrives, all sent at second 5."""
    found = []
    for number in range(count):
        passed = fabric.pass_on(source, _packet(source, destination, number), 5.0)
        assert all(name == destination for _, name, _ in passed)
        found.append([due for due, _, _ in passed])
    return found


def test_a_packet_reaches_whom_it_is_for_and_nobody_else(fabric: Fabric) -> None:
    """Unchanged, and at once when there is no weather."""
    frame = _packet("n1", "n2", 3)
    assert fabric.pass_on("n1", frame, 5.0) == [(5.0, "n2", frame)]
    assert fabric.counts.passed == 1


def test_questions_for_neighbours_pass_every_cut(fabric: Fabric) -> None:
    """A cut is between hosts: their addresses stay known."""
    fabric.blocked = frozenset({("n1", "n2")})
    frame = ETHERNET.pack(BROADCAST, MACS["n1"], TYPE_ARP) + bytes(28)
    assert [name for _, name, _ in fabric.pass_on("n1", frame, 5.0)] == ["n2", CLIENTS, CONTROL]


def test_what_is_neither_ipv4_nor_arp_goes_nowhere_uncounted(fabric: Fabric) -> None:
    """Router solicitations of IPv6 are no proof that a fault struck."""
    fabric.blocked = frozenset({("n1", "n2")})
    frame = ETHERNET.pack(MACS["n2"], MACS["n1"], 0x86DD) + bytes(40)
    assert fabric.pass_on("n1", frame, 5.0) == []
    assert fabric.pass_on("n1", b"short", 5.0) == []
    assert fabric.counts.blocked == 0


def test_a_cut_is_one_way_and_counted(fabric: Fabric) -> None:
    """Given a cut one way, packets back pass; clients are cut off only where named."""
    fabric.blocked = frozenset({("n1", "n2"), (CLIENTS, "n2")})
    assert _arrivals(fabric, "n1", "n2") == [[]]
    assert _arrivals(fabric, "n2", "n1") == [[5.0]]
    assert _arrivals(fabric, CLIENTS, "n2") == [[]]
    assert _arrivals(fabric, "n2", CLIENTS) == [[5.0]]
    assert fabric.counts.blocked == 2


def test_no_fault_touches_the_control_host(fabric: Fabric) -> None:
    """Leaders are reported while everything is cut and lost."""
    fabric.blocked = frozenset((a, b) for a in MACS for b in MACS)
    fabric.weather = Weather(loss=1.0)
    assert _arrivals(fabric, CONTROL, "n1") == [[5.0]]
    assert _arrivals(fabric, "n1", CONTROL) == [[5.0]]


def test_weather_is_between_nodes_only(fabric: Fabric) -> None:
    """As with proxies: what clients ask is not lost."""
    fabric.weather = Weather(loss=1.0)
    assert _arrivals(fabric, CLIENTS, "n1") == [[5.0]]
    assert _arrivals(fabric, "n1", "n2") == [[]]
    assert fabric.counts.lost == 1


def test_shares_of_loss_and_duplicates_are_those_asked_for(fabric: Fabric) -> None:
    """Within what chance allows, and every one is counted."""
    fabric.weather = Weather(loss=0.3, duplicate=0.2)
    copies = [len(dues) for dues in _arrivals(fabric, "n1", "n2", 2_000)]
    assert copies.count(0) == fabric.counts.lost
    assert copies.count(2) == fabric.counts.duplicated
    assert 500 < copies.count(0) < 700
    assert 200 < copies.count(2) < 360


def test_delays_keep_the_order_of_a_link(fabric: Fabric) -> None:
    """Each late by what was asked, none overtaken without reorder."""
    fabric.weather = Weather(delay_ms=(10.0, 50.0))
    dues = [due for (due,) in _arrivals(fabric, "n1", "n2", 100)]
    assert dues == sorted(dues)
    assert 5.010 <= dues[0] <= dues[-1] <= 5.050
    assert fabric.counts.delayed == 100


def test_a_reordered_packet_is_overtaken_by_later_ones(fabric: Fabric) -> None:
    """It comes after what was sent behind it."""
    fabric.weather = Weather(reorder=1.0)
    ((first,),) = _arrivals(fabric, "n1", "n2")
    fabric.weather = Weather()
    ((second,),) = _arrivals(fabric, "n1", "n2")
    assert second < first
    assert fabric.counts.reordered == 1


def test_a_narrow_link_carries_so_many_bytes_a_second(fabric: Fabric) -> None:
    """Packets queue one behind the other, per link."""
    size = len(_packet("n1", "n2"))
    fabric.weather = Weather(bytes_per_second=size * 10)
    dues = [due for (due,) in _arrivals(fabric, "n1", "n2", 3)]
    assert dues == pytest.approx([5.1, 5.2, 5.3])
    assert _arrivals(fabric, "n2", "n1") == [[pytest.approx(5.1)]]


def test_a_reset_is_what_its_receiver_waits_for(fabric: Fabric) -> None:
    """The sequence number it acknowledged last, from its peer's address, checksums right."""
    fabric.pass_on("n1", _packet("n1", "n2", 4711), 5.0)
    ((port, frame),) = fabric.reset("n2")
    assert port == "n1"
    assert fabric.counts.resets == 1
    sent = read_segment(frame)
    assert sent is not None
    assert (sent.sequence, sent.flags) == (4711, RST | ACK)
    assert (sent.source, sent.source_port) == (MACS["n2"][-4:], 4480)
    assert (sent.source_mac, sent.destination_mac) == (MACS["n2"], MACS["n1"])
    head, segment = frame[14:34], frame[34:]
    assert checksum(head) == 0
    pseudo = head[12:20] + struct.pack("!HH", PROTOCOL_TCP, len(segment))
    assert checksum(pseudo + segment) == 0


def test_who_ignores_a_reset_is_told_again_with_its_next_packet(fabric: Fabric) -> None:
    """It had received more than it acknowledged; until a new connection begins nothing passes."""
    fabric.pass_on("n1", _packet("n1", "n2", 1), 5.0)
    fabric.reset(None)
    ((_, port, frame),) = fabric.pass_on("n1", _packet("n1", "n2", 9), 5.0)
    told = read_segment(frame)
    assert told is not None
    assert (port, told.sequence, told.flags) == ("n1", 9, RST | ACK)
    opening = _packet("n1", "n2", 0, SYN)
    assert fabric.pass_on("n1", opening, 5.0) == [(5.0, "n2", opening)]
    assert _arrivals(fabric, "n1", "n2") == [[5.0]]


@pytest.mark.parametrize("last", [FIN | ACK, RST])
def test_connections_that_are_over_are_not_reset(fabric: Fabric, last: int) -> None:
    """A fault that met no connection must not count as one that struck."""
    fabric.pass_on("n1", _packet("n1", "n2", 1), 5.0)
    fabric.pass_on("n1", _packet("n1", "n2", 2, last), 5.0)
    assert fabric.reset(None) == []
    assert fabric.counts.resets == 0


def test_connections_of_others_are_not_reset(fabric: Fabric) -> None:
    """Only those of the node that was named."""
    fabric.pass_on(CLIENTS, _packet(CLIENTS, "n1", 1), 5.0)
    assert fabric.reset("n2") == []
    assert len(fabric.reset("n1")) == 1


class Wires:
    """The far ends of a running switch's ports, which its hosts hold."""

    def __init__(self, switch: Switch, far: dict[str, socket.socket]) -> None:
        self.switch = switch
        self.far = far

    def send(self, source: str, destination: str, number: int) -> None:
        """One packet."""
        self.far[source].send(_packet(source, destination, number))

    def numbers(self, name: str, count: int) -> list[int]:
        """Of the next packets that arrive there."""
        found = []
        for _ in range(count):
            ready, _, _ = select.select([self.far[name]], [], [], PATIENCE_S)
            assert ready, "nothing arrives any more"
            heard = read_segment(self.far[name].recv(2_000))
            assert heard is not None
            found.append(heard.acknowledged)
        return found


@pytest.fixture
def wires(fabric: Fabric) -> Iterator[Wires]:
    """A switch whose ports are sockets instead of devices."""
    with ExitStack() as held:
        far, near = {}, {}
        for name in MACS:
            pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            far[name], near[name] = (held.enter_context(each) for each in pair)
            near[name].setblocking(False)
        switch = Switch({name: each.fileno() for name, each in near.items()}, fabric)
        try:
            yield Wires(switch, far)
        finally:
            switch.close()


def test_a_switch_carries_frames_until_a_link_is_cut(wires: Wires) -> None:
    """Cut packets are gone for good, later ones arrive."""
    fabric = wires.switch.fabric
    wires.send("n1", "n2", 1)
    assert wires.numbers("n2", 1) == [1]
    fabric.blocked = frozenset({("n1", "n2")})
    wires.send("n1", "n2", 2)
    wires.send("n1", CLIENTS, 3)
    assert wires.numbers(CLIENTS, 1) == [3]
    fabric.blocked = frozenset()
    wires.send("n1", "n2", 4)
    assert wires.numbers("n2", 1) == [4]


def test_a_switch_delivers_late_and_twice_in_order(wires: Wires) -> None:
    """Delay moves the packets, it does not mix them."""
    wires.switch.fabric.weather = Weather(duplicate=1.0, delay_ms=(1.0, 4.0))
    for number in (1, 2, 3):
        wires.send("n1", "n2", number)
    assert wires.numbers("n2", 6) == [1, 1, 2, 2, 3, 3]


def test_a_switch_goes_on_when_a_device_vanishes(wires: Wires) -> None:
    """Given a device that vanishes, the host on it is cut off and the others are not."""
    wires.far[CLIENTS].close()
    wires.send("n1", CLIENTS, 1)
    wires.send("n1", "n2", 2)
    assert wires.numbers("n2", 1) == [2]


def test_a_switch_resets_both_ends(wires: Wires) -> None:
    """Each is reported in its peer's name."""
    wires.send("n1", "n2", 5)
    assert wires.numbers("n2", 1) == [5]
    wires.switch.reset("n1")
    told = read_segment(wires.far["n1"].recv(2_000))
    assert told is not None
    assert (told.flags, told.sequence) == (RST | ACK, 5)


def test_a_closed_switch_holds_nothing_open(fabric: Fabric) -> None:
    """Neither a thread nor a descriptor of its own."""
    before = sorted(Path("/proc/self/fd").iterdir())
    switch = Switch({}, fabric)
    switch.close()
    switch.close()
    assert sorted(Path("/proc/self/fd").iterdir()) == before
