"""Newton's method for support vector machines in the primal: representer coefficients and an active set.

The losses' responses (`_margins`) are piecewise linear, so that a Newton step solves one system on the points where the
response has a slope: `(K_AA + give) e + Δb = (K (c - u))_A`, with `u` the response at c; an exact line search then makes the
objective fall, and the active set is right after a few steps (Chapelle, "Training a support vector machine in the primal",
2007). Hinge and ε-insensitive losses have no slope; there the dual problem gets `δ/2 ‖u - u₀‖²`, with u₀ the last solution and
δ falling (proximal point method, Rockafellar 1976), whose solution is that of the problem itself.

Every response is a point of the dual problem: the duality gap is known after each step, at no further product.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import NumericalError
from ntkscope.linalg import Gram, NumericalWarning, OperatorGram, conjugate_gradient, nystrom
from ntkscope.linalg.band import available_bytes
from ntkscope.linalg.system import LAPACK, symmetric_part
from ntkscope.surrogates._margins import Margins

STEPS = 300
FALL = 0.1  # of δ, from one problem to the next
LEAST = 1e-10  # δ, of a kernel of mean diagonal 1
PROBLEMS = 40  # how often δ falls, or its centre moves, at most
MOST_JITTER = 1e-2  # of the mean diagonal
SEARCH = 60
RANK = 256
RTOL = 1e-6  # of conjugate gradients: for a direction


class Kernel(Protocol):
    """The kernel divided by `scale`, its mean diagonal, as the steps use it."""

    scale: float
    jitter: float
    """Added to the diagonal, in the kernel's own units."""

    def product(self, v: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """`K v`."""

    def solve(self, active: Tensor, give: Float[Tensor, " a"], sides: Float[Tensor, "a k"]) -> Float[Tensor, "a k"]:
        """`(K_AA + diag(give))⁻¹ sides`, accurately enough for a direction."""


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


class Formed:
    """A kernel in memory; the systems are solved by Cholesky."""

    def __init__(self, gram: Gram, *, constant: bool) -> None:
        matrix = symmetric_part(gram, torch.float64)
        if constant:
            matrix.add_(1.0)
        self.scale = float(matrix.diagonal().abs().mean()) or 1.0
        matrix.div_(self.scale)
        self._matrix = matrix
        lift = _lift(matrix)
        matrix.diagonal().add_(lift)
        self.jitter = self.scale * lift

    def product(self, v: Tensor) -> Tensor:
        return self._matrix @ v

    def solve(self, active: Tensor, give: Tensor, sides: Tensor) -> Tensor:
        whole = len(active) == len(self._matrix)
        matrix = self._matrix.clone() if whole else self._matrix[active][:, active]
        lift = 10 * torch.finfo(torch.float64).eps * float(matrix.diagonal().abs().sum())
        matrix.diagonal().add_(give)
        for _ in range(12):
            factor, failed = torch.linalg.cholesky_ex(matrix)
            if not int(failed):
                return torch.cholesky_solve(sides, factor)
            matrix.diagonal().add_(lift)  # a direction that is a little shorter; the line search decides
            lift *= 10
        raise NumericalError(f"{len(active)} active rows of the kernel are not positive definite; check the kernel")


class Products:
    """A kernel that is not formed; the systems are solved by conjugate gradients with a Nyström preconditioner."""

    def __init__(self, gram: Gram, *, constant: bool) -> None:
        self._gram, self._constant, self.jitter = gram, float(constant), 0.0
        self.scale = float(gram.diagonal().to(torch.float64).abs().mean()) + self._constant or 1.0

    def product(self, v: Tensor) -> Tensor:
        return (self._gram @ v + self._constant * v.sum(0)) / self.scale

    def solve(self, active: Tensor, give: Tensor, sides: Tensor) -> Tensor:
        """`S (S K_AA S + m)⁻¹ S sides` with `S² = m / give` and m the smallest give."""
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)  # the duality gap says how good the directions were
            near = nystrom(system, least, rank=min(RANK, len(active)))
            found = conjugate_gradient(system, scale * sides, least, near, RTOL)
        return scale * found.solution


def _lift(matrix: Float[Tensor, "n n"]) -> float:
    """What makes a matrix of mean diagonal 1 positive definite, added to its diagonal; 0 where rounding of float64 explains
    its negative eigenvalues."""
    lift, tried = 0.0, len(matrix) * torch.finfo(torch.float64).eps * float(matrix.diagonal().abs().sum())
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


