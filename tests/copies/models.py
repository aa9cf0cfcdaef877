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
from dataclasses import dataclass, field
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
    own: dict[str, Change] = field(default_factory=dict)


CASES: dict[str, Case] = {}


def case(**own: Change) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    def add(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        def seeded() -> nn.Module:
            with torch.random.fork_rng():
                torch.manual_seed(7)
                return make().eval()

        CASES[make.__name__] = Case(make.__name__, seeded, own)
        return make

    return add


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


# -- functions over the model ---------------------------------------------------------------------------------------


@case()
def plain() -> nn.Module:
    return net()


@case()
def lambda_over_self() -> nn.Module:
    model = net(g=gain())
    model.middle = lambda h: h * model.g
    return model


@case()
def lambda_over_parameter() -> nn.Module:
    g = gain()
    return net(g=g, middle=lambda h: h * g)


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
def default_argument() -> nn.Module:
    g = gain()
    return net(g=g, middle=lambda h, g=g: h * g)


@case()
def keyword_default() -> nn.Module:
    g = gain()

    def middle(h: Tensor, *, g: Tensor = g) -> Tensor:
        return h * g

    return net(g=g, middle=middle)


@case()
def partial_of_a_parameter() -> nn.Module:
    g = gain()
    return net(g=g, middle=functools.partial(torch.mul, g))


@case()
def partial_with_keywords() -> nn.Module:
    w = nn.Parameter(torch.eye(4) * vector(4))
    return net(w=w, middle=functools.partial(F.linear, weight=w))


@case()
def closure_over_a_submodule() -> nn.Module:
    extra = nn.Linear(4, 4)
    return net(extra=extra, middle=lambda h: extra(h))


@case()
def closure_over_a_submodules_weight() -> nn.Module:
    model = net()
    model.middle = lambda h: h * model.a.weight[:, 0]
    return model


@case(cell=lambda m: m.middle.__closure__[0].cell_contents.mul_(1.7))
def closure_over_a_plain_tensor() -> nn.Module:
    t = vector(4)
    return net(middle=lambda h: h * t)


@case(cell=lambda m: setattr(m.middle.__closure__[0], "cell_contents", 2.5))
def closure_over_a_number() -> nn.Module:
    s = 1.3
    return net(middle=lambda h: h * s)


@case()
def functions_in_a_dict() -> nn.Module:
    model = net(g=gain())
    model.functions = {"scale": lambda h: h * model.g, "tanh": torch.tanh}
    model.middle = lambda h: model.functions["tanh"](model.functions["scale"](h))
    return model


@case()
def functions_in_a_list() -> nn.Module:
    g, k = gain(), gain(seed=3)
    model = forwarding(lambda m, h: functools.reduce(lambda v, f: f(v), m.functions, h), g=g, k=k)
    model.functions = [lambda h: h * g, lambda h: h + k]
    return model


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


@case()
def method_of_another_object() -> nn.Module:
    g = gain()
    return net(g=g, middle=Holder(g).scaled)


@case()
def object_with_the_model() -> nn.Module:
    model = net(g=gain())
    model.helper = Holder(model)
    return _with(model, lambda h: h * model.helper.value.g)


def _with(model: Any, middle: Callable[[Tensor], Tensor]) -> Any:
    model.middle = middle
    return model


# -- hooks ----------------------------------------------------------------------------------------------------------


@case()
def ia3_by_hook() -> nn.Module:
    model = net(g=gain())
    model.a.register_forward_hook(lambda module, args, out: out * model.g)
    return model


@case()
def ia3_by_hook_over_the_parameter() -> nn.Module:
    g = gain()
    model = net(g=g)
    model.a.register_forward_hook(lambda module, args, out, g=g: out * g)
    return model


@case()
def adapter_by_hook() -> nn.Module:
    adapter = nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 4))
    model = net(adapter=adapter)
    model.a.register_forward_hook(lambda module, args, out: out + adapter(out))
    return model


@case()
def lora_by_hook() -> nn.Module:
    left, right = nn.Parameter(torch.randn(4, 2)), nn.Parameter(torch.randn(2, 3))
    model = net(left=left, right=right)
    model.a.register_forward_hook(lambda module, args, out: out + args[0] @ right.T @ left.T)
    return model


@case()
def pre_hook_over_a_parameter() -> nn.Module:
    g = gain(3)
    model = net(g=g)
    model.a.register_forward_pre_hook(lambda module, args: (args[0] * g,))
    return model


