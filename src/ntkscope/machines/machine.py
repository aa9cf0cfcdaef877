"""A kernel machine: a surrogate fitted on one kernel, linear in it, and its outputs for other inputs."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float64
from sklearn.base import is_regressor
from sklearn.exceptions import ConvergenceWarning

from ntkscope.core import UsageError
from ntkscope.core.arguments import labels_of
from ntkscope.core.checked import Count
from ntkscope.linalg import Gram, NumericalWarning
from ntkscope.machines.pair import KernelPair
from ntkscope.measures.log_odds import centred_logits, probabilities
from ntkscope.measures.regression import two_outputs
from ntkscope.surrogates import SURROGATES

ABSENT = -50.0  # the logit of a class without a training input: a probability of practically zero
TARGETS = {  # what is fitted, by which surrogate
    "labels": "glm",
    "probabilities": "ridge-loo",
    "logits": "ridge-loo",
    "targets": "ridge-loo",
    "outputs": "ridge-loo",
}
LEAST = 1e-12  # a probability that the fit made smaller than this, or negative


@dataclass(frozen=True, eq=False)
class KernelMachine:
    """`scores(x) = W κ(x, X) + b` on the kernel `name`; `coef_` is W, `intercept_` is b, as `explain.attribute` reads them.

    `target`: what it was fitted to, the training "labels", or the network's own "probabilities" or "logits" of the training
    inputs. Labels say which *labels* carry a prediction, the network's outputs which training *inputs* carry its function.
    Of a regression: its real "targets", or the network's own "outputs" for them.
    `alpha` is the strength of the ridge; `edge` says "smallest" or "largest" if that is an end of the strengths tried.

    Examples:
        >>> machine = KernelMachine("ck", np.array([[1.0, -1.0]]), np.array([0.5]), seconds=0.0, converged=True, iterations=1)
        >>> machine.logits(ns.linalg.as_gram(np.array([[2.0, 1.0]])))
        array([[1.5]])
    """

    name: str
    coef_: Float64[np.ndarray, "c n"]
    intercept_: Float64[np.ndarray, " c"]
    seconds: float
    converged: bool
    iterations: int
    gradient_norm: float = math.nan
    target: str = "labels"
    alpha: float = math.nan
    edge: str = ""

    def scores(self, K: Gram) -> Float64[np.ndarray, "m c"]:
        """`W κ(x, X) + b` for every row of `K`, in float64; O(m n c)."""
        scores: np.ndarray = K @ np.ascontiguousarray(self.coef_.T)
        return scores + self.intercept_

    def logits(self, K: Gram) -> Float64[np.ndarray, "m c"]:
        """One logit per class for every row of `K`: the scores; for probabilities their logarithm, at least that of 1e-12."""
        scores = self.scores(K)
        return np.log(np.maximum(scores, LEAST)) if self.target == "probabilities" else scores


def fit_machine(
    pair: KernelPair,
    y: Any,
    surrogate: str | None = None,
    *,
    target: Annotated[str, tuple(TARGETS)] = "labels",
    network: Any = None,
    classes: Count | None = None,
    **options: Any,
) -> KernelMachine:
    """The surrogate of that name in `SURROGATES`, made with `options`, fitted on the training kernel.

    `target`: "labels" fits the training labels `y` (by default a kernel GLM); "logits" the network's own logits of the
    training inputs, `network` (n, classes), centred over classes, and "probabilities" their softmax (by default ridge
    regression whose strength has the least leave-one-out error); these do not read `y`. For a network that predicts real
    values: "targets" fits `y`, (n,) or (n, outputs), and "outputs" the network's own outputs, neither of them centred.

    `classes`: how many classes the network has; one without a training input gets a logit of -50 for every input where labels
    are fitted. By default the classes are those in `y`. A fit that stops early says so in `converged`, not in a warning.

    Examples:
        >>> import torch
        >>> from ntkscope.linalg import DenseGram
        >>> pair = KernelPair("linear", DenseGram(torch.eye(2), symmetric=True), DenseGram(torch.eye(2)))
        >>> machine = fit_machine(pair, np.array([0, 2]), classes=3, alpha=1e-3)
        >>> machine.logits(pair.test).argmax(1).tolist()
        [0, 2]
        >>> network = np.array([[5.0, 1.0, 0.0], [0.0, 4.0, 2.0]])
        >>> distilled = fit_machine(pair, None, "ridge", target="logits", network=network, alpha=0.0)
        >>> distilled.logits(pair.test).tolist()
        [[3.0, -1.0, -2.0], [-2.0, 2.0, 0.0]]
    """
    estimator: Any = SURROGATES[TARGETS[target] if surrogate is None else surrogate](**options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if target == "labels":
            wanted = y if classes is None else labels_of(y, len(pair.train), classes)
        else:
            warnings.simplefilter("ignore", NumericalWarning)
            wanted = _network_targets(pair, y if target == "targets" else network, target, classes)
            if not is_regressor(estimator):
                raise UsageError(
                    f"got the surrogate {surrogate!r} for target={target!r}; expected a regression, such as 'ridge-loo'"
                )
        began = time.perf_counter()
        fitted = estimator.fit(pair.train, wanted)
        seconds = time.perf_counter() - began
    if not hasattr(fitted, "coef_") or (target == "labels" and not hasattr(fitted, "classes_")):
        raise UsageError(
            f"got the surrogate {surrogate!r} for a kernel machine; expected a classifier that is linear in the kernel, such as"
            " 'glm' or 'ridge-classifier'"
        )
    coef, intercept = fitted.coef_, fitted.intercept_
    if classes is not None and target == "labels":
        coef, intercept = np.zeros((classes, fitted.coef_.shape[1])), np.full(classes, ABSENT)
        coef[fitted.classes_], intercept[fitted.classes_] = fitted.coef_, fitted.intercept_
    return KernelMachine(
        pair.name,
        coef,
        intercept,
        seconds,
        bool(getattr(fitted, "converged_", True)),
        int(getattr(fitted, "n_iter_", 1)),
        float(getattr(fitted, "gradient_norm_", math.nan)),
        target,
        float(getattr(fitted, "alpha_", math.nan)),
        str(getattr(fitted, "edge_", "")),
    )


def _network_targets(pair: KernelPair, network: Any, target: str, classes: int | None) -> Float64[np.ndarray, "n c"]:
    """What ridge regression fits: the network's logits, centred over classes, its probabilities, or real values as they are."""
    if network is None:
        name, meant = ("y", "the targets") if target == "targets" else ("network", "the network's outputs")
        raise UsageError(f"got target={target!r} without {name}=; expected {meant} of the training inputs")
    if target in ("targets", "outputs"):
        values = two_outputs(network, network)[0]
    else:
        values = centred_logits(network) if target == "logits" else probabilities(network)
    expected = (pair.train.shape[0], values.shape[1] if classes is None else classes)
    if values.shape != expected and target in ("targets", "outputs"):
        raise UsageError(
            f"got {target} of shape {values.shape}; expected {expected}: one row per training input of the kernel and one"
            " column per output"
        )
    if values.shape != expected:
        raise UsageError(
            f"got the network's logits of shape {values.shape}; expected {expected}: one row per training input of the kernel"
            " and one column per class (a single output z of two classes is the pair (0, z))"
        )
    return values
