"""Many outputs: in groups where memory is little, and as random combinations with an error bar."""

from __future__ import annotations

import weakref
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import UsageError
from ntkscope.core.errors import MemoryBudgetError
from ntkscope.tangent.kernel import in_memory as products
from ntkscope.tangent.kernel import tiles
from ntkscope.tangent.kernel.plan import make_plan
from oracles.against import smallest_budget
from oracles.closeness import assert_kernel_close
from strategies.networks import noise, randomize

OUTPUTS, LITTLE = 1000, "12MiB"
X = noise(3, 8)


@lru_cache(maxsize=1)
def wide() -> nn.Sequential:
    """A head of 1,000 outputs."""
    return randomize(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, OUTPUTS)))


@lru_cache(maxsize=1)
def exact() -> dict[str, Tensor]:
    """By the chain rule written out, from plain matrix products: no engine, no autograd.

    `f = V h + d`, `h = tanh(W x + b)`, so `Σ_c <∇_W f_c, ∇_W f_c'> = (x·x') Σ_c <V_c h', V_c h'>`, and so on.
    """
    model = wide()
    w, v = model[0], model[2].weight.detach()
    h = torch.tanh(w(X)).detach()
    slope = 1 - h.square()
    below = 1 + X @ X.T  # the weight and the bias of the first layer
    above = 1 + h @ h.T
    through = torch.einsum("cu,nu->ncu", v, slope)
    trace = below * torch.einsum("ncu,mcu->nm", through, through) + OUTPUTS * above
    summed = through.sum(1)
    pseudo = (below * (summed @ summed.T) + OUTPUTS * above) / OUTPUTS
    scale = trace.diagonal().sqrt()
    return {"trntk0": trace, "trntk": trace / scale[:, None] / scale[None], "pntk": pseudo}


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Into how many groups of outputs every run fell, and whether one sample with all outputs would have fitted."""
    seen: list[tuple[int, bool]] = []
    original = products.head_groups

    def counted(engine: Any, x1: Any, x2: Any, memory: int, per_layer: bool) -> Any:
        try:
            make_plan(1, None, engine.footprint, memory)
            fits = True
        except MemoryBudgetError:
            fits = False
        made = original(engine, x1, x2, memory, per_layer)
        seen.append((len(made), fits))
        return made

    monkeypatch.setattr(products, "head_groups", counted)
    return seen


@pytest.mark.guard
@pytest.mark.parametrize("name", ["trntk0", "trntk", "pntk"])
def test_a_thousand_outputs_in_little_memory(name: str, groups: list[tuple[int, bool]]) -> None:
    gram = ns.kernel(name, wide(), X, memory=LITTLE)
    assert_kernel_close(gram.dense(), exact()[name])
    assert_kernel_close(gram.row_diagonal, exact()[name].diagonal())
    between = ns.kernel(name, wide(), X[:2], X, memory=LITTLE)
    assert_kernel_close(between.dense(), exact()[name][:2])
    assert gram.certificate.checked == gram.certificate.blocks >= groups[-1][0]
    if name != "pntk":  # one backward pass whatever the outputs
        assert groups[-1][0] > 1, "all outputs at once: the test does not test groups"
        assert not groups[-1][1], "one sample with all outputs fits: the memory is not little"


@pytest.mark.guard
@pytest.mark.parametrize("cross", [False, True], ids=["symmetric", "cross"])
def test_a_store_of_a_thousand_outputs_in_little_memory(cross: bool, tmp_path: Path) -> None:
    """Tiles are summed over groups of outputs; the same groups, and bits, when the store is resumed with more memory."""
    sides = (X[:2], X) if cross else (X,)
    found: Any = ns.kernel("trntk", wide(), *sides, store=tmp_path / "k", memory=LITTLE)
    assert 0 < found.store.labels["cut"]["heads"] < OUTPUTS
    assert_kernel_close(found.dense(), exact()["trntk"][: len(sides[0])])
    assert found.certificate.checked == found.certificate.blocks > 1
    for tile in found.store.grid:
        found.store.drop(*tile)
    again = ns.kernel("trntk", wide(), *sides, store=tmp_path / "k", memory="1GiB")
    assert torch.equal(again.dense(), found.dense())


def test_the_smallest_budget_of_a_store_takes_one_output_at_a_time(tmp_path: Path) -> None:
    x = sixty()[1]
    model = randomize(nn.Sequential(nn.Linear(4, 2000), nn.Tanh(), nn.Linear(2000, 6)))
    smallest = smallest_budget(lambda memory: ns.kernel("trntk0", model, x, store=tmp_path / "k", memory=memory))
    found: Any = ns.kernel("trntk0", model, x, store=tmp_path / "k", memory=smallest)
    assert found.store.labels["cut"]["heads"] < 6
    assert_kernel_close(found.dense(), ns.kernel("trntk0", model, x).dense(), 1e-12)


def test_pairs_of_outputs_cannot_be_grouped() -> None:
    """Every pair of outputs is refused where a trace is not."""
    with pytest.raises(MemoryBudgetError):
        ns.kernel("entk", wide(), X, memory=LITTLE)


@pytest.mark.guard
def test_groups_keep_the_shares_of_parameters(groups: list[tuple[int, bool]]) -> None:
    whole = ns.kernel("trntk0", wide(), X, per_layer=True)
    parts = ns.kernel("trntk0", wide(), X, per_layer=True, memory=LITTLE)
    assert groups[0][0] == 1 < groups[-1][0]
    for name, share in whole.meta["contributions"].items():
        assert_kernel_close(parts.meta["contributions"][name], share, 1e-12)


# -- random combinations -------------------------------------------------------------------------------------------
@lru_cache(maxsize=1)
def sixty() -> tuple[nn.Sequential, Tensor, Tensor]:
    model = randomize(nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 60)), seed=3)
    x = noise(4, 4)
    return model, x, ns.kernel("trntk0", model, x).dense()


def test_same_seed_same_numbers() -> None:
    model, x, _ = sixty()
    first, again, other = (
        ns.kernel("trntk0", model, x, outputs=ns.OutputSketch(8, seed)).dense() for seed in (5, 5, 6)
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, rtol=1e-3)
    kept = ns.Tangent(model, outputs=ns.OutputSketch(8, 5))
    assert torch.equal(kept.kernel("trntk0", x).dense(), first)


def test_it_is_what_it_says() -> None:
    """`(1/k) Σ_j <∇(S f)_j, ∇(S f)_j>` with the signs of the sketch, and the error from its k parts."""
    model, x, _ = sixty()
    sketch = ns.OutputSketch(8, 2)
    gram = ns.kernel("trntk0", model, x, outputs=sketch)
    signs = sketch.signs(0, 60)
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    combined = nn.Sequential(model[0], model[1], nn.Linear(12, 60), nn.Linear(60, 8, bias=False)).double()
    combined[2].load_state_dict(model[2].state_dict())
    combined[3].weight = nn.Parameter(signs.T.contiguous(), requires_grad=False)
    parts = torch.stack([ns.kernel("trntk0", combined, x, outputs=j).dense() for j in range(8)])
    assert_kernel_close(gram.dense(), parts.mean(0), 1e-12)
    error = gram.meta["error"]
    assert_kernel_close(error["standard_error"], parts.std(0) / 8**0.5, 1e-9)
    assert (error["degrees"], error["combinations"]) == (7, 8)


@pytest.mark.guard
def test_groups_do_not_change_the_numbers(groups: list[tuple[int, bool]]) -> None:
    sketch = ns.OutputSketch(64, 1)
    model = randomize(nn.Sequential(nn.Linear(8, 300), nn.Tanh(), nn.Linear(300, 100)))
    whole = ns.kernel("trntk0", model, X, outputs=sketch)
    memory = smallest_budget(lambda memory: ns.kernel("trntk0", model, X, outputs=sketch, memory=memory))
    parts = ns.kernel("trntk0", model, X, outputs=sketch, memory=memory)
    assert groups[-1][0] > 1 == groups[0][0]
    assert_kernel_close(parts.dense(), whole.dense(), 1e-12)
    assert_kernel_close(parts.meta["error"]["standard_error"], whole.meta["error"]["standard_error"], 1e-9)


@lru_cache(maxsize=3)
def drawn(network: int, seeds: int = 120, k: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    """The exact kernel of a network with 60 outputs, and estimates and standard errors (seeds, n, n) of it."""
    model = randomize(nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 60)), seed=network)
    x = noise(6, 4, seed=network)
    sketches = [ns.OutputSketch(k, network * seeds + seed) for seed in range(seeds)]
    grams = [ns.kernel("trntk0", model, x, outputs=sketch, certify=False) for sketch in sketches]
    errors = torch.stack([g.meta["error"]["standard_error"] for g in grams])
    return ns.kernel("trntk0", model, x).dense(), torch.stack([g.dense() for g in grams]), errors


@pytest.mark.guard
@pytest.mark.parametrize("network", range(3))
def test_unbiased(network: int) -> None:
    truth, values, _ = drawn(network)
    spread = values.std(0) / len(values) ** 0.5
    assert float(((values.mean(0) - truth) / spread).abs().max()) < 4


@pytest.mark.guard
def test_coverage_of_intervals() -> None:
    """95 % intervals by Student's t hold the exact entry in 93 to 97 % of seeds and entries."""
    reach, rows = stats.t.ppf(0.975, 15), torch.triu_indices(6, 6)
    inside = [(values - truth).abs() <= reach * errors for truth, values, errors in map(drawn, range(3))]
    assert 0.93 <= float(torch.stack(inside).double()[..., rows[0], rows[1]].mean()) <= 0.97


