"""The heartbeats' own thread: on while the main loop is busy, off when it stands still (S1.8)."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from raftstore.config import HeartbeatSettings
from raftstore.protocol.node import Heartbeat, LeadershipRequest
from raftstore.protocol.replication import CaughtUp
from raftstore.transport.control import SIGNS_MAX
from raftstore.transport.dialer import Dialer
from raftstore.types import NodeId
from tests.integration.transport.networks import (
    BEATS,
    BOOT,
    PATIENCE_S,
    Node,
    cluster,
    id_of,
    note,
    now_ms,
    play,
)

REQUESTS = 300
BEATS_BETWEEN = 20


def test_heartbeats_carry_what_the_main_loop_gave_last() -> None:
    """Digest and reachability per peer, counted, with the boot id of the sender."""

    async def scene() -> None:
        async with cluster("n1", "n2") as (n1, n2):
            n1.network.set_heartbeats({n2.id: (b"digest", True)})

            def newest() -> Heartbeat | None:
                beats = n2.handler.of_kind(Heartbeat)
                return beats[-1][1] if beats else None  # type: ignore[return-value]

            await n2.handler.until(
                lambda: (beat := newest()) is not None and beat.leading_digest == b"digest"
            )
            beat = newest()
            assert beat is not None
            assert beat.heard_receiver
            assert (beat.boot_id, beat.sent_ms) == (b"boot", 1_700_000_000_000)
            counters = [each.counter for _, each in n2.handler.of_kind(Heartbeat)]  # type: ignore[attr-defined]
            assert counters == sorted(set(counters))

    play(scene)


@pytest.mark.slow
def test_heartbeats_go_on_while_the_main_loop_is_busy() -> None:
    """A long turn makes no node look dead: beats leave, and are stamped when they arrive."""

    async def scene() -> None:
        async with cluster("n1", "n2") as (n1, n2):
            await n2.handler.until(lambda: bool(n2.handler.of_kind(Heartbeat)))
            began = now_ms()
            while now_ms() < began + 300:
                pass  # both main loops stand still
            ended = now_ms()
            n1.network.send(n2.id, note(1))
            await n2.handler.until(lambda: bool(n2.handler.of_kind(CaughtUp)))
            meanwhile = [
                arrived
                for peer, message, arrived in n2.handler.messages
                if peer == n1.id and type(message) is Heartbeat and began < arrived < ended
            ]
            assert len(meanwhile) >= 5

    play(scene)


def test_heartbeats_are_told_before_everything_that_waits() -> None:
    """S1.8: behind the elections of a thousand channels they would count as missed."""

    async def scene() -> None:
        async with cluster("n1", "n2") as (n1, n2):
            await n2.handler.until(lambda: bool(n2.handler.of_kind(Heartbeat)))
            control = n2.network._control
            assert control is not None
            before = len(n2.handler.messages)
            for _ in range(REQUESTS):
                n1.network.send_control(n2.id, LeadershipRequest())
            end = now_ms() + 1000 * PATIENCE_S
            while len(control._news) + len(control._signs) < REQUESTS + BEATS_BETWEEN:
                assert now_ms() < end, "the other thread heard too little"
                threading.Event().wait(0.001)  # the main loop has no turn meanwhile
            beats = [
                message
                for _, args in control._signs.copy()
                for message in args
                if type(message) is Heartbeat
            ]
            assert beats
            await n2.handler.until(lambda: len(n2.handler.of_kind(LeadershipRequest)) == REQUESTS)
            told = [message for _, message, _ in n2.handler.messages[before:]]
            first = next(n for n, message in enumerate(told) if type(message) is LeadershipRequest)
            assert [beat for beat in beats if not any(beat is seen for seen in told[:first])] == []

    play(scene)


def test_heartbeats_that_wait_unread_are_told_before_anybody_is_heard_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """KLIP-30: what came while the control loop had no processor is read before its word that
    everything was."""
    sent: list[int] = []
    read: list[int] = []

    async def scene() -> None:
        async with cluster("n1", "n2") as (n1, n2):
            await n2.handler.until(lambda: bool(n2.handler.of_kind(Heartbeat)))
            theirs, control = n1.network._control, n2.network._control
            assert theirs is not None
            assert control is not None
            beat_once, wake = control._beat_once, control._wake

            def without_a_processor() -> None:
                monkeypatch.setattr(control, "_beat_once", beat_once)
                until, end = theirs._counter + BEATS_BETWEEN, now_ms() + 1000 * PATIENCE_S
                while theirs._counter < until and now_ms() < end:
                    threading.Event().wait(0.001)
                sent.extend((theirs._counter, now_ms()))

            def says() -> None:
                if sent and not read and (control._listened or (0,))[0] >= sent[1]:
                    waiting = [args[1] for _, args in control._signs.copy()]
                    told = [message for _, message, _ in n2.handler.messages]
                    beats = [beat for beat in told + waiting if isinstance(beat, Heartbeat)]
                    read.append(max(beat.counter for beat in beats))
                wake()

            monkeypatch.setattr(control, "_wake", says)
            monkeypatch.setattr(control, "_beat_once", without_a_processor)
            await n2.handler.until(lambda: bool(read))

    play(scene)
    assert read[0] >= sent[0] - 2  # the last ones may have been on their way


@pytest.mark.slow
def test_heartbeats_that_left_late_are_told_for_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """KLIP-30: a node that was late itself allows the others as long, for one window."""
    slept: list[int] = []

    async def scene() -> None:
        async with cluster("n1", heartbeat=replace(BEATS, window_ms=500)) as (n1,):
            control = n1.network._control
            assert control is not None
            beat_once = control._beat_once

            def without_a_processor() -> None:
                monkeypatch.setattr(control, "_beat_once", beat_once)
                control._loop.call_soon(threading.Event().wait, 0.2)
                slept.append(now_ms())

            monkeypatch.setattr(control, "_beat_once", without_a_processor)
            await n1.handler.until(
                lambda: (
                    bool(slept)
                    and n1.handler.listened[-1][0] > slept[0] + 500
                    and n1.handler.listened[-1][1] < 150
                )  # in the end it is forgotten
            )
            late = [(at - slept[0], late_ms) for at, late_ms in n1.handler.listened]
            assert max(late_ms for _, late_ms in late) >= 150
            assert all(late_ms >= 150 for after, late_ms in late if 250 <= after <= 500)

    play(scene)


@pytest.mark.slow
def test_heartbeats_stop_when_the_main_loop_stands_still() -> None:
    """A node that cannot work must not look alive; it does again after its next turn."""

    async def scene() -> None:
        stall = HeartbeatSettings(send_interval_ms=5, stall_limit_ms=100)
        async with cluster("n1", "n2", heartbeat=stall) as (n1, n2):
            n1.network.set_heartbeats({})
            began = now_ms()
            threading.Event().wait(0.5)  # the loop stands still, other threads do not
            ended = now_ms()
            n1.network.set_heartbeats({n2.id: (b"again", False)})
            await n2.handler.until(
                lambda: any(
                    beat.leading_digest == b"again"  # type: ignore[attr-defined]
                    for _, beat in n2.handler.of_kind(Heartbeat)
                )
            )
            arrivals = [
                arrived
                for peer, message, arrived in n2.handler.messages
                if peer == n1.id and type(message) is Heartbeat
            ]
            assert not [at for at in arrivals if began + 300 < at < ended]

    play(scene)


def test_heartbeats_that_say_nothing_new_cost_the_main_loop_no_turn_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P12: they are handed on with the next report of having listened, and what is news at once."""
    posted: list[object] = []

    async def scene() -> None:
        async with cluster("n1", "n2") as (n1, n2):
            control = n2.network._control
            assert control is not None
            post = control._post

            def noted(*what: object) -> None:
                posted.extend(what)
                post(*what)  # type: ignore[arg-type]

            def told(digest: bytes) -> list[Heartbeat]:
                beats = [beat for _, beat in n2.handler.of_kind(Heartbeat)]
                return [b for b in beats if isinstance(b, Heartbeat) and b.leading_digest == digest]

            monkeypatch.setattr(control, "_post", noted)
            n2.network.set_heartbeats({}, {n1.id: (BOOT, b"as ever", True)})
            n1.network.set_heartbeats({n2.id: (b"as ever", True)})
            await n2.handler.until(lambda: len(told(b"as ever")) >= BEATS_BETWEEN)
            n1.network.set_heartbeats({n2.id: (b"new", True)})
            await n2.handler.until(lambda: len(told(b"new")) >= BEATS_BETWEEN)
            assert not [beat for beat in told(b"as ever") if beat in posted]
            assert not [beat for beat in told(b"new") if beat not in posted]

    play(scene)


