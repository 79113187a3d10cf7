"""Birth of a cluster as a state machine: one cluster id at most, whatever happens (S0.7)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.errors import BirthRefusedError, StoreIdentityError
from raftstore.node.bootstrap.birth import Birth, Members
from raftstore.protocol.bootstrap import (
    BirthAccepted,
    BirthComplete,
    BirthInfo,
    BirthMessage,
    BirthProposal,
    BirthQuery,
)
from raftstore.types import NodeId, node_id, node_name

NAMES = ("n1", "n2", "n3")
FOUNDERS = tuple((name, f"{name}.example:4481") for name in NAMES)
OTHER_CLUSTER = b"another cluster!"


@dataclass
class FakeStore:
    """The part of a store that survives a crash; it refuses a second proposal
    as the real one does.
    """

    node: NodeId
    cluster_id: bytes = b""
    accepted_proposal: bytes = b""
    members: Members = ()
    proposals: list[bytes] = field(default_factory=list)
    """Every proposal ever made durable here."""

    def record_proposal(self, cluster_id: bytes, members: Members) -> None:
        """Accept one, ever."""
        known = (self.accepted_proposal, self.members)
        if self.accepted_proposal and known != (cluster_id, members):
            raise StoreIdentityError("another proposal was accepted before")
        if not self.accepted_proposal:
            self.proposals.append(cluster_id)
        self.accepted_proposal, self.members = cluster_id, members

    def record_birth(self, cluster_id: bytes, members: Members) -> None:
        """Belong to the cluster for ever."""
        assert self.cluster_id in {b"", cluster_id}
        self.record_proposal(cluster_id, members)
        self.cluster_id = cluster_id


class World:
    """Founders, and a network whose messages wait until they are delivered, repeated or lost."""

    def __init__(self, names: tuple[str, ...] = NAMES) -> None:
        self.founders = tuple(pair for pair in FOUNDERS if pair[0] in names)
        self.stores = {
            name: FakeStore(node_id(name, bytes([number]) * 16))
            for number, name in enumerate(names, 1)
        }
        self.mints = 0
        self.births = {name: self.new_birth(name) for name in names}
        self.waiting: list[tuple[str, str, BirthMessage]] = []
        """(from, to, message)."""

    def new_birth(self, name: str) -> Birth:
        """A process that starts on the store: all it knew before is forgotten."""
        self.mints += 1
        advertise = dict(FOUNDERS)[name]
        return Birth(self.stores[name], advertise, self.founders, self.mints.to_bytes(16, "big"))

    def restart(self, name: str) -> None:
        """Crash between two steps, and start again."""
        self.births[name] = self.new_birth(name)

    def tick(self, name: str) -> None:
        """A round of the runtime."""
        birth = self.births[name]
        birth.propose_if_ready()
        self.waiting += [(name, to, message) for to, message in birth.next_messages()]

    def deliver(self, at: int, *, keep: bool = False) -> None:
        """Deliver one waiting message; ``keep`` leaves a copy on the way."""
        sender, to, message = self.waiting[at] if keep else self.waiting.pop(at)
        answer = self.births[to].on_message(message)
        if answer is not None:
            self.waiting.append((to, sender, answer))
        self.check()

    def settle(self) -> None:
        """Rounds in which everything arrives, until nobody has anything new to say."""
        for _ in range(6):
            for name in self.births:
                self.tick(name)
            while self.waiting:
                self.deliver(0)

    def check(self) -> None:
        """S0.7: one proposal per store, one cluster in the world, born only if all accepted."""
        born = {store.cluster_id for store in self.stores.values()} - {b""}
        assert len(born) <= 1
        for store in self.stores.values():
            assert len(store.proposals) <= 1
            if born:
                assert {store.accepted_proposal} == born


def refused(birth: Birth, message: BirthMessage, text: str) -> None:
    """The founding is impossible, the error says why, and nothing was recorded."""
    assert isinstance(birth.store, FakeStore)
    before = (birth.store.cluster_id, birth.store.accepted_proposal, birth.store.members)
    with pytest.raises(BirthRefusedError, match=text):
        birth.on_message(message)
    assert before == (birth.store.cluster_id, birth.store.accepted_proposal, birth.store.members)


@pytest.mark.parametrize("names", [("n1",), NAMES[:2], NAMES])
def test_cluster_is_born_when_messages_flow(names: tuple[str, ...]) -> None:
    """All founders end in one cluster with the same members: ids and addresses."""
    world = World(names)
    world.settle()
    for name, store in world.stores.items():
        assert world.births[name].is_born
        assert store.members == tuple(
            (world.stores[each].node, dict(FOUNDERS)[each]) for each in names
        )
    assert len({store.cluster_id for store in world.stores.values()}) == 1


def test_only_the_lowest_name_speaks_first() -> None:
    """One proposer: the others ask and answer, and never start anything."""
    world = World()
    for _ in range(2):
        for name in NAMES[1:]:
            world.tick(name)
        assert all(isinstance(message, BirthQuery) for _, _, message in world.waiting)
        while world.waiting:
            world.deliver(0)
    assert not any(store.accepted_proposal for store in world.stores.values())
    world.tick("n1")
    assert world.waiting == [("n1", to, BirthQuery("n1")) for to in NAMES[1:]]


def test_proposal_on_its_way_is_no_foreign_cluster() -> None:
    """A founder that asks one that accepted already just waits for its own proposal."""
    world = World()
    store = world.stores["n2"]
    store.record_proposal(OTHER_CLUSTER, ((store.node, "elsewhere:1"),))
    info = world.births["n2"].on_message(BirthQuery("n3"))
    assert isinstance(info, BirthInfo)
    assert world.births["n3"].on_message(info) is None


@pytest.mark.parametrize("name", NAMES)
def test_empty_store_under_a_members_name_is_refused(name: str) -> None:
    """S0.1: whose cluster is born without it has lost its store, whatever its name."""
    world = World()
    world.settle()
    world.stores[name] = FakeStore(node_id(name, b"another store's."))
    world.restart(name)
    world.tick(name)
    asked = [to for _, to, message in world.waiting if isinstance(message, BirthQuery)]
    assert asked
    info = world.births[asked[0]].on_message(BirthQuery(name))
    assert isinstance(info, BirthInfo)
    refused(world.births[name], info, "already belongs to cluster")


def test_nobody_is_born_before_all_have_accepted() -> None:
    """A founder that is away holds the birth up: a minority never starts alone."""
    world = World()
    for _ in range(5):
        world.tick("n1")
        while world.waiting:
            _, to, message = world.waiting[0]
            if to == "n3" and not isinstance(message, BirthQuery):
                world.waiting.pop(0)
            else:
                world.deliver(0)
    assert world.stores["n2"].accepted_proposal
    assert not any(birth.is_born for birth in world.births.values())
    world.settle()
    assert all(birth.is_born for birth in world.births.values())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("tick"), st.sampled_from(NAMES)),
        st.tuples(st.just("restart"), st.sampled_from(NAMES)),
        st.tuples(st.sampled_from(["deliver", "repeat", "lose"]), st.integers(0, 1_000)),
    ),
    max_size=60,
)


@given(steps=STEPS)
def test_one_cluster_is_born_at_most_and_in_the_end_by_all(steps: list[tuple[str, object]]) -> None:
    """Messages lost, repeated and reordered, crashes between any two steps: still one cluster."""
    world = World()
    for action, what in steps:
        if action == "tick":
            world.tick(str(what))
        elif action == "restart":
            world.restart(str(what))
        elif world.waiting:
            assert isinstance(what, int)
            at = what % len(world.waiting)
            if action == "lose":
                world.waiting.pop(at)
            else:
                world.deliver(at, keep=action == "repeat")
        world.check()
    world.settle()
    assert all(birth.is_born for birth in world.births.values())
    world.check()


@pytest.mark.parametrize("crashed", NAMES)
def test_birth_is_completed_when_a_founder_crashes_after_any_step(crashed: str) -> None:
    """Given a founder that crashes after any step, its restart goes on from what was durable, and
    the birth completes.
    """
    for crash_after in range(14):
        world = World()
        steps = 0
        for _ in range(6):
            for name in NAMES:
                world.tick(name)
            while world.waiting:
                world.deliver(0)
                steps += 1
                if steps == crash_after:
                    world.restart(crashed)
        assert all(birth.is_born for birth in world.births.values()), crash_after


def test_proposal_stays_the_same_when_the_proposer_restarts() -> None:
    """S0.7: the id minted by the new process is not used, the durable proposal is repeated."""
    world = World()
    world.tick("n1")
    while world.waiting:
        world.deliver(0)
    world.births["n1"].propose_if_ready()
    first = world.births["n1"].next_messages()
    world.restart("n1")
    world.births["n1"].propose_if_ready()
    assert world.births["n1"].next_messages() == first
    assert isinstance(first[0][1], BirthProposal)


def test_second_proposal_is_refused_and_named() -> None:
    """S0.7: a founder accepts at most one proposal; the refusal says which it has."""
    world = World()
    n2 = world.births["n2"]
    members = tuple((store.node, dict(FOUNDERS)[name]) for name, store in world.stores.items())
    mine = bytes(15) + b"\x07"
    accepted = BirthAccepted(mine, world.stores["n2"].node)
    assert n2.on_message(BirthProposal(mine, members)) == accepted
    assert n2.on_message(BirthProposal(mine, members)) == accepted
    refused(n2, BirthProposal(OTHER_CLUSTER, members), mine.hex())
    moved = ((members[0][0], "elsewhere:1"), *members[1:])
    refused(n2, BirthProposal(mine, moved), mine.hex())
    assert world.stores["n2"].proposals == [mine]


def test_born_node_refuses_a_proposal_and_stays_where_it_is() -> None:
    """A stray founder cannot move a cluster's member, nor make it stumble."""
    world = World()
    world.settle()
    store = world.stores["n3"]
    text = f"{store.cluster_id.hex()}.*{OTHER_CLUSTER.hex()}"
    refused(world.births["n3"], BirthProposal(OTHER_CLUSTER, store.members), text)


