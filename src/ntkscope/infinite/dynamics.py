"""What gradient descent makes of an infinitely wide network under squared error: mean and covariance at any time.

Such a network stays linear in its parameters, so its outputs f on the training inputs obey ḟ = −c Θ (f − y), with Θ their
NTK and c the factor the loss puts before it. Everything follows from the eigenvectors of Θ. Lee et al. (2019), section 2.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import NumericalError, UsageError, generator
from ntkscope.core.arguments import tensor_of, whole
from ntkscope.core.checked import Count, NonNegative, Positive, renamed
from ntkscope.core.shown import Shown
from ntkscope.linalg import Gram, NumericalWarning, as_gram, cholesky_solve, minimum_norm_solve

Matrix = Gram | Tensor | np.ndarray
LOSSES: dict[str, Callable[[int], float]] = {  # c in ḟ = −c Θ (f − y) for n samples
    "half-sum": lambda n: 1.0,  # ½ Σ (f − y)²
    "half-mean": lambda n: 1.0 / n,  # 1/(2n) Σ (f − y)²
    "mean": lambda n: 2.0 / n,  # 1/n Σ (f − y)²
}

LossName: TypeAlias = Annotated[str, tuple(LOSSES)]


@dataclass(frozen=True)
class Prediction:
    """The distribution of trained networks' outputs: `mean` (m, outputs) and, if requested, `covariance` (m, m)."""

    mean: Tensor
    covariance: Tensor | None


