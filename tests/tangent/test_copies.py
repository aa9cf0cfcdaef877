"""A copy is the model or is refused: other dtypes, kept engines, linearised networks and threads against the original."""

from __future__ import annotations

import copy
import functools
import types
import weakref
from array import array
from collections.abc import Callable
from contextvars import ContextVar
from ctypes import c_double
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import ntkscope as ns
from ntkscope.core import UsageError
from ntkscope.core.model.copies import duplicate, shared
from ntkscope.core.types import Part
from ntkscope.tangent.model.state import ModelState
from strategies.networks import noise

X = noise(6, 4).float()
GLOBAL = nn.Parameter(torch.tensor([0.7, -1.3, 2.1]))
HELD: dict[str, Any] = {}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


class Adapted(nn.Module):
    """A network with a scale that `use` brings in."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scale = net(), nn.Parameter(torch.tensor([0.7, -1.3, 2.1]))
        self.use: Any = None

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) if self.use is None else self.use(self.body(x))


def closure() -> nn.Module:
    model = Adapted()
    model.use = lambda h: h * model.scale
    return model


def default() -> nn.Module:
    model = Adapted()
    model.use = lambda h, scale=model.scale: h * scale
    return model


def partial() -> nn.Module:
    model = Adapted()
    model.use = functools.partial(torch.mul, model.scale)
    return model


def nested() -> nn.Module:
    model = Adapted()
    scales = {"one": [model.scale]}

    def inner() -> Tensor:
        return scales["one"][0]

    model.use = lambda h: h * inner()
    return model


def hook() -> nn.Module:
    model = Adapted()
    model.body.register_forward_hook(lambda module, args, output: output * model.scale)
    return model


def pre_hook() -> nn.Module:
    model = Adapted()
    model.body[2].register_forward_pre_hook(lambda module, args: (args[0] * model.scale.sum(),))
    return model


def bound_forward() -> nn.Module:
    model = Adapted()
    plain = model.forward

    def forward(self: Adapted, x: Tensor) -> Tensor:
        return plain(x) * self.scale

    model.forward = types.MethodType(forward, model)  # type: ignore[method-assign]
    return model


def gradient_hook() -> nn.Module:
    model = Adapted()
    model.use = lambda h: h * model.scale
    model.scale.register_hook(lambda grad: 3 * grad)
    return model


def attribute_of_a_parameter() -> nn.Module:
    model = Adapted()
    model.scale.power = 2  # type: ignore[attr-defined]
    model.use = lambda h: h * model.scale**model.scale.power  # type: ignore[attr-defined]
    return model


def in_a_dict() -> nn.Module:
    model = Adapted()
    model.table = {"scale": model.scale}  # type: ignore[assignment]
    model.use = lambda h: h * model.table["scale"]
    return model


def pruned() -> nn.Module:
    model = net()
    prune.random_unstructured(model[0], "weight", 0.3)
    return model


def weight_normed() -> nn.Module:
    model = net()
    with pytest.warns(FutureWarning):
        torch.nn.utils.weight_norm(model[0])
    return model


class ReadsGlobal(Adapted):
    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * GLOBAL


def global_parameter() -> nn.Module:
    model = ReadsGlobal()
    model.scale = GLOBAL
    return model


def global_holder() -> nn.Module:
    model = Adapted()
    HELD["scale"] = model.scale
    model.use = lambda h: h * HELD["scale"]
    return model


def weak_reference() -> nn.Module:
    model = Adapted()
    whole = weakref.ref(model)
    model.use = lambda h: h * whole().scale
    return model


def kept_graph() -> nn.Module:
    model = Adapted()
    doubled = 2 * model.scale
    model.use = lambda h: h * doubled
    return model


def only_for_some_inputs() -> nn.Module:
    model = Adapted()
    HELD["scale"] = model.scale
    scale = vars(types.SimpleNamespace(held=HELD))

    def use(h: Tensor) -> Tensor:
        return h * (scale["held"]["scale"] if len(h) else 1.0)

    model.use = use
    return model


COPIED = [closure, default, partial, nested, hook, pre_hook, bound_forward, gradient_hook, attribute_of_a_parameter]
COPIED += [in_a_dict, pruned, weight_normed, only_for_some_inputs]
REFUSED = [global_parameter, global_holder, weak_reference, kept_graph]


def gram(model: nn.Module, x: Tensor = X) -> Tensor:
    """The trace-NTK by plain autograd on the model as it is."""
    rows = []
    leaves = [p for p in model.parameters() if p.requires_grad]
    for sample in x:
        outputs = model(sample[None])[0]
        for k in range(len(outputs)):
            grads = torch.autograd.grad(outputs[k], leaves, retain_graph=True, allow_unused=True)
            rows.append(torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(leaves, grads)]))
    features = torch.stack(rows).double().unflatten(0, (len(x), -1))
    return torch.einsum("icp,jcp->ij", features, features)


def holds(kernel: Any, model: nn.Module) -> None:
    expected = gram(model)
    torch.testing.assert_close(kernel.dense().double(), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("make", COPIED, ids=lambda f: f.__name__)
def test_another_dtype_is_the_same_model(make: Callable[[], nn.Module]) -> None:
    model = make()
    kernel = ns.kernel("trntk0", model, X, dtype=torch.float64)
    holds(kernel, model)
    assert kernel.certificate.model.startswith(f"a copy of {type(model).__name__} in float64")


@pytest.mark.parametrize("make", REFUSED, ids=lambda f: f.__name__)
def test_what_cannot_be_copied_is_refused_by_name(make: Callable[[], nn.Module]) -> None:
    model = make()
    holds(ns.kernel("trntk0", model, X), model)
    with pytest.raises(UsageError, match=r"scale|graph"):
        ns.kernel("trntk0", model, X, dtype=torch.float64)
    if make is not kept_graph:
        with pytest.raises(UsageError, match="scale"):
            ns.linearize(model)
    else:
        with pytest.raises(UsageError, match="graph"):
            ns.linearize(model)(X)


# -- kept engines follow the original -------------------------------------------------------------------------------
class Slotted:
    __slots__ = ("power",)

    def __init__(self) -> None:
        self.power = 1.0


class Stateful(nn.Module):
    """A network that reads everything a module can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.body = net()
        self.factor = 1.0
        self.plain = torch.ones(3)
        self.array = np.ones(3, dtype=np.float32)
        self.settings = {"gain": [1.0]}
        self.space = types.SimpleNamespace(shift=1.0)
        self.slotted = Slotted()
        self.register_buffer("table", torch.ones(3))
        level = 1.0

        def use(h: Tensor) -> Tensor:
            return h * level

        def raise_level() -> None:
            nonlocal level
            level += 0.7

        self.use, self.raise_level = use, raise_level

    def forward(self, x: Tensor) -> Tensor:
        h = self.use(self.body(x)) * self.factor * self.plain * torch.from_numpy(self.array) * self.table
        h = h * self.settings["gain"][0] * self.space.shift * self.slotted.power
        return h + 0.1 * h**2


