"""A network with its readout solved: the kernel machine of the conjugate kernel, put back into the network."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkscope.core import Part, UsageError
from ntkscope.core.arguments import one_hot
from ntkscope.core.checked import NonNegative, renamed
from ntkscope.core.model.copies import duplicate
from ntkscope.core.progress import counter
from ntkscope.linalg import NumericalWarning, least_squares
from ntkscope.linalg.grams.gram import slices
from ntkscope.linalg.solvers.least_squares import row_roots
from ntkscope.surrogates.solvers.leading import Leading, exact_preconditioner
from ntkscope.surrogates.solvers.losses import Softmax
from ntkscope.surrogates.solvers.newton import Problem, newton
from ntkscope.tangent.forward.readout_features import ReadoutFeatures, readout_features
from ntkscope.tangent.model import guards
from ntkscope.tangent.model.batches import Batch, as_batch
from ntkscope.tangent.model.subject import Subject, place, quiet
from ntkscope.training.losses import as_loss

BLOCK = 256
Loss: TypeAlias = Literal["mse", "cross_entropy"]
TOLERANCE = 1e-8  # of the cross-entropy above its minimum, relative to it
LEAST_RIDGE = 1e-10  # per mean squared norm of the features, where cross-entropy was asked for without a ridge
STEPS = 100


@dataclass(frozen=True, eq=False)
class LastLayer:
    """What `solve_last_layer` found. Losses are `Σ_i w_i ℓ_i` over the training items, without the ridge."""

    model: nn.Module
    """The copy with its readout solved."""
    parameters: tuple[str, ...]
    """The names of the readout's weight and bias."""
    loss_before: float
    loss_after: float
    """Of the readout as it was, and of the new one rounded to the parameters' dtypes."""
    ridge: float
    """The ridge used: for cross-entropy without one, the smallest that makes a minimum exist."""
    rank: int
    cutoff: float
    """Singular values of the features kept, and the cut-off relative to the largest."""
    converged: bool
    """False where Newton's method stopped early, or the readout was left as it was."""
    warnings: tuple[str, ...]


def retrain_last_layer(model: nn.Module, part: Part | tuple[Any, Tensor], **options: Any) -> nn.Module:
    """A copy of the model whose readout minimises `Σ_i w_i ℓ(f(x_i), y_i) + α ‖V‖²`, V the readout's weights and bias.

    ℓ is the squared error (`loss="mse"`), summed over outputs (class numbers are one-hot rows), or the "cross_entropy"; w are
    the `weights` (n,), 1 unless given, and α is `alpha=0`. All other parameters stay. The squared error is solved on what the
    readout's parameters see of the inputs (never on its Gram matrix), of minimum norm; `tol` is the cut-off of singular values
    (None: their number of rows or columns times the rounding unit).
    Cross-entropy by Newton's method, to `tol` (1e-8) of the objective; classes that the features separate have no minimum
    without alpha, which a `NumericalWarning` says. The training objective is never higher than before: where rounding leaves
    nothing to gain the readout stays, with a warning. Features are computed block by block in `dtype=torch.float64` on
    `device=`. Qadeer et al., in the PNNL report (2023), equations 17, 18 and 28, section 3.

    Examples:
        >>> model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)).double()
        >>> part = Part(torch.tensor([[0.0], [1.0], [2.0]]).double(), torch.tensor([1.0, 3.0, 5.0]).double())
        >>> retrain_last_layer(model, part)(part.x).flatten().round(decimals=6).tolist()
        [1.0, 3.0, 5.0]
    """
    return solve_last_layer(model, part, **options).model


