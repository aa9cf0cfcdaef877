"""The exact trace-NTK on two cores: ours against torch.func, neural-tangents and nngeometry, same network and inputs.

Before a peer is timed its whole kernel is compared with ours, and ours with a naive float64 one on the first inputs.
Every peer gets its best chunk or tile from a short sweep, float32, the same cores, and its compilation for free. Ours and
the libraries each run in a process of their own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import ntkscope as ns
from benchmarks import networks
from benchmarks.machine import THREADS
from benchmarks.networks import Case, relative_error
from benchmarks.outcome import Check, Outcome
from benchmarks.peers import Peer, PeerUnavailable
from benchmarks.peers import vmap as peer_vmap
from benchmarks.timing import Spread, Timed, fewest, interleaved, ratio, still_improving, wall

OURS = "ntkscope"
TORCH = "vmap(jacrev), as in the tutorial"
TRIANGLE = "vmap(jacrev), upper triangle only"
NEURAL_TANGENTS = "neural-tangents"
NNGEOMETRY = "nngeometry"

ORACLE_INPUTS = 12
OURS_TOLERANCE = 1e-5  # of the float64 value: what the float32 default promises
PEER_TOLERANCE = 1e-4  # float32 both sides
TORCH_TOLERANCE = 2e-3  # one float32 product over c·p numbers: 7e-4 off the float64 value at 9 million of them

TARGETS = {
    ("lenet", TORCH): 15.0,
    ("lenet", NEURAL_TANGENTS): 50.0,
    ("mlp", TORCH): 60.0,
    ("resnet20", TORCH): 5.0,
}
CHUNKS = (16, 32, 64, 128, 256)
TILES = (16, 32, 64, 128, 256, 512)
HELD_BYTES = 12 * 2**30  # the Jacobians of MLP 784-512-512-512-10 on 256 inputs take 8.9 GiB
LONGEST = 400.0  # seconds a repeat of a peer may take at full size; else it is compared on fewer inputs
SLOW = 60.0  # above this a peer runs in two rounds of its own, with ours beside it
MEMORY = "8GiB"  # for ours; the Jacobians of torch.func are allowed more


@dataclass
class Bout:
    """The candidates that run interleaved on the first `n` inputs of a case, and what was learned choosing them."""

    case: Case
    n: int
    own: Peer | None  # the process ours runs in
    timed: dict[str, Timed] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    rounds: int | None = None  # fewer than the others, for a slow peer

    @property
    def x(self) -> Tensor:
        return self.case.x[: self.n]

    def enter(self, name: str, timed: Timed, K: Tensor, reference: Tensor, tolerance: float, setting: str) -> None:
        """Admit a candidate whose kernel agrees."""
        error = relative_error(K, reference)
        if not error <= tolerance:
            raise PeerUnavailable(f"{name} on {self.case.name}: relative error {error:.2g}, expected ≤ {tolerance:g}")
        self.timed[name], self.errors[name], self.settings[name] = timed, error, setting


def ours(case: Case, n: int) -> Callable[[], Tensor]:
    """Our kernel of the first `n` inputs, formed."""
    return lambda: ns.kernel("trntk0", case.model, case.x[:n], memory=MEMORY).dense()


def enter_ours(bout: Bout, say: Callable[[str], None]) -> Tensor:
    """Ours, held to the naive float64 kernel on the first inputs; timed three runs at a time, being short."""
    K = ours(bout.case, bout.n)()
    asked: dict[str, Any] = {"n": bout.n, "memory": MEMORY}
    assert bout.own is not None
    bout.own.ask("kernel", **asked)
    k = min(ORACLE_INPUTS, bout.n)
    reference = networks.oracle_trace_ntk(bout.case.model, bout.x[:k])
    timed = bout.own.timed("kernel", **asked, runs=3)
    bout.enter(OURS, timed, K[:k, :k], reference, OURS_TOLERANCE, f"memory {MEMORY}")
    say(f"  ours: relative error {bout.errors[OURS]:.1e} against float64")
    return K


def on_fewer(bout: Bout, n: int, say: Callable[[str], None]) -> Bout:
    """`bout` itself, or one of its first `n` inputs with ours in it, for a peer that would take too long on all."""
    if n == bout.n:
        return bout
    here = Bout(bout.case, n, bout.own)
    enter_ours(here, say)
    return here


def enter_torch(bout: Bout, K: Tensor, say: Callable[[str], None]) -> None:
    """Both of the tutorial's methods; NTK-vector products only if they win where they look best, on few inputs."""
    model, x, n = bout.case.model, bout.x, bout.n
    predicted = peer_vmap.sweep(model, x, CHUNKS, held_bytes=HELD_BYTES)
    chunk = fewest(predicted)
    few = x[: min(8, n)]
    peer_vmap.vector_products(model, few[:2])
    pairs = wall(lambda: peer_vmap.vector_products(model, few))()
    contraction = wall(lambda: peer_vmap.jacobian_contraction(model, few, chunk=len(few)))()
    bout.details["vmap"] = {
        "predicted_seconds_by_chunk": predicted,
        f"seconds_on_{len(few)}_inputs": {"ntk-vector products": pairs, "jacobian contraction": contraction},
    }
    say(
        f"  vmap(jacrev): chunk {chunk}, about {predicted[chunk]:.3g} s; vector products {pairs / contraction:.2g}× that"
    )
    if pairs < contraction:  # its cost a pair is constant, the other's falls with n: slower here is slower everywhere
        products = partial(peer_vmap.vector_products, model, x)
        bout.enter(TORCH, wall(products), products(), K, TORCH_TOLERANCE, "NTK-vector products")
        return
    for name, triangle in ((TORCH, False), (TRIANGLE, True)):
        kernel = partial(peer_vmap.jacobian_contraction, model, x, chunk=chunk, triangle=triangle)
        bout.enter(name, wall(kernel), kernel(), K, TORCH_TOLERANCE, f"jacobian contraction, chunk {chunk}")


