"""Right or refused: cases in which solvers, spectra, dynamics and measures were once silently wrong, now and before.

`python -m benchmarks.statistics.right_or_refused_solvers` prints the table. "before" is what version 42e606a gave,
computed anew when `--before` names a folder with its `src`; the right value is computed here by other means: SciPy, LAPACK,
fractions, loops.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
import typer
from scipy.optimize import minimize

from benchmarks.machine import ROOT

Row = dict[str, Any]
DIGITS = 1e-6


def _kernel(n: int = 30, condition: float = 1e2) -> np.ndarray:
    basis = np.linalg.qr(np.random.default_rng(1).normal(size=(n, n)))[0]
    values = np.logspace(0, -np.log10(condition), n)
    return (basis * (values * n / values.sum())) @ basis.T


def _labels(n: int = 30, classes: int = 3) -> np.ndarray:
    return np.r_[np.arange(classes), np.random.default_rng(2).integers(0, classes, n - classes)]


def _entropy(scores: np.ndarray, y: np.ndarray) -> float:
    rows, top = np.arange(len(y)), scores.argmax(1)
    odds = np.exp(scores - scores[rows, top][:, None])
    odds[rows, top] = 0
    return float(np.mean(np.log1p(odds.sum(1)) + (scores[rows, top] - scores[rows, y])))


def _minimum(K: np.ndarray, y: np.ndarray, alpha: float) -> float:
    """`min cross-entropy(K W + b) + α/2 ‖W‖²` by SciPy in K's eigenvectors, the ridge lowered tenfold at a time."""
    values, vectors = np.linalg.eigh(K)
    scale = np.abs(values).max()
    features = vectors * (values / scale)
    n, c = len(y), int(y.max()) + 1
    hot, theta = np.eye(c)[y], np.zeros((n + 1) * c)
    last = alpha / scale**2

    def objective(flat: np.ndarray, ridge: float) -> tuple[float, np.ndarray]:
        W = flat.reshape(n + 1, c)
        scores = features @ W[:-1] + W[-1]
        p = np.exp(scores - scores.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        off = np.where(hot > 0, 0.0, p)
        residual = (off - hot * off.sum(1, keepdims=True)) / n
        value = _entropy(scores, y) + ridge / 2 * float((W[:-1] ** 2).sum())
        slope = np.concatenate([features.T @ residual + ridge * W[:-1], residual.sum(0)[None]])
        return value / ridge, slope.ravel() / ridge

    for ridge in [last * 10.0**k for k in range(max(0, math.ceil(math.log10(1 / last))), -1, -1)]:
        for _ in range(3):
            options = {"maxiter": 20_000, "maxfun": 40_000, "maxcor": 60, "ftol": 0.0, "gtol": 1e-12}
            theta = minimize(objective, theta, (ridge,), jac=True, method="L-BFGS-B", options=options).x
    return objective(theta, last)[0] * last


def _glm(scale: float) -> dict[str, Any]:
    from ntkscope.surrogates import KernelGLM

    K, y = scale * _kernel(), _labels()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        glm = KernelGLM(1e-4).fit(K, y)
    value = _entropy(K @ glm.coef_.T + glm.intercept_, y) + 0.5e-4 * float((glm.coef_**2).sum())
    return {"value": value, "said": bool(caught) or not glm.converged_}


def _svm() -> dict[str, Any]:
    from ntkscope.surrogates import KernelSVM

    K, y = 1e4 * _kernel(40), np.arange(40) % 2
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        svm = KernelSVM(1.0).fit(K, y)
    signs, coef = np.where(y == 1, 1.0, -1.0), svm.coef_[1] - svm.coef_[0]
    scores = K @ coef + svm.intercept_[1] - svm.intercept_[0]
    return {"value": float(coef @ K @ coef / 2 + np.maximum(0, 1 - signs * scores).sum()), "said": bool(caught)}


def _svm_right() -> float:
    K, signs = 1e4 * _kernel(40), np.where(np.arange(40) % 2 == 1, 1.0, -1.0)
    scale = np.diag(K).mean()
    Q = signs[:, None] * K * signs / scale
    found = minimize(
        lambda a: (a @ Q @ a / 2 - a.sum(), Q @ a - 1),
        np.full(40, 0.5),
        jac=True,
        bounds=[(0, scale)] * 40,
        constraints=[{"type": "eq", "fun": lambda a: a @ signs, "jac": lambda a: signs}],
        method="SLSQP",
        options={"maxiter": 2000, "ftol": 1e-15},
    )
    return float(-found.fun / scale)


def _repeated(seed: int, n: int = 300, copies: int = 5) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(n, n, generator=random, dtype=torch.float64)).Q
    rest = 1.9 * torch.rand(n - copies, generator=random, dtype=torch.float64)
    matrix = (basis * torch.cat([torch.full((copies,), 2.0).double(), rest])) @ basis.T
    return (matrix + matrix.T) / 2


