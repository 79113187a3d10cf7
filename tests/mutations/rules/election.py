"""Mutations of elections: S0.3, S0.4, S1, S8, S9 and O1."""

from __future__ import annotations

from tests.mutations.guard import directed, worlds
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

TESTS = "tests/unit/election/"

ELECTION_RULES: tuple[Mutation, ...] = (
    mutation(
        "S0.3-vote",
        "A recovering replica votes and stands.",
        Edit(
            "VotingElector._on_request_vote",
            "if not self._host.may_vote(message.history):\n    return",
            "",
        ),
        Edit(
            "VotingElector._may_stand",
            "self._host.may_stand()\n"
            "and self.term < TERM_MAX\n"
            "and (self._is_voter() or self._stands_last())",
            "self.term < TERM_MAX\nand (self._is_voter() or self._stands_last())",
        ),
        directed(TESTS + "test_terms.py::test_recovering_replica_neither_votes_nor_stands"),
    ),
    mutation(
        "S0.4-vote",
        "An elector goes on after its vote could not be stored.",
        Edit(
            "GuardedMachine.persist",
            "self._persist_failed = True",
            "",
        ),
        directed(
            TESTS + "test_pysyncobj_elector.py::test_failed_store_of_a_vote_stops_the"
            "_elector_for_good"
        ),
    ),
    mutation(
        "S1.1-seq-only",
        "Votes compare sequences and forget terms.",
        Edit(
            "_HistorySlot.__lt__",
            "self.history < other.history",
            "self.history.seq < other.history.seq",
        ),
        directed(TESTS + "test_votes.py::test_vote_goes_to_a_history_that_is_not_behind"),
    ),
    mutation(
        "S1.1-any-history",
        "A vote goes to the first candidate that asks, whatever it has accepted.",
        Edit(
            "_HistorySlot.__lt__",
            "self.history < other.history",
            "False",
        ),
        directed(
            TESTS + "test_votes.py::test_vote_goes_to_a_history_that_is_not_behind",
        ),
    ),
    mutation(
        "S1.1-pre-vote",
        "A pre-vote is granted to a history that is behind.",
        Edit(
            "VotingElector._on_pre_vote",
            "newer and message.history >= self._state.own_history() and (self.role is "
            "not Role.LEADER) and (not alive)",
            "newer\nand self.role is not Role.LEADER\nand not alive",
        ),
        directed(TESTS + "test_votes.py::test_vote_goes_to_a_history_that_is_not_behind"),
    ),
    mutation(
        "S1.3-one-vote",
        "A vote may change within its term.",
        Edit(
            "GuardedMachine.persist",
            "term == self.term and self.voted_for not in (None, voted_for)",
            "False",
        ),
        directed(TESTS + "test_guarded_machine.py::test_persist_guards_hold_for_pysyncobj_too"),
    ),
    mutation(
        "S1.3-durable",
        "A vote is not stored.",
        Edit(
            "GuardedMachine.persist",
            "self._host.persist_vote(term, voted_for)",
            "",
        ),
        directed(
            TESTS + "test_pysyncobj_elector.py::test_role_changes_are_told_after_the_term_is_stored"
        ),
    ),
    mutation(
        "S1.3-distinct",
        "Votes of outsiders count.",
        Edit(
            "has_quorum",
            "sum([voter in confirmed for voter in voters])",
            "len(confirmed)",
        ),
        directed(TESTS + "test_pysyncobj_elector.py::test_votes_of_outsiders_do_not_count"),
    ),
    mutation(
        "S1.3-joint",
        "One majority of a joint configuration elects.",
        Edit(
            "has_quorum",
            "all(\n"
            "    sum([voter in confirmed for voter in voters]) >= majority(len(voters))\n"
            "    for voters in _distinct(config)\n"
            ")",
            "any(\n"
            "    sum([voter in confirmed for voter in voters]) >= majority(len(voters))\n"
            "    for voters in _distinct(config)\n"
            ")",
        ),
        directed(
            TESTS + "test_votes.py::test_joint_configuration_needs_both_majorities_in_both_rounds"
        ),
    ),
    mutation(
        "S1.4-past-leader",
        "A leader of a past term is followed.",
        Edit(
            "VotingElector.on_leader",
            "if term < state.term:\n    return False",
            "if term < state.term:\n    return True",
        ),
        directed(
            TESTS + "test_pysyncobj_elector.py::test_leader_of_a_past_term_is_told_the_term",
            why="other rules hold the same door, so the worlds stay right without this one",
        ),
    ),
    mutation(
        "S1.4-sticky-vote",
        "A vote request deposes a leader that is heard.",
        Edit(
            "VotingElector._on_request_vote",
            "not message.transfer and self._leader_alive(now_ms)",
            "False",
        ),
        directed(
            TESTS + "test_pysyncobj_elector.py::test_vote_request_does_not_depose_a_leader"
            "_that_is_heard"
        ),
    ),
    mutation(
        "S1.4-sticky-pre-vote",
        "A pre-vote is granted against a leader that is heard.",
        Edit(
            "VotingElector._on_pre_vote",
            "newer and message.history >= self._state.own_history() and (self.role is "
            "not Role.LEADER) and (not alive)",
            "newer and message.history >= self._state.own_history() and (self.role is "
            "not Role.LEADER)",
        ),
        directed(TESTS + "test_terms.py::test_pre_vote_is_refused_while_the_leader_is_heard"),
    ),
    mutation(
        "S1.4-alive",
        "A leader that is heard, though it brings no record, counts as dead.",
        Edit(
            "VotingElector._leader_alive",
            "heard_ms is not None and now_ms - heard_ms < self._settings.sticky_ms",
            "False",
        ),
        directed(
            "tests/unit/engine/channel/test_replica_far_behind.py::"
            "test_replica_whose_appends_are_all_refused_or_lost_does_not_stand"
        ),
    ),
    mutation(
        "S1.5-later-record",
        "A record of a later term than ours passes.",
        Edit(
            "GuardedMachine.own_history",
            "history.term > self.term",
            "False",
        ),
        directed(
            TESTS + "test_guarded_machine.py::test_record_of_a_later_term_than_ours_stops_the_node"
        ),
    ),
    mutation(
        "S1.7-quorum",
        "Half of the voters elect.",
        Edit(
            "majority",
            "size // 2 + 1",
            "(size + 1) // 2",
        ),
        directed(
            "tests/unit/core/test_has_quorum.py::test_quorum_is_a_majority_of_distinct_voters"
        ),
    ),
    mutation(
        "S1.8-arm",
        "A follower that loses its leader's name waits for ever.",
        Edit(
            "VotingElector.on_role",
            "self._arm_wanted = True",
            "pass",
        ),
        directed(
            TESTS + "test_candidacy.py::test_follower_that_loses_its_leaders_name_is_armed",
            why="nodes suspect a channel without a claim by themselves (S1.8) and stand a "
            "moment later",
        ),
    ),
    mutation(
        "S8-removed",
        "A removed member gives up before its removal is committed.",
        Edit(
            "VotingElector._is_voter",
            "host.config().may_lead(own) or host.config_before().may_lead(own)",
            "host.config().may_lead(own)",
        ),
        directed(
            TESTS + "test_terms.py::test_removed_member_stands_until_its_removal_is_committed"
        ),
    ),
    mutation(
        "S9-transfer",
        "Anybody may call an election without a pre-vote.",
        Edit(
            "VotingElector._on_transfer_now",
            "message.term == self.term and self.leader == sender and self._is_voter()",
            "message.term == self.term and self._is_voter()",
        ),
        directed(TESTS + "test_candidacy.py::test_transfer_is_refused_from_anybody_but_the_leader"),
    ),
    mutation(
        "S12-term",
        "A replica stands for a term that no message has room for.",
        Edit(
            "VotingElector._may_stand",
            "self._host.may_stand()\n"
            "and self.term < TERM_MAX\n"
            "and (self._is_voter() or self._stands_last())",
            "self._host.may_stand()\nand (self._is_voter() or self._stands_last())",
        ),
        directed(
            TESTS + "test_candidacy.py::test_nobody_stands_for_a_term_that_no_message_has_room_for"
        ),
    ),
    mutation(
        "S13-two-leaders",
        "Two leaders of one term go unnoticed by the elector.",
        Edit(
            "GuardedMachine.check_only_leader",
            "self.term_leader not in (None, leader) or leader == self.me",
            "False",
        ),
        directed(TESTS + "test_terms.py::test_second_leader_in_one_term_stops_the_node"),
    ),
    mutation(
        "S1.1-world",
        "Votes and pre-votes compare the length of the logs and forget the terms.",
        Edit(
            "_HistorySlot.__lt__",
            "self.history < other.history",
            "self.history.seq < other.history.seq",
        ),
        Edit(
            "VotingElector._on_pre_vote",
            "message.history >= self._state.own_history()",
            "message.history.seq >= self._state.own_history().seq",
        ),
        worlds(
            seeds=range(1, 21),
            writers="10",
            rows_per_write_max="40",
            operations="1000",
            fault_interval_ms="200",
            payload_loss_percent="10",
        ),
    ),
    mutation(
        "S1.3-one-vote-counted-twice",
        "A repeated vote of one voter counts as the vote of another.",
        Edit(
            "VotingElector._on_vote_reply",
            "self._votes.add(ReplicaId(sender, message.replica))",
            "one = ReplicaId(sender, message.replica)\n"
            "every = [ReplicaId(v) for v in self._host.config().voters]\n"
            "missing = [v for v in every if v not in self._votes]\n"
            "again = one in self._votes and missing\n"
            "self._votes.add(missing[0] if again else one)",
        ),
        worlds(nodes="5", duplicate_message_percent="50", fault_interval_ms="200"),
    ),
    mutation(
        "S1.3-two-votes-in-a-term",
        "A voter grants its vote to everybody who asks in a term.",
        Edit(
            "VotingElector._on_request_vote",
            "self.voted_for == sender",
            "self.voted_for is not None",
        ),
        worlds(fault_interval_ms="200"),
    ),
    mutation(
        "S1.3-election-majority-off-by-one",
        "One voter less than a majority elects a leader and confirms its reads.",
        Edit(
            "has_quorum",
            "majority(len(voters))",
            "majority(len(voters)) - 1",
        ),
        worlds(),
    ),
    mutation(
        "S1.3-votes-of-an-earlier-term",
        "A candidate counts votes that were granted to it in an earlier term.",
        Edit(
            "VotingElector._on_vote_reply",
            "self.role is Role.CANDIDATE and message.vote_term == self.term",
            "self.role is Role.CANDIDATE",
        ),
        worlds(late_percent="25", duplicate_message_percent="30", fault_interval_ms="150"),
    ),
    mutation(
        "S3.1-quorum-off-by-one",
        "A record commits when one member less than a majority holds it.",
        Edit(
            "quorum_seq",
            "majority(len(seqs)) - 1",
            "max(0, majority(len(seqs)) - 2)",
        ),
        worlds(),
    ),
)
