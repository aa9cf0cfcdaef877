"""The task of a network: to tell classes apart, or to predict real values.

A `Task` reads and checks labels, scores outputs and names things; what is written once for both tasks asks it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float64, Int64
from numpy.typing import NDArray
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.measures.faithfulness import agreement, kendall, kendall_tau
from ntkscope.measures.log_odds import correct_class_log_odds
from ntkscope.measures.regression import r_squared
from ntkscope.xray.trust import Trust, item_output_trust, item_trust, output_trust, page_trust

Array = NDArray[Any]
STRATA = 10  # parts of equal size, by value, that a sample of real targets takes its items from in equal shares
SLIGHT = 0.1  # of the way from chance to perfect: random weights get up to 0.09 on scikit-learn's digits, in 120 draws
USELESS = 0.05  # R² of the best output up to which a regression predicts no better than the mean
LEARNED = 0.05  # R² on training items from which a regression has learned something


class Task(ABC):
    """What depends on the task; either abstract or final.

    `outputs`, `labels`: what the network gives and what it was trained on, by which records name arrays and surrogates their
    targets. `prefix`: of the names of sections that have a form of their own for this task. `stratum`: what samples keep the
    proportions of. `lacking`: what the data of the other task do not have.
    """

    name: ClassVar[str]
    outputs: ClassVar[str]
    labels: ClassVar[str]
    prefix: ClassVar[str]
    stratum: ClassVar[str]
    lacking: ClassVar[str]
    check_order: ClassVar[str]  # what to check of a network that is at chance

    @property
    def fits(self) -> tuple[str, str]:
        """What surrogates are fitted to: the network's own outputs, and the training labels."""
        return self.outputs, self.labels

    @abstractmethod
    def read(self, labels: Mapping[str, Tensor]) -> list[Tensor]:
        """The labels of both sides in the form an X-ray uses, or an error that names the side."""

    @abstractmethod
    def check(self, labels: Mapping[str, Tensor], count: int) -> None:
        """Refuse labels that do not fit a network of so many outputs."""

    @abstractmethod
    def output_names(self, names: Sequence[str] | None, count: int) -> tuple[str, ...]:
        """The names of the classes, or of the outputs; numbers if they have none."""

    @abstractmethod
    def from_outputs(self, values: Tensor) -> Tensor:
        """What is explained, (n, count), from the outputs of the network."""

    @abstractmethod
    def strata(self, y: Tensor) -> Int64[np.ndarray, " n"]:
        """What samples are stratified by."""

    @abstractmethod
    def smallest_sample(self, count: int) -> int:
        """How many items a sample needs to have one of every stratum."""

    @abstractmethod
    def aim(self, y: Array) -> Array:
        """What a kernel should be aligned with."""

    @abstractmethod
    def at_chance(self, values: Array, y: Array, items: str) -> str | None:
        """That these outputs have nothing to do with the labels of `items`, in words; None if they have."""

    @abstractmethod
    def refusal(self, found: Sequence[str], count: int) -> str:
        """Why a network is not explained: it is at chance on training and on test items alike."""

    @abstractmethod
    def learned(self, values: Array, y: Array) -> bool:
        """Whether outputs for the training items are better than a constant prediction."""

    @abstractmethod
    def closeness(self, surrogate: Array, network: Array, y: Array) -> dict[str, float]:
        """How close a surrogate comes to the network; empty where that is undefined."""

    @staticmethod
    @abstractmethod
    def trust(row: Any, items: int) -> Trust:
        """How far the surrogate of that row may be trusted on the whole."""

    @staticmethod
    @abstractmethod
    def item_trust(surrogate: Array, network: Array, page: int) -> Int64[np.ndarray, " m"]:
        """How far each test item's explanation may be trusted."""

    def _names(self, names: Sequence[str], count: int, what: str, of: str, one: str) -> tuple[str, ...]:
        if len(names) != count:
            raise UsageError(
                f"got {len(names)} {what} for a network of {count} {of}; expected one per {one}: a network or data of as many"
            )
        return tuple(map(str, names))


