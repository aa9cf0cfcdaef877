"""Sparse and factored projections of gradients: the maps they say they are, on every method, with the variance they state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from contracts.kernel import CASES, KernelContract, seeded
from ntkscope.core import UsageError
from ntkscope.kernels import _sketching
from oracles import against, naive
from oracles.autograd import flat, jacobian
from oracles.closeness import assert_kernel_close, relative_error
from strategies.networks import Case, Net, noise, randomize, tokens

DIM = 64


def wide() -> Case:
    """A layer whose two sides are far fewer numbers than its gradient."""
    return randomize(nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 3))), noise(5, 40)


def few_positions() -> Case:
    layers = [nn.Conv2d(6, 20, 3), nn.Tanh(), nn.Conv2d(20, 16, 2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)]
    return randomize(nn.Sequential(*layers)), noise(5, 6, 4, 4)


def upwards() -> Case:
    layers = [nn.ConvTranspose2d(12, 10, 2), nn.Tanh(), nn.Flatten(), nn.Linear(90, 3)]
    return randomize(nn.Sequential(*layers)), noise(5, 12, 2, 2)


def grouped() -> Case:
    layers = [nn.Conv2d(8, 8, 3, groups=4, padding=1), nn.Tanh(), nn.Conv2d(8, 8, 3, groups=8), nn.Flatten()]
    return randomize(nn.Sequential(*layers, nn.Linear(32, 3))), noise(5, 8, 4, 4)


def text() -> Case:
    """A table that is the readout too, and a layer called twice."""

    def run(m: Any, ids: Tensor) -> Tensor:
        h = m.embed(ids)
        return m.head(torch.tanh(m.mix(torch.tanh(m.mix(h)))).mean(1))

    embed, head = nn.Embedding(60, 30), nn.Linear(30, 60, bias=False)
    head.weight = embed.weight
    return randomize(Net(run, embed=embed, mix=nn.Linear(30, 30), head=head)), tokens(5, 3)


def attention() -> Case:
    """One matrix for queries, keys and values: rows of it are used by different calls."""

    def run(m: Any, x: Tensor) -> Tensor:
        return m.head(m.attend(x, x, x, need_weights=False)[0].mean(1))

    return randomize(Net(run, attend=nn.MultiheadAttention(16, 2, batch_first=True), head=nn.Linear(16, 3))), noise(
        5, 3, 16
    )


EVERY = [*CASES, wide, few_positions, upwards, grouped, text, attention]
everywhere = pytest.mark.parametrize("case", EVERY, ids=lambda case: case.__name__)
both = pytest.mark.parametrize("kind", ["sparse", "kronecker"])


class TestSparse(KernelContract):
    name = "proj-trntk"
    options = {"kind": "sparse", "sparsity": 4}  # noqa: RUF012


class TestSparsePseudo(KernelContract):
    name = "proj-pntk"
    options = {"kind": "sparse"}  # noqa: RUF012


def held(name: str, case: Callable[[], Case], **options: Any) -> Any:
    """The kernel, after it was found to be that of the dense matrices the package says it used."""
    model, x = seeded(case)
    gram = ns.kernel(name, model, x, normalize=False, **options)
    chosen = options | {"factored": gram.meta["factored"]}
    assert_kernel_close(gram.dense(), against.expected(name, model, x, normalize=False, **chosen), 1e-10)
    return gram


@both
@everywhere
def test_they_are_the_linear_maps_they_say(case: Callable[[], Case], kind: str) -> None:
    held("proj-trntk", case, kind=kind, dim=DIM, sparsity=8)


@everywhere
def test_every_matrix_can_be_factored(case: Callable[[], Case], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tied, sliced, transposed, looked up, in groups: the factored map of the sum of all uses."""

    def all_matrices(engine: Any, dim: int, sparsity: int) -> frozenset[str]:
        return frozenset(name for name, leaf in engine.subject.leaves.items() if leaf.dim() > 1)

    monkeypatch.setattr(_sketching, "_factored", all_matrices)
    gram = held("proj-trntk", case, kind="kronecker", dim=DIM, sparsity=8)
    assert gram.meta["factored"]


@pytest.mark.parametrize("name", ["proj-trntk", "proj-pntk"])
def test_layers_with_few_positions_are_factored(name: str) -> None:
    assert held(name, wide, kind="kronecker", dim=DIM, sparsity=32).meta["factored"] == ["0.weight", "2.weight"]


@both
def test_the_block_does_not_matter(kind: str) -> None:
    model, x = seeded(few_positions)
    options = {"kind": kind, "dim": DIM, "sparsity": 8, "normalize": False}
    whole = ns.kernel("proj-trntk", model, x, **options)
    least = against.smallest_budget(lambda memory: ns.kernel("proj-trntk", model, x, memory=memory, **options))
    assert_kernel_close(ns.kernel("proj-trntk", model, x, memory=least, **options).dense(), whole.dense(), 1e-12)
    cross = ns.kernel("proj-trntk", model, x[:2], x[2:], **options)
    assert_kernel_close(cross.dense(), whole.dense()[:2, 2:], 1e-12)


