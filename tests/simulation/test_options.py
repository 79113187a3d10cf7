"""Options of a world: drawn from the seed, changed by name."""

from __future__ import annotations

from dataclasses import fields
from math import nan
from typing import Any, get_args, get_type_hints

import pytest
from msgspec import Meta

from raftstore.testing.options import (
    SimOptions,
    check_options,
    draw_options,
    override,
    own_options,
)
from raftstore.testing.simulation import simulate


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


def ranges() -> dict[str, Meta]:
    """The range that stands beside each option that is a number."""
    hints = get_type_hints(SimOptions, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if get_args(hint)[1:]}


def test_every_number_of_a_world_has_a_range() -> None:
    """An option that came without one would take what no world can have."""
    numbers = {field.name for field in fields(SimOptions) if field.type != "bool"}
    assert set(ranges()) == numbers - {"seed", "durability"}


@pytest.mark.parametrize("name", ranges())
def test_value_out_of_its_range_is_refused_with_what_it_may_be(name: str) -> None:
    """Such a world would break a promise of the oracle, or the program, and prove nothing."""
    meta = ranges()[name]
    least, most = meta.ge, meta.le
    assert least is not None
    assert most is not None
    is_whole = isinstance(getattr(SimOptions(seed=1), name), int)
    wrong = [least - 1, most + 1, -1, 10**30]
    texts = [str(int(each) if is_whole else float(each)) for each in wrong]
    for text in texts if is_whole else [*texts, "nan", "inf", "-inf"]:
        with pytest.raises(ValueError, match=rf"{name}=.* is out of range; allowed are {least} to"):
            override(SimOptions(seed=1), {name: text})


def test_edges_of_ranges_are_values_of_worlds() -> None:
    """Those of a pair go together."""
    for end in ("ge", "le"):
        given = {name: getattr(meta, end) for name, meta in ranges().items()}
        texts = {name: str(value) for name, value in given.items()}
        changed = override(SimOptions(seed=1), {**texts, "scrub": "yes"}).as_dict()
        assert {name: changed[name] for name in given} == given


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"delay_min_ms": "9"}, r"delay_min_ms=9.0 is above delay_max_ms=4.0; give both"),
        ({"sync_max_ms": "0.1"}, r"sync_min_ms=0.3 is above sync_max_ms=0.1; give both"),
        ({"durability": "disk"}, "durability=disk is none; give one of fsync, buffered, memory"),
        ({"live_flip_percent": "5"}, r"live_flip_percent=5.0 needs scrub=yes"),
        ({"seed": "5"}, "seed='5' is the world's; give --seed 5"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    changes: dict[str, str], complaint: str
) -> None:
    """With the remedy."""
    with pytest.raises(ValueError, match=complaint):
        override(SimOptions(seed=1), changes)


@pytest.mark.parametrize("name", ["writers", "readers", "operations"])
def test_world_without_clients_of_its_own_is_refused_where_there_are_no_others(name: str) -> None:
    """``simulate_machine`` has others."""
    assert getattr(override(SimOptions(seed=1), {name: "0"}), name) == 0
    with pytest.raises(ValueError, match=f"{name}=0 proves nothing; allowed are 1 to"):
        own_options(1, {name: "0"})


@pytest.mark.parametrize("options", [{"nodes": 0}, {"partitions": 0}, {"loss_percent": nan}])
def test_world_is_refused_to_programs_as_well(options: dict[str, Any]) -> None:
    """Not called a broken promise."""
    with pytest.raises(ValueError, match=r"is out of range; allowed are"):
        simulate(SimOptions(1, **options))


def test_drawn_worlds_are_within_the_ranges() -> None:
    """No seed draws what nobody may ask for."""
    for seed in range(1, 1_001):
        check_options(draw_options(seed))


def test_options_are_shown_by_name() -> None:
    """Everything that makes the world is printed before it starts."""
    shown = SimOptions(seed=9).as_dict()
    assert shown["seed"] == 9
    assert shown["operations"] >= 500
    assert shown["faults"] >= 10
