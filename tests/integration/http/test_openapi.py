"""The OpenAPI document says what is served, and what is served keeps to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from raftstore.http.app import ROUTES
from raftstore.http.openapi import ERROR_TEXTS, document, parameters
from raftstore.http.roles import Role
from tests.integration.http.fuzz_world import bridged_app

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
EXAMPLES = int(os.environ.get("RAFTSTORE_FUZZ_EXAMPLES", "10"))
"""Per operation; ``make fuzz`` asks for more."""
NOT_CHECKED = [
    schemathesis.checks.not_a_server_error,  # 503 and 504 are answers here, 500 is checked below
    schemathesis.checks.positive_data_acceptance,  # bounds may contradict each other
    schemathesis.checks.ignored_auth,  # this node has no users
]
ANSWER_TIMEOUT_S = 90
"""A request may ask for an answer within a minute, and have to wait for it."""
DEEP: list[Any] = []
for _ in range(480):
    DEEP = [DEEP]
EXTREMES = st.sampled_from((None, None, DEEP, {"a": DEEP}, {"$double": 10**400}, 10**400, "1e400"))
"""What no document describes, in place of values that it does."""
OPERATIONS = [(route.method, route.path) for route in ROUTES]


@pytest.fixture(scope="module")
def app() -> Iterator[Any]:
    """The application on fake nodes."""
    with bridged_app() as bridged:
        yield bridged


def test_every_route_is_in_the_document_once() -> None:
    """No operation is forgotten, and each has its own id."""
    paths = document(ROUTES)["paths"]
    operations = [operation for methods in paths.values() for operation in methods.values()]
    assert len(operations) == len(ROUTES)
    assert len({operation["operationId"] for operation in operations}) == len(ROUTES)


def test_every_operation_says_whose_credentials_it_takes() -> None:
    """Generated clients send what they were given; probes need nothing."""
    found = document(ROUTES)
    schemes = set(found["components"]["securitySchemes"])
    for route in ROUTES:
        shown = found["paths"][route.path.replace("{key:key}", "{key}")][route.method.lower()]
        asked = [name for each in shown.get("security", []) for name in each]
        assert set(asked) <= schemes
        assert asked == {None: [], Role.NODE: ["node"]}.get(route.role, ["user", "token"])


def test_every_parameter_and_field_is_described() -> None:
    """A name alone does not say what it does."""
    for route in ROUTES:
        for parameter in parameters(route):
            assert parameter["description"], (route.path, parameter["name"])


def test_every_status_of_the_table_has_a_text() -> None:
    """Every status that a route may answer has a text."""
    assert {status for route in ROUTES for status in route.errors} <= set(ERROR_TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_openapi_is_fuzzed(app: Any, method: str, path: str) -> None:
    """Given requests that the document allows, and others, each answer is one that it names."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    shown = path.replace("{key:key}", "{key}")
    operation = schema[shown][method]
    modes = schemathesis.GenerationMode
    case_of = st.one_of(
        operation.as_strategy(generation_mode=modes.POSITIVE),
        operation.as_strategy(generation_mode=modes.NEGATIVE),
    )

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=EXAMPLES <= 10,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=case_of, table=st.sampled_from((None, "t", "doubles")), extreme=EXTREMES)
    def fuzz(case: Any, *, table: str | None, extreme: Any) -> None:
        if table is not None and "table" in (case.path_parameters or {}):
            case.path_parameters["table"] = table  # else most requests are of unknown tables
        has_extreme = extreme is not None and isinstance(case.body, dict)
        if has_extreme:
            case.body = {"keys": [extreme]} if "mget" in path else {"v": extreme, "start": extreme}
        response = case.call(timeout=ANSWER_TIMEOUT_S)
        assert response.status_code != 500, response.text
        if not has_extreme:
            case.validate_response(response, excluded_checks=NOT_CHECKED)

    fuzz()
