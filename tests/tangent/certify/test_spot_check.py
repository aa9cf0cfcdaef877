"""Products of right features: one entry of a tile is computed again, and a wrong contraction is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ntkscope as ns
from ntkscope.core import NumericalError
from ntkscope.tangent.blocks import features
from ntkscope.tangent.blocks.features import DenseFeature, FactoredFeature, Feature, accumulate
from ntkscope.tangent.blocks.precision import Precision
from ntkscope.tangent.certify.spot_check import Spot, Spots
from strategies.networks import noise, randomize

HEADS = 3


def near(n: int, positions: int, groups: int = 1) -> FactoredFeature:
    return FactoredFeature(noise(groups, n, positions, 4), noise(groups, n, positions, HEADS, 5, seed=n))


def table(n: int, positions: int) -> FactoredFeature:
    drawn = torch.Generator().manual_seed(n)
    return FactoredFeature(
        torch.randint(0, 3, (1, n, positions), generator=drawn), noise(1, n, positions, HEADS, 5, seed=n)
    )


def formed(n: int) -> DenseFeature:
    return DenseFeature(noise(n, HEADS, 7, seed=n))


PAIRS: dict[str, tuple[Feature, Feature]] = {
    "formed": (formed(4), formed(6)),
    "one position": (near(4, 1), near(6, 1)),
    "positions": (near(4, 3), near(6, 2)),
    "groups": (near(4, 3, groups=2), near(6, 3, groups=2)),
    "many positions": (near(4, 9), near(6, 7)),
    "table": (table(4, 3), table(6, 5)),
}


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("kind", PAIRS)
def test_every_entry_is_what_formed_gradients_give(kind: str, full: bool) -> None:
    left, right = PAIRS[kind]
    size = HEADS if full else 1
    total = torch.zeros(len(left) * size, len(right) * size, dtype=torch.float64)
    accumulate(total, left, right, full=full, precision=Precision("exact", torch.float64), workspace=500)
    for i in range(len(left)):
        for j in range(len(right)):
            spot = Spot(i, j, full)
            spot.add(left, right)
            assert spot.discrepancy(total) <= 1e-14
            wrong = total.clone()
            wrong[i * size, j * size] += 1e-3
            assert spot.discrepancy(wrong) > 1e-8


def test_tiles_of_a_new_shape_are_always_checked() -> None:
    spots = Spots(wanted=True)
    found = [spots.choose(8, 8, False) for _ in range(20)]
    assert found[0] is not None
    assert 2 <= sum(spot is not None for spot in found) <= 4
    assert spots.choose(8, 3, False) is not None
    assert Spots(wanted=False).choose(8, 8, False) is None


def dense_network() -> tuple[nn.Module, torch.Tensor]:
    return randomize(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))), noise(6, 4)


def convolutions() -> tuple[nn.Module, torch.Tensor]:
    layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(2 * 36, 2))
    return randomize(layers), noise(6, 1, 8, 8)


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "store"])
@pytest.mark.parametrize("name", ["trntk0", "entk", "pntk"])
@pytest.mark.parametrize(
    ("part", "made"), [("_near", dense_network), ("_rows", convolutions)], ids=["factors", "formed"]
)
def test_a_wrong_product_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: str, made: Any, name: str, stored: bool
) -> None:
    """A contraction that is 10 % too large, which no comparison of features with autograd can see."""
    model, x = made()
    original = getattr(features, part)
    monkeypatch.setattr(features, part, lambda *args: 1.1 * original(*args))
    options: dict[str, Any] = {"store": tmp_path / "store"} if stored else {}
    with pytest.raises(NumericalError, match="an entry of the kernel differs"):
        ns.kernel(name, model, x, **options)
    unchecked = ns.kernel(name, model, x, certify=False)
    assert unchecked.shape[0] >= len(x)  # who turns certificates off is not told


def test_a_stored_product_of_activations_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, x = dense_network()
    original = features._rows
    monkeypatch.setattr(features, "_rows", lambda *args: 1.1 * original(*args))
    with pytest.raises(NumericalError, match="an entry of the kernel differs"):
        ns.kernel("em", model, x, layers=["0"], store=tmp_path / "store")


def test_a_kept_engine_remembers_the_shapes_it_has_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call checks its tile; of the next eight calls with that shape, one does."""
    checked: list[int] = []
    add = Spot.add

    def counted(self: Spot, left: Feature, right: Feature) -> None:
        checked.append(call)
        add(self, left, right)

    monkeypatch.setattr(Spot, "add", counted)
    x = noise(4, 6)
    tangent = ns.Tangent(randomize(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))), x)
    for call in range(9):  # noqa: B007
        tangent.kernel("trntk0", x)
    assert sorted(set(checked)) == [0, 8]
