"""Models that compute in several floating-point types: tolerances follow the shortest of them, and nobody is refused for it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from oracles.closeness import relative_error
from strategies.networks import noise, randomize


class Island(nn.Module):
    """A normalisation that is always computed in float32, as in Llama."""

    def __init__(self, kind: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.gain, self.last = nn.Linear(5, 16), nn.Parameter(torch.ones(16)), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        short = h.to(self.kind)
        short = short * torch.rsqrt(short.square().mean(-1, keepdim=True) + 1e-6)
        return self.last(torch.tanh(self.gain * short.to(h.dtype)))


def by_autograd(model: nn.Module, x: Tensor) -> Tensor:
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for one in x:
        outputs = model(one[None])[0]
        grads = [torch.autograd.grad(value, parameters, retain_graph=True) for value in outputs]
        rows.append(torch.cat([g.flatten().double() for grad in grads for g in grad]))
    stacked = torch.stack(rows)
    return stacked @ stacked.T


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["trntk0", "entk", "ck", "proj-trntk"])
def test_a_short_part_of_a_float64_model_is_no_reason_to_refuse(kind: torch.dtype, name: str) -> None:
    model, x = randomize(Island(kind)).double(), noise(20, 5)
    options = {"dim": 16} if name.startswith("proj") else {}
    K = ns.kernel(name, model, x, **options)
    assert K.certificate is not None
    assert K.certificate.worst <= K.certificate.tolerance
    assert K.certificate.tolerance == pytest.approx({torch.float32: 1e-3, torch.bfloat16: 1.5e-1}[kind], rel=0.5)
    assert not K.certificate.fell_back
    if name == "trntk0":
        tolerance = {torch.float32: 1e-5, torch.bfloat16: 3e-2}[kind]  # that of the short part
        assert relative_error(K.dense(), by_autograd(model, x)) <= tolerance


def test_a_model_that_is_float64_throughout_keeps_its_strict_tolerance() -> None:
    model = randomize(Island(torch.float64)).double()
    K = ns.kernel("trntk0", model, noise(6, 5))
    assert K.certificate is not None
    assert K.certificate.tolerance == 1e-8