@renamed(ridge="alpha", rtol="tol")
def solve_last_layer(
    model: nn.Module,
    part: Part | tuple[Any, Tensor],
    *,
    loss: Loss = "mse",
    alpha: NonNegative = 0.0,
    weights: Tensor | None = None,
    tol: NonNegative | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    progress: bool = False,
) -> LastLayer:
    """`retrain_last_layer`, with what it found.

    Examples:
        >>> found = solve_last_layer(model, (x, nn.functional.one_hot(y).float()))
        >>> found.parameters, found.loss_after < found.loss_before
        (('readout.weight', 'readout.bias'), True)
    """
    part = Part(*part) if isinstance(part, tuple) and len(part) == 2 else part
    batch = _checked(model, part, device)
    with quiet(place(model, device), model):
        subject = Subject(model, dtype=dtype, device=device, still=True)
        few = subject.placed(batch[: min(4, len(batch))])
        outputs = guards.first_outputs(subject, few)
        guards.check_randomness(subject, few, outputs)
        guards.check_independence(subject, few, outputs)
        as_loss(loss).check(outputs, part.y)
        features = readout_features(subject, few)
        targets = _targets(part.y, outputs.shape[1], loss).to(subject.device)
        roots = row_roots(weights, torch.empty(len(batch), 0, device=subject.device))
        mix = features.mix.double()
        before = features.stack(subject.model).double() @ mix
        if loss == "mse":
            rows = _mse_rows(features, batch, targets - features.offset.double(), roots, progress)
            fitted = _least_squares(rows, alpha, tol)
        else:
            rows = _all_rows(features, batch, targets, progress)
            fitted = _newton(rows, before, features.offset, roots, alpha, tol)
        made = duplicate(model)
        features.write(made, fitted.solution @ torch.linalg.pinv(mix))
        after = features.stack(made).double().to(mix.device) @ mix  # as rounded to the parameters' dtypes
        loss_before, loss_after = (_loss(rows, loss, roots, solution) for solution in (before, after))
        total_before, total_after = (
            value + alpha * float(solution.square().sum())
            for value, solution in ((loss_before, before), (loss_after, after))
        )
        messages, kept = list(fitted.messages), not total_after <= total_before
        if kept:
            messages.append(
                f"the readout of {type(model).__name__} was left as it was: the solution, rounded to its dtype and cut off at"
                f" {fitted.cutoff:.2g}, has a training objective of {total_after:.6g}, not below the present"
                f" {total_before:.6g}; lower tol, or convert the model to float64"
            )
            made, loss_after = duplicate(model), loss_before
    for message in messages:
        warnings.warn(message, NumericalWarning, stacklevel=3)
    return LastLayer(
        made,
        features.names,
        loss_before,
        loss_after,
        fitted.ridge,
        fitted.rank,
        fitted.cutoff,
        fitted.converged and not kept,
        tuple(messages),
    )


def _checked(model: nn.Module, part: Part, device: Any) -> Batch:
    guards.check_mode(model)
    batch = as_batch(part, model)
    guards.check_placement(place(model, device), device is not None, batch)
    guards.check_inputs_finite(batch)
    if part.y.is_floating_point() and not bool(torch.isfinite(part.y).all()):
        bad = (~torch.isfinite(part.y.reshape(len(part), -1)).all(1)).nonzero().flatten()
        raise UsageError(
            f"got targets with NaN or infinity in {len(bad)} items, the first at {int(bad[0])}; expected finite ones: drop"
            " those items with part.take(...)"
        )
    return batch


