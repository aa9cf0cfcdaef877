"""`replay`: how the end of a training depends on every training point, rate, weight decay and initial parameter."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkscope.core import NumericalError, Params, Snapshot, UsageError, generator
from ntkscope.core.arguments import plain_array
from ntkscope.core.checked import CountOrZero, Positive
from ntkscope.core.errors import RecordError
from ntkscope.core.files.atomic import remove_leftovers
from ntkscope.core.files.lock import FolderLock
from ntkscope.core.identity import identity
from ntkscope.core.progress import Progress, counter
from ntkscope.core.shown import Shown
from ntkscope.core.sizes import parse_bytes
from ntkscope.training.evaluation import evaluating
from ntkscope.training.replays.certificate import ReplayCertificate
from ntkscope.training.replays.loop import Loop
from ntkscope.training.replays.products import Products
from ntkscope.training.replays.recorded import RecordedFit
from ntkscope.training.replays.states import States
from ntkscope.training.replays.sweep import way_back
from ntkscope.training.snapshots import restore
from ntkscope.training.trajectory import Trajectory

Function = Callable[[nn.Module], Tensor]
DIFFERENCE = {torch.float64: 1e-6}  # of the weights, in central differences
COARSE = 5e-2  # in other precisions, where rounding alone moves a training more than a smaller difference would
TRUSTED = 0.5  # relative error of the derivative against retrainings above which a replay warns
ELSEWHERE = 1e-2  # of the way from the start, by which the training may end elsewhere on another machine


@dataclass(frozen=True, eq=False, repr=False)
class Replay(Shown):
    """How k functions of a trained network depend on its training, to first order at the weights `at` of the items.

    `weights`: on the weight of every training point; `rate`: on the logarithm of every step's rate; `decay`: on the weight
    decay; `initial`: on the initial parameters. `values`: the functions after the training with the weights `at`.
    """

    values: Float[Tensor, " k"]
    weights: Float[Tensor, "k n"]
    rate: Float[Tensor, "k t"]
    decay: Float[Tensor, " k"]
    initial: Params
    at: Float[Tensor, " n"]
    certificate: ReplayCertificate
    loop: Loop = field(repr=False)
    of: Function = field(repr=False)
    _shown = ("values", "weights", "rate", "certificate")

    def retrained(self, weights: Any) -> Float[Tensor, " k"]:
        """The functions after one more training, at the rates that it had, with these weights, one per item: 0 for one that is
        removed."""
        loop = copy.copy(self.loop)
        loop.pace = 1.0
        return _after(loop, self.of, _weights(weights, loop))


def replay(
    training: Trajectory | Loop,
    of: Function,
    *,
    at: Any = 1.0,
    rate: Positive = 1.0,
    directions: CountOrZero = 1,
    memory: str | int | float = "2GiB",
    store: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Replay:
    """The derivative of functions of a trained network with respect to its training, through every step of it.

    `training`: what `fit(…, store=DIR)` returned, finished, or a `Loop` of your own. `of(model)` gives k numbers, (k,) or
    one, of the trained network in evaluation mode. The training runs again, every item's loss times `at` (a number, or one
    per item), and is then gone through backwards: `λ_t = (∂s_{t+1} / ∂s_t)ᵀ λ_{t+1}` for the state s of parameters and
    moments, `∂f / ∂w_i = Σ_t λ_{t+1}ᵀ ∂s_{t+1} / ∂w_i`. At 1 this is the derivative at the training as it was; at the share
    of points that stay when some are removed at random it predicts best what their removal does. Adam does not see the scale
    of a loss: there the same is had with all rates times that share, `rate=`.

    Cost: the training, once or twice, and per step and function two trainings' worth of arithmetic. `memory` holds states,
    adjoints and products; `store=DIR` keeps states there, and a replay that was killed is resumed to the same bits.
    `directions`: how often the derivative is compared with central differences of two retrainings (`.certificate`).

    Assumed: steps, batches, augmentation and dropout masks stay what they were. ReLU, max pooling and clipping have kinks,
    where the derivative is that of the side the training was on. Refused: optimizers but SGD, Adam and AdamW, running
    statistics, autocast, and a training whose steps, computed again, differ.

    Examples:
        >>> import tempfile
        >>> from ntkscope.core import Part
        >>> from ntkscope.training.fit import fit
        >>> part = Part(torch.tensor([[1.0], [1.0]]), torch.tensor([2.0, 4.0]))
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.zeros_(model.weight)
        >>> training = fit(model, part, loss="mse", lr=0.25, steps=3, store=tempfile.mkdtemp() + "/fit")
        >>> _ = training.final()
        >>> found = replay(training, lambda model: model.weight.flatten())
        >>> found.weights, found.values, found.certificate.relative_error < 0.01
        (tensor([[0.1250, 1.0000]]), tensor([2.6250]), True)
    """
    loop = RecordedFit(training) if isinstance(training, Trajectory) else copy.copy(training)
    if not isinstance(loop, Loop):
        raise UsageError(
            f"got a training of type {type(training).__name__}; expected what fit(…, store=DIR) returned, or a Loop"
        )
    loop.pace = rate
    on, budget = _weights(at, loop), parse_bytes(memory)
    folder = None if store is None else Path(store)
    told = "" if folder is None else identity(loop.told(), on, rate)
    with _opened(folder), counter(loop.steps * (2 + 2 * directions), "replay", progress) as bar:
        states = States(loop, on, budget, folder, told, bar)
        reproduced = _reproduced(loop, states.last, on)
        values, end = _end(loop, of, states.last)
        found, products = way_back(states, end, budget, folder, identity(told, *end.values()), bar)
        certificate = _certified(loop, of, on, found.weights, products, directions, seed, reproduced, bar)
    if certificate.relative_error > TRUSTED:
        warnings.warn(
            f"of what two retrainings do the derivative misses {certificate.relative_error:.0%} ({certificate!r}): the"
            " training is too rough to be described to first order; average over seeds, or train at lower rates",
            RuntimeWarning,
            stacklevel=2,
        )
    return Replay(values, found.weights, found.rate, found.decay, found.initial, on, certificate, loop, of)


def _after(loop: Loop, of: Function, weights: Tensor, bar: Progress[int] | None = None) -> Float[Tensor, " k"]:
    """The functions after the training with these weights."""
    last = loop.start
    for state in loop.path(loop.start, loop.steps, weights):
        last = state
        if bar is not None:
            bar.advance()
    return _asked(loop, of, last).detach()


def _end(loop: Loop, of: Function, state: Snapshot) -> tuple[Float[Tensor, " k"], Params]:
    """The functions of the trained network, and their gradients."""
    names, parameters = zip(*loop.model.named_parameters())
    wanted = [parameter.requires_grad for parameter in parameters]
    try:
        with torch.enable_grad():
            for parameter in parameters:
                parameter.requires_grad_(True)
            values = _asked(loop, of, state)
            if not values.requires_grad:
                raise UsageError(
                    "of(model) does not depend on the model's parameters; expected numbers made of its outputs"
                )
            rows = [
                torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
                for value in values
            ]
    finally:
        for parameter, own in zip(parameters, wanted):
            parameter.requires_grad_(own)
    return values.detach(), {name: torch.stack(part) for name, part in zip(names, zip(*rows))}


def _asked(loop: Loop, of: Function, state: Snapshot) -> Float[Tensor, " k"]:
    restore(loop.model, state)
    with evaluating(loop.model):
        values = of(loop.model)
    if not isinstance(values, Tensor) or not values.is_floating_point() or values.ndim > 1 or not values.numel():
        got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise UsageError(f"of(model) returned {got}; expected a tensor of k real numbers, (k,) or ()")
    if not bool(torch.isfinite(values).all()):
        raise NumericalError("of(model) returned NaN or infinity; expected finite numbers of the trained network")
    return values.reshape(-1).clone()  # a view of a parameter would change with it


def _certified(
    loop: Loop,
    of: Function,
    at: Tensor,
    by_weight: Tensor,
    products: Products,
    directions: int,
    seed: int,
    reproduced: bool | None,
    bar: Progress[int],
) -> ReplayCertificate:
    """Central differences along random signs; what the way back was compared with."""
    size = DIFFERENCE.get(by_weight.dtype, COARSE)
    predicted, measured = (by_weight.new_empty(directions, len(by_weight)).cpu() for _ in range(2))
    for number in range(directions):
        draw = generator(seed, "replay", "direction", number)
        signs = (torch.randint(0, 2, (loop.items,), generator=draw) * 2 - 1).to(at)
        up, down = (_after(loop, of, at + sign * size * signs, bar) for sign in (1, -1))
        predicted[number], measured[number] = by_weight @ signs, (up - down) / (2 * size)
    apart, rounding, differences = (max((check[i] for check in products.checks), default=0.0) for i in (1, 2, 3))
    way = products.way + (f", since {products.reason}" if products.reason else "")
    return ReplayCertificate(predicted, measured, size, apart, rounding, differences, reproduced, way)


def _reproduced(loop: Loop, last: Snapshot, weights: Tensor) -> bool | None:
    """Whether the training ended in the recorded bits; an error where it ended elsewhere."""
    final = loop.final
    if final is None or loop.pace != 1 or not bool((weights == 1).all()):
        return None
    if all(torch.equal(last.params[name], value) for name, value in final.items()):
        return True
    apart, moved = (
        sum(float((one.params[name] - value).double().square().sum()) for name, value in final.items()) ** 0.5
        for one in (last, loop.start)
    )
    if not apart <= ELSEWHERE * moved:
        raise RecordError(
            f"the training, run again, ended {apart:.2g} from where it had ended, {moved:.2g} from its start; expected the"
            " machine, threads, network and functions that it was recorded with"
        )
    return False


def _opened(folder: Path | None) -> AbstractContextManager[object]:
    if folder is None:
        return nullcontext()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"cannot create the folder {folder}: {error}; choose another one") from error
    remove_leftovers(folder)
    return FolderLock(folder)


def _weights(at: Any, loop: Loop) -> Float[Tensor, " n"]:
    some = next(iter(loop.start.params.values()))
    values = plain_array(at, "at")
    if values.dtype.kind not in "fiu":
        raise UsageError(f"got weights {at!r:.60}; expected a number ≥ 0, or one per training point, ({loop.items},)")
    weights = torch.as_tensor(values, dtype=some.dtype, device=some.device)
    if weights.shape not in ((), (loop.items,)) or not bool(torch.isfinite(weights).all()) or bool((weights < 0).any()):
        raise UsageError(
            f"got weights of shape {tuple(weights.shape)}; expected a number ≥ 0, or one per training point, ({loop.items},)"
        )
    return weights.expand(loop.items).clone()
