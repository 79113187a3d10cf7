"""One turn of a node: what one wake-up of the loop brought, and the order of what follows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

from raftstore.node.turns import Turns

ORDER = ["begin_turn", "hold_frames", "end_turn", "flush_frames", "turned", "timer", "kick"]
"""What a turn does. Frames leave before the log thread is woken, which takes the interpreter."""


class World:
    """Notes what a turn does, in place of everything that a turn drives."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.due = 1 << 60
        self.kicked, self.asked = asyncio.Event(), asyncio.Event()

    def kick(self) -> None:
        """The log thread is woken."""
        self.seen.append("kick")
        self.kicked.set()

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Calls into engine, network and log."""
        return lambda *_: self.seen.append(name)

    def next_deadline_ms(self) -> int:
        """Of the engine."""
        self.seen.append("timer")
        self.asked.set()
        return self.due

    def turns(self) -> Turns:
        """Turns of this world, which are not due to change heartbeats."""
        turns = Turns(
            cast(Any, self),
            cast(Any, self),
            cast(Any, self),
            endpoints={},
            queued_bytes=lambda: 0,
            queued_bytes_max=1,
            on_turn=lambda _: self.seen.append("turned"),
        )
        turns._content_due = 1 << 60
        return turns


def play(scene: Callable[[World, Turns], Awaitable[None]]) -> None:
    """Run a scene."""

    async def run() -> None:
        world = World()
        turns = world.turns()
        await scene(world, turns)
        turns.close()

    asyncio.run(run())


def test_calls_of_one_wake_up_are_one_turn_that_wakes_the_log_last() -> None:
    """Two sockets were readable: both are heard before anything leaves or is written."""

    async def scene(world: World, turns: Turns) -> None:
        loop = asyncio.get_running_loop()
        for name in ("first", "second"):
            loop.call_soon(turns.begin)
            loop.call_soon(world.seen.append, name)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert world.seen == [*ORDER[:2], "first", "second", *ORDER[2:]]

    play(scene)


def test_turn_that_was_ended_at_once_ends_once() -> None:
    """Acknowledgements do not wait for what else the loop has found."""

    async def scene(world: World, turns: Turns) -> None:
        turns.begin()
        turns.end()
        assert world.seen == ORDER
        turns.end()
        await asyncio.sleep(0)
        assert world.seen == ORDER
        turns.begin()
        await asyncio.sleep(0)
        assert world.seen == [*ORDER, *ORDER]

    play(scene)


def test_timer_is_a_turn_and_is_armed_once_more_only_when_it_must_fire_earlier() -> None:
    """A deadline that moved back costs nothing: the timer looks then and is armed again."""

    async def scene(world: World, turns: Turns) -> None:
        turns.begin()
        turns.end()
        armed = turns._timer
        turns.begin()
        turns.end()
        assert turns._timer is armed
        world.due = 0
        turns.begin()
        turns.end()
        assert turns._timer is not armed
        world.seen.clear()
        world.kicked.clear()
        await world.kicked.wait()
        assert world.seen == ["timer", *ORDER[:2], "on_timer", *ORDER[2:]]
        armed = turns._timer
        world.due = 1 << 60
        world.seen.clear()
        world.asked.clear()
        await world.asked.wait()
        assert turns._timer is not armed
        assert world.seen == ["timer", "timer"], "nothing was due: no turn, only another timer"

    play(scene)


def test_network_is_told_who_left_although_no_address_changed_with_it() -> None:
    """M27: one that joined and left while this node was away is no endpoint here at any time; when
    it dials it has to be refused as retired, and stop."""
    told: list[tuple[object, object]] = []
    catalog = SimpleNamespace(retired={})
    controller = SimpleNamespace(reachable=lambda: {"n2": "host:2"}, catalog=catalog)

    async def scene(world: World, turns: Turns) -> None:
        network = SimpleNamespace(
            set_peers=lambda *of: told.append(of),
            set_heartbeats=lambda *_: None,
            hold_frames=lambda: None,
            flush_frames=lambda: None,
        )
        watch = SimpleNamespace(heartbeats=dict, expected_heartbeats=dict)
        runner = SimpleNamespace(
            controller=controller, watch=watch, channels=(), begin_turn=lambda: None,
            end_turn=lambda _: None, next_deadline_ms=lambda: 1 << 60,
        )  # fmt: skip
        turns._runner, turns._network = cast(Any, runner), cast(Any, network)
        for retired in ({}, {}, {"n4": None}, {"n4": None}):
            catalog.retired = retired
            turns._content_due = 0
            turns.begin()
            turns.end()

    play(scene)
    assert told == [({"n2": "host:2"}, {}), ({"n2": "host:2"}, {"n4": None})]
