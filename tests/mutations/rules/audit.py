"""Mutations of the live audit: what it finds, and what it must not take for a violation (N7)."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

JUDGE = "tests/unit/audit/test_judge.py::test_"
NODE = "tests/unit/engine/test_audit.py::test_"

AUDITOR = "tests/unit/client/test_auditor.py::test_"
CLIENT = "tests/integration/client/test_audit.py::test_"

AUDIT_RULES: tuple[Mutation, ...] = (
    mutation(
        "N7-stale",
        "A linearizable read behind what was committed before it began is found by nobody.",
        Edit(
            "Judge._judge_place",
            "seen.level == LINEARIZABLE and seen.seq < before",
            "seen.level == LINEARIZABLE and seen.seq < 0",
        ),
        directed(JUDGE + "linearizable_read_behind_what_was_known_is_stale"),
    ),
    mutation(
        "N7-overlap",
        "An audit takes what was reported while a read was under way for known before it.",
        Edit("Judge._judge_place", "seen.began_ms", "seen.ended_ms"),
        directed(JUDGE + "position_reported_while_a_read_was_under_way_does_not_count"),
    ),
    mutation(
        "N7-age",
        "A read may lack what was committed longer ago than the age that it stated.",
        Edit("Judge._judge_age", "seen.seq < missed", "False"),
        directed(JUDGE + "read_is_too_old_when_it_lacks_what_was_known_before_the_age_it_stated"),
    ),
    mutation(
        "N7-clocks",
        "An audit takes the clocks of two machines for equally fast.",
        Edit("Judge._judge_age", "(age_ms + ROUNDING_MS) * (1 + self._clocks_differ)", "age_ms"),
        directed(JUDGE + "read_is_too_old_when_it_lacks_what_was_known_before_the_age_it_stated"),
    ),
    mutation(
        "N7-spans",
        "Two versions of a row at one position are no contradiction.",
        Edit(
            "Span.contradicts",
            "self.first <= other.last and other.first <= self.last",
            "False",
        ),
        directed(JUDGE + "acknowledged_put_that_a_later_state_does_not_show_is_lost"),
    ),
    mutation(
        "N7-durability",
        "A node audits tables that may lose what was acknowledged, and raises false alarms.",
        Edit("_is_judged", "runner.durable.durability is Durability.FSYNC", "True"),
        directed(NODE + "what_is_not_judged"),
    ),
    mutation(
        "N7-order",
        "Of two requests in one millisecond the first is held against what came behind it.",
        Edit("NodeAudit._moment", "self._last_ms + MOMENT_MS", "self._last_ms"),
        directed(NODE + "position_that_came_behind_the_request_does_not_count"),
    ),
    mutation(
        "N7-twice",
        "Answers to a request id that is used twice are judged by the keys of another request.",
        Edit("NodeAudit.read_began", "self._asked.pop(place, None)", "pass"),
        directed(NODE + "request_id_that_is_used_twice_has_neither_request_judged"),
    ),
    mutation(
        "N7-again",
        "A request is judged although the client had used its id before.",
        Edit(
            "NodeAudit.read_began",
            "request.request_id <= self._newest.get(client, -1)",
            "place in self._asked",
        ),
        directed(NODE + "request_id_that_is_used_again_and_again_is_not_judged"),
    ),
    mutation(
        "N7-shape",
        "An answer to fewer keys than were asked ends the node that audits it.",
        Edit("NodeAudit._judge", "not _fits(part, answer)", "False"),
        directed(NODE + "answer_that_cannot_be_to_the_request_is_not_judged"),
    ),
    mutation(
        "N7-pause",
        "A client that reports again and again keeps the events of the node itself back.",
        Edit(
            "NodeAudit._report",
            "self._may_report(NODE, now_ms)",
            "self._may_report(CLIENT, now_ms)",
        ),
        directed(NODE + "reports_of_clients_keep_no_event_of_the_node_back"),
    ),
    mutation(
        "N7-channels",
        "An audit that has seen many channels remembers every further one, too.",
        Edit("Judge._known", "len(self._channels) >= CHANNELS_MAX", "False"),
        directed(JUDGE + "channel_used_least_lately_makes_room_for_another"),
    ),
    mutation(
        "N7-second-opinion",
        "A row is read again at the replica that answered, which repeats what it said.",
        Edit("Auditor._another", "node_name(n) != answered", "True"),
        directed(
            CLIENT + "replica_with_another_row_is_found_by_a_check_although_nobody_reads_there"
        ),
    ),
    mutation(
        "N7-close",
        "A report that is under way when a client is closed is lost.",
        Edit("Auditor._deliver", "self._unreported.appendleft(finding)", "pass"),
        directed(AUDITOR + "report_that_a_close_breaks_off_is_sent_again"),
    ),
    mutation(
        "N7-report-level",
        "A client sends what its audit found to nodes that do not know such a report.",
        Edit("Auditor._report", "link.level >= AUDIT_LEVEL", "True"),
        directed(CLIENT + "older_nodes_are_not_sent_a_report"),
    ),
)