@pytest.mark.parametrize("born", [True, False])
def test_founder_of_another_cluster_is_refused_and_named(born: bool) -> None:
    """Before proposing, members are asked; one that belongs to another cluster ends it (S0.7)."""
    world = World()
    store = world.stores["n2"]
    store.record_proposal(OTHER_CLUSTER, ((store.node, "elsewhere:1"),))
    if born:
        store.record_birth(OTHER_CLUSTER, store.members)
    info = world.births["n2"].on_message(BirthQuery("n1"))
    assert isinstance(info, BirthInfo)
    refused(world.births["n1"], info, f"n2 .*already belongs to cluster {OTHER_CLUSTER.hex()}")
    world.births["n1"].propose_if_ready()
    assert world.stores["n1"].proposals == []


def test_node_that_nobody_named_is_refused() -> None:
    """An address that leads to another node than configured is a mistake to correct."""
    world = World()
    stray = BirthInfo(node_id("n9", bytes(16)), "n9.example:4481", b"", b"")
    refused(world.births["n1"], stray, r"calls itself 'n9'.*n1, n2, n3.*correct it")


def test_proposal_with_other_names_is_refused() -> None:
    """Founders that were given different lists do not found a cluster together."""
    world = World()
    members = tuple((node_id(name, bytes(16)), "a:1") for name in ("n2", "n4"))
    refused(world.births["n2"], BirthProposal(OTHER_CLUSTER, members), "n2, n4.*n1, n2, n3")


