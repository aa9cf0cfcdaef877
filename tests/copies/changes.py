"""Changes that a caller makes to a model between two calls; each raises `Inapplicable` where the model has no such part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Change = Callable[[Any], None]


class Inapplicable(Exception):
    """The model has nothing of the kind."""


def parameters(model: nn.Module) -> list[nn.Parameter]:
    found = [p for p in model.parameters() if p.requires_grad]
    if not found:
        raise Inapplicable
    return found


def part(model: nn.Module) -> tuple[str, Any]:
    """The first child that is a linear layer of plain parameters, with its name."""
    for name, child in model.named_children():
        if type(child) is nn.Linear:
            return name, child
    raise Inapplicable


def dynamic(model: nn.Module) -> None:
    if isinstance(model, torch.jit.ScriptModule):
        raise Inapplicable


def weight_in_place(model: Any) -> None:
    with torch.no_grad():
        parameters(model)[0].add_(0.3)


def weight_data(model: Any) -> None:
    one = parameters(model)[-1]
    one.data = one.data * 1.3


def weight_replaced(model: Any) -> None:
    dynamic(model)
    _, child = part(model)
    child.weight = nn.Parameter(child.weight.detach() * 1.2)


def own_parameter_replaced(model: Any) -> None:
    dynamic(model)
    for name, value in model._parameters.items():
        if value is not None:
            setattr(model, name, nn.Parameter(value.detach() * 1.2))
            return
    raise Inapplicable


def state_loaded(model: Any) -> None:
    state = {k: v * 0.9 if v.is_floating_point() else v for k, v in model.state_dict().items()}
    model.load_state_dict(state)


def buffers_written(model: Any) -> None:
    floating = [b for b in model.buffers() if b.is_floating_point()]
    if not floating:
        raise Inapplicable
    floating[0].mul_(1.1)


def hook_added(model: Any) -> None:
    model.register_forward_hook(lambda module, args, out: out * 1.4)


def hook_of_a_part_added(model: Any) -> None:
    part(model)[1].register_forward_hook(lambda module, args, out: out * 1.2)


def hooks_removed(model: Any) -> None:
    dynamic(model)
    hooked = [m for m in model.modules() if m._forward_hooks]
    if not hooked:
        raise Inapplicable
    hooked[-1]._forward_hooks.popitem()


def pre_hook_added(model: Any) -> None:
    model.register_forward_pre_hook(lambda module, args: (args[0] * 1.1,))


def hook_over_a_weight_added(model: Any) -> None:
    _, child = part(model)
    model.register_forward_hook(lambda module, args, out: out * child.weight.sum())


def forward_patched(model: Any) -> None:
    dynamic(model)
    before = model.forward
    model.forward = lambda *args: 0.7 * before(*args)


def forward_of_a_part_patched(model: Any) -> None:
    _, child = part(model)
    before = child.forward
    child.forward = lambda x: before(x) + 0.2 * x.sum(1, keepdim=True)


def class_swapped(model: Any) -> None:
    dynamic(model)
    kind = type(model)
    if "forward" in vars(model):
        raise Inapplicable

    class Swapped(kind):  # type: ignore[valid-type,misc]
        def forward(self, x: Tensor) -> Tensor:
            return 1.6 * super().forward(x)

    model.__class__ = Swapped


def part_swapped(model: Any) -> None:
    dynamic(model)
    name, child = part(model)
    with torch.random.fork_rng():
        torch.manual_seed(11)
        other = nn.Linear(child.in_features, child.out_features)
    setattr(model, name, other.to(child.weight.dtype))


def one_frozen(model: Any) -> None:
    if len(parameters(model)) < 2:
        raise Inapplicable
    parameters(model)[0].requires_grad_(False)


def all_unfrozen(model: Any) -> None:
    if all(p.requires_grad for p in model.parameters()):
        raise Inapplicable
    model.requires_grad_(True)


def part_in_training_mode(model: Any) -> None:
    part(model)[1].train()


def gradient_hook_added(model: Any) -> None:
    parameters(model)[0].register_hook(lambda grad: grad * 2)


def backward_hook_added(model: Any) -> None:
    dynamic(model)
    part(model)[1].register_full_backward_hook(
        lambda module, before, after: tuple(b * 0.5 for b in before if b is not None)
    )


def part_in_another_dtype(model: Any) -> None:
    _, child = part(model)
    before, kind = child.forward, child.weight.dtype
    child.to(torch.float64 if kind == torch.float32 else torch.float32)
    child.forward = lambda x: before(x.to(child.weight.dtype)).to(kind)


ALL = (
    weight_in_place, weight_data, gradient_hook_added, hook_added, hook_of_a_part_added,
    hook_over_a_weight_added, pre_hook_added, hooks_removed, forward_patched, forward_of_a_part_patched,
    weight_replaced, own_parameter_replaced, state_loaded, buffers_written, class_swapped, part_swapped,
    one_frozen, all_unfrozen, part_in_training_mode, backward_hook_added, part_in_another_dtype,
)  # fmt: skip
CHANGES: dict[str, Change] = {change.__name__: change for change in ALL}
