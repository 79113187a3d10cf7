"""How the parts of a node are put together: each holds the node's own others, under their names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from raftstore.config import LEVEL, NodeSettings
from raftstore.engine.channel.channel_parts import ChannelNotices
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.node_ports import NodeIdentity, NodePorts
from raftstore.engine.node_runner import NodeRunner
from raftstore.types import NodeId

ME, ONE, TWO = (NodeId(f"n{number}@00") for number in (1, 2, 3))
BOOT = bytes(range(16))


class Port:
    """A port that nothing is asked of yet, but a fresh id."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        called = lambda *_: bytes(16)  # noqa: E731 - kept, so that it is the same each time
        self.__dict__[name] = called
        return called


def node() -> NodeRunner:
    """One of three, with ports that do nothing."""
    settings = NodeSettings(name="n1", data_dir=".")
    storage = replace(settings.storage, unsynced_bytes_max=11_000_000)
    identity = NodeIdentity(ME, b"c" * 16, BOOT, ((ME, "a:1"), (ONE, "b:1"), (TWO, "c:1")))
    port: Any = Port()
    ports = NodePorts(
        log=port, tables=Port(), transport=Port(), ids=Port(), elector_factory=Port(),  # type: ignore[arg-type]
        wall_ms=lambda: 77, on_halt=port.on_halt, on_event=port.on_event, stall=port.stall,
    )  # fmt: skip
    return NodeRunner(identity, ports, replace(settings, storage=storage))


def attributes(part: Any) -> dict[str, Any]:
    """Of an object, in its slots too."""
    slots = [name for kind in type(part).__mro__ for name in getattr(kind, "__slots__", ())]
    found = {name: getattr(part, name) for name in slots if hasattr(part, name)}
    return found | getattr(part, "__dict__", {})


def parts_of(part: Any, known: set[int], path: str) -> Iterator[tuple[str, str, Any]]:
    """All that is reached from a part of the engine: where, under which name, and what."""
    known.add(id(part))
    for name, value in attributes(part).items():
        yield path, name, value
        if type(value).__module__.startswith("raftstore.engine") and id(value) not in known:
            yield from parts_of(value, known, f"{path}.{name}")


def test_parts_that_name_another_part_hold_the_one_of_the_node() -> None:
    """A node has one clock, one outbox, one map of channels and so on: nobody has a second one, and
    nobody was given another part in its place."""
    runner = node()
    ports = runner.ports
    expected: dict[str, Any] = {
        "me": ME, "clock": runner.clock, "channels": runner.channels, "outbox": runner.outbox,
        "log": ports.log, "tables": ports.tables, "transport": ports.transport, "ids": ports.ids,
        "elector_factory": ports.elector_factory, "wall_ms": ports.wall_ms,
        "identity": runner.identity, "boot_id": BOOT, "watch": runner.watch,
        "reader": runner.reader, "controller": runner.controller, "answers": runner.answers,
        "meters": runner.meters, "failovers": runner.failovers, "guard": runner.guard,
        "drain": runner.drain, "writes": runner.writes, "room": runner.writes,
        "registry": runner.registry, "proposals": runner._proposals, "hashes": runner.hashes,
        "requests": runner.requests, "ring": runner.ring, "lag_guard": runner.lag_guard,
        "batches": runner.batches, "active": runner._active, "levels": runner.levels,
        "tell": runner.events.tell, "tell_event": runner.events.tell, "views": runner.views,
        "halt": runner.halt.halt, "repairs": runner.repairs,
        "takes_bundles": runner.levels.takes_bundles, "nodes_at_level": runner.levels.at_least,
        "is_up": runner.watch.is_up, "heard_leader": runner.watch.heard_leader,
        "reply": runner.answers.reply, "lag": runner.reader.lag_of, "stall": ports.stall,
        "sender": runner.batches.sender, "on_halt": ports.on_halt, "sink": ports.on_event,
    }  # fmt: skip
    # One name, two things.
    others = {
        "node.halt", "node.meters._writes", "node.reader.many._ids", "node.watch._lag",
        "node.batches.coordinator.meters", "node.batches.coordinator._tables",
        "node.lag_guard._channels", "node.snapshots.sender", "node.retention.floors._levels",
    }  # fmt: skip
    held = 0
    for path, name, value in parts_of(runner, set(), "node"):
        plain = name.removeprefix("_")
        if plain in expected and f"{path}.{name}" not in others:
            wanted = expected[plain]
            is_it = value == wanted if callable(wanted) else value is wanted
            assert is_it, f"{path}.{name}"
            held += 1
    assert held > 130


