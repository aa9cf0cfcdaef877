"""Ensembles on a GPU: recorded steps give the numbers of plain ones, and of `fit`. Skipped without CUDA.

On a machine with one: pytest -q -m "" tests/training/test_training_cuda.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contracts.training_problems import ALL_OPTIMIZERS, HELD, IMAGES, PART, chain_net, classes_part, image_net, norm_net
from ntkscope import models
from ntkscope.core import NumericalError, Part, Snapshot, derive_seed, generator
from ntkscope.data import translate
from ntkscope.surrogates import linearize
from ntkscope.training import CropFlip, Every, StopWhen, Translate, Triangular, fit, fit_ensemble
from ntkscope.training.batches import BatchOrder
from ntkscope.training.ensembles import execution as ways
from ntkscope.training.ensembles.ensemble import Ensemble

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
CLOSE = {"rtol": 1e-7, "atol": 1e-9}  # other kernels, same double arithmetic; adam divides by small numbers


def same(a: Ensemble, b: Ensemble) -> None:
    """Equal to the last digits of double precision: the same kernels, launched one by one or as a graph."""
    for one, two in ((a.params, b.params), (a.buffers, b.buffers)):
        for name in one:
            torch.testing.assert_close(one[name], two[name], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(a.losses, b.losses, rtol=1e-12, atol=1e-13, equal_nan=True)


@pytest.mark.parametrize("name", ALL_OPTIMIZERS)
@pytest.mark.parametrize("build", [norm_net, chain_net])
@pytest.mark.parametrize("own", [False, True])
def test_recorded_steps_are_plain_ones_and_those_of_fit(
    name: str, build: Callable[[int], nn.Module], own: bool
) -> None:
    settings = {**ALL_OPTIMIZERS[name], "optimizer": name, "epochs": 12, "schedule": Triangular(), "device": "cuda"}
    settings["batch_size"] = None if name == "gd" else 7  # the last batch of an epoch is shorter
    lr = settings.pop("lr")
    rates = [lr, lr / 3, lr / 2] if own else [lr] * 3
    recorded, plain = (
        fit_ensemble(build, PART, seeds=[3, 1, 4], lr=rates, capture=capture, **settings) for capture in (True, False)
    )
    if name == "adagrad":  # its steps are counted on the host
        assert "not recorded as CUDA graphs" in recorded.notes[0]
    else:
        assert recorded.notes == ()
    same(recorded, plain)
    for i, seed in enumerate((3, 1, 4)):
        alone = build(seed)
        fit(alone, PART, seed=seed, lr=rates[i], **settings).final()
        for a, b in zip(recorded.member(i).state_dict().values(), alone.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.parametrize("name", ALL_OPTIMIZERS)
@pytest.mark.parametrize("build", [norm_net, chain_net])
def test_recorded_steps_in_single_precision_are_those_of_fit(name: str, build: Callable[[int], nn.Module]) -> None:
    """All members have one rate, a tensor that the optimizer reads in the graph."""
    settings = {**ALL_OPTIMIZERS[name], "optimizer": name, "epochs": 8, "schedule": Triangular(), "device": "cuda"}
    settings["batch_size"] = None if name == "gd" else 7
    part = classes_part()
    ensemble = fit_ensemble(lambda seed: build(seed).float(), part, seeds=[3, 1, 4], **settings)
    for i, seed in enumerate((3, 1, 4)):
        alone = build(seed).float()
        fit(alone, part, seed=seed, **settings).final()
        for own, other in zip(ensemble.member(i).state_dict().values(), alone.state_dict().values(), strict=True):
            torch.testing.assert_close(own, other, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("bad", [1, 5, 64, 65, 130])
def test_the_step_that_was_not_finite_is_named(bad: int) -> None:
    """The losses are looked at every 64 steps, and each of those steps is known."""
    part = classes_part(200, dtype=torch.float64)
    targets = torch.nn.functional.one_hot(part.y, 3).double()
    targets[BatchOrder(len(part), 1, 0).indices(bad - 1)] = 1e200  # squared, more than a double holds
    with pytest.raises(NumericalError, match=rf"not finite at step {bad},"):
        fit_ensemble(
            chain_net, Part(part.x, targets), seeds=[0], lr=0.01, epochs=1, batch_size=1, loss="mse", device="cuda"
        )


@pytest.mark.parametrize("kind", ["network", "linear"])
def test_convolutional_members_one_after_the_other_or_stacked(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways are timed as recorded steps; whichever is taken, the numbers are the same up to rounding."""
    draw = generator(0, "images")
    part = Part(torch.randn(60, 1, 16, 16, generator=draw, dtype=torch.float64), torch.arange(60) % 3)

    def build(seed: int) -> nn.Module:
        model = models.build("lenet", classes=3, image_size=16, width=0.5, seed=seed).double().eval()
        return linearize(model) if kind == "linear" else model

    monkeypatch.setattr(ways, "STEPS", 10)
    timed: list[tuple[float, float]] = []

    def forced(stacked: float, alone: float) -> tuple[bool, str]:
        timed.append((stacked, alone))
        return len(timed) == 2, "forced"

    monkeypatch.setattr(ways, "compare", forced)
    settings: dict[str, Any] = {"lr": 0.05, "momentum": 0.9, "epochs": 5, "batch_size": 8, "device": "cuda"}
    found = [fit_ensemble(build, part, seeds=2, **settings) for _ in range(2)]
    assert [one.vectorised for one in found] == [True, False]
    assert all(0 < seconds < 1 for pair in timed for seconds in pair)
    for name, value in found[0].params.items():
        torch.testing.assert_close(value, found[1].params[name], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("mode", ["reg", "stop-first", "first-last", "reinit"])
@pytest.mark.parametrize("optimizer", ["adam", "adadelta"])
def test_modes(mode: str, optimizer: str) -> None:
    settings = {"optimizer": optimizer, "epochs": 6, "batch_size": 5, "mode": mode, "device": "cuda"}
    for build in (norm_net, chain_net):
        recorded, plain = (
            fit_ensemble(build, PART, seeds=2, lr=[0.01, 0.03], capture=capture, **settings)
            for capture in (True, False)
        )
        same(recorded, plain)
        assert recorded.notes == ()
        for i, lr in enumerate((0.01, 0.03)):
            alone = build(i)
            fit(alone, PART, seed=i, lr=lr, **settings).final()
            for a, b in zip(recorded.member(i).parameters(), alone.parameters(), strict=True):
                torch.testing.assert_close(a, b, **CLOSE)


def test_stops_validation_and_divergence() -> None:
    settings = {"optimizer": "adam", "epochs": 30, "batch_size": 8, "device": "cuda"}
    lr = [0.03, 0.01, 0.1, 1e-4]
    stop = StopWhen(accuracy=0.7, loss=0.8, every=2)
    together = fit_ensemble(chain_net, PART, seeds=4, lr=lr, stop=stop, **settings)
    ends = [fit(chain_net(i), PART, seed=i, lr=lr[i], stop=stop, **settings).final().step for i in range(4)]
    assert together.steps.tolist() == ends
    kept = [
        fit_ensemble(chain_net, PART, seeds=4, lr=lr, validation=HELD, patience=3, capture=capture, **settings)
        for capture in (True, False)
    ]
    assert torch.equal(kept[0].steps, kept[1].steps)
    same(*kept)
    regression = Part(PART.x, PART.x[:, :3])
    with pytest.raises(NumericalError, match=r"of 1 members is not finite at step .* seed 1"):
        fit_ensemble(chain_net, regression, seeds=3, lr=[0.1, 1e200, 0.1], loss="mse", steps=90, device="cuda")
    marked = fit_ensemble(
        chain_net, regression, seeds=3, lr=[0.1, 1e200, 0.1], loss="mse", steps=90, device="cuda", diverged="nan"
    )
    assert marked.diverged is not None
    assert marked.diverged.tolist() == [False, True, False]
    assert bool(marked(PART.x.cuda())[[0, 2]].isfinite().all())


def test_a_step_that_cannot_be_recorded_is_run_as_it_is() -> None:
    class Waits(nn.Module):
        """Waits for the device, which a recording cannot."""

        def __init__(self, seed: int) -> None:
            super().__init__()
            self.inner = chain_net(seed)

        def forward(self, x: Tensor) -> Tensor:
            torch.cuda.synchronize()
            return self.inner(x)

    settings = {"lr": 0.1, "epochs": 5, "batch_size": 8, "device": "cuda"}
    recorded, plain = (fit_ensemble(Waits, PART, seeds=2, capture=capture, **settings) for capture in (True, False))
    assert "not recorded as CUDA graphs" in recorded.notes[0]
    same(recorded, plain)


def test_augmentation_on_the_device() -> None:
    part, augment = IMAGES, Translate(2, fill=0.5)
    items = torch.tensor([3, 13, 0], device="cuda")
    keys = torch.tensor([augment.keys(4, 1)] * 3, device="cuda")
    expected = translate(part, 2, derive_seed(4, "augment"), epoch=1, fill=0.5).x
    assert torch.equal(augment.apply(part.x.cuda()[items], items, keys).cpu(), expected[items.cpu()])
    settings = {"lr": 0.1, "epochs": 6, "batch_size": 5}
    for chosen in (augment, CropFlip(padding=1)):
        on = fit_ensemble(image_net, part, seeds=[3, 8], augment=chosen, device="cuda", **settings)
        for i, seed in enumerate((3, 8)):
            alone = image_net(seed)
            fit(alone, part, seed=seed, augment=chosen, device="cuda", **settings).final()
            for a, b in zip(on.member(i).parameters(), alone.parameters(), strict=True):
                torch.testing.assert_close(a, b, **CLOSE)
    here = fit_ensemble(
        image_net, part, seeds=[3, 8], augment=augment, **settings
    )  # shifts do not depend on the device
    there = fit_ensemble(image_net, part, seeds=[3, 8], augment=augment, device="cuda", **settings)
    for name in here.params:
        torch.testing.assert_close(there.params[name].cpu(), here.params[name], **CLOSE)


class Killed(Exception):
    pass


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "adadelta", "adagrad"])
def test_a_killed_call_continues_to_the_same_numbers(optimizer: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"seeds": 3, "epochs": 8, "batch_size": 8, "snapshots": Every(5), "device": "cuda"}
    settings |= {"lr": [0.01, 0.05, 0.02], "optimizer": optimizer, "validation": HELD}
    expected = fit_ensemble(chain_net, PART, **settings)

    def kill(snapshot: Snapshot) -> None:
        if snapshot.step == 10:
            raise Killed

    with pytest.raises(Killed):
        fit_ensemble(chain_net, PART, store=tmp_path / "run", on_snapshot=kill, **settings)
    same(fit_ensemble(chain_net, PART, store=tmp_path / "run", **settings), expected)


@pytest.mark.nightly
def test_a_hundred_networks_take_half_a_millisecond_a_step() -> None:
    """7-128-128-128-1, batch 32, Adam: the bound for an H200; printed, so that other devices can be compared."""
    x = torch.randn(25_400, 7, generator=generator(0, "speed"))
    part = Part(x, (x.norm(dim=1) > 2.5).float())

    def build(seed: int) -> nn.Module:
        return models.build("mlp", in_features=7, classes=1, widths=128, depth=3, activation="relu", seed=seed)

    def seconds(steps: int, capture: bool) -> float:
        settings = {"optimizer": "adam", "lr": [1e-3] * 50 + [1e-4] * 50, "loss": "bce", "batch_size": 32}
        torch.cuda.synchronize()
        start = time.perf_counter()
        fit_ensemble(build, part, seeds=100, steps=steps, device="cuda", capture=capture, **settings)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    seconds(50, True)
    took = {capture: (seconds(2200, capture) - seconds(200, capture)) / 2000 for capture in (True, False)}
    print(
        f"\n{torch.cuda.get_device_name()}: {1e3 * took[True]:.3f} ms a step recorded, {1e3 * took[False]:.3f} ms plain"
    )
    assert took[True] <= 0.5e-3
