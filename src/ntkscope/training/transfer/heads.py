"""The head of a network: the linear layer whose result is the network's outputs, and what it is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkscope.core import Inputs, Part, UsageError, derive_seed
from ntkscope.core.model.calling import call
from ntkscope.core.model.tree import length
from ntkscope.training.evaluation import evaluating

FEW = 4  # items the head is found on


@dataclass(eq=False)
class _Calls:
    """What each watched linear layer was given and returned, in one call of the network."""

    given: dict[str, list[Tensor]] = field(default_factory=dict)
    returned: dict[str, list[Tensor]] = field(default_factory=dict)


@contextmanager
def _watched(layers: dict[str, nn.Linear]) -> Iterator[_Calls]:
    calls, hooks = _Calls(), []
    for name, layer in layers.items():

        def keep(module: nn.Module, args: tuple[Tensor, ...], result: Tensor, name: str = name) -> None:
            calls.given.setdefault(name, []).append(args[0])
            calls.returned.setdefault(name, []).append(result)

        hooks.append(layer.register_forward_hook(keep))
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def find_head(model: nn.Module, x: Inputs, name: str | None = None) -> str:
    """The name of the linear layer whose result is what `model` returns for `x`; a given `name` is checked.

    >>> find_head(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)), torch.eye(2))
    '2'
    """
    layers = {key: module for key, module in model.named_modules() if type(module) is nn.Linear}
    if name is not None and name not in layers:
        raise UsageError(
            f"got head={name!r}, which is no nn.Linear of {type(model).__name__}; expected one of:"
            f" {', '.join(list(layers)[-8:]) or 'none, it has no nn.Linear'}"
        )
    watched = layers if name is None else {name: layers[name]}
    with evaluating(model), torch.no_grad(), _watched(watched) as calls:
        outputs = call(model, x)
    found = [key for key, results in calls.returned.items() if _same(results[-1], outputs)]
    if not found:
        raise UsageError(
            f"the outputs of {type(model).__name__} are not the result of "
            + ("any of its nn.Linear layers" if name is None else f"its layer {name!r}")
            + "; expected a network that ends in one linear readout: put one on top, nn.Sequential(body, nn.Linear(...)), or"
            " ntkscope.models.build('text', encoder=...) for texts"
        )
    key = found[-1]
    if len(calls.returned[key]) > 1:
        raise UsageError(f"the layer {key!r} is called {len(calls.returned[key])} times; expected a head called once")
    shared = [other for other, value in model.named_parameters(remove_duplicate=False) if value is layers[key].weight]
    if len(shared) > 1:
        raise UsageError(f"the weights of the head are also {' and '.join(shared[:3])}; expected a head with its own")
    return key


def _same(result: Tensor, outputs: Tensor) -> bool:
    return result.shape == outputs.shape and result.ndim == 2 and torch.equal(result, outputs)


def replace_head(model: nn.Module, name: str, classes: int | None, seed: int) -> nn.Module:
    """`model` with a new head in the place of the old one, drawn from `seed`; `classes=None` keeps the number of outputs."""
    old = model.get_submodule(name)
    assert isinstance(old, nn.Linear)
    outputs = old.out_features if classes is None else classes
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed, "head"))
        new = nn.Linear(old.in_features, outputs, bias=old.bias is not None)
    new = new.to(old.weight).requires_grad_(True)
    if not name:
        return new
    model.set_submodule(name, new)
    return model


def head_inputs(model: nn.Module, name: str, x: Inputs, *, batch_size: int = 256) -> Float[Tensor, "n d"]:
    """What the head is given for each item, in evaluation mode, on the network's device; O(n) forward passes."""
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    part = Part(x, torch.zeros(length(x)))
    rows = []
    with evaluating(model), torch.no_grad():
        for start in range(0, len(part), batch_size):
            batch = part.take(torch.arange(start, min(start + batch_size, len(part)))).to(layer.weight.device)
            with _watched({name: layer}) as calls:
                outputs = call(model, batch.x)
            if len(calls.given.get(name, ())) != 1 or not _same(calls.returned[name][0], outputs):
                raise UsageError(
                    f"the outputs of {type(model).__name__} are not the result of {name!r} for items {start} to"
                    f" {start + len(batch) - 1}, as they were for the first ones; expected one readout for all inputs"
                )
            rows.append(calls.given[name][0].detach().clone())
    return torch.cat(rows)
