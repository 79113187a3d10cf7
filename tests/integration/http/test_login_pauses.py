"""Guessers wait longer and longer; who is right, or has been before, does not wait for them."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest

from raftstore.config import HttpSettings
from raftstore.errors import AuthenticationError
from raftstore.http import auth, login_pauses
from raftstore.http.auth import Guard, password_entry, token_entry
from raftstore.http.errors import HttpError
from raftstore.http.login_pauses import BY_ADDRESS, BY_NAME, LoginPauses
from raftstore.http.roles import Role


def basic(name: str, password: str) -> str:
    """The header of a name and a password."""
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


@pytest.fixture
def guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Guard:
    """Users ann and bob with passwords, job with a token; checking costs nothing."""
    users = tmp_path / "users"
    users.write_text(
        "\n".join(
            [
                password_entry("ann", Role.READ, "secret", b"s" * 16),
                password_entry("bob", Role.READ, "häsel", b"t" * 16),
                token_entry("job", Role.READ, "token-of-job"),
            ]
        )
    )
    monkeypatch.setattr(auth, "_is_password", lambda password, _: password in ("secret", "häsel"))
    return Guard(HttpSettings(users_file=str(users)))


async def guess(guard: Guard, times: int, *, name: str = "ann", address: str = "6.6.6.6") -> int:
    """Wrong logins; how many were looked at."""
    looked_at, refusals = 0, []
    for number in range(times):
        try:
            await guard.check(basic(name, f"guess{number}"), Role.READ, address)
        except AuthenticationError:
            looked_at += 1
        except HttpError as error:
            refusals.append((error.code, int(error.headers["Retry-After"]) >= 1))
    assert set(refusals) <= {("too_many_logins", True)}
    return looked_at


def test_guesser_has_to_wait_and_right_users_do_not(guard: Guard) -> None:
    """Remembered credentials, tokens, and a user who comes from elsewhere are served at once."""

    async def run() -> None:
        await guard.check(basic("ann", "secret"), Role.READ, "6.6.6.6")
        assert await guess(guard, 100, name="bob") == BY_ADDRESS.free + 1
        await guard.check(basic("ann", "secret"), Role.READ, "6.6.6.6")
        await guard.check("Bearer token-of-job", Role.READ, "6.6.6.6")
        await guard.check(basic("bob", "häsel"), Role.READ, "7.7.7.7")

    asyncio.run(run())


def test_right_password_from_an_address_that_guesses_has_to_wait(guard: Guard) -> None:
    """An answer without the pause would show a guesser which password is right."""

    async def run() -> None:
        await guess(guard, 20)
        with pytest.raises(HttpError, match="too many logins have failed"):
            await guard.check(basic("ann", "secret"), Role.READ, "6.6.6.6")

    asyncio.run(run())


def test_name_that_many_addresses_guess_has_a_short_pause(guard: Guard) -> None:
    """Given a name that many addresses guess, its user still logs in from the address of an earlier
    login.
    """

    async def run() -> None:
        await guard.check(basic("ann", "secret"), Role.READ, "7.7.7.7")
        looked_at = 0
        for number in range(40):
            looked_at += await guess(guard, 1, address=f"6.6.6.{number}")
        assert looked_at == BY_NAME.free + 1
        guard._verified.clear()  # as if she had been forgotten
        await guard.check(basic("ann", "secret"), Role.READ, "7.7.7.7")

    asyncio.run(run())


def test_first_requests_of_a_user_at_once_are_one_login(guard: Guard) -> None:
    """A page or a pool opens many connections: none of them is a guess."""

    async def run() -> None:
        wanted = [guard.check(basic("ann", "secret"), Role.READ, "7.7.7.7") for _ in range(50)]
        await asyncio.gather(*wanted)
        assert await guess(guard, 20, address="7.7.7.7") == BY_ADDRESS.free + 1

    asyncio.run(run())


def test_logins_that_wait_for_their_check_are_bounded(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From thousands of addresses at once: they are asked to come again, without a check."""
    monkeypatch.setattr(auth, "VERIFICATIONS_WAITING_MAX", 8)

    async def run() -> None:
        asked = [
            guess(guard, 1, name=f"user{number}", address=f"6.6.{number}.6")
            for number in range(200)
        ]
        assert sum(await asyncio.gather(*asked)) == 8

    asyncio.run(run())


def test_pause_doubles_up_to_its_longest_and_is_forgotten() -> None:
    """Bounded in time and in what is remembered; an IPv6 guesser has a whole /64."""
    pauses, now_s, waits = LoginPauses(), 0.0, []
    for number in range(30):
        pauses.charge(f"fe80:1::{number:x}", f"name{number}", now_s)
        waits.append(pauses.left_s("fe80:1::ffff", "ann", now_s))
    free = BY_ADDRESS.free
    assert waits[: free + 3] == [0.0] * free + [1.0, 2.0, 4.0]
    assert waits[-1] == BY_ADDRESS.longest_s
    assert pauses.left_s("fe80:1::1", "ann", 100.0) == BY_ADDRESS.longest_s - 100.0
    assert pauses.left_s("fe80:2::1", "ann", 0.0) == 0.0
    late_s = login_pauses.FORGOTTEN_AFTER_S + 1
    assert pauses.left_s("fe80:1::1", "ann", late_s) == 0.0
    for number in range(login_pauses.ENTRIES_MAX + 10):
        pauses.charge(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", str(number), late_s)
    assert len(pauses._by_address) == len(pauses._by_name) == login_pauses.ENTRIES_MAX


def test_newest_failures_are_remembered_where_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory is bounded; those that guess now have to wait."""
    monkeypatch.setattr(login_pauses, "ENTRIES_MAX", 2)
    pauses = LoginPauses()
    for address in ("1.1.1.1", "2.2.2.2", "3.3.3.3"):
        for _ in range(BY_ADDRESS.free + 1):
            pauses.charge(address, f"of {address}", 1.0)
    left = [pauses.left_s(f"{n}.{n}.{n}.{n}", "other", 1.0) > 0 for n in (1, 2, 3)]
    assert left == [False, True, True]
    for _ in range(4):
        pauses.charge("3.3.3.3", "of 3.3.3.3", 1.0)
    for name in ("ann", "bob", "eve"):
        pauses.refund("3.3.3.3", name)
    assert [pauses.left_s("3.3.3.3", name, 1.0) > 0 for name in ("ann", "bob", "eve")] == [
        True, False, False,
    ]  # fmt: skip
