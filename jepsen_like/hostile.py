"""Hostile messages against running nodes: none of them may end one.

``make fuzz-wire`` (``python -m jepsen_like.hostile``) starts three node processes, sends them
messages of all kinds with values at every edge (``hostile_messages``), as a client or
with the name of a member, and then checks what an operator would: is every process alive, are
the replicas equal, does a write come back as it was?

Messages that are in their ranges and come from a member's name may do harm, for peers are not
authenticated: they name the tables ``hostile-*`` only, and the table ``bystander`` must not notice.
A message with a value outside its range must end its connection (a peer's) or be answered by an
error (a client's request). Exit code 7: a node ended, or one of the others was not so.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

from jepsen_like.equal_replicas import difference
from jepsen_like.hostile_messages import HostileMessages, Sent, Truth
from raftstore.client.blocking.client import Client
from raftstore.config import PROTOCOL_VERSION
from raftstore.errors import RaftstoreError
from raftstore.local_cluster import LocalCluster
from raftstore.protocol.admin import ClusterInfo, ClusterInfoAnswer
from raftstore.protocol.codec import decode, encode_frame_of
from raftstore.protocol.framing import ReceiveBuffer
from raftstore.protocol.message import Message
from raftstore.protocol.node import Goodbye, Hello
from raftstore.transport.handshake import Purpose
from raftstore.types import INT63_MAX, NodeId, node_name

NODES: Final = ("n1", "n2", "n3")
BYSTANDER: Final = "bystander"
HARMED: Final = ("hostile-one", "hostile-two")
_CLIENTS: Final = (Purpose.CLIENT, Purpose.CLIENT, Purpose.QUERY, Purpose.BIRTH)
_PEERS: Final = (Purpose.PEER, Purpose.PEER, Purpose.CONTROL)
PURPOSES: Final = {"clients": _CLIENTS, "peers": _PEERS, "both": (*_CLIENTS, *_PEERS)}
"""Who sends, and what each says that its connections are for."""
BURST: Final = 40
"""Messages of one connection."""
PING: Final = INT63_MAX
"""Request id of the question whose answer says that all before it was handled."""
ANSWER_S: Final = 10.0
SETTLE_S: Final = 60.0
"""How long the bystander may need to be well again."""
LEVEL_S: Final = 15.0
"""How long the replicas of a table may differ after its last write."""
VIOLATION: Final = 7


@dataclass(slots=True)
class Outcome:
    """The result of a run."""

    sent: int = 0
    wrong: int = 0
    """Of them with a value outside its range."""
    kinds: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    """Code of the Goodbye of each connection."""
    deaths: list[str] = field(default_factory=list)
    """Nodes that ended, with their last words."""
    faults: list[str] = field(default_factory=list)
    """What else was not as it must be."""

    def lines(self) -> list[str]:
        """For people."""
        ends = ", ".join(f"{count} {code}" for code, count in sorted(self.ended.items()))
        return [
            f"{self.sent} messages of {len(self.kinds)} kinds, {self.wrong} outside their ranges",
            f"connections ended: {ends or 'none'}",
            f"{len(self.deaths)} nodes ended, {len(self.faults)} other faults",
            *self.deaths,
            *self.faults,
        ]


def run_hostile(messages: int, source: str, seed: int, directory: Path) -> Outcome:
    """Send so many messages and judge the nodes; ``source`` is one of ``PURPOSES``."""
    outcome = Outcome()
    with LocalCluster(nodes=len(NODES), directory=directory) as cluster:
        with cluster.connect(timeout=20.0) as client:
            for table in (BYSTANDER, *HARMED):
                client.create_table(table, key="id", partitions=2, if_not_exists=True)
                client.table(table).put_many([{"id": number, "n": number} for number in range(50)])
            truth = _truth(cluster)
        drawn = HostileMessages(truth, f"{seed} {source}")
        attack = _Attack(cluster, drawn, truth, outcome)
        burst = 0
        while outcome.sent < messages:
            drawn.may_end_terms = outcome.sent > 0.9 * messages
            purposes = PURPOSES[source]
            attack.burst(
                NODES[burst % len(NODES)],
                purposes[burst // len(NODES) % len(purposes)],
                min(BURST, messages - outcome.sent),
            )
            burst += 1
            _revive(cluster, outcome)
        _judge(cluster, source, outcome)
    return outcome


class _Attack:
    """Connections to the nodes of one cluster, one after another."""

    def __init__(
        self, cluster: LocalCluster, drawn: HostileMessages, truth: Truth, outcome: Outcome
    ) -> None:
        self._endpoints = cluster.endpoints_by_node()
        self._drawn = drawn
        self._truth = truth
        self._outcome = outcome
        self._requests = 0

    def burst(self, node: str, purpose: Purpose, count: int) -> None:
        """Messages on one connection, and on the next one when it was ended for one of them."""
        left = count
        while left:
            self._drawn.claim()  # each connection has another sender
            batch: list[Sent] = []
            while len(batch) < left and not (batch and batch[-1].is_wrong):
                self._requests += 1
                batch.append(self._drawn.draw(purpose, self._requests))
            left -= len(batch)
            self._send(node, purpose, batch)

    def _send(self, node: str, purpose: Purpose, batch: list[Sent]) -> None:
        outcome = self._outcome
        outcome.sent += len(batch)
        outcome.wrong += sum(each.is_wrong for each in batch)
        outcome.kinds.update(each.kind for each in batch)
        host, _, port = self._endpoints[node].rpartition(":")
        is_client = purpose in (Purpose.CLIENT, Purpose.QUERY)
        frames = [encode_frame_of(self._hello(node, purpose)), *(each.frame for each in batch)]
        if is_client:
            frames.append(encode_frame_of(ClusterInfo(PING)))
        try:
            with socket.create_connection((host, int(port)), timeout=ANSWER_S) as connected:
                with suppress(OSError):  # it may have been ended for the first of them
                    connected.sendall(b"".join(frames))
                    if not is_client:
                        connected.shutdown(socket.SHUT_WR)
                goodbye, is_answered = _read(connected)
        except TimeoutError:
            outcome.faults.append(f"{node} neither answered nor ended: {batch[-1].kind}")
            return
        except OSError:
            goodbye, is_answered = None, False
        if goodbye is not None:
            outcome.ended[goodbye.code] += 1
        elif batch[-1].is_wrong:
            # A request may be refused alone, and then what is asked behind it is answered.
            outcome.ended["refused alone" if is_answered else "without a word"] += 1

    def _hello(self, node: str, purpose: Purpose) -> Hello:
        forged = purpose in (Purpose.PEER, Purpose.CONTROL)
        others = [each for each in self._truth.nodes if node_name(each) != node]
        # A term at the bound is the same for all who claim it: then one sender claims it (S13).
        at = 0 if self._drawn.may_end_terms else self._requests % len(others)
        sender = others[at] if forged else ""
        advertise = self._endpoints[node_name(NodeId(sender))] if forged else ""
        return Hello(
            protocol_version=PROTOCOL_VERSION,
            purpose=purpose,
            cluster_id=self._truth.cluster_id,
            node=sender,
            boot_id=b"hostile!" * 2,
            advertise=advertise,
            level=2**31 - 1 if forged else 0,
        )


def _read(connected: socket.socket) -> tuple[Goodbye | None, bool]:
    """Read until the end, or the answer to the last question: the Goodbye, and whether it came."""
    buffer = ReceiveBuffer()
    while True:
        data = connected.recv(65_536)
        if not data:
            return None, False
        for body in buffer.feed(data):
            message: Message = decode(body)
            if isinstance(message, Goodbye):
                return message, False
            if isinstance(message, ClusterInfoAnswer) and message.request_id == PING:
                return None, True


def _truth(cluster: LocalCluster) -> Truth:
    """The names in the cluster that any client may ask a node for."""
    host, _, port = cluster.endpoints[0].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=ANSWER_S) as connected:
        hello = Hello(PROTOCOL_VERSION, Purpose.CLIENT, b"", "", b"")
        connected.sendall(encode_frame_of(hello) + encode_frame_of(ClusterInfo(PING)))
        buffer = ReceiveBuffer()
        while True:
            for body in buffer.feed(connected.recv(65_536)):
                message: Message = decode(body)
                if isinstance(message, ClusterInfoAnswer):
                    tables = [table for table in message.tables if table.name in HARMED]
                    return Truth(
                        message.cluster_id,
                        tuple(node.node for node in message.nodes),
                        tuple(each.channel for table in tables for each in table.channels),
                        tuple(table.name for table in tables),
                    )


# --- what is asked of the nodes -------------------------------------------------------------------


def _revive(cluster: LocalCluster, outcome: Outcome) -> None:
    """Write down who ended, and start it again: all meet the rest of the messages."""
    for name, code in cluster.ended().items():
        outcome.deaths.append(f"{name} ended with exit code {code}: {_last_words(cluster, name)}")
        cluster.start(name)


def _last_words(cluster: LocalCluster, name: str) -> str:
    with suppress(OSError, ValueError, KeyError):
        noted = json.loads((cluster.directory / name / "last_panic.json").read_text("utf-8"))
        return str(noted["reason"])
    lines = cluster.log_file(name).read_text(errors="replace").splitlines()
    return lines[-1] if lines else "it said nothing"


def _judge(cluster: LocalCluster, source: str, outcome: Outcome) -> None:
    """All live; what was not named is as it was; from clients nothing was harmed at all."""
    tables = [BYSTANDER, *HARMED] if source == "clients" else [BYSTANDER]
    deadline = time.monotonic() + SETTLE_S
    waiting = list(tables)
    last = ""
    while waiting and time.monotonic() < deadline:
        try:
            with cluster.connect(timeout=10.0) as client:
                while waiting:
                    _check_table(client, waiting[0])
                    waiting.pop(0)
        except (RaftstoreError, AssertionError) as error:
            last = str(error)
            time.sleep(0.2)
    if waiting:
        outcome.faults.append(f"table {waiting[0]} is not well after {SETTLE_S:g} s: {last}")
    _revive(cluster, outcome)


def _check_table(client: Client, name: str) -> None:
    table = client.table(name)
    now = time.monotonic_ns()
    for number in range(8):  # some key of each partition
        table.put({"id": number, "n": now})
        assert table.get(number) == {"id": number, "n": now}, f"{name}/{number} was not read back"
    differs = difference(client, name, NODES, LEVEL_S)
    assert not differs, differs


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--messages", default=30_000, show_default=True, help="How many are sent.")
@click.option(
    "--from",
    "source",
    type=click.Choice(sorted(PURPOSES)),
    default="both",
    show_default=True,
    help="The sender's Hello: of a client, or of a peer with a member's name.",
)
@click.option("--seed", default=1, show_default=True, help="The same seed sends the same.")
@click.option("--directory", type=click.Path(path_type=Path), help="Data and logs; kept.")
def main(messages: int, source: str, seed: int, directory: Path | None) -> None:
    """Send hostile messages to three node processes: none of them may end one."""
    with ExitStack() as stack:
        where = directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        outcome = run_hostile(messages, source, seed, where / "cluster")
    for line in outcome.lines():
        click.echo(line)
    sys.exit(VIOLATION if outcome.deaths or outcome.faults else 0)


if __name__ == "__main__":
    main()
