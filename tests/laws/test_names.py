"""Every public name and every registered entry is in a table of laws, or on a list with its reason."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import ntkscope as ns
from laws.every import CASES
from laws.known import KNOWN
from laws.laws import LAWS
from laws.left_out import ENTRIES, REASONS, listed
from ntkscope.report import VIEWS
from ntkscope.xray import SECTIONS

ROOMS = (
    "core linalg storage data models training tangent kernels infinite surrogates measures tracking machines explain xray"
    " report"
)


def public() -> dict[str, Any]:
    """Every name that a room exports, and every function and class of a module that it exports."""
    found: dict[str, Any] = {}
    for room in ROOMS.split():
        exported = importlib.import_module(f"ntkscope.{room}")
        for name in exported.__all__:
            entry = getattr(exported, name)
            found |= inside(entry, f"{room}.{name}") if isinstance(entry, ModuleType) else {f"{room}.{name}": entry}
    return found


def inside(module: ModuleType, name: str) -> dict[str, Any]:
    own = {key: value for key, value in vars(module).items() if not key.startswith("_") and callable(value)}
    return {f"{name}.{key}": value for key, value in own.items() if getattr(value, "__module__", "") == module.__name__}


def entries() -> dict[str, str]:
    """Every entry of every registry, and the name of the case that has it."""
    measures = {id(value): name for name, value in public().items()}
    return {
        **{f"data:{name}": f"data.load({name})" for name in ns.data.DATASETS},
        **{f"model:{name}": f"models.{name}" for name in ns.models.MODELS},
        **{f"kernel:{name}": f"kernels.{name}" for name in ns.KERNELS},
        **{f"layer:{name}": f"infinite.{name}" for name in ns.infinite.registry.LAYERS},
        **{f"surrogate:{n}": f"surrogates.{made.__name__}" for n, made in ns.surrogates.SURROGATES.items()},
        **{f"surrogate:{n}": f"surrogates.{made.__name__}" for n, made in ns.surrogates.INPUT_SURROGATES.items()},
        **{f"measure:{n}": measures.get(id(made.func), "") for n, made in ns.measures.MEASURES.items()},
        **{f"mode:{name}": f"training.{name.replace('-', '_')}" for name in ns.training.modes.MODES},
        **{f"section:{name}": "" for name in SECTIONS},
        **{f"view:{name}": "" for name in VIEWS},
    }


def in_tables() -> set[str]:
    """The names of the cases, and every other name of the same function."""
    names = {case.name for case in CASES}
    objects = public()
    same = {id(objects[name]) for name in names if name in objects}
    return names | {name for name, value in objects.items() if id(value) in same}


def missing(names: set[str]) -> list[str]:
    return sorted(names - in_tables() - listed(REASONS))


def test_every_public_name_is_in_a_table_or_on_the_list() -> None:
    assert not missing(set(public())), "add a case to the table of its room, or a reason to left_out.py"
    assert sorted(listed(REASONS) - set(public())) == [], "listed, and no longer there"
    assert sorted(listed(REASONS) & in_tables()) == [], "in a table as well as on the list"


def test_every_entry_is_in_a_table_or_on_the_list() -> None:
    tables, left = in_tables(), listed(ENTRIES)
    outside = [entry for entry, name in entries().items() if name not in tables]
    assert [entry for entry in outside if not left & {entry, entry.split(":")[0] + ":"}] == []


def test_known_breaks_name_cases_and_laws() -> None:
    assert set(KNOWN) <= {case.name for case in CASES}
    assert {start.split(":")[0] for starts in KNOWN.values() for start in starts} <= {*LAWS, "scale"}


def test_canary_a_new_name_is_found() -> None:
    assert missing({"linalg.lsmr", "linalg.nobody_listed_this"}) == ["linalg.nobody_listed_this"]
