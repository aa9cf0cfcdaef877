"""The kernels of an X-ray: each computed once, stored in the record with its certificate, and read from there as Grams."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from ntkscope.core import Inputs, Record
from ntkscope.core.arguments import from_numpy
from ntkscope.kernels import KERNELS, kernel
from ntkscope.linalg import DenseGram, Gram, as_gram
from ntkscope.machines import KernelPair
from ntkscope.machines.computing import parts
from ntkscope.xray.budget import half_of_the_budget
from ntkscope.xray.network import Params

HELD = 1 / 4  # of the memory for a kernel: pairs that are kept for the next section
SIDES = ("test", "train")  # as they are stored: a record with the training kernel has everything else too


@dataclass(frozen=True, eq=False)
class Pairs:
    """Where kernels are kept, and with which options of `ntkscope.kernel` they are computed."""

    record: Record
    options: dict[str, Any]
    timed: Callable[[str], AbstractContextManager[None]]
    params: Params = None  # of the kernels of gradients
    held: dict[str, KernelPair] = field(default_factory=dict)  # the last ones that were read, the latest last

    def _options(self, name: str) -> dict[str, Any]:
        traits = KERNELS.traits(name)
        return {**self.options, **traits.quick, **({"params": self.params} if traits.by_parameters else {})}

    def compute(self, name: str, model: nn.Module, x: Inputs) -> Gram:
        """The kernel `name` of some inputs with themselves, as the X-ray computes it; not kept."""
        with half_of_the_budget():
            return kernel(name, model, x, **self._options(name))

    def has(self, name: str, prefix: str = "") -> bool:
        """Whether the record holds the computed kernel `name`, both sides of it."""
        return all(self._has(name, f"kernels.{prefix}{name}", side) for side in ("train", "test"))

    def pair(
        self, name: str, model: nn.Module, train: Inputs, test: Inputs, prefix: str = "", *, coverage: bool = False
    ) -> KernelPair:
        """The computed kernel `name`, from the record if it is there; `coverage`: also store how it was computed."""
        key, stage = f"kernels.{prefix}{name}", f"{prefix.replace('.', ' ')}kernel {name}"
        missing = [side for side in ("train", "test") if not self._has(name, key, side)]
        if missing:
            with self.record.stage(stage, total=2) as step, self.timed(stage), half_of_the_budget():
                step.advance(max(0, 2 - len(missing) - step.done))
                for part in parts(name, model, train, test, wanted=missing, **self._options(name)):
                    if coverage and "train" in part.sides:
                        self._keep_coverage(part.gram)
                    self.keep_certificate(f"{prefix}{name}", part.part, part.gram)
                    for side in SIDES:
                        if side in part.sides:
                            self._keep(name, f"{key}.{side}", part.sides[side])
                            step.advance(step.done < 2)
        return self._held(key, lambda: self._read(name, key))

    def cosines(self, pair: KernelPair, name: str) -> KernelPair:
        """The kernel `name` of cosines of a pair of the network, divided in double precision and rounded once; rows of zeros
        are kept."""
        return self._held(name, lambda: pair.normalized(name, dtype=torch.float64, zeros=True).to(pair.train.dtype))

    def _held(self, key: str, make: Callable[[], KernelPair]) -> KernelPair:
        """A pair from memory, where the last ones stay that fit into a part of it."""
        found = self.held.pop(key, None) or make()
        self.held[key] = found
        while len(self.held) > 1 and sum(pair.nbytes for pair in self.held.values()) > self.options["memory"] * HELD:
            del self.held[next(iter(self.held))]
        return found

    def keep_certificate(self, name: str, part: str, made: Gram) -> None:
        """Store what was checked for one part of a kernel; before its numbers, so that they are never without it."""
        if made.certificate is not None:
            known = dict(self.record.metrics.get("certificates", {}))
            known[name] = {**known.get(name, {}), part: made.certificate.to_json()}
            self.record.put(certificates=known)

    def _has(self, name: str, key: str, side: str) -> bool:
        arrays = self.record.arrays
        return f"{key}.{side}" in arrays and (
            side == "train" or not _has_cosines(name) or f"{key}.{side}_diagonal" in arrays
        )

    def _keep(self, name: str, key: str, gram: Gram) -> None:
        wanted = not gram.symmetric and (_has_cosines(name) or not KERNELS.traits(name).features)
        if wanted and gram.row_diagonal is not None:
            self.record.array(f"{key}_diagonal", gram.row_diagonal.double())
        self.record.array(key, gram.numpy().astype(np.float32, copy=False))

    def _read(self, name: str, key: str) -> KernelPair:
        arrays = self.record.arrays
        train = as_gram(np.asarray(arrays[f"{key}.train"]), symmetric=True, name=name)
        own = from_numpy(np.asarray(arrays[f"{key}.test_diagonal"])) if f"{key}.test_diagonal" in arrays else None
        values = from_numpy(np.asarray(arrays[f"{key}.test"]))
        test = DenseGram(values, name=name, row_diagonal=own, column_diagonal=train.diagonal())
        return KernelPair(name, train, test)

    def _keep_coverage(self, made: Gram) -> None:
        cover = made.coverage
        if cover is not None:
            self.record.put(
                coverage={
                    "roads": dict(cover.methods),
                    "numbers": {name: cover.numbers[name] for name in cover.methods},
                    "seconds": {name: round(cover.seconds[name], 6) for name in cover.methods},
                    "stages": {name: round(value, 6) for name, value in cover.stages.items()},
                }
            )


def _has_cosines(name: str) -> bool:
    """Whether some kernel consists of the cosines of this one, so that `K(x, x)` of test items is needed too."""
    return KERNELS.views_of(name) != [name]
