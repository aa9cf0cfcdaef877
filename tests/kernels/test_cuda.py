"""The kernels on a CUDA device: the numbers of the CPU, the same projections, precisions within their stated error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.linalg.sketches.sketch import projection_rows
from strategies.named import NAMED

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Gated(nn.Module):
    """A parameter that goes through a function before it meets a sample: no rule knows it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.gate, self.head = nn.Linear(64, 64), nn.Parameter(torch.randn(64)), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)) * self.gate.sigmoid())


def cases() -> dict[str, tuple[nn.Module, Tensor]]:
    torch.manual_seed(0)
    return {
        "lenet": (ns.models.build("lenet"), torch.randn(5, 1, 28, 28, dtype=torch.float64)),
        "resnet20": (ns.models.build("resnet20"), torch.randn(3, 3, 32, 32, dtype=torch.float64)),
        "decoder": NAMED["tied_decoder"](),
    }


@pytest.mark.parametrize("name", sorted(ns.KERNELS))
@pytest.mark.parametrize("network", ["lenet", "resnet20", "decoder"])
def test_the_numbers_of_the_cpu(name: str, network: str) -> None:
    model, x = cases()[network]
    model = model.double().eval()
    options = {"dim": 64} if name.startswith("proj") else {}
    here = ns.kernel(name, model, x, **options).dense()
    there = ns.kernel(name, model.cuda(), x.cuda(), **options).dense().cpu()
    assert float((here - there).abs().max()) <= 1e-10 * float(here.abs().max())


@pytest.mark.parametrize("kind", ["rademacher", "gaussian"])
def test_one_projection_on_every_device(kind: str) -> None:
    here = projection_rows(3, "layer.weight", 1000, 1200, 300, kind)
    there = projection_rows(3, "layer.weight", 1000, 1200, 300, kind, device="cuda").cpu()
    torch.testing.assert_close(here, there, rtol=1e-6, atol=1e-9)
    if kind == "rademacher":
        assert torch.equal(here, there)


@pytest.mark.parametrize("precision", ["exact", "tf32", "bf16", "fp16"])
def test_precisions_stay_within_their_error(precision: str) -> None:
    model, x = cases()["resnet20"]
    exact = ns.kernel("trntk0", model.double().eval().cuda(), x.cuda()).dense()
    quick = ns.kernel("trntk0", model.float(), x.float().cuda(), precision=precision).dense()
    assert float((quick - exact).norm() / exact.norm()) <= 2e-3


def test_a_device_can_be_asked_for() -> None:
    model, x = cases()["lenet"]
    K = ns.kernel("trntk0", model.eval(), x.float(), device="cuda")
    assert K.device.type == "cuda"
    assert next(model.parameters()).device.type == "cpu"


@pytest.mark.parametrize("name", ["trntk0", "entk", "em"])
def test_tiles_on_disk_are_the_numbers_of_the_cpu_and_the_same_where_they_travel(name: str, tmp_path: Path) -> None:
    model, x = cases()["resnet20"]
    model = model.double().eval()
    here = ns.kernel(name, model, x).dense()
    found: Any = ns.kernel(name, model.cuda(), x.cuda(), store=tmp_path / "one")
    assert found.device.type == "cpu"
    assert float((here - found.dense()).abs().max()) <= 1e-10 * float(here.abs().max())
    again = ns.kernel(name, model.cpu(), x, device="cuda", store=tmp_path / "one")  # the same fingerprint from a CPU
    assert again.meta["run"]["computed"] == 0


@pytest.mark.parametrize("kind", ["sparse", "kronecker"])
@pytest.mark.parametrize("network", ["lenet", "resnet20", "decoder"])
def test_structured_projections_are_those_of_the_cpu(kind: str, network: str) -> None:
    model, x = cases()[network]
    model = model.double().eval()
    options = {"dim": 256, "kind": kind, "sparsity": 32, "normalize": False}
    here: Any = ns.kernel("proj-trntk", model, x, **options)
    there: Any = ns.kernel("proj-trntk", model.cuda(), x.cuda(), **options)
    assert here.meta["factored"] == there.meta["factored"]
    assert float((here.dense() - there.dense().cpu()).abs().max()) <= 1e-10 * float(here.dense().abs().max())
    assert float((here.standard_error() - there.standard_error().cpu()).abs().max()) <= 1e-10 * float(
        here.dense().max()
    )


@pytest.mark.parametrize("kind", ["sparse", "kronecker"])
@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_structured_projections_in_fewer_bits(kind: str, precision: str) -> None:
    model, x = cases()["lenet"]
    model, x = model.float().eval().cuda(), x.float().cuda()
    options = {"dim": 1024, "kind": kind, "normalize": False}
    whole = ns.kernel("proj-trntk", model, x, **options).dense()
    short = ns.kernel("proj-trntk", model, x, **options, precision=precision).dense()
    assert float((short - whole).norm() / whole.norm()) <= 2**-8


def test_a_tolerance_on_the_device(tmp_path: Path) -> None:
    model, x = cases()["lenet"]
    model, x = model.float().eval().cuda(), x.float().cuda()
    gram: Any = ns.kernel("proj-trntk", model, x, kind="sparse", rtol=0.1)
    assert gram.meta["error"]["relative"] <= 0.1
    kept: Any = ns.kernel("proj-trntk", model, x, kind="sparse", dim=512, store=tmp_path)
    plain: Any = ns.kernel("proj-trntk", model, x, kind="sparse", dim=512)
    torch.testing.assert_close(kept.dense(), plain.dense().cpu(), rtol=1e-4, atol=1e-4)
    new = ns.kernels.extend(tmp_path, model, x[:2])
    torch.testing.assert_close(new.dense(), plain.dense()[:2].cpu(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", ["exact", "tf32", "bf16"])
def test_what_no_rule_knows_is_vectorised_in_every_precision(precision: str) -> None:
    torch.manual_seed(0)
    model, x = Gated().cuda(), torch.randn(300, 64).cuda()
    found = ns.kernel("trntk0", model, x, precision=precision)
    assert found.coverage.share("func") > 0
    assert found.coverage.func_method == "vmap"
