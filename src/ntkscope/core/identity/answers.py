"""Answers: the outputs a network gave when a store was created, compared with its outputs now.

On the same kind of machine with the same PyTorch the bits agree, since one thread computes them in one order. On other machines
sums run in another order, so rounding is allowed for.
"""

from __future__ import annotations

import functools
import hashlib
import math
import platform
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ntkscope.core.errors import StoreError
from ntkscope.core.machine.threads import torch_threads

MOST = 256  # output values that are kept
# Of the largest number: float32 sums of some thousand terms in another order differ by about 1e-6 of it, through deep
# networks by 1e-5; double precision by 1e-14 and 1e-13; half the digits of products in tf32, bf16 or fp16 are rounding.
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
COARSE = 5e-2
DIFFERENT = (
    "the network answers differently from the one the store was created with: pass the network as it was (what it reads from"
    " files, the environment or other libraries too), or choose another folder"
)
T = TypeVar("T")


@dataclass(frozen=True)
class Answers:
    """The outputs for a few items (some of the values), and the machine that computed them."""

    items: tuple[int, ...]
    values: tuple[float, ...]
    dtype: str
    machine: str

    @classmethod
    def of(cls, ask: Callable[[list[int]], Tensor], count: int, device: torch.device | str = "cpu") -> Answers:
        """Compute the outputs for the first, the middle and the last of `count` items, in one thread."""
        items = asked_items(count)
        with torch_threads(1):  # so that sums run in one order
            outputs = ask(items).detach().cpu()
        flat = outputs.reshape(-1)
        flat = flat[:: max(1, math.ceil(len(flat) / MOST))]
        values = tuple(float(value) for value in flat.to(torch.float64))
        return cls(tuple(items), values, str(outputs.dtype).removeprefix("torch."), machine(device))

    def to_json(self) -> dict[str, Any]:
        """As a store keeps them; numbers as strings without loss of digits."""
        values = [value.hex() for value in self.values]
        return {"items": list(self.items), "values": values, "dtype": self.dtype, "machine": self.machine}

    @classmethod
    def from_json(cls, value: Any, where: str) -> Answers:
        """What `to_json` gave, from a file anyone may have written."""
        if not isinstance(value, Mapping):
            raise StoreError(f"{where}: answers are {value!r:.80}; expected those of a few items")
        try:
            values = tuple(map(float.fromhex, value["values"]))
            items = tuple(map(int, value["items"]))
            return cls(items, values, str(value["dtype"]), str(value["machine"]))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise StoreError(f"{where}: answers cannot be read ({error}); expected those of a few items") from error

    def compare(self, now: Answers, where: str, coarse: bool = False) -> None:
        """Raise an error unless `now` agrees."""
        if (self.items, self.dtype, len(self.values)) != (now.items, now.dtype, len(now.values)):
            said = f"{len(now.values)} numbers in {now.dtype} now, {len(self.values)} in {self.dtype} in the store"
            raise StoreError(f"{where}: outputs of items {list(self.items)}: {said}; {DIFFERENT}")
        then, here = (torch.tensor(each.values, dtype=torch.float64) for each in (self, now))
        dtype = getattr(torch, self.dtype, torch.float32)
        exact = self.machine == now.machine and "cpu" in now.machine and not coarse
        found = disagreement(then, here, 0.0 if exact else tolerance(dtype, coarse))
        if found:
            raise StoreError(f"{where}: outputs of items {list(self.items)} {found}; {DIFFERENT}")


def asked_items(count: int) -> list[int]:
    """The items whose outputs are kept, out of `count`: the first, the middle and the last.

    >>> asked_items(9), asked_items(1)
    ([0, 4, 8], [0])
    """
    return sorted({0, count // 2, count - 1})


def disagreement(then: Tensor, now: Tensor, allowed: float | int) -> str | None:
    """How far apart two results are, in words, when the gap exceeds `allowed` of the largest number; None otherwise.

    >>> disagreement(torch.ones(2), torch.ones(2), 0.0) is None
    True
    >>> disagreement(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]), 1e-4)
    'differ by 0.25 of the largest number (got 2.5, expected 2)'
    """
    if then.shape != now.shape:
        return f"have shape {tuple(now.shape)} now and {tuple(then.shape)} in the store"
    if torch.equal(then, now) or not then.numel():
        return None
    old, new = then.detach().cpu().double().reshape(-1), now.detach().cpu().double().reshape(-1)
    gap = (old - new).abs()
    gap[(old == new) | (old.isnan() & new.isnan())] = 0.0
    finite = old[old.isfinite()].abs()
    largest = float(finite.max()) if len(finite) else 0.0
    if bool((gap <= allowed * largest).all()):
        return None
    worst = int(gap.nan_to_num(nan=math.inf).argmax())
    share = float(gap[worst]) / largest if largest else math.inf
    return (
        f"differ by {share:.2g} of the largest number (got {float(new[worst]):.9g}, expected {float(old[worst]):.9g})"
    )


def tolerance(dtype: torch.dtype, coarse: bool = False) -> float:
    """The rounding difference allowed between machines, relative to the largest number; `coarse`: products in fewer digits."""
    return COARSE if coarse else ROUNDING.get(dtype, ROUNDING[torch.float32])


def drawn(candidates: Sequence[T]) -> T:
    """One of them, a different one each time, so that the check does not always cover the same one."""
    return random.Random(time.time_ns()).choice(candidates)


@functools.cache
def machine(device: torch.device | str = "cpu") -> str:
    """The kind of device, PyTorch's version and what decides the order of sums, in sixteen digits after the kind."""
    where = torch.device(device)
    if where.type == "cuda":
        name = torch.cuda.get_device_name(where)
    else:
        name = f"{platform.machine()} {_processor()} {torch.backends.cpu.get_cpu_capability()}"
    text = f"{where.type} {name} {torch.__version__} {platform.system()}"
    return f"{where.type}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _processor() -> str:
    """The processor's name: libraries choose their loops by it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    names = ("model name", "CPU implementer", "CPU part")
    return " ".join(sorted({line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(names)}))
