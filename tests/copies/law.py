"""The law: what is computed by a copy equals plain autograd on the original, or is refused; never silently another number."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import ntkscope as ns
from copies.changes import CHANGES, Inapplicable
from copies.models import Case, inputs

EQUAL, REFUSED, WRONG, RAW = "equal", "refused", "wrong", "raw"
TOLERANCE = {
    torch.float32: 5e-4,
    torch.float64: 1e-9,
}  # of the shorter dtype in play; wrong copies are off by per cents
# torch's fused weight norm on CUDA takes norms by `sqrtf`, in float64 too (2.11: norms off by up to 8.0e-8, at most
# 1.5 · 2⁻²⁴; composed of torch's own operations 1e-16). A gradient holds the norm's cube at most, a kernel two gradients.
BY_SINGLE_NORMS = {(name, "device=cuda"): 2 * 3 * 1.5 * 2**-24 for name in ("new_weight_norm", "old_weight_norm")}


@dataclass(frozen=True)
class Cell:
    """One comparison: which model, by which entry, after which change."""

    case: str
    entry: str
    change: str
    verdict: str
    note: str = ""


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_default_dtype(before)


def jacobian(model: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs (n, c) and gradients (n, c, *shape) by parameter, on the model itself, one sample and one output at a time."""
    leaves = {name: p for name, p in model.named_parameters() if p.requires_grad}
    outputs: list[Tensor] = []
    rows: dict[str, list[Tensor]] = {name: [] for name in leaves}
    for i in range(len(x)):
        value = model(x[i : i + 1])
        outputs.append(value.detach()[0].double())
        for name, leaf in leaves.items():
            rows[name].append(
                torch.stack(
                    [
                        torch.zeros_like(leaf) if g is None else g.detach()
                        for c in range(value.shape[1])
                        for g in torch.autograd.grad(value[0, c], [leaf], retain_graph=True, allow_unused=True)
                    ]
                ).double()
            )
    return torch.stack(outputs), {name: torch.stack(each) for name, each in rows.items()}


def _flat(rows: Tensor) -> Tensor:
    return rows.reshape(*rows.shape[:2], -1)


def gram(rows: dict[str, Tensor]) -> Tensor:
    flat = list(map(_flat, rows.values()))
    return torch.stack([torch.einsum("icp,jcp->ij", j, j) for j in flat]).sum(0)


def distance(value: Any, expected: Any) -> float:
    """The relative difference; infinite where one is zero or not finite and the other is not."""
    value, expected = torch.as_tensor(value).double(), torch.as_tensor(expected).double()
    if value.shape != expected.shape or not bool(torch.isfinite(value).all()):
        return float("inf")
    gap, size = float((value - expected).norm()), float(expected.norm())
    return 0.0 if gap == 0 else gap / size if size else float("inf")


def judged(
    compute: Callable[[], list[tuple[Any, Any]]], dtype: torch.dtype, tolerance: float | None = None
) -> tuple[str, str]:
    """The verdict on pairs (value, expected), and the largest difference or the message."""
    try:
        pairs = compute()
    except ns.NtkscopeError as error:
        return REFUSED, str(error)[:160]
    except Exception as error:
        return RAW, f"{type(error).__name__}: {error}"[:160]
    worst = max(distance(*pair) for pair in pairs)
    return (EQUAL if worst <= (tolerance or TOLERANCE[dtype]) else WRONG), f"{worst:.2g}"


ENTRIES: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "native": (torch.float64, {}),
    "native float32": (torch.float32, {}),
    "dtype=float64": (torch.float32, {"dtype": torch.float64}),
    "dtype=float32": (torch.float64, {"dtype": torch.float32}),
    "device=cpu:0": (torch.float64, {"device": "cpu:0"}),
    "device=cuda": (torch.float64, {"device": "cuda"}),
}


def kernels(case: Case, entry: str) -> Cell:
    """One kernel, of a model that was run before as models are."""
    made, options = ENTRIES[entry]
    with default_dtype(made):
        model, x = case.make(), inputs(made)
        _, rows = jacobian(model, x)
        verdict, note = judged(
            lambda: [(ns.kernel("trntk0", model, x, **options).dense().cpu(), gram(rows))],
            options.get("dtype", made) if made == torch.float64 else made,
            BY_SINGLE_NORMS.get((case.name, entry)),
        )
        try:
            _, after = jacobian(model, x)
            same = all(torch.equal(rows[name], after[name]) for name in rows)
        except RuntimeError:
            same = False
        if not same:
            verdict, note = WRONG, "the model is another one afterwards"
    return Cell(case.name, entry, "", verdict, note)


