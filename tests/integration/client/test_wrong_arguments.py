"""Every argument of every public method, given what it cannot be: refused in raftstore's own
words."""

from __future__ import annotations

import asyncio
import inspect
import linecache
import warnings
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

import raftstore
from raftstore import aio
from raftstore.aio import AsyncClient
from raftstore.client.rebalancing import RebalanceProposal
from raftstore.errors import ArgumentError, RaftstoreError, SchemaError
from tests.integration.client.fake_cluster import FakeCluster
from tests.integration.client.play import QUICK, play
from tests.integration.client.test_admin import cluster_in_thread
from tests.integration.client.test_machines import sets


class Nothing:
    """Of no use for anything."""

    def __repr__(self) -> str:
        return "Nothing()"


WRONG: list[Any] = [5, -1, 2**70, "5s", "", b"\xff", True, float("nan"), None, Nothing()]
WRONG += [[], [Nothing()], ["x", 5], {}, {"x": Nothing()}, {5: 5}]
RIGHT: dict[str, Any] = {
    "row": {"id": 1},
    "rows": [{"id": 1}],
    "key": 1,
    "keys": [1, 2],
    "name": "t",
    "table": "t",
    "guid": "0" * 68,
    "partition": 0,
    "pairs": [],
    "writer": "w",
    "batch_id": 1,
    "replica": "n1",
    "channel": "t/0",
    "after": 0,
    "to_seq": 1,
    "rows_max": 10,
    "callback": print,
    "partition_id": 0,
    "task_attempt_id": 0,
    "parts": [],
    "batches": 1,
    "plan": RebalanceProposal(
        (), (), 0, 0, 0, 0.0, 1, is_rate_measured=False, staying=(), unknown=()
    ),
}
INNER = {"publish_rows", "change_pieces", "change_limit", "change_ends"}
"""For the Spark connector: what they take is encoded already."""
LINKS = {"on_publish_answer", "on_link_open", "on_link_lost", "on_query_link_lost", "connect"}
OPTIONS: dict[str, Any] = {
    "level": "any",
    "max_lag": 1,
    "max_staleness": 1.0,
    "max_batches_behind": 1,
    "at_least": None,
    "replica": None,
    "prefer": None,
    "hedge": None,
    "columns": None,
    "timeout": 0.03,
}


def methods(kind: type) -> list[str]:
    return [
        name
        for name, member in inspect.getmembers(kind, callable)
        if not name.startswith("_") and name not in INNER | LINKS
    ]


def cases(call: Callable[..., Any]) -> list[tuple[str, dict[str, Any]]]:
    """The name of an argument and all arguments, one of them wrong."""
    given, names = {}, []
    for name, parameter in inspect.signature(call).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            names += list(OPTIONS) if "TableEdits" not in str(parameter) else ["max_lag"]
            continue
        names.append(name)
        if parameter.default is inspect.Parameter.empty:
            given[name] = RIGHT.get(name)
    if call.__name__ in ("create_table", "drop_table"):
        given["name"] = "new"
    if call.__name__ == "create_table":
        given |= {"key": "id", "if_not_exists": True}
    given["timeout"] = 0.03
    return [(name, given | {name: wrong}) for name in dict.fromkeys(names) for wrong in WRONG]


async def finish(made: Any) -> None:
    """Do what a caller does with the result."""
    if isinstance(made, AsyncGenerator):
        async for _ in made:
            break
        await made.aclose()
    elif inspect.isawaitable(made):
        result = await made
        if hasattr(result, "close"):
            await result.close()


@pytest.mark.slow
def test_wrong_arguments_are_told_in_words_of_their_own() -> None:
    """Never a bare error of Python: one of raftstore that names the value, or none at all."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        await client.table("t").put({"id": 1})
        wrong: dict[str, str] = {}
        snapshot = await client.table("t").snapshot()
        for thing in (client.table("t"), client, client.channelset("c"), snapshot):
            kind = type(thing)
            for method in methods(kind):
                if method in ("close", "n", "vector", "position"):
                    continue
                call = getattr(thing, method)
                takes_timeout = "timeout" in str(inspect.signature(call)) or "Options" in str(
                    inspect.signature(call)
                )
                for name, given in cases(call):
                    if not takes_timeout:
                        given.pop("timeout", None)
                    try:
                        async with asyncio.timeout(0.1):
                            await finish(call(**given))
                    except (RaftstoreError, TimeoutError):  # the test's own patience
                        continue
                    except Exception as error:  # noqa: BLE001 - what is looked for
                        wrong[f"{kind.__name__}.{method}({name}={given.get(name)!r})"] = repr(error)
        assert not wrong, "\n".join(f"{call}: {error}" for call, error in wrong.items())

    play(test, QUICK)


ADDRESSES: list[Any] = [123, None, True, 1.5, Nothing(), b"n1:1", {"n1:1": 1}, [1], ["n1:1", None]]


@pytest.mark.parametrize("given", [{"endpoints": each} for each in ADDRESSES] + [
    {"endpoints": "n1:1", "settings": 5}, {"endpoints": "n1:1", "settings": {}},
])  # fmt: skip
def test_connect_names_what_is_no_address_or_no_settings(given: dict[str, Any]) -> None:
    """Both clients, before anything is tried."""
    (name, value) = given.popitem()
    given[name] = value
    text = f"{name}={value!r} are no "
    with pytest.raises(ArgumentError) as blocking:
        raftstore.connect(**given)

    async def run() -> None:
        await aio.connect(**given)

    with pytest.raises(ArgumentError) as in_asyncio:
        asyncio.run(run())
    assert text in str(blocking.value)
    assert str(blocking.value) == str(in_asyncio.value)


def test_snapshot_names_arguments_that_are_wrong() -> None:
    """A partition is counted from 0, and never from the end."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        del cluster
        snapshot: Any = await client.table("t").snapshot()
        assert "partition=-1 is no whole number from 0 to 0" in await told(snapshot.expiries(-1))
        assert "partition='0' is no whole" in await told(snapshot.pages("0"))
        assert "keys=5 is no encoded key" in await told(snapshot.rows_of(0, [5]))
        assert "keys=5 is no list" in await told(snapshot.get_many(5))
        assert "start='a' is no encoded key" in await told(snapshot.pages(0, start="a"))
        assert "parts=0 is no whole number" in await told(snapshot.cuts(0))
        with pytest.raises(ArgumentError, match="limit='5' is no number of rows"):
            snapshot.scan(limit="5")

    play(test)


