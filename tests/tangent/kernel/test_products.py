"""Products of samples with themselves, of which half are made, in strips and mirrored; products with a long inner axis."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ntkscope.linalg.grams.tiling import Place
from ntkscope.tangent.blocks import features
from ntkscope.tangent.blocks.features import (
    STRIPS,
    DenseFeature,
    FactoredFeature,
    Feature,
    long_product,
    product_flops,
    strips,
)
from ntkscope.tangent.blocks.precision import Precision
from ntkscope.tangent.kernel.products import mirror
from ntkscope.tangent.kernel.tiles import SHARE, Group, Row, Tiles
from oracles.closeness import assert_kernel_close

EXACT = Precision("exact", torch.float64)
few = settings(max_examples=15, suppress_health_check=list(HealthCheck))
some = settings(max_examples=40)
seeds = st.integers(0, 10**6)


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def feature(kind: str, n: int, heads: int, draw: torch.Generator) -> Feature:
    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    g, s, i, o = (int(torch.randint(1, 4, (1,), generator=draw)) for _ in range(4))
    if kind == "formed":
        return DenseFeature(normal(n, heads, i * o))
    if kind == "scaled":
        return DenseFeature(normal(n, heads, i * o), 0.5 + torch.rand(n, generator=draw, dtype=torch.float64))
    if kind == "table":
        return FactoredFeature(torch.randint(3, (1, n, s), generator=draw), normal(1, n, s, heads, o))
    return FactoredFeature(normal(g, n, s, i), normal(g, n, s, heads, o))


@contextlib.contextmanager
def narrow(columns: int, flops: float) -> Iterator[None]:
    """Strips of so few columns and products as a test can make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "STRIP", {"cpu": columns})
        patch.setattr(features, "STRIP_FLOPS", {"cpu": flops})
        yield


@given(st.integers(1, 900), st.integers(1, 200), st.floats(0, 4))
@some
def test_strips_cover_the_square_once_and_in_order(n: int, columns: int, each: float) -> None:
    right = DenseFeature(torch.zeros(n, 2, 3))
    flops = product_flops(right, right, False)
    with narrow(columns, flops / (8.0**each)):
        found = strips(right, False)
    assert [at for strip in found for at in range(n)[strip]] == list(range(n))
    assert all(strip.stop > strip.start for strip in found)
    assert len(found) <= STRIPS
    if len(found) > 1:
        assert len(found) <= n // columns  # not narrower, on average, than is worth it
        assert len(found) <= 8.0**each * (1 + 1e-9)  # and of products that are


def test_small_squares_are_not_cut() -> None:
    small = DenseFeature(torch.zeros(512, 1, 2))
    assert strips(small, False) == [slice(0, 512)]
    large = DenseFeature(torch.zeros(1, 1, 1).expand(2048, 3, 10**6))
    assert len(strips(large, False)) == STRIPS  # however much is to be done


@given(st.integers(0, 40), st.integers(1, 50), seeds)
@some
def test_the_mirror_image(n: int, step: int, seed: int) -> None:
    values = torch.randn(n, n, generator=drawn(seed), dtype=torch.float64)
    square = torch.full((n + 2, n + 3), 7.0, dtype=torch.float64)
    inner = square[1 : n + 1, 2 : n + 2]  # a view of a larger matrix, as tiles are
    inner.copy_(values)
    mirror(inner, step)
    assert torch.equal(inner, values.triu() + values.triu(1).T)
    square[1 : n + 1, 2 : n + 2] = 7.0
    assert bool((square == 7.0).all())


class Kind(NamedTuple):
    name: str


class Fake:
    """What makes features that are there already."""

    precision, device, dtype = EXACT, torch.device("cpu"), torch.float64

    def __init__(self, held: dict[Kind, Feature], heads: int, full: bool) -> None:
        self.held, self.pieces, self.width, self.full, self.flops = held, list(held), heads, full, 0.0

    def capture(self, samples: Tensor) -> slice:
        return slice(int(samples[0]), int(samples[-1]) + 1)

    def feature(self, samples: slice, piece: Kind) -> Feature:
        return self.held[piece][samples]

    def settle(self, samples: slice) -> None:
        pass

    def spot(self, height: int, width: int) -> None:
        return None

    def clock(self, stage: str, piece: Any = None) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def count(self, stage: str, flops: float) -> None:
        self.flops += flops


@given(
    n=st.sampled_from([1, 7, 64, 65, 128, 150]),
    share=st.sampled_from([1.0, 1.0, 0.9, 0.5, 0.0]),
    heads=st.integers(1, 2),
    full=st.booleans(),
    keeping=st.booleans(),
    strip=st.sampled_from([1, 32, 80]),
    workspace=st.sampled_from([2**16, 2**24]),
    seed=seeds,
)
@few
def test_half_of_the_products_of_a_block_with_itself_are_enough(
    n: int, share: float, heads: int, full: bool, keeping: bool, strip: int, workspace: int, seed: int
) -> None:
    draw = drawn(seed)
    held = {Kind(kind): feature(kind, n, heads, draw) for kind in ("formed", "scaled", "table", "near")}
    width = max(1, round(share * n))
    whole, half = Fake(held, heads, full), Fake(held, heads, full)
    size = heads if full else 1
    places = []
    for maker, own in ((whole, 0), (half, n)):
        made: Any = torch.arange(n)
        tiles = Tiles([maker], made, None, n, block=n, workspace=workspace, repeatable=False)  # type: ignore[list-item]
        zeros = torch.zeros(n * size, n * size, dtype=torch.float64)
        place = Place(zeros, {SHARE + kind.name: zeros.clone() for kind in held} if keeping else {})
        group = Group(Row(0, 0, {**held}, None), n, made, own, place, None)
        with narrow(strip, 1e-9):
            tiles._block(group, maker, range(n - width, n))
        places.append(place)
    start = (n - width) * size
    square = places[1].values[start:, start:]
    assert torch.equal(square, square.T)
    for one, other in zip(*([place.values, *place.planes.values()] for place in places)):
        assert_kernel_close(other[:, start:], one[:, start:], 1e-12)
    assert half.flops <= whole.flops
    if width >= 65 and strip <= 32:
        assert half.flops < whole.flops  # something was left out


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 200), st.integers(1, 250), seeds)
@some
def test_an_inner_axis_cut_into_any_parts(n: int, m: int, k: int, parts: int, seed: int) -> None:
    draw = drawn(seed)
    left, right = (torch.randn(rows, k, generator=draw) for rows in (n, m))
    found = long_product(left, right, Precision("exact", torch.float32), parts)
    expected = left.double() @ right.double().T
    size = left.double().abs() @ right.double().abs().T  # of what is added up
    assert found.shape == expected.shape
    assert bool(((found.double() - expected).abs() <= 1e-6 * size).all())
    assert_kernel_close(long_product(left.double(), right.double(), EXACT, parts), expected, 1e-13)
