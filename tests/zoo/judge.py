"""The judge: one case, the naive answer, one call of `ns.kernel`, one verdict.

The naive answer uses nothing of the package: for every sample a fresh model, a batch of one, one `torch.autograd.grad`
per output in the model's own number kinds, products and sums in float64. Verdicts:

- exact: within the tolerance (float64 1e-8, float32 1e-4, half types 5e-2 of each pair's own scale √(K_ii K_jj));
- refused: an `NtkscopeError`;
- WRONG: other numbers, or numbers where a refusal was due;
- CHANGED: right or refused, but the model, its inputs or the process are not as they were;
- CRASH: any other exception.
"""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import ntkscope as ns
from oracles.unchanged import copies, differences, optimiser, snapshot, trained, type_checked
from zoo.case import Case, Rows, Sample, Smallest, steady

TOLERANCE = {
    torch.float64: 1e-8,
    torch.float32: 1e-4,
    torch.bfloat16: 5e-2,  # 8 bits: 4e-3 per rounding, and the two methods round at different places
    torch.float16: 1e-2,  # 11 bits: 5e-4 per rounding
}
BAD = ("WRONG", "CHANGED", "CRASH")


@dataclass(frozen=True)
class Verdict:
    """What came of a case; `detail` says more, `changes` lists what moved."""

    kind: str
    detail: str = ""
    error: float = float("nan")
    changes: tuple[str, ...] = ()

    def holds(self, expect: str) -> bool:
        """Whether a user may be content."""
        return self.kind in (("exact", "refused") if expect == "either" else (expect,))

    def __str__(self) -> str:
        moved = f"; changed: {', '.join(self.changes)}" if self.changes else ""
        return f"{self.kind}: {self.detail}{moved}"


# -- the naive answer ----------------------------------------------------------------------------------------------
def single_samples(inputs: Any) -> list[Sample]:
    """The samples of a tensor, a tuple of positional or a mapping of keyword tensors, as batches of one; else none."""
    if isinstance(inputs, Tensor):
        return [((inputs[i : i + 1],), {}) for i in range(len(inputs) if inputs.dim() else 0)]
    if isinstance(inputs, Mapping) and inputs:
        length = len(next(iter(inputs.values())))
        return [((), {key: value[i : i + 1] for key, value in inputs.items()}) for i in range(length)]
    if isinstance(inputs, tuple) and inputs:
        return [(tuple(value[i : i + 1] for value in inputs), {}) for i in range(len(inputs[0]))]
    return []


def output(value: Any) -> Tensor:
    """The tensor in what a model returned."""
    return value if isinstance(value, Tensor) else value["logits"] if isinstance(value, Mapping) else value.logits


def gradient_rows(model: nn.Module, sample: Sample, chosen: Callable[[str], bool] = lambda name: True) -> Tensor:
    """The gradient of every output of one sample by the model's trainable parameters: (c, p), in float64."""
    parameters = [p for name, p in model.named_parameters() if p.requires_grad and chosen(name)]
    with torch.enable_grad():
        values = output(model(*sample[0], **sample[1]))[0]
        if not values.requires_grad:
            return torch.zeros(len(values), sum(p.numel() for p in parameters), dtype=torch.float64)
        found = [torch.autograd.grad(v, parameters, retain_graph=True, allow_unused=True) for v in values]
    return torch.stack([torch.cat([_flat(g, p) for g, p in zip(row, parameters)]) for row in found])


