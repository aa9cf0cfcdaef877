"""Recursive feature machines against xrfm's RFM: at equal settings, and each with its own choice of them.

Equal settings: the Laplace kernel without intercept on the chain monomial, both in float64 (xrfm in float32 beside it). Its own
choice: ours by closed-form leave-one-out on all training points; xrfm's by descent on a grid of bandwidths and ridges from its
defaults, and over its iterations, on a fifth of the training points held out (its own default share). Inputs standardised, 10
draws or splits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from benchmarks.machine import THREADS
from benchmarks.outcome import Check, Outcome
from benchmarks.peers import Peer, PeerUnavailable
from benchmarks.timing import Spread, interleaved, ratio, wall
from ntkscope.linalg import matrix_correlation
from ntkscope.surrogates import RecursiveFeatureClassifier, RecursiveFeatureMachine
from ntkscope_papers.beaglehole_2024.data import chain_monomial

BANDWIDTH, RIDGE, ITERATIONS = 10.0, 1e-3, 5
CORRELATION, TIME, RHO, COSINES = 0.99999, 1.0, 0.98, 0.97
RANK = 5
REAL = {"diabetes": load_diabetes, "breast cancer": load_breast_cancer, "digits": load_digits}


@dataclass(frozen=True, eq=False)
class Problem:
    """Training and test points of one draw or split; `classes` is 0 for a regression; `egop` of a known target."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int = 0
    egop: np.ndarray | None = None

    def write(self, folder: str) -> str:
        """A file for the peer: targets (n, outputs), one-hot for more than two classes."""
        y = np.eye(self.classes)[self.y] if self.classes > 2 else self.y.astype(np.float64)[:, None]
        path = Path(folder) / "problem.npz"
        np.savez(path, x=self.x, y=y, x_test=self.x_test)
        return str(path)

    def error(self, predictions: np.ndarray) -> float:
        """The share of wrong classes, or the mean squared error over the variance of the test targets."""
        if not self.classes:
            return float(np.square(predictions - self.y_test).mean() / self.y_test.var())
        return float((predictions != self.y_test).mean())


def chain(n: int, seed: int) -> Problem:
    split = chain_monomial(train=n, test=2000, seed=seed, dtype="float64")
    x, y, x_test, y_test = (v.numpy() for v in (split.train.x, split.train.y, split.test.x, split.test.y))
    return Problem(x, y.ravel(), x_test, y_test.ravel(), 0, split.extras["egop"].numpy())


def real(name: str, seed: int, most: int | None = None) -> Problem:
    x, y = REAL[name](return_X_y=True)
    classes = len(np.unique(y)) if name != "diabetes" else 0
    x, y = (x, y) if most is None else (x[:most], y[:most])
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.2, random_state=seed, stratify=y if classes else None)
    scale = StandardScaler().fit(x)
    return Problem(scale.transform(x), y, scale.transform(x_test), y_test, classes)


def equal_settings(peer: Peer, folder: str, n: int, rounds: int) -> dict[str, Any]:
    """Seconds of both, interleaved, and how their predictions correlate."""
    data = chain(n, 0)
    machine = RecursiveFeatureMachine("laplace", BANDWIDTH, RIDGE, ITERATIONS, fit_intercept=False)
    path, theirs_say = data.write(folder), {}

    def ours() -> None:
        machine.fit(data.x, data.y)

    def theirs(dtype: str) -> float:
        options = {"bandwidth": BANDWIDTH, "ridge": RIDGE, "iterations": ITERATIONS, "dtype": dtype}
        answer = peer.ask("fit", path=path, **options)
        theirs_say[dtype] = np.array(answer["predictions"])[:, 0]
        return float(answer["seconds"])

    ours()  # warm-up
    theirs("float64")
    seconds = interleaved(
        {"ours": wall(ours), "float64": lambda: theirs("float64"), "float32": lambda: theirs("float32")}, rounds=rounds
    )
    predictions = machine.predict(data.x_test)
    return {
        "n": n,
        "seconds": seconds,
        "correlation": {k: float(np.corrcoef(predictions, said)[0, 1]) for k, said in theirs_say.items()},
    }


def own_choice(peer: Peer, folder: str, problems: Iterator[Problem]) -> dict[str, Any]:
    """Errors of both on every problem, each with the settings it chose, and what ours saw of the target's gradients."""
    found: dict[str, list[Any]] = {k: [] for k in ("ours", "theirs", "settings", "rho", "cosines", "seconds")}
    for seed, data in enumerate(problems):
        path = data.write(folder)
        machine = (RecursiveFeatureClassifier if data.classes else RecursiveFeatureMachine)()
        took = wall(lambda m=machine, d=data: m.fit(d.x, d.y))()  # type: ignore[misc]
        answer = peer.ask("select", path=path, classes=data.classes, seed=seed)
        theirs = np.array(answer["predictions"])
        if data.classes:
            theirs = theirs.argmax(1) if data.classes > 2 else (theirs[:, 0] > 0.5).astype(int)
        found["ours"].append(data.error(machine.predict(data.x_test)))
        found["theirs"].append(data.error(theirs if data.classes else theirs[:, 0]))
        found["seconds"].append((took, answer["seconds"]))
        chosen = f"bandwidth {machine.bandwidth_:.3g}, ridge {machine.alpha_:.2g}, iteration {machine.iterations_}"
        found["settings"].append((chosen, answer["setting"]))
        if data.egop is not None:
            found["rho"].append(matrix_correlation(machine.metric_, data.egop))
            found["cosines"].append(inside(machine.metric_))
        print(f"  {seed}: {found['ours'][-1]:.4g} ours, {found['theirs'][-1]:.4g} xrfm", flush=True)
    return found


