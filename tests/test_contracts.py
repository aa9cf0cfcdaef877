"""Everything registered is under contract: each entry of each registry has a test class that inherits its suite.

The classes are found by importing the test modules that have any; a class tests what its `name` says, or the type it makes.
Functions with a rule of the engine are tested by the networks of `strategies.layers`, so some network must call them.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch.overrides import TorchFunctionMode

import ntkscope as ns
from contracts.dataset import DatasetContract
from contracts.infinite_layer import LayerContract
from contracts.infinite_rule import NonlinearityContract
from contracts.input_surrogate import InputSurrogateContract
from contracts.kernel import KernelContract
from contracts.measure import MeasureContract
from contracts.model import ModelContract
from contracts.section import SectionContract
from contracts.surrogate import SurrogateContract
from contracts.view import ViewContract
from ntkscope.report import VIEWS
from ntkscope.tangent.trace.rules import REWRITES, RULES
from ntkscope.xray import SECTIONS
from strategies.layers import LAYERS
from test_orphans import HELPERS

TESTS = Path(__file__).parent
CONTRACT = re.compile(r"^class \w+\(\w*Contract\):|= type\(.*\(\w*Contract,\)", re.MULTILINE)  # or made from a table


def suites(contract: type) -> set[type]:
    """The classes that inherit a contract and can be run: pytest collects them, and they say what they test."""
    children: list[type] = contract.__subclasses__()
    below = {suite for child in children for suite in {child, *suites(child)}}
    return {suite for suite in below if suite.__name__.startswith("Test") and not inspect.isabstract(suite)}


def names(contract: type) -> set[Any]:
    return {suite.name for suite in suites(contract)}  # type: ignore[attr-defined]


def layers() -> set[Any]:
    single = {type(suite().layer()) for suite in suites(NonlinearityContract)}
    return single | {kind for suite in suites(LayerContract) for kind in suite.kinds}  # type: ignore[attr-defined]


def functions() -> list[Any]:
    """The functions with a rule; operators come to it as the methods they stand for (`x * w` as `Tensor.mul`)."""
    return [function for function in (*RULES, *REWRITES) if not function.__name__.startswith("__")]


def called() -> set[Any]:
    """The functions of PyTorch that the networks of layers call."""
    seen: set[Any] = set()

    class Noted(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.add(func)
            return func(*args, **(kwargs or {}))

    for make in LAYERS.values():
        model, x = make()
        with Noted():
            model(x)
    return seen


# A room of plug-ins: what is registered there, and what has a test class.
ROOMS: dict[str, tuple[Callable[[], Iterable[Any]], Callable[[], set[Any]]]] = {
    "data": (lambda: ns.data.DATASETS, lambda: names(DatasetContract)),
    "models": (lambda: ns.models.MODELS, lambda: names(ModelContract)),
    "kernels": (lambda: ns.KERNELS, lambda: names(KernelContract)),
    "infinite.rules": (lambda: ns.infinite.registry.LAYERS.values(), layers),
    "surrogates": (
        lambda: [*ns.surrogates.SURROGATES.values(), *ns.surrogates.INPUT_SURROGATES.values()],
        lambda: {type(suite().make()) for suite in suites(SurrogateContract) | suites(InputSurrogateContract)},
    ),
    "measures": (lambda: ns.measures.MEASURES, lambda: names(MeasureContract)),
    "report.views": (lambda: VIEWS, lambda: names(ViewContract)),
    "xray.sections": (lambda: SECTIONS, lambda: names(SectionContract)),
    "tangent.trace.rules": (functions, called),
}


def untested(entries: Iterable[Any], tested: set[Any]) -> list[str]:
    return sorted(str(getattr(entry, "__name__", entry)) for entry in entries if entry not in tested)


def imported(path: Path) -> ModuleType:
    """A test module, once: under the name that pytest gives it."""
    name = ".".join(("tests", *path.relative_to(TESTS).with_suffix("").parts))
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="module", autouse=True)
def collected() -> None:
    for path in sorted(TESTS.glob("*/test_*.py")):
        if CONTRACT.search(path.read_text(encoding="utf-8")):
            imported(path)


def test_no_room_is_left_out() -> None:
    assert set(ROOMS) == set(HELPERS)


@pytest.mark.parametrize("room", ROOMS)
def test_every_entry_has_a_test_class(room: str) -> None:
    entries, tested = ROOMS[room]
    missing = untested(entries(), tested())
    assert not missing, f"{room}: no test class inherits the contract for {', '.join(missing)}; see docs/howto"


def test_canary_an_entry_without_a_class_is_found() -> None:
    class Contract:
        name: str

    class Tested(Contract):
        name = "abstract: pytest does not collect it"

    class TestOne(Tested):
        name = "one"

    assert untested(["one", "two"], names(Contract)) == ["two"]
    del Tested, TestOne
