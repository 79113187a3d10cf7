"""Mutations of what the NATS document asks for in its rows on catching up and compaction."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

CORE = "tests/unit/core/test_"
ENGINE = "tests/unit/engine/"
CATCH_UP = CORE + "catch_up.py::test_"
HISTORY = ENGINE + "channel/test_history_feed.py::test_"
CATCH_UPS = ENGINE + "channel/test_catch_ups.py::test_"
NODES = "tests/design/test_nats_rows.py::test_nats_"
DESIGN = "tests/design/test_nats_"

DOCUMENT_RULES: tuple[Mutation, ...] = (
    mutation(
        "nats-028-told",
        "A change of mode is not reported.",
        Edit("ChannelState.set_mode", "self.emit(ModeChanged(mode, reason))", "pass"),
        directed(CORE + "follower.py::test_mode_changes_are_told_with_their_reason"),
    ),
    mutation(
        "nats-028-counted",
        "Changes of mode are not counted.",
        Edit("CatchUps.note", "self.mode_changes[mode] += 1", "pass"),
        directed(CATCH_UPS + "mode_changes_are_counted"),
    ),
    mutation(
        "nats-029",
        "Neither votes nor pre-votes look at histories.",
        Edit("_HistorySlot.__lt__", "self.history < other.history", "False"),
        Edit("VotingElector._on_pre_vote", "message.history >= self._state.own_history()", "True"),
        directed(NODES + "029_replica_with_the_highest_history_leads_also_if_it_stands_late"),
    ),
    mutation(
        "nats-033",
        "A live record is written before history reaches it.",
        Edit(
            "Follower._try_live_entry", "head is None or not continues(state, head)", "head is None"
        ),
        Edit("CatchUp._queue_continues", "continues(self._state, head)", "True"),
        directed(CATCH_UP + "live_requests_wait_in_the_queue_while_catching_up"),
    ),
    mutation(
        "nats-036",
        "A follower does not notice from a notice that a request was lost.",
        Edit("Follower._on_commit_notice", "self.queue.last_seq < notice.last_seq", "False"),
        directed(CORE + "follower.py::test_lost_store_request_is_noticed_by_the_next_notice"),
    ),
    mutation(
        "nats-039",
        "A write without a good guid is taken.",
        Edit(
            "Sequencer.admit",
            "_malformed(message) or refusal or self._refusal(message)",
            "refusal or self._refusal(message)",
        ),
        directed(CORE + "sequencer.py::test_publish_with_wrong_digest_or_guid_is_refused"),
    ),
    mutation(
        "nats-040-end",
        "Sequences go on behind their end.",
        Edit("Sequencer._refusal", "state.last_seq + message.rows > PUBLISHED_SEQ_MAX", "False"),
        directed(CORE + "sequencer.py::test_channel_at_the_end_of_its_sequences_accepts_no_more"),
    ),
    mutation(
        "nats-041",
        "A payload that comes after its metadata is not taken.",
        Edit("Follower.hold", "head is None or head.meta.guid != guid", "True"),
        directed(CORE + "follower.py::test_payload_and_metadata_correlate_in_either_order"),
    ),
    mutation(
        "nats-136",
        "A new leader is asked for nothing before it sends something.",
        Edit("Follower.start", "self._catch_up.enter(reason)", "pass"),
        directed(CATCH_UP + "new_leader_is_asked_for_the_match_point_by_lineage"),
    ),
    mutation(
        "nats-137",
        "The live queue has no bound.",
        Edit(
            "LiveQueue._offer",
            "full or self._is_behind_a_gap(entry)",
            "self._is_behind_a_gap(entry)",
        ),
        directed(DESIGN + "replication.py::test_catch_up_never_needs_more_memory_than_its_bounds"),
    ),
    mutation(
        "nats-138",
        "An answer does not tell where the leader's log begins.",
        Edit("_answer", "serve.first_seq", "Seq(0)"),
        directed(HISTORY + "answer_names_its_question_and_the_leader_s_positions"),
    ),
    mutation(
        "nats-139",
        "An equal log is asked for again, for ever.",
        Edit("CatchUp._go_on", "message.done and end == message.last_seq", "False"),
        directed(
            CATCH_UP + "equal_log_becomes_steady_by_an_empty_answer",
            DESIGN + "catch_up.py::test_up_to_date_follower_gets_no_data",
        ),
    ),
    mutation(
        "nats-140",
        "The next batch waits until the one before is on the disk.",
        Edit(
            "CatchUp.ask",
            "len(self._undurable) + len(self._asked) >= SYNC_BATCHES_UNDURABLE_MAX",
            "self._undurable",
        ),
        directed(CATCH_UP + "batches_are_appended_and_the_next_is_asked_before_the_disk_is_done"),
    ),
    mutation(
        "nats-141",
        "A live queue may hold less than two batches of history.",
        Edit("_check_replication", "replication.live_queue_messages_max < needed", "False"),
        directed("tests/unit/node/test_settings.py::test_contradicting_settings_are_refused"),
    ),
    mutation(
        "nats-142",
        "History that meets the live queue does not end catching up.",
        Edit("CatchUp._drop_overlap", "overlaps |= entry.meta.base_seq >= from_seq", "pass"),
        directed(CATCH_UP + "overlap_with_the_live_queue_ends_catching_up"),
    ),
    mutation(
        "nats-143",
        "A leader does not hear that a follower has caught up.",
        Edit(
            "Leader.on_message",
            "progress.is_catching_up = progress.cannot_complete = False",
            "pass",
        ),
        directed(CORE + "leader.py::test_leader_tracks_who_is_catching_up"),
    ),
    mutation(
        "nats-149",
        "Status does not say how far a replica has to go.",
        Edit("CatchUp.view", "left = self._rows_left()", "left = 0"),
        directed(NODES + "149_distance_of_a_replica_is_shown_in_status_and_metrics"),
    ),
    mutation(
        "nats-156",
        "The commit that comes with history counts for nothing.",
        Edit(
            "Follower._on_sync",
            "max(state.leader_commit, message.commit_seq)",
            "state.leader_commit",
        ),
        directed(CATCH_UP + "nats_156_history_tells_what_is_committed"),
    ),
    mutation(
        "nats-158",
        "A payload that comes before a leader is known is dropped.",
        Edit("Follower.hold", "self._is_far", "self._state.leader is None"),
        directed(
            CATCH_UP
            + "payload_and_request_that_came_before_the_first_question_are_not_asked_for_again"
        ),
    ),
    mutation(
        "nats-161",
        "An answer is bounded by neither side.",
        Edit("history_for", "min(serve.request.max_bytes, settings.sync_batch_bytes_max)", "2**40"),
        directed(HISTORY + "answer_ends_with_the_bytes_of_the_smaller_bound"),
    ),
    mutation(
        "nats-162",
        "The last answer does not say that it is the last one.",
        Edit(
            "history_for",
            "_answer(serve, channel, records, done=True)",
            "_answer(serve, channel, records)",
        ),
        directed(HISTORY + "done_says_that_the_leader_has_no_more"),
    ),
    mutation(
        "nats-165",
        "The last record of history is taken from the live queue once more.",
        Edit(
            "LiveQueue.drop_through",
            "self._entries[0].meta.last_seq <= last_seq",
            "self._entries[0].meta.last_seq < last_seq",
        ),
        directed(CORE + "live_queue.py::test_live_queue_discards_what_the_log_has"),
    ),
    mutation(
        "nats-180",
        "No table is ever worth a merge.",
        Edit(
            "Merges._merge_range",
            "source.compact_range(start=STORE_ID if is_first else work.next_key, stop=stop)",
            "pass",
        ),
        directed(
            "tests/unit/storage/tables/test_merges.py::test_updates_of_a_small_table_are_given_back"
        ),
    ),
    mutation(
        "nats-184",
        "Logs are kept for ever unless somebody asks for less.",
        Edit("RetentionSettings", "enabled: bool = True", "enabled: bool = False"),
        directed(
            ENGINE
            + "retention/test_retention.py::test_logs_are_trimmed_unless_that_is_switched_off"
        ),
    ),
    mutation(
        "nats-194",
        "A follower keeps its own records where the next leader has others.",
        Edit(
            "store_verified",
            "state.lineage.holds(record.term, record.base_seq)",
            "record.base_seq <= state.last_seq",
        ),
        Edit("store_verified", "state.lineage.holds(record.term, record.last_seq)", "True"),
        directed(
            DESIGN + "catch_up.py::test_leader_change_between_any_two_steps_of_the_transition"
        ),
    ),
    mutation(
        "nats-195",
        "A node goes on whose replica cannot catch up.",
        Edit("CatchUps.note", "self._settings.slow_action == SLOW_EXIT", "False"),
        directed(CATCH_UPS + "node_ends_only_where_that_is_asked_for"),
    ),
    mutation(
        "nats-197",
        "A replica does not ask for the table that its leader's log has no more.",
        Edit(
            "CatchUp._on_trimmed",
            "state.emit(ReplicaSnapshotNeeded(Seq(message.from_seq - 1), message.first_seq))",
            "pass",
        ),
        directed(
            ENGINE + "snapshots/test_replica_snapshots.py::"
            "test_follower_below_the_leaders_base_takes_its_table_then_its_base"
        ),
    ),
    mutation(
        "nats-198",
        "A leader does not ask for a write that it missed.",
        Edit("FetchingLeader.on_message", "self.on_offer(sender, message)", "pass"),
        directed(
            CORE + "payload_repair.py::test_leader_fetches_a_write_that_it_missed",
            ENGINE + "channel/test_payload_repairs.py::"
            "test_leader_fetches_a_lost_write_and_its_publisher_hears_of_it",
        ),
    ),
    mutation(
        "nats-200",
        "A write without a quorum in time is called not applied.",
        Edit(
            "Sequencer.on_timer",
            "reject(state, waiter.client, waiter, QuorumTimeoutError, text)",
            "reject(state, waiter.client, waiter, NotLeaderError, text)",
        ),
        directed(
            CORE + "sequencer.py::test_quorum_timeout_is_unknown_and_the_record_may_still_commit"
        ),
    ),
    mutation(
        "nats-207-gaps",
        "A gap report has no bound.",
        Edit(
            "Follower.gaps",
            "gaps[-1][1] + 1 == first or len(gaps) == GAPS_MAX",
            "gaps[-1][1] + 1 == first",
        ),
        directed(CORE + "payload_repair.py::test_at_most_sixteen_gaps_are_told"),
    ),
    mutation(
        "nats-211",
        "Voters wait for their timeouts although the leader said that it leaves.",
        Edit(
            "VotingElector._on_step_down_notice",
            "self._arm(now_ms, self._rank_delay_ms(sender))",
            "self._arm(now_ms, 10_000)",
        ),
        directed(
            "tests/unit/election/test_candidacy.py::test_step_down_notice_arms_the_voters_one_rank_apart"
        ),
    ),
    mutation(
        "nats-214",
        "Gaps have no age.",
        Edit("GapReports.seen", "now_ms - since_ms.get(last, now_ms)", "0"),
        directed(ENGINE + "peers/test_gap_reports.py::test_gaps_have_the_age_since_they_were_seen"),
    ),
)
