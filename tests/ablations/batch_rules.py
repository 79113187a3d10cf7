"""Ablations of atomic micro-batches: the coordinator's guards, the channel's, and how rows go in.

One guard has none: "the batch is committed already" of COMMIT stands behind "the attempt is open at
this very batch", which is never so for a batch that is past.
"""

from __future__ import annotations

from tests.ablations.ablation import Ablation, directed

COORDINATOR = "raftstore/state_machines/batches/coordinator.py"
STATE = "raftstore/state_machines/batches/txn_state.py"
STAGING = "raftstore/state_machines/batches/staging.py"
STAGED = "raftstore/protocol/staged.py"
KEYS = "raftstore/state_machines/state_keys.py"
RECORDS = "raftstore/state_machines/batches/txn_records.py"
DROPPED = "raftstore/state_machines/batches/dropped_batches.py"

LATE_WORDS = (
    "tests/unit/engine/test_coordinator.py::test_late_words_of_earlier_attempts_change_no_later_one"
)
DECIDES = "tests/unit/state_machines/test_coordinator.py::test_"
DROPS = "tests/unit/state_machines/test_dropped_batches.py::test_"
WRITERS = "tests/unit/state_machines/test_coordinator_writers.py::test_"
STAGES = "tests/unit/state_machines/test_staging.py::test_"
STEPS = "tests/unit/state_machines/test_txn_records.py::test_"
PAYLOADS = "tests/unit/protocol/test_staged.py::test_"

DECISIONS: tuple[Ablation, ...] = (
    directed(
        "batches-lineage",
        "batch ids of another checkpoint pass for this one's",
        COORDINATOR,
        "    if found.lineage is not None and asked.lineage != found.lineage:",
        "    if False:",
        DECIDES + "begin_table",
    ),
    directed(
        "batches-already",
        "a batch that is in is opened again",
        COORDINATOR,
        "    if last is not None and asked.batch_id == last.batch_id:",
        "    if False:",
        DECIDES + "begin_table",
    ),
    directed(
        "batches-regression",
        "a batch that is past is opened again",
        COORDINATOR,
        "    if last is not None and asked.batch_id < last.batch_id:",
        "    if False:",
        DECIDES + "begin_table",
    ),
    directed(
        "batches-uuid",
        "each task of a batch opens an attempt of its own and ends the others'",
        COORDINATOR,
        "    if now is not None and (now.uuid, now.batch_id) == (asked.uuid, asked.batch_id):",
        "    if False:",
        DECIDES + "begin_table",
    ),
    directed(
        "batches-attempts",
        "an attempt's number is given again",
        COORDINATOR,
        "next_attempt=attempt + 1)",
        "next_attempt=attempt)",
        DECIDES + "attempts_are_table_wide_and_never_used_again",
    ),
    directed(
        "batches-fence",
        "an attempt commits after another one of its writer began",
        COORDINATOR,
        "    if now is None or (now.attempt, now.batch_id) != (asked.attempt, asked.batch_id):",
        "    if now is None:",
        DECIDES + "attempt_is_fenced_by_the_next_one",
        LATE_WORDS,
    ),
    directed(
        "batches-late-close",
        "a late word that gives an earlier attempt up ends the one that is open",
        COORDINATOR,
        "    if found is None or found.open is None or found.open.attempt != step.attempt:\n"
        "        return DONE",
        "    if found is None or found.open is None:\n        return DONE",
        LATE_WORDS,
    ),
    directed(
        "batches-digest",
        "a commit is taken for another one of the same attempt",
        COORDINATOR,
        "        if made.digest != asked.digest:",
        "        if False:",
        DECIDES + "commit_table",
    ),
    directed(
        "batches-unheard",
        "a leader calls an attempt fenced whose BEGIN it has not applied",
        COORDINATOR,
        "    if head is None or request.attempt >= head.next_attempt:",
        "    if head is None:",
        DECIDES + "commit_of_an_attempt_not_heard_of_here_needs_a_record",
    ),
    directed(
        "batches-vector",
        "the vector of a commit does not tell that it touches a channel",
        COORDINATOR,
        "        vector[partition] = n\n",
        "        pass\n",
        DECIDES + "commit_publishes_the_vector_and_the_chain",
    ),
    directed(
        "batches-winner",
        "two attempts of one task count",
        COORDINATOR,
        "    if tasks != sorted(set(tasks)):",
        "    if False:",
        DECIDES + "malformed_manifest_is_refused_and_decides_nothing",
    ),
    directed(
        "batches-replace",
        "a batch that replaces the table leaves channels as they were",
        COORDINATOR,
        "    if manifest.mode == TRUNCATE and len(touched) != partitions:",
        "    if False:",
        DECIDES + "malformed_manifest_is_refused_and_decides_nothing",
    ),
    directed(
        "batches-busy",
        "the outbox grows without an end while a channel is away",
        COORDINATOR,
        "    if pending >= pending_max:",
        "    if False:",
        DECIDES + "begin_is_refused_while_too_many_commits_wait_and_known_ones_are_not",
    ),
    directed(
        "batches-gate",
        "success is told before all touched channels have applied the batch",
        STATE,
        "    return () if entry is None else still_waiting(entry, acked)",
        "    return ()",
        WRITERS + "acknowledgements_trim_the_outbox_cumulatively",
    ),
    directed(
        "batches-close",
        "the end of an old attempt ends the one that is open",
        COORDINATOR,
        "found.open is None or found.open.attempt != step.attempt:",
        "found.open is None:",
        WRITERS + "close_ends_only_the_attempt_that_is_open",
    ),
    directed(
        "batches-floor-open",
        "rows of the attempt that may still commit are dropped",
        STATE,
        "        unfinished = found.open.attempt",
        "        pass",
        DECIDES + "floor_has_two_terms",
    ),
    directed(
        "batches-floor-outbox",
        "rows of a decided batch are dropped before they are applied",
        STATE,
        "            unfinished = min(unfinished, entry.attempt)",
        "            pass",
        DECIDES + "floor_has_two_terms",
    ),
    directed(
        "batches-one-shot-count",
        "a job's batch is forgotten with the next commit of a job",
        COORDINATOR,
        "    kept = head.one_shots + 1\n",
        "    kept = limit + 1\n",
        WRITERS + "one_shot_writers_are_forgotten_by_the_number_of_later_ones",
    ),
    directed(
        "batches-one-shot",
        "a late end of a job forgets the writer that has its name now",
        COORDINATOR,
        "    if kept_n and not step.one_shot:",
        "    if False:",
        WRITERS + "stream_with_the_name_of_a_job_keeps_its_attempt",
    ),
    directed(
        "batches-catalog",
        "micro-batches are coordinated in the catalog's channel, which can not apply their records",
        "raftstore/engine/batches/coordinator.py",
        "        if runner is None or self._host.catalog.table_of(runner.channel) is None:",
        "        if runner is None:",
        "tests/unit/engine/test_coordinator.py::test_catalog_has_no_micro_batches",
    ),
)

