"""Rules of the client: what a writer may believe, and what a reader is promised."""

from __future__ import annotations

from tests.ablations.ablation import Ablation, directed

CLIENT = "raftstore/client/"
PUBLISHING = CLIENT + "publishing.py"
TESTS = "tests/unit/client/test_publishing.py::test_publish_"

CLIENT_RULES: tuple[Ablation, ...] = (
    directed(
        "S12-attempt",
        "a late refusal of an earlier attempt is taken for the newest",
        PUBLISHING,
        "if reject.attempt != outstanding.attempt:",
        "if False:",
        TESTS + "ignores_a_late_refusal_of_an_earlier_attempt",
    ),
)
