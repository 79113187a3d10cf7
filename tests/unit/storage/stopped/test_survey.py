"""The verdicts on channels of several stopped nodes, and the sentences that an operator reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.ports.log import Base
from raftstore.state_machines.catalog import Catalog, TableEntry
from raftstore.storage.log.index import ChannelIndex
from raftstore.storage.stopped import survey as module
from raftstore.storage.stopped.logs import Gap
from raftstore.storage.stopped.survey import ChannelFound, HoleFound, Verdict, survey
from raftstore.types import ChannelId, History, NodeId, Seq, Term, channel_id
from tests.storage_helpers import CHANNEL, OTHER

CLUSTER = b"cluster-of-three"
METADATA = channel_id(CLUSTER, 0)
MEMBERS = tuple((NodeId(f"{name}@0{n}"), f"host{n}") for n, name in enumerate("abc"))


def part(first: int, last: int, term: int = 1) -> ChannelIndex:
    """Single rows behind each other."""
    made = ChannelIndex(Seq(first - 1))
    for seq in range(first, last + 1):
        made.add(Term(term), Seq(seq), 1, position=seq, length=1)
    return made


def holed(*spans: tuple[int, int]) -> ChannelIndex:
    """A log with holes between these spans."""
    made, *made.kept = [part(*span) for span in spans]
    made.shortfall = made.kept[-1].end if made.kept else None
    return made


def short(last: int, lacks: int) -> ChannelIndex:
    """A log whose end was lost, and nobody knows what was there."""
    made = part(1, last)
    made.shortfall = History(Term(1), Seq(lacks))
    return made


class Log:
    """As much of a log as a survey asks."""

    def __init__(
        self, indexes: dict[ChannelId, ChannelIndex], dropped: tuple[ChannelId, ...] = ()
    ) -> None:
        self._indexes = indexes
        self._dropped = dropped

    def channels(self) -> tuple[ChannelId, ...]:
        """All that it knows."""
        return tuple(self._indexes)

    def dropped_channels(self) -> tuple[ChannelId, ...]:
        """All that are refused."""
        return self._dropped

    def index_of(self, channel: ChannelId) -> ChannelIndex | None:
        """Records of one."""
        return self._indexes.get(channel)

    def read(self, *_: Any, **__: Any) -> list[Any]:
        """Nothing of the catalog can be read."""
        return []


def stopped(name: str, *dropped: ChannelId, label: str = "", **indexes: ChannelIndex | None) -> Any:
    """The log of a stopped node: ``orders``, ``other`` and ``metadata`` of it."""
    names = {"orders": CHANNEL, "other": OTHER, "metadata": METADATA}
    held = {names[key]: index for key, index in indexes.items() if index is not None}
    belonging = SimpleNamespace(members=MEMBERS, cluster_id=CLUSTER)
    identity = SimpleNamespace(name=name, belonging=belonging)
    return SimpleNamespace(
        label=label or name, identity=identity, cluster_id=CLUSTER, log=Log(held, dropped)
    )


def found(*logs: Any) -> ChannelFound:
    """The only channel there is."""
    (channel,) = survey(logs)
    return channel


def test_whole_logs_are_told_as_they_are() -> None:
    """Their ends may differ: that is what catching up is for."""
    channel = found(stopped("a", orders=part(1, 5)), stopped("b", orders=part(3, 4)))
    assert (channel.channel, channel.name) == (CHANNEL, CHANNEL.hex())
    assert (channel.verdict, channel.sentence) == (Verdict.WHOLE, "whole")
    first, second = channel.replicas
    assert (first.node, first.first_seq, first.end) == ("a", 1, (1, 5))
    assert (first.holes, first.kept, first.shortfall) == ((), (), None)
    assert (second.node, second.first_seq, second.end) == ("b", 3, (1, 4))
    empty = found(stopped("a", orders=ChannelIndex()))
    assert (empty.replicas[0].first_seq, empty.replicas[0].end) == (None, (0, 0))


def test_hole_that_another_log_holds_is_refilled() -> None:
    """Reported are the replica as it was, what is missing and all that can give it."""
    channel = found(
        stopped("a", orders=holed((1, 2), (5, 9))),
        stopped("b", orders=part(1, 9)),
        stopped("c", orders=part(1, 6)),
    )
    assert channel.verdict is Verdict.REFILLED
    assert channel.sentence == "a will be refilled by b or c when one of them is up"
    damaged, *others = channel.replicas
    assert damaged.holes == (
        HoleFound(Gap(Seq(3), Seq(4), Term(1), Term(1)), ("b", "c"), is_filled=True),
    )
    assert (damaged.end, damaged.kept, damaged.shortfall) == ((1, 2), ((5, 9),), (1, 9))
    assert [one.holes for one in others] == [(), ()]
    one_way = found(stopped("a", orders=holed((1, 4), (9, 9))), stopped("b", orders=part(1, 8)))
    assert [hole.is_filled for hole in one_way.replicas[0].holes] == [True]
    alone = found(stopped("a", orders=holed((1, 2), (5, 9))), stopped("b", orders=part(1, 9)))
    assert alone.sentence == "a will be refilled by b when it is up"


def test_logs_refill_each_other() -> None:
    """Each of them is reported, in the order of the directories."""
    channel = found(
        stopped("a", orders=holed((1, 2), (5, 9))), stopped("b", orders=holed((1, 6), (8, 9)))
    )
    assert channel.verdict is Verdict.REFILLED
    assert channel.sentence == (
        "a will be refilled by b when it is up; b will be refilled by a when it is up"
    )


def test_holes_are_filled_one_by_one() -> None:
    """One may be filled and the next one not: each is reported with its own holders."""
    channel = found(
        stopped("a", orders=holed((1, 2), (4, 5), (9, 9))),
        stopped("b", orders=part(1, 3)),
        stopped("c", orders=part(1, 7)),
    )
    first, second = channel.replicas[0].holes
    assert (first.gap[:2], first.held_by, first.is_filled) == ((3, 3), ("b", "c"), True)
    assert (second.gap[:2], second.held_by, second.is_filled) == ((6, 8), ("c",), False)
    assert channel.verdict is Verdict.RECOVERS
    assert channel.sentence == "a recovers from the leader of the others"


@pytest.mark.parametrize(
    ("whole", "verdict", "sentence"),
    [
        (("b", "c"), "recovers", "a recovers from the leader of the others"),
        (
            ("b",),
            "lost",
            "a miss records that are lost on all directories given; not looked at: c",
        ),
        (
            (),
            "lost",
            "a miss records that are lost on all directories given; not looked at: b, c",
        ),
    ],
)
def test_lost_end_comes_back_from_a_leader_if_there_can_be_one(
    whole: tuple[str, ...], verdict: str, sentence: str
) -> None:
    """S1.1: more than half of the voters have to be whole."""
    others = [stopped(name, orders=part(1, 7)) for name in whole]
    channel = found(stopped("a", orders=short(7, 9)), *others)
    assert (str(channel.verdict), channel.sentence) == (verdict, sentence)
    assert channel.replicas[0].shortfall == (1, 9)
    assert channel.replicas[0].holes == ()


def test_several_lost_logs_are_told_together() -> None:
    """One that is refilled is reported first; with all nodes looked at none is named as missing."""
    channel = found(
        stopped("a", orders=short(3, 9)),
        stopped("b", orders=short(4, 9)),
        stopped("c", orders=holed((1, 2), (4, 4))),
    )
    assert channel.verdict is Verdict.LOST
    assert channel.sentence == (
        "c will be refilled by a or b when one of them is up; "
        "a and b miss records that are lost on all directories given"
    )


def test_holes_that_a_whole_log_has_trimmed_need_no_leader() -> None:
    """S0.3: as the nodes do where too few are whole to elect one."""
    trimmed = ChannelIndex.behind(Base(Term(1), Seq(6), bytes(16), b""))
    for seq in (7, 8):
        trimmed.add(Term(1), Seq(seq), 1, position=seq, length=1)
    logs = [stopped(name, orders=holed((1, 2), (4, 9))) for name in ("a", "b")]
    channel = found(*logs, stopped("c", orders=trimmed))
    assert channel.verdict is Verdict.REFILLED
    assert channel.sentence == (
        "a begins behind what c has trimmed when c is up; "
        "b begins behind what c has trimmed when c is up"
    )
    beyond = [stopped(name, orders=holed((1, 2), (8, 9))) for name in ("a", "b")]
    assert found(*beyond, stopped("c", orders=trimmed)).verdict is Verdict.LOST


def test_majority_counts_more_logs_than_voters() -> None:
    """A copy that was made earlier elects nobody."""
    logs = [stopped("a", orders=short(3, 9)), stopped("b", orders=part(1, 9))]
    logs += [stopped(name, orders=short(3, 9), label=f"{name} (copy)") for name in ("a", "b")]
    logs += [stopped("c", orders=part(1, 9))]
    assert found(*logs).verdict is Verdict.LOST
    assert found(*logs[:2], logs[-1]).verdict is Verdict.RECOVERS


def test_channels_are_told_by_name_and_partition_without_dropped_ones() -> None:
    """S0.8: one log that knows of the drop is enough. The metadata channel has its own name."""
    logs = [
        stopped("a", orders=part(1, 2), other=part(1, 3)),
        stopped("b", OTHER, metadata=part(1, 1)),
    ]
    told = survey(logs)
    assert [one.channel for one in told] == sorted([METADATA, CHANNEL])
    assert {one.name: [replica.node for replica in one.replicas] for one in told} == {
        CHANNEL.hex(): ["a"],
        "metadata": ["b"],
    }


def test_voters_of_a_table_are_those_of_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other members of the cluster are not waited for; channels are in the order of partitions."""
    placement = ((MEMBERS[0][0],), (MEMBERS[1][0], MEMBERS[2][0]))
    table = TableEntry("orders", CHANNEL[:16], ("k",), 2, 1, "fsync", None, "", placement)
    catalog = Catalog(7, tables={"orders": table}, _by_uuid={table.uuid: table})
    monkeypatch.setattr(module, "catalog_of", lambda _logs: catalog)
    first, second = survey(
        [stopped("a", other=part(1, 2), orders=short(1, 3)), stopped("b", other=short(1, 2))]
    )
    assert [first.name, second.name] == ["orders/0", "orders/1"]
    assert first.sentence == "a miss records that are lost on all directories given"
    assert second.sentence.endswith("; not looked at: c")
