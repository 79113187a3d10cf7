"""Runs every script of this folder: ``command / ---- / output``, blocks parted by an empty line.

``pytest tests/scripts --rewrite`` writes the present output into the scripts. A changed script is
a changed behaviour: read the diff like code, and commit only what you understand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.environment import Environment

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))
RULE = "----"


def play(text: str) -> str:
    """Run a script and return it with the output it has now. Lines before a command that begin
    with ``#`` are prose and stay."""
    environment = Environment()
    blocks = []
    for block in text.strip().split("\n\n"):
        head = block.split(f"\n{RULE}\n")[0].removesuffix(f"\n{RULE}")
        commands = [line for line in head.splitlines() if not line.startswith("#")]
        if not commands:
            blocks.append(head)
            continue
        output = "\n".join(environment.run(command) for command in commands)
        blocks.append(f"{head}\n{RULE}\n{output}")
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script_prints_what_it_says(path: Path, request: pytest.FixtureRequest) -> None:
    """A scenario runs exactly as its script states."""
    written = path.read_text()
    played = play(written)
    if request.config.getoption("--rewrite"):
        path.write_text(played)
        return
    assert played == written


def test_every_message_replication_case_has_a_script() -> None:
    """The seven cases of the design text, its worked example and the known traps are reported.

    Shows NATS-148, NATS-199.
    """
    names = {path.stem for path in SCRIPTS}
    assert names >= {
        "success",
        "leader_fails_to_persist",
        "secondary_fails_to_persist",
        "secondary_misses_pubmsg",
        "secondary_misses_store_request",
        "leader_misses_pubmsg",
        "secondaries_do_not_respond",
        "catch_up_example",
        "catch_up_leader_changes",
        "deposed_leader",
        "live_queue_overflows",
    }


def test_unknown_command_is_refused() -> None:
    """A misspelt script fails instead of doing nothing."""
    with pytest.raises(AssertionError, match="unknown command"):
        play("elekt 1")
