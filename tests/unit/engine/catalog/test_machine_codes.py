"""Which code of users' machines the nodes have: asked, answered, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raftstore.engine.catalog.machine_codes import (
    ANSWER_WAIT_MS,
    Codes,
    MachineCodes,
    first_version,
)
from raftstore.engine.catalog.machine_steps import next_version
from raftstore.errors import Refusal, UnavailableError, UnknownMachineError
from raftstore.ports.machine import NoMachines
from raftstore.ports.tables import ReadDone
from raftstore.protocol.machines import AskMachine, MachineCode
from raftstore.protocol.message import Message
from raftstore.record_machine import MachineSource
from raftstore.types import NodeId
from tests.unit.state_machines.test_user_machine import Counter

N1, N2, N3 = (NodeId(f"n{number}@{number:032x}") for number in (1, 2, 3))
NOW = 1_000


class Here(NoMachines):
    """A node that has version 2 of everything."""

    def load(self, name: str) -> MachineSource:
        """Version 2."""
        return MachineSource(name, Counter, 2, 1)


class Bench:
    """The part alone, with what it sends."""

    def __init__(self, machines: Any = None, down: tuple[NodeId, ...] = ()) -> None:
        self.sent: list[tuple[NodeId, Message]] = []
        self.found: list[dict[NodeId, MachineCode]] = []
        self.elsewhere: list[Callable[[], ReadDone]] = []
        self.codes = MachineCodes(
            N1, machines or Here(), self, lambda _: (N2, N3), lambda node: node not in down,  # type: ignore[arg-type]
            self.elsewhere.append,
        )  # fmt: skip

    def send_known(self, to: NodeId, message: Message) -> None:
        """As the outbox."""
        self.sent.append((to, message))

    def ask(self) -> None:
        """Ask all three nodes."""
        self.codes.ask("m:M", (N1, N2, N3), lambda codes, _: self.found.append(dict(codes)), NOW)


def code(version: int, oldest: int = 1, problem: str = "") -> MachineCode:
    """An answer."""
    return MachineCode(1, "m:M", version, oldest, problem)


def test_all_that_were_asked_have_answered() -> None:
    """Then the answers are handed over, once."""
    bench = Bench()
    bench.ask()
    assert bench.sent == [(N2, AskMachine(1, "m:M")), (N3, AskMachine(1, "m:M"))]
    bench.codes.on_message(N2, code(2), NOW)
    bench.codes.on_message(N2, code(9), NOW)
    assert not bench.found
    bench.codes.on_message(N3, code(3), NOW)
    bench.codes.on_message(N3, code(3), NOW)
    assert [{n: c.version for n, c in found.items()} for found in bench.found] == [
        {N1: 2, N2: 2, N3: 3}
    ]
    assert len(bench.codes.deadlines) == 0


def test_nodes_that_are_silent_are_not_waited_for_for_ever() -> None:
    """Those that are down are not asked at all."""
    bench = Bench(down=(N3,))
    bench.ask()
    assert [to for to, _ in bench.sent] == [N2]
    bench.codes.on_timer(NOW + ANSWER_WAIT_MS - 1)
    assert not bench.found
    bench.codes.on_timer(NOW + ANSWER_WAIT_MS)
    assert [list(found) for found in bench.found] == [[N1]]


def test_code_is_imported_away_from_the_loop_of_the_node() -> None:
    """An import may take seconds, in which no heartbeat would leave."""

    class Far(Here):
        """Nothing is imported yet."""

        def is_at_hand(self, name: str) -> bool:
            """Never."""
            return False

    bench = Bench(Far())
    bench.ask()
    bench.codes.on_message(N2, AskMachine(7, "m:M"), NOW)
    assert [to for to, _ in bench.sent] == [N2, N3]
    bench.codes.on_message(N2, code(2), NOW)
    bench.codes.on_message(N3, code(2), NOW)
    assert not bench.found
    for load in bench.elsewhere:
        load()(NOW)
    assert [sorted(found) for found in bench.found] == [[N1, N2, N3]]
    assert bench.sent[2:] == [(N2, MachineCode(7, "m:M", 2, 1))]


def test_a_node_answers_with_what_it_has_or_why_it_has_not() -> None:
    """The text is that of the error, with its remedy."""
    bench, lacking = Bench(), Bench(NoMachines())
    assert bench.codes.on_message(N2, AskMachine(7, "m:M"), NOW)
    assert lacking.codes.on_message(N2, AskMachine(7, "m:M"), NOW)
    assert bench.sent == [(N2, MachineCode(7, "m:M", 2, 1))]
    ((_, answer),) = lacking.sent
    assert isinstance(answer, MachineCode)
    assert answer.problem == "this node was started without state machines, such as 'm:M'"


@pytest.mark.parametrize(
    ("codes", "error", "said"),
    [
        ({N1: code(2), N2: code(0, 0, "no module")}, UnknownMachineError, "node n2 cannot load"),
        ({N1: code(2)}, UnavailableError, "n2 did not say within 3000 ms which code"),
        ({N1: code(1), N2: code(3, 2)}, UnknownMachineError, "n1 has 1, n2 has 3, and n2 goes"),
    ],
)
def test_a_channel_set_is_refused_where_a_host_lacks_its_code(
    codes: Codes, error: type[Exception], said: str
) -> None:
    """The node is named, and what it lacks."""
    found = first_version("m:M", codes, (N1, N2))
    assert isinstance(found, Refusal)
    assert found.error is error
    assert said in found.text


def test_a_channel_set_whose_hosts_are_all_down_is_refused() -> None:
    """Placement does not ask which nodes are up: there may be nobody to answer."""
    found = first_version("m:M", {}, ())
    assert isinstance(found, Refusal)
    assert found.error is UnavailableError
    assert "none of the nodes that are to host a partition of m:M is up" in found.text


def test_a_channel_set_begins_with_the_version_that_all_hosts_have() -> None:
    """The newest that none of them lacks."""
    assert first_version("m:M", {N1: code(3, 1), N2: code(2)}, (N1, N2)) == 2


@pytest.mark.parametrize(
    ("codes", "version"),
    [
        ({N1: code(3), N2: code(2)}, 2),
        ({N1: code(3), N2: code(1)}, None),
        ({N1: code(3)}, None),
        ({N1: code(3), N2: code(0, 0, "gone")}, None),
        ({N1: code(3, 2), N2: code(3, 2)}, None),
    ],
)
def test_a_version_comes_into_force_when_every_host_has_it(
    codes: Codes, version: int | None
) -> None:
    """One that is away may have older code, and all still have to apply what is ahead of it."""
    assert next_version(1, [N1, N2], codes) == version


def test_a_state_comes_back_only_where_all_can_go_on_with_it() -> None:
    """From the lowest version in force in a backup to the highest; else node and version are
    named."""
    codes = {N1: code(3, 2), N2: code(4, 1)}
    assert first_version("m:M", codes, (N1, N2), (2, 3)) == 2
    found = first_version("m:M", codes, (N1, N2), (2, 4))
    assert isinstance(found, Refusal)
    assert found.error is UnknownMachineError
    assert "n1 has version 3 of m:M, and version 4 is in force in the backup" in found.text
    found = first_version("m:M", codes, (N1, N2), (1, 3))
    assert isinstance(found, Refusal)
    assert "goes back to 2 and no further, and version 1 is in force in the backup" in found.text
    assert isinstance(first_version("m:M", codes, (N1, N2, N3), (2, 3)), Refusal), "one is silent"
