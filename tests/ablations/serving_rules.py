"""Ablations of HTTP: conditions, credentials, limits, deadlines, exact values."""

from __future__ import annotations

from tests.ablations.ablation import Ablation, Edit, directed

SERVING = "raftstore/serving/"
APP = "raftstore/http/app.py"
CONNECTION = "raftstore/http/connection.py"
ACCEPTING = "raftstore/http/accepting.py"
AUTH = "raftstore/http/auth.py"
ROWS = "raftstore/http/row_routes.py"
QUERIES = "raftstore/http/queries.py"
SHAPE = "raftstore/http/status_shape.py"
VALUES = "raftstore/rows/json_values.py"

TESTS = "tests/integration/http/"
ROW_TESTS = TESTS + "test_rows.py::test_"
BAD = TESTS + "test_bad_input.py::test_"
CONNECTIONS = TESTS + "test_connection.py::test_"
ORIGINS = "raftstore/http/origins.py"
PAUSES = TESTS + "test_login_pauses.py::test_"
PAGES = TESTS + "test_origins.py::test_"
OPENING = TESTS + "test_accepting.py::test_"
GUARD = TESTS + "test_auth.py::test_gap_11_"
READ_AGAIN = (
    "tests/integration/http/test_auth.py::test_users_are_read_again_when_their_file_changes"
)
EXACT = "tests/unit/rows/test_json_values.py::test_"

