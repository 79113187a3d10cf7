"""Mutations of configurations that follow the log: S8, with the rules M1 to M26 of its protocol."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.rules.drawn_worlds import MEMBERS
from tests.mutations.syntax import Edit

RUNNER = "tests/unit/engine/channel/test_runner.py::test_"
NUMBERS = "tests/unit/core/test_numbers.py::test_"
TERMS = "tests/unit/election/test_terms.py::test_"
CHANGES = "tests/unit/core/test_changes.py::test_"
STEPS = "tests/unit/core/test_membership.py::test_"
CONFIGS = "tests/unit/core/test_configs.py::test_"

MEMBERSHIP_RULES: tuple[Mutation, ...] = (
    mutation(
        "S8-m1-defaults",
        "A configuration that nobody could vote or commit by is taken from a log.",
        Edit(
            "decode_config",
            "_check(config)",
            "",
        ),
        directed(CONFIGS + "configuration_that_no_leader_writes_is_refused"),
    ),
    mutation(
        "S8-m16-candidate",
        "A candidate is not heard if the configuration here does not name it.",
        Edit(
            "ChannelRunner.on_election",
            "self.ignores_peers",
            "self.ignores_peers or sender not in self.core.members",
        ),
        directed(RUNNER + "candidate_is_heard_whatever_the_configuration_here_names"),
    ),
    mutation(
        "S8-m17-leader",
        "A leader is not followed if the configuration here does not name it.",
        Edit(
            "ChannelRunner.on_replication",
            "self.ignores_peers",
            "self.ignores_peers or sender not in self.core.members",
        ),
        directed(RUNNER + "leader_is_followed_whatever_the_configuration_here_names"),
    ),
    mutation(
        "S8-m21-told",
        "A leader that becomes ready does not say again which configuration is committed.",
        Edit(
            "Leader.advance_commit",
            "not was_ready and state.configs.committed.seq",
            "False",
        ),
        directed(CONFIGS + "leader_says_it_again_when_it_is_ready"),
    ),
    mutation(
        "S8-m4-ack",
        "What an earlier life of a replica says counts for the present one.",
        Edit(
            "Leader.on_message",
            "progress is None or getattr(message, 'replica', progress.number) != progress.number",
            "progress is None",
        ),
        directed(
            NUMBERS + "ack_of_an_earlier_life_is_not_counted",
            NUMBERS + "confirmation_of_an_earlier_life_is_not_counted",
            NUMBERS + "reports_of_an_earlier_life_do_not_speak_for_the_new_one",
        ),
    ),
    mutation(
        "S8-m4-own",
        "A leader counts itself, whichever life of its replica the configuration names.",
        Edit(
            "Leader._matches",
            "is_named and state.durable_term == state.term",
            "state.durable_term == state.term",
        ),
        directed(NUMBERS + "other_life_of_the_leader_does_not_count_itself"),
    ),
    mutation(
        "S8-m4-own-read",
        "A leader confirms itself, whichever life of its replica the configuration names.",
        Edit(
            "ReadRounds._start_round",
            "state.configs.current.number_of(state.me) == state.number",
            "True",
        ),
        directed(NUMBERS + "other_life_of_a_leader_does_not_confirm_itself"),
    ),
    mutation(
        "S8-m4-vote",
        "Votes of another life of a voter's replica count, those of this node included.",
        Edit(
            "counted",
            "config.number_of(node) == number",
            "True",
        ),
        directed(TERMS + "votes_count_by_the_number_of_the_replica"),
    ),
    mutation(
        "S8-m4-stand",
        "A replica stands for its node's earlier life, with an empty log if need be.",
        Edit(
            "ChannelConfig.has_voter",
            "replica.node in self.voters and self.number_of(replica.node) == replica.number",
            "replica.node in self.voters",
        ),
        directed(TERMS + "only_who_may_hold_the_longest_history_stands"),
    ),
    mutation(
        "S8-m13-early",
        "A replica that is yet to be added is notified that it was removed.",
        Edit(
            "ConfigStack.has_dropped",
            "is_over\nand not config.has_member(replica)\nand not self.current.has_member(replica)",
            "not config.has_member(replica)",
        ),
        directed(
            NUMBERS + "only_replicas_that_are_never_added_again_are_told",
            NUMBERS + "replicas_of_an_order_under_way_are_not_told",
        ),
    ),
    mutation(
        "S8-m13-told",
        "A removed replica asks for history for ever.",
        Edit(
            "Leader._on_stranger",
            "self.send_removed(replica)",
            "pass",
        ),
        directed(NUMBERS + "questions_of_an_earlier_life_are_not_answered"),
    ),
    mutation(
        "S8-m13-back",
        "A replica that was notified of its removal stays silent when a leader adds it again.",
        Edit(
            "Follower._on_commit_notice",
            "state.is_removed = False",
            "pass",
        ),
        directed(NUMBERS + "removed_replica_stands_and_asks_no_more_until_a_leader_counts_on_it"),
    ),
    mutation(
        "S8-m13-stands",
        "A replica that knows of its removal goes on asking for votes.",
        Edit(
            "ChannelRunner.may_stand",
            "self.core.may_stand() and (not self.core.is_removed)",
            "self.core.may_stand()",
        ),
        directed(RUNNER + "replica_that_knows_of_its_removal_does_not_stand"),
    ),
    mutation(
        "S8-m18-learner",
        "Learners never stand, and a voter that counts one as a voter never wins without it.",
        Edit(
            "VotingElector._may_stand",
            "self._is_voter() or self._stands_last()",
            "self._is_voter()",
        ),
        directed(TERMS + "learner_with_records_stands_after_all_voters"),
    ),
    mutation(
        "S8-m18-last",
        "Learners stand as early as voters.",
        Edit(
            "VotingElector._arm",
            "self._stands_last()",
            "False",
        ),
        directed(TERMS + "learner_with_records_stands_after_all_voters"),
    ),
    mutation(
        "S8-m18-empty",
        "A learner with an empty log stands.",
        Edit(
            "VotingElector._stands_last",
            "self._state.own_history() > EMPTY_HISTORY",
            "True",
        ),
        directed(TERMS + "only_who_may_hold_the_longest_history_stands"),
    ),
    mutation(
        "S8-m2-members",
        "Records go to the members that the leader began its term with.",
        Edit(
            "Leader._append_config",
            "self._follow(config)",
            "pass",
        ),
        directed(
            CHANGES + "records_are_sent_to_the_members_of_the_newest_configuration",
        ),
        MEMBERS,
    ),
    mutation(
        "S8-m4-next-life",
        "A voter's confirmation counts for the next life of its replica.",
        Edit(
            "ReadRounds.on_config",
            "config.number_of(node) == number",
            "True",
        ),
        directed(
            CHANGES + "confirmation_of_a_voter_that_left_is_not_kept_for_its_next_life",
        ),
    ),
    mutation(
        "S8-m5-step-down",
        "A leader that was removed goes on leading.",
        Edit(
            "Leader._on_config_committed",
            "state.configs.current is now and (not now.may_lead(state.own_id))",
            "False",
        ),
        directed(
            CHANGES + "leader_that_cannot_hand_over_leads_until_it_is_removed",
        ),
    ),
    mutation(
        "S8-m5-tells",
        "A leader that was removed steps down before the members know of the commit.",
        Edit(
            "Leader._on_config_committed",
            "self._send_notice(node, progress)",
            "pass",
        ),
        directed(
            CHANGES + "removed_leader_says_that_the_removal_is_committed",
        ),
    ),
    mutation(
        "S8-m5-counts",
        "A leader that was removed counts itself in the place of a voter.",
        Edit(
            "Leader._matches",
            "match[state.me] = state.stored_seq",
            "match[state.configs.current.voters[-1]] = state.stored_seq",
        ),
        directed(
            CHANGES + "removed_leader_does_not_count_itself",
        ),
    ),
    mutation(
        "S8-m6-own-term",
        "A leader changes members before it has committed a record of its term.",
        Edit(
            "Change._why_not_now",
            "state.lineage.term_at(state.commit_seq) != state.term",
            "False",
        ),
        directed(
            CHANGES + "leader_changes_nothing_before_it_committed_in_its_term",
        ),
        MEMBERS,
    ),
    mutation(
        "S8-m7-one",
        "Two changes of members are under way at once.",
        Edit(
            "next_step",
            "not situation.is_committed",
            "False",
        ),
        directed(
            STEPS + "nothing_follows_what_is_not_committed",
            CHANGES + "next_configuration_waits_for_the_commit_of_the_one_before",
        ),
        MEMBERS,
    ),
    mutation(
        "S8-m8-joint",
        "Voters are replaced without a time in which both sets decide.",
        Edit(
            "_joint",
            "_config(config, (old, new), learners, target.change)",
            "_config(config, (new,), learners, target.change)",
        ),
        directed(
            STEPS + "every_order_is_reached_by_legal_steps",
        ),
        MEMBERS,
    ),
    mutation(
        "S8-m8-legal",
        "A leader appends whatever comes to it.",
        Edit(
            "is_legal",
            "kept == have and max(len(enters), len(leaves)) == 1 and (enters <= "
            "_replicas(before, before.learners))",
            "True",
        ),
        directed(
            STEPS + "other_steps_are_not_legal",
        ),
    ),
    mutation(
        "S8-m8-inherited",
        "A leader goes back from a joint record of another one that may be committed.",
        Edit(
            "next_step",
            "config.is_joint and situation.is_own_term and _is_cancelled(config, target)",
            "config.is_joint and _is_cancelled(config, target)",
        ),
        directed(
            STEPS + "nothing_follows_what_is_not_committed",
        ),
    ),
    mutation(
        "S8-m8-undone",
        "A cancelled order waits for two sets of which the new one has no majority.",
        Edit(
            "next_step",
            "config.is_joint and situation.is_own_term and _is_cancelled(config, target)",
            "False",
        ),
        directed(
            "tests/unit/core/test_changes.py::"
            "test_new_voter_that_dies_at_once_does_not_hold_the_channel"
        ),
    ),
    mutation(
        "S8-m8-own",
        "A leader takes its own joint record for another's.",
        Edit("Change._situation", "configs.current_term == state.term", "False"),
        directed(
            "tests/unit/core/test_changes.py::"
            "test_new_voter_that_dies_at_once_does_not_hold_the_channel"
        ),
    ),
    mutation(
        "S8-m13-asks",
        "A removed replica asks its leader for history over each new connection.",
        Edit("CatchUp.ask", "state.is_removed", "False"),
        directed(
            "tests/unit/core/test_numbers.py::"
            "test_removed_replica_stands_and_asks_no_more_until_a_leader_counts_on_it"
        ),
    ),
    mutation(
        "S8-m9-forward",
        "Two voter sets stay in force while the catalog is not known.",
        Edit(
            "Change.advance",
            "configs.current.is_joint or is_open(configs.current, state.target)",
            "is_open(configs.current, state.target)",
        ),
        directed(
            CHANGES + "two_sets_finish_forward_without_a_catalog",
        ),
    ),
    mutation(
        "S8-m9-undo",
        "An order that is cancelled with two sets in force is carried out.",
        Edit(
            "next_step",
            "if _is_cancelled(config, target):\n    return Step(_undone(config))",
            "pass",
        ),
        directed(
            STEPS + "every_order_ends_wherever_it_is_cancelled",
        ),
    ),
    mutation(
        "S8-m10-live",
        "Voters are replaced while too few of them answer.",
        Edit(
            "_joint",
            "has_quorum(ChannelConfig((group,)), live)",
            "True",
        ),
        directed(
            STEPS + "two_sets_need_a_live_majority_each",
        ),
    ),
    mutation(
        "S8-m10-probe",
        "An idle channel's voters are taken for dead when its members change.",
        Edit(
            "Change.on_timer",
            "self._probe(node)",
            "pass",
        ),
        directed(
            CHANGES + "members_of_an_idle_channel_are_asked_to_acknowledge",
        ),
    ),
    mutation(
        "S8-m11-heard",
        "A learner that does not answer becomes a voter.",
        Edit(
            "_replace",
            "view is None or view.why_not_promoted",
            "False",
        ),
        directed(
            CHANGES + "learner_that_nobody_hears_is_not_promoted",
        ),
    ),
    mutation(
        "S8-m11-round",
        "A learner that is too slow becomes a voter.",
        Edit(
            "Change._why_not_promoted",
            "rounds.took_ms >= settings.promote_round_ms or is_late",
            "False",
        ),
        directed(
            CHANGES + "learner_that_would_slow_the_channel_down_is_not_promoted",
        ),
    ),
    mutation(
        "S8-m11-lag",
        "A learner that has much to apply becomes a voter.",
        Edit(
            "Change._why_not_promoted",
            "lag > settings.promote_lag_max",
            "False",
        ),
        directed(
            CHANGES + "learner_that_would_slow_the_channel_down_is_not_promoted",
        ),
    ),
    mutation(
        "S8-m13-commit",
        "A replica that a committed configuration drops is not notified.",
        Edit(
            "Leader._on_config_committed",
            "self.send_removed(replica)",
            "pass",
        ),
        directed(
            CHANGES + "replica_is_replaced_by_a_learner_then_two_sets_then_one",
        ),
    ),
    mutation(
        "S8-m22-old",
        "An order of an old copy of the catalog undoes a newer one.",
        Edit(
            "is_open",
            "target.change > config.change or (target.change == config.change and (not "
            "config.ended))",
            "True",
        ),
        directed(
            STEPS + "orders_of_an_old_catalog_are_ignored",
        ),
        MEMBERS,
    ),
    mutation(
        "S8-m22-repeated",
        "An order that ended is carried out again.",
        Edit(
            "is_open",
            "not config.ended",
            "True",
        ),
        directed(
            STEPS + "orders_of_an_old_catalog_are_ignored",
        ),
    ),
    mutation(
        "S8-m22-stray",
        "A learner of an earlier order blocks the next one.",
        Edit(
            "_toward",
            "[node for node in config.learners if not _names(target, config, node)]",
            "[]",
        ),
        directed(
            CHANGES + "learner_of_an_earlier_order_is_dropped_first",
        ),
        MEMBERS,
    ),
    mutation(
        "S8-m22-ended",
        "An order that is cancelled in the middle of a series stays open.",
        Edit(
            "_cancelled",
            "_config(config, config.voter_sets, kept, target.change, ended=True)",
            "_config(config, config.voter_sets, kept, target.change)",
        ),
        directed(
            CHANGES + "series_that_is_cancelled_in_the_middle_ends_where_it_is",
        ),
    ),
    mutation(
        "S8-m25-commit",
        "What a smaller quorum holds already waits for the next acknowledgement.",
        Edit(
            "Leader._append_config",
            "self.advance_commit()",
            "pass",
        ),
        directed(
            CHANGES + "fewer_voters_commit_what_they_hold_already",
        ),
    ),
    mutation(
        "S8-m25-asked",
        "Voters that are added during a round of reads are not asked.",
        Edit(
            "ReadRounds.on_config",
            "self._ask(current)",
            "pass",
        ),
        directed(
            CHANGES + "round_of_reads_is_judged_by_the_newest_configuration",
        ),
    ),
    mutation(
        "S8-m25-takers",
        "A leader hands over to a voter of one of two sets.",
        Edit(
            "HandOver._takers",
            "all((node in group for group in config.voter_sets))",
            "True",
        ),
        directed(
            CHANGES + "hand_over_asks_voters_of_all_sets_only",
        ),
    ),
    mutation(
        "S8-m26-hand-over",
        "A leader that is to leave never hands over first.",
        Edit(
            "_joint",
            "me.node not in new and situation.may_hand_over",
            "False",
        ),
        directed(
            STEPS + "leader_that_is_to_leave_hands_over_if_it_may",
            CHANGES + "leader_that_leaves_hands_over_first",
        ),
    ),
    mutation(
        "S8-m26-tries",
        "A leader that nobody relieves never leaves.",
        Edit(
            "Change._leave",
            "self._hand_overs += 1",
            "pass",
        ),
        directed(
            CHANGES + "leader_that_cannot_hand_over_leads_until_it_is_removed",
        ),
    ),
    mutation(
        "S8-a11-waits",
        "A step is taken while the leadership is being handed over.",
        Edit(
            "Change._why_not_now",
            "self._hand_over.deadline_ms is not None and (not goes_first)",
            "False",
        ),
        directed(
            CHANGES + "last_step_waits_for_a_hand_over_and_then_goes_first",
        ),
    ),
    mutation(
        "S8-a11-first",
        "A node that stops waits for ever with two sets in force.",
        Edit(
            "Change._why_not_now",
            "configs.current.is_joint and self._hand_over.has_failed",
            "False",
        ),
        directed(
            CHANGES + "last_step_goes_first_on_a_node_that_stops",
        ),
    ),
    mutation(
        "S8-m18-refuses",
        "A learner that leads for a moment takes writes.",
        Edit(
            "Leader.start",
            "not state.configs.current.may_lead(state.own_id)",
            "False",
        ),
        directed(
            CHANGES + "learner_that_leads_takes_no_writes",
        ),
    ),
    mutation(
        "S8-m10-late",
        "A request for history that came late holds a change of members for good.",
        Edit(
            "Change._is_steady",
            "holds_all or not progress.is_catching_up",
            "not progress.is_catching_up",
        ),
        directed(CHANGES + "late_request_for_history_does_not_hold_a_change"),
    ),
    mutation(
        "S8-claims",
        "A node that hosts a channel since its members changed is not sent its leader's claim.",
        Edit(
            "PeerWatch.config_committed",
            "self._toggle(\n"
            "    peer, runner.channel, runner.elector.term, leader, add=follower in members\n"
            ")",
            "pass",
        ),
        directed(
            "tests/unit/engine/peers/test_watch_leaders.py::test_heartbeats_claim_leaderships_to"
            "_the_members_of_the_newest_configuration"
        ),
    ),
    mutation(
        "S8-claims-of-who-left",
        "A leader that left the channel, and gave up unheard, is believed in for ever.",
        Edit(
            "PeerWatch.config_committed",
            "peer.node if leader == self._me else self._me",
            "peer.node",
        ),
        directed(
            "tests/unit/engine/peers/test_watch_leaders.py::"
            "test_leader_that_left_the_channel_and_gave_up_unheard_is_suspected[committed]"
        ),
    ),
    mutation(
        "S8-claims-before-the-commit",
        "The same, where the configuration without it is not known here to be committed.",
        Edit(
            "PeerWatch._claim_changed",
            "add and leader == self._me and peer.node not in runner.core.config().members",
            "add and peer.node not in runner.core.config().members",
        ),
        directed(
            "tests/unit/engine/peers/test_watch_leaders.py::"
            "test_leader_that_left_the_channel_and_gave_up_unheard_is_suspected[not_committed]"
        ),
    ),
    mutation(
        "S8-claims-left-behind",
        "The claim of a closed channel stays for a peer that its last configuration left out.",
        Edit(
            "PeerWatch._claim_changed",
            "add and leader == self._me and peer.node not in runner.core.config().members",
            "leader == self._me and peer.node not in runner.core.config().members",
        ),
        directed(
            "tests/unit/engine/peers/test_watch_leaders.py::"
            "test_claim_ends_with_the_channel_for_a_peer_that_was_left_out_too"
        ),
    ),
)
