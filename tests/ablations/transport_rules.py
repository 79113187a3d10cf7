"""Ablations of wire and transport: S0.1, S0.7, S12, damaged bytes, bounds, and heartbeats."""

from __future__ import annotations

from tests.ablations.ablation import Ablation, directed

FRAMING = "raftstore/protocol/framing.py"
CODEC = "raftstore/protocol/codec.py"
TYPES = "raftstore/types.py"
TRANSPORT = "raftstore/transport/"
HANDSHAKE = TRANSPORT + "handshake.py"
CONNECTION = TRANSPORT + "connection.py"
CLIENTS = TRANSPORT + "clients.py"
CONTROL = TRANSPORT + "control.py"
SERVER = TRANSPORT + "server.py"

FRAMES = "tests/unit/protocol/test_framing.py::test_"
BODIES = "tests/unit/protocol/test_codec.py::test_"
RANGES = "tests/unit/protocol/test_ranges.py::test_"
MOVED = "tests/integration/transport/test_moved_peers.py::test_"
PEERS = "tests/integration/transport/test_peers.py::test_"
HEARTBEATS = "tests/integration/transport/test_heartbeats.py::test_heartbeats_"
STALLED = "tests/integration/transport/test_heartbeats.py::test_node_that_stands_still_"
SERVED = "tests/integration/transport/test_served_clients.py::test_"
CLIENT = "tests/integration/transport/test_client_connection.py::test_"
HANDSHAKES = "tests/unit/transport/test_handshake.py::test_"
ENDPOINTS = "tests/integration/transport/test_endpoints.py::test_"

WIRE: tuple[Ablation, ...] = (
    directed(
        "transport-name-hangs",
        "each attempt to reach a host whose name server hangs costs another thread",
        TRANSPORT + "names.py",
        "        if found is None:",
        "        if True:",
        "tests/unit/transport/test_names.py::"
        "test_name_that_hangs_has_one_thread_and_delays_no_other",
    ),
    directed(
        "wire-checksum",
        "damaged bytes are taken for a message",
        FRAMING,
        "    if found != checksum:",
        "    if False:",
        FRAMES + "damaged_body_is_refused_with_both_checksums",
    ),
    directed(
        "wire-version",
        "frames of another protocol version are read",
        FRAMING,
        "    if version != PROTOCOL_VERSION:",
        "    if False:",
        FRAMES + "other_version_is_refused_with_both_versions",
    ),
    directed(
        "wire-newer-kind",
        "a record that only newer versions know counts as a broken message",
        CODEC,
        "str(error).startswith(_UNKNOWN_KIND)",
        "False",
        BODIES + "record_of_an_unknown_kind_is_told_apart_from_a_broken_message",
    ),
    directed(
        "transport-newer-told",
        "connections end for another version without a word, or with one line each time",
        TRANSPORT + "version_notes.py",
        "        if self._told.get((peer, reason.code)) == remote.boot_id:",
        "        if False:",
        PEERS + "record_that_only_a_newer_version_knows_is_told_once_by_both_sides",
    ),
    directed(
        "wire-length",
        "a stranger makes a node wait for a body of any size",
        FRAMING,
        "    if length > bytes_max:",
        "    if False:",
        FRAMES + "length_over_the_limit_is_refused_before_a_body_is_kept",
    ),
    directed(
        "wire-own-length",
        "a frame is sent that every reader refuses",
        FRAMING,
        "    if len(body) > FRAME_BYTES_MAX:",
        "    if False:",
        FRAMES + "body_over_the_limit_is_not_sent",
    ),
    directed(
        "wire-over",
        "a stream is read on behind a bad frame",
        FRAMING,
        "            self.failure = error\n",
        "",
        FRAMES + "bodies_before_a_bad_frame_are_delivered_and_none_after_it",
    ),
    directed(
        "wire-identities",
        "identities of any length are accepted",
        TYPES,
        "Annotated[bytes, Meta(min_length=CHANNEL_ID_BYTES, max_length=CHANNEL_ID_BYTES)]",
        "bytes",
        BODIES + "value_that_receivers_count_with_is_refused_outside_its_range",
    ),
    directed(
        "wire-rows",
        "a publisher announces any number of rows",
        TYPES,
        "Annotated[int, Meta(ge=1, le=RECORD_ROWS_MAX)]",
        "Annotated[int, Meta(ge=0)]",
        BODIES + "value_that_receivers_count_with_is_refused_outside_its_range",
    ),
    directed(
        "wire-range",
        "a number on the wire has no range, and ends the node that counts with it",
        TYPES,
        "Partition = Annotated[int, Meta(ge=0, le=PARTITION_MAX)]",
        "Partition = int",
        RANGES + "every_number_on_the_wire_and_in_the_log_has_a_range",
    ),
    directed(
        "wire-range-refused-alone",
        "one number outside its range ends the connection with all other requests on it",
        CONNECTION,
        "        if error.request_id is not None:",
        "        if False:",
        SERVED + "request_with_a_number_outside_its_range_is_refused_alone",
    ),
    directed(
        "wire-malformed-told",
        "a peer's nonsense ends its connection and no line of the log says why",
        TRANSPORT + "version_notes.py",
        "frozenset({GoodbyeCode.UNSUPPORTED_VERSION, GoodbyeCode.MALFORMED})",
        "frozenset({GoodbyeCode.UNSUPPORTED_VERSION})",
        PEERS + "peer_that_sends_a_number_outside_its_range_is_cut_off_and_told_of_once",
    ),
)