def test_node_is_due_for_every_part_that_has_deadlines() -> None:
    """A part that is left out would never be called at its time."""
    runner = node()
    found = {
        id(value) for _, _, value in parts_of(runner, set(), "node") if isinstance(value, Deadlines)
    }
    assert found == {id(each) for each in runner._deadlines}
    assert len(found) == len(runner._deadlines) >= 10


def test_parts_hear_what_happens_to_channels_in_their_order() -> None:
    """S7.3: what the watch and the repairs know of a channel comes before those that ask them."""
    runner = node()
    notices: ChannelNotices[Any] = runner.registry._parts.notices
    watch, reader, batches = runner.watch, runner.reader, runner.batches
    healing = runner.healing
    snapshots = runner.snapshots
    opened = (
        watch.channel_opened, runner.repairs.opened, healing.opened, snapshots.on_opened,
        reader.on_channel_opened, batches.on_channel_opened,
    )  # fmt: skip
    assert notices.opened == opened
    assert set(notices.closed) == {
        runner.repairs.closed, runner.meters.channel_closed, runner._schedule.on_closed,
        watch.channel_closed, reader.on_channel_closed, batches.on_channel_closed,
        runner.lag_guard.channel_closed, runner.retention.channel_closed,
        runner.snapshots.on_closed, runner.expirer.channel_closed, runner.catch_ups.channel_closed,
        runner.healing.closed, runner.controller.config_reports.on_closed,
        runner.audit.channel_closed,
    }  # fmt: skip
    assert notices.snapshot_needed == (runner.snapshots.on_needed,)
    assert notices.leader_changed[0] == watch.leader_changed
    assert set(notices.leader_changed[1:]) == {
        runner.catch_ups.leader_changed,
        runner.failovers.leader_changed, runner.meters.leader_changed,
        runner.drain.leader_changed, runner.controller.leader_changed, batches.leader_changed,
        runner.snapshots.leader_changed, runner.expirer.leader_changed,
        runner.leaders.leader_changed,
    }  # fmt: skip
    assert notices.applied == (
        reader.on_applied, batches.on_applied, runner.controller.on_applied,
        runner.snapshots.on_applied, runner.expirer.on_applied,
    )  # fmt: skip
    assert notices.freshness_proven == (reader.on_freshness,)
    assert notices.config_committed == (
        watch.config_committed, runner.controller.config_reports.on_committed,
    )  # fmt: skip
    assert notices.histories_differ == (healing.divergences.differs,)
    assert notices.hand_over_refused == (runner.controller.commands.step_down_refused,)


def test_settings_reach_the_parts_that_they_bound() -> None:
    """Each bound where it is kept."""
    runner = node()
    settings = runner._settings
    parts: Any = runner
    assert parts.guard._unsynced_bytes_max == 11_000_000
    assert parts.writes._bytes_max == settings.replication.client_payload_bytes_max
    assert parts.lag_guard._patience_ms == settings.replication.lag_patience_ms
    assert parts.repairs._bytes_max == settings.replication.sync_batch_bytes_max
    assert parts.hashes._wait_ms == settings.transport.request_timeout_max_ms
    assert parts.hashes._settings == parts.reader._settings == settings.read
    assert parts.watch._heartbeat == settings.heartbeat
    assert parts.watch._election == settings.election
    assert parts.watch._lag == settings.lag
    assert parts.repairs._request_id == int.from_bytes(BOOT[:8], "big") >> 2
    assert parts.levels.by_node == {ME: LEVEL}
    assert parts.inbox._end_client == parts.ports.transport.end_client
    assert runner.metadata_channel == runner.controller.metadata_channel
    assert runner.parts.settings is settings


def test_channel_whose_hole_was_filled_is_opened_anew_by_the_catalog() -> None:
    """S0.3: at the time of the call that says so."""
    runner = node()
    told: list[tuple[object, ...]] = []
    parts: Any = runner
    parts.controller.reopen = lambda *of: told.append(of)
    parts.clock.now_ms = 55
    parts.repairs._reopen("channel")
    assert told == [("channel", 55)]
