"""The verdict: right where the answer is known, silent where it cannot be."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ntkscope as ns
from ntkscope.core import Part, generator
from ntkscope.data.subsets import stratified
from ntkscope.xray.network import displacement, initial_network
from ntkscope.xray.sections import summary
from ntkscope.xray.task import beats_guessing
from ntkscope.xray.verdict import (
    KERNEL_CHANGE,
    LINEARISATION,
    Observations,
    judge,
    linearisation_error,
    unrelated,
)
from ntkscope_papers.qadeer_2023.grids import logistic_boundary
from xray.small import blobs, network, only, trained

LAZY = Observations(linearisation=0.05, kernel_change=0.03, rotation=0.002)
RICH = Observations(linearisation=0.95, kernel_change=50.0, rotation=0.3)


def test_both_ends_and_the_middle() -> None:
    assert judge(LAZY).word == "lazy"
    assert judge(RICH).word == "rich"
    for mixed in (
        replace(LAZY, kernel_change=3.0),
        replace(LAZY, kernel_change=3.0, centred_change=2.0),
        replace(RICH, kernel_change=0.1, rotation=0.01),
        Observations(linearisation=0.45, kernel_change=0.7, rotation=0.05),
    ):
        assert judge(mixed).word == "in between"


def test_what_cannot_be_judged_is_not() -> None:
    for hopeless in (
        Observations(),
        replace(RICH, unrelated=True),
        replace(LAZY, still=True),
        replace(LAZY, learned=False),
        replace(LAZY, linearisation=math.nan),
    ):
        verdict = judge(hopeless)
        assert (verdict.word, verdict.score) == ("not enough evidence", None)
        assert all(item.says == "neither" for item in verdict.evidence)


def test_a_constant_part_of_the_kernel_decides_nothing() -> None:
    """Large biases hide a change of the kernel, and a kernel that is nearly constant exaggerates one; the error decides."""
    assert judge(replace(RICH, kernel_change=0.4, centred_change=300.0, rotation=0.07)).word == "rich"
    assert judge(replace(LAZY, kernel_change=0.002, centred_change=0.8, rotation=0.4)).word == "lazy"


@pytest.mark.parametrize(
    ("error", "change", "centred", "rotation", "words"),
    [
        (
            5.0,
            452.3,
            None,
            0.3,
            "explains nothing of what training changed, and the difference between the kernels is 452 ",
        ),
        (0.05, 0.03, None, 0.001, "3.0 % of the initial"),
        (
            0.98,
            2723.0,
            None,
            0.013,
            "initial kernel's norm and its direction turned by 0.013 (1 - CKA; 0: only its scale",
        ),
        (0.98, 449.0, 2723.0, 0.36, "between the centred kernels is over 1,000 times"),
    ],
)
def test_a_change_is_said_in_words(error: float, change: float, centred: Any, rotation: float, words: str) -> None:
    """A kernel that only grew is told from one that turned."""
    assert words in judge(Observations(error, change, centred, rotation)).why


def test_the_score_grows_with_the_error() -> None:
    scores = [judge(replace(LAZY, linearisation=error)).score for error in (0.01, 0.1, 0.3, 0.5, 0.8, 1.2, 9.0)]
    assert scores == sorted(score for score in scores if score is not None)
    assert (scores[0], scores[-1]) == (0, 1)
    assert LINEARISATION.lazy < LINEARISATION.rich
    assert KERNEL_CHANGE.lazy < KERNEL_CHANGE.rich


def test_linearisation_error_against_two_forward_passes() -> None:
    """The tangent plane by a central difference in float64: J₀ Δw = (f(w₀ + h Δw) - f(w₀ - h Δw)) / 2h + O(h²)."""
    train, test = blobs()
    initial, model = (net.double() for net in trained(train))
    x = test.x.double()
    moved, h = displacement(initial, model), 1e-5
    ends = []
    for sign in (1, -1):
        other = copy.deepcopy(initial)
        with torch.no_grad():
            for name, p in other.named_parameters():
                p.add_(sign * h * moved[name])
        ends.append(other(x))
    change = model(x) - initial(x)
    expected = float(((change - (ends[0] - ends[1]) / (2 * h)).norm() / change.norm()).detach())
    assert linearisation_error(initial, model, x) == pytest.approx(expected, rel=1e-5)  # kinks of ReLU within h
    assert expected > 0.01


def test_unrelated_weights_are_noticed_and_trained_ones_are_not() -> None:
    def weights(model: nn.Module) -> dict[str, torch.Tensor]:
        return {name: p.detach() for name, p in model.named_parameters()}

    def wide(seed: int) -> nn.Module:
        return ns.models.build("mlp", in_features=20, classes=3, widths=64, seed=seed)

    assert unrelated(weights(wide(0)), weights(wide(1)))
    assert not unrelated(weights(wide(0)), weights(wide(0)))
    nudged = {name: p + 0.5 * p.norm() / p.numel() ** 0.5 for name, p in weights(wide(0)).items()}
    assert not unrelated(weights(wide(0)), nudged)
    grown = {name: 20 * torch.randn(p.shape, generator=generator(0, name)) for name, p in weights(wide(0)).items()}
    assert not unrelated(weights(wide(0)), grown)  # from a small start the start may well be forgotten


def test_guessing() -> None:
    y = np.arange(100) % 4
    assert not beats_guessing(np.zeros(100, dtype=int), y)
    assert beats_guessing(y, y)


def test_batch_normalisation_of_the_start_knows_the_data() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    x = 3 + torch.randn(200, 5, generator=generator(0, "x"))
    made = initial_network(model, copy.deepcopy(model), x)
    assert made is not None
    hidden = model[0](x)
    torch.testing.assert_close(made[1].running_mean, hidden.mean(0), rtol=0, atol=1e-5)
    torch.testing.assert_close(made[1].running_var, hidden.var(0), rtol=1e-4, atol=1e-5)
    assert not torch.equal(made[1].running_mean, model[1].running_mean)


def verdict_of(folder: Path, initial: nn.Module, model: nn.Module, train: Part, test: Part) -> dict[str, Any]:
    options: dict[str, Any] = {"kernels": ["ck"], "budget": {"time": None}, "untrained": True, "progress": False}
    with only(summary.SECTION):
        record = ns.xray(model, train, test, folder, initial=initial, **options)
    entry = record.metrics["section:summary"]
    assert entry["status"] == "done", entry["why"]
    return dict(entry["data"])


def test_another_draw_for_a_start_is_not_enough_evidence(tmp_path: Path) -> None:
    train, test = blobs(n=90)
    model = ns.models.build("mlp", in_features=5, classes=3, widths=64, depth=2)
    ns.training.fit(model, train, lr=1e-3, optimizer="adam", steps=60, measure=False).final()
    other = ns.models.build("mlp", in_features=5, classes=3, widths=64, depth=2, seed=9)
    assert verdict_of(tmp_path, other, model, train, test)["verdict"] == "not enough evidence"


def test_an_untrained_network_is_not_enough_evidence(tmp_path: Path) -> None:
    train, test = blobs()
    model = network()
    assert verdict_of(tmp_path, copy.deepcopy(model), model, train, test)["verdict"] == "not enough evidence"


# -- known answers --------------------------------------------------------------------------------------------------------


def task(name: str) -> tuple[Part, Part, int]:
    """A few items of a data set, every class among them, flat; real targets cut at their median."""
    split = logistic_boundary("F1") if name == "logistic-boundary" else ns.data.load(name)
    labels = []
    for part in (split.train, split.test):
        y = part.y.flatten()
        labels.append((y > split.train.y.median()).long() if y.is_floating_point() else y.long())
    rows = [torch.from_numpy(stratified(y.numpy(), n, 0, "test")) for y, n in zip(labels, (160, 80))]
    parts = [
        Part(part.x.float().flatten(1)[index], y[index])
        for part, y, index in zip((split.train, split.test), labels, rows)
    ]
    return parts[0], parts[1], int(labels[0].max()) + 1


def trained_as(kind: str, train: Part, classes: int, seed: int) -> tuple[nn.Module, nn.Module]:
    """A network whose regime is known, before and after its training.

    Lazy: wide, NTK parametrisation, gradient descent with a tenth of the largest stable step. Rich: the same network with
    all weights small, or with its readout divided by the width (mean field), until it has left its saddle.
    """
    common = {"in_features": train.x.shape[1], "classes": classes, "ntk": True, "seed": seed}
    regimes: dict[str, dict[str, Any]] = {
        "lazy": {"widths": 1024, "depth": 1},
        "lazy deep": {"widths": 768, "depth": 2, "activation": "tanh"},
        "rich": {"widths": 1024, "depth": 1, "init_scale": 0.1},
        "rich mean field": {"widths": 512, "depth": 1, "sigma_w": [1, 512**-0.5], "sigma_b": [1, 0]},
    }
    model = ns.models.build("mlp", **regimes[kind], **common)
    initial = copy.deepcopy(model)
    if kind.startswith("lazy"):
        largest = float(ns.kernel("trntk0", model, train.x).eigvalsh()[-1])
        rate = 0.2 * len(train) / (largest / classes)  # stable below 2 n / λ for square losses, more for this one
        ns.training.fit(model, train, lr=rate, steps=800, seed=seed, measure=False).final()
    else:
        ns.training.fit(model, train, optimizer="adam", lr=0.1, steps=200, seed=seed, measure=False).final()
    return initial, model


def found(kind: str, name: str, seed: int, folder: Path) -> dict[str, Any]:
    train, test, classes = task(name)
    initial, model = trained_as(kind, train, classes, seed)
    return verdict_of(folder, initial, model, train, test)


@pytest.mark.guard
def test_a_known_answer(tmp_path: Path) -> None:
    assert found("rich", "digits", 0, tmp_path)["verdict"] == "rich"


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["digits", "orthant-shells", "logistic-boundary"])
@pytest.mark.parametrize("kind", ["lazy", "lazy deep", "rich", "rich mean field"])
def test_known_answers_over_seeds_and_tasks(kind: str, name: str, seed: int, tmp_path: Path) -> None:
    seen = found(kind, name, seed, tmp_path)
    assert seen["verdict"] == kind.split()[0], seen
