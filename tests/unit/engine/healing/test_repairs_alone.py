"""Repairs of logs and tables by themselves: when a replica may leave its channel, and the order in
which it is made whole (S0.3, S0.5).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.engine.healing import log_repairs, replacing
from raftstore.engine.healing.log_repairs import LogRepairs
from raftstore.engine.healing.repair_rules import (
    HAND_OVER_PATIENCE_MS,
    HAND_OVER_RETRY_MS,
    RETRY_MS,
)
from raftstore.engine.healing.replacing import Replacing
from raftstore.engine.healing.table_repairs import TableRepairs
from raftstore.ports.log import EMPTY_BASE
from raftstore.ports.scrub import LogDamage
from raftstore.types import EMPTY_HISTORY, ChannelConfig, NodeId, Role, channel_id

CHANNEL, OTHER = channel_id(b"t" * 16, 0), channel_id(b"t" * 16, 1)
ME, B, C = NodeId("a"), NodeId("b"), NodeId("c")
DAMAGE = LogDamage(3, 100, 500, "a checksum is wrong")


class Bench:
    """A replica, and the calls that were made of its log, its tables and itself."""

    def __init__(self, *members: NodeId, role: Role = Role.FOLLOWER) -> None:
        self.now_ms = 1_000
        self.calls: list[Any] = []
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.up = {B}
        self.written = self.durable = 7
        self.is_idle = True
        config = ChannelConfig((members or (ME, B, C),))
        self.runner: Any = SimpleNamespace(
            me=ME,
            channel=CHANNEL,
            name="t/0",
            table_damage="",
            hole=None,
            is_paused=False,
            core=SimpleNamespace(config=lambda: config),
            parts=SimpleNamespace(is_up=lambda node: node in self.up),
            elector=SimpleNamespace(role=role),
            feed=SimpleNamespace(is_idle=True),
            pause=lambda: self.calls.append("pause"),
            request_hand_over=lambda to, reason, _: self.calls.append(("hand over", to, reason)),
        )
        self.channels = {CHANNEL: self.runner}
        self.bases: dict[Any, Any] = {}
        self.hit = [CHANNEL]
        self.log: Any = SimpleNamespace(
            last_operation=lambda: self.written,
            durable_operation=lambda: self.durable,
            base=self.bases.__getitem__,
            rebase=lambda *of: self.calls.append(("rebase", *of)),
            give_up=lambda channel: self.calls.append(("give up", channel)) or 9,
            verifying=SimpleNamespace(
                channels_hit=lambda _: self.hit,
                bases_hit=lambda _: list(self.bases),
                lose=lambda *of: self.calls.append(("lose", *of)),
                doubt=lambda channel: self.calls.append(("doubt", channel)),
            ),
        )
        self.steps: list[Any] = []
        copy: Any = SimpleNamespace(
            write=lambda rows: self.calls.append(("write", rows)),
            finish=lambda: self.calls.append("finish"),
            complete=lambda: self.calls.append("complete"),
        )
        self.copy = copy
        self.tables: Any = SimpleNamespace(
            is_idle=lambda _: self.is_idle,
            begin_copy=lambda channel, history: self.calls.append((channel, history)) or copy,
            start_copy_step=lambda _channel, step: self.steps.append(step),
            install=lambda *of, keeps_former: self.calls.append(("install", *of, keeps_former)),
        )

    def tell(self, name: str, **about: Any) -> None:
        """An event."""
        self.told.append((name, about))

    def reopen(self, runner: Any) -> None:
        """The channel is opened anew."""
        self.calls.append(("reopen", runner.channel))

    def took(self) -> list[Any]:
        """Calls since the last look."""
        found = self.calls.copy()
        self.calls.clear()
        return found

    def wait(self, repairs: Any, ms: int = 0) -> None:
        """Time goes on."""
        self.now_ms += ms
        repairs.on_timer(self.now_ms)


def log_bench(*members: NodeId, **given: Any) -> tuple[Bench, LogRepairs]:
    """Repairs of a log."""
    bench = Bench(*members, **given)
    repairs = LogRepairs(bench.channels, bench.log, bench.tables, bench.tell, bench.reopen)
    return bench, repairs


def test_s0_5_records_are_given_up_when_all_before_is_durable_and_applied() -> None:
    """The replica takes part in nothing meanwhile, and is opened anew behind it."""
    bench, repairs = log_bench()
    repairs.found(DAMAGE, bench.now_ms)
    bench.durable = 6
    bench.wait(repairs)
    assert bench.took() == ["pause"]
    bench.durable, bench.is_idle = 7, False
    bench.wait(repairs, log_repairs.QUIET_MS)
    bench.is_idle, bench.runner.feed.is_idle = True, False
    bench.wait(repairs, log_repairs.QUIET_MS)
    assert (bench.took(), list(repairs.open)) == ([], [CHANNEL])
    bench.runner.feed.is_idle = True
    bench.wait(repairs, log_repairs.QUIET_MS)
    assert bench.took() == [("lose", CHANNEL, DAMAGE), ("reopen", CHANNEL)]
    assert (repairs.open, repairs.healed_total, len(repairs.deadlines)) == ({}, 1, 0)


def test_damage_is_an_event_with_its_place_and_the_channels_that_it_hit() -> None:
    """All that is wrong of one channel is given up at once."""
    bench, repairs = log_bench()
    more = LogDamage(4, 0, 9, "it is gone")
    for damage in (DAMAGE, more):
        repairs.found(damage, bench.now_ms)
    assert [name for name, _ in bench.told] == ["log_damaged"] * 2
    assert bench.told[0][1] == {
        "segment": 3, "offset": 100, "end": 500, "reason": "a checksum is wrong", "channels": 1,
    }  # fmt: skip
    bench.wait(repairs)
    assert bench.took()[1:3] == [("lose", CHANNEL, DAMAGE), ("lose", CHANNEL, more)]


def test_r_base_that_is_damaged_is_written_again_unless_the_channel_has_a_hole() -> None:
    """Reports of a hole state the base, too; one at 0 is none."""
    bench, repairs = log_bench()
    bench.hit = []
    base, empty = SimpleNamespace(seq=5), SimpleNamespace(seq=0)
    bench.bases |= {CHANNEL: base, OTHER: base}
    repairs.found(DAMAGE, bench.now_ms)
    assert bench.took() == [("rebase", CHANNEL, base)]  # the other one is not here any more
    bench.bases[CHANNEL] = empty
    repairs.found(DAMAGE, bench.now_ms)
    bench.bases[CHANNEL], bench.runner.hole = base, "a hole"
    repairs.found(DAMAGE, bench.now_ms)
    assert (bench.took(), repairs.open) == ([], {})


def test_replica_stays_while_nobody_else_is_up_or_it_is_paused_already() -> None:
    """Another node has to be there that can fill the hole."""
    bench, repairs = log_bench()
    bench.up = {ME}
    repairs.found(DAMAGE, bench.now_ms)
    bench.wait(repairs)
    bench.up, bench.runner.is_paused = {B}, True
    bench.wait(repairs, RETRY_MS)
    assert bench.took() == []
    bench.runner.is_paused = False
    bench.wait(repairs, RETRY_MS - 1)
    assert bench.took() == []
    bench.wait(repairs, 1)
    assert bench.took()[0] == "pause"


def test_leader_hands_over_first_and_waits_only_so_long() -> None:
    """It takes writes meanwhile."""
    bench, repairs = log_bench(role=Role.LEADER)
    repairs.found(DAMAGE, bench.now_ms)
    asked = 0
    for _ in range(HAND_OVER_PATIENCE_MS // HAND_OVER_RETRY_MS + 1):
        bench.wait(repairs)
        asked += bench.took() == [("hand over", None, "its log here is damaged")]
        bench.now_ms += HAND_OVER_RETRY_MS
    bench.wait(repairs)
    assert (asked, bench.took()[0]) == (4, "pause")


@pytest.mark.parametrize("is_dropped", [False, True])
def test_single_replica_and_a_dropped_table_are_not_healed(*, is_dropped: bool) -> None:
    """There is no copy: an operator is to know."""
    bench, repairs = log_bench(ME)
    repairs.found(DAMAGE, bench.now_ms)
    bench.told.clear()
    if is_dropped:
        bench.channels.clear()
    bench.wait(repairs)
    assert repairs.open == {}
    assert bench.took() == []
    assert [name for name, _ in bench.told] == ([] if is_dropped else ["log_not_healed"])


def test_damaged_table_is_replaced_where_the_replica_does_not_lead() -> None:
    """Asked for again and again; it is not read meanwhile, also after it was opened anew."""
    bench = Bench(role=Role.LEADER)
    replaced: list[Any] = []
    repairs = TableRepairs(bench.channels, bench.tell, lambda *of: replaced.append(of))
    repairs.found(bench.runner, "a block is damaged", bench.now_ms)
    repairs.found(bench.runner, "another one is", bench.now_ms)
    assert bench.told == [("table_damaged", {"channel": "t/0", "reason": "a block is damaged"})]
    assert bench.runner.table_damage == "a block is damaged"
    bench.wait(repairs)
    bench.wait(repairs, HAND_OVER_RETRY_MS - 1)
    assert bench.took() == [("hand over", None, "its table here is damaged")]
    bench.runner.elector.role = Role.FOLLOWER
    bench.wait(repairs, 1)
    bench.wait(repairs, RETRY_MS)
    assert [of[0] for of in replaced] == [bench.runner] * 2
    bench.runner.table_damage = ""
    repairs.opened(bench.runner, bench.now_ms)
    assert bench.runner.table_damage == "a block is damaged"
    bench.told.clear()
    began_ms = 1_000
    repairs.replaced(bench.runner, bench.now_ms)
    repairs.replaced(bench.runner, bench.now_ms)  # for another reason
    [(name, about)] = bench.told
    assert (name, about["reason"], about["took_ms"]) == (
        "table_healed", "a block is damaged", bench.now_ms - began_ms,
    )  # fmt: skip
    assert (repairs.open, repairs.healed_total, len(repairs.deadlines)) == ({}, 1, 0)
    repairs.opened(bench.runner, bench.now_ms)


def test_damaged_table_without_another_replica_is_reported_and_left() -> None:
    """So is one whose other replicas leave while it waits, or that is dropped."""
    bench = Bench(ME)
    repairs = TableRepairs(bench.channels, bench.tell, lambda *of: bench.calls.append(of))
    repairs.found(bench.runner, "damaged", bench.now_ms)
    assert [name for name, _ in bench.told] == ["table_damaged", "table_not_healed"]
    assert (repairs.open, bench.runner.table_damage) == ({}, "")
    several = Bench()
    for leave in (
        several.channels.clear,
        lambda: setattr(several.runner, "core", bench.runner.core),
    ):
        several.channels[CHANNEL] = several.runner
        repairs = TableRepairs(several.channels, several.tell, lambda *of: bench.calls.append(of))
        repairs.found(several.runner, "damaged", several.now_ms)
        leave()
        several.wait(repairs)
        assert (repairs.open, bench.took()) == ({}, [])


def test_s0_3_empty_table_comes_before_the_log_forgets_and_each_step_waits_for_the_disk() -> None:
    """A crash in between never leaves the wrong table beside a new log."""
    bench = Bench()
    bench.runner.feed.is_idle = False
    aside = Replacing(bench.channels, bench.log, bench.tables, bench.reopen)
    bench.durable = 6
    aside.begin(bench.runner, bench.now_ms)
    bench.wait(aside)
    bench.durable = 7
    bench.wait(aside, replacing.QUIET_MS)
    bench.runner.feed.is_idle, bench.is_idle = True, False
    bench.wait(aside, replacing.QUIET_MS)
    assert (bench.took(), bench.steps) == (["pause"], [])
    bench.is_idle = True
    bench.wait(aside, replacing.QUIET_MS)
    bench.wait(aside, replacing.QUIET_MS)  # the step is under way
    [step] = bench.steps
    assert bench.took() == [(CHANNEL, EMPTY_HISTORY)]
    done = step()
    assert bench.took() == [("write", []), "finish", "complete"]
    done(bench.now_ms)
    bench.wait(aside, replacing.QUIET_MS)
    assert bench.took() == [
        ("doubt", CHANNEL), ("rebase", CHANNEL, EMPTY_BASE), ("give up", CHANNEL),
    ]  # fmt: skip
    bench.durable = 8
    bench.wait(aside, replacing.QUIET_MS)
    assert bench.took() == []
    bench.durable = 9
    bench.wait(aside, replacing.QUIET_MS)
    assert bench.took() == [("install", CHANNEL, bench.copy, True), ("reopen", CHANNEL)]
    aside.closed(bench.runner)
    assert len(aside.deadlines) == 0


def test_channel_that_is_closed_while_its_table_is_emptied_is_left_alone() -> None:
    """Its table was dropped; what the thread did comes too late."""
    bench = Bench()
    aside = Replacing(bench.channels, bench.log, bench.tables, bench.reopen)
    aside.begin(bench.runner, bench.now_ms)
    bench.wait(aside)
    done = bench.steps.pop()()
    aside.closed(bench.runner)
    aside.closed(bench.runner)
    bench.took()
    done(bench.now_ms)
    bench.wait(aside, replacing.QUIET_MS)
    assert bench.took() == []
