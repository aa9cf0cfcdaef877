"""Convolutions made in another, equal way give the same outputs and gradients as PyTorch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ntkscope.tangent.blocks.convolution import _turned, flipped_bytes, patches_multiplied, quick
from ntkscope.tangent.blocks.replaced_calls import ReplacedCalls

FUNCTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
THROUGH = st.booleans()


@given(st.data())
def test_gradients_are_those_of_the_plain_call(data: st.DataObject) -> None:
    dims = data.draw(st.sampled_from([1, 2, 3]), label="dimensions")
    n, i, o = (data.draw(st.integers(1, 4), label=name) for name in ("samples", "in", "out"))
    kernel = [data.draw(st.integers(1, 3), label="kernel") for _ in range(dims)]
    dilation = [data.draw(st.integers(1, 2), label="dilation") for _ in range(dims)]
    padding = [data.draw(st.integers(0, 3), label="padding") for _ in range(dims)]
    size = [d * (k - 1) + 1 + data.draw(st.integers(0, 4), label="size") for d, k in zip(dilation, kernel)]
    draw = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6), label="seed"))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    x = normal(n, i, *size).requires_grad_(data.draw(THROUGH, label="input has a gradient"))
    weight = normal(o, i, *kernel).requires_grad_()
    bias = normal(o).requires_grad_() if data.draw(THROUGH, label="bias") else None
    asked = {"input": x, "weight": weight, "bias": bias, "padding": padding, "dilation": dilation}
    own = ReplacedCalls()
    made = quick(FUNCTIONS[dims], asked, own)
    assert made is not None
    plain = FUNCTIONS[dims](x, weight, bias, 1, padding, dilation)
    torch.testing.assert_close(made, plain)
    leaves = [leaf for leaf in (x, weight, bias) if leaf is not None and leaf.requires_grad]
    cotangent = normal(*plain.shape)
    ours = torch.autograd.grad(made, leaves, cotangent, retain_graph=True)
    for one, other in zip(ours, torch.autograd.grad(plain, leaves, cotangent)):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    if x.requires_grad:  # cotangents alone
        with own.of_cotangents():
            onward, of_weight = torch.autograd.grad(made, [x, weight], cotangent, allow_unused=True)
        assert of_weight is None
        torch.testing.assert_close(onward, ours[0], rtol=0, atol=0)


@given(st.data())
def test_patches_multiplied_are_a_convolution(data: st.DataObject) -> None:
    kernel, padding, more = (
        [data.draw(st.integers(least, most), label=label) for _ in range(2)]
        for label, least, most in (("kernel", 1, 3), ("padding", 0, 3), ("size", 0, 4))
    )
    size = [k + extra for k, extra in zip(kernel, more)]
    n, i, o = (data.draw(st.integers(1, 4), label=name) for name in ("samples", "in", "out"))
    draw = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6), label="seed"))
    x = torch.randn(n, i, *size, generator=draw, dtype=torch.float64)
    weight = torch.randn(o, i, *kernel, generator=draw, dtype=torch.float64)
    found = patches_multiplied(x, weight, None, 1, padding, (1, 1))
    torch.testing.assert_close(found, F.conv2d(x, weight, None, 1, padding))


@pytest.mark.parametrize("more", [{"stride": 2}, {"groups": 2}, {"padding": "same"}])
def test_other_calls_are_left_alone(more: dict[str, object]) -> None:
    x, weight = torch.randn(2, 2, 5, 5), torch.randn(2, 2 // int(more.get("groups", 1)), 3, 3)  # type: ignore[call-overload]
    assert quick(F.conv2d, {"input": x, "weight": weight, **more}, ReplacedCalls()) is None


def test_room_for_flipped_kernels_is_kept_on_the_cpu() -> None:
    """As many bytes as the kernels of all convolutions have there; on a GPU an execution mode has room for them."""
    convolutions = torch.nn.Conv1d(2, 3, 3), torch.nn.Conv2d(3, 2, (3, 2))
    leaves = list(torch.nn.Sequential(*convolutions, torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(3)).parameters())
    turned = sum(_turned(each.weight).contiguous().untyped_storage().nbytes() for each in convolutions)
    assert flipped_bytes(leaves, torch.device("cpu")) == turned
    assert flipped_bytes(leaves, torch.device("cuda")) == 0