class Other(Stateful):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sin()


def patch(model: Any) -> None:
    before = model.forward
    model.forward = lambda x: before(x).cos()


def swap_class(model: Any) -> None:
    model.__class__ = Other


CHANGES: dict[str, Callable[[Any], Any]] = {
    "an attribute": lambda m: setattr(m, "factor", 1.7),
    "a plain tensor, in place": lambda m: m.plain.mul_(1.7),
    "a plain tensor, through .data": lambda m: m.plain.data.mul_(1.7),
    "a plain tensor, replaced": lambda m: setattr(m, "plain", m.plain * 1.7),
    "an array, in place": lambda m: m.array.__imul__(1.7),
    "a member of a list in a dict": lambda m: m.settings["gain"].__setitem__(0, 1.7),
    "a namespace": lambda m: setattr(m.space, "shift", 1.7),
    "an object with slots": lambda m: setattr(m.slotted, "power", 1.7),
    "a closure": lambda m: m.raise_level(),
    "a buffer, in place": lambda m: m.table.mul_(1.7),
    "a buffer, replaced": lambda m: setattr(m, "table", m.table * 1.7),
    "weights": lambda m: m.body[0].weight.data.mul_(1.7),
    "a frozen parameter": lambda m: m.body[0].weight.requires_grad_(False),
    "a parameter, replaced": lambda m: setattr(m.body[0], "weight", nn.Parameter(m.body[0].weight.detach() * 1.7)),
    "a layer, replaced": lambda m: m.body.__setitem__(1, nn.ReLU()),
    "a hook": lambda m: m.body.register_forward_hook(lambda module, args, output: output * 1.7),
    "a gradient hook": lambda m: m.body[0].weight.register_hook(lambda grad: grad * 1.7),
    "forward": patch,
    "the class": swap_class,
    "fewer outputs": lambda m: setattr(m, "use", lambda h: h * torch.tensor([1.7, 0.0, 1.0])),
}


