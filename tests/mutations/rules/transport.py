"""Mutations of wire and transport: S0.1, S0.7, S12, damaged bytes, bounds, and heartbeats."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

CLIENT = "tests/integration/transport/test_client_connection.py::test_"
SERVED = "tests/integration/transport/test_served_clients.py::test_"
FRAMES = "tests/unit/protocol/test_framing.py::test_"
BODIES = "tests/unit/protocol/test_codec.py::test_"
STALLED = "tests/integration/transport/test_heartbeats.py::test_node_that_stands_still_"
PEERS = "tests/integration/transport/test_peers.py::test_"
ENDPOINTS = "tests/integration/transport/test_endpoints.py::test_"
HANDSHAKES = "tests/unit/transport/test_handshake.py::test_"
RANGES = "tests/unit/protocol/test_ranges.py::test_"
MOVED = "tests/integration/transport/test_moved_peers.py::test_"
DIALER = "tests/integration/transport/test_dialer.py::test_"
HEARTBEATS = "tests/integration/transport/test_heartbeats.py::test_"
SERVER = "tests/integration/transport/test_server.py::test_"

TRANSPORT_RULES: tuple[Mutation, ...] = (
    mutation(
        "S0.1-acceptor",
        "Another store at a peer's address gets its messages.",
        Edit(
            "check_acceptor",
            "refusal is None and hello.node != expected",
            "False",
        ),
        directed(HANDSHAKES + "acceptor_is_refused_when_it_is_not_who_was_dialled"),
    ),
    mutation(
        "S0.1-dialler",
        "Another store is heard in a peer's name.",
        Edit(
            "_check_peer",
            "hello.node in known",
            "True",
        ),
        directed(PEERS + "peer_that_is_not_the_one_we_know_is_refused"),
    ),
    mutation(
        "S0.4-blame",
        "A node that finds its own store damaged blames the sender of the message, and goes on.",
        Edit(
            "FramedProtocol._take_body",
            "self._take(message, HEADER_BYTES + len(body))",
            "try:\n"
            "    self._take(message, HEADER_BYTES + len(body))\n"
            "except RemoteProtocolError as error:\n"
            "    self._refuse(error)",
        ),
        directed(PEERS + "error_of_the_node_is_not_blamed_on_the_sender_of_the_message"),
    ),
    mutation(
        "S0.7-moved",
        "A peer that moved is dialled where it was.",
        Edit(
            "PeerNetwork.set_peers",
            "dialer.endpoint = endpoint",
            "",
        ),
        directed(MOVED + "peer_is_found_again_at_its_new_address"),
    ),
    mutation(
        "S0.7-others",
        "News of one peer's address sends the node back to where another one was.",
        Edit(
            "PeerNetwork.set_peers",
            "{peer: at for peer, at in others.items() if at != self._known.get(peer)}",
            "{peer: at for peer, at in others.items() }",
        ),
        directed(MOVED + "peer_that_moved_is_dialled_there_although_another_one_moves_too"),
    ),
    mutation(
        "S0.7-meanwhile",
        "A peer that says where it is while it is dialled elsewhere has to wait.",
        Edit(
            "Dialer._run",
            "refused = await self._dial()",
            "refused = await self._dial()\nself._wake.clear()",
        ),
        directed(
            DIALER
            + "peer_that_says_where_it_is_while_it_is_dialled_elsewhere_is_dialled_there_next"
        ),
    ),
    mutation(
        "S0.7-says",
        "A peer that says where it is now is dialled where it was.",
        Edit(
            "Dialer.hurry",
            "self.endpoint = advertised or self.endpoint",
            "del advertised",
        ),
        directed(MOVED + "peer_that_moved_is_dialled_where_it_says_it_is_now"),
    ),
    mutation(
        "S1.8-signs",
        "Heartbeats wait behind elections, and count as missed.",
        Edit(
            "ControlLoop._arrived",
            "self._signs if is_sign else self._news",
            "self._news",
        ),
        directed(HEARTBEATS + "heartbeats_are_told_before_everything_that_waits"),
    ),
    mutation(
        "S1.8-new",
        "Heartbeats that say something new wait for the next word of having listened.",
        Edit(
            "ControlLoop._says_nothing_new",
            "self._expected.get(peer) == said",
            "bool(said) and peer in self._expected",
        ),
        directed(
            HEARTBEATS + "heartbeats_that_say_nothing_new_cost_the_main_loop_no_turn_of_their_own"
        ),
    ),
    mutation(
        "S1.8-before",
        "A heartbeat from before a loss brings the peer back after it.",
        Edit(
            "PeerNetwork._on_bulk_lost",
            "self._control.tell_signs()",
            "pass",
        ),
        directed(HEARTBEATS + "heartbeats_from_before_a_loss_are_told_before_it"),
    ),
    mutation(
        "S12-cluster",
        "A node of another cluster is heard.",
        Edit(
            "check_dialler",
            "_check_peer_cluster(hello, identity) or _check_peer(hello, identity, peers)",
            "_check_peer(hello, identity, peers)",
        ),
        directed(PEERS + "peer_that_is_not_the_one_we_know_is_refused"),
    ),
    mutation(
        "S12-dialled",
        "A connection that is meant for another node ends the one by which that peer means this.",
        Edit("_check_peer", 'hello.dialled not in ("", identity.node)', "False"),
        directed(
            HANDSHAKES + "dialler_that_means_another_node_is_told_who_is_here",
            MOVED + "node_that_is_dialled_for_another_one_keeps_what_that_peer_has_with_it",
        ),
    ),
    mutation(
        "S12-means",
        "A dialler does not say whom it means.",
        Edit(
            "Dialer._protocol",
            "self._identity.hello(self._purpose, self.peer)",
            "self._identity.hello(self._purpose)",
        ),
        directed(MOVED + "dialler_says_whom_it_means"),
    ),
    mutation(
        "S12-acceptor-cluster",
        "A node of another cluster gets messages.",
        Edit(
            "check_acceptor",
            "refusal is None and hello.cluster_id != identity.cluster_id",
            "False",
        ),
        directed(HANDSHAKES + "acceptor_is_refused_when_it_is_not_who_was_dialled"),
    ),
    mutation(
        "S12-client-cluster",
        "A client of another cluster is served.",
        Edit(
            "check_dialler",
            'hello.cluster_id in (b"", identity.cluster_id)',
            "True",
        ),
        directed(CLIENT + "client_of_another_cluster_is_refused"),
    ),
    mutation(
        "S12-sender",
        "A message counts for the peer that connected first.",
        Edit(
            "AcceptedPeers.on_message",
            "self._connections[connection]",
            "next(iter(self._connections.values()))",
        ),
        directed(PEERS + "messages_arrive_whole_in_order_and_with_their_sender"),
    ),
    mutation(
        "S12-purpose",
        "Any message is taken on any connection.",
        Edit(
            "FramedProtocol._take",
            "self.state is State.OPEN and type(message) in self._accepts",
            "self.state is State.OPEN",
        ),
        directed(PEERS + "connection_that_breaks_the_protocol_is_closed_and_no_other"),
    ),
    mutation(
        "S6.6-connection",
        "Real nodes end the connection on which they are asked for a replica snapshot.",
        Edit("TO_ACCEPTOR", "ReplicaSnapshotMessage,", ""),
        directed(
            "tests/unit/transport/test_handshake.py::test_every_message_is_taken_on_some_connection"
        ),
    ),
    mutation(
        "S12-control",
        "Replication travels on the connections of heartbeats.",
        Edit(
            "TO_ACCEPTOR",
            "_members(ElectionMessage, NodeMessage, GapReport, LeaderMoveMessage, TrimmingMessage, "
            "CopyReport, MachineMessage)",
            "_members(ReplicationMessage, ElectionMessage, NodeMessage)",
        ),
        directed(PEERS + "connection_that_breaks_the_protocol_is_closed_and_no_other"),
    ),
    mutation(
        "transport-name-hangs",
        "Each attempt to reach a host whose name server hangs costs another thread.",
        Edit(
            "NameLookups.addresses",
            "found is None",
            "True",
        ),
        directed(
            "tests/unit/transport/test_names.py::"
            "test_name_that_hangs_has_one_thread_and_delays_no_other"
        ),
    ),
    mutation(
        "wire-checksum",
        "Damaged bytes are taken for a message.",
        Edit(
            "_check_body",
            "found != checksum",
            "False",
        ),
        directed(FRAMES + "damaged_body_is_refused_with_both_checksums"),
    ),
    mutation(
        "wire-version",
        "Frames of another protocol version are read.",
        Edit(
            "_check_header",
            "version != PROTOCOL_VERSION",
            "False",
        ),
        directed(FRAMES + "other_version_is_refused_with_both_versions"),
    ),
    mutation(
        "wire-newer-kind",
        "A record that only newer versions know counts as a broken message.",
        Edit(
            "decode",
            "str(error).startswith(_UNKNOWN_KIND)",
            "False",
        ),
        directed(BODIES + "record_of_an_unknown_kind_is_told_apart_from_a_broken_message"),
    ),
    mutation(
        "transport-newer-told",
        "Connections end for another version without a word, or with one line each time.",
        Edit(
            "VersionNotes.on_closed",
            "self._logged.get((peer, reason.code)) == remote.boot_id",
            "False",
        ),
        directed(PEERS + "record_that_only_a_newer_version_knows_is_told_once_by_both_sides"),
    ),
    mutation(
        "wire-length",
        "A connection before its Hello makes a node wait for a body of any size.",
        Edit(
            "_check_header",
            "if length > bytes_max: ...",
            "if False: ...",
        ),
        directed(FRAMES + "length_over_the_limit_is_refused_before_a_body_is_kept"),
    ),
    mutation(
        "wire-own-length",
        "A frame is sent that every reader refuses.",
        Edit(
            "encode_frame",
            "length > FRAME_BYTES_MAX",
            "False",
        ),
        directed(FRAMES + "body_over_the_limit_is_not_sent"),
    ),
    mutation(
        "wire-over",
        "A stream is read on behind a bad frame.",
        Edit(
            "ReceiveBuffer.feed",
            "self.failure = error",
            "",
        ),
        directed(FRAMES + "bodies_before_a_bad_frame_are_delivered_and_none_after_it"),
    ),
    mutation(
        "wire-identities",
        "Identities of any length are accepted.",
        Edit(
            "ChannelId",
            "Annotated[bytes, Meta(min_length=CHANNEL_ID_BYTES, max_length=CHANNEL_ID_BYTES)]",
            "bytes",
        ),
        directed(BODIES + "value_that_receivers_count_with_is_refused_outside_its_range"),
    ),
    mutation(
        "wire-rows",
        "A publisher announces any number of rows.",
        Edit(
            "RecordRows",
            "ge=1, le=RECORD_ROWS_MAX,",
            "ge=0,",
        ),
        directed(BODIES + "value_that_receivers_count_with_is_refused_outside_its_range"),
    ),
    mutation(
        "wire-range",
        "A number on the wire has no range, and ends the node that counts with it.",
        Edit(
            "Partition",
            "Annotated[int, Meta(ge=0, le=PARTITION_MAX)]",
            "int",
        ),
        directed(RANGES + "every_number_on_the_wire_and_in_the_log_has_a_range"),
    ),
    mutation(
        "wire-range-refused-alone",
        "One number outside its range ends the connection with all other requests on it.",
        Edit(
            "FramedProtocol._is_answered",
            "error.request_id is not None",
            "False",
        ),
        directed(SERVED + "request_with_a_number_outside_its_range_is_refused_alone"),
    ),
    mutation(
        "wire-malformed-told",
        "A peer's nonsense ends its connection and no line of the log says why.",
        Edit(
            "_LOGGED",
            "GoodbyeCode.MALFORMED,",
            "",
        ),
        directed(PEERS + "peer_that_sends_a_number_outside_its_range_is_cut_off_and_told_of_once"),
    ),
    mutation(
        "transport-version",
        "A handshake with another protocol version succeeds.",
        Edit(
            "check_version",
            "hello.protocol_version == PROTOCOL_VERSION",
            "True",
        ),
        directed(PEERS + "peer_that_is_not_the_one_we_know_is_refused"),
    ),
    mutation(
        "transport-replaced",
        "An older connection of the same peer is heard on.",
        Edit(
            "AcceptedPeers.adopt",
            "other == peer",
            "False",
        ),
        directed(PEERS + "newer_connection_of_a_peer_replaces_the_older"),
    ),
    mutation(
        "transport-queue",
        "What waits for a slow peer has no bound.",
        Edit(
            "FramedProtocol.send",
            "self.queued_bytes + size > self._queue_bytes_max",
            "False",
        ),
        directed(PEERS + "message_over_a_full_queue_is_dropped_and_the_connection_stays"),
    ),
    mutation(
        "transport-slow-client",
        "A client that does not read its answers stays and misses some.",
        Edit(
            "AcceptedClients.send",
            "connection.is_open",
            "False",
        ),
        directed(SERVED + "client_that_does_not_read_is_closed"),
    ),
    mutation(
        "transport-clients",
        "Any number of clients is connected.",
        Edit(
            "AcceptedClients.on_open",
            "not self._has_place(places)",
            "False",
        ),
        directed(SERVED + "clients_over_the_limit_are_sent_away"),
    ),
    mutation(
        "transport-pause",
        "Clients are read while the disk is behind.",
        Edit(
            "AcceptedClients.pause",
            "connection.pause_reading()",
            "pass",
        ),
        directed(SERVED + "paused_clients_are_heard_after_the_pause_and_peers_meanwhile"),
    ),
    mutation(
        "transport-lane",
        "Queries wait while the disk is behind with writes.",
        Edit(
            "_may_write",
            "connection.remote.purpose not in (Purpose.QUERY, Purpose.OPERATOR)",
            "True",
        ),
        directed(SERVED + "queries_are_taken_while_the_writes_of_clients_are_paused"),
    ),
    mutation(
        "transport-pause-newcomers",
        "A client that connects while the disk is behind is read all the same.",
        Edit(
            "FramedProtocol.connection_made",
            "self._is_stopped",
            "False",
        ),
        directed(SERVED + "client_that_connects_during_the_pause_waits_for_its_end"),
    ),
    mutation(
        "transport-lane-writes",
        "Writes get around the back-pressure by the lane for queries.",
        Edit(
            "TO_ACCEPTOR",
            "Purpose.QUERY: _members(ClientRequest, BatchRequest),",
            "Purpose.QUERY: _members(PubMsg, ClientRequest, BatchRequest),",
        ),
        directed(SERVED + "write_on_a_connection_for_queries_ends_it"),
    ),
    mutation(
        "transport-greetings",
        "Silent connections use up a node's files.",
        Edit(
            "Server._on_accepted",
            "len(self._greeting) >= GREETINGS_MAX",
            "False",
        ),
        directed(SERVER + "silent_connections_make_room_for_others"),
    ),
    mutation(
        "transport-hello-time",
        "A silent connection is waited for without end.",
        Edit(
            "Server._read_hello",
            "HELLO_TIMEOUT_MS / 1000",
            "None",
        ),
        directed(SERVER + "silent_connection_is_closed_with_the_reason"),
    ),
    mutation(
        "transport-hello-size",
        "The first frame of a connection may be as large as any.",
        Edit(
            "Server._read_hello",
            "HELLO_BYTES_MAX,",
            "",
        ),
        directed(PEERS + "first_frame_that_is_no_good_hello_is_refused"),
    ),
    mutation(
        "transport-back-off",
        "A peer that drops every connection is dialled without a pause.",
        Edit(
            "Dialer._run",
            "not is_second_chance",
            "True",
        ),
        directed(DIALER + "peer_that_drops_every_connection_is_dialled_with_back_off"),
    ),
    mutation(
        "transport-silence",
        "A healed network stays unused until TCP's next repetition.",
        Edit(
            "tune_socket",
            "connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silence_ms)",
            "",
        ),
        directed(ENDPOINTS + "connection_whose_bytes_nobody_acknowledges_is_given_up"),
    ),
    mutation(
        "transport-loopback",
        "A port is opened to other machines unasked.",
        Edit(
            "bind_listener",
            "not (insecure or is_loopback(host))",
            "False",
        ),
        directed(ENDPOINTS + "address_that_others_reach_needs_consent"),
    ),
    mutation(
        "health-reading",
        "A peer counts as heard out while its heartbeats wait unread.",
        Edit(
            "_READING_TURNS",
            "_READING_TURNS: Final = 2",
            "_READING_TURNS: Final = 0",
        ),
        directed(HEARTBEATS + "heartbeats_that_wait_unread_are_told_before_anybody_is_heard_out"),
    ),
    mutation(
        "transport-own-thread",
        "Heartbeats leave when the main loop has time.",
        Edit(
            "ControlLoop._beat",
            "self._beat_once()",
            "self._main.call_soon_threadsafe(self._beat_once)",
        ),
        directed(HEARTBEATS + "heartbeats_go_on_while_the_main_loop_is_busy"),
    ),
    mutation(
        "transport-stamp",
        "A heartbeat arrives when the main loop has time.",
        Edit(
            "ControlLoop._arrived",
            "self._tell_message, peer, message, now_ms,",
            "lambda: self._tell_message(peer, message, self._now_ms()),",
        ),
        directed(HEARTBEATS + "heartbeats_go_on_while_the_main_loop_is_busy"),
    ),
    mutation(
        "transport-stall",
        "A node whose main loop stands still looks alive.",
        Edit(
            "ControlLoop._beat",
            "not self._is_stalled(self._now_ms())",
            "True",
        ),
        directed(HEARTBEATS + "heartbeats_stop_when_the_main_loop_stands_still"),
    ),
    mutation(
        "transport-stalled-news",
        "While the disk stands still, what the others say fills the memory.",
        Edit(
            "ControlLoop._arrived",
            "is_sign or not self._is_stalled(now_ms)",
            "True",
        ),
        directed(STALLED + "drops_what_is_said_again"),
    ),
    mutation(
        "transport-stalled-signs",
        "While the disk hangs, heartbeats fill the memory.",
        Edit(
            "ControlLoop.__init__",
            "maxlen=SIGNS_MAX,",
            "",
        ),
        directed(STALLED + "keeps_the_newest_signs_of_life"),
    ),
)
