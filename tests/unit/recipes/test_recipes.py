"""The shipped machines, command by command; simulated worlds put them under faults elsewhere."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import raftstore
from raftstore import recipes
from raftstore.recipes.documents import Change, Document, Look
from raftstore.recipes.election import Campaign, Leadership, Resign
from raftstore.recipes.id_blocks import Block
from raftstore.recipes.lock import Acquire, Release, Renew
from raftstore.recipes.rate_limiter import Decision, Take
from raftstore.testing import LocalMachine, check_machine
from raftstore.testing.machines.local_machine import Place

CAMPAIGN, OLD_RESIGN = (
    msgspec.msgpack.encode({"type": kind, "candidate": "a", **more})
    for kind, more in (("Campaign", {"lease_ms": 1_000}), ("Resign", {}))
)
"""As clients of version 1 sent them."""


def test_a_counter_adds_up_by_key() -> None:
    """The result has the addition in it; a total nobody could read is refused."""
    counter = LocalMachine(recipes.Counter)
    assert [counter.command("a", 3), counter.command("b", 1), counter.command("a", -1)] == [3, 1, 2]
    assert counter.query("a") == 2
    assert counter.query("c") == 0
    with pytest.raises(raftstore.RejectedError, match="the total would be"):
        counter.command("a", 2**63 - 2)
    assert counter.query("a") == 2
    assert counter.command("a", 2**63 - 3) == 2**63 - 1


@pytest.mark.parametrize("name", recipes.__all__)
def test_a_name_that_cannot_be_a_key_is_rejected(name: str) -> None:
    """A bad name is an answer to its sender; it never stops the partition."""
    machine = getattr(recipes, name)
    value: Any = {
        "Counter": 1,
        "Documents": Change(),
        "Election": Resign("a"),
        "IdBlocks": 1,
        "Lock": Release("a", 1),
        "RateLimiter": Take(1, 1),
    }[name]
    for key in (b"", b"k" * 513):
        with pytest.raises(raftstore.RejectedError, match="allowed are 1 to 512"):
            LocalMachine(machine).command(key, value)


def test_a_name_may_be_as_long_as_is_said() -> None:
    """512 bytes."""
    assert LocalMachine(recipes.Counter).command(b"k" * 512, 1) == 1


def test_an_election_has_so_many_candidates_and_those_that_stand_may_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row has an end; who gives up makes room."""
    monkeypatch.setattr("raftstore.recipes.election.CANDIDATES_MAX", 2)
    race = LocalMachine(recipes.Election)
    for name in ("a", "b", "a"):
        race.command("e", Campaign(name, 60_000))
    with pytest.raises(raftstore.RejectedError, match="there are 2 candidates already"):
        race.command("e", Campaign("c", 60_000))
    race.command("e", Resign("a", 1))
    assert race.command("e", Campaign("c", 60_000)).leader == "b"


def test_a_lock_is_held_by_one_until_its_lease_is_over() -> None:
    """Every change of holder has a higher token, and an old one is of no use."""
    lock = LocalMachine(recipes.Lock)
    first = lock.command("l", Acquire("a", 1_000))
    assert lock.command("l", Acquire("a", 1_000)).token == first.token
    with pytest.raises(raftstore.RejectedError, match="a holds the lock under token 1"):
        lock.command("l", Acquire("b", 1_000))
    assert lock.command("l", Renew("a", first.token, 5_000)).until_ms == lock.time_ms + 5_000
    lock.time_ms += 6_000
    second = lock.command("l", Acquire("b", 1_000))
    assert second.token == first.token + 1
    for late in (Renew("a", first.token, 1_000), Release("a", first.token)):
        with pytest.raises(raftstore.RejectedError, match="token 1 is not in force; b holds"):
            lock.command("l", late)
    assert lock.command("l", Release("b", second.token)).holder == ""
    assert lock.command("l", Acquire("b", 1_000)).token == second.token + 1
    assert lock.query("l").holder == "b"


def test_a_lease_can_be_renewed_as_long_as_nobody_took_the_lock() -> None:
    """Being late is no harm that anybody saw."""
    lock = LocalMachine(recipes.Lock)
    grant = lock.command("l", Acquire("a", 1))
    lock.time_ms += 60_000
    assert lock.command("l", Renew("a", grant.token, 1_000)).token == grant.token


