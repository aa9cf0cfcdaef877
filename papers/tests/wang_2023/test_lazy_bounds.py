"""Bounds of lazy training: the contract, descent against a loop written out, verdicts that can fail."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts.dataset import given
from contracts.experiment import ExperimentContract, judged, made_record
from ntkscope.core import Record
from ntkscope_papers.wang_2023.lazy_bounds import LazyBounds, constants, threshold
from ntkscope_papers.wang_2023.lazy_claims import CHANGES
from ntkscope_papers.wang_2023.two_layer import Shape, descend, items_of, network

CPU = torch.device("cpu")


@pytest.mark.guard
class TestLazyBounds(ExperimentContract):
    name = "lazy-bounds"
    tiny = given(
        sizes=(16, 24),
        dimensions=(10, 12),
        shapes=((16, 8, 12),),
        theorem_steps=10,
        training_steps=20,
        stable_steps=10,
        early_seeds=2,
    )
    identities = ("spectra-alpha-definition",)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_descent_is_gradient_descent_on_the_first_layer(scale: float) -> None:
    """Eq. 82 with the loss of Eq. 74, by a loop with autograd: weights, norms and residuals of every step."""
    shape, steps, rates = Shape(10, 6, 8), 4, [0.7, 2.0]
    run = descend(shape, [3, 4], rates, steps=steps, device=CPU, scale=scale, follow="all")
    for member, (seed, rate) in enumerate(zip((3, 4), rates)):
        model, part = network(shape, seed, scale=scale).double(), items_of(shape, seed, CPU)
        weight = model.get_parameter("layer1.weight")
        start, path = weight.detach().clone(), 0.0
        for step in range(steps + 1):
            residual = part.y - model(part.x)[:, 0]
            assert run.residuals[step][member] == pytest.approx(float(residual.detach().norm()), rel=1e-10)
            assert run.distances[step][member] == pytest.approx(
                float((weight - start).detach().norm()), rel=1e-9, abs=1e-12
            )
            if step < steps:
                (gradient,) = torch.autograd.grad(residual.square().sum() / (2 * len(part)), weight)
                with torch.no_grad():
                    weight.sub_(gradient, alpha=rate)
                path += rate * float(gradient.norm())
        torch.testing.assert_close(run.end[member], weight.detach(), rtol=1e-10, atol=1e-12)
        assert sum(move[member] for move in run.moves) == pytest.approx(path, rel=1e-9)


def test_the_largest_step_lies_between_two_that_were_tried() -> None:
    ok = np.array([True, True, False, True])
    assert threshold(ok, [1.0, 2.0, 8.0, 9.0]) == pytest.approx(4.0)
    assert threshold(np.array([True, True]), [1.0, 2.0]) is None
    assert threshold(np.array([False, True]), [1.0, 2.0]) is None


def made_up(folder: Path, **changes: Any) -> Record:
    """A record in which every statement holds, with some results replaced: `key=(path, value)`."""
    config = LazyBounds()
    rows: dict[str, Any] = {"constants": constants()}
    for d in config.dimensions:
        rows[f"least/{d}"] = {
            "sign": [0.2],
            "normal": [0.19],
            "uniform": [0.07],
            "full, least": [0.2],
            "full, largest": [13.4],
        }
    for n in config.sizes:
        one = {
            "weights": [3 / n],
            "ck": [6 / n],
            "ntk": [9 / n],
            "ntk, Frobenius": [9 / n],
            "ck without 1/√d": [n**-0.7],
        }
        shifts = {"weights": [1 / n], "ck": [1 / n], "ntk": [1 / n], "ck, median cosine": [1.0]}
        rows[f"early/{n}"] = {"t=1": one, "t=5": one, "shifts": shifts}
        rows[f"stable/{n}"] = {"largest eigenvalue": [5.0], "falls": [1.0], "highest": [1.0] * 11, "left": [0.1] * 11}
        h, d = 3 * n // 4, n // 2
        same = {"weights": [1.0], "ck": [1.0], "ntk": [1.0], "loss": [1e-5]}
        distances = {f"{name}, KS": [2 / n] for name in CHANGES}
        paths = {
            "path": [math.sqrt(h)],
            "start": [math.sqrt(h * d)],
            "path over Eq. 86": [0.1],
            "path over Eq. 86, ℓ the loss": [2.0],
        }
        rows[f"training/{n}"] = {"width": h, "dimension": d, **same, **distances, **paths}
    for shape in config.shapes:
        for source in ("kernel", "bound"):
            ratios = {f"Eq. {k}{word}": [0.9] for k in (84, 85, 86) for word in ("", ", ℓ the loss")}
            rows[f"theorem/{'-'.join(map(str, shape))}/{source}"] = ratios
    for key, (path, value) in changes.items():
        inner = rows[key]
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value
    return made_record(folder, "lazy-bounds", **rows)


@pytest.mark.parametrize(
    ("claim", "changes"),
    [
        ("lemma-4-1", {"early/1024": (("t=5", "ck"), [6 / 512])}),
        ("early-eigen-invariance", {"early/1024": (("shifts", "ck"), [0.07])}),
        ("early-eigen-invariance", {"early/1024": (("shifts", "weights"), [0.01])}),  # more than Weyl allows
        ("early-eigen-invariance", {"early/512": (("shifts", "ntk"), [1 / 2048])}),
        ("early-eigen-invariance", {"early/1024": (("shifts", "ck, median cosine"), [0.9])}),
        ("lambda-min-bound", {"least/100": (("sign",), [0.05])}),
        ("lambda-min-bound", {"least/1000": (("sign",), [0.1])}),
        ("alpha-definition", {"constants": (("alpha of the bound",), 0.15)}),
        ("theorem-4-2-rate", {"theorem/200-100-150/bound": (("Eq. 84",), [1.01])}),
        ("theorem-4-2-distance", {"theorem/200-400-600/kernel": (("Eq. 85",), [1.01])}),
        ("theorem-4-2-path", {"theorem/200-400-600/kernel": (("Eq. 86",), [1.01])}),
        ("theorem-4-2-path", {"training/512": (("path over Eq. 86",), [1.01])}),
        ("path-scaling", {"training/1024": (("path",), [200.0])}),
        ("path-scaling", {"training/128": (("start",), [85.0])}),
        ("max-learning-rate-order", {"stable/1024": (("falls",), [0.5])}),
        ("max-learning-rate-order", {"stable/128": (("falls",), [None])}),
        ("max-learning-rate-order", {"least/1000": (("full, largest",), [15.0])}),
        ("corollary-4-3", {"training/1024": (("ntk",), [2.0])}),
        ("corollary-4-3", {"training/1024": (("ck, KS",), [0.1])}),
    ],
)
def test_a_verdict_follows_what_was_measured(claim: str, changes: dict[str, Any], tmp_path: Path) -> None:
    good, bad = judged(made_up(tmp_path / "good")), judged(made_up(tmp_path / "bad", **changes))
    assert {one.outcome for one in good.values()} == {"reproduced", "reproduced on a stand-in"}
    assert bad[f"spectra-{claim}"].outcome.startswith("not reproduced")
