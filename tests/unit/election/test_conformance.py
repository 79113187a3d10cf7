"""The check of pysyncobj at process start."""

from __future__ import annotations

import pytest

from raftstore.election import conformance, pysyncobj_elector
from raftstore.election.conformance import TESTED_PYSYNCOBJ, check_pysyncobj
from raftstore.election.pysyncobj_elector import PySyncObjMachine
from raftstore.errors import ConfigError


def test_installed_pysyncobj_is_accepted():
    """The pinned version passes both gates, and says so in one line."""
    assert check_pysyncobj() == "pysyncobj 0.3.17 (tested), self-test passed"


def test_unknown_version_is_refused_with_the_remedy(monkeypatch):
    """One sentence: what was found, what is expected, what to do."""
    monkeypatch.setattr(conformance, "PYSYNCOBJ_VERSION", "0.3.14")
    with pytest.raises(ConfigError) as caught:
        check_pysyncobj()
    text = str(caught.value)
    digest = TESTED_PYSYNCOBJ["0.3.17"]["syncobj.py"]
    assert text == (
        f"pysyncobj 0.3.14 (syncobj.py sha256 {digest}) is not tested with raftstore, which "
        "expects 0.3.17; run `pip install pysyncobj==0.3.17`, or start with "
        "--allow-untested-pysyncobj"
    )


@pytest.mark.parametrize("name", sorted(TESTED_PYSYNCOBJ["0.3.17"]))
def test_changed_file_is_refused_by_name(monkeypatch, name):
    """A patched installation names the file and both hashes."""
    hashes = dict(TESTED_PYSYNCOBJ["0.3.17"])
    hashes[name] = "0" * 64
    monkeypatch.setattr(conformance, "pysyncobj_hashes", lambda: hashes)
    with pytest.raises(ConfigError, match=f"{name} has sha256 0000.*expected .*pip install"):
        check_pysyncobj()


def test_untested_version_runs_on_request_if_it_elects_right(monkeypatch):
    """The flag opens the first gate and is visible in the log line."""
    monkeypatch.setattr(conformance, "PYSYNCOBJ_VERSION", "0.3.18")
    assert check_pysyncobj(allow_untested=True) == "pysyncobj 0.3.18 (untested), self-test passed"


def votes_twice(self, candidate, term, history):
    """A machine that forgets its vote."""
    self._raft._SyncObj__votedForNodeId = None
    self._inject_vote_request(
        pysyncobj_elector.Node(candidate), term, pysyncobj_elector._HistorySlot(history)
    )


def ignores_history(self, candidate, term, history):
    """A machine that grants everybody."""
    end = pysyncobj_elector._HistorySlot(self._raft._journal._owner.own_history())
    self._inject_vote_request(pysyncobj_elector.Node(candidate), term, end)


def is_silent(self, *arguments):
    """A machine that does nothing."""


def raises(self, *arguments):
    """A machine whose insides were renamed."""
    raise AttributeError("no attribute '_SyncObj__raftState'")


@pytest.mark.parametrize(
    ("verb", "spoilt"),
    [
        ("request_vote", votes_twice),
        ("request_vote", ignores_history),
        ("request_vote", is_silent),
        ("observe_term", is_silent),
        ("start_election", is_silent),
        ("grant_majority", is_silent),
        ("learn_leader", is_silent),
        ("start_election", raises),
    ],
)
def test_misbehaving_pysyncobj_is_refused_even_if_allowed(monkeypatch, verb, spoilt):
    """The self-test cannot be switched off."""
    monkeypatch.setattr(PySyncObjMachine, verb, spoilt)
    with pytest.raises(ConfigError, match="does not elect as raftstore relies on"):
        check_pysyncobj(allow_untested=True)


def test_self_test_finds_an_adapter_that_counts_outsiders(monkeypatch):
    """The test covers our own rules as well: one quorum rule replaced is noticed."""
    monkeypatch.setattr(
        "raftstore.election.voting_elector.has_quorum", lambda config, votes: bool(votes)
    )
    with pytest.raises(ConfigError, match="does not elect"):
        check_pysyncobj()
