"""Parameters and bodies of requests: their names, types and meanings, said once for everything.

Durations are text with a unit, as everywhere ("500ms", "2s"). What is unknown, mistyped or out of
range is refused with its name before any node is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, Final, TypeVar, cast

import msgspec
from msgspec import Meta

from raftstore.client.reads.read_spec import ReadOptions
from raftstore.errors import SchemaError
from raftstore.http.errors import bad_request
from raftstore.http.wrong_values import unknown_name, wrong_value
from raftstore.node.units import parse_duration_ms
from raftstore.types import LevelName, PreferName

T = TypeVar("T", bound=msgspec.Struct)
Count63 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Rows = Annotated[int, Meta(ge=1, le=10_000)]
Duration = Annotated[
    str,
    Meta(
        description='With a unit: "500ms", "2s".',
        examples=["2s"],
        pattern=r"^[0-9]{1,9}(\.[0-9]{1,3})?(ms|s|m|h)$",
    ),
]
KEYS_MAX: Final = 10_000
_NONE_WORDS: Final = ("null", "none", "")
"""Words that msgspec reads as None unless a text is wanted, as if the parameter was not given."""


class Timed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of every request: how long it may take."""

    timeout: (
        Annotated[
            Duration,
            Meta(description="The whole time of the request; default query.routing_timeout."),
        ]
        | None
    ) = None