async def told(made: Any) -> str:
    """The message of the error that a wrong call raises."""
    with pytest.raises(ArgumentError) as caught:
        await finish(made)
    return str(caught.value)


def test_wrong_arguments_name_the_value_and_the_remedy() -> None:
    """As somebody types them who has never seen the documentation."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        del cluster
        table: Any = client.table("t")
        nobody: Any = client
        assert "the row 5 is no map" in await told(table.put(5))
        assert "give a dict, as in {'id': 1}" in await told(table.put(5))
        assert "timeout='5s' is no number of seconds" in await told(table.get(1, timeout="5s"))
        assert "rows={'id': 1} is a single value" in await told(table.put_many({"id": 1}))
        assert "keys='abc' is a single value" in await told(table.get_many("abc"))
        assert "if_absent=1 is neither" in await told(table.put({"id": 1}, if_absent=1))
        assert "limit='5' is no number of rows" in await told(table.page(limit="5"))
        assert "5 is no ticket" in await told(table.commit_batch(5, []))
        assert "replicas='3' is no" in await told(nobody.create_table("n", key="id", replicas="3"))
        assert "is no schema; give one" in await told(nobody.create_table("n", key="id", schema=5))
        with pytest.raises(ArgumentError, match="name=5 is no text"):
            nobody.table(5)

    play(test)


@pytest.mark.parametrize(("replicas", "lost"), [(2, 0), (4, 1), (6, 2)])
def test_even_replicas_are_taken_with_a_warning(replicas: int, lost: int) -> None:
    """They survive what one fewer survives, and cost a copy."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        del cluster
        with pytest.warns(UserWarning, match=f"{replicas} .* loss of {lost} node"):
            await client.create_table("even", key="id", replicas=replicas)

    play(test)


def test_warning_of_even_replicas_names_the_line_of_the_caller() -> None:
    """The line to change is one of the caller's program, also where a task runs the call."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        del cluster
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            await client.create_table("awaited", key="id", replicas=2)
            await asyncio.create_task(client.create_table("task", key="id", replicas=2))
            await asyncio.gather(client.create_table("gathered", key="id", replicas=2))
        assert [line_of(each) for each in caught] == [
            'await client.create_table("awaited", key="id", replicas=2)',
            'await asyncio.create_task(client.create_table("task", key="id", replicas=2))',
            'await asyncio.gather(client.create_table("gathered", key="id", replicas=2))',
        ]

    play(test)


def test_blocking_client_warns_of_even_replicas_at_the_line_of_the_caller() -> None:
    """Another thread does the work, and the warning still names the line that asked for it."""
    with (
        cluster_in_thread() as cluster,
        raftstore.connect(cluster.endpoints, settings=QUICK) as client,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        client.create_table("even", key="id", replicas=4)
        client.create_table("odd", key="id", replicas=3)
    assert [line_of(each) for each in caught] == [
        'client.create_table("even", key="id", replicas=4)'
    ]


def line_of(warning: warnings.WarningMessage) -> str:
    """The line of this file at which the warning points."""
    assert warning.category is UserWarning
    assert warning.filename == __file__
    return linecache.getline(warning.filename, warning.lineno).strip()


@pytest.mark.parametrize("schema", [{"id": "long", "v": "string"}, "id bigint not null, v string"])
def test_schema_is_a_dict_or_a_text_as_well(schema: Any) -> None:
    """A schema may be a dict or a text: no Spark is needed to name columns and types."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.create_table("typed", key="id", schema=schema)
        assert '"type":"long"' in cluster.tables["typed"].schema_json
        with pytest.raises(SchemaError, match="column 'id'"):
            await client.table("typed").put({"id": "x", "v": "y"})
        with pytest.raises(SchemaError, match="'lnog' is unknown"):
            await client.create_table("wrong", key="id", schema="id lnog")

    play(test)
