"""Ensembles whose members differ: own rates, own ends, modes, augmentation; each is what training it alone gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contracts.training_problems import (
    ALL_OPTIMIZERS,
    HELD,
    IMAGES,
    PART,
    cases,
    chain_net,
    image_net,
    net,
    norm_net,
    regression_part,
)
from ntkscope import models
from ntkscope.core import NumericalError, Part, Snapshot, UsageError, generator
from ntkscope.training import (
    CropFlip,
    Every,
    Phase,
    StopWhen,
    Translate,
    Triangular,
    evaluate,
    fit,
    fit_ensemble,
    reinit,
)
from ntkscope.training.ensembles.chain import StackedChain, as_chain
from ntkscope.training.ensembles.stacked import MemberData, evaluate_stacked
from ntkscope.training.losses import as_loss

CLOSE = {"rtol": 1e-9, "atol": 1e-11}  # other kernels, same double arithmetic


BUILDS: dict[str, Callable[[int], nn.Module]] = {"net": net, "norm": norm_net, "chain": chain_net}


def same_weights(member: nn.Module, alone: nn.Module) -> None:
    for a, b in zip(member.state_dict().values(), alone.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


# -- rates ------------------------------------------------------------------------------------------------------------

RULES: dict[str, dict[str, Any]] = {
    **ALL_OPTIMIZERS,
    "sgd, damped": {"momentum": 0.9, "optimizer_options": {"dampening": 0.5}},
    "adam, amsgrad": {"optimizer_options": {"amsgrad": True, "betas": (0.8, 0.95)}},
    "adagrad, slowing": {"optimizer_options": {"lr_decay": 0.1, "initial_accumulator_value": 0.2}},
}


@pytest.mark.parametrize(
    ("name", "kind"), cases([("adam", "net"), ("sgd", "chain"), ("adamw", "chain")], RULES, ["net", "chain"])
)
def test_members_with_their_own_rates_equal_networks_trained_alone(name: str, kind: str) -> None:
    build = BUILDS[kind]
    optimizer = name.partition(",")[0]
    settings = {**RULES[name], "optimizer": optimizer, "epochs": 4, "schedule": Triangular()}
    settings["batch_size"] = None if name == "gd" else 7
    lr, decay = [0.01, 0.03, 0.0, 0.03], [0.0, 0.02, 0.5, 0.3]
    seeds = [3, 1, 4, 1]
    settings.pop("lr", None), settings.pop("weight_decay", None)
    together = fit_ensemble(build, PART, seeds=seeds, workers=2, lr=lr, weight_decay=decay, **settings)
    for i, seed in enumerate(seeds):
        alone = build(seed)
        fit(alone, PART, seed=seed, lr=lr[i], weight_decay=decay[i], **settings).final()
        same_weights(together.member(i), alone)


def test_equal_rates_in_a_list_are_the_one_rate() -> None:
    settings = {"optimizer": "adam", "epochs": 3, "batch_size": 6, "workers": 1}
    one = fit_ensemble(net, PART, seeds=2, lr=0.01, weight_decay=1e-3, **settings)
    for lr in ([0.01, 0.01], torch.tensor([0.01, 0.01], dtype=torch.float64)):
        listed = fit_ensemble(net, PART, seeds=2, lr=lr, weight_decay=[1e-3, 1e-3], **settings)
        assert all(torch.equal(listed.params[name], one.params[name]) for name in one.params)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": [0.1, 0.1, 0.1]}, "got 3 values for lr; expected one number, or 2, one per member"),
        ({"lr": 0.1, "weight_decay": [0.1]}, "got 1 values for weight_decay"),
        ({"lr": [0.1, -0.1]}, r"got lr\[1\]=-0.1; expected a finite number ≥ 0"),
        ({"lr": [0.1, 0.1], "weight_decay": [0.1, -1]}, r"got weight_decay\[1\]=-1"),
        ({"lr": -0.1}, "does not take"),
        ({"lr": {0.1, 0.2}}, "which has no order"),
        ({"lr": {0.1: 0, 0.2: 1}}, "which has no order"),
        ({"lr": 0.1, "validation": HELD.take(torch.arange(0))}, "a part without items"),
        ({"lr": [0.1, 0.2], "optimizer": torch.optim.SGD}, "with an optimizer that is a function"),
        ({"lr": [0.1, 0.2], "optimizer_options": {"maximize": True}}, "optimizer_options maximize"),
        ({"lr": 0.1, "patience": 3}, "patience=3 without validation="),
        ({"lr": 0.1, "validation": [HELD] * 3}, "got 2 members with 3 parts"),
        ({"lr": 0.1, "mode": [Phase(freeze=("readout",))]}, "'readout' selects no parameter"),
    ],
)
def test_wrong_rates_and_ends_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit_ensemble(net, PART, seeds=2, steps=1, **options)


# -- modes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "optimizer", "own"),
    cases(
        [("reinit", "adam", True), ("first-last", "adadelta", False)],
        ["reg", "stop-first", "first-last", "reinit"],
        ["adam", "adadelta"],
        [False, True],
    ),
)
def test_modes_train_every_member_as_fit_does(mode: str, optimizer: str, own: bool) -> None:
    lr = [0.01, 0.05] if own else [0.02, 0.02]
    settings = {"optimizer": optimizer, "epochs": 3, "batch_size": 5, "mode": mode}
    for build in (norm_net, chain_net):
        together = fit_ensemble(build, PART, seeds=[2, 7], lr=lr, weight_decay=0.1, workers=1, **settings)
        for i, seed in enumerate((2, 7)):
            alone = build(seed)
            fit(alone, PART, seed=seed, lr=lr[i], weight_decay=0.1, **settings).final()
            same_weights(together.member(i), alone)


@pytest.mark.guard
@pytest.mark.parametrize("mode", ["reg", "stop-first", "first-last", "reinit"])
@pytest.mark.parametrize("optimizer", ["adam", "adadelta"])
def test_members_agree_with_fit_after_200_steps_in_single_precision(mode: str, optimizer: str) -> None:
    """To 1e-5; where the training doubles every rounding, so that `fit` leaves its own float64 run, in float64 instead."""
    x = torch.randn(640, 7, generator=generator(0, "single"))
    settings = {"optimizer": optimizer, "loss": "bce", "steps": 200, "batch_size": 32, "mode": mode}
    lr, decay = ([1e-4, 1e-3] if optimizer == "adam" else [0.1, 1.0]), [0.0, 1e-3]

    def trained(dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
        inputs = x.to(dtype)
        part = Part(inputs, (x.norm(dim=1) > 2.5).to(dtype))

        def build(seed: int) -> nn.Module:
            how: dict[str, Any] = {"in_features": 7, "classes": 1, "widths": 128, "depth": 3, "activation": "relu"}
            return models.build("mlp", **how, seed=seed).to(dtype)

        together, alone = fit_ensemble(build, part, seeds=2, lr=lr, weight_decay=decay, **settings)(inputs), []
        for i in range(2):
            network = build(i)
            fit(network, part, seed=i, lr=lr[i], weight_decay=decay[i], measure=False, **settings).final()
            with torch.no_grad():
                alone.append(network(inputs))
        return together, alone

    together, alone = trained(torch.float32)
    if all(torch.allclose(one, other, rtol=1e-5, atol=1e-5) for one, other in zip(together, alone)):
        return
    together64, alone64 = trained(torch.float64)
    for i in range(2):
        torch.testing.assert_close(together64[i], alone64[i], rtol=1e-9, atol=1e-9)
        apart, left = ((alone[i] - other[i]).abs().max() for other in (together, alone64))
        assert apart <= max(1e-5, 10 * left)


def test_reinitialised_members_do_not_depend_on_the_threads() -> None:
    settings = {"lr": 0.0, "epochs": 2, "mode": "reinit", "seeds": 8}
    drawn = [fit_ensemble(net, PART, workers=workers, **settings).params["4.weight"] for workers in (1, 8)]
    assert torch.equal(*drawn)
    assert not torch.equal(drawn[0][0], drawn[0][1])


def test_phases_that_reset_the_optimizer_or_redraw_from_fresh_networks() -> None:
    phases = (Phase(epochs=1), Phase(train=("*.bias",), reset_optimizer=True, epochs=1), *reinit(fresh=net)[1:])
    settings = {"optimizer": "sgd", "momentum": 0.9, "lr": 0.05, "epochs": 4, "batch_size": 6, "mode": phases}
    together = fit_ensemble(net, PART, seeds=[5, 6], workers=2, **settings)
    for i, seed in enumerate((5, 6)):
        alone = net(seed)
        fit(alone, PART, seed=seed, **settings).final()
        same_weights(together.member(i), alone)


# -- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "elsewhere"), cases([("norm", True)], ["norm", "chain"], [False, True]))
def test_every_member_stops_by_itself(kind: str, elsewhere: bool) -> None:
    build = BUILDS[kind]
    stop = StopWhen(accuracy=0.7, loss=0.8, every=2, part=HELD if elsewhere else None)
    settings = {"optimizer": "adam", "epochs": 30, "batch_size": 8, "stop": stop}
    lr = [0.03, 0.01, 0.1, 1e-4]
    seen: list[Snapshot] = []
    together = fit_ensemble(
        build, PART, seeds=4, lr=lr, workers=2, snapshots=Every(3, "epoch"), on_snapshot=seen.append, **settings
    )
    ends = []
    for i in range(4):
        alone = build(i)
        ends.append(fit(alone, PART, seed=i, lr=lr[i], **settings).final().step)
        same_weights(together.member(i), alone)
    assert together.steps.tolist() == ends
    assert len(set(ends)) > 1  # the settings make them stop at different times
    assert max(ends) == 90
    first = ends.index(min(ends))
    late = next(snapshot for snapshot in seen if snapshot.step >= min(ends))
    for name, value in late.params.items():  # weights of a member that stopped do not move
        assert torch.equal(value[first], seen[-1].params[name][first])


def best_epoch(
    build: Callable[[int], nn.Module], seed: int, patience: int | None, **settings: Any
) -> tuple[Snapshot, float]:
    """The naive way: train alone, look at every epoch, keep the best."""
    model = build(seed)
    best: tuple[Snapshot, float] | None = None
    since = 0
    for snapshot in fit(model, PART, seed=seed, snapshots=Every(1, "epoch"), **settings):
        if snapshot.step == 0:
            continue
        loss = evaluate(model, HELD, loss=settings.get("loss", "cross_entropy"))["loss"]
        since += 1
        if best is None or loss < best[1]:
            best, since = (snapshot, loss), 0
        if patience is not None and since >= patience:
            break
    assert best is not None
    return best


@pytest.mark.parametrize(("kind", "patience"), cases([("norm", 3)], ["norm", "chain"], [None, 1, 3]))
def test_members_come_back_as_they_were_after_their_best_epoch(kind: str, patience: int | None) -> None:
    build = BUILDS[kind]
    settings = {"optimizer": "adam", "epochs": 12, "batch_size": 8}
    lr = [0.3, 0.05, 1e-3]
    together = fit_ensemble(build, PART, seeds=3, lr=lr, validation=HELD, patience=patience, workers=2, **settings)
    assert together.validation_losses is not None
    for i in range(3):
        snapshot, loss = best_epoch(build, i, patience, lr=lr[i], **settings)
        assert int(together.steps[i]) == snapshot.step
        assert float(together.validation_losses[i]) == pytest.approx(loss, rel=1e-9)
        for name, value in snapshot.params.items():
            torch.testing.assert_close(together.params[name][i], value, **CLOSE)
        for name, value in snapshot.buffers.items():
            torch.testing.assert_close(together.buffers[name][i], value, **CLOSE)
    assert len(set(together.steps.tolist())) > 1


def test_each_member_may_have_its_own_validation() -> None:
    parts = [HELD, Part(HELD.x, HELD.y.flip(0)), HELD]
    together = fit_ensemble(net, PART, seeds=[0, 0, 0], lr=0.5, epochs=10, validation=parts, workers=1)
    assert together.validation_losses is not None
    assert together.validation_losses[0] == together.validation_losses[2] != together.validation_losses[1]
    for i, part in enumerate(parts):
        assert evaluate(together.member(i), part)["loss"] == pytest.approx(
            float(together.validation_losses[i]), rel=1e-9
        )


@pytest.mark.parametrize("patience", [None, 2])
def test_a_member_whose_validation_loss_is_never_finite_has_no_best_epoch(patience: int | None) -> None:
    parts = [HELD, Part(HELD.x * float("nan"), HELD.y)]
    settings = {"seeds": [4, 9], "lr": 0.1, "epochs": 5, "patience": patience, "workers": 1}
    with pytest.raises(NumericalError, match=r"validation loss of 1 members was finite after no epoch.* seed 9"):
        fit_ensemble(net, PART, validation=parts, **settings)
    together = fit_ensemble(net, PART, validation=parts, diverged="nan", **settings)
    expected = fit_ensemble(net, PART, validation=HELD, **settings)
    assert together.diverged is not None
    assert together.validation_losses is not None
    assert expected.validation_losses is not None
    assert together.diverged.tolist() == [False, True]
    assert together.validation_losses.isnan().tolist() == [False, True]
    assert together.validation_losses[0] == expected.validation_losses[0]
    assert bool(together(PART.x)[1].isnan().all())
    assert torch.equal(together(PART.x)[0], expected(PART.x)[0])


def test_a_validation_loss_that_is_not_finite_for_an_epoch_is_passed_over() -> None:
    def late(outputs: Tensor, targets: Tensor) -> Tensor:  # of the validation part, infinite until weights moved
        each = nn.functional.mse_loss(outputs, targets, reduction="none").mean(1)
        return torch.where((targets[:, 0] < 0) & (each > 0.05), torch.inf, each)

    part = Part(torch.ones(3, 1, dtype=torch.float64), torch.ones(3, 1, dtype=torch.float64))
    held = Part(-part.x, -part.y)

    def zero(seed: int) -> nn.Module:
        layer = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(layer.weight)
        return layer

    together = fit_ensemble(zero, part, seeds=1, loss=late, lr=0.1, epochs=20, validation=held)
    assert together.validation_losses is not None
    assert together.steps.tolist() == [20]
    assert float(together.validation_losses) == pytest.approx(0.8**40)


def test_without_an_update_there_is_no_validation_loss() -> None:
    untrained = fit_ensemble(net, PART, seeds=2, lr=0.1, steps=0, validation=HELD)
    assert untrained.validation_losses is not None
    assert bool(untrained.validation_losses.isnan().all())
    assert torch.equal(untrained(PART.x)[1], net(1)(PART.x))


@pytest.mark.parametrize("shared", [True, False])
def test_metrics_do_not_depend_on_how_many_items_are_computed_at_once(shared: bool) -> None:
    nets = [chain_net(seed) for seed in range(2)]
    params, buffers = torch.func.stack_module_state(nets)
    data = MemberData([HELD, HELD if shared else PART])
    links = as_chain(nets[0])
    assert links is not None
    assert StackedChain(links, params, fast=False).items_within(2 * 3 * 7 * 8 * 10) == 10
    whole = evaluate_stacked(nets[0], params, buffers, data, as_loss("cross_entropy"), True)
    for at_once in (1, 10, 23, 1000):
        cut = evaluate_stacked(nets[0], params, buffers, data, as_loss("cross_entropy"), True, at_once)
        torch.testing.assert_close(cut["loss"], whole["loss"], **CLOSE)
        assert torch.equal(cut["accuracy"], whole["accuracy"])


def test_a_member_that_diverges_leaves_the_others_alone() -> None:
    part = regression_part()
    settings = {"loss": "mse", "steps": 40}

    def linear(seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Linear(4, 1, dtype=torch.float64)

    lr = [0.05, 1e200, 0.01]
    with pytest.raises(NumericalError, match=r"of 1 members is not finite at step .* seed 1"):
        fit_ensemble(linear, part, seeds=3, lr=lr, workers=1, **settings)
    together = fit_ensemble(linear, part, seeds=3, lr=lr, workers=1, diverged="nan", **settings)
    assert together.diverged is not None
    assert together.diverged.tolist() == [False, True, False]
    assert bool(together(part.x)[1].isnan().all())
    for i in (0, 2):
        alone = linear(i)
        fit(alone, part, seed=i, lr=lr[i], **settings).final()
        same_weights(together.member(i), alone)


# -- augmentation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("augment", "batch_size"),
    cases([(Translate(2), 5)], [Translate(2), Translate(1, fill=(0.5, -1.0)), CropFlip(padding=1)], [None, 5]),
)
def test_members_are_augmented_as_fit_augments(augment: Any, batch_size: int | None) -> None:
    settings = {"lr": 0.1, "epochs": 3, "batch_size": batch_size, "augment": augment}
    for parts in (IMAGES, [IMAGES, Part(-IMAGES.x, IMAGES.y)]):
        together = fit_ensemble(image_net, parts, seeds=[3, 8], workers=1, **settings)
        for i, seed in enumerate((3, 8)):
            alone = image_net(seed)
            fit(alone, parts if isinstance(parts, Part) else parts[i], seed=seed, **settings).final()
            same_weights(together.member(i), alone)
    plain = fit_ensemble(image_net, IMAGES, seeds=[3, 8], workers=1, **{**settings, "augment": None})
    assert not torch.equal(plain.params["0.weight"], together.params["0.weight"])


# -- networks that vmap cannot run ------------------------------------------------------------------------------------


class Branching(nn.Module):
    """Looks at its numbers, which `vmap` does not allow."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.inner = norm_net(seed)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * (2.0 if float(x.detach().abs().max()) > 0 else 1.0)


def test_what_vmap_cannot_run_is_trained_one_member_after_the_other() -> None:
    settings = {"optimizer": "adam", "epochs": 3, "batch_size": 8}
    lr = [0.01, 0.1]
    together = fit_ensemble(Branching, PART, seeds=2, lr=lr, validation=HELD, workers=1, **settings)
    assert not together.vectorised
    assert "one after the other: vmap failed" in together.notes[0]
    for i in range(2):
        snapshot, _ = best_epoch(Branching, i, None, lr=lr[i], **settings)
        for name, value in snapshot.params.items():
            torch.testing.assert_close(together.params[name][i], value, **CLOSE)
    assert together(PART.x).shape == (2, len(PART), 3)
    assert fit_ensemble(net, PART, seeds=2, lr=0.1, steps=1).notes == ()
