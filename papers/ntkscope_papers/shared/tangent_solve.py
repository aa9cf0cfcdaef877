"""A linearisation solved by so many steps of LSMR: a setting of the experiment, so running out of them is no fault."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from ntkscope.core import Part
from ntkscope.linalg import NumericalWarning
from ntkscope.surrogates import Linearized, linearize
from ntkscope.surrogates.solvers.linear_solution import LinearSolution


def solve_tangent(model: nn.Module, part: Part, steps: int, ridge: float = 0.0) -> tuple[Linearized, LinearSolution]:
    """The linearisation of `model` near the minimum of its squared error, and what the solver says; single precision."""
    linear = linearize(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        solution = linear.solve(
            Part(part.x, part.y), alpha=ridge, method="lsmr", max_iter=steps, tol=1e-10, dtype=torch.float32
        )
    return linear, solution
