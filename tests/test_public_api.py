"""The names users build on: pinned here, so that removing or renaming one is a decision."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import raftstore
from raftstore import aio, errors

NAMES = [
    "BYTES",
    "Codec",
    "CommandContext",
    "JSON",
    "MemoryMachine",
    "QueryContext",
    "State",
    "StateMachine",
    "StateView",
    "codec",
    "BatchResult",
    "BatchTicket",
    "BulkResult",
    "BulkWriter",
    "Client",
    "ClientSettings",
    "Audit",
    "AuditCounts",
    "AuditFinding",
    "ClusterEvents",
    "ClusterMember",
    "ClusterStatus",
    "CountResult",
    "GetResult",
    "KeyQueryMetadata",
    "LagInfo",
    "Level",
    "LocalCluster",
    "NodeMetadata",
    "NodeStatus",
    "Outcome",
    "PageResult",
    "Position",
    "ReadOnlyStore",
    "ReplicaChange",
    "ReplicaComparison",
    "ReplicaDigest",
    "ServedPart",
    "StagedParts",
    "Stager",
    "Table",
    "ChannelSet",
    "CommandResult",
    "QueryResult",
    "TableDigest",
    "TableInfo",
    "TableWriters",
    "WriteAck",
    "WriteFate",
    "WriteSummary",
    "__version__",
    "aio",
    "connect",
    "errors",
]
EXCEPTIONS = [
    name
    for name, member in vars(errors).items()
    if isinstance(member, type) and issubclass(member, errors.RaftstoreError)
]
TABLE_METHODS = {
    "definition",
    "put",
    "put_many",
    "delete",
    "get",
    "get_result",
    "get_many",
    "get_many_results",
    "page",
    "count",
    "scan",
    "begin_batch",
    "stager",
    "commit_batch",
    "abort_batch",
    "write_batch",
    "writers",
}
CLIENT_METHODS = {
    "compare_replicas",
    "table",
    "create_table",
    "drop_table",
    "edit_table",
    "query_metadata_for_key",
    "standby_metadata_for_key",
    "all_metadata",
    "all_local_store_partition_lags",
    "store",
    "on_change",
    "count",
    "fate",
    "events",
    "cluster_status",
    "cluster_view",
    "adopt_writer",
    "remove_writer",
    "close",
}
LINK_OWNER = {
    "on_publish_answer",
    "on_link_open",
    "on_link_lost",
    "on_link_dismissed",
    "on_query_link_lost",
}
"""What connections call, not users."""


def public_methods(cls: type) -> set[str]:
    """Methods for users: neither private ones nor those that connections call."""
    return {
        name
        for name, member in inspect.getmembers(cls)
        if not name.startswith("_") and name not in LINK_OWNER and callable(member)
    }


def test_package_exports_exactly_these_names() -> None:
    """A name added or lost here is a change that users see."""
    assert sorted(raftstore.__all__) == sorted([*NAMES, *EXCEPTIONS])
    for name in NAMES:
        assert getattr(raftstore, name) is not None


def test_every_exception_is_a_name_of_the_package() -> None:
    """``except raftstore.ConflictError`` is found wrong when it is written, or is right."""
    assert {"ConflictError", "RaftstoreError", "ArgumentError"} <= set(EXCEPTIONS)
    for name in EXCEPTIONS:
        assert getattr(raftstore, name) is getattr(errors, name)


def test_package_shows_its_names_and_nothing_else() -> None:
    """Completion offers exactly the public names of the package."""
    assert dir(raftstore) == sorted([*NAMES, *EXCEPTIONS, "backup", "spark"])


def test_unknown_name_is_an_attribute_error() -> None:
    """Lazy names must not break ``hasattr``, completion and typos."""
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        raftstore.conect  # noqa: B018 - the access is the test


@pytest.mark.parametrize(
    ("blocking", "asyncio_class", "promised"),
    [
        (raftstore.Client, aio.AsyncClient, CLIENT_METHODS),
        (raftstore.Table, aio.AsyncTable, TABLE_METHODS),
        (raftstore.BulkWriter, aio.AsyncBulkWriter, set()),
        (raftstore.Stager, aio.AsyncStager, {"add", "flush", "close"}),
        (raftstore.ReadOnlyStore, aio.AsyncReadOnlyStore, {"get", "range", "prefix"}),
    ],
)
def test_both_clients_have_the_same_names(
    blocking: type, asyncio_class: type, promised: set[str]
) -> None:
    """Code moves between blocking and asyncio by adding ``await``."""
    # How one is made differs by nature: raftstore.connect and await raftstore.aio.connect. A store
    # is checked when the client makes it.
    made = {"connect", "check"}
    assert public_methods(blocking) - made == public_methods(asyncio_class) - made
    assert promised <= public_methods(blocking)


@pytest.mark.slow
def test_library_imports_without_spark_and_without_the_command_line() -> None:
    """``pip install raftstore`` has no Spark, and a program needs neither click nor a node."""
    program = (
        "import sys, raftstore; "
        "print(sorted({'pyspark', 'pandas', 'click', 'plyvel', 'pysyncobj'} & set(sys.modules)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"


GOOD = """
import asyncio
import raftstore

def main(client: raftstore.Client) -> None:
    orders: raftstore.Table = client.table("orders")
    try:
        ack = orders.put({"id": 1}, if_absent=True)
        orders.get(1, level="bounded", prefer="nearest", at_least=ack.position)
    except raftstore.ConflictError as error:
        print(error.position, error.outcome is raftstore.Outcome.NOT_APPLIED)
    client.edit_table("orders", max_lag=5)
    client.count("orders", level=raftstore.Level.ANY, prefix=1)
    with raftstore.LocalCluster(nodes=3) as cluster:
        print(cluster.endpoints)

async def later() -> None:
    async with raftstore.aio.connect("127.0.0.1:4481") as client:
        await client.table("orders").get(1, level="any")
    async with await raftstore.aio.connect("127.0.0.1:4481", timeout=2.0) as client:
        await client.close()

main(raftstore.connect("127.0.0.1:4481"))
asyncio.run(later())
"""
BAD = """
import raftstore

client = raftstore.conect("127.0.0.1:4481")  # attr-defined
client = raftstore.connect("127.0.0.1:4481")
orders = client.table("orders")
try:
    orders.put({"id": 1}, if_absnt=True)  # call-arg
    orders.get(1, level="linearisable")  # typeddict-item
    orders.get(1, prefer="closest")  # typeddict-item
    orders.get(1, maxlag=1)  # call-arg
    client.edit_table("orders", max_lg=5)  # call-arg
    client.create_table("t", key="id", durability="fsnyc")  # arg-type
    orders.gett(1)  # attr-defined
except raftstore.ConflictErorr:  # attr-defined
    print(raftstore.importlib)  # attr-defined
"""


@pytest.mark.slow
def test_type_checker_finds_misspelt_names_and_nothing_in_right_programs(tmp_path: Path) -> None:
    """``mypy --strict`` over a program of a user: what fails at run time fails there."""
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text(BAD)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "good.py", "bad.py"],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(Path(raftstore.__file__).parent.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r"^(\w+).py:(\d+): error: .*\[([a-z-]+)\]$", checked.stdout, re.MULTILINE)
    wrong = [line for line in BAD.splitlines() if "#" in line]
    assert [(name, BAD.splitlines()[int(line) - 1]) for name, line, _ in found] == [
        ("bad", line) for line in wrong
    ], checked.stdout
