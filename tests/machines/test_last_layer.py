"""The readout solved: against least squares on autograd's own Jacobian, and everything that must be refused."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import ntkscope as ns
from ntkscope.core import NumericalError, Part, UsageError
from ntkscope.linalg import NumericalWarning
from ntkscope.machines import solve_last_layer
from ntkscope.models._layers import Scale


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().double().eval()


class PooledConv(nn.Module):
    """A convolution makes a map for each class, averaged over positions: what it sees is a mean of patches."""

    def __init__(self, kernel: int = 1, stride: int = 1, padding: int | str = 0, outputs: int = 3) -> None:
        super().__init__()
        self.body = nn.Conv2d(1, 4, 3, padding=1)
        self.head = nn.Conv2d(4, outputs, kernel, stride=stride, padding=padding)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x.reshape(-1, 1, 6, 6)))).mean((2, 3))


class PerToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x.reshape(-1, 9, 4)))).mean(1)


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.weight = nn.Linear(36, 5), nn.Parameter(torch.randn(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.body(x)) @ self.weight


def mlp(outputs: int = 3, bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Linear(36, 6), nn.Tanh(), nn.Linear(6, outputs, bias=bias))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "linear": mlp,
    "no bias": lambda: mlp(bias=False),
    "1x1 conv, pooled": PooledConv,
    "3x3 conv, pooled": lambda: PooledConv(3, 2, 1),
    "3x3 conv, same": lambda: PooledConv(3, 1, "same"),
    "per token, mean": PerToken,
    "product": Product,
    "scaled": lambda: nn.Sequential(mlp(), Scale(0.3)),
    "ntk": lambda: ns.models.mlp(36, 3, widths=(5,), activation="tanh", ntk=True),
}


def jacobian(model: nn.Module, names: tuple[str, ...], x: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 28 by autograd: the outputs' derivatives by the readout's parameters (n c, p), and what is left of them (n c,)."""
    parameters = dict(model.named_parameters())

    def outputs(*values: Tensor) -> Tensor:
        return torch.func.functional_call(model, dict(zip(names, values)), (x,)).flatten()

    own = tuple(parameters[name].detach() for name in names)
    parts = torch.autograd.functional.jacobian(outputs, own)
    J = torch.cat([part.flatten(1) for part in parts], 1)
    return J, outputs(*own).detach() - J @ torch.cat([value.flatten() for value in own])


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("ridge", [0.0, 0.2])
def test_the_squared_error_is_that_of_least_squares_on_the_jacobian(name: str, ridge: float) -> None:
    model, x, y = seeded(NETWORKS[name]), random(40, 36), random(40, 3, seed=1)
    weights = random(40, seed=2).square()
    before = copy.deepcopy(model.state_dict())
    found = solve_last_layer(model, Part(x, y), weights=weights, alpha=ridge)
    J, rest = jacobian(model, found.parameters, x)
    roots = weights.sqrt().repeat_interleave(3)
    size = J.shape[1]
    stacked = torch.cat([roots[:, None] * J, ridge**0.5 * torch.eye(size, dtype=torch.float64)])
    wanted = torch.cat([roots * (y.flatten() - rest), torch.zeros(size, dtype=torch.float64)])
    best = torch.linalg.lstsq(stacked, wanted[:, None], driver="gelsd").solution[:, 0]
    with torch.no_grad():
        assert_close(found.model(x).flatten(), J @ best + rest, rtol=1e-8, atol=1e-8)
        loss = (weights[:, None] * (found.model(x) - y).square()).sum()
    assert float(loss) == pytest.approx(found.loss_after, rel=1e-9)
    assert found.loss_after < found.loss_before
    assert found.converged
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
    changed = [key for key, value in found.model.state_dict().items() if not torch.equal(value, before[key])]
    assert sorted(changed) == sorted(found.parameters)
    assert type(found.model) is type(model)


def test_features_come_in_blocks() -> None:
    """Two thousand items, folded into the R of a QR on the way, and the same solution as all at once."""
    model, x, y = seeded(mlp), random(3000, 36), random(3000, 3, seed=1)
    found = ns.retrain_last_layer(model, Part(x, y))
    with torch.no_grad():
        phi = torch.cat([model[:2](x), torch.ones(3000, 1)], 1)
        best = torch.linalg.lstsq(phi, y).solution
        assert_close(found(x), phi @ best, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["linear", "1x1 conv, pooled", "scaled"])
