"""A copy is the model or is refused: other dtypes, kept engines, linearised networks and threads against the original."""

from __future__ import annotations

import copy
import re
import types
from array import array
from collections.abc import Callable
from contextvars import ContextVar
from ctypes import c_double
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ntkscope as ns
from copies.changes import CHANGES
from copies.law import EQUAL, changes_of, kept, kernels, linearized
from copies.models import CASES
from ntkscope.core import UsageError
from ntkscope.core.model.copies import duplicate, shared
from ntkscope.core.types import Part
from strategies.networks import Net, noise

X = noise(6, 4).float()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


# -- models of the copy law that must be copied, or must be refused; the law itself allows either ----------------------
HELD = [
    "lambda_over_self",
    "default_argument",
    "partial_of_a_parameter",
    "nested_function",
    "bound_method_as_attribute",
]
HELD += ["ia3_by_hook_over_the_parameter", "pre_hook_over_a_parameter", "patched_forward", "parameters_in_a_plain_dict"]
HELD += ["pruned", "old_weight_norm", "checkpointed", "scripted", "traced"]
REFUSED = ["global_parameter", "global_registry_of_modules", "weak_reference_to_the_model", "plain_tensor_with_a_graph"]
STATEFUL = ["plain_tensor", "numpy_array", "dict_of_tensors", "namespace_of_tensors", "slotted_object", "buffer"]
STATEFUL += ["closure_over_a_number", "attribute_number"]


@pytest.mark.parametrize("name", HELD)
def test_another_dtype_and_a_linearised_network_are_the_same_model(name: str) -> None:
    case = CASES[name]
    found = [kernels(case, "dtype=float64"), *linearized(case, {"moved": CHANGES["weight_in_place"]})]
    assert [cell.verdict for cell in found] == [EQUAL, EQUAL, EQUAL], found
    model = case.make()
    assert shared(duplicate(model), model) == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_copied_is_refused_by_name(name: str) -> None:
    case = CASES[name]
    assert kernels(case, "native").verdict == EQUAL
    for cell in (kernels(case, "dtype=float64"), *linearized(case, {})):
        assert cell.verdict == "refused", cell
        assert re.search("would use|would still use|graph", cell.note), cell


@pytest.mark.parametrize("entry", ["kept native", "kept dtype=float64"])
@pytest.mark.parametrize("name", STATEFUL)
def test_a_kept_engine_sees_every_change(name: str, entry: str) -> None:
    found = kept(CASES[name], entry, changes_of(CASES[name], entry, 6))
    assert sum(cell.verdict == EQUAL for cell in found) > 4
    for cell in found:  # a change may make a model that no copy can follow
        assert cell.verdict == EQUAL or (cell.verdict == "refused" and not cell.change.startswith("own")), cell


def test_gradient_hooks_are_not_linearised() -> None:
    with pytest.raises(UsageError, match="hooks on"):
        ns.linearize(CASES["gradient_hook_that_scales"].make())


def test_the_loss_of_a_solution_is_that_of_what_is_stored() -> None:
    linear = ns.linearize(net())
    target = torch.randn(len(X), 3, generator=torch.Generator().manual_seed(2))
    found = linear.solve(Part(X, target))
    kept = linear.double()(X.double()) - target.double()
    assert found.loss == pytest.approx(float(kept.detach().square().mean()), rel=1e-2)


# -- Jacobians ------------------------------------------------------------------------------------------------------
def bag() -> tuple[nn.Module, Tensor]:
    parts = {"table": nn.EmbeddingBag(7, 4), "readout": nn.Linear(4, 3)}
    return Net(lambda m, x: m.readout(m.table(x)), **parts), torch.arange(12).reshape(3, 4) % 7


def distances() -> tuple[nn.Module, Tensor]:
    parts = {"body": nn.Linear(4, 4), "centres": nn.Parameter(noise(3, 4, seed=3).float())}
    return Net(lambda m, x: torch.cdist(m.body(x), m.centres), **parts), X


@pytest.mark.parametrize(("model", "x"), [bag(), distances()])
def test_products_without_second_derivatives(model: nn.Module, x: Tensor) -> None:
    tangent = ns.Tangent(model)
    direction = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    weights = torch.randn(len(x), 3)
    pulled = tangent.vjp(x, weights)
    right = sum(float((pulled[name] * direction[name]).sum()) for name in pulled)
    assert float((tangent.jvp(x, direction) * weights).sum()) == pytest.approx(right, rel=1e-4, abs=1e-4)


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


SCALES: dict[int, float] = {}


class ById(nn.Module):
    """A function of its own, which for some inputs asks which object it belongs to: of a copy it is another."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.readout = nn.Linear(3, 4), nn.Linear(4, 2)
        SCALES[id(self)] = 2.0
        self.scaled = lambda h, x: h * SCALES.get(id(self), 1.0) if (x > 2).any() else h

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(torch.tanh(self.scaled(self.layer(x), x)))


@pytest.mark.parametrize(("name", "options"), [("trntk0", {}), ("ck", {}), ("em", {"layers": ["readout"]})])
def test_a_copied_function_that_does_otherwise_for_later_inputs_is_refused(name: str, options: dict[str, Any]) -> None:
    """No graph shows it, and single samples agree with their block: the original alone tells."""
    model, x = ById(), torch.randn(40, 3).clamp(-1, 1)
    ns.kernel(name, model, x, dtype=torch.float64, **options)
    x[5:, 0] = 3.0
    with pytest.raises(ns.NtkscopeError, match="a copy of ById is not that model"):
        ns.kernel(name, model, x, dtype=torch.float64, **options)


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


FACTORS: dict[int, float] = {}


class ByAddress(Gained):
    """Looks its factor up by the address of the module."""

    def __init__(self) -> None:
        super().__init__()
        FACTORS[id(self)] = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * FACTORS.get(id(self), 1.0)


def test_what_is_copied_otherwise_is_refused() -> None:
    model, x = ByAddress(), torch.randn(4, 3)
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
