"""Judging histories: the recorded ones of other projects, and long ones made for the purpose.

Reading the files is not measured; porcupine's figures are of checking alone, too.
"""

from __future__ import annotations

import heapq
import json
import random
import time
from pathlib import Path
from typing import Any

from jepsen_like.checker.linearizable import check_linearizable, judge
from jepsen_like.checker.models import Model, model_named
from jepsen_like.checker.verdict import Validity
from jepsen_like.formats import read_any
from jepsen_like.history import Operation
from raftstore.types import Outcome

DATA = Path(__file__).parent.parent / "tests" / "data" / "linearizability"
CLIENTS = 20
ROUNDS = 3


def _recorded() -> list[tuple[Model, list[Operation], bool]]:
    """The histories that are judged by linearizability, and whether they are."""
    found = []
    for entry in json.loads((DATA / "index.json").read_text(encoding="utf-8")):
        if entry["suite"] != "elle-cli":
            initial = entry["init"] if isinstance(entry["init"], int) else None
            model = model_named(entry["model"].split()[0], initial)
            found.append((model, read_any(DATA / entry["file"]), entry["valid"]))
    return found


def long_history(
    count: int, keys: int, seed: int, *, with_cas: bool, lost: float = 0.02
) -> list[Operation]:
    """A linearizable history of registers and unique values: each client asks without a pause."""
    rng = random.Random(seed)
    free = [(0, client) for client in range(CLIENTS)]
    spans = []
    for number in range(1, count + 1):
        began, client = heapq.heappop(free)
        took = rng.randint(10, 1_000)
        heapq.heappush(free, (began + took + rng.randint(1, 50), client))
        spans.append((began + rng.randint(1, took - 1), number, client, began, began + took))
    state: dict[int, int] = {}
    operations = []
    for _, number, client, began, ended in sorted(spans):
        key = rng.randrange(keys)
        kind = rng.random()
        operation = Operation(f"c{client}", "read", key, None, began, ended, Outcome.OK)
        if kind < 0.5:
            operation.result = state.get(key)
        elif with_cas and kind < 0.8:
            operation.action = "cas"
            is_right = rng.random() < 0.6
            expected = state.get(key) if is_right else rng.randrange(1, count)
            operation.value = [expected, number]
            if expected == state.get(key):
                state[key] = number
            else:
                operation.details["conflict"] = True
        else:
            operation.action, operation.value, state[key] = "write", number, number
        if operation.action != "read" and rng.random() < lost:
            operation.outcome, operation.returned, operation.details = Outcome.UNKNOWN, None, {}
        operations.append(operation)
    return sorted(operations, key=lambda operation: operation.invoked)


def _spoil(history: list[Operation]) -> None:
    """Let a read in the middle answer what another read of its key answered long before."""
    reads = [o for o in history if o.action == "read" and o.key == 0]
    reads[len(reads) // 2].result = reads[len(reads) // 4].result


def _seconds(model: Model, history: list[Operation], expected: Validity) -> str:
    started = time.process_time()
    verdict = check_linearizable(model, history)
    took = time.process_time() - started
    assert verdict.validity is expected, verdict.summary
    return f"{took:.2f} s for {len(history):,} operations"


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """Processor time, so that other programs on the machine do not count; the best of three."""
    recorded = _recorded()
    verdicts, explained = [], []
    for _ in range(ROUNDS):
        started = time.process_time()
        for model, history, is_valid in recorded:
            assert (judge(model, history).how is None) is is_valid
        verdicts.append(time.process_time() - started)
        started = time.process_time()
        for model, history, is_valid in recorded:
            assert check_linearizable(model, history).is_valid is is_valid
        explained.append(time.process_time() - started)
    figures: dict[str, Any] = {
        "recorded histories": len(recorded),
        "their verdicts alone, goal 0.30 s": f"{min(verdicts):.2f} s",
        "verdicts and explanations": f"{min(explained):.2f} s",
    }
    count = 5_000 if tiny else 200_000
    for name, model, keys, with_cas in (
        ("unique values, 1 key, goal 2 s", model_named("register"), 1, False),
        ("unique values, 16 keys", model_named("register"), 16, False),
        ("compare and set, 16 keys", model_named("cas-register"), 16, True),
        ("compare and set, 1 key", model_named("cas-register"), 1, True),
    ):
        size = count if keys > 1 or not with_cas else count // 10
        history = long_history(size, keys, 1, with_cas=with_cas)
        figures[name] = _seconds(model, history, Validity.VALID)
        _spoil(history)
        figures[f"{name.partition(', goal')[0]}, stale"] = _seconds(
            model, history, Validity.INVALID
        )
    return figures
