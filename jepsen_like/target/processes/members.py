"""The operator of real nodes whose members faults change (S8): a thread that looks and asks."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from jepsen_like.checker.voters import VoterSets
from jepsen_like.target.base import FaultUnavailableError
from jepsen_like.target.member_goals import Drain, MemberGoals, MembersView, Order, Step
from jepsen_like.target.processes.operator import Operator
from raftstore.client.blocking.client import Client
from raftstore.client.replicas import ReplicaChange
from raftstore.errors import RaftstoreError

LOOK_S: Final = 0.3
"""How often the operator looks whether all is as it is wanted."""
CALL_S: Final = 3.0
JOIN_S: Final = 30.0
"""A node that has not joined within this is given another token."""
DRAINING: Final = "draining"
UNREACHED: Final = (RaftstoreError, OSError, TimeoutError)


class ProcessMembers:
    """Carries out what faults want of the members, from the first such fault on. Thread-safe.

    ``start_node``: a process of this name joins by this token. ``has_joined``: it is one of the
    nodes from now on. ``end_node``: it ends, and what it stored goes; False: not just now.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        nodes: int,
        start_node: Callable[[str, str], None],
        has_joined: Callable[[str], None],
        end_node: Callable[[str], bool],
    ) -> None:
        self._connect = connect
        self._start_node = start_node
        self._has_joined = has_joined
        self._end_node = end_node
        self._goals = MemberGoals(nodes, replicas=nodes)
        self._lock = threading.RLock()
        self._view: MembersView | None = None
        self._begun: dict[str, float] = {}
        """Joins that are under way, since when."""
        self._guests: dict[str, None] = {}
        self._done = threading.Event()
        self._looked = threading.Event()
        self.voters = VoterSets()
        """Who votes in each partition, since when, on the monotonic clock."""
        self._thread = threading.Thread(target=self._run, name="operator", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look and ask no more."""
        self._done.set()
        self._thread.join()

    # --- faults -----------------------------------------------------------------------------------

    def replicas(self) -> dict[str, tuple[str, ...]]:
        """Partition -> nodes that vote in it, where nobody is changing that."""
        self._looked.wait(CALL_S)
        with self._lock:
            return self._goals.free(self._view)

    def staying(self) -> tuple[str, ...]:
        """Nodes that may be given a replica."""
        self._looked.wait(CALL_S)
        with self._lock:
            return self._goals.staying(self._view)

    def move(self, channel: str, voters: Sequence[str]) -> None:
        """Order that these nodes vote, and no other."""
        with self._lock:
            self._goals.move(self._view, channel, voters)

    def restore(self, channel: str) -> None:
        """Order the replicas that were there before; FaultUnavailableError, after that, when what
        the fault ordered was never accepted."""
        with self._lock:
            was_taken = self._goals.restore(channel)
        if not was_taken:
            raise FaultUnavailableError(f"nobody took the order for the replicas of {channel}")

    def join(self) -> str:
        """Let a new node join; its name. It is one of the nodes once it has."""
        with self._lock:
            return self._goals.join(self._view)

    def remove(self, node: str) -> None:
        """Let a node leave; FaultUnavailableError, after that, when it has not even joined."""
        with self._lock:
            has_joined = self._goals.remove(node)
        if not has_joined:
            raise FaultUnavailableError(f"{node} did not come to join")

    def drain(self, node: str) -> None:
        """Order that the node gives its replicas to others."""
        with self._lock:
            self._goals.drain(node)

    def keep(self, node: str) -> None:
        """Take that back; FaultUnavailableError, after that, when it was never accepted."""
        with self._lock:
            was_taken = self._goals.keep(node)
        if not was_taken:
            raise FaultUnavailableError(f"nobody took the order to drain {node}")

    def may_end(self, node: str) -> bool:
        """Whether it is no member, or not for long: the cluster refuses it, and it ends by that."""
        with self._lock:
            members = () if self._view is None else self._view.draining
            is_guest = node in self._guests
            return is_guest and (node in self._goals.leaving or node not in members)

    def settle(self, seconds: float) -> str:
        """Wait until everything is as it was; why it is not, empty when it is."""
        self._goals.is_healing = True
        end = time.monotonic() + seconds
        while True:
            with self._lock:
                why = self._goals.why_open or self._why_guests()
            if not why or time.monotonic() > end:
                return why
            self._done.wait(LOOK_S)

    # --- the operator -----------------------------------------------------------------------------

    def _why_guests(self) -> str:
        gone = [name for name in self._guests if self._view and name not in self._view.draining]
        return f"{', '.join(gone)} have left, and are still there" if gone else ""

    def _run(self) -> None:
        with contextlib.ExitStack() as opened:
            operator: Operator | None = None
            while not self._done.wait(LOOK_S):
                try:
                    if operator is None:
                        operator = Operator(opened.enter_context(self._connect()), CALL_S)
                    self._look(operator)
                except UNREACHED:
                    continue  # nobody answers just now

    def _look(self, operator: Operator) -> None:
        found = operator.replicas()
        members = operator.members()
        with self._lock:
            self._view = MembersView(
                draining={each.name: each.state == DRAINING for each in members},
                voters={each.channel: each.voters for each in found if not each.change},
            )
            self._looked.set()
            self._note_voters(found)
            steps = self._goals.steps(self._view)
        for name in tuple(self._goals.joins):
            self._see_to_join(operator, name, is_member=operator.is_up(name))
        for step in steps:
            with contextlib.suppress(*UNREACHED):
                self._do(operator, step)
        for name in [name for name in self._guests if name not in self._view.draining]:
            if name not in self._goals.joins and self._end_node(name):
                del self._guests[name]

    def _do(self, operator: Operator, step: Step) -> None:
        if isinstance(step, Order):
            operator.order(step.about, step.voters)
        elif isinstance(step, Drain):
            operator.drain(step.about, drains=step.drains)
        else:
            operator.retire(step.about)
        with self._lock:
            self._goals.taken(step)

    def _see_to_join(self, operator: Operator, name: str, *, is_member: bool) -> None:
        """Begin it, see that it is over, or begin it again: a token may have come too late."""
        begun = self._begun.get(name)
        if is_member:
            del self._begun[name]
            self._has_joined(name)
            with self._lock:
                self._goals.joined(name)
        elif begun is None:
            token = operator.token()
            self._begun[name] = time.monotonic()
            self._guests[name] = None
            self._start_node(name, token)
        elif time.monotonic() > begun + JOIN_S and self._end_node(name):
            del self._begun[name]

    def _note_voters(self, found: Sequence[ReplicaChange]) -> None:
        """Every set of voters that the catalog has, or an open order names."""
        now = time.monotonic_ns()
        for each in found:
            table, _, partition = each.channel.rpartition("/")
            groups = [each.voters, *([each.ordered] if each.change else [])]
            self.voters.note((table, int(partition)), now, map(frozenset, groups))
