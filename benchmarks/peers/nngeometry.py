"""nngeometry's Gram matrix; runs in its own environment, with our torch.

The library computes every pair of outputs. The trace needs only equal ones, so it is asked for one output at a time:
c small Gram matrices instead of c², the stronger peer.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from nngeometry.backend.torch_hooks import use_conv_impl_for_convs, use_unfold_impl_for_convs
from nngeometry.gram import GramMatrix
from nngeometry.layercollection import LayerCollection
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import networks
from benchmarks.peers import THREADS, serve

WAYS = {"convolution": use_conv_impl_for_convs, "unfold": use_unfold_impl_for_convs}


class Kernel:
    """One network and its inputs."""

    def load(self, network: str, n: int) -> dict[str, Any]:
        self.case = networks.case(network, n)
        with torch.no_grad():
            self.outputs = self.case.model(self.case.x[:1]).shape[1]
        return {"parameters": self.case.parameters, "versions": {"nngeometry": version("nngeometry")}}

    def trace(self, n: int, batch: int) -> Tensor:
        model, x = self.case.model, self.case.x[:n]
        loader = DataLoader(TensorDataset(x.clone()), batch_size=min(batch, n))
        layers = LayerCollection.from_model(model)
        K = x.new_zeros(n, n)
        for output in range(self.outputs):

            def one(*batch: Tensor, output: int = output) -> Tensor:
                return model(batch[0])[:, output : output + 1]

            K += GramMatrix(model, loader, function=one, layer_collection=layers).to_torch()[0, :, 0, :]
        return K

    def kernel(self, n: int, batch: int, way: str, out: str | None = None) -> dict[str, Any]:
        """The trace-NTK of the first `n` inputs, `batch` at a time; written to `out` if given.

        `way` is how the library forms a convolution's per-sample gradients.
        """
        start = time.perf_counter()
        with WAYS[way]():
            K = self.trace(n, batch)
        seconds = time.perf_counter() - start
        if out is not None:
            np.save(out, K.detach().numpy())
        return {"seconds": seconds}


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    peer = Kernel()
    serve({"load": peer.load, "kernel": peer.kernel})
