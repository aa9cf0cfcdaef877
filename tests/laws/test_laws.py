"""Every public function obeys the laws, or is on a list with its reason.

The tables say how valid arguments are drawn and how results follow them; `laws.py` has the laws. What is known to break one is
in `known.py`, one line each: it must still break (else its line goes), and nothing beside it may.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ntkscope as ns
from laws.known import KNOWN
from laws.laws import LAWS, scale
from laws.left_out import ENTRIES, REASONS, listed
from laws.table import Case, labels, matrix, positive, vector
from ntkscope.core import UsageError
from ntkscope.report import VIEWS
from ntkscope.xray import SECTIONS

TABLES = (
    "linalg",
    "measures",
    "surrogates",
    "infinite",
    "explain",
    "machines",
    "kernels",
    "training",
    "data_and_models",
    "files",
)
ROOMS = (*TABLES[:8], "core", "storage", "data", "models", "tangent", "tracking", "xray", "report")
CASES: list[Case] = [case for table in TABLES for case in importlib.import_module(f"laws.{table}").CASES]
EXPONENTS = (-200, -150, 150, 200)
SEED = 3


def judged(case: Case, broken: list[str]) -> None:
    """Nothing breaks a law but what is known to, and all of that still does."""
    known = KNOWN.get(case.name, ())
    new = [what for what in broken if not what.startswith(known)]
    assert not new, f"{case.name}: {len(new)} broken\n" + "\n".join(new[:30])
    mended = [start for start in known if not any(what.startswith(start) for what in broken)]
    assert not mended, f"{case.name} now obeys: take {mended} out of known.py"
    if known:
        pytest.xfail(f"{len(broken)} known: {broken[0]}")


def all_broken(case: Case) -> list[str]:
    found = [f"{law}: {broken}" for law, holds in LAWS.items() for broken in holds(case, SEED)]
    return found + [f"scale: {broken}" for exponent in (-200, 200) for broken in scale(case, SEED, exponent)]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of files that are not there are not there, and nothing is written beside the tests."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.wrong_type
@pytest.mark.parametrize("case", [case for case in CASES if not case.slow], ids=str)
def test_laws(case: Case) -> None:
    judged(case, all_broken(case))


@pytest.mark.guard
@pytest.mark.wrong_type
@pytest.mark.parametrize("case", [case for case in CASES if case.slow], ids=str)
def test_laws_of_what_is_slow(case: Case) -> None:
    judged(case, all_broken(case))


@pytest.mark.guard
@pytest.mark.wrong_type
@pytest.mark.parametrize("case", [case for case in CASES if case.name not in KNOWN], ids=str)
@settings(max_examples=3, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6), exponent=st.sampled_from(EXPONENTS))
def test_drawn_arguments(case: Case, seed: int, exponent: int) -> None:
    """Other arguments than those of `test_laws`, and other scales."""
    for law in ("valid", "order", "kinds", "labels", "not finite", "degenerate"):
        assert not list(LAWS[law](case, seed)), law
    assert not list(scale(case, seed, exponent))


# Every name is in a table, or on the list


def public() -> dict[str, Any]:
    """Every name that a room exports, and every function and class of a module that it exports."""
    found: dict[str, Any] = {}
    for room in dict.fromkeys(ROOMS):
        if room in ("data_and_models", "files"):
            continue
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
        **{f"layer:{name}": f"infinite.{name}" for name in ns.infinite.LAYERS},
        **{f"surrogate:{n}": f"surrogates.{made.__name__}" for n, made in ns.surrogates.SURROGATES.items()},
        **{f"surrogate:{n}": f"surrogates.{made.__name__}" for n, made in ns.surrogates.INPUT_SURROGATES.items()},
        **{f"measure:{n}": measures.get(id(made.func), "") for n, made in ns.measures.MEASURES.items()},
        **{f"mode:{name}": f"training.{name.replace('-', '_')}" for name in ns.training.MODES},
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


# The laws can fail


def _ratio(a: Any, b: Any, power: Any = 1.0) -> float:
    """A measure written without care: squares overflow, sizes and NaN go unseen, a wrong power is a raw error."""
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    n = min(len(a), len(b))
    return float((a[:n] ** 2).sum() / (b[:n] ** 2).sum() * power + a[0])


def _careful(a: Any, b: Any, power: Any = 1.0) -> float:
    raise UsageError("got something; expected something else")


CARELESS = Case(_ratio, {"a": vector(degree=0), "b": vector(), "power": positive(1.0)}, name="careless", items={})


@pytest.mark.parametrize("law", ["order", "wrong types", "not finite", "sizes", "degenerate"])
def test_canary_a_careless_function_breaks_the_law(law: str) -> None:
    assert list(LAWS[law](CARELESS, 0))


def test_canary_a_careless_function_breaks_the_law_of_scale() -> None:
    assert any("RuntimeWarning" in broken for broken in scale(CARELESS, 0, 200))
    assert list(scale(Case(lambda A: np.linalg.norm(A) ** 2, {"A": matrix(degree=1)}), 0, -30))


def test_canary_labels_by_their_size() -> None:
    greedy = Case(lambda y: np.eye(int(max(y)) + 1)[y].sum(), {"y": labels()}, name="greedy")
    assert any("MemoryError" in broken for broken in LAWS["labels"](greedy, 0))


def test_canary_what_refuses_everything_is_no_function() -> None:
    assert list(LAWS["valid"](Case(_careful, CARELESS.arguments, name="careful"), 0))


def test_canary_what_changes_its_argument_is_found() -> None:
    def sorts(a: Any) -> float:
        a.sort()
        return float(a[0])

    assert any("changed its argument" in broken for broken in LAWS["valid"](Case(sorts, {"a": vector()}), 0))
