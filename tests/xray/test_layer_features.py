"""What each layer looks for: planted patches and words are found, numbers are those of `feature_matrices`, odd networks too."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import Part, Record, generator
from ntkscope.kernels.costs import Rates
from ntkscope.linalg.features.directions import leading_of_matrix
from ntkscope.xray.budget import Budget
from ntkscope.xray.plan import make_plan, section_step
from ntkscope.xray.sections import layer_features
from ntkscope.xray.sections.layer_features import Layer, LayerFeatureMatrices
from xray.small import only, regressed, waves, workload
from xray.texts import WordTokenizer, read, texts

RATES = Rates(0.05, 1e-3, 1e-5, 1e-4, 2e-10, 1e-10, 1e-8, 24_000, 10)
PATCH = (slice(11, 17), slice(11, 17))  # 6 × 6 of 28 × 28 pixels: 5 % of them


Images = tuple[Record, nn.Module, nn.Module, Part]


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    with only(layer_features.SECTION):
        yield


def result(record: Record) -> LayerFeatureMatrices:
    found = layer_features.SECTION.read(record.metrics)
    assert found is not None, record.metrics[layer_features.SECTION.key]
    return found


def vectors(record: Record, layer: Layer, side: str) -> np.ndarray:
    """The directions of one side of a layer, (k, in)."""
    first, count = (0, len(layer.agop)) if side == "agop" else (len(layer.agop), len(layer.nfm))
    start = layer.vectors + first * layer.columns
    return record.arrays["layer_features.vectors"][start : start + count * layer.columns].reshape(count, layer.columns)


def dots(n: int, seed: int) -> Part:
    """Noisy 8 × 8 images; the class is where a bright 3 × 3 block lies: top left or bottom right."""
    drawn = generator(seed, "dots")
    y = torch.arange(n) % 2
    x = 0.3 * torch.randn(n, 1, 8, 8, generator=drawn)
    x[y == 0, :, 1:4, 1:4] += 1.0
    x[y == 1, :, 4:7, 4:7] += 1.0
    return Part(x, y)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    train, test = dots(80, 0), dots(40, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 12), nn.ReLU(),
            nn.Linear(12, 2),
        )  # fmt: skip
    initial = copy.deepcopy(model)
    ns.training.fit(model, train, lr=1e-2, optimizer="adam", steps=60, measure=False).final()
    folder = tmp_path_factory.mktemp("features")
    options: dict[str, Any] = {"initial": initial, "kernels": ["ck"], "progress": False}
    return ns.xray(model.eval(), train, test, folder, **options), model, initial, train


def test_numbers_are_those_of_feature_matrices(images: Images) -> None:
    record, model, initial, train = images
    found = result(record)
    fm = ns.feature_matrices(model, train.x)
    moved = ns.feature_matrices(model, train.x[:10], initial=initial)
    centred = {name: replace(each, ptk=fm[name].ptk) for name, each in moved.items()}
    assert [layer.name for layer in found.layers] == list(fm)
    assert [layer.kind for layer in found.layers] == ["input", "patches", "deep", "deep", "deep"]
    for layer in found.layers:
        agop = fm[layer.name].agop
        for side, G in (("agop", agop), ("nfm", None if layer.kind == "input" else fm[layer.name].nfm)):
            for v, share in zip(vectors(record, layer, side), getattr(layer, side), strict=True):
                assert G is not None
                v = torch.from_numpy(v.astype(np.float64))
                torch.testing.assert_close(G @ v, share * G.trace() * v, rtol=1e-3, atol=1e-5 * float(G.trace()))
    for layer in found.layers[1:-1]:
        control = fm[layer.name].control(200, 0)
        assert layer.correlation == pytest.approx(fm[layer.name].correlation(), abs=1e-9)
        assert (layer.low, layer.high) == pytest.approx((control.quantiles[0.025], control.quantiles[0.975]), abs=1e-9)
        assert layer.centred == pytest.approx(centred[layer.name].correlation("weights"), abs=1e-6)
    last = found.layers[-1]
    assert last.correlation is None
    assert "by definition" in last.reason


def test_the_input_direction_separates_the_blocks(images: Images) -> None:
    record, *_ = images
    layer = result(record).layers[0]
    assert layer.shape == (1, 8, 8)
    v = vectors(record, layer, "agop")[0].reshape(8, 8)
    assert np.square(v[1:4, 1:4]).sum() + np.square(v[4:7, 4:7]).sum() > 0.7  # 18 of 64 pixels
    assert v[1:4, 1:4].mean() * v[4:7, 4:7].mean() < 0


def test_deep_layers_show_the_patches_that_project_most(images: Images) -> None:
    record, model, _, train = images
    layer = result(record).layers[2]
    assert layer.items is not None
    assert layer.patches is not None
    assert all(3 <= side <= 5 for side in layer.size)  # two 3 × 3 windows on top of each other reach 5 pixels
    k = len(layer.agop) + len(layer.nfm)
    items = record.arrays["layer_features.items"][layer.items : layer.items + k * layer.shown].reshape(k, -1)
    h = model[1](model[0](train.x)).detach()
    windows = torch.nn.functional.unfold(h, 3).transpose(1, 2)  # (n, positions, in)
    for row, v in zip(items, np.concatenate([vectors(record, layer, side) for side in ("agop", "nfm")]), strict=True):
        best = (windows @ torch.from_numpy(v)).amax(1)
        assert sorted(row.tolist()) == sorted(best.topk(layer.shown).indices.tolist())
    size = int(np.prod(layer.patch))
    stored = record.arrays["layer_features.patches"][layer.patches : layer.patches + size].reshape(layer.patch)
    image = train.x[int(items[0, 0]), 0]
    low, high = train.x.min(), train.x.max()
    height, width = layer.size
    cuts = image.unfold(0, height, 1).unfold(1, width, 1).flatten(0, 1)
    scaled = ((cuts - low) / (high - low) * 255).round()
    assert bool((scaled == torch.from_numpy(stored[..., 0].astype(np.float32))).flatten(1).all(1).any())


@pytest.mark.guard
def test_chosen_parameters_alone(tmp_path: Path) -> None:
    train, test = waves(30)
    _, model = regressed(train)
    options: dict[str, Any] = {"kernels": ["ck"], "progress": False, "params": "layer1.*"}
    found = result(ns.xray(model, train, test, tmp_path, **options))
    assert [layer.name for layer in found.layers] == ["input", "layer1"]


@pytest.mark.guard
def test_wide_layers_are_left_out_and_dead_ones_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_features, "WIDEST", 20)
    train, test = waves(30)
    model = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 1))
    with torch.no_grad():
        model[2].weight.zero_()
        model[2].bias.fill_(-1.0)  # its units never fire
    options: dict[str, Any] = {"kernels": ["ck"], "progress": False, "untrained": True}
    record = ns.xray(model, train, test, tmp_path, **options)
    entry = record.metrics[layer_features.SECTION.key]
    assert entry["status"] == "done", entry["why"]
    found = result(record)
    assert "24 outputs, more than the 20" in found.left_out["0"]
    assert "no output reacts" in found.layers[-2].reason
    assert "undrawn" not in ns.report.write_page(tmp_path).read_text()


@pytest.mark.guard
def test_a_network_without_affine_layers_is_skipped(tmp_path: Path) -> None:
    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(5))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.scale)[:, :2].cumsum(1)

    train, test = waves(20, outputs=2)
    record = ns.xray(Scales(), train, test, tmp_path, kernels=["pntk"], progress=False, untrained=True)
    entry = record.metrics[layer_features.SECTION.key]
    assert entry["status"] == "skipped"
    assert "no affine layer" in entry["why"]


def test_the_plan_knows_what_it_costs() -> None:
    step = section_step(layer_features.SECTION.name)

    def plan(train: int = 200, rates: Rates = RATES, *matrices: tuple[int, int]) -> float:
        return make_plan(workload(rates, train, matrices=matrices), Budget(None)).steps[step]

    assert plan(400) > plan(200)
    assert plan(5000) == plan(4000)  # no more items are used
    assert plan(200, RATES, (512, 512)) > plan(200, RATES, (128, 512)) > plan(200)
    assert plan(200, RATES, (30_000, 512)) == plan(200)  # left out
    assert plan(200, replace(RATES, outputs=1000)) < plan(200)  # combinations of outputs: a share of the passes


# -- texts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.guard
def test_deep_layers_of_texts_have_words(tmp_path: Path) -> None:
    held, y = texts(60, seed=1)
    record = ns.xray(read(), texts(120), (held, y), tmp_path, tokenizer=WordTokenizer(), kernels=["ck"], progress=False)
    section = result(record)
    assert any(layer.tokens for layer in section.layers)
    assert "input" in section.left_out


# -- planted patches ------------------------------------------------------------------------------------------------------


def planted(n: int, *, shuffled: bool, seed: int = 0) -> Part:
    """MNIST digits whose two classes are the noisy patterns of a patch, whatever the digit; or in random order."""
    digits = ns.data.load("mnist").train.x
    drawn = generator(seed, "planted patch")
    x = digits[torch.randperm(len(digits), generator=drawn)[:n]].clone()
    low, high = x.min(), x.max()
    y = torch.randint(0, 2, (n,), generator=drawn)
    patterns = torch.rand(2, 6, 6, generator=drawn).round()
    noisy = (patterns[y] + 0.2 * torch.randn(n, 6, 6, generator=drawn)).clamp(0, 1)
    x[:, 0, *PATCH] = low + (high - low) * noisy
    return Part(x, y[torch.randperm(n, generator=drawn)] if shuffled else y)


@pytest.mark.data
@pytest.mark.guard
@pytest.mark.parametrize("name", ["lenet", "mlp"])
@pytest.mark.parametrize("shuffled", [False, True], ids=["planted", "shuffled"])
def test_a_planted_patch_is_what_the_network_looks_for(name: str, shuffled: bool) -> None:
    part = planted(1000, shuffled=shuffled)
    options: dict[str, Any] = {"in_features": 784, "widths": 128, "depth": 2} if name == "mlp" else {}
    model = ns.models.build(name, classes=2, **options)
    ns.training.fit(model, part, lr=1e-3, optimizer="adam", epochs=8, batch_size=64, measure=False).final()
    agop = ns.feature_matrices(model.eval(), part.x[:300], layers="input")["input"].agop
    top = leading_of_matrix(agop, 1).vectors[0].reshape(28, 28)
    mass = float(top[PATCH].square().sum())
    if shuffled:
        assert mass <= 0.15
    else:
        assert mass >= (0.7 if name == "lenet" else 0.4)
