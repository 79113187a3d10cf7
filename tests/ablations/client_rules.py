"""Ablations of the client: what a writer may believe, and what a reader is promised."""

from __future__ import annotations

from tests.ablations.ablation import Ablation, Edit, directed

CLIENT = "raftstore/client/"
PUBLISHING = "raftstore/client/writes/publishing.py"
PUBLISHER = "raftstore/client/writes/publisher.py"
SESSION = "raftstore/client/writes/session.py"
TOPOLOGY = "raftstore/client/cluster/topology.py"
BATCHES = "raftstore/client/writes/chunks.py"
REQUESTS = "raftstore/client/requests/leader_requests.py"
TABLE = CLIENT + "table.py"
ROW_GATHERING = "raftstore/client/writes/row_gathering.py"
ROW_WRITES = "raftstore/client/writes/row_writes.py"

TESTS = "tests/unit/client/test_publishing.py::test_publish_"
LIMITS = "tests/unit/client/test_limits.py::test_"
KNOWN = "tests/unit/client/test_topology.py::test_topology_"
BATCH = "tests/unit/client/test_batches.py::test_"
BULK = "tests/unit/client/test_bulk.py::test_bulk_writer_"
WRITES = "tests/integration/client/test_writes.py::test_"
MANY_WRITES = "tests/integration/client/test_bulk_writes.py::test_"
SHARED = "tests/integration/client/test_shared_records.py::test_"
CLOSING = "tests/integration/client/test_closing.py::test_close_"
ADMIN = "tests/integration/client/test_admin.py::test_"

OUTCOMES: tuple[Ablation, ...] = (
    directed(
        "S12-attempt",
        "a late refusal of an earlier attempt is taken for the newest",
        PUBLISHING,
        "if reject.attempt != outstanding.attempt:",
        "if False:",
        TESTS + "ignores_a_late_refusal_of_an_earlier_attempt",
    ),
    directed(
        "S12-answerer",
        "a refusal of another node settles the attempt",
        PUBLISHING,
        "if self._result is not None or outstanding is None or outstanding.leader.node != node:",
        "if self._result is not None or outstanding is None:",
        TESTS + "ignores_an_answer_of_a_node_it_is_not_addressed_to",
    ),
    directed(
        "S5.6-refusal",
        "a refusal settles a write that is in doubt",
        PUBLISHING,
        "        if self._doubt is None:\n",
        "        if True:\n",
        TESTS + "stays_unknown_when_a_final_refusal_follows_doubt",
    ),
    directed(
        "S5.6-deadline",
        "a write in doubt is called not applied at its deadline",
        PUBLISHING,
        "        if self._doubt is not None:\n            return self._unknown(str(self._doubt))\n",
        "",
        TESTS + "stays_unknown_when_a_lost_attempt_is_followed_by_refusals",
    ),
    directed(
        "S5.6-lost",
        "a write whose connection broke is called not applied",
        PUBLISHING,
        '            self._leave_in_doubt(f"the connection to {node_name(node)} was lost '
        '({reason})")\n',
        "            self._outstanding = None\n",
        TESTS + "stays_unknown_when_a_lost_attempt_is_followed_by_refusals",
    ),
    directed(
        "S5.6-unknown",
        "a leader's own doubt counts as its refusal",
        PUBLISHING,
        "        if error.outcome is Outcome.UNKNOWN:\n",
        "        if False:\n",
        TESTS + "is_unknown_when_the_leader_does_not_know",
        TESTS + "keeps_the_leader_s_word_when_its_last_attempt_has_no_answer",
    ),
    directed(
        "S5.6-given-up",
        "a write that its caller gave up is called not applied",
        PUBLISHING,
        "                self._leave_in_doubt(str(reason))\n",
        "                pass\n",
        TESTS + "given_up_tells_what_is_known",
    ),
    directed(
        "S5.6-last-call",
        "a refused write is sent once more when no answer can arrive in time",
        PUBLISHING,
        "is_certain = self._refusal is not None and self._doubt is None",
        "is_certain = False",
        TESTS + "makes_no_last_attempt_that_would_only_bring_doubt",
    ),
    directed(
        "S4-code",
        "a code of a newer version means not applied",
        "raftstore/client/requests/outcomes.py",
        "    if cls is None:\n",
        "    if cls is None and (cls := QueryError) is None:\n",
        "tests/unit/client/test_outcomes.py::test_unknown_code_is_unknown_and_final",
    ),
    directed(
        "S4.1-command",
        "a table command without an answer is called refused",
        REQUESTS,
        "        self.hosts[node_name(node)] = reason\n        self.is_in_doubt = True\n",
        "        self.hosts[node_name(node)] = reason\n",
        ADMIN + "create_table_is_in_doubt_when_an_answer_was_lost",
    ),
    directed(
        "S4.1-command-doubt",
        "a refusal settles a table command that is in doubt",
        REQUESTS,
        "self.is_in_doubt = self.is_in_doubt or error.outcome is Outcome.UNKNOWN",
        "self.is_in_doubt = error.outcome is Outcome.UNKNOWN",
        ADMIN + "final_refusal_after_a_lost_answer_leaves_the_table_in_doubt",
    ),
    directed(
        "S4.1-command-final",
        "a final refusal is the last word about an earlier attempt, too",
        REQUESTS,
        "return error if error.outcome is Outcome.UNKNOWN else self.outcome()",
        "return error",
        ADMIN + "final_refusal_after_a_lost_answer_leaves_the_table_in_doubt",
    ),
    directed(
        "client-deadline",
        "a write waits past its deadline",
        PUBLISHING,
        "Wait(max(now_ms + 1, min(until_ms, self._times.deadline_ms)), wants_leader)",
        "Wait(max(now_ms + 1, until_ms), wants_leader)",
        TESTS + "never_waits_past_its_deadline",
    ),
)

