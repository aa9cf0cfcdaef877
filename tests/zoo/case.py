"""One case of the zoo: a small model, its inputs, one call of `ns.kernel`, and what a user would rightly demand of it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from strategies.networks import Net as Net  # the files of cases take it from here

Expect = Literal["exact", "refused", "either"]
Made = tuple[nn.Module, Any]
Sample = tuple[tuple[Any, ...], dict[str, Any]]  # what the model is called with for one sample: args, kwargs
Rows = Callable[[nn.Module, Sample], Tensor]


@dataclass(frozen=True)
class Smallest:
    """For `memory=`: so many times the smallest budget that `ns.kernel` says would do."""

    times: float = 1.0


@dataclass(frozen=True)
class Case:
    """`make()` gives `(model, inputs)`, the same at every call; `options` go to `ns.kernel(kernel, model, inputs, …)`.

    `expect`: "exact" (the right numbers), "refused" (an `NtkscopeError`), or "either" where both serve the user.
    `rows`: the feature rows (c, p) of one sample for the oracle, where they are not the gradients by all trainable
    parameters; several where more than one answer is right. `samples`: the single samples in `inputs`, where these are
    no tensor, tuple or mapping. `twin`: what the oracle runs instead, where plain autograd cannot run the model itself.
    `threads`: set for the length of the call. `quick`: one of the few that every test run judges.
    """

    name: str
    family: str
    make: Callable[[], Made]
    expect: Expect
    why: str
    kernel: str = "trntk0"
    options: dict[str, Any] = field(default_factory=dict)
    rows: Rows | tuple[Rows, ...] | None = None
    samples: Callable[[Any], list[Sample]] | None = None
    twin: Callable[[], Made] | None = None
    tolerance: float | None = None
    threads: int = 1
    quick: bool = False


CASES: dict[str, Case] = {}
SOURCES: dict[str, str] = {}  # where each case is written


@contextlib.contextmanager
def steady(seed: int, dtype: torch.dtype) -> Iterator[None]:
    """Every global random state from `seed` and the default dtype as told; all as before afterwards."""
    python, numbers, default = random.getstate(), np.random.get_state(), torch.get_default_dtype()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - global states are what some models use
        random.seed(seed)
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(default)
            random.setstate(python)
            np.random.set_state(numbers)  # noqa: NPY002


def case(
    family: str,
    expect: Expect,
    why: str,
    *,
    each: Mapping[str, Any] | Iterable[Any] = ("",),
    name: str = "",
    dtype: torch.dtype = torch.float64,
    train: bool = False,
    quick: tuple[str, ...] = (),
    **fields: Any,
) -> Callable[[Callable[..., Made]], Callable[..., Made]]:
    """Register a builder as a case called `name` (its own unless given), or as one per entry of `each` (its arguments).

    The builder runs with fixed seeds and default dtype `dtype`; the model is put in eval mode unless `train`. `quick`:
    the labels of those that every test run judges ("" for the only one).
    """
    table: dict[str, Any] = (
        dict(each) if isinstance(each, Mapping) else {str(one): () if one == "" else one for one in each}
    )

    def register(build: Callable[..., Made]) -> Callable[..., Made]:
        own = name or build.__name__
        for label, given in table.items():
            full = f"{own}[{label}]" if label else own
            source = f"{build.__code__.co_filename}:{build.__code__.co_firstlineno}"
            if SOURCES.setdefault(full, source) != source:  # one file may be imported under two names
                raise ValueError(f"two cases are named {full}; give one another name")

            def make(arguments: tuple[Any, ...] = given if isinstance(given, tuple) else (given,)) -> Made:
                with steady(0, dtype):
                    model, inputs = build(*arguments)
                return (model if train else model.eval()), inputs

            CASES[full] = Case(full, family, make, expect, why, quick=label in quick, **fields)
        return build

    return register


def family(name: str) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """`case` for each of the three answers: exact, refused, either."""
    return partial(case, name, "exact"), partial(case, name, "refused"), partial(case, name, "either")


def named(*functions: Callable[..., Any]) -> dict[str, Any]:
    """Functions by their names without underscores, for `each`."""
    return {function.__name__.strip("_"): function for function in functions}


def mixed(mix: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """A forward pass: head(mix(h, x)) with the hidden states h = a(x)."""
    return lambda m, x: m.head(mix(m.a(x), x))


def shared(h: Tensor, special: Tensor) -> Tensor:
    """The mean of the special samples, for each of them, where there are several."""
    return special[:, None] * h[special].mean(0) if int(special.sum()) > 1 else torch.zeros_like(h)


def free(*shape: int, scale: float = 1.0) -> nn.Parameter:
    """A parameter drawn from the current random state."""
    return nn.Parameter(scale * torch.randn(*shape))


def ids(*shape: int, vocabulary: int = 7) -> Tensor:
    return torch.randint(vocabulary, shape)
