"""Ablations of elections: S0.3, S0.4, S1, S8, S9 and O1."""

from __future__ import annotations

from tests.ablations.ablation import ELECTION, Ablation, Edit, directed

VOTING = ELECTION + "voting_elector.py"
GUARDED = ELECTION + "guarded_machine.py"
MACHINE = ELECTION + "pysyncobj_elector.py"
QUORUM = "raftstore/core/quorum.py"
TESTS = "tests/unit/election/"

ELECTION_RULES: tuple[Ablation, ...] = (
    Ablation(
        "S0.3-vote",
        "a recovering replica votes and stands",
        (
            Edit(
                VOTING,
                "        if not self._host.may_vote():  # S0.3: recovering\n            return\n",
                "",
            ),
            Edit(
                VOTING,
                "            self._host.may_vote()\n            and self",
                "            self",
            ),
        ),
        tests=(TESTS + "test_terms.py::test_recovering_replica_neither_votes_nor_stands",),
    ),
    directed(
        "S12-term",
        "a replica stands for a term that no message has room for",
        VOTING,
        "            and self.term < TERM_MAX\n",
        "",
        TESTS + "test_candidacy.py::test_nobody_stands_for_a_term_that_no_message_has_room_for",
    ),
    directed(
        "S0.4-vote",
        "an elector goes on after its vote could not be stored",
        GUARDED,
        "        self._persist_failed = True\n",
        "",
        TESTS + "test_pysyncobj_elector.py::test_failed_store_of_a_vote_stops_the_elector_for_good",
    ),
    directed(
        "S1.1-seq-only",
        "votes compare sequences and forget terms",
        MACHINE,
        "return self.history < other.history",
        "return self.history.seq < other.history.seq",
        TESTS + "test_votes.py::test_vote_goes_to_a_history_that_is_not_behind",
    ),
    directed(
        "S1.1-pre-vote",
        "a pre-vote is granted to a history that is behind",
        VOTING,
        "            and message.history >= self._state.own_history()  # S1.1\n",
        "",
        TESTS + "test_votes.py::test_vote_goes_to_a_history_that_is_not_behind",
    ),
    directed(
        "S1.7-quorum",
        "half of the voters elect",
        QUORUM,
        "    return size // 2 + 1",
        "    return (size + 1) // 2",
        "tests/unit/core/test_has_quorum.py::test_quorum_is_a_majority_of_distinct_voters",
    ),
    directed(
        "S1.3-one-vote",
        "a vote may change within its term",
        GUARDED,
        "if term == self.term and self.voted_for not in (None, voted_for):",
        "if False:",
        TESTS + "test_guarded_machine.py::test_persist_guards_hold_for_pysyncobj_too",
    ),
    directed(
        "S1.3-durable",
        "a vote is not stored",
        GUARDED,
        "        self._host.persist_vote(term, voted_for)\n",
        "",
        TESTS + "test_pysyncobj_elector.py::test_role_changes_are_told_after_the_term_is_stored",
    ),
    directed(
        "S1.3-distinct",
        "votes of strangers count",
        QUORUM,
        "sum(voter in confirmed for voter in voters)",
        "len(confirmed)",
        TESTS + "test_pysyncobj_elector.py::test_votes_of_strangers_do_not_count",
    ),
    directed(
        "S1.3-joint",
        "one majority of a joint configuration elects",
        QUORUM,
        "return bool(config.voter_sets) and all(",
        "return bool(config.voter_sets) and any(",
        TESTS + "test_votes.py::test_joint_configuration_needs_both_majorities_in_both_rounds",
    ),
    directed(
        "S1.4-past-leader",
        "a leader of a past term is followed",
        VOTING,
        "        if term < state.term:  # S1.4\n            return False\n",
        "        if term < state.term:\n            return True\n",
        TESTS + "test_pysyncobj_elector.py::test_leader_of_a_past_term_is_told_the_term",
    ),
    directed(
        "S1.4-sticky-vote",
        "a vote request deposes a leader that is heard",
        VOTING,
        "elif not message.transfer and self._leader_alive(now_ms):",
        "elif False:",
        TESTS
        + "test_pysyncobj_elector.py::test_vote_request_does_not_depose_a_leader_that_is_heard",
    ),
    directed(
        "S1.4-sticky-pre-vote",
        "a pre-vote is granted against a leader that is heard",
        VOTING,
        "            and not alive  # stickiness\n",
        "",
        TESTS + "test_terms.py::test_pre_vote_is_refused_while_the_leader_is_heard",
    ),
    directed(
        "S1.5-later-record",
        "a record of a later term than ours passes",
        GUARDED,
        "if history.term > self.term:  # S1.5",
        "if False:",
        TESTS + "test_guarded_machine.py::test_record_of_a_later_term_than_ours_stops_the_node",
    ),
    directed(
        "S1.8-arm",
        "a follower that loses its leader's name waits for ever",
        VOTING,
        "self._arm_wanted = True  # S1.8",
        "pass  # S1.8",
        TESTS + "test_candidacy.py::test_follower_that_loses_its_leaders_name_is_armed",
    ),
    directed(
        "S8-removed",
        "a removed member gives up before its removal is committed",
        VOTING,
        " or not self._host.config_committed()",
        "",
        TESTS + "test_terms.py::test_removed_member_stands_until_its_removal_is_committed",
    ),
    directed(
        "S1.4-alive",
        "a leader that is heard, though it brings no record, counts as dead",
        VOTING,
        "return heard_ms is not None and now_ms - heard_ms < self._settings.sticky_ms",
        "return False",
        "tests/unit/engine/test_replica_far_behind.py::"
        "test_replica_whose_appends_are_all_refused_or_lost_does_not_stand",
    ),
    directed(
        "S9-transfer",
        "anybody may call an election without a pre-vote",
        VOTING,
        "message.term == self.term and self.leader == sender and",
        "message.term == self.term and",
        TESTS + "test_candidacy.py::test_transfer_is_refused_from_anybody_but_the_leader",
    ),
    directed(
        "S13-two-leaders",
        "two leaders of one term go unnoticed by the elector",
        GUARDED,
        "if self.term_leader not in (None, leader) or leader == self.me:",
        "if False:",
        TESTS + "test_terms.py::test_second_leader_in_one_term_stops_the_node",
    ),
)
