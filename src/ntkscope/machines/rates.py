"""Rates: what kernels, fits and decompositions cost on this machine, measured on a few inputs before anything starts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from ntkscope.core import Inputs, Part, UsageError
from ntkscope.core.checked import Count, CountOrZero
from ntkscope.core.model.calling import call
from ntkscope.core.model.tree import length
from ntkscope.core.random import numpy_generator
from ntkscope.kernels import KERNELS, kernel
from ntkscope.kernels.costs import FEATURES, Rates
from ntkscope.linalg import Gram
from ntkscope.linalg.sketches.sketch import projection_rows
from ntkscope.tangent.forward.stages import layer_outputs, stages
from ntkscope.tangent.kernel.plan import Footprint, planned
from ntkscope.tangent.model.batches import as_batch
from ntkscope.tangent.model.selection import Selection
from ntkscope.tangent.model.state import ModelState
from ntkscope.tangent.model.subject import Subject, place, quiet

ENOUGH = 0.4  # seconds of the processor after which a probe is long enough to be reliable
PATIENCE = 5.0  # seconds after which a probe is not repeated any more
MOST = 128  # items a probe takes at most
FORMED = (
    2.0  # of the time for products of whole gradients: pairs of more items take no longer, few ones wait for memory
)
RESULT = 1 / 8  # of the memory, which a kernel that is planned takes at most itself
REPEATS = 3  # the least of so many is what a step takes where nothing else runs
TIMED = "trntk0"  # the kernel that is timed: the exact one, of every output


def kernel_seconds(name: str, n: Count, m: CountOrZero, rates: Rates) -> float:
    """Seconds for the kernel `name` of n training inputs, and of m test inputs with them, as the kernel declares them.

    Examples:
        >>> seconds = {"setup": 1.0, "sample": 0.1, "pair": 0.01, "forward": 0.0, "double": 0.0, "single": 0.0, "draw": 0.0}
        >>> rates = Rates(**seconds, parameters=9, outputs=1)
        >>> kernel_seconds("trntk", 10, 0, rates), kernel_seconds("trntk", 100, 0, rates)
        (2.5, 61.0)
    """
    return KERNELS.traits(name).cost(n, m, rates)


def measure_rates(
    model: nn.Module,
    x: Inputs,
    *,
    device: Any = None,
    memory: int = 2**31,
    certify: str | bool = "every",
    params: Selection = None,
    wait: float = math.inf,
) -> Rates:
    """Time the exact kernel on 4, 16, 64, … items until that takes a moment, and a few matrix products.

    A sample costs what one more of them adds: what a block of any size costs belongs to the set-up. What is measured is the
    machine at rest, so that other processes do not change a plan: the least of several times, each by the clock or by the
    processor, whichever is shorter. `pace` says how many times longer things take now. After `wait` seconds by the clock
    nothing more is timed than what is missing.

    Examples:
        >>> rates = measure_rates(model, x)
        >>> rates.parameters, rates.outputs, rates.sample > 0
        (22, 2, True)
    """
    how: dict[str, Any] = {"device": device, "memory": memory, "certify": certify, "params": params}
    total, began, repeats = length(x), time.perf_counter(), REPEATS
    everything = Part(x, torch.zeros(total))
    count, least, seen = min(4, total), 0, dict[int, tuple[float, ...]]()
    items = everything.take(torch.arange(count)).x
    seen[count], gram = _time_kernel(model, items, how)  # the first call imports and compiles
    while time.perf_counter() - began < wait:
        start = time.process_time()
        seen[count], gram = _time_kernel(model, items, how)
        spent = (time.process_time() - start) / torch.get_num_threads()
        if count >= min(MOST, total) or (least and spent > ENOUGH) or 4 * spent > PATIENCE:
            break
        least, count = count, min(4 * count, MOST, total)
        items = everything.take(torch.arange(count)).x
    if count not in seen:  # no time was left for so many
        count, least = least, max((fewer for fewer in seen if fewer < least), default=0)
        items = everything.take(torch.arange(count)).x
    while time.perf_counter() - began < PATIENCE and (repeats := repeats - 1) > 0:
        seen[count] = tuple(map(min, seen[count], _time_kernel(model, items, how)[0]))
    setup, each, products, pace = seen[count]
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    parameters = trainable if gram.coverage is None else sum(gram.coverage.numbers.values())
    resident, block = _fitting(gram.meta.get("footprint"), total, memory)
    short = max((fewer for fewer in seen if fewer <= block), default=min(seen))
    before = seen.get(least, (0.0, 0.0))[1]
    sample = max((each - before) / (count - least), each / count / 4)
    with quiet(place(model), model), torch.no_grad():
        state, given = ModelState(model), Part(items, torch.zeros(count)).to(place(model)).x
        try:
            outputs = call(model, given)
            forward = _least(lambda: call(model, given)) / count
        finally:
            state.restore(every=True)
        activations = _activations(model, given)
    heads, single = outputs.shape[1] if outputs.ndim == 2 else 1, _product_rate(np.float32)
    return Rates(
        setup=setup + max(0.0, each - count * sample),
        sample=sample,
        pair=min(products / (count * (count + 1) / 2), FORMED * parameters * heads * single),
        forward=forward,
        double=_product_rate(np.float64),
        single=single,
        draw=_draw_rate(),
        parameters=parameters,
        outputs=heads,
        pace=pace,
        resident=resident,
        again=seen[short][1] / short,
        activations=activations,
    )


def _activations(model: nn.Module, x: Inputs) -> int:
    """Numbers per sample that the network's stages put out."""
    subject = Subject(model, still=True)
    few = subject.placed(as_batch(x, model)[:1])
    try:
        outputs = layer_outputs(subject, few, stages(subject, few))
    except UsageError:  # no module makes one tensor per sample: such a kernel will be refused
        return FEATURES
    return sum(value.numel() for values in outputs.values() for value in values)


