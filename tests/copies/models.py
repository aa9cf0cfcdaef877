"""Models whose parts a copy can lose: closures, hooks, globals, plain tensors, tied and patched things.

Each is made by a function without arguments, the same numbers every time, in the default dtype of the moment. What is passed to
`case` are changes of its own, `name -> function of the model`.
"""

from __future__ import annotations

import copy
import functools
import threading
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

Change = Callable[[Any], None]
SHARED: dict[str, Any] = {}  # what the models keep in this module and not in themselves


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], nn.Module]
    own: dict[str, Change]


CASES: dict[str, Case] = {}


def add(name: str, make: Callable[[], nn.Module], own: dict[str, Change]) -> None:
    def seeded() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            return make().eval()

    CASES[name] = Case(name, seeded, own)


def case(**own: Change) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    def register(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        add(make.__name__, make, own)
        return make

    return register


def inputs(dtype: torch.dtype) -> Tensor:
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def vector(width: int, seed: int = 0) -> Tensor:
    drawn = torch.rand(width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (drawn + 0.5).to(torch.get_default_dtype())


def gain(width: int = 4, seed: int = 0) -> nn.Parameter:
    return nn.Parameter(vector(width, seed))


class Net(nn.Module):
    """Two layers; `middle`, where it is there, is applied between them."""

    middle: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        return self.b(h if self.middle is None else self.middle(h))


def net(**attributes: Any) -> Any:
    model: Any = Net()
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def forwarding(function: Callable[[Any, Tensor], Tensor], **attributes: Any) -> Any:
    """A `Net` of a class of its own, whose forward is `function(model, h)` between the layers."""

    class Own(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.b(function(self, torch.tanh(self.a(x))))

    model: Any = Own()
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def fill(name: str, value: float) -> Change:
    """Write to a tensor or array that the model keeps at `name`."""

    def change(model: Any) -> None:
        with torch.no_grad():
            functools.reduce(getattr, name.split("."), model)[...] = value

    return change


def put(name: str, value: Callable[[], Any]) -> Change:
    def change(model: Any) -> None:
        *path, last = name.split(".")
        setattr(functools.reduce(getattr, path, model), last, value())

    return change


def at(name: str, key: Any, value: Callable[[], Any]) -> Change:
    def change(model: Any) -> None:
        functools.reduce(getattr, name.split("."), model)[key] = value()

    return change


def after(model: Any, *steps: Callable[[Any], Any]) -> Any:
    """The model when something was done to it."""
    for step in steps:
        step(model)
    return model


def shared(key: str, value: Any) -> Any:
    SHARED[key] = value
    return value


# -- functions over the model ---------------------------------------------------------------------------------------


@case()
def nested_function() -> nn.Module:
    model = net(g=gain())

    def outer() -> Callable[[Tensor], Tensor]:
        g = model.g

        def inner(h: Tensor) -> Tensor:
            return h * g

        return inner

    model.middle = outer()
    return model


@case()
def keyword_default() -> nn.Module:
    g = gain()

    def middle(h: Tensor, *, g: Tensor = g) -> Tensor:
        return h * g

    return net(g=g, middle=middle)


@case()
def bound_method_as_attribute() -> nn.Module:
    class Own(Net):
        def scaled(self, h: Tensor) -> Tensor:
            return h * self.g

    model: Any = Own()
    model.g = gain()
    model.middle = model.scaled
    return model


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value

    def scaled(self, h: Tensor) -> Tensor:
        return h * self.value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


# -- hooks ----------------------------------------------------------------------------------------------------------


@case()
def partial_as_a_hook() -> nn.Module:
    def scaled(g: Tensor, module: nn.Module, args: Any, out: Tensor) -> Tensor:
        return out * g

    model = net(g=gain())
    model.a.register_forward_hook(functools.partial(scaled, model.g))
    return model


@case()
def bound_method_as_a_hook() -> nn.Module:
    class Own(Net):
        def scaled(self, module: nn.Module, args: Any, out: Tensor) -> Tensor:
            return out * self.g

    model: Any = Own()
    model.g = gain()
    model.a.register_forward_hook(model.scaled)
    return model


@case()
def hook_of_an_activation() -> nn.Module:
    def middle(m: Any, h: Tensor) -> Tensor:
        if h.requires_grad:
            h.register_hook(lambda grad: grad * 2)
        return h

    return forwarding(middle)


# -- tied, parametrized, pruned ----------------------------------------------------------------------------------------


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.5))

    def forward(self, w: Tensor) -> Tensor:
        return w * self.factor


# -- buffers ------------------------------------------------------------------------------------------------------------


@case()
def counting_buffer() -> nn.Module:
    def middle(m: Any, h: Tensor) -> Tensor:
        m.calls += 1
        return h

    model = forwarding(middle)
    model.register_buffer("calls", torch.zeros((), dtype=torch.long))
    return model


# -- patched, dynamic ----------------------------------------------------------------------------------------------------


@case()
def patched_forward_by_partial() -> nn.Module:
    def scaled(model: Any, x: Tensor) -> Tensor:
        return Net.forward(model, x) * model.g

    model = net(g=gain(2))
    model.forward = functools.partial(scaled, model)
    return model


def class_scaled(model: Any) -> None:
    type(model).scale = 3.0


@case(class_attribute=class_scaled)
def class_attribute() -> nn.Module:
    class Own(Net):
        scale = 1.5

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.scale

    return Own()


@case(filled=lambda m: type(m).table.fill_(2.0))
def class_tensor() -> nn.Module:
    class Own(Net):
        table = vector(2)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * type(self).table

    return Own()


@case()
def getattr_to_the_inner_model() -> nn.Module:
    class Outer(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("inner"), name)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.tanh(self.a(x)) * self.g)

    return Outer(net(g=gain()))