def _flat(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    gradient = torch.zeros_like(parameter) if gradient is None else gradient.detach()
    gradient = gradient.to_dense() if gradient.is_sparse else gradient
    if gradient.is_complex():  # a complex number is two real ones
        gradient = torch.view_as_real(gradient.resolve_conj())
    return gradient.double().flatten().cpu()


def truths(case: Case) -> list[Tensor]:
    """The kernels that are right answers: one, but for cases that say otherwise."""
    ways = case.rows if isinstance(case.rows, tuple) else (case.rows or gradient_rows,)
    outputs = case.options.get("outputs")
    outputs = outputs if outputs is None else [int(k) for k in outputs]
    return [kernel_of(all_rows(case, rows), case.kernel, outputs) for rows in ways]


def all_rows(case: Case, rows: Rows = gradient_rows) -> Tensor:
    """(n, c, p), every sample on a model of its own."""
    make = case.twin or case.make
    split = case.samples or single_samples
    found = []
    for i in range(len(split(make()[1]))):
        model, inputs = make()
        with steady(0, torch.get_default_dtype()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(rows(model, split(inputs)[i]).detach().double().cpu())
    return torch.stack(found)


def kernel_of(rows: Tensor, name: str, outputs: Any = None) -> Tensor:
    """The kernel `name` of rows (n, c, p); kernels of features (ck, em, ptk) are sums over rows as trntk0 is."""
    rows = rows if outputs is None else rows[:, outputs]
    if name == "entk":
        return rows.flatten(0, 1) @ rows.flatten(0, 1).T
    if name == "pntk":
        return rows.sum(1) @ rows.sum(1).T / rows.shape[1]
    kernel = torch.einsum("icp,jcp->ij", rows, rows)
    if name == "trntk":
        kernel = kernel / (kernel.diagonal()[:, None] * kernel.diagonal()[None]).sqrt()
    return kernel


def discrepancy(actual: Tensor, expected: Tensor) -> float:
    """max |A_ij - E_ij| / √(E_ii E_jj): every pair on its own scale; infinite for other shapes and non-finite values."""
    if actual.shape != expected.shape or not bool(torch.isfinite(actual).all()):
        return float("inf")
    scale = expected.diagonal().clamp_min(0)
    if not float(scale.max()) > 0:
        return 0.0 if not bool(actual.any()) else float("inf")
    scale = scale.clamp_min(1e-6 * float(scale.max())).sqrt()
    return float(((actual.double().cpu() - expected).abs() / (scale[:, None] * scale[None])).max())


# -- the verdict ---------------------------------------------------------------------------------------------------
def judge(case: Case) -> Verdict:
    """Run one case; never raises for what the package does."""
    _warm()
    expected = [] if case.expect == "refused" else truths(case)
    options = {**case.options}
    if isinstance(options.get("memory"), Smallest):
        options["memory"] = int(options["memory"].times * smallest_budget(case)) + 1
    model, inputs = case.make()
    step = optimiser(model)
    with settings(case):
        before = snapshot(model, inputs)
        actual, refusal, crash = _call(case.kernel, model, inputs, options)
        changes = tuple(differences(before, snapshot(model, inputs)))
    changes += _afterwards(case, model, step)
    if crash is not None:
        return Verdict("CRASH", f"{type(crash).__name__}: {str(crash)[:160]}", changes=changes)
    if refusal is not None:
        return Verdict("CHANGED" if changes else "refused", str(refusal)[:200], changes=changes)
    assert actual is not None
    if not expected:
        return Verdict("WRONG", "numbers where a refusal was due", changes=changes)
    error = min(discrepancy(actual, each) for each in expected)
    tolerance = case.tolerance or _tolerance(case, model)
    detail = f"discrepancy {error:.1e}, tolerance {tolerance:.0e}"
    if not error <= tolerance:
        return Verdict("WRONG", detail, error, changes)
    return Verdict("CHANGED" if changes else "exact", detail, error, changes)


@functools.cache
def _warm() -> None:
    """One call of each kind, so that nothing is imported later: imports may move the random state of Python."""
    if type_checked():
        return
    for name in ("trntk0", "entk", "pntk", "ck", "em", "ptk", "proj-trntk"):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        ns.kernel(name, model, torch.ones(3, 2), **({"dim": 8} if name == "proj-trntk" else {})).dense()


def smallest_budget(case: Case) -> int:
    """What the refusal of one byte says would do; nothing is judged here."""
    model, inputs = case.make()
    _, refusal, _ = _call(case.kernel, model, inputs, {**case.options, "memory": 1})
    return max((int(number) for number in re.findall(r"\((\d+) bytes\)", str(refusal))), default=2**24)


def _call(
    name: str, model: nn.Module, inputs: Any, options: dict[str, Any]
) -> tuple[Tensor | None, Exception | None, Exception | None]:
    """(kernel, refusal, crash), one of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ns.kernel(name, model, inputs, **options).dense(), None, None
        except ns.NtkscopeError as error:
            return None, error, None
        except Exception as error:  # anything else is a crash, and the verdict says so
            return None, None, error


def _tolerance(case: Case, model: nn.Module) -> float:
    kinds = {p.dtype for p in model.parameters() if p.is_floating_point()} | {case.options.get("dtype")}
    return max((TOLERANCE[kind] for kind in kinds if kind in TOLERANCE), default=1e-8)


def _afterwards(case: Case, model: nn.Module, step: torch.optim.Optimizer | None) -> tuple[str, ...]:
    """What training and copying the model say that a fresh model does not."""
    fresh, _ = case.make()
    found = ["deep copies"] if copies(model) != copies(fresh) else []
    fresh, _ = case.make()
    results = []
    for each, optimizer in ((model, step), (fresh, optimiser(fresh))):
        inputs = case.make()[1]
        samples = (case.samples or single_samples)(inputs)[:1]
        if not samples:
            return tuple(found)
        with steady(0, torch.get_default_dtype()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            args, kwargs = samples[0]
            run = lambda m, a=args, k=kwargs: output(m(*_own(a), **_own(k)))  # noqa: E731
            results.append(trained(each, optimizer, run))
    return (*found, "training afterwards") if results[0] != results[1] else tuple(found)


def _own(value: Any) -> Any:
    """Copies, for models that write to their inputs."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        return {key: _own(member) for key, member in value.items()}
    return type(value)(_own(member) for member in value) if isinstance(value, tuple | list) else value


@contextlib.contextmanager
def settings(case: Case) -> Iterator[None]:
    """Threads and seeds of one call; what the model leaves behind in the process is put back for the next case."""
    threads = torch.get_num_threads()
    grad, dtype, numbers = torch.is_grad_enabled(), torch.get_default_dtype(), np.random.get_state()  # noqa: NPY002
    torch.set_num_threads(case.threads)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
        np.random.set_state(numbers)  # noqa: NPY002
