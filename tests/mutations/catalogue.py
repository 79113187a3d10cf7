"""All mutations, in the order of the contract, and what cannot be tried yet.

Rules that the contract does not number are named by their room, such as ``wire-checksum``; they
come after the contract's, in the order in which the lists below name them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from tests.mutations.mutation import Mutation
from tests.mutations.rules.assertion import ASSERTION_RULES
from tests.mutations.rules.audit import AUDIT_RULES
from tests.mutations.rules.backup import BACKUP_RULES
from tests.mutations.rules.backup_sets import BACKUP_SET_RULES
from tests.mutations.rules.base import BASE_RULES
from tests.mutations.rules.batch import BATCH_RULES
from tests.mutations.rules.bound import BOUND_RULES
from tests.mutations.rules.catching_up import CATCHING_UP_RULES
from tests.mutations.rules.change import CHANGE_RULES
from tests.mutations.rules.channelsets import CHANNELSET_RULES
from tests.mutations.rules.client import CLIENT_RULES
from tests.mutations.rules.cluster import CLUSTER_RULES
from tests.mutations.rules.comparing import COMPARING_RULES
from tests.mutations.rules.core import CORE_RULES
from tests.mutations.rules.disk_waits import DISK_WAITS_RULES
from tests.mutations.rules.document import DOCUMENT_RULES
from tests.mutations.rules.domains import DOMAIN_RULES
from tests.mutations.rules.durability import DURABILITY_RULES
from tests.mutations.rules.election import ELECTION_RULES
from tests.mutations.rules.engine import ENGINE_RULES
from tests.mutations.rules.fate import FATE_RULES
from tests.mutations.rules.floor import FLOOR_RULES
from tests.mutations.rules.freshness import FRESHNESS_RULES
from tests.mutations.rules.healing import HEALING_RULES
from tests.mutations.rules.hosting import HOSTING_RULES
from tests.mutations.rules.identity import IDENTITY_RULES
from tests.mutations.rules.inspecting import INSPECTING_RULES
from tests.mutations.rules.leaders import LEADERS_RULES
from tests.mutations.rules.level import LEVEL_RULES
from tests.mutations.rules.lifetimes import LIFETIME_RULES
from tests.mutations.rules.log_matching import LOG_MATCHING_RULES
from tests.mutations.rules.machine import MACHINE_RULES
from tests.mutations.rules.machine_kit import MACHINE_KIT_RULES
from tests.mutations.rules.machine_queries import MACHINE_QUERY_RULES
from tests.mutations.rules.member_worlds import MEMBER_WORLD_RULES
from tests.mutations.rules.membership import MEMBERSHIP_RULES
from tests.mutations.rules.nodes import NODE_RULES
from tests.mutations.rules.ordering import ORDERING_RULES
from tests.mutations.rules.outcome import OUTCOME_RULES
from tests.mutations.rules.payload import PAYLOAD_RULES
from tests.mutations.rules.piece import PIECE_RULES
from tests.mutations.rules.positions import POSITIONS_RULES
from tests.mutations.rules.reading import READING_RULES
from tests.mutations.rules.rebalance import REBALANCE_RULES
from tests.mutations.rules.removals import REMOVAL_RULES
from tests.mutations.rules.replica_orders import ORDER_RULES
from tests.mutations.rules.replica_snapshots import REPLICA_SNAPSHOT_RULES
from tests.mutations.rules.resizing import RESIZING_RULES
from tests.mutations.rules.roles import ROLE_RULES
from tests.mutations.rules.row import ROW_RULES
from tests.mutations.rules.runtime import RUNTIME_RULES
from tests.mutations.rules.scan import SCAN_RULES
from tests.mutations.rules.sending import SENDING_RULES
from tests.mutations.rules.serving import SERVING_RULES
from tests.mutations.rules.share import SHARE_RULES
from tests.mutations.rules.snapshot import SNAPSHOT_RULES
from tests.mutations.rules.spark import SPARK_RULES
from tests.mutations.rules.staged import STAGED_RULES
from tests.mutations.rules.standby import STANDBY_RULES
from tests.mutations.rules.storage import STORAGE_RULES
from tests.mutations.rules.strangers import STRANGER_RULES
from tests.mutations.rules.table_files import TABLE_FILES_RULES
from tests.mutations.rules.tables import TABLES_RULES
from tests.mutations.rules.transport import TRANSPORT_RULES
from tests.mutations.rules.trimmed_outcomes import TRIMMED_OUTCOME_RULES
from tests.mutations.rules.trimming import TRIMMING_RULES


class UnknownMutationError(ValueError):
    """No mutation has this name, or none is of this rule."""


def _order(mutation: Mutation) -> tuple[bool, int, int]:
    number = re.fullmatch(r"S(\d+)(?:\.(\d+))?", mutation.rule)
    if number is None:
        return True, 0, 0
    return False, int(number[1]), int(number[2] or 0)


MUTATIONS: tuple[Mutation, ...] = tuple(
    sorted(
        (
            *ELECTION_RULES,
            *CORE_RULES,
            *MEMBERSHIP_RULES,
            *LOG_MATCHING_RULES,
            *BASE_RULES,
            *CATCHING_UP_RULES,
            *ASSERTION_RULES,
            *OUTCOME_RULES,
            *ENGINE_RULES,
            *POSITIONS_RULES,
            *DISK_WAITS_RULES,
            *DURABILITY_RULES,
            *FLOOR_RULES,
            *REMOVAL_RULES,
            *HOSTING_RULES,
            *NODE_RULES,
            *STRANGER_RULES,
            *ORDERING_RULES,
            *ORDER_RULES,
            *MEMBER_WORLD_RULES,
            *REBALANCE_RULES,
            *ROLE_RULES,
            *FRESHNESS_RULES,
            *BOUND_RULES,
            *FATE_RULES,
            *STANDBY_RULES,
            *STORAGE_RULES,
            *TABLES_RULES,
            *IDENTITY_RULES,
            *SCAN_RULES,
            *PIECE_RULES,
            *CHANGE_RULES,
            *CLIENT_RULES,
            *READING_RULES,
            *TRANSPORT_RULES,
            *REPLICA_SNAPSHOT_RULES,
            *TABLE_FILES_RULES,
            *PAYLOAD_RULES,
            *INSPECTING_RULES,
            *MACHINE_QUERY_RULES,
            *AUDIT_RULES,
            *MACHINE_KIT_RULES,
            *TRIMMED_OUTCOME_RULES,
            *TRIMMING_RULES,
            *HEALING_RULES,
            *COMPARING_RULES,
            *CLUSTER_RULES,
            *LEADERS_RULES,
            *DOMAIN_RULES,
            *RESIZING_RULES,
            *LEVEL_RULES,
            *MACHINE_RULES,
            *CHANNELSET_RULES,
            *LIFETIME_RULES,
            *BATCH_RULES,
            *STAGED_RULES,
            *ROW_RULES,
            *DOCUMENT_RULES,
            *SPARK_RULES,
            *SENDING_RULES,
            *SNAPSHOT_RULES,
            *RUNTIME_RULES,
            *SERVING_RULES,
            *SHARE_RULES,
            *BACKUP_RULES,
            *BACKUP_SET_RULES,
        ),
        key=_order,
    )
)


def mutation_named(name: str) -> Mutation:
    """Return the mutation; UnknownMutationError names those that are called alike."""
    for mutation in MUTATIONS:
        if mutation.name == name:
            return mutation
    alike = difflib.get_close_matches(name, [mutation.name for mutation in MUTATIONS])
    hint = f"is it {' or '.join(alike)}? " if alike else ""
    raise UnknownMutationError(f"no mutation is named {name!r}; {hint}--list shows all")


def chosen(rules: Sequence[str], names: Sequence[str]) -> list[Mutation]:
    """Those of the rules and those named, in the order of the table; all when neither is given."""
    for rule in rules:
        if not any(rule in mutation.rules for mutation in MUTATIONS):
            raise UnknownMutationError(f"no mutation is of the rule {rule!r}; --list shows all")
    for name in names:
        mutation_named(name)
    return [
        mutation
        for mutation in MUTATIONS
        if not (rules or names) or mutation.name in names or set(rules) & set(mutation.rules)
    ]
