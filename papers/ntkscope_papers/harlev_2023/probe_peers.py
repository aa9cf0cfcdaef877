"""Support vector machines of scikit-learn: with a Gaussian kernel on few components, and the linear one's objective."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from sklearn.svm import SVC, LinearSVC
from torch import Tensor

from ntkscope.core import numpy_generator
from ntkscope.linalg import pca
from ntkscope.measures.probes import sweep
from ntkscope_papers.qadeer_2023.networks import digits

FEW = (1, 2, 3, 4, 5, 7, 10)
MOST = 10_000  # training items of a kernel machine
C = 1e-3  # of the linear machines that are compared


def few_components(
    train: Float[Tensor, "n p"], y: Int[Tensor, " n"], test: Float[Tensor, "m p"], labels: Int[Tensor, " m"], seed: int
) -> dict[str, Any]:
    """Test accuracy of a Gaussian and of a linear SVM on the first components, scikit-learn's default settings, and how many
    give the Gaussian one 90 % of its best."""
    found = pca(train, components=min(max(FEW), *train.shape), method="auto")
    Z, new = (found.transform(rows).double().cpu().numpy() for rows in (train, test))
    some = numpy_generator(seed, "few components").permutation(len(Z))[:MOST]
    targets, truth = y.cpu().numpy()[some], labels.cpu().numpy()
    accuracy: dict[str, list[float]] = {"gaussian": [], "linear": []}
    several = [d for d in FEW if d <= Z.shape[1]]
    for d in several:
        machines = {"gaussian": SVC(), "linear": LinearSVC(dual=False)}
        scale = Z[some, :d].std()
        for name, machine in machines.items():
            fit = machine.fit(Z[some, :d] / scale, targets)
            accuracy[name].append(digits(float((fit.predict(new[:, :d] / scale) == truth).mean()), 6))
    enough = [value >= 0.9 * max(accuracy["gaussian"]) for value in accuracy["gaussian"]]
    return {"components": several, **accuracy, "items": len(some), "smallest": several[enough.index(True)]}


def objectives(train: Float[Tensor, "n p"], y: Int[Tensor, " n"], d: int) -> dict[str, Any]:
    """½‖w‖² + C Σ max(0, 1 - yf)², all classes, on the first d components: ours, LinearSVC's, and their relative difference."""
    Z = pca(train, components=min(d, *train.shape), method="auto").transform(train).double()
    d = Z.shape[1]  # fewer where there is no more variance
    ours = sweep(Z, y.to(Z.device), Z[:20], y[:20].to(Z.device), [d], probes=("svm",), C=C).objective["svm"][d]
    a, targets = Z.cpu().numpy(), y.cpu().numpy()
    svm = LinearSVC(C=C, tol=1e-7, max_iter=1_000_000, dual=False).fit(a, targets)
    signs = 2.0 * (targets[:, None] == svm.classes_[None]) - 1
    short = np.maximum(0, 1 - signs * svm.decision_function(a))
    theirs = float((np.square(svm.coef_).sum() + np.square(svm.intercept_).sum()) / 2 + C * np.square(short).sum())
    return {"ours": digits(ours, 9), "LinearSVC": digits(theirs, 9), "apart": digits(abs(ours / theirs - 1), 3)}
