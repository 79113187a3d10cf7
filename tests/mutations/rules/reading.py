"""Mutations of the client's reads: one state, within its bounds, at a replica that may answer."""

from __future__ import annotations

from tests.mutations.guard import directed, worlds
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

GATHERING = "tests/integration/client/test_gathering.py::test_"
WRITES = "tests/integration/client/test_writes.py::test_"
ROUTES = "tests/unit/client/test_route_book.py::test_"
MANY_GETS = "tests/unit/engine/reads/test_many_gets.py::test_"
DISCOVERY = "tests/unit/client/test_discovery.py::test_"
READS = "tests/integration/client/test_reads.py::test_"
OPTIONS = "tests/unit/client/test_reads.py::test_"
MANY_READS = "tests/integration/client/test_reads_of_many.py::test_"
PAGES = "tests/integration/client/test_pages.py::test_"
FATES = "tests/integration/client/test_fates.py::test_"

READING_RULES: tuple[Mutation, ...] = (
    mutation(
        "S1.9-seen",
        "A client goes on with a copy of the catalog from before its own command.",
        Edit(
            "Admin._see",
            "context.topology.version < version",
            "False",
        ),
        directed(
            "tests/integration/client/test_admin.py::"
            "test_table_made_anew_under_an_old_name_is_the_new_one_although_nodes_lag_behind"
        ),
    ),
    mutation(
        "S1.9-absence",
        "A client believes any node that a table does not exist.",
        Edit(
            "Discovery.table",
            "self._was_complete(asked_ms)",
            "True",
        ),
        directed(READS + "table_is_found_although_the_node_asked_first_has_just_started"),
    ),
    mutation(
        "S7.4-successor",
        "A client whose writes wait for each other looks for a new leader when a timer says so.",
        Edit("Discovery._on_round_done", "self._topology.lacks_leaders", "False"),
        directed(DISCOVERY + "search_for_a_successor_goes_on_while_somebody_waits_for_it"),
    ),
    mutation(
        "S7.3-at-least",
        "A read goes back behind a write of its own client.",
        Edit(
            "ReadSpec.min_seq",
            "self.at_least.seq_of(table.uuid, partition)",
            "None",
        ),
        directed(OPTIONS + "position_bounds_only_its_own_partitions"),
    ),
    mutation(
        "S7.3-merged",
        "A position made of two is as old as the older.",
        Edit(
            "Position.merge",
            "point[1] > known[1]",
            "point[1] < known[1]",
        ),
        directed(
            "tests/unit/client/test_positions.py::test_position_merged_is_at_least_as_new_as_both"
        ),
    ),
    mutation(
        "S7.3-foreign-position",
        "A position of another table is ignored.",
        Edit(
            "Position.check_table",
            "self._entries and not own",
            "False",
        ),
        directed(OPTIONS + "position_of_another_table_is_no_position_of_this_one"),
    ),
    mutation(
        "S7.3-scan-pinned",
        "The pages of a scan are of several states.",
        Edit(
            "PinnedScan.fetch",
            "not self._snapshot",
            "True",
        ),
        directed(MANY_READS + "scan_reads_one_state_although_leaders_change_and_rows_do"),
    ),
    mutation(
        "S7.3-scan-cut",
        "The page of a short scan that was cut is followed by pages of other states.",
        Edit(
            "PinnedScan._first",
            "answer = await self._begin(partition, replace(part, keep=True))",
            "self._snapshot = False",
        ),
        directed(MANY_READS + "scan_with_a_limit_reads_one_state_although_its_pages_are_cut"),
    ),
    mutation(
        "S7.3-scan-given-up",
        "A first page whose state was given up is taken for the whole.",
        Edit(
            "PinnedScan._first",
            "answer.more and not answer.pin",
            "False",
        ),
        directed(
            MANY_READS + "scan_whose_state_was_given_up_before_its_first_page_came_is_refused"
        ),
    ),
    mutation(
        "S7.4-route-hint",
        "A replica of which nothing was heard is not asked.",
        Edit(
            "RouteBook._view",
            "reported.lag if reported is not None and is_recent else 0",
            "reported.lag if reported is not None and is_recent else None",
        ),
        directed(ROUTES + "replica_of_which_nothing_is_known_is_asked"),
    ),
    mutation(
        "client-level",
        "Reads without options go to any replica.",
        Edit(
            "_level",
            "Level.ANY if has_position else Level.LINEARIZABLE",
            "Level.ANY",
        ),
        directed(OPTIONS + "level_follows_from_the_options"),
    ),
    mutation(
        "client-seal",
        "A damaged row is returned.",
        Edit(
            "row_of",
            "unseal(key, sealed)",
            "sealed[4:]",
        ),
        directed(READS + "damaged_row_is_never_returned"),
    ),
    mutation(
        "client-condition",
        "The position of another row serves as a condition.",
        Edit(
            "_expected",
            "seq is None",
            "seq is None and (seq := Seq(0))",
        ),
        directed(WRITES + "conditions_must_make_sense"),
    ),
    mutation(
        "client-conflict",
        "A lost race is reported as a write.",
        Edit(
            "_written",
            "ack.conflict",
            "False",
        ),
        directed(WRITES + "conditional_put_and_delete_apply_only_to_their_version"),
    ),
    mutation(
        "client-replica",
        "A replica that failed is asked first again.",
        Edit(
            "RouteBook._state",
            "failed is not None and now_ms - failed < PENALTY_MS",
            "False",
        ),
        directed(ROUTES + "replica_that_failed_comes_last_for_a_while"),
    ),
    mutation(
        "client-joined-bounds",
        "Gets with other bounds share a request.",
        Edit(
            "GetBatcher.get",
            "self._open.get(place)",
            "next(iter(self._open.values()), None)",
        ),
        directed(
            "tests/integration/client/test_get_batcher.py::"
            "test_gets_with_other_specifications_do_not_share_a_request",
        ),
    ),
    mutation(
        "client-shared-rows",
        "A caller gets the rows of the first one that shares its request.",
        Edit(
            "GetBatcher.get",
            "group.waiters.append((waiter, len(group.keys)))",
            "group.waiters.append((waiter, 0))",
        ),
        directed(
            "tests/simulation/test_shared_gets.py::"
            "test_shared_gets_show_each_caller_the_committed_rows_of_its_own_keys",
        ),
    ),
    mutation(
        "client-kept-route",
        "A routing decision outlives what it came from.",
        Edit(
            "Routes.order",
            "kept is None\n"
            "or kept.stamp != stamp\n"
            "or now_ms >= kept.until_ms\n"
            "or kept.leader != leader\n"
            "or kept.replicas != replicas",
            "kept is None\n"
            "or kept.stamp != stamp\n"
            "or kept.leader != leader\n"
            "or kept.replicas != replicas",
        ),
        directed(
            "tests/unit/client/test_routes.py::test_kept_decision_ends_with_what_it_came_from"
        ),
    ),
    mutation(
        "page-token-foreign",
        "The token of another scan is taken for this one's.",
        Edit(
            "PageToken.parse",
            "token.table_uuid != info.uuid or token.scan != scan",
            "False",
        ),
        directed(PAGES + "page_token_of_another_scan_or_table_is_refused"),
    ),
    mutation(
        "scan-unpinned",
        "The state of a scan stays pinned when the scan is over.",
        Edit(
            "PinnedScan._close",
            "self._channel_reads.close_pin(self._info.channels[partition].channel, pin)",
            "pass",
        ),
        directed(MANY_READS + "scan_that_is_given_up_leaves_no_state_pinned"),
    ),
    mutation(
        "kip-535-strict",
        "A store is read at a replica although none was asked for.",
        Edit(
            "AsyncReadOnlyStore.__init__",
            '"any" if include_stale_stores else "leader"',
            '"any"',
        ),
        directed(
            "tests/design/test_kip_535_api.py::"
            "test_kip_13_14_15_each_reason_is_raised_and_a_kept_handle_re_checks"
        ),
    ),
    mutation(
        "client-guid",
        "The error of a write does not tell which write it was.",
        Edit(
            "Publisher._publish",
            "result.guid = guid_text(write.channel, guid)",
            "",
        ),
        directed(FATES + "partial_write_names_the_records_whose_outcome_is_unknown"),
    ),
    mutation(
        "client-guid-row",
        "The error of a single write does not tell which write it was.",
        Edit(
            "RowWrites._ended",
            "result.guid = guid_text(record.running.write.channel, record.running.state.guid)",
            "assert guid_text(record.running.write.channel, record.running.state.guid)",
        ),
        directed(FATES + "errors_of_writes_tell_their_guid"),
    ),
    mutation(
        "client-hedge",
        "A hedged read returns the older answer.",
        Edit(
            "ReadEngine._hedged",
            "max(answers, key=_applied_seq, default=None)",
            "min(answers, key=_applied_seq, default=None)",
        ),
        directed(READS + "klip_47_hedged_read_returns_the_newer_of_two_answers"),
    ),
    mutation(
        "S12-answer-channel",
        "An answer about another channel is taken for this one's.",
        Edit(
            "answers_keys",
            "len(answer.values) == keys\n"
            "and len(answer.seqs) == keys\n"
            "and answer.served.channel == channel",
            "len(answer.values) == keys\nand len(answer.seqs) == keys",
        ),
        directed(
            "tests/integration/client/test_get_batcher.py::"
            "test_answer_about_another_channel_is_not_believed",
        ),
    ),
    mutation(
        "get-many-level",
        "A node of an older version is sent a request that it does not know.",
        Edit(
            "GetBatcher._send",
            "link.level >= GET_MANY_LEVEL",
            "True",
        ),
        directed(
            "tests/integration/client/test_get_batcher.py::"
            "test_node_of_an_older_version_is_sent_a_get_for_each_channel",
        ),
    ),
    mutation(
        "get-many-one-fails",
        "All channels of a request are given up when one of them is refused.",
        Edit(
            "GetBatcher._take",
            "self._fail(request, group, refused.message)",
            "(self._fail(request, group, refused.message), "
            "self._fail_all(request, refused.message))",
        ),
        directed(
            "tests/integration/client/test_get_batcher.py::"
            "test_channel_that_is_refused_costs_the_others_of_the_request_nothing",
        ),
    ),
    mutation(
        "get-many-form",
        "A part of a request for many channels is answered as a request of its own.",
        Edit(
            "Reader._reply",
            "part is None",
            "True",
        ),
        directed(
            MANY_GETS
            + "get_and_request_for_many_channels_with_one_id_are_answered_each_in_its_form"
        ),
    ),
    mutation(
        "get-many-lower",
        "A request for many channels is answered at a lower level than it asks for.",
        Edit(
            "ManyGets.on_request",
            "request.level",
            '"leader" if request.level == "linearizable" else request.level',
        ),
        worlds(),
    ),
    mutation(
        "get-many-bound",
        "A request for many channels is answered beyond the bound in rows.",
        Edit("ManyGets.on_request", "request.max_lag", "None"),
        worlds(),
    ),
    mutation(
        "get-many-keys",
        "A request for many channels has any number of keys.",
        Edit(
            "ManyGets.on_request",
            "keys > self._keys_max",
            "False",
        ),
        directed(MANY_GETS + "request_has_no_more_keys_than_a_get_may_have"),
    ),
    mutation(
        "get-many-size",
        "The answers to all channels of a request are one message of any size.",
        Edit(
            "ManyGets.collect",
            "asked.found and asked.size + size > GET_BYTES_MAX",
            "False",
        ),
        directed(MANY_GETS + "answers_too_large_for_one_message_leave_in_several"),
    ),
    mutation(
        "get-many-gone",
        "What a client asked for that is gone is kept for ever.",
        Edit(
            "ManyGets.on_client_gone",
            "del self._parts[part]",
            "pass",
        ),
        directed(MANY_GETS + "nothing_is_held_for_a_client_that_is_gone"),
    ),
    mutation(
        "client-silent-loop",
        "A client that was late itself calls a node silent.",
        Edit(
            "Patience.verdict",
            "not is_late and now_ms - heard_ms >= settings.hedge_ms",
            "now_ms - heard_ms >= settings.hedge_ms",
        ),
        directed(
            "tests/unit/client/test_patience.py::test_late_look_says_nothing_of_silence",
        ),
    ),
    mutation(
        "client-busy-node",
        "A node that answers others is called silent.",
        Edit(
            "Patience.verdict",
            "max(attempt.sent_ms, self._heard_ms(attempt.node))",
            "attempt.sent_ms",
        ),
        directed(
            "tests/unit/client/test_patience.py::"
            "test_replica_that_answers_others_is_busy_and_not_left",
        ),
    ),
    mutation(
        "client-later-leader",
        "A read waits for a leader that was succeeded.",
        Edit(
            "Patience.verdict",
            "newest is not None and newest.term > attempt.leader.term",
            "False",
        ),
        directed(
            "tests/unit/client/test_patience.py::test_leader_is_left_for_one_of_a_later_term_only",
        ),
    ),
)
