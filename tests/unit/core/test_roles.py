"""Witnesses vote without rows and readers have rows without a vote: what configurations allow."""

from __future__ import annotations

from itertools import combinations, product

import msgspec
import pytest

from raftstore.core.configs import decode_config, encode_config
from raftstore.core.effects import HandOverFailed, StepDown, TransferLeadership
from raftstore.core.events import HandOverRequested
from raftstore.core.membership import (
    MemberView,
    Situation,
    Step,
    has_rows_enough,
    is_legal,
    next_step,
)
from raftstore.protocol.publish import PubReject
from raftstore.protocol.replication import StoreAck
from raftstore.types import (
    ChangeTarget,
    ChannelConfig,
    MemberRole,
    NodeId,
    ReplicaId,
    ReplicaNumber,
    Seq,
    Term,
)
from tests.core_bench import guid, record, term_start
from tests.core_world import CHANNEL, N1, N2, N3, Bench, make_replica
from tests.unit.core.change_bench import N4, N5, led, order, settle, steps, target

READER, WITNESS = MemberRole.READER, MemberRole.WITNESS
NODES = (N1, N2, N3, N4, N5)
LIVE = dict.fromkeys(NODES, MemberView(is_live=True))
SEVEN = ReplicaNumber(7)
PAIR = ChannelConfig(((N1, N2, N3),), roles={N3: WITNESS})
"""Two with rows and a witness."""


def with_roles(ordered: ChangeTarget, **roles: MemberRole) -> ChangeTarget:
    """The order with witnesses and readers: ``n3=WITNESS``."""
    named = {node: roles[node[:2]] for node in NODES if node[:2] in roles}
    return msgspec.structs.replace(ordered, roles=named)


def situation(config: ChannelConfig, ordered: ChangeTarget | None, **other) -> Situation:
    """A leader n1 that may take a step."""
    fields = {"is_committed": True, "is_own_term": True, "views": LIVE, "may_hand_over": False}
    return Situation(config=config, target=ordered, me=ReplicaId(N1), **{**fields, **other})


def carried_out(config: ChannelConfig, ordered: ChangeTarget) -> list[ChannelConfig]:
    """All configurations on the way, each of which follows legally from the one before."""
    passed = [config]
    while (after := next_step(situation(config, ordered)).config) is not None:
        assert is_legal(config, after, is_committed=True), (config, after)
        assert decode_config(encode_config(after)) == after
        config = after
        passed.append(after)
        assert len(passed) < 40, ordered
    return passed


def voters_and_witnesses() -> list[tuple[tuple[NodeId, ...], frozenset[NodeId]]]:
    """All sets of voters of five nodes with all sets of witnesses that they may have."""
    return [
        (voters, frozenset(witnesses))
        for size in range(1, 6)
        for voters in combinations(NODES, size)
        for count in range(size)
        for witnesses in combinations(voters, count)
        if has_rows_enough(voters, dict.fromkeys(witnesses, WITNESS))
    ]


def test_rows_are_at_as_many_voters_as_make_a_majority() -> None:
    """W1: then no quorum is without them, and none of them alone has what a witness trimmed."""
    for size in range(1, 8):
        group = tuple(NodeId(f"n{n}@{n:032x}") for n in range(size))
        for count in range(size + 1):
            roles = dict.fromkeys(group[:count], WITNESS)
            assert has_rows_enough(group, roles) == (size - count > size / 2)


@pytest.mark.slow
def test_every_order_of_witnesses_is_reached_by_legal_steps() -> None:
    """W1 on the whole way: no set in between leans on witnesses more than the ends do."""
    every = voters_and_witnesses()
    for (voters, witnesses), (wanted, others) in product(every[::7], every):
        kept = {n for n in set(voters) & set(wanted) if (n in witnesses) == (n in others)}
        if not (kept or set(wanted) - set(voters)) or (len(voters) == 1 and not kept):
            continue  # the only replica cannot be replaced on its own node
        config = ChannelConfig((voters,), roles=dict.fromkeys(witnesses, WITNESS))
        new = set(wanted) - kept
        ordered = target(*wanted, new=new)
        ordered = msgspec.structs.replace(ordered, roles=dict.fromkeys(others, WITNESS))
        last = carried_out(config, ordered)[-1]
        waits_for = next_step(situation(last, ordered)).waits_for
        if "cannot be replaced" in waits_for or "too few would have rows" in waits_for:
            # A node's replica leaves before its next life enters: fewer are there meanwhile.
            assert new & set(voters), (config, ordered)
            continue
        assert set(last.voters) == set(wanted), (config, ordered, waits_for)
        assert last.ended
        assert {n for n in last.voters if last.is_witness(n)} == set(others)