@dataclass(frozen=True, eq=False, repr=False)
class Dynamics(Shown):
    """Training by gradient flow, or by gradient descent with a step, of a network whose NTK on the data is Θ.

    Made by `dynamics`. Times are those of gradient flow, or numbers of steps of gradient descent; infinity is allowed.
    """

    eigenvalues: Tensor
    """Of Θ, ascending; those at or below `threshold` are exactly 0."""
    eigenvectors: Tensor
    y: Tensor
    """(n, outputs)."""
    factor: float
    step: float | None
    threshold: float = 0.0
    """`n ε₆₄ λ_max + ε ‖Θ‖_F`, ε of the dtype of the entries: what rounding can make of an eigenvalue that is 0."""
    zeros: int = 0
    """Eigenvalues at or below the threshold: directions in which nothing is learned, in any time."""

    def decay(self, time: float | int) -> Float[Tensor, " n"]:
        """What is left of the residual along each eigenvector: e^{−cλt}, or (1 − ηcλ)^t for steps of size η."""
        _check_time(time, self.step)
        rate = self.factor * self.eigenvalues
        if self.step is None:
            return torch.where(rate > 0, torch.exp(-rate * time), 1.0)
        inside = 1 - self.step * rate
        if math.isinf(time):
            if bool((inside <= -1).any()):
                raise NumericalError(
                    f"gradient descent with step {self.step:.3g} diverges: expected less than"
                    f" {2 / float(rate.max()):.3g}, see max_learning_rate"
                )
            return (rate == 0).to(rate.dtype)
        size = inside.abs().pow(float(time))
        if not bool(torch.isfinite(size).all()):
            raise NumericalError(
                f"gradient descent with step {self.step:.3g} has left the range of numbers after {time:.3g} steps: expected a"
                f" step less than {2 / float(rate.max()):.3g}, see max_learning_rate"
            )
        return torch.where(inside < 0, -size, size) if int(time) % 2 else size

    def predict(
        self,
        test_train: Matrix | None = None,
        time: float | int = math.inf,
        *,
        start: Tensor | None = None,
        start_test: Tensor | None = None,
        nngp: Matrix | None = None,
        nngp_test_train: Matrix | None = None,
        nngp_test: Matrix | None = None,
    ) -> Prediction:
        """Outputs at `time` on the training inputs, or on others whose NTK with them is `test_train`.

        mean f(x) = f₀(x) + A (y − f₀), A = Θ(x, X) Θ⁻¹ (1 − e^{−cΘt}), f₀ being 0 on average unless `start` (training
        inputs) and `start_test` give a network's own. With the NNGP kernels (of the training inputs, between both, of the
        others) also the covariance over initialisations, K(x,x′) + A K Aᵀ − (A K(X, x′) + …). O(n³ + m n²).
        """
        gone = self._gone(time)
        vectors, values = self.eigenvectors, self.eigenvalues
        given = {"start_test": start_test, "nngp_test_train": nngp_test_train, "nngp_test": nngp_test}
        if test_train is None:
            unused = [name for name, value in given.items() if value is not None]
            if unused:
                raise UsageError(f"got {', '.join(unused)} without test_train; expected it, the NTK of other inputs")
            A = vectors * gone @ vectors.T
        else:
            if (start is None) != (start_test is None):
                raise UsageError(
                    f"got {'start' if start_test is None else 'start_test'} alone; expected the outputs before training on"
                    " both the training inputs (start) and the others (start_test), or neither"
                )
            if nngp is None and (nngp_test_train is not None or nngp_test is not None):
                raise UsageError("got nngp_test_train or nngp_test without nngp; expected all three for a covariance")
            other = _dense(test_train, vectors.dtype)
            if other.dim() != 2 or other.shape[1] != len(values):
                raise UsageError(
                    f"got test_train of shape {tuple(other.shape)}; expected (m, {len(values)}): rows are the other inputs,"
                    " columns the training inputs"
                )
            learned = torch.where(values > 0, gone / torch.where(values > 0, values, 1.0), 0.0)
            A = other @ (vectors * learned @ vectors.T)
        residual = self.y if start is None else self.y - _shaped(start, self.y, "start")
        mean = A @ residual
        first, name = (start, "start") if test_train is None else (start_test, "start_test")
        if first is not None:
            mean = mean + _shaped(first, mean, name)
        if nngp is None:
            return Prediction(mean, None)
        K = _dense(nngp, vectors.dtype)
        if test_train is None:
            left = torch.eye(len(K), dtype=K.dtype, device=K.device) - A
            return Prediction(mean, left @ K @ left.T)
        if nngp_test_train is None or nngp_test is None:
            raise UsageError(
                "got nngp without nngp_test_train or nngp_test; expected all three kernels for a covariance"
            )
        mixed = A @ _dense(nngp_test_train, K.dtype).T
        return Prediction(mean, _dense(nngp_test, K.dtype) + A @ K @ A.T - mixed - mixed.T)

    def _gone(self, time: float | int) -> Tensor:
        """1 − decay, with the digits of small shares: they are what is learned slowly."""
        if self.step is None and not math.isinf(time):
            _check_time(time, self.step)
            return -torch.expm1(-self.factor * self.eigenvalues * time)
        return 1 - self.decay(time)

    def time_to_learn(self, left: float | int = 0.01) -> Float[Tensor, " n"]:
        """When only the share `left` of the residual remains along each eigenvector, ordered as `eigenvalues`.

        log(1/left) / (cλ) in gradient flow, log(left) / log|1 − ηcλ| in steps (a real number: round up); infinite where λ
        is 0, and where steps of this size diverge or never shrink (|1 − ηcλ| ≥ 1).
        """
        if not 0 < left < 1:
            raise UsageError(f"got left={left}; expected a share between 0 and 1")
        rate = self.factor * self.eigenvalues
        if self.step is None:
            return torch.where(rate > 0, math.log(1 / left) / rate, math.inf)
        shrinks = torch.where(  # log|1 − ηcλ| with the digits of a small ηcλ
            self.step * rate < 0.5, torch.log1p(-self.step * rate), (1 - self.step * rate).abs().log()
        )
        return torch.where((rate > 0) & (shrinks < 0), math.log(left) / shrinks, math.inf)


