"""A unique index: each user has one address, and no two have the same."""

from __future__ import annotations

import msgspec

import raftstore


class Claim(msgspec.Struct, frozen=True, tag=True):
    """The user's address from now on; the former one is free."""

    user: str
    address: str


class Leave(msgspec.Struct, frozen=True, tag=True):
    """The user has none any more."""

    user: str


class UniqueIndex(raftstore.StateMachine):
    """Two keys for each entry: by user and by address."""

    commands = raftstore.codec(Claim | Leave)
    queries = answers = raftstore.codec(str)

    def apply(self, command: Claim | Leave, context: raftstore.CommandContext) -> bytes:
        user = b"user/" + command.user.encode()
        former = context.state.get(user)
        if isinstance(command, Claim):
            address = b"address/" + command.address.encode()
            owner = context.state.get(address)
            if owner is not None and owner.decode() != command.user:
                raise raftstore.RejectedError(f"{command.address} is {owner.decode()}'s")
            self.free(context, former)
            context.state.put(address, command.user.encode())
            context.state.put(user, address)
        else:
            self.free(context, former)
            context.state.delete(user)
        return b""

    def free(self, context: raftstore.CommandContext, address: bytes | None) -> None:
        """The address may be claimed by anybody again."""
        if address is not None:
            context.state.delete(address)

    def query(self, request: str, context: raftstore.QueryContext) -> str:
        """The owner of an address; empty: it is free."""
        return (context.state.get(b"address/" + request.encode()) or b"").decode()