CHANNELS: tuple[Ablation, ...] = (
    directed(
        "batches-first-copy",
        "a chunk that comes again takes the place of the first",
        STAGING,
        "    if state.get(ref.key) is not None:",
        "    if False:",
        STAGES + "chunk_staged_again_stays_as_it_came_first",
    ),
    directed(
        "batches-once",
        "a batch is applied again",
        STAGING,
        "    if batch.n <= head.n:",
        "    if False:",
        STAGES + "apply_table",
    ),
    directed(
        "batches-chain",
        "a channel applies batches in the order in which they come",
        STAGING,
        "    if batch.prev != head.n:",
        "    if False:",
        STAGES + "apply_table",
    ),
    directed(
        "batches-pin",
        "a batch is applied without all of its rows",
        STAGING,
        "    if found != batch.part:",
        "    if False:",
        STAGES + "chunks_that_are_not_those_of_the_manifest_break_the_channel",
    ),
    directed(
        "batches-losers",
        "rows of task attempts that lost become visible",
        STAGING,
        " and (ref.partition_id, ref.task_attempt_id) in counted",
        "",
        STAGES + "apply_makes_only_winners_visible_and_drops_the_rest",
    ),
    directed(
        "batches-leftovers",
        "what a batch did not list stays for ever",
        STAGING,
        "        *_removals(ref for ref in refs if ref.attempt <= batch.attempt),\n",
        "",
        STAGES + "apply_makes_only_winners_visible_and_drops_the_rest",
    ),
    directed(
        "batches-order",
        "of two tasks with one key any may win",
        STAGING,
        "ref.mode == INSERT, ref.partition_id, ref.number)",
        "ref.mode == INSERT, ref.number)",
        STAGES + "of_two_tasks_with_one_key_the_higher_partition_wins",
    ),
    directed(
        "batches-inserts-last",
        "a batch that inserts and merges ends otherwise when it is written again",
        STAGING,
        "    inserts_last = MERGE in modes and INSERT in modes",
        "    inserts_last = False",
        STAGES + "batch_that_is_written_again_after_a_stop_ends_the_same",
    ),
    directed(
        "batches-lag",
        "a batch of many rows counts as one row of lag",
        STAGING,
        "    return max(1, min(rows, ROWS_PER_RECORD_MAX))",
        "    return 1",
        STAGES + "seqs_of_a_batch_are_its_rows_as_far_as_a_record_can_hold",
    ),
    directed(
        "batches-rows",
        "rows that no replica can apply are staged",
        STAGED,
        "    check_payload(RecordKind.ROWS, bytes(view), rows)\n",
        "",
        PAYLOADS + "malformed_chunk_is_refused_before_it_is_sequenced",
    ),
)

