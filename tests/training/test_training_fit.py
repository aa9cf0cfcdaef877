"""fit: the laws of gradient descent, hand-written loops, determinism, snapshots."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from contracts.training_problems import ALL_OPTIMIZERS, classes_part, regression_part, small_net
from ntkscope.core import Part, generator
from ntkscope.training import (
    Cosine,
    CrossEntropy,
    LearningRateSteps,
    StopWhen,
    Triangular,
    evaluate,
    fit,
    restore,
)

TORCH = {
    "gd": torch.optim.SGD,
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
}


def test_gradient_descent_on_a_quadratic_is_the_closed_form() -> None:
    part, lr, steps = regression_part(), 0.05, 40
    model = nn.Linear(4, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    final = fit(model, part, loss="mse", lr=lr, steps=steps, optimizer="gd").final()
    # ∇ = 2/n Xᵀ(Xw - y), so w_t = (I - (I - 2 lr H)^t) w*, H = XᵀX / n
    n = len(part)
    hessian, best = part.x.T @ part.x / n, torch.linalg.lstsq(part.x, part.y[:, None]).solution
    shrink = torch.matrix_power(torch.eye(4, dtype=torch.float64) - 2 * lr * hessian, steps)
    expected = (torch.eye(4, dtype=torch.float64) - shrink) @ best
    torch.testing.assert_close(final.params["weight"].T, expected, rtol=1e-11, atol=1e-12)  # 40 double steps
    assert final.step == final.epoch == steps


@pytest.mark.parametrize("name", ALL_OPTIMIZERS)
def test_every_optimizer_is_the_hand_written_loop(name: str) -> None:
    part, settings = classes_part(dtype=torch.float64), ALL_OPTIMIZERS[name]
    batch = None if name == "gd" else 8
    ours, by_hand = small_net(dtype=torch.float64), small_net(dtype=torch.float64)
    fit(ours, part, optimizer=name, epochs=4, batch_size=batch, seed=3, **settings).final()
    optimizer = TORCH[name](by_hand.parameters(), **settings)
    for epoch in range(4):
        order = (
            torch.randperm(len(part), generator=generator(3, "batches", epoch)) if batch else torch.arange(len(part))
        )
        for items in order.split(batch or len(part)):
            optimizer.zero_grad()
            functional.cross_entropy(by_hand(part.x[items]), part.y[items]).backward()
            optimizer.step()
    for a, b in zip(ours.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)  # the same sums in another order, in double


@pytest.mark.parametrize("norm", [False, True])
def test_a_seed_gives_the_same_bits_and_leaves_the_global_generator_alone(norm: bool) -> None:
    part, results = classes_part(), []
    for disturbance in (1, 2):
        torch.manual_seed(disturbance)
        model, before = small_net(dropout=0.3, norm=norm), torch.get_rng_state()
        results.append(fit(model, part, lr=0.1, epochs=3, batch_size=6, seed=5).final())
        assert torch.equal(torch.get_rng_state(), before)
    for name, value in results[0].params.items():
        assert torch.equal(value, results[1].params[name])
    other = fit(small_net(dropout=0.3, norm=norm), part, lr=0.1, epochs=3, batch_size=6, seed=6).final()
    assert not torch.equal(other.params["0.weight"], results[0].params["0.weight"])


def test_snapshots_are_frozen_and_at_the_chosen_steps() -> None:
    part, model = classes_part(), small_net()
    start = model[0].weight.detach().clone()
    seen = list(fit(model, part, lr=0.1, epochs=2, batch_size=10, snapshots=2))
    assert [s.step for s in seen] == [0, 2, 4, 6]
    assert torch.equal(seen[0].params["0.weight"], start)
    kept = seen[1].params["0.weight"].clone()
    with torch.no_grad():
        model[0].weight.add_(1)
    assert torch.equal(seen[1].params["0.weight"], kept)
    assert not any(value.requires_grad for value in seen[1].params.values())
    restore(model, seen[-1])
    metrics = evaluate(model, part)
    assert metrics == pytest.approx(dict(seen[-1].metrics), abs=1e-12)


def test_training_is_lazy_in_place_and_says_when_it_never_ran() -> None:
    part, model = classes_part(), small_net()
    start = model[0].weight.detach().clone()
    trajectory = fit(model, part, lr=0.1, epochs=1)
    assert torch.equal(model[0].weight, start)
    assert "not started" in repr(trajectory)
    with pytest.warns(RuntimeWarning, match="never run"):
        del trajectory
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        final = fit(model, part, lr=0.1, epochs=1).final()
    assert torch.equal(model[0].weight, final.params["0.weight"])


def test_a_trajectory_goes_on_where_it_was_left() -> None:
    part = classes_part()
    whole = fit(small_net(), part, lr=0.1, steps=9, snapshots=[4]).final()
    trajectory = fit(small_net(), part, lr=0.1, steps=9, snapshots=[4])
    assert next(trajectory).step == 4
    assert torch.equal(trajectory.final().params["0.weight"], whole.params["0.weight"])
    assert trajectory.final().step == 9


def test_the_model_keeps_its_mode_and_flags() -> None:
    model = small_net(norm=True, dropout=0.5).eval()
    model[0].bias.requires_grad_(False)
    bias = model[0].bias.clone()
    model[3].train()
    fit(model, classes_part(), lr=0.1, steps=2, mode="stop-first").final()
    assert not model.training
    assert not model[1].training
    assert model[3].training
    assert not model[0].bias.requires_grad
    assert model[0].weight.requires_grad
    assert torch.equal(model[0].bias, bias)
    assert model[0].weight.grad is None


def test_item_weights_are_a_weighted_sum_and_uniform_ones_the_mean() -> None:
    part = regression_part()
    uniform = Part(part.x, part.y, {"w": torch.full((12,), 1 / 12, dtype=torch.float64)})
    results = []
    for given, options in ((part, {}), (uniform, {"weights": "w"})):
        model = nn.Linear(4, 1, dtype=torch.float64)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        results.append(fit(model, given, loss="mse", lr=0.1, epochs=3, batch_size=5, **options).final())
    torch.testing.assert_close(results[0].params, results[1].params, rtol=1e-12, atol=1e-14)
    assert results[0].metrics["loss"] == pytest.approx(results[1].metrics["loss"], rel=1e-12)
    # zero weight is the same as not being there
    half = torch.cat([torch.ones(6), torch.zeros(6)]).double()
    a, b = nn.Linear(4, 1, dtype=torch.float64), nn.Linear(4, 1, dtype=torch.float64)
    b.load_state_dict(a.state_dict())
    fit(a, part, loss="mse", lr=0.01, steps=5, weights=half / 6).final()
    fit(b, part.take(range(6)), loss="mse", lr=0.01, steps=5).final()
    torch.testing.assert_close(a.weight, b.weight, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({1: 0.1}, [1, 1, 0.1, 0.1]),
        (LearningRateSteps(((3, 0.5),), unit="step"), [1, 1, 1, 0.5]),
        (Triangular(peak=0.5), [0, 0.5, 1, 0.5]),
        (Cosine(), [1, 0.853553, 0.5, 0.146447]),
        (lambda step: 1 / (1 + step), [1, 1 / 2, 1 / 3, 1 / 4]),
    ],
)
def test_schedules_scale_the_rate(schedule: object, expected: list[float]) -> None:
    rates: list[float] = []
    part = classes_part(20)
    fit(
        small_net(), part, lr=2, epochs=2, batch_size=10, schedule=schedule, on_step=lambda r: rates.append(r.lr)
    ).final()
    assert rates == pytest.approx([2 * value for value in expected], abs=1e-6)


def test_stopping_on_loss_and_accuracy() -> None:
    part = classes_part()
    long = fit(small_net(), part, lr=0.5, epochs=400, stop=StopWhen(accuracy=0.9, every=5))
    final = long.final()
    assert final.step < 400
    assert final.step % 5 == 0
    assert final.metrics["accuracy"] >= 0.9
    both = fit(small_net(), part, lr=0.5, epochs=400, stop=StopWhen(accuracy=0.9, loss=0.2)).final()
    assert both.metrics["loss"] <= 0.2
    assert both.step > final.step


def test_snapshots_after_an_early_stop_are_not_repeated() -> None:
    run = fit(small_net(), classes_part(), lr=0.5, epochs=400, snapshots=50, stop=StopWhen(accuracy=0.9))
    steps = [s.step for s in run]
    assert steps == sorted(set(steps))
    assert steps[-1] < 400


def test_label_smoothing_and_function_losses() -> None:
    part = classes_part()
    a, b = small_net(), small_net()
    fit(a, part, lr=0.1, steps=3, loss=CrossEntropy(label_smoothing=0.1)).final()
    fit(b, part, lr=0.1, steps=3, loss=lambda f, y: functional.cross_entropy(f, y, label_smoothing=0.1)).final()
    torch.testing.assert_close(a[0].weight, b[0].weight, rtol=1e-5, atol=1e-6)  # single precision, three steps


@pytest.mark.parametrize(("loss", "reference"), [("mse", functional.mse_loss), ("l1", functional.l1_loss)])
def test_regression_losses_take_a_column_or_a_vector(loss: str, reference: object) -> None:
    part = regression_part()
    model = nn.Linear(4, 1, dtype=torch.float64)
    column = Part(part.x, part.y[:, None])
    expected = reference(model(part.x)[:, 0], part.y).item()
    assert evaluate(model, part, loss=loss)["loss"] == pytest.approx(expected, rel=1e-12)
    assert evaluate(model, column, loss=loss)["loss"] == pytest.approx(expected, rel=1e-12)
    assert "accuracy" not in evaluate(model, part, loss=loss)


def test_accuracy_where_targets_are_codes() -> None:
    part = classes_part()
    coded = Part(part.x, functional.one_hot(part.y).float())
    signs = Part(part.x, (part.y == 0).float() * 2 - 1)
    bits = Part(part.x, (part.y == 0).long())
    net, one = small_net(), nn.Linear(5, 1)
    assert evaluate(net, coded, loss="mse")["accuracy"] == evaluate(net, part)["accuracy"]
    assert evaluate(net, coded, loss="mse") == evaluate(net, part, loss="mse")  # class numbers stand for one-hot rows
    right = ((one(part.x)[:, 0] > 0) == (part.y == 0)).double().mean().item()
    assert evaluate(one, signs, loss="mse")["accuracy"] == pytest.approx(right)
    assert evaluate(one, bits, loss="bce")["accuracy"] == pytest.approx(right)


def test_evaluation_does_not_depend_on_the_batch_size_or_touch_the_mode() -> None:
    model, part = small_net(norm=True, dropout=0.5), classes_part()
    model.train()
    mean = model[1].running_mean.clone()
    assert evaluate(model, part, batch_size=4)["loss"] == pytest.approx(evaluate(model, part, batch_size=None)["loss"])
    assert model[1].training
    assert torch.equal(mean, model[1].running_mean)


def test_inputs_by_name_and_by_position() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small_net()

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.net(a + b)

    part = classes_part()
    halves = {"a": part.x / 2, "b": part.x / 2}
    plain, named, placed = small_net(), Sum(), Sum()
    for model, x in ((plain, part.x), (named, halves), (placed, tuple(halves.values()))):
        fit(model, Part(x, part.y), lr=0.1, epochs=2, batch_size=7).final()
    torch.testing.assert_close(plain[0].weight, named.net[0].weight, rtol=1e-5, atol=1e-6)
    assert torch.equal(named.net[0].weight, placed.net[0].weight)


def test_autocast_and_channels_last_train() -> None:
    x = torch.randn(8, 3, 6, 6, generator=generator(0, "images"))
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    part = Part(x, torch.arange(8) % 3)
    final = fit(model, part, lr=0.1, steps=5, autocast="bfloat16", channels_last=True).final()
    assert final.metrics["loss"] < 1.2
    assert all(value.dtype == torch.float32 for value in final.params.values())
