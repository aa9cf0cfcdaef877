"""Newton's method for support vector machines: representer coefficients, systems in the active or weighted rows of the kernel.

Squared losses, in the primal: their responses (`_margins`) are piecewise linear, so that a Newton step solves one system on the
points where the response has a slope, `(K_AA + yield) e + Δb = (K (c - u))_A`, with u the response at c; a line search
makes the objective fall, and the active set is right after a few steps (Chapelle, "Training a support vector machine in the
primal", 2007). Every response is a point of the dual problem: the duality gap is known after each step, at no further product.

Hinge and ε-insensitive losses have kinks; `_interior` follows their central path by systems `K + diag(give)`, and that of
squared losses where C is so large that their active sets change back and forth.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import NumericalError
from ntkscope.linalg import Gram, NumericalWarning, OperatorGram, conjugate_gradient, nystrom
from ntkscope.linalg.solvers.system import LAPACK, symmetric_part
from ntkscope.linalg.spectra.band import available_bytes
from ntkscope.surrogates.solvers.margins import Margins

Solve: TypeAlias = Callable[[Tensor], Tensor]

STEPS = 300
MOST_JITTER = 1e-2  # of the mean diagonal
SEARCH = 60
RANK = 256
GIVE = 1e-12  # for systems on free points that are singular
RTOL = 1e-6  # of conjugate gradients: for a direction


class Blocks(Protocol):
    """A kernel, as the steps use it."""

    def product(self, v: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """`K v`."""

    def solver(self, active: Tensor, give: Float[Tensor, " a"]) -> Solve:
        """(a, k) ↦ `(K_AA + diag(give))⁻¹` of them, accurately enough for a direction."""


class Kernel(Blocks, Protocol):
    """The kernel divided by `scale`, its mean diagonal."""

    scale: float
    jitter: float
    """Added to the diagonal, in the kernel's own units."""


@dataclass(frozen=True, eq=False)
class Machine:
    """Where the method stopped: the function `Σ_i coef_i κ(x_i, ·) + intercept`."""

    coef: Float[Tensor, " n"]
    intercept: float
    value: float
    """The objective."""
    gap: float
    """Relative: the objective is above its minimum by at most this share of it."""
    steps: int


def unit_kernel(gram: Gram, *, constant: bool) -> Kernel:
    """Formed in float64 where it fits into memory twice more, else by its products; `constant`: of `K + 1`."""
    n = gram.shape[0]
    if n <= LAPACK and 3 * 8 * n * n <= available_bytes(gram.device):
        return Formed(gram, constant=constant)
    return Products(gram, constant=constant)


def solver_of(matrix: Float[Tensor, "a a"], give: Float[Tensor, " a"]) -> Solve:
    """By Cholesky of `matrix + diag(give)`, which overwrites the matrix."""
    lift = 10 * torch.finfo(torch.float64).eps * float(matrix.diagonal().abs().sum())
    matrix.diagonal().add_(give)
    for _ in range(12):
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if not int(failed):
            return lambda sides: torch.cholesky_solve(sides, factor)
        matrix.diagonal().add_(lift)  # a direction that is a little shorter; the line search decides
        lift *= 10
    raise NumericalError(f"{len(matrix)} active rows of the kernel are not positive definite; check the kernel")


class Formed:
    """A kernel in memory; the systems are solved by Cholesky."""

    def __init__(self, gram: Gram, *, constant: bool) -> None:
        matrix = symmetric_part(gram, torch.float64)
        if constant:
            matrix.add_(1.0)
        self.scale = float(matrix.diagonal().abs().mean()) or float(matrix.abs().max()) or 1.0
        matrix.div_(self.scale)
        self._matrix = matrix
        lift = _lift(matrix)
        matrix.diagonal().add_(lift)
        self.jitter = self.scale * lift

    def product(self, v: Tensor) -> Tensor:
        return self._matrix @ v

    def solver(self, active: Tensor, give: Tensor) -> Solve:
        whole = len(active) == len(self._matrix)
        matrix = self._matrix.clone() if whole else self._matrix[active][:, active]
        return solver_of(matrix, give)


class Products:
    """A kernel that is not formed; the systems are solved by conjugate gradients with a Nyström preconditioner."""

    def __init__(self, gram: Gram, *, constant: bool) -> None:
        self._gram, self._constant, self.jitter = gram, float(constant), 0.0
        self.scale = float(gram.diagonal().to(torch.float64).abs().mean()) + self._constant or 1.0

    def product(self, v: Tensor) -> Tensor:
        return (self._gram @ v + self._constant * v.sum(0)) / self.scale

    def solver(self, active: Tensor, give: Tensor) -> Solve:
        """`S (S K_AA S + m)⁻¹ S` with `S² = m / give` and m the smallest give."""
        block, least = self._gram[active, active], float(give.min())
        scale = (least / give).sqrt()[:, None]
        system = OperatorGram(
            block.shape,
            lambda v: scale * (block @ (scale * v) + self._constant * (scale * v).sum(0)) / self.scale,
            dtype=torch.float64,
            device=block.device,
            symmetric=True,
            diagonal=(block.diagonal().to(torch.float64) + self._constant) / self.scale * scale[:, 0].square(),
        )
        near = nystrom(system, least, rank=min(RANK, len(active)))

        def solve(sides: Tensor) -> Tensor:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NumericalWarning)  # the duality gap says how good the directions were
                return scale * conjugate_gradient(system, scale * sides, least, near, RTOL).solution

        return solve


