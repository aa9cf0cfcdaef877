"""Every road to one kernel says the same: tiles, shifts, all positions at once, precisions, modules and vocabulary."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from ntkscope import infinite
from ntkscope.core.machine.threads import spread
from ntkscope.infinite import AvgPool, Conv, Dense, Erf, Flatten, Gelu, GlobalAvgPool, LayerNorm, Relu, Residual, serial
from ntkscope.infinite.rules import Concat, Sum
from oracles.closeness import assert_kernel_close

SAME = 1e-12  # only the order of operations differs
D, C = Dense(1.4, 0.3), Conv(3, W_std=1.4, b_std=0.3)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


NETWORKS = {
    "vectors": (serial(D, Relu(), D, Erf(), D), (5,)),
    "flatten": (serial(C, Relu(), C, Relu(), Flatten(), D, Relu(), D), (2, 5, 4)),
    "pooled": (serial(C, Relu(), Conv(3, 2, W_std=1.2), Relu(), GlobalAvgPool(), D, Relu(), D), (2, 5, 4)),
    "windows": (serial(C, Relu(), AvgPool(2, 1), C, LayerNorm(), Relu(), GlobalAvgPool(), D), (2, 5, 4)),
    "one dimension": (serial(C, Gelu(), Residual(C, Relu(), C), GlobalAvgPool(), D), (2, 6)),
    "side by side": (serial(C, Concat((serial(Relu(), C), serial(Erf(), C))), Relu(), GlobalAvgPool(), D), (2, 3, 4)),
}
everywhere = pytest.mark.parametrize("name", NETWORKS)
kinds = pytest.mark.parametrize("kind", ["ntk", "nngp"])


@everywhere
@kinds
def test_tiles_of_any_size(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, shape = NETWORKS[name]
    x = noise(5, *shape)
    whole = infinite.kernel(net, x, kind=kind).dense()
    for tile in (2, 3):
        monkeypatch.setattr(infinite.pairs.Network, "plan", lambda self, *_, tile=tile: (tile + 1, tile))
        gram = infinite.kernel(net, x, kind=kind)
        assert torch.equal(gram.dense(), gram.dense().T)
        assert_kernel_close(gram.dense(), whole, SAME)
        assert_kernel_close(infinite.kernel(net, x[:3], x[1:], kind=kind).dense(), whole[:3, 1:], SAME)


@everywhere
def test_symmetric_positive_and_the_diagonal_is_its_own(name: str) -> None:
    net, shape = NETWORKS[name]
    x = noise(6, *shape)
    both = infinite.kernels(net, x)
    for gram in (both.nngp, both.ntk):
        eigenvalues = gram.eigvalsh()
        assert gram.symmetric
        assert float(eigenvalues[0]) > -1e-13 * float(eigenvalues[-1])
    cross = infinite.kernel(net, x[:2], x[1:])
    if cross.row_diagonal is not None:
        assert_kernel_close(cross.row_diagonal, both.ntk.diagonal()[:2], SAME)
        assert_kernel_close(cross.column_diagonal, both.ntk.diagonal()[1:], SAME)
    # The NTK is the NNGP plus a kernel: what layers before the last add.
    assert float(torch.linalg.eigvalsh(both.ntk.dense() - both.nngp.dense())[0]) > -1e-12


@everywhere
def test_single_precision(name: str) -> None:
    net, shape = NETWORKS[name]
    x = noise(6, *shape)
    gram = infinite.kernel(net, x, dtype=torch.float32)
    assert gram.dtype == torch.float32
    assert_kernel_close(gram.dense(), infinite.kernel(net, x).dense(), 1e-5)


@everywhere
def test_gradients_are_finite_and_right(name: str) -> None:
    """Against a difference quotient, and finite where both sides are the same input."""
    net, shape = NETWORKS[name]
    x, other, direction = noise(2, *shape), noise(3, *shape, seed=1), noise(2, *shape, seed=2)
    x.requires_grad_(True)
    weights = noise(2, 3, seed=3)
    (found,) = torch.autograd.grad((infinite.kernel(net, x, other).dense() * weights).sum(), x)
    step = 1e-5
    with torch.no_grad():
        ends = [(infinite.kernel(net, x + s * step * direction, other).dense() * weights).sum() for s in (1, -1)]
    expected = float(ends[0] - ends[1]) / (2 * step)
    assert float((found * direction).sum()) == pytest.approx(expected, rel=1e-6, abs=1e-7)
    (own,) = torch.autograd.grad(infinite.kernel(net, x).dense().sum(), x)
    assert bool(torch.isfinite(own).all())


@st.composite
def heads(draw: st.DrawFn) -> tuple[list[infinite.layer.Layer], tuple[int, int]]:
    """Convolutions without pooling, which the two roads to a pooled kernel must agree on."""
    sides = draw(st.tuples(st.integers(3, 6), st.integers(3, 6)))
    circular = draw(st.booleans())
    layers: list[infinite.layer.Layer] = []
    for _ in range(draw(st.integers(1, 2))):
        size = draw(st.sampled_from([1, 2, 3, (3, 1)]))
        if circular:
            layers += [Conv(size, 1, "circular", 1.3, 0.2), Relu()]
        else:
            stride = draw(st.sampled_from([1, 2, (1, 2), (2, 1)]))
            padding = draw(st.sampled_from(["same", 0, 1, 2] if not layers else ["same"]))
            layers += [Conv(size, stride, padding, 1.3, 0.2), Relu()]
    if draw(st.booleans()):
        padding = "circular" if circular else "same"
        layers += [Sum((Conv(1, 1, padding), serial(Conv(3, 1, padding), Erf(), Conv(3, 1, padding)))), Relu()]
    return layers, sides


@given(heads())
@settings(max_examples=12)
def test_shift_by_shift_is_all_positions_at_once(drawn: tuple[list[infinite.layer.Layer], tuple[int, int]]) -> None:
    layers, sides = drawn
    x = noise(3, 2, *sides)
    shifts = serial(*layers, GlobalAvgPool(), D)
    at_once = serial(*layers, AvgPool(1), GlobalAvgPool(), D)  # a window of one is nothing, but takes the other road
    shape = infinite.layer.Shape(2, sides)
    grows = any(
        getattr(layer, "padding", "same") in (1, 2) for layer in layers
    )  # then the first takes the second's road
    assert grows or infinite.pairs.Network.of(shifts, shape, True, False).pooled is not None
    assert infinite.pairs.Network.of(at_once, shape, True, False).pooled is None
    assert_kernel_close(infinite.kernel(shifts, x).dense(), infinite.kernel(at_once, x).dense(), SAME)


def test_pooling_everything_by_a_window_is_the_global_mean() -> None:
    x = noise(3, 2, 4, 4)
    windows, whole = serial(C, Relu(), AvgPool(4), Flatten(), D), serial(C, Relu(), GlobalAvgPool(), D)
    assert_kernel_close(infinite.kernel(windows, x).dense(), infinite.kernel(whole, x).dense(), SAME)


def test_a_convolution_of_the_whole_image_is_dense() -> None:
    x = noise(3, 2, 4, 4)
    conv = serial(Conv(4, padding="valid", W_std=1.4, b_std=0.3), Relu(), Flatten(), D)
    dense = serial(Flatten(), D, Relu(), D)
    assert_kernel_close(infinite.kernel(conv, x).dense(), infinite.kernel(dense, x).dense(), SAME)


def test_modules_and_vocabulary_are_one_network() -> None:
    module = nn.Sequential(
        nn.Conv2d(2, 64, 3, padding="same"),
        nn.GELU(),
        nn.Conv2d(64, 64, 3, stride=2, padding=1, bias=False),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(64, 10),
    ).eval()
    w = math.sqrt(1 / 3)
    net = serial(
        Conv(3, W_std=w, b_std=w / math.sqrt(18)),
        Gelu(),
        Conv(3, 2, 1, W_std=w),
        Relu(),
        GlobalAvgPool(),
        Dense(w, w / 8),
    )
    x = noise(3, 2, 5, 5)
    limit = infinite.kernel(module, x, parametrization="ntk")
    assert_kernel_close(limit.dense(), infinite.kernel(net, x).dense(), SAME)
    assert infinite.kernel(module, x).meta["parametrization"] == "standard"
    measured: Any = infinite.from_module(module, init="measured").layers[0]
    assert measured.W_std == pytest.approx(w, rel=0.1)
    assert measured.W_std != w
    before = [p.clone() for p in module.parameters()]
    infinite.kernel(module, x, parametrization="standard")
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters()))


def test_arrays_and_datasets_are_their_inputs() -> None:
    x, net = noise(3, 4), serial(D, Relu(), D)
    expected = infinite.kernel(net, x).dense()
    for given_x in (x.numpy(), TensorDataset(x, torch.arange(3)), np.asarray(x)):
        assert_kernel_close(infinite.kernel(net, given_x).dense(), expected, SAME)


def test_images_into_a_fully_connected_network() -> None:
    x, net = noise(3, 2, 4, 4), serial(Flatten(), D, Relu(), D)
    expected = infinite.kernel(serial(D, Relu(), D), x.flatten(1)).dense()
    assert_kernel_close(infinite.kernel(net, x).dense(), expected, SAME)
    assert_kernel_close(infinite.kernel(net, x, parametrization="ntk").dense(), expected, SAME)


@pytest.mark.parametrize("name", ["vectors", "flatten", "pooled"])
def test_threads_say_the_same_and_leave_their_number(name: str) -> None:
    net, shape = NETWORKS[name]
    x = noise(9, *shape)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = infinite.kernel(net, x, memory="64KiB").dense()
        torch.set_num_threads(2)
        together = infinite.kernel(net, x, memory="64KiB").dense()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert_kernel_close(together, alone, SAME)


def test_a_failing_thread_is_heard() -> None:
    def work(job: int) -> None:
        raise ValueError(f"job {job}")

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.raises(ValueError, match="job"):
            spread(range(4), work, torch.device("cpu"))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