def dynamics(
    theta: Matrix, y: Tensor | np.ndarray, *, loss: LossName = "half-mean", step: Positive | None = None
) -> Dynamics:
    """The training of a network with NTK `theta` on its inputs towards `y`, (n,) or (n, outputs).

    `loss`: "half-sum" ½Σ(f−y)², "half-mean" that over n, "mean" Σ(f−y)²/n; outputs are summed over. `step`: the learning
    rate of gradient descent; without it, gradient flow with learning rate 1. O(n³), once.

    Eigenvalues at or below `n ε₆₄ λ_max + ε ‖Θ‖_F` (ε of the dtype of the entries) are exactly 0 (`threshold`, `zeros`):
    nothing is learned along them, on no input, since a kernel that is positive semi-definite over all inputs vanishes
    there. One further below zero is not a kernel's: a `NumericalWarning` says so, and nothing is learned along it either.

    Examples:
        >>> training = dynamics(torch.eye(2, dtype=torch.float64), torch.tensor([1.0, -1.0]), loss="half-sum")
        >>> training.predict(time=math.log(2)).mean.flatten()
        tensor([ 0.5000, -0.5000], dtype=torch.float64)
    """
    gram = as_gram(theta, symmetric=True)
    matrix = gram.dense().double()
    targets = torch.as_tensor(y, dtype=torch.float64, device=matrix.device)
    if targets.dim() not in (1, 2) or len(targets) != len(matrix):
        raise UsageError(
            f"got targets of shape {tuple(targets.shape)} for {len(matrix)} samples; expected (n,) or (n, c)"
        )
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    largest = float(values.abs().max()) if len(values) else 0.0
    threshold = len(values) * torch.finfo(torch.float64).eps * largest
    threshold += torch.finfo(gram.dtype).eps * float(torch.linalg.vector_norm(matrix))
    if len(values) and float(values[0]) < -threshold:
        warnings.warn(
            f"{gram!r} has {int((values < -threshold).sum())} negative eigenvalues (smallest {float(values[0]):.3g}, largest"
            f" {float(values[-1]):.3g}, rounding explains {threshold:.2g}): it is not a kernel; nothing is learned along them",
            NumericalWarning,
            stacklevel=2,
        )
    zero = values <= threshold
    return Dynamics(
        torch.where(zero, 0.0, values),
        vectors,
        targets.reshape(len(targets), -1),
        LOSSES[loss](len(matrix)),
        None if step is None else float(step),
        threshold,
        int(zero.sum()),
    )


@renamed(ridge="alpha")
def kernel_regression(K: Matrix, y: Tensor | np.ndarray, K_test: Matrix, *, alpha: NonNegative = 0.0) -> Tensor:
    """k(x, X) (K + α)⁻¹ y, what gradient flow ends at when it starts from zero: (m,) or (m, c); O(n³).

    A matrix that is singular to working precision is solved by its pseudo-inverse, as gradient flow would, with a
    `NumericalWarning` that says the rank. Jacot et al. (2018), section 5.

    Examples:
        >>> K, y = torch.tensor([[2.0, 1.0], [1.0, 2.0]]), torch.tensor([1.0, 0.0])
        >>> kernel_regression(K, y, K, alpha=1.0)
        tensor([0.6250, 0.1250], dtype=torch.float64)
    """
    targets = tensor_of(y, "y", 1, 2)
    gram = as_gram(K)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", NumericalWarning)  # jitter, or few digits
            solution = cholesky_solve(gram, targets, float(alpha)).solution
    except (NumericalWarning, NumericalError) as doubt:
        matrix = gram.dense().double() + float(alpha) * torch.eye(len(gram), dtype=torch.float64, device=gram.device)
        cutoff = len(gram) * torch.finfo(torch.float64).eps + torch.finfo(gram.dtype).eps
        found = minimum_norm_solve(matrix, targets, cutoff)
        warnings.warn(f"{doubt} (solved by the pseudo-inverse, of rank {found.rank})", NumericalWarning, stacklevel=2)
        solution = found.solution
    test = _dense(K_test, torch.float64)
    if test.shape[1] != len(gram):
        raise UsageError(
            f"got K_test of shape {tuple(test.shape)} for {len(gram)} training items; expected (m, {len(gram)})"
        )
    return test @ solution.double()


