"""Refuse, at process start, a pysyncobj that does not behave as the adapter relies on.

Two gates. The installed files must be a tested version, byte for byte: a changed private detail
could lose votes silently (a release a year older than the tested one has no place to store them).
And a small election is played with one elector and a scripted world, which takes about a
millisecond. ``--allow-untested-pysyncobj`` opens the first gate only.
"""

from __future__ import annotations

from typing import Final

from raftstore.config import ElectionSettings
from raftstore.election.pysyncobj_elector import (
    PYSYNCOBJ_VERSION,
    PySyncObjElector,
    pysyncobj_hashes,
)
from raftstore.errors import ConfigError, ElectionError
from raftstore.protocol.election import (
    ElectionMessage,
    LeaderAnnounce,
    PreVoteReply,
    RequestVote,
    StepDownNotice,
    TransferNow,
    VoteReply,
)
from raftstore.protocol.replication import StaleTerm
from raftstore.types import (
    FOUNDING_NUMBER,
    ChannelConfig,
    ChannelId,
    History,
    NodeId,
    Role,
    Seq,
    Term,
)

TESTED_PYSYNCOBJ: Final[dict[str, dict[str, str]]] = {
    "0.3.17": {
        "syncobj.py": "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4",
        "journal.py": "9cf1eaf6acc704581a4cf7d3de330a404403913107adc91c929778b7e3f35edf",
        "transport.py": "0c9d89f9c4781ec9772df8011d7975a1a4a1a5f541357e12eae85a813e92b50b",
        "node.py": "e4a3f027cd8291f558334bb9c977e952f6b6989e7e1fa1588d3005ef0b990e2c",
    }
}
"""Version -> SHA-256 of the files the adapter relies on."""

_REMEDY: Final = "run `pip install pysyncobj==0.3.17`"
_OVERRIDE: Final = "or start with --allow-untested-pysyncobj"

_CHANNEL: Final = ChannelId(bytes(18))
_A, _B, _C, _STRANGER = (NodeId(f"{name}@{'0' * 32}") for name in "abcz")
_OWN_HISTORY: Final = History(Term(5), Seq(10))
_LONG: Final = History(Term(9), Seq(9))


