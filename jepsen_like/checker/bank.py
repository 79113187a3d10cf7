"""Bank: transfers keep the sum of all accounts, and no account is overdrawn."""

from __future__ import annotations

from collections.abc import Sequence

from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.history import Operation
from raftstore.types import Outcome


def check_bank(
    history: Sequence[Operation], total: int, *, allow_negative: bool = False
) -> Verdict:
    """Judge each answered ``read`` whose result maps account to balance."""
    reads = [op for op in history if op.action == "read" and op.outcome is Outcome.OK]
    wrong = [op for op in reads if sum(op.result.values()) != total]
    negative = [op for op in reads if min(op.result.values(), default=0) < 0]
    figures = {"reads": len(reads), "wrong_sums": len(wrong), "negative": len(negative)}
    if wrong:
        found = sum(wrong[0].result.values())
        text = f"{wrong[0].process} read a sum of {found} instead of {total}"
        return Verdict("bank", Validity.INVALID, text, wrong[:1], wrong[0], figures)
    if negative and not allow_negative:
        text = f"{negative[0].process} read a negative balance"
        return Verdict("bank", Validity.INVALID, text, negative[:1], negative[0], figures)
    if not reads:
        text = "no read was answered, so no sum was judged"
        return Verdict("bank", Validity.UNDECIDED, text, figures=figures)
    text = f"{len(reads)} reads found the sum {total}"
    return Verdict("bank", Validity.VALID, text, figures=figures)
