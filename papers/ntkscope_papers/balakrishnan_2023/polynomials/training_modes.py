"""Balakrishnan (2023), appendix A and Figures 6 and 7: layers that stop learning after the first epoch.

Judged as the text reads most plainly, with the whole first layer frozen, the optimiser's state kept and raw targets; what
the other readings say is in the note.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Float64
from matplotlib.figure import Figure

from ntkscope.core import Record
from ntkscope.training.modes import Phase
from ntkscope_papers.balakrishnan_2023.polynomials import machines as fits
from ntkscope_papers.balakrishnan_2023.polynomials.data import Task
from ntkscope_papers.balakrishnan_2023.polynomials.networks import PolynomialRuns, Recipe, Trained, by_model
from ntkscope_papers.balakrishnan_2023.polynomials.readings import draw_means, draw_predictions, over_seeds
from ntkscope_papers.framework import Reading, Run, claim, drawing, figure, leg
from ntkscope_papers.framework.intervals import R2, interval, short

MODES = ("reg", "stop-first", "first-last", "reinit")
RESTRICTED = MODES[1:]
VARIANTS = tuple(product(("layer", "weights"), ("kept", "reset")))  # what is frozen, and the optimiser's state
PLAIN = VARIANTS[0]
LOSSES = ("svr", "ridge")
CHANGES = ("first-layer weights after epoch 1", "first-layer biases after epoch 1", "readout weights in epoch 1")


def networks_key(mode: str, freeze: str, state: str) -> str:
    return f"networks/{mode}" if mode == "reg" else f"networks/{mode}/{freeze}/{state}"


def needed(*variants: tuple[str, str]) -> list[str]:
    """The networks of all modes, in these readings of them."""
    return list(dict.fromkeys(networks_key(mode, *variant) for mode in MODES for variant in variants))


def phases(mode: str, freeze: str, state: str) -> tuple[Phase, ...]:
    """The phases of a mode: the first layer, or its weights alone, stop after one epoch; the optimiser's state is kept or not.

    With the weights alone frozen, the biases of the first layer learn on, in first-last too.
    """
    frozen = ("first",) if freeze == "layer" else ("first.weight",)
    if mode == "reg":
        return (Phase(),)
    before = Phase(train=("first",), epochs=1) if mode == "first-last" else Phase(epochs=1)
    again = ("last",) if mode == "reinit" else ()
    return (before, Phase(freeze=frozen, reinit=again, reset_optimizer=state == "reset"))


@dataclass(frozen=True)
class TrainingModes(PolynomialRuns):
    """Training modes, Figures 6 and 7: a first layer that learns for one epoch, on polynomials of odd and even degree.

    `kernel_degrees`: those with kernel machines, which have raw targets and the plain reading of the modes.
    """

    name = "training-modes"

    degrees: tuple[int, ...] = (3, 4, 5, 6, 7)
    kernel_degrees: tuple[int, ...] = (3, 6)
    targets: tuple[str, ...] = ("raw", "unit")
    width: int = 512
    rate: float = 1.0
    follow: int = 20

    smoke = {**PolynomialRuns.smoke, "width": 8, "follow": 2}

    @property
    def tasks(self) -> list[Task]:
        return [Task("isotropic", degree, target) for target in self.targets for degree in self.degrees]

    def of_mode(self, run: Run, mode: str, freeze: str, state: str) -> Trained:
        recipe = Recipe(self.width, self.rate, self.follow, mode=phases(mode, freeze, state))
        return self.trained(run, networks_key(mode, freeze, state), self.tasks, recipe)

    @leg("networks/{}/{}/{}", over=lambda self: [(mode, *variant) for variant in VARIANTS for mode in RESTRICTED])
    def networks(self, run: Run, mode: str, freeze: str, state: str) -> dict[str, Any]:
        """All degrees and targets in one mode."""
        found = self.of_mode(run, mode, freeze, state)
        for degree in self.kernel_degrees if (freeze, state) == PLAIN else ():
            rows = self.predictions(run, found, self.tasks, Task("isotropic", degree, self.targets[0]))
            run.record.array(f"predictions-{mode}-{degree}", rows.astype(np.float32))
        changes = dict(zip(CHANGES, found.changes.amax(0).tolist()))
        tasks = self.member_scores(run, found, self.tasks)
        return {"moments": list(found.moments), "changes": changes, "tasks": tasks}

    @leg("networks/reg")
    def unrestricted(self, run: Run) -> dict[str, Any]:
        return self.networks(run, "reg", *PLAIN)

    @leg("kernels/rbf/{}", over=lambda self: self.kernel_degrees)
    def gaussian_machines(self, run: Run, degree: int) -> dict[str, Any]:
        """SVR and ridge regression with the Gaussian kernel."""
        task = Task("isotropic", degree, self.targets[0])
        rows: dict[str, list[dict[str, float]]] = {}
        for s in range(self.kernel_seeds):
            problem = fits.Problem.of(run.data.draw(task.kind, s), task, run.device)
            machines, gamma = fits.with_gaussian_kernel(problem, self, LOSSES)
            for loss, machine in machines.items():
                rows.setdefault(f"rbf {loss}", []).append({**fits.told(machine, problem), "gamma": gamma})
        return by_model(rows)

    @leg("kernels/{1}/{0}", over=lambda self: product(self.kernel_degrees, MODES))
    def tangent_machines(self, run: Run, degree: int, mode: str) -> dict[str, Any]:
        """SVR and ridge regression with the NTK of all parameters, and of those that learn after the first epoch."""
        task, found = Task("isotropic", degree, self.targets[0]), self.of_mode(run, mode, *PLAIN)
        tangents = {"": self.tangent(run, self.width)}
        if mode != "reg":
            tangents["learning "] = self.tangent(run, self.width, params="readout.*")
        rows: dict[str, list[dict[str, float]]] = {}
        for s in range(self.kernel_seeds):
            problem = fits.Problem.of(run.data.draw(task.kind, s), task, run.device)
            for which, tangent in tangents.items():
                found.member(self.tasks.index(task) * self.seeds + s, tangent.model)
                K = fits.tangent_kernel(tangent, problem.x)
                for loss, machine in fits.with_tangent_kernel(K, problem, self, LOSSES).items():
                    rows.setdefault(f"{which}ntk {loss}", []).append(fits.told(machine, problem))
        return by_model(rows)

    @claim(
        "relu-poly-modes",
        "Section 5.1.1",
        {"modes": list(MODES), "epochs before the switch": 1},
        needs=needed(*VARIANTS),
    )
    def frozen(self, record: Record) -> Reading:
        """first-layer weights bit-identical after epoch 1 in three modes, readout weights unchanged in epoch 1 of
        first-last; both change in reg"""
        measured, holds = {}, True
        for key in needed(*VARIANTS):
            changes = record.metrics[key]["changes"]
            still = changes["first-layer weights after epoch 1"] == 0
            readout = changes["readout weights in epoch 1"] == 0
            holds = holds and still == (key != "networks/reg") and readout == ("first-last" in key)
            if key != "networks/reg":
                holds = holds and (changes["first-layer biases after epoch 1"] == 0) == ("/layer/" in key)
            measured[key.removeprefix("networks/")] = changes
        note = "where the weights alone are frozen the biases of the first layer go on learning"
        return Reading(measured, holds, note)

    @figure
    def scatter(self, record: Record) -> dict[str, Figure]:
        """What single networks say of test items, beside the polynomial."""
        found = {}
        for name, degree in zip(("figure6", "figure7"), self.kernel_degrees):
            arrays = {mode: f"predictions-{mode}-{degree}" for mode in MODES}
            if any(array not in record.arrays for array in arrays.values()):
                continue
            found[name], axes = drawing.canvas(2, 2, width=4.0, height=3.2)
            for k, (axis, (mode, array)) in enumerate(zip(axes, arrays.items())):
                v, y, predicted = record.arrays[array]
                draw_predictions(axis, v, y, predicted, drawing.COLOURS[k])
                axis.set_title(f"{mode}, degree {degree}, test items, one seed")
        return found

    @figure
    def by_degree(self, record: Record) -> dict[str, Figure]:
        """R² of all modes by degree, in every reading."""
        found = {}
        complete = [variant for variant in VARIANTS if all(key in record.metrics for key in needed(variant))]
        for target in self.targets:
            found[f"modes-{target}"], axes = drawing.canvas(1, max(1, len(complete)), width=3.8)
            for axis, (freeze, state) in zip(axes, complete):
                modes = Modes(record, freeze, state, target)
                for k, mode in enumerate(MODES):
                    told = [interval(modes.of(mode, degree), R2) for degree in self.degrees]
                    draw_means(axis, self.degrees, told, k, mode)
                drawing.label(axis, title=f"{freeze} frozen, state {state}, {target}", x="degree")
                axis.set_xticks(self.degrees)
                axis.set_ylim(-0.3, 1.05)
            drawing.label(axes[0], y="R², test items", legend=bool(complete))
        return found


# -- claims of every reading --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Modes:
    """A record's networks in one reading: what is frozen, what becomes of the optimiser's state, and the targets."""

    record: Record
    freeze: str
    state: str
    target: str

    def of(self, mode: str, degree: int, what: str = "r2 test") -> Float64[np.ndarray, " seeds"]:
        found = self.record.metrics[networks_key(mode, self.freeze, self.state)]["tasks"]
        return np.array(found[Task("isotropic", degree, self.target).key][what])

    def machine(self, mode: str, degree: int, model: str) -> Float64[np.ndarray, " seeds"]:
        """Of the machines with the NTK of a mode's networks, or with the Gaussian kernel (`mode` "rbf")."""
        return np.array(self.record.metrics[f"kernels/{mode}/{degree}"]["models"][model]["mse test"])

    def r2(self, degree: int) -> dict[str, Any]:
        return {mode: over_seeds(self.of(mode, degree), R2) for mode in MODES}


