"""Recorded histories with one answer changed, judged once more by a search without any cunning."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jepsen_like.checker.linearizable import check_linearizable, partition
from jepsen_like.checker.models import REFUSED, Entry, Model, entries_of, model_named
from jepsen_like.checker.verdict import Validity
from jepsen_like.formats import read_any
from jepsen_like.history import Operation
from raftstore.types import Outcome

DATA = Path(__file__).parent.parent / "data" / "linearizability"
INDEX = json.loads((DATA / "index.json").read_text(encoding="utf-8"))
SUITES = ("porcupine", "knossos-cas-register", "porcupine-kv")
VALID = [e for e in INDEX if e["suite"] in SUITES and e["valid"] and e["bytes"] < 60_000]
MUTATIONS = 2
PLAIN_STEPS = 3_000


def _plain(model: Model, entries: Sequence[Entry]) -> bool | None:
    """Whether there is an order; None when it takes too many steps to say."""
    ends = [entry.returned for entry in entries]
    must = sum(1 << at for at, end in enumerate(ends) if end is not None)
    seen: set[tuple[int, Any]] = set()
    stack: list[tuple[int, Any]] = [(0, model.initial)]
    while stack:
        config = stack.pop()
        if config in seen:
            continue
        seen.add(config)
        if len(seen) > PLAIN_STEPS:
            return None
        mask, state = config
        if mask & must == must:
            return True
        open_ = [(at, end) for at, end in enumerate(ends) if not mask >> at & 1]
        limit = min(end for _, end in open_ if end is not None)
        for at, _ in reversed(open_):
            if entries[at].call <= limit:
                after = model.step(state, entries[at])
                if after is not REFUSED:
                    stack.append((mask | 1 << at, after))
    return False


def _plain_whole(model: Model, operations: Sequence[Operation]) -> bool | None:
    answers = [_plain(model, part) for part in partition(entries_of(model, operations))]
    if False in answers:
        return False
    return None if None in answers else True


def _mutated(operations: Sequence[Operation], rng: random.Random) -> list[Operation]:
    """One answer becomes another that some operation gave; or a compare has the other outcome."""
    answered = [at for at, o in enumerate(operations) if o.outcome is Outcome.OK]
    judged = [at for at in answered if operations[at].action in ("read", "get", "cas")]
    if not judged:
        return list(operations)
    at = rng.choice(judged)
    chosen = operations[at]
    if chosen.action == "cas":
        details = {} if chosen.details.get("conflict") else {"conflict": True}
        changed = replace(chosen, details=details)
    else:
        others = {
            json.dumps(operations[other].result)
            for other in answered
            if operations[other].action == chosen.action and operations[other].key == chosen.key
        }
        changed = replace(chosen, result=json.loads(rng.choice(sorted(others))))
    return [*operations[:at], changed, *operations[at + 1 :]]


@pytest.mark.slow
def test_changed_answer_in_a_recorded_history_is_judged_as_by_the_plain_search() -> None:
    """Given any changed answer in a recorded history, the fast searches judge it as the plain
    search does.
    """
    counts = {True: 0, False: 0, None: 0}
    for entry in VALID:
        model = model_named(
            entry["model"].split()[0], entry["init"] if isinstance(entry["init"], int) else None
        )
        operations = read_any(DATA / entry["file"])
        for seed in range(MUTATIONS):
            mutated = _mutated(operations, random.Random(f"{entry['id']} {seed}"))
            expected = _plain_whole(model, mutated)
            counts[expected] += 1
            if expected is None:
                continue
            found = check_linearizable(model, mutated)
            wanted = Validity.VALID if expected else Validity.INVALID
            if expected and not found.figures["observed"]:
                wanted = Validity.UNDECIDED  # no answer that was left says anything about the state
            assert found.validity is wanted, entry
            if not expected:
                assert found.culprit in found.evidence, entry
    assert min(counts[True], counts[False]) > 30, counts
    assert counts[None] < sum(counts.values()) / 3, counts
