"""A model of a channel whose members change: votes, logs, commits, reads, bases, orders, deletions.

What decides is the product's: the next configuration (``core.membership``), majorities and match
(``core.quorum``), which configuration counts in a log and behind a base (``core.configs``), which
replica a row of the catalog has a node host, and when it may be deleted (``ReplicaEntry``,
``may_be_deleted``). The model moves the rest, one step at a time, in every order: elections with
the least votes that win, copies of any part of a leader's log, commits, orders and cancels,
reports, nodes that read the catalog late or never, replicas that are opened, deleted and opened
anew under another number, logs that are trimmed.

Left out because what is here allows more: pre-votes and stickiness (anybody stands at any time),
waits for learners and live voters (a step is taken at once), lost and late messages (a copy is made
later, or never), a hand-over (an election), metadata without its payload (a record that is not held
yet). A vote is given when the candidate wins: what a voter refused before that it was not sent.

What must hold in every state:

* one leader in a term; who wins has all that is committed, nobody is made to cut any of it;
* a leader that a majority still confirms knows all that is committed, so it answers reads rightly;
* every configuration may follow the one before it;
* of every ``probe_every``-th state: without further orders and faults somebody wins, and the open
  order ends, with all replicas where the log has them.

``FAULTS`` are rules taken out, one at a time. ``python -m tests.model.members`` searches further
than the tests do.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import NamedTuple

import msgspec

from raftstore.core.configs import ConfigEntry, ConfigStack, encode_config
from raftstore.core.membership import MemberView, Situation, is_legal, next_step
from raftstore.core.quorum import counted, has_quorum, majority, quorum_seq
from raftstore.engine.catalog.hosting import may_be_deleted
from raftstore.protocol.records import Record
from raftstore.state_machines.catalog_replicas import ReplicaEntry, ReplicaOrder
from raftstore.types import (
    ChangeTarget,
    ChannelConfig,
    Guid,
    NodeId,
    RecordKind,
    ReplicaId,
    ReplicaNumber,
    Seq,
    Term,
    TimestampMs,
)

FAULTS = {
    "one majority": "while two voter sets are in force one of them decides",
    "not joint": "voters are replaced without a time in which both sets decide",
    "committed elects": "votes are counted by the newest configuration known to be committed",
    "learners count": "who gets the history counts like a voter",
    "old terms commit": "a record of an older term commits by being held",
    "two at once": "the next configuration does not wait for the commit of the one before",
    "numbers ignored": "a second life of a replica counts as the first one",
    "base without members": "a base does not say which configuration counts",
    "deleted by the order": "a replica goes as soon as an order does not name it",
    "stale orders": "a leader carries out what its copy of the catalog says, however old that is",
    "reads unconfirmed": "a leader answers without asking anybody",
}


class Scenario(NamedTuple):
    """Orders that are given one after the other, and bounds of the world."""

    founders: str
    orders: tuple[str, ...]
    """The voters of each, one letter a node."""
    terms_max: int = 3
    cancels: int = 0
    trims: int = 0
    is_led: bool = False
    """The first founder leads, everybody has its records and has read the first order."""
    script: tuple[str, ...] = ()
    """Moves from there to where the search begins."""


SCENARIOS = {
    "second life": Scenario("ab", ("a", "ab"), terms_max=3),
    "alone": Scenario("a", ("ab", "b"), terms_max=3),
    "replaced": Scenario("ab", ("ac",), terms_max=3, cancels=1),
    "replaced of three": Scenario("abc", ("abd",), terms_max=3, is_led=True),
    "elections": Scenario("abc", (), terms_max=5, is_led=True),
    "gone and back": Scenario("abc", ("ab", "abc"), terms_max=4, cancels=1, is_led=True),
    "late to leave": Scenario(
        "abc",
        ("ab", "abc"),
        terms_max=3,
        is_led=True,
        # c has not heard that it was removed, and the order that adds it again is given.
        script=(
            "a appends abc+ab/",
            "a gives b 2",
            "a commits",
            "a appends ab/.",
            "a gives b 3",
            "a commits",
            "a reports",
            "order abc",
            "a reads",
        ),
    ),
    "trimmed": Scenario("ab", ("ac",), terms_max=2, trims=1),
    "and back": Scenario("ab", ("ac", "ab"), terms_max=2),
}
STATES_MAX = 1_500_000
"""Where a search of the command line ends: about 4 GB."""
RARE = 0.1
"""How likely an election is in a random way, beside another move: terms are few."""


class Entry(NamedTuple):
    """A record: a term's start, or a configuration."""

    term: int
    config: int = 0
    """Which of ``Model.configs``; 0: none, it is the start of a term."""


