"""Replay influence: what training itself would have done without a point, to first order, through every step of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ntkscope.core import Inputs, UsageError
from ntkscope.core.arguments import labels_of
from ntkscope.core.model.calling import call
from ntkscope.core.model.tree import length, move
from ntkscope.explain.removal.influences import Directions, Influence, Rows, Scores, points_of
from ntkscope.training import Loop, replay
from ntkscope.training.replays.recorded import RecordedFit
from ntkscope.training.replays.replay import Replay
from ntkscope.training.trajectory import Trajectory


@final
@dataclass(frozen=True, eq=False, repr=False)
class ReplayInfluence(Influence):
    """`S(x, i) = ∂f(x) / ∂w_i` at the weights `at`, the mean over replays of several seeds. With labels f is the margin of
    each test item, one output; without, the network's outputs."""

    replays: tuple[Replay, ...]
    labels: np.ndarray | None
    scores: Float64[np.ndarray, "m c n"]
    method: str = "replay"

    @property
    def shape(self) -> tuple[int, int, int]:
        m, c, n = self.scores.shape
        return (m, n, c)

    @cached_property
    def logits(self) -> Float64[np.ndarray, "m c"]:
        """The functions after the recorded training, of weights 1; a retraining each where `at` is something else."""
        return self._after(np.ones(self.shape[1]))

    @property
    def standard_errors(self) -> Float64[np.ndarray, "m n c"]:
        """Of the scores, over replays; NaN with a single one."""
        each = np.stack([_array(one.weights) for one in self.replays]).reshape(-1, *self.scores.shape)
        if len(each) < 2:
            return np.full(self.shape, np.nan)
        return (each.std(0, ddof=1) / len(each) ** 0.5).transpose(0, 2, 1)

    def along(self, rows: Rows, directions: Directions) -> Scores:
        return np.einsum("bkc,bcn->bkn", directions, self.scores[rows])

    def margins(self, y: Any) -> Float64[np.ndarray, "m n"]:
        """The scores of the margins, which labels were given for."""
        if self.labels is None:
            return super().margins(y)
        if not np.array_equal(labels_of(y, len(self)), self.labels):
            raise UsageError(
                "got other labels than those whose margins were replayed; expected the same, or influence(…, y=None)"
            )
        return self.scores[:, 0].copy()

    def without(self, points: Any, exact: bool = False) -> Float64[np.ndarray, "m c"]:
        """Minus the sum of the points' influences; with `exact`, the mean of one retraining of each seed without them."""
        group = self._points(points)
        if not exact:
            return -self.scores[:, :, group].sum(2)
        weights = np.ones(self.shape[1])
        weights[group] = 0
        return self._after(weights) - self.logits

    def _after(self, weights: np.ndarray) -> Float64[np.ndarray, "m c"]:
        m, c, _ = self.scores.shape
        wanted = torch.as_tensor(weights)
        values = [
            one.values if one.loop.pace == 1 and torch.equal(one.at.cpu().double(), wanted) else one.retrained(weights)
            for one in self.replays
        ]
        return np.mean([_array(value) for value in values], axis=0).reshape(m, c)


def replay_influence(
    trainings: Trajectory | Loop | Sequence[Trajectory | Loop],
    x: Inputs,
    y: Any,
    at: Any,
    remove: Any,
    store: str | os.PathLike[str] | None = None,
    **options: Any,
) -> ReplayInfluence:
    """The influence of every training point on test items `x` with labels `y`; one training of each seed."""
    every = [trainings] if isinstance(trainings, Trajectory | Loop) else list(trainings)
    if not every or not all(isinstance(one, Trajectory | Loop) for one in every):
        raise UsageError(
            "got method='replay' without trainings; expected influence(trainings, x_test, y_test, method='replay'): what"
            " fit(…, store=DIR) returned, or a Loop, or several of different seeds"
        )
    if at is not None and remove is not None:
        raise UsageError("got at= and remove=; expected one of them: remove= says at which weights to differentiate")
    labels = None if y is None else labels_of(y, length(x))
    loops = [RecordedFit(one) if isinstance(one, Trajectory) else one for one in every]
    recorded = [loop for loop in loops if isinstance(loop, RecordedFit)]
    if len({loop.items for loop in loops}) > 1 or len({loop.data for loop in recorded}) > 1:
        raise UsageError(
            "got trainings on different training points; expected the same points in each, by different seeds"
        )
    if len({loop.told() for loop in recorded}) < len(recorded):
        raise UsageError("got a training twice; expected each once, of different seeds: standard errors are over them")
    replays: list[Replay] = []
    for number, loop in enumerate(loops):
        where = {"at": 1.0 if at is None else at} if remove is None else _halfway(loop, remove)
        folder = None if store is None else Path(store) / f"replay-{number}"
        replays.append(replay(loop, _Outputs(x, labels), store=folder, **where, **options))
    if len({one.weights.shape for one in replays}) > 1:
        raise UsageError(
            "got trainings on different numbers of points; expected the same points in each, by different seeds"
        )
    mean = np.mean([_array(one.weights) for one in replays], axis=0)
    return ReplayInfluence(tuple(replays), labels, mean.reshape(length(x), -1, mean.shape[1]))


@dataclass(frozen=True)
class _Outputs:
    """The margins `z_y - log Σ_{c≠y} exp z_c` of some items by a network, or its outputs, in one row."""

    x: Inputs
    labels: np.ndarray | None

    def __call__(self, model: nn.Module) -> Tensor:
        some = next(model.parameters())
        outputs = call(model, move(self.x, some.device, some.dtype))
        outputs = outputs[:, None] if outputs.ndim == 1 else outputs
        if self.labels is None:
            return outputs.flatten()
        classes = outputs.shape[1]
        if classes < 2 or self.labels.max(initial=0) >= classes:
            raise UsageError(
                f"got labels up to {self.labels.max(initial=0)} with {classes} outputs; expected one output per class: give"
                " y=None for the outputs themselves"
            )
        own = torch.from_numpy(self.labels).to(outputs.device)[:, None] == torch.arange(classes, device=outputs.device)
        return outputs[own] - outputs.masked_fill(own, -torch.inf).logsumexp(1)


def _halfway(loop: Loop, remove: Any) -> dict[str, Any]:
    """Where to differentiate: at the share that stays of all points, or with half the weight of a group.

    A share of all that Adam, which does not see the scale of a loss, would not notice is a share of the rates in its place.
    """
    if isinstance(remove, float):
        if not 0 <= remove < 1:
            raise UsageError(
                f"got remove={remove}; expected a share of the points, 0 ≤ share < 1, or the points themselves"
            )
        return {"at" if loop.sees_scale else "rate": 1 - remove}
    weights = np.ones(loop.items)
    weights[points_of(remove, loop.items)] = 0.5
    return {"at": weights}


def _array(values: Tensor) -> np.ndarray:
    return values.detach().cpu().double().numpy()
