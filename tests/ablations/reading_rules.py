"""Ablations of the client's reads: one state, within its bounds, by whoever may answer."""

from __future__ import annotations

from tests.ablations.ablation import Ablation, directed

CLIENT = "raftstore/client/"
TABLE = CLIENT + "table.py"
KEY_READS = "raftstore/client/reads/key_reads.py"
OPTIONS = "tests/unit/client/test_reads.py::test_"
WRITES = "tests/integration/client/test_writes.py::test_"
ROUTES = "tests/unit/client/test_route_book.py::test_"
PAGES = "tests/integration/client/test_pages.py::test_"
READS = "tests/integration/client/test_reads.py::test_"
BATCHER = "tests/integration/client/test_get_batcher.py::test_"
MANY_READS = "tests/integration/client/test_reads_of_many.py::test_"

READING_RULES: tuple[Ablation, ...] = (
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
        "raftstore/client/cluster/discovery.py",
        "if self._was_complete(asked_ms):",
        "if True:",
        "tests/integration/client/test_reads.py::test_table_is_found_although_the_node_asked_"
        "first_has_just_started",
    ),
    directed(
        "S7.3-at-least",
        "a read goes back behind a write of its own client",
        "raftstore/client/reads/read_spec.py",
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
        "raftstore/client/reads/read_spec.py",
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
        "    if ack.conflict:",
        "    if False:",
        WRITES + "conditional_put_and_delete_apply_only_to_their_version",
    ),
    directed(
        "client-replica",
        "a replica that failed is asked first again",
        "raftstore/client/cluster/route_book.py",
        "has_failed = failed is not None and now_ms - failed < PENALTY_MS",
        "has_failed = False",
        ROUTES + "replica_that_failed_comes_last_for_a_while",
    ),
    directed(
        "client-joined-bounds",
        "gets with other bounds share a request",
        "raftstore/client/reads/get_batcher.py",
        "place = (channel, spec, timeout_ms)",
        "place = (channel, 0, 0)",
        BATCHER + "gets_with_other_specifications_do_not_share_a_request",
    ),
    directed(
        "client-silent-loop",
        "a client that was late itself calls a node silent",
        "raftstore/client/requests/attempt.py",
        "        if not is_late and now_ms - heard_ms >= settings.hedge_ms:",
        "        if now_ms - heard_ms >= settings.hedge_ms:",
        "tests/unit/client/test_patience.py::test_late_look_says_nothing_of_silence",
    ),
    directed(
        "client-busy-node",
        "a node that answers others is called silent",
        "raftstore/client/requests/attempt.py",
        "        heard_ms = max(attempt.sent_ms, self._heard_ms(attempt.node))",
        "        heard_ms = attempt.sent_ms",
        "tests/unit/client/test_patience.py::test_replica_that_answers_others_is_busy_and_not_left",
    ),
    directed(
        "client-later-leader",
        "a read waits for a leader that was succeeded",
        "raftstore/client/requests/attempt.py",
        "            if newest is not None and newest.term > attempt.leader.term:",
        "            if False:",
        "tests/unit/client/test_patience.py::test_leader_is_left_for_one_of_a_later_term_only",
    ),
    directed(
        "S12-answer-channel",
        "an answer about another channel is taken for this one's",
        "raftstore/client/reads/get_batcher.py",
        "        and answer.served.channel == channel\n",
        "",
        BATCHER + "answer_about_another_channel_is_not_believed",
    ),
    directed(
        "client-kept-route",
        "a routing decision outlives what it came from",
        "raftstore/client/reads/routes.py",
        "            or now_ms >= kept.until_ms\n",
        "",
        "tests/unit/client/test_routes.py::test_kept_decision_ends_with_what_it_came_from",
    ),
    directed(
        "S7.4-route-hint",
        "a replica of which nothing was heard is not asked",
        "raftstore/client/cluster/route_book.py",
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
        "page-token-foreign",
        "the token of another scan is taken for this one's",
        "raftstore/client/scans/pages.py",
        "        if token.table_uuid != info.uuid or token.scan != scan:",
        "        if False:",
        PAGES + "page_token_of_another_scan_or_table_is_refused",
    ),
    directed(
        "S7.3-scan-pinned",
        "the pages of a scan are of several states",
        "raftstore/client/scans/pages.py",
        "        if not self._snapshot:",
        "        if True:",
        MANY_READS + "scan_reads_one_state_although_leaders_change_and_rows_do",
    ),
    directed(
        "S7.3-scan-cut",
        "the page of a short scan that was cut is followed by pages of other states",
        "raftstore/client/scans/pages.py",
        "            answer = await self._begin(partition, replace(part, keep=True))",
        "            self._snapshot = False",
        MANY_READS + "scan_with_a_limit_reads_one_state_although_its_pages_are_cut",
    ),
    directed(
        "S7.3-scan-given-up",
        "a first page whose state was given up is taken for the whole",
        "raftstore/client/scans/pages.py",
        "        if answer.more and not answer.pin:",
        "        if False:",
        MANY_READS + "scan_whose_state_was_given_up_before_its_first_page_came_is_refused",
    ),
    directed(
        "scan-unpinned",
        "the state of a scan stays pinned when the scan is over",
        "raftstore/client/scans/pages.py",
        "            self._channel_reads.close_pin(self._info.channels[partition].channel, pin)",
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
        "raftstore/client/writes/publisher.py",
        "            result.guid = guid_text(write.channel, guid)\n",
        "",
        "tests/integration/client/test_fates.py::"
        "test_partial_write_names_the_records_whose_outcome_is_unknown",
    ),
    directed(
        "client-guid-row",
        "the error of a single write does not tell which write it was",
        "raftstore/client/writes/row_writes.py",
        "result.guid = guid_text(record.running.write.channel,",
        "assert guid_text(record.running.write.channel,",
        "tests/integration/client/test_fates.py::test_errors_of_writes_tell_their_guid",
    ),
    directed(
        "client-hedge",
        "a hedged read returns the older answer",
        "raftstore/client/reads/read_engine.py",
        "return max(answers, key=_applied_seq, default=None)",
        "return min(answers, key=_applied_seq, default=None)",
        READS + "klip_47_hedged_read_returns_the_newer_of_two_answers",
    ),
)
