"""Support vector machines on the engine's kernel against scikit-learn's on explicit Jacobians; their gaps at N = 25,400.

    python -m benchmarks kernel_svm
    python -m benchmarks.learning.kernel_svm --large [--device cuda] [--items 25400] [--out FOLDER]

ReLU networks 7-64-…-1 of three depths, trained on orthant shells; everything in float64. Ours see the tangent kernel that the
engine computes, never the Jacobian; the linear peers (`LinearSVC`, `LinearSVR`) see the Jacobian as features, `SVC` and `SVR`
the product of the Jacobian with its transpose. Objectives are written out from what each fit returned: of `SVC` and `SVR` the
dual one, which they maximise. They keep the kernel in single precision, which moves the losses of points at the margin, and so
the primal one, by some 1e-6; it stands beside.

`--large` fits machines at N = 25,400, where the Jacobian of three layers of 128 units would take 7 GB and the kernel takes
5.2 GB: with the copies that Cholesky needs, 16 GB beside it. It reports the relative duality gap of each fit.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC, SVR, LinearSVC, LinearSVR
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import ntkscope as ns
from benchmarks import machine
from benchmarks.outcome import Check, Outcome, table, write
from ntkscope.core import Part, generator, numpy_generator
from ntkscope.core.script import run_script
from ntkscope.linalg import Gram
from ntkscope.surrogates import KernelSVM, KernelSVR

DEPTHS, WIDTH, STRENGTH, EPSILON = (1, 3, 5), 64, 10.0, 0.1
OBJECTIVE, DIFFERING, GAP = 1e-6, 2e-3, 1e-4
APART = 1e-3  # predictions of targets differ when they are further apart than this share of the targets' deviation
LARGE_DEPTH, LARGE_WIDTH, LARGE_STRENGTHS = 3, 128, (1e-2, 1.0, 1e2)


@dataclass(frozen=True, eq=False)
class Case:
    """One network's kernels and Jacobians, labels -1 and 1, and targets."""

    kernel: np.ndarray
    test_kernel: np.ndarray
    jacobian: np.ndarray
    test_jacobian: np.ndarray
    labels: np.ndarray
    targets: np.ndarray