@case()
def hook_on_the_model_itself() -> nn.Module:
    model = net(g=gain(2))
    model.register_forward_hook(lambda module, args, out: out * module.g)
    return model


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
def hook_that_keeps_activations() -> nn.Module:
    model = forwarding(lambda m, h: h * m.seen["a"])
    model.seen = {}
    model.a.register_forward_hook(lambda module, args, out: model.seen.__setitem__("a", out))
    return model


@case()
def hook_over_a_plain_tensor() -> nn.Module:
    t = vector(4)
    model = net()
    model.a.register_forward_hook(lambda module, args, out: out * t)
    return model


@case()
def backward_hook() -> nn.Module:
    model = net()
    model.b.register_full_backward_hook(lambda module, before, after: (before[0] * 0.5,))
    return model


@case()
def gradient_hook_that_scales() -> nn.Module:
    model = net()
    model.a.weight.register_hook(lambda grad: grad * 3)
    return model


@case()
def gradient_hook_that_masks() -> nn.Module:
    model = net()
    mask = (torch.arange(12).reshape(4, 3) % 2).to(model.a.weight.dtype)
    model.a.weight.register_hook(lambda grad: grad * mask)
    return model


@case()
def gradient_hook_of_a_tied_parameter() -> nn.Module:
    model = net(c=nn.Linear(4, 4), d=nn.Linear(4, 4))
    model.d.weight = model.c.weight
    model.c.weight.register_hook(lambda grad: grad * 2)
    return _with(model, lambda h: model.d(torch.tanh(model.c(h))))


@case()
def hook_of_an_activation() -> nn.Module:
    def middle(m: Any, h: Tensor) -> Tensor:
        if h.requires_grad:
            h.register_hook(lambda grad: grad * 2)
        return h

    return forwarding(middle)


# -- globals, weak references ----------------------------------------------------------------------------------------


def _global_gain(value: float) -> Change:
    return lambda m: SHARED["gain"].data.fill_(value)


@case(filled=_global_gain(2.0))
def global_parameter() -> nn.Module:
    SHARED["gain"] = gain()
    return forwarding(lambda m, h: h * SHARED["gain"], g=SHARED["gain"])


@case(filled=lambda m: SHARED["constant"].fill_(2.0), replaced=lambda m: SHARED.__setitem__("constant", vector(4, 9)))
def global_plain_tensor() -> nn.Module:
    SHARED["constant"] = vector(4)
    return forwarding(lambda m, h: h * SHARED["constant"])


@case(number=lambda m: SHARED.__setitem__("number", 3.0))
def global_number() -> nn.Module:
    SHARED["number"] = 1.5
    return forwarding(lambda m, h: h * SHARED["number"])


@case()
def global_registry_of_modules() -> nn.Module:
    SHARED["body"] = nn.Linear(4, 4)
    return forwarding(lambda m, h: SHARED["body"](h), body=SHARED["body"])


@case()
def global_registry_of_models() -> nn.Module:
    model = forwarding(lambda m, h: h * SHARED["models"][m.key].g, g=gain(), key="mine")
    SHARED["models"] = {"mine": model}
    return model


@case()
def weak_reference_to_the_model() -> nn.Module:
    model = net(g=gain())
    seen = weakref.ref(model)
    return _with(model, lambda h: h * seen().g)


@case()
def weak_reference_to_a_parameter() -> nn.Module:
    model = net(g=gain())
    seen = weakref.ref(model.g)
    return _with(model, lambda h: h * seen())


@case()
def weak_dictionary() -> nn.Module:
    model = net(g=gain())
    seen = weakref.WeakValueDictionary({"g": model.g})
    return _with(model, lambda h: h * seen["g"])


# -- plain tensors, arrays, containers --------------------------------------------------------------------------------


@case(filled=fill("t", 2.0), replaced=put("t", lambda: vector(4, 5)))
def plain_tensor() -> nn.Module:
    return forwarding(lambda m, h: h * m.t, t=vector(4))


@case(filled=fill("t", 2.0), replaced=put("t", lambda: np.arange(4.0) + 1))
def numpy_array() -> nn.Module:
    return forwarding(lambda m, h: h * torch.as_tensor(m.t).to(h.dtype), t=np.linspace(0.5, 2, 4))


@case(member=at("t", 0, lambda: vector(4, 6)), filled=lambda m: m.t[1].fill_(2.0))
def list_of_tensors() -> nn.Module:
    return forwarding(lambda m, h: h * m.t[0] + m.t[1], t=[vector(4), vector(4, 1)])