GUIDS: tuple[Ablation, ...] = (
    directed(
        "S4.5-window",
        "a write is retried that its channel has forgotten",
        SESSION,
        "return self._counter + 1 - oldest >= self._window - 1",
        "return len(self._open) >= self._window - 1",
        LIMITS + "guids_in_flight_span_less_than_the_window",
    ),
    directed(
        "S4.5-life",
        "a write is retried for longer than nodes can tell it",
        PUBLISHER,
        "deadline_ms=min(deadline_ms, self._now_ms() + GUID_LIFE_MS)",
        "deadline_ms=deadline_ms",
        WRITES + "put_gives_up_its_guid_before_nodes_forget_it",
    ),
    directed(
        "S4.5-renewal",
        "a session goes on after its nodes forgot it",
        SESSION,
        "if self._counter and (is_idle or self._is_renewal_due):",
        "if False:",
        LIMITS + "session_is_renewed_after_a_long_pause_and_when_it_expired",
    ),
    directed(
        "S4.5-cancelled",
        "a guid given to a cancelled caller holds up all others",
        SESSION,
        "                if turn.done() and not turn.cancelled():\n"
        "                    self._wake()\n",
        "",
        LIMITS + "guid_given_to_a_cancelled_caller_is_not_lost",
    ),
    directed(
        "client-guid-released",
        "writes that have their outcome use up the window",
        PUBLISHER,
        "            channel.session.release(guid, expired=expired)\n",
        "",
        WRITES + "guids_are_released_with_the_outcome_of_their_writes",
    ),
    directed(
        "client-bytes",
        "a large write overtakes those that wait for room",
        "raftstore/client/writes/in_flight.py",
        "        if self._waiting or not self._fits(size):",
        "        if not self._fits(size):",
        LIMITS + "budget_admits_in_order_and_one_large_write_alone",
    ),
    directed(
        "client-relay",
        "a replica that cannot be reached is left without the rows",
        PUBLISHER,
        "and ((link := self._links.of(node)) is None or not link.is_open)",
        "and self._links.of(node) is None",
        WRITES + "put_names_unreachable_replicas_for_relay",
    ),
)

