"""State machines that a run names: ``module:Class[=module:workload[,module:check]]``."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from jepsen_like.workload.channelsets import ChannelSet, ChannelSets
from jepsen_like.workload.recipe_clients import RECIPE_CLIENTS
from raftstore.client.machines.code import load
from raftstore.errors import ArgumentError, UnknownMachineError
from raftstore.machine import StateMachine
from raftstore.node.settings import MACHINES_PATH_KEY, environment_variable

RECIPES: Final = "recipes"
"""Stands for all machines of ``raftstore.recipes``."""


def channelsets_of(names: Iterable[str], paths: Sequence[Path] = ()) -> ChannelSets:
    """The workload of a run with these machines; ArgumentError says what cannot be had.

    ``paths``: directories with modules that are not installed, here and on the nodes.
    """
    for path in reversed(paths):
        if str(path.resolve()) not in sys.path:
            sys.path.insert(0, str(path.resolve()))
    sets: list[ChannelSet] = []
    given = [each for text in names for each in (RECIPE_CLIENTS if text == RECIPES else [text])]
    for text in given:
        machine_name, workload_name, check_name = _named(text)
        try:
            machine = load(machine_name)
        except UnknownMachineError as error:
            raise ArgumentError(
                f"--machine {text}: {error}; give module:Class, with --path where it is not "
                "installed"
            ) from error
        clients = _workload(text, machine_name, machine, workload_name)
        check = _function(text, "check", check_name) if check_name else None
        sets.append(ChannelSet(_free_name(machine, sets), machine_name, machine, clients, check))
    where = ",".join(str(path.resolve()) for path in paths)
    made = ChannelSets(sets, {environment_variable(MACHINES_PATH_KEY): where} if where else {})
    made.try_out()
    return made


def _named(text: str) -> tuple[str, str, str]:
    """The machine, its workload and the check; empty where none is named.

    What is begun has to be named: behind a sign that nothing follows was meant to be something, and
    without it the run would check less than was asked for.
    """
    machine, equals, functions = text.partition("=")
    workload, comma, check = functions.partition(",")
    for what, name, is_begun in (
        ("machine", machine, True),
        ("workload", workload, bool(equals)),
        ("check", check, bool(comma)),
    ):
        if is_begun and not name.strip():
            raise ArgumentError(
                f"--machine {text!r}: no {what} is named; write module:Class, "
                "module:Class=module:workload or module:Class=module:workload,module:check"
            )
    return machine, workload, check


def _workload(
    text: str, machine_name: str, machine: type[StateMachine], workload_name: str
) -> Callable[..., Any]:
    """The one that is named; else that of a shipped machine, or ``workload`` of the module."""
    if workload_name:
        return _function(text, "workload", workload_name)
    beside = getattr(sys.modules[machine.__module__], "workload", None)
    found: Any = RECIPE_CLIENTS.get(machine_name, beside)
    if not callable(found):
        raise ArgumentError(
            f"--machine {text}: there is no workload; write {machine_name}=module:function, a "
            "function as simulate_machine takes it, or call it workload in the module of the "
            "machine"
        )
    made: Callable[..., Any] = found
    return made


def _function(text: str, what: str, name: str) -> Callable[..., Any]:
    """A function by module and name."""
    module, _, path = name.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), path or "?")
    except Exception as error:  # the module of a user may raise anything as it is imported
        raise ArgumentError(
            f"--machine {text}: the {what} {name} cannot be loaded ({type(error).__name__}: "
            f"{error}); write module:function, as simulate_machine takes it"
        ) from error
    if not callable(found):
        raise ArgumentError(f"--machine {text}: the {what} {name} is no function")
    made: Callable[..., Any] = found
    return made


def _free_name(machine: type[StateMachine], sets: Sequence[ChannelSet]) -> str:
    """A name for the channel set: that of the class, with a number where it is taken."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", machine.__name__).lower().strip("_") or "machine"
    taken = {each.name for each in sets}
    names = [name, *(f"{name}_{number}" for number in range(2, len(sets) + 2))]
    return next(each for each in names if each not in taken)
