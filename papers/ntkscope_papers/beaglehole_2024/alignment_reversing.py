"""Beaglehole et al., Figure 3: the start of the centred correlation on the alignment-reversing set, predicted and observed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from ntkscope.core import Record
from ntkscope.linalg import matrix_correlation
from ntkscope_papers.beaglehole_2024 import derivatives as early
from ntkscope_papers.beaglehole_2024 import free_products as free
from ntkscope_papers.beaglehole_2024.data import alignment_reversing, reverse
from ntkscope_papers.beaglehole_2024.matrices import normal, relative
from ntkscope_papers.framework import Experiment, Reading, Run, claim, drawing, figure, leg
from ntkscope_papers.framework.results import rounded, summary, under

READINGS: dict[str, dict[str, Any]] = {  # how the printed construction is made possible, and the scale of X₁
    "support": {"reading": "support", "unit_norm": True},
    "support-unscaled": {"reading": "support", "unit_norm": False},
    "subsample": {"reading": "subsample", "unit_norm": True},
    "subsample-unscaled": {"reading": "subsample", "unit_norm": False},
}
FIRST = "support"  # the one that is judged
ONE, MEAN, SHARE = 0.03, 0.015, 0.95


def first_reading(config: AlignmentReversing) -> list[str]:
    """The legs of the reading that is judged."""
    return [f"{FIRST}/{s}" for s in range(config.data_seeds)]


on_first = partial(claim, seeds=10, needs=first_reading)


@dataclass(frozen=True)
class AlignmentReversing(Experiment):
    """Beaglehole et al., Figure 3, App. F: ρ of the second derivatives by balance, by free probability and observed.

    `size` is n = d = k. `data_seeds` of the first reading, `other_seeds` of the others; `networks`: the first is the paper's
    single one, all of them make the mean and the moments of R. Balances are not published: powers of √2.
    """

    name = "alignment-reversing"
    free = ("data_seeds", "other_seeds", "readings")

    size: int = 1024
    balances: tuple[float, ...] = tuple(round(2 ** (-j / 2), 4) for j in range(11, -1, -1))
    data_seeds: int = 10
    other_seeds: int = 3
    networks: int = 30
    readings: tuple[str, ...] = tuple(READINGS)

    smoke = {"size": 96, "balances": (0.0625, 0.125, 0.25, 0.5, 1.0), "data_seeds": 2, "other_seeds": 1, "networks": 4}

    def prepare(self, run: Run) -> tuple[list[Tensor], tuple[float, ...]]:
        """R = Wᵀ diag(a²) W of every network, and tr[R^p] averaged over them, as appendix H does."""
        matrices, sums = [], torch.zeros(4, dtype=torch.float64)
        for i in range(self.networks):
            W, a = free.draw_network(self.size, self.size, run.seed + i, run.device)
            scaled = a[:, None] * W
            R = scaled.T @ scaled
            square = R @ R
            sums += torch.stack([R.trace(), (R * R).sum(), (R * square).sum(), (square * square).sum()]).cpu()
            matrices.append(R)
        return matrices, tuple((sums / self.size / self.networks).tolist())

    def cases(self) -> Iterator[tuple[str, int]]:
        for reading in self.readings:
            for s in range(self.data_seeds if reading == FIRST else self.other_seeds):
                yield reading, s

    @leg()
    def construction(self, run: Run) -> dict[str, Any]:
        """X₂ᵀX₂ = (X₁ᵀX₁)⁻²: with enough rows, and at n = d with balance 1/4, where the printed matrices do not exist."""
        d, seed = 24, run.seed
        x1, drawn = normal(seed, "x1", 60, d), normal(seed, "x2", 80, d)
        turned = reverse(x1, drawn) @ (x1.T @ x1)  # V₂ U₁ᵀ: orthonormal columns
        eye = torch.eye(d, dtype=torch.float64)
        few, rest = normal(seed, "few", d // 4, d), normal(seed, "rest", d - d // 4, d)
        gram = few.T @ few
        left = torch.linalg.svd(rest, full_matrices=False)[0]
        on_support = reverse(few, rest) @ gram
        projector = torch.linalg.pinv(few) @ few
        return {
            "enough rows": relative(turned.T @ turned, eye),
            "rank of X₁ᵀX₁ over d, n = d": float(torch.linalg.matrix_rank(gram)) / d,
            "columns of V₂ over d, n = d": left.shape[1] / d,
            "on the support, n = d": relative(on_support.T @ on_support, projector),
        }

    @leg("{}/{}", over=lambda self: self.cases())
    def correlations(self, run: Run, reading: str, s: int) -> dict[str, Any]:
        """Of one data set at every balance."""
        return {"balances": {f"{b:g}": self.one_balance(run, reading, b, run.seed + s) for b in self.balances}}

    def one_balance(self, run: Run, reading: str, balance: float, seed: int) -> dict[str, Any]:
        """Observed and predicted ρ(ẆᵀẆ, ẆᵀKẆ), and how far the two expected matrices are from the identity."""
        (matrices, moments), size = run.data, self.size
        options: dict[str, Any] = {"n": size, "dimension": size, "dtype": "float64", **READINGS[reading]}
        split = alignment_reversing(seed=seed, balance=balance, **options)
        X, y = (t.to(run.device) for t in (split.train.x, split.train.y))
        S, B = X.T @ (y[:, None] * X), X.T @ X
        A, kept = S @ S, S @ B @ S
        predicted = early.quadratic_prediction(X, y, moments=moments)
        eye = torch.eye(size, dtype=X.dtype, device=run.device)
        printed = predicted.printed_correlation
        return {
            "observed": [free.word_traces(A, B, R).correlation for R in matrices],
            "predicted": predicted.correlation,
            "predicted, limits of the moments": early.quadratic_prediction(X, y, width=size).correlation,
            "predicted, exact means": early.expected_traces(X, y, size).correlation,
            "predicted, mean term": early.expected_derivatives(X, y, size).correlation,
            "printed": printed if math.isfinite(printed) else None,
            "SBS with I": matrix_correlation(kept, eye),
            "S² with I": matrix_correlation(A, eye),
            "SBS with S²": matrix_correlation(kept, A),
        }

    @claim(
        "nfa-fig3-setting",
        "Figure 3, App. F, App. H",
        {
            "n = d = k": 1024,
            "eps1": 0.5,
            "eps2": 0.01,
            "label offset": 1e-5,
            "networks for moments": 30,
            "data seeds": 10,
        },
        needs=first_reading,
    )
    def setting(self, record: Record) -> Reading:
        """configuration only"""
        measured = {
            "n = d = k": self.size,
            "balances": list(self.balances),
            "networks for moments": self.networks,
            "data seeds": self.data_seeds,
        }
        note = "the caption shows four data seeds, appendix H averages over ten; the balances are not published"
        return Reading(measured, True, note, seeds=self.data_seeds)

    @on_first(
        "nfa-fig3-match",
        "Figure 3, Section 3.2",
        "predicted and observed correlations match closely, with a single network",
        f"mean difference <= {ONE} from one network, <= {MEAN} from the mean of 30, R² >= {SHARE}; printed: outside [0, 1]",
    )
    def match(self, record: Record) -> Reading:
        measured = {reading: comparison(record, reading) for reading in measured_readings(record)}
        first = measured[FIRST]
        near = first["predicted"]
        holds = (
            near["from one network"] <= ONE
            and near["from the mean"] <= MEAN
            and (near["R²"] or 0) >= SHARE
            and first["printed outside [0, 1]"] > 0
        )
        note = (
            "judged on the reading 'support' with |X₁| = 1, the one in which correlations vary; 'exact means' replaces freeness"
            " by the exact expectation of each trace"
        )
        return Reading(measured, holds, note, seeds=first["data seeds"])

    @on_first("nfa-fig3-balance", "Figure 3, Section 3.2", "a lower balance lowers the correlation")
    def balance(self, record: Record) -> Reading:
        """at the smallest balance at least 0.1 below balance 1"""
        measured = {reading: drop(record, reading) for reading in measured_readings(record)}
        lowered = [reading for reading, one in measured.items() if one["drop"]["mean"] >= 0.1]
        note = f"readings in which it does: {', '.join(lowered) or 'none'}; judged on 'support' with |X₁| = 1"
        return Reading(measured, FIRST in lowered, note, seeds=len(by_balance(record, FIRST)))

    @claim("nfa-appF-X2", "App. F", "X₂ᵀX₂ = (X₁ᵀX₁)⁻²", needs=["construction"])
    def second_inputs(self, record: Record) -> Reading:
        """to 1e-8 where V₂ has d orthonormal columns and X₁ᵀX₁ an inverse; neither exists as printed at n = d"""
        values = {key: value for key, value in record.metrics["construction"].items() if key != "seconds"}
        holds = (
            max(values["enough rows"], values["on the support, n = d"]) <= 1e-8
            and values["rank of X₁ᵀX₁ over d, n = d"] < 1
            and values["columns of V₂ over d, n = d"] < 1
        )
        note = "at n = d, γn rows leave X₁ᵀX₁ singular and (1 - γ)n rows carry fewer than d orthonormal columns"
        return Reading(rounded(values, 3), holds, note, exact=True)

    @claim(
        "nfa-appF-agop-identity",
        "App. F",
        "for small balance the AGOP's second derivative is close to I, the NFM's is not",
        needs=first_reading,
    )
    def identity(self, record: Record) -> Reading:
        """cosine of XᵀYX XᵀX XᵀYX with I >= 0.9 and of (XᵀYX)² with I <= 0.5, at the smallest balance, in some reading"""
        names = ("SBS with I", "S² with I", "SBS with S²")
        measured = {
            reading: {name: rounded(float(table(record, reading, name)[:, 0].mean()), 3) for name in names}
            for reading in measured_readings(record)
        }
        holds = any(one["SBS with I"] >= 0.9 and one["S² with I"] <= 0.5 for one in measured.values())
        note = (
            "at the smallest balance; with S = X₁ᵀX₁ the term is S³ + I on the row space of X₁, which has γn of d dimensions:"
            " a cosine of √γ with I at most, and 1/√d where S³ dominates"
        )
        return Reading(measured, holds, note)

    @figure
    def figure_3(self, record: Record) -> dict[str, Figure]:
        """Observed and predicted ρ by balance; one against the other; the other readings."""
        drawn, axes = drawing.canvas(1, 3, width=3.9)
        readings = measured_readings(record)
        if FIRST in readings:
            balances = [float(b) for b in by_balance(record, FIRST)[0]]
            observed, predicted = table(record, FIRST, "observed").mean(-1), table(record, FIRST, "predicted")
            for i, (name, values) in enumerate((("observed, mean over networks", observed), ("predicted", predicted))):
                for row in values[:4]:
                    axes[0].plot(balances, row, color=drawing.COLOURS[i], linewidth=0.5, alpha=0.4)
                axes[0].plot(balances, values.mean(0), "o-", color=drawing.COLOURS[i], markersize=3, label=name)
            axes[1].scatter(observed, predicted, s=8, color=drawing.COLOURS[0], label="corrected Eq. 28")
            printed = table(record, FIRST, "printed")
            axes[1].scatter(observed, printed, s=8, marker="x", color=drawing.COLOURS[1], label="Eq. 28 as printed")
            ends = [float(np.nanmin(observed)), 1.0]
            axes[1].plot(ends, ends, color="#999999", linewidth=0.8)
            drawing.label(axes[1], x="observed ρ", y="predicted ρ")
        for i, reading in enumerate(readings):
            mean = table(record, reading, "observed").mean(-1)
            balances = [float(b) for b in by_balance(record, reading)[0]]
            axes[2].plot(balances, mean.mean(0), "o-", color=drawing.COLOURS[i], markersize=3, label=reading)
        for axis in (axes[0], axes[2]):
            drawing.label(axis, x="balance γ", y="ρ(ẆᵀẆ, ẆᵀKẆ)", log="x")
        for axis in axes:
            if axis.get_legend_handles_labels()[0]:
                axis.legend()
        return {"alignment-reversing": drawn}


def by_balance(record: Record, reading: str) -> list[Mapping[str, Any]]:
    """Results of every data seed, each by balance."""
    return [run["balances"] for run in under(record, f"{reading}/").values()]


def measured_readings(record: Record) -> list[str]:
    return [reading for reading in READINGS if by_balance(record, reading)]


def table(record: Record, reading: str, key: str) -> np.ndarray:
    """(data seeds, balances) of one number; `observed`: (data seeds, balances, networks)."""
    rows = [[np.nan if one[key] is None else one[key] for one in run.values()] for run in by_balance(record, reading)]
    return np.array(rows, dtype=np.float64)


def comparison(record: Record, reading: str) -> dict[str, Any]:
    """How far predictions are from one network and from the mean over networks, in one reading."""
    observed, printed = table(record, reading, "observed"), table(record, reading, "printed")
    one, mean = observed[..., 0], observed.mean(-1)
    spread = float(((mean - mean.mean()) ** 2).sum())
    result: dict[str, Any] = {"data seeds": len(observed)}
    for name in ("predicted", "limits of the moments", "exact means", "mean term"):
        values = table(record, reading, name if name == "predicted" else f"predicted, {name}")
        share = 1 - float(((mean - values) ** 2).sum()) / spread if spread > 0 else float("nan")
        result[name] = {
            "from one network": rounded(float(np.abs(values - one).mean()), 3),
            "from the mean": rounded(float(np.abs(values - mean).mean()), 3),
            "R²": rounded(share, 3) if np.isfinite(share) else None,
        }
    outside = ~((printed >= 0) & (printed <= 1))
    deviation = rounded(float(observed.std(-1, ddof=1).mean()), 3) if observed.shape[-1] > 1 else None
    return {
        **result,
        "printed outside [0, 1]": int(outside.sum()),
        "of": int(outside.size),
        "spread over networks": deviation,
    }


def drop(record: Record, reading: str) -> dict[str, Any]:
    """ρ at balance 1 minus ρ at the smallest, paired by data seed, and the lowest mean over balances."""
    observed = table(record, reading, "observed").mean(-1)
    balances, mean = list(by_balance(record, reading)[0]), observed.mean(0)
    return {
        "rho": rounded(dict(zip(balances, mean.tolist())), 4),
        "drop": rounded({key: float(value) for key, value in summary(observed[:, -1] - observed[:, 0]).items()}, 3),
        "lowest at": balances[int(mean.argmin())],
    }