@pytest.mark.parametrize("cluster_id", [b"", b"short", b"longer than sixteen", bytes(16)])
def test_proposal_of_an_impossible_cluster_is_refused(cluster_id: bytes) -> None:
    """At most one is ever accepted: a broken one would make the store useless for good."""
    world = World()
    members = tuple((store.node, "host:1") for store in world.stores.values())
    refused(world.births["n2"], BirthProposal(cluster_id, members), "no cluster id")
    assert world.stores["n2"].proposals == []


def test_proposal_for_another_store_is_refused() -> None:
    """S0.1: the store that was asked is gone; its successor is another node."""
    world = World()
    members = tuple((node_id(name, b"x" * 16), "a:1") for name in NAMES)
    refused(world.births["n2"], BirthProposal(OTHER_CLUSTER, members), "another store for n2")


def test_words_about_another_proposal_change_nothing() -> None:
    """Late acceptances and completions count only for the proposal they name."""
    world = World()
    world.tick("n1")
    while world.waiting:
        world.deliver(0)
    n1, n2 = world.births["n1"], world.births["n2"]
    n1.propose_if_ready()
    for store in world.stores.values():
        assert n1.on_message(BirthAccepted(OTHER_CLUSTER, store.node)) is None
    assert n1.on_message(BirthAccepted(b"", world.stores["n3"].node)) is None
    assert n2.on_message(BirthComplete(OTHER_CLUSTER)) is None
    assert n2.on_message(BirthComplete(b"")) is None
    assert not n1.is_born
    assert not n2.is_born


