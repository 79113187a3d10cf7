"""Every exception of raftstore, as a tree of their classes.

::

    RaftstoreError
    ├─ ConfigError(ValueError)         bad setting; names the key, the value and the remedy
    │  └─ ArgumentError                what a call was given means nothing; nothing was sent
    ├─ RequestError                    a request did not succeed (outcome, retriable, leader_hint)
    │  ├─ NotLeaderError               NOT_APPLIED, retriable
    │  ├─ NoLeaderError                NOT_APPLIED, retriable
    │  ├─ OverloadedError              NOT_APPLIED, retriable
    │  ├─ NoSpaceError                 NOT_APPLIED, retriable
    │  ├─ UnavailableError             NOT_APPLIED, retriable  (stopping, recovering, ...)
    │  ├─ RequestTimeoutError          NOT_APPLIED, retriable  (nothing was sent)
    │  ├─ PayloadTooLargeError         NOT_APPLIED, final
    │  ├─ UnknownTableError            NOT_APPLIED, final
    │  ├─ UnknownChannelError          NOT_APPLIED, retriable
    │  ├─ TableExistsError             NOT_APPLIED, final
    │  ├─ SchemaError                  NOT_APPLIED, final      (key type, missing column, ...)
    │  │  ├─ PageTokenError            a page token that is damaged or of another scan
    │  │  ├─ PositionError             a position that is damaged or of another table
    │  │  └─ StateLimitError           a command wants more state than a machine may have
    │  ├─ ConflictError                NOT_APPLIED, final      (a condition did not hold)
    │  ├─ RejectedError                NOT_APPLIED, final      (a machine refused the command)
    │  ├─ UnknownMachineError          NOT_APPLIED, final      (a node cannot load its code)
    │  ├─ MachineStoppedError          NOT_APPLIED, retriable  (it cannot apply a command)
    │  ├─ GuidReuseError               NOT_APPLIED, final      (a guid came with another payload)
    │  ├─ GuidFencedError              NOT_APPLIED, final      (its fate is reported: not applied)
    │  ├─ WriterFencedError            UNKNOWN, final          (another attempt took over)
    │  ├─ BatchRegressionError         NOT_APPLIED, final      (a batch id that is past)
    │  ├─ AttemptClosedError           NOT_APPLIED, final      (rows for an attempt that ended)
    │  ├─ BatchIncompleteError         NOT_APPLIED, final      (it lists rows that nobody staged)
    │  ├─ BatchPendingError            UNKNOWN, retriable      (decided, not applied everywhere)
    │  ├─ UnsupportedRequestError      NOT_APPLIED, final      (the node is of another version)
    │  ├─ StoreTooOldError             NOT_APPLIED, final      (some nodes cannot read it yet)
    │  ├─ JoinRefusedError             NOT_APPLIED, final      (a ticket that admits nobody)
    │  ├─ UnknownNodeError             NOT_APPLIED, final      (no node of that name)
    │  ├─ StillMemberError             NOT_APPLIED, final      (the node has replicas)
    │  ├─ ChangePendingError           NOT_APPLIED, final      (another order is open)
    │  ├─ ChangeDoneError              NOT_APPLIED, final      (the order is not open)
    │  ├─ AuthenticationError          NOT_APPLIED, final      (no or wrong credentials)
    │  ├─ ForbiddenError               NOT_APPLIED, final      (the role does not allow it)
    │  ├─ QuorumTimeoutError           UNKNOWN, retriable with the same guid
    │  ├─ LeadershipLostError          UNKNOWN, retriable with the same guid
    │  ├─ ConnectionInDoubtError       UNKNOWN, retriable with the same guid
    │  ├─ OperationInDoubtError        UNKNOWN, final          (accepted, its end was not seen)
    │  ├─ GuidExpiredError             UNKNOWN, final
    │  ├─ PartialWriteError            put_many: some channels differ from others
    │  └─ QueryError                   reads have no outcome
    │     ├─ LagExceededError
    │     │  └─ LagUnknownError        how far behind it is is not known, which counts as infinite
    │     ├─ NotUpToBoundError         the position asked for was not reached in time
    │     ├─ PageExpiredError          the state behind a page token is gone
    │     ├─ SnapshotExpiredError      the state of that commit is no longer kept
    │     ├─ DataLossError             changes that were asked for are no longer there
    │     ├─ InvalidStateStoreError    KIP-535: a store that cannot be read, with the reason
    │     └─ NoReplicaAvailableError
    ├─ ProtocolError                   never raised itself
    │  ├─ LocalProtocolError           we tried to send something illegal: a bug
    │  └─ RemoteProtocolError          the peer sent something illegal: drop the connection
    │     ├─ DecodeError
    │     └─ UnsupportedVersionError
    ├─ TransportError                  ConnectionLostError, ConnectTimeoutError
    ├─ StorageError                    the node stops with exit code 70
    │  ├─ PersistError, CorruptRecordError
    │  ├─ NewerFormatError             what a newer version wrote; the store is left as it is
    │  ├─ DiskFullError                no room to start: the runtime waits until there is (GAP-13)
    │  └─ StoreIdentityError(ConfigError)   directory of another node or cluster: exit code 78
    │     ├─ BirthRefusedError         a founding member is not who it was named as (S0.7)
    │     └─ PromisesLostError         what the node promised under its id is not known (S0.1)
    ├─ BackupError                     a backup is absent, damaged, or of a newer version
    └─ ElectionError                   pysyncobj left what the adapter relies on: the node stops

Messages are one sentence, lower case, with the values and the remedy. Numbers are attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final, NamedTuple

from raftstore.types import NodeId, Outcome


class RaftstoreError(Exception):
    """Base of everything raftstore raises on purpose."""


class ConfigError(RaftstoreError, ValueError):
    """A setting is unknown, impossible or contradicts another; nothing was started."""


class ArgumentError(ConfigError):
    """An argument of a call is unknown, impossible or contradicts another; nothing was sent."""


class RequestError(RaftstoreError):
    """A request did not succeed.

    ``outcome`` NOT_APPLIED: it certainly did not and will not happen. UNKNOWN: it may have.
    ``retriable``: the same call (with the same guid, if a write) may succeed later.
    ``code``: stable name used on the wire, in JSON and in tests.
    """

    code: ClassVar[str] = "request_error"
    outcome: Outcome = Outcome.NOT_APPLIED
    retriable: bool = False

    guid: str | None = None
    """Of a write: what ``client.fate`` takes to find later what became of it."""

    def __init__(self, message: str, *, leader_hint: NodeId | None = None) -> None:
        super().__init__(message)
        self.leader_hint = leader_hint


class NotLeaderError(RequestError):
    """The node asked does not lead the channel."""

    code = "not_leader"
    retriable = True


class NoLeaderError(RequestError):
    """The channel has no leader that the node knows of."""

    code = "no_leader"
    retriable = True


class OverloadedError(RequestError):
    """A bounded queue is full; the message names it with its length and limit."""

    code = "overloaded"
    retriable = True


class NoSpaceError(RequestError):
    """The disk of the leader's node is nearly full: it takes no new writes before there is space,
    and gives its leadership to a replica that has some. Or those of so many others are that no
    majority would store the write."""

    code = "no_space"
    retriable = True


class UnavailableError(RequestError):
    """The node or channel cannot serve now: stopping, recovering, or metadata without a leader."""

    code = "unavailable"
    retriable = True


class RequestTimeoutError(RequestError):
    """The deadline passed before anything was sent."""

    code = "timeout"
    retriable = True


class PayloadTooLargeError(RequestError):
    """A value or payload is over its limit."""

    code = "payload_too_large"

    def __init__(self, message: str, *, size: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.size = size
        self.limit = limit


class UnknownTableError(RequestError):
    """No such table in the catalog."""

    code = "unknown_table"


class UnknownChannelError(RequestError):
    """The node does not host this channel, or its table was dropped."""

    code = "unknown_channel"
    retriable = True


class TableExistsError(RequestError):
    """A table with this name but another definition exists."""

    code = "table_exists"


class SchemaError(RequestError):
    """A row, key or definition does not fit the table."""

    code = "schema"


class PageTokenError(SchemaError):
    """A page token is damaged or belongs to another scan."""

    code = "page_token"


class PositionError(SchemaError):
    """A position is damaged or belongs to another table."""

    code = "position"


class StateLimitError(SchemaError):
    """A command puts a key or value over its limit, or changes too many: every replica rejects the
    command alike, unless the machine's ``apply`` takes care of it."""

    code = "state_limit"


