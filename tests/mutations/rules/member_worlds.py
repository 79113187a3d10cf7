"""Mutations that worlds notice whose members change: majorities of the wrong configuration,
learners that count, and replicas that come back (S8)."""

from __future__ import annotations

from tests.mutations.mutation import Mutation, mutation
from tests.mutations.rules.drawn_worlds import MEMBERS
from tests.mutations.syntax import Edit

MEMBER_WORLD_RULES: tuple[Mutation, ...] = (
    mutation(
        "S8-votes-old",
        "The majority of the configuration before the newest elects a leader.",
        Edit("VotingElector._has_quorum", "self._host.config()", "self._host.config_before()"),
        MEMBERS,
    ),
    mutation(
        "S8-votes-committed",
        "Only who votes by a committed configuration stands, and is voted for by its voters.",
        Edit(
            "ChannelRunner.config",
            "self.core.config()",
            "self.core.committed_config().config",
        ),
        MEMBERS,
    ),
    mutation(
        "S8-learners-count",
        "Learners count as voters, in votes, commits and reads.",
        Edit(
            "_distinct",
            "config.voter_sets",
            "[(*group, *config.learners) for group in config.voter_sets]",
        ),
        MEMBERS,
    ),
    mutation(
        "M12-early",
        "A replica deletes what it holds when its own newest configuration names it no more.",
        Edit(
            "may_be_deleted",
            "not entry.config_seq or entry.config.has_member(me)",
            "known[-1].config.has_member(me)",
        ),
        MEMBERS,
    ),
    mutation(
        "M22-unreported",
        "Leaders report no configuration to the catalog.",
        Edit("ConfigReports.report", "self._changed", "()"),
        MEMBERS,
    ),
)