def _eigenvalues() -> dict[str, Any]:
    from ntkscope.core import NumericalError
    from ntkscope.linalg import as_gram

    lost = 0
    for seed in range(20):
        matrix = _repeated(seed)
        try:
            found = as_gram(matrix).eigvalsh(6)
        except NumericalError:
            continue
        lost += float((found - torch.linalg.eigvalsh(matrix)[-6:]).abs().max()) > 1e-8
    return {"value": lost}


def _twice(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A kernel with an input twice, and labels that contradict each other there."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(4, 3, generator=random, dtype=torch.float64)
    x = torch.cat([x[:1], x])
    return (x @ x.T / 3).exp(), torch.tensor([1.0, -1.0, 0.5, 0.2, -0.4])


def _end() -> dict[str, Any]:
    from ntkscope.infinite import dynamics

    worst = 0.0
    for seed in range(20):
        theta, y = _twice(seed)
        exact = theta @ torch.linalg.pinv(theta, rtol=1e-12, hermitian=True) @ y.double()
        worst = max(worst, float((dynamics(theta, y).predict().mean[:, 0] - exact).abs().max()))
    return {"value": worst}


def _singular(question: str) -> dict[str, Any]:
    from ntkscope.core import NtkscopeError
    from ntkscope.infinite import dynamics

    x = torch.tensor([[0.3, 0.7], [0.3, 0.7], [0.9, -0.2]], dtype=torch.float64)
    theta, y = (x @ x.T + 0.1).exp(), torch.tensor([1.0, -1.0, 0.5])
    training = dynamics(theta, y, loss="half-sum")
    ask: dict[str, Callable[[], Any]] = {
        "late": lambda: training.predict((x[:1] @ x.T + 0.1).exp(), 1e20).mean[0],
        "never": lambda: training.time_to_learn()[0],
        "diverging": lambda: dynamics(theta, y, loss="half-sum", step=10.0).time_to_learn()[-1],
        "negative": lambda: training.predict(time=-1.0).mean[0],
        "start": lambda: training.predict(theta, 1.0, start=y).mean[0],
    }
    try:
        return {"value": float(ask[question]())}
    except NtkscopeError:
        return {"value": None, "said": True}


def _percentile() -> dict[str, Any]:
    from ntkscope.measures.uncertainty import percentile_interval

    return {"value": percentile_interval([1e-14 * v for v in range(101)], 0.9)[0]}


def _tau() -> dict[str, Any]:
    from ntkscope.measures.faithfulness import kendall_tau

    return {"value": kendall_tau([2**60 + i for i in range(5)], [0, 1, 2, 3, 4], ties="discordant")}


def _pairs() -> float:
    a, b = [2**60 + i for i in range(5)], [0, 1, 2, 3, 4]
    signs = [1 if (a[i] < a[j]) == (b[i] < b[j]) and a[i] != a[j] else -1 for i in range(5) for j in range(i)]
    return sum(signs) / len(signs)


def _rank() -> dict[str, Any]:
    from ntkscope.linalg import estimate_effective_rank

    found = [estimate_effective_rank(_decaying(seed), "features", seed=seed) for seed in range(60)]
    exact = _rank_right()
    return {"value": sum(abs(f.value - exact) > 3 * f.standard_error for f in found) / len(found)}


def _decaying(seed: int, n: int = 240) -> torch.Tensor:
    basis = torch.linalg.qr(torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).Q
    matrix = (basis * torch.exp(-torch.arange(1, n + 1) / 8.0).double()) @ basis.T
    return (matrix + matrix.T) / 2


def _rank_right(n: int = 240) -> float:
    shares = np.exp(-np.arange(1, n + 1) / 16.0)
    shares /= shares.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def _limit_of_pseudo_inverse(row: int) -> float:
    x = np.array([[0.3, 0.7], [0.3, 0.7], [0.9, -0.2]])
    theta = np.exp(x @ x.T + 0.1)
    return float((theta @ np.linalg.pinv(theta, rcond=1e-12, hermitian=True) @ np.array([1.0, -1.0, 0.5]))[row])


def _smallest(scale: float) -> float:
    return _minimum(scale * _kernel(), _labels(), 1e-4)


ASKED: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[], float | None], float]] = {
    **{
        f"kernel GLM, kernel entries of {scale:.0e}: objective": (
            partial(_glm, scale),
            partial(_smallest, scale),
            0.0,
        )
        for scale in (1e-4, 1.0, 1e2, 1e4, 1e6)
    },
    "support vectors, kernel entries of 1e4: objective": (_svm, _svm_right, 0.0),
    "six largest eigenvalues, the top five-fold: how many of 20 matrices lost a copy": (_eigenvalues, lambda: 0.0, 0.0),
    "an input twice with labels ±1: the end of training, largest error over 20 kernels": (_end, lambda: 0.0, 1e-9),
    "the same on a test input at t = 1e20": (
        lambda: _singular("late"),
        lambda: _limit_of_pseudo_inverse(0),
        1e-9,
    ),
    "the same: time to learn the direction of eigenvalue 0": (lambda: _singular("never"), lambda: math.inf, 0.0),
    "steps that diverge: time to learn": (lambda: _singular("diverging"), lambda: math.inf, 0.0),
    "a negative time": (lambda: _singular("negative"), lambda: None, 0.0),
    "start without start_test": (lambda: _singular("start"), lambda: None, 0.0),
    "5th percentile of 0 … 1e-12": (_percentile, lambda: float(Fraction(5) * Fraction(1e-14)), 0.0),
    "Kendall's τ of integers above 2⁵³": (_tau, _pairs, 0.0),
    "effective rank of an exponential spectrum: share of |z| > 3 in 60 seeds": (_rank, lambda: 0.0, 0.01),
}