def _targets(y: Tensor, outputs: int, loss: str) -> Float[Tensor, "n c"]:
    """Real targets as a matrix; class numbers as one-hot rows."""
    if not y.is_floating_point():
        return one_hot(y, outputs)
    if loss == "cross_entropy" and not bool((((y == 0) | (y == 1)).all(1) & (y.sum(1) == 1)).all()):
        raise UsageError(
            "got probabilities as targets of the cross-entropy; expected class numbers, or one-hot rows: use y.argmax(1)"
        )
    return y.double().reshape(len(y), -1)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Features and targets: all rows, or fewer with the same products `ΦᵀΦ`, `ΦᵀY`, `YᵀY`, weighted already."""

    features: Tensor
    targets: Tensor
    items: int


def _mse_rows(features: ReadoutFeatures, batch: Batch, targets: Tensor, roots: Tensor, progress: bool) -> _Rows:
    """Weighted rows `√w (φ, y)`, replaced by the R of their QR as they come: O(p²) memory, however many items."""
    total: Tensor | None = None
    with counter(len(batch), "features", progress) as bar:
        for at in slices(len(batch), BLOCK):
            block = _block(features, batch, at)
            rows = roots[at] * torch.cat([block, targets[at]], dim=1)
            total = rows if total is None else torch.cat([total, rows])
            if len(total) > 8 * max(BLOCK, total.shape[1]):
                total = torch.linalg.qr(total, mode="r").R
            bar.advance(len(block))
    assert total is not None
    width = targets.shape[1]
    return _Rows(total[:, :-width], total[:, -width:], len(batch))


def _all_rows(features: ReadoutFeatures, batch: Batch, targets: Tensor, progress: bool) -> _Rows:
    with counter(len(batch), "features", progress) as bar:
        blocks = []
        for at in slices(len(batch), BLOCK):
            blocks.append(_block(features, batch, at))
            bar.advance(len(blocks[-1]))
    return _Rows(torch.cat(blocks), targets, len(batch))


def _block(features: ReadoutFeatures, batch: Batch, at: slice) -> Tensor:
    subject = features.locator.subject
    items = subject.placed(batch[at])
    block, outputs = features(items)
    guards.check_finite(subject, items, outputs)
    return block.double()


@dataclass(frozen=True, eq=False)
class _Fitted:
    solution: Tensor
    ridge: float
    rank: int
    cutoff: float
    converged: bool = True
    messages: tuple[str, ...] = ()


def _least_squares(rows: _Rows, ridge: float, rtol: float | None) -> _Fitted:
    if rtol is None:
        rtol = max(rows.items, rows.features.shape[1]) * torch.finfo(torch.float64).eps
    found = least_squares(rows.features, rows.targets, ridge=ridge, rtol=rtol)
    return _Fitted(found.solution, ridge, found.rank, found.cutoff)


def _newton(rows: _Rows, before: Tensor, offset: Tensor, roots: Tensor, ridge: float, rtol: float | None) -> _Fitted:
    """Newton's method in the basis of the features' singular vectors, from the readout as it is."""
    if bool(offset.any()):
        raise UsageError(
            "got a readout with a constant added to its result, for loss='cross_entropy'; expected outputs that are its result:"
            " leave the constant out, or give the readout a bias"
        )
    tol = TOLERANCE if rtol is None else float(rtol)
    if not 0 < tol < 1:
        raise UsageError(f"got tol={rtol}; expected it in (0, 1)")
    total = float(roots.square().sum())
    loss = Softmax(rows.targets, roots.square() / total)
    left, values, right = torch.linalg.svd(rows.features, full_matrices=False)
    cutoff = max(rows.features.shape) * torch.finfo(torch.float64).eps
    kept = values > cutoff * values[0]
    leading, back = Leading(left[:, kept], values[kept]), right[kept].T
    size = float((loss.weights * rows.features.square()).sum())
    used = ridge or LEAST_RIDGE * size * total / 2
    alpha = 2 * used / total
    phi = leading.features
    problem = Problem(lambda v: phi @ v, lambda r: phi.T @ r, loss, alpha, bias=False)
    shared = before.mean(1, keepdim=True)  # a score added to all classes changes nothing, and steps would not remove it
    start = torch.cat([back.T @ (before - shared), before.new_zeros(1, before.shape[1])])
    found = newton(problem, start, partial(exact_preconditioner, leading, loss, alpha, False), math.inf, tol, STEPS)
    messages = []
    if not ridge and _separated(found.scores, rows.targets, roots):
        messages.append(
            f"the features separate the classes, so that the cross-entropy has no minimum: alpha={used:.3g} was used; pass"
            " alpha= to choose one"
        )
    if not found.converged:
        messages.append(
            f"Newton's method stopped after {found.iterations} steps with an objective up to {found.gap / found.value:.2g}"
            f" above its minimum (relative), tol asked for {tol:.1g}; raise alpha or tol"
        )
    rank = int(kept.sum())
    return _Fitted(back @ found.theta[:-1], used, rank, cutoff, found.converged, tuple(messages))


def _separated(scores: Tensor, targets: Tensor, roots: Tensor) -> bool:
    """Whether every item that weighs anything is classified correctly: these scores then grow without bound."""
    own = (scores * targets).sum(1)
    others = scores.masked_fill(targets > 0, -math.inf).amax(1)
    return bool((own > others)[roots[:, 0] > 0].all())


def _loss(rows: _Rows, loss: str, roots: Tensor, solution: Tensor) -> float:
    """`Σ_i w_i ℓ_i`."""
    scores = rows.features @ solution
    if loss == "mse":
        return float((scores - rows.targets).square().sum())
    return float(Softmax(rows.targets, roots.square()).value(scores))
