"""Mutations of assertions, and of the judgements that keep messages away from them (S12)."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

ASSERTED = "tests/unit/core/test_assertions.py::test_"
HOSTILE = "tests/unit/core/test_hostile_leader.py::test_"


def _unasserted(name: str, text: str, function: str, condition: str, test: str) -> Mutation:
    return mutation(name, text, Edit(function, condition, "True"), directed(ASSERTED + test))


ASSERTION_RULES: tuple[Mutation, ...] = (
    _unasserted(
        "S0.3-assert-leader",
        "A leader that lacks acknowledged records is not found out.",
        "Leader.__init__",
        "state.recovering is None",
        "a_recovering_replica_never_leads",
    ),
    _unasserted(
        "S0.5-assert-durable-term",
        "A durable term that falls goes unnoticed.",
        "ChannelState.on_persisted",
        "durable_term >= self.durable_term",
        "the_durable_term_never_falls",
    ),
    _unasserted(
        "S0.5-assert-adopted-term",
        "A term that is durable before it is adopted goes unnoticed.",
        "ChannelState.take_effects",
        "self.durable_term <= self.term",
        "a_term_that_was_never_adopted_is_not_durable",
    ),
    _unasserted(
        "S1.5-assert-append",
        "A record of a term to come is appended.",
        "ChannelState.append",
        "record.term <= self.term",
        "a_record_of_a_term_to_come_is_not_appended",
    ),
    _unasserted(
        "S1.5-assert-lineage",
        "A log whose terms fall goes unnoticed.",
        "Lineage.append",
        "not self._terms or term > self._terms[-1]",
        "terms_never_fall_along_a_log",
    ),
    _unasserted(
        "S2.5-assert-commit",
        "A commit seq that falls goes unnoticed.",
        "ChannelState.emit_commit",
        "self.commit_seq >= told_commit",
        "the_commit_seq_told_to_the_engine_never_falls",
    ),
    _unasserted(
        "S3.5-assert-verified",
        "A follower commits what is not verified.",
        "ChannelState.advance_commit",
        "commit_seq <= self.verified_seq or self.role is Role.LEADER",
        "a_follower_commits_only_what_is_verified",
    ),
    _unasserted(
        "S10-assert-applied",
        "What is applied before it is committed goes unnoticed.",
        "ChannelState.apply_outcomes",
        "applied_seq <= self.commit_seq or applied_seq <= self.applied_seq",
        "only_what_is_committed_is_applied",
    ),
    _unasserted(
        "S13-assert-won-once",
        "A term that is won twice goes unnoticed.",
        "ChannelState.won",
        "term not in self._won_terms",
        "a_term_is_won_once",
    ),
    mutation(
        "S12-term-of-metadata",
        "A follower takes metadata whose terms fall, or exceed the leader's.",
        Edit("Follower._on_store_request", "not before <= meta.term <= request.term", "False"),
        directed(HOSTILE + "metadata_of_a_term_that_cannot_follow_is_refused"),
    ),
    mutation(
        "S12-term-of-history",
        "Catch-up takes records whose terms fall, or exceed the leader's.",
        Edit("CatchUp._take", "not term <= record.term <= message.term", "False"),
        directed(HOSTILE + "history_of_a_term_that_cannot_follow_is_refused"),
    ),
    mutation(
        "S12-record-cut-in-two",
        "A log is cut in the middle of a record.",
        Edit("ChannelState.truncate", "self.chain.at(from_seq - 1) is None", "False"),
        directed(HOSTILE + "no_record_is_cut_in_two"),
    ),
    mutation(
        "S12-longer-record",
        "A held record counts as verified to the end that a message gives it.",
        Edit(
            "store_verified",
            "state.lineage.holds(record.term, record.last_seq)",
            "True",
        ),
        Edit(
            "Follower._take",
            "state.lineage.holds(meta.term, meta.last_seq)",
            "True",
        ),
        directed(HOSTILE + "a_held_record_cannot_be_longer_than_it_is"),
    ),
)