def test_cross_entropy_reaches_its_minimum(name: str) -> None:
    model, x = seeded(NETWORKS[name]), random(80, 36)
    y = torch.randint(3, (80,), generator=torch.Generator().manual_seed(1))
    weights = random(80, seed=2).square()
    ridge = 0.0 if name == "scaled" else 0.1
    found = solve_last_layer(model, Part(x, y), loss="cross_entropy", alpha=ridge, weights=weights)
    own = [value for key, value in found.model.named_parameters() if key in found.parameters]
    loss = (weights * F.cross_entropy(found.model(x), y, reduction="none")).sum()
    assert loss.item() == pytest.approx(found.loss_after, rel=1e-9)
    assert found.loss_after < found.loss_before
    total = loss + ridge * sum(value.square().sum() for value in own)
    slope = torch.cat([g.flatten() for g in torch.autograd.grad(total, own)])
    assert float(slope.norm()) < 1e-3 * float(weights.sum())


def test_separable_classes_are_said_to_be() -> None:
    model, x = seeded(mlp), random(5, 36)
    part = Part(x, torch.tensor([0, 1, 2, 0, 1]))
    with pytest.warns(NumericalWarning, match="the features separate the classes.* alpha=.* was used; pass alpha="):
        found = solve_last_layer(model, part, loss="cross_entropy")
    assert found.ridge > 0
    assert found.loss_after < 1e-3
    with warnings.catch_warnings():
        warnings.simplefilter("error", NumericalWarning)
        assert solve_last_layer(model, part, loss="cross_entropy", alpha=0.01).ridge == 0.01


def test_a_readout_that_cannot_be_improved_stays() -> None:
    """A float32 network at its optimum: what rounding would add is not taken."""
    model = seeded(mlp).float()
    x, y = random(30, 36).float(), random(30, 3, seed=1).float()
    once = ns.retrain_last_layer(model, Part(x, y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        again = solve_last_layer(once, (x, y))  # as a Part
    assert again.loss_after <= again.loss_before
    assert next(once.parameters()).dtype == torch.float32


def test_a_cutoff_that_would_raise_the_loss_is_not_taken() -> None:
    model, x = seeded(mlp), random(30, 36)
    with torch.no_grad():
        part = Part(x, model(x))  # fitted exactly
    with pytest.warns(NumericalWarning, match="was left as it was"):
        found = solve_last_layer(model, part, tol=0.5)
    assert not found.converged
    assert found.rank < 7
    assert found.loss_after == found.loss_before
    assert all(torch.equal(a, b) for a, b in zip(found.model.parameters(), model.parameters()))


# -- refused ----------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(36, 36)
        self.head = nn.Linear(36, 36)
        self.head.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(x)))[:, :3]


class Softmaxed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).softmax(1)


class Penalised(nn.Module):
    """Affine in the readout's result, and yet not in its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(36, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x))) + self.head.weight.square().sum()


class Map(nn.Module):
    """Outputs at several positions of one convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(1, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.reshape(-1, 1, 6, 6)).flatten(1)


def normed() -> nn.Module:
    model = mlp()
    nn.utils.parametrizations.weight_norm(model[2])
    return model


