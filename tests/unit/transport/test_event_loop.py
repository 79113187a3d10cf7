"""Which event loop runs raftstore's own threads."""

from __future__ import annotations

import asyncio
import sys

import pytest

from raftstore.client.blocking.background_loop import BackgroundLoop
from raftstore.client.settings import ClientSettings
from raftstore.config import EVENT_LOOPS
from raftstore.errors import ConfigError
from raftstore.transport.event_loop import another_like, new_event_loop


def kind_of(loop: asyncio.AbstractEventLoop) -> str:
    """The package that the loop comes from."""
    loop.close()
    return type(loop).__module__.partition(".")[0]


def test_named_loop_is_made_and_auto_is_uvloop() -> None:
    """uvloop is a dependency, so it is what nodes run on."""
    assert [kind_of(new_event_loop(name)) for name in EVENT_LOOPS] == [
        "uvloop",
        "asyncio",
        "uvloop",
    ]


def test_asyncio_is_the_fallback_where_uvloop_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it was named nothing is chosen in silence."""
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert kind_of(new_event_loop("auto")) == "asyncio"
    with pytest.raises(ConfigError, match="install uvloop, or set event_loop to asyncio"):
        new_event_loop("uvloop")


@pytest.mark.parametrize("name", ["asyncio", "uvloop"])
def test_other_threads_get_the_same_kind(name: str) -> None:
    """Heartbeats run on the kind of loop that the settings chose for the main loop."""
    loop = new_event_loop(name)
    assert kind_of(another_like(loop)) == name
    loop.close()


def test_blocking_client_runs_on_the_loop_of_its_settings() -> None:
    """A typing error in the name is reported with the names that there are."""

    async def running() -> str:
        return type(asyncio.get_running_loop()).__module__.partition(".")[0]

    for name in ("asyncio", "uvloop"):
        loop = BackgroundLoop("test loop", ClientSettings(event_loop=name).event_loop)
        assert loop.call(running()) == name
        loop.stop()
    with pytest.raises(ConfigError, match="use one of auto, asyncio, uvloop"):
        ClientSettings(event_loop="uv")