@dataclass(frozen=True)
class MaxLearningRate:
    """The largest learning rate, by the review's rule and by that of plain gradient descent."""

    largest_eigenvalue: float
    """λ of Θ/n, the kernel operator on the data's distribution."""
    inverse: float
    """1/λ: where Σ(f−y)²/n starts to diverge, and what the review states."""
    twice: float
    """2/λ: where Σ(f−y)²/(2n) starts to diverge."""


def max_learning_rate(theta: Matrix) -> MaxLearningRate:
    """Gradient descent on a network with NTK Θ is stable below 2 / (c λmax(Θ)); both usual choices of c, by name.

    One eigenvalue by Lanczos. Lewkowycz et al. (2020); Yang & Salman (2019), section 6, say 1/λ.

    Examples:
        >>> max_learning_rate(2 * torch.eye(4, dtype=torch.float64))
        MaxLearningRate(largest_eigenvalue=0.5, inverse=2.0, twice=4.0)
    """
    gram = as_gram(theta, symmetric=True)
    top = float(gram.eigvalsh()[-1] if len(gram) < 64 else gram.eigvalsh(1)[-1]) / len(gram)
    if not top > 0:
        raise NumericalError(f"the largest eigenvalue is {top:.3g}; expected a positive one: is this a kernel?")
    return MaxLearningRate(top, 1 / top, 2 / top)


def sample(K: Matrix, count: Count = 1, *, seed: int = 0, keep: int | None = None) -> Float[Tensor, "count n"]:
    """`count` draws of Σᵢ √λᵢ ωᵢ uᵢ, λᵢ and uᵢ the eigenpairs of K, ωᵢ independent standard normal numbers; O(n³).

    `keep`: only the largest eigenvalues; the same seed gives the same ω, so that what the small ones add can be seen.
    Eigenvalues below zero by rounding are taken as zero. Yang & Salman (2019), section 3.

    Examples:
        >>> sample(torch.zeros(3, 3, dtype=torch.float64), 2)
        tensor([[0., 0., 0.],
                [0., 0., 0.]], dtype=torch.float64)
    """
    gram = as_gram(K, symmetric=True)
    n = len(gram)
    keep = keep if keep is None else whole(keep, "keep", low=1, high=n)
    values, vectors = torch.linalg.eigh(gram.dense().double())
    if n and float(values[0]) < -1e-7 * float(values.abs().max()):
        raise NumericalError(
            f"the smallest eigenvalue is {float(values[0]):.3g}; expected a covariance: none below zero"
        )
    omega = torch.randn(count, n, generator=generator(seed, "gaussian process"), dtype=torch.float64)
    scale = values.clamp(min=0).sqrt()
    if keep is not None:
        scale[: n - keep] = 0
    return (omega.flip(1).to(scale.device) * scale) @ vectors.T


def _dense(K: Matrix, dtype: torch.dtype) -> Tensor:
    return tensor_of(K.dense() if isinstance(K, Gram) else K, "the kernel", 2).to(dtype)


def _check_time(time: float | int, step: float | None) -> None:
    """Refuse times before training started, and fractions of a step."""
    if math.isnan(time) or time < 0:
        raise UsageError(f"got time={time}; expected a number ≥ 0: training begins at 0")
    if step is not None and not (math.isinf(time) or float(time).is_integer()):
        raise UsageError(f"got time={time} for gradient descent; expected a whole number of steps")


def _shaped(values: Tensor, like: Tensor, name: str) -> Tensor:
    """Outputs shaped as `like`, (m, outputs); (m,) where there is one output."""
    outputs = torch.as_tensor(values).to(like)
    if outputs.shape != like.shape and not (like.shape[1] == 1 and outputs.shape == like.shape[:1]):
        raise UsageError(f"got {name} of shape {tuple(outputs.shape)}; expected {tuple(like.shape)}")
    return outputs.reshape(like.shape)
