"""The network under the X-ray: its outputs, its weights, its initial state, and how the weights changed in between."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkscope.core import Inputs, NtkscopeError, UsageError
from ntkscope.core.model.copies import duplicate, own_copy
from ntkscope.data.subsets import stratified
from ntkscope.models import read_weights
from ntkscope.models._weights import without_prefix
from ntkscope.tangent.forward.readout import last_parameters
from ntkscope.tangent.model.batches import as_batch
from ntkscope.tangent.model.selection import select
from ntkscope.tangent.model.state import ModelState
from ntkscope.tangent.model.subject import Subject, place, quiet
from ntkscope.tracking.weights import matrices
from ntkscope.xray.items import Items

BLOCK = 256
ASKED = 256  # items of each side on which the network is asked whether it was trained
FEWER = 3  # times fewer parameters each next choice of the last layers has, at least
Params: TypeAlias = tuple[str, ...] | None  # names or globs of parameters; None: all trainable ones
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def outputs(model: nn.Module, x: Inputs, device: Any = None) -> Float[Tensor, "n c"]:
    """The network's outputs on the CPU in float64, block by block; the model is not changed."""
    found, batch = [], as_batch(x, model)
    with quiet(place(model, device), model), torch.no_grad():
        subject = Subject(model, device=device, still=True)
        for start in range(0, len(batch), BLOCK):
            block = batch[start : start + BLOCK].to(subject.device, subject.dtype)
            found.append(subject(block).detach().double().cpu())
    values = torch.cat(found)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2:
        raise UsageError(f"the model gives outputs of shape {tuple(values.shape)}; expected (n, outputs)")
    if not bool(torch.isfinite(values).all()):
        raise UsageError("the network's outputs hold NaN or infinity; expected a trained network and finite inputs")
    return values


def tried(model: nn.Module, items: Items, what: str, device: torch.device | None) -> Float[Tensor, "n c"]:
    """Outputs for the first items; an error raised by the model is reported with the inputs it got."""
    few = items.take(torch.arange(min(2, len(items))))
    try:
        return outputs(model, few.x, device)
    except NtkscopeError:
        raise
    except Exception as error:
        shapes = ", ".join(f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}" for x in few.tensors)
        raise UsageError(
            f"the model could not be run on inputs of {what} of shape {shapes} ({type(error).__name__}: {error}); expected"
            " inputs as the model was trained with: prepare them so (on the command line --data mydata:data, a function in"
            " mydata.py that returns training and test items)"
        ) from error


def check_trained(model: nn.Module, train: Items, test: Items, *, seed: int, device: Any) -> None:
    """Refuse a network whose predictions have nothing to do with the labels of training and of test items alike."""
    task, found = train.task, []
    for what, items in (("training", train), ("test", test)):
        strata = items.strata
        rows = stratified(strata, max(ASKED, len(np.unique(strata))), seed, "xray", "chance", what)
        taken = items.take(torch.from_numpy(rows))
        values = task.from_outputs(outputs(model, taken.x, device)).numpy()
        said = task.at_chance(values, taken.y.numpy(), f"{what} items")
        if said is None:
            return
        found.append(said)
    raise UsageError(
        f"{task.refusal(found, values.shape[1])}; expected a trained one: load its weights (on the command line --weights),"
        f" check that inputs are prepared as in its training and {task.check_order}, or X-ray it as it is with untrained=True"
        " (--untrained)"
    )


def initial_network(model: nn.Module, initial: Any, x: Inputs) -> nn.Module | None:
    """The network as it was before training, in evaluation mode, from a module, a state dict or a weights file.

    Where it normalises batches, its running moments are those of `x` under the initial weights: the ones a fresh module
    carries (mean 0, variance 1) belong to no data and would make the start look further away than it was.
    """
    if initial is None:
        return None
    if isinstance(initial, nn.Module):
        made = duplicate(initial)
    elif not isinstance(initial, Mapping | str | Path):
        raise UsageError(
            f"initial is a {type(initial).__name__}; expected a module, a state dict or the path of a weights file"
        )
    else:
        made = own_copy(model, "the initial weights are loaded into that copy")
        own = made.state_dict()
        state = without_prefix(dict(initial) if isinstance(initial, Mapping) else read_weights(Path(initial)), own)
        wrong = [key for key, value in own.items() if key not in state and not key.endswith("num_batches_tracked")]
        wrong += [key for key, value in own.items() if key in state and state[key].shape != value.shape]
        if wrong:
            raise UsageError(
                f"the initial weights do not fit {type(model).__name__}: {', '.join(wrong[:8])} are missing or of another"
                " shape; expected the weights of this network before its training"
            )
        made.load_state_dict({key: state[key] for key in own if key in state}, strict=False)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    if {name: tuple(p.shape) for name, p in made.named_parameters()} != shapes:
        raise UsageError("initial is a network with other parameters; expected this network before its training")
    for now, first in zip(model.parameters(), made.parameters()):
        first.requires_grad_(now.requires_grad)
    _recalibrate(made, x)
    return made.eval()


