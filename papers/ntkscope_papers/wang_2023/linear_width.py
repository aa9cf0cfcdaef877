"""Wang et al. (2023), Table 8 and Figure 19: one network and one teacher, trained four ways to three kinds of spectra."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from ntkscope.core import Record, Snapshot, Split, generator
from ntkscope.kernels import Tangent, kernel
from ntkscope.linalg import marchenko_pastur
from ntkscope.measures.alignment import kernel_target_alignment
from ntkscope.models._layers import activation, gaussian_moments
from ntkscope_papers.framework import Run, claims_of, drawing, figure, leg
from ntkscope_papers.framework.results import summary
from ntkscope_papers.shared.theory import jacobian
from ntkscope_papers.wang_2023 import linear_width_claims as claims
from ntkscope_papers.wang_2023.index_teacher import gaussian_moments as link_moments
from ntkscope_papers.wang_2023.index_teacher import index_teacher
from ntkscope_papers.wang_2023.lazy import lazy_prediction, lipschitz_constant, slope_moments
from ntkscope_papers.wang_2023.linear_width_claims import CLASSES, TABLE_8, key_of
from ntkscope_papers.wang_2023.teacher import (
    OPTIMIZERS,
    Student,
    Table8,
    label_moments,
    load_member,
    members,
    score,
    train_case,
)
from ntkscope_papers.wang_2023.teacher_spectra import (
    Spectrum,
    alignments,
    class_of,
    hill,
    moved,
    outlier_overlap,
    quantiles,
    rounded,
    spectra_of,
)
from ntkscope_papers.wang_2023.two_layer import conjugate_kernel, first_layer_kernel

SMALL = Student(items=7, width=5, dimension=4, test_items=3)  # on which formulas are compared
RIDGE = 0.1  # on XᵀX/n
ADAGRAD_STEPS = (0.1, 0.3, 1.0)
OUTLIERS = 10  # right singular vectors that count as the outliers' subspace
NAMES = {"weights": "WᵀW/d", "ck": "CK", "ntk": "NTK"}
WORDS = {
    "case1": "GD",
    "case2": "SGD, small step",
    "case3": "SGD, large step",
    "case4": "Adam",
    "lazy": "lazy (Eq. 78)",
}


@dataclass(frozen=True)
class LinearWidth(Table8):
    """Spectra of linear-width networks, Table 8 and Figure 19: GD, SGD and Adam from one start, with what each learns.

    Table 8, and AdaGrad beside it. `moments`: at which spectra are taken between the start and the end. The published table
    needs one reading throughout: v ~ N(0, 1), the quadratic term centred, noise-free test labels, batches of 32 for SGD
    and of 256 for Adam.
    """

    name = "linear-width"
    statements = claims_of(claims)
    free = ("seeds", "tau_seeds", "expected", "most", "moments", "test_items")

    cases = tuple(OPTIMIZERS)
    test_items: int = 4000
    tau: float = 0.2
    seeds: int = 5
    tau_seeds: int = 3
    rates: tuple[float, ...] = (5.0, 0.1, 22.0, 0.092, 0.1)
    expected: tuple[int, ...] = (6_300, 160_000, 1_300, 190, 400)
    most: tuple[int, ...] = (16_000, 400_000, 40_000, 8_000, 8_000)
    moments: int = 4

    smoke = {
        **Table8.smoke,
        "rates": (12.5, 0.5, 2.75, 0.092, 0.1),
        "expected": (300, 1_500, 1_000, 150, 150),
        "most": (300, 1_500, 3_000, 300, 300),
        "test_items": 500,
        "tau_seeds": 1,
        "moments": 2,
    }

    @property
    def student(self) -> Student:
        return Student(self.items, self.width, self.dimension, self.test_items, tau=self.tau, noise=self.noise)

    @property
    def without_tau(self) -> Student:
        return replace(self.student, tau=0.0)

    @leg("definitions/formulas")
    def formulas(self, run: Run) -> dict[str, Any]:
        """Eq. 74 to 78 on a network of 25 parameters, in double precision."""
        seed, model = run.seed, SMALL.network(run.seed).double().eval()
        x, z = (torch.randn(n, SMALL.dimension, dtype=torch.float64, generator=generator(seed, "x", n)) for n in (7, 3))
        y = torch.randn(7, dtype=torch.float64, generator=generator(seed, "y"))
        W, v = (p.detach() for p in model.parameters())
        v = v[0]
        J, J_test = jacobian(model, x), jacobian(model, z)
        K = J @ J.T
        ck, without = conjugate_kernel(W, x), conjugate_kernel(W, x, divided=False)
        by_hand = first_layer_kernel(W, v, x) + ck
        readout = J[:, W.numel() :] @ J[:, W.numel() :].T
        with torch.no_grad():
            start, start_test = model(x)[:, 0], model(z)[:, 0]
        solved = start_test + J_test @ (torch.linalg.pinv(J) @ (y - start))
        predicted = torch.from_numpy(lazy_prediction(K, J_test @ J.T, y, start, start_test))
        return {
            "gradient": gradient_gap(model, x, y, J),
            "ck": gap(readout, ck),
            "ck_engine": gap(kernel("ck", model, x).dense(), ck),
            "ck_printed_in_section_4_1": gap(readout, without),
            "ntk": gap(K, by_hand),
            "ntk_engine": gap(kernel("trntk0", model, x).dense(), by_hand),
            "lazy": gap(solved, predicted),
        }

    @leg("definitions/constants")
    def constants(self, run: Run) -> dict[str, Any]:
        """Of the normalised tanh and the normalised softplus, by quadrature."""
        _, second = gaussian_moments(nn.Tanh())
        slope = slope_moments(activation("normalised-tanh"))
        mean, std = link_moments(nn.functional.softplus)
        odd = label_moments(SMALL)["odd"]
        z = torch.linspace(-12, 12, 240_001, dtype=torch.float64)
        density = torch.exp(-z.square() / 2)
        density /= density.sum()
        quadratic = float((density * (nn.functional.softplus(z) - mean) / std * (z.square() - 1)).sum()) / math.sqrt(2)
        return {
            "E_tanh2": second,
            "scale": 1 / math.sqrt(second),
            "a_sigma": slope.second,
            **{f"eta{k}_sq": eta**2 for k, eta in enumerate(slope.coefficients)},
            "sup_abs_sigma_prime": lipschitz_constant(activation("normalised-tanh")),
            "softplus_mean": mean,
            "softplus_var": std**2,
            "softplus_linear_share": odd,
            "softplus_quadratic_share": quadratic**2,
        }

    @leg("definitions/kta")
    def target_alignment(self, run: Run) -> dict[str, Any]:
        """Eq. 87 of yyᵀ, of the identity, and the least and largest of 200 random positive semi-definite matrices."""
        n, draw = 7, generator(0, "kta")
        y = torch.randn(n, dtype=torch.float64, generator=draw)
        factors = torch.randn(200, n, 3, dtype=torch.float64, generator=draw)
        values = [kernel_target_alignment(f @ f.T, y) for f in factors]
        identity = kernel_target_alignment(torch.eye(n, dtype=torch.float64), y)
        return {
            "labels": abs(kernel_target_alignment(torch.outer(y, y), y) - 1),
            "identity": abs(identity - 1 / math.sqrt(n)),
            "least": min(values),
            "largest": max(values),
        }

    @leg()
    def initial(self, run: Run) -> dict[str, Any]:
        """Fresh networks: variances, the largest eigenvalue of W₀ᵀW₀/d, and spectra of the first for the figures."""
        student = self.student
        split, model = student.split(run.seed), student.network(run.seed).double()
        x = split.test.x.double()
        W, v = (p.detach() for p in model.parameters())
        with torch.no_grad():
            outputs = model(x)
        spectra = spectra_of(student.network(run.seed), split, run.device)
        first_layers = [next(student.network(seed).parameters()).detach().double() for seed in self.seeds_of(run)]
        return {
            "before": float((x @ W.T / math.sqrt(self.dimension)).var()),
            "outputs": float(outputs.square().mean()),
            "readout": float(v.square().mean()),
            "edge": marchenko_pastur(self.width / self.dimension).edges[1],
            "edge_by_hand": self.edge,
            "top": [float(torch.linalg.matrix_norm(layer, 2)) ** 2 / self.dimension for layer in first_layers],
            "quantiles": {kind: quantiles(spectrum.values) for kind, spectrum in spectra.items()},
        }

    @leg()
    def baselines(self, run: Run) -> dict[str, Any]:
        """Least squares and ridge regression on the inputs themselves, and the labels as printed, without the centring."""
        rows = []
        for seed in self.seeds_of(run):
            split = self.student.split(seed)
            x, y, n = split.train.x.double(), split.train.y.double(), len(split.train)
            told: dict[str, Any] = {}
            for name, ridge in (("least squares", 0.0), ("ridge", RIDGE)):
                covariance = x.T @ x / n + ridge * torch.eye(x.shape[1], dtype=torch.float64)
                told[name] = score(split.test.x.double() @ torch.linalg.solve(covariance, x.T @ y / n), split.test)
            printed = index_teacher(
                seed=seed, dimension=self.dimension, tau=self.tau, noise=self.noise, train=self.items,
                test=self.test_items, centred=False,
            )  # fmt: skip
            told["printed"] = {
                "mean": float(printed.train.y.mean()),
                "variance": float(printed.train.y.var()),
                "clean_variance": float(printed.test.y.var()),
            }
            rows.append(told)
        return {"members": rows}

    @leg("lazy")
    def lazy(self, run: Run) -> dict[str, Any]:
        return lazy(self.student, self.seeds_of(run), run.device)

    @leg("table8/{}", over=lambda self: reversed(CLASSES))
    def trained(self, run: Run, name: str) -> dict[str, Any]:
        """One case, all seeds stacked: scores, and spectra at some moments of the first seed and at the ends of all."""
        case, student, seeds = self.case(name), self.student, self.seeds_of(run)
        splits = [student.split(s) for s in seeds]
        before = [spectra_of(student.network(s), split, run.device) for s, split in zip(seeds, splits)]
        rows: list[dict[str, Any]] = []
        shown = student.network(seeds[0]).to(run.device).double()

        def watch(snapshot: Snapshot) -> None:
            load_member(shown, snapshot, 0)
            found = spectra_of(shown, splits[0], run.device)
            changes = {kind: moved(before[0][kind], spectrum, curve=True) for kind, spectrum in found.items()}
            rows.append({"step": snapshot.step, "alignment": alignments(found, splits[0]), **changes})

        moments = case.moments(self.moments)
        together = train_case(student, case, seeds, run.device, watch=watch, moments=moments, splits=splits)
        scores = together.scores()
        for i, told in enumerate(scores):
            if not told["diverged"]:
                after = spectra_of(together.member(i), splits[i], run.device)
                told |= final(before[i], after, splits[i], seeds[i])
        return {
            "members": scores,
            "moments": rows,
            "notes": list(together.ensemble.notes),
            "fit_seconds": round(together.seconds, 1),
        }

    @leg()
    def adagrad(self, run: Run, lr: float = 0.0, networks: int = 0) -> dict[str, Any]:
        """The spectra of W, CK and NTK at the end."""
        student, case = self.student, self.case("adagrad")
        seeds = range(run.seed, run.seed + networks) if networks else self.seeds_of(run)[:2]
        together = train_case(student, replace(case, lr=lr or case.lr), seeds, run.device)
        scores = together.scores()
        for i, told in enumerate(scores):
            if not told["diverged"]:
                before = spectra_of(student.network(seeds[i]), together.splits[i], run.device)
                after = spectra_of(together.member(i), together.splits[i], run.device)
                told["spectra"] = {kind: moved(before[kind], after[kind], curve=False) for kind in after}
                told["start"] = {kind: {"hill": hill(one.values)} for kind, one in before.items()}
        return {"members": scores, "notes": list(together.ensemble.notes), "fit_seconds": round(together.seconds, 1)}

    @leg("adagrad/{:g}", over=lambda self: ADAGRAD_STEPS, optional=True)
    def adagrad_by_step(self, run: Run, lr: float) -> dict[str, Any]:
        """Ten networks at a step: the report states none."""
        return self.adagrad(run, lr, 10)

    @leg("even")
    def even_target(self, run: Run) -> dict[str, Any]:
        """Adam on labels that are even in x, of which an odd network can learn nothing."""
        student = replace(self.without_tau, link="quadratic")
        return {"members": train_case(student, self.case("case4"), self.seeds_of(run)[:2], run.device).scores()}

    @leg("tau-zero/lazy")
    def lazy_without_tau(self, run: Run) -> dict[str, Any]:
        return lazy(self.without_tau, range(run.seed, run.seed + self.tau_seeds), run.device)

    @leg("tau-zero/{}", over=lambda self: reversed(CLASSES))
    def trained_without_tau(self, run: Run, name: str) -> dict[str, Any]:
        """A case without spectra, at τ = 0."""
        seeds = range(run.seed, run.seed + self.tau_seeds)
        together = train_case(self.without_tau, self.case(name), seeds, run.device)
        return {"members": together.scores(), "fit_seconds": round(together.seconds, 1)}

    @figure
    def table8(self, record: Record) -> Figure:
        """The table beside the published one."""
        drawn, axes = drawing.canvas(1, 2, width=5.6)
        networks = {case: members(record, key_of(case)) for case in TABLE_8 if key_of(case) in record.metrics}
        networks = {case: found for case, found in networks.items() if found}
        ridge = record.metrics.get("baselines", {}).get("members", [])
        for axis, name in zip(axes, ("r2", "test_error")):
            found = [summary(one[name] for one in several) for several in networks.values()]
            labels = [WORDS[case] for case in networks]
            values: list[float | None] = [one["mean"] for one in found]
            errors = [one["sem"] for one in found]
            published: list[float | None] = [TABLE_8[case][name] for case in networks]
            if ridge:
                labels, errors = [*labels, "ridge on x"], [*errors, 0.0]
                values, published = [*values, summary(one["ridge"][name] for one in ridge)["mean"]], [*published, None]
            series = {"measured": (values, errors), "published": (published, None)}
            drawing.compare_bars(axis, labels, series, label="R²" if name == "r2" else "test error")
        return drawn

    @figure
    def spectra(self, record: Record) -> Figure:
        """Q-Q plots, the trained spectrum against the initial one, for each matrix and case."""
        drawn, axes = drawing.canvas(1, len(NAMES), width=4.4)
        for axis, (kind, name) in zip(axes, NAMES.items()):
            for i, case in enumerate(CLASSES):
                rows = record.metrics.get(key_of(case), {}).get("moments")
                if rows:
                    ends = (rows[0][kind]["quantiles"], rows[-1][kind]["quantiles"])
                    axis.plot(*ends, "o-", markersize=2, linewidth=0.8, color=drawing.COLOURS[i], label=WORDS[case])
            low, high = axis.get_xlim()
            axis.plot([low, high], [low, high], "--", color="#999999", linewidth=0.8)
            axis.set_yscale("symlog", linthresh=10)
            drawing.label(axis, x=f"quantiles of {name} at the start", y="after training", legend=True)
        return drawn

    @figure
    def training(self, record: Record) -> Figure:
        """The largest eigenvalues of WᵀW/d over training, a panel for each case."""
        drawn, axes = drawing.canvas(1, len(CLASSES), width=3.6)
        for axis, case in zip(axes, CLASSES):
            rows = record.metrics.get(key_of(case), {}).get("moments")
            if rows:
                steps = [max(row["step"], 0.5) for row in rows]
                for place in range(5):
                    values = [row["weights"]["top"][place] for row in rows]
                    axis.plot(steps, values, "o-", markersize=2.5, linewidth=0.9, color=drawing.COLOURS[place])
                axis.set_xscale("log")
            drawing.label(axis, title=WORDS[case], x="step (the start at 0.5)", y="first five eigenvalues of WᵀW/d")
        return drawn


def final(before: dict[str, Spectrum], after: dict[str, Spectrum], split: Split, seed: int) -> dict[str, Any]:
    """Spectra of one trained network beside those it began with, alignments, and the classes."""
    return {
        "spectra": {kind: moved(before[kind], after[kind], curve=False) for kind in after},
        "start": {
            kind: {"top": rounded(one.values[:3].tolist()), "hill": hill(one.values)} for kind, one in before.items()
        },
        "alignment": alignments(after, split),
        "alignment_before": alignments(before, split),
        "outliers": outlier_overlap(after["weights"].matrix, split.extras["directions"], OUTLIERS)[0],
        "classes": {kind: class_of(kind, before[kind], after[kind], seed) for kind in after},
        "bulk_ks": bulk_distance(after["weights"]),
    }


def bulk_distance(weights: Spectrum) -> float:
    """KS distance of the eigenvalues of WᵀW/d but the first to the Marchenko–Pastur law of standard normal entries."""
    rows, columns = weights.matrix.shape
    rest = weights.values[1:].cpu().flip(0)
    law = marchenko_pastur(rows / columns)
    expected = (law.cdf(rest.numpy()) - law.atom) / (1 - law.atom)
    steps = torch.arange(len(rest) + 1, dtype=torch.float64) / len(rest)
    wanted = torch.from_numpy(expected)
    return float(torch.maximum((steps[1:] - wanted).abs(), (wanted - steps[:-1]).abs()).max())


def lazy(student: Student, seeds: Sequence[int], device: torch.device) -> dict[str, Any]:
    """Eq. 78 with f₀ kept and the whole NTK, in double precision."""
    rows = []
    for seed in seeds:
        split, model = student.split(seed), student.network(seed).to(device).double().eval()
        x, z = (part.x.to(device).double() for part in (split.train, split.test))
        tangent = Tangent(model, memory="8GiB")
        K, K_test = (tangent.kernel("trntk0", *inputs).dense().cpu() for inputs in ((x,), (z, x)))
        with torch.no_grad():
            start, start_test = model(x)[:, 0].cpu(), model(z)[:, 0].cpu()
        found = lazy_prediction(K, K_test, split.train.y.double(), start, start_test)
        rows.append(score(torch.from_numpy(found), split.test) | {"seed": seed})
    return {"members": rows}


def gradient_gap(model: nn.Module, x: Tensor, y: Tensor, J: Tensor) -> float:
    """Of Eq. 74's loss: -Jᵀ(y - f)/n beside autograd's."""
    residual = y - model(x)[:, 0]
    own = torch.autograd.grad(residual.square().sum() / (2 * len(y)), list(model.parameters()))
    return gap(torch.cat([g.flatten() for g in own]), -J.T @ residual.detach() / len(y))


def gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())
