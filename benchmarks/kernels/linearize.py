"""A training step of the linearised LeNet against one of LeNet itself: batch 32, SGD with momentum, mean squared error.

Forward, a linearised network computes its outputs and how they move (three products per layer where the network has one);
backward, both have two. So 5/3 is the floor of the ratio, whatever the number of outputs. Beside ours: `vmap(jacrev)`, which
forms the Jacobian of the batch, and neural-tangents' `linearize`, compiled. Before anything is timed, outputs after a few steps
are compared. On a CUDA device: milliseconds per step, eager and captured as a CUDA graph.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

import ntkscope as ns
from benchmarks import networks
from benchmarks.machine import THREADS
from benchmarks.networks import Case
from benchmarks.outcome import Check, Outcome
from benchmarks.peers import Peer, PeerUnavailable
from benchmarks.timing import Spread, Timed, interleaved, ratio, wall

NETWORK, OURS, JACOBIAN, NEURAL_TANGENTS = "LeNet", "LinLeNet (ntkscope)", "vmap(jacrev)", "neural-tangents linearize"
BATCH, RATE, MOMENTUM = 32, 1e-3, 0.9
OUTPUTS = (10, 100, 1000)
COMPARED = 100  # outputs at which vmap(jacrev) runs
RATIO, SLOWER, AGREE = 2.2, 10.0, 1e-4
Step = Callable[[], None]


def case(outputs: int, device: str = "cpu") -> tuple[nn.Module, Tensor, Tensor]:
    """LeNet, a batch of inputs and targets."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(BATCH, 1, 28, 28, generator=draw), torch.randn(BATCH, outputs, generator=draw)
    return ns.models.build("lenet", classes=outputs).to(device), x.to(device), y.to(device)


def trained(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """One step of SGD on whatever module."""
    rule = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)

    def step() -> None:
        rule.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        rule.step()

    return step


class ByJacobian:
    """The linearised network as one would write it with `torch.func`: Eq. 3, the Jacobian of the batch formed at every step."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y
        self.start = {name: p.detach() for name, p in model.named_parameters()}
        self.u = {name: torch.zeros_like(p) for name, p in self.start.items()}
        self.speed = {name: torch.zeros_like(p) for name, p in self.start.items()}

        def one(params: dict[str, Tensor], item: Tensor) -> tuple[Tensor, Tensor]:
            outputs = functional_call(model, params, (item[None],))[0]
            return outputs, outputs

        self.rows = vmap(jacrev(one, has_aux=True), (None, 0))

    def outputs(self) -> tuple[Tensor, dict[str, Tensor]]:
        rows, start = self.rows(self.start, self.x)
        moved = sum(j.flatten(2) @ self.u[name].flatten() for name, j in rows.items())
        return start + moved, rows

    def step(self) -> None:
        outputs, rows = self.outputs()
        residual = 2 * (outputs - self.y) / self.y.numel()
        for name, j in rows.items():
            self.speed[name] = MOMENTUM * self.speed[name] + torch.einsum("nc,nc...->...", residual, j)
            self.u[name] = self.u[name] - RATE * self.speed[name]


def agreement(outputs: int, steps: int = 5) -> float:
    """How far our outputs are from those by explicit Jacobians after a few steps, relative to them."""
    model, x, y = case(outputs)
    linear, explicit = ns.linearize(model), ByJacobian(model, x, y)
    ours = trained(linear, x, y)
    for _ in range(steps):
        ours()
        explicit.step()
    with torch.no_grad():
        expected = explicit.outputs()[0]
        return float((linear(x) - expected).norm() / expected.norm())


def candidates(outputs: int, runs: int, peer: Peer | None, folder: Path) -> dict[str, Timed]:
    """What is timed at this number of outputs; every candidate has run once."""
    model, x, y = case(outputs)
    steps: dict[str, Step] = {NETWORK: trained(case(outputs)[0], x, y), OURS: trained(ns.linearize(model), x, y)}
    if outputs == COMPARED:
        steps[JACOBIAN] = ByJacobian(model, x, y).step
    for step in steps.values():
        step()
    timed = {name: wall(step, runs=max(1, runs // 10) if name == JACOBIAN else runs) for name, step in steps.items()}
    if peer is not None:
        timed[NEURAL_TANGENTS] = enter_neural_tangents(peer, Case("lenet", model, x, "random"), y, runs, folder)
    return timed


def enter_neural_tangents(peer: Peer, network: Case, y: Tensor, runs: int, folder: Path) -> Timed:
    """The library's own linearisation of the equivalent JAX network."""
    networks.save(network, folder / "case.npz")
    np.save(folder / "targets.npy", y.numpy())
    loaded = peer.ask("load", network="lenet", path=str(folder / "case.npz"))
    if loaded["error"] > AGREE:
        raise PeerUnavailable(f"the JAX LeNet gives other outputs: relative error {loaded['error']:.2g}")
    files = {"targets": str(folder / "targets.npy"), "outputs": str(folder / "outputs.npy")}
    peer.ask("linear_step", steps=1, **files)
    found = torch.from_numpy(np.load(folder / "outputs.npy"))
    with torch.no_grad():
        expected = network.model(network.x)
    error = float((found - expected).norm() / expected.norm())
    if error > AGREE:
        raise PeerUnavailable(f"its linearised network gives other outputs at the start: relative error {error:.2g}")
    return peer.timed("linear_step", steps=runs, **files)


