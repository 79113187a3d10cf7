"""Mutations of the client: what a writer may believe, and what a reader is promised."""

from __future__ import annotations

from tests.mutations.guard import client_worlds, directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

BATCH = "tests/unit/client/test_batches.py::test_"
SHARED = "tests/integration/client/test_shared_records.py::test_"
MANY_WRITES = "tests/integration/client/test_bulk_writes.py::test_"
WRITES = "tests/integration/client/test_writes.py::test_"
LIMITS = "tests/unit/client/test_limits.py::test_"
BULK = "tests/unit/client/test_bulk.py::test_bulk_writer_"
KNOWN = "tests/unit/client/test_topology.py::test_topology_"
TESTS = "tests/unit/client/test_publishing.py::test_publish_"
CLOSING = "tests/integration/client/test_closing.py::test_close_"
ADMIN = "tests/integration/client/test_admin.py::test_"
OUTCOMES = "tests/unit/client/test_outcomes.py::test_"

CLIENT_RULES: tuple[Mutation, ...] = (
    mutation(
        "S4-code",
        "A code of a newer version means not applied.",
        Edit(
            "error_of",
            "cls is None",
            "cls is None and (cls := QueryError) is None",
        ),
        directed(OUTCOMES + "unknown_code_is_unknown_and_final"),
    ),
    mutation(
        "S4.1-command",
        "A table command without an answer is called refused.",
        Edit(
            "Asked.unanswered",
            "self.is_in_doubt = True",
            "",
        ),
        directed(ADMIN + "create_table_is_in_doubt_when_an_answer_was_lost"),
    ),
    mutation(
        "S4.1-command-doubt",
        "A refusal settles a table command that is in doubt.",
        Edit(
            "Asked.refused",
            "self.is_in_doubt or error.outcome is Outcome.UNKNOWN",
            "error.outcome is Outcome.UNKNOWN",
        ),
        directed(ADMIN + "final_refusal_after_a_lost_answer_leaves_the_table_in_doubt"),
    ),
    mutation(
        "S4.1-command-final",
        "A final refusal ends an earlier attempt, too.",
        Edit(
            "Asked.final",
            "error if error.outcome is Outcome.UNKNOWN else self.outcome()",
            "error",
        ),
        directed(ADMIN + "final_refusal_after_a_lost_answer_leaves_the_table_in_doubt"),
    ),
    mutation(
        "S4.5-window",
        "A write is retried that its channel has forgotten.",
        Edit(
            "ProducerSession._is_full",
            "self._counter + 1 - oldest",
            "len(self._open)",
        ),
        directed(LIMITS + "guids_in_flight_span_less_than_the_window"),
    ),
    mutation(
        "S4.5-life",
        "A write is retried for longer than nodes can tell it.",
        Edit(
            "Publisher.new_record",
            "min(deadline_ms, self._now_ms() + GUID_LIFE_MS)",
            "deadline_ms",
        ),
        directed(WRITES + "put_gives_up_its_guid_before_nodes_forget_it"),
    ),
    mutation(
        "S4.5-renewal",
        "A session goes on after its nodes forgot it.",
        Edit(
            "ProducerSession._take",
            "self._counter and (is_idle or self._is_renewal_due)",
            "False",
        ),
        directed(LIMITS + "session_is_renewed_after_a_long_pause_and_when_it_expired"),
    ),
    mutation(
        "S4.5-cancelled",
        "A guid given to a cancelled caller holds up all others.",
        Edit(
            "ProducerSession.reserve",
            "if turn.done() and not turn.cancelled():\n    self._wake()",
            "",
        ),
        directed(LIMITS + "guid_given_to_a_cancelled_caller_is_not_lost"),
    ),
    mutation(
        "S4.5-put-back",
        "Rows of a record in doubt leave again under another guid.",
        Edit(
            "RowWrites._ended",
            "is_certain and result.retriable and not self._sender.is_closed",
            "result.retriable and not self._sender.is_closed",
        ),
        directed(SHARED + "every_caller_is_told_the_fate_of_a_record_in_doubt"),
    ),
    mutation(
        "S4.5-cancelled-row",
        "A row of a record in doubt leaves again when another caller is cancelled.",
        Edit(
            "RowWrites._withdraw",
            "others and not record.running.state.is_certainly_not_applied",
            "False",
        ),
        directed(SHARED + "cancelled_caller_leaves_a_record_that_was_sent_to_the_others"),
    ),
    mutation(
        "S5.6-refusal",
        "A refusal settles a write that is in doubt.",
        Edit(
            "Publishing._settled",
            "self._doubt is None",
            "True",
        ),
        directed(TESTS + "stays_unknown_when_a_final_refusal_follows_doubt"),
    ),
    mutation(
        "S5.6-deadline",
        "A write in doubt is called not applied at its deadline.",
        Edit(
            "Publishing._at_deadline",
            "if self._doubt is not None:\n    return self._unknown(str(self._doubt))",
            "",
        ),
        directed(TESTS + "stays_unknown_when_a_lost_attempt_is_followed_by_refusals"),
    ),
    mutation(
        "S5.6-lost",
        "What was under way on a connection that ended counts as never sent.",
        Edit(
            "Publishing.on_lost",
            'self._leave_in_doubt(f"the connection to {node_name(node)} was lost ({reason})")',
            "self._outstanding = None",
        ),
        directed(TESTS + "stays_unknown_when_a_lost_attempt_is_followed_by_refusals"),
        client_worlds(),
    ),
    mutation(
        "S5.6-unknown",
        "A leader's own doubt counts as its refusal.",
        Edit(
            "Publishing.on_reject",
            "error.outcome is Outcome.UNKNOWN",
            "False",
        ),
        directed(
            TESTS + "is_unknown_when_the_leader_does_not_know",
            TESTS + "keeps_the_leader_s_word_when_its_last_attempt_has_no_answer",
        ),
    ),
    mutation(
        "S5.6-given-up",
        "A write that its caller gave up is called not applied.",
        Edit(
            "Publishing.give_up",
            "self._leave_in_doubt(str(reason))",
            "pass",
        ),
        directed(TESTS + "given_up_tells_what_is_known"),
    ),
    mutation(
        "S5.6-last-call",
        "A refused write is sent once more when no answer can arrive in time.",
        Edit(
            "Publishing.poll",
            "self._refusal is not None and self._doubt is None",
            "False",
        ),
        directed(TESTS + "makes_no_last_attempt_that_would_only_bring_doubt"),
    ),
    mutation(
        "S7.4-term",
        "Word of a leader of the past replaces a newer one.",
        Edit(
            "Topology.hint",
            "leader.term > newest or is_first",
            "True",
        ),
        directed(KNOWN + "keeps_the_leader_of_the_highest_term"),
    ),
    mutation(
        "S7.4-denied",
        "A report of another node revives a leader that denied leading.",
        Edit(
            "Topology.hint",
            "leader == denied and now_ms < until_ms",
            "False",
        ),
        directed(KNOWN + "forgets_a_leader_that_denies_and_reports_about_it"),
    ),
    mutation(
        "S7.4-older-denies",
        "A leader of the past denies a newer one.",
        Edit(
            "Topology.refute",
            "self._leaders.get(channel) == leader",
            "channel in self._leaders",
        ),
        directed(KNOWN + "keeps_a_newer_leader_when_an_older_one_denies"),
    ),
    mutation(
        "S7.4-late-denial",
        "A late refusal of an earlier attempt denies the leader of now.",
        Edit(
            "Publisher.on_publish_answer",
            "refused = running.state.on_reject(node, message, self._now_ms())",
            "refused = running.state.addressed\n"
            "running.state.on_reject(node, message, self._now_ms())",
        ),
        directed(WRITES + "late_refusal_of_an_earlier_attempt_says_nothing_of_the_leader_of_now"),
    ),
    mutation(
        "S12-attempt",
        "A late refusal of an earlier attempt is taken for the newest one's.",
        Edit(
            "Publishing.on_reject",
            "reject.attempt != outstanding.attempt",
            "False",
        ),
        directed(
            TESTS + "ignores_a_late_refusal_of_an_earlier_attempt",
            why="a doubled refusal must come in the last moments of a write that is stored "
            "meanwhile",
        ),
    ),
    mutation(
        "S12-answerer",
        "A refusal of another node settles the attempt.",
        Edit(
            "Publishing.on_reject",
            "self._result is not None or outstanding is None or outstanding.leader.node != node",
            "self._result is not None or outstanding is None",
        ),
        directed(TESTS + "ignores_an_answer_of_a_node_it_is_not_addressed_to"),
    ),
    mutation(
        "client-deadline",
        "A write waits past its deadline.",
        Edit(
            "Publishing._wait",
            "min(until_ms, self._times.deadline_ms)",
            "until_ms",
        ),
        directed(TESTS + "never_waits_past_its_deadline"),
    ),
    mutation(
        "client-guid-released",
        "Writes that have their outcome use up the window.",
        Edit(
            "Publisher._end",
            "channel.session.release(guid, expired=expired)",
            "",
        ),
        directed(WRITES + "guids_are_released_with_the_outcome_of_their_writes"),
    ),
    mutation(
        "client-bytes",
        "A large write overtakes those that wait for room.",
        Edit(
            "ByteBudget.try_acquire",
            "self._waiting or not self._fits(size)",
            "not self._fits(size)",
        ),
        directed(LIMITS + "budget_admits_in_order_and_one_large_write_alone"),
    ),
    mutation(
        "client-relay",
        "A replica that cannot be reached is left without the rows.",
        Edit(
            "Publisher._frame",
            "(link := self._links.of(node)) is None or not link.is_open",
            "self._links.of(node) is None",
        ),
        directed(WRITES + "put_names_unreachable_replicas_for_relay"),
    ),
    mutation(
        "client-catalog",
        "An older catalog replaces a newer one.",
        Edit(
            "Topology.merge",
            "answer.version >= self.version",
            "True",
        ),
        directed(KNOWN + "keeps_the_newer_catalog"),
    ),
    mutation(
        "client-cluster",
        "Another cluster is believed.",
        Edit(
            "Topology.merge",
            "answer.cluster_id != self.cluster_id",
            "False",
        ),
        directed(KNOWN + "ignores_another_cluster"),
    ),
    mutation(
        "client-store",
        "Another node at an old address is taken for the one that was there.",
        Edit(
            "NodeLink._connect",
            "connection.peer != self.node",
            "False",
        ),
        directed(ADMIN + "client_does_not_talk_to_another_node_at_an_old_address"),
    ),
    mutation(
        "client-last-value",
        "Of two values of one key the earlier may win.",
        Edit(
            "split",
            "rows.pop(key, None)\nrows[key] = cell",
            "rows.setdefault(key, cell)",
        ),
        directed(BATCH + "split_keeps_the_last_value_of_every_key_in_its_partition"),
    ),
    mutation(
        "client-record-size",
        "A record is larger than one may be.",
        Edit(
            "_chunks",
            "chunk and (len(chunk) >= REQUEST_ROWS_MAX or size + row_bytes > REQUEST_BYTES_MAX)",
            "False",
        ),
        directed(BATCH + "split_bounds_rows_and_bytes_of_a_record"),
    ),
    mutation(
        "client-row-outcome",
        "Rows in doubt are reported as not applied.",
        Edit(
            "failure_of",
            "outcome = result.outcome",
            "pass",
        ),
        directed(BATCH + "failure_names_rows_by_what_became_of_them"),
    ),
    mutation(
        "client-failed-partition",
        "Later rows of a partition are written after earlier ones failed.",
        Edit(
            "AsyncTable._write_many",
            "chunk.partition in failed",
            "False",
        ),
        directed(MANY_WRITES + "put_many_writes_nothing_more_to_a_partition_that_failed"),
    ),
    mutation(
        "client-bulk-order",
        "Records of one partition overtake each other.",
        Edit(
            "AsyncBulkWriter._run",
            "payload, rows = lane[0]\n"
            "ack = await self._write(partition, payload, rows)\n"
            "lane.popleft()",
            "payload, rows = lane.pop()\nack = await self._write(partition, payload, rows)",
        ),
        directed(BULK + "keeps_the_order_of_a_partition"),
    ),
    mutation(
        "client-bulk-error",
        "A bulk writer goes on after an error.",
        Edit(
            "AsyncBulkWriter._run",
            "lane and self._error is None",
            "lane",
        ),
        directed(BULK + "sends_nothing_more_in_any_partition_after_an_error"),
    ),
    mutation(
        "client-bulk-window",
        "A bulk writer takes any number of records.",
        Edit(
            "AsyncBulkWriter.add",
            "await self._slots.acquire()",
            "",
        ),
        directed(
            BULK + "waits_while_the_window_is_full",
            "tests/unit/spark/test_pressure.py::"
            "test_task_takes_no_more_rows_from_spark_while_nodes_are_overloaded",
        ),
        also=("spark",),
    ),
    mutation(
        "client-one-key",
        "Two writes of one key leave at the same time.",
        Edit(
            "RowGathering._is_held_up",
            "if row.key in self._active:\n    return True",
            "",
        ),
        Edit(
            "RowGathering._release",
            "del self._active[key]",
            "self._active.pop(key, None)",
        ),
        directed(
            SHARED + "writes_of_one_key_never_share_a_record",
            SHARED + "later_write_of_a_key_waits_for_the_retry_of_the_earlier",
        ),
    ),
    mutation(
        "client-key-of-condition",
        "A write overtakes a conditional one of its key.",
        Edit(
            "RowGathering._is_held_up",
            "not row.is_conditional and row.key in self._conditions",
            "False",
        ),
        directed(
            "tests/unit/client/test_row_gathering.py::"
            "test_write_waits_for_every_conditional_one_of_its_key"
        ),
    ),
    mutation(
        "client-record-under-way",
        "Every write has a record of its own.",
        Edit(
            "RowGathering.may_leave",
            "bool(self._ready) and self._shared_under_way < RECORDS_UNDER_WAY_MAX",
            "bool(self._ready)",
        ),
        directed(SHARED + "puts_begun_while_records_are_under_way_share_the_next"),
    ),
    mutation(
        "client-shared-deadline",
        "A caller with little time ends the patience of another.",
        Edit(
            "RowGathering._next_shared",
            "(latest_ms - earliest_ms) * DEADLINE_SHARE > max(0, earliest_ms - now_ms)",
            "False",
        ),
        directed(SHARED + "callers_with_other_deadlines_do_not_share_a_record"),
    ),
    mutation(
        "client-shared-bounds",
        "A shared record has any size.",
        Edit(
            "RowGathering._next_shared",
            "len(rows) >= REQUEST_ROWS_MAX or size + row.size > REQUEST_BYTES_MAX",
            "False",
        ),
        directed(SHARED + "record_is_bounded_in_rows_and_bytes"),
    ),
    mutation(
        "client-put-back",
        "The first deadline of a refused record ends all its writes.",
        Edit(
            "RowWrites._ended",
            "put_back = self._with_time(record)",
            "pass",
        ),
        directed(SHARED + "rows_that_certainly_were_not_applied_leave_again_while_they_have_time"),
    ),
    mutation(
        "client-cancelled-row",
        "A cancelled caller's row is sent when nothing of it was under way.",
        Edit(
            "RowWrites._withdraw",
            "others and not record.running.state.is_certainly_not_applied",
            "others",
        ),
        directed(SHARED + "cancelled_caller_takes_its_row_out_of_a_record_that_was_refused"),
    ),
    mutation(
        "client-late-row",
        "A row that waits past its deadline is sent.",
        Edit(
            "RowWrites._end_late",
            "row.deadline_ms <= now_ms",
            "False",
        ),
        directed(SHARED + "row_that_waits_past_its_deadline_was_not_sent"),
    ),
    mutation(
        "client-waiting-rows",
        "Any number of rows waits.",
        Edit(
            "RowWrite.size",
            'len(self.key) + len(self.sealed or b"") + ROW_OVERHEAD_BYTES',
            "0",
        ),
        directed(SHARED + "waiting_rows_are_bounded_and_the_next_callers_wait"),
    ),
    mutation(
        "client-closed-reads",
        "Reads under way wait for answers that a closed connection cannot bring.",
        Edit(
            "NodeLink.stop",
            'self._fail_requests(ConnectionLostError("the client was closed"))',
            "",
        ),
        directed(CLOSING + "ends_reads_of_every_kind_and_level"),
    ),
    mutation(
        "client-closed-writes",
        "Writes under way are forgotten by the client that is closed.",
        Edit(
            "Publisher.close",
            "running.state.give_up(_closed())\nself._drive(running)",
            "pass",
        ),
        directed(CLOSING + "ends_writes_of_every_kind_as_unknown"),
    ),
    mutation(
        "S4-unknown-code-called-not-applied",
        "An error that this version does not know is called not applied.",
        Edit(
            "error_of",
            "ConnectionInDoubtError",
            "RequestError",
        ),
        directed(
            OUTCOMES + "unknown_code_is_unknown_and_final",
            why="a first refusal of unknown outcome is rare, and what it refuses is mostly lost",
        ),
    ),
    mutation(
        "S4.5-rows-in-doubt-leave-again",
        "Rows of a record in doubt leave again in another one when one of their callers ends.",
        Edit(
            "RowWrites._withdraw",
            "others and not record.running.state.is_certainly_not_applied",
            "False",
        ),
        Edit(
            "RowWrites._ended",
            "is_certain and result.retriable and not self._sender.is_closed",
            "result.retriable and not self._sender.is_closed",
        ),
        client_worlds(),
    ),
    mutation(
        "S4.5-retry-under-a-new-guid",
        "The client retries a write under a new GUID.",
        Edit(
            "Publisher._frame",
            "running.state.guid",
            "running.state.guid[:15] + bytes([(running.state.guid[15] + attempt) % 256])",
        ),
        client_worlds(),
    ),
    mutation(
        "S5.6-doubt-forgotten",
        "A client forgets that an earlier attempt is in doubt when a later one is refused.",
        Edit(
            "Publishing._leave_in_doubt",
            "self._doubt = ConnectionInDoubtError(reason)",
            "",
        ),
        client_worlds(),
    ),
    mutation(
        "S5.6-deadline-taken-for-a-refusal",
        "An attempt that is not answered before the deadline counts as refused.",
        Edit(
            "Publishing._at_deadline",
            "self._outstanding is not None and self._doubt is None",
            "False",
        ),
        client_worlds(),
    ),
)
