"""What a record of `binary-mnist` says, by table: solver, linearisation and LeNet, each width, training and test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ntkscope.core import Record
from ntkscope_papers.samarin_2022.tangent_ridge import interpolating

Accuracies = dict[str, float]  # percent by width, "x1", "x2", ...


def widths_of(record: Record, prefix: str) -> list[str]:
    """The widths that have results under `prefix`, ascending: "x1", "x2", ..."""
    found = {key.removeprefix(prefix).split("/")[0] for key in record.metrics if key.startswith(prefix)}
    return sorted(found, key=lambda name: float(name[1:]))


def solver(record: Record, task: str, where: str, digit: int = 0) -> Accuracies:
    """Of the solver without a ridge, or the least that rounding allows; the mean over initialisations."""
    found: Accuracies = {}
    for width in widths_of(record, f"solver/{task}/"):
        runs = solver_runs(record, task, width)
        found[width] = sum(interpolating(run)[1][where][digit] for run in runs) / len(runs)
    return found


def solver_runs(record: Record, task: str, width: str) -> list[Mapping[str, Any]]:
    """The paths over ridges of every initialisation."""
    prefix = f"solver/{task}/{width}/"
    return [value for key, value in record.metrics.items() if key.startswith(prefix)]


def descent(record: Record, task: str, kind: str, where: str, digit: int = 0) -> Accuracies:
    """Of the network ("network") or its linearisation ("linear") after training."""
    found: Accuracies = {}
    for width in widths_of(record, f"sgd/{task}/"):
        run = record.metrics.get(f"sgd/{task}/{width}/{kind}")
        if run is not None and str(digit) in run["digits"]:
            found[width] = run["digits"][str(digit)][where]
    return found


def paired(record: Record, task: str) -> dict[str, bool]:
    """Whether the network and its linearisation began at the same weights and saw the same batches, by width."""
    found: dict[str, bool] = {}
    for width in widths_of(record, f"sgd/{task}/"):
        keys = [f"sgd/{task}/{width}/{kind}" for kind in ("network", "linear")]
        if all(key in record.metrics for key in keys):
            one, two = (record.metrics[key] for key in keys)
            found[width] = all(one[key] == two[key] for key in ("weights", "batches"))
    return found


def ridge_curve(run: Mapping[str, Any], where: str, digit: int = 0) -> dict[float, float]:
    """Accuracy by ridge, of those that could be factorised."""
    return {float(name): one[where][digit] for name, one in run["ridges"].items() if "failed" not in one}
