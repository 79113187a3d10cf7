"""Faults: a run whose faults all met nothing has proved no more than a calm one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.nemesis.fault import injected

NAME = "faults"


def check_faults(faults: Sequence[Mapping[str, Any]]) -> Verdict:
    """UNDECIDED when faults were wanted and none was injected; call it only where some were."""
    meant = injected(faults)
    fired = [fault for fault in meant if fault.get("fired", True)]
    figures = {"fired": len(fired), "not run": len(meant) - len(fired)}
    if fired:
        kinds = len({fault["kind"] for fault in fired})
        text = f"{len(fired)} faults of {kinds} kinds were injected"
        return Verdict(NAME, Validity.VALID, text, figures=figures)
    reasons = Counter(f"{fault['kind']}: {fault.get('reason', 'no reason')}" for fault in meant)
    why = "; ".join(reason for reason, _ in reasons.most_common(3)) or "the run was too short"
    return Verdict(NAME, Validity.UNDECIDED, f"no fault was injected: {why}", figures=figures)
