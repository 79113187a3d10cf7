"""A finished run on disk: what was run, what came of it, and the history to judge again.

DIR/run.json        options, faults, verdicts, figures, replica hashes, machine
DIR/history.jsonl   one operation a line
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jepsen_like.checker.verdict import Validity, Verdict, worst
from jepsen_like.figures import totals
from jepsen_like.history import HistoryError, Operation, read_history, write_history
from jepsen_like.nemesis.fault import BY_MACHINE, injected

RUN_NAME = "run.json"
HISTORY_NAME = "history.jsonl"
FORMAT = 1


@dataclass(slots=True)
class Result:
    """One run and its judgement."""

    target: str
    """simulated or processes."""
    workload: str
    nemeses: tuple[str, ...]
    seed: int
    options: Mapping[str, Any]
    seconds: float
    """Length of the run on its own clock."""
    verdicts: Sequence[Verdict]
    history: Sequence[Operation]
    faults: Sequence[Mapping[str, Any]]
    replica_hashes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """``table/partition`` -> node -> hash."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Where it ran, and what the target wants to say (elections, messages, virtual time)."""
    replay: str = ""
    """The command that runs the same again."""

    @property
    def injected(self) -> list[Mapping[str, Any]]:
        """The faults that were meant."""
        return injected(self.faults)

    @property
    def of_machine(self) -> list[Mapping[str, Any]]:
        """Times in which the machine itself failed the nodes."""
        return [fault for fault in self.faults if fault.get("by") == BY_MACHINE]

    @property
    def validity(self) -> Validity:
        """The worst of all verdicts."""
        return worst(self.verdicts)

    def save(self, directory: Path) -> None:
        """Write run.json and history.jsonl; the directory is made if need be."""
        directory.mkdir(parents=True, exist_ok=True)
        write_history(directory / HISTORY_NAME, self.history)
        plain = {
            "format": FORMAT,
            "target": self.target,
            "workload": self.workload,
            "nemeses": list(self.nemeses),
            "seed": self.seed,
            "options": dict(self.options),
            "seconds": self.seconds,
            "validity": self.validity.name,
            "verdicts": [_plain_verdict(verdict) for verdict in self.verdicts],
            "figures": [asdict(line) for line in totals(self.history)],
            "faults": [dict(fault) for fault in self.faults],
            "replica_hashes": {name: dict(of) for name, of in self.replica_hashes.items()},
            "facts": dict(self.facts),
            "replay": self.replay,
        }
        text = json.dumps(plain, indent=1, ensure_ascii=False, default=str)
        (directory / RUN_NAME).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> Result:
        """Read what `save` wrote; HistoryError says what is missing or wrong."""
        path = directory / RUN_NAME
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            if plain["format"] != FORMAT:
                raise HistoryError(
                    f"{path} has format {plain['format']!r}; this version reads {FORMAT}"
                )
            return cls(
                target=plain["target"],
                workload=plain["workload"],
                nemeses=tuple(plain["nemeses"]),
                seed=plain["seed"],
                options=plain["options"],
                seconds=plain["seconds"],
                verdicts=[_verdict(entry) for entry in plain["verdicts"]],
                history=read_history(directory / HISTORY_NAME),
                faults=plain["faults"],
                replica_hashes=plain["replica_hashes"],
                facts=plain["facts"],
                replay=plain["replay"],
            )
        except OSError as error:
            raise HistoryError(
                f"{directory} holds no finished run ({error.strerror}: {error.filename}); "
                "give the directory that raftstore chaos run --out wrote"
            ) from error
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, HistoryError):
                raise
            raise HistoryError(f"{path} is damaged: {type(error).__name__} {error}") from error


def machine_facts() -> dict[str, Any]:
    """Facts about the machine that figures depend on."""
    return {
        "processors": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "root": os.geteuid() == 0,
    }


def _plain_verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "checker": verdict.checker,
        "validity": verdict.validity.name,
        "summary": verdict.summary,
        "figures": verdict.figures,
        "evidence": [operation.as_json() for operation in verdict.evidence],
        "culprit": None if verdict.culprit is None else verdict.culprit.as_json(),
    }


def _verdict(plain: Mapping[str, Any]) -> Verdict:
    culprit = plain["culprit"]
    return Verdict(
        checker=plain["checker"],
        validity=Validity[plain["validity"]],
        summary=plain["summary"],
        figures=plain["figures"],
        evidence=[Operation.from_json(entry) for entry in plain["evidence"]],
        culprit=None if culprit is None else Operation.from_json(culprit),
    )
