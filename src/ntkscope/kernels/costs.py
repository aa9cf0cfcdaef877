"""What kernels cost: seconds from rates that were measured on a few inputs, one function for each way a kernel is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import TypeAlias

PROJECTION_BLOCK = 256  # samples for which a projection is drawn once
FEATURES = 4096  # numbers per sample that features are taken to have where they were not counted


@dataclass(frozen=True)
class Rates:
    """Seconds: to set the exact kernel up, for a sample, for a pair; for a forward pass; for a multiply-add in float64 and
    float32; to draw one entry of a projection. Of a machine at rest; `pace`: how many times longer they take now.

    `resident`: the samples whose gradients fit the memory at once, 0 for all; where that is not all, every other sample is run
    again for each group of so many, in shorter blocks: `again` seconds each time.

    `activations`: numbers per sample that the network's stages put out. `whole`: a sample's seconds by all parameters, where
    kernels are by some of them."""

    setup: float
    sample: float
    pair: float
    forward: float
    double: float
    single: float
    draw: float
    parameters: int
    outputs: int
    pace: float = 1.0
    resident: int = 0
    again: float = 0.0
    activations: int = FEATURES
    whole: float = 0.0

    def running(self, n: int, m: int | None = None) -> float:
        """Seconds to run n samples that meet each other, or n that stay and m others that meet them.

        >>> rates = Rates(1.0, 0.1, 0.01, 0.0, 0.0, 0.0, 0.0, 0, 1, resident=10, again=0.2)
        >>> rates.running(10), rates.running(40), rates.running(20, 5)
        (1.0, 20.0, 6.0)
        """
        groups = -(-n // self.resident) if self.resident else 1
        runs = groups * n - self.resident * groups * (groups - 1) / 2 if m is None else n + groups * m
        return runs * (self.sample if groups == 1 else max(self.sample, self.again))

    def least(self, parameters: int) -> Rates:
        """What gradients by fewer parameters take at least: more of them fit the memory, and every sample is still run twice,
        once to be compared with autograd."""
        share = parameters / self.parameters
        each = min(self.sample, 2 * self.forward)
        fewer = replace(self, parameters=parameters, resident=ceil(self.resident / share), pair=self.pair * share)
        return replace(fewer, setup=0.0, sample=each, again=each)


Cost: TypeAlias = Callable[[int, int, Rates], float]  # of n training inputs, and of m test inputs with them


def in_one_pass(n: int, m: int) -> bool:
    """Whether n training and m test inputs are cheaper as one set, in which every input is run once.

    Apart, training inputs are run twice, but test inputs are not multiplied with themselves.
    """
    return m <= n


def exact(n: int, m: int, rates: Rates) -> float:
    """A tangent kernel by the engine, every output.

    >>> rates = Rates(1.0, 0.1, 0.01, 0.0, 0.0, 0.0, 0.0, 0, 1)
    >>> exact(10, 0, rates), exact(10, 20, rates)
    (2.5, 8.5)
    """
    if in_one_pass(n, m):
        return rates.setup + rates.running(n + m) + rates.pair * _pairs(n + m, 0)
    return 2 * rates.setup + rates.running(n) + rates.running(n, m) + rates.pair * _pairs(n, m)


def summed(n: int, m: int, rates: Rates) -> float:
    """A tangent kernel of the sum of the outputs: one backward pass for all of them."""
    setup = rates.setup * (1 if in_one_pass(n, m) else 2)
    rates = replace(rates, resident=rates.resident * rates.outputs)
    return setup + (exact(n, m, rates) - setup) * 2 / (rates.outputs + 1)


def every_pair_of_outputs(n: int, m: int, rates: Rates) -> float:
    """A tangent kernel between all pairs of outputs."""
    return 2 * rates.setup + rates.running(n) + rates.running(n, m) + rates.pair * _pairs(n, m) * rates.outputs


def activations(n: int, m: int, rates: Rates) -> float:
    """A kernel of what layers put out: forward passes, and products of their features."""
    return 3 * rates.forward * (n + m) + _pairs(n, m) * FEATURES * rates.single


def stages(n: int, m: int, rates: Rates) -> float:
    """A kernel of what every stage puts out."""
    return 3 * rates.forward * (n + m) + _pairs(n, m) * rates.activations * rates.single


def derivatives(n: int, m: int, rates: Rates) -> float:
    """A kernel of the outputs' derivatives by a layer: one backward pass per output, and products of these features."""
    return 3 * rates.forward * (n + m) * (1 + rates.outputs) + _pairs(n, m) * FEATURES * rates.outputs * rates.single


def projected(dim: int, *, every_output: bool) -> Cost:
    """A kernel of gradients projected onto `dim` numbers, of every output or of their sum."""

    def cost(n: int, m: int, rates: Rates) -> float:
        heads = rates.outputs if every_output else 1
        blocks = -(-(n + m) // PROJECTION_BLOCK)
        draws = blocks * rates.parameters * dim * rates.draw
        multiply = (n + m) * heads * rates.parameters * dim * rates.single
        gram = 2 * _pairs(n, m) * heads * dim * rates.single
        return rates.setup + rates.sample * (n + m) * heads / rates.outputs + draws + multiply + gram

    return cost


def _pairs(n: int, m: int) -> float:
    return n * n / 2 + n * m
