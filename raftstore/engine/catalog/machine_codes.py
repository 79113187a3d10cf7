"""Which code the nodes have of a user's state machine: asked before a channel set is created, and
before a newer version is in force."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from msgspec import structs

from raftstore.engine.channel.outbox import Outbox
from raftstore.engine.deadlines import Deadlines
from raftstore.errors import Refusal, UnavailableError, UnknownMachineError
from raftstore.policy.levels import MACHINE_LEVEL
from raftstore.ports.machine import Machines
from raftstore.ports.tables import ReadDone
from raftstore.protocol.machines import AskMachine, MachineCode
from raftstore.protocol.message import Message
from raftstore.types import NodeId, node_name

ANSWER_WAIT_MS: Final = 3_000
"""A node that is up answers within this; it may have to import a module first."""

Codes = Mapping[NodeId, MachineCode]
OnCodes = Callable[[Codes, int], None]
"""Called with the answers there are, and the time."""


@dataclass(slots=True)
class _Question:
    machine: str
    waits_for: set[NodeId]
    done: OnCodes
    codes: dict[NodeId, MachineCode] = field(default_factory=dict)


class MachineCodes:
    """Asks other nodes, and answers them."""

    def __init__(
        self,
        me: NodeId,
        machines: Machines,
        outbox: Outbox,
        nodes_at_level: Callable[[int], Collection[NodeId]],
        is_up: Callable[[NodeId], bool],
        start: Callable[[Callable[[], ReadDone]], None],
    ) -> None:
        """``start``: ``TableStore.start_query``, by which code is imported on another thread."""
        self._me = me
        self._machines = machines
        self._outbox = outbox
        self._nodes_at_level = nodes_at_level
        self._is_up = is_up
        self._start = start
        self._open: dict[int, _Question] = {}
        self._asked = 0
        self.deadlines: Deadlines[int] = Deadlines()

    def ask(self, machine: str, nodes: Collection[NodeId], done: OnCodes, now_ms: int) -> None:
        """Ask these nodes, this one among them; ``done`` is called once, maybe at once. Nodes that
        are down are not waited for, and are not among the answers."""
        self._asked += 1
        able = self._nodes_at_level(MACHINE_LEVEL)
        waits_for = {node for node in nodes if node in able and self._is_up(node)}
        others = sorted(waits_for - {self._me})
        if self._me in nodes:
            waits_for.add(self._me)
        number = self._asked
        self._open[number] = _Question(machine, waits_for, done)
        self.deadlines.push(number, now_ms + ANSWER_WAIT_MS)
        for node in others:
            self._outbox.send_known(node, AskMachine(number, machine))
        if self._me in nodes:
            self.find(machine, partial(self._take, self._me, number), now_ms)
        elif not waits_for:
            self._settle(number, now_ms)

    def find(self, machine: str, then: Callable[[MachineCode, int], None], now_ms: int) -> None:
        """Call ``then`` with the code that this node has, and the time: at once if it is at hand,
        else when it was imported."""
        if self._machines.is_at_hand(machine):
            then(self._own(machine), now_ms)
            return

        def load() -> ReadDone:
            code = self._own(machine)
            return lambda at_ms: then(code, at_ms)

        self._start(load)

    def on_message(self, sender: NodeId, message: Message, now_ms: int) -> bool:
        """A question or an answer of another node; False: it is about something else."""
        if isinstance(message, AskMachine):
            if sender in self._nodes_at_level(MACHINE_LEVEL):
                self._tell(sender, message, now_ms)
            return True
        if not isinstance(message, MachineCode):
            return False
        self._take(sender, message.question, message, now_ms)
        return True

    def _tell(self, sender: NodeId, asked: AskMachine, now_ms: int) -> None:
        def tell(code: MachineCode, at_ms: int) -> None:
            del at_ms
            self._outbox.send_known(sender, structs.replace(code, question=asked.question))

        self.find(asked.machine, tell, now_ms)

    def _take(self, node: NodeId, number: int, code: MachineCode, now_ms: int) -> None:
        question = self._open.get(number)
        if question is not None and node in question.waits_for:
            question.waits_for.remove(node)
            question.codes[node] = code
            self._settle(number, now_ms)

    def on_timer(self, now_ms: int) -> None:
        """Go on without those that did not answer in time."""
        for number in tuple(self.deadlines.due(now_ms)):
            question = self._open.get(number)
            if question is not None:
                question.waits_for.clear()
                self._settle(number, now_ms)

    def _own(self, machine: str) -> MachineCode:
        try:
            source = self._machines.load(machine)
        except UnknownMachineError as error:
            return MachineCode(0, machine, 0, 0, str(error))
        return MachineCode(0, machine, source.version, source.oldest_version)

    def _settle(self, number: int, now_ms: int) -> None:
        question = self._open[number]
        if not question.waits_for:
            del self._open[number]
            self.deadlines.cancel(number)
            question.done(question.codes, now_ms)


def first_version(
    machine: str,
    codes: Codes,
    up: Collection[NodeId],
    restored: tuple[int, int] | None = None,
) -> int | Refusal:
    """The version with which a channel set begins that these nodes are to host; or why it cannot.

    ``up``: those that should have answered. ``restored``: the lowest and highest version that its
    partitions have, which all of them must be able to go on with.
    """
    for node, code in sorted(codes.items()):
        if code.problem:
            text = f"node {node_name(node)} cannot load the state machine: {code.problem}"
            return Refusal(UnknownMachineError, text)
    if silent := sorted(node_name(node) for node in up if node not in codes):
        text = f"{', '.join(silent)} did not say within {ANSWER_WAIT_MS} ms which code they have of"
        return Refusal(UnavailableError, f"{text} {machine}; retry")
    if not codes:
        text = f"none of the nodes that are to host a partition of {machine} is up"
        return Refusal(UnavailableError, f"{text}; start them, or retry when others are")
    if restored is not None:
        return _restored_version(machine, codes, restored)
    version = min(code.version for code in codes.values())
    for node, code in sorted(codes.items()):
        if code.oldest_version > version:
            held = ", ".join(f"{node_name(n)} has {c.version}" for n, c in sorted(codes.items()))
            text = (
                f"the nodes have versions of {machine} that do not go together ({held}, and "
                f"{node_name(node)} goes back to {code.oldest_version}); install the same code on "
                "all of them, and restart those that had another"
            )
            return Refusal(UnknownMachineError, text)
    return version


def _restored_version(machine: str, codes: Codes, restored: tuple[int, int]) -> int | Refusal:
    """The lowest of the versions that come back, if all nodes can go on with all of them."""
    lowest, highest = restored
    for node, code in sorted(codes.items()):
        text = f"node {node_name(node)} has version {code.version} of {machine}"
        if code.version < highest:
            text = f"{text}, and version {highest} is in force in the backup; install"
            return Refusal(UnknownMachineError, f"{text} code that has it, and restart the node")
        if code.oldest_version > lowest:
            text = f"{text}, which goes back to {code.oldest_version} and no further, and version"
            text = f"{text} {lowest} is in force in the backup; install code that still has it,"
            return Refusal(UnknownMachineError, f"{text} and restart the node")
    return lowest
