"""The names users build on: pinned here, so that removing or renaming one is a decision."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import raftstore
from raftstore import aio

NAMES = [
    "BatchResult",
    "BatchTicket",
    "BulkResult",
    "BulkWriter",
    "Client",
    "ClientSettings",
    "ClusterEvents",
    "ClusterStatus",
    "CountResult",
    "GetResult",
    "KeyQueryMetadata",
    "LagInfo",
    "Level",
    "NodeMetadata",
    "NodeStatus",
    "Outcome",
    "PageResult",
    "Position",
    "ReadOnlyStore",
    "ReplicaDigest",
    "ServedPart",
    "StagedParts",
    "Stager",
    "Table",
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
LINK_OWNER = {"on_publish_answer", "on_link_open", "on_link_lost", "on_query_link_lost"}
"""What connections call, not users."""


def public_methods(cls: type) -> set[str]:
    """What a user calls: not what is private, nor what connections call."""
    return {
        name
        for name, member in inspect.getmembers(cls)
        if not name.startswith("_") and name not in LINK_OWNER and callable(member)
    }


def test_package_exports_exactly_these_names() -> None:
    """A name added or lost here is a change that users see."""
    assert sorted(raftstore.__all__) == NAMES
    for name in NAMES:
        assert getattr(raftstore, name) is not None


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


@pytest.mark.parametrize(
    ("blocking", "asyncio_class"),
    [
        (raftstore.Client, aio.AsyncClient),
        (raftstore.Table, aio.AsyncTable),
        (raftstore.ReadOnlyStore, aio.AsyncReadOnlyStore),
    ],
)
def test_both_clients_take_the_same_arguments(blocking: type, asyncio_class: type) -> None:
    """The same name takes the same arguments, with the same defaults."""
    for name in sorted(public_methods(blocking) - {"connect", "table"}):
        ours = inspect.signature(getattr(blocking, name)).parameters
        theirs = inspect.signature(getattr(asyncio_class, name)).parameters
        assert [(p.name, p.kind, p.default) for p in ours.values()] == [
            (p.name, p.kind, p.default) for p in theirs.values()
        ], name


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