LEADERS: tuple[Ablation, ...] = (
    directed(
        "S7.4-term",
        "word of a leader of the past replaces a newer one",
        TOPOLOGY,
        "        if leader.term > newest or is_first:",
        "        if True:",
        KNOWN + "keeps_the_leader_of_the_highest_term",
    ),
    directed(
        "S7.4-denied",
        "hearsay revives a leader that denied leading",
        TOPOLOGY,
        "            if leader == denied and now_ms < until_ms:",
        "            if False:",
        KNOWN + "forgets_a_leader_that_denies_and_hearsay_about_it",
    ),
    directed(
        "S7.4-older-denies",
        "a leader of the past denies a newer one",
        TOPOLOGY,
        "        if self._leaders.get(channel) == leader:\n",
        "        if channel in self._leaders:\n",
        KNOWN + "keeps_a_newer_leader_when_an_older_one_denies",
    ),
    directed(
        "S7.4-late-denial",
        "a late refusal of an earlier attempt denies the leader of now",
        PUBLISHER,
        "            refused = running.state.on_reject(node, message, self._now_ms())\n",
        "            refused = running.state.addressed\n"
        "            running.state.on_reject(node, message, self._now_ms())\n",
        WRITES + "late_refusal_of_an_earlier_attempt_says_nothing_of_the_leader_of_now",
    ),
    directed(
        "client-catalog",
        "an older catalog replaces a newer one",
        TOPOLOGY,
        "        if answer.version >= self.version:",
        "        if True:",
        KNOWN + "keeps_the_newer_catalog",
    ),
    directed(
        "client-cluster",
        "another cluster is believed",
        TOPOLOGY,
        "        if answer.cluster_id != self.cluster_id:",
        "        if False:",
        KNOWN + "ignores_another_cluster",
    ),
    directed(
        "client-store",
        "another node at an old address is taken for the one that was there",
        "raftstore/client/cluster/links.py",
        "        if connection.peer != self.node:",
        "        if False:",
        ADMIN + "client_does_not_talk_to_another_node_at_an_old_address",
    ),
)

MANY_ROWS: tuple[Ablation, ...] = (
    directed(
        "client-last-value",
        "of two values of one key the earlier may win",
        BATCHES,
        "        rows.pop(key, None)\n        rows[key] = cell\n",
        "        rows.setdefault(key, cell)\n",
        BATCH + "split_keeps_the_last_value_of_every_key_in_its_partition",
    ),
    directed(
        "client-record-size",
        "a record is larger than one may be",
        BATCHES,
        "if chunk and (len(chunk) >= REQUEST_ROWS_MAX or size + row_bytes > REQUEST_BYTES_MAX):",
        "if False:",
        BATCH + "split_bounds_rows_and_bytes_of_a_record",
    ),
    directed(
        "client-row-outcome",
        "rows in doubt are reported as not applied",
        BATCHES,
        "            outcome = result.outcome\n",
        "            pass\n",
        BATCH + "failure_names_rows_by_what_became_of_them",
    ),
    directed(
        "client-failed-partition",
        "later rows of a partition are written after earlier ones failed",
        TABLE,
        "                if chunk.partition in failed:",
        "                if False:",
        MANY_WRITES + "put_many_writes_nothing_more_to_a_partition_that_failed",
    ),
    directed(
        "client-bulk-order",
        "records of one partition overtake each other",
        "raftstore/client/writes/bulk.py",
        "                payload, rows = lane[0]\n"
        "                ack = await self._write(partition, payload, rows)\n"
        "                lane.popleft()\n",
        "                payload, rows = lane.pop()\n"
        "                ack = await self._write(partition, payload, rows)\n",
        BULK + "keeps_the_order_of_a_partition",
    ),
    directed(
        "client-bulk-error",
        "a bulk writer goes on after an error",
        "raftstore/client/writes/bulk.py",
        "            while lane and self._error is None:",
        "            while lane:",
        BULK + "sends_nothing_more_in_any_partition_after_an_error",
    ),
    directed(
        "client-bulk-window",
        "a bulk writer takes any number of records",
        "raftstore/client/writes/bulk.py",
        "        await self._slots.acquire()\n",
        "",
        BULK + "waits_while_the_window_is_full",
    ),
)