def data(items: int, held_out: int) -> tuple[Part, Part]:
    """So many items of the training and of the test part of orthant shells, at random."""
    split = ns.data.load("orthant-shells", per_class=-(-items // 254), dtype="float64")
    rows = torch.randperm(len(split.train), generator=generator(0, "kernel-svm"))[:items]
    others = torch.randperm(len(split.test), generator=generator(1, "kernel-svm"))[:held_out]
    return split.train.take(rows.tolist()), split.test.take(others.tolist())


def network(part: Part, depth: int, width: int, epochs: int, device: str = "cpu") -> nn.Module:
    """A network with one logit, trained on the labels in single precision, then made double."""
    model = ns.models.build("mlp", in_features=7, classes=1, widths=width, depth=depth, activation="relu", seed=depth)
    settings: dict[str, Any] = {"optimizer": "adam", "lr": 1e-3, "loss": "bce", "batch_size": 64, "epochs": epochs}
    final = ns.training.fit(model, Part(part.x.float(), part.y.float()), device=device, **settings).final()
    model.load_state_dict({**final.params, **final.buffers}, strict=False)
    return model.double().to(device).eval()


def jacobian(model: nn.Module, x: Tensor) -> np.ndarray:
    """∂ logit / ∂ parameters, (n, p), by autograd one item at a time under vmap."""
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def logit(weights: dict[str, Tensor], item: Tensor) -> Tensor:
        return functional_call(model, weights, (item[None],))[0, 0]

    rows = []
    for block in x.split(500):
        slopes = vmap(grad(logit), in_dims=(None, 0))(parameters, block)
        rows.append(torch.cat([slope.flatten(1) for slope in slopes.values()], 1))
    return torch.cat(rows).numpy()


def target(x: Tensor) -> np.ndarray:
    """A smooth function of the inputs with some noise."""
    noise = numpy_generator(0, "kernel-svm", "noise").normal(size=len(x))
    return np.sin(x[:, 0].numpy()) + 0.3 * x[:, 1].numpy() + 0.1 * noise


def case(depth: int, items: int, held_out: int, epochs: int) -> Case:
    train, test = data(items, held_out)
    model = network(train, depth, WIDTH, epochs)
    tangent = ns.Tangent(model, memory="4GiB")
    kernel, cross = tangent.kernel("trntk0", train.x), tangent.kernel("trntk0", test.x, train.x)
    labels = np.where(train.y.numpy() > 0, 1.0, -1.0)
    return Case(
        kernel.numpy(), cross.numpy(), jacobian(model, train.x), jacobian(model, test.x), labels, target(train.x)
    )


def losses(scores: np.ndarray, aims: np.ndarray, loss: str) -> np.ndarray:
    short = np.maximum(0, 1 - aims * scores if "hinge" in loss else np.abs(aims - scores) - EPSILON)
    return short**2 if "squared" in loss else short


@dataclass(frozen=True)
class Pairing:
    """One of our machines, the peer with the same objective, and whether the peer sees the Jacobian or its products."""

    loss: str
    peer: str
    linear: bool
    ours: Callable[[float], Any]
    theirs: Callable[[float], Any]


PENALISED: dict[str, Any] = {"intercept": "penalised", "solver": "newton"}
TIGHT: dict[str, Any] = {"dual": False, "tol": 1e-9, "max_iter": 20_000}
PAIRINGS = (
    Pairing(
        "squared_hinge",
        "LinearSVC",
        True,
        lambda C: KernelSVM(C, loss="squared_hinge", **PENALISED),
        lambda C: LinearSVC(C=C, **TIGHT),
    ),
    Pairing(
        "hinge",
        "SVC",
        False,
        lambda C: KernelSVM(C, solver="newton"),
        lambda C: SVC(C=C, kernel="precomputed", tol=1e-6, cache_size=1000),
    ),
    Pairing(
        "epsilon_insensitive",
        "SVR",
        False,
        lambda C: KernelSVR(C, epsilon=EPSILON, solver="newton"),
        lambda C: SVR(C=C, epsilon=EPSILON, kernel="precomputed", tol=1e-6, cache_size=1000),
    ),
    Pairing(
        "squared_epsilon_insensitive",
        "LinearSVR",
        True,
        lambda C: KernelSVR(C, epsilon=EPSILON, loss="squared_epsilon_insensitive", **PENALISED),
        lambda C: LinearSVR(C=C, epsilon=EPSILON, loss="squared_epsilon_insensitive", **TIGHT),
    ),
)


def compare(pairing: Pairing, these: Case, C: float) -> dict[str, Any]:
    """Both fits: their seconds, objectives, and how many test predictions differ."""
    aims = these.labels if "hinge" in pairing.loss else these.targets
    ours, theirs = pairing.ours(C), pairing.theirs(C)
    begun = time.perf_counter()
    ours.fit(these.kernel, aims)
    seconds = time.perf_counter() - begun
    coef, b = ours.coef_[-1], float(ours.intercept_[-1])
    if "hinge" in pairing.loss:  # two classes have one function
        coef, b = 2 * coef, 2 * b
    scores = these.kernel @ coef
    norm = coef @ scores + (b**2 if pairing.linear else 0.0)
    value = norm / 2 + C * losses(scores + b, aims, pairing.loss).sum()

    inputs = these.jacobian if pairing.linear else these.jacobian @ these.jacobian.T
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the objective says how far it came
        theirs.fit(inputs, aims)
    their_seconds = time.perf_counter() - begun
    if pairing.linear:
        weights, b = np.ravel(theirs.coef_), float(np.ravel(theirs.intercept_)[0])
        scores, norm, dual = inputs @ weights, weights @ weights + b**2, None
        predicted = these.test_jacobian @ weights + b
    else:
        coef, b = np.zeros(len(aims)), float(theirs.intercept_[0])
        coef[theirs.support_] = theirs.dual_coef_[0]
        scores = inputs @ coef
        norm = coef @ scores
        dual = aims @ coef - norm / 2 - (0.0 if "hinge" in pairing.loss else EPSILON * np.abs(coef).sum())
        predicted = these.test_jacobian @ (these.jacobian.T @ coef) + b
    peer_value = norm / 2 + C * losses(scores + b, aims, pairing.loss).sum()
    if "hinge" in pairing.loss:
        differing = (ours.decision_function(these.test_kernel) > 0) != (predicted > 0)
    else:
        differing = np.abs(ours.predict(these.test_kernel) - predicted) > APART * these.targets.std()
    return {
        "loss": pairing.loss,
        "gap": ours.gap_,
        "steps": ours.n_iter_,
        "s": seconds,
        "peer": pairing.peer,
        "peer, s": their_seconds,
        "apart": peer_value / value - 1 if dual is None else dual / value - 1,
        "primal apart": peer_value / value - 1,
        "differing": float(differing.mean()),
    }


def run(quick: bool = False) -> Outcome:
    """Every pairing at every depth."""
    items, held_out, epochs = (200, 100, 2) if quick else (4_000, 4_000, 20)
    rows = []
    for depth in DEPTHS:
        these = case(depth, items, held_out, epochs)
        products = these.jacobian @ these.jacobian.T
        error = float(np.linalg.norm(these.kernel - products) / np.linalg.norm(products))
        C = STRENGTH / float(np.diag(products).mean())
        for pairing in PAIRINGS:
            row = {"depth": depth, "parameters": these.jacobian.shape[1], "kernel's error": error, "C": C}
            rows.append(row | compare(pairing, these, C))
            print("  " + ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items()))
    checks = []
    for pairing in PAIRINGS:
        mine = [row for row in rows if row["loss"] == pairing.loss]
        furthest = max(abs(row["apart"]) for row in mine)
        most = max(row["differing"] for row in mine)
        words = f"{pairing.loss} against {pairing.peer}"
        checks += [
            Check(f"{words}: objectives", f"within {OBJECTIVE:g}", f"{furthest:.1e}", furthest <= OBJECTIVE),
            Check(f"{words}: predictions", f"at most {DIFFERING:.1%} differ", f"{most:.2%}", most <= DIFFERING),
        ]
    return Outcome(
        title=f"Support vector machines on the engine's kernel, {items} points, against scikit-learn on explicit Jacobians",
        rows=[{key: _short(value) for key, value in row.items()} for row in rows],
        checks=checks,
        notes=(
            f"Everything in float64; C is {STRENGTH:g} over the kernel's mean diagonal, ε {EPSILON:g}; {held_out} test points.",
            "Apart: the peer's objective over ours, less 1; of SVC and SVR the dual one, which they maximise.",
            "Newton's gap is its relative duality gap; ours stop at 1e-6, the linear peers at tol=1e-9, SVC and SVR at 1e-6.",
            f"Predicted targets differ when they are more than {APART:g} of the targets' deviation apart.",
        ),
        details={"rows": rows},
    )


def _short(value: Any) -> Any:
    return f"{value:.3g}" if isinstance(value, float) else value


def large(items: int, device: str, strengths: tuple[float, ...] = LARGE_STRENGTHS) -> Outcome:
    """The relative duality gap of machines on the kernel of so many points, with what they took."""
    train, _ = data(items, 128)
    on_cuda = torch.device(device).type == "cuda"

    def peak() -> str:
        return f"{torch.cuda.max_memory_allocated() / 2**30:.3g}" if on_cuda else ""

    model = network(train, LARGE_DEPTH, LARGE_WIDTH, 4, device)
    begun = time.perf_counter()
    budget = 4 * 8 * items**2 + 2 * 2**30
    kernel: Gram = ns.kernel("trntk0", model, train.x.to(device), memory=budget)
    scale = float(kernel.diagonal().mean())
    rows: list[dict[str, Any]] = []
    rows.append({"machine": "kernel", "s": f"{time.perf_counter() - begun:.3g}", "peak, GiB": peak()})
    gaps = []
    for strength in strengths:
        C = strength / scale
        fits: dict[str, tuple[Any, Any]] = {
            "squared hinge, penalised intercept": (KernelSVM(C, loss="squared_hinge", **PENALISED), train.y.numpy()),
            "hinge, free intercept": (KernelSVM(C, solver="newton"), train.y.numpy()),
            "ε-insensitive, free intercept": (KernelSVR(C, epsilon=EPSILON, solver="newton"), target(train.x)),
        }
        for name, (model_, aims) in fits.items():
            begun = time.perf_counter()
            model_.fit(kernel, aims)
            gaps.append(model_.gap_)
            rows.append(
                {
                    "machine": name,
                    "C × mean diagonal": strength,
                    "s": f"{time.perf_counter() - begun:.3g}",
                    "steps": model_.n_iter_,
                    "support vectors": len(model_.support_),
                    "jitter": f"{model_.jitter_ / scale:.1e}",
                    "gap": f"{model_.gap_:.1e}",
                    "peak, GiB": peak(),
                }
            )
            print("  " + ", ".join(f"{k} {v}" for k, v in rows[-1].items()), flush=True)
    worst = max(gaps)
    return Outcome(
        title=f"Support vector machines by Newton's method on {items} points, {device}",
        rows=rows,
        checks=[Check("relative duality gap", f"at most {GAP:g}", f"{worst:.1e}", worst <= GAP)],
        notes=(f"Tangent kernel of a ReLU network 7-{LARGE_WIDTH}×{LARGE_DEPTH}-1 on orthant shells, float64.",),
        details={"gaps": gaps, "bytes of the kernel": 8 * items**2},
    )


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: tries the machinery, proves nothing.")] = False,
    at_large: Annotated[bool, typer.Option("--large", help="Duality gaps at many points.")] = False,
    items: Annotated[int, typer.Option(help="Points of --large.")] = 25_400,
    device: Annotated[str | None, typer.Option(help="Of --large; CUDA where there is one.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the tables.")] = Path("benchmarks/results/bench"),
) -> int:
    """Exit status 1 when a promise fails."""
    here, begun = machine.describe(), time.perf_counter()
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    name = "kernel_svm_large" if at_large else "kernel_svm"
    outcome = large(400 if quick else items, device) if at_large else run(quick)
    path = write(name, outcome, here, time.perf_counter() - begun, out / "quick" if quick else out)
    print(table(outcome.rows), *(f"{c.what}: {c.target}, {c.measured}: {c.verdict}" for c in outcome.checks), sep="\n")
    print(f"written to {path}")
    return 1 if any(check.holds is False for check in outcome.checks) else 0


if __name__ == "__main__":
    raise SystemExit(run_script(main, None, "python -m benchmarks.learning.kernel_svm", __doc__))