def test_acceptance_of_a_node_that_is_no_founder_does_not_count() -> None:
    """Only the members' own acceptances complete a birth."""
    world = World()
    world.tick("n1")
    while world.waiting:
        world.deliver(0)
    n1 = world.births["n1"]
    n1.propose_if_ready()
    proposal = world.stores["n1"].accepted_proposal
    for name in ("n2", "n3", "n4"):
        n1.on_message(BirthAccepted(proposal, node_id(name, b"y" * 16)))
    n1.on_message(BirthAccepted(proposal, world.stores["n2"].node))
    assert not n1.is_born


def test_completion_is_repeated_for_who_missed_it() -> None:
    """The proposer notifies every other member as long as the runtime asks."""
    world = World()
    world.settle()
    born = world.stores["n1"].cluster_id
    assert world.births["n1"].next_messages() == [(name, BirthComplete(born)) for name in NAMES[1:]]
    assert world.births["n2"].next_messages() == []


def test_member_that_missed_the_completion_learns_of_it_by_asking() -> None:
    """A founder that was away longer than the completion was repeated is not left unborn."""
    world = World()
    while not world.births["n1"].is_born:
        world.tick("n1")
        while world.waiting:
            world.deliver(0)
    world.waiting.clear()
    world.restart("n3")
    assert not world.births["n3"].is_born
    world.tick("n3")
    assert world.waiting == [("n3", to, BirthQuery("n3")) for to in NAMES[:2]]
    while world.waiting:
        world.deliver(0)
    assert world.stores["n3"].cluster_id == world.stores["n1"].cluster_id


def test_born_node_needs_no_list_of_founders() -> None:
    """The list is used at the first start only; later messages of a birth do no harm."""
    world = World()
    world.settle()
    for store in world.stores.values():
        birth = Birth(store, "moved:1", (), bytes(16))
        assert birth.is_born
        assert not birth.is_proposer
        assert birth.next_messages() == []
        birth.propose_if_ready()
        for other in world.stores.values():
            assert birth.on_message(BirthAccepted(store.cluster_id, other.node)) is None
        info = birth.on_message(BirthQuery("n1"))
        assert info == BirthInfo(store.node, "moved:1", store.cluster_id, store.cluster_id)
        assert node_name(store.node) in NAMES
