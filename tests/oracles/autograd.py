"""Per-sample gradients in float64 with nothing but `torch.autograd.grad`: the ground every fast road stands on.

One sample and one output at a time, on a float64 copy of the model, always as a batch of one. Slow on purpose.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

Jacobian = dict[str, Tensor]  # parameter name -> (n, c, *shape of the parameter)
Selection = str | Sequence[str] | Callable[[str], bool] | None


def samples(x: Any) -> Iterator[Any]:
    """The samples of a tensor, a tuple or a mapping of tensors, each kept as a batch of one."""
    first = x if isinstance(x, Tensor) else next(iter(x.values() if isinstance(x, Mapping) else x))
    for i in range(len(first)):
        if isinstance(x, Tensor):
            yield x[i : i + 1]
        elif isinstance(x, Mapping):
            yield {key: value[i : i + 1] for key, value in x.items()}
        else:
            yield tuple(value[i : i + 1] for value in x)


def double(x: Any) -> Any:
    """Floating-point tensors as float64; integers and masks as they are."""
    if isinstance(x, Tensor):
        return x.detach().to(torch.float64) if x.is_floating_point() else x
    if isinstance(x, Mapping):
        return {key: double(value) for key, value in x.items()}
    return tuple(double(value) for value in x)


def call(model: nn.Module, x: Any) -> Tensor:
    """Tensors are the one argument, tuples are positional arguments, mappings are keywords."""
    if isinstance(x, Tensor):
        return model(x)
    return model(**x) if isinstance(x, Mapping) else model(*x)


def in_double(model: nn.Module) -> nn.Module:
    """A float64 copy; shared parameters stay shared and the training flags stay as they are."""
    return copy.deepcopy(model).double()


AFFINE = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


def readout(model: nn.Module, x: Any) -> tuple[str, nn.Module, Tensor]:
    """The name of the last affine module called, the module, and its input for the one sample `x`."""
    last: list[tuple[str, nn.Module, Tensor]] = []
    handles = [
        module.register_forward_pre_hook(
            lambda m, args, kwargs, name=name: last.append((name, m, [*args, *kwargs.values()][0].detach())),
            with_kwargs=True,
        )
        for name, module in model.named_modules()
        if isinstance(module, AFFINE) or type(module).__name__ == "Conv1D"
    ]
    call(model, x)
    for handle in handles:
        handle.remove()
    return last[-1]


def chosen_parameters(model: nn.Module, selection: Selection, x: Any) -> dict[str, nn.Parameter]:
    """Trainable parameters by their (first) name, restricted by globs, "last" or a predicate."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if selection is None:
        return trainable
    if selection == "last":
        _, module, _ = readout(model, next(samples(x)))
        own = {id(p) for p in module.parameters()}  # a shared parameter goes by its first name
        return {name: p for name, p in trainable.items() if id(p) in own}
    if callable(selection):
        return {name: p for name, p in trainable.items() if selection(name)}
    patterns = [selection] if isinstance(selection, str) else list(selection)
    return {name: p for name, p in trainable.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}


def gradients(output: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """d output / d tensor for each tensor, zeros where there is no path."""
    if not output.requires_grad:
        return [torch.zeros_like(t) for t in tensors]
    found = torch.autograd.grad(output, list(tensors), retain_graph=True, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g.to_dense() for g, t in zip(found, tensors)]


def jacobian(model: nn.Module, x: Any, params: Selection = None, outputs: Sequence[int] | None = None) -> Jacobian:
    """d f_c(x_i) / d θ for every sample, chosen output and chosen parameter: name -> (n, c, *shape).

    >>> model = nn.Linear(2, 1, bias=False)
    >>> jacobian(model, torch.tensor([[3.0, 5.0]]))["weight"].tolist()
    [[[[3.0, 5.0]]]]
    """
    model, x = in_double(model), double(x)
    chosen = chosen_parameters(model, params, x)
    rows: dict[str, list[Tensor]] = {name: [] for name in chosen}
    with torch.enable_grad():
        for sample in samples(x):
            f = call(model, sample)
            wanted = range(f.shape[1]) if outputs is None else outputs
            per_output = [gradients(f[0, c], list(chosen.values())) for c in wanted]
            for index, name in enumerate(chosen):
                rows[name].append(torch.stack([g[index] for g in per_output]))
    return {name: torch.stack(value).detach() for name, value in rows.items()}


def flat(j: Jacobian) -> Tensor:
    """All parameters in one row: (n, c, p)."""
    return torch.cat([value.reshape(*value.shape[:2], -1) for value in j.values()], dim=2)
