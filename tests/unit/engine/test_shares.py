"""Counting what clients make a node hold: nobody keeps the others out, nothing is counted twice."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from raftstore.engine.deadlines import NEVER_MS
from raftstore.engine.reads.position_waits import PositionWaits
from raftstore.engine.shares import Shares, Waits
from raftstore.types import ChannelId

A, B = ChannelId(b"a" * 18), ChannelId(b"b" * 18)


def fill(shares: Shares[int], client: int, limit: int) -> int:
    """Take as much as the client gets."""
    count = 0
    while shares.refusal(client, limit) is None:
        shares.take(client, count)
        count += 1
    return count


def test_one_client_alone_holds_as_many_as_the_limit_says() -> None:
    """A single client may hold as many as the setting says, and no more."""
    shares: Shares[int] = Shares("waiting reads", "read.waiting_reads_max")
    assert fill(shares, 1, 100) == 100
    refusal = shares.refusal(1, 100)
    assert refusal is not None
    assert "this client holds 100 waiting reads and wants 1 more" in refusal
    assert "the limit of one client is 100 (read.waiting_reads_max)" in refusal


class Holders:
    """Shares whose largest holder gives up its newest thing when others come."""

    def __init__(self) -> None:
        self.given_up: list[tuple[int, int]] = []
        self.shares: Shares[int] = Shares("waiting reads", "read.waiting_reads_max", self._give_up)

    def _give_up(self, client: int, item: int) -> None:
        self.given_up.append((client, item))
        self.shares.give(client, item)


def test_more_connections_give_nobody_more_than_an_equal_part() -> None:
    """Given a full share, a new client gets as much as each earlier one, at the cost of the largest
    holder.
    """
    holders = Holders()
    shares = holders.shares
    assert fill(shares, 1, 100) == 100
    assert fill(shares, 2, 100) == 100
    assert holders.given_up == []
    for client in range(3, 11):
        fill(shares, client, 100)
    held = [shares.amount_of(client) for client in range(1, 11)]
    assert shares.total == sum(held) == 200
    assert max(held) - min(held) <= 1
    assert holders.given_up[0] == (1, 99)  # the newest of the largest
    assert fill(shares, 99, 100) >= 18
    refusal = shares.refusal(99, 100)
    assert refusal is not None
    assert "others hold 182, and the limit of all clients together is 200" in refusal


def test_large_things_take_from_the_largest_until_there_is_room() -> None:
    """Bytes count, not things; one who would be the largest itself takes from nobody."""
    holders = Holders()
    for number in range(10):
        holders.shares.take(1, number, 10)
        holders.shares.take(2, number, 10)
    assert holders.shares.refusal(3, 100, 35) is None
    assert sorted(holders.given_up) == [(1, 8), (1, 9), (2, 8), (2, 9)]
    holders.shares.take(3, 0, 35)
    assert holders.shares.refusal(3, 100, 60) is not None
    assert holders.shares.total == 195


def test_holder_that_lets_nothing_go_is_asked_once() -> None:
    """A bound that cannot be kept refuses; it does not ask for ever."""
    asked: list[tuple[int, int]] = []
    shares: Shares[int] = Shares("reads", "a.setting", lambda *of: asked.append(of))
    for client in (1, 2):
        fill(shares, client, 10)
    assert shares.refusal(3, 10, 2) is not None
    assert asked == [(1, 9)]


def test_client_that_holds_nothing_leaves_nothing() -> None:
    """Handles of connections are never used again: a count of 0 for each would grow for ever."""
    shares: Shares[int] = Shares("reads", "a.setting")
    for client in range(1, 6):
        shares.take(client, 7, 3)
        shares.give(client, 7, 2)
        assert shares.holds(client, 7)
        shares.give(client, 7)
    assert (shares._held, shares._amounts, shares.total) == ({}, {}, 0)


def test_who_holds_next_to_nothing_finds_a_place_where_nothing_can_be_taken_back() -> None:
    """One part of the total among as many clients as may be connected."""
    shares: Shares[int] = Shares("bytes of writes", "a.setting")
    for client in range(1, 40):
        fill(shares, client, 4_096)
    assert shares.total >= 8_192
    assert shares.refusal(99, 4_096, 4) is None
    shares.take(99, 0, 4)
    assert shares.refusal(99, 4_096) is not None


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 5), st.integers(0, 4), st.sampled_from("tgp")),
        max_size=60,
    )
)
def test_what_is_counted_is_the_sum_of_what_is_held(
    steps: list[tuple[int, int, int, str]],
) -> None:
    """Given any series of takes and gives, whole or in parts, the counted amounts are the sums of
    the held items.
    """
    shares: Shares[int] = Shares("things", "a.setting")
    model: dict[tuple[int, int], int] = {}
    for client, item, amount, step in steps:
        if step == "t":
            shares.take(client, item, amount)
            model[client, item] = model.get((client, item), 0) + amount
        elif (client, item) in model:
            part = amount if step == "p" else None
            shares.give(client, item, part)
            model[client, item] -= min(model[client, item], amount) if step == "p" else 0
            if step == "g" or not model[client, item]:
                del model[client, item]
        assert shares.total == sum(model.values())
        for each in (1, 2, 3):
            assert shares.amount_of(each) == sum(v for (c, _), v in model.items() if c == each)
            assert set(shares.of(each)) == {i for c, i in model if c == each}


def test_waits_end_at_their_deadline_with_an_answer_or_with_their_client() -> None:
    """Three ways out, each of which gives the place back."""
    waits: Waits[str] = Waits(Shares("things", "a.setting"))
    waits.add(1, 1, "answered", 50)
    waits.add(1, 2, "late", 20)
    waits.add(2, 3, "gone", 30)
    assert waits.deadlines.next_ms == 20
    assert [waits.pop(token) for token in waits.due(20)] == ["late"]
    assert waits.pop_all_of(2) == [(3, "gone")]
    assert waits.pop(1) == "answered"
    assert waits.pop(1) is None
    assert (len(waits), waits.shares.total, waits.deadlines.next_ms) == (0, 0, NEVER_MS)


def test_deadlines_of_what_is_answered_do_not_pile_up() -> None:
    """A fast client with a long patience must not grow a heap until its deadlines come."""
    waits: Waits[int] = Waits(Shares("things", "a.setting"))
    for token in range(10_000):
        waits.add(1, token, token, 10**12)
        waits.pop(token)
    assert len(waits.deadlines._heap) < 200


def test_positions_are_taken_in_any_order_and_once() -> None:
    """Reached, dropped, or put off: by channel."""
    waits = PositionWaits()
    waits.add(A, 5, 1)
    waits.add(A, 9, 2)
    waits.add(B, 1, 3)
    waits.add(A, 5, 4)
    waits.drop(4)
    waits.add(A, 7, 1)  # a later one now
    assert waits.take_reached(A, 6) == []
    assert waits.take_reached(A, 7) == [1]
    assert waits.take_reached(A, 7) == []
    assert (A in waits, B in waits, len(waits)) == (True, True, 2)
    waits.drop(2)
    assert A not in waits
    assert waits.take_reached(B, 10**18) == [3]
    assert len(waits) == 0


def test_dropped_positions_do_not_pile_up() -> None:
    """Dropped waits are removed from the heap before their position comes."""
    waits = PositionWaits()
    waits.add(A, 10, 0)
    for token in range(1, 10_000):
        waits.add(A, 2**60, token)
        waits.drop(token)
    assert len(waits._heaps[A]) < 200


def test_deadlines_come_in_order_whatever_ended_before_them() -> None:
    """Those of what is over are taken out now and then; the first of the others stays the first."""
    draw = random.Random(7)
    waits: Waits[int] = Waits(Shares("things", "a.setting"))
    deadlines = draw.sample(range(10_000), 400)
    for token, deadline_ms in enumerate(deadlines):
        waits.add(1, token, token, deadline_ms)
    for token in draw.sample(range(400), 330):
        waits.pop(token)
    left = {token: deadlines[token] for token in waits}
    assert waits.deadlines.next_ms == min(left.values())
    assert list(waits.due(10_000)) == sorted(left, key=left.__getitem__)
