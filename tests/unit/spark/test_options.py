"""Options of the sink: every spelling, every refusal."""

from dataclasses import fields
from pathlib import Path

import pytest

from raftstore.errors import ConfigError
from raftstore.spark.options import OPTION_NAMES, SinkOptions, parse_options
from raftstore.spark.upsert import upsert

BASE = {"bootstrap.servers": "n1:4481,n2:4481", "table": "orders"}


def test_options_have_documented_defaults_when_only_the_required_are_given():
    """Servers and table are enough for a table that exists."""
    assert parse_options(BASE) == SinkOptions(bootstrap_servers="n1:4481,n2:4481", table="orders")


def test_options_are_read_in_any_spelling_when_spark_lowers_their_names():
    """camelCase, lower case and snake_case name the same option."""
    for name in ("maxBatchRows", "maxbatchrows", "max_batch_rows"):
        assert parse_options(BASE | {name: "7"}).max_batch_rows == 7


def test_options_take_the_table_from_the_path_when_it_is_named_in_save():
    """save("orders") arrives as the option path."""
    given = {"bootstrap.servers": "n1:4481", "path": "orders"}
    assert parse_options(given).table == "orders"


def test_options_accept_what_spark_adds_when_a_stream_starts():
    """A checkpoint location and a query name are none of ours and no error."""
    parse_options(BASE | {"checkpointlocation": "/x", "queryname": "q", "outputmode": "append"})


def test_options_split_the_key_when_it_has_several_columns():
    """The key is a comma list, blanks around names do not matter."""
    assert parse_options(BASE | {"key": "tenant, order_id"}).key == ("tenant", "order_id")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bootstrap.servers": " "}, "bootstrap.servers is not set"),
        ({"table": ""}, "no table is named"),
        ({"path": "other"}, "two tables are named, 'orders' as option and 'other'"),
        ({"key": "a,,b"}, "key is 'a,,b': list each key column once"),
        ({"key": "a,a"}, "key is 'a,a': list each key column once"),
        ({"partitions": "0"}, "partitions is '0': give a whole number from 1 to 4096"),
        ({"maxBatchRows": "many"}, "maxBatchRows is 'many'"),
        ({"maxBatchBytes": "99999999"}, "maxBatchBytes is '99999999'"),
        ({"createTable": "yes"}, "createTable is 'yes': give true or false"),
        ({"operation": "insert"}, "operation is 'insert': give upsert or delete"),
        ({"maxbatchrow": "1"}, "no option 'maxbatchrow': did you mean 'maxBatchRows'?"),
        ({"zzz": "1"}, "no option 'zzz': there are bootstrap.servers, table,"),
    ],
)
def test_options_are_refused_with_value_and_remedy_when_they_cannot_be_meant(changes, said):
    """Each bad option gives one sentence with a bracketed class, its name and its value."""
    with pytest.raises(ConfigError) as failure:
        parse_options(BASE | changes)

    assert str(failure.value).startswith("[RAFTSTORE_OPTION_")
    assert said in str(failure.value)


def test_options_are_documented_with_their_defaults_when_they_exist():
    """Every option has its line in docs/spark.md, with the default it really has."""
    text = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
    lines = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    documented = {line[1].strip(" `"): line[2].strip(" `") for line in lines}

    assert sorted(documented) == sorted(OPTION_NAMES)
    for field in fields(SinkOptions):
        name = field.name.title().replace("_", "")
        name = name[0].lower() + name[1:]
        if isinstance(field.default, int):
            assert documented[name] == str(field.default).lower()


class Batch:
    """A DataFrame that only remembers how it was written."""

    def __init__(self):
        self.calls = []

    @property
    def write(self):
        return self

    def __getattr__(self, name):
        def call(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            return self

        return call


def test_upsert_writes_the_batch_through_the_format_when_called_by_spark():
    """Keyword arguments become the format's options; lists become comma lists."""
    batch = Batch()

    upsert("orders", bootstrap_servers=["a:1", "b:2"], key=("x", "y"), create_table=False)(batch, 3)

    assert batch.calls == [
        ("format", ("raftstore",), {}),
        (
            "options",
            (),
            {
                "bootstrap.servers": "a:1,b:2",
                "table": "orders",
                "key": "x,y",
                "createTable": "false",
            },
        ),
        ("mode", ("append",), {}),
        ("save", (), {}),
    ]


def test_upsert_refuses_bad_options_when_the_query_is_written():
    """A mistake is told at once, not when the first micro-batch arrives."""
    with pytest.raises(ConfigError, match="no option 'max_batch_row': did you mean"):
        upsert("orders", bootstrap_servers="a:1", max_batch_row=5)
    with pytest.raises(ConfigError, match="partitions"):
        upsert("orders", bootstrap_servers="a:1", partitions=-1)
