"""Laws of a replay: what memory, order and sums must not change, and what scaling, removing and composing must give."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contracts.training_problems import classes_part, small_net
from ntkscope.core import Part
from ntkscope.training import Loop, Triangular, fit, replay, restore
from ntkscope.training.replays.replay import Replay

PART = classes_part(12, dtype=torch.float64)
ASKED = classes_part(30, dtype=torch.float64).x[20:26]
ROUNDING: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}  # float64, sums in another order, through twelve steps


def outputs(model: nn.Module) -> Tensor:
    return model(ASKED)[:, 1]


def recorded(folder: Path, part: Part = PART, **options: Any) -> Any:
    keywords: dict[str, Any] = {"lr": 0.1, "steps": 12, "batch_size": 5, "measure": False, **options}
    trajectory = fit(small_net(dtype=torch.float64), part, store=folder / "fit", **keywords)
    trajectory.final()
    return trajectory


def same(one: Replay, other: Replay, **allowed: Any) -> None:
    for name in ("values", "weights", "rate", "decay"):
        torch.testing.assert_close(
            getattr(one, name), getattr(other, name), msg=partial("{}: {}".format, name), **allowed
        )
    for name, value in one.initial.items():
        torch.testing.assert_close(value, other.initial[name], msg=partial("{}: {}".format, name), **allowed)


@pytest.mark.guard
@pytest.mark.parametrize("optimizer", [{"momentum": 0.9}, {"optimizer": "adam", "lr": 0.01}])
def test_states_that_are_computed_again_or_kept_on_disk_give_the_same_bits(
    optimizer: dict[str, Any], tmp_path: Path
) -> None:
    training = recorded(tmp_path, steps=40, **optimizer)
    whole = replay(training, lambda model: outputs(model)[:1], directions=0)
    small = replay(training, lambda model: outputs(model)[:1], directions=0, memory=50_000)
    disk = replay(training, lambda model: outputs(model)[:1], directions=0, memory=50_000, store=tmp_path / "kept")
    again = replay(training, lambda model: outputs(model)[:1], directions=0, memory=50_000, store=tmp_path / "kept")
    for other in (small, disk, again):
        same(whole, other, rtol=0, atol=0)


def test_how_many_functions_share_a_pass_and_their_order_change_rounding_alone(tmp_path: Path) -> None:
    training, order = recorded(tmp_path), torch.tensor([3, 0, 5, 1, 4, 2])
    whole = replay(training, outputs, directions=0)
    few = replay(training, outputs, directions=0, memory=14_500)  # two at a time
    same(whole, few, **ROUNDING)
    other = replay(training, lambda model: outputs(model)[order], directions=0)
    for name in ("values", "weights", "rate", "decay"):
        torch.testing.assert_close(getattr(whole, name)[order], getattr(other, name), **ROUNDING)


def test_replays_are_linear_in_their_functions(tmp_path: Path) -> None:
    training, mix = recorded(tmp_path, momentum=0.9), torch.randn(2, 6, dtype=torch.float64)
    each = replay(training, outputs, directions=0)
    mixed = replay(training, lambda model: mix @ outputs(model), directions=0)
    for name in ("values", "weights", "rate", "decay"):
        torch.testing.assert_close(mix @ getattr(each, name), getattr(mixed, name), **ROUNDING)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "nesterov": True}, {"weight_decay": 0.05, "momentum": 0.5}])
@pytest.mark.parametrize("at", [1.0, "items"])
def test_scaling_all_weights_and_the_decay_is_scaling_the_rates(
    options: dict[str, Any], at: Any, tmp_path: Path
) -> None:
    """Steps of SGD are linear in η ∇, so Σ wᵢ ∂f/∂wᵢ + λ ∂f/∂λ = Σ ∂f/∂log ηₜ."""
    weights = torch.linspace(0, 2, 12, dtype=torch.float64) if at == "items" else torch.ones(12, dtype=torch.float64)
    found = replay(recorded(tmp_path, schedule=Triangular(start=0.3), **options), outputs, at=weights, directions=0)
    scaled = found.weights @ weights + options.get("weight_decay", 0.0) * found.decay
    torch.testing.assert_close(scaled, found.rate.sum(1), **ROUNDING)
    assert float(scaled.norm()) > 0.1


def test_adam_does_not_see_the_scale_of_a_loss(tmp_path: Path) -> None:
    options = {"optimizer": "adam", "optimizer_options": {"eps": 1e-30}, "lr": 0.01}
    found = replay(recorded(tmp_path, **options), outputs, directions=0)
    torch.testing.assert_close(found.weights.sum(1), torch.zeros(6, dtype=torch.float64), rtol=0, atol=1e-9)
    assert float(found.weights.norm()) > 0.1


def test_derivatives_add_up_to_the_difference_between_two_trainings(tmp_path: Path) -> None:
    """f(1) - f(½) is the integral of Σ ∂f/∂wᵢ over the weights between: five Gauss-Legendre nodes, smooth to 1e-9."""
    training = recorded(tmp_path, momentum=0.9)
    nodes = torch.tensor([-0.906179845938664, -0.538469310105683, 0.0, 0.538469310105683, 0.906179845938664]).double()
    shares = torch.tensor(
        [0.236926885056189, 0.478628670499366, 0.568888888888889, 0.478628670499366, 0.236926885056189]
    )
    at = [0.75 + 0.25 * float(node) for node in nodes]
    found = [replay(training, outputs, at=weight, directions=0) for weight in at]
    total = sum(0.25 * float(share) * each.weights.sum(1) for share, each in zip(shares, found))
    torch.testing.assert_close(total, found[0].retrained(1.0) - found[0].retrained(0.5), rtol=1e-6, atol=1e-7)


def test_a_removed_item_has_a_derivative_and_copies_of_an_item_share_it(tmp_path: Path) -> None:
    twice = Part(torch.cat([PART.x, PART.x[:1]]), torch.cat([PART.y, PART.y[:1]]))
    weights = torch.ones(13, dtype=torch.float64)
    weights[12] = 0.0
    found = replay(recorded(tmp_path, twice, batch_size=None), outputs, at=weights, directions=0)
    torch.testing.assert_close(found.weights[:, 12], found.weights[:, 0], **ROUNDING)
    assert float(found.weights[:, 12].norm()) > 1e-3


@pytest.mark.guard
def test_nothing_depends_on_what_does_not_move(tmp_path: Path) -> None:
    still = replay(recorded(tmp_path / "rate", schedule=lambda step: 0.0), outputs, directions=0)
    assert not any(bool(value.any()) for value in (still.weights, still.rate, still.decay))
    model = small_net(dtype=torch.float64)
    rows = [torch.autograd.grad(value, list(model.parameters()), retain_graph=True) for value in outputs(model.eval())]
    for number, value in enumerate(still.initial.values()):
        torch.testing.assert_close(value, torch.stack([row[number] for row in rows]), **ROUNDING)
    first = recorded(tmp_path / "mode", mode="first-last", epochs=1, steps=None)  # only the first layer learns
    end = replay(first, lambda model: model[4].weight.flatten()[:3], directions=0)
    assert not any(bool(value.any()) for value in (end.weights, end.rate, end.decay))


def test_a_network_with_frozen_layers_is_left_as_it_was(tmp_path: Path) -> None:
    def built() -> nn.Module:
        model = small_net(dtype=torch.float64)
        model[0].requires_grad_(False)
        return model

    options: dict[str, Any] = {"lr": 0.2, "steps": 12, "batch_size": 5, "store": tmp_path}
    training = fit(built(), PART, **options)
    training.final()
    found = replay(training, outputs, memory=9_000)
    assert found.certificate.relative_error < 1e-8
    torch.testing.assert_close(found.retrained(1.0), found.values, rtol=0, atol=0)
    assert [p.requires_grad for p in training.run.model.parameters()] == [False, False, True, True]


class Half(Loop):
    """Some steps of a training by plain SGD."""

    def __init__(self, model: nn.Module, begin: int, end: int) -> None:
        self.begin = begin
        super().__init__(model, torch.optim.SGD(model.parameters(), lr=0.3), items=12, steps=end - begin)

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.arange(4) + (step + self.begin) % 3 * 4
        return rows, PART.x[rows], PART.y[rows]

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")


def test_two_halves_are_the_whole() -> None:
    start = small_net(dtype=torch.float64)
    whole = replay(Half(start, 0, 9), outputs, directions=0)
    middle = small_net(dtype=torch.float64)
    for state in (first := Half(start, 0, 5)).path(first.start, 5, torch.ones(12, dtype=torch.float64)):
        restore(middle, state)
    late = replay(Half(middle, 5, 9), outputs, directions=0)

    def carried(model: nn.Module) -> Tensor:
        return sum((late.initial[name] * p).flatten(1).sum(1) for name, p in model.named_parameters())  # type: ignore[return-value]

    early = replay(first, carried, directions=0)
    torch.testing.assert_close(early.weights + late.weights, whole.weights, **ROUNDING)
    torch.testing.assert_close(torch.cat([early.rate, late.rate], 1), whole.rate, **ROUNDING)
    torch.testing.assert_close(early.decay + late.decay, whole.decay, **ROUNDING)
    for name, value in early.initial.items():
        torch.testing.assert_close(value, whole.initial[name], **ROUNDING)
