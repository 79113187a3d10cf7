"""Ablations of the client: what a writer may believe, and what a reader is promised."""

from __future__ import annotations

from tests.ablations.ablation import Ablation, directed

CLIENT = "raftstore/client/"
PUBLISHING = CLIENT + "publishing.py"
PUBLISHER = CLIENT + "publisher.py"
SESSION = CLIENT + "session.py"
TOPOLOGY = CLIENT + "topology.py"
BATCHES = CLIENT + "batches.py"
REQUESTS = CLIENT + "leader_requests.py"
TABLE = CLIENT + "table.py"
KEY_READS = CLIENT + "key_reads.py"

TESTS = "tests/unit/client/test_publishing.py::test_publish_"
LIMITS = "tests/unit/client/test_limits.py::test_"
KNOWN = "tests/unit/client/test_topology.py::test_topology_"
BATCH = "tests/unit/client/test_batches.py::test_"
BULK = "tests/unit/client/test_bulk.py::test_bulk_writer_"
OPTIONS = "tests/unit/client/test_reads.py::test_"
WRITES = "tests/integration/client/test_writes.py::test_"
ROUTES = "tests/unit/client/test_route_book.py::test_"
PAGES = "tests/integration/client/test_pages.py::test_"
READS = "tests/integration/client/test_reads.py::test_"
GATHERING = "tests/integration/client/test_gathering.py::test_"
MANY_READS = "tests/integration/client/test_reads_of_many.py::test_"
MANY_WRITES = "tests/integration/client/test_bulk_writes.py::test_"
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
        "if self._doubt is None or error.outcome is Outcome.UNKNOWN:",
        "if True:",
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
        CLIENT + "outcomes.py",
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
        "            channel.session.release(guid, expired=isinstance(result, GuidExpiredError))\n",
        "",
        WRITES + "guids_are_released_with_the_outcome_of_their_writes",
    ),
    directed(
        "client-bytes",
        "a large write overtakes those that wait for room",
        CLIENT + "in_flight.py",
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
        CLIENT + "links.py",
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
        CLIENT + "bulk.py",
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
        CLIENT + "bulk.py",
        "            while lane and self._error is None:",
        "            while lane:",
        BULK + "sends_nothing_more_in_any_partition_after_an_error",
    ),
    directed(
        "client-bulk-window",
        "a bulk writer takes any number of records",
        CLIENT + "bulk.py",
        "        await self._slots.acquire()\n",
        "",
        BULK + "waits_while_the_window_is_full",
    ),
)