class Replica(NamedTuple):
    """A replica of the channel. Everything that it holds is durable at once."""

    number: int = 0
    term: int = 0
    log: tuple[Entry, ...] = ()
    base: int = 0
    """Records in front of it are there no more, only what stands for them."""
    commit: int = 0
    match: tuple[tuple[str, int, int], ...] | None = None
    """Of a leader: node, number and records that it holds. None: it does not lead."""

    @property
    def history(self) -> tuple[int, int]:
        """Term and number of the last record, which votes compare."""
        return (self.log[-1].term if self.log else 0, len(self.log))


class Node(NamedTuple):
    """A node and its copy of the catalog."""

    replica: Replica | None = None
    row: int = 0
    """Its copy of the channel's row in the catalog: which of ``Model.rows``."""
    removed: int = -1
    """The highest number of a replica that was deleted here."""
    last_term: int = 0
    """Term and vote outlive a replica."""


class State(NamedTuple):
    """All of it, with what an outside observer knows to be committed."""

    nodes: tuple[Node, ...]
    row: int = 0
    """The channel's row in the catalog: which of ``Model.rows``."""
    committed: tuple[Entry, ...] = ()
    leaders: tuple[int, ...] = ()
    """Terms in which somebody was elected."""
    ordered: int = 0
    cancels: int = 0
    trims: int = 0


class BrokenError(AssertionError):
    """A promise does not hold."""


class Found(NamedTuple):
    """The outcome of a search."""

    states: int
    violation: str
    path: tuple[str, ...] = ()
    is_whole: bool = True
    """Nothing was left out for its bound."""


