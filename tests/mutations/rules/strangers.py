"""Mutations of nodes that the catalog does not name yet, and of what stays of those that go."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.rules.drawn_worlds import MEMBERS
from tests.mutations.syntax import Edit

STRANGERS = "tests/unit/engine/catalog/test_strangers.py::test_"
PLACE = "stranger_that_dials_gets_the_place_of_the_one_that_dialled_longest_ago"
KEPT = "stranger_that_is_connected_keeps_its_place_as_long_as_it_may_need"
COPIES = "copies_of_one_that_lost_its_place_are_forgotten_and_not_taken_again"
PEERS = "tests/integration/transport/test_peers.py::test_"
LINKS = "tests/simulation/test_member_links.py::test_"
BACK = "node_that_was_away_comes_back_under_a_leader_that_it_does_not_know"
ENDED = "tests/integration/transport/test_ended_peers.py::test_"

STRANGER_RULES: tuple[Mutation, ...] = (
    mutation(
        "S0.7-strangers-refused",
        "A node that was away refuses the leader that alone could name it for ever.",
        Edit("CatalogController.on_stranger", "self.metadata.elector.leader is None", "False"),
        MEMBERS,
        directed(
            LINKS + BACK,
            STRANGERS + "stranger_is_reachable_while_nobody_leads_the_metadata_channel_here",
        ),
    ),
    mutation(
        "S0.1-strangers-beside-a-leader",
        "Strangers are believed although there is a leader whose catalog would name them.",
        Edit("CatalogController.on_stranger", "self.metadata.elector.leader is None", "True"),
        directed(STRANGERS + "no_stranger_is_believed_beside_a_leader_or_when_it_was_retired"),
    ),
    mutation(
        "S0.1-strangers-registered",
        "A stranger is registered because it says so itself.",
        Edit("CatalogController.on_introduced", "node in self._strangers.endpoints", "False"),
        Edit("CatalogController.on_introduced", "node not in self.endpoints()", "False"),
        directed(STRANGERS + "stranger_is_reachable_while_nobody_leads_the_metadata_channel_here"),
    ),
    mutation(
        "S0.1-strangers-come-back",
        "One that lost its place while it was connected is a node from then on.",
        Edit("CatalogController.on_introduced", "node not in self.endpoints()", "False"),
        directed(STRANGERS + "all_that_came_of_a_stranger_goes_with_its_place"),
    ),
    mutation(
        "S0.7-strangers-replaced",
        "A node that was away refuses the leader that took the place of one it knew for ever.",
        Edit(
            "judge_dialler",
            "refusal.code in STRANGE",
            "refusal.code == GoodbyeCode.UNKNOWN_NODE",
        ),
        directed(LINKS + BACK, PEERS + "peer_that_is_not_the_one_we_know_is_refused"),
    ),
    mutation(
        "S0.1-strangers-known",
        "A node that is known is believed like a stranger.",
        Edit("CatalogController.on_stranger", "node in self.endpoints()", "False"),
        directed(STRANGERS + "no_stranger_is_believed_beside_a_leader_or_when_it_was_retired"),
    ),
    mutation(
        "S0.1-strangers-unbounded",
        "Any number of strangers is believed.",
        Edit("Strangers._has_place", "len(self.endpoints) < STRANGERS_MAX", "True"),
        directed(STRANGERS + PLACE),
    ),
    mutation(
        "S0.7-strangers-crowded",
        "Strangers that the catalog never names keep a leader out that nothing names for ever.",
        Edit("Strangers._has_place", "for other in self.endpoints: ...", "for other in (): ..."),
        directed(STRANGERS + PLACE),
    ),
    mutation(
        "S0.7-strangers-order",
        "One that dials again and again loses its place to one that dials once.",
        Edit("Strangers.renew", "self.endpoints[node] = self.endpoints.pop(node)", "pass"),
        directed(STRANGERS + PLACE),
    ),
    mutation(
        "S0.7-strangers-renewed",
        "One that was just connected loses its place before one that dialled longer ago.",
        Edit("CatalogController.on_introduced", "self._strangers.renew(node)", "pass"),
        directed(STRANGERS + PLACE),
    ),
    mutation(
        "S0.7-strangers-thrown-out",
        "Some that only dial throw a leader out before it has said that it leads.",
        Edit("Strangers._has_place", "not self._is_up(other)", "True"),
        directed(STRANGERS + KEPT),
    ),
    mutation(
        "S0.7-strangers-kept",
        "Sixteen that are connected keep a leader out that nothing names for ever.",
        Edit("Strangers._has_place", "now_ms - self._since_ms[other] >= KEPT_MS", "False"),
        directed(STRANGERS + KEPT),
    ),
    mutation(
        "S0.1-strangers-watched",
        "One that lost its place is watched as a peer, and its level counts, for ever.",
        Edit("Strangers._has_place", "self._on_ended(other, now_ms)", "pass"),
        directed(STRANGERS + PLACE, STRANGERS + "all_that_came_of_a_stranger_goes_with_its_place"),
    ),
    mutation(
        "S0.1-copies-left",
        "The copies that a node reported are kept when it has left.",
        Edit("CatalogController._forget", "self.copy_reports.forget(node)", "pass"),
        directed(STRANGERS + COPIES),
    ),
    mutation(
        "S0.1-copies-late",
        "A report of copies that comes late makes a node known again that has left.",
        Edit("CopyReports.on_message", "sender in self._known_level(REBALANCE_LEVEL)", "True"),
        directed(STRANGERS + COPIES),
    ),
    mutation(
        "S0.1-given-away-left",
        "What a node gave away is kept when it has left.",
        Edit("LagReports.forget_node", "self.on_given_away(node, (), 0)", "pass"),
        directed(
            "tests/unit/engine/peers/test_lag_reports_alone.py"
            "::test_nothing_is_kept_of_a_node_that_left"
        ),
    ),
    mutation(
        "S0.1-gaps-left",
        "That a node is to hear of the end of gaps is kept when it has left.",
        Edit("GapReports.node_left", "self._is_reported.pop(node, None)", "pass"),
        directed(
            "tests/unit/engine/peers/test_gap_reports.py::test_nothing_is_kept_of_a_node_that_left"
        ),
    ),
    mutation(
        "S0.1-ended",
        "Connections of a peer that is believed no more stay, and it is dialled.",
        Edit("PeerNetwork.set_peers", "peer not in others", "peer in retired"),
        directed(
            ENDED + "connections_of_a_peer_end_when_it_is_named_no_more",
            ENDED + "peer_that_is_named_no_more_is_dialled_and_counted_no_more",
        ),
    ),
    mutation(
        "M27-ended",
        "A peer that is believed no more is told that it was retired, and stops for ever.",
        Edit("PeerNetwork.set_peers", "gone in retired", "True"),
        directed(ENDED + "connections_of_a_peer_end_when_it_is_named_no_more"),
    ),
    mutation(
        "M27-unnamed",
        "One that joined and left while a node was away never hears from it that it was retired.",
        Edit("Turns._follow_endpoints", "retired != self._retired", "False"),
        directed(
            "tests/unit/node/test_turns.py"
            "::test_network_is_told_who_left_although_no_address_changed_with_it"
        ),
    ),
    mutation(
        "S0.1-ended-meanwhile",
        "A connection that was taken over while its peer ended stays as long as the peer likes.",
        Edit("AcceptedPeers.on_open", "not self._knows(peer)", "False"),
        directed(ENDED + "connection_that_was_being_taken_over_when_its_peer_ended_ends_too"),
    ),
    mutation(
        "S0.1-ended-notes",
        "Notes of peers that have ended are kept.",
        Edit("AcceptedPeers.end", "self._notes.forget(peer)", "pass"),
        directed(ENDED + "what_was_noted_of_a_peer_ends_with_it"),
    ),
    mutation(
        "S0.7-strangers-unheard",
        "Nobody hears of a peer that was refused as unknown.",
        Edit(
            "judge_dialler",
            "on_stranger(NodeId(hello.node), hello.advertise)",
            "pass",
        ),
        directed(LINKS + BACK, PEERS + "peer_that_is_not_the_one_we_know_is_refused"),
    ),
)