READING: tuple[Ablation, ...] = (
    directed(
        "S1.9-seen",
        "a client goes on with a copy of the catalog from before its own command",
        "raftstore/client/admin.py",
        "while context.topology.version < version:",
        "while False:",
        "tests/integration/client/test_admin.py::test_table_made_anew_under_an_old_name_is_the_new_"
        "one_although_nodes_lag_behind",
    ),
    directed(
        "S1.9-absence",
        "a client believes any node that a table does not exist",
        "raftstore/client/discovery.py",
        "if self._was_complete(asked_ms):",
        "if True:",
        "tests/integration/client/test_reads.py::test_table_is_found_although_the_node_asked_"
        "first_has_just_started",
    ),
    directed(
        "S7.3-at-least",
        "a read goes back behind a write of its own client",
        CLIENT + "reads.py",
        "seq = self.at_least.seq_of(table.uuid, partition)",
        "seq = None",
        OPTIONS + "position_bounds_only_its_own_partitions",
    ),
    directed(
        "S7.3-merged",
        "a position made of two is as old as the older",
        CLIENT + "position.py",
        "            if known is None or point[1] > known[1]:",
        "            if known is None or point[1] < known[1]:",
        "tests/unit/client/test_positions.py::test_position_merged_is_at_least_as_new_as_both",
    ),
    directed(
        "client-level",
        "reads without options go to any replica",
        CLIENT + "reads.py",
        "return Level.ANY if has_position else Level.LINEARIZABLE",
        "return Level.ANY",
        OPTIONS + "level_follows_from_the_options",
    ),
    directed(
        "client-seal",
        "a damaged row is returned",
        KEY_READS,
        "schema.key_value_to_row(key, unseal(key, sealed))",
        "schema.key_value_to_row(key, sealed[4:])",
        READS + "damaged_row_is_never_returned",
    ),
    directed(
        "client-condition",
        "the position of another row serves as a condition",
        TABLE,
        "    if seq is None:\n        raise SchemaError(\n",
        "    if seq is None and (seq := Seq(0)):\n        raise SchemaError(\n",
        WRITES + "conditions_must_make_sense",
    ),
    directed(
        "client-conflict",
        "a lost race is reported as a write",
        TABLE,
        "        if ack.conflict:",
        "        if False:",
        WRITES + "conditional_put_and_delete_apply_only_to_their_version",
    ),
    directed(
        "client-replica",
        "a replica that failed is asked first again",
        CLIENT + "route_book.py",
        "has_failed = failed is not None and now_ms - failed < PENALTY_MS",
        "has_failed = False",
        ROUTES + "replica_that_failed_comes_last_for_a_while",
    ),
    directed(
        "client-joined-bounds",
        "gets with other bounds share a request",
        CLIENT + "gathering.py",
        "place = (channel, id(wish), timeout_ms)",
        "place = (channel, 0, 0)",
        GATHERING + "gets_with_other_wishes_do_not_share_a_request",
    ),
    directed(
        "client-kept-route",
        "a routing decision outlives what it came from",
        CLIENT + "routes.py",
        "            or now_ms >= kept.until_ms\n",
        "",
        "tests/unit/client/test_routes.py::test_kept_decision_ends_with_what_it_came_from",
    ),
    directed(
        "S7.4-route-hint",
        "a replica of which nothing was heard is not asked",
        CLIENT + "route_book.py",
        "lag=told.lag if told is not None and is_told else 0,",
        "lag=told.lag if told is not None and is_told else None,",
        ROUTES + "replica_of_which_nothing_is_known_is_asked",
    ),
    directed(
        "S7.3-foreign-position",
        "a position of another table is ignored",
        CLIENT + "position.py",
        "        if self._entries and not own:",
        "        if False:",
        OPTIONS + "position_of_another_table_is_no_position_of_this_one",
    ),
    directed(
        "page-token-damaged",
        "a damaged page token goes on somewhere else",
        CLIENT + "pages.py",
        '    if zlib.crc32(packed).to_bytes(_CRC_BYTES, "big") != sealed[:_CRC_BYTES]:',
        "    if False:",
        PAGES + "page_token_with_one_other_letter_is_refused",
    ),
    directed(
        "page-token-foreign",
        "the token of another scan is taken for this one's",
        CLIENT + "pages.py",
        "        if token.table_uuid != info.uuid or token.scan != scan:",
        "        if False:",
        PAGES + "page_token_of_another_scan_or_table_is_refused",
    ),
    directed(
        "S7.3-scan-pinned",
        "the pages of a scan are of several states",
        CLIENT + "pages.py",
        "        if not self._snapshot:",
        "        if True:",
        MANY_READS + "scan_reads_one_state_although_leaders_change_and_rows_do",
    ),
    directed(
        "S7.3-scan-cut",
        "the page of a short scan that was cut is followed by pages of other states",
        CLIENT + "pages.py",
        "            answer = await self._begin(partition, replace(part, keep=True))",
        "            self._snapshot = False",
        MANY_READS + "scan_with_a_limit_reads_one_state_although_its_pages_are_cut",
    ),
    directed(
        "S7.3-scan-given-up",
        "a first page whose state was given up is taken for the whole",
        CLIENT + "pages.py",
        "        if answer.more and not answer.pin:",
        "        if False:",
        MANY_READS + "scan_whose_state_was_given_up_before_its_first_page_came_is_refused",
    ),
    directed(
        "scan-unpinned",
        "the state of a scan stays pinned when the scan is over",
        CLIENT + "pages.py",
        "            self._querying.close_pin(self._info.channels[partition].channel, pin)",
        "            pass",
        MANY_READS + "scan_that_is_given_up_leaves_no_state_pinned",
    ),
    directed(
        "kip-535-strict",
        "a store is read at a replica although none was asked for",
        CLIENT + "kip535.py",
        '"any" if include_stale_stores else "leader"',
        '"any"',
        "tests/design/test_kip_535_api.py::test_kip_13_14_15_each_reason_is_raised_and_a_kept_"
        "handle_re_checks",
    ),
    directed(
        "client-guid",
        "the error of a write does not tell which write it was",
        CLIENT + "publisher.py",
        "            result.guid = guid_text(write.channel, guid)\n",
        "",
        "tests/integration/client/test_fates.py::test_errors_of_writes_tell_their_guid",
    ),
    directed(
        "client-hedge",
        "a hedged read returns the older answer",
        CLIENT + "replica_reads.py",
        "return max(answers, key=_applied_seq, default=None)",
        "return min(answers, key=_applied_seq, default=None)",
        READS + "klip_47_hedged_read_returns_the_newer_of_two_answers",
    ),
)

CLIENT_RULES: tuple[Ablation, ...] = (*OUTCOMES, *GUIDS, *LEADERS, *MANY_ROWS, *READING)
