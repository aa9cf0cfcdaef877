"""A grid of rates times seeds in one call against a loop: 100 ReLU networks 7-128-128-128-1, batches of 32, Adam.

Every network has a learning rate, a weight decay and a batch order of its own. Both sides build their networks, do all steps
and are timed whole, in interleaved rounds on the same cores. On a CUDA device the figure is the time of a step of all networks.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.outcome import Check, Outcome
from benchmarks.timing import interleaved, ratio, wall
from ntkscope import models
from ntkscope.core import Part, generator
from ntkscope.training import fit_ensemble
from ntkscope.training.batches import BatchOrder

RATES, DECAYS, BATCH = (1e-4, 1e-3, 1e-2), (0.0, 1e-4, 1e-3, 1e-2), 32
# AGREE in float64: in float32 rounding moves three of the 100 networks by 3e-4 to 1e-1 in 64 steps, the loop's as well as ours
TARGET, CUDA_TARGET, AGREE = 3.0, 0.5, 1e-9


def build(seed: int) -> nn.Module:
    """The network of the task, in the present default dtype."""
    made = models.build("mlp", in_features=7, classes=1, widths=128, depth=3, activation="relu", seed=seed)
    return made.to(torch.get_default_dtype())


def task(items: int = 25_400) -> Part:
    """Inside or outside of a sphere in seven dimensions, as many items as 127 orthants of 200."""
    x = torch.randn(items, 7, generator=generator(0, "grid"))
    return Part(x, (x.norm(dim=1) > 2.5).float())


def grid(members: int) -> tuple[list[float], list[float]]:
    """Rates and decays of the members: the grid, again and again."""
    points = list(itertools.islice(itertools.cycle(itertools.product(RATES, DECAYS)), members))
    return [lr for lr, _ in points], [decay for _, decay in points]


def together(part: Part, members: int, steps: int, device: str = "cpu") -> Tensor:
    """All networks in one call; their outputs on a few items, (members, 64, 1)."""
    lr, decay = grid(members)
    settings: dict[str, Any] = {
        "optimizer": "adam",
        "loss": "bce",
        "batch_size": BATCH,
        "steps": steps,
        "device": device,
    }
    return fit_ensemble(build, part, seeds=members, lr=lr, weight_decay=decay, **settings)(part.x[:64].to(device))


def loop(part: Part, members: int, steps: int) -> Tensor:
    """One after the other, as anybody would train them, on the same batches."""
    outputs, (lr, decay) = [], grid(members)
    for seed in range(members):
        model, order = build(seed), BatchOrder(len(part), BATCH, seed)
        optimizer = torch.optim.Adam(model.parameters(), lr=lr[seed], weight_decay=decay[seed])
        for step in range(steps):
            if step % order.per_epoch == 0:
                permutation = order.permutation(step // order.per_epoch)
            items = permutation[order.place(step)]
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(model(part.x[items])[:, 0], part.y[items]).backward()
            optimizer.step()
        with torch.no_grad():
            outputs.append(model(part.x[:64]))
    return torch.stack(outputs)


def apart(part: Part, members: int, steps: int) -> float:
    """The largest difference between outputs of networks that were trained together and one by one, in float64."""
    torch.set_default_dtype(torch.float64)
    try:
        wide = Part(part.x.double(), part.y.double())
        return float((together(wide, members, steps) - loop(wide, members, steps)).abs().max())
    finally:
        torch.set_default_dtype(torch.float32)


def cuda_step(part: Part, members: int, steps: int) -> float:
    """Milliseconds of a step of all networks: what `steps` more of them take."""

    def seconds(count: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        together(part, members, count, "cuda")
        torch.cuda.synchronize()
        return time.perf_counter() - start

    seconds(50)
    return 1e3 * (seconds(200 + steps) - seconds(200)) / steps


def run(quick: bool = False) -> Outcome:
    """Time both, and compare what they trained."""
    members, steps, rounds = (6, 4, 1) if quick else (100, 64, 5)
    part = task(320 if quick else 25_400)
    difference = apart(part, members, steps)
    spread = interleaved(
        {
            "together": wall(lambda: together(part, members, steps)),
            "one by one": wall(lambda: loop(part, members, steps)),
        },
        rounds=rounds,
    )
    faster = ratio(spread["one by one"], spread["together"])
    work = members * steps / 1e3
    rows = [
        {
            "networks": members,
            "steps": steps,
            "together, s": str(spread["together"]),
            "one by one, s": str(spread["one by one"]),
            "ms per network and step": f"{spread['together'].median / work:.3g} against"
            f" {spread['one by one'].median / work:.3g}",
            "times faster": str(faster),
            "largest difference": f"{difference:.1e}",
        }
    ]
    step = cuda_step(part, members, 20 if quick else 2000) if torch.cuda.is_available() else None
    checks = [
        Check("in one call against one by one", f"at least {TARGET:g} times", str(faster), faster.median >= TARGET),
        Check(
            f"same outputs after {steps} steps, float64", f"within {AGREE:g}", f"{difference:.1e}", difference <= AGREE
        ),
        Check(
            f"a step of {members} networks on a CUDA device",
            f"at most {CUDA_TARGET:g} ms",
            "no such device" if step is None else f"{step:.3g} ms",
            None if step is None else step <= CUDA_TARGET,
        ),
    ]
    return Outcome(
        title="A grid of rates times seeds: one call against a loop",
        rows=rows,
        checks=checks,
        notes=(
            "One by one is a plain loop with torch.optim.Adam as it comes and PyTorch's default number of threads.",
            "Building the networks and, in one call, checking every member against its own network count on both sides.",
        ),
        details={"seconds": spread, "ratio": faster, "threads": torch.get_num_threads(), "cuda step, ms": step},
    )
