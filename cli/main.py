"""``raftstore``: the command line. Each command is a module; this one joins them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from raftstore.cli.common import DEFAULT_ENDPOINTS, Context
from raftstore.cli.errors import run_guarded
from raftstore.cli.lazy import LazyGroup
from raftstore.node.units import parse_duration_ms
from raftstore.version import VERSION

COMMANDS = {
    "demo": "raftstore.cli.demo:demo",
    "dev": "raftstore.cli.dev:dev",
    "node": "raftstore.cli.node:node",
    "status": "raftstore.cli.status:status",
    "table": "raftstore.cli.table:table",
    "machine": "raftstore.cli.machine:machine",
    "writer": "raftstore.cli.writer:writer",
    "changes": "raftstore.cli.changes:changes",
    "put": "raftstore.cli.data:put",
    "get": "raftstore.cli.data:get",
    "mget": "raftstore.cli.data:mget",
    "scan": "raftstore.cli.data:scan",
    "del": "raftstore.cli.data:delete",
    "count": "raftstore.cli.data:count",
    "export": "raftstore.cli.row_files:export_rows",
    "import": "raftstore.cli.row_files:import_rows",
    "backup": "raftstore.cli.backup:backups",
    "fate": "raftstore.cli.data:fate",
    "explain": "raftstore.cli.explain:explain",
    "lag": "raftstore.cli.lag:lag",
    "events": "raftstore.cli.events:events",
    "check": "raftstore.cli.check:check",
    "audit": "raftstore.cli.audit:audit",
    "cluster": "raftstore.cli.cluster:cluster",
    "channel": "raftstore.cli.channel:channel",
    "rebalance": "raftstore.cli.rebalance:rebalance",
    "log": "raftstore.cli.log:log",
    "inspect": "raftstore.cli.inspect:inspect",
    "simulate": "raftstore.cli.simulate:simulate",
    "chaos": "raftstore.cli.chaos:chaos",
    "config": "raftstore.cli.settings:config",
    "user": "raftstore.cli.user:user",
}

VALUE_OPTIONS = ("-o", "--output", "--endpoints", "--timeout")
"""Global options with a value; no command has an option of its own with one of these names."""
SHAPES = ("table", "json", "yaml")
WITH_VALUE = (*(f"{option}=" for option in VALUE_OPTIONS), *(f"-o{shape}" for shape in SHAPES))
"""How an argument begins that has its value with it."""


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 ok, 1 no such row, 2 usage, 3 outcome unknown, 4 unavailable, "
    "5 timeout before sending, 7 a verification found a difference, 8 nothing could "
    "be compared, 9 refused, 70 storage failure, 78 bad configuration, 130 stopped by Ctrl-C.",
)
@click.version_option(VERSION, prog_name="raftstore")
@click.option(
    "-o",
    "--output",
    type=click.Choice(SHAPES),
    default="table",
    help="Shape of what is printed on stdout.",
)
@click.option(
    "--endpoints",
    envvar="RAFTSTORE_ENDPOINTS",
    default=DEFAULT_ENDPOINTS,
    show_default=True,
    help="host:port of some nodes, by comma.",
)
@click.option(
    "--timeout",
    envvar="RAFTSTORE_TIMEOUT",
    default="5s",
    show_default=True,
    help="Longest time a request may take.",
)
@click.option("--yes", is_flag=True, help="Do not ask before something that cannot be undone.")
@click.pass_context
def cli(context: click.Context, output: str, endpoints: str, timeout: str, *, yes: bool) -> None:
    """A replicated store that serves what Spark computes.

    \b
    Example: a cluster on this machine, a table, a row:
      raftstore dev --dir data
      export RAFTSTORE_ENDPOINTS=127.0.0.1:20411,…   # the line that dev printed
      raftstore table create orders --key order_id:long
      raftstore put orders '{"order_id": 1, "total": 9.5}'
      raftstore get orders 1
    """
    try:
        timeout_ms = parse_duration_ms(timeout)
    except ValueError as error:
        raise click.UsageError(f"--timeout: {error}.") from error
    context.obj = Context(output=output, endpoints=endpoints, timeout_ms=timeout_ms, yes=yes)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its documented code."""
    given = sys.argv[1:] if arguments is None else arguments
    sys.exit(run_guarded(cli, global_options_first(given)))


def global_options_first(arguments: Sequence[str]) -> list[str]:
    """Global options may stand anywhere: ``raftstore status -o json`` is what people type."""
    moved: list[str] = []
    rest: list[str] = []
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--":
            rest += [argument, *waiting]
        elif argument in VALUE_OPTIONS:
            moved += [argument, *(value for value in [next(waiting, None)] if value is not None)]
        elif argument == "--yes" or argument.startswith(WITH_VALUE):
            moved.append(argument)
        else:
            rest.append(argument)
    return moved + rest


if __name__ == "__main__":
    main()
