"""LeNet and its linearisation: the contract, equations, pairs, readings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ntkscope as ns
from contracts.dataset import given
from contracts.experiment import ExperimentContract, readings
from ntkscope.core import Part, Record, Snapshot
from ntkscope.models import build
from ntkscope.training import Translate
from ntkscope_papers.framework.legs import unfinished
from ntkscope_papers.samarin_2022 import readings as read
from ntkscope_papers.samarin_2022.linearized_identities import identities
from ntkscope_papers.shared.paired_training import (
    Recipe,
    Trained,
    batches_fingerprint,
    one_hot,
    train_members,
    weights_fingerprint,
)

READINGS = readings("linearized-lenet", "linearized-")

CPU = torch.device("cpu")


@pytest.mark.guard
class TestLinearizedLenet(ExperimentContract):
    name = "linearized-lenet"
    tiny = given(
        enlarge=2,
        train_items=40,
        test_items=20,
        seeds=1,
        epochs=1,
        optional=(),
        validation=20,
        lsmr_steps=2,
        legs=(
            "identities",
            "pixels",
            "train/mnist",
            "grid/mnist/linear",
            "cross-entropy-grid/mnist",
            "cross-entropy/mnist",
            "lsmr",
        ),
    )
    identities = tuple(
        f"linearized-{name}"
        for name in (
            "eq1-ntk",
            "eq2-linearisation",
            "eq3-gradient",
            "nearest-onehot",
            "lenet-params",
            "params-at-max-width",
            "shift-quarter",
            "L-backward-passes",
        )
    )


def test_cross_entropy_takes_the_rate_that_validation_chose(tmp_path: Path) -> None:
    record = Record.create(tmp_path / "run", kind="experiment", name="linearized-lenet", config={}, seeds={"seed": 0})
    assert read.searched(record, "cifar10", "cross-entropy") == {}
    points = [
        {"lr": lr, "weight_decay": 5e-4, "validation": accuracy, "test": -accuracy if accuracy else None}
        for lr, accuracy in ((0.03, None), (0.01, 60.0), (0.003, 64.0))
    ]
    record.put(**{"cross-entropy-grid/cifar10": {"points": points}})
    assert read.searched(record, "cifar10", "cross-entropy") == {"lr": 0.003, "weight_decay": 5e-4}
    assert read.searched(record, "mnist", "cross-entropy") == read.searched(record, "cifar10", "") == {}
    trained = {"runs": [{"test": 65.0}]}
    record.put(**{f"train/cifar10/x1/{kind}": dict(trained) for kind in ("network", "linear")})
    for settings, right in (
        ({}, False),
        ({"lr": 0.01, "weight_decay": 5e-4}, False),
        ({"lr": 0.003, "weight_decay": 5e-4}, True),
    ):
        record.put(**{"cross-entropy/cifar10": {**trained, **settings}})
        note = READINGS["l2-vs-ce"](None, record).note
        assert ("not those of a search on CIFAR-10" in note) is not right


@pytest.mark.parametrize("seed", range(3))
def test_equations_hold_for_any_network(seed: int) -> None:
    found = identities(seed)
    assert max(found["eq1"], found["eq2 start"], found["eq2 linear"], found["eq3"]) < 1e-12
    assert found["eq2 factors"] == pytest.approx([4.0] * 3, rel=0.2)
    assert found["nearest"] == 1.0


def test_a_pair_has_the_same_weights_and_batches_and_another_seed_has_not() -> None:
    draw = torch.Generator().manual_seed(0)
    part = one_hot(Part(torch.randn(20, 1, 16, 16, generator=draw), torch.arange(20) % 3), 3)
    recipe = Recipe(2, lr=0.05, batch=8)

    def make(seed: int) -> torch.nn.Module:
        return build("lenet", classes=3, image_size=16, width=0.3, seed=seed)

    network, linear = (
        train_members(kind, make, part, recipe, [4, 5], augment=Translate(2), device=CPU)
        for kind in ("network", "linear")
    )
    assert network.weights == linear.weights
    assert network.batches == linear.batches
    assert len(set(network.weights)) == len(set(network.batches)) == 2
    assert weights_fingerprint(make(4)) == network.weights[0]
    assert batches_fingerprint(20, recipe, 4, None) != network.batches[0]
    assert network.outputs(part.x).shape == (2, 20, 3)
    assert not torch.allclose(network.outputs(part.x), linear.outputs(part.x))


def test_the_linear_member_is_gradient_descent_on_the_linearised_network() -> None:
    """Every update written out with explicit Jacobians, batch after batch."""
    from ntkscope.training.batches import BatchOrder
    from ntkscope_papers.samarin_2022.linearized_identities import explicit_jacobian

    draw = torch.Generator().manual_seed(1)
    part = one_hot(Part(torch.randn(12, 1, 16, 16, generator=draw, dtype=torch.float64), torch.arange(12) % 3), 3)
    recipe = Recipe(3, lr=0.05, weight_decay=1e-2, batch=5, double=True)

    def make(seed: int) -> torch.nn.Module:
        return build("lenet", classes=3, image_size=16, width=0.3, seed=seed).double()

    model = make(7)
    J = explicit_jacobian(model, part.x).detach()
    start = model(part.x).detach()
    u, velocity = torch.zeros(J.shape[2], dtype=torch.float64), torch.zeros(J.shape[2], dtype=torch.float64)
    order = BatchOrder(12, 5, 7)
    for step in range(3 * order.per_epoch):
        items = order.indices(step)
        residual = start[items] + J[items] @ u - part.y[items]
        slope = 2 * torch.einsum("ncp,nc->p", J[items], residual) / residual.numel()  # the mean over items and outputs
        velocity = 0.9 * velocity + slope + 1e-2 * u
        u = u - 0.05 * velocity
    made = train_members("linear", make, part, recipe, [7], device=CPU)
    torch.testing.assert_close(made.outputs(part.x)[0], start + J @ u, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", ["network", "linear"])
def test_a_killed_training_continues_where_it_was(kind: str, tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(2)
    part = one_hot(Part(torch.randn(20, 1, 16, 16, generator=draw), torch.arange(20) % 3), 3)
    record = ns.Record.create(tmp_path / "record", kind="experiment", name="pairs", config={})
    looked: list[float] = []

    def train(store: Path | None, dies_at: float) -> Trained:
        def watch(snapshot: Snapshot, template: torch.nn.Module, vectorised: bool) -> None:
            if snapshot.epoch == dies_at:
                raise KeyboardInterrupt
            looked.append(snapshot.epoch)

        return train_members(
            kind,
            lambda seed: build("lenet", classes=3, image_size=16, width=0.3, seed=seed),
            part,
            Recipe(4, lr=0.05, batch=8),
            [4, 5],
            augment=Translate(2),
            watch=watch,
            moments=[0, 1, 3],
            device=CPU,
            store=store,
        )

    with pytest.raises(KeyboardInterrupt), unfinished(record, "train/x1") as store:
        train(store, dies_at=3)
    assert any(store.iterdir())
    looked.clear()
    with unfinished(record, "train/x1") as again:
        resumed = train(again, dies_at=-1)
    assert looked == [0, 1, 3, 4]  # the last moment always
    assert again == store
    assert not store.exists()
    whole = train(None, dies_at=-1)
    assert torch.equal(resumed.outputs(part.x), whole.outputs(part.x))


def put(
    record: ns.Record, task: str, width: int, network: list[float], linear: list[float], spread: float = 0.1
) -> None:
    for kind, values in (("network", network), ("linear", linear)):
        runs: list[dict[str, Any]] = [{"test": v, "train": v, "train loss": 0.1} for v in values]
        shift = 0.0 if kind == "network" else spread
        curve = {"1": [{"test": v, "train": v, "mean": [shift] * 3, "std": [1.0] * 3} for v in values]}
        told = {"runs": runs, "curve": curve, "weights": ["w"], "batches": ["b"]}
        record.put(**{f"train/{task}/x{width}/{kind}": told})
        outputs = np.eye(3, dtype=np.float16)[None] + (0 if kind == "network" else spread)
        record.array(f"outputs-{task}-x{width}-{kind}", outputs)


def test_gaps_are_judged_by_their_bands_and_must_shrink(tmp_path: Path) -> None:
    record = ns.Record.create(tmp_path / "run", kind="experiment", name="linearized-lenet")
    config = ns.EXPERIMENTS["linearized-lenet"]()
    gap = READINGS["mnist-gap"]
    assert gap(config, record).lacks == ("train/mnist/x1",)
    put(record, "mnist", 1, [99.0, 99.2], [94.0, 94.6], spread=0.5)
    assert gap(config, record).measured["x1"] == {"LeNet": 99.1, "LinLeNet": 94.3, "gap": 4.8, "sem": 0.2, "n": 2}
    put(record, "mnist", 10, [99.2], [97.7])
    assert gap(config, record).holds
    assert READINGS["mnist-lenet-flat"](config, record).holds
    trajectories = READINGS["trajectories"](config, record)
    assert trajectories.holds
    assert trajectories.note == "networks: 2 at x1, 1 at x10"
    assert gap(config, record).lacks == ("train/mnist/x2", "train/mnist/x5", "train/mnist/x25")
    assert gap(config, record).further == ("train/mnist/x60",)
    (claim,) = (
        c for c in ns.EXPERIMENTS["linearized-lenet"].judge(config, record, "") if c.id == "linearized-mnist-gap"
    )
    assert claim.verdict == "stand-in"
    assert "measured in part" in claim.note
    assert "train/mnist/x25" in claim.note
    put(record, "mnist", 25, [99.2], [97.0])  # wider, and worse
    assert not gap(config, record).holds
    assert read.likeness(record, "mnist", 1)["agreement"] == 100.0
    assert read.statistics_distance(record, "mnist", 1) == pytest.approx(0.5 / 2**0.5)


def test_a_point_of_the_grid_that_diverged_is_never_the_best() -> None:
    points = [
        {"validation": None, "test": None},
        {"validation": 12.0, "test": 50.0},
        {"validation": 11.0, "test": 60.0},
    ]
    assert read.best_point(points, "validation")["test"] == 50.0
    assert read.best_point(points, "test")["test"] == 60.0