def test_candidates_lead_in_their_order_and_every_other_leader_in_another_term() -> None:
    """A leader stays until it resigns or its lease is over."""
    election = LocalMachine(recipes.Election)
    first = election.command("e", Campaign("a", 1_000, "host-a:1"))
    assert (first.leader, first.term, first.address) == ("a", 1, "host-a:1")
    for name in ("b", "c"):
        assert election.command("e", Campaign(name, 60_000)).leader == "a"
    assert election.query("e").candidates == 3
    election.time_ms += 5_000
    seen = election.command("e", Campaign("a", 1_000))
    assert (seen.leader, seen.term) == ("b", 2)
    assert election.command("e", Resign("b", 2)).leader == "c"
    assert election.command("e", Resign("c", 3)).leader == "a"
    assert election.command("e", Resign("a", 4)) == Leadership("", 4, 0)
    assert election.command("e", Campaign("a", 1_000)).term == 5


def test_a_late_or_repeated_resign_ends_no_later_leadership() -> None:
    """It was on its way while its candidate lost the leadership and won it again."""
    election = LocalMachine(recipes.Election)
    election.command("e", Campaign("a", 1_000))
    election.command("e", Campaign("b", 60_000))
    assert election.command("e", Resign("a", 1)).leader == "b"
    for late in (1, 2, 7):
        with pytest.raises(raftstore.RejectedError, match=f"in term {late}: b leads in term 2"):
            election.command("e", Resign("a", late))
    election.command("e", Campaign("a", 60_000))
    assert election.command("e", Resign("b", 2)) == election.query("e")
    assert (election.query("e").leader, election.query("e").term) == ("a", 3)
    with pytest.raises(raftstore.RejectedError, match="not lead in term 1: a leads in term 3"):
        election.command("e", Resign("a", 1))
    with pytest.raises(raftstore.RejectedError, match="a Resign that ends that has term=3"):
        election.command("e", Resign("a"))
    assert election.query("e").leader == "a"
    election.command("e", Resign("a", 3))
    with pytest.raises(raftstore.RejectedError, match="a does not lead in term 3: nobody leads"):
        election.command("e", Resign("a", 3))


def test_who_does_not_lead_resigns_from_no_term() -> None:
    """It leaves its place in the order, and the leader where it is; also where it has none."""
    election = LocalMachine(recipes.Election)
    for name in ("a", "b", "c"):
        election.command("e", Campaign(name, 60_000))
    for _ in range(2):
        seen = election.command("e", Resign("b"))
        assert (seen.leader, seen.term, seen.candidates) == ("a", 1, 2)
    with pytest.raises(raftstore.RejectedError, match="c does not lead in term 1: a leads"):
        election.command("e", Resign("c", 1))
    assert election.query("e").candidates == 2
    assert election.command("e", Resign("a", 1)).leader == "c"


def test_a_leader_whose_lease_is_over_may_still_resign_from_its_term() -> None:
    """That its lease is over is not noticed yet; the next one leads at once."""
    election = LocalMachine(recipes.Election)
    election.command("e", Campaign("a", 1_000))
    election.command("e", Campaign("b", 60_000))
    election.time_ms += 5_000
    assert election.command("e", Resign("a", 1)).leader == "b"


def test_a_resign_of_before_leads_to_what_it_led_to() -> None:
    """In logs of version 1, and on replicas that know terms beside those that do not: a term that
    is named counts for nothing there."""
    for resign in (OLD_RESIGN, recipes.Election.commands.encode(Resign("a", 9))):
        election = LocalMachine(recipes.Election)
        seen = [
            election.apply(b"e", command, Place(seq, 5, version=1)).result
            for seq, command in enumerate((CAMPAIGN, resign, CAMPAIGN, resign), 2)
        ]
        led = [recipes.Election.results.decode(each or b"") for each in seen]
        assert [(each.leader, each.term) for each in led] == [("a", 1), ("", 1), ("a", 2), ("", 2)]
    assert (recipes.Election.oldest_version, recipes.Election.version) == (1, 2)