def _fitting(footprint: Footprint | None, total: int, memory: int) -> tuple[int, int]:
    """Of the kernel of twice as many items: how many stay in memory at once, 0 if all do; how many are run together."""
    if footprint is None:
        return 0, MOST
    items = min(2 * total, int((RESULT * memory / footprint.itemsize) ** 0.5))
    plan = planned(items, None, footprint, memory, 1, torch.get_num_threads())
    return (0 if plan.resident >= items else plan.resident), plan.block


def _time_kernel(model: nn.Module, x: Inputs, how: dict[str, Any]) -> tuple[tuple[float, float, float, float], Gram]:
    """Seconds for one small kernel: setup, all samples, all pairs; how busy others are; the kernel."""
    start, own = time.perf_counter(), time.process_time()
    gram = kernel(TIMED, model, x, profile=True, **how)
    spent = time.perf_counter() - start
    share = min(1.0, (time.process_time() - own) / spent)
    stages = dict(gram.coverage.stages) if gram.coverage is not None else {}
    products = stages.get("products", 0.0) + stages.get("writing", 0.0)
    each = stages.get("capture", 0.0) + stages.get("features", 0.0) + stages.get("certificate", 0.0)
    return (share * max(0.0, spent - products - each), share * each, share * products, 1 / share), gram


def _least(run: Callable[[], object]) -> float:
    """The least of several times, by the clock or by the processor."""
    times, began = list[float](), time.perf_counter()
    for _ in range(4 * REPEATS):
        start, own = time.perf_counter(), time.process_time()
        if times and start - began > PATIENCE:
            break
        run()
        times += [time.perf_counter() - start, time.process_time() - own]
    return min(times)


def _product_rate(dtype: Any, size: int = 512) -> float:
    """Seconds per multiply-add of a matrix product."""
    matrix = numpy_generator(0, "rates").standard_normal((size, size)).astype(dtype)
    return _least(lambda: matrix @ matrix) / size**3


def _draw_rate(rows: int = 256, columns: int = 512) -> float:
    """Seconds per entry of a random projection."""
    where: Any = ("rademacher", torch.float32, torch.device("cpu"))
    return _least(lambda: projection_rows(0, "rates", 0, rows, columns, *where)) / (rows * columns)
