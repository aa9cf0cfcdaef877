"""100 networks in one vectorised call against the loop anybody would write: one after the other, on the same cores.

The task is the 1-D regression of Qadeer et al. (PNNL report, 2023): three hidden layers of 128, tanh, 200 points,
2,400 full-batch Adam steps at 1e-3. Both sides do all the work once. It is cut into rounds: a tenth of the steps of
all networks together, then all the steps of a tenth of the networks one by one, so that a slow minute hits both alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.outcome import Check, Outcome
from benchmarks.timing import Spread, ratio
from ntkscope import models
from ntkscope.core import Part, Snapshot
from ntkscope.training import Every, fit_ensemble

LR, AGREE_STEPS, AGREE, TARGET = 1e-3, 100, 1e-4, 4.0


def build(seed: int) -> nn.Module:
    """The network of the task."""
    return models.build("mlp", in_features=1, widths=128, depth=3, activation="tanh", seed=seed)


def task(points: int = 200) -> Part:
    """exp(sin 2πx) on an equispaced grid of [-1, 1]."""
    x = torch.linspace(-1, 1, points)[:, None]
    return Part(x, torch.exp(torch.sin(2 * torch.pi * x)))


def alone(seed: int, part: Part, steps: int) -> nn.Module:
    """One network, as anybody would train it."""
    model, x, y = build(seed), part.x, part.y
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return model


def together(
    part: Part, members: int, steps: int, *, fast: bool, every: int = 0, on: Callable[[Snapshot], None] | None = None
) -> Tensor:
    """All networks in one call; their outputs, (members, points, 1)."""
    ensemble = fit_ensemble(
        build,
        part,
        seeds=members,
        optimizer="adam",
        lr=LR,
        loss="mse",
        steps=steps,
        fast=fast,
        snapshots=Every(every) if every else "final",
        on_snapshot=on,
    )
    return ensemble(part.x)


def rounds_of(part: Part, members: int, steps: int, rounds: int, fast: bool) -> tuple[Spread, Spread, int]:
    """Seconds of each round: together, one after the other; and the threads the second had."""
    ours: list[float] = []
    theirs: list[float] = []
    started = 0.0
    threads = 0

    def lap(snapshot: Snapshot) -> None:
        nonlocal started, threads
        now = time.perf_counter()
        if snapshot.step:
            ours.append(now - started)
            first = len(theirs) * members // rounds
            now = time.perf_counter()
            threads = torch.get_num_threads()
            for seed in range(first, first + members // rounds):
                alone(seed, part, steps)
            theirs.append(time.perf_counter() - now)
            print(f"  round {len(ours)}/{rounds}: together {ours[-1]:.3g} s, one by one {theirs[-1]:.3g} s", flush=True)
        started = time.perf_counter()

    together(part, members, steps, fast=fast, every=steps // rounds, on=lap)
    return Spread(tuple(ours)), Spread(tuple(theirs)), threads


def run(quick: bool = False) -> Outcome:
    """Time both, and compare what they trained after 100 steps."""
    members, steps, rounds = (20, 40, 2) if quick else (100, 2400, 10)
    part = task()
    agree = 20 if quick else AGREE_STEPS
    expected = torch.stack([alone(seed, part, agree)(part.x) for seed in range(3)]).detach()
    rows, checks, details = [], [], {}
    for fast, share in ((False, 0.1), (True, 1.0)):
        found = together(part, 3, agree, fast=fast)
        difference = (found - expected).abs().max().item()
        counted = max(rounds * int(steps * share / rounds), rounds)
        ours, theirs, threads = rounds_of(part, members, counted, rounds, fast)
        times = ratio(theirs, ours)
        name = "2σ(2x) - 1" if fast else "PyTorch's tanh"
        work = members * counted
        rows.append(
            {
                "tanh as": name,
                "networks": members,
                "steps": counted,
                "together, s": f"{sum(ours.values):.4g}",
                "one by one, s": f"{sum(theirs.values):.4g}",
                "ms a network and step": f"{1e3 * sum(ours.values) / work:.3g} against {1e3 * sum(theirs.values) / work:.3g}",
                "times faster": str(times),
                f"largest difference after {agree} steps": f"{difference:.1e}",
            }
        )
        details[name] = {"together": ours, "one by one": theirs, "ratio": times, "threads": threads}
        if fast:
            checks.append(
                Check(
                    "100 networks at once against one by one",
                    f"at least {TARGET:g} times",
                    str(times),
                    times.median >= TARGET,
                )
            )
        checks.append(
            Check(
                f"same outputs after {agree} steps ({name})",
                f"within {AGREE:g}",
                f"{difference:.1e}",
                difference <= AGREE,
            )
        )
    return Outcome(
        title="Ensembles: one vectorised call against a loop",
        rows=rows,
        checks=checks,
        notes=(
            "One by one is a plain loop with torch.optim.Adam as it comes and PyTorch's default number of threads.",
            "What bounds the call is matrix products (two thirds of its time here): the loop pays the same products,"
            " plus Python, plus a wait for the other core at every operation.",
            "The row with PyTorch's own tanh does a tenth of the steps; the other row does all of them.",
        ),
        details=details,
    )
