"""The way back: all steps of a training, last first, a group of functions at a time; resumed where it was killed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import NumericalError, Params, Snapshot
from ntkscope.core.progress import Progress
from ntkscope.core.sizes import over_budget
from ntkscope.training.replays.adjoint import Adjoint, pull
from ntkscope.training.replays.loop import state_bytes
from ntkscope.training.replays.products import Products
from ntkscope.training.replays.states import States
from ntkscope.training.snapshots import load_snapshot, save_snapshot

CHECKS = 8  # steps at which one adjoint is pulled back in a plain way too
AT_ONCE = 64  # adjoints that share a pass, where memory allows
PASSES = 6  # states' worth of memory that an adjoint and its products take


@dataclass(frozen=True)
class Derivatives:
    """Of k functions of the end, with respect to the initial parameters, item weights, the rate of every step and the decay."""

    initial: Params
    weights: Float[Tensor, "k n"]
    rate: Float[Tensor, "k t"]
    decay: Float[Tensor, " k"]


def way_back(
    states: States, end: Params, memory: int, folder: Path | None, identity: str, bar: Progress[int]
) -> tuple[Derivatives, Products]:
    """The derivatives of the functions whose gradients at the end are `end`, (k, …) each, and what pulled them back."""
    k, each = len(next(iter(end.values()))), PASSES * state_bytes(states.last)
    if memory // 2 < each:
        raise over_budget(memory, 2 * each, "for one adjoint and its products")
    together = min(k, AT_ONCE, memory // 2 // max(1, each))
    products = Products(states.loop, together)
    groups = [slice(start, min(start + together, k)) for start in range(0, k, together)]
    derivatives = [_group(states, products, end, rows, folder, identity, bar) for rows in groups]
    initial = {name: torch.cat([one.initial[name] for one in derivatives]) for name in end}
    return Derivatives(
        initial, *(torch.cat([getattr(one, name) for one in derivatives]) for name in ("weights", "rate", "decay"))
    ), products


def _group(
    states: States,
    products: Products,
    end: Params,
    rows: slice,
    folder: Path | None,
    identity: str,
    bar: Progress[int],
) -> Derivatives:
    loop, k, some = states.loop, rows.stop - rows.start, next(iter(end.values()))
    sums = {
        name: torch.zeros(k, *shape, dtype=some.dtype, device=some.device)
        for name, shape in (("weights", (loop.items,)), ("rate", (loop.steps,)), ("decay", ()))
    }
    adjoint, until = Adjoint({name: value[rows].clone() for name, value in end.items()}), loop.steps
    path = None if folder is None else folder / f"adjoint-{rows.start:06d}-{rows.stop:06d}.safetensors"
    if path is not None and path.exists():
        kept = load_snapshot(path, store=identity).to(loop.device)
        until, sums, adjoint = kept.step, dict(kept.buffers), Adjoint(dict(kept.params), _flat(kept))
        products.way, products.reason = kept.random["way"]
        products.checks = [tuple(check) for check in kept.random["checks"]]
        bar.skip(loop.steps - until)
    checked = {round(i * (loop.steps - 1) / (CHECKS - 1)) for i in range(CHECKS)} if not rows.start else set()
    after = states.at(until)
    for state in states.backwards(until):
        pulled = pull(loop, products, state, after, adjoint, states.weights, state.step in checked)
        adjoint, after = pulled.before, state
        sums["weights"].index_add_(1, loop.batch(state.step)[0], pulled.weights)
        sums["rate"][:, state.step] = pulled.rate
        sums["decay"] += pulled.decay
        bar.advance()
        if path is not None and state.step % states.stride == 0:
            save_snapshot(_snapshot(state.step, adjoint, sums, products), path, store=identity)
    if not all(bool(torch.isfinite(value).all()) for value in (*sums.values(), *adjoint.params.values())):
        raise NumericalError(
            "the derivative overflowed on its way back to step 0; expected a smaller learning rate, or float64"
        )
    return Derivatives(adjoint.params, **sums)


def _snapshot(step: int, adjoint: Adjoint, sums: Params, products: Products) -> Snapshot:
    """An adjoint in the form of the state it belongs to, so that it is written and read as one."""
    moments: dict[str, dict[str, Tensor]] = {}
    for key, value in adjoint.moments.items():
        name, _, moment = key.rpartition("/")
        moments.setdefault(name, {})[moment] = value
    told = {"way": [products.way, products.reason], "checks": products.checks}
    return Snapshot(step, 0.0, adjoint.params, sums, optimizer=moments, random=told)


def _flat(kept: Snapshot) -> Params:
    return {f"{name}/{key}": value for name, one in kept.optimizer.items() for key, value in one.items()}