FORMATS: tuple[Ablation, ...] = (
    directed(
        "batches-format-apply",
        "a decided batch of a newer version is taken for damage",
        STAGED,
        "    if payload and payload[0] > BATCH_FORMAT:",
        "    if False:",
        PAYLOADS + "decided_batch_of_a_newer_format_is_no_damage",
    ),
    directed(
        "batches-format-step",
        "a step of a newer version is taken for damage",
        RECORDS,
        "    if payload and payload[0] > TXN_FORMAT:",
        "    if False:",
        STEPS + "step_of_a_newer_format_is_no_damage",
    ),
    directed(
        "batches-format-state",
        "state of a newer version is taken for damage",
        KEYS,
        "    if stored[:1] > bytes((STATE_FORMAT,)):",
        "    if False:",
        STEPS + "state_of_a_newer_format_is_no_damage",
    ),
)

CHECKS = "tests/unit/engine/test_commit_checks.py::test_"
ENGINE: tuple[Ablation, ...] = (
    directed(
        "batch-believed",
        "a manifest of rows that nobody staged is decided, and stops its channels for good",
        "raftstore/engine/batches/coordinator.py",
        "        elif table.checks.add(waiter.token, request, now_ms):\n",
        "        elif False:\n",
        CHECKS + "manifest_of_what_nobody_staged_is_refused_and_stops_nothing",
        CHECKS + "replacing_batch_of_rows_that_nobody_staged_is_refused_and_empties_nothing",
    ),
    directed(
        "batch-unseen",
        "other nodes are asked about a commit that no table could take",
        "raftstore/engine/batches/coordinator.py",
        " or table.judge(request, entry)",
        "",
        CHECKS + "commit_that_no_table_could_take_is_sent_to_no_other_node",
    ),
    directed(
        "request-fault",
        "a value that a request cannot be counted with ends the node, or what is half done goes on",
        "raftstore/engine/client_inbox.py",
        "            if isinstance(message, PubMsg) or self._node.has_moved():",
        "            if isinstance(message, PubMsg):",
        "tests/unit/engine/test_clients_gone.py::"
        "test_request_that_nobody_can_count_with_ends_its_client_and_not_the_node",
    ),
    directed(
        "batch-logged-range",
        "a number in an old record that is outside its range stops every replica",
        "raftstore/state_machines/batches/txn_records.py",
        "        if str(error).startswith(_OUT_OF_RANGE):",
        "        if False:",
        "tests/unit/state_machines/test_coordinator.py::"
        "test_number_outside_its_range_decides_nothing_and_stops_no_replica",
    ),
    directed(
        "batch-one-yes",
        "the first channel that holds its part has the batch decided",
        "raftstore/engine/batches/commit_checks.py",
        "        if check.open:\n",
        "        if False:\n",
        CHECKS + "commit_is_decided_when_every_channel_has_said_yes_and_not_before",
    ),
    directed(
        "batch-unsure-no",
        "a leader that may be deposed says that rows are missing",
        "raftstore/engine/batches/participant.py",
        "            runner.request_read(self._tokens, now_ms)\n",
        "            self.on_confirmed(self._tokens)\n",
        CHECKS + "leader_that_no_quorum_confirms_says_no_to_nothing",
    ),
    directed(
        "batch-old-word",
        "a word of another leadership of the coordinator counts for a commit of this one",
        "raftstore/engine/batches/coordinator.py",
        "        if table is None or message.term != table.runner.elector.term:\n",
        "        if table is None:\n",
        CHECKS + "word_of_another_leadership_counts_nothing",
    ),
    directed(
        "batch-late-chunks",
        "a chunk behind those of the manifest stops the channel",
        "raftstore/state_machines/batches/staging.py",
        "[: part.chunks]\n",
        "\n",
        CHECKS + "chunks_that_come_behind_those_of_the_manifest_stop_nothing",
    ),
    directed(
        "batch-success-gate",
        "a batch is told as done when it is decided, not when it is applied everywhere (rule 5)",
        "raftstore/engine/batches/coordinator.py",
        "        if verdict.name in (ALREADY, OK) and not table.is_everywhere(verdict.n):\n",
        "        if False:\n",
        "tests/unit/engine/test_batches.py::"
        "test_success_is_told_only_when_every_touched_channel_has_applied",
    ),
    directed(
        "batch-success-unreported",
        "a commit that the tables hold and nobody was told of yet counts as applied everywhere",
        "raftstore/engine/batches/coordinated_table.py",
        "        if n not in self._entries:\n",
        "        if False:\n",
        "tests/unit/engine/test_coordinator_memory.py::"
        "test_success_waits_also_when_the_state_is_ahead_of_what_was_reported",
    ),
    directed(
        "batch-leads-late",
        "the first batch of a table stays decided and unapplied when its leader applies it late",
        "raftstore/engine/batches/coordinator.py",
        "            if runner.elector.role is Role.LEADER and runner.core.leader_is_ready:\n",
        "            if False:\n",
        "tests/unit/engine/test_coordinator_memory.py::"
        "test_first_batch_of_a_table_is_applied_by_a_leader_that_applies_it_late",
    ),
    directed(
        "batch-begin-once",
        "every task of a batch costs a record",
        "raftstore/engine/batches/coordinator.py",
        "        if beginning is not None:\n",
        "        if False:\n",
        "tests/unit/engine/test_coordinator.py::"
        "test_tasks_of_one_batch_get_one_attempt_and_cost_one_record",
    ),
    directed(
        "batch-ttl",
        "an attempt that nobody goes on with stays open for ever",
        "raftstore/engine/batches/coordinated_table.py",
        "        late = [writer for writer, opened in self._opened.items() "
        "if opened.until_ms <= now_ms]\n",
        "        late: list[str] = []\n",
        "tests/unit/engine/test_coordinator.py::"
        "test_attempt_that_nobody_goes_on_with_is_closed_by_its_time",
    ),
    directed(
        "batch-dropped-table",
        "a stream goes on in the middle of a table that was dropped and made anew",
        DROPPED,
        "    if request.batch_id == 0 or (request.writer, request.lineage) not in dropped:\n",
        "    if True:\n",
        DROPS + "only_a_writer_with_batches_in_a_dropped_table_is_refused",
        "tests/unit/engine/test_dropped_writers.py::"
        "test_stream_does_not_begin_a_table_anew_in_its_middle",
    ),
    directed(
        "batch-dropped-first",
        "the first batch of a checkpoint is refused for what another one wrote",
        DROPPED,
        "    if request.batch_id == 0 or (request.writer, request.lineage) not in dropped:\n",
        "    if request.writer not in dict(dropped):\n",
        DROPS + "only_a_writer_with_batches_in_a_dropped_table_is_refused",
    ),
    directed(
        "batch-dropped-known",
        "a stream that began in this table is refused for what it had in an older one",
        DROPPED,
        "    if read_writer(request.writer, state) is not None:\n",
        "    if False:\n",
        DROPS + "writer_that_began_in_this_table_goes_on",
    ),
    directed(
        "batch-dropped-current",
        "a leader refuses a stream whose batches in this table it has not applied yet",
        DROPPED,
        "    if not is_current:\n",
        "    if False:\n",
        DROPS + "leader_that_has_not_applied_everything_does_not_call_a_writer_unknown",
    ),
    directed(
        "batch-dropped-told",
        "a client drops a table without telling who counts batches in it",
        "raftstore/client/batches/dropped_writers.py",
        "    return tuple(named)[:DROPPED_WRITERS_MAX]\n",
        "    return ()\n",
        "tests/integration/client/test_dropped_writers.py::"
        "test_drop_tells_who_has_batches_that_go_on_counting",
    ),
    directed(
        "batch-dropped-all",
        "a client tells the first writers by name, which may all be jobs of one batch",
        "raftstore/client/batches/dropped_writers.py",
        "        if not (told.more and told.writers):\n",
        "        if True:\n",
        "tests/integration/client/test_dropped_writers.py::"
        "test_drop_tells_a_stream_however_many_jobs_stand_before_it",
    ),
    directed(
        "batch-writers-after",
        "whoever asks for all writers of a table is told the first ones for ever",
        "raftstore/engine/batches/coordinated_table.py",
        "writers(self.state, request.after, WRITERS_MAX)",
        'writers(self.state, "", WRITERS_MAX)',
        "tests/unit/engine/test_coordinator.py::"
        "test_writers_beyond_one_answer_are_told_by_the_next",
    ),
    directed(
        "batch-dropped-remembered",
        "the catalog forgets who counts batches in a dropped table when another one is dropped",
        "raftstore/state_machines/catalog.py",
        "dropped_writers.setdefault(gone.name, {}).update(dict.fromkeys(gone.writers))",
        "dropped_writers[gone.name] = dict.fromkeys(gone.writers)",
        "tests/unit/state_machines/test_catalog.py::test_drop_table_remembers_who_had_batches_in_it",
    ),
    directed(
        "batch-version-label",
        "a reader of an older commit gets the state of a newer one",
        "raftstore/engine/reads/commit_reads.py",
        "        if request.as_of and head.n > request.as_of:\n",
        "        if False:\n",
        "tests/unit/engine/test_batches.py::"
        "test_state_of_an_older_commit_is_kept_a_while_and_then_refused",
    ),
)

BATCH_RULES: tuple[Ablation, ...] = (*DECISIONS, *CHANNELS, *FORMATS, *ENGINE)
