"""Random projections of every output's gradient: our four kinds against TRAK's BasicProjector, time and measured error.

TRAK is given ready gradients and its time is the projection alone. Ours is counted from what the backward pass left (layer
inputs and cotangents) to features, so that forming gradients is in our time and not in TRAK's; both are also given from
images on. The error of each is that of the kernel of its features against the exact trace-NTK, root mean square over
pairs and seeds. Speed at equal error: time grows as the number of columns and the error falls as its root, so a time is
multiplied by the square of the ratio of errors.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import ntkscope as ns
from benchmarks import networks
from benchmarks.machine import THREADS
from benchmarks.outcome import Check, Outcome
from benchmarks.peers import Peer, PeerUnavailable
from benchmarks.timing import Spread, fewest, interleaved, ratio

TRAK = "TRAK BasicProjector"
KINDS = ("rademacher", "gaussian", "sparse", "kronecker")
BLOCKS = (100, 400, 1024)
STANDARD_ERRORS = 5.0  # times 1/√k: no estimate may be farther off
FASTER = 20.0


@dataclass(frozen=True)
class Task:
    """A network, how many inputs, and the columns of every kind that is tried; the largest is raced."""

    network: str
    n: int
    dims: dict[str, tuple[int, ...]]
    raced: int
    rounds: int
    seeds: int


def tasks(quick: bool) -> list[Task]:
    if quick:
        dims: dict[str, tuple[int, ...]] = dict.fromkeys((*KINDS, TRAK), (64, 128))
        return [Task("lenet", 6, dims, 128, 1, 2), Task("mlp", 4, dims, 128, 1, 2)]
    wide, narrow = (256, 1024, 4096, 10240), (256, 1024)
    real = {"sparse": wide, "kronecker": wide, "rademacher": wide, TRAK: wide, "gaussian": narrow}
    small = dict.fromkeys(("sparse", "kronecker"), (256, 1024, 4096)) | dict.fromkeys(("rademacher", TRAK), narrow)
    return [Task("resnet20", 24, real, 10240, 3, 5), Task("mlp", 24, small | {"gaussian": (256,)}, 1024, 3, 5)]


class Ours:
    """One kind on one case: features, with the seconds of each stage."""

    def __init__(self, case: networks.Case, kind: str, dim: int, exact: Tensor) -> None:
        self.case, self.kind, self.dim, self.exact = case, kind, dim, exact
        self.seed = 0
        self.errors: list[float] = []
        self.said: list[float] = []
        self.stages: list[dict[str, float]] = []

    def __call__(self) -> float:
        """Seconds from layer inputs and cotangents to features; each call is another seed."""
        gram: Any = ns.kernel(
            "proj-trntk", self.case.model, self.case.x, dim=self.dim, kind=self.kind, seed=self.seed, normalize=False
        )
        self.seed += 1
        self.stages.append(dict(gram.coverage.stages))
        self.errors.append(pair_error(gram.dense(), self.exact))
        self.said.append(float((gram.standard_error()[apart(self.exact)].square().mean()).sqrt()))
        self.said[-1] /= float(self.exact[apart(self.exact)].square().mean().sqrt())
        return self.stages[-1]["gradients"] + self.stages[-1]["projection"]

    def row(self) -> dict[str, Any]:
        last = self.stages
        return {
            "projection alone": Spread(tuple(s["projection"] for s in last)),
            "from images on": Spread(tuple(sum(s.values()) for s in last)),
            "relative error": root_mean_square(self.errors),
            "its own error bars": root_mean_square(self.said),
        }


class Trak:
    """The peer on the same gradients."""

    def __init__(self, peer: Peer, dim: int, block: int, exact: Tensor, out: Path) -> None:
        self.peer, self.dim, self.block, self.exact, self.out = peer, dim, block, exact, out
        self.seed = 0
        self.errors: list[float] = []
        self.answers: list[dict[str, Any]] = []

    def __call__(self) -> float:
        answer = self.peer.ask(
            "project", k=self.dim, block=self.block, kind="rademacher", out=str(self.out), seed=self.seed
        )
        self.seed += 1
        self.answers.append(answer)
        features = torch.from_numpy(np.load(self.out))
        self.errors.append(pair_error(features @ features.T, self.exact))
        return float(answer["projection"])

    def row(self) -> dict[str, Any]:
        return {
            "projection alone": Spread(tuple(a["projection"] for a in self.answers)),
            "from images on": Spread(tuple(a["seconds"] for a in self.answers)),
            "relative error": root_mean_square(self.errors),
        }


def apart(exact: Tensor) -> Tensor:
    return ~torch.eye(len(exact), dtype=torch.bool)


def pair_error(K: Tensor, exact: Tensor) -> float:
    """`‖K - exact‖ / ‖exact‖` over pairs of different inputs."""
    mask = apart(exact)
    return float((K.double() - exact)[mask].norm() / exact[mask].norm())


def root_mean_square(values: list[float]) -> float:
    """
    >>> root_mean_square([3.0, 4.0])
    3.5355339059327378
    """
    return float(np.sqrt(np.mean(np.square(values))))


def race(task: Task, peer: Peer, scratch: Path) -> dict[str, Any]:
    """All kinds at all their sizes, once a seed; at the raced size interleaved with the peer, round by round."""
    case = networks.case(task.network, task.n)
    exact = ns.kernel("trntk0", case.model, case.x, dtype=torch.float64).dense()
    loaded = peer.ask("load", network=task.network, n=task.n)
    peer.ask("project", k=64, block=64, kind="rademacher")
    columns = min(1024, task.raced)
    swept = {b: peer.ask("project", k=columns, block=b, kind="rademacher")["projection"] for b in BLOCKS}
    block = fewest(swept)

    def candidate(kind: str, dim: int) -> Any:
        made: Any = Trak(peer, dim, block, exact, scratch / "features.npy")
        return made if kind == TRAK else Ours(case, kind, dim, exact)

    candidate("sparse", 64)()  # once, to warm up
    raced = {kind: candidate(kind, task.raced) for kind, dims in task.dims.items() if task.raced in dims}
    seconds = interleaved(raced, rounds=task.rounds)
    for kind, one in raced.items():
        while kind in ("sparse", "kronecker") and one.seed < task.seeds:  # cheap: more seeds for the error
            one()
        if root_mean_square(one.errors) > STANDARD_ERRORS / task.raced**0.5:
            raise PeerUnavailable(f"{kind}: relative error {root_mean_square(one.errors):.2g} is no projection's")
    curve = [
        {"kind": kind, "dim": task.raced, "seconds": seconds[kind].median, **one.row()} for kind, one in raced.items()
    ]
    for kind, dims in task.dims.items():
        for dim in dims:
            if dim != task.raced:
                other = candidate(kind, dim)
                spent = [other() for _ in range(2 if kind in ("sparse", "kronecker") else 1)]
                curve.append({"kind": kind, "dim": dim, "seconds": min(spent), **other.row()})
    factored = ns.kernel("proj-trntk", case.model, case.x[:3], dim=task.raced, kind="kronecker").meta["factored"]
    return {"case": case, "seconds": seconds, "raced": raced, "curve": curve, "swept": swept, "block": block,
            "loaded": loaded, "factored": factored}  # fmt: skip


def faster(found: dict[str, Any], kind: str) -> tuple[Spread, float]:
    """How many times faster than TRAK at equal columns, and at equal measured error."""
    at_equal_columns = ratio(found["seconds"][TRAK], found["seconds"][kind])
    errors = {name: root_mean_square(found["raced"][name].errors) for name in (kind, TRAK)}
    return at_equal_columns, at_equal_columns.median * (errors[TRAK] / errors[kind]) ** 2


def figure(results: dict[str, dict[str, Any]]) -> Figure:
    """Error against time, a line a kind, a panel a network."""
    drawn = Figure(figsize=(5.2 * len(results), 4.2), layout="constrained")
    panels = drawn.subplots(1, len(results), squeeze=False)[0]
    for axes, (network, found) in zip(panels, results.items()):
        for kind in (*KINDS, TRAK):
            points = sorted((p["dim"], p["seconds"], p["relative error"]) for p in found["curve"] if p["kind"] == kind)
            axes.plot([p[1] for p in points], [p[2] for p in points], "o-", label=kind, markersize=4)
            left = kind == "kronecker"  # the leftmost line: its numbers do not run into the next one's
            for dim, spent, error in points:
                axes.annotate(
                    f"{dim:,}",
                    (spent, error),
                    fontsize=6,
                    xytext=(-4 if left else 4, 3),
                    textcoords="offset points",
                    ha="right" if left else "left",
                )
        axes.set(xscale="log", yscale="log", title=network)
        axes.margins(x=0.12)
    panels[0].set_ylabel("relative error of the kernel,\npairs of different inputs")
    panels[0].legend(fontsize=8, frameon=False)
    drawn.supxlabel("seconds from layer inputs and cotangents (TRAK: from gradients) to features", fontsize=10)
    return drawn


def run(quick: bool = False) -> Outcome:
    """ResNet-20 with published weights, and a wide perceptron; TRAK's block size is the best of three."""
    torch.set_num_threads(THREADS)
    results: dict[str, dict[str, Any]] = {}
    rows, checks = [], []
    with tempfile.TemporaryDirectory() as scratch, Peer("trak") as peer:
        for task in tasks(quick):
            found = results[task.network] = race(task, peer, Path(scratch))
            for kind, one in found["raced"].items():
                equal, at_error = (None, None) if kind == TRAK else faster(found, kind)
                rows.append(
                    {
                        "network": f"{task.network}, {task.n} inputs, {found['case'].parameters:,} parameters",
                        "method": kind,
                        "columns": f"{task.raced:,}",
                        "seconds (ours with forming gradients)": found["seconds"][kind],
                        **one.row(),
                        "faster than TRAK": equal,
                        "at equal error": at_error,
                    }
                )
            best = max(("sparse", "kronecker"), key=lambda kind, found=found: faster(found, kind)[1])  # type: ignore[misc]
            at_error = faster(found, best)[1]
            if task.network == "mlp":  # not promised; the table says it
                continue
            checks.append(
                Check(
                    f"projections of {task.network}, K = {task.raced:,}: {best} against TRAK's BasicProjector at equal error",
                    f"≥ {FASTER:g}×",
                    f"{at_error:.1f}×",
                    None if quick else at_error >= FASTER,
                )
            )
    notes = [
        f"{network}: factored by kind kronecker: {', '.join(found['factored']) or 'nothing, it is the sparse kind here'};"
        f" TRAK's block size {found['block']}; {found['case'].source}."
        for network, found in results.items()
    ]
    details = {
        network: {key: found[key] for key in ("curve", "swept", "block", "loaded", "factored")}
        for network, found in results.items()
    }
    title = f"Random projections of per-output gradients, {THREADS} cores, float32"
    return Outcome(title, rows, checks, notes, details, {"curve": figure(results)})