class ConflictError(RequestError):
    """The condition of a conditional write did not hold when it was applied."""

    code = "conflict"

    def __init__(self, message: str, *, position: str | None = None) -> None:
        super().__init__(message)
        self.position = position


class RejectedError(RequestError):
    """A state machine refused the command or the query: raised by its ``apply`` or ``query``, and
    at the caller. A rejected command changed nothing, on any replica."""

    code = "rejected"


class UnknownMachineError(RequestError):
    """A node cannot load the code of a state machine; the message names node, machine, reason."""

    code = "unknown_machine"


class MachineStoppedError(RequestError):
    """The partition's state machine cannot apply a committed command, so it takes no others; the
    message names the command and what was raised."""

    code = "machine_stopped"
    retriable = True


class GuidReuseError(RequestError):
    """The guid was used before with another payload; each write needs its own (S4.6)."""

    code = "guid_reuse"


class GuidFencedError(RequestError):
    """The outcome of this write was answered as "not applied", so its guid is refused since."""

    code = "guid_fenced"


class WriterFencedError(RequestError):
    """A newer attempt of the writer ended this one, or the writer is past this batch; which
    attempt's rows the batch holds is not known here."""

    code = "writer_fenced"
    outcome = Outcome.UNKNOWN


class BatchRegressionError(RequestError):
    """The batch id is below the writer's last one, or counts in another checkpoint."""

    code = "batch_regression"