def test_a_leader_that_comes_back_alone_has_a_new_term() -> None:
    """Its lease was over: anybody may have taken it for gone."""
    election = LocalMachine(recipes.Election)
    election.command("e", Campaign("a", 1_000))
    assert election.command("e", Campaign("a", 1_000)).term == 1
    election.time_ms += 5_000
    assert election.command("e", Campaign("a", 1_000)).term == 2


def test_permits_flow_back_evenly() -> None:
    """A full bucket at once, then one by one; what is refused takes nothing."""
    limiter = LocalMachine(recipes.RateLimiter)
    take = Take(limit=3, window_ms=3_000)
    limiter.time_ms -= limiter.time_ms % 10
    assert [limiter.command("c", take).remaining for _ in range(3)] == [2, 1, 0]
    refused = limiter.command("c", take)
    assert refused == Decision(False, 0, 1_000 - 30)
    limiter.time_ms += refused.retry_after_ms - 10
    assert limiter.query("c", take).is_allowed is False
    assert limiter.command("c", take).is_allowed
    limiter.time_ms += 60_000
    assert limiter.command("c", Take(3, 3_000, permits=3)) == Decision(True, 0, 0)
    with pytest.raises(raftstore.RejectedError, match="never more than 3"):
        limiter.command("c", Take(3, 3_000, permits=4))


def test_blocks_of_numbers_do_not_meet() -> None:
    """The next one begins where the last one ended; they end where other languages' numbers do."""
    ids = LocalMachine(recipes.IdBlocks)
    assert ids.command("orders", 10) == Block(1, 10)
    assert ids.command("orders", 5) == Block(11, 5)
    assert ids.command("bills", 1) == Block(1, 1)
    assert ids.query("orders") == 16
    for wrong in (0, -1, 2_000_000_000):
        with pytest.raises(raftstore.SchemaError):
            ids.command("orders", wrong)


def test_documents_change_together_or_not_at_all() -> None:
    """One expectation that does not hold is enough, and is named."""
    documents = LocalMachine(recipes.Documents)
    first = documents.command("s", Change(puts={"a": 1, "b": {"x": [1]}}))
    assert documents.query("s", Look(names=["b", "c"])) == {
        "b": Document(first.version, {"x": [1]})
    }
    with pytest.raises(raftstore.RejectedError, match=r"b has version 1, not 0; look again"):
        documents.command("s", Change(expected={"a": 1, "b": 0}, puts={"a": 2}, deletes=["b"]))
    second = documents.command("s", Change(expected={"a": 1, "c": 0}, puts={"c": 3}, deletes=["a"]))
    assert second.version > first.version
    assert list(documents.query("s", Look())) == ["b", "c"]
    with pytest.raises(raftstore.RejectedError, match="allowed are"):
        documents.command("s", Change(puts={"d": 1, "e": "x" * 40_000}))
    assert list(documents.query("s", Look(prefix="c"))) == ["c"]


def test_spaces_of_documents_do_not_mix() -> None:
    """A name in one space is never part of another, however both are called."""
    documents = LocalMachine(recipes.Documents)
    for space in ("s", "sa", "s\x00"):
        documents.command(space, Change(puts={"a": space}))
    assert [documents.query(s, Look())["a"].value for s in ("s", "sa", "s\x00")] == [
        "s",
        "sa",
        "s\x00",
    ]


@pytest.mark.parametrize(
    ("machine", "commands"),
    [
        (recipes.Counter, [("a", 1), ("b", 2), ("a", -1)]),
        (recipes.Lock, [("l", Acquire("a", 5)), ("l", Acquire("b", 5)), ("l", Release("b", 2))]),
        (recipes.Election, [("e", Campaign("a", 5)), ("e", Campaign("b", 50)), ("e", Resign("b"))]),
        (recipes.RateLimiter, [("c", Take(1, 50))] * 4),
        (recipes.IdBlocks, [("n", 5), ("n", 7)]),
        (recipes.Documents, [("s", Change(puts={"b": 1, "a": 2})), ("s", Change({"a": 1}))]),
    ],
)
def test_recipes_keep_nothing_in_their_objects(
    machine: type[raftstore.StateMachine], commands: list[tuple[str, Any]]
) -> None:
    """A restart between any two commands makes no difference."""
    assert check_machine(machine, commands, processes=0) == len(commands)
