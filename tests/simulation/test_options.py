"""Options of a world: drawn from the seed, changed by name."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.testing.options import SimOptions, draw_options, override


def test_seeds_draw_different_worlds() -> None:
    """Swarm testing: kinds of faults are present in some worlds and absent in others."""
    worlds = [draw_options(seed) for seed in range(1, 101)]
    for name in ("slow_disk", "encode_messages", "partitions", "loss_percent", "late_percent"):
        assert len({getattr(world, name) for world in worlds}) > 1, name
    assert 10 <= sum(world.slow_disk for world in worlds) <= 45
    assert 10 <= sum(draw_options(seed).rolling_upgrades for seed in range(101, 201)) <= 35
    assert not any(draw_options(seed).rolling_upgrades for seed in range(1, 31))
    assert 10 <= sum(draw_options(seed).hang_percent > 0 for seed in range(101, 201)) <= 45


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("nodes", "5", 5),
        ("loss_percent", "2.5", 2.5),
        ("slow_disk", "yes", True),
        ("slow_disk", "0", False),
    ],
)
def test_option_is_changed_by_name(name: str, text: str, value: Any) -> None:
    """The text is read as the type the option has."""
    changed = override(SimOptions(seed=3), {name: text})
    assert getattr(changed, name) == value
    assert changed.seed == 3


def test_unknown_option_is_refused_with_the_known_ones() -> None:
    """A typing error must not run another world than the one meant."""
    with pytest.raises(ValueError, match=r"unknown simulation option 'nods'.*nodes"):
        override(SimOptions(seed=1), {"nods": "5"})


@pytest.mark.parametrize(("name", "text"), [("nodes", "many"), ("slow_disk", "maybe")])
def test_value_of_the_wrong_type_is_refused_by_name(name: str, text: str) -> None:
    """The message names the option and what was given."""
    with pytest.raises(ValueError, match=f"{name}.*{text}"):
        override(SimOptions(seed=1), {name: text})


def test_options_are_shown_by_name() -> None:
    """Everything that makes the world is printed before it starts."""
    shown = SimOptions(seed=9).as_dict()
    assert shown["seed"] == 9
    assert shown["operations"] >= 500
    assert shown["faults"] >= 10
