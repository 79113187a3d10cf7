"""Bugs of the client, which worlds see that it writes in: S4, S5.6, S12."""

from __future__ import annotations

from jepsen_like.planted.bug import PlantedBug, by_tests, in_client_worlds
from jepsen_like.planted.source_patch import Edit

PUBLISHING = "raftstore/client/writes/publishing.py"

CLIENT_BUGS: tuple[PlantedBug, ...] = (
    in_client_worlds(
        "S4.5",
        "rows-in-doubt-leave-again",
        "Rows of a record in doubt leave again in another one when one of their callers ends.",
        Edit(
            "raftstore/client/writes/row_writes.py",
            "if others and not record.running.state.is_certainly_not_applied:",
            "if False:",
        ),
        Edit(
            "raftstore/client/writes/row_writes.py",
            "if is_certain and result.retriable and not self._sender.is_closed:",
            "if result.retriable and not self._sender.is_closed:",
        ),
    ),
    in_client_worlds(
        "S4.5",
        "retry-under-a-new-guid",
        "The client retries a write under a new GUID.",
        Edit(
            "raftstore/client/writes/publisher.py",
            "guid=running.state.guid,",
            "guid=running.state.guid[:15] + bytes([(running.state.guid[15] + attempt) % 256]),",
        ),
    ),
    in_client_worlds(
        "S5.6",
        "doubt-forgotten",
        "A client forgets that an earlier attempt is in doubt when a later one is refused.",
        Edit(
            PUBLISHING,
            "        self._doubt = ConnectionInDoubtError(reason)  # S5.6: sent, and no answer\n",
            "",
        ),
    ),
    in_client_worlds(
        "S5.6",
        "broken-connection-taken-for-a-refusal",
        "What was under way on a connection that ended counts as never sent.",
        Edit(
            PUBLISHING,
            'self._leave_in_doubt(f"the connection to {node_name(node)} was lost ({reason})")',
            "self._outstanding = None",
        ),
    ),
    in_client_worlds(
        "S5.6",
        "deadline-taken-for-a-refusal",
        "An attempt that is not answered before the deadline counts as refused.",
        Edit(
            PUBLISHING,
            "if self._outstanding is not None and self._doubt is None:",
            "if False:",
        ),
    ),
    by_tests(
        "S12",
        "late-refusal-believed",
        "A late refusal of an earlier attempt is taken for the newest one's.",
        Edit(PUBLISHING, "if reject.attempt != outstanding.attempt:", "if False:"),
        tests=(
            "tests/unit/client/test_publishing.py::"
            "test_publish_ignores_a_late_refusal_of_an_earlier_attempt",
        ),
        why="a doubled refusal must come in the last moments of a write that is stored meanwhile",
    ),
    by_tests(
        "S4",
        "unknown-code-called-not-applied",
        "An error that this version does not know is called not applied.",
        Edit(
            "raftstore/client/requests/outcomes.py",
            "error: RequestError = ConnectionInDoubtError(",
            "error: RequestError = RequestError(",
        ),
        tests=("tests/unit/client/test_outcomes.py::test_unknown_code_is_unknown_and_final",),
        why="a first refusal of unknown outcome is rare, and what it refuses is mostly lost",
    ),
)
