"""Support vector machine on a precomputed kernel, its dual coefficients laid out as one row per class."""

from __future__ import annotations

from typing import Annotated, Any, final

import numpy as np
import torch

from ntkscope.core.checked import Positive
from ntkscope.surrogates._base import LinearClassifier, keep
from ntkscope.surrogates._checks import class_labels, sample_weights, training_kernel, two_classes_weigh
from ntkscope.surrogates._support import Intercept, Solver, Steps, SupportVectors
from ntkscope.surrogates.registry import SURROGATES
from ntkscope.surrogates.solvers.margins import classes_apart
from ntkscope.surrogates.solvers.smo import class_machine


@final
@SURROGATES.register("svm")
class KernelSVM(SupportVectors, LinearClassifier):
    """One-vs-rest: class c against all others, `½‖f_c‖² + C Σ_i hinge`, or the squared hinge `max(0, 1 - y f)²`.

    One-vs-rest rather than SVC's own one-vs-one, so that every class has one function linear in the kernel: `coef_`
    (classes, n), zero outside the support vectors, and `intercept_` (classes,). With two classes there is one function f
    and the logits are (-f/2, f/2). `predict_proba` is the softmax of the scores: it ranks classes but is not calibrated.

    intercept: "free", or "penalised", when a constant is one more feature, of the kernel `K + 1`: hinge with a free one is
    scikit-learn's SVC, squared hinge with a penalised one its LinearSVC.

    solver: "smo" is SVC, which has the hinge and a free intercept alone; O(n²) to O(n³) per class, the kernel as a NumPy array.
    "newton" is in float64 on the kernel's device: squared losses in the primal on the active rows, the others by an
    interior-point method; each step factorises, O(n³) at most, where the kernel fits into memory, else it uses conjugate
    gradients on `K @ v`. "auto" is "smo" where it applies, up to 10,000 rows on a CPU, then "newton" where libsvm's gap stays
    above `tol` (large C).

    tol: how far above its minimum the objective of each class may be, relative to it, by the duality gap. max_iter: steps
    of the solver per class; -1 means a million of SVC's, 300 of Newton's. Fitted: `coef_`, `intercept_`, `support_`, `n_iter_`,
    `solver_`, `objective_` (of each function), `gap_` (the largest, relative), `converged_` (within `tol`; a ConvergenceWarning
    where not), `jitter_` (what Newton's method added to the diagonal of a kernel with negative eigenvalues, with a warning; the
    objective is that of `K + jitter_ I`).

    >>> K = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> KernelSVM().fit(K, [0, 0, 1]).predict(K).tolist()
    [0, 0, 1]
    >>> svm = KernelSVM(loss="squared_hinge", intercept="penalised").fit(K, [0, 0, 1])
    >>> svm.solver_, svm.decision_function(K).round(3).tolist()
    ('newton', [-0.781, -0.781, 0.625])
    """

    _margin = "hinge"
    _squared = "squared_hinge"

    def __init__(
        self,
        C: Positive = 1.0,
        *,
        loss: Annotated[str, ("hinge", "squared_hinge")] = "hinge",
        intercept: Intercept = "free",
        solver: Solver = "auto",
        tol: Positive = 1e-6,
        max_iter: Steps = -1,
    ) -> None:
        keep(locals())

    def fit(self, K: Any, y: Any, sample_weight: Any = None) -> KernelSVM:
        """Fit on the kernel (n, n), one label per row, and weights (n,) that multiply C."""
        gram = training_kernel(self, K)
        self.classes_, numbers = class_labels(gram, y, "KernelSVM")
        weights = sample_weights(gram, sample_weight)
        two_classes_weigh(numbers, weights, "KernelSVM")
        classes = len(self.classes_)
        asked = range(1, 2) if classes == 2 else range(classes)  # those that get a function of their own
        self.solver_ = self._road(gram)
        inner, most, kept = self._weighed(gram, weights)
        places = torch.from_numpy(numbers).to(gram.device)
        places = places if kept is None else places[kept]
        squared, bias = self.loss == self._squared, self.intercept == "free"
        problems = [classes_apart(places == c, most, squared=squared, bias=bias) for c in asked]
        machines = self._solved(inner, problems, class_machine)
        coef, intercept = self._keep(machines, kept, len(numbers))
        if classes == 2:
            coef, intercept = np.concatenate([-coef, coef]) / 2, np.concatenate([-intercept, intercept]) / 2
        self.coef_, self.intercept_ = coef, intercept
        return self
