"""Error bars of projected kernels, the choice of their size by a tolerance, and projected features on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import ntkscope as ns
from contracts.real_data import needs_data
from ntkscope.core import UsageError
from ntkscope.core.errors import StoreError
from ntkscope.linalg import FactoredGram
from ntkscope.linalg.sketches.batch_means import standard_errors
from oracles.closeness import assert_kernel_close
from strategies.networks import noise, randomize

KINDS = ["rademacher", "gaussian", "sparse", "kronecker"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def network() -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return randomize(nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 2))), noise(6, 12)


@pytest.mark.guard
def test_standard_errors_are_batch_means() -> None:
    """Against the textbook: repeats of the entry from each group alone, and the jackknife for cosines."""
    left, right = noise(3, 40).double(), noise(4, 40).double()
    alone = torch.stack([left[:, g::8] @ right[:, g::8].T * 8 for g in range(8)])
    expected = (alone.var(0) / 8).sqrt()
    assert_close(standard_errors(left, right, 8, cosines=False), expected)

    left, right = noise(3, 16000).double(), noise(4, 16000).double() + 0.2
    left, right = left + 0.3, right / right.norm(dim=1, keepdim=True)
    left = left / left.norm(dim=1, keepdim=True)
    without = []
    for g in range(16):
        rest = [torch.cat([side[:, k::16] for k in range(16) if k != g], dim=1) for side in (left, right)]
        without.append(FactoredGram(*rest).normalized().dense())
    jackknife = (torch.stack(without).var(0) * 15**2 / 16).sqrt()
    assert_close(standard_errors(left, right, 16, cosines=True), jackknife, rtol=0.02, atol=0)  # equal to first order


@pytest.mark.parametrize("kind", [*(pytest.param(k, marks=pytest.mark.nightly) for k in KINDS[:2]), *KINDS[2:]])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.guard
def test_intervals_cover_the_exact_kernel_as_often_as_they_say(kind: str, normalize: bool) -> None:
    """Over seeds; entries of one draw are not independent, so the error of the mean is taken from the seeds."""
    model, x = network()
    exact = ns.kernel("trntk" if normalize else "trntk0", model, x).dense()
    apart = ~torch.eye(len(x), dtype=torch.bool)
    shares = []
    for seed in range(24):
        gram: Any = ns.kernel("proj-trntk", model, x, dim=512, kind=kind, seed=seed, normalize=normalize)
        low, high = gram.confidence_interval(0.9)
        shares.append((((low <= exact) & (exact <= high))[apart]).double().mean())
        if normalize:
            assert float(gram.standard_error().diagonal().abs().max()) == 0
    found = torch.stack(shares)
    assert abs(float(found.mean()) - 0.9) <= 4 * float(found.std()) / len(found) ** 0.5 + 0.01


@pytest.mark.guard
def test_coverage_would_notice_errors_that_are_too_small() -> None:
    model, x = network()
    exact = ns.kernel("trntk0", model, x).dense()
    shares = []
    for seed in range(24):
        gram: Any = ns.kernel("proj-trntk", model, x, dim=512, kind="sparse", seed=seed, normalize=False)
        shares.append(((gram.dense() - exact).abs() <= 1.753 * gram.standard_error() / 1.5).double().mean())
    found = torch.stack(shares)
    assert abs(float(found.mean()) - 0.9) > 4 * float(found.std()) / len(found) ** 0.5 + 0.01


@pytest.mark.guard
def test_chosen_rows_and_columns_have_the_errors_of_the_whole() -> None:
    model, x = network()
    gram: Any = ns.kernel("proj-trntk", model, x, dim=256, kind="sparse")
    assert_close(gram.standard_error([4, 1], slice(2, 5)), gram.standard_error()[[4, 1], 2:5])
    assert_close(gram.T.standard_error(), gram.standard_error().T)
    cross: Any = ns.kernel("proj-trntk", model, x[:2], x[2:], dim=256, kind="sparse")
    assert_close(cross.standard_error(), gram.standard_error()[:2, 2:])
    with pytest.raises(UsageError, match="divisor"):
        ns.kernel("proj-trntk", model, x, dim=101).standard_error()  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="probability"):
        gram.confidence_interval(95)


@pytest.mark.guard
@every_kind
@pytest.mark.parametrize("cross", [False, True])
def test_a_tolerance_chooses_the_size(kind: str, cross: bool) -> None:
    model, x = network()
    inputs = (x[:3], x[3:]) if cross else (x,)
    exact = ns.kernel("trntk", model, *inputs).dense()
    sizes = []
    for rtol in (0.1, 0.05):
        gram: Any = ns.kernel("proj-trntk", model, *inputs, kind=kind, rtol=rtol)
        said = gram.meta["error"]
        assert said["relative"] <= rtol == said["rtol"]
        assert sum(said["stages"]) == gram.meta["dim"] == gram.left.shape[1] // 2
        assert float((gram.dense() - exact).norm() / exact.norm()) <= 4 * rtol  # all entries move together
        sizes.append(gram.meta["dim"])
    assert sizes[1] > sizes[0]


@pytest.mark.guard
def test_stages_are_kept_and_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first guess that is far too small grows; what it computed stays in the result."""
    from ntkscope.kernels import projected

    monkeypatch.setattr(projected, "_needed", lambda *_: 256)
    model, x = network()
    gram: Any = ns.kernel("proj-trntk", model, x, kind="sparse", rtol=0.02, normalize=False)
    stages = gram.meta["error"]["stages"]
    assert stages[0] == 256
    assert len(stages) > 1
    first: Any = ns.kernel("proj-trntk", model, x, kind="sparse", dim=256, normalize=False)
    columns = gram.left.unflatten(1, (2, -1))[:, :, :256] * (sum(stages) / 256) ** 0.5
    assert_close(columns.flatten(1), first.left)
    exact = ns.kernel("trntk0", model, x).dense()
    assert_kernel_close(gram.dense(), exact, 0.06)