def inside(metric: np.ndarray) -> float:
    """The mean squared cosine of the metric's leading eigenvectors with the coordinates that the target depends on."""
    vectors = np.linalg.eigh(metric)[1][:, -RANK:]
    return float(np.square(vectors[:RANK]).sum(0).mean())


def no_worse(name: str, found: dict[str, Any], quick: bool) -> Check:
    """Whether our error is at most xrfm's plus one standard error of the paired differences."""
    differences = np.array(found["ours"]) - np.array(found["theirs"])
    standard = float(differences.std(ddof=1) / np.sqrt(len(differences))) if len(differences) > 1 else 0.0
    mean = float(differences.mean())
    return Check(
        f"{name}: error with its own choice of settings",
        "at most xrfm's plus one standard error of the paired differences",
        f"{np.mean(found['ours']):.4g} against {np.mean(found['theirs']):.4g}, difference {mean:+.3g} ± {standard:.2g}",
        None if quick else mean <= standard,
    )


def compare(peer: Peer, folder: str, quick: bool) -> Outcome:
    sizes, draws, rounds = ((60,), 1, 1) if quick else ((384, 1000, 2000), 10, 5)
    rows: list[dict[str, Any]] = []
    checks: list[Check] = []
    details: dict[str, Any] = {"equal": [], "own": {}}
    for n in sizes:
        equal = equal_settings(peer, folder, n, rounds)
        details["equal"].append(equal)
        seconds, least = equal["seconds"], min(equal["correlation"].values())
        share = ratio(seconds["ours"], seconds["float64"])
        rows.append(
            {"problem": f"chain-monomial, n {n}, equal settings", **{f"{k} s": str(v) for k, v in seconds.items()}}
        )
        checks.append(
            Check(f"n {n}: correlation of predictions", f"at least {CORRELATION}", f"{least:.9f}", least >= CORRELATION)
        )
        held = None if quick else share.median <= TIME
        checks.append(Check(f"n {n}: our seconds over xrfm's, float64", f"at most {TIME:g}", str(share), held))
    problems: dict[str, Callable[[int], Problem]] = {f"chain-monomial, n {n}": partial(chain, n) for n in sizes}
    problems |= {name: partial(real, name, most=120 if quick else None) for name in REAL}
    for name, make in problems.items():
        print(f" {name}", flush=True)
        found = own_choice(peer, folder, (make(seed) for seed in range(draws)))
        details["own"][name] = found
        checks.append(no_worse(name, found, quick))
        spent = [Spread(tuple(s)) for s in zip(*found["seconds"])]
        row = {"problem": f"{name}, own choice", "ours s": str(spent[0]), "float64 s": str(spent[1])}
        rows.append(row | {"our error": float(np.mean(found["ours"])), "xrfm's error": float(np.mean(found["theirs"]))})
        if name.startswith("chain") and name.endswith(str(sizes[-1])):
            rho, cosines = float(np.mean(found["rho"])), float(np.mean(found["cosines"]))
            goal = None if quick else True
            checks.append(Check(f"{name}: ρ(metric, EGOP)", f"at least {RHO}", f"{rho:.4f}", goal and rho >= RHO))
            what = f"{name}: mean cos² of the top five eigenvectors with the five coordinates"
            checks.append(Check(what, f"at least {COSINES}", f"{cosines:.4f}", goal and cosines >= COSINES))
    notes = [
        f"Laplace kernel, {THREADS} threads each. Equal settings: bandwidth {BANDWIDTH:g}, ridge {RIDGE:g},"
        f" {ITERATIONS} iterations.",
        "Errors are mean squared errors over the variance of the test targets, or shares of wrong classes.",
    ]
    return Outcome("Recursive feature machines: ours and xrfm's", rows, checks, notes, details)


def run(quick: bool = False) -> Outcome:
    """Every comparison; without the peer there is nothing to compare."""
    torch.set_num_threads(THREADS)
    try:
        with Peer("xrfm") as peer, tempfile.TemporaryDirectory() as folder:
            print(f"  {peer.ask('about')}", flush=True)
            return compare(peer, folder, quick)
    except PeerUnavailable as error:
        missing = Check("xrfm's RFM", "at hand", str(error), None)
        return Outcome(
            "Recursive feature machines: ours and xrfm's", [{"peer": "xrfm", "state": str(error)}], [missing]
        )