@case(member=at("t", "g", lambda: vector(4, 6)), filled=lambda m: m.t["k"].fill_(2.0))
def dict_of_tensors() -> nn.Module:
    return forwarding(lambda m, h: h * m.t["g"] + m.t["k"], t={"g": vector(4), "k": vector(4, 1)})


@case()
def parameters_in_a_plain_list() -> nn.Module:
    model = forwarding(lambda m, h: h * m.kept[0] + m.kept[1], g=gain(), k=gain(seed=1))
    model.kept = [model.g, model.k]
    return model


@case()
def parameters_in_a_plain_dict() -> nn.Module:
    model = forwarding(lambda m, h: h * m.kept["g"], g=gain())
    model.kept = {"g": model.g}
    return model


@case()
def modules_in_a_plain_list() -> nn.Module:
    model = forwarding(lambda m, h: m.kept[0](h), c=nn.Linear(4, 4))
    model.kept = [model.c]
    return model


@case(filled=fill("t.value", 2.0), replaced=put("t.value", lambda: vector(4, 5)))
def namespace_of_tensors() -> nn.Module:
    return forwarding(lambda m, h: h * m.t.value, t=types.SimpleNamespace(value=vector(4)))


@case(filled=fill("t.value", 2.0), replaced=put("t.value", lambda: vector(4, 5)))
def slotted_object() -> nn.Module:
    return forwarding(lambda m, h: h * m.t.value, t=Slotted(vector(4)))


@case()
def slotted_object_of_a_parameter() -> nn.Module:
    model = forwarding(lambda m, h: h * m.t.value, g=gain())
    model.t = Slotted(model.g)
    return model


@case(number=put("scale", lambda: 2.5))
def attribute_number() -> nn.Module:
    return forwarding(lambda m, h: h * m.scale, scale=1.5)


@case(text=put("mode", lambda: "sin"))
def attribute_text() -> nn.Module:
    return forwarding(lambda m, h: torch.sin(h) if m.mode == "sin" else torch.exp(h), mode="exp")


# -- tied, parametrized, pruned ----------------------------------------------------------------------------------------


@case(untied=lambda m: setattr(m.d, "weight", nn.Parameter(m.c.weight.detach().clone() * 1.5)))
def tied_weights() -> nn.Module:
    model = forwarding(lambda m, h: m.d(torch.tanh(m.c(h))), c=nn.Linear(4, 4), d=nn.Linear(4, 4))
    model.d.weight = model.c.weight
    return model


@case(untied=lambda m: setattr(m, "d", nn.Linear(4, 4).to(m.c.weight.dtype)))
def module_under_two_names() -> nn.Module:
    model = forwarding(lambda m, h: m.d(torch.tanh(m.c(h))), c=nn.Linear(4, 4))
    model.d = model.c
    return model


@case()
def transposed_weight() -> nn.Module:
    return forwarding(lambda m, h: h @ m.a.weight @ m.a.weight.T)


@case()
def view_made_long_ago() -> nn.Module:
    model = forwarding(lambda m, h: h * m.kept.value, g=nn.Parameter(torch.randn(8)))
    model.kept = Holder(None)
    model.register_forward_pre_hook(lambda m, args: setattr(m.kept, "value", m.g[:4]))
    return model


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.5))

    def forward(self, w: Tensor) -> Tensor:
        return w * self.factor


@case()
def parametrization() -> nn.Module:
    model = net()
    parametrize.register_parametrization(model.a, "weight", Doubled())
    return model


@case()
def new_weight_norm() -> nn.Module:
    model = net()
    parametrizations.weight_norm(model.a)
    return model


@case()
def old_weight_norm() -> nn.Module:
    model = net()
    nn.utils.weight_norm(model.a)
    return model


@case()
def pruned() -> nn.Module:
    model = net()
    prune.l1_unstructured(model.a, "weight", 4)
    return model


@case()
def pruned_twice() -> nn.Module:
    model = net()
    prune.l1_unstructured(model.a, "weight", 4)
    prune.random_unstructured(model.a, "weight", 2)
    return model


@case()
def new_spectral_norm() -> nn.Module:
    model = net()
    parametrizations.spectral_norm(model.a)
    return model


@case()
def old_spectral_norm() -> nn.Module:
    model = net()
    nn.utils.spectral_norm(model.a)
    return model


@case()
def containers_of_parameters() -> nn.Module:
    model = forwarding(lambda m, h: h * m.many[0] + m.named["k"])
    model.many, model.named = nn.ParameterList([gain()]), nn.ParameterDict({"k": gain(seed=1)})
    return model