IDENTITY: tuple[Ablation, ...] = (
    directed(
        "S0.1-acceptor",
        "another store at a peer's address gets its messages",
        HANDSHAKE,
        "    if refusal is None and hello.node != expected:",
        "    if False:",
        HANDSHAKES + "acceptor_is_refused_when_it_is_not_who_was_dialled",
    ),
    directed(
        "S0.1-dialler",
        "another store is heard in a peer's name",
        HANDSHAKE,
        "    if hello.node in known:\n",
        "    if True:\n",
        PEERS + "peer_that_is_not_the_one_we_know_is_refused",
    ),
    directed(
        "S0.7-moved",
        "a peer that moved is dialled where it was",
        TRANSPORT + "peers.py",
        "                dialer.endpoint = endpoint\n                continue",
        "                continue",
        MOVED + "peer_is_found_again_at_its_new_address",
    ),
    directed(
        "S0.7-others",
        "news of one peer's address sends the node back to where another one was",
        TRANSPORT + "peers.py",
        "if at != self._known.get(peer)}",
        "}",
        MOVED + "peer_that_moved_is_dialled_there_although_another_one_moves_too",
    ),
    directed(
        "S0.7-meanwhile",
        "a peer that says where it is while it is dialled elsewhere has to wait",
        TRANSPORT + "dialer.py",
        "            refused = await self._dial()\n",
        "            refused = await self._dial()\n            self._wake.clear()\n",
        "tests/integration/transport/test_dialer.py::"
        "test_peer_that_says_where_it_is_while_it_is_dialled_elsewhere_is_dialled_there_next",
    ),
    directed(
        "S0.7-says",
        "a peer that says where it is now is dialled where it was",
        TRANSPORT + "dialer.py",
        "        self.endpoint = advertised or self.endpoint\n",
        "        del advertised\n",
        MOVED + "peer_that_moved_is_dialled_where_it_says_it_is_now",
    ),
    directed(
        "S12-cluster",
        "a node of another cluster is heard",
        HANDSHAKE,
        "return _check_peer_cluster(hello, identity) or _check_peer(hello, identity, peers)",
        "return _check_peer(hello, identity, peers)",
        PEERS + "peer_that_is_not_the_one_we_know_is_refused",
    ),
    directed(
        "S12-acceptor-cluster",
        "a node of another cluster gets messages",
        HANDSHAKE,
        "if refusal is None and hello.cluster_id != identity.cluster_id:",
        "if False:",
        HANDSHAKES + "acceptor_is_refused_when_it_is_not_who_was_dialled",
    ),
    directed(
        "S12-client-cluster",
        "a client of another cluster is served",
        HANDSHAKE,
        'if hello.cluster_id in (b"", identity.cluster_id):',
        "if True:",
        CLIENT + "client_of_another_cluster_is_refused",
    ),
    directed(
        "S12-sender",
        "a message counts for whoever connected first",
        TRANSPORT + "accepted.py",
        "self._on_message(self._connections[connection], message)",
        "self._on_message(next(iter(self._connections.values())), message)",
        PEERS + "messages_arrive_whole_in_order_and_with_their_sender",
    ),
    directed(
        "S12-purpose",
        "any message is taken on any connection",
        CONNECTION,
        "if self.state is State.OPEN and type(message) in self._accepts:",
        "if self.state is State.OPEN:",
        PEERS + "connection_that_breaks_the_protocol_is_closed_and_no_other",
    ),
    directed(
        "S0.4-blame",
        "a node that finds its own store damaged blames whoever sent the message, and goes on",
        CONNECTION,
        "        self._take(message, HEADER_BYTES + len(body))\n",
        "        try:\n"
        "            self._take(message, HEADER_BYTES + len(body))\n"
        "        except RemoteProtocolError as error:\n"
        "            self._refuse(error)\n",
        PEERS + "error_of_the_node_is_not_blamed_on_the_sender_of_the_message",
    ),
    directed(
        "S12-control",
        "replication travels on the connections of heartbeats",
        HANDSHAKE,
        "    Purpose.CONTROL: _members(ElectionMessage, NodeMessage),",
        "    Purpose.CONTROL: _members(ReplicationMessage, ElectionMessage, NodeMessage),",
        PEERS + "connection_that_breaks_the_protocol_is_closed_and_no_other",
    ),
    directed(
        "transport-version",
        "a handshake with another protocol version succeeds",
        HANDSHAKE,
        "    if hello.protocol_version == PROTOCOL_VERSION:",
        "    if True:",
        PEERS + "peer_that_is_not_the_one_we_know_is_refused",
    ),
    directed(
        "transport-replaced",
        "an older connection of the same peer is heard on",
        TRANSPORT + "accepted.py",
        "            if other == peer:",
        "            if False:",
        PEERS + "newer_connection_of_a_peer_replaces_the_older",
    ),
)

