"""Our trace-NTK in a process of its own."""

from __future__ import annotations

import time
from typing import Any

import torch

import ntkscope as ns
from benchmarks import machine, networks
from benchmarks.peers import THREADS, serve


class Kernel:
    """One network and its inputs."""

    def load(self, network: str, n: int) -> dict[str, Any]:
        self.case = networks.case(network, n)
        return {"parameters": self.case.parameters}

    def kernel(self, n: int, memory: str, runs: int = 1) -> dict[str, Any]:
        """Seconds of the trace-NTK of the first `n` inputs, formed: the mean of `runs` runs."""
        start = time.perf_counter()
        for _ in range(runs):
            ns.kernel("trntk0", self.case.model, self.case.x[:n], memory=memory).dense()
        return {"seconds": (time.perf_counter() - start) / runs}


if __name__ == "__main__":
    machine.keep_to_cores()
    torch.set_num_threads(THREADS)
    peer = Kernel()
    serve({"load": peer.load, "kernel": peer.kernel})
