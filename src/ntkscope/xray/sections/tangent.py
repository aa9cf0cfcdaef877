"""Last layer and tangent: how the network does on held-out items once its readout, or its linearisation, is solved anew."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from ntkscope.core import NumericalError, Part, UsageError
from ntkscope.core.arguments import one_hot
from ntkscope.core.model.calling import call
from ntkscope.core.model.tree import move, take
from ntkscope.data.subsets import stratified
from ntkscope.kernels.costs import every_pair_of_outputs
from ntkscope.machines import retrain_last_layer
from ntkscope.surrogates import linearize
from ntkscope.tangent.model.selection import select
from ntkscope.xray.context import ALPHA, Context, subset
from ntkscope.xray.network import BLOCK, outputs
from ntkscope.xray.plan import EXACT
from ntkscope.xray.registry import Finding, Section, Skip, register
from ntkscope.xray.result import Result
from ntkscope.xray.task import CLASSIFICATION
from ntkscope.xray.workload import Workload

ROWS = 3000  # training items × outputs: the size of the system that is solved
SOLVED = 3e-5  # of the first gradient: what may be left in the network's own precision; losses are 10 × less sure
Z = 1.959963984540054  # of a 95 % interval


@dataclass(frozen=True)
class Reading(Result):
    """One way to read the network: "network", "readout" or "tangent"; `_low` and `_high` are 95 % intervals over test items.

    `loss` is the squared error on held-out items, `agreement` the share of them on which it predicts the network's own class.
    """

    name: str
    loss: float
    loss_low: float
    loss_high: float
    accuracy: float
    agreement: float


@dataclass(frozen=True)
class Tangent(Result):
    """The readings in order, on how many training items the two were solved, and why one of them was not."""

    readings: tuple[Reading, ...]
    items: int
    parameters: int
    ridge: float
    refused: Mapping[str, str]


def run(context: Context) -> Finding[Tangent]:
    if context.params is not None and set(select(context.model, context.params)) <= set(context.last_layer):
        raise Skip("the kernels differentiate by the last layer alone, so that the tangent is the last layer")
    answers = outputs(context.model, context.test.x, context.device)
    width = answers.shape[1]
    rows = stratified(context.y_train, _items(width, len(context.classes)), context.seed, "xray", "tangent")
    part = subset(context.train, rows)
    part = Part(part.x, targets(part.y, width).to(answers.dtype))
    ridge = ALPHA * float(context.pair(EXACT).train.diagonal().double().mean()) / width
    goal = targets(context.test.y, width)
    readings = [_reading("network", bounded(answers), goal, answers)]
    refused: dict[str, str] = {}
    modes: dict[str, Callable[[], Tensor]] = {
        "readout": lambda: outputs(
            retrain_last_layer(context.model, part, alpha=ridge, device=context.device), context.test.x, context.device
        ),
        "tangent": lambda: _tangent(context, part, ridge),
    }
    for name, solve in modes.items():
        try:
            readings.append(_reading(name, solve(), goal, answers))
        except (UsageError, NumericalError) as why:
            refused[name] = str(why)
    if len(readings) == 1:
        raise Skip("neither the readout nor the tangent could be solved: " + "; ".join(refused.values()))
    moving = sum(p.numel() for p in select(context.model, context.params).values())
    found = Tangent(tuple(readings), len(rows), moving, ridge, refused)
    return Finding(found, _confidence(found, context))


def _confidence(found: Tangent, context: Context) -> str:
    said = f"Intervals are 95 % over the {len(context.y_test):,} test items. Both were solved on {found.items:,} training items"
    if found.items < len(context.y_train):
        said += f", a stratified part of the {len(context.y_train):,} in use; with more items both improve"
    return said + ". They minimise a squared error, whatever the network itself was trained with."


def _items(width: int, classes: int) -> int:
    return max(ROWS // width, classes)


def targets(y: Tensor, width: int) -> Float64[Tensor, "n c"]:
    """One-hot rows, or -1 and 1 for a single output.

    >>> targets(torch.tensor([0, 1]), 1).tolist()
    [[-1.0], [1.0]]
    """
    if width == 1:
        return (2.0 * y.double() - 1.0)[:, None]
    return one_hot(y, width)


def bounded(answers: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
    """The network's outputs on the scale of the targets: probabilities, or 2σ(z) - 1 for a single output.

    >>> bounded(torch.zeros(1, 2)).tolist(), bounded(torch.zeros(1, 1)).tolist()
    ([[0.5, 0.5]], [[0.0]])
    """
    return torch.tanh(answers / 2) if answers.shape[1] == 1 else answers.softmax(1)


def _reading(name: str, found: Tensor, goal: Tensor, answers: Tensor) -> Reading:
    each = (found - goal).square().mean(1)
    mean, error = float(each.mean()), float(each.std(correction=0)) / math.sqrt(len(each))
    predicted, true, own = (CLASSIFICATION.from_outputs(values).argmax(1) for values in (found, goal, answers))
    return Reading(
        name=name,
        loss=mean,
        loss_low=max(0.0, mean - Z * error),
        loss_high=mean + Z * error,
        accuracy=float(np.mean((predicted == true).numpy())),
        agreement=float(np.mean((predicted == own).numpy())),
    )


def _tangent(context: Context, part: Part, ridge: float) -> Tensor:
    linear = linearize(context.model, params=context.params)
    if context.device is not None:
        linear = linear.to(context.device)
    solve = partial(linear.solve, part, alpha=ridge, method="kernel", memory=context.memory // 2)
    if solve(dtype=next(context.model.parameters()).dtype).optimality > SOLVED:
        solve(dtype=torch.float64)
    return _answers(linear, context)


def _answers(linear: nn.Module, context: Context) -> Tensor:
    """Its outputs on the test items, on the CPU in float64."""
    first = next(linear.parameters())
    found = []
    with torch.no_grad():
        for start in range(0, len(context.test), BLOCK):
            rows = torch.arange(start, min(start + BLOCK, len(context.test)))
            found.append(call(linear, move(take(context.test.x, rows), first.device, first.dtype)).double().cpu())
    values = torch.cat(found)
    if not bool(torch.isfinite(values).all()):
        raise NumericalError("the linearised network gives NaN or infinity on test items")
    return values


def cost(work: Workload) -> float:
    """The empirical NTK of the items, a factor of it, and three passes over the test items."""
    width = work.rates.outputs
    n = min(work.train, _items(width, work.classes))
    factor = (n * width) ** 3 / 3 * work.rates.double
    return every_pair_of_outputs(n, 0, work.rates) + factor + 3 * work.rates.forward * (n + work.test)


SECTION = register(
    Section(
        name="tangent",
        place=5,
        title="Last layer and tangent",
        meaning=(
            "Whether the network is its last layer, or its tangent. The readout alone is solved anew on the features that the"
            " network has now; then all parameters are, in the linearisation at the trained weights. If either does as well"
            " on held-out items as the network, that reading of it loses nothing; a gap is what it leaves out."
        ),
        formula=(
            "Squared error on held-out items, mean over outputs: of the network's probabilities; of its outputs with the"
            " readout V that minimises Σ‖Vφ(x) − y‖² + λ‖V‖²; of f(w₀, x) + J(x)u with the u that minimises"
            " Σ‖f(w₀, x) + J(x)u − y‖² + λ‖u‖². y is one-hot, λ = 10⁻⁴ × the mean diagonal of the empirical NTK."
        ),
        run=run,
        result=Tangent,
        cost=cost,
    )
)