class AttemptClosedError(RequestError):
    """Rows were staged for an attempt that had ended; they will never be visible."""

    code = "attempt_closed"


class BatchIncompleteError(RequestError):
    """The commit lists rows that are not staged; nothing was decided, the attempt stays open."""

    code = "batch_incomplete"


class BatchPendingError(RequestError):
    """The micro-batch was not seen applied everywhere in time; asking again changes nothing."""

    code = "batch_pending"
    outcome = Outcome.UNKNOWN
    retriable = True


class UnsupportedRequestError(RequestError):
    """The node does not know this kind of request: it is of another version than the client."""

    code = "unsupported_request"


class StoreTooOldError(RequestError):
    """Some nodes are of a version that could not read this; the message names them."""

    code = "store_too_old"


class JoinRefusedError(RequestError):
    """The node may not join: its ticket is unknown, used or expired, or its name is taken."""

    code = "join_refused"


class UnknownNodeError(RequestError):
    """The cluster has no node of this name."""

    code = "unknown_node"


class StillMemberError(RequestError):
    """The node cannot leave yet: it is up, or channels have replicas there."""

    code = "still_member"


class ChangePendingError(RequestError):
    """Another order for the replicas of the channel is open, or was given meanwhile."""

    code = "change_pending"


class ChangeDoneError(RequestError):
    """The order is not open any more: it can only be taken back by the opposite one."""

    code = "change_done"


class AuthenticationError(RequestError):
    """The request carries no credentials, or wrong ones."""

    code = "unauthenticated"


class ForbiddenError(RequestError):
    """The user's role does not allow the request."""

    code = "forbidden"


class QuorumTimeoutError(RequestError):
    """No durable quorum in time: the write may still commit (S4.1)."""

    code = "quorum_timeout"
    outcome = Outcome.UNKNOWN
    retriable = True


class LeadershipLostError(RequestError):
    """The leader stepped down while the write was pending (S4.3)."""

    code = "leadership_lost"
    outcome = Outcome.UNKNOWN
    retriable = True


class ConnectionInDoubtError(RequestError):
    """The connection broke after the write was sent."""

    code = "in_doubt"
    outcome = Outcome.UNKNOWN
    retriable = True


class OperationInDoubtError(RequestError):
    """A table or leadership command was accepted, but how it ended was not seen in time."""

    code = "operation_in_doubt"
    outcome = Outcome.UNKNOWN


class GuidExpiredError(RequestError):
    """The producer session is too old to know whether the write was applied (S4.5)."""

    code = "guid_expired"
    outcome = Outcome.UNKNOWN