def enter_neural_tangents(bout: Bout, peer: Peer, folder: Path, K: Tensor, say: Callable[[str], None]) -> Bout:
    """The best of the library's three methods and of tile sizes, larger ones as long as they help."""
    networks.save(Case(bout.case.name, bout.case.model, bout.x, bout.case.source), folder / "case.npz")
    loaded = peer.ask("load", network=bout.case.name, path=str(folder / "case.npz"))
    if loaded["error"] > 1e-5:
        raise PeerUnavailable(f"the JAX {bout.case.name} gives other outputs: relative error {loaded['error']:.2g}")
    best, predicted = ("", 0), float("inf")
    swept: dict[str, dict[int, Any]] = {}
    for method in ("structured derivatives", "jacobian contraction", "ntk-vector products"):
        history: list[float] = []
        for tile in [t for t in TILES if t <= bout.n] or [bout.n]:
            seen = peer.ask("tile", method=method, tile=tile)
            swept.setdefault(method, {})[tile] = seen
            history.append(seen["predicted"])
            if seen["predicted"] < predicted:
                best, predicted = (method, tile), seen["predicted"]
            if not still_improving(history) or history[-1] > 3 * predicted or seen["tile"] > 20:
                break
    method, tile = best
    bout.details["neural-tangents"] = {"versions": loaded["versions"], "swept": swept}
    n = bout.n
    while predicted > LONGEST and n > tile:
        n, predicted = max(tile, n // 2), predicted / 4
    here = on_fewer(bout, n, say)
    say(f"  neural-tangents: {method}, tile {tile}, about {predicted:.3g} s for {n} inputs")
    check = n
    if predicted > SLOW:
        here = Bout(bout.case, n, bout.own, rounds=2)
        enter_ours(here, say)
        check = min(n, max(tile, 128))  # its agreement is looked at on fewer inputs, its time on all
    peer.ask("kernel", method=method, tile=tile, n=check, out=str(folder / "K.npy"))
    theirs = torch.from_numpy(np.load(folder / "K.npy"))
    timed = peer.timed("kernel", method=method, tile=tile, n=n)
    here.enter(NEURAL_TANGENTS, timed, theirs, K[:check, :check], PEER_TOLERANCE, f"{method}, tile {tile}")
    return here


def enter_nngeometry(bout: Bout, peer: Peer, folder: Path, K: Tensor, say: Callable[[str], None]) -> Bout:
    """The library's Gram matrix, all inputs in one batch, by the better of its two convolution gradients."""
    n = min(bout.n, 16)
    peer.ask("load", network=bout.case.name, n=bout.n)
    peer.ask("kernel", n=2, batch=2, way="unfold")
    ways = {way: peer.ask("kernel", n=n, batch=n, way=way)["seconds"] for way in ("unfold", "convolution")}
    way = min(ways, key=lambda w: ways[w])
    seconds = ways[way]
    while n < bout.n and seconds * (min(2 * n, bout.n) / n) ** 2 < SLOW:
        n = min(2 * n, bout.n)
        seconds = peer.ask("kernel", n=n, batch=n, way=way)["seconds"]
    peer.ask("kernel", n=n, batch=n, way=way, out=str(folder / "K.npy"))
    theirs = torch.from_numpy(np.load(folder / "K.npy"))
    here = on_fewer(bout, n, say)
    say(f"  nngeometry: {way}, about {seconds:.3g} s for {n} inputs")
    here.enter(
        NNGEOMETRY,
        peer.timed("kernel", n=n, batch=n, way=way),
        theirs,
        K[:n, :n],
        PEER_TOLERANCE,
        f"one output at a time, batch {n}, {way}",
    )
    return here


def rows_of(bout: Bout, seconds: dict[str, Spread]) -> list[dict[str, Any]]:
    rows = []
    for name, spread in seconds.items():
        rows.append(
            {
                "network": bout.case.name,
                "inputs": bout.n,
                "method": name,
                "setting": bout.settings[name],
                "seconds": spread,
                "ours is faster by": None if name == OURS else ratio(spread, seconds[OURS]),
                "relative error": f"{bout.errors[name]:.0e}",
            }
        )
    return rows


LIBRARIES = {NEURAL_TANGENTS: enter_neural_tangents, NNGEOMETRY: enter_nngeometry}


def compare(
    name: str, n: int, *, rounds: int, libraries: Sequence[str] = tuple(LIBRARIES), say: Callable[[str], None] = print
) -> dict[str, Any]:
    """One network: rows, ratios by method, details, and what could not be run and why."""
    case = networks.case(name, n)
    say(f"{name}: {n} inputs ({case.source}), {case.parameters:,} parameters")
    missing: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    ratios: dict[str, tuple[Spread, int]] = {}
    with ExitStack() as stack:
        own = stack.enter_context(Peer(OURS))
        own.ask("load", network=name, n=n)
        bout = Bout(case, n, own)
        folder, bouts = Path(stack.enter_context(tempfile.TemporaryDirectory())), [bout]
        K = enter_ours(bout, say)
        enter_torch(bout, K, say)
        for library in libraries:
            try:
                here = LIBRARIES[library](bout, stack.enter_context(Peer(library)), folder, K, say)
                bouts += [] if here is bout else [here]
            except PeerUnavailable as reason:
                missing[library] = str(reason)
                say(f"  {library}: {reason}")
        for each in bouts:
            seconds = interleaved(each.timed, rounds=min(rounds, each.rounds or rounds), say=say)
            rows += rows_of(each, seconds)
            ratios |= {method: (ratio(s, seconds[OURS]), each.n) for method, s in seconds.items() if method != OURS}
    return {"rows": rows, "ratios": ratios, "missing": missing, "details": bout.details, "source": case.source}


def promise(network: str, method: str, result: dict[str, Any]) -> Check:
    """A target and its ratio; one measured on fewer inputs than promised proves nothing and is only shown."""
    target, n = TARGETS[network, method], networks.SIZES[network]
    what = f"{network}, {n:,} inputs: faster than {method}"
    if method not in result["ratios"]:
        return Check(what, f"≥ {target:g}×", result["missing"].get(method, "not run"), None)
    measured, inputs = result["ratios"][method]
    if inputs != n:
        return Check(what, f"≥ {target:g}×", f"{measured}× on {inputs:,} inputs", None)
    return Check(what, f"≥ {target:g}×", f"{measured}×", measured.median >= target)


def run(quick: bool = False, libraries: Sequence[str] = tuple(LIBRARIES)) -> Outcome:
    """All three networks; `quick` takes fewer inputs and one round, so that only the machinery is tried."""
    torch.set_num_threads(THREADS)
    sizes = networks.QUICK_SIZES if quick else networks.SIZES
    results = {name: compare(name, n, rounds=1 if quick else 3, libraries=libraries) for name, n in sizes.items()}
    checks = [promise(network, method, results[network]) for network, method in TARGETS]
    return Outcome(
        f"Exact trace-NTK, 10 outputs, {THREADS} cores, float32" + (", quick sizes" if quick else ""),
        [row for result in results.values() for row in result["rows"]],
        checks,
        (
            "seconds and ratios: median (smallest–largest) over interleaved rounds; ratios are taken round by round.",
            f"`{TRIANGLE}` and neural-tangents compute only one half of the symmetric kernel here; the tutorial and the"
            " library themselves compute both. neural-tangents' mean over outputs is multiplied by their number.",
            "relative error: ours against a naive float64 kernel on the first inputs, the others against ours.",
        ),
        {name: {k: v for k, v in result.items() if k != "rows"} for name, result in results.items()},
    )
