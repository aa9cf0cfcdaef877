"""The projected kernels: against the dense projection, unbiased, with the variance theory gives, stable in the seed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from contracts.kernel import KernelContract, perceptron, seeded
from ntkscope.linalg.sketches import sketch
from oracles import against, naive
from oracles.against import compare
from oracles.autograd import flat, jacobian
from oracles.closeness import assert_kernel_close, relative_error
from strategies.networks import noise, randomize

KINDS = ["rademacher", "gaussian"]
SEEDS, DIM = 200, 6
every_kind = pytest.mark.parametrize("kind", KINDS)


class TestProjectedTrace(KernelContract):
    name = "proj-trntk"

    def test_its_diagonal_is_exactly_one(self) -> None:
        model, x = seeded(perceptron)
        gram = self.compute(model, x)
        assert torch.equal(gram.dense().diagonal(), torch.ones(len(x), dtype=torch.float64))

    @every_kind
    def test_raw(self, kind: str) -> None:
        model, x = seeded(perceptron)
        compare(self.name, model, x, x[:2], dim=11, kind=kind, normalize=False)


class TestProjectedPseudo(KernelContract):
    name = "proj-pntk"

    def test_the_default_is_a_cosine(self) -> None:
        """As the paper defines it (equation 5), unlike the exact pseudo kernel."""
        model, x = seeded(perceptron)
        compare(self.name, model, x, x[:2], dim=11)

    @every_kind
    def test_raw(self, kind: str) -> None:
        """Scaled like the pseudo kernel it estimates, factor 1/C included."""
        model, x = seeded(perceptron)
        compare(self.name, model, x, x[:2], dim=11, kind=kind, normalize=False)


def network() -> tuple[nn.Module, Tensor]:
    return randomize(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))), noise(3, 3)


def draws(name: str, kind: str) -> Tensor:
    """The kernel under the package's own projection for each of `SEEDS` seeds: (seeds, n, m)."""
    j = jacobian(*network())
    projections = [against.projection(seed, DIM, kind) for seed in range(SEEDS)]
    return torch.stack([naive.from_jacobians(name, j, j, projection=p, normalize=False) for p in projections])


def theory(name: str, kind: str) -> tuple[Tensor, Tensor]:
    """Mean and variance of Σ_c <P u_c, P v_c>, a quadratic form of M = Σ_c u_c v_cᵀ in each of DIM rows.

    Gaussian: 2 ‖S‖² / DIM with S the symmetric part of M; Rademacher: the diagonal of M adds no variance.
    """
    model, x = network()
    j = flat(jacobian(model, x))
    if name == "proj-pntk":
        j = j.sum(1, keepdim=True) / j.shape[1] ** 0.5
    m = torch.einsum("icp,jcq->ijpq", j, j)
    symmetric = (m + m.transpose(2, 3)) / 2
    diagonal = symmetric.diagonal(dim1=2, dim2=3).square().sum(-1)
    spread = symmetric.square().sum((2, 3)) - (diagonal if kind == "rademacher" else 0)
    return naive.trntk0(j, j), 2 * spread / DIM


@every_kind
@pytest.mark.parametrize("name", ["proj-trntk", "proj-pntk"])
def test_unbiased_with_the_variance_of_theory(name: str, kind: str) -> None:
    found, (mean, variance) = draws(name, kind), theory(name, kind)
    # five standard errors of the mean over a fixed number of seeds
    assert bool(((found.mean(0) - mean).abs() <= 5 * (variance / SEEDS).sqrt()).all())
    # a sample variance of S draws has relative standard error sqrt((kurtosis - 1) / S); the kurtosis is at most 15 for
    # one row and so at most 3 + 12 / DIM for the mean of DIM of them; five of those
    error = (found.var(0) / variance - 1).abs()
    assert float(error.max()) <= 5 * ((2 + 12 / DIM) / SEEDS) ** 0.5


def test_the_statistics_see_a_wrong_scale() -> None:
    """Canary: a projection scaled by 1/dim instead of 1/sqrt(dim), or a biased one, is many standard errors away."""
    mean, variance = theory("proj-trntk", "rademacher")
    for wrong in (mean / DIM, mean * 1.2):
        assert float(((wrong - mean).abs() / (variance / SEEDS).sqrt()).max()) > 5


def test_the_default_is_10240_rademacher_dimensions() -> None:
    model, x = network()
    default = ns.kernel("proj-trntk", model, x).dense()
    compare("proj-trntk", model, x, dim=10240, kind="rademacher")
    assert_kernel_close(default, ns.kernel("proj-trntk", model, x, dim=10240, kind="rademacher").dense(), 1e-14)
    assert relative_error(default, ns.kernel("trntk", model, x).dense()) < 0.1