@pytest.mark.parametrize("dtype", [None, torch.float64])
@pytest.mark.parametrize("change", CHANGES)
def test_a_kept_engine_sees_every_change(change: str, dtype: torch.dtype | None) -> None:
    model = Stateful()
    tangent = ns.Tangent(model, dtype=dtype)
    holds(tangent.kernel("trntk0", X), model)
    CHANGES[change](model)
    holds(tangent.kernel("trntk0", X), model)


def test_another_number_of_outputs() -> None:
    model = net()
    tangent = ns.Tangent(model)
    tangent.kernel("trntk0", X)
    before = model.forward
    model.forward = lambda x: before(x)[:, :2]
    holds(tangent.kernel("trntk0", X), model)


# -- linearised networks --------------------------------------------------------------------------------------------
def expansion(model: nn.Module, moved: dict[str, Tensor]) -> Tensor:
    """f + J u by plain autograd, sample by sample."""
    leaves = dict(model.named_parameters())
    rows = []
    for sample in X:
        outputs = model(sample[None])[0]
        along = []
        for k in range(len(outputs)):
            grads = torch.autograd.grad(outputs[k], list(leaves.values()), retain_graph=True, allow_unused=True)
            along.append(
                sum(((g * moved[name]).sum() for name, g in zip(leaves, grads) if g is not None), torch.tensor(0.0))
            )
        rows.append(outputs + torch.stack(along))
    return torch.stack(rows).detach()


