"""Mutations of catching up at any distance: what is held, asked for, in which order, reported."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

FAR = "tests/unit/core/test_catch_up_far.py::test_"
FEED = "tests/unit/engine/channel/test_history_feed.py::test_"
FLAPPING = "tests/unit/core/test_flapping.py::test_"
LAG = "tests/unit/engine/peers/test_replica_lag_alone.py::test_"
ORDER = "tests/unit/engine/channel/test_catch_ups.py::test_"
PAUSES = "tests/unit/engine/snapshots/test_copy_pauses.py::test_"
PACE = "tests/unit/core/test_pace.py::test_"
QUEUE = "tests/unit/core/test_live_queue.py::test_"
REQUESTS = "tests/unit/core/test_catch_up_requests.py::test_"
THROTTLED = "tests/simulation/test_throttled_replica.py::test_throttled_replica_"
SLOW = "tests/unit/core/test_slow_follower.py::test_"

CATCHING_UP_RULES: tuple[Mutation, ...] = (
    mutation(
        "S6.3-far",
        "A replica that is far behind fills its queue and its memory with what is live.",
        Edit(
            "Follower._is_far",
            "self._state.mode is FollowerMode.CATCHING_UP and self._catch_up.is_far",
            "False",
        ),
        directed(FAR + "far_from_the_end_neither_requests_nor_payloads_are_held"),
    ),
    mutation(
        "S6.3-passed-over",
        "What was passed over while the end was far is forgotten.",
        Edit(
            "LiveQueue.pass_over",
            "self._drop(request.records[-1].last_seq, len(request.records))",
            "",
        ),
        directed(FAR + "replica_that_passed_over_a_record_is_not_steady_without_it"),
    ),
    mutation(
        "S6.3-hole-in-queue",
        "What comes behind an entry that was dropped is queued.",
        Edit("LiveQueue._offer", "full or self._is_behind_a_gap(entry)", "full"),
        directed(QUEUE + "nothing_is_queued_behind_a_gap"),
    ),
    mutation(
        "S6.1-requests-max",
        "A follower asks for as many batches as it can.",
        Edit("CatchUp.ask", "len(self._asked) < state.catch_up.inflight_requests", "True"),
        directed(REQUESTS + "no_more_requests_are_under_way_than_the_setting_says"),
    ),
    mutation(
        "S6.1-ahead-of-disk",
        "What is under way does not count as ahead of the disk.",
        Edit("CatchUp.ask", "len(self._undurable) + len(self._asked)", "len(self._undurable)"),
        directed(REQUESTS + "batches_under_way_count_as_ahead_of_the_disk"),
    ),
    mutation(
        "S2.4-answer-out-of-place",
        "An answer is taken for the one in front of it.",
        Edit("CatchUp.on_sync", "request is not next(iter(self._asked.values()))", "False"),
        directed(REQUESTS + "answer_that_comes_before_the_one_in_front_of_it_waits_for_it"),
    ),
    mutation(
        "S6.1-early-answer",
        "An answer that comes before the one in front of it is asked for again.",
        Edit(
            "CatchUp.on_sync",
            "self._early[request.request_id] = message",
            "del self._asked[request.request_id]",
        ),
        directed(REQUESTS + "answer_that_comes_before_the_one_in_front_of_it_waits_for_it"),
    ),
    mutation(
        "S6.1-asked-ahead",
        "What was asked ahead goes on although the answer before it ended elsewhere.",
        Edit(
            "CatchUp._look_ahead",
            "following is not None and following.from_seq != end + 1",
            "False",
        ),
        directed(REQUESTS + "answer_that_ends_before_its_time_has_the_rest_asked_for_anew"),
    ),
    mutation(
        "S12-next-answer",
        "A follower asks from wherever a message says.",
        Edit("CatchUp._look_ahead", "end + 1 < next_seq <= message.last_seq", "next_seq"),
        directed(REQUESTS + "where_the_leader_has_no_more_nothing_is_asked_ahead"),
    ),
    mutation(
        "S6.1-next-answer-told",
        "A leader says of the next answer where this one ends.",
        Edit("history_for", "end_from(end + 1)", "end"),
        directed(FEED + "answer_tells_where_the_next_one_will_end"),
    ),
    mutation(
        "S6.1-records-max",
        "A batch has as many records as fit, more than the live queue holds.",
        Edit("history_for", "settings.sync_batch_records_max", "ROWS_PER_RECORD_MAX"),
        directed(FEED + "records_of_an_answer_are_bounded"),
    ),
    mutation(
        "S6.1-slow-windows",
        "One window in which the distance grew makes a slow replica.",
        Edit("Pace.falls_behind", "len(self._grown) == self._windows", "self._grown"),
        directed(PACE + "distance_that_grows_in_each_window_is_falling_behind"),
    ),
    mutation(
        "S6.1-burst",
        "A burst of writes makes a slow replica.",
        Edit("Pace.note", "written <= BURST_FACTOR * mean", "True"),
        directed(PACE + "burst_of_writes_says_nothing"),
    ),
    mutation(
        "S6.1-given-nothing",
        "A replica that waits for its turn is called slow.",
        Edit(
            "Pace.note",
            "delta <= self._delta or verified <= self._window_verified",
            "delta <= self._delta",
        ),
        directed(PACE + "replica_that_gets_nothing_is_not_slow"),
    ),
    mutation(
        "S6.1-slow-for-ever",
        "A replica that was slow once is so for its leader until the term ends.",
        Edit(
            "Leader.on_message",
            "progress.is_catching_up = progress.cannot_complete = False",
            "progress.is_catching_up = False",
        ),
        directed(SLOW + "leader_remembers_it_until_the_follower_has_caught_up"),
    ),
    mutation(
        "S6.1-slow-waited-for",
        "Writes wait for a replica that said that it cannot catch up.",
        Edit("ReplicaLagGuard._behind", "has_waited or progress.cannot_complete", "has_waited"),
        directed(LAG + "replica_that_says_that_it_cannot_catch_up_is_left_behind_at_once"),
    ),
    mutation(
        "S6.3-flapping",
        "A flapping replica goes back to steady state at once.",
        Edit("CatchUp._stays", "self._state.flapping.stays(self._state.now_ms)", "False"),
        directed(FLAPPING + "flapping_replica_stays_with_history_and_goes_on_to_acknowledge"),
    ),
    mutation(
        "S6.3-flapping-longer",
        "A flapping replica stays with history no longer than the last time.",
        Edit(
            "Flapping.entered",
            "min(max(STAY_MIN_MS, 2 * self._stay_ms), STAY_MAX_MS)",
            "STAY_MIN_MS",
        ),
        directed(
            FLAPPING + "fifth_time_within_ten_minutes_is_flapping_and_waits_twice_as_long_each_time"
        ),
    ),
    mutation(
        "S6.3-flapping-asks",
        "A flapping replica gets nothing new before it is steady, and no quorum counts on it.",
        Edit("CatchUp.on_live_request", "if self._stays: ...", ""),
        directed(FLAPPING + "flapping_replica_stays_with_history_and_goes_on_to_acknowledge"),
    ),
    mutation(
        "S6.1-order",
        "All channels of a node fetch history at a time.",
        Edit("CatchUps._is_next", "nearer < self._settings.parallel", "True"),
        directed(ORDER + "only_the_nearest_channels_fetch_at_a_time"),
    ),
    mutation(
        "S6.1-order-near",
        "A channel that lacks little waits for those that lack less.",
        Edit("CatchUps.request", "left is None or left <= self._near_bytes", "left is None"),
        directed(ORDER + "channel_that_is_near_or_of_unknown_distance_never_waits"),
    ),
    mutation(
        "S6.1-order-silent",
        "A channel whose leader does not answer keeps the others waiting.",
        Edit("CatchUps.request", "self._silent.add(channel)", ""),
        directed(ORDER + "channel_without_answers_holds_up_no_other"),
    ),
    mutation(
        "S6.1-order-done",
        "A channel that is done keeps its place in the order.",
        Edit("CatchUps.note", "self.forget(channel)", ""),
        directed(ORDER + "mode_that_changes_ends_what_was_asked"),
    ),
    mutation(
        "runtime-start-tables",
        "A start that opens thousands of tables does not say how far it is.",
        Edit("TablesDirectory.open", "on_opened(done, len(channels))", ""),
        directed(
            "tests/unit/storage/tables/test_tables_directory.py::"
            "test_each_table_that_is_opened_is_told"
        ),
    ),
    mutation(
        "runtime-start-channels",
        "A start that learns what thousands of channels hold does not say how far it is.",
        Edit("CatalogController.start", "on_opened(done, done + len(self.opening))", ""),
        directed(
            "tests/unit/engine/catalog/test_controller_alone.py::"
            "test_start_tells_how_many_channels_are_open"
        ),
    ),
    mutation(
        "S6.6-copy-pauses",
        "A replica that is too slow for its leader is copied to again and again, without end.",
        Edit("SnapshotReceiver._pause_ms", "self.pauses.left_ms(runner.channel, now_ms)", "0"),
        directed(THROTTLED + "is_not_copied_to_without_end_when_logs_are_short"),
    ),
    mutation(
        "S6.6-copies-longer",
        "The pauses between copies do not grow.",
        Edit(
            "CopyPauses.left_ms",
            "max(self._retry_ms, copied.took_ms) << min(copied.copies - 1, DOUBLINGS_MAX)",
            "max(self._retry_ms, copied.took_ms)",
        ),
        directed(
            THROTTLED + "is_not_copied_to_without_end_when_logs_are_short",
            PAUSES + "pauses_grow_up_to_their_bound_and_end_when_the_replica_is_steady",
        ),
    ),
    mutation(
        "S6.6-copies-in-vain",
        "A replica to which copies come too late does not say that it cannot complete.",
        Edit("SnapshotReceiver._pause_ms", "say_in_vain(self._parts, self.pauses, runner)", "pass"),
        directed(THROTTLED + "is_not_copied_to_without_end_when_logs_are_short"),
    ),
)