class Writing(Timed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of every write: how long its row lives."""

    ttl: (
        Annotated[
            Duration,
            Meta(description="The row lives so long; 0s: for ever. Default: the table's ttl."),
        ]
        | None
    ) = None

    @property
    def ttl_s(self) -> float | None:
        """The same in seconds."""
        return None if self.ttl is None else duration_ms("ttl", self.ttl) / 1000


class Freshness(Timed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How fresh a read must be; see docs/queries.md."""

    level: (
        Annotated[
            LevelName, Meta(description="Default linearizable; bounded when a bound is given.")
        ]
        | None
    ) = None
    max_lag: (
        Annotated[
            Count63,
            Meta(
                description="Rows the replica may be behind what it knows to be committed (level "
                "bounded). 0: a write acknowledged a moment ago may be missing."
            ),
        ]
        | None
    ) = None
    max_staleness: (
        Annotated[Duration, Meta(description="Time the replica may be behind (level bounded).")]
        | None
    ) = None
    max_batches_behind: (
        Annotated[
            Count63, Meta(description="Micro-batches the replica may be behind (level bounded).")
        ]
        | None
    ) = None
    at_least: (
        Annotated[str, Meta(description="A position the replica must have applied; waits for it.")]
        | None
    ) = None
    replica: Annotated[str, Meta(description="Ask this node only, by name; for checks.")] | None = (
        None
    )
    prefer: (
        Annotated[PreferName, Meta(description="Which replica first; default query.prefer.")] | None
    ) = None
    hedge: (
        Annotated[
            bool,
            Meta(
                description="true: ask two replicas at once; false: never a second while one is "
                "alive; default: a second after query.hedge of silence."
            ),
        ]
        | None
    ) = None

    def options(self, timeout_s: float) -> ReadOptions:
        """Return these parameters as the client's options of a read."""
        options: dict[str, Any] = {"timeout": timeout_s}
        for name in (
            "level",
            "max_lag",
            "max_batches_behind",
            "at_least",
            "replica",
            "prefer",
            "hedge",
        ):
            if (value := getattr(self, name)) is not None:
                options[name] = value
        if self.max_staleness is not None:
            options["max_staleness"] = duration_ms("max_staleness", self.max_staleness) / 1000
        return cast(ReadOptions, options)


class Reading(Freshness, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A read of rows: how fresh it must be, and what of them."""

    columns: (
        Annotated[str, Meta(description="Names of the columns to return, separated by commas.")]
        | None
    ) = None

    def options(self, timeout_s: float) -> ReadOptions:
        """Return these parameters as the client's options of a read."""
        options = super().options(timeout_s)
        if self.columns is not None:
            options["columns"] = [name.strip() for name in self.columns.split(",")]
        return options


class MultiGet(Reading, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of :mget."""

    keys: Annotated[
        list[Any],
        Meta(description="Keys: values, lists of values, or objects.", max_length=KEYS_MAX),
    ]


class ScanBody(Reading, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of POST :scan; start <= key < stop, in key order over all partitions."""

    start: Annotated[Any, Meta(description="First key, or a list of its first columns.")] = None
    stop: Annotated[Any, Meta(description="End of the range, not included.")] = None
    prefix: Annotated[
        Any, Meta(description="Text that the first column begins with, or a list of columns.")
    ] = None
    token: (
        Annotated[str, Meta(description="The next of the page before; same range and columns.")]
        | None
    ) = None
    limit: Annotated[Rows, Meta(description="Rows of one page.")] = 1_000
    keys_only: Annotated[bool, Meta(description="Return the key columns alone.")] = False


class RangeParams(Reading, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of GET :count; keys are text as in paths, several columns a JSON list."""

    start: Annotated[str, Meta(description="First key, or a JSON list.")] | None = None
    stop: Annotated[str, Meta(description="End of the range, not included.")] | None = None
    prefix: (
        Annotated[str, Meta(description="Text that the first column begins with, or a JSON list.")]
        | None
    ) = None


class ScanParams(RangeParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of GET :scan."""

    token: (
        Annotated[str, Meta(description="The next of the page before; same range and columns.")]
        | None
    ) = None
    limit: Annotated[Rows, Meta(description="Rows of one page.")] = 1_000
    keys_only: Annotated[bool, Meta(description="Return the key columns alone.")] = False


class QueryBody(Timed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /query (BLOG-23): a table with key, keys, prefix or range; or one statement."""

    table: str | None = None
    key: Any = msgspec.UNSET
    keys: Annotated[list[Any], Meta(max_length=KEYS_MAX)] | None = None
    prefix: Any = msgspec.UNSET
    range: KeyRange | None = None
    limit: Annotated[Rows | msgspec.UnsetType, Meta(description="Default 1000.")] = msgspec.UNSET
    token: str | None = None
    properties: dict[str, Any] = {}
    ksql: (
        Annotated[str, Meta(description="Exactly: SELECT * FROM table WHERE ROWKEY='key';")] | None
    ) = None
    streamsProperties: dict[str, Any] = {}  # noqa: N815 - ksqlDB's name


class KeyRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """start <= key < stop; either may be left out."""

    start: Any = None
    stop: Any = None


LAG_ALIASES: Final = (
    "max_allowed_lag",
    "acceptable.offset.lag",
    "ksql.query.pull.max.allowed.offset.lag",
)
"""Names of max_lag in the sources (BLOG-21, KLIP-15)."""

STATEMENT: Final = "SELECT * FROM table WHERE ROWKEY='key';"
_STATEMENT: Final = re.compile(
    r"\s*SELECT\s+\*\s+FROM\s+([A-Za-z0-9_.-]+)\s+WHERE\s+ROWKEY\s*=\s*'((?:[^']|'')*)'\s*;?\s*",
    re.IGNORECASE,
)


def parse_statement(ksql: str) -> tuple[str, str]:
    """Return table and key of the one statement that is understood."""
    found = _STATEMENT.fullmatch(ksql)
    if found is None:
        raise SchemaError(
            f"the statement {ksql!r:.80} is not understood; the one form is {STATEMENT}"
        )
    return found[1], found[2].replace("''", "'")


def reading_of(properties: dict[str, Any], timeout: str | None) -> Reading:
    """Return the bounds that /query's properties ask for, the sources' names included."""
    wanted: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    if "timeout" in properties:
        raise bad_request("timeout is no property; give it beside them")
    for name, value in properties.items():
        own = "max_lag" if name in LAG_ALIASES else name
        if own in wanted:
            raise bad_request(f"the property {name!r} says {own} a second time; give one of them")
        wanted[own] = value
    return parse_parameters(Reading, wanted.items())


def parse_parameters(kind: type[T], given: Iterable[tuple[str, Any]]) -> T:
    """Read parameters by their declared types; each one at most once."""
    fields = _fields(kind)
    values: dict[str, Any] = {}
    for name, raw in given:
        field = fields.get(name)
        if field is None:
            raise unknown_name("parameter", name, fields)
        if name in values:
            raise bad_request(f"the parameter {name!r} is given twice; give it once")
        if isinstance(raw, float) and name in ("max_lag", "max_batches_behind"):
            raise wrong_value("parameter", name, raw, field.type)
        values[name] = _parameter(name, raw, field.type)
    return kind(**values)


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """Return the fields of a struct by name; msgspec evaluates the annotations at each call.

    Kept for good: there are as many as routes.
    """
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _parameter(name: str, raw: Any, declared: Any) -> Any:
    is_text = isinstance(raw, str)
    if raw == "" and _is_flag(declared):
        return True
    if raw != "":
        try:
            return msgspec.convert(raw, declared)  # text is text, whatever the word
        except msgspec.ValidationError as error:
            if not is_text:
                raise wrong_value("parameter", name, raw, declared) from error
    if raw.lower() in _NONE_WORDS:
        raise bad_request(f"the parameter {name!r} is {raw!r}; give a value or leave it out")
    try:
        return msgspec.convert(raw, declared, strict=False)
    except msgspec.ValidationError as error:
        raise wrong_value("parameter", name, raw, declared) from error


def _is_flag(declared: Any) -> bool:
    """Whether the name alone says true: "?verbose"."""
    found = msgspec.inspect.type_info(declared)
    while isinstance(found, msgspec.inspect.Metadata):
        found = found.type
    return isinstance(found, msgspec.inspect.BoolType)


def duration_ms(name: str, text: str) -> int:
    """Read a duration; a bad one is refused by its name."""
    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise bad_request(f"the parameter {name!r}: {error}") from error
