"""The leader's part in the expiry of rows: when it says how late it is, and what it names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.config import ExpirySettings
from raftstore.core.quorum import quorum_ms
from raftstore.engine.retention.expirer import PAUSE_TIMES, RETRY_MS, WAIT_MS_MAX, Expirer
from raftstore.errors import Refusal, StoreTooOldError
from raftstore.protocol.lifetimes import EXPIRE_BYTES_MAX, decode_expire
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.state_machines.expiry import expiry_key
from raftstore.types import ChannelConfig, Guid, NodeId, RecordKind, Role, Seq, Term
from tests.storage_helpers import CHANNEL, OTHER

ME, F1, F2 = NodeId("n1@00"), NodeId("n2@00"), NodeId("n3@00")
WALL = 1_700_000_000_000
"""The wall clock when the monotonic one shows 0."""
CALLS_MAX = 100_000
"""Of the timer within one wait."""
TICK_MS, AHEAD_MS, KEYS_MAX, LATE_MS = 100, 1_000, 5, 5_000


class Bench:
    """One channel with rows that expire, led here; clocks are offsets to the right time."""

    def __init__(self) -> None:
        self.index: dict[bytes, bytes] = {}
        self.others: set[bytes] = set()
        """Keys of the index of another channel, led here, too, once ``lead_another`` was called."""
        self.clocks: dict[NodeId, int | None] = {ME: 0, F1: 0, F2: 0}
        self.proposed: list[tuple[int, list[bytes], Any, Any]] = []
        self.now_ms = 0
        self.applied = Seq(10)
        self.time_ms = 1
        self.refusal: Refusal | None = None
        self.runner: Any = SimpleNamespace(
            channel=CHANNEL,
            elector=SimpleNamespace(role=Role.LEADER),
            config=lambda: ChannelConfig(((ME, F1, F2),)),
        )
        self.channels = {CHANNEL: self.runner}
        host: Any = SimpleNamespace(
            channel_time=lambda channel: self.time_ms,
            applied_seq=lambda channel: self.applied,
            state_scan=self._scan,
            wall_ms=self._wall_ms,
            propose=self._propose,
        )
        clock: Any = SimpleNamespace(wall_ms=lambda: self._wall_ms(ME))
        parts: Any = SimpleNamespace(
            me=ME, tables=host, watch=host, clock=clock, proposals=host,
            refusal_of=lambda kind: self.refusal, channels=self.channels,
        )  # fmt: skip
        self.expirer = Expirer(parts, ExpirySettings(TICK_MS, AHEAD_MS, KEYS_MAX, LATE_MS))
        self.expirer.leader_changed(self.runner, (Term(1), Role.FOLLOWER, None), 0)

    def lead_another(self, rows: int) -> None:
        """A second channel with rows that are over after 10 ms."""
        self.others = {expiry_key(WALL + 10, b"o%04d" % number) for number in range(rows)}
        runner = self.channels[OTHER] = SimpleNamespace(**vars(self.runner) | {"channel": OTHER})
        self.expirer.leader_changed(runner, (Term(1), Role.FOLLOWER, None), self.now_ms)

    def _wall_ms(self, node: NodeId) -> int:
        offset_ms = self.clocks[node]
        return 0 if offset_ms is None else WALL + self.now_ms + offset_ms

    def _scan(self, channel: Any, start: bytes, stop: bytes, limit: int) -> list[Any]:
        index = self.index if channel == CHANNEL else dict.fromkeys(self.others, b"")
        pairs = sorted(index.items())
        return [pair for pair in pairs if start <= pair[0] < stop][:limit]

    def _propose(self, runner: Any, payload: bytes, done: Any, now_ms: int, **more: Any) -> None:
        assert more.pop("kind") is RecordKind.EXPIRE
        until_ms, keys = decode_expire(payload)
        assert more.pop("rows") == len(keys)
        self.proposed.append((until_ms, keys, done, more.pop("refusal")))

    def row(self, key: bytes, expires_ms: int) -> None:
        """A row that expires so long after the start, applied now."""
        self.index[expiry_key(WALL + expires_ms, key)] = b""
        self.expirer.on_applied(self.runner, (), self.now_ms)

    def run_to(self, now_ms: int) -> list[tuple[int, list[bytes]]]:
        """Timers up to then; what was proposed meanwhile, as moments after the start."""
        before, calls = len(self.proposed), 0
        while self.expirer.deadlines.next_ms <= now_ms:
            calls += 1
            assert calls < CALLS_MAX, "a timer is due for ever"
            self.now_ms = max(self.now_ms, self.expirer.deadlines.next_ms)
            self.expirer.on_timer(self.now_ms)
        self.now_ms = now_ms
        return [(until_ms - WALL, keys) for until_ms, keys, *_ in self.proposed[before:]]

    def committed(self, seq: int, *, removed: bool = True) -> None:
        """The record proposed last has its outcome."""
        _, _, done, _ = self.proposed[-1]
        ack = PubAck(CHANNEL, Term(1), Guid(bytes(16)), Seq(seq), Seq(seq), Term(1), "fsync", 3)
        done(ack, self.now_ms)
        if removed:
            self.apply(seq)

    def apply(self, seq: int) -> None:
        """The record proposed last is applied."""
        keys = self.proposed[-1][1]
        self.applied = Seq(seq)
        self.index = {at: b"" for at in self.index if not at.endswith(tuple(keys))}
        self.expirer.on_applied(self.runner, (), self.now_ms)


def test_row_expires_when_it_is_due_and_not_before() -> None:
    """Of an idle channel nothing is asked and nothing is written until then."""
    bench = Bench()
    bench.row(b"b", 5_000)
    bench.row(b"a", 2_000)
    assert bench.run_to(1_999) == []
    assert bench.run_to(2_000) == [(2_000, [b"a"])]
    bench.committed(11)
    assert bench.run_to(4_999) == []
    assert bench.run_to(5_000) == [(5_000, [b"b"])]
    bench.committed(12)
    assert bench.run_to(10**6) == []
    assert bench.expirer.expired_total == 2


def test_one_record_is_under_way_at_a_time_until_it_is_applied() -> None:
    """Its rows are there until then, and would be named again."""
    bench = Bench()
    for number in range(KEYS_MAX + 1):
        bench.row(b"%05d" % number, 10)
    [(until_ms, keys)] = bench.run_to(200)
    assert (until_ms, len(keys), keys[0]) == (TICK_MS, KEYS_MAX, b"00000")
    assert bench.run_to(3_000) == []
    bench.committed(11, removed=False)
    assert bench.run_to(6_000) == []
    bench.committed(11)
    assert bench.run_to(6_000 + TICK_MS) == [(6_000, [b"00005"])]  # at once: it is not full


@pytest.mark.parametrize("size", [5, EXPIRE_BYTES_MAX // 3], ids=["rows", "bytes"])
@pytest.mark.parametrize("is_applied_first", [False, True])
def test_full_record_is_followed_by_the_next_one_at_once(
    size: int, *, is_applied_first: bool
) -> None:
    """As fast as rows were written they have to go: with a pause behind each record a table that
    takes more rows in a second than ten records name would grow for ever."""
    bench = Bench()
    for number in range(3 * KEYS_MAX):
        bench.row(b"%05d".ljust(size, b".") % number, 10)
    began_ms, named = TICK_MS, len(bench.run_to(TICK_MS)[0][1])
    while named < 3 * KEYS_MAX:
        if is_applied_first:
            bench.apply(20 + named)
            bench.committed(20 + named, removed=False)
        else:
            bench.committed(20 + named, removed=False)
            assert bench.run_to(began_ms) == [], "rows that are removed were named again"
            bench.apply(20 + named)
        [(_, keys)] = bench.run_to(began_ms)
        named += len(keys)


def take(bench: Bench, seq: int, took_ms: int) -> None:
    """The record proposed last is committed and applied so much after it was proposed."""
    bench.now_ms += took_ms
    bench.committed(seq)


def test_between_full_records_requests_have_their_turn() -> None:
    """Three times what the record took, from its application on; never more than a tick."""
    bench = Bench()
    for number in range(4 * KEYS_MAX):
        bench.row(b"%05d" % number, 10)
    bench.run_to(TICK_MS)
    took = {11: 7, 12: 20, 13: 90}
    for seq, took_ms in took.items():
        take(bench, seq, took_ms)
        pause_ms = min(TICK_MS, PAUSE_TIMES * took_ms)
        assert bench.run_to(bench.now_ms + pause_ms - 1) == []
        [(_, keys)] = bench.run_to(bench.now_ms + 1)
        assert len(keys) == KEYS_MAX
    assert PAUSE_TIMES == 3


def test_full_records_of_all_channels_take_turns() -> None:
    """One at a time of all that a node leads; the others are next, in their order."""
    bench = Bench()
    for number in range(3 * KEYS_MAX):
        bench.row(b"%05d" % number, 10)
    bench.lead_another(2 * KEYS_MAX)
    first = bench.run_to(TICK_MS)
    assert [keys[0] for _, keys in first] == [b"00000"]
    take(bench, 11, 7)
    assert bench.run_to(bench.now_ms + PAUSE_TIMES * 7 - 1) == []
    [(_, keys)] = bench.run_to(bench.now_ms + 1)
    assert (len(keys), keys[0]) == (KEYS_MAX, b"o0000")


def test_no_channel_waits_for_its_turn_longer_than_a_tick() -> None:
    """Its record moves its time, which hides all that is due: that of another channel may have no
    quorum."""
    bench = Bench()
    for number in range(3 * KEYS_MAX):
        bench.row(b"%05d" % number, 10)
    bench.lead_another(2 * KEYS_MAX)
    assert len(bench.run_to(TICK_MS)) == 1
    assert bench.run_to(2 * TICK_MS - 1) == []
    [(_, keys)] = bench.run_to(2 * TICK_MS)
    assert keys[0] == b"o0000"


def test_few_rows_wait_for_nobody() -> None:
    """Rows of an idle channel are gone at once, however much expires beside it."""
    bench = Bench()
    for number in range(3 * KEYS_MAX):
        bench.row(b"%05d" % number, 10)
    bench.lead_another(KEYS_MAX - 1)
    assert [len(keys) for _, keys in bench.run_to(TICK_MS)] == [KEYS_MAX, KEYS_MAX - 1]


def test_channel_that_is_led_no_more_keeps_no_turn() -> None:
    """Neither the one whose full record is under way, nor one that waits."""
    bench = Bench()
    for number in range(3 * KEYS_MAX):
        bench.row(b"%05d" % number, 10)
    bench.lead_another(2 * KEYS_MAX)
    assert len(bench.run_to(TICK_MS)) == 1
    bench.expirer.channel_closed(bench.runner)
    bench.expirer.channel_closed(bench.channels[OTHER])
    bench.expirer.leader_changed(bench.channels[OTHER], (Term(1), Role.FOLLOWER, None), TICK_MS)
    assert [keys[0] for _, keys in bench.run_to(2 * TICK_MS)] == [b"o0000"]
    assert (bench.expirer._waiting, bench.expirer._full) == ({}, bench.expirer._led[OTHER])


def test_rows_that_have_been_due_for_long_go_without_pauses() -> None:
    """A table that takes rows faster would grow for ever."""
    bench = Bench()
    for number in range(6 * KEYS_MAX):
        bench.row(b"%05d" % number, 10)
    assert len(bench.run_to(TICK_MS)) == 1
    bench.now_ms = 10 + LATE_MS - 1
    bench.committed(11)  # it took long, so there is a whole tick
    assert bench.run_to(bench.now_ms + TICK_MS - 1) == []
    assert len(bench.run_to(bench.now_ms + 1)) == 1
    for seq in range(12, 15):  # its rows were late enough
        take(bench, seq, 30)
        assert len(bench.run_to(bench.now_ms)) == 1


def test_rows_that_became_late_behind_a_record_do_not_wait_for_its_pause() -> None:
    """The pause of the record before counts for rows that are in time alone."""
    bench = Bench()
    for number in range(2 * KEYS_MAX):
        bench.row(b"%05d" % number, 10)
    assert len(bench.run_to(TICK_MS)) == 1
    bench.now_ms = 10 + LATE_MS
    bench.committed(11)
    assert len(bench.run_to(bench.now_ms)) == 1


def test_full_record_that_was_refused_is_not_repeated_with_each_write() -> None:
    """Without a quorum, or while there is no space: once in a while is enough."""
    bench = Bench()
    for number in range(2 * KEYS_MAX):
        bench.row(b"%05d" % number, 10)
    assert len(bench.run_to(TICK_MS)) == 1
    _, _, done, _ = bench.proposed[-1]
    done(PubReject(CHANNEL, Term(1), Guid(bytes(16)), "no_space", "full"), bench.now_ms)
    for number in range(50):
        bench.row(b"9%04d" % number, 10**7)
        assert bench.run_to(TICK_MS + number) == []


@pytest.mark.parametrize(
    ("clocks", "at_ms"),
    [
        ({ME: 10**8}, 10_000 - AHEAD_MS),  # a leader whose clock is a day ahead: bounded
        ({ME: 10**8, F1: None}, 10_000 - AHEAD_MS),
        ({ME: 400}, 9_600),
        ({F1: 10**8}, 10_000),
        ({F1: 10**8, F2: None}, 10_000),
        ({ME: -5_000}, 15_000),  # one that is behind: rows live longer
        ({F1: -(10**8), F2: -(10**8)}, 10_000 + 10**8 - AHEAD_MS),
    ],
)
def test_clock_that_is_ahead_of_a_quorum_has_no_row_expire_early(
    clocks: dict[NodeId, int | None], at_ms: int
) -> None:
    """S10: the leader's clock, but never more than the bound above those of a quorum."""
    bench = Bench()
    bench.clocks |= clocks
    bench.row(b"a", 10_000)
    assert bench.run_to(at_ms - 1) == []
    [(until_ms, keys)] = bench.run_to(at_ms + WAIT_MS_MAX)
    assert (until_ms, keys) == (10_000, [b"a"])


