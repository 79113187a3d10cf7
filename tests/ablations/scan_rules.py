"""Ablations of long reads and of the states that scans pin: S0.4, S0.8, S7.3 and S13."""

from __future__ import annotations

from tests.ablations.ablation import ENGINE, Ablation, directed

SCANS = "raftstore/engine/reads/scans.py"
TESTS = "tests/unit/engine/test_scans.py::test_"
CONTRACT = "tests/contract/test_table_snapshots.py::test_"

SCAN_RULES: tuple[Ablation, ...] = (
    directed(
        "S0.4-open-snapshots",
        "LevelDB is closed under open snapshots",
        "raftstore/storage/tables/snapshots.py",
        "for snapshot in tuple(self._open.values()):",
        "for snapshot in ():",
        CONTRACT + "store_closes_with_open_snapshots_and_reads_under_way",
    ),
    directed(
        "S0.4-pages",
        "a damaged row is sent with the page it is in, and the node goes on",
        "raftstore/storage/tables/leveldb_reads.py",
        "if crc32(key + stored[at:]) != checksum:",
        "if False:",
        CONTRACT + "damage_found_by_a_long_read_stops_the_node",
    ),
    directed(
        "S0.8-reads-under-way",
        "a long read is answered although its table was dropped meanwhile",
        SCANS,
        "if reading.state.runner.channel == channel and not reading.is_over:",
        "if False:",
        TESTS + "nothing_of_a_dropped_table_is_answered",
    ),
    directed(
        "S0.8-pins",
        "the pins of a dropped table stay",
        SCANS,
        "            if state.runner.channel == channel:\n",
        "            if False:\n",
        TESTS + "nothing_of_a_dropped_table_is_answered",
    ),
    directed(
        "S7.3-pinned-state",
        "the pages of a pinned scan show the present",
        "raftstore/storage/tables/leveldb_tables.py",
        "        snapshot = self._database.snapshot()\n        return Shared",
        "        class snapshot:\n"
        "            get, iterator = self._database.get, self._database.iterator\n"
        "            close = lambda: None\n"
        "        return Shared",
        CONTRACT + "snapshot_stays_as_it_is_whatever_is_applied",
    ),
    directed(
        "S7.3-pinned-keys",
        "keys that are asked for of a pinned state are read in the present one",
        "raftstore/engine/reads/reader.py",
        "        if request.pin:\n",
        "        if not isinstance(request, Get) and request.pin:\n",
        TESTS + "keys_of_a_pin_are_of_its_state",
    ),
    directed(
        "S7.3-pin-expired",
        "an unknown pin is answered with the present state",
        SCANS,
        'self._rules.fail(client, request, "page_expired", text)',
        "self.begin(client, request, runner, deadline_ms, now_ms)",
        TESTS + "page_of_a_pin_that_is_not_there_is_refused",
        TESTS + "restarted_node_knows_no_pin",
    ),
    directed(
        "S7.3-pin-limits",
        "a pin outlives its limits",
        SCANS,
        "if self._pin_due_ms(state) <= now_ms:",
        "if False:",
        TESTS + "pin_is_given_up_when_nobody_asks_for_pages",
        TESTS + "pin_is_given_up_at_the_end_of_its_life_however_busy",
    ),
    directed(
        "S7.3-long-page",
        "a long page tells the position of the present instead of its own",
        SCANS,
        "self._start(_Reading(client, request, state, deadline_ms, served))",
        "self._start(_Reading(client, request, state, deadline_ms, None))",
        TESTS + "long_page_is_of_the_state_when_it_could_be_answered",
    ),
    directed(
        "S7.3-read-after-stop",
        "the end of a long read hides that the node stood still",
        ENGINE + "node_runner.py",
        "        self._begin(now_ms)\n        self.reader.on_read(done, now_ms)",
        "        self.now_ms = now_ms\n        self.reader.on_read(done, now_ms)",
        TESTS + "long_read_that_ends_after_a_stop_does_not_hide_the_stop",
    ),
    directed(
        "S7.3-first-page-given-up",
        "a first page is answered although the state of those behind it is gone",
        SCANS,
        "        if opens_pin(request) and more and state.pin == 0 and not reading.is_over:",
        "        if False:",
        TESTS + "first_page_whose_state_is_given_up_before_it_is_read_is_refused",
    ),
    directed(
        "S13-pins",
        "pinned rows of a replica whose history differs are served",
        SCANS,
        "refusal = self._rules.serving_refusal(reading.state.runner)",
        "refusal = None",
        TESTS + "nothing_of_a_channel_that_stopped_serving_is_answered",
        TESTS + "nothing_pinned_is_answered_while_the_replica_recovers",
    ),
)
