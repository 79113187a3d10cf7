"""A calm cluster with ten rows, and one reader who scans and pins them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raftstore.engine.reads import scans
from raftstore.ports.tables import ReadDone
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.reads import Count, Get, Scan, ScanAnswer
from raftstore.rows.sealing import seal, unseal
from raftstore.testing.sim_node import SimNode
from raftstore.types import Seq
from tests.unit.engine.engine_world import ask, calm_cluster, publish, run

ROWS = 10


class World:
    """A calm cluster, a table of ten rows that all say which write they are of, and one reader."""

    def __init__(self) -> None:
        self.cluster, self.channel = calm_cluster()
        self.node: SimNode = self.cluster.leaders()[self.channel]
        self._writes = 0
        self.write()

    def write(self) -> None:
        """One record that writes every row."""
        self._writes += 1
        value = b"%d" % self._writes
        rows = [(b"%02d" % number, seal(b"%02d" % number, value)) for number in range(ROWS)]
        leader = self.cluster.leaders()[self.channel]
        message = publish(
            self.cluster, leader, self.channel, self._writes, encode_rows(rows), rows=ROWS
        )
        ask(self.cluster, leader, message)
        run(self.cluster, 500)

    def scan(self, start: bytes = b"", limit: int = 4, **more: Any) -> Scan:
        level = more.pop("level", "any")
        return Scan(1, self.channel, start, b"", limit, level, None, Seq(0), 1_000, **more)

    def count(self, level: str = "any", **more: Any) -> Count:
        return Count(1, self.channel, b"", b"", level, None, Seq(0), 1_000, **more)

    def get(self, keys: tuple[bytes, ...], **more: Any) -> Get:
        return Get(1, self.channel, keys, "any", None, Seq(0), 1_000, **more)

    def ask(self, *messages: Message, ms: float = 100) -> Any:
        """Send the messages to the node; return its answers, or the only one."""
        answers = ask(self.cluster, self.node, *messages)
        run(self.cluster, ms)
        return answers[0] if len(messages) == 1 and answers else answers

    def pin(self) -> int:
        """Open a pin with a first page."""
        answer = self.ask(self.scan(keep=True))
        assert isinstance(answer, ScanAnswer)
        assert answer.more
        assert answer.pin
        return answer.pin

    def hold_reads(self) -> list[Callable[[], ReadDone]]:
        """From now on the other thread does nothing; what it is asked for comes into the list."""
        held: list[Callable[[], ReadDone]] = []
        self.node.tables.start_read = held.append  # type: ignore[method-assign]
        return held

    def finish(self, held: list[Callable[[], ReadDone]]) -> None:
        """The other thread does what it was asked for."""
        del self.node.tables.start_read
        assert self.node.runner is not None
        for read in held:
            self.node.runner.on_read(read(), self.node.clock.now_ms())
        run(self.cluster, 100)

    @property
    def scans(self) -> scans.Scans:
        assert self.node.runner is not None
        return self.node.runner.reader.scans


def values(answer: Any) -> set[bytes]:
    """The distinct values of a page."""
    assert isinstance(answer, ScanAnswer)
    return {unseal(key, value) for key, value, _ in answer.rows if value is not None}


def code(answer: Any) -> str:
    """The code of a refusal."""
    assert isinstance(answer, Failed)
    return answer.code
