"""Mutations of positions and lags that nodes know of each other: S7.3, S0.8, S10, BLOG-31."""

from __future__ import annotations

from tests.mutations.guard import chaos, directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

KEPT = "tests/unit/engine/reports/test_kept_channels.py::test_kept_view_"
LATE = "tests/unit/engine/peers/test_replica_lag.py::test_"
REPORTS = "tests/unit/engine/peers/test_lag_reports.py::test_"
ALONE = "tests/unit/engine/peers/test_lag_reports_alone.py::test_"
TESTS = "tests/unit/engine/channel/test_rules_engine.py::test_"

POSITIONS_RULES: tuple[Mutation, ...] = (
    mutation(
        "S0.8-kept",
        "A view lists channels that were dropped.",
        Edit(
            "ViewReport._build",
            "self._catalog is not controller.catalog",
            "self._catalog is None",
        ),
        directed(KEPT + "is_of_the_tables_that_exist"),
    ),
    mutation(
        "S0.8-reported",
        "A report of a dropped table's channel is kept for ever.",
        Edit(
            "LagReports.on_report",
            "self._parts.exists(channel)",
            "True",
        ),
        directed(REPORTS + "positions_of_dropped_tables_are_forgotten"),
    ),
    mutation(
        "S7.3-age",
        "A position of the leader that is long past counts as its present one.",
        Edit(
            "known_lag",
            "age_ms is None or age_ms > age_max_ms",
            "age_ms is None",
        ),
        directed(
            TESTS + "old_position_of_the_leader_is_infinite_lag",
            "tests/unit/policy/test_lag.py::test_lag_is_unknown_when_word_of_the_leader_is_too_old",
            why="drawn faults end before ten seconds, but for rare long ones",
        ),
    ),
    mutation(
        "S7.3-unknown",
        "Unknown lag counts as none.",
        Edit(
            "Reader.lag",
            "None if heard is None else max(0, now_ms - heard)",
            "0 if heard is None else max(0, now_ms - heard)",
        ),
        directed(TESTS + "replica_that_never_heard_a_leader_knows_no_lag"),
    ),
    mutation(
        "S7.3-silent-message",
        "A leader that reports no position is taken for fresh.",
        Edit(
            "ChannelRunner.on_replication",
            "isinstance(message, (StoreRequest, CommitNotice, MsgSync)) and message.commit_seq",
            "isinstance(message, (StoreRequest, CommitNotice, MsgSync))",
        ),
        directed(TESTS + "leader_that_tells_no_position_makes_nobody_fresh"),
    ),
    mutation(
        "S7.3-silent-report",
        "A leader that reports no position is taken for fresh.",
        Edit(
            "LagReports.on_report",
            "position.is_leader and position.commit_seq",
            "position.is_leader",
        ),
        directed(TESTS + "leader_that_tells_no_position_makes_nobody_fresh"),
    ),
    mutation(
        "S7.3-waited",
        "A report that waited for the main loop states a position of now.",
        Edit(
            "ChannelRunner.on_leader_position",
            "arrived_ms,",
            "now_ms,",
        ),
        directed(TESTS + "report_that_waited_for_the_main_loop_is_as_old_as_its_arrival"),
    ),
    mutation(
        "S7.3-reported",
        "A leader reports old positions before it committed in its term.",
        Edit(
            "LagReports._position",
            'commit_seq, commit_hash = Seq(0), b""',
            "pass",
        ),
        directed(TESTS + "leader_reports_no_position_before_it_committed_in_its_term"),
    ),
    mutation(
        "S13-hash-to-hosts",
        "Hosts of a channel are not sent the hash that they compare their history with.",
        Edit("LagReports.report", "whole if node in members else hashless", "hashless"),
        directed(ALONE + "hash_of_a_history_goes_to_those_who_have_one_to_compare_it_with"),
    ),
    mutation(
        "S7.3-committed",
        "A report that comes late takes back what is known to be committed.",
        Edit(
            "LagReports.keep",
            "reported > self.committed(channel)",
            "True",
        ),
        directed(REPORTS + "report_that_comes_late_or_twice_takes_nothing_back"),
    ),
    mutation(
        "S7.3-teller",
        "A leader that reports no position any more is believed as one that does.",
        Edit(
            "LagReports.reporting_leader",
            "node if position.commit_seq else None",
            "node",
        ),
        directed(KEPT + "of_a_leader_that_tells_no_position_knows_no_lag"),
    ),
    mutation(
        "S7.3-posted",
        "Reports posted by anybody about a replica count for the end of the channel.",
        Edit(
            "RequestHandler._seen_lags",
            "self._answers.answer(client, Done(message.request_id))",
            "for channel, _, end in said:\n"
            "    told = self._watch.positions[channel][node]\n"
            '    told = __import__("msgspec").structs.replace(told, commit_seq=end)\n'
            "    self._watch.reports.keep(node, told)\n"
            "self._answers.answer(client, Done(message.request_id))",
        ),
        directed(REPORTS + "klip_35_forged_report_moves_no_bound_and_no_election"),
    ),
    mutation(
        "S7.3-view",
        "A view calls lags known however old the report of the leader is.",
        Edit(
            "CachedChannelView.view",
            "age_ms if age_ms is not None and age_ms <= self._age_max_ms else None",
            "age_ms",
        ),
        directed(KEPT + "forgets_what_is_known_when_the_leaders_word_is_too_old"),
    ),
    mutation(
        "S7.3-view-unheard",
        "A view calls lags known although no leader reported the end of the channel.",
        Edit(
            "CachedChannelView.view",
            "age_ms if age_ms is not None and age_ms <= self._age_max_ms else None",
            "(age_ms or 0) if age_ms is None or age_ms <= self._age_max_ms else None",
        ),
        directed(
            "tests/unit/engine/reports/test_views.py::"
            "test_klip_45_lags_of_a_channel_without_word_of_its_leader_are_unknown"
        ),
    ),
    mutation(
        "S7.3-kept-moved",
        "A view states of a channel what it found before something happened to it.",
        Edit(
            "NodeRunner._after",
            "self._views_moved(*touched)",
            "",
        ),
        directed(KEPT + "follows_every_step_of_a_write"),
    ),
    mutation(
        "S7.3-kept-reported",
        "A view says what was reported before.",
        Edit(
            "LagReports._take",
            "self._parts.moved(position.channel)",
            "pass",
        ),
        directed(KEPT + "follows_reports_of_what_is_hosted_elsewhere"),
    ),
    mutation(
        "S7.3-kept-said",
        "A view does not look again at what somebody posted.",
        Edit(
            "ChannelViewCache.views",
            "self.moved(channel)",
            "pass",
        ),
        directed(KEPT + "tells_the_newer_of_what_is_said_and_what_is_reported"),
    ),
    mutation(
        "S7.3-kept-stop",
        "The first view after a stop says what was believed before it.",
        Edit(
            "NodeRunner._stalled",
            "self.views.kept.all_moved()",
            "pass",
        ),
        directed(
            "tests/unit/engine/reports/test_kept_channels.py::"
            "test_first_view_after_a_stop_knows_no_position"
        ),
    ),
    mutation(
        "S10-kept-applied",
        "A view states an applied seq that readers have left behind.",
        Edit(
            "CachedChannelView.view",
            "runner is not None and self._node.tables.applied_seq(self.channel) != "
            "self._applied_seq",
            "False",
        ),
        directed(KEPT + "tells_what_is_applied_before_the_engine_hears_of_it"),
    ),
    mutation(
        "S12-posted",
        "A heartbeat that anybody posts counts as contact with the peer.",
        Edit(
            "RequestHandler._seen_heartbeat",
            "self._watch.http_reports.on_heartbeat(node, now_ms)",
            "self._watch.http_reports.on_heartbeat(node, now_ms)\n"
            "self._watch.on_connected(node, now_ms)",
        ),
        directed(
            REPORTS + "klip_19_heartbeat_over_http_routes_again_and_connects_nobody",
            REPORTS + "beats_said_over_http_do_not_keep_a_dead_leader_in_office",
        ),
    ),
    mutation(
        "BLOG-31-bound",
        "Writes go on however far a live replica is behind.",
        Edit(
            "ReplicaLagGuard._behind",
            "None if late.is_left else behind",
            "None",
        ),
        directed(LATE + "blog_31_writes_wait_for_a_live_replica_that_is_further_behind"),
    ),
    mutation(
        "BLOG-31-patience",
        "A replica that never catches up stops its table.",
        Edit(
            "ReplicaLagGuard._behind",
            "late.is_left = True",
            "late.is_left = False",
        ),
        directed(LATE + "replica_that_stays_behind_is_left_until_it_has_caught_up"),
    ),
    mutation(
        "BLOG-31-again",
        "A replica that was left behind once is never waited for again.",
        Edit(
            "ReplicaLagGuard._behind",
            "watched.late.pop(node, None)",
            "watched.late.get(node)",
        ),
        directed(LATE + "replica_that_stays_behind_is_left_until_it_has_caught_up"),
    ),
    mutation(
        "BLOG-31-dead",
        "Writes wait for the dead.",
        Edit(
            "ReplicaLagGuard._behind",
            "progress.heard_ms is None or behind <= bound or not self._watch.is_up(node)",
            "progress.heard_ms is None or behind <= bound",
        ),
        directed(LATE + "dead_replica_is_not_waited_for"),
    ),
    mutation(
        "BLOG-31-new-term",
        "A new leader takes silence for lag.",
        Edit(
            "ReplicaLagGuard._behind",
            "progress.heard_ms is None or behind <= bound or not self._watch.is_up(node)",
            "behind <= bound or not self._watch.is_up(node)",
        ),
        directed(LATE + "new_leader_waits_for_nobody_of_whom_it_has_heard_nothing"),
    ),
    mutation(
        "S7.3-max-lag-ignored",
        "A bounded read is served however far the replica is behind.",
        Edit(
            "_beyond_rows",
            "lag > bound",
            "lag < 0",
        ),
        chaos("bounded_reads", "isolate-follower", "pause-follower", "slow-disk"),
    ),
    mutation(
        "S7.3-max-staleness-ignored",
        "A read bounded in time is served however old the state may be.",
        Edit(
            "_beyond_time",
            "age > bound",
            "age < 0",
        ),
        chaos("bounded_time", "isolate-follower", "pause-follower", "slow-disk"),
    ),
    mutation(
        "S7.3-batch-bound-ignored",
        "A read bounded in micro-batches is served however many the replica is behind.",
        Edit(
            "_beyond_batches",
            "most <= bound",
            "most >= 0",
        ),
        chaos("bounded_batches", "isolate-follower", "pause-follower", "slow-disk"),
    ),
    mutation(
        "S10-batch-mark-ignored",
        "After a crash in the middle of a batch the channel serves what is there of it.",
        Edit(
            "ChannelRunner.__init__",
            "parts.tables.unserved_until(channel)",
            "Seq(0)",
        ),
        directed(
            "tests/jepsen/test_batch_failpoints.py::"
            "test_channel_that_a_crash_left_in_pieces_serves_nothing_until_it_is_whole",
            why="a node that has just started hears of the commit before anybody asks it",
        ),
    ),
)
