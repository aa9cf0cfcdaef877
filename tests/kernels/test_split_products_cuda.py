"""Products in two halves on a CUDA device: as exact as float32 units on any numbers, used where they are meant to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import ntkscope as ns
from ntkscope.tangent.blocks import split_products
from ntkscope.tangent.blocks.execution import Execution, ExecutionMode
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


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize(
    ("g", "n", "m", "k"), [(3, 70, 50, 16), (2, 130, 200, 65), (5, 33, 40, 128), (1, 1000, 300, 768), (1, 64, 70, 3001)]
)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)], ids=str)
def test_wherever_the_inner_axis_lies(numbers: str, g: int, n: int, m: int, k: int, turned: tuple[bool, bool]) -> None:
    draw = torch.Generator(device="cuda").manual_seed(0)
    sides = [NUMBERS[numbers](torch.randn(g, rows, k, device="cuda", generator=draw)) for rows in (n, m)]
    left, right = (
        side.transpose(1, 2).contiguous().transpose(1, 2) if turn else side for side, turn in zip(sides, turned)
    )
    out = torch.full((g, n, m), float("nan"), device="cuda")
    found = split_products.product(left, right, out=out)
    assert found.data_ptr() == out.data_ptr()
    truth = left.double() @ right.double().transpose(1, 2)
    sizes = left.double().norm(dim=2)[:, :, None] * right.double().norm(dim=2)[:, None] + 1e-300
    plain = (left @ right.transpose(1, 2)).double()
    limit = max(float(((plain - truth) / sizes).abs().max()), LEAST)
    assert float(((found.double() - truth) / sizes).abs().max()) <= limit


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize(
    "shape", [(3, 16, 16, 8, 9, 3, 1), (2, 33, 70, 5, 5, 3, 0), (4, 64, 32, 32, 32, 1, 0), (9, 20, 17, 4, 4, 5, 3)]
)
@pytest.mark.parametrize("inner", [False, True], ids=["channels outermost", "channels innermost"])
def test_convolutions(numbers: str, shape: tuple[int, ...], inner: bool) -> None:
    n, channels, outs, height, width, taps, padding = shape
    draw = torch.Generator(device="cuda").manual_seed(0)
    x = NUMBERS[numbers](torch.randn(n, channels, height * width, device="cuda", generator=draw))
    x = x.view(n, channels, height, width) * 10.0 ** torch.arange(n, device="cuda")[:, None, None, None]
    x = x.contiguous(memory_format=torch.channels_last if inner else torch.contiguous_format)
    weight = torch.randn(outs, channels, taps, taps, device="cuda", generator=draw)
    found = split_products.convolved(x, weight, (padding, padding))
    convolve = partial(torch.nn.functional.conv2d, padding=padding)
    truth = convolve(x.double(), weight.double())
    sizes = convolve(x.double().abs(), weight.double().abs()).amax((1, 2, 3), keepdim=True) + 1e-300
    plain = float(((convolve(x, weight).double() - truth) / sizes).abs().max())
    assert float(((found.double() - truth) / sizes).abs().max()) <= max(plain, LEAST)


@pytest.mark.parametrize("name", ["resnet20", "mlp"])
def test_passes_back_are_split_and_certified(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def noted(function: str) -> Callable[..., Tensor]:
        true = getattr(split_products, function)

        def call(*args: Any, **others: Any) -> Tensor:
            made.append(function)
            return true(*args, **others)

        return call

    for function in ("product", "convolved"):
        monkeypatch.setattr(split_products, function, noted(function))
    monkeypatch.setattr(split_products, "WORTH", 0.0)
    options = {"in_features": 300, "classes": 10, "widths": 256, "depth": 2} if name == "mlp" else {}
    model = ns.models.build(name, **options).cuda().eval()
    x = torch.randn(70, *((300,) if name == "mlp" else (3, 32, 32)), device="cuda")
    truth = ns.kernel("trntk0", model, x, dtype=torch.float64).dense()
    made.clear()
    with harvested_on_gpu(ExecutionMode(together=10, flipped=True, split=True)):
        exact = ns.kernel("trntk0", model, x)
    assert "product" in made
    assert ("convolved" in made) == (name == "resnet20")
    assert exact.certificate.checked == exact.certificate.blocks > 0
    plain = ns.kernel("trntk0", model, x, precision="float32").dense().double()
    worst = [float((one.double() - truth).abs().max() / truth.abs().max()) for one in (exact.dense(), plain)]
    assert worst[0] <= max(2 * worst[1], 4 * LEAST)


@pytest.mark.parametrize("classes", [70_000, 300])
@pytest.mark.parametrize("bias", [True, False])
def test_what_one_part_cannot_hold_is_made_plainly(classes: int, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inner axis of the pass back is the outputs' own; nothing may be written beyond a result."""
    monkeypatch.setattr(split_products, "WORTH", 0.0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, classes, bias=bias))
    x = torch.randn(70, 64, device="cuda")
    with harvested_on_gpu(ExecutionMode(split=True)):
        found = ns.kernel("trntk0", model.cuda(), x, outputs=[0, classes - 1])
    truth = ns.kernel("trntk0", model, x, outputs=[0, classes - 1], dtype=torch.float64)
    assert found.certificate.checked == found.certificate.blocks > 0
    assert float((found.dense() - truth.dense()).abs().max() / truth.dense().abs().max()) < 1e-6


@pytest.mark.parametrize("shape", [(40, 64), (64,)])
def test_a_place_or_a_bias_is_refused_in_parts(shape: tuple[int, ...]) -> None:
    x = torch.randn(1, 40, split_products.LONGEST + 64, device="cuda")
    how = (
        {"out": torch.empty(1, 40, 40, device="cuda")} if len(shape) == 2 else {"bias": torch.zeros(40, device="cuda")}
    )
    with pytest.raises(ValueError, match="at most"):
        split_products.product(x, x, **how)


def test_a_wrong_product_in_a_pass_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    true = split_products.product
    monkeypatch.setattr(split_products, "WORTH", 0.0)
    monkeypatch.setattr(split_products, "product", lambda *a, **k: true(*a, **k) * 1.02)
    model, x = (
        ns.models.build("mlp", in_features=300, classes=10, widths=256, depth=2).cuda().eval(),
        torch.randn(70, 300),
    )
    x = x.cuda()
    truth = ns.kernel("trntk0", model, x, precision="float32").dense()
    with harvested_on_gpu(ExecutionMode(split=True)):
        try:
            found = ns.kernel("trntk0", model, x)
        except ns.NtkscopeError:
            return
    assert (
        float((found.dense() - truth).abs().max() / truth.abs().max()) < 1e-5
    )  # made again as the model itself is run


@contextmanager
def harvested_on_gpu(mode: ExecutionMode) -> Iterator[None]:
    """Every engine made inside runs its blocks this way."""

    def of(device: Any, convolutions: bool, heads: int, certified: bool, splits: bool) -> Execution:
        return Execution(convolutions=convolutions, heads=heads, mode=mode)

    with patch.object(Execution, "of", of):
        yield


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

    def noted(left: split_products.Halves, right: split_products.Halves, *rest: Any, **others: Any) -> Tensor:
        made.append(tuple(left.high.shape))
        return true(left, right, *rest, **others)

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
    monkeypatch.setattr(split_products, "multiplied", lambda *sides, **others: true(*sides, **others) * (1 + 1e-5))
    split_products.available.cache_clear()
    try:
        assert not split_products.available(torch.device("cuda", 0))
        assert not Precision("exact", torch.float32).splits(torch.zeros(1, device="cuda"))
    finally:
        split_products.available.cache_clear()