def test_nothing_expires_while_the_clocks_of_a_quorum_are_unknown() -> None:
    """A leader that has heard nobody since its start knows no time but its own."""
    bench = Bench()
    bench.clocks |= {F1: None, F2: None}
    bench.row(b"a", 100)
    assert bench.run_to(20_000) == []
    bench.clocks[F2] = 0
    [(_, keys)] = bench.run_to(20_000 + RETRY_MS)
    assert keys == [b"a"]


def test_only_a_leader_has_rows_expire() -> None:
    """S10: a follower never looks at its clock for it, nor does a leader of before."""
    bench = Bench()
    bench.row(b"a", 1_000)
    bench.runner.elector.role = Role.FOLLOWER
    bench.expirer.leader_changed(bench.runner, (Term(1), Role.LEADER, ME), 0)
    bench.row(b"b", 1_000)
    assert bench.run_to(10**6) == []
    assert len(bench.expirer.deadlines) == 0

    bench.runner.elector.role = Role.LEADER
    bench.expirer.leader_changed(bench.runner, (Term(2), Role.FOLLOWER, None), bench.now_ms)
    assert [keys for _, keys in bench.run_to(10**6 + 200)] == [[b"a", b"b"]]
    bench.expirer.channel_closed(bench.runner)
    bench.committed(11, removed=False)
    assert len(bench.expirer.deadlines) == 0


