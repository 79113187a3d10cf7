"""Mutations of long reads and of the states that scans pin: S0.4, S0.8, S7.3 and S13."""

from __future__ import annotations

from tests.mutations.guard import chaos, directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

CONTRACT = "tests/contract/test_table_snapshots.py::test_"
TESTS = "tests/unit/engine/reads/test_scans.py::test_"

SCAN_RULES: tuple[Mutation, ...] = (
    mutation(
        "S0.4-open-snapshots",
        "LevelDB is closed under open snapshots.",
        Edit(
            "SnapshotReads.close",
            "tuple(self._open.values())",
            "()",
        ),
        directed(CONTRACT + "store_closes_with_open_snapshots_and_reads_under_way"),
    ),
    mutation(
        "S0.4-pages",
        "A damaged row is sent with the page it is in, and the node goes on.",
        Edit(
            "LevelDbReads.sealed_page",
            "crc32(key + stored[at:]) != checksum",
            "False",
        ),
        directed(CONTRACT + "damage_found_by_a_long_read_stops_the_node"),
    ),
    mutation(
        "S0.8-reads-under-way",
        "A long read is answered although its table was dropped meanwhile.",
        Edit(
            "Scans.on_channel_closed",
            "reading.state.runner.channel == channel and not reading.is_over",
            "False",
        ),
        directed(TESTS + "nothing_of_a_dropped_table_is_answered"),
    ),
    mutation(
        "S0.8-pins",
        "The pins of a dropped table stay.",
        Edit(
            "Scans.on_channel_closed",
            "state.runner.channel == channel",
            "False",
        ),
        directed(TESTS + "nothing_of_a_dropped_table_is_answered"),
    ),
    mutation(
        "S7.3-pinned-state",
        "The pages of a pinned scan show the present.",
        Edit(
            "ChannelDatabase.share",
            "_NothingKept() if source is NOTHING else source.snapshot()",
            "type('Present', (_NothingKept,), {'get': source.get, 'iterator': source.iterator})()",
        ),
        directed(CONTRACT + "snapshot_stays_as_it_is_whatever_is_applied"),
    ),
    mutation(
        "S7.3-pinned-keys",
        "Keys that are asked for of a pinned state are read in the present one.",
        Edit(
            "Reader.on_request",
            "request.pin",
            "not isinstance(request, Get) and request.pin",
        ),
        directed(TESTS + "keys_of_a_pin_are_of_its_state"),
    ),
    mutation(
        "S7.3-pin-expired",
        "A page of a pin that is gone is read from the present state.",
        Edit(
            "Scans.on_pinned",
            "self._rules.fail(client, request, PageExpiredError, text)",
            "self.begin(client, request, runner, deadline_ms, now_ms)",
        ),
        directed(
            TESTS + "page_of_a_pin_that_is_not_there_is_refused",
            TESTS + "restarted_node_knows_no_pin",
        ),
        chaos("paged_scan", "kill-follower", "kill-leader"),
    ),
    mutation(
        "S7.3-pin-limits",
        "A pin outlives its limits.",
        Edit(
            "Scans.on_timer",
            "self._pin_due_ms(state) <= now_ms",
            "False",
        ),
        directed(
            TESTS + "pin_is_given_up_when_nobody_asks_for_pages",
            TESTS + "pin_is_given_up_at_its_oldest_age_however_busy",
        ),
    ),
    mutation(
        "S7.3-long-page",
        "A long page states the position of the present instead of its own.",
        Edit(
            "Scans.begin",
            "deadline_ms, served,",
            "deadline_ms, None,",
        ),
        directed(TESTS + "long_page_is_of_the_state_when_it_could_be_answered"),
    ),
    mutation(
        "S7.3-read-after-stop",
        "The end of a long read hides that the node stood still.",
        Edit(
            "NodeRunner.on_read",
            "self._begin(now_ms)",
            "self.now_ms = now_ms",
        ),
        directed(TESTS + "long_read_that_ends_after_a_stop_does_not_hide_the_stop"),
    ),
    mutation(
        "S7.3-first-page-given-up",
        "A first page is answered although the state of those behind it is gone.",
        Edit(
            "Scans._on_page",
            "opens_pin(request) and more and state.pin == 0 and not reading.is_over",
            "False",
        ),
        directed(TESTS + "first_page_whose_state_is_given_up_before_it_is_read_is_refused"),
    ),
    mutation(
        "S13-pins",
        "Pinned rows of a replica whose history differs are served.",
        Edit(
            "Scans._may_answer",
            "self._rules.serving_refusal(reading.state.runner)",
            "None",
        ),
        directed(
            TESTS + "nothing_of_a_channel_that_stopped_serving_is_answered",
            TESTS + "nothing_pinned_is_answered_while_the_replica_recovers",
        ),
    ),
    mutation(
        "S7.3-pinned-page-of-the-present",
        "Pages of a pinned scan are read from the present state.",
        Edit(
            "Scans.on_pinned",
            "state.used_ms = now_ms",
            "state.used_ms = now_ms\nstate.snapshot = self._tables.snapshot(runner.channel)",
        ),
        chaos("paged_scan", "slow-link"),
    ),
)