def _recalibrate(model: nn.Module, x: Inputs) -> None:
    """Running moments of batch normalisation from `x`."""
    norms = [module for module in model.modules() if isinstance(module, NORMS) and module.track_running_stats]
    if not norms:
        return
    model.eval()
    batch = as_batch(x, model)
    own = next(p for p in model.parameters())
    for module in norms:
        module.reset_running_stats()
        module.momentum, module.training = None, True
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for start in range(0, min(len(batch), 4 * BLOCK), BLOCK):
            block = batch[start : start + BLOCK]
            if len(block) > 1:
                block = block.to(own.device, own.dtype)
                model(*block.args, **block.kwargs)
    model.eval()


def last_layer(model: nn.Module, items: Items, device: torch.device | None) -> tuple[str, ...]:
    """The parameters of the last affine layer, found by running the model on a few items."""
    few = items.take(torch.arange(min(3, len(items))))
    with quiet(place(model, device), model):
        state, subject = ModelState(model), Subject(model, device=device)
        try:
            return last_parameters(subject, subject.placed(as_batch(few.x, model)))
        finally:
            state.restore(every=True)


def chosen_parameters(model: nn.Module, params: Any, items: Items, device: torch.device | None) -> Params:
    """`params=` of an X-ray: names or globs, or "last" for the last layer's; refused where one matches no parameter."""
    if params is None:
        return None
    if params in ("last", ["last"], ("last",)):
        return last_layer(model, items, device)
    globs = (params,) if isinstance(params, str) else tuple(params) if isinstance(params, list | tuple) else ()
    if not globs or not all(isinstance(glob, str) for glob in globs):
        raise UsageError(f"got params={params!r}; expected names or globs of parameters, 'last', or None for all")
    select(model, globs)
    return globs


def last_blocks(model: nn.Module) -> list[tuple[str, ...]]:
    """The parameters of the last two numbered blocks and of what follows, by name, those of the last one, and those of fewer
    and fewer layers at the end, each time at most a third as many.

    >>> net = nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 9), nn.Linear(9, 2))
    >>> last_blocks(net)
    [('1.weight', '1.bias', '2.weight', '2.bias'), ('2.weight', '2.bias')]
    >>> last_blocks(nn.Sequential(nn.Linear(9, 9), nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 2))))[1:]
    [('1.1.weight', '1.1.bias')]
    """
    sizes = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    names = list(sizes)
    blocks = list(dict.fromkeys(found[0] for name in names if (found := re.match(r".*?\.?\d+(?=\.)", name))))
    starts = [next(i for i, name in enumerate(names) if name.startswith(f"{block}.")) for block in blocks[1:][-2:]]
    layers = [i for i, name in enumerate(names) if i and _layer(name) != _layer(names[i - 1])]
    numbers = {start: sum(sizes[name] for name in names[start:]) for start in (0, *starts, *layers)}
    for start in layers:
        if start > max(starts, default=0) and numbers[start] <= numbers[max(starts, default=0)] / FEWER:
            starts.append(start)
    return [tuple(names[start:]) for start in starts]


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def displacement(initial: nn.Module, model: nn.Module) -> dict[str, Tensor]:
    """`w₁ - w₀` of every trainable parameter, where the initial network lies."""
    first = dict(initial.named_parameters())
    return {
        name: (p.detach().to(first[name].device) - first[name].detach())
        for name, p in model.named_parameters()
        if p.requires_grad and p.is_floating_point()
    }


def chosen_matrices(model: nn.Module, params: Params = None) -> dict[str, nn.Parameter]:
    """The weights that are matrices, frozen ones too; of those that `params` chose, if it did.

    >>> list(chosen_matrices(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), ("1.*",)))
    ['1.weight']
    """
    chosen = None if params is None else select(model, params)
    return {
        name: weight
        for name, weight in matrices(model).items()
        if weight.is_floating_point() and (chosen is None or name in chosen)
    }


def shapes(weights: Mapping[str, Tensor]) -> tuple[tuple[int, int], ...]:
    """Rows and columns of each."""
    return tuple((weight.shape[0], weight[0].numel()) for weight in weights.values())