SHARED_RECORDS: tuple[Ablation, ...] = (
    Ablation(
        "client-one-key",
        "two writes of one key leave at the same time",
        (
            Edit(
                ROW_GATHERING,
                "        if row.key in self._active:\n            return True\n",
                "",
            ),
            Edit(
                ROW_GATHERING,
                "            del self._active[key]\n",
                "            self._active.pop(key, None)\n",
            ),
        ),
        tests=(
            SHARED + "writes_of_one_key_never_share_a_record",
            SHARED + "later_write_of_a_key_waits_for_the_retry_of_the_earlier",
        ),
    ),
    directed(
        "client-key-of-condition",
        "a write overtakes a conditional one of its key",
        ROW_GATHERING,
        "        return not row.is_conditional and row.key in self._conditions",
        "        return False",
        "tests/unit/client/test_row_gathering.py::test_write_waits_for_every_conditional_one_of_its_key",
    ),
    directed(
        "client-record-under-way",
        "every write has a record of its own",
        ROW_GATHERING,
        "        return bool(self._ready) and self._shared_under_way < RECORDS_UNDER_WAY_MAX",
        "        return bool(self._ready)",
        SHARED + "puts_begun_while_records_are_under_way_share_the_next",
    ),
    directed(
        "client-shared-deadline",
        "a caller with little time ends the patience of another",
        ROW_GATHERING,
        "            if (latest_ms - earliest_ms) * DEADLINE_SHARE > max(0, earliest_ms - now_ms):",
        "            if False:",
        SHARED + "callers_with_other_deadlines_do_not_share_a_record",
    ),
    directed(
        "client-shared-bounds",
        "a shared record has any size",
        ROW_GATHERING,
        "            elif len(rows) >= REQUEST_ROWS_MAX or size + row.size > REQUEST_BYTES_MAX:",
        "            elif False:",
        SHARED + "record_is_bounded_in_rows_and_bytes",
    ),
    directed(
        "S4.5-put-back",
        "rows of a record in doubt leave again under another guid",
        ROW_WRITES,
        "            if is_certain and result.retriable and not self._sender.is_closed:",
        "            if result.retriable and not self._sender.is_closed:",
        SHARED + "every_caller_is_told_the_fate_of_a_record_in_doubt",
    ),
    directed(
        "client-put-back",
        "the first deadline of a refused record ends all its writes",
        ROW_WRITES,
        "                put_back = self._with_time(record)\n",
        "                pass\n",
        SHARED + "rows_that_certainly_were_not_applied_leave_again_while_they_have_time",
    ),
    directed(
        "S4.5-cancelled-row",
        "a row of a record in doubt leaves again when another caller is cancelled",
        ROW_WRITES,
        "        if others and not record.running.state.is_certainly_not_applied:",
        "        if False:",
        SHARED + "cancelled_caller_leaves_a_record_that_was_sent_to_the_others",
    ),
    directed(
        "client-cancelled-row",
        "a cancelled caller's row is sent when nothing of it was under way",
        ROW_WRITES,
        "        if others and not record.running.state.is_certainly_not_applied:",
        "        if others:",
        SHARED + "cancelled_caller_takes_its_row_out_of_a_record_that_was_refused",
    ),
    directed(
        "client-late-row",
        "a row that waits past its deadline is sent",
        ROW_WRITES,
        "            if row.deadline_ms <= now_ms:",
        "            if False:",
        SHARED + "row_that_waits_past_its_deadline_was_not_sent",
    ),
    directed(
        "client-waiting-rows",
        "any number of rows waits",
        "raftstore/client/writes/kinds.py",
        'return len(self.key) + len(self.sealed or b"") + ROW_OVERHEAD_BYTES',
        "return 0",
        SHARED + "waiting_rows_are_bounded_and_the_next_callers_wait",
    ),
)

CLOSED: tuple[Ablation, ...] = (
    directed(
        "client-closed-reads",
        "reads under way wait for answers that a closed connection cannot bring",
        "raftstore/client/cluster/links.py",
        '        self._fail_requests(ConnectionLostError("the client was closed"))\n',
        "",
        CLOSING + "ends_reads_of_every_kind_and_level",
    ),
    directed(
        "client-closed-writes",
        "writes under way are forgotten by the client that is closed",
        PUBLISHER,
        "                running.state.give_up(_closed())\n                self._drive(running)\n\n"
        "    # --- row_writes",
        "                pass\n\n    # --- row_writes",
        CLOSING + "ends_writes_of_every_kind_as_unknown",
    ),
)

CLIENT_RULES: tuple[Ablation, ...] = (
    *OUTCOMES,
    *GUIDS,
    *LEADERS,
    *MANY_ROWS,
    *SHARED_RECORDS,
    *CLOSED,
)
