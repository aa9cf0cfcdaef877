"""Gradients and features so small or so large that their products leave the range of their numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import NtkscopeError, NumericalError, UsageError
from ntkscope.tangent.model.arithmetic import unit_for
from oracles.against import expected
from oracles.closeness import assert_kernel_close
from strategies.networks import Net, noise, randomize

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}
SCALES = {
    torch.float64: (1e-300, 1e-170, 1e-155, 1e-100, 1e100, 1e155, 1e300),
    torch.float32: (1e-38, 1e-30, 1e-23, 1e-20, 1e-16, 1e16, 3e19, 1e25, 1e37),
    torch.bfloat16: (1e-30, 1e-20, 1e20, 1e30),
    torch.float16: (1e-4, 1e-3, 1e3),
}
CASES = [(dtype, scale) for dtype, scales in SCALES.items() for scale in scales]
X = noise(5, 4)


def scaled(scale: float, dtype: torch.dtype) -> Any:
    """A perceptron whose outputs are multiplied by `scale`."""

    def run(m: Any, x: Tensor) -> Tensor:
        return m.b(torch.tanh(m.a(x))) * scale

    return randomize(Net(run, a=nn.Linear(4, 8), b=nn.Linear(8, 3))).to(dtype)


@pytest.mark.parametrize(("dtype", "scale"), CASES)
def test_cosines_are_right_whatever_the_scale(dtype: torch.dtype, scale: float) -> None:
    right = expected("trntk", scaled(1.0, torch.float64), X)
    assert_kernel_close(ns.kernel("trntk", scaled(scale, dtype), X.to(dtype)).dense(), right, TOLERANCE[dtype])
    assert_kernel_close(
        ns.kernel("trntk", scaled(scale, dtype), X.to(dtype), X.to(dtype)).dense(), right, TOLERANCE[dtype]
    )
    projected = [
        ns.kernel("proj-trntk", scaled(c, kind), X.to(kind), dim=64).dense().double()
        for c, kind in ((1.0, torch.float64), (scale, dtype))
    ]
    assert_kernel_close(projected[1], projected[0], 2 * TOLERANCE[dtype])


@pytest.mark.guard
@pytest.mark.parametrize("name", ["entk", "trntk0", "pntk", "ptk"])
@pytest.mark.parametrize(("dtype", "scale"), CASES)
def test_kernels_are_right_or_the_range_is_named(name: str, dtype: torch.dtype, scale: float) -> None:
    """Divided by the square of the scale, in float64, a kernel is that of the unscaled model, as far as its numbers reach."""
    options = {"layer": "a"} if name == "ptk" else {}
    right = expected(name, scaled(1.0, torch.float64), X, **options)
    try:
        made = ns.kernel(name, scaled(scale, dtype), X.to(dtype), **options).dense().double()
    except NumericalError as error:
        if "range of" not in str(error) or 1e-3 < scale < 1e2:
            raise
        return
    info = torch.finfo(dtype)
    sums = 20 if name == "ptk" else 2  # its products are formed in its own numbers
    spacing = sums * info.tiny * info.eps / scale / scale / float(right.max()) if scale < 1 else 0.0
    allowed = max(TOLERANCE[dtype], spacing)
    assert allowed < 0.2
    assert_kernel_close(made / scale / scale, right, allowed)


@pytest.mark.parametrize("layers", [["a"], None])
@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 1e-30), (torch.float32, 1e25), (torch.float64, 1e200)])
def test_features_beyond_the_range(layers: list[str] | None, dtype: torch.dtype, scale: float) -> None:
    model = randomize(Net(lambda m, x: m.b(m.a(x)), a=nn.Linear(4, 8, bias=False), b=nn.Linear(8, 3, bias=False))).to(
        dtype
    )
    with torch.no_grad():
        model.a.weight.mul_(scale)
    name, options = ("em", {"layers": layers}) if layers else ("ck", {})
    with pytest.raises(NumericalError, match=r"range|digits"):
        ns.kernel(name, model, X.to(dtype), **options).dense()


def test_some_samples_may_be_far_smaller() -> None:
    """The unnormalised kernel is right beside the largest entry; cosines of what has no digits are refused."""
    model = randomize(
        Net(lambda m, x: m.b(torch.tanh(m.a(x))) * x[:, :1], a=nn.Linear(4, 8), b=nn.Linear(8, 3))
    ).float()
    x = noise(6, 4).float()
    x[1, 0] = 1e-25
    right = expected("trntk0", model, x)
    assert_kernel_close(ns.kernel("trntk0", model, x).dense(), right, 1e-5)
    with pytest.raises(NumericalError, match="float64"):
        ns.kernel("trntk", model, x)
    assert_kernel_close(ns.kernel("trntk", model, x, dtype=torch.float64).dense(), expected("trntk", model, x), 1e-10)


def test_ordinary_gradients_are_left_alone() -> None:
    assert all(unit_for(size, torch.float32) == 1 for size in (0.0, 1e-10, 1e-3, 1.0, 1e10, float("inf"), float("nan")))
    for size in (1e-45, 1e-30, 1e-13, 1e13, 1e38):
        unit = unit_for(size, torch.float32)
        assert float(torch.tensor(unit)) == unit
        assert 1e-13 < size * unit < 1e13


@pytest.mark.parametrize("name", ["pntk", "proj-pntk"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_that_add_up_to_a_constant(name: str, dtype: torch.dtype) -> None:
    def model(last: nn.Module) -> nn.Module:
        return randomize(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3), last)).to(dtype)

    for last in (nn.Softmax(1), nn.LayerNorm(3, elementwise_affine=False)):
        with pytest.raises(UsageError, match="add up to a constant"):
            ns.kernel(name, model(last), X.to(dtype))
        assert ns.kernel(name, model(last), X.to(dtype), outputs=[0, 2]).dense().isfinite().all()
    assert ns.kernel(name, model(nn.LogSoftmax(1)), X.to(dtype)).dense().isfinite().all()


def test_a_store_names_the_range(tmp_path: Any) -> None:
    with pytest.raises(NtkscopeError, match=r"range|digits"):
        ns.kernel("trntk0", scaled(1e-30, torch.float32), X.float(), store=str(tmp_path / "k")).dense()
