"""Mutations of HTTP: conditions, credentials, limits, deadlines, exact values."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

CONNECTIONS = "tests/integration/http/test_connection.py::test_"
READ_AGAIN = (
    "tests/integration/http/test_auth.py::test_users_are_read_again_when_their_file_changes"
)
EXACT = "tests/unit/rows/test_json_values.py::test_"
PAGES = "tests/integration/http/test_origins.py::test_"
BAD = "tests/integration/http/test_bad_input.py::test_"
PAUSES = "tests/integration/http/test_login_pauses.py::test_"
ROW_TESTS = "tests/integration/http/test_rows.py::test_"
GUARD = "tests/integration/http/test_auth.py::test_gap_11_"
TESTS = "tests/integration/http/"
OPENING = "tests/integration/http/test_accepting.py::test_"

SERVING_RULES: tuple[Mutation, ...] = (
    mutation(
        "http-condition",
        "A write with a condition is done whatever the row's version is.",
        Edit(
            "_conditions",
            "tag[1:-1],",
            "None,",
        ),
        directed(ROW_TESTS + "condition_if_match_writes_only_this_version"),
    ),
    mutation(
        "http-parameter",
        "A parameter that is not known is ignored.",
        Edit(
            "parse_parameters",
            'raise unknown_name("parameter", name, fields)',
            "continue",
        ),
        directed(BAD + "bad_parameter_of_a_read_is_refused_by_its_name"),
    ),
    mutation(
        "http-position",
        "A position that a read gives over HTTP is ignored.",
        Edit(
            "Freshness.options",
            '"at_least",',
            "",
        ),
        directed(BAD + "bad_parameter_of_a_read_is_refused_by_its_name"),
    ),
    mutation(
        "http-limit",
        "Queries queue up at a node without end.",
        Edit(
            "_Server._admitted",
            "self._queries >= limit",
            "False",
        ),
        directed(ROW_TESTS + "query_beyond_the_limit_is_refused_at_once"),
    ),
    mutation(
        "http-body-limit",
        "A body of any length is read into memory.",
        Edit(
            "_Server._body",
            "len(read) > limit",
            "False",
        ),
        directed(ROW_TESTS + "body_beyond_the_limit_is_refused"),
    ),
    mutation(
        "http-head-limit",
        "A line of a head that never ends is kept in memory.",
        Edit(
            "BoundedHttpProtocol.data_received",
            "self._without_progress > HEAD_BYTES_MAX",
            "False",
        ),
        directed(CONNECTIONS + "head_beyond_its_limit_is_refused"),
    ),
    mutation(
        "http-pipelined",
        "Requests sent without reading answers fill the memory of a node.",
        Edit(
            "BoundedHttpProtocol.on_headers_complete",
            "len(self.pipeline) >= PIPELINED_MAX",
            "False",
        ),
        directed(CONNECTIONS + "requests_that_wait_for_earlier_answers_are_bounded"),
    ),
    mutation(
        "http-keep-alive",
        "A body that was answered already keeps its connection for ever.",
        Edit(
            "BoundedHttpProtocol.data_received",
            "self.timeout_keep_alive_task = keep_alive",
            "keep_alive.cancel()",
        ),
        directed(CONNECTIONS + "body_after_its_answer_does_not_keep_a_connection"),
    ),
    mutation(
        "http-idle-place",
        "Connections that say nothing keep others out.",
        Edit(
            "BoundedHttpProtocol._find_place",
            "other is not None",
            "False",
        ),
        Edit(
            "Opening._has_place",
            "idle is not None",
            "False",
        ),
        directed(CONNECTIONS + "connection_that_is_idle_makes_room_for_a_new_one"),
    ),
    mutation(
        "http-probes",
        "A node whose connections all have requests under way looks dead.",
        Edit(
            "BoundedHttpProtocol._find_place",
            "count <= limit + PROBE_CONNECTIONS",
            "False",
        ),
        directed(CONNECTIONS + "connections_beyond_the_limit_may_probe_and_nothing_else"),
    ),
    mutation(
        "http-opening-counted",
        "Connections whose TLS handshake has not ended are not counted.",
        Edit(
            "Opening._has_place",
            "limit is None or len(self._state.connections) + len(opening) < limit",
            "True",
        ),
        directed(OPENING + "silent_connections_before_tls_are_counted_and_keep_nobody_out"),
    ),
    mutation(
        "http-handshake-time",
        "A TLS handshake that does not end keeps its connection for a minute.",
        Edit(
            "Opening._open",
            "self._handshake_s,",
            "None,",
        ),
        directed(OPENING + "tls_handshake_that_does_not_end_in_time_ends_the_connection"),
    ),
    mutation(
        "files-reserved",
        "Connections use up the files that a node's store needs.",
        Edit(
            "FileReserve.is_met_by",
            "accepted.fileno() >= self.first_reserved",
            "False",
        ),
        directed(
            OPENING + "connection_that_would_take_a_reserved_file_is_not_accepted",
            "tests/integration/transport/test_server.py::"
            "test_connection_that_would_take_a_reserved_file_is_closed_and_a_later_one_served",
        ),
    ),
    mutation(
        "http-answer-keys",
        "Rows of many keys are collected in a node's memory whatever they take.",
        Edit(
            "AnswerBudget.with_part",
            "self.take(sum(found.sizes().values()))",
            "pass",
        ),
        directed(
            TESTS + "test_answer_bytes.py::test_rest_of_many_keys_is_not_read_when_it_is_too_much"
        ),
    ),
    mutation(
        "http-answer-page",
        "A page is collected in a node's memory whatever its rows take.",
        Edit(
            "taken",
            "bytes_max is not None and size >= bytes_max",
            "False",
        ),
        directed(
            TESTS + "test_answer_bytes.py::test_page_of_a_scan_ends_at_the_limit_and_the"
            "_next_one_goes_on"
        ),
    ),
    mutation(
        "http-utf8",
        "A key that is no text is read as another key.",
        Edit(
            "_path",
            'unquote_to_bytes(raw or b"").decode()',
            'unquote_to_bytes(raw or b"")',
        ),
        directed(BAD + "bad_request_has_a_code_and_comes_at_once"),
    ),
    mutation(
        "http-redirect",
        "A write to a path with a slash too many is sent to another path.",
        Edit(
            "build_app",
            "app.router.redirect_slashes = False",
            "",
        ),
        directed(BAD + "bad_request_has_a_code_and_comes_at_once"),
    ),
    mutation(
        "GAP-11-fate",
        "Who may only read makes the leader give writes up.",
        Edit(
            "ROUTES",
            "errors=(404,), role=Role.WRITE,",
            "errors=(404,),",
        ),
        directed(GUARD + "roles_are_enforced"),
    ),
    mutation(
        "GAP-11-role",
        "Every user may do everything.",
        Edit(
            "Guard.check",
            "USER_ROLES.index(user.role) < USER_ROLES.index(role)",
            "False",
        ),
        directed(GUARD + "roles_are_enforced"),
    ),
    mutation(
        "GAP-11-password",
        "Any password of a user is right.",
        Edit(
            "Guard._verify",
            "await checking.result()",
            "(await checking.result(), True)[1]",
        ),
        directed(GUARD + "security_on_needs_credentials"),
    ),
    mutation(
        "users-verified",
        "A password that was right once is right for ever.",
        Edit(
            "Guard._take",
            "self._users.get(user.name) == user",
            "user is not None",
        ),
        directed(READ_AGAIN),
    ),
    mutation(
        "users-bad-file",
        "A file of users that cannot be used lets nobody in any more.",
        Edit(
            "UserFile.has_changed",
            'logger.warning("users file refused, the previous ones stay: %s", error)\nreturn False',
            'logger.warning("users file refused, the previous ones stay: %s", error)\nusers = ()',
        ),
        directed(READ_AGAIN),
    ),
    mutation(
        "login-pause",
        "Passwords are guessed as fast as a node can check them.",
        Edit(
            "Guard._begin",
            "left_s > 0",
            "False",
        ),
        directed(
            PAUSES + "guesser_has_to_wait_and_right_users_do_not",
            PAUSES + "name_that_many_addresses_guess_has_a_short_pause",
        ),
    ),
    mutation(
        "login-known",
        "Guessers keep a user out who has logged in before.",
        Edit(
            "LoginPauses.left_s",
            "(where, name) in self._known",
            "False",
        ),
        directed(PAUSES + "name_that_many_addresses_guess_has_a_short_pause"),
    ),
    mutation(
        "login-queue",
        "Logins wait without end behind those of guessers.",
        Edit(
            "Guard._begin",
            "len(self._under_way) >= VERIFICATIONS_WAITING_MAX",
            "False",
        ),
        directed(PAUSES + "logins_that_wait_for_their_check_are_bounded"),
    ),
    mutation(
        "http-origin",
        "A web page of another site writes with the rights of the user who looks at it.",
        Edit(
            "Origins._check_page",
            "is_own and (site is None or site in _OWN_SITES)",
            "True",
        ),
        directed(PAGES + "with_users_any_name_may_be_used_and_no_other_page"),
    ),
    mutation(
        "http-host",
        "A web page whose name was pointed to the node reads and writes there.",
        Edit(
            "Origins.check",
            "self._check_host(given)",
            "pass",
        ),
        directed(PAGES + "name_that_is_not_of_this_node_reads_nothing"),
    ),
    mutation(
        "http-media",
        "A form of an old browser writes.",
        Edit(
            "_check_body",
            "raise unsupported_media(kind)",
            "return",
        ),
        directed(PAGES + "body_that_a_form_can_send_is_refused"),
    ),
    mutation(
        "GAP-11-readyz",
        "Users without rights are informed which tables there are.",
        Edit(
            "_may_see_names",
            "guard.is_open",
            "True",
        ),
        directed(PAGES + "clients_without_rights_learn_from_readiness_no_names_of_tables"),
    ),
    mutation(
        "GAP-11-node",
        "Any client may pretend that a node is alive.",
        Edit(
            "Guard.check",
            "self._check_node(authorization)",
            "",
        ),
        directed(GUARD + "heartbeat_needs_the_node_token"),
    ),
    mutation(
        "BLOG-26",
        "A dead node is shown with what it held.",
        Edit(
            "_lags_of_host",
            "if node.state == DOWN:\n    return HostStoreLags({}, 0)",
            "",
        ),
        directed(TESTS + "test_status_shape.py::test_blog_26_dead_host_is_empty"),
    ),
    mutation(
        "http-nan",
        "A number that JSON lacks becomes null.",
        Edit(
            "_tagged",
            'value if math.isfinite(value) else {"$double": _float(value)}',
            "value",
        ),
        directed(EXACT + "numbers_that_json_lacks_have_names"),
    ),
    mutation(
        "http-tags",
        "A column whose name looks like a tag is read as a value of that type.",
        Edit(
            "_map",
            'is_plain and not (len(value) == 1 and next(iter(value)).startswith("$"))',
            "is_plain",
        ),
        directed(EXACT + "value_that_was_stored_is_exact_when_read_from_json"),
    ),
    mutation(
        "http-late-body",
        "A write whose body never came is called in doubt.",
        Edit("_Server._read_and_handled", "not call.timer.expired()", "True"),
        directed(
            TESTS
            + "test_late_bodies.py::test_write_whose_body_never_came_was_certainly_not_applied"
        ),
    ),
    mutation(
        "http-many-states",
        "The position of many rows is that of the last answer.",
        Edit(
            "_many",
            "result.node, result.applied_seq,",
            "",
        ),
        directed(ROW_TESTS + "position_of_many_rows_has_every_state_that_they_were_read_from"),
    ),
)