def _lift(matrix: Float[Tensor, "n n"]) -> float:
    """What makes a matrix of mean diagonal 1 positive definite, added to its diagonal; 0 where rounding of float64 explains
    its negative eigenvalues."""
    size = max(1.0, float(matrix.diagonal().abs().sum()))
    lift, tried = 0.0, len(matrix) * torch.finfo(torch.float64).eps * size
    while tried <= MOST_JITTER:
        shifted = matrix.clone()
        shifted.diagonal().add_(tried)
        if not int(torch.linalg.cholesky_ex(shifted).info):
            return lift
        lift = tried = 10 * tried
    raise NumericalError(
        f"got a kernel of {len(matrix)} rows with eigenvalues below {-lift:.2g} of its mean diagonal; expected a positive"
        " semi-definite one: check how it was computed, or pass nearest_psd(K)"
    )


def balanced_solution(solve: Solve, right: Float[Tensor, "a 1"], total: float, *, bias: bool) -> tuple[Tensor, float]:
    """`(e, Δb)` with `A e + Δb = right` and `Σ e = total`; without a bias `A e = right`."""
    if not bias:
        return solve(right)[:, 0], 0.0
    found, ones = solve(torch.cat([right, torch.ones_like(right)], 1)).T
    shift = (found.sum() - total) / ones.sum()
    return found - shift * ones, float(shift)


def settled(margins: Margins, u: Float[Tensor, " n"], b: float, free: Tensor, kernel: Blocks) -> Float[Tensor, " n"]:
    """The dual point u with its free points, which are between their bounds, moved to where their slopes are 0: one system."""
    u = u.clone()
    if len(free):
        solve = kernel.solver(free, margins.yields[free] + GIVE)
        for _ in range(2):
            aims = margins.targets - margins.epsilon * u.sign() - margins.yields * u - kernel.product(u) - b
            change, shift = balanced_solution(solve, aims[free, None], -float(u.sum()), bias=margins.bias)
            u[free], b = u[free] + change, b + shift
    return u.clamp(margins.low, margins.high)


def constant(margins: Margins) -> Machine:
    """The machine without support vectors."""
    zero = torch.zeros_like(margins.targets)
    return better(Machine(zero, 0.0, math.inf, math.inf, 0), margins, zero, zero, 0.0)


def better(best: Machine, margins: Margins, u: Tensor, image: Tensor, near: float, within: float = 0.0) -> Machine:
    """The machine of the dual point u, whose scores are `image`, if its gap is smaller or `within` this; else `best`."""
    b, value, above = margins.gap(u, image, near)
    above += max(0.0, -float(u @ image))  # a square, unless the kernel has negative eigenvalues
    gap = above / value if value > 0 else 0.0 if above == 0 else math.inf
    return Machine(u, b, value, gap, best.steps) if gap < max(best.gap, within) else best


def fit_squared(margins: Margins, kernel: Kernel, tol: float, max_iter: int) -> Machine:
    """Minimise a squared loss in the units of the kernel until the duality gap is within `tol` of the objective."""
    return _Descent(margins, kernel, tol, max_iter).run()


class _Descent:
    """The state of one fit with a squared loss: coefficients c with their scores K c, and the intercept b."""

    def __init__(self, margins: Margins, kernel: Kernel, tol: float, limit: int) -> None:
        self.margins, self.kernel, self.tol, self.limit = margins, kernel, tol, limit
        self.c = torch.zeros_like(margins.targets)
        self.image = torch.zeros_like(self.c)
        self.b = 0.0
        self._rebias()

    def run(self) -> Machine:
        best, steps = constant(self.margins), 0
        while True:
            u, sloped = self.margins.response(self.margins.targets - self.image - self.b)
            answer = self.kernel.product(u)
            best = better(best, self.margins, u, answer, self.b)
            if (
                best.gap > self.tol and steps
            ):  # where C magnifies the rounding of the scores, the response is far from c
                near = self.c.clamp(self.margins.low, self.margins.high)
                best = better(best, self.margins, near, self.kernel.product(near), self.b)
            if best.gap <= self.tol or steps >= self.limit:
                break
            steps += 1
            if not self._step(u, answer, sloped):
                break
        return replace(best, steps=steps)

    def _rebias(self) -> None:
        """The best intercept for these coefficients."""
        if self.margins.bias:
            self.b = self.margins.best_intercept(self.margins.targets - self.image, self.b)

    def _step(self, u: Tensor, answer: Tensor, sloped: Tensor) -> bool:
        """One Newton step with its line search; False if nothing was gained."""
        active = sloped.nonzero()[:, 0]
        change, ahead, shift = torch.zeros_like(u), torch.zeros_like(u), 0.0
        if len(active):
            solve = self.kernel.solver(active, self.margins.yields[active])
            right = (self.image - answer)[active, None]
            change[active], shift = balanced_solution(solve, right, -float(u.sum()), bias=self.margins.bias)
            ahead = self.kernel.product(change)
        direction, along = u + change - self.c, answer + ahead - self.image
        length = self._search(direction, along, shift)
        if length == 0.0:
            return False
        if length == 1.0:
            self.c, self.image = u + change, answer + ahead
        else:
            self.c, self.image = self.c + length * direction, self.image + length * along
        self._rebias()
        return True

    def _search(self, direction: Tensor, along: Tensor, shift: float) -> float:
        """Where the objective along the direction is smallest, to a tenth of its first slope; 1 where that is as good."""
        r, move = self.margins.targets - self.image - self.b, along + shift
        start, bend = float(self.c @ along), float(direction @ along)

        def slope(length: float) -> float:
            u, _ = self.margins.response(r - length * move)
            return start + length * bend - float(u @ move)

        first = slope(0.0)
        if not first < 0:
            return 0.0
        low, high, length = 0.0, math.inf, 1.0
        for _ in range(SEARCH):
            here = slope(length)
            if abs(here) <= -0.1 * first:
                return length
            low, high = (length, high) if here < 0 else (low, length)
            length = 2 * length if high == math.inf else (low + high) / 2
        return low
