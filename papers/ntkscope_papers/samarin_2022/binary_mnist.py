"""Samarin, Roth & Belius (2022), Tables 1 and 2: one digit against the rest, by LeNet, its linearisation, and a solver."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from matplotlib.figure import Figure

from ntkscope import data
from ntkscope.core import Part, Record
from ntkscope_papers.framework import Experiment, Run, claims_of, drawing, figure, leg
from ntkscope_papers.framework.legs import unfinished
from ntkscope_papers.framework.results import under
from ntkscope_papers.samarin_2022 import binary_claims as claims
from ntkscope_papers.samarin_2022.tangent_ridge import by_jacobian, interpolating, make_system, ridge_path
from ntkscope_papers.shared.lenet_tasks import Tasks, tasks_of
from ntkscope_papers.shared.paired_training import KINDS, Recipe, train_members

TASKS = tuple(claims.TASK.values())


@dataclass(frozen=True)
class BinaryMnist(Experiment):
    """Linearised CNNs, Tables 1 and 2: a digit against the rest by LeNet, its linearisation, and exact least squares.

    `ridges` of the solver at width 1 and at fractional widths, in units of the mean squared length of a gradient;
    `wide_ridges` at other widths. `jacobian_ridges`: those that are solved from the Jacobian as well. Widths in `optional` run
    when named. `digits`: those that SGD tells from the rest, above width 1 the first of them; the solver does it with all.
    """

    name = "binary-mnist"
    statements = claims_of(claims)
    free = ("memory", "initialisations", "optional")

    dataset: str = "mnist"
    enlarge: int = 1
    train_items: int | None = None
    test_items: int | None = None
    solver_widths: tuple[int, ...] = (1, 2, 5, 10, 25)
    initialisations: int = 3
    ridges: tuple[float, ...] = (0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
    wide_ridges: tuple[float, ...] = (0.0, 1e-8, 1e-4, 1e-2)
    jacobian_ridges: tuple[float, ...] = (1e-6, 1e-18)
    fractions: tuple[float, ...] = (0.7, 0.85, 1.2, 1.41)
    sgd_widths: tuple[int, ...] = (1, 2, 5)
    optional: tuple[int, ...] = (10, 25, 60)
    digits: tuple[int, ...] = (0, 1)
    epochs: int = 200
    lr: float = 0.01
    weight_decay: float = 5e-5
    memory: str = "110GiB"

    smoke = {
        **{"dataset": "digits", "enlarge": 3, "train_items": 120, "test_items": 60},
        **{"solver_widths": (1, 2), "initialisations": 1, "fractions": (0.5,), "ridges": (0.0, 1e-9, 1e-5, 1e-2)},
        **{"wide_ridges": (0.0, 1e-9), "jacobian_ridges": (1e-5,)},
        **{"sgd_widths": (1,), "optional": (2,), "epochs": 2, "memory": "1GiB"},
    }

    def prepare(self, run: Run) -> Tasks:
        known = {"standard": (self.dataset, False), "shifted": (self.dataset, True)}
        sizes: dict[str, Any] = {"train": self.train_items, "test": self.test_items, "enlarge": self.enlarge}
        return tasks_of(known, root=run.root, seed=run.seed, **sizes)

    @leg(
        "solver/{1}/x{0:g}/{2}",
        over=lambda self: (
            (width, name, s)
            for width, name in product(self.solver_widths, TASKS)
            for s in range(self.initialisations if width == 1 else 1)
        ),
    )
    def solver(self, run: Run, width: float, name: str, s: int = 0) -> dict[str, Any]:
        """Every digit against the rest at every ridge, of one network."""
        ridges = self.ridges if width <= 1 or width not in self.solver_widths else self.wide_ridges
        task = run.data(name)
        model = task.lenet(width, 1, run.seed + s)
        system = make_system(model, task.fixed(), task.test, device=run.device, memory=self.memory)
        return ridge_path(system, ridges, task.classes)

    @leg("fraction/{1}/x{0:g}", over=lambda self: product(self.fractions, TASKS))
    def fraction(self, run: Run, width: float, name: str) -> dict[str, Any]:
        """The same at widths around as many parameters as images."""
        return self.solver(run, width, name)

    @leg("jacobian/{}/x1", over=lambda self: TASKS)
    def from_jacobian(self, run: Run, name: str) -> dict[str, Any]:
        """The same at width 1 from the Jacobian."""
        task = run.data(name)
        model = task.lenet(1, 1, run.seed)
        return by_jacobian(model, task.fixed(), task.test, self.jacobian_ridges, task.classes, device=run.device)

    @leg(
        "sgd/{1}/x{0}/{2}",
        over=lambda self: product(dict.fromkeys((*self.sgd_widths, *self.optional)), TASKS, KINDS),
        optional=lambda self, width, name, kind: width not in self.sgd_widths,
    )
    def descent(self, run: Run, width: int, name: str, kind: str) -> dict[str, Any]:
        """LeNet or its linearisation by SGD, the digits stacked: they share w₀ and batches."""
        task = run.data(name)
        digits = self.digits if width == 1 else self.digits[:1]
        parts = [data.one_vs_rest(Part(task.train.x, task.train.y), digit) for digit in digits]
        with unfinished(run.record, f"sgd/{name}/x{width}/{kind}") as store:
            made = train_members(
                kind,
                lambda s: task.lenet(width, 1, s),
                parts,
                Recipe(self.epochs, self.lr, self.weight_decay),
                [run.seed] * len(parts),
                augment=task.augment,
                device=run.device,
                store=store,
            )
        found: dict[str, Any] = {}
        for where, part in (("train", task.fixed(self.epochs)), ("test", task.test)):
            outputs = made.outputs(part.x)[:, :, 0]
            for i, digit in enumerate(digits):
                right = (outputs[i] > 0) == (part.y == digit)
                found.setdefault(str(digit), {})[where] = round(100 * float(right.double().mean()), 4)
                found[str(digit)]["diverged"] = made.diverged[i]
        return {
            "digits": found,
            "weights": made.weights[0],
            "batches": made.batches[0],
            "fit_seconds": round(made.seconds, 1),
            "notes": list(made.notes),
        }

    @figure
    def tables(self, record: Record) -> Figure:
        """Test errors by width beside the published ones."""
        drawn, axes = drawing.canvas(1, 2, width=5.6)
        for axis, (table, task) in zip(axes, claims.TASK.items()):
            rows = {
                "solver": claims.solver(record, task, "test"),
                "linearisation, SGD": claims.descent(record, task, "linear", "test"),
                "LeNet, SGD": claims.descent(record, task, "network", "test"),
            }
            for i, ((label, row), model) in enumerate(zip(rows.items(), ("solver", "lin", "lenet"))):
                for values, how in (
                    (claims.TABLES[table][model]["test"], {"linestyle": "--", "alpha": 0.6}),
                    (row, {"marker": "o", "markersize": 4, "label": label}),
                ):
                    errors = [100 - value for value in values.values()]
                    axis.plot([float(width[1:]) for width in values], errors, color=drawing.COLOURS[i], **how)
            drawing.width_factors(axis, [int(width[1:]) for width in claims.TABLES[table]["lin"]["test"]])
            drawing.plain_log(axis)
            drawing.label(
                axis, title=f"0 against the rest, {task}", y="test error, percent (published: dashed)", legend=True
            )
        return drawn

    @figure
    def ridge_paths(self, record: Record) -> dict[str, Figure]:
        """Accuracy over ridges."""
        drawn, axes = drawing.canvas(1, 2, width=5.6)
        for axis, task in zip(axes, claims.TASK.values()):
            for i, (width, (run, *_)) in enumerate(claims.solver_runs(record, task).items()):
                for where, style in (("test", "o-"), ("train", ":")):
                    curve = claims.ridge_curve(run, where)
                    at = [ridge for ridge in curve if ridge > 0]
                    colour = drawing.COLOURS[i % len(drawing.COLOURS)]
                    label = width if where == "test" else None
                    axis.plot(at, [curve[ridge] for ridge in at], style, color=colour, markersize=3, label=label)
            x, y = "ridge / mean diagonal of the kernel", "accuracy, percent (training: dotted)"
            drawing.label(axis, title=task, x=x, y=y, log="x", legend=True)
        return {"ridges": drawn}

    @figure
    def threshold(self, record: Record) -> Figure:
        """The dip of the solver where there are as many parameters as images."""
        drawn, (axis,) = drawing.canvas(width=5.6)
        for i, task in enumerate(claims.TASK.values()):
            runs = [*under(record, f"fraction/{task}/").values(), *under(record, f"solver/{task}/").values()]
            points = sorted((run["parameters"] / run["rows"], interpolating(run)[1]["test"][0]) for run in runs)
            axis.plot(*zip(*points), "o-" if points else "o", color=drawing.COLOURS[i], label=task, markersize=4)
        axis.axvline(1, color="#999999", linewidth=0.8, linestyle="--")
        axis.set_xscale("log")
        axis.set_xticks([0.5, 1, 2, 5, 10, 100, 500], ["0.5", "1", "2", "5", "10", "100", "500"])
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        drawing.label(axis, x="parameters / training images", y="test accuracy of the solver, percent", legend=True)
        return drawn
