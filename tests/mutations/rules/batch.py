"""Mutations of atomic micro-batches: the coordinator's guards, and whom it answers when.

One guard has none: "the batch is committed already" of COMMIT stands behind "the attempt is open at
this very batch", which is never so for a batch that is past.
"""

from __future__ import annotations

from tests.mutations.guard import chaos, directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

DECIDES = "tests/unit/state_machines/test_coordinator.py::test_"
WRITERS = "tests/unit/state_machines/test_coordinator_writers.py::test_"
LATE_WORDS = (
    "tests/unit/engine/batches/test_coordinator.py::"
    "test_late_words_of_earlier_attempts_change_no_later_one"
)
DROPS = "tests/unit/state_machines/test_dropped_batches.py::test_"
CHECKS = "tests/unit/engine/batches/test_commit_checks.py::test_"
COORDINATOR = "tests/unit/engine/batches/test_coordinator.py::test_"
BATCHES = "tests/unit/engine/batches/test_batches.py::test_"
COORDINATOR_MEMORY = "tests/unit/engine/batches/test_coordinator_memory.py::test_"
DROPPED_WRITERS = "tests/integration/client/test_dropped_writers.py::test_"

BATCH_RULES: tuple[Mutation, ...] = (
    mutation(
        "batches-lineage",
        "Batch ids of another checkpoint pass for this one's.",
        Edit(
            "_known_begin",
            "found.lineage is not None and asked.lineage != found.lineage",
            "False",
        ),
        directed(DECIDES + "begin_table"),
    ),
    mutation(
        "batches-already",
        "A batch that is in is opened again.",
        Edit(
            "_known_begin",
            "last is not None and asked.batch_id == last.batch_id",
            "False",
        ),
        directed(DECIDES + "begin_table"),
    ),
    mutation(
        "batches-regression",
        "A batch that is past is opened again.",
        Edit(
            "_known_begin",
            "last is not None and asked.batch_id < last.batch_id",
            "False",
        ),
        directed(DECIDES + "begin_table"),
    ),
    mutation(
        "batches-uuid",
        "Each task of a batch opens an attempt of its own and ends the others'.",
        Edit(
            "_known_begin",
            "now is not None and (now.uuid, now.batch_id) == (asked.uuid, asked.batch_id)",
            "False",
        ),
        directed(DECIDES + "begin_table"),
    ),
    mutation(
        "batches-attempts",
        "An attempt's number is given again.",
        Edit(
            "_begin",
            "next_attempt=attempt + 1,",
            "next_attempt=attempt,",
        ),
        directed(DECIDES + "attempts_are_table_wide_and_never_used_again"),
    ),
    mutation(
        "batches-fence",
        "An attempt is committed after its writer has begun another one.",
        Edit(
            "_known_commit",
            "now is None or (now.attempt, now.batch_id) != (asked.attempt, asked.batch_id)",
            "now is None",
        ),
        directed(DECIDES + "attempt_is_fenced_by_the_next_one", LATE_WORDS),
        chaos("bank_batches", "step-down"),
        also=("S1.4",),
    ),
    mutation(
        "batches-late-close",
        "A late word that gives an earlier attempt up ends the one that is open.",
        Edit(
            "_close",
            "found is None or found.open is None or found.open.attempt != step.attempt",
            "found is None or found.open is None",
        ),
        directed(LATE_WORDS, WRITERS + "close_ends_only_the_attempt_that_is_open"),
    ),
    mutation(
        "batches-digest",
        "A commit is taken for another one of the same attempt.",
        Edit(
            "_known_commit",
            "made.digest != asked.digest",
            "False",
        ),
        directed(DECIDES + "commit_table"),
    ),
    mutation(
        "batches-unheard",
        "A leader calls an attempt fenced whose BEGIN it has not applied.",
        Edit(
            "judge_commit",
            "head is None or request.attempt >= head.next_attempt",
            "head is None",
        ),
        directed(DECIDES + "commit_of_an_attempt_not_heard_of_here_needs_a_record"),
    ),
    mutation(
        "batches-vector",
        "The vector of a commit does not tell that it touches a channel.",
        Edit(
            "_commit",
            "vector[partition] = n",
            "pass",
        ),
        directed(DECIDES + "commit_publishes_the_vector_and_the_chain"),
    ),
    mutation(
        "batches-winner",
        "Two attempts of one task count.",
        Edit(
            "manifest_fault",
            "tasks != sorted(set(tasks))",
            "False",
        ),
        directed(DECIDES + "malformed_manifest_is_refused_and_decides_nothing"),
    ),
    mutation(
        "batches-replace",
        "A batch that replaces the table leaves channels as they were.",
        Edit(
            "manifest_fault",
            "manifest.mode == TRUNCATE and len(touched) != partitions",
            "False",
        ),
        directed(DECIDES + "malformed_manifest_is_refused_and_decides_nothing"),
    ),
    mutation(
        "batches-busy",
        "The outbox grows without an end while a channel is away.",
        Edit(
            "judge_begin",
            "pending >= pending_max",
            "False",
        ),
        directed(DECIDES + "begin_is_refused_while_too_many_commits_wait_and_known_ones_are_not"),
    ),
    mutation(
        "batches-gate",
        "Success is reported before all touched channels have applied the batch.",
        Edit(
            "waiting_for",
            "() if entry is None else still_waiting(entry, acked)",
            "()",
        ),
        directed(WRITERS + "acknowledgements_trim_the_outbox_cumulatively"),
    ),
    mutation(
        "batches-one-shot-count",
        "A job's batch is forgotten with the next commit of a job.",
        Edit(
            "_keep",
            "head.one_shots",
            "limit",
        ),
        directed(WRITERS + "one_shot_writers_are_forgotten_by_the_number_of_later_ones"),
    ),
    mutation(
        "batches-one-shot",
        "A late end of a job forgets the writer that has its name now.",
        Edit(
            "_begin",
            "kept_n and not step.one_shot",
            "False",
        ),
        directed(WRITERS + "stream_with_the_name_of_a_job_keeps_its_attempt"),
    ),
    mutation(
        "batches-catalog",
        "Micro-batches are coordinated in the catalog's channel, which can not apply "
        "their records.",
        Edit(
            "Coordinator._refusal",
            "runner is None or self._controller.catalog.table_of(runner.channel) is None",
            "runner is None",
        ),
        directed(COORDINATOR + "catalog_has_no_micro_batches"),
    ),
    mutation(
        "batch-believed",
        "A manifest of rows that nobody staged is decided, and stops its channels for good.",
        Edit(
            "Coordinator._commit",
            "table.checks.add(waiter.token, request, now_ms)",
            "False",
        ),
        directed(
            CHECKS + "manifest_of_what_nobody_staged_is_refused_and_stops_nothing",
            CHECKS + "replacing_batch_of_rows_that_nobody_staged_is_refused_and_empties_nothing",
        ),
    ),
    mutation(
        "batch-unseen",
        "Other nodes are asked about a commit that no table could take.",
        Edit(
            "Coordinator._commit",
            "judge_commit(request, table.state) or table.judge(request, entry)",
            "judge_commit(request, table.state)",
        ),
        directed(CHECKS + "commit_that_no_table_could_take_is_sent_to_no_other_node"),
    ),
    mutation(
        "request-fault",
        "A value that a request cannot be counted with ends the node, or what is half "
        "done goes on.",
        Edit(
            "ClientInbox.on_message",
            "isinstance(message, PubMsg) or self._active.touched",
            "isinstance(message, PubMsg)",
        ),
        directed(
            "tests/unit/engine/test_clients_gone.py::"
            "test_request_that_nobody_can_count_with_ends_its_client_and_not_the_node"
        ),
    ),
    mutation(
        "batch-logged-range",
        "A number in an old record that is outside its range stops every replica.",
        Edit(
            "decode_step",
            "str(error).startswith(_OUT_OF_RANGE)",
            "False",
        ),
        directed(DECIDES + "number_outside_its_range_decides_nothing_and_stops_no_replica"),
    ),
    mutation(
        "batch-one-yes",
        "The first channel that holds its part has the batch decided.",
        Edit(
            "CommitChecks.confirm",
            "if check.open: ...",
            "if False: ...",
        ),
        directed(CHECKS + "commit_is_decided_when_every_channel_has_said_yes_and_not_before"),
    ),
    mutation(
        "batch-unsure-no",
        "A leader that may be deposed says that rows are missing.",
        Edit(
            "ChannelBatches.on_ask_staged",
            "runner.request_read(confirmed, _asked_again, now_ms)",
            "confirmed(Seq(0))",
        ),
        directed(CHECKS + "leader_that_no_quorum_confirms_says_no_to_nothing"),
    ),
    mutation(
        "batch-old-word",
        "A word of another leadership of the coordinator counts for a commit of this one.",
        Edit(
            "Coordinator.on_staged_reply",
            "table is None or message.term != table.runner.elector.term",
            "table is None",
        ),
        directed(CHECKS + "word_of_another_leadership_counts_nothing"),
    ),
    mutation(
        "batch-success-gate",
        "A batch is reported as done when it is decided, before it is applied everywhere (rule 5).",
        Edit(
            "Coordinator._tell",
            "verdict.name in (ALREADY, OK) and not table.is_everywhere(verdict.n)",
            "False",
        ),
        directed(BATCHES + "success_is_told_only_when_every_touched_channel_has_applied"),
    ),
    mutation(
        "batch-success-unreported",
        "A commit that the tables hold and nobody was notified of counts as applied everywhere.",
        Edit(
            "CoordinatedTable.is_everywhere",
            "n not in self._entries",
            "False",
        ),
        directed(
            COORDINATOR_MEMORY + "success_waits_also_when_the_state_is_ahead_of_what_was_reported"
        ),
    ),
    mutation(
        "batch-leads-late",
        "The first batch of a table stays decided and unapplied when its leader applies it late.",
        Edit(
            "Coordinator.on_applied",
            "runner.elector.role is Role.LEADER and runner.core.leader_is_ready",
            "False",
        ),
        directed(
            COORDINATOR_MEMORY
            + "first_batch_of_a_table_is_applied_by_a_leader_that_applies_it_late"
        ),
    ),
    mutation(
        "batch-begin-once",
        "Every task of a batch costs a record.",
        Edit(
            "Coordinator._begin",
            "beginning is not None",
            "False",
        ),
        directed(COORDINATOR + "tasks_of_one_batch_get_one_attempt_and_cost_one_record"),
    ),
    mutation(
        "batch-ttl",
        "An attempt that nobody goes on with stays open for ever.",
        Edit(
            "CoordinatedTable.take_expired",
            "late = [writer for writer, opened in self._opened.items() if "
            "opened.until_ms <= now_ms]",
            "late: list[str] = []",
        ),
        directed(COORDINATOR + "attempt_that_nobody_goes_on_with_is_closed_by_its_time"),
    ),
    mutation(
        "batch-dropped-table",
        "A stream goes on in the middle of a table that was dropped and made anew.",
        Edit(
            "judge_dropped",
            "request.batch_id == 0 or (request.writer, request.lineage) not in dropped",
            "True",
        ),
        directed(
            DROPS + "only_a_writer_with_batches_in_a_dropped_table_is_refused",
            "tests/unit/engine/batches/test_dropped_writers.py::"
            "test_stream_does_not_begin_a_table_anew_in_its_middle",
        ),
    ),
    mutation(
        "batch-dropped-first",
        "The first batch of a checkpoint is refused for what another one wrote.",
        Edit(
            "judge_dropped",
            "request.batch_id == 0 or (request.writer, request.lineage) not in dropped",
            "request.writer not in dict(dropped)",
        ),
        directed(DROPS + "only_a_writer_with_batches_in_a_dropped_table_is_refused"),
    ),
    mutation(
        "batch-dropped-known",
        "A stream that began in this table is refused for what it had in an older one.",
        Edit(
            "judge_dropped",
            "read_writer(request.writer, state) is not None",
            "False",
        ),
        directed(DROPS + "writer_that_began_in_this_table_goes_on"),
    ),
    mutation(
        "batch-dropped-current",
        "A leader refuses a stream whose batches in this table it has not applied yet.",
        Edit(
            "judge_dropped",
            "not is_current",
            "False",
        ),
        directed(DROPS + "leader_that_has_not_applied_everything_does_not_call_a_writer_unknown"),
    ),
    mutation(
        "batch-dropped-told",
        "A client drops a table without telling who counts batches in it.",
        Edit(
            "writers_of",
            "tuple(named)[:DROPPED_WRITERS_MAX]",
            "()",
        ),
        directed(DROPPED_WRITERS + "drop_tells_who_has_batches_that_go_on_counting"),
    ),
    mutation(
        "batch-dropped-all",
        "A client lists the first writers by name, which may all be jobs of one batch.",
        Edit(
            "_views",
            "not (reported.more and reported.writers)",
            "True",
        ),
        directed(DROPPED_WRITERS + "drop_tells_a_stream_however_many_jobs_stand_before_it"),
    ),
    mutation(
        "batch-writers-after",
        "A question for all writers of a table is answered with the first ones for ever.",
        Edit(
            "CoordinatedTable.tell_writers",
            "request.after",
            '""',
        ),
        directed(COORDINATOR + "writers_beyond_one_answer_are_told_by_the_next"),
    ),
    mutation(
        "batch-dropped-remembered",
        "The catalog forgets who counts batches in a dropped table when another one is dropped.",
        Edit(
            "Catalog.from_rows",
            "dropped_writers.setdefault(gone.name, {}).update(dict.fromkeys(gone.writers))",
            "dropped_writers[gone.name] = dict.fromkeys(gone.writers)",
        ),
        directed(
            "tests/unit/state_machines/test_catalog.py::"
            "test_drop_table_remembers_who_had_batches_in_it"
        ),
    ),
    mutation(
        "S4.4-batch-told-when-decided",
        "Success of a batch is reported when it is decided, not when every channel has applied it.",
        Edit(
            "Coordinator._tell",
            "verdict.name in (ALREADY, OK)",
            "verdict.name == ALREADY",
        ),
        chaos("bank_batches", "kill-leader", "isolate-leader"),
    ),
    mutation(
        "S4.4-batch-already-before-applied",
        "A replay is answered that its batch is in the table before every channel has applied it.",
        Edit(
            "Coordinator._begin",
            "self._tell(table, waiter, verdict, now_ms)",
            "if verdict.name == ALREADY:\n"
            "    self._answer(waiter, verdict)\n"
            "else:\n"
            "    self._tell(table, waiter, verdict, now_ms)",
        ),
        directed(
            BATCHES + "success_is_told_only_when_every_touched_channel_has_applied",
            why="a replay would have to begin between the decision and the last channel, "
            "and somebody to look into that very channel before it follows",
        ),
    ),
    mutation(
        "S4.5-batch-forgotten-by-the-next-leader",
        "A new leader of the coordinator does not know the batches that were decided before it.",
        Edit(
            "_known_begin",
            "last is not None and asked.batch_id == last.batch_id",
            "last is not None and asked.batch_id == last.batch_id and "
            "isinstance(asked, BeginBatch)",
        ),
        Edit(
            "_known_commit",
            "asked.batch_id <= last.batch_id",
            "asked.batch_id < last.batch_id",
        ),
        Edit(
            "Coordinator._begin",
            "verdict is not None",
            "verdict is not None and not (\n"
            "    verdict.name == ALREADY and verdict.n < table.since\n"
            ")",
        ),
        Edit(
            "CoordinatedTable.__init__",
            "self.refresh()",
            "self.refresh()\n"
            "head = read_table(self.state)\n"
            "self.since = 0 if head is None else head.next_commit",
        ),
        chaos("bank_batches", "kill-leader", "isolate-leader"),
    ),
    mutation(
        "rule5-taken-out-meanwhile",
        "A new leader ends itself over a commit that a record of an earlier one takes out.",
        Edit("CoordinatedTable.message", "return None", "raise AssertionError(n)"),
        directed(
            "tests/unit/engine/batches/test_coordinated_table.py::"
            "test_commit_that_is_taken_out_meanwhile_is_sent_to_nobody"
        ),
    ),
    mutation(
        "rule5-no-manifest",
        "A commit that lost its manifest is taken for one that is applied everywhere.",
        Edit("CoordinatedTable.message", "n not in left", "True"),
        directed(
            "tests/unit/engine/batches/test_coordinated_table.py::"
            "test_commit_in_the_outbox_without_its_manifest_is_a_fault"
        ),
    ),
    mutation(
        "rule6-floor-at-one-position",
        "A floor is read while records are applied, and its parts are of several positions.",
        Edit(
            "Coordinator.on_resolve",
            "state = SnapshotState(snapshot)",
            "state = AppliedState(self._store, runner.channel)",
        ),
        directed(
            "tests/unit/engine/batches/test_coordinator_alone.py::"
            "test_floors_are_of_one_position_while_records_are_applied"
        ),
    ),
)
