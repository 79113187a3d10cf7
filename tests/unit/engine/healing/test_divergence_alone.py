"""A dispute about a history by itself: who is asked, who is wrong, and where two histories part."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.engine.healing.divergence import (
    ASK_MS,
    BELIEVED_MS,
    BISECT_MS,
    HEALS_MAX,
    JUDGE_MS,
    Divergences,
)
from raftstore.policy.levels import CHAIN_HASH_LEVEL
from raftstore.protocol.healing import AskChainHash, ChainHashAnswer
from raftstore.types import ChannelConfig, NodeId, Seq, channel_id

CHANNEL = channel_id(b"t" * 16, 0)
ME, B, C = (NodeId(f"{name}@0{n}") for n, name in enumerate("abc"))
OURS, THEIRS = b"o" * 16, b"t" * 16
END = Seq(40)
"""The two histories differ here."""


class Bench:
    """A replica of a channel with records that end at each tenth seq; its hashes are ``OURS`` from
    ``parts_at`` on, and those of the walks are answered when the test says so."""

    def __init__(self, *voters: NodeId, parts_at: int = 30) -> None:
        self.now_ms = 1_000
        self.parts_at = parts_at
        self.sent: list[tuple[NodeId, Any]] = []
        self.question: Any = None
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.broken: list[str] = []
        self.calls: list[str] = []
        self.old: list[NodeId] = []
        self.walks: list[tuple[Seq, Any]] = []
        self.runner: Any = SimpleNamespace(
            channel=CHANNEL,
            name="t/0",
            ignores_peers=False,
            core=SimpleNamespace(
                chain_hash_of=lambda seq: OURS if seq <= END else None,
                config=lambda: ChannelConfig((voters or (ME, B, C),)),
                base=SimpleNamespace(seq=Seq(5)),
                is_recovering=True,
                commit_seq=Seq(0),
                leader=B,
            ),
            on_broken=lambda reason, _: self.broken.append(reason),
            end_dispute=lambda _: self.calls.append("end"),
        )
        self.channels = {CHANNEL: self.runner}
        ends = [Seq(seq) for seq in range(10, 100, 10)]

        def end_between(low: Seq, high: Seq) -> Seq | None:
            between = [seq for seq in ends if low < seq < high]
            return between[(len(between) - 1) // 2] if between else None

        levels = SimpleNamespace(
            at_least=lambda level: [n for n in (B, C) if n not in self.old],
            below=lambda level: self.old if level == CHAIN_HASH_LEVEL else [],
        )
        parts: Any = SimpleNamespace(
            me=ME,
            channels=self.channels,
            log=SimpleNamespace(extent=lambda _: SimpleNamespace(end_between=end_between)),
            outbox=SimpleNamespace(send=lambda to, m, after_operation: self.sent.append((to, m))),
            levels=levels,
            tell=lambda name, **about: self.told.append((name, about)),
            reopen=lambda _: self.calls.append("reopen"),
            first_id=100,
        )
        walks: Any = SimpleNamespace(
            find=lambda runner, seq, now_ms, reply: self.walks.append((seq, reply))
        )
        replacing: Any = SimpleNamespace(begin=lambda runner, _: self.calls.append("replace"))
        self.divergences = Divergences(parts, walks, replacing)

    def differs(self, whose: NodeId = B, seq: Seq = END) -> None:
        """A peer reported another hash."""
        self.divergences.differs(self.runner, whose, seq, self.now_ms)

    def asked(self) -> list[NodeId]:
        """The nodes that were asked since the last look."""
        found = [to for to, message in self.sent if isinstance(message, AskChainHash)]
        self.question = self.sent[-1][1] if self.sent else self.question
        self.sent.clear()
        return found

    def answer(self, sender: NodeId, chain_hash: bytes, **fields: Any) -> None:
        """The answer to the last question."""
        asked = self.question
        given = {"request_id": asked.request_id, "seq": asked.seq, "is_known": True} | fields
        message = ChainHashAnswer(CHANNEL, chain_hash=chain_hash, **given)
        self.divergences.on_message(sender, message, self.now_ms)

    def wait(self, ms: int) -> None:
        """Time goes on."""
        until_ms = self.now_ms + ms
        while (due := self.divergences.deadlines.next_ms) <= until_ms:
            self.now_ms = max(self.now_ms, due)
            self.divergences.on_timer(self.now_ms)
        self.now_ms = until_ms

    def names(self) -> list[str]:
        """Events since the last look."""
        found = [name for name, _ in self.told]
        self.told.clear()
        return found

    def locate(self, *, seen: set[Seq]) -> None:
        """Answer every question of the bisection as histories that part at ``parts_at``."""
        while self.asked():
            seq = self.question.seq
            seen.add(seq)
            ours = OURS if seq >= self.parts_at else b"same"
            theirs = THEIRS if seq >= self.parts_at else b"same"
            self.answer(C, theirs)
            walked, reply = self.walks.pop()
            assert walked == seq
            reply(True, ours)


def test_s13_replica_whose_history_a_quorum_has_goes_on_and_names_the_other() -> None:
    """Two of three; the wrong one is not judged again for a while."""
    bench = Bench()
    bench.differs()
    assert bench.asked() == [B, C]
    assert bench.names() == ["histories_differ"]
    bench.answer(B, THEIRS)
    assert (bench.calls, bench.broken) == ([], [])
    bench.answer(C, OURS)
    [(name, about)] = bench.told
    assert (name, about["replica"], about["seq"]) == ("replica_diverged", "b", END)
    assert (about["quorum_hash"], about["replica_hash"]) == (OURS.hex(), THEIRS.hex())
    assert bench.calls == ["end"]
    assert bench.divergences.open == {}
    assert CHANNEL not in bench.divergences.deadlines
    bench.wait(BELIEVED_MS - 1)
    bench.differs()
    assert (bench.asked(), bench.calls) == ([], ["end", "end"])
    bench.differs(C)  # of the other nothing is known
    assert bench.asked() == [B, C]
    bench.divergences.closed(bench.runner)
    bench.wait(1)
    bench.differs()
    assert bench.asked() == [B, C]


@pytest.mark.parametrize("parts_at", [10, 20, 30, 40])
def test_s13_replica_whose_history_a_quorum_contradicts_is_made_anew_from_where_they_part(
    parts_at: int,
) -> None:
    """It serves nothing first of all; the place is found by halves, and is an event."""
    bench = Bench(parts_at=parts_at)
    bench.differs()
    bench.asked()
    bench.answer(B, THEIRS)
    bench.answer(C, THEIRS)
    assert len(bench.broken) == 1
    assert f"differs from a quorum's at committed seq {END}" in bench.broken[0]
    assert bench.names() == ["histories_differ", "replica_diverged", "replica_quarantined"]
    seen: set[Seq] = set()
    bench.divergences.open[CHANNEL].witness = C
    bench.locate(seen=seen)
    assert len(seen) <= 2
    [(name, about)] = bench.told
    assert name == "divergence_located"
    assert (about["equal_to"], about["differs_at"]) == (parts_at - 10 or 5, parts_at)
    assert bench.calls == ["replace"]
    assert "put aside" in bench.divergences.stage(CHANNEL)
    bench.divergences.closed(bench.runner)
    assert "fetching" in bench.divergences.stage(CHANNEL)
    bench.names()
    core = bench.runner.core
    for core.is_recovering, core.commit_seq, core.leader, bench.runner.ignores_peers in (
        (True, END, B, False),
        (False, Seq(END - 1), B, False),
        (False, END, None, False),
        (False, END, B, True),
    ):
        bench.wait(ASK_MS)
        assert (bench.names(), len(bench.divergences.open)) == ([], 1)
    bench.runner.ignores_peers = False
    bench.wait(ASK_MS)
    assert bench.names() == ["replica_healed"]
    assert (bench.divergences.open, bench.divergences.healed_total) == ({}, 1)
    assert bench.divergences.found_total == 1
    assert bench.divergences.stage(CHANNEL) == ""


def test_s13_without_a_quorum_for_one_history_the_channel_stops_and_goes_on_asking() -> None:
    """Only those that have not answered; what came in the end opens it again."""
    bench = Bench()
    bench.differs()
    bench.asked()
    bench.answer(B, THEIRS)
    bench.wait(ASK_MS)
    assert bench.asked() == [C]
    bench.wait(JUDGE_MS - ASK_MS - 1)
    assert bench.broken == []
    bench.wait(ASK_MS)
    [reason] = bench.broken
    assert f"no quorum has one chain hash at committed seq {END}" in reason
    assert f"a: {OURS.hex()}, b: {THEIRS.hex()}" in reason
    bench.asked()
    bench.wait(10 * ASK_MS)
    assert set(bench.asked()) == {C}
    assert len(bench.broken) == 1
    bench.answer(C, OURS)
    assert bench.calls == ["reopen"]


def test_answers_to_other_questions_say_nothing() -> None:
    """Of an earlier dispute, of another seq, or of one who does not know yet."""
    bench = Bench()
    bench.differs()
    bench.asked()
    asked = bench.question.request_id
    for wrong in ({"request_id": asked - 1}, {"seq": Seq(END - 1)}, {"is_known": False}):
        bench.answer(C, OURS, **wrong)
    assert (bench.calls, set(bench.divergences.open[CHANNEL].hashes)) == ([], {ME})
    bench.answer(C, OURS)
    assert bench.calls == ["end"]
    bench.answer(C, THEIRS)  # twice: there is no dispute any more
    assert bench.divergences.open == {}


def test_while_one_dispute_is_open_another_report_changes_nothing() -> None:
    """Neither does one of a seq of which nothing is known here."""
    bench = Bench()
    bench.differs(seq=Seq(END + 1))
    assert (bench.asked(), bench.divergences.open) == ([], {})
    bench.differs()
    bench.asked()
    bench.differs(C)
    assert bench.asked() == []
    bench.answer(B, THEIRS)
    bench.answer(C, THEIRS)
    bench.differs(C)
    assert bench.divergences.open[CHANNEL].witness is not None


def test_single_replica_is_its_own_quorum() -> None:
    """There is nobody to ask."""
    bench = Bench(ME)
    bench.differs(C)
    assert (bench.asked(), bench.calls, bench.divergences.open) == ([], ["end"], {})


def test_nodes_of_a_version_that_cannot_judge_leave_the_channel_stopped() -> None:
    """S13 as before that level: nothing is served until somebody has looked."""
    bench = Bench()
    bench.old = [C]
    bench.differs()
    assert (bench.asked(), bench.divergences.open) == ([], {})
    assert f"nodes below level {CHAIN_HASH_LEVEL} cannot judge" in bench.broken[0]
    assert f"committed seq {END} here than on b" in bench.broken[0]


def test_replica_is_not_healed_more_often_than_the_bound_says() -> None:
    """A history that is wrong again and again is no accident."""
    bench = Bench()
    for number in range(HEALS_MAX + 2):
        bench.differs()
        bench.asked()
        bench.answer(B, THEIRS)
        bench.answer(C, THEIRS)
        assert len(bench.broken) == number + 1
        assert ("replica_quarantined" in bench.names()) == (number < HEALS_MAX)
        if number < HEALS_MAX:
            bench.divergences.closed(bench.runner)
        else:
            assert CHANNEL not in bench.divergences.deadlines
            del bench.divergences.open[CHANNEL]


def test_witness_that_is_silent_is_asked_again_and_at_last_done_without() -> None:
    """The replica is healed in any case."""
    bench = Bench()
    bench.differs()
    bench.asked()
    bench.answer(B, THEIRS)
    bench.answer(C, THEIRS)
    bench.asked()
    bench.walks.pop()[1](True, OURS)
    bench.wait(ASK_MS)
    assert bench.asked() == [B]
    bench.wait(BISECT_MS - ASK_MS - 1)
    assert bench.calls == []
    bench.wait(ASK_MS)
    assert bench.calls == ["replace"]


def test_question_of_another_node_is_answered_by_a_walk_or_not_known() -> None:
    """The seq and the number of the question come back; a node that is too old gets nothing."""
    bench = Bench()
    bench.divergences.on_message(B, AskChainHash(CHANNEL, 7, END), 0)
    [(seq, reply)] = bench.walks
    assert (seq, bench.sent) == (END, [])
    reply(True, OURS)
    assert bench.sent.pop() == (B, ChainHashAnswer(CHANNEL, 7, END, True, OURS))
    bench.channels.clear()
    bench.divergences.on_message(B, AskChainHash(CHANNEL, 8, END), 0)
    assert bench.sent.pop() == (B, ChainHashAnswer(CHANNEL, 8, END, False))
    bench.old = [B]
    bench.divergences.on_message(B, AskChainHash(CHANNEL, 9, END), 0)
    assert bench.sent == []


def test_channel_that_is_dropped_while_it_is_healed_is_forgotten() -> None:
    """One that another cause opens anew is compared again from the start."""
    bench = Bench(parts_at=10)
    bench.differs()
    bench.divergences.closed(bench.runner)
    assert (bench.divergences.open, CHANNEL in bench.divergences.deadlines) == ({}, False)
    bench.differs()
    bench.asked()
    bench.answer(B, THEIRS)
    bench.answer(C, THEIRS)
    bench.divergences.open[CHANNEL].witness = C
    bench.locate(seen=set())
    bench.divergences.closed(bench.runner)
    bench.channels.clear()
    bench.wait(ASK_MS)
    assert bench.divergences.open == {}
