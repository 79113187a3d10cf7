"""Which options of reading are for streams of changes, and which are not."""

from __future__ import annotations

from raftstore.errors import ConfigError
from raftstore.spark.options import BATCH_READ_ONLY, STREAM_ONLY, SourceOptions


def refuse_stream_options(options: SourceOptions) -> None:
    """Raise ConfigError for options that only a stream can obey."""
    _refuse_given(options, STREAM_ONLY, "are for streams: use spark.readStream, or leave them out")


def refuse_batch_options(options: SourceOptions) -> None:
    """Raise ConfigError for options that a stream cannot obey."""
    what = "have no meaning for a stream, which reads what is committed: leave them out"
    _refuse_given(options, BATCH_READ_ONLY, what)


def _refuse_given(options: SourceOptions, names: tuple[str, ...], why: str) -> None:
    given = [name for name in names if name in options.given]
    if given:
        raise ConfigError(f"[RAFTSTORE_OPTION_INVALID] {', '.join(given)} {why}")
