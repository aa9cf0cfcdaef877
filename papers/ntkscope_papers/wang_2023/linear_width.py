"""Wang et al. (2023), Table 8 and Figure 19: one network and one teacher, trained four ways to three kinds of spectra."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ntkscope import data
from ntkscope.core import Claim, Record, Snapshot
from ntkscope.kernels import Tangent
from ntkscope.linalg import marchenko_pastur
from ntkscope.measures.lazy import lazy_prediction
from ntkscope_papers.framework.claims import Published, verdicts
from ntkscope_papers.framework.experiment import Run
from ntkscope_papers.framework.legs import Leg, run_legs
from ntkscope_papers.wang_2023 import linear_width_definitions as definitions
from ntkscope_papers.wang_2023.linear_width_claims import READINGS
from ntkscope_papers.wang_2023.linear_width_figures import draw
from ntkscope_papers.wang_2023.linear_width_published import PUBLISHED
from ntkscope_papers.wang_2023.table8 import EXPECTED, MOST, RATES, Table8, eighth, numbers_of
from ntkscope_papers.wang_2023.teacher import (
    OPTIMIZERS,
    Student,
    TrainedTogether,
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

TRAINED = ("case1", "case2", "case3", "case4")
RIDGE = 0.1  # on XᵀX/n
OUTLIERS = 10  # right singular vectors that count as the outliers' subspace


@dataclass(frozen=True)
class LinearWidth(Table8):
    """Spectra of linear-width networks, Table 8 and Figure 19: GD, SGD and Adam from one start, with what each learns.

    Table 8, and AdaGrad beside it. `moments`: at which spectra are taken between the start and the end. The published table
    needs one reading throughout: v ~ N(0, 1), the quadratic term centred, noise-free test labels, batches of 32 for SGD
    and of 256 for Adam.
    """

    name = "linear-width"
    free = ("seeds", "tau_seeds", "expected", "most", "moments", "test_items")

    cases = tuple(OPTIMIZERS)
    test_items: int = 4000
    tau: float = 0.2
    seeds: int = 5
    tau_seeds: int = 3
    rates: tuple[float, ...] = numbers_of(RATES, cases)
    expected: tuple[int, ...] = numbers_of(EXPECTED, cases)
    most: tuple[int, ...] = numbers_of(MOST, cases)
    moments: int = 4

    smoke = {**eighth(cases), "test_items": 500, "tau_seeds": 1, "moments": 2}

    @property
    def student(self) -> Student:
        return Student(self.items, self.width, self.dimension, self.test_items, tau=self.tau, noise=self.noise)

    def measure(self, run: Run) -> None:
        run_legs(run.record, legs(self, run.seed, run.device), self.legs, progress=run.progress)

    @classmethod
    def published(cls) -> tuple[Published, ...]:
        return tuple(PUBLISHED.values())

    def judge(self, record: Record, difference: str) -> Iterator[Claim]:
        return verdicts(self.name, PUBLISHED, READINGS, self, record, difference)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


def trained(config: LinearWidth, name: str, seeds: list[int], device: torch.device) -> dict[str, Any]:
    """One case of Table 8, all seeds stacked: scores, and spectra at some moments of the first seed and at the ends of all."""
    case, student = config.table_case(name), config.student
    splits = [student.split(s) for s in seeds]
    before = [spectra_of(student.network(s), split, device) for s, split in zip(seeds, splits)]
    rows: list[dict[str, Any]] = []
    shown = student.network(seeds[0]).to(device).double()

    def watch(snapshot: Snapshot) -> None:
        with torch.no_grad():
            for parameter_name, parameter in shown.named_parameters():
                parameter.copy_(snapshot.params[parameter_name][0])
        found = spectra_of(shown, splits[0], device)
        rows.append(
            {
                "step": snapshot.step,
                "alignment": alignments(found, splits[0]),
                **{kind: moved(before[0][kind], spectrum, curve=True) for kind, spectrum in found.items()},
            }
        )

    looks: dict[str, Any] = {"watch": watch, "moments": case.moments(config.moments), "splits": splits}
    together = train_case(student, case, seeds, device=device, threshold=config.threshold, **looks)
    members = [
        told | ({} if told["diverged"] else final(together, i, before[i], device, seeds[i]))
        for i, told in enumerate(together.scores())
    ]
    return {
        "members": members,
        "moments": rows,
        "notes": list(together.ensemble.notes),
        "fit_seconds": round(together.seconds, 1),
    }


def final(
    together: TrainedTogether, i: int, before: dict[str, Spectrum], device: torch.device, seed: int
) -> dict[str, Any]:
    """Spectra of one trained network beside those it began with, alignments, and the classes."""
    split = together.splits[i]
    after = spectra_of(together.member(i), split, device)
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


def scored(config: LinearWidth, name: str, seeds: list[int], device: torch.device) -> dict[str, Any]:
    """A case without spectra, at τ = 0."""
    student = replace(config.student, tau=0.0)
    together = train_case(student, config.table_case(name), seeds, device=device, threshold=config.threshold)
    return {"members": together.scores(), "fit_seconds": round(together.seconds, 1)}


def adaptive(config: LinearWidth, seeds: list[int], device: torch.device) -> dict[str, Any]:
    """AdaGrad: the spectra of W, CK and NTK at the end."""
    student = config.student
    together = train_case(student, config.table_case("adagrad"), seeds, device=device, threshold=config.threshold)
    members = []
    for i, told in enumerate(together.scores()):
        if not told["diverged"]:
            before = spectra_of(student.network(seeds[i]), together.splits[i], device)
            after = spectra_of(together.member(i), together.splits[i], device)
            told["spectra"] = {kind: moved(before[kind], after[kind], curve=False) for kind in after}
            told["start"] = {kind: {"hill": hill(one.values)} for kind, one in before.items()}
        members.append(told)
    return {"members": members, "notes": list(together.ensemble.notes), "fit_seconds": round(together.seconds, 1)}


def lazy(student: Student, seeds: list[int], device: torch.device) -> dict[str, Any]:
    """Eq. 78 with f₀ kept and the whole NTK, in double precision."""
    members = []
    for seed in seeds:
        split, model = student.split(seed), student.network(seed).to(device).double().eval()
        tangent, x, z = (
            Tangent(model, memory="8GiB"),
            split.train.x.to(device).double(),
            split.test.x.to(device).double(),
        )
        K, K_test = (tangent.kernel("trntk0", *inputs).dense().cpu() for inputs in ((x,), (z, x)))
        with torch.no_grad():
            start, start_test = model(x)[:, 0].cpu(), model(z)[:, 0].cpu()
        found = lazy_prediction(K, K_test, split.train.y.double(), start, start_test)
        members.append(score(torch.from_numpy(found), split.test) | {"seed": seed})
    return {"members": members}


def baselines(config: LinearWidth, seeds: list[int]) -> dict[str, Any]:
    """Least squares and ridge regression on the inputs themselves, and the labels as printed, without the centring."""
    student, members = config.student, []
    for seed in seeds:
        split = student.split(seed)
        x, y, n = split.train.x.double(), split.train.y.double(), len(split.train)
        told: dict[str, Any] = {}
        for name, ridge in (("least squares", 0.0), ("ridge", RIDGE)):
            covariance = x.T @ x / n + ridge * torch.eye(x.shape[1], dtype=torch.float64)
            told[name] = score(split.test.x.double() @ torch.linalg.solve(covariance, x.T @ y / n), split.test)
        printed = data.load(
            "index-teacher", seed=seed, dimension=config.dimension, tau=config.tau, noise=config.noise, train=config.items,
            test=config.test_items, centred=False,
        )  # fmt: skip
        told["printed"] = {
            "mean": float(printed.train.y.mean()),
            "variance": float(printed.train.y.var()),
            "clean_variance": float(printed.test.y.var()),
        }
        members.append(told)
    return {"members": members}


def even_target(config: LinearWidth, seeds: list[int], device: torch.device) -> dict[str, Any]:
    """Adam on labels that are even in x, of which an odd network can learn nothing."""
    student = replace(config.student, link="quadratic", tau=0.0)
    together = train_case(student, config.table_case("case4"), seeds, device=device, threshold=config.threshold)
    return {"members": together.scores()}


def initial(config: LinearWidth, seeds: list[int], device: torch.device) -> dict[str, Any]:
    """Fresh networks: variances, the largest eigenvalue of W₀ᵀW₀/d, and spectra of the first for the figures."""
    student = config.student
    found = spectra_of(student.network(seeds[0]), student.split(seeds[0]), device)
    tops = []
    for seed in seeds:
        W = next(student.network(seed).parameters()).detach().double()
        tops.append(float(torch.linalg.matrix_norm(W, 2)) ** 2 / config.dimension)
    return {
        **definitions.start_variances(student, seeds[0]),
        "top": tops,
        "quantiles": {kind: quantiles(spectrum.values) for kind, spectrum in found.items()},
    }


def legs(config: LinearWidth, seed: int, device: torch.device) -> list[Leg]:
    """Every measurement, the cheap ones first."""
    seeds, few = (list(range(seed, seed + count)) for count in (config.seeds, config.tau_seeds))
    without = replace(config.student, tau=0.0)
    return [
        Leg("definitions/formulas", partial(definitions.formulas, seed)),
        Leg("definitions/constants", definitions.constants),
        Leg("definitions/kta", definitions.target_alignment),
        Leg("initial", partial(initial, config, seeds, device)),
        Leg("baselines", partial(baselines, config, seeds)),
        Leg("lazy", partial(lazy, config.student, seeds, device)),
        *(Leg(f"table8/{name}", partial(trained, config, name, seeds, device)) for name in reversed(TRAINED)),
        Leg("adagrad", partial(adaptive, config, seeds[:2], device)),
        Leg("even", partial(even_target, config, seeds[:2], device)),
        Leg("tau-zero/lazy", partial(lazy, without, few, device)),
        *(Leg(f"tau-zero/{name}", partial(scored, config, name, few, device)) for name in reversed(TRAINED)),
    ]