Judged = Callable[[Modes], tuple[Any, bool]]


def in_every_reading(judged: Judged, config: Any, record: Record, seeds: str = "seeds") -> Reading:
    """The plain case; whether the check holds in the others that were measured is in the note."""
    first = config.targets[0]
    measured, holds = judged(Modes(record, *PLAIN, first))
    others = {
        f"{freeze} frozen, state {state}, {target}": judged(Modes(record, freeze, state, target))[1]
        for (freeze, state), target in product(VARIANTS, config.targets)
        if (freeze, state, target) != (*PLAIN, first) and all(key in record.metrics for key in needed((freeze, state)))
    }
    against = [name for name, held in others.items() if held != holds]
    same = len(others) - len(against)
    note = f"the verdict is the same in {same} of {len(others)} other readings" if others else ""
    note += f", not in: {'; '.join(against)}" if against else ""
    return Reading(measured, holds, note, seeds=getattr(config, seeds))


of_modes = partial(claim, needs=needed(PLAIN), seeds=10, through=in_every_reading)


@of_modes("relu-poly-modes-odd-even", "Section 5.2.1", "restricted modes fit odd degrees and fail at even ones")
def odd_even(modes: Modes) -> tuple[Any, bool]:
    """mean test R²: ≥ 0.8 in all modes at degree 3; at degree 6 in the restricted modes at least 0.3 below reg"""
    three, six = ({mode: float(modes.of(mode, degree).mean()) for mode in MODES} for degree in (3, 6))
    holds = min(three.values()) >= 0.8 and all(six["reg"] - six[mode] >= 0.3 for mode in RESTRICTED)
    return {"3": modes.r2(3), "6": modes.r2(6)}, holds


