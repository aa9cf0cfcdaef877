"""What gradient descent makes of an infinitely wide network under squared error: mean and covariance at any time.

Such a network stays linear in its parameters, so its outputs f on the training inputs obey ḟ = −c Θ (f − y), with Θ their
NTK and c the factor the loss puts before it. Everything follows from the eigenvectors of Θ. Lee et al. (2019), section 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.linalg import Gram, as_gram, cholesky_solve

Matrix = Gram | Tensor | np.ndarray
LOSSES: dict[str, Callable[[int], float]] = {
    "half-sum": lambda n: 1.0,  # ½ Σ (f − y)²
    "half-mean": lambda n: 1.0 / n,  # 1/(2n) Σ (f − y)²
    "mean": lambda n: 2.0 / n,  # 1/n Σ (f − y)²
}


def rate_factor(loss: str, n: int) -> float:
    """c in ḟ = −c Θ (f − y) for n samples.

    >>> rate_factor("mean", 4)
    0.5
    """
    if loss not in LOSSES:
        raise UsageError(f"loss={loss!r} came; expected one of {', '.join(LOSSES)}")
    return LOSSES[loss](n)


@dataclass(frozen=True)
class Prediction:
    """The distribution of trained networks' outputs: `mean` (m, outputs) and, if it was asked for, `covariance` (m, m)."""

    mean: Tensor
    covariance: Tensor | None


@dataclass(frozen=True, eq=False)
class Dynamics:
    """Training by gradient flow, or by gradient descent with a step, of a network whose NTK on the data is Θ.

    Made by `dynamics`. Times are those of gradient flow, or numbers of steps of gradient descent; infinity is allowed.
    """

    eigenvalues: Tensor
    """Of Θ, ascending."""
    eigenvectors: Tensor
    y: Tensor
    """(n, outputs)."""
    factor: float
    step: float | None

    def decay(self, time: float | int) -> Float[Tensor, " n"]:
        """What is left of the residual along each eigenvector: e^{−cλt}, or (1 − ηcλ)^t for steps of size η."""
        rate = self.factor * self.eigenvalues.clamp(min=0)
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
        return inside.pow(int(time)) if float(time).is_integer() else _refuse_part_of_step(time)

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
        gone = 1 - self.decay(time)
        vectors, values = self.eigenvectors, self.eigenvalues
        positive = values > len(values) * torch.finfo(values.dtype).eps * values.abs().max()
        if test_train is None:
            A = vectors * gone @ vectors.T
        else:
            learned = torch.where(positive, gone / torch.where(positive, values, 1.0), self._linear(time))
            A = _dense(test_train, vectors.dtype) @ (vectors * learned @ vectors.T)
        residual = self.y if start is None else self.y - start.to(self.y.dtype).reshape(self.y.shape)
        mean = A @ residual
        first = start if test_train is None else start_test
        if first is not None:
            mean = mean + first.to(mean.dtype).reshape(mean.shape)
        if nngp is None:
            return Prediction(mean, None)
        K = _dense(nngp, vectors.dtype)
        if test_train is None:
            left = torch.eye(len(K), dtype=K.dtype, device=K.device) - A
            return Prediction(mean, left @ K @ left.T)
        if nngp_test_train is None or nngp_test is None:
            raise UsageError(
                "nngp came without nngp_test_train or nngp_test; expected all three kernels for a covariance"
            )
        mixed = A @ _dense(nngp_test_train, K.dtype).T
        return Prediction(mean, _dense(nngp_test, K.dtype) + A @ K @ A.T - mixed - mixed.T)

    def _linear(self, time: float | int) -> float:
        """(1 − e^{−cλt}) / λ as λ → 0, which stays finite in finite time and is 0 by convention for infinite time."""
        return 0.0 if math.isinf(time) else self.factor * float(time) * (1.0 if self.step is None else self.step)

    def time_to_learn(self, left: float | int = 0.01) -> Float[Tensor, " n"]:
        """When only the share `left` of the residual remains along each eigenvector, ordered as `eigenvalues`.

        log(1/left) / (cλ) in gradient flow; infinite where λ is 0.
        """
        if not 0 < left < 1:
            raise UsageError(f"left={left} came; expected a share between 0 and 1")
        rate = self.factor * self.eigenvalues.clamp(min=0)
        if self.step is None:
            return math.log(1 / left) / rate
        return math.log(left) / (1 - self.step * rate).abs().log()


def dynamics(
    theta: Matrix, y: Tensor | np.ndarray, *, loss: str = "half-mean", step: float | int | None = None
) -> Dynamics:
    """The training of a network with NTK `theta` on its inputs towards `y`, (n,) or (n, outputs).

    `loss`: "half-sum" ½Σ(f−y)², "half-mean" that over n, "mean" Σ(f−y)²/n; outputs are summed over. `step`: the learning
    rate of gradient descent; without it, gradient flow with learning rate 1. O(n³), once.

    >>> training = dynamics(torch.eye(2, dtype=torch.float64), torch.tensor([1.0, -1.0]), loss="half-sum")
    >>> training.predict(time=math.log(2)).mean.flatten()
    tensor([ 0.5000, -0.5000], dtype=torch.float64)
    """
    gram = as_gram(theta, symmetric=True)
    matrix = gram.dense().double()
    targets = torch.as_tensor(y, dtype=torch.float64, device=matrix.device)
    if targets.dim() not in (1, 2) or len(targets) != len(matrix):
        raise UsageError(
            f"targets of shape {tuple(targets.shape)} came for {len(matrix)} samples; expected (n,) or (n, c)"
        )
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    factor = rate_factor(loss, len(matrix))
    return Dynamics(values, vectors, targets.reshape(len(targets), -1), factor, None if step is None else float(step))


def kernel_regression(K: Matrix, y: Tensor | np.ndarray, K_test: Matrix, *, ridge: float | int = 0.0) -> Tensor:
    """k(x, X) (K + ridge)⁻¹ y, what gradient flow ends at when it starts from zero; O(n³).

    Jitter, if the matrix needed any, is in a `NumericalWarning`. Jacot et al. (2018), section 5.
    """
    targets = torch.as_tensor(y, dtype=torch.float64)
    return _dense(K_test, torch.float64) @ cholesky_solve(as_gram(K), targets, float(ridge)).solution.double()


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

    >>> max_learning_rate(2 * torch.eye(4, dtype=torch.float64))
    MaxLearningRate(largest_eigenvalue=0.5, inverse=2.0, twice=4.0)
    """
    gram = as_gram(theta, symmetric=True)
    top = float(gram.eigvalsh()[-1] if len(gram) < 64 else gram.eigvalsh(1)[-1]) / len(gram)
    if not top > 0:
        raise NumericalError(f"the largest eigenvalue is {top:.3g}; expected a positive one: is this a kernel?")
    return MaxLearningRate(top, 1 / top, 2 / top)


def _dense(K: Matrix, dtype: torch.dtype) -> Tensor:
    return (K.dense() if isinstance(K, Gram) else torch.as_tensor(K)).to(dtype)


def _refuse_part_of_step(time: float | int) -> Tensor:
    raise UsageError(f"time={time} came for gradient descent; expected a whole number of steps")
