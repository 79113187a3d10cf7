"""Mutations of repairs: payloads and writes that one replica misses and another one has."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

CORE = "tests/unit/core/test_payload_repair.py::test_"
NODES = "tests/unit/engine/channel/test_payload_repairs.py::test_"
GAPS = "tests/unit/engine/peers/test_gap_reports.py::test_"
MATCH = CORE + "payload_that_does_not_match_its_metadata_is_not_taken"
RELAYED = CORE + "relayed_write_that_was_not_offered_so_is_not_judged"

PAYLOAD_RULES: tuple[Mutation, ...] = (
    mutation(
        "S5.2-given",
        "A payload that another replica gives is held although no StoreRequest describes it.",
        Edit(
            "PayloadRepair.on_response",
            "(found.guid, found.digest, len(found.payload)) not in wanted",
            "False",
        ),
        directed(CORE + "what_nobody_asked_for_is_not_held"),
    ),
    mutation(
        "S5.2-given-guid",
        "A payload that another replica gives is taken for another write's.",
        Edit(
            "PayloadRepair.on_response",
            "(found.guid, found.digest, len(found.payload)) not in wanted",
            "(found.digest, len(found.payload)) not in {each[1:] for each in wanted}",
        ),
        directed(MATCH + "[guid]"),
    ),
    mutation(
        "S5.2-given-content",
        "A payload that another replica gives is held although it is not what its digest says.",
        Edit(
            "PayloadRepair.on_response",
            "digest_of(found.payload) != found.digest",
            "False",
        ),
        directed(MATCH + "[content]"),
    ),
    mutation(
        "S5.4-other-answer",
        "An answer to another question, or of another node, counts for the one that is open.",
        Edit(
            "PayloadRepair.on_response",
            "sender != self._asked[-1]",
            "False",
        ),
        directed(CORE + "answer_of_another_request_or_node_is_not_taken"),
    ),
    mutation(
        "S5.4-sources",
        "A follower asks all replicas, however many, before it catches up.",
        Edit("PayloadRepair.begin", "len(self._asked) >= SOURCES_MAX", "False"),
        directed(CORE + "no_more_sources_are_asked_than_the_bound"),
    ),
    mutation(
        "S5.4-large-gap",
        "A follower that lacks many payloads asks for them all the same.",
        Edit("PayloadRepair.begin", "len(self._missing()) > PAYLOADS_MAX", "False"),
        directed(CORE + "large_gap_is_left_to_catch_up[65]"),
    ),
    mutation(
        "S5.4-last-resort",
        "A follower that asked everybody for a payload waits for it without end.",
        Edit(
            "Follower._ask_next_source",
            'self._leave_steady("missing_pubmsg", seq)',
            "self._payload_wait = None",
        ),
        directed(CORE + "large_gap_is_left_to_catch_up[65]"),
    ),
    mutation(
        "S5.4-first",
        "A follower that lacks one payload catches up at once.",
        Edit("Follower._ask_next_source", "self._repair.begin(seq)", "False"),
        directed(NODES + "follower_gets_a_lost_payload_from_the_leader_without_a_catch_up"),
    ),
    mutation(
        "S5.2-given-from-log",
        "A replica gives the payload of another record at that seq.",
        Edit(
            "PayloadRepairs._stored",
            "(record.guid, record.digest) == (wanted.guid, wanted.digest)",
            "True",
        ),
        directed(NODES + "payload_in_the_log_is_given_if_it_is_the_one_that_was_meant"),
    ),
    mutation(
        "S5.4-source-gap",
        "A replica that reported to miss the payload is asked for it.",
        Edit("next_source", "not logs[node].misses(seq)", "True"),
        directed(NODES + "leader_is_asked_first_then_who_reports_most"),
    ),
    mutation(
        "S5.6-offer-other-leader",
        "A write is offered to a leader that it is not addressed to.",
        Edit(
            "OfferingFollower.on_timer",
            "(write.leader, write.term) == (state.leader, state.term)",
            "True",
        ),
        directed(CORE + "write_addressed_to_another_is_not_offered"),
    ),
    mutation(
        "S5.6-relay-other-leader",
        "A write is given to a leader that it is not addressed to.",
        Edit(
            "OfferingFollower.on_request",
            "(write.leader, write.term) != (state.leader, state.term)",
            "False",
        ),
        directed(CORE + "only_the_leader_is_given_writes"),
    ),
    mutation(
        "S5.6-fetched-for-other",
        "A leader judges a relayed write that is addressed to another, or of another term.",
        Edit(
            "FetchingLeader.on_relayed",
            "(write.channel, write.leader, write.term) != (state.channel, state.me, state.term)",
            "False",
        ),
        directed(RELAYED + "[leader]", RELAYED + "[term]"),
    ),
    mutation(
        "S5.6-fetched-refused",
        "A leader fetches a write that it refused, whose publisher got NOT_APPLIED.",
        Edit("Sequencer.knows", "is_refused", "False"),
        directed(NODES + "refused_write_is_not_fetched"),
    ),
    mutation(
        "S5.6-fetched-unlike",
        "A leader judges a relayed write that is not the one that was offered.",
        Edit(
            "FetchingLeader.on_relayed",
            "(write.digest, len(write.payload), write.attempt) != described",
            "False",
        ),
        directed(RELAYED + "[digest]", RELAYED + "[length]", RELAYED + "[attempt]"),
    ),
    mutation(
        "S5.6-fetched-many",
        "A leader asks for any number of writes at once.",
        Edit(
            "FetchingLeader.on_offer",
            "write.guid in asked or len(asked) >= PAYLOADS_MAX",
            "write.guid in asked",
        ),
        directed(CORE + "writes_under_way_to_the_leader_are_bounded"),
    ),
    mutation(
        "S4.4-relayed-refusal",
        "A refusal of a relayed copy is sent to the publisher as if it answered its own attempt.",
        Edit(
            "RelayedWrites.reply",
            "isinstance(message, PubAck) and node in self._nodes_at_level(PAYLOAD_LEVEL)",
            "node in self._nodes_at_level(PAYLOAD_LEVEL)",
        ),
        directed(NODES + "each_node_has_a_handle_of_its_own_and_hears_of_commits_only"),
    ),
    mutation(
        "S12-repair-level",
        "A node that does not know them is sent messages of repairs.",
        Edit(
            "PayloadRepairs._send",
            "to in self._nodes_at_level(LEVEL_OF_MESSAGE[type(message)])",
            "True",
        ),
        directed(NODES + "nothing_is_said_to_a_node_that_does_not_know_it"),
    ),
    mutation(
        "S12-gaps-level",
        "A node that does not know it is sent a GapReport.",
        Edit("GapReports.report", "node in self._parts.nodes_at_level(GAP_REPORT_LEVEL)", "True"),
        directed(GAPS + "gaps_are_told_to_who_knows_them_and_their_end_once"),
    ),
    mutation(
        "S0.8-gaps-known",
        "A report of gaps makes a channel known.",
        Edit("GapReports.on_report", "self._parts.exists(found.channel)", "True"),
        directed(GAPS + "each_report_replaces_the_one_before"),
    ),
)