def check_pysyncobj(*, allow_untested: bool = False) -> str:
    """Return one line about the installed pysyncobj for the log.

    Raises ConfigError if it is not a tested one (unless ``allow_untested``) or if the self-test
    fails (always).
    """
    tested = _check_files(PYSYNCOBJ_VERSION, pysyncobj_hashes(), allow_untested=allow_untested)
    try:
        run_self_test()
    except (ElectionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(
            f"pysyncobj {PYSYNCOBJ_VERSION} does not elect as raftstore relies on ({error}); "
            f"{_REMEDY}"
        ) from error
    return f"pysyncobj {PYSYNCOBJ_VERSION} ({'tested' if tested else 'untested'}), self-test passed"


def _check_files(version: str, hashes: dict[str, str], *, allow_untested: bool) -> bool:
    """Whether the files are tested ones; raises ConfigError if not and that is not allowed."""
    expected = TESTED_PYSYNCOBJ.get(version)
    if expected == hashes:
        return True
    if allow_untested:
        return False
    if expected is None:
        known = ", ".join(TESTED_PYSYNCOBJ)
        digest = hashes.get("syncobj.py", "missing")
        raise ConfigError(
            f"pysyncobj {version} (syncobj.py sha256 {digest}) is not tested with raftstore, "
            f"which expects {known}; {_REMEDY}, {_OVERRIDE}"
        )
    name = next(name for name in expected if hashes.get(name) != expected[name])
    raise ConfigError(
        f"pysyncobj {version} was changed: {name} has sha256 {hashes.get(name, 'missing')}, "
        f"expected {expected[name]}; {_REMEDY}, {_OVERRIDE}"
    )


class _ScriptedHost:
    """Records, in order, what an elector persists and sends. Implements ``ElectionHost``."""

    def __init__(self) -> None:
        self.me, self.number = _A, FOUNDING_NUMBER
        self.happened: list[object] = []

    def take(self) -> list[object]:
        """Events since the last call."""
        happened, self.happened = self.happened, []
        return happened

    def history(self) -> History:
        """A log that ends in term 5."""
        return _OWN_HISTORY

    def config(self) -> ChannelConfig:
        """Three voters."""
        return ChannelConfig(voter_sets=((_A, _B, _C),))

    def config_before(self) -> ChannelConfig:
        """Nothing changes."""
        return self.config()

    def may_vote(self, candidate: History) -> bool:
        """Healthy."""
        del candidate
        return True

    def may_stand(self) -> bool:
        """Healthy."""
        return True

    def persist_vote(self, term: Term, voted_for: NodeId | None) -> None:
        """Remember it."""
        self.happened.append((term, voted_for))

    def send_election(self, to: NodeId, message: ElectionMessage) -> None:
        """Remember it."""
        self.happened.append((to, message))

    def role_changed(self, term: Term, role: Role, leader: NodeId | None) -> None:
        """Read from the elector where it matters."""

    def leader_last_heard_ms(self, leader: NodeId) -> int | None:
        """Every connection is dead, so nothing is sticky."""

    def backoff_ms(self) -> int:
        """Fixed."""
        return 100


class _SelfTest:
    """One elector through the life of a replica; the name of each step says what is relied on."""

    def __init__(self) -> None:
        self.host = _ScriptedHost()
        self.elector = PySyncObjElector(
            self.host, _CHANNEL, Term(5), None, settings=ElectionSettings()
        )

    def run(self) -> None:
        """All steps, in order."""
        self.votes_by_history()
        self.votes_once_per_term()
        self.observes_terms()
        self.counts_voters()
        self.survives_eviction()
        self.follows_and_takes_over()
        self.steps_down()

    def votes_by_history(self) -> None:
        """A shorter history, or a longer one of an older term, gets the term but no vote."""
        shorter, older = History(Term(5), Seq(9)), History(Term(4), Seq(99))
        refusal = _refusal(6)
        happened = self._requested(_B, 6, shorter)
        self._expect("shorter history", happened, [(Term(6), None), refusal])
        self._expect("older history", self._requested(_B, 6, older), [refusal])
        self._expect("a refusal stores the term", self.elector.voted_for, None)

    def votes_once_per_term(self) -> None:
        """The vote is stored before it is sent, sent again on request, and given once."""
        granted = (_C, VoteReply(channel=_CHANNEL, term=Term(6), vote_term=Term(6), granted=True))
        self._expect(
            "stored, then sent", self._requested(_C, 6, _OWN_HISTORY), [(Term(6), _C), granted]
        )
        self._expect("one vote per term", self._requested(_B, 6, _LONG), [_refusal(6)])
        self._expect("a lost reply is repeated", self._requested(_C, 6, _OWN_HISTORY), [granted])
        self._expect(
            "stale terms are reported", self._requested(_B, 4, _LONG), [_refusal(4, own=6)]
        )

    def observes_terms(self) -> None:
        """A higher term is stored without a vote."""
        self._receive(_B, StaleTerm(channel=_CHANNEL, term=Term(9)))
        self._expect("observing", self.host.take(), [(Term(9), None)])
        self._expect("observing", self.elector.role, Role.FOLLOWER)

    def counts_voters(self) -> None:
        """Standing stores the own vote first; other terms and strangers do not count."""
        self.elector.poll(10_000)
        self.elector.poll(20_000)
        self.host.take()
        self._receive(
            _B,
            PreVoteReply(channel=_CHANNEL, term=Term(9), proposed_term=Term(10), granted=True),
        )
        request = RequestVote(channel=_CHANNEL, term=Term(10), history=_OWN_HISTORY, transfer=False)
        self._expect("candidacy", self.host.take(), [(Term(10), _A), (_B, request), (_C, request)])
        for sender, term in ((_B, 9), (_STRANGER, 10), (_STRANGER, 10), (_A, 10)):
            self._voted(sender, term)
            self._expect("counting", self.elector.role, Role.CANDIDATE)
        self._voted(_B, 10)
        self._expect("majority", self.elector.role, Role.LEADER)

    def survives_eviction(self) -> None:
        """A leader without its instance refuses rivals of its term and yields to a higher one."""
        self._expect("evict", self.elector.evict(), expected=True)
        self.host.take()
        self._requested(_C, 10, _LONG)
        self._expect("leader, evicted", self.elector.role, Role.LEADER)
        self._requested(_C, 11, _LONG)
        self._expect("leader deposed", self.elector.role, Role.FOLLOWER)
        self._expect("leader deposed", (self.elector.term, self.elector.voted_for), (Term(11), _C))

    def follows_and_takes_over(self) -> None:
        """A leader is learned without an answer, and may start an election here."""
        self._receive(_C, LeaderAnnounce(channel=_CHANNEL, term=Term(11)))
        self._expect("following", (self.elector.leader, self.host.take()), (_C, []))
        self._receive(_C, TransferNow(channel=_CHANNEL, term=Term(11)))
        self._expect("transfer", self.elector.role, Role.CANDIDATE)
        self._voted(_B, 12)
        self._expect("transfer", (self.elector.role, self.elector.term), (Role.LEADER, Term(12)))

    def steps_down(self) -> None:
        """The term stays, the role goes, and the vote of the term is not given again."""
        self.host.take()
        self.elector.step_down("self-test")
        notice = StepDownNotice(channel=_CHANNEL, term=Term(12))
        self._expect("step-down", self.host.take(), [(_B, notice), (_C, notice)])
        self._expect("step-down", (self.elector.role, self.elector.term), (Role.FOLLOWER, Term(12)))
        self._requested(_B, 12, _LONG)
        self._expect("vote after step-down", self.elector.voted_for, _A)

    def _receive(self, sender: NodeId, message: ElectionMessage) -> None:
        self.elector.on_message(sender, message, 0)

    def _requested(self, candidate: NodeId, term: int, history: History) -> list[object]:
        self._receive(
            candidate,
            RequestVote(channel=_CHANNEL, term=Term(term), history=history, transfer=False),
        )
        return self.host.take()

    def _voted(self, sender: NodeId, term: int) -> None:
        reply = VoteReply(channel=_CHANNEL, term=Term(term), vote_term=Term(term), granted=True)
        self._receive(sender, reply)

    @staticmethod
    def _expect(what: str, found: object, expected: object) -> None:
        if found != expected:
            raise ElectionError(f"{what}: expected {expected!r}, found {found!r}")


def _refusal(vote_term: int, *, own: int | None = None) -> tuple[NodeId, VoteReply]:
    term = Term(vote_term if own is None else own)
    return _B, VoteReply(channel=_CHANNEL, term=term, vote_term=Term(vote_term), granted=False)


def run_self_test() -> None:
    """Play the election; raises ElectionError (or what pysyncobj raises) at the first surprise."""
    _SelfTest().run()
