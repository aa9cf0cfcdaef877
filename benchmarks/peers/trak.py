"""TRAK's BasicProjector on per-output gradients, and its scores; runs in its own environment, with our torch.

The gradients come from `vmap(jacrev)`, as in TRAK's own functional gradient computer. All gradients go to the projector in
one call, so that each block of the random matrix is drawn once: the best it can do.
"""

from __future__ import annotations

import tempfile
import time
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from trak import TRAKer
from trak.projectors import BasicProjector, NoOpProjector, ProjectionType

from benchmarks import networks
from benchmarks.peers import THREADS, serve
from benchmarks.peers.vmap import jacobians


class Projection:
    """One network, its inputs and their gradients."""

    def load(self, network: str, n: int) -> dict[str, Any]:
        self.case = networks.case(network, n)
        return {"parameters": self.case.parameters, "versions": {"traker": version("traker")}}

    def gradients(self, chunk: int) -> Tensor:
        """(n·c, p) gradients, `chunk` inputs at a time."""
        pieces = [
            torch.cat(jacobians(self.case.model, piece), dim=2).flatten(0, 1) for piece in self.case.x.split(chunk)
        ]
        return torch.cat(pieces)

    def project(
        self, k: int, block: int, kind: str, chunk: int = 8, out: str | None = None, seed: int = 0
    ) -> dict[str, Any]:
        """Gradients, then their projections to `k` numbers; answers both times. Written, scaled by 1/√k, to `out`."""
        start = time.perf_counter()
        gradients = self.gradients(chunk)
        middle = time.perf_counter()
        projector = BasicProjector(
            gradients.shape[1], k, seed, ProjectionType(kind), "cpu", block_size=block, dtype=torch.float32
        )
        projected = projector.project(gradients, model_id=0)
        end = time.perf_counter()
        if out is not None:
            np.save(out, (projected / k**0.5).view(len(self.case.x), -1).numpy())
        return {"seconds": end - start, "gradients": middle - start, "projection": end - middle}


def scores(file: str, out: str, damping: float, dim: int = 0) -> dict[str, Any]:
    """TRAK's own scores (test, train), written to `out`, of fully connected networks with ReLU given as arrays.

    `file` (.npz) has x, y, x_test, y_test, the number of `networks`, and `{network}.weight{layer}`, `{network}.bias{layer}`.
    `dim=0`: without a projection. `damping` is TRAK's `lambda_reg`, of gradients over the square root of their length.
    """
    given = np.load(file, allow_pickle=False)
    train, test = ([torch.from_numpy(given[k]) for k in keys] for keys in (("x", "y"), ("x_test", "y_test")))
    networks_given = [_network(given, i) for i in range(int(given["networks"]))]
    length = sum(p.numel() for p in networks_given[0].parameters())
    began = time.perf_counter()
    projector = NoOpProjector(device="cpu") if dim == 0 else _gaussian(length, dim)
    with tempfile.TemporaryDirectory() as folder:
        traker = TRAKer(
            model=networks_given[0],
            task="image_classification",
            train_set_size=len(train[1]),
            save_dir=folder,
            device="cpu",
            projector=projector,
            use_half_precision=False,
            lambda_reg=damping,
            logging_level=50,
        )
        for i, network in enumerate(networks_given):
            traker.load_checkpoint(network.state_dict(), model_id=i)
            traker.featurize(train, num_samples=len(train[1]))
        traker.finalize_features()
        for i, network in enumerate(networks_given):
            traker.start_scoring_checkpoint("test", network.state_dict(), model_id=i, num_targets=len(test[1]))
            traker.score(test, num_samples=len(test[1]))
        found = np.array(traker.finalize_scores("test"))
    np.save(out, found.T.astype(np.float64))
    return {"seconds": time.perf_counter() - began}


def _gaussian(length: int, dim: int) -> BasicProjector:
    """In two blocks: TRAK forgets the matrix of a single one between training points and test items."""
    return BasicProjector(length, dim, 0, ProjectionType.normal, "cpu", block_size=-(-dim // 2), dtype=torch.float32)


def _network(given: Any, i: int) -> nn.Module:
    """Network i of the arrays."""
    layers: list[nn.Module] = []
    depth = sum(name.startswith(f"{i}.weight") for name in given.files)
    for layer in range(depth):
        weight, bias = (torch.from_numpy(given[f"{i}.{kind}{layer}"]) for kind in ("weight", "bias"))
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        with torch.no_grad():
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        layers += [linear, nn.ReLU()] if layer + 1 < depth else [linear]
    return nn.Sequential(*layers)


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    peer = Projection()
    serve({"load": peer.load, "project": peer.project, "scores": scores})