def test_heartbeats_from_before_a_loss_are_told_before_it() -> None:
    """S1.8: heartbeats that came before a loss are reported before it, or they would undo it."""

    async def scene() -> None:
        async with cluster("n1", "n2") as (n1, n2):
            control, order = n2.network._control, list[str]()
            assert control is not None
            n2.network.set_heartbeats({}, {n1.id: (BOOT, b"", False)})
            n2.handler.on_peer_lost = lambda *_, **__: order.append("lost")  # type: ignore[method-assign]
            control._signs.append((order.append, ("beat",)))
            n2.network._on_gone(n1.id)
            assert order == ["beat", "lost"]
            assert not control._expected

    play(scene)


def test_node_that_stands_still_drops_what_is_said_again() -> None:
    """A disk that stands still for an hour fills no memory; later words are heard as ever."""

    async def scene() -> None:
        n1, n2 = Node("n1"), Node("n2", heartbeat=replace(BEATS, stall_limit_ms=100))
        try:
            for node in (n1, n2):
                node.join({each.id: each.endpoint for each in (n1, n2)})
            await n2.handler.until(lambda: bool(n2.handler.of_kind(Heartbeat)))
            theirs, control = n1.network._control, n2.network._control
            assert theirs is not None
            assert control is not None
            end = now_ms() + 1000 * PATIENCE_S
            while not control._is_stalled(now_ms()):
                threading.Event().wait(0.001)  # the main loop has no turn meanwhile
            for _ in range(REQUESTS):
                n1.network.send_control(n2.id, LeadershipRequest())
            until = theirs._counter + 2  # it left behind the requests, on their connection
            while not any(
                isinstance(message, Heartbeat) and message.counter >= until
                for _, args in control._signs.copy()
                for message in args
            ):
                assert now_ms() < end, "the other thread heard too little"
                threading.Event().wait(0.001)
            assert not control._news

            def is_heard_again() -> bool:
                n2.network.set_heartbeats({})
                n1.network.send_control(n2.id, LeadershipRequest())
                return bool(n2.handler.of_kind(LeadershipRequest))

            await n2.handler.until(is_heard_again)
        finally:
            await n1.network.close()
            await n2.network.close()

    play(scene)


