"""Mutations of commands and queries of users' state machines, between client and node."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

QUERIES = "tests/unit/engine/reads/test_machine_queries.py::test_"
READER = "tests/unit/engine/reads/test_reader.py::test_"
CLIENT = "tests/integration/client/test_machines.py::test_"

THREADS = "tests/unit/storage/tables/test_query_threads.py::test_"

MACHINE_QUERY_RULES: tuple[Mutation, ...] = (
    mutation(
        "machine-query-waits-for-the-next",
        "A query that is queued behind one which never ends waits until another query comes.",
        Edit(
            "QueryThreads._next",
            "self._wake.wait(LOOK_S if self._jobs else None)",
            "self._wake.wait()",
        ),
        directed(THREADS + "a_query_that_waits_goes_past_by_itself"),
    ),
    mutation(
        "machine-queries-at-once",
        "Threads of users' queries ask side by side, although none of them takes long.",
        Edit("QueryThreads._is_turn", "now_ms - since >= LONG_MS", "True"),
        directed(THREADS + "queries_that_come_back_are_asked_one_after_the_other"),
    ),
    mutation(
        "S4.5-repeated-command",
        "A command that is repeated by its guid says that no attempt of it was sent before, and a "
        "leader that forgot its session applies it again.",
        Edit(
            "Publisher._publish",
            'running.state.doubt("what became of an earlier call with its guid is not known")',
            "pass",
        ),
        directed(
            CLIENT + "a_command_is_repeated_by_the_guid_of_its_error",
            CLIENT + "a_repeated_command_that_is_not_answered_stays_unknown",
        ),
    ),
    mutation(
        "S4.5-guid-of-another-channel",
        "A command is repeated in another partition than the one that its guid is of.",
        Edit("AsyncChannelSet._command", "name.channel != channel", "False"),
        directed(CLIENT + "guid_of_another_partition_is_refused"),
    ),
    mutation(
        "S7.3-memory-position",
        "An answer of a machine in memory names the position at which the rules were asked, and "
        "not that of the state that it is of.",
        Edit(
            "MachineQueries._on_asked",
            "asked.served if applied == 0 else _of_later(asked.served, applied)",
            "asked.served",
        ),
        directed(QUERIES + "a_machine_in_memory_is_asked_between_commands"),
    ),
    mutation(
        "S7.3-query-of-a-new-object",
        "A machine that turns out to be in memory answers from a new object, which has nothing.",
        Edit("UserMachine.query", "isinstance(machine, MemoryMachine)", "False"),
        directed(QUERIES + "code_is_imported_on_no_thread_but_that_of_queries"),
    ),
    mutation(
        "S0.4-import-on-the-loop",
        "A query imports users' code on the node's thread.",
        Edit(
            "UserMachine.is_in_memory",
            "return self._is_in_memory",
            "return isinstance(self._load().make(), MemoryMachine)",
        ),
        directed(QUERIES + "code_is_imported_on_no_thread_but_that_of_queries"),
    ),
    mutation(
        "S0.4-read-of-a-query",
        "A query's answer leaves although a read of its table failed.",
        Edit("MachineQueries._ask_disk", "view.broken is not None", "False"),
        directed(QUERIES + "a_broken_table_is_no_answer_whatever_the_machine_makes_of_it"),
    ),
    mutation(
        "S0.4-query-taken-for-the-disk",
        "A query that does not end is taken for a disk that hangs, and holds up long reads.",
        Edit("LevelDbTables.start_query", "self._snapshots.start_query", "self._snapshots.start"),
        directed(
            "tests/contract/test_table_snapshots.py::test_a_query_that_does_not_end_holds_up_no_"
            "read_and_no_end_of_the_node"
        ),
    ),
    mutation(
        "S13-query-of-stopped-replica",
        "A machine's answer leaves although its replica stopped serving while it was asked.",
        Edit(
            "MachineQueries._on_asked",
            "self._rules.serving_refusal(asked.runner)",
            "None",
        ),
        directed(QUERIES + "nothing_is_answered_from_what_stopped_serving_meanwhile"),
    ),
    mutation(
        "S0.8-query-of-dropped-channel",
        "A machine's answer leaves although its channel set was dropped while it was asked.",
        Edit("Reader.on_channel_closed", "self.machines.on_channel_closed(runner)", "pass"),
        directed(READER + "queries_of_a_closed_channel_end"),
    ),
    mutation(
        "S7-query-behind-a-stop",
        "A query waits for a position that a stopped machine never reaches.",
        Edit("Reader._await_position", "stopped is None", "True"),
        directed(READER + "query_behind_a_stopped_machine_is_refused_at_once"),
    ),
    mutation(
        "machine-stopped-read",
        "A linearizable query of a stopped machine waits to its deadline, and blames the quorum.",
        Edit(
            "Reader.on_request",
            "_stopped(runner) if linearizable else None",
            "None",
        ),
        directed(
            "tests/unit/engine/reads/test_reader.py::"
            "test_linearizable_read_of_a_stopped_machine_says_what_it_would_wait_for[before]"
        ),
    ),
    mutation(
        "machine-stopped-while-read",
        "A query under which the machine stopped blames the quorum.",
        Edit("Reader._late", "_stopped(runner)", "None"),
        directed(
            "tests/unit/engine/reads/test_reader.py::"
            "test_linearizable_read_of_a_stopped_machine_says_what_it_would_wait_for[meanwhile]"
        ),
    ),
    mutation(
        "S7-stop-unsaid",
        "A query of a stopped machine ends with how its last attempt ended, and not with the stop.",
        Edit("_failure", "read.stopped is not None", "False"),
        directed(CLIENT + "a_query_of_a_stopped_machine_says_so_however_its_last_attempt_ends"),
    ),
    mutation(
        "S7-rows-of-a-machine",
        "Rows of a channel set are read as if it was a table.",
        Edit("Reader._refusal", "kind_refusal(request, runner)", "None"),
        directed(READER + "rows_of_a_channel_set_and_machines_of_a_table_are_refused"),
    ),
)
