"""A ledger: accounts of one book, money that is paid in, and transfers that never overdraw."""

from __future__ import annotations

import msgspec

import raftstore


class PayIn(msgspec.Struct, frozen=True, tag=True):
    """Money from outside."""

    account: str
    amount: int


class Transfer(msgspec.Struct, frozen=True, tag=True):
    """Money from one account to another."""

    source: str
    target: str
    amount: int


class Ledger(raftstore.StateMachine):
    """The key of commands names the book; an account is a key of the state."""

    commands = raftstore.codec(PayIn | Transfer)
    results = raftstore.codec(int)
    answers = raftstore.codec(int)

    def apply(self, command: PayIn | Transfer, context: raftstore.CommandContext) -> int:
        """The balance afterwards of the account that is paid in to, or from."""
        if command.amount <= 0:
            raise raftstore.RejectedError(f"an amount of {command.amount}")
        if isinstance(command, PayIn):
            return self.add(context, command.account, command.amount)
        if self.balance(context, command.source) < command.amount:
            raise raftstore.RejectedError(f"{command.source} has less than {command.amount}")
        self.move(context, command)
        return self.balance(context, command.source)

    def move(self, context: raftstore.CommandContext, command: Transfer) -> None:
        """Take it and give it."""
        self.add(context, command.source, -command.amount)
        self.add(context, command.target, command.amount)

    def add(self, context: raftstore.CommandContext, account: str, amount: int) -> int:
        """Change one balance, and return it."""
        after = self.balance(context, account) + amount
        context.state.put(b"%b/%b" % (context.key, account.encode()), b"%d" % after)
        return after

    @staticmethod
    def balance(context: raftstore.CommandContext, account: str) -> int:
        """Of one account."""
        return int(context.state.get(b"%b/%b" % (context.key, account.encode())) or 0)

    def query(self, request: bytes, context: raftstore.QueryContext) -> int:
        """All money of the book."""
        book = context.state.range(context.key + b"/", context.key + b"0", limit=100_000)
        return sum(int(balance) for _, balance in book)
