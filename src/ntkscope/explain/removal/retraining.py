"""What retraining without a training point would change: the doors `influence` and `removal_effects`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64, Int64

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.arguments import column_count, finite, labels_of, one_hot, plain_array, whole
from ntkscope.core.checked import Numbers
from ntkscope.explain._kernels import kernel_of
from ntkscope.explain.removal.gauss_newton import gauss_newton_influence
from ntkscope.explain.removal.influences import Influence
from ntkscope.explain.removal.replay_influence import replay_influence
from ntkscope.explain.removal.ridge_influence import ridge_influence
from ntkscope.linalg import Gram, as_gram


def influence(
    K_train: Any,
    K_test: Any,
    y: Any,
    *,
    alpha: float | int | None = None,
    method: Literal["leave-one-out", "gauss-newton", "replay"] = "leave-one-out",
    logits: Any = None,
    train_logits: Any = None,
    at: Any = None,
    remove: Any = None,
    **options: Any,
) -> Influence:
    """How much each output at each test item would lose if a training point were removed; positive where it supports it.

    "leave-one-out": `S(x, i)_c = [κ(x, X) (K + α I)⁻¹]_i · (Y_ic - f_c^{-i}(x_i))`, which is exactly `f_c(x) - f_c^{-i}(x)` of
    the kernel ridge surrogate f; O(n³) once, then O(n²) per test item. `alpha`: the mean of the kernel's diagonal. Kernels
    beyond 20,000 points are used through `K @ v` alone.
    "gauss-newton": `S(x, i) = J_x (Σ_j J_jᵀ A_j J_j + λ I)⁻¹ J_iᵀ (y_i - p_i)` with `A = diag(p) - p pᵀ`: one Gauss-Newton step
    of the network, cross-entropy, from the blocks of `ns.kernel("entk", …)`; needs `train_logits`. A kernel with one row per
    sample stands for every output alike. λ is `alpha`.

    "replay": `influence(trainings, x_test, y_test, method="replay")`, in place of kernels one training or several of different
    seeds (`fit(…, store=DIR)`, finished, or a `Loop`) and the test inputs: the derivative through every step of the training,
    of each test item's margin by its label, or with `y=None` of all outputs. `remove=` what is to be removed chooses the
    weights `at` which to differentiate: a share of all points, a group of them; one at a time unless given. `options` are
    those of `ns.training.replay`. `.without(points, exact=True)` trains once more; `.standard_errors` are over seeds.

    `y`: labels 0 … c-1, or targets (n, c) such as the network's own logits. `logits`: the network's outputs at the test items,
    at which `.margins` are taken; the surrogate's own if not given. Several checkpoints:
    `average([influence(…), …])`. This is not the decomposition `attribute`, which says what a logit is made of.

    Examples:
        >>> K = np.array([[2.0, 1.0], [1.0, 2.0]])
        >>> found = influence(K, np.array([[2.0, 1.0]]), [0, 1], alpha=1.0)
        >>> found
        Influence(leave-one-out, 1 test items × 2 training points × 2 outputs)
        >>> found.item(0).round(4).tolist()  # without point 0 its logit 0 falls to 0; without point 1 it rises
        [[0.625, -0.2083], [-0.0417, 0.125]]
    """
    if method == "replay":
        return replay_influence(K_train, K_test, y, at, remove, **options)
    surplus = [name for name, value in (("at", at), ("remove", remove), *options.items()) if value is not None]
    if surplus:
        raise UsageError(f"got {surplus[0]}= with method={method!r}; expected method='replay', which alone has it")
    train, test = _kernels(K_train, K_test, method)
    n = train.shape[0] // train.outputs
    given, own = (
        None if z is None else finite(z, name, 2) for z, name in ((logits, "logits"), (train_logits, "train_logits"))
    )
    c = next((z.shape[1] for z in (given, own) if z is not None), train.outputs if train.outputs > 1 else None)
    targets = _targets(y, n, c)
    items = test.shape[0] // test.outputs
    for z, name, rows in ((given, "logits", items), (own, "train_logits", n)):
        if z is not None and z.shape != (rows, targets.shape[1]):
            raise UsageError(f"got {name} of shape {z.shape}; expected ({rows}, {targets.shape[1]})")
    if method == "leave-one-out":
        return ridge_influence(train, test, targets, alpha, given)
    if own is None:
        raise UsageError(
            "got method='gauss-newton' without train_logits; expected train_logits=, the network's outputs at the training"
            " points"
        )
    return gauss_newton_influence(train, test, targets, own, alpha, given)


@dataclass(frozen=True, eq=False)
class RemovalEffects:
    """For chosen outputs of test items: the training points whose removal lowers the output most, and by how much."""

    indices: Int64[np.ndarray, "t C k"]
    values: Float64[np.ndarray, "t C k"]

    def __repr__(self) -> str:
        t, c, k = self.indices.shape
        return f"RemovalEffects({t} test items × {c} outputs × {k} training points)"


def removal_effects(
    K_train: Any,
    K_test: Numbers,
    targets: Numbers,
    *,
    alpha: float | int | None = None,
    classes: Any = None,
    k: int = 10,
) -> RemovalEffects:
    """The k training points whose removal would lower the chosen outputs of each test item most, largest effect first.

    As `influence(K_train, K_test, targets, alpha=alpha)`. `targets`: labels, or the network's logits (n, c). `classes`: which
    outputs of each test item, (t, C); all if not given. Ties go to the lower index. Scores of a block of items at a time.

    Examples:
        >>> found = removal_effects(np.eye(3), np.array([[0.0, 1.0, 0.2]]), [0, 1, 1], classes=[[1]], k=2)
        >>> found.indices.tolist(), found.values.round(2).tolist()
        ([[[1, 2]]], [[[0.5, 0.1]]])
    """
    found = influence(K_train, K_test, targets, alpha=alpha)
    m, n, c = found.shape
    chosen = np.broadcast_to(np.arange(c), (m, c)) if classes is None else np.asarray(plain_array(classes))
    if (
        chosen.ndim != 2
        or len(chosen) != m
        or chosen.dtype.kind not in "iu"
        or (chosen.size and not 0 <= chosen.min() <= chosen.max() < c)
    ):
        raise UsageError(
            f"got classes of dtype {chosen.dtype} and shape {chosen.shape}; expected ({m}, C) outputs, each 0 … {c - 1}"
        )
    k = whole(k, "k", low=1, high=n, expected=f"1 … {n} for {n} training points")
    indices = np.empty((*chosen.shape, k), dtype=np.int64)
    values = np.empty((*chosen.shape, k))
    for rows in found._blocks(chosen.shape[1]):
        scores = found.along(rows, np.eye(c)[chosen[rows]])
        order = np.argsort(-scores, axis=2, kind="stable")[:, :, :k]
        indices[rows], values[rows] = order, np.take_along_axis(scores, order, 2)
    return RemovalEffects(indices, values)


def _kernels(K_train: Any, K_test: Any, method: str) -> tuple[Gram, Gram]:
    """Both kernels as Grams that fit together."""
    train, test = as_gram(K_train, symmetric=True), as_gram(K_test)
    if method == "leave-one-out":
        train, test = kernel_of(train), kernel_of(test)
    if test.shape[1] != train.shape[0] or test.outputs != train.outputs:
        raise UsageError(
            f"got {train!r} and {test!r}; expected the kernel of the training points with themselves, (n, n), and of the test"
            " items (rows) with the training points (columns), with the same outputs"
        )
    return train, test


def _targets(y: Any, items: int, outputs: int | None) -> Float64[np.ndarray, "n c"]:
    """Labels as one-hot targets, targets as they are."""
    given = plain_array(y)
    if given.ndim == 2:
        targets = np.asarray(given, dtype=np.float64)
        if len(targets) != items or (outputs is not None and targets.shape[1] != outputs):
            raise UsageError(f"got targets of shape {targets.shape}; expected ({items}, {outputs or 'outputs'})")
        if not np.isfinite(targets).all():
            raise NumericalError("targets hold NaN or infinity; remove those training points")
        return np.ascontiguousarray(targets)
    labels = labels_of(given, items, outputs)
    return one_hot(labels, outputs or column_count(labels)).numpy()
