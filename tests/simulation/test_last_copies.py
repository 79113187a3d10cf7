"""Void worlds: a world may stand still only if its faults took the last copy of a record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.testing.last_copies import last_copy_taken
from raftstore.types import Seq, Term
from tests.storage_helpers import CHANNEL, OTHER

LOST = SimpleNamespace(base_seq=Seq(7), term=Term(3))
KEPT = SimpleNamespace(base_seq=Seq(6), term=Term(3))


def node(name: str, *, taken: Any = None, held: Any = None, known: Any = None) -> SimpleNamespace:
    """A replica whose damage took a record, that holds one, and whose log knows one."""
    return SimpleNamespace(
        name=name,
        store=SimpleNamespace(
            truth=SimpleNamespace(
                was_taken=lambda channel, record: channel == CHANNEL and record is taken,
                held=lambda channel, record: channel == CHANNEL and record in (held, KEPT),
            ),
            log=SimpleNamespace(
                knows=lambda channel, record: channel == CHANNEL and record is known
            ),
        ),
    )


def cluster(*nodes: SimpleNamespace) -> Any:
    """A world in which both records of a channel are committed, and none of another."""
    truths = {CHANNEL: [KEPT, LOST], OTHER: []}
    return SimpleNamespace(
        nodes={each.name: each for each in nodes},
        expected_channels=lambda: (OTHER, CHANNEL),
        oracle=SimpleNamespace(
            truth=lambda channel: SimpleNamespace(
                records=[SimpleNamespace(record=record) for record in truths[channel]]
            )
        ),
    )


def test_record_that_damage_took_everywhere_is_named_with_who_held_it() -> None:
    """S0.3: no node may lead without it, so the world rightly stands still."""
    found = last_copy_taken(cluster(node("n1", taken=LOST), node("n2"), node("n3", taken=LOST)))
    assert found == (
        "faults took the last copy of the record at seq 7 of channel "
        f"{CHANNEL.hex()}, committed in term 3: damage took it from n1, n3, and nobody else held it"
    )


@pytest.mark.parametrize(
    "other",
    [node("n2", held=LOST), node("n2", known=LOST), node("n2", taken=LOST, known=LOST)],
    ids=["was told durable", "is in its log", "was given back"],
)
def test_record_that_one_replica_still_has_is_no_excuse(other: SimpleNamespace) -> None:
    """A world that stands still although somebody has the record has failed."""
    assert last_copy_taken(cluster(node("n1", taken=LOST), other, node("n3"))) is None


def test_record_that_nobody_holds_is_no_excuse_unless_damage_took_it() -> None:
    """A record that vanished without a fault was lost by the nodes themselves."""
    assert last_copy_taken(cluster(node("n1"), node("n2"), node("n3"))) is None
