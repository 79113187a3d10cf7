"""A simulated run as a readable script: time, who, what, and what came of it; faults marked.

Messages are shown for the last moments only: before those, roles, commits and answers say more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from jepsen_like.history import Operation
from jepsen_like.result import Result
from raftstore.testing.sim_trace import Trace, TraceEvent

SCRIPT_NAME: Final = "script.txt"
MESSAGES_MS: Final = 1_000.0
"""How far before the end messages are shown."""
FAULTS: Final = (
    "fault", "healed", "heal", "not_run", "kill", "crash", "pause", "shift_clock", "slow_disk",
    "fail_disk", "fill_disk", "crowd_disk", "hang_disk", "disk_error", "failpoint", "refused",
    "client_died", "published_again", "halt", "cut", "uncut", "weather",
)  # fmt: skip
"""Events that are faults or their doing."""
_NANOSECONDS: Final = 1_000_000

_Line = tuple[float, int, str]


def write_script(path: Path, result: Result, trace: Trace) -> None:
    """Write what happened, under a head that says what went wrong and how to see it again."""
    path.write_text("\n".join(script_lines(result, trace)) + "\n", encoding="utf-8")


def script_lines(result: Result, trace: Trace) -> Iterator[str]:
    """The script, line by line."""
    yield f"# seed {result.seed}, workload {result.workload}"
    yield f"# options: {' '.join(f'{name}={value}' for name, value in result.options.items())}"
    for verdict in result.verdicts:
        yield f"# {verdict.checker}: {verdict.validity.name}: {verdict.summary}"
    yield f"# replay: {result.replay}"
    yield "# > marks faults; time in virtual milliseconds"
    lines = [*_events(trace.kept), *_operations(result.history)]
    end = max((at for at, _, _ in lines), default=0.0)
    late = (event for event in trace.messages if event.at_ms >= end - MESSAGES_MS)
    lines += _events(late)
    for _, _, line in sorted(lines, key=lambda entry: entry[:2]):
        yield line


def _events(events: Iterable[TraceEvent]) -> Iterator[_Line]:
    for number, event in enumerate(events):
        fields = dict(event.fields)
        node = str(fields.pop("node", fields.pop("client", "")))
        effect = " ".join(f"{name}={value}" for name, value in fields.items())
        yield (
            event.at_ms,
            number,
            _line(event.at_ms, event.name in FAULTS, node, event.name, effect),
        )


def _operations(history: Iterable[Operation]) -> Iterator[_Line]:
    for number, operation in enumerate(history):
        began = operation.invoked / _NANOSECONDS
        what = f"{operation.action} {operation.key} {operation.value}"
        yield began, number, _line(began, False, operation.process, "calls", what)
        if operation.returned is not None:
            ended = operation.returned / _NANOSECONDS
            answer = f"{operation.action} {operation.key}: {operation.outcome.name}"
            if operation.result is not None:
                answer += f" {operation.result}"
            yield ended, number, _line(ended, False, operation.process, "gets", answer)


def _line(at_ms: float, is_fault: bool, node: str, event: str, effect: str) -> str:  # noqa: FBT001
    return f"{'>' if is_fault else ' '} {at_ms:11.2f}  {node:5} {event:16} {effect}".rstrip()