SERVING_RULES: tuple[Ablation, ...] = (
    directed(
        "http-condition",
        "a write with a condition is done whatever the row's version is",
        ROWS,
        "    return False, tag[1:-1]\n",
        "    return False, None\n",
        ROW_TESTS + "condition_if_match_writes_only_this_version",
    ),
    directed(
        "http-parameter",
        "a parameter that is not known is ignored",
        QUERIES,
        '            raise unknown_name("parameter", name, fields)\n',
        "            continue\n",
        BAD + "bad_parameter_of_a_read_is_refused_by_its_name",
    ),
    directed(
        "http-position",
        "a position that a read gives over HTTP is ignored",
        QUERIES,
        '            "at_least",\n',
        "",
        BAD + "bad_parameter_of_a_read_is_refused_by_its_name",
    ),
    directed(
        "http-limit",
        "queries queue up at a node without end",
        APP,
        "        if self._queries >= limit:",
        "        if False:",
        ROW_TESTS + "query_beyond_the_limit_is_refused_at_once",
    ),
    directed(
        "http-body-limit",
        "a body of any length is read into memory",
        APP,
        "            if len(read) > limit:",
        "            if False:",
        ROW_TESTS + "body_beyond_the_limit_is_refused",
    ),
    directed(
        "http-head-limit",
        "a line of a head that never ends is kept in memory",
        CONNECTION,
        "        if self._without_progress > HEAD_BYTES_MAX and",
        "        if False and",
        CONNECTIONS + "head_beyond_its_limit_is_refused",
    ),
    directed(
        "http-pipelined",
        "requests sent without reading answers fill the memory of a node",
        CONNECTION,
        "        if len(self.pipeline) >= PIPELINED_MAX:\n",
        "        if False:\n",
        CONNECTIONS + "requests_that_wait_for_earlier_answers_are_bounded",
    ),
    directed(
        "http-keep-alive",
        "a body that was answered already keeps its connection for ever",
        CONNECTION,
        "            self.timeout_keep_alive_task = keep_alive\n",
        "            keep_alive.cancel()\n",
        CONNECTIONS + "body_after_its_answer_does_not_keep_a_connection",
    ),
    Ablation(
        "http-idle-place",
        "connections that say nothing keep others out",
        (
            Edit(CONNECTION, "        if other is not None:\n", "        if False:\n"),
            Edit(ACCEPTING, "        if idle is not None:\n", "        if False:\n"),
        ),
        tests=(CONNECTIONS + "connection_that_is_idle_makes_room_for_a_new_one",),
    ),
    directed(
        "http-probes",
        "a node whose connections all have requests under way looks dead",
        CONNECTION,
        "        elif count <= limit + PROBE_CONNECTIONS:\n",
        "        elif False:\n",
        CONNECTIONS + "connections_beyond_the_limit_may_probe_and_nothing_else",
    ),
    directed(
        "http-opening-counted",
        "connections whose TLS handshake has not ended are not counted",
        ACCEPTING,
        "        if limit is None or len(self._state.connections) + len(opening) < limit:\n",
        "        if True:\n",
        OPENING + "silent_connections_before_tls_are_counted_and_keep_nobody_out",
    ),
    directed(
        "http-handshake-time",
        "a TLS handshake that does not end keeps its connection for a minute",
        ACCEPTING,
        "            async with asyncio.timeout(self._handshake_s):\n",
        "            async with asyncio.timeout(None):\n",
        OPENING + "tls_handshake_that_does_not_end_in_time_ends_the_connection",
    ),
    directed(
        "files-reserved",
        "connections use up the files that a node's store needs",
        "raftstore/transport/accepting.py",
        "        return accepted.fileno() >= self.first_reserved\n",
        "        return False\n",
        OPENING + "connection_that_would_take_a_reserved_file_is_not_accepted",
        "tests/integration/transport/test_server.py::"
        "test_connection_that_would_take_a_reserved_file_is_closed_and_a_later_one_served",
    ),
    directed(
        "http-answer-keys",
        "rows of many keys are collected in a node's memory whatever they take",
        "raftstore/client/reads/key_reads.py",
        "            self.take(sum(found.sizes().values()))\n",
        "            pass\n",
        TESTS + "test_answer_bytes.py::test_rest_of_many_keys_is_not_read_when_it_is_too_much",
    ),
    directed(
        "http-answer-page",
        "a page is collected in a node's memory whatever its rows take",
        "raftstore/client/scans/scanning.py",
        "            if bytes_max is not None and size >= bytes_max:\n",
        "            if False:\n",
        TESTS
        + "test_answer_bytes.py::test_page_of_a_scan_ends_at_the_limit_and_the_next_one_goes_on",
    ),
    directed(
        "http-utf8",
        "a key that is no text is read as another key",
        APP,
        '            unquote_to_bytes(raw or b"").decode()\n',
        '            unquote_to_bytes(raw or b"")\n',
        BAD + "bad_request_has_a_code_and_comes_at_once",
    ),
    directed(
        "http-redirect",
        "a write to a path with a slash too many is sent to another path",
        APP,
        "    app.router.redirect_slashes = False\n",
        "",
        BAD + "bad_request_has_a_code_and_comes_at_once",
    ),
    directed(
        "GAP-11-fate",
        "who may only read makes the leader give writes up",
        "raftstore/http/insight_routes.py",
        "        role=Role.WRITE,  #",
        "        #",
        GUARD + "roles_are_enforced",
    ),
    directed(
        "GAP-11-role",
        "every user may do everything",
        AUTH,
        "        if USER_ROLES.index(user.role) < USER_ROLES.index(role):",
        "        if False:",
        GUARD + "roles_are_enforced",
    ),
    directed(
        "GAP-11-password",
        "any password of a user is right",
        AUTH,
        "        is_right = await checking.result()\n",
        "        is_right = (await checking.result(), True)[1]\n",
        GUARD + "security_on_needs_credentials",
    ),
    directed(
        "users-verified",
        "a password that was right once is right for ever",
        AUTH,
        "if self._users.get(user.name) == user}",
        "if user is not None}",
        READ_AGAIN,
    ),
    directed(
        "users-bad-file",
        "a file of users that cannot be used lets nobody in any more",
        AUTH,
        'stay: %s", error)\n            return False',
        'stay: %s", error)\n            users = ()',
        READ_AGAIN,
    ),
    directed(
        "login-pause",
        "passwords are guessed as fast as a node can check them",
        AUTH,
        "        if left_s > 0:\n",
        "        if False:\n",
        PAUSES + "guesser_has_to_wait_and_right_users_do_not",
        PAUSES + "name_that_many_addresses_guess_has_a_short_pause",
    ),
    directed(
        "login-known",
        "guessers keep a user out who has logged in before",
        "raftstore/http/login_pauses.py",
        "        if (where, name) in self._known:\n",
        "        if False:\n",
        PAUSES + "name_that_many_addresses_guess_has_a_short_pause",
    ),
    directed(
        "login-queue",
        "logins wait without end behind those of guessers",
        AUTH,
        "        if len(self._under_way) >= VERIFICATIONS_WAITING_MAX:\n",
        "        if False:\n",
        PAUSES + "logins_that_wait_for_their_check_are_bounded",
    ),
    directed(
        "http-origin",
        "a web page of another site writes with the rights of whoever looks at it",
        ORIGINS,
        "        if is_own and (site is None or site in _OWN_SITES):\n",
        "        if True:\n",
        PAGES + "with_users_any_name_may_be_used_and_no_other_page",
    ),
    directed(
        "http-host",
        "a web page whose name was pointed to the node reads and writes there",
        ORIGINS,
        "                self._check_host(given)\n",
        "                pass\n",
        PAGES + "name_that_is_not_of_this_node_reads_nothing",
    ),
    directed(
        "http-media",
        "a form of an old browser writes",
        ORIGINS,
        "        raise unsupported_media(kind)\n",
        "        return\n",
        PAGES + "body_that_a_form_can_send_is_refused",
    ),
    directed(
        "GAP-11-readyz",
        "strangers are told which tables there are",
        "raftstore/http/ready.py",
        "    if guard.is_open:\n",
        "    if True:\n",
        PAGES + "strangers_learn_from_readiness_no_names_of_tables",
    ),
    directed(
        "GAP-11-node",
        "anybody may pretend that a node lives",
        AUTH,
        "            self._check_node(authorization)\n            return\n",
        "            return\n",
        GUARD + "heartbeat_needs_the_node_token",
    ),
    directed(
        "BLOG-26",
        "a dead node is shown with what it held",
        SHAPE,
        "    if node.state == DOWN:\n        return HostStoreLags({}, 0)\n",
        "",
        TESTS + "test_status_shape.py::test_blog_26_dead_host_is_empty",
    ),
    directed(
        "http-nan",
        "a number that JSON lacks becomes null",
        VALUES,
        '        return value if math.isfinite(value) else {"$double": _float(value)}',
        "        return value",
        EXACT + "numbers_that_json_lacks_have_names",
    ),
    directed(
        "http-tags",
        "a column whose name looks like a tag is read as a value of that type",
        VALUES,
        '    if is_plain and not (len(value) == 1 and next(iter(value)).startswith("$")):',
        "    if is_plain:",
        EXACT + "value_that_was_stored_is_exact_when_read_from_json",
    ),
    directed(
        "http-many-states",
        "the position of many rows is that of the last answer",
        ROWS,
        "states = {(result.partition, result.node, result.applied_seq): result for result in",
        "states = {(result.partition,): result for result in",
        ROW_TESTS + "position_of_many_rows_has_every_state_that_they_were_read_from",
    ),
)
