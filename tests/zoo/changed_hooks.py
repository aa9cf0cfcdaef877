"""More models that get changed: gradients already there, hooks with state, old-style norms, odd parameters."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from zoo.case import CASES, Made, Net, free
from zoo.changed import D, either, exact, head, refused


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(D, 5), nn.Tanh(), head(5))


@exact("gradients that wait for the optimiser's next step", quick=("",))
def gradients_present() -> Made:
    model = two_layers()
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    return model, torch.randn(6, D)


@exact("gradients of a step that was computed and not yet taken, with momentum in the optimiser")
def model_in_the_middle_of_training() -> Made:
    model, x = two_layers(), torch.randn(6, D)
    step = torch.optim.Adam(model.parameters())
    for _ in range(2):
        step.zero_grad()
        model(x).square().sum().backward()
        step.step()
    return model, x


class Tally:
    """A hook with state."""

    def __init__(self) -> None:
        self.calls, self.kept = 0, []  # type: ignore[var-annotated]

    def __call__(self, module: nn.Module, args: Any, out: Any = None) -> None:
        self.calls += 1
        self.kept.append(len(args[0]))


@exact("hooks that count", each={"forward": True, "before": False})
def hooks_that_count(after: bool) -> Made:
    model = two_layers()
    (model[0].register_forward_hook if after else model[0].register_forward_pre_hook)(Tally())
    return model, torch.randn(6, D)


@exact("a hook that removes itself at its first call")
def hook_that_removes_itself() -> Made:
    model = two_layers()

    def once(module: nn.Module, args: Any, out: Tensor) -> None:
        handle.remove()

    handle = model[0].register_forward_hook(once)
    return model, torch.randn(6, D)


@exact("a forward hook that adds a hook at its first call")
def hook_that_adds_hooks() -> Made:
    model = two_layers()
    model[0].register_forward_hook(lambda m, a, o: m.__dict__.setdefault("seen", []).append(1))
    return model, torch.randn(6, D)


def _on_output(calls: list[int], module: nn.Module, args: Any, out: Tensor) -> None:
    if out.requires_grad:
        out.register_hook(lambda g: calls.append(1))


@exact("hooks of the backward pass that count", each={"module": 0, "parameter": 1, "output": 2})
def backward_hooks_that_count(kind: int) -> Made:
    model = two_layers()
    calls: list[int] = []
    model.calls = calls  # type: ignore[assignment]
    if kind == 0:
        model[0].register_full_backward_hook(lambda m, i, o: calls.append(1))
    elif kind == 1:
        model[0].weight.register_hook(lambda g: calls.append(1))
    else:
        model[0].register_forward_hook(partial(_on_output, calls))
    return model, torch.randn(6, D)


@exact("gradients accumulate into .grad through post-accumulate hooks only in training")
def post_accumulate_hooks() -> Made:
    model = two_layers()
    step = torch.optim.SGD(model.parameters(), lr=0.5)

    def now(p: Tensor) -> None:
        step.step()
        step.zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(now)
    return model, torch.randn(6, D)


@exact("old-style norms keep the weight they computed as an attribute", each=(1, 2))
def old_style_weight_norm(layers: int) -> Made:
    parts = [torch.nn.utils.weight_norm(nn.Linear(D, D)) for _ in range(layers)]
    return nn.Sequential(*parts, nn.Tanh(), head()), torch.randn(6, D)


@exact("old-style spectral norm in eval mode")
def old_style_spectral_norm() -> Made:
    return nn.Sequential(torch.nn.utils.spectral_norm(nn.Linear(D, D)), nn.Tanh(), head()), torch.randn(6, D)


@either("spectral norm in training mode moves its vectors at every run, so outputs change", train=True)
def spectral_norm_in_training() -> Made:
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(D, D)), nn.Tanh(), head()), torch.randn(6, D)


@exact("lazy modules that were run once are ordinary ones")
def lazy_linear_materialised() -> Made:
    model = nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.LazyLinear(3))
    model(torch.randn(2, D))
    return model, torch.randn(6, D)


@refused("lazy modules that were never run have no parameters yet, and must not get any")
def lazy_linear_not_materialised() -> Made:
    return nn.Sequential(nn.Linear(D, 5), nn.LazyLinear(3)), torch.randn(6, D)


@exact("the ordinary copy of the next case")
def ordinary_parameters() -> Made:
    return two_layers(), torch.randn(6, D)


@either(
    "parameters made in inference mode cannot be differentiated as they are", twin=CASES["ordinary_parameters"].make
)
def inference_parameters() -> Made:
    model, x = two_layers(), torch.randn(6, D)
    with torch.inference_mode():
        for module in (model[0], model[2]):
            module.weight = nn.Parameter(module.weight.clone())
            module.bias = nn.Parameter(module.bias.clone())
    return model, x


@exact("parameters that are not contiguous", each={"linear": 0, "channels last": 1, "strided": 2})
def non_contiguous_parameters(kind: int) -> Made:
    if kind == 1:
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))
        return model.to(memory_format=torch.channels_last), torch.randn(6, 2, 4, 4)  # type: ignore[call-overload]
    model = two_layers()
    if kind == 0:
        model[0].weight = nn.Parameter(torch.randn(D, 5).t())
    else:
        model[0].weight = nn.Parameter(torch.randn(5, 2 * D)[:, ::2])
    return model, torch.randn(6, D)


@exact("two parameters that are views of one storage (flattened weights)")
def parameters_sharing_one_storage() -> Made:
    flat = torch.randn(5 * D + 5)
    model = two_layers()
    model[0].weight, model[0].bias = nn.Parameter(flat[: 5 * D].view(5, D)), nn.Parameter(flat[5 * D :])
    return model, torch.randn(6, D)


@either("overlapping parameters: writing one writes the other, gradients are apart")
def overlapping_parameters() -> Made:
    flat = torch.randn(D + 2)
    a, b = nn.Parameter(flat[:D]), nn.Parameter(flat[2:])
    return Net(lambda m, x: m.head((x * m.a).tanh() * m.b), a=a, b=b, head=head()), torch.randn(6, D)


@exact("frozen parts, an unused part, a parameter that is None and a buffer that is None")
def frozen_unused_and_missing() -> Made:
    model = Net(lambda m, x: m.head(m.a(x).tanh()), a=nn.Linear(D, D, bias=False), idle=nn.Linear(2, 2), head=head())
    model.register_parameter("none", None)
    model.register_buffer("nothing", None)
    model.a.requires_grad_(False)
    return model, torch.randn(6, D)


@exact("an attribute named like functional machinery: training, device, dtype", each={"a": "dtype", "b": "params"})
def awkward_attribute_names(name: str) -> Made:
    model = Net(lambda m, x: m.head(m.a(x).tanh()), a=nn.Linear(D, D), head=head())
    setattr(model, name, "mine")
    return model, torch.randn(6, D)


@exact("slots and properties: a module whose parameter is reached through a property")
def parameter_behind_a_property() -> Made:
    class Guarded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._w = free(D, D)
            self.head = head()

        @property
        def w(self) -> Tensor:
            return self._w * 2

        def forward(self, x: Tensor) -> Tensor:
            return self.head((x @ self.w).tanh())

    return Guarded(), torch.randn(6, D)