BOUNDS: tuple[Ablation, ...] = (
    directed(
        "transport-queue",
        "what waits for a slow peer has no bound",
        CONNECTION,
        "if self.queued_bytes + size > self._queue_bytes_max:",
        "if False:",
        PEERS + "message_over_a_full_queue_is_dropped_and_the_connection_lives",
    ),
    directed(
        "transport-slow-client",
        "a client that does not read its answers stays and misses some",
        CLIENTS,
        "        elif connection.is_open:\n",
        "        elif False:\n",
        SERVED + "client_that_does_not_read_is_closed",
    ),
    directed(
        "transport-clients",
        "any number of clients is connected",
        CLIENTS,
        "        if not self._has_place(places):",
        "        if False:",
        SERVED + "clients_over_the_limit_are_sent_away",
    ),
    directed(
        "transport-pause",
        "clients are read while the disk is behind",
        CLIENTS,
        "            if paused:\n                connection.pause_reading()",
        "            if paused:\n                pass",
        SERVED + "paused_clients_are_heard_after_the_pause_and_peers_meanwhile",
    ),
    directed(
        "transport-lane",
        "queries wait while the disk is behind with writes",
        CLIENTS,
        "    return connection.remote.purpose not in (Purpose.QUERY, Purpose.OPERATOR)",
        "    return True",
        SERVED + "queries_are_taken_while_the_writes_of_clients_are_paused",
    ),
    directed(
        "transport-lane-writes",
        "writes get around the back-pressure by the lane for queries",
        HANDSHAKE,
        "    Purpose.QUERY: _members(ClientRequest, BatchRequest),",
        "    Purpose.QUERY: _members(PubMsg, ClientRequest, BatchRequest),",
        SERVED + "write_on_a_connection_for_queries_ends_it",
    ),
    directed(
        "transport-greetings",
        "silent strangers use up a node's files",
        SERVER,
        "if len(self._greeting) >= GREETINGS_MAX:",
        "if False:",
        "tests/integration/transport/test_server.py::"
        "test_silent_strangers_make_room_and_keep_nobody_out",
    ),
    directed(
        "transport-hello-time",
        "a silent stranger is waited for without end",
        SERVER,
        "async with asyncio.timeout(HELLO_TIMEOUT_MS / 1000):",
        "async with asyncio.timeout(None):",
        "tests/integration/transport/test_server.py::test_silent_stranger_is_told_why_it_is_closed",
    ),
    directed(
        "transport-hello-size",
        "a stranger's first frame may be as large as any",
        SERVER,
        "length = body_length(header, HELLO_BYTES_MAX)",
        "length = body_length(header)",
        PEERS + "first_frame_that_is_no_good_hello_is_refused",
    ),
    directed(
        "transport-back-off",
        "a peer that drops every connection is dialled without a pause",
        TRANSPORT + "dialer.py",
        "                is_second_chance = not is_second_chance\n",
        "                is_second_chance = True\n",
        "tests/integration/transport/test_dialer.py::"
        "test_peer_that_drops_every_connection_is_dialled_with_back_off",
    ),
    directed(
        "transport-silence",
        "a healed network stays unused until TCP's next repetition",
        TRANSPORT + "endpoints.py",
        "    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silence_ms)\n",
        "",
        ENDPOINTS + "connection_whose_bytes_nobody_acknowledges_is_given_up",
    ),
    directed(
        "transport-loopback",
        "a port is opened to other machines unasked",
        TRANSPORT + "endpoints.py",
        "    if not (insecure or is_loopback(host)):",
        "    if False:",
        ENDPOINTS + "address_that_others_reach_needs_consent",
    ),
)