def fit_margins(margins: Margins, kernel: Kernel, tol: float, max_iter: int = -1) -> Machine:
    """Minimise until the duality gap is within `tol` of the objective; `max_iter` Newton steps, -1 for 300."""
    return _Descent(margins.in_units(kernel.scale), kernel, tol, STEPS if max_iter < 0 else max_iter).run()


class _Descent:
    """The state of one fit: coefficients c with their scores K c, intercept b, and δ with its centre u₀."""

    def __init__(self, margins: Margins, kernel: Kernel, tol: float, limit: int) -> None:
        self.margins, self.kernel, self.tol, self.limit = margins, kernel, tol, limit
        self.c = torch.zeros_like(margins.targets)
        self.image = torch.zeros_like(self.c)
        self.exact = margins.squared
        bound = torch.maximum(margins.high, -margins.low)
        self.delta = torch.zeros_like(self.c) if self.exact else 0.5 / bound
        self.pulled = torch.zeros_like(self.c)
        self.problems = 1
        self.best = Machine(self.c, 0.0, torch.inf, torch.inf, 0)
        self.b = 0.0
        self._rebias()

    @property
    def give(self) -> Tensor:
        return self.margins.yields + self.delta

    def _rebias(self) -> None:
        """The best intercept for these coefficients."""
        if self.margins.bias:
            self.b = self.margins.balanced(self.margins.targets - self.image, self.pulled, self.give, self.b)

    def run(self) -> Machine:
        steps, stalled = 0, False
        while True:
            r = self.margins.targets - self.image - self.b
            u, sloped = self.margins.response(r, self.pulled, self.give)
            answer = self.kernel.product(u)
            above = self._keep(u, answer, steps)
            if self.best.gap <= self.tol or steps >= self.limit:
                break
            away = self.c - u
            short = float(away @ (self.image - answer)) / 2  # how far this problem's objective can be above its minimum
            if not self.exact and (stalled or short <= 0.01 * above):
                if not self._advance(u, answer):
                    break
                stalled = False
                continue
            steps += 1
            stalled = not self._step(u, answer, sloped)
            if stalled and self.exact:
                break
        return self._scaled_back(steps)

    def _keep(self, u: Tensor, answer: Tensor, steps: int) -> float:
        """Remember this point if its gap is the smallest, and return that gap."""
        b, value, above = self.margins.gap(u, answer, self.b)
        gap = above / value if value > 0 else 0.0
        if gap < self.best.gap:
            self.best = Machine(u, b, value, gap, steps)
        return above

    def _advance(self, u: Tensor, answer: Tensor) -> bool:
        """The next problem: its centre is this one's solution, and δ is smaller. False where that would change nothing."""
        moved = bool((self.delta > LEAST).any()) or bool((self.pulled != self.delta * u).any())
        self.problems += 1
        self.delta = (FALL * self.delta).clamp_min(LEAST)
        self.c, self.image, self.pulled = u, answer, self.delta * u
        self._rebias()
        return moved and self.problems <= PROBLEMS

    def _step(self, u: Tensor, answer: Tensor, sloped: Tensor) -> bool:
        """One Newton step with its line search; False if nothing was gained."""
        active = sloped.nonzero()[:, 0]
        change, shift = torch.zeros_like(u), 0.0
        if len(active):
            right = (self.image - answer)[active]
            sides = torch.stack([right, torch.ones_like(right)], 1)
            found = self.kernel.solve(active, self.give[active], sides if self.margins.bias else sides[:, :1])
            inside = found[:, 0]
            if self.margins.bias:
                shift = float((inside.sum() + u.sum()) / found[:, 1].sum())
                inside = inside - shift * found[:, 1]
            change[active] = inside
            ahead = self.kernel.product(change)
        else:
            ahead = torch.zeros_like(u)
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
            u, _ = self.margins.response(r - length * move, self.pulled, self.give)
            return start + length * bend - float(u @ move)

        first = slope(0.0)
        if not first < 0:
            return 0.0
        low, high, length = 0.0, float("inf"), 1.0
        for _ in range(SEARCH):
            here = slope(length)
            if abs(here) <= -0.1 * first:
                return length
            low, high = (length, high) if here < 0 else (low, length)
            length = 2 * length if high == float("inf") else (low + high) / 2
        return low

    def _scaled_back(self, steps: int) -> Machine:
        scale, best = self.kernel.scale, self.best
        return Machine(best.coef / scale, best.intercept, best.value / scale, best.gap, steps)
