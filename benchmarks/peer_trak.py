"""TRAK's BasicProjector on per-output gradients; runs in its own environment, with our torch.

The gradients come from `vmap(jacrev)`, as in TRAK's own functional gradient computer. All gradients go to the projector in
one call, so that each block of the random matrix is drawn once: the best it can do.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor
from trak.projectors import BasicProjector, ProjectionType

from benchmarks import networks
from benchmarks.peer_vmap import jacobians
from benchmarks.peers import THREADS, serve


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


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    peer = Projection()
    serve({"load": peer.load, "project": peer.project})
