"""Identity of a batch and its writer: made on the driver, completed in its tasks.

Spark gives the two sides different facts. The driver knows the options and, where it can read the
checkpoint, the query; a task knows the query and the number of the micro-batch. Nothing here
contacts anybody.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from raftstore.errors import ConfigError
from raftstore.spark.options import SinkOptions

LocalProperty = Callable[[str], str | None]
"""Spark's local properties, in a task."""
QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """Pickled with the writer into every task, and back in their messages."""

    uuid: bytes
    """Names the attempt: made anew each time that Spark starts the batch."""
    writer: str
    """"" while only a task can know it."""
    lineage: str
    """Names the checkpoint that batch ids count in: the streaming query."""
    batch_id: int | None
    one_shot: bool = False
    """A job of its own: there is no second batch."""
    is_stream: bool = False

    @property
    def is_known(self) -> bool:
        """Nothing is missing that only a task could know."""
        is_of_query = bool(self.lineage) or not self.is_stream
        return bool(self.writer) and is_of_query and self.batch_id is not None


def planned(options: SinkOptions, *, checkpoint: str | None, is_stream: bool) -> BatchIdentity:
    """The driver's description of a batch that is about to be written."""
    token = uuid.uuid4().bytes
    if is_stream:
        if options.batch_id is not None:
            raise ConfigError(
                "[RAFTSTORE_OPTION_INVALID] batchId is set for a stream, whose batches Spark "
                "numbers: leave it out"
            )
        query = query_of(checkpoint)
        return BatchIdentity(token, options.writer_id or query, query, None, is_stream=True)
    if not options.writer_id:
        return BatchIdentity(token, f"job-{uuid.UUID(bytes=token)}", "", 0, one_shot=True)
    if options.batch_id is None:
        raise ConfigError(
            f"[RAFTSTORE_BATCH_ID_MISSING] writerId is {options.writer_id!r} but the batch has no "
            'number: add .option("batchId", number), or leave writerId out'
        )
    return BatchIdentity(token, options.writer_id, options.lineage, options.batch_id)


def in_task(identity: BatchIdentity, local_property: LocalProperty) -> BatchIdentity:
    """The same with what only a task is given."""
    if not identity.is_stream:
        return identity
    query, batch = local_property(QUERY_PROPERTY) or "", local_property(BATCH_PROPERTY)
    if batch is None or not query:
        raise ConfigError(
            "[RAFTSTORE_BATCH_ID_MISSING] Spark did not give the task its query and micro-batch: "
            "write from foreachBatch with raftstore.spark.write.upsert and a writerId"
        )
    if identity.lineage and identity.lineage != query:
        raise ConfigError(
            f"[RAFTSTORE_OPTION_INVALID] the checkpoint is of query {identity.lineage}, but query "
            f"{query} writes the batch: give each query a checkpoint of its own"
        )
    writer = identity.writer or query
    return replace(identity, writer=writer, lineage=query, batch_id=int(batch))


def query_of(checkpoint: str | None) -> str:
    """Return the query that a checkpoint belongs to; "" where it cannot be read from here."""
    try:
        directory = _directory(checkpoint)
        return str(msgspec.json.decode((directory / "metadata").read_bytes())["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def newest_batch(checkpoint: str | None) -> int | None:
    """Return the micro-batch that Spark has begun last; None where it cannot be read from here."""
    try:
        names = [path.name for path in (_directory(checkpoint) / "offsets").iterdir()]
    except OSError:
        return None
    return max((int(name) for name in names if name.isdecimal()), default=None)


def _directory(checkpoint: str | None) -> Path:
    """Where a checkpoint is, if it is a file here; raises FileNotFoundError."""
    parts = urlsplit(checkpoint or "")
    if not checkpoint or parts.scheme not in ("", "file"):
        raise FileNotFoundError(checkpoint)
    return Path(unquote(parts.path) if parts.scheme else checkpoint)
