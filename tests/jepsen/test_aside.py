"""Files that a run takes out of a store come back, unless the node went on without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from jepsen_like.target.processes.aside import Aside

BEFORE = '2026-01-01T00:00:00.000Z INFO node=n1 event="started" id=n1 channels=3\n'
STARTING = '2026-01-01T00:00:05.000Z INFO node=n1 event="pysyncobj 0.3.17, self-test passed"\n'
REFUSED = "error: n1/raftstore.json is damaged, so it is not known whose store this is (S0.1)\n"
STARTED = '2026-01-01T00:00:09.000Z INFO node=n1 event="started" id=n1 channels=3\n'


@pytest.mark.parametrize(
    ("said", "went_on", "refused"),
    [
        ("", False, False),
        (STARTING, False, False),
        (STARTING + REFUSED, False, True),
        (STARTING + STARTED, True, False),
    ],
    ids=["silent", "starting", "refused", "started"],
)
def test_a_node_goes_on_without_what_was_taken_only_when_it_says_so(
    tmp_path: Path, said: str, went_on: bool, refused: bool
) -> None:
    """A node that is still starting counts as neither: dropping the copy would lose its store."""
    store, log = tmp_path / "n1", tmp_path / "n1.log"
    store.mkdir()
    (store / "raftstore.json").write_text("whole")
    log.write_text(BEFORE)
    aside = Aside(store, tmp_path / "aside", log)
    aside.take("raftstore.json")
    with log.open("a") as file:
        file.write(said)
    assert aside.went_on() is went_on
    assert (aside.refusal() is not None) is refused


def test_the_very_bytes_come_back(tmp_path: Path) -> None:
    """Given a file that damage and the node changed meanwhile, its original bytes come back."""
    store, log = tmp_path / "n1", tmp_path / "n1.log"
    store.mkdir()
    (store / "raftstore.json").write_text("whole")
    aside = Aside(store, tmp_path / "aside", log)
    aside.take("raftstore.json")
    (store / "raftstore.json").write_text("whxle")
    aside.put_back()
    assert (store / "raftstore.json").read_text() == "whole"
    assert not (tmp_path / "aside").exists()
