"""Workloads and checks for simulated worlds of the shipped machines and of three others."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import raftstore
from jepsen_like.workload.recipe_clients import (
    additions,
    campaigning,
    changing,
    locking,
    numbering,
    taking,
)
from raftstore import recipes
from raftstore.recipes.election import Resign
from raftstore.recipes.lock import Acquire
from raftstore.testing import Command, Operation, Query
from tests.machines.ledger import Ledger, PayIn, Transfer
from tests.machines.queue import Pop, Push, Queue
from tests.machines.unique_index import Claim, Leave, UniqueIndex


def tokens_grow(history: list[Operation]) -> None:
    """Each grant to another holder has a higher token than all before: that is what fences."""
    newest: dict[bytes | str, Any] = {}
    for grant in by_seq(history):
        if not isinstance(grant.asked.value, Acquire):  # type: ignore[union-attr]
            continue
        last = newest.get(grant.asked.key)
        if last is not None and last.holder != grant.result.holder:
            assert grant.result.token > last.token, f"{grant.result} came after {last}"
        newest[grant.asked.key] = grant.result


def one_leader_a_term(history: list[Operation]) -> None:
    """A term has one leader, and later terms are higher."""
    leaders: dict[int, str] = {}
    newest = 0
    for operation in by_seq(history):
        seen = operation.result
        assert seen.term >= newest, f"{seen} came after term {newest}"
        newest = seen.term
        if seen.leader:
            assert leaders.setdefault(seen.term, seen.leader) == seen.leader, seen


def leaderships_end_in_their_term(history: list[Operation]) -> None:
    """A Resign that was not refused left the term that it named, or the next one with a leader."""
    one_leader_a_term(history)
    for resign in by_seq(history):
        asked, seen = resign.asked.value, resign.result  # type: ignore[union-attr]
        if isinstance(asked, Resign) and asked.term:
            is_next = seen.term == asked.term + 1 and seen.leader
            assert seen.term == asked.term or is_next, f"{asked} ended another term: {seen}"


def rate_is_kept(history: list[Operation]) -> None:
    """Permits that flowed out are at most those that were there and that flowed back."""
    allowed = [each for each in by_seq(history) if each.result.is_allowed]
    took = sum(each.asked.value.permits for each in allowed)  # type: ignore[union-attr]
    if allowed:
        # Wall clocks of nodes differ by what they drift in a world.
        seconds = (allowed[-1].ended_ms - allowed[0].begun_ms) / 1_000 * 1.3 + 1  # type: ignore[operator]
        assert took <= 5 + 5 * seconds, f"{took} permits in {seconds:.1f} s"


def blocks_do_not_meet(history: list[Operation]) -> None:
    """No number is given out twice."""
    blocks = sorted((b.result for b in by_seq(history)), key=lambda block: block.first)
    for one, two in pairwise(blocks):
        assert one.first + one.count <= two.first, f"{one} and {two}"


def queueing(rng: random.Random) -> Command | Query:
    """Items with names of their own, and takers."""
    drawn = rng.random()
    if drawn < 0.5:
        return Command("q", Push(f"item {rng.randrange(10**9)}"))
    return Command("q", Pop()) if drawn < 0.9 else Query("q")


def first_in_first_out(history: list[Operation]) -> None:
    """Items come out in the order in which they went in, and each once."""
    done = by_seq(history)
    pushed = [o.result for o in done if isinstance(o.asked.value, Push)]  # type: ignore[union-attr]
    popped = [o.result for o in done if isinstance(o.asked.value, Pop)]  # type: ignore[union-attr]
    assert len(set(popped)) == len(popped), "an item came out twice"
    known = [item for item in popped if item in set(pushed)]
    in_order = [item for item in pushed if item in set(known)]
    assert known == in_order, "items overtook each other"


def paying(rng: random.Random) -> Command | Query:
    """Money that comes in, and moves between three accounts."""
    drawn = rng.random()
    if drawn < 0.2:
        return Command("book", PayIn(rng.choice("abc"), 100))
    if drawn < 0.3:
        return Query("book")
    return Command("book", Transfer(rng.choice("abc"), rng.choice("abc"), rng.randint(1, 60)))


def no_money_is_made(history: list[Operation]) -> None:
    """The book never has more than all that may have been paid in."""
    ins = [o for o in history if o.is_command and isinstance(o.asked.value, PayIn)]  # type: ignore[union-attr]
    possible = sum(o.asked.value.amount for o in ins if o.outcome != "refused")  # type: ignore[union-attr]
    for operation in history:
        if not operation.is_command and operation.outcome == "ok":
            assert operation.result <= possible, f"{operation.result} of {possible} are there"


def claiming(rng: random.Random) -> Command | Query:
    """Few users and few addresses, so that they meet."""
    drawn, user, address = rng.random(), rng.choice("uvw"), rng.choice("abcd")
    if drawn < 0.6:
        return Command("index", Claim(user, address))
    return Command("index", Leave(user)) if drawn < 0.75 else Query("index", address)


def by_seq(history: list[Operation]) -> list[Operation]:
    """Commands that were applied, in the order of the log."""
    done = [each for each in history if each.is_command and each.outcome == "ok"]
    return sorted(done, key=lambda operation: operation.seq)


class World(NamedTuple):
    """How a machine is simulated."""

    machine: type[raftstore.StateMachine]
    workload: Callable[..., Any]
    check: Callable[[list[Operation]], None] | None = None


WORLDS = {
    "counter": World(recipes.Counter, additions),
    "lock": World(recipes.Lock, locking, tokens_grow),
    "election": World(recipes.Election, campaigning, leaderships_end_in_their_term),
    "rate_limiter": World(recipes.RateLimiter, taking, rate_is_kept),
    "id_blocks": World(recipes.IdBlocks, numbering, blocks_do_not_meet),
    "documents": World(recipes.Documents, changing),
    "queue": World(Queue, queueing, first_in_first_out),
    "ledger": World(Ledger, paying, no_money_is_made),
    "unique_index": World(UniqueIndex, claiming),
}