def _linear(linear: Any, x: Tensor, rows: dict[str, Tensor], outputs: Tensor) -> list[tuple[Any, Any]]:
    """f, J u and Jᵀ r of a linearised network beside those of the model; u by parameter, so that a lost one is seen."""
    drawn = torch.Generator().manual_seed(5)
    own = dict(linear.u.named_parameters())
    if set(own) != set(rows):
        raise AssertionError(f"parameters {sorted(own)} for {sorted(rows)}")
    directions = {name: torch.randn(p.shape, generator=drawn, dtype=torch.float64) for name, p in own.items()}
    weights = torch.randn(outputs.shape, generator=drawn, dtype=torch.float64)
    with torch.no_grad():
        for name, p in own.items():
            p.copy_(directions[name])
    moved = linear(x)
    pulled = torch.autograd.grad((moved * weights.to(moved.dtype)).sum(), list(own.values()), allow_unused=True)
    with torch.no_grad():
        for p in own.values():
            p.zero_()
        values = linear(x)
    expected = sum(torch.einsum("ncp,p->nc", _flat(rows[name]), u.flatten()) for name, u in directions.items())
    pairs = [(values.detach(), outputs), (moved.detach() - values, expected)]
    for (name, p), got in zip(own.items(), pulled):
        want = torch.einsum("ncp,nc->p", _flat(rows[name]), weights).reshape(p.shape)
        pairs.append((torch.zeros_like(p) if got is None else got, want))
    return pairs


def linearized(case: Case, changes: dict[str, Callable[[Any], None]]) -> list[Cell]:
    """f, J u and Jᵀ r; then, after each change of the original, the same: a linearised network stands by itself."""
    cells = []
    with default_dtype(torch.float64):
        model, x = case.make(), inputs(torch.float64)
        outputs, rows = jacobian(model, x)
        linear: list[Any] = []

        def first() -> list[tuple[Any, Any]]:
            linear.append(ns.linearize(model))
            return _linear(linear[0], x, rows, outputs)

        verdict, note = judged(first, torch.float64)
        cells.append(Cell(case.name, "linearize", "", verdict, note))
        if verdict != EQUAL:
            return cells
        for name, change in changes.items():
            try:
                change(model)
            except Exception:
                continue
            verdict, note = judged(partial(_linear, linear[0], x, rows, outputs), torch.float64)
            cells.append(Cell(case.name, "linearize", name, verdict, note))
            if verdict != EQUAL:  # a fresh start for the others
                model = case.make()
                outputs, rows = jacobian(model, x)
                linear = [ns.linearize(model)]
                _linear(linear[0], x, rows, outputs)
    return cells


def _trace(tangent: Any, x: Tensor, rows: dict[str, Tensor]) -> list[tuple[Any, Any]]:
    return [(tangent.kernel("trntk0", x).dense(), gram(rows))]


KEPT = {"kept native": "native float32", "kept dtype=float64": "dtype=float64", "kept dtype=float32": "dtype=float32"}


def kept(case: Case, entry: str, changes: dict[str, Callable[[Any], None]]) -> list[Cell]:
    """A kept `Tangent` before and after changes, one after the other on the same model."""
    made, options = ENTRIES[KEPT[entry]]
    cells = []
    with default_dtype(made):
        x = inputs(made)

        def begin() -> tuple[Any, Any, tuple[str, str]]:
            model = case.make()
            tangent: list[Any] = []
            _, rows = jacobian(model, x)

            def first() -> list[tuple[Any, Any]]:
                tangent.append(ns.Tangent(model, **options))
                return [(tangent[0].kernel("trntk0", x).dense(), gram(rows))]

            return model, tangent, judged(first, torch.float32)

        model, tangent, (verdict, note) = begin()
        cells.append(Cell(case.name, entry, "", verdict, note))
        if verdict != EQUAL:
            return cells
        for name, change in changes.items():
            try:
                change(model)
            except Inapplicable:
                continue
            except Exception:
                model, tangent, _ = begin()
                continue
            try:
                _, rows = jacobian(model, x)
            except Exception:  # the change broke the model itself
                model, tangent, _ = begin()
                continue
            verdict, note = judged(partial(_trace, tangent[0], x, rows), torch.float32)
            cells.append(Cell(case.name, entry, name, verdict, note))
            if verdict != EQUAL:
                model, tangent, (again, _) = begin()
                if again != EQUAL:
                    break
    return cells


def changes_of(case: Case, entry: str, generic: int | None) -> dict[str, Callable[[Any], None]]:
    """The model's own changes and those of any model; with `generic`, so many of the latter, drawn by the names."""
    own = {f"own: {name}": change for name, change in case.own.items()}
    drawn = list(CHANGES) if generic is None else random.Random(f"{case.name} {entry}").sample(list(CHANGES), generic)
    return own | {name: CHANGES[name] for name in CHANGES if name in drawn}


def cells(case: Case, generic: int | None = None) -> list[Cell]:
    """Every entry of one model, with all changes or some."""
    found = [kernels(case, entry) for entry in ENTRIES if "cuda" not in entry or torch.cuda.is_available()]
    found += linearized(case, changes_of(case, "linearize", generic))
    return found + [cell for entry in KEPT for cell in kept(case, entry, changes_of(case, entry, generic))]


def tally(found: list[Cell]) -> dict[str, int]:
    counted = Counter(cell.verdict for cell in found)
    return {verdict: counted[verdict] for verdict in (EQUAL, REFUSED, WRONG, RAW)}