@pytest.mark.parametrize(
    ("name", "stored"),
    [*product(["entk", "pntk", "proj-pntk", "ck", "em"], [False]), ("trntk", True), ("proj-trntk", True)],
)
def test_refused_where_it_means_nothing_and_on_disk(name: str, stored: bool, tmp_path: Path) -> None:
    model, x, _ = sixty()
    with pytest.raises(UsageError, match=r"store=.*OutputSketch" if stored else "OutputSketch"):
        ns.kernel(name, model, x, outputs=ns.OutputSketch(4), store=tmp_path / "kernel" if stored else None)
    assert not (tmp_path / "kernel").exists()


def test_features_of_one_group_are_gone_before_the_next_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a kernel in groups takes twice what was planned."""
    alive: weakref.WeakSet[tiles.Row] = weakref.WeakSet()
    seen: list[int] = []
    make, hold = tiles.Row, tiles.hold_block

    def row(*args: Any) -> tiles.Row:
        made = make(*args)
        alive.add(made)
        return made

    def watched(*args: Any) -> None:
        seen.append(len(alive))
        hold(*args)

    monkeypatch.setattr(tiles, "Row", row)
    monkeypatch.setattr(tiles, "hold_block", watched)
    ns.kernel("trntk0", wide(), X, memory=LITTLE)
    assert len(seen) > 1
    assert set(seen) == {0}
