"""Mutations of the rules of witnesses and readers (W1 to W7)."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

ROLES = "tests/unit/core/test_roles.py::test_"
TERMS = "tests/unit/election/test_terms.py::test_"
WITNESSES = "tests/unit/engine/catalog/test_witnesses.py::test_"
FLOORS = "tests/unit/engine/retention/test_floors_alone.py::test_"
ENDINGS = "tests/unit/engine/snapshots/test_snapshot_endings.py::test_"
READERS = "tests/unit/engine/catalog/test_read_replicas.py::test_"

ROLE_RULES: tuple[Mutation, ...] = (
    mutation(
        "W1-rows",
        "A voter set may have more witnesses than voters with rows.",
        Edit("_keeps_rows", "return False", "pass"),
        directed(ROLES + "steps_that_would_lean_on_witnesses_are_not_legal"),
    ),
    mutation(
        "W1-order",
        "Voters with rows leave before witnesses do.",
        Edit(
            "_replace",
            "(not config.is_witness(node), node == situation.me.node)",
            "node == situation.me.node",
        ),
        directed(ROLES + "every_order_of_witnesses_is_reached_by_legal_steps"),
    ),
    mutation(
        "W2-final",
        "A joint configuration ends by the word of a witness that may have trimmed what the new "
        "voter lacks.",
        Edit("_why_not_final", "len(holding) >= majority(len(new))", "True"),
        directed(ROLES + "joint_configuration_waits_for_voters_with_rows"),
    ),
    mutation(
        "W3-same",
        "A replica with rows becomes a witness.",
        Edit(
            "_keeps_rows",
            "all(before.is_witness(node) == after.is_witness(node) for node in kept)",
            "True",
        ),
        directed(ROLES + "steps_that_would_lean_on_witnesses_are_not_legal"),
    ),
    mutation(
        "W4-target",
        "A leader hands over to a witness.",
        Edit("HandOver._takers", "not config.is_witness(node)", "True"),
        directed(ROLES + "witness_is_no_target_of_a_hand_over"),
    ),
    mutation(
        "W4-stays",
        "A witness that was elected goes on leading.",
        Edit(
            "Leader._on_config_committed",
            "not now.may_lead(state.own_id)",
            "not now.has_voter(state.own_id)",
        ),
        directed(ROLES + "witness_leads_until_a_voter_with_rows_can"),
    ),
    mutation(
        "W4-known",
        "A witness that leads answers for conditional writes, whose outcome it does not have.",
        Edit("Leader.on_publish", "state.is_witness", "False"),
        directed(ROLES + "witness_that_leads_answers_for_no_earlier_write"),
    ),
    mutation(
        "W5-stands",
        "A reader stands in elections.",
        Edit("VotingElector._stands_last", "role is not MemberRole.READER", "True"),
        directed(TERMS + "reader_never_stands"),
    ),
    mutation(
        "W5-record",
        "A reader becomes a voter without having held a record by which it is none.",
        Edit("_replace", "_is_reader(config, node)", "False"),
        directed(ROLES + "reader_learns_that_it_is_one_no_longer_before_it_votes"),
    ),
    mutation(
        "W6-floor",
        "A witness trims what its quorum of voters has, witnesses among them.",
        Edit("Floors.of", "not runner.has_rows", "False"),
        directed(WITNESSES + "witness_keeps_records_until_voters_with_rows_have_them"),
    ),
    mutation(
        "W6-rows",
        "What a witness holds counts as a copy of rows.",
        Edit("rows_seq", "not config.is_witness(node)", "True"),
        directed(
            "tests/unit/core/test_quorum.py::"
            "test_w6_rows_are_kept_by_as_many_voters_with_rows_as_make_a_majority"
        ),
    ),
    mutation(
        "W6-configs",
        "A witness looks at the newest configuration alone, which may be cut off.",
        Edit(
            "Floors.rows_seq",
            "runner.core.known_configs()",
            "runner.core.known_configs()[-1:]",
        ),
        directed(FLOORS + "w6_witness_is_needed_up_to_what_enough_voters_with_rows_have_applied"),
    ),
    mutation(
        "W6-base",
        "A witness is given a base above what enough voters with rows hold.",
        Edit("SnapshotSender._why_no_base_for", "core.rows_seq() >= base.seq", "True"),
        directed(WITNESSES + "base_for_a_witness_waits_for_voters_with_rows"),
    ),
    mutation(
        "W6-behind",
        "A witness far behind waits for a voter that waits for a leader that waits for it.",
        Edit("SnapshotSender._why_no_base_for", "core.is_only_witness(witness)", "False"),
        directed(WITNESSES + "base_for_a_witness_waits_for_voters_with_rows"),
    ),
    mutation(
        "W6-older",
        "A witness that does not judge itself is given a base as one that does.",
        Edit(
            "SnapshotSender._why_no_base_for",
            "witness in self._nodes_at_level(WITNESS_BASE_LEVEL)",
            "True",
        ),
        directed(WITNESSES + "base_for_a_witness_waits_for_voters_with_rows"),
    ),
    mutation(
        "W6-only",
        "A witness may skip what another one holds, and no voter with rows.",
        Edit(
            "is_only_witness",
            "[each for each in config.voters if config.is_witness(each)] == [node]",
            "config.is_witness(node)",
        ),
        directed(
            "tests/unit/core/test_quorum.py::"
            "test_only_witness_is_one_without_which_voters_with_rows_commit[one_of_two]"
        ),
    ),
    mutation(
        "W6-held",
        "A witness far behind lets go what it holds for a late voter.",
        Edit(
            "SnapshotParts.why_not_behind",
            "self.why_kept(runner, base.seq, rows_seq if is_newer else base.seq)",
            "None",
        ),
        directed(ENDINGS + "offer_of_a_base_is_refused_by_a_witness_that_holds_more"),
    ),
    mutation(
        "W6-acknowledged",
        "A witness waits for the reports of a voter that acknowledged and is down.",
        Edit(
            "SnapshotParts.why_kept",
            "max(rows_seq, self.rows_seq(runner, held))",
            "self.rows_seq(runner, held)",
        ),
        directed(
            ENDINGS + "base_is_taken_by_a_witness_whose_leader_knows_that_others_hold_as_much"
        ),
    ),
    mutation(
        "W6-older-leader",
        "A witness refuses every base of a leader of an older version.",
        Edit("SnapshotParts.why_not_behind", "rows_seq if is_newer else base.seq", "rows_seq"),
        directed(
            ENDINGS + "base_is_taken_by_a_witness_whose_leader_knows_that_others_hold_as_much"
        ),
    ),
    mutation(
        "W6-held-once",
        "A witness that lost records counts as one that never held them.",
        Edit("MemberViews.held_at_most", "is_whole and state.doubt is None", "True"),
        directed(WITNESSES + "witness_takes_no_base_above_what_it_holds_for_a_late_voter"),
    ),
    mutation(
        "W7-reads",
        "A witness serves reads from its empty table.",
        Edit("serving_refusal", "not runner.has_rows", "False"),
        directed(WITNESSES + "witness_has_the_log_and_no_rows"),
    ),
    mutation(
        "W7-table",
        "A witness gives its empty table to another replica.",
        Edit("SnapshotSender._table_refusal", "not runner.has_rows", "False"),
        directed(WITNESSES + "witness_gives_no_table"),
    ),
    mutation(
        "W7-no-rows",
        "A witness whose log begins too early copies the whole table of another replica.",
        Edit("SnapshotReceiver._ask_whole", "not transfer.runner.has_rows", "False"),
        directed(WITNESSES + "log_of_a_witness_is_trimmed_and_it_never_asks_for_a_table"),
    ),
)
