"""Mutations of what a node hosts and deletes by what is ordered and reported (M12, M14, M23), and
of leaders whose voters' nodes host their replicas no more (M4, M5)."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.rules.drawn_worlds import MEMBERS
from tests.mutations.syntax import Edit

HOSTING = "tests/unit/engine/catalog/test_hosting.py::test_"
REPORTS = "tests/unit/engine/catalog/test_config_reports.py::test_"
CONTACT = "tests/unit/engine/peers/test_quorum_contact.py::test_"
NAMED = HOSTING + "m12_replica_is_deleted_only_when_nothing_names_it"
LIVED = HOSTING + "node_hosts_what_is_ordered_and_deletes_what_was_undone"

HOSTING_RULES: tuple[Mutation, ...] = (
    mutation(
        "M12-reported",
        "A replica is deleted although the reported configuration names it.",
        Edit(
            "may_be_deleted",
            "not entry.config_seq or entry.config.has_member(me)",
            "not entry.config_seq",
        ),
        directed(NAMED),
    ),
    mutation(
        "M12-older-catalog",
        "A replica goes by a copy of the catalog from before the order that brought it.",
        Edit("may_be_deleted", "me.number > version", "False"),
        directed(
            HOSTING + "m12_older_copy_of_the_catalog_says_nothing_of_a_replica_that_came_since"
        ),
    ),
    mutation(
        "M12-catalog-back",
        "The catalog of a node goes back with a table that was copied from another one.",
        Edit(
            "CatalogController.on_catalog_applied",
            "self._tables.applied_seq(self.metadata_channel) > self.catalog.version",
            "self._tables.applied_seq(self.metadata_channel) != self.catalog.version",
        ),
        directed(
            "tests/unit/engine/catalog/test_controller_alone.py::"
            "test_catalog_does_not_go_back_with_a_table_that_does"
        ),
    ),
    mutation(
        "M12-ordered",
        "A replica that was opened for an open order is deleted before its log names it.",
        Edit("may_be_deleted", "target.number_of(me.node) == me.number", "False"),
        directed(NAMED),
        MEMBERS,
    ),
    mutation(
        "M23-log",
        "A replica is deleted by a row that is behind its own log.",
        Edit(
            "may_be_deleted",
            "all(each.seq < entry.config_seq for each in known if each.config.has_member(me))",
            "True",
        ),
        directed(NAMED),
    ),
    mutation(
        "M14-table",
        "The table of a removed replica goes before the log remembers the removal.",
        Edit("Hosting.on_timer", "at.operation <= durable", "True"),
        directed(HOSTING + "m14_table_goes_when_the_log_remembers_the_removal"),
    ),
    mutation(
        "M23-open",
        "A node opens no replica that an order has it host.",
        Edit(
            "Hosting.replica_of",
            "entry.hosts.get(self._me)",
            "None",
        ),
        directed(LIVED),
        MEMBERS,
    ),
    mutation(
        "M21-repeated",
        "A report of a configuration that the catalog holds is made again and again.",
        Edit(
            "ConfigReports._report",
            "known is not None and committed.seq <= known.config_seq",
            "False",
        ),
        directed(REPORTS + "m22_leader_reports_until_the_catalog_holds_it"),
    ),
    mutation(
        "M21-later",
        "A change that ended is reported with the next regular look alone.",
        Edit("ConfigReports.on_committed", "committed.config.ended", "False"),
        directed(REPORTS + "m21_change_that_ended_is_reported_at_once"),
    ),
    mutation(
        "M21-at-once-or-never",
        "A report at once that has to wait for a voter is left to the next regular look.",
        Edit(
            "ConfigReports.on_timer",
            "self._report(each, now_ms)",
            "self._report(each, now_ms) and 0",
        ),
        directed(REPORTS + "m21_change_that_ended_is_reported_at_once"),
    ),
    mutation(
        "M29-came-up",
        "A node that came up takes replicas with the next regular look alone.",
        Edit("CatalogController.on_timer", "_LEADING in self.deadlines", "False"),
        directed(
            "tests/unit/engine/catalog/test_controller_alone.py::"
            "test_node_that_came_up_takes_replicas_at_once"
        ),
    ),
    mutation(
        "M12-wait",
        "A former replica goes while live voters lack the change that it goes by.",
        Edit(
            "ConfigReports._waits",
            "is_patient",
            "False",
        ),
        directed(REPORTS + "m12_report_waits_for_live_voters_that_are_behind"),
    ),
    mutation(
        "M21-follower",
        "Replicas that do not lead report configurations.",
        Edit(
            "ConfigReports._report",
            "runner is None or runner.elector.role is not Role.LEADER",
            "runner is None",
        ),
        directed(
            REPORTS + "nothing_is_reported_where_nobody_asks_for_it_or_takes_it[follower]",
        ),
    ),
    mutation(
        "S4.1-removed",
        "A write to a replica that was removed counts as not applied.",
        Edit(
            "RequestHandler._refuse_stranger",
            "term is not None and message.term <= term",
            "False",
        ),
        directed(HOSTING + "b5_write_to_a_replica_that_was_removed_is_in_doubt"),
    ),
    mutation(
        "S8-contact-hosted",
        "A leader is held by nodes that host its channel no more.",
        Edit(
            "QuorumContact._check_replicas",
            "runner.step_down(NO_CONTACT, now_ms)",
            "pass",
        ),
        directed(
            CONTACT + "leader_whose_voters_nodes_live_and_host_nothing_gives_up",
            "tests/unit/engine/peers/test_moved_voters.py::"
            "test_leader_whose_channel_moved_away_gives_up_and_serves_no_bounded_read",
        ),
    ),
    mutation(
        "S8-contact-number",
        "A leader is held by another life of a voter's replica.",
        Edit(
            "QuorumContact._look_for_replicas",
            "reported.replica == config.number_of(node)",
            "True",
        ),
        directed(
            CONTACT + "replica_of_another_number_is_no_contact",
        ),
    ),
    mutation(
        "S8-contact-term",
        "A leader is held by a replica that is in a later term.",
        Edit(
            "QuorumContact._look_for_replicas",
            "reported.term <= term",
            "True",
        ),
        directed(
            CONTACT + "replica_of_a_later_term_is_no_contact",
        ),
    ),
    mutation(
        "S8-contact-own",
        "A leader counts itself, whichever replica votes.",
        Edit(
            "QuorumContact._look_for_replicas",
            "config.has_voter(ReplicaId(node, runner.core.number))",
            "True",
        ),
        directed(
            CONTACT + "leader_counts_itself_only_as_the_replica_that_votes",
        ),
    ),
    mutation(
        "S8-contact-old",
        "What a node reported long ago holds a leader for ever.",
        Edit(
            "LagReports.hosted_by",
            "self.heard_ms.get(node, since_ms - 1) < since_ms",
            "False",
        ),
        directed(
            CONTACT + "reports_that_stay_out_say_nothing_any_more",
        ),
    ),
    mutation(
        "S8-contact-restart",
        "What a node hosted before its restart holds a leader.",
        Edit(
            "LagReports.restarted",
            "self._hosted.pop(node, None)",
            "pass",
        ),
        directed(
            CONTACT + "reports_that_stay_out_say_nothing_any_more",
        ),
    ),
    mutation(
        "S8-contact-proof",
        "A leader that a quorum confirms gives up for want of reports.",
        Edit(
            "QuorumContact._check_replicas",
            "runner.request_proof(now_ms + self._contact_ms - silent_ms, now_ms)",
            "pass",
        ),
        directed(
            CONTACT + "quorum_that_confirms_a_leader_holds_it_whatever_is_reported",
        ),
    ),
    mutation(
        "S8-life-order",
        "Candidates wait for a position that another life of a voter's replica reported.",
        Edit(
            "PeerWatch.candidacy_delay_ms",
            "position.replica == config.number_of(node)",
            "True",
        ),
        directed(
            "tests/unit/engine/peers/test_watch_candidacies.py::"
            "test_position_of_another_life_of_a_replica_delays_nobody"
        ),
    ),
)
