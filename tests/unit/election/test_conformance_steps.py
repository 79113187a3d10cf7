"""Each expectation of the self-test is needed: an elector that breaks it alone is refused by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from raftstore.election import conformance
from raftstore.election.conformance import _A, _B, _C, _CHANNEL, _LONG, _OWN_HISTORY, _STRANGER
from raftstore.election.pysyncobj_elector import PySyncObjElector
from raftstore.errors import ElectionError
from raftstore.protocol.election import ElectionMessage, RequestVote, VoteReply
from raftstore.types import History, NodeId, Role, Seq, Term

Heard = tuple[NodeId, ElectionMessage]


def asks(candidate: NodeId, term: int, end: History) -> Heard:
    """A request of a vote, as the self-test makes it."""
    return candidate, RequestVote(channel=_CHANNEL, term=Term(term), history=end, transfer=False)


def votes(voter: NodeId, term: int) -> Heard:
    """A vote for the elector under test."""
    reply = VoteReply(channel=_CHANNEL, term=Term(term), vote_term=Term(term), granted=True)
    return voter, reply


@dataclass(frozen=True)
class Deaf:
    """The n-th message is not heard."""

    n: int


@dataclass(frozen=True)
class Mishears:
    """The n-th message is taken for another one."""

    n: int
    message: Heard
    taken_for: Heard


@dataclass(frozen=True)
class Lies:
    """After the n-th message one attribute is another one."""

    n: int
    name: str
    value: object


class Odd:
    """A sound elector, except for one fault."""

    def __init__(self, elector: PySyncObjElector, fault: Deaf | Mishears | Lies) -> None:
        self._elector = elector
        self._fault = fault
        self._heard = 0

    def on_message(self, sender: NodeId, message: ElectionMessage, now_ms: int) -> None:
        """Count it, and take it for what the fault makes of it."""
        self._heard += 1
        fault = self._fault
        if fault.n == self._heard and isinstance(fault, Deaf):
            return
        if fault.n == self._heard and isinstance(fault, Mishears):
            if (sender, message) == fault.message:
                sender, message = fault.taken_for
        self._elector.on_message(sender, message, now_ms)

    def __getattr__(self, name: str) -> Any:
        fault = self._fault
        if isinstance(fault, Lies) and (fault.n, fault.name) == (self._heard, name):
            return fault.value
        return getattr(self._elector, name)


BEHIND = History(Term(5), Seq(9))
OLDER = History(Term(4), Seq(99))


@pytest.mark.parametrize(
    ("fault", "what", "found"),
    [
        (
            Mishears(1, asks(_B, 6, BEHIND), asks(_B, 6, _OWN_HISTORY)),
            "shorter history",
            [(Term(6), None), (Term(6), _B), votes(_B, 6)],
        ),
        (
            Mishears(2, asks(_B, 6, OLDER), asks(_B, 6, _OWN_HISTORY)),
            "older history",
            [(Term(6), _B), votes(_B, 6)],
        ),
        (Lies(2, "voted_for", _C), "a refusal stores the term", _C),
        (Deaf(3), "stored, then sent", []),
        (Deaf(4), "one vote per term", []),
        (Deaf(5), "a lost reply is repeated", []),
        (Deaf(6), "stale terms are reported", []),
        (Deaf(7), "observing", []),
        (Lies(7, "role", Role.CANDIDATE), "observing", Role.CANDIDATE),
        (Deaf(8), "candidacy", []),
        (Mishears(9, votes(_B, 9), votes(_B, 10)), "counting", Role.LEADER),
        (Mishears(10, votes(_STRANGER, 10), votes(_B, 10)), "counting", Role.LEADER),
        (Mishears(11, votes(_STRANGER, 10), votes(_B, 10)), "counting", Role.LEADER),
        (Mishears(12, votes(_A, 10), votes(_B, 10)), "counting", Role.LEADER),
        (Deaf(13), "majority", Role.CANDIDATE),
        (Lies(13, "evict", lambda: False), "evict", False),
        (
            Mishears(14, asks(_C, 10, _LONG), asks(_C, 11, _LONG)),
            "leader, evicted",
            Role.FOLLOWER,
        ),
        (Deaf(15), "leader deposed", Role.LEADER),
        (Lies(15, "voted_for", _B), "leader deposed", (Term(11), _B)),
        (Deaf(16), "following", (None, [])),
        (Deaf(17), "transfer", Role.FOLLOWER),
        (Deaf(18), "transfer", (Role.CANDIDATE, Term(12))),
        (Lies(18, "step_down", lambda _: None), "step-down", []),
        (Lies(18, "role", Role.LEADER), "step-down", (Role.LEADER, Term(12))),
        (Mishears(19, asks(_B, 12, _LONG), asks(_B, 13, _LONG)), "vote after step-down", _B),
    ],
)
def test_elector_that_breaks_one_expectation_is_refused_by_it(
    monkeypatch: pytest.MonkeyPatch,
    fault: Deaf | Mishears | Lies,
    what: str,
    found: object,
) -> None:
    """The step that relies on it says what was expected and what it found."""

    def make(*args: Any, **options: Any) -> Odd:
        return Odd(PySyncObjElector(*args, **options), fault)

    monkeypatch.setattr(conformance, "PySyncObjElector", make)
    with pytest.raises(ElectionError) as caught:
        conformance.run_self_test()
    text = str(caught.value)
    assert text.startswith(f"{what}: expected ")
    assert text.endswith(f", found {found!r}")
