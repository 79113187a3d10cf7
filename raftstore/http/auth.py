"""Authorization over HTTP (GAP-11): a file of users with roles, and the token of nodes.

The file has lines ``name:role:secret``; ``#`` begins a comment. Roles are read, write and admin,
each with the rights of those before it. ``secret`` is made of a password (HTTP Basic) or of a token
(HTTP Bearer), and reveals neither::

    ann:admin:scrypt$16384$8$1$<salt>$<hash>
    job:write:sha256$<hash>

Tokens are long and random, so a plain digest protects them; passwords are not, so theirs is slow.
What was verified is remembered by its digest, so that only the first request pays for it.
The file is read again when it changes; the token of nodes is not.
"""

from __future__ import annotations

import asyncio
import binascii
import hashlib
import hmac
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from raftstore.config import HttpSettings
from raftstore.errors import AuthenticationError, ConfigError, ForbiddenError
from raftstore.http.errors import too_many_logins
from raftstore.http.login_pauses import LoginPauses, whole_seconds
from raftstore.http.roles import Role

logger = logging.getLogger("raftstore.http")
USER_ROLES: Final = (Role.READ, Role.WRITE, Role.ADMIN)
"""In the order of their rights."""
SCRYPT_N, SCRYPT_R, SCRYPT_P = 16_384, 8, 1
SALT_BYTES: Final = 16
LOOK_INTERVAL_S: Final = 1.0
"""Between two looks at the file of users."""
REMEMBERED_MAX: Final = 1_024
VERIFICATIONS_WAITING_MAX: Final = 64
"""Passwords being checked or waiting for it; a login beyond is asked to come again."""
VERIFICATIONS_AT_ONCE: Final = 2
"""Each costs tens of milliseconds of a core: guessing passwords must not take all of them."""


@dataclass(frozen=True, slots=True)
class User:
    """One line of the file."""

    name: str
    role: Role
    secret: str


def password_entry(name: str, role: Role, password: str, salt: bytes) -> str:
    """Return the line of a user with a password; ``salt`` is random."""
    digest = _scrypt(password, salt, SCRYPT_N, SCRYPT_R, SCRYPT_P)
    parts = ("scrypt", str(SCRYPT_N), str(SCRYPT_R), str(SCRYPT_P), salt.hex(), digest.hex())
    return f"{name}:{role.value}:{'$'.join(parts)}"


def token_entry(name: str, role: Role, token: str) -> str:
    """Return the line of a user with a token."""
    return f"{name}:{role.value}:sha256${_digest(token)}"


def read_users(file: Path) -> tuple[User, ...]:
    """Read the file; ConfigError names the line at fault and never its secret."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"http.users_file {file} cannot be read: {error}") from error
    users: dict[str, User] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, _, rest = text.partition(":")
        role, _, secret = rest.partition(":")
        known = [r for r in USER_ROLES if r.value == role]
        if not name or name in users or not known or not _is_secret(secret):
            raise ConfigError(
                f"line {number} of http.users_file {file} is not name:role:secret with a name of "
                "its own, a role of read, write, admin and a secret of `raftstore user add`"
            )
        users[name] = User(name, known[0], secret)
    if not users:
        raise ConfigError(
            f"http.users_file {file} names no user; add one with `raftstore user add`"
        )
    return tuple(users.values())


def read_token(file: Path) -> str:
    """Read the token of nodes."""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"http.node_token_file {file} cannot be read: {error}") from error
    if len(token) < 16:
        raise ConfigError(f"the token in http.node_token_file {file} is shorter than 16 characters")
    return token


class UserFile:
    """The users of a file that may change while it is read again and again."""

    def __init__(self, file: Path) -> None:
        """Read the file; ConfigError when it cannot be used."""
        self._file = file
        self._stamp = _stamp_of(file)
        self._next_look_s = 0.0
        self.users = read_users(file)

    def has_changed(self, now_s: float) -> bool:
        """Look at the file, once in `LOOK_INTERVAL_S`; whether there are other ``users`` now.

        A file that cannot be used is reported in the log, and those of before stay: its editor must
        lock nobody out, nor let everybody in.
        """
        if now_s < self._next_look_s:
            return False
        self._next_look_s = now_s + LOOK_INTERVAL_S
        stamp = _stamp_of(self._file)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            users = read_users(self._file)
        except ConfigError as error:
            logger.warning("users file refused, the previous ones stay: %s", error)
            return False
        logger.info("read again: %d users of %s", len(users), self._file)
        self.users = users
        return True


def _stamp_of(file: Path) -> tuple[int, ...]:
    """A stamp that changes when the file does; empty while there is none."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


class _Checking:
    """A password that is being checked, for all requests that came with it meanwhile."""

    def __init__(self, found: asyncio.Future[bool]) -> None:
        self._found = found
        self._waiting = 0

    async def result(self) -> bool:
        """Whether it is right; when nobody waits any more and it has not begun, it never does."""
        self._waiting += 1
        try:
            return await asyncio.shield(self._found)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._found.cancel()


