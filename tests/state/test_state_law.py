"""The state law: everything that can be reached from a model is the same before and after every public call."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ntkscope as ns
from ntkscope.core import NtkscopeError, Part
from ntkscope.tangent.forward.activations import activations
from oracles.everything import differences, everything, switches
from strategies import writers
from strategies.networks import noise
from strategies.writers import WRITERS, build

X = noise(4, 3)
LABELS = torch.tensor([0, 1, 0, 1])
RANDOM = {"draws and forgets", "draws from torch and forgets"}  # refused: they draw from generators of their own
COPIED = {
    "linearize",
    "solve",
    "another dtype",
    "retrain_last_layer",
}  # may be refused: w₀ must stay, and not every state can be copied
SILENT = {"draws globally", "the default dtype", "a gradient"}  # settings of the process


def tracked(model: nn.Module, folder: Path) -> None:
    with ns.Tracker(model, (X, LABELS), folder / "run", watch=("weights", "ck", "trntk"), when=[1], total=1) as tracker:
        tracker.step(loss=0.5)


def linear(model: nn.Module) -> None:
    made = ns.linearize(model)
    made(X).sum().backward()


def kept(model: nn.Module) -> None:
    tangent = ns.Tangent(model, X[:2])
    tangent.kernel("trntk", X)
    tangent.features(X)
    tangent.jvp(X, {"a.bias": torch.ones(4, dtype=X.dtype)})
    tangent.vjp(X, torch.ones(4, 2, dtype=X.dtype))
    tangent.kernel("ck", X)


CALLS: dict[str, Callable[[nn.Module, Path], Any]] = {
    "trntk0": lambda model, _: ns.kernel("trntk0", model, X).dense(),
    "entk": lambda model, _: ns.kernel("entk", model, X).dense(),
    "pntk": lambda model, _: ns.kernel("pntk", model, X, X[:2]).dense(),
    "proj-trntk": lambda model, _: ns.kernel("proj-trntk", model, X, dim=8).dense(),
    "ck": lambda model, _: ns.kernel("ck", model, X).dense(),
    "em": lambda model, _: ns.kernel("em", model, X, layers=["a"]).dense(),
    "ptk": lambda model, _: ns.kernel("ptk", model, X, layer="a").dense(),
    "another dtype": lambda model, _: ns.kernel("trntk0", model, X, dtype=torch.float32).dense(),
    "a store": lambda model, folder: ns.kernel("trntk0", model, X, store=folder / "store").dense(),
    "kept": lambda model, _: kept(model),
    "last layer alone": lambda model, _: ns.Tangent(model, params="last").features(X),
    "linearize": lambda model, _: linear(model),
    "solve": lambda model, _: ns.linearize(model).solve(Part(X, LABELS), alpha=1e-3),
    "feature_matrices": lambda model, _: ns.feature_matrices(model, X),
    "activations": lambda model, _: activations(model, X, ["a"]),
    "tracker": tracked,
    "retrain_last_layer": lambda model, _: ns.retrain_last_layer(model, Part(X, noise(4, 2)), alpha=1e-3),
}


@contextlib.contextmanager
def left_alone(model: nn.Module) -> Iterator[None]:
    """Fails where anything is another when it closes."""
    settings, before = switches(), everything(model, vars(writers))
    yield
    assert differences(before, everything(model, vars(writers))) == []
    assert differences(settings, switches()) == []


def obeys(name: str, call: str, folder: Path) -> None:
    if call == "linearize" and name in SILENT:
        return  # the linearised network is run by the caller, and draws and sets what the network itself does
    model = build(name)
    refused = NtkscopeError if name in RANDOM or call in COPIED else ()
    with left_alone(model), contextlib.suppress(refused):
        CALLS[call](model, folder)


@pytest.mark.parametrize("name", WRITERS)
def test_every_writer_is_put_back_and_named(name: str) -> None:
    model = build(name)
    with left_alone(model):
        if name in RANDOM:
            with pytest.raises(NtkscopeError, match="random generator"):
                ns.kernel("trntk0", model, X)
        else:
            gram = ns.kernel("trntk0", model, X)
            assert name in SILENT or gram.certificate.changes
    assert model.write is WRITERS[name][1]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["numpy", "a buffer"])
def test_every_call(name: str, call: str, tmp_path: Path) -> None:
    obeys(name, call, tmp_path)


@pytest.mark.guard
@pytest.mark.parametrize("call", [call for call in CALLS if call != "trntk0"])  # which is tested with all of them above
def test_every_writer_and_call(call: str, tmp_path: Path) -> None:
    for number, name in enumerate(WRITERS):
        obeys(name, call, tmp_path / str(number))


@pytest.mark.guard
def test_an_xray(tmp_path: Path) -> None:
    x, y = noise(24, 3), torch.arange(24) % 2
    for name in ("numpy", "slots", "a buffer", "a global list"):
        model = build(name)
        with left_alone(model):
            ns.xray(model, Part(x[:16], y[:16]), Part(x[16:], y[16:]), out=tmp_path / name, untrained=True)


# -- calls that fail ------------------------------------------------------------------------------------------------------


def failing(name: str, at: int, error: type[BaseException]) -> nn.Module:
    """Writes as `name` does, and raises at the pass `at`, once: that count is not the model's."""
    model, passes = build(name), iter(range(1, 1000))

    class Failing:
        def __call__(self) -> None:
            if next(passes) == at:
                raise error("the network broke")

    Failing.__module__ = "torch"  # not looked into: its counter goes on
    model.breaks = Failing()
    return model


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("at", [1, 3, 5])
@pytest.mark.parametrize("name", ["a list", "numpy", "slots", "a buffer", "a global number", "itertools.count"])
def test_a_call_that_fails(name: str, at: int, error: type[BaseException]) -> None:
    model = failing(name, at, error)
    with left_alone(model), contextlib.suppress(error, NtkscopeError):
        ns.kernel("trntk0", model, X)


