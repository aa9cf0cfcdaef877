"""Random projections of every output's gradient: ours against TRAK's BasicProjector, same network, inputs and dimension.

Both times go from inputs to projected features. Both kernels of the features are held to the exact trace-NTK within the
statistical error of the dimension before the times count.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import ntkscope as ns
from benchmarks import networks
from benchmarks.machine import THREADS
from benchmarks.networks import relative_error
from benchmarks.outcome import Check, Outcome
from benchmarks.peers import Peer, PeerUnavailable
from benchmarks.timing import fewest, interleaved, ratio, wall

OURS, TRAK = "ntkscope proj-trntk", "TRAK BasicProjector"
BLOCKS = (100, 400, 1024)
STANDARD_ERRORS = 5.0  # of 1/√k, an upper bound of the relative error of the projected kernel


def run(quick: bool = False) -> Outcome:
    """LeNet, Rademacher projections; TRAK's block size is the best of three."""
    torch.set_num_threads(THREADS)
    n, dim = (8, 1024) if quick else (64, 10240)
    case = networks.case("lenet", n)
    exact = ns.kernel("trntk0", case.model, case.x).dense()

    def ours() -> ns.Gram:
        return ns.kernel("proj-trntk", case.model, case.x, dim=dim, kind="rademacher", normalize=False)

    def check(name: str, K: Tensor) -> float:
        error = relative_error(K, exact)
        if error > STANDARD_ERRORS / dim**0.5:
            raise PeerUnavailable(f"{name}: relative error {error:.2g}, expected ≤ {STANDARD_ERRORS / dim**0.5:.2g}")
        return error

    errors = {OURS: check(OURS, ours().dense())}
    timed, setting, details = {OURS: wall(ours)}, {OURS: "defaults"}, {}
    with tempfile.TemporaryDirectory() as scratch, Peer("trak") as peer:
        loaded = peer.ask("load", network="lenet", n=n)
        peer.ask("project", k=64, block=64, kind="rademacher")
        swept = {b: peer.ask("project", k=1024, block=b, kind="rademacher")["projection"] for b in BLOCKS}
        block, out = fewest(swept), Path(scratch) / "features.npy"
        first = peer.ask("project", k=dim, block=block, kind="rademacher", out=str(out))
        features = torch.from_numpy(np.load(out))
        errors[TRAK] = check(TRAK, features @ features.T)
        timed[TRAK] = peer.timed("project", k=dim, block=block, kind="rademacher")
        setting[TRAK] = f"block {block}, one call, gradients by vmap(jacrev)"
        details = {"swept": swept, "first": first, **loaded}
        seconds = interleaved(timed, rounds=1 if quick else 3)
    faster = ratio(seconds[TRAK], seconds[OURS])
    rows = [
        {
            "method": name,
            "setting": setting[name],
            "seconds": seconds[name],
            "ours is faster by": None if name == OURS else faster,
            "relative error of the kernel": f"{errors[name]:.1e}",
        }
        for name in seconds
    ]
    share = details["first"]["projection"] / details["first"]["seconds"]
    return Outcome(
        f"Projections to {dim:,} of {n} × 10 gradients, LeNet ({case.parameters:,} parameters), {THREADS} cores, float32",
        rows,
        [
            Check(
                "projections: faster than TRAK's BasicProjector",
                "> 1×",
                f"{faster}×",
                None if quick else faster.median > 1,
            )
        ],
        (f"TRAK's time is {share:.0%} projection, the rest gradients.",),
        {**details, "source": case.source},
    )