X, Y, LABELS = random(12, 36), random(12, 3, seed=1), torch.arange(12) % 3
BAD: dict[str, tuple[Callable[[], Any], Any, dict[str, Any], str]] = {
    "tied": (
        Tied,
        Part(X, Y),
        {},
        r"head.weight|first.weight.*used elsewhere too \(tied weights\).*replace it by a copy",
    ),
    "softmax": (Softmaxed, Part(X, Y), {}, "are an affine function of none of its last layers alone"),
    "penalised": (Penalised, Part(X, Y), {}, "not an affine function of its readout's parameters"),
    "weight norm": (normed, Part(X, Y), {}, "weight is computed from other parameters.*remove_parametrizations"),
    "map": (Map, Part(X, random(12, 16)), {}, "differently at different positions.*pool before"),
    "dropout": (lambda: nn.Sequential(nn.Dropout(0.5), mlp()).train(), Part(X, Y), {}, r"call model.eval\(\) first"),
    "batch norm": (
        lambda: nn.Sequential(nn.BatchNorm1d(36), mlp()).train(),
        Part(X, Y),
        {},
        r"call model.eval\(\) first",
    ),
    "columns": (mlp, Part(X, Y[:, :2]), {}, r"got outputs of shape \(4, 3\) and targets of shape \(12, 2\)"),
    "class numbers": (lambda: mlp(1), Part(X, LABELS), {}, "class numbers for a network with one output"),
    "too many classes": (
        mlp,
        Part(X, LABELS + 1),
        {"loss": "cross_entropy"},
        "labels run from 1 to 3 but the network has 3",
    ),
    "one output": (
        lambda: mlp(1),
        Part(X, LABELS),
        {"loss": "cross_entropy"},
        "expected .n, classes. with two classes",
    ),
    "NaN targets": (mlp, Part(X, Y * torch.nan), {}, "got targets with NaN or infinity in 12 items"),
    "weights": (mlp, Part(X, Y), {"weights": -torch.ones(12)}, "got weights of shape .*none negative"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused_says_what_to_do(name: str) -> None:
    make, part, options, match = BAD[name]
    model = make().double()
    model = model if name in ("dropout", "batch norm") else model.eval()
    with pytest.raises(UsageError, match=match):
        ns.retrain_last_layer(model, part, **options)


def test_inputs_and_outputs_that_are_not_finite() -> None:
    model = seeded(mlp)
    with pytest.raises(NumericalError, match="inputs hold NaN or infinity in 12 samples"):
        ns.retrain_last_layer(model, Part(X * torch.nan, Y))
    with torch.no_grad():
        model[0].weight.fill_(torch.nan)
    with pytest.raises(NumericalError, match="the first layer to do so is Linear"):
        ns.retrain_last_layer(model, Part(X, Y))


# -- many -------------------------------------------------------------------------------------------------------------


@pytest.mark.guard
@pytest.mark.nightly
@pytest.mark.long
def test_training_loss_is_never_higher() -> None:
    """Two hundred random networks, losses, weights and sizes, by the networks' own outputs; the input model stays as it was."""
    draw = torch.Generator().manual_seed(0)
    better = 0
    for trial in range(200):
        names = list(NETWORKS)
        name = names[int(torch.randint(len(names), (), generator=draw))]
        n = int(torch.randint(4, 60, (), generator=draw))
        model, x = seeded(NETWORKS[name], trial), random(n, 36, seed=trial)
        loss = ("mse", "cross_entropy")[int(torch.randint(2, (), generator=draw))]
        weights = None if trial % 3 == 0 else random(n, seed=trial + 1).square() + (0.0 if trial % 3 == 1 else 1e-3)
        single = trial % 5 == 0
        if single:
            model, x = model.float(), x.float()
        y = (
            torch.randint(3, (n,), generator=draw)
            if loss == "cross_entropy"
            else random(n, 3, seed=trial + 2).to(x.dtype)
        )
        if trial % 7 == 0 and loss == "mse":
            with torch.no_grad():
                y = model(x)  # nothing to gain
        before = copy.deepcopy(model.state_dict())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)
            made = ns.retrain_last_layer(model, Part(x, y), loss=loss, weights=weights)

        def total(net: nn.Module) -> float:
            wide = copy.deepcopy(net).double()
            with torch.no_grad():
                out = wide(x.double())  # noqa: B023
            each = (
                F.cross_entropy(out, y, reduction="none")  # noqa: B023
                if loss == "cross_entropy"  # noqa: B023
                else (out - y).square().sum(1)  # noqa: B023
            )
            return float((each if weights is None else weights * each).sum())  # noqa: B023

        assert total(made) <= total(model) * (1 + 1e-9) + 1e-18, (trial, name, loss)
        better += total(made) < total(model)
        for key, value in model.state_dict().items():
            assert torch.equal(value, before[key]), (trial, key)
    assert better > 150