def test_node_that_stands_still_keeps_the_newest_signs_of_life() -> None:
    """Heartbeats go on to be stamped, but only as many wait as may still count."""

    async def scene() -> None:
        async with cluster("n1") as (n1,):
            control = n1.network._control
            assert control is not None
            for number in range(SIGNS_MAX + 5):
                control._lost(id_of(f"n{number}"), False)
            assert len(control._signs) == SIGNS_MAX
            await n1.handler.until(lambda: len(n1.handler.lost) >= SIGNS_MAX)
            assert n1.handler.lost[-1] == (id_of(f"n{SIGNS_MAX + 4}"), False)

    play(scene)


def test_error_in_the_control_thread_reaches_the_main_loop() -> None:
    """S0.4: heartbeats that ended in silence would leave a node that leads and looks dead."""

    async def scene() -> None:
        told: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: told.done() or told.set_result(context.get("exception"))
        )

        def broken_clock() -> int:
            raise RuntimeError("a bug")

        n1, n2 = Node("n1"), Node("n2")
        n1.network._wall_ms = broken_clock
        try:
            n1.join({n2.id: n2.endpoint})
            assert str(await told) == "a bug"
        finally:
            await n1.network.close()
            await n2.network.close()

    play(scene)


@pytest.mark.slow
def test_klip_18_one_heartbeat_per_peer_per_interval_also_to_dead_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """KLIP-18, KLIP-34: a beat is tried for every peer each time, whether anybody is there.

    Shows BLOG-12.
    """
    tried: list[tuple[str, NodeId]] = []
    send = Dialer.send

    def counted(dialer: Dialer, frame: bytes) -> bool:
        tried.append((dialer._identity.advertise, dialer.peer))
        return send(dialer, frame)

    async def scene() -> None:
        async with cluster("n1", "n2", "n3") as (n1, n2, n3):
            await n3.network.close()
            await n1.handler.until(lambda: (n3.id, True) in n1.handler.lost)
            monkeypatch.setattr(Dialer, "send", counted)
            # What n2 has heard may have been sent before; what n1 sends counts.
            await n2.handler.until(lambda: tried.count((n1.endpoint, n2.id)) >= 6)
            monkeypatch.undo()
            to = [peer for sender, peer in tried if sender == n1.endpoint]
            assert to.count(n3.id) >= 5
            assert abs(to.count(n2.id) - to.count(n3.id)) <= 1

    play(scene)