@case()
def weight_from_a_hypernetwork() -> nn.Module:
    return forwarding(lambda m, h: h @ m.hyper(m.code).reshape(4, 4), hyper=nn.Linear(2, 16), code=gain(2))


@case()
def parameter_in_a_subclass_of_tensor_attribute() -> nn.Module:
    return forwarding(lambda m, h: h * (m.g.expand(4)), g=nn.Parameter(torch.tensor(1.5)))


@case()
def frozen_part() -> nn.Module:
    model = net()
    model.a.requires_grad_(False)
    return model


# -- buffers ------------------------------------------------------------------------------------------------------------


@case(filled=lambda m: m.t.fill_(2.0), replaced=put("t", lambda: vector(4, 5)))
def buffer() -> nn.Module:
    model = forwarding(lambda m, h: h * m.t)
    model.register_buffer("t", vector(4), persistent=False)
    return model


@case()
def counting_buffer() -> nn.Module:
    def middle(m: Any, h: Tensor) -> Tensor:
        m.calls += 1
        return h

    model = forwarding(middle)
    model.register_buffer("calls", torch.zeros((), dtype=torch.long))
    return model


@case(filled=lambda m: m.norm.running_var.fill_(3.0))
def batch_norm() -> nn.Module:
    model = forwarding(lambda m, h: m.norm(h), norm=nn.BatchNorm1d(4))
    model.norm.running_mean.copy_(vector(4))
    return model


@case(sub_train=lambda m: m.drop.train())
def dropout() -> nn.Module:
    return forwarding(lambda m, h: m.drop(h), drop=nn.Dropout(0.5))


# -- patched, dynamic ----------------------------------------------------------------------------------------------------


@case()
def patched_forward() -> nn.Module:
    model = net(g=gain(2))
    model.forward = types.MethodType(lambda self, x: Net.forward(self, x) * self.g, model)
    return model


@case()
def patched_forward_as_a_closure() -> nn.Module:
    model = net(g=gain(2))
    before = model.forward
    model.forward = lambda x: before(x) * model.g
    return model


@case()
def patched_forward_of_a_part() -> nn.Module:
    model = net(g=gain())
    before = model.a.forward
    model.a.forward = lambda x: before(x) * model.g
    return model


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

    return Outer(lambda_over_self())


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


@case()
def checkpointed() -> nn.Module:
    return forwarding(lambda m, h: checkpoint(m.c, h, use_reentrant=False), c=nn.Sequential(nn.Linear(4, 4), nn.Tanh()))


@case()
def checkpointed_closure() -> nn.Module:
    g = gain()
    return forwarding(lambda m, h: checkpoint(lambda v: torch.tanh(v * g), h, use_reentrant=False), g=g)


@case()
def scripted() -> nn.Module:
    return torch.jit.script(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))


@case()
def traced() -> nn.Module:
    inner = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return torch.jit.trace(inner, torch.zeros(2, 3))


@case()
def scripted_part() -> nn.Module:
    return forwarding(lambda m, h: m.c(h), c=torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Tanh())))


@case()
def paths_by_sample() -> nn.Module:
    return forwarding(lambda m, h: torch.where(h[:, :1] > 0, m.c(h), m.d(h)), c=nn.Linear(4, 4), d=nn.Linear(4, 4))


@case()
def experts_by_index() -> nn.Module:
    def middle(m: Any, h: Tensor) -> Tensor:
        return torch.einsum("nij,nj->ni", m.experts[(h[:, 0] > 0).long()], h)

    return forwarding(middle, experts=nn.Parameter(torch.randn(2, 4, 4)))


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
def holds_a_lock() -> nn.Module:
    return net(lock=threading.Lock())


@case()
def plain_tensor_with_a_graph() -> nn.Module:
    model = forwarding(lambda m, h: h * m.t.detach(), g=gain())
    model.t = model.g * 2
    return model


@case()
def two_dtypes() -> nn.Module:
    return forwarding(lambda m, h: m.c(h.double()).to(h.dtype), c=nn.Linear(4, 4).double())


@case()
def convolution_with_a_mask() -> nn.Module:
    mask = torch.tensor([1.0, 0.0, 1.0])
    return forwarding(lambda m, h: m.conv(h[:, None])[:, 0] * 1.0, conv=_masked(nn.Conv1d(1, 1, 3, padding=1), mask))


def _masked(layer: nn.Conv1d, mask: Tensor) -> nn.Conv1d:
    before = layer._conv_forward
    layer._conv_forward = lambda x, w, b: before(x, w * mask.to(w.dtype), b)  # type: ignore[method-assign, assignment]
    return layer
