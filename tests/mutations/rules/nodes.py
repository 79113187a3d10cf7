"""Mutations of how nodes join, drain and leave (M27 to M30)."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

COMMANDS = "tests/unit/engine/catalog/test_node_commands.py::test_"
CONTROLLER = "tests/unit/engine/catalog/test_controller_alone.py::test_"
MEMBERS = "tests/unit/policy/test_metadata_members.py::test_"
EVACUATION = "tests/unit/policy/test_evacuation.py::test_"

NODE_RULES: tuple[Mutation, ...] = (
    mutation(
        "M28-proof",
        "A node joins by a ticket whose secret it does not know.",
        Edit(
            "NodeCommands._why_not_join",
            "ticket is None or not is_proven(request.proof, ticket.stored_key, claim)",
            "ticket is None",
        ),
        directed(COMMANDS + "join_without_the_secret_is_refused"),
    ),
    mutation(
        "M28-nonce",
        "A proof that somebody listened to is good on another connection.",
        Edit("NodeCommands._nonce", 'client.to_bytes(8, "big")', "bytes(8)"),
        directed(COMMANDS + "nonce_is_another_on_each_connection"),
    ),
    mutation(
        "M28-stored-key",
        "A copy of the catalog is enough to join.",
        Edit(
            "is_proven",
            "hmac.compare_digest(stored_key(_mixed(proof, key, claim)), key)",
            "hmac.compare_digest(_mixed(proof, key, claim), key)",
        ),
        directed("tests/unit/protocol/test_tickets.py::test_stored_key_is_not_enough_to_join"),
    ),
    mutation(
        "M28-time",
        "A token's time is judged by the leader's clock, not by what its log has stated before.",
        Edit(
            "NodeCommands._time_ms",
            "max(self._wall_ms(), self._view.metadata.core.last_timestamp_ms + 1)",
            "self._wall_ms()",
        ),
        directed(
            COMMANDS + "ticket_lives_its_time_though_a_leader_before_had_a_clock_that_was_ahead",
            COMMANDS + "ticket_that_is_expired_by_the_log_alone_is_told_as_expired",
        ),
    ),
    mutation(
        "M28-stranger",
        "A node that joins gives up when a learned address is another's now, or its own.",
        Edit("Joining._ask", "is_foreign and address in self._token.seeds", "is_foreign"),
        directed(
            "tests/unit/node/test_joining.py::test_stranger_behind_a_learned_address_is_passed_over"
        ),
    ),
    mutation(
        "M29-up",
        "A node that is up is replaced without a question.",
        Edit("NodeCommands._why_not_replace", "self._is_up(node)", "False"),
        directed(COMMANDS + "node_that_is_up_is_not_replaced_without_force"),
    ),
    mutation(
        "M29-later",
        "A token replaces a node that has come back since, or that others are in need of now.",
        Edit("NodeCommands._why_not_yet", "not replaced", "True"),
        directed(
            COMMANDS + "node_that_is_needed_again_is_not_replaced_by_an_earlier_token",
        ),
    ),
    mutation(
        "M29-once-judged",
        "A second token for a place that was taken is refused beside no older node, nor in words.",
        Edit("_why_not_by_ticket", "ticket.replaces in catalog.retired", "False"),
        directed(
            COMMANDS + "second_token_for_a_place_that_was_taken_is_refused",
            COMMANDS + "token_for_the_place_of_a_node_that_was_removed_is_refused",
            COMMANDS
            + "place_is_taken_beside_an_older_node_and_the_second_token_is_refused_all_the_same",
        ),
    ),
    mutation(
        "M29-once-asked",
        "The log does not decide who takes a place, though every node would understand it.",
        Edit(
            "NodeCommands._join",
            "join_node_command(request.ticket, entry, node, is_once=is_once)",
            "join_node_command(request.ticket, entry, node, is_once=False)",
        ),
        directed(COMMANDS + "race_of_two_tokens_for_one_place_is_decided_by_the_log"),
    ),
    mutation(
        "M29-once-older",
        "A node that joins in the place of another is entered by a command that it cannot read.",
        Edit("NodeCommands._join", "request.level >= REPLACED_ONCE_LEVEL", "True"),
        directed(
            COMMANDS
            + "place_is_taken_beside_an_older_node_and_the_second_token_is_refused_all_the_same"
        ),
    ),
    mutation(
        "M28-deposed",
        "A node that joins gives up for the refusal of a leader that was deposed.",
        Edit("Joining._round", "self._refused_rounds == REFUSED_ROUNDS", "refusal"),
        directed(
            "tests/unit/node/test_joining.py::test_"
            "refusal_of_a_leader_that_was_deposed_ends_nothing"
        ),
    ),
    mutation(
        "M28-waits",
        "A node that joins reports that others do not lead, and not why the leader has it wait.",
        Edit("Joining._wait_because", "not self._is_leaders_why", "True"),
        directed(
            "tests/unit/node/test_joining.py::test_"
            "log_has_the_leaders_reason_and_not_that_others_do_not_lead"
        ),
    ),
    mutation(
        "M28-address",
        "A node joins at the address of another one that is up.",
        Edit("NodeCommands._why_not_here", "self._is_up(other)", "False"),
        directed(COMMANDS + "address_of_a_node_that_is_up_is_not_taken_by_another"),
    ),
    mutation(
        "M30-lone",
        "Nodes that drain and can give their replicas to nobody leave the catalog to one disk.",
        Edit("_voters", "node not in busy", "True"),
        directed(MEMBERS + "draining_voter_that_holds_replicas_waits_for_another_one_in_its_place"),
    ),
    mutation(
        "M30-last",
        "The last voter of the catalog that drains is to leave it to nobody.",
        Edit("_voters", "after or tuple(present)", "after"),
        directed(MEMBERS + "last_voter_keeps_the_catalog"),
    ),
    mutation(
        "M29-quorum",
        "A node is replaced where its channels lose their quorum by it.",
        Edit("NodeCommands._has_quorum_without", "2 * live > len(voters)", "True"),
        directed(COMMANDS + "node_is_not_replaced_where_a_quorum_would_be_lost"),
    ),
    mutation(
        "M27-replicas",
        "A node leaves with its replicas.",
        Edit("NodeCommands._why_not_retire", "not held", "True"),
        directed(COMMANDS + "node_with_replicas_does_not_leave"),
    ),
    mutation(
        "M27-views",
        "A retired node stays in every view.",
        Edit("CatalogController.endpoints", "node not in self.catalog.retired", "True"),
        directed(CONTROLLER + "retired_node_leaves_every_view"),
    ),
    mutation(
        "M27-handshake",
        "A retired node is taken for one that is not known yet.",
        Edit(
            "check_dialler",
            "NodeId(hello.node) in retired and hello.cluster_id == identity.cluster_id",
            "False",
        ),
        directed(
            "tests/unit/transport/test_handshake.py::"
            "test_m27_retired_node_is_refused_by_that_name_whatever_else_is_known"
        ),
    ),
    mutation(
        "M28-one-founding",
        "A store that takes part in a founding joins another cluster.",
        Edit(
            "StoreIdentity.record_joining",
            'self.accepted_proposal and (self.cluster_id or b"") != cluster_id',
            "False",
        ),
        directed(
            "tests/unit/storage/test_identity.py::"
            "test_store_that_takes_part_in_a_founding_joins_no_cluster"
        ),
    ),
    mutation(
        "M30-number",
        "A node opens the catalog under the number of a founder.",
        Edit(
            "CatalogController._open_metadata",
            "ReplicaNumber(self._identity.number)",
            "ReplicaNumber(0)",
        ),
        directed(CONTROLLER + "node_opens_the_catalog_under_its_number"),
    ),
    mutation(
        "M30-leader",
        "Members of the metadata channel are ordered by who does not lead it.",
        Edit(
            "CatalogController._lead_members",
            "runner.elector.role is not Role.LEADER or not runner.core.leader_is_ready",
            "False",
        ),
        directed(CONTROLLER + "follower_of_the_catalog_orders_nothing"),
    ),
    mutation(
        "M30-founders",
        "An upgrade changes the members of a cluster that nobody joined or left.",
        Edit("metadata_target", "config.change == 0 and not numbers", "False"),
        directed(MEMBERS + "cluster_of_founders_keeps_what_it_began_with"),
    ),
    mutation(
        "M30-draining-learns",
        "A node that drains gets no catalog any more.",
        Edit(
            "metadata_target",
            "node not in voters",
            "node not in voters and node not in leaving",
        ),
        directed(MEMBERS + "draining_voter_gives_its_place_and_learns_on"),
    ),
    mutation(
        "M30-under-way",
        "A change that is under way gets another number.",
        Edit("metadata_target", "bool(config.change) and not config.ended", "False"),
        directed(MEMBERS + "change_under_way_is_worked_on_until_it_has_ended"),
    ),
    mutation(
        "M29-few-at-a-time",
        "All replicas of a node are copied at once.",
        Edit("plan_evacuations", "moves.add(takes)", "pass"),
        directed(EVACUATION + "few_channels_move_at_a_time_and_each_once"),
    ),
    mutation(
        "M29-on-its-way",
        "Replicas on their way do not count, and the next ones go to the same nodes.",
        Edit(
            "HostedChannel.hosts",
            "{*self.voters, *self.learners, *self.takes}",
            "{*self.voters, *self.learners}",
        ),
        directed(EVACUATION + "replica_that_is_on_its_way_to_a_node_counts"),
    ),
    mutation(
        "M29-older",
        "A lost node of an older version can never be replaced.",
        Edit("NodeCommands._gone", "replaced and not self._is_up(replaced)", "False"),
        directed(COMMANDS + "lost_node_of_an_older_version_is_replaced"),
    ),
    mutation(
        "M29-older-up",
        "A node of an older version that is up is sent what it cannot read.",
        Edit("NodeCommands._gone", "not self._is_up(replaced)", "True"),
        directed(COMMANDS + "lost_node_of_an_older_version_is_replaced"),
    ),
    mutation(
        "M28-foreign-token",
        "A node of another cluster ignores the token by which it was to join.",
        Edit("check_token_agrees", "wanted != cluster_id", "False"),
        directed(
            "tests/unit/node/test_founding.py::test_store_of_another_cluster_does_not_join_by_a"
            "_token"
        ),
    ),
)
