"""Hold `ns.kernel` to the oracle: the same call to both, the same budget games, one comparison."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core.errors import MemoryBudgetError
from ntkscope.linalg.sketches import sketch
from ntkscope.linalg.sketches.kronecker import KroneckerSketch
from ntkscope.linalg.sketches.sparse import SparseSketch
from oracles import naive
from oracles.autograd import AFFINE, Selection
from oracles.closeness import assert_kernel_close

NAMES = tuple(name for name in ns.KERNELS if name in naive.KNOWN)
GRADIENT_NAMES = tuple(name for name in NAMES if name in naive.OF_GRADIENTS)
UNITS = {"b": 1, "byte": 1, "bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(bytes?|b|[kmgt]ib)\b", re.IGNORECASE)


def stated_sizes(text: str) -> list[int]:
    """The memory sizes a message states, in bytes, rounded up.

    >>> stated_sizes("got 10 B; the smallest that would do is 1.5 KiB")
    [10, 1536]
    """
    return [int(float(number) * UNITS[unit.lower()] + 0.999) for number, unit in SIZE.findall(text)]


def smallest_budget(call: Callable[..., Any]) -> int:
    """The smallest budget the error of `call(memory=1)` states, in bytes."""
    try:
        call(memory=1)
    except MemoryBudgetError as error:
        sizes = stated_sizes(str(error))
        if not sizes or max(sizes) <= 1:
            raise AssertionError(f"the error does not state the smallest budget: {error}") from error
        return max(sizes)
    raise AssertionError("a budget of one byte was accepted")


def projection(
    seed: int = 0, dim: int = 10240, kind: Any = "rademacher", sparsity: int = 64, factored: Collection[str] = ()
) -> naive.Projection:
    """The dense projection matrices of the package, a parameter at a time; `factored`: parameters of kind "kronecker"."""

    def matrix(name: str, shape: torch.Size) -> Tensor:
        if kind not in ("sparse", "kronecker"):
            return sketch.projection_rows(seed, name, 0, shape.numel(), dim, kind, torch.float64)
        if name in factored:
            found = KroneckerSketch(seed, name, shape[0], shape.numel() // shape[0], dim).matrix()
        else:
            found = SparseSketch(seed, name, shape.numel(), dim, min(sparsity, dim)).matrix()
        if len(shape) > 2:  # drawn with the second axis innermost
            found = found.reshape(shape[0], *shape[2:], shape[1], dim).movedim(-2, 1).reshape(-1, dim)
        return found

    return matrix


def affine_layers(model: nn.Module) -> list[str]:
    """Names of the plain affine modules outside attention and recurrent ones: what `em` and `ptk` are asked for."""
    inside = [name for name, m in model.named_modules() if isinstance(m, nn.MultiheadAttention | nn.RNNBase)]
    return [
        name
        for name, module in model.named_modules()
        if type(module) in AFFINE and not any(name.startswith(f"{outer}.") for outer in inside)
    ]


def options_for(name: str, model: nn.Module, dim: int = 16) -> dict[str, Any]:
    """The options under which `name` is compared on `model`: small projections, explicit layers."""
    if name.startswith("proj-"):
        return {"dim": dim, "normalize": name == "proj-trntk"}
    layers = affine_layers(model)
    known: dict[str, dict[str, Any]] = {"em": {"layers": layers}, "ptk": {"layer": layers[-1]}}
    return known.get(name, {})


def expected(name: str, model: nn.Module, x1: Any, x2: Any = None, *, seed: int = 0, **options: Any) -> Tensor:
    """What the oracle says, options as `ns.kernel` takes them."""
    if name.startswith("proj-"):
        options = dict(options)
        chosen = {key: options.pop(key) for key in ("dim", "kind", "sparsity", "factored") if key in options}
        options["projection"] = lru_cache(maxsize=None)(projection(seed, **chosen))
    return naive.kernel(name, model, x1, x2, **options)


def compare(
    name: str,
    model: nn.Module,
    x1: Any,
    x2: Any = None,
    *,
    outputs: Sequence[int] | None = None,
    params: Selection = None,
    memory: str | int = "2GiB",
    tolerance: float = 1e-10,
    **options: Any,
) -> Any:
    """The Gram of `ns.kernel`, after it was found within `tolerance` of the oracle; `memory="smallest"` finds it."""
    chosen: dict[str, Any] = {**options, "outputs": outputs, "params": params}

    def engine(memory: str | int) -> Any:
        return ns.kernel(name, model, x1, x2, memory=memory, **chosen)

    gram = engine(memory=smallest_budget(engine) if memory == "smallest" else memory)
    assert_kernel_close(gram.dense(), expected(name, model, x1, x2, **chosen), tolerance)
    return gram
