"""Which parameters of a model count: all that are trainable, or those that a glob, a predicate or "last" chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from torch import nn

from ntkscope.core import UsageError

SHOWN = 24  # names in an error
Selection: TypeAlias = str | Sequence[str] | Callable[[str], bool] | None


def select(model: nn.Module, params: Selection, last: Sequence[str] = ()) -> dict[str, nn.Parameter]:
    """The trainable parameters that `params` names: a glob or globs, "last", a predicate on the name, or None for all."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise UsageError(
            f"got a model wrapped in {type(model).__name__}, which runs copies of it; expected the model itself: pass"
            " model.module"
        )
    check_built(model)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise UsageError(
            f"{type(model).__name__} has no trainable parameter; a tangent kernel needs at least one: build the model with"
            " parameters, or unfreeze some with model.requires_grad_(True)"
        )
    chosen = _chosen(model, trainable, params, last)
    for name, parameter in chosen.items():
        if not parameter.is_floating_point():
            raise UsageError(
                f"parameter {name} holds {str(parameter.dtype).removeprefix('torch.')} numbers; expected real floating-point"
                " ones: keep it as torch.view_as_real(...), or leave it out with params="
            )
    return chosen


def check_built(model: nn.Module) -> None:
    """Lazy modules have no parameters before they were run."""
    lazy = [name for name, p in model.named_parameters() if nn.parameter.is_lazy(p)]
    if lazy:
        raise UsageError(
            f"parameters {', '.join(lazy)} of {type(model).__name__} are not there yet (lazy modules); expected a model that"
            " is built: run it once on a sample of its inputs first"
        )


def _chosen(
    model: nn.Module, trainable: dict[str, nn.Parameter], params: Selection, last: Sequence[str]
) -> dict[str, nn.Parameter]:
    if params is None:
        return trainable
    if isinstance(params, str) and params == "last":
        chosen = {name: p for name, p in trainable.items() if name in set(last)}
        wanted = "the last affine layer"
    elif callable(params):
        chosen = {name: p for name, p in trainable.items() if params(name)}
        wanted = "the predicate"
    else:
        globs = [params] if isinstance(params, str) else list(params) if isinstance(params, Iterable) else [params]
        if not globs or not all(isinstance(glob, str) for glob in globs):
            raise UsageError(
                f"got params={params!r}, which chooses no parameter; expected a name or glob, several of them, a predicate on"
                " names, or None for all trainable parameters"
            )
        every = _all_names(model)
        chosen = {
            name: p for name, p in trainable.items() if any(fnmatchcase(n, g) for n in every[id(p)] for g in globs)
        }
        unmatched = [
            glob for glob in globs if not any(fnmatchcase(n, glob) for p in trainable.values() for n in every[id(p)])
        ]
        wanted = ", ".join(map(repr, unmatched))
        if not unmatched:
            return chosen
        chosen = {}
    if not chosen:
        some = (
            list(trainable) if len(trainable) <= SHOWN else [*list(trainable)[:SHOWN], f"… ({len(trainable):,} in all)"]
        )
        raise UsageError(f"no trainable parameter matches {wanted}; there are: {', '.join(some)}")
    return chosen


def _all_names(model: nn.Module) -> dict[int, list[str]]:
    """Every name of every parameter: a tied one has several."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return names