@of_modes(
    "relu-appA-d3-modes",
    "Appendix A, Figure 6",
    "degree 3: reg slightly better, results not significantly affected; NTK beats RBF",
)
def degree_3(modes: Modes) -> tuple[Any, bool]:
    """mean test R² ≥ 0.85 in all four modes; no mode's is above that of reg by more than the interval of the paired
    difference"""
    gaps = {mode: interval(modes.of(mode, 3) - modes.of("reg", 3)) for mode in RESTRICTED}
    best = all(gap["low"] <= 0 for gap in gaps.values())
    enough = all(float(modes.of(mode, 3).mean()) >= 0.85 for mode in MODES)
    differences = {mode: short(gap) for mode, gap in gaps.items()}
    return {"R²": modes.r2(3), "less reg": differences}, enough and best


@claim(
    "relu-appA-d6-modes",
    "Appendix A, Figure 7",
    "degree 6: reg vastly outperforms the rest; RBF outperforms the network and its NTK in these",
    needs=[*needed(PLAIN), *(f"kernels/{mode}/6" for mode in ("rbf", *MODES))],
    seeds=3,
    through=partial(in_every_reading, seeds="kernel_seeds"),
)
def degree_6(modes: Modes) -> tuple[Any, bool]:
    """mean test MSE of reg ≤ 0.5 of each restricted mode's; mean test MSE of the RBF SVR below that of the network and of
    the NTK SVR in each restricted mode"""
    means = {mode: float(modes.of(mode, 6, "mse test").mean()) for mode in MODES}
    rbf = modes.machine("rbf", 6, "rbf svr")
    machines = {mode: modes.machine(mode, 6, "ntk svr") for mode in MODES}
    learning = {mode: modes.machine(mode, 6, "learning ntk svr") for mode in RESTRICTED}
    far = all(means["reg"] <= 0.5 * means[mode] for mode in RESTRICTED)
    own = all(float(rbf.mean()) < means[mode] for mode in RESTRICTED)
    below = all(float(rbf.mean()) < float(machines[mode].mean()) for mode in RESTRICTED)
    measured = {
        "network": {mode: over_seeds(modes.of(mode, 6, "mse test")) for mode in MODES},
        "NTK": {mode: over_seeds(values) for mode, values in machines.items()},
        "NTK of what learns": {mode: over_seeds(values) for mode, values in learning.items()},
        "RBF": over_seeds(rbf),
    }
    return measured, far and own and below
