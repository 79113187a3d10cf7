"""Where a node's settings come from: flag > environment > file > default, each with its origin.

A setting has one name everywhere: ``[section] key`` in the TOML file, ``RAFTSTORE_SECTION_KEY`` in
the environment, "section.key" in messages; sections and keys are those of ``raftstore.config``
(the node's own are in section ``node``). Durations are written ``"2s"`` and sizes ``"64MiB"``; a
bare number counts the unit in the key's name. An unknown key is an error with a suggestion:
a setting that is silently ignored is worse than a node that does not start.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

from raftstore.config import NodeSettings
from raftstore.errors import ConfigError
from raftstore.node.setting_rules import (
    check_number,
    check_settings,
    format_number,
    is_duration,
    is_size,
)
from raftstore.node.units import parse_duration_ms, parse_size_bytes

NODE_SECTION: Final = "node"
ENVIRONMENT_PREFIX: Final = "RAFTSTORE_"
CLIENT_VARIABLES: Final = ("RAFTSTORE_ENDPOINTS", "RAFTSTORE_TIMEOUT", "RAFTSTORE_CONFIG")
"""Read by the command line, not by a node; known here so that a node does not refuse them."""
DEFAULT_ORIGIN: Final = "default"
INITIAL_CLUSTER_KEY: Final = "node.initial_cluster"
MACHINES_PATH_KEY: Final = "machines.path"
"""May be a list in a settings file."""
JOIN_KEY: Final = "node.join"

SettingType = str | int | bool | tuple[tuple[str, str], ...]
"""What a setting may hold; the tuple is the initial cluster."""

_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")

_UNSET: Final = ""
"""Default of the two settings that have none: the node's name and its directory."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting with its value and where that came from (``config show --origin``)."""

    key: str
    value: SettingType
    origin: str

    def text(self) -> str:
        """The value as it would be written in the file, without quotes; of a token, which holds a
        secret, only that there is one."""
        if self.key == JOIN_KEY and self.value:
            return "(a token)"
        if isinstance(self.value, bool):
            return "true" if self.value else "false"
        if isinstance(self.value, int):
            return format_number(self.key, self.value)
        if isinstance(self.value, tuple):
            return ",".join(f"{name}={endpoint}" for name, endpoint in self.value)
        return self.value


def environment_variable(key: str) -> str:
    """The variable of a setting: ``heartbeat.window_ms`` is ``RAFTSTORE_HEARTBEAT_WINDOW_MS``."""
    return ENVIRONMENT_PREFIX + key.replace(".", "_").upper()


def resolve_settings(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
    flags: Mapping[str, tuple[str, SettingType]] = MappingProxyType({}),
) -> dict[str, Setting]:
    """Every setting with its origin, in the order of ``raftstore.config``.

    ``flags`` maps a key to the flag's name and value: ``{"node.listen": ("--listen", "…")}``.
    Raises ConfigError for anything unknown, of the wrong type or out of range; what contradicts
    other settings is checked by ``node_settings``.
    """
    settings = {key: Setting(key, value, DEFAULT_ORIGIN) for key, value in _defaults()}
    if file is not None:
        for key, raw in _read_file(file, known=tuple(settings)):
            settings[key] = _setting(key, raw, origin=f"file {file}", default=settings[key].value)
    for key, variable, raw in _read_environment(environment, known=tuple(settings)):
        origin = f"environment {variable}"
        settings[key] = _setting(key, raw, origin=origin, default=settings[key].value)
    for key, (flag, raw) in flags.items():
        settings[key] = _setting(key, raw, origin=f"flag {flag}", default=settings[key].value)
    return settings


def node_settings(settings: Mapping[str, Setting]) -> NodeSettings:
    """Build and check the settings of a node. Raises ConfigError; nothing was started."""
    for key, remedy in (("node.name", "--id"), ("node.data_dir", "--data-dir")):
        if settings[key].value == _UNSET:
            raise ConfigError(
                f"{key} is not set; pass {remedy}, set {environment_variable(key)}, or write it "
                "into the file given with --config"
            )
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(NodeSettings):
        section = _section(field)
        if section is not None:
            values = {
                inner.name: settings[f"{field.name}.{inner.name}"].value
                for inner in dataclasses.fields(section)
            }
            arguments[field.name] = section(**values)
        else:
            arguments[field.name] = settings[f"{NODE_SECTION}.{field.name}"].value
    node = NodeSettings(**arguments)
    check_settings(node)
    return node


def _defaults() -> Iterator[tuple[str, SettingType]]:
    """Every key with its default, sections of ``NodeSettings`` flattened."""
    for field in dataclasses.fields(NodeSettings):
        section = _section(field)
        if section is not None:
            for inner in dataclasses.fields(section):
                yield f"{field.name}.{inner.name}", cast(SettingType, inner.default)
        else:
            has_default = field.default is not dataclasses.MISSING
            default = cast(SettingType, field.default) if has_default else _UNSET
            yield f"{NODE_SECTION}.{field.name}", default