@case()
def getattr_from_a_closure() -> nn.Module:
    g = gain()

    class Own(Net):
        def __getattr__(self, name: str) -> Any:
            return g if name == "secret" else super().__getattr__(name)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.tanh(self.a(x)) * self.secret)

    model: Any = Own()
    model.g = g
    return model


@case()
def property_of_a_parameter() -> nn.Module:
    class Own(Net):
        @property
        def scaled(self) -> Tensor:
            return self.b.weight * self.g

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(torch.tanh(self.a(x)), self.scaled)

    model: Any = Own()
    model.g = gain()
    return model


@case(emptied=lambda m: m.__dict__.pop("sized", None))
def cached_property() -> nn.Module:
    class Own(Net):
        @functools.cached_property
        def sized(self) -> float:
            return float(self.a.weight.detach().norm())

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) / self.sized

    model = Own()
    assert model.sized
    return model


@case()
def wrapped() -> nn.Module:
    class Outer(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.module = inner

        def forward(self, *args: Any, **kwargs: Any) -> Tensor:
            return self.module(*args, **kwargs)

    return Outer(MODELS["lambda_over_self"]())


@case()
def inner_model_in_a_list() -> nn.Module:
    class Outer(nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.kept = [inner]
            self.w, self.v = inner.a.weight, inner.b.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.kept[0](x)

    return Outer(net())


# -- copying itself -------------------------------------------------------------------------------------------------------


@case()
def copy_that_shares() -> nn.Module:
    class Own(Net):
        def __deepcopy__(self, memo: Any) -> Any:
            made = copy.copy(self)
            made._modules = dict(self._modules)
            return made

    return Own()


@case()
def copy_that_is_the_model() -> nn.Module:
    class Own(Net):
        def __deepcopy__(self, memo: Any) -> Any:
            return self

    return Own()


@case()
def copy_that_forgets() -> nn.Module:
    class Own(Net):
        scale = 1.0

        def __getstate__(self) -> Any:
            return {k: v for k, v in self.__dict__.items() if k != "scale"}

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.scale

    model = Own()
    model.scale = 2.5
    return model


@case()
def convolution_with_a_mask() -> nn.Module:
    mask = torch.tensor([1.0, 0.0, 1.0])
    return forwarding(lambda m, h: m.conv(h[:, None])[:, 0] * 1.0, conv=_masked(nn.Conv1d(1, 1, 3, padding=1), mask))


def _masked(layer: nn.Conv1d, mask: Tensor) -> nn.Conv1d:
    before = layer._conv_forward
    layer._conv_forward = lambda x, w, b: before(x, w * mask.to(w.dtype), b)  # type: ignore[method-assign, assignment]
    return layer


GIVEN: dict[str, Callable[[], Any]] = {  # what the makers below ask for by name
    "g": gain,
    "k": lambda: gain(seed=3),
    "thin": lambda: gain(3),
    "t": lambda: vector(4),
    "s": lambda: 1.3,
    "w": lambda: nn.Parameter(torch.eye(4) * vector(4)),
    "extra": lambda: nn.Linear(4, 4),
    "adapter": lambda: nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 4)),
    "left": lambda: nn.Parameter(torch.randn(4, 2)),
    "right": lambda: nn.Parameter(torch.randn(2, 3)),
    "mask": lambda: (torch.arange(12).reshape(4, 3) % 2).to(torch.get_default_dtype()),
}


