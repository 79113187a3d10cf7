"""Mutations of votes, commits, acknowledgements and writes in the core: S0, S1, S3-S5, S9-S13."""

from __future__ import annotations

from tests.mutations.guard import chaos, directed, worlds
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

HAND_OVER = "tests/unit/core/test_hand_over.py::test_"
QUORUM = "tests/unit/core/test_quorum.py::test_"
COMMIT = "tests/unit/core/test_rules_commit.py::test_"
CLOCK = "tests/unit/engine/channel/test_quorum_clock.py::test_"
LEASES = "tests/simulation/test_leases.py::test_"
LOG = "tests/unit/core/test_rules_log.py::test_"
SEQUENCING = "tests/unit/core/test_sequencer.py::test_"

CORE_RULES: tuple[Mutation, ...] = (
    mutation(
        "S0.3-ack",
        "A recovering replica acknowledges.",
        Edit(
            "Follower.finish",
            "if state.recovering is not None: ...\n"
            "if match > self._acked_seq or self._is_ack_wanted: ...",
            "if False: ...\nif match > self._acked_seq or self._is_ack_wanted: ...",
        ),
        directed(LOG + "recovering_replica_acks_nothing_until_it_is_past_its_mark"),
    ),
    mutation(
        "S0.3-may-vote",
        "A replica that lost acknowledged records votes and stands all the same.",
        Edit(
            "Replica.may_stand",
            "self._state.recovering is None and self._state.stopped is None",
            "self._state.stopped is None",
        ),
        directed(
            LOG + "recovering_replica_does_not_vote",
            why="what a replica lost at the end of its log is a hole to it, and a replica with a "
            "hole hears no election message at all (S0.3-deaf): of 1,674 in ten worlds 24 came "
            "through, in 200 worlds none did harm; worlds notice S0.3-hole-votes, which takes both "
            "rules away",
        ),
    ),
    mutation(
        "S0.3-hole-votes",
        "A replica whose log lacks acknowledged records listens to candidates, votes and stands.",
        Edit("ChannelRunner.on_election", "self.ignores_peers", "False"),
        Edit(
            "Replica.may_stand",
            "self._state.recovering is None and self._state.stopped is None",
            "self._state.stopped is None",
        ),
        worlds(damage_percent="40", fault_interval_ms="150"),
    ),
    mutation(
        "S0.5-ack-term",
        "A follower acks before its term is durable.",
        Edit(
            "Follower.finish",
            "state.leader is None or state.stopped is not None or state.durable_term != state.term",
            "state.leader is None or state.stopped is not None",
        ),
        directed(LOG + "follower_acks_nothing_before_its_term_is_durable"),
    ),
    mutation(
        "S0.5-leader-term",
        "A leader counts itself before its term is durable.",
        Edit(
            "Leader._matches",
            "state.durable_term == state.term",
            "True",
        ),
        directed(LOG + "leader_does_not_count_itself_before_its_term_is_durable"),
    ),
    mutation(
        "S1.2-accepted",
        "A voter reports the durable end of its log instead of the accepted one.",
        Edit(
            "Replica.history",
            "self._state.lineage.last",
            "History(\n"
            "    self._state.lineage.term_at(self._state.durable_seq),\n"
            "    self._state.durable_seq,\n"
            ")",
        ),
        directed(
            LOG + "history_in_elections_is_what_was_accepted_durable_or_not",
            why="one of the six rules that random chaos does not guard",
        ),
    ),
    mutation(
        "S1.6-stands",
        "A replica that is catching up neither votes nor stands.",
        Edit(
            "Replica.may_stand",
            "self._state.recovering is None",
            "self._state.mode is FollowerMode.STEADY",
        ),
        directed(
            "tests/design/test_nats_catch_up.py::"
            "test_catching_up_follower_may_be_elected_on_its_contiguous_prefix"
        ),
    ),
    mutation(
        "S3.1-old-term",
        "A leader commits a record of an old term as soon as a majority holds it.",
        Edit(
            "Leader.advance_commit",
            "state.lineage.term_at(held) != state.term",
            "False",
        ),
        directed(
            COMMIT + "record_of_an_old_term_does_not_commit_by_counting",
            COMMIT + "figure_8_commits_nothing_that_a_later_term_may_still_replace",
            why="one of the six rules that random chaos does not guard",
        ),
    ),
    mutation(
        "S3.1-joint",
        "The stronger majority of a joint configuration decides.",
        Edit(
            "quorum_seq",
            "min(best, held)",
            "max(best, held)",
        ),
        directed(QUORUM + "quorum_seq_needs_both_majorities_when_joint"),
    ),
    mutation(
        "S3.1-majority",
        "A commit waits for every replica, so that one slow disk delays all writes.",
        Edit(
            "quorum_seq",
            "majority(len(seqs)) - 1",
            "-1",
        ),
        directed(
            "tests/simulation/test_slow_replica.py::"
            "test_commits_and_reads_do_not_wait_for_a_slow_minority"
        ),
    ),
    mutation(
        "S3.2-match-maximum",
        "A late ack lowers the match of a follower.",
        Edit(
            "Progress.on_ack",
            "max(self.match_seq, min(ack.match_seq, last_seq))",
            "min(ack.match_seq, last_seq)",
        ),
        directed(
            "tests/unit/core/test_progress.py::test_match_is_a_maximum_so_late_acks_change_nothing"
        ),
    ),
    mutation(
        "S3.3-own-sync",
        "A leader counts itself before its own sync.",
        Edit(
            "Leader._matches",
            "state.stored_seq",
            "state.last_seq",
        ),
        directed(
            COMMIT + "leader_counts_itself_only_after_its_own_sync",
            why="one of the six rules that random chaos does not guard",
        ),
    ),
    mutation(
        "S3.4-log-end",
        "A follower acknowledges the end of its log, verified or not.",
        Edit(
            "Follower.finish",
            "verified_seq if verified_seq < stored_seq else stored_seq",
            "stored_seq",
        ),
        directed(
            COMMIT + "follower_acks_what_is_verified_and_never_its_end",
            why="one of the six rules that random chaos does not guard",
        ),
    ),
    mutation(
        "S3.4-durable",
        "A follower acks before its sync.",
        Edit(
            "Follower.finish",
            "verified_seq if verified_seq < stored_seq else stored_seq",
            "verified_seq",
        ),
        directed(COMMIT + "follower_acks_nothing_before_it_is_durable"),
        worlds(seeds=range(1, 17), slow_disk="1", sync_min_ms="2", sync_max_ms="150"),
    ),
    mutation(
        "S3.4-any-term",
        "Acks of any term count.",
        Edit(
            "Replica._on_received",
            "event.message.term != state.term or state.stopped is not None",
            "state.stopped is not None",
        ),
        Edit(
            "Leader._on_ack",
            "ack.term == self._term",
            "True",
        ),
        directed(
            LOG + "ack_of_another_term_is_not_counted",
            why="one of the six rules that random chaos does not guard: the engine fences "
            "such acks, too",
        ),
    ),
    mutation(
        "S3.5-verified",
        "A follower commits what it has not verified against its leader.",
        Edit(
            "Follower._advance_commit",
            "state.verified_seq",
            "state.last_seq",
        ),
        directed(COMMIT + "follower_commits_only_what_it_verified"),
        worlds(),
    ),
    mutation(
        "S3.5-notice",
        "An idle follower never learns the last commit.",
        Edit(
            "Leader.advance_commit",
            "self._arm_notice()",
            "",
        ),
        directed(COMMIT + "idle_followers_learn_the_commit_seq_within_the_notice_interval"),
    ),
    mutation(
        "S3.6-outsiders",
        "Learners and outsiders count towards a commit.",
        Edit(
            "quorum_seq",
            "[match.get(node, 0) for node in group]",
            "match.values()",
        ),
        directed(
            QUORUM + "quorum_seq_ignores_outsiders_and_learners",
            why="the worlds have no learners before membership changes",
        ),
    ),
    mutation(
        "S4.2-uncommitted",
        "Uncommitted records are applied.",
        Edit(
            "ChannelState.emit_commit",
            "Seq(min(self.commit_seq, self.durable_seq))",
            "self.durable_seq",
        ),
        directed(COMMIT + "uncommitted_record_is_not_applied"),
        worlds(seeds=range(1, 13)),
    ),
    mutation(
        "S8-rollback",
        "A configuration stays in force when its record is cut off.",
        Edit(
            "ConfigStack.truncate",
            "self._stack[-1].seq >= from_seq and len(self._stack) > 1",
            "False",
        ),
        directed("tests/unit/core/test_configs.py::test_configuration_rolls_back_with_truncation"),
    ),
    mutation(
        "S9-next",
        "A node that stops asks one voter only.",
        Edit(
            "HandOver.on_timer",
            "self._keeps_trying",
            "False",
        ),
        directed(HAND_OVER + "node_that_stops_asks_the_next_voter_when_one_does_not_take_over"),
    ),
    mutation(
        "S10-durable",
        "Records are applied before they are durable.",
        Edit(
            "ChannelState.emit_commit",
            "Seq(min(self.commit_seq, self.durable_seq))",
            "self.commit_seq",
        ),
        directed(COMMIT + "committed_record_is_not_applied_before_it_is_durable_here"),
    ),
    mutation(
        "S10-timestamp",
        "Timestamps follow the leader's clock backwards.",
        Edit(
            "Sequencer.next_timestamp_ms",
            "max(wall_ms, state.tail.last_timestamp_ms + 1)",
            "wall_ms",
        ),
        directed(COMMIT + "timestamp_follows_the_record_before_whatever_the_clock_says"),
    ),
    mutation(
        "S10-stamp-ahead",
        "A leader whose clock is a day ahead stamps records with it.",
        Edit(
            "QuorumClock.stamp_ms",
            "min(max(wall_ms, reached_ms), reached_ms + self._ahead_ms)",
            "max(wall_ms, reached_ms)",
        ),
        directed(
            CLOCK + "single_clock_does_not_say_how_late_it_is",
            LEASES + "time_goes_on_soon_after_a_clock_that_was_a_day_ahead_is_right_again",
        ),
    ),
    mutation(
        "S10-stamp-behind",
        "A leader whose clock is a day behind stamps records with it.",
        Edit("QuorumClock.stamp_ms", "max(wall_ms, reached_ms)", "wall_ms"),
        directed(
            CLOCK + "single_clock_does_not_say_how_late_it_is",
            LEASES + "lease_ends_in_its_time_while_the_clock_of_the_leader_is_a_day_wrong",
        ),
    ),
    mutation(
        "S12-payload-leader",
        "A leader stores a payload over the bound.",
        Edit(
            "_malformed",
            "too_large is not None",
            "False",
        ),
        directed(SEQUENCING + "leader_refuses_a_payload_over_the_bound_and_stores_nothing"),
    ),
    mutation(
        "S12-payload-follower",
        "A follower holds a payload over the bound.",
        Edit(
            "Replica._on_publish",
            "too_large is not None",
            "False",
        ),
        directed(SEQUENCING + "follower_refuses_a_payload_over_the_bound_and_holds_nothing"),
    ),
    mutation(
        "S12-last-timestamp",
        "Timestamps leave the range in which they can be read.",
        Edit(
            "Sequencer.next_timestamp_ms",
            "min(max(wall_ms, state.tail.last_timestamp_ms + 1), WALL_MS_MAX)",
            "max(wall_ms, state.tail.last_timestamp_ms + 1)",
        ),
        directed(COMMIT + "timestamp_stands_still_at_the_end_of_its_range"),
    ),
    mutation(
        "S12-last-seq",
        "A record may end behind the last position.",
        Edit(
            "BaseSeq",
            "BASE_SEQ_MAX",
            "SEQ_MAX",
        ),
        directed(
            "tests/unit/core/test_follower.py::"
            "test_follower_tells_the_end_of_the_last_record_that_can_be_named"
        ),
    ),
    mutation(
        "S13-two-leaders-core",
        "Two leaders of one term go unnoticed by the core.",
        Edit(
            "Replica._on_role_changed",
            "known is not None and event.leader not in (None, known)",
            "False",
        ),
        directed(LOG + "second_leader_of_a_term_stops_the_node"),
    ),
    mutation(
        "S13-lower-term",
        "A term may decrease.",
        Edit(
            "Replica._on_role_changed",
            "event.term < state.term",
            "False",
        ),
        directed(LOG + "lower_term_stops_the_node"),
    ),
    mutation(
        "S13-chain-hash",
        "Different histories below the commit seq go unnoticed.",
        Edit(
            "ChannelState.check_hash",
            "ours is None or ours == commit_hash or self.is_disputed or self.stopped is not None",
            "True",
        ),
        directed(
            LOG + "other_chain_hash_at_a_committed_seq_serves_nothing_before_a_quorum_has_told",
            why="it guards against other bugs, and there is none to notice",
        ),
    ),
    mutation(
        "S0.5-ack-before-fsync",
        "A record counts as durable when it was handed to the log.",
        Edit(
            "ChannelState.append",
            "self._batch.append(record)",
            "self._batch.append(record)\nself.durable_seq = record.last_seq",
        ),
        worlds(slow_disk="1", sync_min_ms="2", sync_max_ms="150"),
    ),
    mutation(
        "S3.2-acks-counted-instead-of-members",
        "Acks are counted, the leader's own too: two of one member are taken for two members'.",
        Edit(
            "Leader.advance_commit",
            "held = quorum_seq(state.configs.current, self._matches())",
            "told = self.__dict__.setdefault('told', [])\n"
            "told[:] = sorted([*told, *self._matches().values()])[-9:]\n"
            "held = told[-(len(state.configs.current.voters) // 2 + 1)]",
        ),
        worlds(),
    ),
    mutation(
        "S3.4-equal-length-taken-for-equal",
        "A log as long as the leader's is taken for the leader's log.",
        Edit(
            "Follower._on_commit_notice",
            "state.lineage.holds(notice.last_term, notice.last_seq)",
            "notice.last_seq <= state.last_seq",
        ),
        worlds(),
    ),
    mutation(
        "S4.2-uncommitted-records-served",
        "Records are applied and read before they are committed.",
        Edit(
            "ChannelState.emit_commit",
            "Seq(min(self.commit_seq, self.durable_seq))",
            "self.durable_seq if self.commit_seq > 20 else Seq(\n"
            "    min(self.commit_seq, self.durable_seq)\n"
            ")",
        ),
        chaos("list_append", "kill-leader", "isolate-leader"),
    ),
    mutation(
        "S4.4-ack-before-commit",
        "A write is acknowledged when the leader has written it.",
        Edit(
            "Leader.on_publish",
            "self.sequencer.await_outcome(client, message)",
            "self.sequencer._acknowledge(\n"
            "    client, message.guid, self._state.dedupe.find(message.guid)\n"
            ")",
        ),
        Edit(
            "Sequencer._acknowledge",
            'assert written.last_seq <= state.commit_seq, f"OK for seq {written.last_seq}, '
            'committed are {state.commit_seq} (S4.4)"',
            "",
        ),
        Edit(
            "Sequencer._acknowledge",
            'assert is_decided, f"OK for seq {written.last_seq} before it is decided (S10)"',
            "",
        ),
        chaos("bank", "kill-leader", "isolate-leader"),
    ),
    mutation(
        "S4.5-dedupe-forgotten-after-failover",
        "A new leader knows only the writes of its own term.",
        Edit(
            "Replica._become_leader",
            "state.won(state.term)",
            "state.won(state.term)\nstate.dedupe.__init__()",
        ),
        chaos("publish_log", "kill-leader", "pause-leader"),
    ),
    mutation(
        "S5.6-sequenced-for-another-leader",
        "A leader sequences what was addressed to another leader.",
        Edit(
            "Replica._on_publish",
            "message.leader != state.me",
            "message.leader != state.me and self._leader is None",
        ),
        Edit(
            "Replica._on_publish",
            "self._leader is None or message.term != state.term",
            "self._leader is None",
        ),
        worlds(range(1, 201), fault_interval_ms="200"),
    ),
)