def _section(field: dataclasses.Field[Any]) -> Any | None:
    """The class of settings behind a field of ``NodeSettings``; None for the node's own ones."""
    factory: object = field.default_factory
    return factory if isinstance(factory, type) else None


def _read_file(file: Path, *, known: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read the settings file {file}: {(error.strerror or str(error)).lower()}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    for section, entries in content.items():
        # A dotted name without a section, or a section that is not a table, is unknown as well.
        if not isinstance(entries, dict):
            raise _unknown_key(section, known=known, where=f"file {file}")
        for name, raw in entries.items():
            key = f"{section}.{name}"
            if key not in known:
                raise _unknown_key(key, known=known, where=f"file {file}")
            yield key, raw


def _read_environment(
    environment: Mapping[str, str], *, known: tuple[str, ...]
) -> Iterator[tuple[str, str, str]]:
    by_variable = {environment_variable(key): key for key in known}
    sections = tuple(
        dict.fromkeys(f"{ENVIRONMENT_PREFIX}{key.partition('.')[0].upper()}_" for key in known)
    )
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in CLIENT_VARIABLES:
            continue
        key = by_variable.get(variable)
        if key is not None:
            yield key, variable, environment[variable]
            continue
        # Other programs may have RAFTSTORE_ variables of their own: only what reads like a
        # setting is refused.
        close = difflib.get_close_matches(variable, by_variable, n=1, cutoff=0.85)
        if close or variable.startswith(sections):
            raise _unknown_key(variable, known=tuple(by_variable), where="environment")


def _unknown_key(key: str, *, known: tuple[str, ...], where: str) -> ConfigError:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if not close:
        # A right key in the wrong section, or without one, is the other common slip.
        close = [name for name in known if name.partition(".")[2] == key.rpartition(".")[2]][:1]
    hint = f"did you mean {close[0]}?" if close else "`raftstore config show` lists every key"
    return ConfigError(f"unknown setting {key} ({where}); {hint}")


def _setting(key: str, raw: object, *, origin: str, default: SettingType) -> Setting:
    value: SettingType
    if key == INITIAL_CLUSTER_KEY:
        value = _initial_cluster(raw, origin=origin)
    elif isinstance(default, bool):
        value = _boolean(key, raw, origin=origin)
    elif isinstance(default, int):
        value = _number(key, raw, origin=origin)
        check_number(key, value, origin=origin)
    elif key == MACHINES_PATH_KEY and isinstance(raw, list) and all(map(_is_text, raw)):
        value = ",".join(raw)
    elif isinstance(raw, str):
        value = raw
    else:
        raise ConfigError(f"{key} is {raw!r} ({origin}); write a string")
    return Setting(key, value, origin)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _boolean(key: str, raw: object, *, origin: str) -> bool:
    words = {"true": True, "1": True, "false": False, "0": False}
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.lower() in words:
        return words[raw.lower()]
    raise ConfigError(f"{key} is {raw!r} ({origin}); write true or false")


def _number(key: str, raw: object, *, origin: str) -> int:
    # bool is an int to Python, never to a reader of a settings file.
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, str):
        if _WHOLE_NUMBER.fullmatch(raw.strip()):
            return int(raw)
        try:
            if is_duration(key):
                return parse_duration_ms(raw)
            if is_size(key):
                return parse_size_bytes(raw)
        except ValueError as error:
            raise ConfigError(f"{key}: {error} ({origin})") from error
    unit = 'a duration such as "2s"' if is_duration(key) else "a whole number"
    unit = 'a size such as "64MiB"' if is_size(key) else unit
    raise ConfigError(f"{key} is {raw!r} ({origin}); write {unit}")


def _initial_cluster(raw: object, *, origin: str) -> tuple[tuple[str, str], ...]:
    if isinstance(raw, tuple):
        return raw
    if isinstance(raw, dict):
        raw = ",".join(f"{name}={endpoint}" for name, endpoint in raw.items())
    if not isinstance(raw, str):
        raise ConfigError(
            f"{INITIAL_CLUSTER_KEY} is {raw!r} ({origin}); write n1=host:port,n2=host:port,…"
        )
    members = []
    for part in filter(None, (part.strip() for part in raw.split(","))):
        name, equals, endpoint = part.partition("=")
        if not equals:
            raise ConfigError(
                f"{INITIAL_CLUSTER_KEY} has the member {part!r} ({origin}); write name=host:port"
            )
        members.append((name.strip(), endpoint.strip()))
    return tuple(members)
