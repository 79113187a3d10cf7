"""A body that does not come: nothing was begun, so nothing is in doubt (S4.1)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from raftstore.http import app as http_app
from tests.integration.client.fake_cluster import FakeCluster
from tests.integration.http.http_play import Http, play_http, scope_of


def test_write_whose_body_never_came_was_certainly_not_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """408, and the time that a body has is that of its request."""
    monkeypatch.setattr(http_app, "GRACE_S", 0.0)

    async def test(cluster: FakeCluster, http: Http) -> None:
        del cluster
        sent: list[dict[str, Any]] = []
        begun = [{"type": "http.request", "body": b"{", "more_body": True}]

        async def receive() -> dict[str, Any]:
            return begun.pop() if begun else await asyncio.Future()

        async def send(part: dict[str, Any]) -> None:
            sent.append(part)

        scope = scope_of("PUT", "/v1/tables/t/keys/1?timeout=50ms", {})
        await http.app(scope, receive, send)
        answer = json.loads(sent[1]["body"])
        assert (sent[0]["status"], answer["error_code"]) == (408, "timeout")
        assert answer["outcome"] == "not_applied"
        assert (b"connection", b"close") in [
            (name.lower(), value) for name, value in sent[0]["headers"]
        ]
        assert (await http.ask("GET", "/v1/tables/t/keys/1")).status == 404

    play_http(test)