class PartialWriteError(RequestError):
    """``put_many`` ended differently on different channels.

    ``applied``, ``not_applied`` and ``unknown`` hold the indexes of the caller's rows; ``guids``
    name the records whose outcome is unknown, for ``client.fate``.
    """

    code = "partial_write"

    def __init__(
        self,
        message: str,
        *,
        applied: list[int],
        not_applied: list[int],
        unknown: list[int],
        guids: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.guids = guids
        self.applied = applied
        self.not_applied = not_applied
        self.unknown = unknown
        self.outcome = Outcome.UNKNOWN if unknown else Outcome.NOT_APPLIED


class QueryError(RequestError):
    """A read could not be answered within its bound. Reads change nothing."""

    code = "query_error"
    retriable = True

    def __init__(self, message: str, *, hosts: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.hosts = hosts or {}


class LagExceededError(QueryError):
    """The replica asked is further behind than the query allows."""

    code = "lag_exceeded"


class LagUnknownError(LagExceededError):
    """The replica asked does not know how far behind it is, which counts as infinite (S7.3)."""

    code = "lag_unknown"


class NotUpToBoundError(QueryError):
    """The position that the read must hold was not applied before its deadline (BLOG-33)."""

    code = "not_up_to_bound"


class PageExpiredError(QueryError):
    """The state behind a page token is gone (idle too long, or its node); start the scan again."""

    code = "page_expired"
    retriable = False


class SnapshotExpiredError(QueryError):
    """The state of the commit that was asked for is no longer kept; no other is read instead."""

    code = "snapshot_expired"
    retriable = False


class DataLossError(QueryError):
    """Changes from the position that was asked for are no longer there."""

    code = "data_loss"
    retriable = False


class InvalidStateStoreError(QueryError):
    """The store cannot be read now (KIP-535); ``reason`` is one of initializing, unknown_table,
    not_hosted, not_leader and closed."""

    code = "invalid_state_store"

    def __init__(
        self, message: str, *, hosts: dict[str, str] | None = None, reason: str = "initializing"
    ) -> None:
        super().__init__(message, hosts=hosts)
        self.reason = reason


class NoReplicaAvailableError(QueryError):
    """All nodes are dead or exceed max allowed lag; ``hosts`` has one reason per node, ``codes``
    the code of its refusal where a node refused."""

    code = "no_replica_available"

    def __init__(
        self,
        message: str,
        *,
        hosts: dict[str, str] | None = None,
        codes: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message, hosts=hosts)
        self.codes = codes or {}


class ProtocolError(RaftstoreError):
    """Base of wire errors; never raised itself."""


class LocalProtocolError(ProtocolError):
    """We tried to send something illegal."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something illegal; its connection is dropped."""


class DecodeError(RemoteProtocolError):
    """Bytes are not a valid frame or message.

    ``is_out_of_range``: only a number, or the length of an identity, is not what its type allows.
    ``request_id``: of a client's request of which that is true; it may be answered instead of
    ending the connection.
    """

    def __init__(
        self, message: str, *, is_out_of_range: bool = False, request_id: int | None = None
    ) -> None:
        super().__init__(message)
        self.is_out_of_range = is_out_of_range
        self.request_id = request_id


class UnsupportedVersionError(RemoteProtocolError):
    """The peer speaks another protocol version, or sent a record that only a newer one knows."""


class TransportError(RaftstoreError):
    """A connection failed; to the core this is silence."""


class ConnectionLostError(TransportError):
    """An established connection broke, or the other side ended it; ``code`` is its reason's word
    (``transport.handshake.GoodbyeCode``), "" when there was none."""

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class ConnectTimeoutError(TransportError):
    """A connection could not be established in time."""


class StorageError(RaftstoreError):
    """The store failed: the outcome of what it did is unknown and the node stops (S0.4)."""


class PersistError(StorageError):
    """A write or fsync failed. Never retried."""


class CorruptRecordError(StorageError):
    """Stored bytes do not match their checksum or format."""


class NewerFormatError(StorageError):
    """A record or row that only a newer version understands: nothing is damaged (GAP-15)."""


class DiskFullError(StorageError):
    """No room left on the disk at start; nothing was lost, and the node may look again later."""


class StoreIdentityError(StorageError, ConfigError):
    """The directory belongs to another node, cluster or format version; nothing was touched."""


class BirthRefusedError(StoreIdentityError):
    """A founding member already belongs to another cluster, or is another node than named."""


class PromisesLostError(StoreIdentityError):
    """The node's promises under its id are not known, or contradict each other (S0.1, S0.2).

    No restart mends that, so it ends the node with exit code 78; nothing was touched.
    """


class BackupError(RaftstoreError):
    """A backup is absent, damaged, or of a newer version, or where it lies cannot be used; names
    the file. What was read of it was not used."""


class ElectionError(RaftstoreError):
    """pysyncobj left the behaviour the adapter relies on: the node must stop."""


def _received(base: type[RequestError]) -> Iterator[type[RequestError]]:
    for error in base.__subclasses__():
        # PartialWriteError is only ever concluded by a client, never received.
        if error is not PartialWriteError:
            yield error
        yield from _received(error)


ERRORS_BY_CODE: Final[dict[str, type[RequestError]]] = {
    error.code: error for error in _received(RequestError)
}
"""Every error a node may answer with, by its stable name."""


class Refusal(NamedTuple):
    """The reason for which a node does not do what it was asked for."""

    error: type[RequestError]
    """What the caller raises; its ``code`` is what travels."""
    text: str
    """One sentence with the values and the remedy."""


def refusal_by_code(code: str, text: str) -> Refusal:
    """Return the refusal whose error has this code."""
    return Refusal(ERRORS_BY_CODE[code], text)