@every_kind
def test_a_seed_is_a_projection(kind: str) -> None:
    model, x = network()
    one, again, other = (ns.kernel("proj-trntk", model, x, dim=8, kind=kind, seed=s).dense() for s in (3, 3, 4))
    assert torch.equal(one, again)
    assert relative_error(one, other) > 1e-3


def test_the_projection_does_not_move_with_the_global_seed_or_the_precision() -> None:
    model, x = network()
    torch.manual_seed(1)
    one = ns.kernel("proj-trntk", model, x, dim=8).dense()
    torch.manual_seed(2)
    assert torch.equal(ns.kernel("proj-trntk", model, x, dim=8).dense(), one)
    single = ns.kernel("proj-trntk", model.float(), x.float(), dim=8).dense()
    assert_kernel_close(single, one, 1e-5)


@every_kind
def test_the_dense_projection(kind: str) -> None:
    p = sketch.projection_rows(0, "layer.weight", 0, 1200, 64, kind, torch.float64)
    assert p.shape == (1200, 64)
    assert p.dtype == torch.float64
    if kind == "rademacher":
        assert torch.equal(p.abs(), torch.full_like(p, 64**-0.5))
    assert abs(float(p.mean())) <= 5 * (64 * p.numel()) ** -0.5
    assert float(p.square().mean()) == pytest.approx(1 / 64, rel=5 * (2 / p.numel()) ** 0.5)
    assert torch.equal(p, sketch.projection_rows(0, "layer.weight", 0, 1200, 64, kind, torch.float64))
    for other in [(1, "layer.weight"), (0, "layer.bias")]:
        assert not torch.equal(p, sketch.projection_rows(*other, 0, 1200, 64, kind, torch.float64))


@every_kind
def test_rows_and_columns_of_the_projection_are_uncorrelated(kind: str) -> None:
    p = sketch.projection_rows(0, "layer.weight", 0, 400, 300, kind, torch.float64) * 300**0.5
    for gram, terms in ((p @ p.T, 300), (p.T @ p, 400)):
        off = (gram / terms - torch.diag(torch.diagonal(gram / terms))).abs()
        assert float(off.max()) <= 6.5 * terms**-0.5  # the largest of ~80,000 standard normals is about 4.5


@every_kind
@pytest.mark.parametrize("name", ["proj-trntk", "proj-pntk"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_shorter_numbers_change_little(name: str, precision: str, kind: str) -> None:
    model = ns.models.build("small_cnn", image_size=8, classes=3, channels=(4,)).eval()
    x = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    options = {"dim": 100, "kind": kind, "normalize": False}  # 100: its root is no bfloat16 number
    whole = ns.kernel(name, model, x, **options).dense()
    short = ns.kernel(name, model, x, **options, precision=precision).dense()
    assert not torch.equal(whole, short)
    assert relative_error(short, whole) <= 2**-9  # one rounding to 8 bits, and rounding averages out in the sums


class Mixed(nn.Module):
    """A float32 body with a float64 head."""

    def __init__(self, convolution: bool) -> None:
        super().__init__()
        body: list[nn.Module] = [nn.Conv1d(1, 4, 3), nn.Tanh(), nn.Flatten()] if convolution else [nn.Linear(8, 24)]
        self.body, self.head = nn.Sequential(*body), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x.float())).double())


@pytest.mark.parametrize("options", [{}, {"kind": "gaussian"}, {"kind": "sparse"}, {"kind": "kronecker"}], ids=str)
@pytest.mark.parametrize("convolution", [False, True])
def test_a_projection_of_mixed_parameters_tends_to_the_exact_kernel(convolution: bool, options: dict[str, Any]) -> None:
    model = randomize(Mixed(convolution))
    model.body.float()
    model.head.double()
    x = noise(6, 1, 8) if convolution else noise(6, 8)
    exact = ns.kernel("trntk0", model, x)
    near = ns.kernel("proj-trntk", model, x, dim=8192, normalize=False, **options)
    assert near.dtype == exact.dtype == torch.float64
    assert relative_error(near.dense(), exact.dense()) <= 0.1  # 1/√8192 times a few


@every_kind
@pytest.mark.parametrize("name", ["proj-trntk", "proj-pntk"])
def test_the_sides_of_an_outer_product_are_projected_as_the_gradient_they_make(name: str, kind: str) -> None:
    model = randomize(nn.Sequential(nn.Linear(100, 7), nn.ReLU(), nn.Linear(7, 3)))  # ReLU: rows of some samples are 0
    x = noise(9, 100)
    made = ns.kernel(name, model, x, dim=32, kind=kind, normalize=False, profile=True)
    assert made.coverage.methods["0.weight"] == "kronecker"
    j = jacobian(model, x)
    expected = naive.from_jacobians(name, j, j, projection=against.projection(0, 32, kind), normalize=False)
    assert_kernel_close(made.dense(), expected, 1e-12)