def test_channel_without_lifetimes_is_not_looked_at() -> None:
    """It costs a look at one number when something is applied."""
    bench = Bench()
    bench.expirer.channel_closed(bench.runner)
    bench.time_ms = 0
    bench.row(b"a", 0)
    assert (bench.run_to(10**6), len(bench.expirer.deadlines)) == ([], 0)


def test_record_that_was_refused_is_tried_again_later() -> None:
    """Levels: while a node is older; and without a quorum."""
    bench = Bench()
    bench.refusal = Refusal(StoreTooOldError, "n3 is older")
    bench.row(b"a", 0)
    assert len(bench.run_to(TICK_MS)) == 1
    _, _, done, refusal = bench.proposed[-1]
    assert refusal is bench.refusal
    done(PubReject(CHANNEL, Term(1), Guid(bytes(16)), "store_too_old", "n3 is older"), TICK_MS)
    assert bench.run_to(TICK_MS + RETRY_MS - 1) == []
    assert len(bench.run_to(TICK_MS + RETRY_MS)) == 1
    assert bench.expirer.expired_total == 0


def test_time_of_a_quorum_is_what_a_majority_of_every_set_has_reached() -> None:
    """Joint configurations count as for commits; who is unknown has reached nothing."""
    three = ChannelConfig(((ME, F1, F2),))
    assert quorum_ms(three, {ME: 9, F1: 5, F2: 2}) == 5
    assert quorum_ms(three, {ME: 9}) == 0
    joint = ChannelConfig(((ME, F1, F2), (F1, F2, NodeId("n4@00"))))
    assert quorum_ms(joint, {ME: 9, F1: 5, F2: 2}) == 2
    assert quorum_ms(ChannelConfig(((ME,),)), {ME: 9, F1: 5}) == 9