def verdict(answer: dict[str, Any], right: float | None, allowed: float) -> str:
    """`right`, `said` (refused, or warned of) or `WRONG`; within a millionth, or what is `allowed`."""
    value = answer["value"]
    if right is None or value is None:
        return "said" if answer.get("said") else "WRONG"
    close = value == right or (math.isfinite(right) and abs(value - right) <= max(DIGITS * abs(right), allowed))
    return "right" if close else "said" if answer.get("said") else "WRONG"


def answers() -> dict[str, dict[str, Any]]:
    """What this version of the package says in every case."""
    return {case: ask() for case, (ask, _, _) in ASKED.items()}


def cases(before: str | None = None) -> list[Row]:
    """Rows with case, before, right value, now and verdict; `before` is a folder with an older `src`."""
    old: dict[str, dict[str, Any]] = {}
    if before is not None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.join(before, "src"), str(ROOT)])}
        command = [sys.executable, "-m", "benchmarks.statistics.right_or_refused_solvers", "--answers"]
        old = json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    rows = []
    for case, (ask, by_other_means, allowed) in ASKED.items():
        now, right = ask(), by_other_means()
        earlier = old.get(case)
        rows.append(
            {
                "case": case,
                "before": None if earlier is None else earlier["value"],
                "before verdict": None if earlier is None else verdict(earlier, right, allowed),
                "right value": right,
                "now": now["value"],
                "verdict": verdict(now, right, allowed),
            }
        )
    return rows


def main(
    before: Annotated[
        str | None,
        typer.Option(help="A folder with the src of an older version: git archive VERSION src | tar -x -C IT"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--answers", help="Print this version's answers as JSON and nothing else.")
    ] = False,
) -> None:
    if as_json:
        print(json.dumps(answers()))
        return
    rows = cases(before)
    print("| case | before | right value | now | verdict |\n| --- | --- | --- | --- | --- |")
    for row in rows:
        told = "refused" if row["now"] is None else f"{row['now']:.6g}"
        expected = "refused" if row["right value"] is None else f"{row['right value']:.6g}"
        earlier = row["before verdict"]
        was = "" if earlier is None else f"{row['before']:.6g} ({earlier})" if row["before"] is not None else "refused"
        print(f"| {row['case']} | {was} | {expected} | {told} | {row['verdict']} |")
    if any(row["verdict"] == "WRONG" for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)  # an older version runs this file too and has nothing of ours for it
