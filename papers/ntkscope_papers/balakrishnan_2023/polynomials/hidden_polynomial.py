"""Balakrishnan (2023), section 5 and Figures 3 to 5: polynomials of a hidden direction, networks against kernel machines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from ntkscope.core import Record, UsageError
from ntkscope.kernels import Tangent
from ntkscope_papers.balakrishnan_2023.polynomials import claims
from ntkscope_papers.balakrishnan_2023.polynomials import machines as fits
from ntkscope_papers.balakrishnan_2023.polynomials import networks as nets
from ntkscope_papers.balakrishnan_2023.polynomials import readings as read
from ntkscope_papers.balakrishnan_2023.polynomials.damian import Learned, learn
from ntkscope_papers.balakrishnan_2023.polynomials.data import AUTHORS, CHOSEN, KINDS, PARTS, Task
from ntkscope_papers.balakrishnan_2023.polynomials.identities import identities_of
from ntkscope_papers.balakrishnan_2023.polynomials.machines import Chosen, Problem
from ntkscope_papers.balakrishnan_2023.polynomials.networks import PolynomialRuns, Recipe, Trained
from ntkscope_papers.balakrishnan_2023.polynomials.readings import SYMMETRIC, Results
from ntkscope_papers.framework import Run, claims_of, drawing, figure, leg
from ntkscope_papers.framework.intervals import interval
from ntkscope_papers.framework.legs import not_run

MODELS = {"network": "network", "ntk": "SVR, NTK", "rbf": "SVR, RBF"}
SHOWN = {
    "figure3": ("isotropic", "network", (7, 8)),
    "figure4": ("direct", "network", (18, 19)),
    "figure5": ("isotropic", "ntk", (7, 8)),
    "rbf": ("isotropic", "rbf", (7, 8)),
    "correlated": ("correlated", "network", (11, 12)),
}


@dataclass(frozen=True)
class HiddenPolynomial(PolynomialRuns):
    """Hidden polynomials, Figures 3–5: the degrees that a network, its NTK and a Gaussian kernel fit, v hidden or given.

    `isotropic`, `correlated`, `direct`: the degrees of each kind of inputs. `follow`: epochs at whose ends the alignment of
    units is measured. `noise`: of the labels, ±, with Damian's algorithm and start.
    """

    name = "hidden-polynomial"
    statements = claims_of(claims)

    isotropic: tuple[int, ...] = tuple(range(3, 10))
    correlated: tuple[int, ...] = tuple(range(3, 13))
    direct: tuple[int, ...] = tuple(range(9, 21))
    targets: tuple[str, ...] = ("raw", "unit")
    widths: tuple[int, ...] = (128, 512)
    rates: tuple[float, ...] = (1.0,)
    follow: int = 20
    noise: float = 0.01

    smoke = {
        **PolynomialRuns.smoke,
        "correlated": (3, 11),
        "direct": (9, 18, 19),
        "targets": ("raw",),
        "widths": (8, 16),
        "follow": 2,
    }

    def of_kind(self, kind: str, target: str) -> list[Task]:
        """The tasks of a kind of inputs and targets."""
        return [Task(kind, degree, target) for degree in getattr(self, kind)]

    @leg()
    def identities(self, run: Run) -> dict[str, Any]:
        return identities_of(self.roots, run.seed)

    def group(self, run: Run, group: str, width: int, rate: float) -> Trained:
        """The networks that train together."""
        tasks = read.tasks_of(self, group)
        decay = CHOSEN[tasks[0].degree][1] if tasks[0].target == AUTHORS else None
        recipe = Recipe(width, rate, self.follow, decay=decay)
        return self.trained(run, read.networks_key(group, width, rate), tasks, recipe)

    @leg("networks/{}/{}/{:g}", over=lambda self: product(read.GROUPS, self.widths, self.rates))
    def networks(self, run: Run, group: str, width: int, rate: float) -> dict[str, Any]:
        """All tasks of a group at one width and rate."""
        found, tasks = self.group(run, group, width, rate), read.tasks_of(self, group)
        if group == "direct" and (width, rate) == (self.widths[-1], self.rates[0]):
            for task in tasks[: len(self.direct)]:  # those of the first kind of targets
                rows = self.predictions(run, found, tasks, task)
                run.record.array(read.array_name(task), rows.astype(np.float32))
        told_of = self.member_scores(run, found, tasks)
        return {"moments": list(found.moments), "members": len(found.epochs), "tasks": told_of}

    @leg(
        "networks/{}/{}/{:g}",
        over=lambda self: [(f"{AUTHORS}/{degree}", CHOSEN[degree][0], 1.0) for degree in self.isotropic],
        optional=True,
    )
    def networks_by_authors(self, run: Run, group: str, width: int, rate: float) -> dict[str, Any]:
        return self.networks(run, group, width, rate)

    @leg("kernels/{0.key}", over=lambda self: read.tasks_of(self, "hidden"))
    def machines(self, run: Run, task: Task) -> dict[str, Any]:
        """The kernel machines of one task: with the NTK of the network of the chosen width and rate, and the Gaussian."""
        results = Results(self, run.record)
        if missing := results.missing([task]):
            raise UsageError(
                f"{read.kernels_key(task)} needs the networks of every width: {not_run(self.name, missing)}"
            )
        width, rate = results.chosen(task)
        group = read.group_of(task)
        found, tasks, tangent = (
            self.group(run, group, width, rate),
            read.tasks_of(self, group),
            self.tangent(run, width),
        )
        rows: dict[str, list[dict[str, float]]] = {}
        for s in range(self.kernel_seeds):
            problem = Problem.of(run.data.draw(task.kind, s), task, run.device)
            found.member(tasks.index(task) * self.seeds + s, tangent.model)
            if task.target == AUTHORS:
                ntk, rbf, gamma = fits.by_authors(tangent, problem, self)
            else:
                ntk = fits.with_tangent_kernel(fits.tangent_kernel(tangent, problem.x), problem, self)
                rbf, gamma = fits.with_gaussian_kernel(problem, self)
            for loss, machine in ntk.items():
                rows.setdefault(f"ntk {loss}", []).append(fits.told(machine, problem))
            for loss, machine in rbf.items():
                rows.setdefault(f"rbf {loss}", []).append({**fits.told(machine, problem), "gamma": gamma})
            if s == 0:
                own = self.predictions(run, found, tasks, task)
                shown = np.stack([*own, ntk["svr"].predictions["test"], rbf["svr"].predictions["test"]])
                run.record.array(read.array_name(task), shown.astype(np.float32))
        return {"width": width, "rate": rate, **nets.by_model(rows)}

    @leg("kernels/{0.key}", over=lambda self: self.of_kind("isotropic", AUTHORS), optional=True)
    def machines_by_authors(self, run: Run, task: Task) -> dict[str, Any]:
        return self.machines(run, task)

    def symmetric(self, run: Run) -> tuple[Trained, list[Task]]:
        """Networks on noisy isotropic data from a symmetric start."""
        tasks = self.of_kind("isotropic", self.targets[0])
        recipe = Recipe(self.widths[-1], self.rates[0], self.follow, self.noise, symmetric=True)
        return self.trained(run, SYMMETRIC, tasks, recipe), tasks

    @leg(SYMMETRIC)
    def symmetric_networks(self, run: Run) -> dict[str, Any]:
        """AdaDelta from a symmetric start on noisy labels; what the start puts out."""
        found, tasks = self.symmetric(run)
        x = run.data.draw("isotropic", 0).x["train"]
        model = nets.network(self.dimension, self.widths[-1], run.seed, symmetric=True)
        weight, readout = model.get_parameter("layer1.weight"), model.get_parameter("readout.weight")
        half = len(weight) // 2
        with torch.no_grad():
            by_sum = float(model(x).abs().max())
        paired = bool(torch.equal(weight[:half], weight[half:]) and torch.equal(readout[0, :half], -readout[0, half:]))
        return {
            "start": {"in exact pairs": paired, "largest |output|, summed in any order": by_sum},
            "moments": list(found.moments),
            "tasks": self.member_scores(run, found, tasks),
        }

    @leg("damian/{}", over=lambda self: self.isotropic)
    def damian(self, run: Run, degree: int) -> dict[str, Any]:
        """One degree: the NTK of networks from a symmetric start, and Damian's algorithm with its own NTK."""
        found, tasks = self.symmetric(run)
        task, tangent = Task("isotropic", degree, self.targets[0]), self.tangent(run, self.widths[-1])
        rows: dict[str, list[dict[str, float]]] = {}
        starts: list[float] = []
        for s in range(self.seeds):
            problem = Problem.of(run.data.draw(task.kind, s), task, run.device, self.noise)
            z = problem.x / problem.x[problem.rows["train"]].std()
            parts = {name: z[rows_of] for name, rows_of in problem.rows.items()}
            y = {name: problem.y[rows_of] for name, rows_of in problem.rows.items()}
            learned = learn(parts, y, self.widths[-1], run.seed + s)
            starts.append(learned.start)
            own = {name: learned(each).cpu().numpy() for name, each in parts.items()}
            clean = {name: problem.targets(name) for name in PARTS}
            row = {**nets.scores(own, clean, problem.v, task.degree), "step": learned.step, "ridge": learned.ridge}
            rows.setdefault("algorithm", []).append(row)
            if s < self.kernel_seeds:
                found.member(tasks.index(task) * self.seeds + s, tangent.model)
                svr = fits.fit_on_all(fits.tangent_kernel(tangent, problem.x), problem, "svr", self, "penalised")
                rows.setdefault("symmetric start, ntk svr", []).append(fits.told(svr, problem))
                fitted = self.own_kernel(tangent, learned, z, problem)
                rows.setdefault("algorithm, ntk ridge", []).append(fits.told(fitted, problem))
        return {"largest |output| at the start": max(starts), **nets.by_model(rows)}

    def own_kernel(self, tangent: Tangent, learned: Learned, z: torch.Tensor, problem: Problem) -> Chosen:
        """Ridge regression with the NTK of what the algorithm learned, on targets without their linear part."""
        with torch.no_grad():
            for parameter, value in zip(tangent.model.parameters(), learned.network().parameters()):
                parameter.copy_(value)
        line = learned.linear(z)
        rest = replace(problem, y=problem.y - line)
        found = fits.fit_on_all(fits.tangent_kernel(tangent, z), rest, "ridge", self, "penalised")
        lines = {name: line[rows].cpu().numpy() for name, rows in problem.rows.items()}
        predictions = {name: values + lines[name] for name, values in found.predictions.items()}
        return replace(found, predictions=predictions)

    @figure
    def scatter(self, record: Record) -> dict[str, Figure]:
        """What single networks and machines say of test items, beside the polynomial."""
        found = {}
        for name, (kind, model, degrees) in SHOWN.items():
            tasks = [Task(kind, degree, self.targets[0]) for degree in degrees]
            if any(read.array_name(task) not in record.arrays for task in tasks):
                continue
            found[name], axes = drawing.canvas(1, len(tasks))
            for axis, task in zip(axes, tasks):
                rows = record.arrays[read.array_name(task)]
                v, y, predicted = rows[0], rows[1], rows[2 + list(MODELS).index(model)]
                read.draw_predictions(axis, v, y, predicted, drawing.COLOURS[0], MODELS[model])
                title = f"{task.kind}, degree {task.degree}, test items, one seed"
                drawing.label(axis, title=title, x="v", legend=True)
        return found

    @figure
    def by_degree(self, record: Record) -> dict[str, Figure]:
        """R² and MSE over test items, one row for each kind of targets; means over seeds with their 95 % intervals."""
        found, results = {}, Results(self, record)
        for kind in KINDS:
            tasks = {target: self.of_kind(kind, target) for target in self.targets}
            if not results.missing([task for several in tasks.values() for task in several]):
                found[f"degrees-{kind}"], axes = drawing.canvas(len(tasks), 2)
                for i, several in enumerate(tasks.values()):
                    _degrees(axes[2 * i : 2 * i + 2], results, several)
        return found

    @figure
    def alignment(self, record: Record) -> Figure:
        """The share of aligned units by epoch, means over seeds; an odd degree and the even one above it share a colour."""
        drawn, (axis,) = drawing.canvas(width=5.6)
        results, tasks = Results(self, record), self.of_kind("isotropic", self.targets[0])
        if results.missing(tasks):
            axis.set_title("not all networks are trained yet")
            return drawn
        for task in tasks:
            moments = results.moments(task)
            few = [i for i, moment in enumerate(moments) if moment <= self.follow]
            shares = results.aligned(task).mean(0)
            colour = drawing.COLOURS[(task.degree - 1) // 2 % len(drawing.COLOURS)]
            style = {"linestyle": "-" if task.degree % 2 else "--", "color": colour}
            axis.plot([moments[i] for i in few], shares[few], label=f"degree {task.degree}", **style)
        drawing.label(axis, x="epoch", y="share of units with |cos| ≥ 0.7")
        axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
        return drawn


def _degrees(axes: list[Any], results: Results, tasks: list[Task]) -> None:
    series = {"network": [(task, results.network(task)) for task in tasks]}
    done = [task for task in tasks if read.kernels_key(task) in results.metrics]
    for model in ("ntk svr", "ntk squared svr", "ntk ridge", "rbf svr", "rbf ridge") if done else ():
        series[model] = [(task, results.metrics[read.kernels_key(task)]["models"][model]) for task in done]
    for k, (name, rows) in enumerate(series.items()):
        for axis, what in zip(axes, ("r2 test", "mse test")):
            read.draw_means(axis, [task.degree for task, _ in rows], [interval(row[what]) for _, row in rows], k, name)
    constant = [interval(results.network(task)["variance"])["mean"] for task in tasks]
    axes[1].plot([task.degree for task in tasks], constant, "--", color="#999999", label="constant")
    axes[0].set_ylim(-0.3, 1.05)
    drawing.plain_log(axes[1])
    for axis, label in zip(axes, ("R²", "MSE")):
        drawing.label(axis, x="degree", y=f"{label}, test items")
    axes[0].set_title(f"{tasks[0].kind}, {tasks[0].target} targets")
    axes[1].legend()