class Guard:
    """Decides who may do what; without a users file everybody may do everything."""

    def __init__(self, settings: HttpSettings) -> None:
        """Read the files; ConfigError when one cannot be used."""
        self._file = UserFile(Path(settings.users_file)) if settings.users_file else None
        self._users: dict[str, User] = {}
        self._tokens: dict[str, User] = {}
        self._node_token = ""
        self._verified: dict[str, User] = {}
        self._under_way: dict[str, _Checking] = {}
        self._pauses = LoginPauses()
        # A request whose time is up waits no longer, but its thread runs on: threads count.
        self._verifiers = ThreadPoolExecutor(VERIFICATIONS_AT_ONCE, "raftstore-password")
        self.is_open = self._file is None
        if settings.node_token_file:
            self._node_token = read_token(Path(settings.node_token_file))
        if self._file is not None:
            self._take(self._file.users)

    def _take(self, users: Iterable[User]) -> None:
        """Go by these users from now on; what was verified of others is forgotten."""
        self._users.clear()
        self._tokens.clear()
        for user in users:
            kind, _, digest = user.secret.partition("$")
            if kind == "sha256":
                self._tokens[digest] = user
            else:
                self._users[user.name] = user
        known = self._verified.items()
        self._verified = {d: user for d, user in known if self._users.get(user.name) == user}

    async def check(self, authorization: str | None, role: Role | None, address: str = "") -> None:
        """Raise AuthenticationError or ForbiddenError unless the request may have this role.

        HttpError (429) when so many logins failed from its ``address``, or by its name, that this
        one has to wait.
        """
        if role is None or (self.is_open and not self._node_token):
            return
        if role is Role.NODE:
            self._check_node(authorization)
            return
        if self._file is None:
            return
        if self._file.has_changed(asyncio.get_running_loop().time()):
            self._take(self._file.users)
        user = await self._user(authorization, address)
        if USER_ROLES.index(user.role) < USER_ROLES.index(role):
            raise ForbiddenError(
                f"{user.name} has the role {user.role.value}, this needs {role.value}"
            )

    def _check_node(self, authorization: str | None) -> None:
        """Nodes post with their token alone: a user is no witness of a node's life."""
        if not self._node_token:
            raise ForbiddenError("only nodes may post this, and no http.node_token_file is set")
        kind, _, token = (authorization or "").partition(" ")
        if kind.lower() != "bearer":
            raise AuthenticationError("this needs the token of the nodes: Authorization: Bearer")
        if not hmac.compare_digest(_digest(token.strip()), _digest(self._node_token)):
            raise AuthenticationError("the token is not that of the nodes")

    async def _user(self, authorization: str | None, address: str) -> User:
        kind, _, content = (authorization or "").partition(" ")
        content = content.strip()
        if kind.lower() == "bearer":
            found = self._tokens.get(_digest(content))
            if found is None:
                raise AuthenticationError("the token is not known")
            return found
        if kind.lower() != "basic":
            raise AuthenticationError("this needs a user: HTTP Basic, or Bearer with a token")
        remembered = self._verified.get(_digest(content))
        if remembered is not None:
            return remembered
        return await self._verify(content, address)

    async def _verify(self, content: str, address: str) -> User:
        try:
            name, colon, password = binascii.a2b_base64(content).decode().partition(":")
        except ValueError as error:
            raise AuthenticationError("the Basic credentials are no base64 of text") from error
        user = self._users.get(name) if colon else None
        digest = _digest(content)
        # Several first requests of one user wait for one verification.
        checking = self._under_way.get(digest)
        if checking is None:
            checking = self._begin(name, password, user, digest, address)
        is_right = await checking.result()
        # The file may have changed meanwhile.
        if not is_right or user is None or self._users.get(name) != user:
            raise AuthenticationError("the name or the password is wrong")
        return user

    def _begin(
        self, name: str, password: str, user: User | None, digest: str, address: str
    ) -> _Checking:
        loop = asyncio.get_running_loop()
        left_s = self._pauses.left_s(address, name, loop.time())
        if left_s > 0:
            raise too_many_logins("too many logins have failed", whole_seconds(left_s))
        if len(self._under_way) >= VERIFICATIONS_WAITING_MAX:
            raise too_many_logins("too many logins are being checked", "1")
        self._pauses.charge(address, name, loop.time())
        # A name that is unknown takes as long as a wrong password: it is not to be found out.
        secret = _NOBODY if user is None else user.secret
        found = loop.run_in_executor(self._verifiers, _is_password, password, secret)
        checking = self._under_way[digest] = _Checking(found)

        def done(_: asyncio.Future[bool]) -> None:
            del self._under_way[digest]
            if user is None or found.cancelled() or found.exception() or not found.result():
                return
            self._pauses.refund(address, name)
            if self._users.get(name) != user:
                return
            if len(self._verified) >= REMEMBERED_MAX:
                self._verified.pop(next(iter(self._verified)))
            self._verified[digest] = user

        found.add_done_callback(done)
        return checking


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, dklen=32)


def _is_secret(secret: str) -> bool:
    kind, *parts = secret.split("$")
    try:
        if kind == "sha256":
            return len(parts) == 1 and len(bytes.fromhex(parts[0])) == 32
        if kind != "scrypt" or len(parts) != 5:
            return False
        n, r, p = map(int, parts[:3])
        salt, digest = map(bytes.fromhex, parts[3:])
        # What is not in these ranges takes more memory or time than a login may.
        return (
            2**10 <= n <= 2**16
            and n & (n - 1) == 0
            and r == 8
            and 1 <= p <= 4
            and bool(salt and len(digest) == 32)
        )
    except ValueError:
        return False


def _is_password(password: str, secret: str) -> bool:
    _, n, r, p, salt, digest = secret.split("$")
    found = hashlib.scrypt(
        password.encode(),
        salt=bytes.fromhex(salt),
        n=int(n),
        r=int(r),
        p=int(p),
        maxmem=256 * 1024 * 1024,
        dklen=32,
    )
    return hmac.compare_digest(found, bytes.fromhex(digest))


_NOBODY: Final = f"scrypt${SCRYPT_N}${SCRYPT_R}${SCRYPT_P}${'00' * SALT_BYTES}${'00' * 32}"
