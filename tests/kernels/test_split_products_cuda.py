"""Products in two halves on a CUDA device: as exact as float32 units on any numbers, used where they are meant to be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import ntkscope as ns
from ntkscope.tangent.blocks import split_products
from ntkscope.tangent.blocks.features import DenseFeature, accumulate
from ntkscope.tangent.blocks.precision import Precision

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SHAPES = (
    (1, 5, 7, 3),
    (1, 128, 128, 64),
    (2, 130, 70, 1000),
    (1, 300, 257, 70001),
    (3, 64, 64, 4096),
    (1, 1, 1, 200000),
)
NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "centred": lambda x: x,
    "positive": lambda x: x.abs(),
    "all the same": lambda x: torch.full_like(x, 1 + 2**-9 + 2**-20),  # whose halves are rounded alike
    "one huge": lambda x: x.index_fill(2, torch.tensor([0], device=x.device), 1e12),
    "mixed scales": lambda x: x * (8 * torch.randn_like(x)).exp(),
    "rows of other sizes": lambda x: (
        x * 10.0 ** torch.arange(x.shape[1], device=x.device).remainder(30).sub(15)[:, None]
    ),
    "tiny": lambda x: x * 1e-18,
    "denormal beside ordinary": lambda x: torch.where(x > 0, x, x * 1e-40),
    "rows of zeros": lambda x: x * (torch.arange(x.shape[1], device=x.device) % 2)[:, None],
    "large": lambda x: x * 1e17,
}
LEAST = 5e-7  # of the norms: two numbers alone are rounded to 22 bits each


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_as_exact_as_float32(numbers: str, shape: tuple[int, int, int, int]) -> None:
    draw = torch.Generator(device="cuda").manual_seed(0)
    g, n, m, k = shape
    a, b = (NUMBERS[numbers](torch.randn(g, rows, k, device="cuda", generator=draw)) for rows in (n, m))
    truth = a.double() @ b.double().transpose(1, 2)
    sizes = a.double().norm(dim=2)[:, :, None] * b.double().norm(dim=2)[:, None] + 1e-300

    def error(values: Tensor) -> float:
        return float(((values.double() - truth) / sizes).abs().max())

    assert error(split_products.product(a, b)) <= max(error(a @ b.transpose(1, 2)), LEAST)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(value: float) -> None:
    a = torch.randn(1, 40, 3000, device="cuda")
    a[0, 7, 100] = value
    found = split_products.product(a, a).isfinite()[0]
    assert not bool(found[7].any())
    assert not bool(found[:, 7].any())
    assert int(found.sum()) == 39 * 39


@pytest.mark.parametrize(("rows", "columns"), [(70, 70), (600, 500), (300, 40)])
def test_half_of_a_square_is_enough(rows: int, columns: int) -> None:
    values = torch.randn(rows, 2, 3001, device="cuda")
    left, right = DenseFeature(values), DenseFeature(values[rows - columns :])
    total = torch.zeros(rows, columns, dtype=torch.float64, device="cuda")
    accumulate(total, left, right, full=False, precision=Precision("exact", torch.float32), workspace=2**22, own=True)
    truth = values.flatten(1).double() @ values[rows - columns :].flatten(1).double().T
    above = torch.arange(rows, device="cuda")[:, None] <= torch.arange(columns, device="cuda") + rows - columns
    assert float(((total - truth) * above).abs().max()) < LEAST * float(truth.max())


def test_exact_kernels_use_them_and_float32_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, ...]] = []
    true = split_products.multiplied

    def noted(left: split_products.Halves, right: split_products.Halves, diagonal: int | None = None) -> Tensor:
        made.append(tuple(left.high.shape))
        return true(left, right, diagonal)

    monkeypatch.setattr(split_products, "multiplied", noted)
    model, x = ns.models.build("lenet").cuda().eval(), torch.randn(40, 1, 28, 28, device="cuda")
    exact = ns.kernel("trntk0", model, x).dense().double()
    assert made
    made.clear()
    plain = ns.kernel("trntk0", model, x, precision="float32").dense().double()
    double = ns.kernel("trntk0", model, x, dtype=torch.float64).dense()
    assert not made
    worst = [float((one - double).abs().max() / double.abs().max()) for one in (exact, plain)]
    assert worst[0] <= 2 * worst[1]


def test_refused_where_a_trial_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    true = split_products.multiplied
    monkeypatch.setattr(split_products, "multiplied", lambda *sides: true(*sides) * (1 + 1e-5))
    split_products.available.cache_clear()
    try:
        assert not split_products.available(torch.device("cuda", 0))
        assert not Precision("exact", torch.float32).splits(torch.zeros(1, device="cuda"))
    finally:
        split_products.available.cache_clear()