def hooked(model: Any, hook: Callable[[Any], Any]) -> Any:
    model.a.register_forward_hook(hook(model))
    return model


def over(model: Any, see: Callable[[Any], Any], middle: Callable[[Any], Any]) -> Any:
    """A function between the layers, over what is seen of the model."""
    model.middle = middle(see(model))
    return model


def patched(model: Any, forward: Callable[[Any, Any], Any], part: str = "") -> Any:
    module = model.get_submodule(part)
    module.forward = forward(model, module.forward)
    return model


MODELS: dict[str, Callable[..., nn.Module]] = {
    "lambda_over_self": lambda: after(net(g=gain()), lambda m: setattr(m, "middle", lambda h: h * m.g)),
    "partial_with_keywords": lambda w: net(w=w, middle=functools.partial(F.linear, weight=w)),
    "closure_over_a_submodule": lambda extra: net(extra=extra, middle=lambda h: extra(h)),
    "closure_over_a_plain_tensor": lambda t: net(middle=lambda h: h * t),
    "closure_over_a_number": lambda s: net(middle=lambda h: h * s),
    "functions_in_a_list": lambda g, k: forwarding(
        lambda m, h: functools.reduce(lambda v, f: f(v), m.functions, h),
        g=g,
        k=k,
        functions=[lambda h: h * g, lambda h: h + k],
    ),
    "object_with_the_model": lambda: after(
        net(g=gain()),
        lambda m: setattr(m, "helper", Holder(m)),
        lambda m: setattr(m, "middle", lambda h: h * m.helper.value.g),
    ),
    "ia3_by_hook": lambda: hooked(net(g=gain()), lambda m: lambda module, args, out: out * m.g),
    "ia3_by_hook_over_the_parameter": lambda g: hooked(net(g=g), lambda m: lambda module, args, out, g=g: out * g),
    "adapter_by_hook": lambda adapter: hooked(
        net(adapter=adapter), lambda m: lambda module, args, out: out + adapter(out)
    ),
    "lora_by_hook": lambda left, right: hooked(
        net(left=left, right=right), lambda m: lambda module, args, out: out + args[0] @ right.T @ left.T
    ),
    "pre_hook_over_a_parameter": lambda thin: after(
        net(g=thin), lambda m: m.a.register_forward_pre_hook(lambda module, args: (args[0] * thin,))
    ),
    "hook_on_the_model_itself": lambda: after(
        net(g=gain(2)), lambda m: m.register_forward_hook(lambda module, args, out: out * module.g)
    ),
    "hook_that_keeps_activations": lambda: hooked(
        forwarding(lambda m, h: h * m.seen["a"], seen={}),
        lambda m: lambda module, args, out: m.seen.__setitem__("a", out),
    ),
    "hook_over_a_plain_tensor": lambda t: hooked(net(), lambda m: lambda module, args, out: out * t),
    "backward_hook": lambda: after(
        net(), lambda m: m.b.register_full_backward_hook(lambda module, before, after: (before[0] * 0.5,))
    ),
    "gradient_hook_that_masks": lambda mask: after(net(), lambda m: m.a.weight.register_hook(lambda grad: grad * mask)),
    "gradient_hook_of_a_tied_parameter": lambda: after(
        net(c=nn.Linear(4, 4), d=nn.Linear(4, 4)),
        lambda m: setattr(m.d, "weight", m.c.weight),
        lambda m: m.c.weight.register_hook(lambda grad: grad * 2),
        lambda m: setattr(m, "middle", lambda h: m.d(torch.tanh(m.c(h)))),
    ),
    "global_parameter": lambda g: forwarding(lambda m, h: h * SHARED["gain"], g=shared("gain", g)),
    "global_plain_tensor": lambda t: after(
        forwarding(lambda m, h: h * SHARED["constant"]), lambda m: shared("constant", t)
    ),
    "global_number": lambda: after(forwarding(lambda m, h: h * SHARED["number"]), lambda m: shared("number", 1.5)),
    "global_registry_of_modules": lambda extra: forwarding(lambda m, h: SHARED["body"](h), body=shared("body", extra)),
    "global_registry_of_models": lambda g: after(
        forwarding(lambda m, h: h * SHARED["models"][m.key].g, g=g, key="mine"), lambda m: shared("models", {"mine": m})
    ),
    "weak_reference_to_the_model": lambda g: over(net(g=g), weakref.ref, lambda seen: lambda h: h * seen().g),
    "weak_reference_to_a_parameter": lambda g: over(
        net(g=g), lambda m: weakref.ref(m.g), lambda seen: lambda h: h * seen()
    ),
    "weak_dictionary": lambda g: over(
        net(g=g), lambda m: weakref.WeakValueDictionary({"g": m.g}), lambda seen: lambda h: h * seen["g"]
    ),
    "view_made_long_ago": lambda: after(
        forwarding(lambda m, h: h * m.kept.value, g=nn.Parameter(torch.randn(8)), kept=Holder(None)),
        lambda m: m.register_forward_pre_hook(lambda model, args: setattr(model.kept, "value", model.g[:4])),
    ),
    "patched_forward_as_a_closure": lambda: patched(net(g=gain(2)), lambda m, before: lambda x: before(x) * m.g),
    "patched_forward_of_a_part": lambda: patched(net(g=gain()), lambda m, before: lambda x: before(x) * m.g, "a"),
    "traced": lambda: torch.jit.trace(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.zeros(2, 3)),
    "experts_by_index": lambda: forwarding(
        lambda m, h: torch.einsum("nij,nj->ni", m.experts[(h[:, 0] > 0).long()], h),
        experts=nn.Parameter(torch.randn(2, 4, 4)),
    ),
    "plain": lambda: net(),
    "lambda_over_parameter": lambda g: net(g=g, middle=lambda h: h * g),
    "default_argument": lambda g: net(g=g, middle=lambda h, g=g: h * g),
    "partial_of_a_parameter": lambda g: net(g=g, middle=functools.partial(torch.mul, g)),
    "closure_over_a_submodules_weight": lambda: after(
        net(), lambda m: setattr(m, "middle", lambda h: h * m.a.weight[:, 0])
    ),
    "functions_in_a_dict": lambda: after(
        net(g=gain()),
        lambda m: setattr(m, "functions", {"scale": lambda h: h * m.g, "tanh": torch.tanh}),
        lambda m: setattr(m, "middle", lambda h: m.functions["tanh"](m.functions["scale"](h))),
    ),
    "method_of_another_object": lambda g: net(g=g, middle=Holder(g).scaled),
    "gradient_hook_that_scales": lambda: after(net(), lambda m: m.a.weight.register_hook(lambda grad: grad * 3)),
    "plain_tensor": lambda: forwarding(lambda m, h: h * m.t, t=vector(4)),
    "numpy_array": lambda: forwarding(lambda m, h: h * torch.as_tensor(m.t).to(h.dtype), t=np.linspace(0.5, 2, 4)),
    "list_of_tensors": lambda: forwarding(lambda m, h: h * m.t[0] + m.t[1], t=[vector(4), vector(4, 1)]),
    "dict_of_tensors": lambda: forwarding(lambda m, h: h * m.t["g"] + m.t["k"], t={"g": vector(4), "k": vector(4, 1)}),
    "parameters_in_a_plain_list": lambda: after(
        forwarding(lambda m, h: h * m.kept[0] + m.kept[1], g=gain(), k=gain(seed=1)),
        lambda m: setattr(m, "kept", [m.g, m.k]),
    ),
    "parameters_in_a_plain_dict": lambda: after(
        forwarding(lambda m, h: h * m.kept["g"], g=gain()), lambda m: setattr(m, "kept", {"g": m.g})
    ),
    "modules_in_a_plain_list": lambda: after(
        forwarding(lambda m, h: m.kept[0](h), c=nn.Linear(4, 4)), lambda m: setattr(m, "kept", [m.c])
    ),
    "namespace_of_tensors": lambda: forwarding(lambda m, h: h * m.t.value, t=types.SimpleNamespace(value=vector(4))),
    "slotted_object": lambda: forwarding(lambda m, h: h * m.t.value, t=Slotted(vector(4))),
    "slotted_object_of_a_parameter": lambda: after(
        forwarding(lambda m, h: h * m.t.value, g=gain()), lambda m: setattr(m, "t", Slotted(m.g))
    ),
    "attribute_number": lambda: forwarding(lambda m, h: h * m.scale, scale=1.5),
    "attribute_text": lambda: forwarding(lambda m, h: torch.sin(h) if m.mode == "sin" else torch.exp(h), mode="exp"),
    "tied_weights": lambda: after(
        forwarding(lambda m, h: m.d(torch.tanh(m.c(h))), c=nn.Linear(4, 4), d=nn.Linear(4, 4)),
        lambda m: setattr(m.d, "weight", m.c.weight),
    ),
    "module_under_two_names": lambda: after(
        forwarding(lambda m, h: m.d(torch.tanh(m.c(h))), c=nn.Linear(4, 4)), lambda m: setattr(m, "d", m.c)
    ),
    "transposed_weight": lambda: forwarding(lambda m, h: h @ m.a.weight @ m.a.weight.T),
    "parametrization": lambda: after(net(), lambda m: parametrize.register_parametrization(m.a, "weight", Doubled())),
    "new_weight_norm": lambda: after(net(), lambda m: parametrizations.weight_norm(m.a)),
    "old_weight_norm": lambda: after(net(), lambda m: nn.utils.weight_norm(m.a)),
    "pruned": lambda: after(net(), lambda m: prune.l1_unstructured(m.a, "weight", 4)),
    "pruned_twice": lambda: after(
        net(), lambda m: prune.l1_unstructured(m.a, "weight", 4), lambda m: prune.random_unstructured(m.a, "weight", 2)
    ),
    "new_spectral_norm": lambda: after(net(), lambda m: parametrizations.spectral_norm(m.a)),
    "old_spectral_norm": lambda: after(net(), lambda m: nn.utils.spectral_norm(m.a)),
    "containers_of_parameters": lambda: after(
        forwarding(lambda m, h: h * m.many[0] + m.named["k"]),
        lambda m: setattr(m, "many", nn.ParameterList([gain()])),
        lambda m: setattr(m, "named", nn.ParameterDict({"k": gain(seed=1)})),
    ),
    "weight_from_a_hypernetwork": lambda: forwarding(
        lambda m, h: h @ m.hyper(m.code).reshape(4, 4), hyper=nn.Linear(2, 16), code=gain(2)
    ),
    "parameter_in_a_subclass_of_tensor_attribute": lambda: forwarding(
        lambda m, h: h * (m.g.expand(4)), g=nn.Parameter(torch.tensor(1.5))
    ),
    "frozen_part": lambda: after(net(), lambda m: m.a.requires_grad_(False)),
    "buffer": lambda: after(
        forwarding(lambda m, h: h * m.t), lambda m: m.register_buffer("t", vector(4), persistent=False)
    ),
    "batch_norm": lambda: after(
        forwarding(lambda m, h: m.norm(h), norm=nn.BatchNorm1d(4)), lambda m: m.norm.running_mean.copy_(vector(4))
    ),
    "dropout": lambda: forwarding(lambda m, h: m.drop(h), drop=nn.Dropout(0.5)),
    "patched_forward": lambda: after(
        net(g=gain(2)),
        lambda m: setattr(m, "forward", types.MethodType(lambda self, x: Net.forward(self, x) * self.g, m)),
    ),
    "checkpointed": lambda: forwarding(
        lambda m, h: checkpoint(m.c, h, use_reentrant=False), c=nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    ),
    "checkpointed_closure": lambda g: forwarding(
        lambda m, h: checkpoint(lambda v: torch.tanh(v * g), h, use_reentrant=False), g=g
    ),
    "scripted": lambda: torch.jit.script(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))),
    "scripted_part": lambda: forwarding(
        lambda m, h: m.c(h), c=torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    ),
    "paths_by_sample": lambda: forwarding(
        lambda m, h: torch.where(h[:, :1] > 0, m.c(h), m.d(h)), c=nn.Linear(4, 4), d=nn.Linear(4, 4)
    ),
    "holds_a_lock": lambda: net(lock=threading.Lock()),
    "plain_tensor_with_a_graph": lambda: after(
        forwarding(lambda m, h: h * m.t.detach(), g=gain()), lambda m: setattr(m, "t", m.g * 2)
    ),
    "two_dtypes": lambda: forwarding(lambda m, h: m.c(h.double()).to(h.dtype), c=nn.Linear(4, 4).double()),
}
OWN: dict[str, dict[str, Change]] = {
    "closure_over_a_plain_tensor": {"cell": lambda m: m.middle.__closure__[0].cell_contents.mul_(1.7)},
    "closure_over_a_number": {"cell": lambda m: setattr(m.middle.__closure__[0], "cell_contents", 2.5)},
    "global_parameter": {"filled": lambda m: SHARED["gain"].data.fill_(2.0)},
    "global_plain_tensor": {
        "filled": lambda m: SHARED["constant"].fill_(2.0),
        "replaced": lambda m: shared("constant", vector(4, 9)),
    },
    "global_number": {"number": lambda m: shared("number", 3.0)},
    "plain_tensor": {"filled": fill("t", 2.0), "replaced": put("t", lambda: vector(4, 5))},
    "numpy_array": {"filled": fill("t", 2.0), "replaced": put("t", lambda: np.arange(4.0) + 1)},
    "list_of_tensors": {"member": at("t", 0, lambda: vector(4, 6)), "filled": lambda m: m.t[1].fill_(2.0)},
    "dict_of_tensors": {"member": at("t", "g", lambda: vector(4, 6)), "filled": lambda m: m.t["k"].fill_(2.0)},
    "namespace_of_tensors": {"filled": fill("t.value", 2.0), "replaced": put("t.value", lambda: vector(4, 5))},
    "slotted_object": {"filled": fill("t.value", 2.0), "replaced": put("t.value", lambda: vector(4, 5))},
    "attribute_number": {"number": put("scale", lambda: 2.5)},
    "attribute_text": {"text": put("mode", lambda: "sin")},
    "tied_weights": {"untied": lambda m: setattr(m.d, "weight", nn.Parameter(m.c.weight.detach().clone() * 1.5))},
    "module_under_two_names": {"untied": lambda m: setattr(m, "d", nn.Linear(4, 4).to(m.c.weight.dtype))},
    "buffer": {"filled": lambda m: m.t.fill_(2.0), "replaced": put("t", lambda: vector(4, 5))},
    "batch_norm": {"filled": lambda m: m.norm.running_var.fill_(3.0)},
    "dropout": {"sub_train": lambda m: m.drop.train()},
}


def given(make: Callable[..., nn.Module]) -> nn.Module:
    return make(**{name: GIVEN[name]() for name in make.__code__.co_varnames[: make.__code__.co_argcount]})


for _name, _make in MODELS.items():
    add(_name, functools.partial(given, _make), OWN.get(_name, {}))
