"""Identity: the same in every process and for the same source, another for every change; nothing makes it fail."""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import itertools
import os
import random
import subprocess
import sys
import threading
import types
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrize

import ntkscope as ns
from ntkscope.core.errors import StoreError
from ntkscope.core.identity import Answers, disagreement, drawn, identity, network_identity
from oracles import resumed


@pytest.mark.parametrize("change", resumed.NOTHING)
def test_what_is_no_change_leaves_it_the_same(change: str) -> None:
    assert network_identity(resumed.made(resumed.NOTHING[change])) == network_identity(resumed.made())


def test_every_change_makes_another_network() -> None:
    assert len(resumed.CHANGES) >= 20
    found = {"nothing": network_identity(resumed.made())}
    found |= {change: network_identity(resumed.changed(change)) for change in resumed.CHANGES}
    seen: dict[tuple[str, ...], str] = {}
    for change, entries in found.items():
        other = seen.setdefault(tuple(entries.values()), change)
        assert other == change, f"{change!r} looks like {other!r}"


def test_running_the_network_does_not_change_it() -> None:
    """Counters, recorded activations and caches that the network writes itself are state."""
    model, seen, log = resumed.made(), {}, []

    def record(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        seen["second"] = output.detach()
        log.append(len(seen))
        module.last = output.detach()

    model.get_submodule("second").register_forward_hook(record)
    before = network_identity(model)
    for _ in range(2):
        model(resumed.inputs())
        assert network_identity(model) == before
    assert seen
    assert log


SCRIPT = """
import sys, time
import ntkscope as ns
sys.path[:0] = {path!r}
from oracles import resumed
from ntkscope.core.identity import identity, network_identity
from contracts.training_problems import small_net
large = ns.models.build("resnet18", classes=10)
def seconds():
    start = time.process_time()
    network_identity(large)
    return time.process_time() - start
print(min(seconds() for _ in range(3)), file=sys.stderr)
print(network_identity(resumed.made()), network_identity(small_net()), identity({{"b", "a", "c"}}, {{1: {{"x", "yy"}}}}))
"""


@pytest.mark.guard
def test_it_is_the_same_in_other_processes_and_takes_less_than_a_third_of_a_second() -> None:
    path = [str(Path(__file__).parents[1]), str(Path(ns.__file__).parents[1])]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT.format(path=path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    said = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert said[0][0] == said[1][0]
    assert str(network_identity(resumed.made())) in said[0][0]
    assert min(float(seconds) for _, seconds in said) < 0.3  # of ResNet-18, without the type checks of tests


class Hidden:
    """Says nothing about itself."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("ask no questions")


def loop() -> list[Any]:
    made: list[Any] = [1]
    made.append(made)
    return made


def nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made, None]
    return made


ANYTHING: dict[str, Any] = {
    "None": None,
    "a lock": threading.Lock(),
    "a generator": (i for i in range(3)),
    "an open file": io.StringIO("text"),
    "a thread": threading.current_thread(),
    "a weak reference": weakref.ref(resumed.made),
    "an iterator": itertools.count(),
    "a random generator": random.Random(0),
    "torch's generator": torch.Generator(),
    "numpy's generator": np.random.default_rng(0),
    "a module": os,
    "a class": nn.Linear,
    "a built-in": len,
    "a bound built-in": [].append,
    "a ufunc": np.exp,
    "a namespace": types.SimpleNamespace(a=1),
    "a deque": collections.deque([1, 2]),
    "a dictionary of lists": collections.defaultdict(list, a=[1]),
    "a list in itself": loop(),
    "no numbers": torch.empty(0, 3),
    "a meta tensor": torch.empty(3, device="meta"),
    "a sparse tensor": torch.eye(3).to_sparse(),
    "half digits": torch.ones(3, dtype=torch.bfloat16),
    "complex numbers": torch.ones(3, dtype=torch.complex64).conj(),
    "an array of objects": np.array([None, "a", 3], dtype=object),
    "a number of numpy's": np.float32(0.1),
    "a text that is no Unicode": "\ud800",
    "a secretive object": Hidden(),
    "a lazy layer": nn.LazyLinear(3),
    "a cached function": functools.lru_cache(resumed.made),
    "a context manager": contextlib.nullcontext(),
    "not a number": float("nan"),
    "a traced network": torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU())),
    "lists in lists in lists": nested(5000),
}


@pytest.mark.parametrize("what", ANYTHING)
def test_any_attribute_is_described(what: str) -> None:
    model = nn.Identity()
    model.anything = ANYTHING[what]
    assert network_identity(model) == network_identity(model) != network_identity(nn.Identity())


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.sets(st.text(max_size=3), max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(values, values)
def test_two_values_have_one_identity_only_if_they_look_alike(one: Any, two: Any) -> None:
    def shown(value: Any) -> str:
        if isinstance(value, set):
            return f"set{sorted(map(shown, value))}"
        if isinstance(value, list | tuple):
            return f"{type(value).__name__}{[shown(item) for item in value]}"
        if isinstance(value, dict):
            return f"dict{[(shown(key), shown(item)) for key, item in value.items()]}"
        return f"{type(value).__name__} {value!r}"

    assert (identity(one) == identity(two)) == (shown(one) == shown(two))


def test_what_a_function_imports_itself_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not it was loaded before."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "package_of_mine").mkdir()
    for name, text in (("__init__", ""), ("inner", "FACTOR = 2.0\n")):
        (tmp_path / "package_of_mine" / f"{name}.py").write_text(text)

    def late(x: Tensor) -> Tensor:
        from package_of_mine import inner

        return x * inner.FACTOR

    before = identity(late)
    late(torch.ones(1))
    assert identity(late) == before
    (tmp_path / "package_of_mine" / "inner.py").write_text("FACTOR = 3.0\n")
    assert identity(late) != before
    for name in ("package_of_mine.inner", "package_of_mine"):
        monkeypatch.delitem(sys.modules, name)


def test_a_function_is_judged_by_where_its_code_is() -> None:
    """Not by the name it was given, nor by the library that wrapped it."""

    def wrapped(factor: float) -> Any:
        @functools.wraps(torch.nn.functional.gelu)
        def mine(x: Tensor) -> Tensor:
            return torch.nn.functional.relu(x) * factor

        return mine

    assert mine_is(wrapped(2.0)) == mine_is(wrapped(2.0)) != mine_is(wrapped(3.0))
    assert mine_is(torch.func.vmap(wrapped(2.0))) != mine_is(torch.func.vmap(wrapped(3.0)))
    assert mine_is(torch.no_grad()(wrapped(2.0))) != mine_is(torch.no_grad()(wrapped(3.0)))
    assert mine_is(functools.lru_cache(wrapped(2.0))) != mine_is(functools.lru_cache(wrapped(3.0)))
    assert mine_is(torch.nn.functional.max_pool2d) != mine_is(torch.nn.functional.max_pool1d)


def mine_is(function: Any) -> str:
    model = nn.Identity()
    model.function = function
    return identity(model)


def test_who_shares_what_matters() -> None:
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    b.load_state_dict(a.state_dict())
    apart, once = nn.Sequential(a, b), nn.Sequential(a, a)
    assert network_identity(apart)["structure of the model"] != network_identity(once)["structure of the model"]
    view = nn.Sequential(a, nn.Linear(2, 2))
    view[1].load_state_dict(a.state_dict())
    alone = network_identity(view)
    view[1].weight = nn.Parameter(a.weight.data)  # other parameters on the same memory
    assert network_identity(view) != alone


@pytest.mark.guard
def test_compiled_networks_are_what_they_were() -> None:
    model = resumed.made()
    assert network_identity(torch.compile(model)) == network_identity(torch.compile(resumed.made()))
    other = torch.compile(resumed.changed("closure variable"))
    assert network_identity(torch.compile(model)) != network_identity(other)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_networks() -> None:
    class Scaled(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor
            self.inner = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) * self.factor

    one, same, two = (torch.jit.trace(Scaled(factor), torch.ones(2)) for factor in (1.5, 1.5, 2.5))
    assert network_identity(one) == network_identity(same) != network_identity(two)


def test_parametrisations_and_replaced_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubled(nn.Module):
        def forward(self, w: Tensor) -> Tensor:
            return 2 * w

    plain = network_identity(resumed.made())
    model = resumed.made()
    parametrize.register_parametrization(model.get_submodule("first"), "weight", Doubled())
    assert network_identity(model) != plain
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x @ self.weight.T)
    assert network_identity(resumed.made()) != plain


def test_answers_are_compared_to_the_bit_here_and_up_to_rounding_elsewhere() -> None:
    kept = Answers.of(lambda items: torch.tensor(items) * 0.1, 9)
    assert kept.items == (0, 4, 8)
    again = Answers.from_json(kept.to_json(), "here")
    assert again == kept
    again.compare(kept, "here")
    close = Answers(kept.items, tuple(v * (1 + 1e-6) for v in kept.values), kept.dtype, kept.machine)
    with pytest.raises(StoreError, match="answers differently from the one the store was created with"):
        kept.compare(close, "here")
    elsewhere = Answers(close.items, close.values, close.dtype, "cpu of another kind")
    kept.compare(elsewhere, "here")
    far = Answers(kept.items, tuple(v * 1.01 for v in kept.values), kept.dtype, "cpu of another kind")
    with pytest.raises(StoreError, match=r"differ by 0\.01 of the largest number"):
        kept.compare(far, "here")
    for broken in (None, {}, {**kept.to_json(), "values": ["x"]}, {**kept.to_json(), "items": 3}):
        with pytest.raises(StoreError, match="expected those of a few items"):
            Answers.from_json(broken, "here")
    assert disagreement(torch.tensor([torch.nan]), torch.tensor([torch.nan]), 0.0) is None
    assert disagreement(torch.tensor([1.0]), torch.tensor([torch.nan]), 1.0) is not None
    assert disagreement(torch.tensor([torch.inf]), torch.tensor([1.0]), 1.0) is not None


def test_what_is_drawn_is_not_always_the_same() -> None:
    assert len({drawn(range(100)) for _ in range(30)}) > 10