# -- on disk -----------------------------------------------------------------------------------------------------------
@pytest.mark.guard
@pytest.mark.parametrize("name", ["proj-trntk", "proj-pntk"])
@every_kind
def test_stored_features_are_the_kernel(name: str, kind: str, tmp_path: Path) -> None:
    model, x = network()
    options: dict[str, Any] = {"dim": 128, "kind": kind, "seed": 5}
    kept: Any = ns.kernel(name, model, x, store=tmp_path, **options)
    plain: Any = ns.kernel(name, model, x, **options)
    assert_close(kept.dense(), plain.dense())
    assert_close(kept.standard_error(), plain.standard_error())
    opened = ns.open_kernel(tmp_path)
    assert_close(opened @ torch.ones(6).double(), plain @ torch.ones(6).double())
    assert opened.name == name
    assert opened.meta["kind"] == kind


@pytest.mark.guard
@every_kind
def test_new_inputs_meet_the_stored_ones(kind: str, tmp_path: Path) -> None:
    model, x = network()
    options: dict[str, Any] = {"dim": 128, "kind": kind, "outputs": [1], "params": "*weight"}
    ns.kernel("proj-trntk", model, x[:4], store=tmp_path, **options)
    found = ns.kernels.extend(tmp_path, model, x[4:])
    assert not found.symmetric
    assert_close(found.dense(), ns.kernel("proj-trntk", model, x[4:], x[:4], **options).dense())
    other, _ = network()
    nn.init.normal_(other[0].bias)
    with pytest.raises(StoreError, match="another model"):
        ns.kernels.extend(tmp_path, other, x[4:])


@pytest.mark.guard
def test_a_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ntkscope.kernels import _projecting
    from ntkscope.storage.feature_store import FeatureStore

    monkeypatch.setitem(_projecting.BLOCK, "cpu", 2)
    model, x = network()
    options: dict[str, Any] = {"dim": 128, "kind": "sparse", "store": tmp_path}
    whole = ns.kernel("proj-trntk", model, x, **options).dense()
    store = FeatureStore.open(tmp_path)
    assert len(store) == 3
    before = {k: store.read(k).clone() for k in range(3)}
    store.drop(1)
    damaged = tmp_path / "features" / "c" / "2" / "0"
    damaged.write_bytes(damaged.read_bytes()[:-9] + b"x" * 9)
    monkeypatch.setitem(_projecting.BLOCK, "cpu", 6)  # the store keeps the blocks it was begun with
    with pytest.warns(RuntimeWarning, match="chunks 2 are damaged"):
        again = ns.kernel("proj-trntk", model, x, **options)
    assert again.coverage.samples_run == 6  # the two chunks, and the third to compare
    assert torch.equal(again.dense(), whole)
    assert all(torch.equal(store.read(k), before[k]) for k in range(3))
    for changed, words in (({"seed": 1}, "seed 1"), ({"normalize": False}, "cosines"), ({"dim": 64}, "64 columns")):
        with pytest.raises(StoreError, match=words):
            ns.kernel("proj-trntk", model, x, **(options | changed))


@pytest.mark.guard
def test_what_a_store_of_features_cannot_do(tmp_path: Path) -> None:
    model, x = network()
    with pytest.raises(UsageError, match=r"kernels\.extend"):
        ns.kernel("proj-trntk", model, x[:3], x[3:], store=tmp_path)


# -- a real network ----------------------------------------------------------------------------------------------------
@pytest.mark.nightly
@pytest.mark.data
@needs_data[1]
@pytest.mark.parametrize("kind", ["sparse", "rademacher"])
def test_a_trained_network(kind: str) -> None:
    """ResNet-20 with published weights at K = 10,240: errors as theory says, and intervals that cover.

    Var K_ij = 1/K Σ_cd (g_c·g_d)(h_c·h_d) + (g_c·h_d)(g_d·h_c); entries share the projection, so that a seed is one draw.
    """
    from benchmarks import networks

    case = networks.case("resnet20", 16)
    blocks = ns.kernel("entk", case.model, case.x, dtype=torch.float64).blocks()
    exact = torch.einsum("ijcc->ij", blocks)
    own = blocks.diagonal(dim1=0, dim2=1).permute(2, 0, 1)
    theory = (torch.einsum("icd,jcd->ij", own, own) + torch.einsum("ijcd,ijdc->ij", blocks, blocks)) / 10240
    apart = ~torch.eye(len(exact), dtype=torch.bool)
    covered, ratios, said = [], [], []
    for seed in range(12 if kind == "sparse" else 2):
        gram: Any = ns.kernel("proj-trntk", case.model, case.x, kind=kind, seed=seed, normalize=False)
        assert gram.meta["dim"] == 10240
        low, high = gram.confidence_interval(0.95)
        covered.append(((low <= exact) & (exact <= high))[apart].double().mean())
        ratios.append(((gram.dense().double() - exact).square() / theory)[apart].mean())
        said.append((gram.standard_error().square() / theory)[apart].mean())
    found = torch.stack(covered)
    assert float(torch.stack(said).mean()) == pytest.approx(1, rel=0.25 if kind == "sparse" else 0.5)
    if kind == "sparse":  # two draws of the dense one say little
        assert abs(float(found.mean()) - 0.95) <= 4 * float(found.std()) / len(found) ** 0.5 + 0.01
        spread = float(torch.stack(ratios).std()) / len(ratios) ** 0.5
        assert abs(float(torch.stack(ratios).mean()) - 1) <= 4 * spread
