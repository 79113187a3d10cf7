"""Ablations of what clients make a node hold: shares, ends, and the longest time (S12)."""

from __future__ import annotations

from tests.ablations.ablation import CORE, ENGINE, Ablation, directed

SHARES = "tests/unit/engine/test_shares.py::test_"
GONE = "tests/unit/engine/test_clients_gone.py::test_"

SHARE_RULES: tuple[Ablation, ...] = (
    directed(
        "S12-client-share",
        "one client may hold what all of them may",
        ENGINE + "shares.py",
        "        if held + amount > limit:",
        "        if held + amount > TOTAL_PER_LIMIT * limit:",
        SHARES + "one_client_alone_holds_as_many_as_the_limit_says",
        GONE + "reads_that_wait_for_ever_take_no_place_of_others",
    ),
    directed(
        "S12-largest-yields",
        "some connections together keep all others out",
        ENGINE + "shares.py",
        "            if not self._take_back(held + amount):",
        "            if True:",
        SHARES + "more_connections_give_nobody_more_than_an_equal_part",
    ),
    directed(
        "S12-least-share",
        "where nothing can be taken back a newcomer finds no place at all",
        ENGINE + "shares.py",
        " or held + amount <= max(1, total // CLIENTS_AT_ONCE):",
        ":",
        SHARES + "who_holds_next_to_nothing_finds_a_place_where_nothing_can_be_taken_back",
    ),
    directed(
        "S12-client-gone",
        "what a client waited for stays when the client is gone",
        ENGINE + "client_inbox.py",
        "        node.reader.on_client_gone(client)\n",
        "",
        GONE + "what_a_client_waited_for_ends_with_it[read]",
        GONE + "what_a_client_waited_for_ends_with_it[pin]",
    ),
    directed(
        "S12-client-gone-batches",
        "requests about batches outlive their client",
        ENGINE + "client_inbox.py",
        "        node.batches.on_client_gone(client)\n",
        "",
        GONE + "what_a_client_waited_for_ends_with_it[state of a commit]",
        GONE + "commands_and_batches_end_with_their_client",
    ),
    directed(
        "S12-client-gone-commands",
        "commands outlive their client",
        ENGINE + "client_inbox.py",
        "        node.keeper.commands.on_client_gone(client)\n",
        "",
        GONE + "commands_and_batches_end_with_their_client",
    ),
    directed(
        "S12-client-gone-hashes",
        "channels are read for clients that are gone",
        ENGINE + "client_inbox.py",
        "        node.desk.hashes.on_client_gone(client)\n",
        "",
        GONE + "content_hashes_of_a_client_that_is_gone_are_not_computed",
    ),
    directed(
        "S12-client-gone-core",
        "the places of the core's read rounds are kept for clients that are gone",
        CORE + "replica.py",
        "                if self._leader is not None:\n"
        "                    self._leader.reads.drop(tokens)\n",
        "                pass\n",
        GONE + "reads_without_a_quorum_end_with_their_client_in_the_core_too",
    ),
    directed(
        "S12-orphan-pins",
        "pins of clients that are gone keep others out",
        ENGINE + "scans.py",
        "            self._unpin(self._pins[pin])\n        while",
        "            continue\n        while",
        GONE + "pins_of_a_client_that_is_gone_are_read_on_and_make_room",
    ),
    directed(
        "S12-longest-time",
        "a client says how long a node holds something for it",
        ENGINE + "client_inbox.py",
        "            if getattr(message, name, 0) > most_ms:",
        "            if False:",
        GONE + "a_clients_patience_has_an_end",
    ),
    directed(
        "S12-far-positions",
        "each write looks at all who wait for a later position",
        ENGINE + "waiting_reads.py",
        "(*self._positions.take_reached(channel, applied), *self.unproven(channel))",
        "self.of_channel(channel)",
        GONE + "waiting_reads_cost_nothing_while_others_write",
    ),
    directed(
        "S12-client-copies",
        "copies of a client's writes fill the memory channel by channel",
        CORE + "pending.py",
        "room is None or room.admit(client, self._channel, guid, digest, size)",
        "True",
        GONE + "copies_of_one_client_are_bounded_over_all_channels_and_leave_room",
    ),
    directed(
        "S12-client-writes",
        "writes of one client that have no outcome fill the memory channel by channel",
        ENGINE + "client_desk.py",
        "            refusal = refusal or host.writes.begin(client, message)\n",
        "",
        GONE + "writes_without_an_outcome_are_bounded_by_client",
    ),
)
