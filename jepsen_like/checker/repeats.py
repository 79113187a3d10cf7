"""Repeats: what is sent again under its GUID is answered with the same place, and applied once."""

from __future__ import annotations

from dataclasses import dataclass, field

from jepsen_like.checker.verdict import Validity, Verdict
from raftstore.protocol.publish import PubAck


@dataclass(slots=True)
class RepeatWatch:
    """Acknowledged writes that were sent again during a run (S4.5)."""

    sent: int = 0
    answered: int = 0
    differences: list[str] = field(default_factory=list)

    def compare(self, first: PubAck, again: PubAck) -> None:
        """The second acknowledgement must be the first."""
        self.answered += 1
        before, after = _described(first), _described(again)
        if before != after:
            self.differences.append(f"{first.guid.hex()} stood at {before}, and again at {after}")

    def verdict(self) -> Verdict:
        """INVALID when a repeat got another place or another outcome."""
        figures = {"sent": self.sent, "answered": self.answered}
        if self.differences:
            text = f"a repeated write was answered otherwise: {self.differences[0]}"
            return Verdict("repeats", Validity.INVALID, text, figures=figures)
        text = (
            f"{self.answered} of {self.sent} repeated writes were acknowledged, as the first time"
        )
        return Verdict("repeats", Validity.VALID, text, figures=figures)


def _described(ack: PubAck) -> str:
    conflict = ", in conflict" if ack.conflict else ""
    return f"rows {ack.base_seq}..{ack.last_seq} of term {ack.record_term}{conflict}"