@pytest.mark.parametrize("make", [f for f in COPIED if f is not gradient_hook], ids=lambda f: f.__name__)
def test_a_linearised_network_is_the_model_and_stays(make: Callable[[], nn.Module]) -> None:
    model = make()
    linear = ns.linearize(model)
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    expected = expansion(model, {name: u.detach() for name, u in linear.displacement().items()})
    torch.testing.assert_close(linear(X).detach(), expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    torch.testing.assert_close(linear(X).detach(), expected, rtol=1e-4, atol=1e-4)


def test_gradient_hooks_are_not_linearised() -> None:
    with pytest.raises(UsageError, match="hooks on scale"):
        ns.linearize(gradient_hook())


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = net()

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.body, x, use_reentrant=False)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("make", [Checkpointed, lambda: torch.jit.script(net()), lambda: torch.jit.trace(net(), X)])
def test_checkpointed_and_scripted_networks(make: Callable[[], nn.Module]) -> None:
    model = make()
    linear = ns.linearize(model)
    linear(X).square().sum().backward()
    model(X).square().sum().backward()
    for mine, theirs in zip(linear.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    holds(ns.kernel("trntk0", model, X, dtype=torch.float64), model)


def test_the_loss_of_a_solution_is_that_of_what_is_stored() -> None:
    linear = ns.linearize(net())
    target = torch.randn(len(X), 3, generator=torch.Generator().manual_seed(2))
    found = linear.solve(Part(X, target))
    kept = linear.double()(X.double()) - target.double()
    assert found.loss == pytest.approx(float(kept.detach().square().mean()), rel=1e-2)


# -- Jacobians ------------------------------------------------------------------------------------------------------
class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.readout = nn.EmbeddingBag(7, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.table(x))


class Distances(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.centres = nn.Linear(4, 4), nn.Parameter(noise(3, 4, seed=3).float())

    def forward(self, x: Tensor) -> Tensor:
        return torch.cdist(self.body(x), self.centres)


@pytest.mark.parametrize(("model", "x"), [(Bag(), torch.arange(12).reshape(3, 4) % 7), (Distances(), X)])
def test_products_without_second_derivatives(model: nn.Module, x: Tensor) -> None:
    tangent = ns.Tangent(model)
    direction = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    weights = torch.randn(len(x), 3)
    pulled = tangent.vjp(x, weights)
    right = sum(float((pulled[name] * direction[name]).sum()) for name in pulled)
    assert float((tangent.jvp(x, direction) * weights).sum()) == pytest.approx(right, rel=1e-4, abs=1e-4)


# -- the copies themselves ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("make", COPIED, ids=lambda f: f.__name__)
def test_a_copy_shares_nothing(make: Callable[[], nn.Module]) -> None:
    model = make()
    before = ModelState(model, foreign=True)
    assert shared(duplicate(model), model) == []
    assert before.same()
    assert not before.changed()


def test_deepcopy_alone_would_share() -> None:
    model = closure()
    assert shared(copy.deepcopy(model), model) == [
        "body.0.bias",
        "body.0.weight",
        "body.2.bias",
        "body.2.weight",
        "scale",
    ]


STORED: ContextVar[Tensor] = ContextVar("stored")


class Gained(nn.Module):
    """A linear layer whose outputs are multiplied by a parameter, found in some other way than by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gain = nn.Linear(3, 2), nn.Parameter(torch.randn(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.gain


class BoundMethod(Gained):
    def __init__(self) -> None:
        super().__init__()
        self.scaled = self.gain.mul

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(self.layer(x))


class InContext(Gained):
    def __init__(self) -> None:
        super().__init__()
        STORED.set(self.gain)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * STORED.get()


class Unregistered(Gained):
    def __init__(self) -> None:
        super().__init__()
        self.others = [nn.Parameter(torch.randn(2))]
        self.register_buffer("mixing", torch.eye(2).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * (self.others[0] * self.gain) @ self.mixing.to_dense()


@pytest.mark.parametrize("kind", [BoundMethod, InContext])
def test_a_copy_that_uses_the_original_by_a_hidden_way_is_not_linearised(kind: type[nn.Module]) -> None:
    x = torch.randn(4, 3)
    with pytest.raises(ns.NtkscopeError, match=r"not its own|would still use gain"):
        ns.linearize(kind())(x)


class Energy(Gained):
    """Its outputs are derivatives by its inputs."""

    def forward(self, x: Tensor) -> Tensor:
        at = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(super().forward(at).tanh().sum(), at, create_graph=True)
        return slope[:, :2]


@pytest.mark.parametrize(
    "make",
    [
        Unregistered,
        Energy,
        lambda: torch.fx.symbolic_trace(Gained()),
        lambda: nn.Sequential(torch.jit.script(Gained())),
    ],
)
def test_odd_networks_are_linearised(make: Callable[[], nn.Module]) -> None:
    model, x = make(), torch.randn(4, 3)
    torch.testing.assert_close(ns.linearize(model)(x), model(x))
    rows = [
        torch.autograd.grad(model(x)[i, c], list(model.parameters()), materialize_grads=True)
        for i in range(4)
        for c in range(2)
    ]
    features = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows]).reshape(4, 2, -1)
    kernel = torch.einsum("icp,jcp->ij", features, features)
    torch.testing.assert_close(ns.kernel("trntk0", model, x).dense(), kernel)


class SometimesInContext(InContext):
    """The way that is not seen is taken for some inputs only."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x)
        return (
            torch.where(x[:, :1] > 2, hidden * STORED.get(), hidden * self.gain)
            if (x > 2).any()
            else hidden * self.gain
        )


def test_a_copy_that_uses_the_original_for_some_inputs_only_is_refused() -> None:
    model, x = SometimesInContext(), torch.randn(40, 3).clamp(-1, 1)
    ns.kernel("trntk0", model, x, dtype=torch.float64)
    x[17, 0] = 3.0
    with pytest.raises(ns.NtkscopeError, match="it would use gain otherwise"):
        ns.kernel("trntk0", model, x, dtype=torch.float64)


class Scaled(Gained):
    def __init__(self, factor: Any) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.factor[0]


def scripted() -> nn.Module:
    class Factor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.factor = nn.Linear(3, 2), 1.0

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.factor

    return torch.jit.script(Factor())


@pytest.mark.parametrize("factor", [array("d", [1.0]), bytearray(b"\1"), (c_double * 1)(1.0), None])
def test_a_kept_copy_follows_changes_that_leave_no_trace(factor: Any) -> None:
    model = scripted() if factor is None else Scaled(factor)
    x, tangent = torch.randn(4, 3), ns.Tangent(model, dtype=torch.float64)
    before = tangent.kernel("trntk0", x).dense()
    if factor is None:
        setattr(model, "factor", 2.0)  # noqa: B010
    else:
        model.factor[0] = 2
    torch.testing.assert_close(tangent.kernel("trntk0", x).dense(), 4 * before)


class Elsewhere(Gained):
    """For some inputs, its parameter is taken from an object that is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.also = types.SimpleNamespace(gain=self.gain)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * (self.also.gain if (x > 2).any() else self.gain)


def clone_of(model: nn.Module) -> nn.Module:
    made = type(model)()
    made.load_state_dict(model.state_dict())
    return made


def test_a_linearised_network_sees_uses_that_its_first_inputs_did_not_show() -> None:
    model, x = Elsewhere(), torch.randn(4, 3).clamp(-1, 1)
    linear, seldom = ns.linearize(model), ns.linearize(SometimesInContext())
    for network in (linear, seldom):
        network(x)
    odd = torch.cat([x[:1] * 0 + 3, x])
    with torch.no_grad():
        linear.u.gain.fill_(1.0)
        moved = linear(odd)
    torch.testing.assert_close(moved, model(odd) + model.layer(odd))
    with torch.inference_mode():
        torch.testing.assert_close(linear(odd.clone()), moved)
        built = Gained()
    torch.testing.assert_close(ns.kernel("trntk0", built, x).dense(), ns.kernel("trntk0", clone_of(built), x).dense())
    torch.testing.assert_close(linear(odd), moved)
    with pytest.raises(ns.NtkscopeError, match="not its own"):
        seldom(odd)


class Helper:
    """Copied otherwise than it is."""

    def __init__(self) -> None:
        self.factor = 2.0

    def __getstate__(self) -> dict[str, Any]:
        return {"factor": 1.0}

    def __call__(self, h: Tensor) -> Tensor:
        return h * self.factor


FACTORS: dict[int, float] = {}


class ByAddress(Gained):
    """Looks its factor up by the address of the module."""

    def __init__(self) -> None:
        super().__init__()
        FACTORS[id(self)] = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * FACTORS.get(id(self), 1.0)


class Helped(Gained):
    def __init__(self) -> None:
        super().__init__()
        self.helper = Helper()

    def forward(self, x: Tensor) -> Tensor:
        return self.helper(super().forward(x))


@pytest.mark.parametrize("kind", [ByAddress, Helped])
def test_what_is_copied_otherwise_is_refused(kind: type[Gained]) -> None:
    model, x = kind(), torch.randn(4, 3)
    with pytest.raises(UsageError, match=r"it would use .* otherwise"):
        ns.kernel("trntk0", model, x, dtype=torch.float64)
    linear = ns.linearize(model)
    model.requires_grad_(False).train()  # the copy is held to the model as it was
    model.layer = nn.Linear(3, 2)
    with pytest.raises(UsageError, match=r"it would use .* otherwise"):
        linear(x)
    assert [model.training, model.gain.requires_grad, model.layer.weight.requires_grad] == [True, False, True]


BESIDE = {"factor": 2.0}
FACTOR = torch.tensor(3.0)
WRITTEN: list[Any] = [torch.ones(2), np.ones(2, dtype=np.float32)]


class ReadsBeside(Gained):
    power = 1

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self._scaled, x, use_reentrant=False) if self.training else self._scaled(x)

    def _scaled(self, x: Tensor) -> Tensor:
        factors = WRITTEN[0] * torch.from_numpy(WRITTEN[1])
        return (super().forward(x) * BESIDE["factor"] * FACTOR * factors) ** self.power


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_linearised_network_keeps_globals_and_classes_as_they_were(
    checkpointed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = ReadsBeside().train(checkpointed), torch.randn(4, 3)
    linear, late = ns.linearize(model), ns.linearize(model)
    expected = model(x)
    expected.sum().backward()
    linear(x)
    monkeypatch.setitem(BESIDE, "factor", 5.0)
    monkeypatch.setattr(ReadsBeside, "power", 3)
    monkeypatch.setitem(globals(), "FACTOR", torch.tensor(7.0))
    for factor in WRITTEN:
        factor *= 2
    for made in (linear, late, copy.deepcopy(linear)):
        values = made(x)
        values.sum().backward()
        torch.testing.assert_close(values, expected)
        torch.testing.assert_close(made.u.gain.grad, model.gain.grad)
    assert (BESIDE["factor"], ReadsBeside.power, float(FACTOR)) == (5.0, 3, 7.0)
    changed = ns.linearize(model)(x)
    torch.testing.assert_close(changed, model(x))
    assert not torch.allclose(changed, expected)
    for factor in WRITTEN:
        factor /= 2
        assert list(factor) == [1, 1]


def test_what_cannot_be_kept_as_it_was_is_refused() -> None:
    held = (torch.ones(2),)  # whose member cannot be replaced
    model = Gained()
    model.register_forward_hook(lambda module, args, outputs: outputs * IN_A_TUPLE[0][0])
    IN_A_TUPLE[0] = held
    linear, x = ns.linearize(model), torch.randn(4, 3)
    linear(x)
    held[0].mul_(2)
    with pytest.raises(UsageError, match=r"IN_A_TUPLE.0.0 was written to since the network was linearised"):
        linear(x)


IN_A_TUPLE: list[Any] = [None]


class Freezes(Gained):
    """Its forward pass freezes a parameter."""

    def forward(self, x: Tensor) -> Tensor:
        self.layer.bias.requires_grad_(False)
        return super().forward(x)


def test_a_model_that_freezes_a_parameter() -> None:
    model, x = Freezes(), torch.randn(4, 3)
    expected = ns.kernel("trntk0", model, x, params=["gain", "layer.weight"]).dense()
    torch.testing.assert_close(ns.kernel("trntk0", model, x).dense(), expected)
    torch.testing.assert_close(ns.kernel("trntk0", model, x, dtype=torch.float64).dense().float(), expected)
    assert model.layer.bias.requires_grad


def test_a_frozen_script_is_linearised() -> None:
    frozen = torch.jit.freeze(torch.jit.script(nn.Linear(3, 2).eval()))
    model, x = nn.Sequential(nn.Linear(3, 3), frozen).eval(), torch.randn(4, 3)
    torch.testing.assert_close(ns.linearize(model)(x), model(x))


@pytest.mark.parametrize("error", [KeyError, TypeError, AttributeError, ZeroDivisionError])
def test_a_model_that_fails_on_single_samples_is_refused(error: type[Exception]) -> None:
    model = net()

    def fail(module: nn.Module, args: Any) -> None:
        if len(args[0]) == 1:
            raise error("alone")

    model.register_forward_pre_hook(fail)
    with pytest.raises(UsageError, match="one sample alone"):
        ns.kernel("trntk0", model, X)
