"""The pNTK of networks whose outputs add up to nearly nothing, as a trained classifier's do: neither refused nor rounded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import UsageError
from ntkscope.tangent.blocks.heads import Heads, OutputSketch
from oracles.closeness import relative_error
from oracles.naive import kernel as oracle
from strategies.networks import Net, noise

LEFT = 1e-3  # of a readout's rows, what their mean is left as


def cancelling(left: float = LEFT, classes: int = 10) -> nn.Sequential:
    """Outputs of about 100 each, whose sum is about `left` of that."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, classes))
    with torch.no_grad():
        for layer in (net[0], net[2], net[4]):
            layer.weight.mul_(4)
            layer.bias.mul_(0.1)
        readout = net[4]
        for part in (readout.weight, readout.bias):
            part -= (1 - left) * part.mean(0, keepdim=True)
    return net.eval()


def mixing() -> nn.Module:
    """Every sample sees the mean of the batch, which no sum of its outputs shows."""

    def run(m: Any, x: Tensor) -> Tensor:
        hidden = m.net[:4](x)
        return m.net[4](hidden + 0.2 * hidden.mean(0, keepdim=True))

    return Net(run, net=cancelling())


@pytest.mark.parametrize("left", [1e-2, 1e-3, 1e-4, 1e-5])
@pytest.mark.parametrize("name", ["pntk", "proj-pntk"])
def test_sums_that_cancel_are_not_refused(name: str, left: float) -> None:
    net, x = cancelling(left), noise(40, 6).float()
    outputs = net(x)
    assert outputs.sum(1).abs().max() < 20 * left * outputs.abs().max()
    options = {"dim": 4000} if name == "proj-pntk" else {}
    found = ns.kernel(name, net, x, **options)
    assert found.certificate.checked == found.certificate.blocks
    if name == "pntk":
        assert relative_error(found.dense().double(), oracle("pntk", net.double(), x.double())) < 1e-4


def test_gradients_below_the_readout_are_right() -> None:
    net, x = cancelling(), noise(20, 6).float()
    below = {"params": ["0.*", "2.*"]}
    found = ns.kernel("pntk", net, x, **below).dense().double()
    truth = ns.kernel("pntk", net.double(), x.double(), **below).dense()
    assert relative_error(found, truth) < 1e-3  # float32, of which the sum leaves a thousandth


@pytest.mark.parametrize("name", ["pntk", "trntk0", "proj-pntk"])
def test_samples_that_mix_are_refused_all_the_same(name: str) -> None:
    options = {"dim": 200} if name == "proj-pntk" else {}
    with pytest.raises(UsageError, match="other samples"):
        ns.kernel(name, mixing(), noise(12, 6).float(), **options)


class Hidden(nn.Module):
    """Outputs b + g and -b, of which g, a small part of the first, sees the whole batch (or chance): the sum is g alone."""

    def __init__(self, left: float, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.kind = left, kind
        self.body, self.small, self.big = nn.Linear(6, 20), nn.Linear(20, 1), nn.Linear(6, 1)
        self.big.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h, b = torch.tanh(self.body(x)), self.big(x) + 3
        if self.kind == "statistic":
            factor = 1 + 0.1 * torch.tanh(3 * x.mean())
        elif self.kind == "chance":
            factor = 1 + 0.1 * torch.rand(len(x), 1, dtype=x.dtype) if len(x) > 3 else torch.ones((), dtype=x.dtype)
        else:
            factor = 1 + 0.1 * (x @ x.T).softmax(1) @ torch.tanh(x[:, :1])
        g = self.left * self.small(h) * factor
        return torch.cat([b + g, -b], 1)


@pytest.mark.parametrize("left", [1e-2, 1e-3])
@pytest.mark.parametrize("kind", ["statistic", "chance", "attention"])
@pytest.mark.parametrize("name", ["pntk", "proj-pntk"])
def test_what_mixes_in_the_small_sum_is_refused(name: str, kind: str, left: float) -> None:
    """In float32 such a difference could be rounding; float64 tells."""
    options = {"dim": 50} if name == "proj-pntk" else {}
    with pytest.raises(UsageError, match=r"other samples|run again|other outputs"):
        ns.kernel(name, Hidden(left, kind), noise(40, 6).float(), **options)


def single(m: Any, x: Tensor) -> Tensor:
    """Cancels, and computes in float32 whatever it is given, so that float64 cannot tell."""
    h = x.float()
    for layer in m.net:
        weighted = isinstance(layer, nn.Linear)
        h = nn.functional.linear(h, layer.weight.float(), layer.bias.float()) if weighted else layer(h)
    return h


def test_where_float64_cannot_tell_it_is_refused_as_before() -> None:
    with pytest.raises(UsageError, match="other samples"):
        ns.kernel("pntk", Net(single, net=cancelling(1e-5)), noise(40, 6).float())


def test_sizes_do_not_overflow() -> None:
    for dtype, value in ((torch.float16, 4e4), (torch.float32, 2e38)):
        assert torch.isfinite(Heads(summed=True).sizes(torch.tensor([[value, -value]], dtype=dtype))).all()


def test_sizes_are_at_least_those_of_the_heads() -> None:
    values = noise(5, 8)
    for heads in (Heads(), Heads(outputs=(1, 3)), Heads(summed=True), Heads(sketch=OutputSketch(4))):
        assert (heads.sizes(values) >= heads(values).abs() - 1e-12).all()
        assert heads.sizes(values).shape == heads(values).shape
    part = Heads(sketch=OutputSketch(4)).part(1, 3)
    assert part.sizes(values).shape == part(values).shape


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["exact", "tf32", "bf16"])
def test_short_numbers_on_cuda_keep_what_the_sum_leaves(precision: str) -> None:
    net, x = cancelling(), noise(64, 6).float()
    below = {"params": ["0.*", "2.*"]}
    truth = ns.kernel("pntk", cancelling().double(), x.double(), **below).dense()
    found = ns.kernel("pntk", net.cuda(), x.cuda(), precision=precision, **below)
    assert found.certificate.fell_back == ()
    assert relative_error(found.dense().double().cpu(), truth) < 1e-2