@both
def test_a_parameter_on_the_slow_road_has_the_same_projection(kind: str) -> None:
    """A weight that no rule knows, because it is used squared: its gradient comes from torch.func."""

    class Squared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 5, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.weight**2).T

    def case() -> Case:
        return Squared(), noise(4, 5)

    held("proj-trntk", case, kind=kind, dim=DIM, sparsity=8)


SEEDS, ROWS = 150, 8


def sparse_variance(j: Tensor, dim: int) -> Tensor:
    """That of dense signs: 2/dim times the squared off-diagonal entries of the symmetric part of Σ_c g_c h_cᵀ."""
    m = torch.einsum("icp,jcq->ijpq", j, j)
    symmetric = (m + m.transpose(2, 3)) / 2
    diagonal = symmetric.diagonal(dim1=2, dim2=3).square().sum(-1)
    return 2 * (symmetric.square().sum((2, 3)) - diagonal) / dim


def spread(kind: str, sparsity: int, factored: list[str]) -> tuple[Tensor, Tensor, Any]:
    model, x = randomize(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))), noise(3, 3)
    j = jacobian(model, x)
    found = []
    for seed in range(SEEDS):
        p = against.projection(seed, ROWS, kind, sparsity, factored)
        found.append(naive.from_jacobians("proj-trntk", j, j, projection=p, normalize=False))
    return torch.stack(found), naive.trntk0(flat(j), flat(j)), j


@pytest.mark.nightly
@pytest.mark.parametrize("sparsity", [1, 2, 8])
def test_sparse_is_unbiased_with_the_variance_of_dense_signs(sparsity: int) -> None:
    found, exact, j = spread("sparse", sparsity, [])
    variance = sparse_variance(flat(j), ROWS)
    assert bool(((found.mean(0) - exact).abs() <= 5 * (variance / SEEDS).sqrt()).all())
    # the rows of a round never meet, so the variance is at most that of dense signs; few coordinates, so heavy tails:
    # a sample variance of kurtosis κ has relative error √(κ/S), κ ≲ 12
    assert float((found.var(0) / variance).max()) <= 1 + 5 * (12 / SEEDS) ** 0.5
    assert float((found.var(0) / variance).min()) >= 0.5


def test_factored_is_unbiased_with_the_variance_stated() -> None:
    """One matrix; the formula for normal factors bounds that of signs, which is found by going through all signs."""
    g, h = noise(2, 3, 4).double()
    u = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0]).double()] * 3)
    v = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0]).double()] * 4)
    left, right = (torch.einsum("ai,ij,bj->ab", u, m, v) for m in (g, h))
    assert_kernel_close((left * right).mean()[None], (g * h).sum()[None], 1e-12)
    signs = float((left * right).var(correction=0))
    normal = (
        g.norm() ** 2 * h.norm() ** 2
        + (g * h).sum() ** 2
        + 2 * (g @ h.T).norm() ** 2
        + 2 * (g.T @ h).norm() ** 2
        + 2 * (g.T @ h @ g.T @ h).trace()
    )
    assert signs <= float(normal)
    drawn = [against.projection(seed, ROWS, "kronecker", 8, ["w"])("w", g.shape) for seed in range(SEEDS)]
    found = torch.stack([(g.flatten() @ p) @ (h.flatten() @ p) for p in drawn])
    assert abs(float(found.mean() - (g * h).sum())) <= 5 * (signs / ROWS / SEEDS) ** 0.5
    assert float(found.var()) == pytest.approx(signs / ROWS, rel=5 * (12 / SEEDS) ** 0.5)
    samples = torch.randn(2, 20000, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    many = torch.einsum("ki,ij,kj->k", samples[0, :, :3], g, samples[1]) * torch.einsum(
        "ki,ij,kj->k", samples[0, :, :3], h, samples[1]
    )
    assert float(many.var()) == pytest.approx(float(normal), rel=0.15)  # products of eight normals have heavy tails


@both
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_shorter_numbers_change_little(precision: str, kind: str) -> None:
    model, x = seeded(few_positions)
    model, x = model.float(), x.float()
    options = {"dim": 128, "kind": kind, "normalize": False}
    whole = ns.kernel("proj-trntk", model, x, **options).dense()
    short = ns.kernel("proj-trntk", model, x, **options, precision=precision).dense()
    assert relative_error(short, whole) <= 2**-8  # one rounding to 8 bits, and rounding averages out in the sums


def test_what_does_not_fit_is_refused() -> None:
    model, x = seeded(wide)
    for options, words in (
        ({"kind": "sparse", "dim": 100}, "dim=128"),
        ({"kind": "sparse", "dim": 8, "sparsity": 9}, "multiple of the sparsity"),
        ({"kind": "gaussian", "sparsity": 4}, "leave it out"),
        ({"kind": "fjlt"}, "expected one of rademacher, gaussian, sparse, kronecker"),
        ({"dim": 64, "rtol": 0.1}, "rtol alone"),
        ({"rtol": -0.1}, "got rtol=-0.1; expected a finite number > 0"),
    ):
        with pytest.raises(UsageError, match=words):
            ns.kernel("proj-trntk", model, x, **options)
