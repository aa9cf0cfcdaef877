"""Ensembles: every member is what training it alone gives."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import nn

from contracts.training_problems import ALL_OPTIMIZERS, PART, chain_net, classes_part, net, small_net
from ntkscope import models
from ntkscope.core import NumericalError, Part, Snapshot, UsageError, generator
from ntkscope.training import Triangular, evaluate, fit, fit_ensemble
from ntkscope.training.ensembles.chain import StackedChain, as_chain


@pytest.mark.parametrize("name", ALL_OPTIMIZERS)
@pytest.mark.parametrize(("workers", "net"), [(1, net), (2, net), (2, chain_net)])
def test_members_equal_networks_trained_alone(name: str, workers: int, net: Callable[[int], nn.Module]) -> None:
    settings = {**ALL_OPTIMIZERS[name], "optimizer": name, "epochs": 5, "schedule": Triangular()}
    settings["batch_size"] = None if name == "gd" else 7
    together = fit_ensemble(net, PART, seeds=[3, 1, 4], workers=workers, **settings)
    for i, seed in enumerate((3, 1, 4)):
        alone = net(seed)
        fit(alone, PART, seed=seed, **settings).final()
        member = together.member(i)
        for a, b in zip(member.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)  # other kernels, same double arithmetic
        torch.testing.assert_close(together(PART.x)[i], alone(PART.x), rtol=1e-9, atol=1e-11)
    assert len(together) == 3


def test_each_member_may_have_its_own_data() -> None:
    parts = [Part(PART.x * scale, PART.y, {"w": PART.x[:, 0].abs()}) for scale in (1, 2, 3)]
    settings = {"lr": 0.1, "epochs": 3, "batch_size": 6, "weights": "w"}
    together = fit_ensemble(net, parts, seeds=3, workers=2, **settings)
    for i, part in enumerate(parts):
        alone = net(i)
        fit(alone, part, seed=i, **settings).final()
        torch.testing.assert_close(together.member(i)[0].weight, alone[0].weight, rtol=1e-9, atol=1e-11)


def test_batch_normalisation_keeps_a_running_mean_for_each_member() -> None:
    def build(seed: int) -> nn.Module:
        return small_net(seed, norm=True, dtype=torch.float64)

    together = fit_ensemble(build, PART, seeds=2, lr=0.1, epochs=2, batch_size=8, workers=1)
    for i in range(2):
        alone = build(i)
        fit(alone, PART, seed=i, lr=0.1, epochs=2, batch_size=8).final()
        member = together.member(i)
        for name, value in alone.named_buffers():
            torch.testing.assert_close(member.get_buffer(name), value, rtol=1e-9, atol=1e-11)
        assert evaluate(member, PART)["loss"] == pytest.approx(evaluate(alone, PART)["loss"], rel=1e-9)


@pytest.mark.nightly
def test_the_regression_task_of_the_benchmark_agrees_after_100_steps() -> None:
    x = torch.linspace(-1, 1, 200)[:, None]
    part = Part(x, torch.exp(torch.sin(2 * torch.pi * x)))

    def build(seed: int) -> nn.Module:
        return models.build("mlp", in_features=1, widths=128, depth=3, activation="tanh", seed=seed)

    settings = {"lr": 1e-3, "optimizer": "adam", "loss": "mse", "steps": 100}
    alone = [build(seed) for seed in range(2)]
    for seed, model in enumerate(alone):
        fit(model, part, seed=seed, measure=False, **settings).final()
    expected = torch.stack([model(x) for model in alone]).detach()
    for fast in (False, True):
        together = fit_ensemble(build, part, seeds=2, fast=fast, **settings)(x)
        torch.testing.assert_close(together, expected, rtol=0, atol=1e-4)  # the promise; typically 1e-6


def test_snapshots_of_an_ensemble_are_stacked_copies() -> None:
    seen: list[Snapshot] = []
    together = fit_ensemble(net, PART, seeds=3, lr=0.1, steps=6, snapshots=3, on_snapshot=seen.append, workers=2)
    assert [s.step for s in seen] == [0, 3, 6]
    assert seen[0].params["0.weight"].shape == (3, 7, 5)
    assert torch.equal(seen[0].params["0.weight"][1], net(1)[0].weight)
    assert torch.equal(seen[-1].params["0.weight"], together.params["0.weight"])
    assert not torch.equal(seen[1].params["0.weight"], together.params["0.weight"])
    assert together.losses.shape == (3,)


def test_the_number_of_threads_is_put_back() -> None:
    before = torch.get_num_threads()
    fit_ensemble(net, PART, seeds=4, lr=0.1, steps=2, workers=2)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("widths", [[], [3], [6, 4]])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(("features", "outputs", "bias"), [(1, 1, True), (3, 2, False)])
@pytest.mark.parametrize("shared", [True, False])
def test_gradients_by_hand_are_those_of_autograd(
    widths: list[int], activation: str, features: int, outputs: int, bias: bool, shared: bool
) -> None:
    options = {"in_features": features, "classes": outputs, "widths": widths, "activation": activation, "bias": bias}
    nets = [models.build("mlp", seed=seed, **options).double() for seed in range(3)]
    links = as_chain(nets[0])
    assert links is not None
    draw = generator(0, "chain")
    x = torch.randn(3, 5, features, generator=draw, dtype=torch.float64)
    x = x[:1].expand(3, -1, -1) if shared else x
    direction = torch.randn(3, 5, outputs, generator=draw, dtype=torch.float64)
    params, _ = torch.func.stack_module_state(nets)
    for fast, launched in product((False, True), repeat=2):
        chain = StackedChain(links, params, fast)
        chain.launched = launched  # as on a GPU
        for _ in range(2):  # the second time in memory that was used before
            found = chain.forward(x[0] if shared else x, shared=shared)
            chain.backward(direction)
        for i, one in enumerate(nets):
            expected = one(x[i])
            torch.testing.assert_close(found[i], expected.detach(), rtol=1e-12, atol=1e-13)
            gradients = torch.autograd.grad((expected * direction[i]).sum(), list(one.parameters()))
            for (name, _), gradient in zip(one.named_parameters(), gradients, strict=True):
                torch.testing.assert_close(params[name].grad[i], gradient, rtol=1e-11, atol=1e-12)


def test_gradients_of_layers_that_do_not_learn_are_left_out() -> None:
    nets = [models.build("mlp", in_features=3, widths=[4, 4], seed=seed).double() for seed in range(2)]
    links, (params, _) = as_chain(nets[0]), torch.func.stack_module_state(nets)
    assert links is not None
    chain = StackedChain(links, params, fast=False)
    x = torch.randn(2, 5, 3, generator=generator(0, "chain"), dtype=torch.float64)
    direction = torch.ones_like(chain.forward(x, shared=False))
    chain.backward(direction)
    everything = {name: gradient.clone() for name, gradient in chain.gradients.items()}
    for learning in ([f"{links[1].name}.bias"], [f"{links[0].name}.weight", f"{links[2].name}.bias"], []):
        for gradient in chain.gradients.values():
            gradient.fill_(-7.0)
        chain.backward(direction, learning)
        for name, gradient in chain.gradients.items():
            expected = everything[name] if name in learning else torch.full_like(gradient, -7.0)
            assert torch.equal(gradient, expected)


def test_tanh_through_the_logistic_function_is_off_by_two_units_in_the_last_place_of_one() -> None:
    x = torch.linspace(-20, 20, 40_001)[:, None]
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Tanh(), nn.Linear(1, 1, bias=False))
    for parameter in net.parameters():
        nn.init.ones_(parameter)
    links, params = as_chain(net), torch.func.stack_module_state([net])[0]
    assert links is not None
    exact = StackedChain(links, params, fast=False).forward(x, shared=True)[0]
    fast = StackedChain(links, params, fast=True).forward(x, shared=True)[0]
    assert torch.equal(exact, torch.tanh(x))
    assert 0 < (fast - exact).abs().max() <= 2**-22


def test_what_is_no_chain_goes_the_general_way() -> None:
    linear = nn.Linear(2, 2)
    assert as_chain(nn.Sequential(linear, nn.Tanh(), nn.Tanh(), linear)) is None
    assert as_chain(nn.Sequential(nn.Tanh(), linear)) is None
    assert as_chain(nn.Sequential(linear, nn.GELU(), linear)) is None
    assert as_chain(nn.Sequential(linear, nn.ReLU())) is None
    assert as_chain(nn.Sequential(linear.requires_grad_(False), nn.Linear(2, 1))) is None
    assert as_chain(nn.Conv1d(1, 1, 1)) is None
    hooked = nn.Sequential(nn.Linear(2, 2))
    hooked[0].register_forward_hook(lambda *_: None)
    assert as_chain(hooked) is None


def test_errors() -> None:
    with pytest.raises(UsageError, match="without members"):
        fit_ensemble(net, PART, seeds=0, lr=0.1, steps=1)
    with pytest.raises(UsageError, match="exactly one"):
        fit_ensemble(net, PART, seeds=2, lr=0.1)
    with pytest.raises(UsageError, match="got 3 members with 2 parts"):
        fit_ensemble(net, [PART, PART], seeds=3, lr=0.1, steps=1)
    with pytest.raises(UsageError, match="dropout to 0"):
        fit_ensemble(lambda seed: small_net(seed, dropout=0.5), classes_part(), seeds=2, lr=0.1, steps=1)
    with pytest.raises(UsageError, match="labels run from 1 to 3"):
        fit_ensemble(net, Part(PART.x, PART.y + 1), seeds=2, lr=0.1, steps=1)
    regression = Part(PART.x, PART.x[:, :3])
    with pytest.raises(NumericalError, match="not finite at step"):
        fit_ensemble(net, regression, seeds=2, loss="mse", lr=1e200, steps=9)


def with_one_activation(kind: type[nn.Module]) -> Callable[[int], nn.Module]:
    def build(seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            act, tied = kind(), nn.Linear(6, 6)
            return nn.Sequential(nn.Linear(5, 6), act, tied, act, tied, act, nn.Linear(6, 3)).double()

    return build


def change(alter: Callable[[nn.Sequential], object]) -> Callable[[int], nn.Module]:
    def build(seed: int) -> nn.Module:
        net = chain_net(seed)
        alter(net)
        return net

    return build


STILL_RIGHT = {
    "one activation, tied weights": with_one_activation(nn.ReLU),
    "one tanh": with_one_activation(nn.Tanh),
    "forward hook": change(lambda net: net[1].register_forward_hook(lambda m, given, out: 2 * out)),
    "scaled output": change(lambda net: net.register_forward_hook(lambda m, given, out: 0.5 * out)),
    "patched with a layer of its own": change(
        lambda net: setattr(net[1], "forward", lambda x, own=net[1]: 2 * (x @ own.weight.T + own.bias))
    ),
    "patched without weights": change(lambda net: setattr(net[2], "forward", torch.sin)),
}


@pytest.mark.parametrize("name", STILL_RIGHT)
def test_odd_networks_are_trained_as_fit_trains_them(name: str) -> None:
    build, settings = STILL_RIGHT[name], {"lr": 0.1, "steps": 12}
    together = fit_ensemble(build, PART, seeds=2, workers=1, **settings)
    for i in range(2):
        alone = build(i)
        fit(alone, PART, seed=i, **settings).final()
        torch.testing.assert_close(together(PART.x)[i], alone(PART.x), rtol=1e-9, atol=1e-11)


REFUSED = {
    "a forward pass that holds on to one network": (
        change(lambda net: setattr(net[1], "forward", lambda x, w=net[1].weight, b=net[1].bias: 2 * (x @ w.T + b))),
        "hold on to one network",
    ),
    "another activation for another seed": (
        lambda seed: (
            small_net(seed, dtype=torch.float64)
            if seed
            else nn.Sequential(
                *[
                    nn.Sigmoid() if isinstance(m, nn.ReLU | nn.Tanh) else m
                    for m in small_net(0, dtype=torch.float64).children()
                ]
            )
        ),
        "change nothing but weights",
    ),
    "a backward hook": (
        change(
            lambda net: net[-1].register_full_backward_hook(
                lambda m, into, out: tuple(2 * g for g in into)  # type: ignore[attr-defined]
            )
        ),
        "no backward hooks",
    ),
    "a parameter with a hook": (
        change(lambda net: net[1].weight.register_hook(lambda gradient: 2 * gradient)),
        "'layer1.weight' .seed 0. has a hook",
    ),
    "other parameters frozen": (
        lambda seed: (
            chain_net(seed).requires_grad_(True) if seed else change(lambda net: net[1].requires_grad_(False))(0)
        ),
        "trains other parameters",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_members_that_a_stack_would_change_are_refused(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(UsageError, match=message):
        fit_ensemble(build, PART, seeds=2, lr=0.1, steps=2, workers=1)


def test_shapes_of_flattening_other_than_the_first_are_no_chain() -> None:
    assert as_chain(nn.Sequential(nn.Flatten(1, 2), nn.Linear(4, 2))) is None
    linear = nn.Linear(4, 4)
    assert as_chain(nn.Sequential(linear, nn.ReLU(), linear)) is None


@pytest.mark.parametrize("chain", [True, False])
def test_networks_that_start_as_the_zero_function(chain: bool) -> None:
    """Units in pairs cancel up to rounding, which differs between a stack and a network alone: no reason to refuse them."""

    def build(seed: int) -> nn.Module:
        model = models.build("mlp", in_features=7, widths=[64], symmetric=True, seed=seed)
        return model if chain else nn.Sequential(model)

    x = torch.randn(40, 7, generator=torch.Generator().manual_seed(0))
    part = Part(x, x.sum(1))
    ensemble = fit_ensemble(build, part, seeds=3, loss="mse", optimizer="adadelta", lr=1.0, epochs=3, batch_size=8)
    for i in range(3):
        alone = build(i)
        fit(
            alone, part, loss="mse", optimizer="adadelta", lr=1.0, epochs=3, batch_size=8, seed=i, measure=False
        ).final()
        torch.testing.assert_close(ensemble.member(i)(x), alone(x), rtol=1e-3, atol=1e-5)


def test_members_come_back_as_they_ended() -> None:
    held = Part(PART.x, -PART.y if PART.y.is_floating_point() else PART.y.flip(0))  # training makes it worse
    options = {"seeds": 2, "lr": 0.5, "epochs": 9, "batch_size": 8, "validation": held, "patience": 3}
    best, last = (fit_ensemble(net, PART, restore=restore, **options) for restore in (True, False))
    per_epoch = -(-len(PART) // 8)
    assert (last.steps - best.steps).tolist() == [3 * per_epoch] * 2
    assert last.validation_losses is not None
    assert torch.equal(last.validation_losses, best.validation_losses)
    for i, steps in enumerate(last.steps.tolist()):
        alone = fit_ensemble(net, PART, seeds=[i], lr=0.5, steps=steps, batch_size=8)
        torch.testing.assert_close(last.params["0.weight"][i], alone.params["0.weight"][0])
    strict = fit_ensemble(net, PART, restore=False, min_delta=1e6, **options)  # nothing is better by so much
    assert strict.steps.tolist() == [4 * per_epoch] * 2
