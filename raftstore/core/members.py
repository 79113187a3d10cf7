"""A replica's configuration, as the engine and elections see it (S8)."""

from __future__ import annotations

from typing import NamedTuple

from raftstore.core.configs import ConfigEntry
from raftstore.core.leader import Leader
from raftstore.core.membership import Stage, stage_of
from raftstore.core.quorum import is_only_witness
from raftstore.core.state import ChannelState
from raftstore.types import ChangeTarget, ChannelConfig, NodeId, ReplicaNumber, Seq, Term


class MembershipView(NamedTuple):
    """The members of a channel as a replica knows them, for status and reports."""

    config: ChannelConfig
    """The newest of the log, which counts."""
    config_seq: Seq
    is_committed: bool
    committed: ChannelConfig
    """The newest that is known to be committed, with its record."""
    committed_seq: Seq
    committed_term: Term
    target: ChangeTarget | None
    """The order of this node's applied catalog."""
    stage: Stage
    waits_for: str
    """Leader: why the next step is not taken; empty: nothing is to be done, or it is under way."""
    learner_lags: dict[NodeId, int]
    """Leader: rows that each learner is known to lack."""


class MemberViews:
    """The part of a ``Replica`` that says who its channel's members are."""

    _state: ChannelState
    _leader: Leader | None

    def config(self) -> ChannelConfig:
        """The newest configuration in the log, else the creation configuration."""
        return self._state.configs.current

    @property
    def members(self) -> tuple[NodeId, ...]:
        """Voters and learners of the newest configuration."""
        return self._state.configs.members

    def config_before(self) -> ChannelConfig:
        """The configuration that counts again if the newest is cut off; else the newest (M3)."""
        return self._state.configs.before

    @property
    def number(self) -> ReplicaNumber:
        """Which life of this node's replica it is (M14)."""
        return self._state.number

    @property
    def is_removed(self) -> bool:
        """M13: a leader said that committed configurations name this replica no more."""
        return self._state.is_removed

    @property
    def is_witness(self) -> bool:
        """True if this replica has the log and no rows."""
        return self._state.is_witness

    def rows_seq(self) -> Seq:
        """Leader: up to where so many voters with rows hold the log that no witness is needed
        (W6); 0 elsewhere."""
        return Seq(0) if self._leader is None else self._leader.rows_seq()

    def is_only_witness(self, node: NodeId) -> bool:
        """Leader: whether this voter is the only witness, and the voters do not change (W6)."""
        configs = [each.config for each in self._state.configs.entries]
        return self._leader is not None and is_only_witness(configs, node)

    @property
    def held_at_most(self) -> Seq | None:
        """Up to where this replica may ever have held the log: to its end, unless acknowledged
        records are missing or in doubt; None: that is not known (S0.3, S0.6)."""
        state = self._state
        is_whole = state.keeps_promises or state.recovering is None
        return state.last_seq if is_whole and state.doubt is None else None

    def committed_config(self) -> ConfigEntry:
        """The newest configuration that is known to be committed."""
        return self._state.configs.committed

    def voters_behind(self, seq: Seq) -> tuple[NodeId, ...]:
        """Leader: other voters that have not acknowledged the log up to ``seq`` in this term."""
        if self._leader is None:
            return ()
        matches = self._leader.progress()
        voters = self._state.configs.current.voters
        return tuple(node for node in voters if node in matches and matches[node].match_seq < seq)

    def known_configs(self) -> tuple[ConfigEntry, ...]:
        """The configurations of the log from the newest known to be committed on."""
        return self._state.configs.entries

    def config_committed(self) -> bool:
        """False while the newest configuration is not known to be committed."""
        return self._state.configs.current_seq <= self._state.commit_seq

    def membership(self) -> MembershipView:
        """The configuration, and how far its change is."""
        state, configs = self._state, self._state.configs
        config, is_committed = configs.current, configs.current_seq <= state.commit_seq
        leader = self._leader
        waits_for, lags = "", {}
        if leader is not None:
            waits_for = leader.change.waits_for
            lags = {
                node: state.last_seq - each.match_seq
                for node, each in leader.progress().items()
                if node in config.learners
            }
        return MembershipView(
            config=config,
            config_seq=configs.current_seq,
            is_committed=is_committed,
            committed=configs.committed.config,
            committed_seq=configs.committed.seq,
            committed_term=configs.committed.term,
            target=state.target,
            stage=stage_of(config, state.target, is_committed=is_committed),
            waits_for=waits_for,
            learner_lags=lags,
        )