@pytest.mark.guard
@pytest.mark.parametrize("call", CALLS)
def test_any_call_that_fails(call: str, tmp_path: Path) -> None:
    for number, (name, at) in enumerate([("a list", 2), ("numpy", 3), ("slots", 4), ("a buffer", 3), ("a buffer", 6)]):
        model = failing(name, at, KeyboardInterrupt)
        with left_alone(model), contextlib.suppress(KeyboardInterrupt, NtkscopeError):
            CALLS[call](model, tmp_path / str(number))


# -- callers with threads of their own --------------------------------------------------------------------------------------


def in_threads(*work: Callable[[], Any]) -> None:
    errors: list[BaseException] = []

    def run(one: Callable[[], Any]) -> None:
        try:
            one()
        except BaseException as error:  # shown below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []


def three_callers(name: str) -> None:
    model, expected = build(name), ns.kernel("trntk0", build("a list"), X).dense()
    kept, found = ns.Tangent(model), list[Tensor]()
    with left_alone(model):
        in_threads(
            lambda: found.append(ns.kernel("trntk0", model, X).dense()),
            lambda: found.append(kept.kernel("trntk0", X).dense()),
            lambda: (kept.features(X), ns.feature_matrices(model, X), activations(model, X, ["a"])),
        )
    assert all(torch.equal(each, expected) for each in found)


def test_three_threads_on_one_model() -> None:
    for name in ("a buffer", "numpy", "a list"):
        three_callers(name)


@pytest.mark.guard
def test_three_threads_on_one_model_many_times() -> None:
    for _ in range(8):
        for name in ("a buffer", "numpy", "a list"):
            three_callers(name)


def test_threads_on_parts_of_one_model() -> None:
    model = build("a buffer")
    whole = nn.Sequential(model, nn.Linear(2, 2, dtype=X.dtype))
    with left_alone(whole):
        in_threads(*(lambda one=one: ns.kernel("trntk0", one, X) for one in (model, whole, model)))


def test_models_of_their_own_run_side_by_side() -> None:
    """Two calls that wait for each other inside their forward passes: one lock for all would hold them for ever."""
    meet = threading.Barrier(2, timeout=30)
    met: list[int] = []

    def pair() -> nn.Module:
        model = build("a list")
        model.write = lambda m, x: None if met else met.append(meet.wait())
        return model

    one, other = pair(), pair()
    ns.kernel("trntk0", build("a list"), X)  # imports
    in_threads(*(lambda m=m: activations(m, X, ["a"]) for m in (one, other)))


def test_a_linearised_network_in_three_threads() -> None:
    made = ns.linearize(build("a list"))
    expected = made(X)
    found: list[Tensor] = []
    in_threads(*[lambda: found.append(made(X))] * 3)
    assert all(torch.equal(each, expected) for each in found)


# -- what else is the caller's -----------------------------------------------------------------------------------------------


def test_the_generator_of_a_loader() -> None:
    drawn = torch.Generator().manual_seed(3)
    loader = DataLoader(TensorDataset(X), batch_size=2, generator=drawn)
    before = drawn.get_state()
    ns.kernel("trntk0", build("a list"), loader)
    assert torch.equal(drawn.get_state(), before)


def test_what_cannot_be_put_back_is_named(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        several: list[tuple[Any, Callable[[Any, Tensor], Any]]] = [
            ((n for n in range(99)), lambda m, x: next(m.kept)),
            (iter([1] * 99), lambda m, x: next(m.kept)),
            (log, lambda m, x: m.kept.write("called")),
        ]
        for value, write in several:
            model: Any = build("a list")
            model.kept, model.write = value, write
            assert ns.kernel("trntk0", model, X).certificate.changes == ("kept (cannot be put back)",)


class Counting(nn.Module):
    """A part that is scripted: its counter is not Python's."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        return x


VARIABLE: ContextVar[int] = ContextVar("variable", default=0)


def test_scripts_and_optimizers_are_put_back() -> None:
    model: Any = build("a list")
    model.counting, model.optimizer = torch.jit.script(Counting()), torch.optim.SGD(model.parameters(), lr=1.0)
    model.write = lambda m, x: (
        m.counting(x),
        m.optimizer.param_groups[0].update(lr=m.optimizer.param_groups[0]["lr"] / 2),
    )
    changes = ns.kernel("trntk0", model, X).certificate.changes
    assert (model.counting.n, model.optimizer.param_groups[0]["lr"]) == (0, 1.0)
    assert set(changes) == {"counting", "optimizer.param_groups.0.lr"}


def test_what_grows_or_is_not_pythons_is_named() -> None:
    model: Any = build("a list")
    model.cached, model.numbers = functools.lru_cache(lambda n: n), (ctypes.c_double * 2)()
    model.write = lambda m, x: (m.cached(len(x)), m.numbers.__setitem__(0, m.numbers[0] + 1))
    changes = ns.kernel("trntk0", model, X).certificate.changes
    assert set(changes) == {"cached (cannot be put back)", "numbers (cannot be put back)"}


def test_settings_that_a_model_makes_are_taken_back() -> None:

    def write(m: Any, x: Tensor) -> None:
        VARIABLE.set(5)
        np.seterr(all="raise")
        torch.use_deterministic_algorithms(True)

    model: Any = build("a list")
    model.write = write
    token, errors = VARIABLE.set(3), np.geterr()
    try:
        ns.kernel("trntk0", model, X)
        assert (VARIABLE.get(), np.geterr(), torch.are_deterministic_algorithms_enabled()) == (3, errors, False)
    finally:
        VARIABLE.reset(token)
