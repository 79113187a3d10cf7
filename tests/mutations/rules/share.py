"""Mutations of what clients make a node hold: shares, ends, and the longest time (S12)."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

IDLE = "tests/integration/client/test_idle_clients.py::test_"
STEP_DOWNS = "tests/unit/engine/catalog/test_step_down_limit.py::test_"
BOUNDS = "tests/integration/transport/test_client_bounds.py::test_"
GONE = "tests/unit/engine/test_clients_gone.py::test_"
SHARES = "tests/unit/engine/test_shares.py::test_"

SHARE_RULES: tuple[Mutation, ...] = (
    mutation(
        "S12-client-share",
        "One client may hold what all of them may.",
        Edit(
            "Shares.refusal",
            "held + amount > limit",
            "held + amount > TOTAL_PER_LIMIT * limit",
        ),
        directed(
            SHARES + "one_client_alone_holds_as_many_as_the_limit_says",
            GONE + "reads_that_wait_for_ever_take_no_place_of_others",
        ),
    ),
    mutation(
        "S12-largest-yields",
        "Some connections together keep all others out.",
        Edit(
            "Shares.refusal",
            "not self._take_back(held + amount)",
            "True",
        ),
        directed(SHARES + "more_connections_give_nobody_more_than_an_equal_part"),
    ),
    mutation(
        "S12-least-share",
        "Where nothing can be taken back a newcomer finds no place at all.",
        Edit(
            "Shares.refusal",
            "self.total + amount <= total or held + amount <= max(1, total // CLIENTS_AT_ONCE)",
            "self.total + amount <= total",
        ),
        directed(
            SHARES + "who_holds_next_to_nothing_finds_a_place_where_nothing_can_be_taken_back"
        ),
    ),
    mutation(
        "S12-client-gone",
        "What a client waited for stays when the client is gone.",
        Edit(
            "ClientInbox.on_gone",
            "self._reader.on_client_gone(client)",
            "",
        ),
        directed(
            GONE + "what_a_client_waited_for_ends_with_it[read]",
            GONE + "what_a_client_waited_for_ends_with_it[pin]",
        ),
    ),
    mutation(
        "S12-client-gone-batches",
        "Requests about batches outlive their client.",
        Edit(
            "ClientInbox.on_gone",
            "self._batches.on_client_gone(client)",
            "",
        ),
        directed(
            GONE + "what_a_client_waited_for_ends_with_it[state of a commit]",
            GONE + "commands_and_batches_end_with_their_client",
        ),
    ),
    mutation(
        "S12-client-gone-commands",
        "Commands outlive their client.",
        Edit(
            "ClientInbox.on_gone",
            "self._commands.on_client_gone(client)",
            "",
        ),
        directed(GONE + "commands_and_batches_end_with_their_client"),
    ),
    mutation(
        "S12-client-gone-hashes",
        "Channels are read for clients that are gone.",
        Edit(
            "ClientInbox.on_gone",
            "self._hashes.on_client_gone(client)",
            "",
        ),
        directed(GONE + "content_hashes_of_a_client_that_is_gone_are_not_computed"),
    ),
    mutation(
        "S12-client-gone-core",
        "The places of the core's read rounds are kept for clients that are gone.",
        Edit(
            "Replica._dispatch",
            "if self._leader is not None:\n    self._leader.reads.drop(tokens)",
            "pass",
        ),
        directed(GONE + "reads_without_a_quorum_end_with_their_client_in_the_core_too"),
    ),
    mutation(
        "S12-orphan-pins",
        "Pins of clients that are gone keep others out.",
        Edit(
            "Scans._pin",
            "self._unpin(self._pins[pin])",
            "continue",
        ),
        directed(GONE + "pins_of_a_client_that_is_gone_are_read_on_and_make_room"),
    ),
    mutation(
        "S12-longest-time",
        "A client says how long a node holds something for it.",
        Edit(
            "ClientInbox._take",
            "getattr(message, name, 0) > most_ms",
            "False",
        ),
        directed(GONE + "a_clients_patience_has_an_end"),
    ),
    mutation(
        "S12-far-positions",
        "Each write looks at all who wait for a later position.",
        Edit(
            "WaitingReads.reached",
            "(*self._positions.take_reached(channel, applied), *self.unproven(channel))",
            "self.of_channel(channel)",
        ),
        directed(GONE + "waiting_reads_cost_nothing_while_others_write"),
    ),
    mutation(
        "S12-client-copies",
        "Copies of a client's writes fill the memory channel by channel.",
        Edit(
            "PendingPayloads.hold",
            "room is None or room.admit(client, self._channel, guid, digest, size)",
            "True",
        ),
        directed(GONE + "copies_of_one_client_are_bounded_over_all_channels_and_leave_room"),
    ),
    mutation(
        "S12-client-writes",
        "Writes of one client that have no outcome fill the memory channel by channel.",
        Edit(
            "RequestHandler.on_publish",
            "refusal = refusal or self._writes.begin(client, message)",
            "",
        ),
        directed(GONE + "writes_without_an_outcome_are_bounded_by_client"),
    ),
    mutation(
        "S12-half-frames",
        "Half frames of all clients together have no bound.",
        Edit(
            "HeldBytes.look",
            "self.total > self._bytes_max",
            "False",
        ),
        directed(
            BOUNDS + "half_frames_of_all_connections_have_one_bound_and_their_memory_is_given_back",
            BOUNDS + "answers_that_nobody_reads_have_one_bound_for_all",
        ),
    ),
    mutation(
        "S12-half-frames-fair",
        "The client with the largest frame is cut off, however fast it sends.",
        Edit(
            "HeldBytes._cost",
            "held * max(LEAST_AGE_S, self._now_s() - since_s)",
            "held",
        ),
        directed(BOUNDS + "large_frame_of_an_honest_client_goes_through_among_slow_ones"),
    ),
    mutation(
        "S12-half-frames-memory",
        "What came of a frame is kept until its connection is gone.",
        Edit(
            "FramedProtocol._end",
            "self._buffer = ReceiveBuffer(HELLO_BYTES_MAX)",
            "",
        ),
        directed(
            BOUNDS + "half_frames_of_all_connections_have_one_bound_and_their_memory_is_given_back"
        ),
    ),
    mutation(
        "S12-frame-deadline",
        "A frame may take for ever.",
        Edit(
            "AcceptedClients._sweep",
            "connection.is_reading and 1000 * (now_s - since_s) > frame_ms",
            "False",
        ),
        directed(BOUNDS + "frame_that_does_not_become_complete_ends_its_connection"),
    ),
    mutation(
        "S12-first-frame",
        "A node reads megabytes of whom it does not know yet.",
        Edit(
            "FramedProtocol.__init__",
            "HELLO_BYTES_MAX,",
            "",
        ),
        directed(
            "tests/integration/transport/test_client_connection.py::"
            "test_first_frame_of_a_node_is_small"
        ),
    ),
    mutation(
        "S12-founders",
        "Founders of a cluster may send as much as clients.",
        Edit(
            "PeerNetwork.__init__",
            "frame_bytes_max=BIRTH_BYTES_MAX,",
            "",
        ),
        directed(BOUNDS + "founder_sends_small_frames_only"),
    ),
    mutation(
        "S12-idle-places",
        "Connections that are only held open keep all others out.",
        Edit(
            "Places.longest_idle",
            "self._is_idle(handle, connection)",
            "False",
        ),
        directed(BOUNDS + "longest_idle_client_makes_room_and_who_waits_does_not"),
    ),
    mutation(
        "S12-idle-waits",
        "A client that waits for an answer loses its place.",
        Edit(
            "AcceptedClients._is_idle",
            "connection.partial_bytes or connection.queued_bytes or self._waits(handle)",
            "connection.partial_bytes or connection.queued_bytes",
        ),
        directed(
            BOUNDS + "longest_idle_client_makes_room_and_who_waits_does_not",
            BOUNDS + "connection_that_asks_nothing_is_closed_after_a_while",
        ),
    ),
    mutation(
        "S12-idle-limit",
        "Connections that nobody uses stay for ever.",
        Edit(
            "Places.idle_since",
            "connection.heard_s <= before_s",
            "False",
        ),
        directed(BOUNDS + "connection_that_asks_nothing_is_closed_after_a_while"),
    ),
    mutation(
        "S12-operators",
        "Operators have no places of their own.",
        Edit(
            "AcceptedClients._places_of",
            "self._operators if is_operator else self._places",
            "self._places",
        ),
        directed(BOUNDS + "operator_gets_in_when_all_places_are_taken"),
    ),
    mutation(
        "S12-turns",
        "One client's messages are all taken before others have their turn.",
        Edit(
            "AcceptedClients.adopt",
            "taken_at_once=TAKEN_AT_ONCE,",
            "",
        ),
        directed(
            BOUNDS + "client_that_sends_thousands_of_requests_at_once_leaves_others_their_turn"
        ),
    ),
    mutation(
        "S12-rest",
        "A node spends its time on refusing.",
        Edit(
            "PeerNetwork.reply",
            "self._clients.rest(client)",
            "pass",
        ),
        directed(BOUNDS + "client_that_is_told_to_ask_less_is_not_heard_for_a_moment"),
    ),
    mutation(
        "S12-dismissed",
        "Idle clients take each other's places without end.",
        Edit(
            "NodeLink._on_lost",
            "error.code == GoodbyeCode.IDLE",
            "False",
        ),
        directed(IDLE + "client_whose_place_was_taken_does_not_come_back_by_itself"),
    ),
    mutation(
        "S12-step-downs-client",
        "One client takes all that a channel bears of changing its leader.",
        Edit(
            "StepDownLimit.refusal",
            "((channel, client), CLIENT_BURST),",
            "",
        ),
        directed(STEP_DOWNS + "one_client_leaves_something_for_another"),
    ),
    mutation(
        "S12-step-downs-channel",
        "Many connections have a channel change its leader without end.",
        Edit(
            "StepDownLimit.refusal",
            "((channel, _ALL), CHANNEL_BURST),",
            "",
        ),
        directed(STEP_DOWNS + "more_connections_give_nobody_more"),
    ),
    mutation(
        "S12-step-downs",
        "Leaders hand over as often as anybody asks them to.",
        Edit(
            "RequestHandler._step_down",
            "refusal is not None",
            "False",
        ),
        directed(STEP_DOWNS + "flood_of_requests_moves_a_leadership_few_times"),
    ),
)