HEARTBEATS: tuple[Ablation, ...] = (
    directed(
        "S1.8-signs",
        "heartbeats wait behind elections, and count as missed",
        CONTROL,
        "lane = self._signs if is_sign else self._news",
        "lane = self._news",
        HEARTBEATS + "are_told_before_everything_that_waits",
    ),
    directed(
        "S1.8-new",
        "heartbeats that say something new wait for the next word of having listened",
        CONTROL,
        "        return self._expected.get(peer) == said\n",
        "        return bool(said) and peer in self._expected\n",
        HEARTBEATS + "that_say_nothing_new_cost_the_main_loop_no_turn_of_their_own",
    ),
    directed(
        "S1.8-before",
        "a heartbeat from before a loss brings the peer back after it",
        TRANSPORT + "peers.py",
        "            self._control.tell_signs()  #",
        "            pass  #",
        HEARTBEATS + "from_before_a_loss_are_told_before_it",
    ),
    directed(
        "health-reading",
        "a peer counts as heard out while its heartbeats wait unread",
        CONTROL,
        "_READING_TURNS: Final = 2",
        "_READING_TURNS: Final = 0",
        HEARTBEATS + "that_wait_unread_are_told_before_anybody_is_heard_out",
    ),
    directed(
        "transport-own-thread",
        "heartbeats leave when the main loop has time",
        CONTROL,
        "                self._beat_once()",
        "                self._main.call_soon_threadsafe(self._beat_once)",
        HEARTBEATS + "go_on_while_the_main_loop_is_busy",
    ),
    directed(
        "transport-stamp",
        "a heartbeat arrives when the main loop has time",
        CONTROL,
        "self._post(lane, self._tell_message, peer, message, now_ms)",
        "self._post(lane, lambda: self._tell_message(peer, message, self._now_ms()))",
        HEARTBEATS + "go_on_while_the_main_loop_is_busy",
    ),
    directed(
        "transport-stall",
        "a node whose main loop stands still looks alive",
        CONTROL,
        "if not self._is_stalled(self._now_ms()):",
        "if True:",
        HEARTBEATS + "stop_when_the_main_loop_stands_still",
    ),
    directed(
        "transport-stalled-news",
        "while the disk stands still, what the others say fills the memory",
        CONTROL,
        "if is_sign or not self._is_stalled(now_ms):",
        "if True:",
        STALLED + "drops_what_is_said_again",
    ),
    directed(
        "transport-stalled-signs",
        "while the disk stands still, signs of life fill the memory",
        CONTROL,
        "deque(maxlen=SIGNS_MAX)",
        "deque()",
        STALLED + "keeps_the_newest_signs_of_life",
    ),
)

TRANSPORT_RULES: tuple[Ablation, ...] = (*WIRE, *IDENTITY, *BOUNDS, *HEARTBEATS)
