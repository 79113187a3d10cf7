"""Bank: transfers keep the sum of all accounts, and no account is overdrawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jepsen_like.checker.facts import Findings, elements, is_answered, shown
from jepsen_like.checker.verdict import Verdict
from jepsen_like.history import Operation


def check_bank(
    history: Sequence[Operation], total: int, *, allow_negative: bool = False
) -> Verdict:
    """Judge each answered ``read`` whose result maps account to balance, or lists balances.

    An answer without accounts has the sum 0. A balance that is no number is a wrong answer, never
    an error of this checker.
    """
    reads = [op for op in history if op.action == "read" and is_answered(op)]
    findings = Findings("bank", "wrong_sums", "unreadable", "negative")
    for read in reads:
        balances = _balances(read.result)
        if balances is None:
            text = f"{read.process} was answered {shown(read.result)}, which are no balances"
            findings.add("unreadable", text, read)
            continue
        if sum(balances) != total:
            text = f"{read.process} read a sum of {sum(balances)} instead of {total}"
            findings.add("wrong_sums", text, read)
        if min(balances, default=0) < 0 and not allow_negative:
            findings.add("negative", f"{read.process} read a negative balance", read)
    doubt = None if reads else "no read was answered, so no sum was judged"
    sound = f"{len(reads)} reads found the sum {total}"
    return findings.verdict({"reads": len(reads)}, sound, doubt)


def _balances(answer: Any) -> list[int | float] | None:
    found = elements(answer.values() if isinstance(answer, Mapping) else answer)
    if found is None or not all(_is_number(balance) for balance in found):
        return None
    return found


def _is_number(balance: Any) -> bool:
    is_number = isinstance(balance, int | float) and not isinstance(balance, bool)
    return is_number and math.isfinite(balance)