@dataclass(frozen=True)
class Standing:
    """A network's accuracy on some items, and what its predictions would get if the labels were shuffled."""

    accuracy: float
    chance: float
    items: int

    @classmethod
    def of(cls, predicted: Int64[np.ndarray, " n"], y: Int64[np.ndarray, " n"]) -> Standing:
        """Chance is Σ_k (share of predictions k) (share of labels k), as in Cohen's κ; a constant prediction has it exactly.

        >>> Standing.of(np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0]))
        Standing(accuracy=0.75, chance=0.5, items=4)
        """
        classes = int(max(predicted.max(), y.max())) + 1
        shares = [np.bincount(labels, minlength=classes) / len(y) for labels in (predicted, y)]
        return cls(float((predicted == y).mean()), float(shares[0] @ shares[1]), len(y))

    @property
    def at_chance(self) -> bool:
        """Within two standard errors of chance; or a tenth of the way to perfect, and less than twice as good.

        Random features depend on the input, so random predictions depend a little on the class.

        >>> Standing(0.15, 0.1, 1000).at_chance, Standing(0.3, 0.1, 1000).at_chance, Standing(0.01, 0.001, 10_000).at_chance
        (True, False, False)
        """
        above, error = self.accuracy - self.chance, math.sqrt(self.chance * (1 - self.chance) / self.items)
        return above <= 2 * error or (above < SLIGHT * (1 - self.chance) and self.accuracy < 2 * self.chance)