def test_witness_is_one_from_its_learner_record_on() -> None:
    """W3: the node knows before the first record that it takes no rows in."""
    ordered = with_roles(target(N1, N2, N4, new=(N4,)), n4=WITNESS)
    passed = carried_out(ChannelConfig(((N1, N2, N3),)), ordered)
    assert [config.is_witness(N4) for config in passed] == [False, True, True, True]
    assert [config.role_of(N4) for config in passed] == [None, WITNESS, WITNESS, WITNESS]
    assert passed[-1].role_of(N1) is MemberRole.VOTER
    assert not passed[-1].may_lead(ReplicaId(N4, SEVEN))
    assert passed[-1].may_lead(ReplicaId(N1))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            ChannelConfig(((N1, N2, N3),)),
            ChannelConfig(((N1, N2, N3),), change=7, roles={N3: WITNESS}),
        ),
        (PAIR, ChannelConfig(((N1, N2, N3),), change=7)),
        (
            ChannelConfig(((N1, N2, N3),), (N4,), {N4: SEVEN}, 7, roles={N3: WITNESS, N4: WITNESS}),
            ChannelConfig(
                ((N1, N2, N3), (N1, N4, N3)), (), {N4: SEVEN}, 7, roles={N3: WITNESS, N4: WITNESS}
            ),
        ),
    ],
    ids=["becomes-one", "stops-being-one", "too-few-rows"],
)  # fmt: skip
def test_steps_that_would_lean_on_witnesses_are_not_legal(
    before: ChannelConfig, after: ChannelConfig
) -> None:
    """W1, W3."""
    assert not is_legal(before, after, is_committed=True)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (ChannelConfig(((N1, N2, N3),), roles={N4: WITNESS}), "out of place"),
        (ChannelConfig(((N1, N2, N3),), roles={N3: READER}), "out of place"),
        (ChannelConfig(((N1, N2, N3),), roles={N3: MemberRole.VOTER}), "out of place"),
        (ChannelConfig(((N1, N2, N3),), roles={N2: WITNESS, N3: WITNESS}), "too few voters"),
    ],
)
def test_roles_that_no_leader_writes_are_refused(config: ChannelConfig, problem: str) -> None:
    """M1, W1: in a log they are damage, or of a leader that is none."""
    with pytest.raises(ValueError, match=problem):
        decode_config(encode_config(config))


def test_joint_configuration_waits_for_voters_with_rows() -> None:
    """W2: the witness may have trimmed, by the word of the voter that leaves, what the new voter
    has not got yet."""
    roles = {N3: WITNESS}
    joint = ChannelConfig(((N1, N2, N3), (N1, N4, N3)), (), {N4: SEVEN}, 7, roles=roles)
    ordered = with_roles(target(N1, N4, N3, new=(N4,)), n3=WITNESS)
    late = {**LIVE, N4: MemberView(is_live=True, holds_config=False)}
    step = next_step(situation(joint, ordered, views=late))
    assert step.config is None
    assert "n4 does not" in step.waits_for
    assert next_step(situation(joint, ordered)).config is not None
    # Without a witness a majority of each set holds it as soon as it is committed.
    plain = msgspec.structs.replace(joint, roles={})
    assert next_step(situation(plain, target(N1, N4, N3, new=(N4,)), views=late)).config is not None
    # The way back leads to voters that hold it all.
    undo = msgspec.structs.replace(ordered, cancelled=True)
    assert next_step(situation(joint, undo, views=late)).config is not None


# --- readers --------------------------------------------------------------------------------------