def on_cuda(outputs: int, runs: int) -> dict[str, Any]:
    """Milliseconds per step on the device, eager and captured."""
    model, x, y = case(outputs, "cuda")
    found: dict[str, Any] = {"outputs": outputs, "device": torch.cuda.get_device_name()}
    for name, module in ((NETWORK, model), (OURS, ns.linearize(model))):
        step = trained(module, x, y)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # warm-up, as captures ask for
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        found[f"{name} eager, ms"] = milliseconds(step, runs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        found[f"{name} captured, ms"] = milliseconds(graph.replay, 10 * runs)
    found["captured ratio"] = found[f"{OURS} captured, ms"] / found[f"{NETWORK} captured, ms"]
    return found


def milliseconds(step: Step, runs: int) -> float:
    """Per step, the smallest of five measurements."""
    seen = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(runs):
            step()
        end.record()
        torch.cuda.synchronize()
        seen.append(begin.elapsed_time(end) / runs)
    return min(seen)


def run(quick: bool = False) -> Outcome:
    """Every number of outputs, interleaved rounds."""
    torch.set_num_threads(THREADS)
    rounds, runs = (1, 2) if quick else (9, 60)
    error = agreement(10)
    notes = [f"outputs after five steps are within {error:.1e} of those by explicit Jacobians"]
    if not error <= AGREE:
        raise ArithmeticError(f"our outputs are {error:.2g} off those by explicit Jacobians; expected ≤ {AGREE:g}")
    peer: Peer | None = None
    if not quick:
        try:
            peer = Peer("neural-tangents")
        except PeerUnavailable as why:
            notes.append(f"neural-tangents was not measured: {why}")
    seconds: dict[int, dict[str, Spread]] = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            for outputs in OUTPUTS:
                print(f"  {outputs} outputs", flush=True)
                try:
                    timed = candidates(outputs, runs, peer, Path(folder))
                except PeerUnavailable as why:
                    notes.append(f"neural-tangents at {outputs} outputs was not measured: {why}")
                    timed = candidates(outputs, runs, None, Path(folder))
                seconds[outputs] = interleaved(timed, rounds=rounds)
    finally:
        if peer is not None:
            peer.close()
    return outcome(seconds, notes, quick)


def outcome(seconds: dict[int, dict[str, Spread]], notes: list[str], quick: bool) -> Outcome:
    """The table and what is promised of it."""
    rows, checks = [], []
    for outputs, spreads in seconds.items():
        for name, spread in spreads.items():
            times = Spread(tuple(1e3 * s for s in spread.values))
            rows.append({"outputs": outputs, "step": name, "ms": times, "× LeNet": ratio(spread, spreads[NETWORK])})
        steps = ratio(spreads[OURS], spreads[NETWORK])
        checks.append(
            Check(
                f"a step of LinLeNet, {outputs} outputs",
                f"≤ {RATIO} × LeNet's",
                str(steps),
                _holds(steps.median <= RATIO, quick),
            )
        )
    if JACOBIAN in seconds.get(COMPARED, {}):
        slower = ratio(seconds[COMPARED][JACOBIAN], seconds[COMPARED][OURS])
        checks.append(
            Check(
                f"vmap(jacrev), {COMPARED} outputs",
                f"≥ {SLOWER:g} × ours",
                str(slower),
                _holds(slower.median >= SLOWER, quick),
            )
        )
    details: dict[str, Any] = {
        "batch": BATCH,
        "device": [on_cuda(k, 20 if quick else 200) for k in OUTPUTS] if torch.cuda.is_available() else [],
    }
    notes = notes + [", ".join(f"{key} {_cell(value)}" for key, value in row.items()) for row in details["device"]]
    return Outcome("Steps of a linearised network (LeNet, batch 32)", rows, checks, notes, details)


def _holds(fulfilled: bool, quick: bool) -> bool | None:
    """One round of two steps proves nothing."""
    return None if quick else fulfilled


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