class Model:
    """The moves of one scenario, with at most one rule taken out."""

    def __init__(self, scenario: Scenario, fault: str = "") -> None:
        assert not fault or fault in FAULTS
        self.scenario, self.fault = scenario, fault
        self.names = sorted({*scenario.founders, *"".join(scenario.orders)})
        self.creation = ChannelConfig((tuple(map(NodeId, scenario.founders)),))
        self.configs = [self.creation]
        self._numbers = {encode_config(self.creation): 0}
        self.rows = [ReplicaEntry(self.creation)]
        self._row_numbers = {msgspec.msgpack.encode(self.rows[0]): 0}
        self.stack_of = cache(self._stack_of)

    def initial(self) -> State:
        """The founders have empty logs, nobody else has anything."""
        nodes = tuple(
            Node(Replica() if name in self.scenario.founders else None) for name in self.names
        )
        state = State(nodes)
        state = self._led(state) if self.scenario.is_led else state
        for wanted in self.scenario.script:
            found = dict(self.moves(state))
            assert wanted in found, f"{wanted} is none of {', '.join(found)}"
            state = found[wanted]
        return state

    def _led(self, state: State) -> State:
        log = (Entry(1),)
        for at, node in enumerate(state.nodes):
            if node.replica is not None:
                state = self._with(state, at, Replica(0, 1, log, commit=1))
        leader = state.nodes[0].replica
        assert leader is not None
        match = tuple((name, 0, 1) for name in self.scenario.founders)
        state = self._with(state, 0, leader._replace(match=match))
        state = state._replace(committed=log, leaders=(1,))
        ordered = [after for _, after in self._operate(state)]
        state = ordered[0] if ordered else state
        for at, node in enumerate(state.nodes):
            state = self._with(state, at, node.replica, row=state.row)
        return state

    # --- what the product says --------------------------------------------------------------------

    def _interned(self, config: ChannelConfig) -> int:
        key = encode_config(config)
        if key not in self._numbers:
            self._numbers[key] = len(self.configs)
            self.configs.append(config)
        return self._numbers[key]

    def _row(self, row: ReplicaEntry) -> int:
        key = msgspec.msgpack.encode(row)
        if key not in self._row_numbers:
            self._row_numbers[key] = len(self.rows)
            self.rows.append(row)
        return self._row_numbers[key]

    def _stack_of(self, log: tuple[Entry, ...], base: int, commit: int) -> tuple[ConfigEntry, ...]:
        """The configurations that may count, oldest first, as a node with this log has them."""
        stack = ConfigStack(self.creation)
        for seq, entry in enumerate(log, start=1):
            if entry.config:
                stack.append(self._record(seq, entry))
            if seq == base:
                stack.commit(Seq(base))
                behind = ConfigStack(self.creation)
                if self.fault != "base without members":
                    behind.restore(stack.encode(), Seq(base))
                stack = behind
        stack.commit(Seq(commit))
        return stack.entries

    def _record(self, seq: int, entry: Entry) -> Record:
        payload = encode_config(self.configs[entry.config])
        kind = RecordKind.CONFIG
        guid = Guid(bytes(24))
        return Record(Term(entry.term), Seq(seq), 1, guid, TimestampMs(0), b"", kind, payload)

    def _counts(self, replica: Replica) -> ChannelConfig:
        entries = self.stack_of(replica.log, replica.base, replica.commit)
        return entries[-1].config

    def _has_quorum(self, config: ChannelConfig, replicas: list[ReplicaId]) -> bool:
        if self.fault == "numbers ignored":
            nodes = {node for node, _ in replicas}
        else:
            nodes = counted(config, replicas)
        if self.fault == "learners count":
            counting = [
                sum(node in nodes for node in {*group, *config.learners}) >= majority(len(group))
                for group in config.voter_sets
            ]
            return all(counting)
        if self.fault == "one majority":
            return any(has_quorum(ChannelConfig((each,)), nodes) for each in config.voter_sets)
        return has_quorum(config, nodes)

    # --- moves ------------------------------------------------------------------------------------

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        """Everything that may happen next."""
        yield from self._elections(state)
        for at, node in enumerate(state.nodes):
            if node.replica is not None and node.replica.match is not None:
                yield from self._lead(state, at)
                stopped = node.replica._replace(match=None)
                yield f"{self.names[at]} stops leading", self._with(state, at, stopped)
            yield from self._host(state, at)
        yield from self._operate(state)

    def _with(self, state: State, at: int, replica: Replica | None, **to: int) -> State:
        node = state.nodes[at]._replace(replica=replica, **to)
        return state._replace(nodes=(*state.nodes[:at], node, *state.nodes[at + 1 :]))

    def _elections(self, state: State, *, terms_max: int = 0) -> Iterator[tuple[str, State]]:
        for at, node in enumerate(state.nodes):
            one = node.replica
            if one is None or (not one.log and one.number):
                continue  # a second life without records has nobody's history
            highest = max(each.replica.term for each in state.nodes if each.replica is not None)
            for term in {one.term + 1, highest + 1}:
                if term > (terms_max or self.scenario.terms_max):
                    continue
                others = [
                    other
                    for other, each in enumerate(state.nodes)
                    if other != at
                    and each.replica is not None
                    and each.replica.term < term
                    and each.replica.history <= one.history
                ]
                for voters in self._least_votes(state, at, others):
                    yield self._won(state, at, voters, term)

    def _least_votes(self, state: State, at: int, others: list[int]) -> Iterator[tuple[int, ...]]:
        one = state.nodes[at].replica
        assert one is not None
        config = self._counts(one)
        if self.fault == "committed elects":
            config = self.stack_of(one.log, one.base, one.commit)[0].config
        enough: list[tuple[int, ...]] = []
        for size in range(len(others) + 1):
            for voters in combinations(others, size):
                if any(set(less) <= set(voters) for less in enough):
                    continue
                if self._has_quorum(config, [self._id(state, each) for each in (at, *voters)]):
                    enough.append(voters)
                    yield voters

    def _id(self, state: State, at: int) -> ReplicaId:
        one = state.nodes[at].replica
        assert one is not None
        return ReplicaId(NodeId(self.names[at]), ReplicaNumber(one.number))

    def _won(self, state: State, at: int, voters: tuple[int, ...], term: int) -> tuple[str, State]:
        one = state.nodes[at].replica
        assert one is not None
        if term in state.leaders:
            raise BrokenError(f"two leaders in term {term}")
        older = len([entry for entry in state.committed if entry.term < term])
        if one.log[:older] != state.committed[:older]:
            raise BrokenError(f"{self.names[at]} leads term {term} without committed records")
        for each in voters:
            voter = state.nodes[each].replica
            assert voter is not None
            state = self._with(state, each, voter._replace(term=term, match=None))
        log = (*one.log, Entry(term))
        held = ((self.names[at], one.number, len(log)),)
        leader = one._replace(term=term, log=log, match=held)
        state = self._with(state, at, leader)
        by = "".join(self.names[each] for each in voters)
        return f"{self.names[at]} wins {term} by {by}", state._replace(
            leaders=(*state.leaders, term)
        )

    def _lead(self, state: State, at: int) -> Iterator[tuple[str, State]]:
        one = state.nodes[at].replica
        assert one is not None
        assert one.match is not None
        name = self.names[at]
        for other in range(len(state.nodes)):
            if other != at:
                yield from self._copy(state, at, other)
        after = self._commit(state, at)
        if after is not state:
            yield f"{name} commits", after
        stepped = self._change(state, at)
        if stepped is not None:
            yield f"{name} appends {self._shown(stepped.log[-1])}", self._with(state, at, stepped)
        reported = self._reported(state, one)
        if reported is not None:
            yield f"{name} reports", reported
        if state.trims < self.scenario.trims and one.commit > one.base:
            trimmed = one._replace(base=one.commit)
            yield f"{name} trims", self._with(state, at, trimmed)._replace(trims=state.trims + 1)

    def _shown(self, entry: Entry) -> str:
        config = self.configs[entry.config]
        sets = "+".join("".join(group) for group in config.voter_sets)
        return f"{sets}/{''.join(config.learners)}{'.' if config.ended else ''}"

    def _copy(self, state: State, at: int, to: int) -> Iterator[tuple[str, State]]:
        """A part of the leader's log, or its base, and the acknowledgement."""
        one, other = state.nodes[at].replica, state.nodes[to].replica
        assert one is not None
        assert one.match is not None
        if other is None or other.term > one.term:
            return
        entries = self.stack_of(one.log, one.base, one.commit)
        me = self._id(state, to)
        named = any(each.config.has_member(me) for each in entries[-2:])
        if self.fault == "numbers ignored":
            named = any(me.node in each.config.members for each in entries[-2:])
        if not named:
            return
        same = 0
        while same < min(len(one.log), len(other.log)) and one.log[same] == other.log[same]:
            same += 1
        if max(same, other.base) < one.base:
            ends, base = [one.base], one.base
        else:
            ends, base = list(range(max(same, other.base) + 1, len(one.log) + 1)), other.base
        for end in ends:
            lost = other.log[same:]
            if lost and other.log[: len(state.committed)] == state.committed[: len(other.log)]:
                if same < len(state.committed) and len(other.log) > same:
                    raise BrokenError(f"{self.names[to]} cuts off what is committed")
            commit = max(other.commit, min(one.commit, end))
            taken = Replica(other.number, one.term, one.log[:end], base, commit)
            after = self._with(state, to, taken)
            rest = tuple(each for each in one.match if each[:2] != (me.node, me.number))
            match = tuple(sorted((*rest, (self.names[to], other.number, end))))
            after = self._with(after, at, one._replace(match=match))
            yield f"{self.names[at]} gives {self.names[to]} {end}", after

    def _commit(self, state: State, at: int) -> State:
        one = state.nodes[at].replica
        assert one is not None
        assert one.match is not None
        config = self._counts(one)
        held = {
            **{(node, number): end for node, number, end in one.match},
            (self.names[at], one.number): len(one.log),
        }
        seq = self._held_by_quorum(config, held)
        if seq <= one.commit:
            return state
        if one.log[seq - 1].term != one.term and self.fault != "old terms commit":
            return state
        new, known = one.log[:seq], state.committed
        if new[: len(known)] != known[: len(new)]:
            raise BrokenError(f"{self.names[at]} commits other records than were committed")
        committed = new if len(new) > len(known) else known
        return self._with(state, at, one._replace(commit=seq))._replace(committed=committed)

    def _held_by_quorum(self, config: ChannelConfig, held: dict[tuple[str, int], int]) -> int:
        if self.fault in ("", "committed elects", "not joint", "old terms commit"):
            # The product's own way: by number, then by majorities of every set.
            ids = {ReplicaId(NodeId(n), ReplicaNumber(k)): end for (n, k), end in held.items()}
            nodes = counted(config, ids)
            return quorum_seq(
                config,
                {
                    node: Seq(end)
                    for (node, number), end in ids.items()
                    if node in nodes and number == config.number_of(node)
                },
            )
        best = 0
        for seq in sorted({*held.values()}):
            having = [
                ReplicaId(NodeId(n), ReplicaNumber(k)) for (n, k), end in held.items() if end >= seq
            ]
            if self._has_quorum(config, having):
                best = seq
        return best

    def _change(self, state: State, at: int) -> Replica | None:
        """The next configuration in the leader's log; None: there is none now."""
        one, row = state.nodes[at].replica, self.rows[state.nodes[at].row]
        assert one is not None
        if not one.commit or one.log[one.commit - 1].term != one.term:
            return None  # M6
        entries = self.stack_of(one.log, one.base, one.commit)
        newest = entries[-1]
        is_committed = newest.seq <= one.commit or self.fault == "two at once"
        config = newest.config
        if self.fault == "stale orders":
            config = msgspec.structs.replace(config, change=0, ended=False)
        views = {NodeId(name): MemberView(is_live=True) for name in self.names}
        step = next_step(
            Situation(
                config,
                is_committed,
                newest.term == one.term,
                row.target,
                self._id(state, at),
                views,
            )
        )
        if step.config is None or step.config == newest.config:
            return None
        wanted = step.config
        if self.fault == "not joint" and wanted.is_joint:
            wanted = msgspec.structs.replace(wanted, voter_sets=wanted.voter_sets[1:])
        elif not self.fault and not is_legal(newest.config, wanted, is_committed=is_committed):
            raise BrokenError(f"{wanted} follows {newest.config}")
        if self.fault == "stale orders" and wanted.change < newest.config.change:
            raise BrokenError(f"order {wanted.change} is carried out behind a newer one")
        log = (*one.log, Entry(one.term, self._interned(wanted)))
        assert one.match is not None
        return one._replace(log=log)

    def _reported(self, state: State, one: Replica) -> State | None:
        """The catalog learns the newest committed configuration (M21)."""
        newest = self.stack_of(one.log, one.base, one.commit)[0]
        row = self.rows[state.row]
        if newest.seq <= row.config_seq:
            return None
        config, order = newest.config, row.order
        if order is not None and config.ended and config.change == order.target.change:
            order = None
        after = ReplicaEntry(config, newest.seq, newest.term, order)
        return state._replace(row=self._row(after))

    def _host(self, state: State, at: int) -> Iterator[tuple[str, State]]:
        """The steps of a node by its copy of the catalog, which it reads at any time."""
        node, name = state.nodes[at], self.names[at]
        if node.row != state.row:
            yield f"{name} reads", self._with(state, at, node.replica, row=state.row)
        row, one = self.rows[node.row], node.replica
        if one is None:
            number = row.hosts.get(NodeId(name))
            if number is not None and number > node.removed and number:
                opened = Replica(number, node.last_term)
                yield f"{name} opens {number}", self._with(state, at, opened)
        elif self._may_go(row, self._id(state, at), one):
            left = self._with(state, at, None, removed=one.number, last_term=one.term)
            yield f"{name} deletes {one.number}", left

    def _may_go(self, row: ReplicaEntry, me: ReplicaId, one: Replica) -> bool:
        if self.fault == "deleted by the order":
            target = row.target
            return target is not None and me.node not in (*target.voters, *target.learners)
        known = self.stack_of(one.log, one.base, one.commit)
        return may_be_deleted(row, me, known, version=one.number)  # no copy goes back here

    def _operate(self, state: State) -> Iterator[tuple[str, State]]:
        row, scenario = self.rows[state.row], self.scenario
        if row.order is None and state.ordered < len(scenario.orders):
            voters = tuple(map(NodeId, scenario.orders[state.ordered]))
            change = 10 * (state.ordered + 1)
            numbers = {
                node: number
                for node in voters
                if (
                    number := row.config.number_of(node)
                    if node in row.config.members
                    else ReplicaNumber(change)
                )
            }
            order = ReplicaOrder(ChangeTarget(change, voters, (), numbers), b"", "", TimestampMs(0))
            after = msgspec.structs.replace(row, order=order)
            yield (
                f"order {scenario.orders[state.ordered]}",
                state._replace(row=self._row(after), ordered=state.ordered + 1),
            )
        if row.order is not None and state.cancels < scenario.cancels:
            target = msgspec.structs.replace(row.order.target, cancelled=True)
            order = msgspec.structs.replace(row.order, target=target)
            after = msgspec.structs.replace(row, order=order)
            yield (
                "cancel",
                state._replace(row=self._row(after), cancels=state.cancels + 1),
            )

    # --- what must hold ---------------------------------------------------------------------------

    def check(self, state: State) -> None:
        """S7.1: the reads of every leader that would be confirmed now."""
        for at, node in enumerate(state.nodes):
            one = node.replica
            if one is None or one.match is None or not one.commit:
                continue
            if one.log[one.commit - 1].term != one.term:
                continue
            confirming = [
                self._id(state, other)
                for other, each in enumerate(state.nodes)
                if each.replica is not None and each.replica.term <= one.term
            ]
            is_confirmed = self._has_quorum(self._counts(one), confirming)
            if self.fault == "reads unconfirmed":
                is_confirmed = True
            if is_confirmed and one.commit < len(state.committed):
                raise BrokenError(f"{self.names[at]} answers a read without what is committed")

    def probe(self, state: State) -> None:
        """Without orders and faults, and with every message in time, the change ends."""
        for _ in range(60):
            if self._is_settled(state):
                return
            after = self._heal(state)
            if after == state:
                break
            state = after
        raise BrokenError(f"nothing goes on: {self.describe(state)}")

    def _heal(self, state: State) -> State:
        for at in range(len(state.nodes)):
            for name, after in self._host(state, at):
                del name
                return after
        leading = [
            (node.replica.term, at)
            for at, node in enumerate(state.nodes)
            if node.replica is not None and node.replica.match is not None
        ]
        highest = max((n.replica.term for n in state.nodes if n.replica is not None), default=0)
        if not leading or max(leading)[0] < highest:
            return self._elect(state, highest)
        at = max(leading)[1]
        for other in range(len(state.nodes)):
            copies = [after for _, after in self._copy(state, at, other)] if other != at else []
            if copies:
                state = copies[-1]
        state = self._commit(state, at)
        stepped = self._change(state, at)
        if stepped is not None:
            return self._with(state, at, stepped)
        one = state.nodes[at].replica
        assert one is not None
        # A leader that its own configuration does not name has done what it could (M26).
        if not self._counts(one).has_voter(self._id(state, at)) and one.commit == len(one.log):
            reported = self._reported(state, one)
            if reported is not None:
                return reported
            return self._with(state, at, one._replace(match=None))
        return self._reported(state, one) or state

    def _elect(self, state: State, highest: int) -> State:
        """Elect one with the most history; terms go as high as they must."""
        best: tuple[tuple[int, int], State] | None = None
        for at, node in enumerate(state.nodes):
            one = node.replica
            if one is None:
                continue
            raised = self._with(state, at, one._replace(term=highest, match=None))
            for _, after in self._elections(raised, terms_max=highest + 1):
                won = after.nodes[at].replica
                is_mine = won is not None and won.match is not None and won.term == highest + 1
                if is_mine and (best is None or one.history > best[0]):
                    best = (one.history, after)
        return state if best is None else best[1]

    def _is_settled(self, state: State) -> bool:
        row = self.rows[state.row]
        leads = [n.replica for n in state.nodes if n.replica is not None and n.replica.match]
        if row.order is not None or not leads:
            return False
        leader = max(leads, key=lambda each: each.term)
        config = self._counts(leader)
        hosted = {
            self._id(state, at) for at, node in enumerate(state.nodes) if node.replica is not None
        }
        wanted = {ReplicaId(node, config.number_of(node)) for node in config.members}
        return leader.commit == len(leader.log) and hosted == wanted and not config.is_joint

    def describe(self, state: State) -> str:
        """The state in a line, for a failed search."""
        parts = []
        for name, node in zip(self.names, state.nodes, strict=True):
            one = node.replica
            if one is None:
                parts.append(f"{name}: none (removed {node.removed})")
                continue
            log = " ".join(
                f"{each.term}{self._shown(each) if each.config else ''}" for each in one.log
            )
            leads = " leads" if one.match is not None else ""
            parts.append(f"{name}/{one.number}: term {one.term}{leads} [{log}] commit {one.commit}")
        order = self.rows[state.row].order
        return "; ".join([*parts, f"order {None if order is None else order.target}"])