def test_reader_is_one_record_and_stays_a_learner() -> None:
    """It gets everything and is counted for nothing."""
    world = led()
    order(world, with_roles(target(N1, N2, N3, new=(N4,), learners=(N4,)), n4=READER))
    settle(world)
    assert steps(world[N1]) == ["123+4", "123+4."]
    config = world[N1].replica.config()
    assert config.role_of(N4) is READER
    assert not config.may_lead(ReplicaId(N4, SEVEN))
    world.publish(1, to=[N1, N2, N4])
    settle(world)
    assert world[N4].replica.commit_seq == world[N1].replica.last_seq
    assert next_step(situation(config, None)) == Step()


def test_reader_learns_that_it_is_one_no_longer_before_it_votes() -> None:
    """W5: else a voter counts it that would never stand with the only copy of a record."""
    reader = ChannelConfig(((N1, N2, N3),), (N4,), {N4: SEVEN}, 7, True, {N4: READER})
    ordered = ChangeTarget(9, (N1, N2, N3, N4), numbers={N4: SEVEN})
    passed = carried_out(reader, ordered)
    assert [config.roles for config in passed] == [{N4: READER}, {}, {}, {}]
    assert passed[1].learners == (N4,)
    late = MemberView(is_live=True, why_not_promoted="does not hold the configuration")
    step = next_step(situation(passed[1], ordered, views={**LIVE, N4: late}))
    assert step.config is None


def test_learner_becomes_a_reader_by_an_order() -> None:
    """An order of a version that named learners only left it as one."""
    learner = ChannelConfig(((N1, N2, N3),), (N4,), {N4: SEVEN}, 7, True)
    ordered = ChangeTarget(9, (N1, N2, N3), (N4,), {N4: SEVEN}, roles={N4: READER})
    passed = carried_out(learner, ordered)
    assert passed[-1].roles == {N4: READER}
    assert passed[-1].ended


# --- leading --------------------------------------------------------------------------------------


def leading(config: ChannelConfig, me: NodeId = N1) -> Bench:
    """A leader of term 1, whose term start is durable."""
    bench = Bench(make_replica(me, config=config))
    bench.lead(1, me)
    bench.persist()
    return bench


def test_witness_is_no_target_of_a_hand_over() -> None:
    """W4: it would have to give the leadership away at once."""
    bench = leading(PAIR)
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(1)), N3)
    effects = bench.do(HandOverRequested(N3, "test"))
    assert len(bench.of(HandOverFailed, effects)) == 1
    assert bench.of(TransferLeadership, bench.do(HandOverRequested(None, "test"))) == []
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(1), Seq(1)), N2)
    assert bench.of(TransferLeadership) == [TransferLeadership(N2)]


def test_witness_leads_until_a_voter_with_rows_can() -> None:
    """W4: what it commits first is held by one of those, which it asks to lead."""
    bench = leading(PAIR, N3)
    ((_, refused),) = bench.replies(bench.publish(1, leader=N3))
    assert isinstance(refused, PubReject)
    assert "until a voter can" in refused.message
    assert bench.replica.last_seq == 1
    effects = bench.receive(StoreAck(CHANNEL, Term(1), Seq(1)), N1)
    assert bench.of(TransferLeadership, effects) == [TransferLeadership(N1)]
    assert bench.replica.commit_seq == 1
    assert len(bench.of(StepDown, bench.wait(1_000))) == 1, "it leads no longer than it must"


def test_witness_that_leads_answers_for_no_earlier_write() -> None:
    """W4: whether a condition held only the rows say; the next leader answers."""
    held = [term_start(1, 1), record(2, counter=1)]
    bench = Bench(make_replica(N3, config=PAIR, records=held))
    bench.lead(2, N3)
    bench.persist(3, term=2)
    bench.receive(StoreAck(CHANNEL, Term(2), Seq(3)), N1)
    assert bench.replica.commit_seq == 3
    again = {"leader": N3, "term": 2, "attempt": 1, "payload": b"p2"}
    assert bench.replies(bench.publish(1, **again)) == []
    assert bench.replica.tell_write_outcome(guid(1)) is None
