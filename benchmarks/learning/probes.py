"""Probe sweeps and principal components against scikit-learn, on activations of ResNet-20's last stage.

10,000 training and 2,000 test images of CIFAR-10, 4,096 activations each, the published grid of 39 numbers of components. The
peers refit at every d, as their users do. Scores are the same float64 numbers for everyone. `IncrementalPCA` gets features that
were standardised beforehand, for nothing, and the best of four batch sizes; ours standardises them itself. The last row
decomposes 50,000 × 16,384 activations that lie on disk, in a fresh process whose resident memory is read from the system.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import IncrementalPCA
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from torch import Tensor, nn

import ntkscope as ns
from benchmarks.kernels.memory import MIB, resident, settled
from benchmarks.machine import ROOT, THREADS
from benchmarks.networks import case
from benchmarks.outcome import Check, Outcome
from benchmarks.timing import Spread, interleaved, ratio, wall
from ntkscope.core.errors import DataNotFound
from ntkscope.linalg import pca
from ntkscope.linalg.features.pca import PCA
from ntkscope.measures.probes import grid, sweep
from ntkscope.storage import FeatureStore

COMPONENTS, BATCHES = 500, (500, 1000, 2000, 5000)
NCC_TIME, KNN_SAME, KNN_TIME, PCA_TIME, CAPTURED, MEMORY_GIB = 10.0, 0.999, 3.0, 2.0, 0.999, 4.0


def run(quick: bool = False) -> Outcome:
    """All comparisons of one sitting."""
    torch.set_num_threads(THREADS)
    train, y_train, test, y_test, source = activations_of(300 if quick else 10_000, 60 if quick else 2_000)
    rounds, components = (1, 20) if quick else (3, COMPONENTS)
    exact = pca(train, method="exact", memory="8GiB")
    Z, new = exact.transform(train).double(), exact.transform(test).double()
    dims = grid(len(exact))
    rows, checks = [], []
    for compare in (centres, neighbours):
        row, found = compare(Z, y_train, new, y_test, dims, rounds)
        rows.append(row)
        checks += found
    row, found = components_against_incremental(train, exact, components, rounds)
    rows.append(row)
    checks += found
    row, check = from_disk(*((400, 30) if quick else (50_000, COMPONENTS)))
    rows.append(row)
    checks.append(check)
    size = f"{len(Z):,} training and {len(new):,} test items, {train.shape[1]:,} activations, {len(dims)} values of d"
    return Outcome(f"Probes and principal components: {size}", rows, checks, [f"inputs: {source}"], {"dims": dims})


def activations_of(n: int, m: int) -> tuple[Tensor, Tensor, Tensor, Tensor, str]:
    """Activations and labels of training and test images; without the data, of noise with labels by its clusters."""
    network = case("resnet20", n + m)
    try:
        split = ns.data.load("cifar10", normalise="imagenet")
        parts = [(split.train.x[:n], split.train.y[:n]), (split.test.x[:m], split.test.y[:m])]
    except DataNotFound:
        labels = torch.arange(n + m) % 10
        shift = torch.randn(10, *network.x.shape[1:], generator=torch.Generator().manual_seed(0))
        x = network.x + 0.3 * shift[labels]
        parts = [(x[:n], labels[:n]), (x[n:], labels[n:])]
    rows = [ns.tangent.activations(network.model, x.float(), "layer3")["layer3"] for x, _ in parts]
    assert all(isinstance(part, Tensor) for part in rows)
    return rows[0], parts[0][1], rows[1], parts[1][1], network.source  # type: ignore[return-value]


def refits(make: Callable[[], Any], Z: np.ndarray, y: np.ndarray, new: np.ndarray, dims: list[int]) -> list[np.ndarray]:
    """What a user of the peer does: a fit and predictions for every d."""
    return [make().fit(Z[:, :d], y).predict(new[:, :d]) for d in dims]


def compared(
    name: str, ours: Callable[[], list[np.ndarray]], theirs: Callable[[], list[np.ndarray]], rounds: int
) -> tuple[dict[str, Any], Spread, list[float]]:
    """Seconds of both, and for each d the share of test items with the same prediction."""
    same = [float((a == b).mean()) for a, b in zip(ours(), theirs())]
    seconds = interleaved({"ours": wall(ours), "scikit-learn": wall(theirs)}, rounds=rounds)
    faster = ratio(seconds["scikit-learn"], seconds["ours"])
    row = {
        "what": name,
        "ours (s)": str(seconds["ours"]),
        "scikit-learn (s)": str(seconds["scikit-learn"]),
        "times faster": str(faster),
        "same, at the worst d": f"{min(same):.4%}",
    }
    return row, faster, same


def centres(
    Z: Tensor, y: Tensor, new: Tensor, truth: Tensor, dims: list[int], rounds: int
) -> tuple[dict[str, Any], list[Check]]:
    def ours() -> list[np.ndarray]:
        found = sweep(Z, y, new, truth, dims, probes=("ncc",)).predictions["ncc"]
        return [found[d].numpy() for d in dims]

    plain = Z.numpy(), y.numpy(), new.numpy()
    row, faster, same = compared("nearest class centre", ours, lambda: refits(NearestCentroid, *plain, dims), rounds)
    return row, [
        Check("NCC predictions, every d", "identical to NearestCentroid's", f"{min(same):.4%}", min(same) == 1),
        Check("NCC, all d against refits", f"≥ {NCC_TIME:g}× faster", f"{faster}×", faster.median >= NCC_TIME),
    ]


def neighbours(
    Z: Tensor, y: Tensor, new: Tensor, truth: Tensor, dims: list[int], rounds: int
) -> tuple[dict[str, Any], list[Check]]:
    def ours() -> list[np.ndarray]:
        found = sweep(Z, y, new, truth, dims, probes=("knn",), ties="first").predictions["knn"]
        return [found[d].numpy() for d in dims]

    def make() -> KNeighborsClassifier:
        return KNeighborsClassifier(10, algorithm="brute", n_jobs=THREADS)

    plain = Z.numpy(), y.numpy(), new.numpy()
    row, faster, same = compared("10 nearest neighbours", ours, lambda: refits(make, *plain, dims), rounds)
    return row, [
        Check("10-NN predictions, every d", f"≥ {KNN_SAME:.1%} as KNeighborsClassifier", f"{min(same):.4%}",
              min(same) >= KNN_SAME),
        Check("10-NN, all d against refits", f"≥ {KNN_TIME:g}× faster", f"{faster}×", faster.median >= KNN_TIME),
    ]  # fmt: skip


def components_against_incremental(
    train: Tensor, exact: PCA, components: int, rounds: int
) -> tuple[dict[str, Any], list[Check]]:
    """Seconds, and the variance the directions of each capture over what the exact ones do."""
    still = ((train.double() - exact.mean) / exact.scale).float()
    best = float(exact.variance[:components].sum())

    def captured(directions: Tensor) -> float:
        basis = torch.linalg.qr(directions.double())[0]
        return float((still.double() @ basis).var(0, correction=0).sum()) / best

    def incremental(batch: int) -> IncrementalPCA:
        return IncrementalPCA(components, batch_size=batch).fit(still.numpy())

    def ours() -> PCA:
        return pca(train, components=components, method="randomised")

    batches = [batch for batch in BATCHES if components <= batch <= len(train)] or [len(train)]
    tried = {batch: wall(lambda batch=batch: incremental(batch))() for batch in batches}  # type: ignore[misc]
    batch = min(tried, key=lambda size: tried[size])
    found, peer = ours(), incremental(batch)
    shares = captured(found.directions), captured(torch.from_numpy(peer.components_.T))
    seconds = interleaved({"ours": wall(ours), "scikit-learn": wall(lambda: incremental(batch))}, rounds=rounds)
    faster = ratio(seconds["scikit-learn"], seconds["ours"])
    row = {
        "what": f"{components} principal components, randomised; IncrementalPCA with batches of {batch}",
        "ours (s)": str(seconds["ours"]),
        "scikit-learn (s)": str(seconds["scikit-learn"]),
        "times faster": str(faster),
        "captured, of exact": f"{shares[0]:.4%} ({shares[1]:.4%})",
        "measured error": found.error,
    }
    return row, [
        Check("randomised PCA against IncrementalPCA", f"≥ {PCA_TIME:g}× faster", f"{faster}×",
              faster.median >= PCA_TIME),
        Check("variance it captures", f"≥ {CAPTURED:.1%} of the exact", f"{shares[0]:.4%}", shares[0] >= CAPTURED),
    ]  # fmt: skip


def from_disk(n: int, components: int) -> tuple[dict[str, Any], Check]:
    """Activations of the first stage of ResNet-20 into a store, then their components in a fresh process."""
    network = case("resnet20", n)
    first = nn.Sequential(*list(network.model.children())[:4]).eval()
    with tempfile.TemporaryDirectory(dir=os.environ.get("NTKSCOPE_SCRATCH")) as folder:
        began = time.perf_counter()
        store = ns.tangent.activations(first, network.x, "3", store=folder)["3"]
        assert isinstance(store, FeatureStore)
        filled = time.perf_counter() - began
        command = [sys.executable, "-m", "benchmarks.learning.probes", store.url, str(components)]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    said: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    peak = said["peak"] / 2**30
    row = {
        "what": f"{components} components of {n:,} × {store.width:,} from disk, filled in {filled:.0f} s",
        "ours (s)": f"{said['seconds']:.3g}",
        "peak GiB": f"{peak:.2f}",
        "measured error": said["error"],
    }
    what = f"{components} components of {n:,} × {store.width:,} from disk: most resident memory of the process"
    return row, Check(what, f"< {MEMORY_GIB:g} GiB", f"{peak:.2f} GiB", peak < MEMORY_GIB)


def measure(url: str, components: int) -> dict[str, float]:
    """The decomposition in this process: seconds, and the most bytes that were resident, libraries and all."""
    torch.set_num_threads(THREADS)
    store = FeatureStore.open(url)
    before, began = settled(), time.perf_counter()
    found = pca(store, components=components, method="randomised")
    seconds, peak = time.perf_counter() - began, resident("VmHWM")
    return {
        "seconds": seconds,
        "peak": peak,
        "above_mib": (peak - before) / MIB,
        "error": found.error,
        "share": float(found.shares[-1]),
    }


if __name__ == "__main__":
    print(json.dumps(measure(str(Path(sys.argv[1])), int(sys.argv[2]))))