class Classification(Task):
    """Labels are class numbers (n,), outputs one logit per class."""

    name, outputs, labels, prefix = "classification", "logits", "labels", ""
    stratum, lacking = "class", "classes"
    check_order = "classes are numbered in the order of its outputs"

    def read(self, labels: Mapping[str, Tensor]) -> list[Tensor]:
        numbers = [_class_numbers(y, what) for what, y in labels.items()]
        if set(torch.cat(numbers).unique().tolist()) == {-1, 1}:
            numbers = [(y + 1) // 2 for y in numbers]
        return numbers

    def check(self, labels: Mapping[str, Tensor], count: int) -> None:
        for what, y in labels.items():
            low, high = int(y.min()), int(y.max())
            if low < 0 or high >= count:
                raise UsageError(
                    f"{what} has labels {low} to {high}, and the network has {count} classes; expected 0 to {count - 1}:"
                    " number the classes from 0, in the order of the network's outputs; if these are values to predict, pass"
                    " task='regression' (--task regression)"
                )
        if len(labels["test"]) < 2:
            raise UsageError("test has 1 item; expected at least 2: rankings of the test items are compared")
        if len(labels["train"].unique()) < 2:
            raise UsageError("train has items of one class only; expected at least two classes to tell apart")

    def output_names(self, names: Sequence[str] | None, count: int) -> tuple[str, ...]:
        """
        >>> CLASSIFICATION.output_names(None, 2), CLASSIFICATION.output_names(["cat", "dog"], 2)
        (('0', '1'), ('cat', 'dog'))
        """
        return self._names(names or range(count), count, "class names", "classes", "class")  # type: ignore[arg-type]

    def from_outputs(self, values: Tensor) -> Tensor:
        """A single output z becomes (0, z), whose softmax is the logistic function.

        >>> CLASSIFICATION.from_outputs(torch.tensor([[2.0]])).tolist()
        [[0.0, 2.0]]
        """
        return torch.cat([torch.zeros_like(values), values], dim=1) if values.shape[1] == 1 else values

    def strata(self, y: Tensor) -> Int64[np.ndarray, " n"]:
        return np.asarray(y.numpy())

    def smallest_sample(self, count: int) -> int:
        return count

    def aim(self, y: Array) -> Array:
        return y

    def at_chance(self, values: Array, y: Array, items: str) -> str | None:
        one = Standing.of(values.argmax(1), y)
        said = f"{100 * one.accuracy:.1f} % of {one.items:,} {items} (chance: {100 * one.chance:.1f} %)"
        return said if one.at_chance else None

    def refusal(self, found: Sequence[str], count: int) -> str:
        return f"got a network that is right on {' and '.join(found)}"

    def learned(self, values: Array, y: Array) -> bool:
        return beats_guessing(values.argmax(1), y)

    def closeness(self, surrogate: Array, network: Array, y: Array) -> dict[str, float]:
        odds = correct_class_log_odds(surrogate, y), correct_class_log_odds(network, y)
        try:
            tau = kendall_tau(odds[0], odds[1])
        except NumericalError:  # one of them is constant over all items
            return {}
        return {"tau": tau, "agreement": agreement(surrogate, network)}

    trust = staticmethod(page_trust)
    item_trust = staticmethod(item_trust)


class Regression(Task):
    """Labels are real targets (n, outputs) in double precision."""

    name, outputs, labels, prefix = "regression", "outputs", "targets", "output_"
    stratum, lacking = "range of the targets", "real targets"
    check_order = "that the targets have the unit, the scale and the order of its outputs"

    def read(self, labels: Mapping[str, Tensor]) -> list[Tensor]:
        return [_real_targets(y, what) for what, y in labels.items()]

    def check(self, labels: Mapping[str, Tensor], count: int) -> None:
        for what, y in labels.items():
            if y.shape[1] != count:
                raise UsageError(
                    f"{what} has {y.shape[1]} real targets per item, and the network has {count} outputs; expected one target"
                    " per output. If these are labels of classes, pass class numbers or task='classification' (--task"
                    " classification)"
                )
            if len(y) < 2:
                raise UsageError(f"{what} has 1 item; expected at least 2: rankings of the items are compared")
            if not bool((y != y[0]).any()):
                raise UsageError(f"{what} has the same target for every item; expected targets that vary")

    def output_names(self, names: Sequence[str] | None, count: int) -> tuple[str, ...]:
        """
        >>> REGRESSION.output_names(None, 1), REGRESSION.output_names(None, 2), REGRESSION.output_names(["price"], 1)
        (('output',), ('output 0', 'output 1'), ('price',))
        """
        own = ["output"] if count == 1 else [f"output {k}" for k in range(count)]
        return self._names(names or own, count, "names (classes=)", "outputs", "output")

    def from_outputs(self, values: Tensor) -> Tensor:
        return values

    def strata(self, y: Tensor) -> Int64[np.ndarray, " n"]:
        """The tenth of the items that the first target lies in.

        >>> REGRESSION.strata(torch.tensor([[0.3], [9.0], [0.1]])).tolist()
        [3, 6, 0]
        """
        first = y[:, 0].numpy()
        rank = np.empty(len(first), dtype=np.int64)
        rank[np.argsort(first, kind="stable")] = np.arange(len(first))
        return rank * STRATA // len(first)

    def smallest_sample(self, count: int) -> int:
        return max(count, STRATA)

    def aim(self, y: Array) -> Array:
        """The targets, each with mean 0 and variance 1."""
        centred = y - y.mean(0)
        spread = centred.std(0)
        return np.asarray(centred / np.where(spread > 0, spread, 1.0))

    def at_chance(self, values: Array, y: Array, items: str) -> str | None:
        """None if some output is predicted better than by its mean."""
        each = r_squared(values, y)
        best = float(np.nanmax(each)) if not np.isnan(each).all() else math.nan
        return None if best > USELESS else f"R² {best:.2f} on {len(y):,} {items}"

    def refusal(self, found: Sequence[str], count: int) -> str:
        best = ", of its best output" if count > 1 else ""
        return f"got a network that predicts the targets no better than their mean ({' and '.join(found)}{best})"

    def learned(self, values: Array, y: Array) -> bool:
        return bool(np.nanmax(r_squared(values, y)) > LEARNED)

    def closeness(self, surrogate: Array, network: Array, y: Array) -> dict[str, float]:
        """How alike both rank the items, the mean over outputs."""
        taus = [kendall(surrogate[:, k], network[:, k]).tau_b for k in range(network.shape[1])]
        return {} if np.isnan(taus).all() else {"tau": float(np.nanmean(taus))}

    trust = staticmethod(output_trust)
    item_trust = staticmethod(item_output_trust)


CLASSIFICATION, REGRESSION = Classification(), Regression()
TASKS: dict[str, Task] = {task.name: task for task in (CLASSIFICATION, REGRESSION)}


def task_of(labels: Sequence[Tensor], named: str | None = None) -> Task:
    """The task by its name, else as labels show it: regression for values that are not whole; unclear ones are refused.

    >>> task_of([torch.tensor([0.5, 2.0])]).name, task_of([torch.tensor([0.0, 2.0])]).name, task_of([], "regression").name
    ('regression', 'classification', 'regression')
    """
    if named is not None:
        if named not in TASKS:
            raise UsageError(
                f"got task={named!r}; expected one of {', '.join(TASKS)}, or None to tell it from the labels"
            )
        return TASKS[named]
    real = [y for y in labels if y.is_floating_point()]
    fractions = any(bool((y != y.round()).any()) for y in real)
    wide = any(y.ndim == 2 and y.shape[1] > 1 for y in real)
    if wide and (not fractions or all(_probabilities(y) for y in labels)):
        kind = "probabilities of classes" if fractions else "whole numbers, such as one-hot or multi-label classes"
        raise UsageError(
            f"got labels of shape {tuple(real[0].shape)} that look like {kind}; expected one class number per item, or"
            " task='regression' (--task regression) if the network was trained to predict these values"
        )
    return REGRESSION if fractions else CLASSIFICATION


def recorded_task(metrics: Mapping[str, Any]) -> Task:
    """The task of the network that a record is of."""
    return TASKS[metrics.get("data", {}).get("task", CLASSIFICATION.name)]


def beats_guessing(predicted: Array, y: Array) -> bool:
    """Whether accuracy exceeds the share of the most frequent class by three standard errors.

    A network on a plateau before it starts to learn is near its tangent plane and would pass for lazy.
    """
    guess = float(np.bincount(y).max() / len(y))
    error = math.sqrt(guess * (1 - guess) / len(y))
    return float((predicted == y).mean()) > guess + 3 * error


def _probabilities(y: Tensor) -> bool:
    sums = y.double().sum(-1)
    return y.ndim == 2 and bool((y >= 0).all()) and bool(torch.allclose(sums, torch.ones_like(sums), atol=1e-4))


def _class_numbers(y: Tensor, what: str) -> Int64[Tensor, " n"]:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    whole = y.ndim == 1 and (not y.is_floating_point() or bool((y == y.round()).all()))
    if not whole:
        raise UsageError(
            f"{what} has labels of shape {tuple(y.shape)} and dtype {y.dtype}; expected one class number per item, or"
            " task='regression' (--task regression) for a network that predicts real values"
        )
    return y.to(torch.int64)


def _real_targets(y: Tensor, what: str) -> Float64[Tensor, "n d"]:
    if y.ndim not in (1, 2) or y.is_complex() or (y.ndim == 2 and not y.shape[1]):
        raise UsageError(
            f"{what} has targets of shape {tuple(y.shape)} and dtype {y.dtype}; expected real numbers, (n,) or (n, outputs)"
        )
    wide = (y[:, None] if y.ndim == 1 else y).to(torch.float64)
    bad = torch.nonzero(~wide.isfinite().all(1)).flatten().tolist()
    if bad:
        raise UsageError(
            f"{what} holds NaN or infinity in the targets of {len(bad):,} items, the first at index {bad[0]}; expected finite"
            " targets: clean or drop them"
        )
    return wide
