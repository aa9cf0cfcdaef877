"""A thousand calls: memory and live tensors stay flat, and probing costs what the uses of a parameter cost."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.tangent.blocks import backward
from strategies.networks import Net, noise, randomize

PAGE = 4096


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


def live() -> int:
    """Tensors that Python still holds."""
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


def flat(call: Callable[[], Any], calls: int, warm: int) -> None:
    """After `warm` calls, further ones leave nothing behind: less than 5 % and 20 MiB, and not one tensor.

    Allocators may take a little more once; a leak grows every time, so it is one if three rounds of calls all grow.
    """
    for _ in range(warm):
        call()
    gc.collect()
    tensors, grown = live(), 0
    for _ in range(3):
        memory = resident()
        for _ in range(calls - warm):
            call()
        gc.collect()
        grown = resident() - memory
        assert live() == tensors
        if grown < min(0.05 * memory, 20 * 2**20):
            return
    pytest.fail(f"grew by {grown / 2**20:.1f} MiB again")


def convnet() -> nn.Sequential:
    return randomize(
        nn.Sequential(
            *(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
        )
    ).float()


def one_call() -> Callable[[], Any]:
    model, x = convnet(), noise(3, 2, 6, 6).float()
    return lambda: ns.kernel("trntk0", model, x)


def kept() -> Callable[[], Any]:
    tangent, x = ns.Tangent(convnet()), noise(3, 2, 6, 6).float()
    return lambda: tangent.kernel("trntk0", x)


def falling_back() -> Callable[[], Any]:
    """The slower methods leave nothing behind either."""
    model = randomize(Net(lambda m, x: m.a(x) * (1 + m.a.weight.square().sum()), a=nn.Linear(4, 3)))
    return lambda: ns.kernel("entk", model, noise(4, 4))


@pytest.mark.parametrize(
    ("make", "calls"),
    [
        pytest.param(one_call, 1000, marks=pytest.mark.nightly),
        pytest.param(kept, 200, marks=pytest.mark.guard),
        pytest.param(falling_back, 120, marks=pytest.mark.guard),
    ],
)
def test_many_calls_leave_nothing_behind(make: Callable[[], Callable[[], Any]], calls: int) -> None:
    flat(make(), calls, calls // 5)


@pytest.mark.parametrize("name", ["trntk0", "pntk", "entk"])
def test_graphs_go_when_the_kernel_is_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No reference cycle holds a graph: without the collector, outputs with a graph are freed all the same."""
    model, x = convnet(), noise(3, 2, 6, 6).float()
    ns.kernel(name, model, x)
    seen: list[weakref.ref[Tensor]] = []
    original = backward.watch

    def watch(*args: Any, **kwargs: Any) -> Any:
        outputs, tape = original(*args, **kwargs)
        seen.append(weakref.ref(outputs))
        seen.extend(weakref.ref(term.x) for call in tape.calls for term in call.terms if term.x is not None)
        return outputs, tape

    monkeypatch.setattr(backward, "watch", watch)
    gc.collect()
    gc.disable()
    try:
        ns.kernel(name, model, x)
        assert seen
        assert not [ref for ref in seen if ref() is not None]
    finally:
        gc.enable()


def seconds(uses: int, width: int = 8) -> float:
    """CPU time of a kernel of a network that uses one weight so many times, least of three."""

    def run(m: Any, x: Tensor) -> Tensor:
        for _ in range(uses):
            x = m.a(x).tanh()
        return m.head(x)

    model = randomize(Net(run, a=nn.Linear(width, width), head=nn.Linear(width, 2)))
    x = noise(3, width)
    spent = []
    for _ in range(3):
        began = time.process_time()
        ns.Tangent(model, x)
        spent.append(time.process_time() - began)
    return min(spent)


@pytest.mark.guard
def test_probing_is_linear_in_the_uses_of_a_parameter() -> None:
    few, many = seconds(8), seconds(64)
    assert many < 12 * few, f"64 uses took {many / few:.1f} times the 8"
    assert many < 3.0, f"64 uses took {many:.1f} s"