def search(
    scenario: str, fault: str = "", *, states_max: int = 10**9, probe_every: int = 1
) -> Found:
    """Through all states, breadth first, to the first that must not be."""
    model = Model(SCENARIOS[scenario], fault)
    start = model.initial()
    came: dict[State, tuple[State, str] | None] = {start: None}
    waiting = deque([start])
    count = 0
    while waiting:
        state = waiting.popleft()
        count += 1
        if count > states_max:
            return Found(count - 1, "", is_whole=False)
        step = ""
        try:
            model.check(state)
            if count % probe_every == 0:
                model.probe(state)
            for step, after in model.moves(state):
                if after not in came:
                    came[after] = (state, step)
                    waiting.append(after)
        except BrokenError as error:
            return Found(count, str(error), _path(came, state, step))
    return Found(count, "")


def walk(scenario: str, seed: int, fault: str = "", *, steps_max: int = 80) -> Found:
    """One random way through the states, for what lies deeper than a search comes."""
    model, rng = Model(SCENARIOS[scenario], fault), random.Random(seed)
    state, path = model.initial(), list[str]()
    try:
        for _ in range(steps_max):
            model.check(state)
            after = list(model.moves(state))
            if not after:
                break
            weights = [RARE if " wins " in name or " stops " in name else 1.0 for name, _ in after]
            ((name, state),) = rng.choices(after, weights)
            path.append(name)
        model.probe(state)
    except BrokenError as error:
        return Found(len(path), str(error), tuple(path))
    return Found(len(path), "")


def _path(came: dict[State, tuple[State, str] | None], state: State, step: str) -> tuple[str, ...]:
    steps = [step]
    while (origin := came[state]) is not None:
        state, name = origin
        steps.append(name)
    return tuple(reversed(steps))


def main() -> int:
    """Search every scenario, or those named, to its end or bound; say what was found."""
    code = 0
    for name in sys.argv[1:] or SCENARIOS:
        found = search(name, probe_every=20, states_max=STATES_MAX)
        end = "all of them" if found.is_whole else "there are more"
        sys.stdout.write(f"{name}: {found.states:,} states, {end}; {found.violation or 'right'}\n")
        for step in found.path:
            sys.stdout.write(f"  {step}\n")
        code = code or 7 * bool(found.violation)
    return code


if __name__ == "__main__":
    sys.exit(main())
