"""Where it lives: what each layer adds to the trace-NTK, and which road the engine took for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ntkscope.core import NumericalError
from ntkscope.data.subsets import stratified
from ntkscope.kernels import kernel
from ntkscope.measures.alignment import kernel_target_alignment
from ntkscope.xray.context import Context, subset
from ntkscope.xray.rates import Workload, kernel_seconds
from ntkscope.xray.registry import Finding, Section, register

ITEMS = 96  # training items on which each layer's part is kept; a share of a trace converges long before that


def run(context: Context) -> Finding:
    rows = stratified(context.y_train, max(ITEMS, len(context.classes)), context.seed, "xray", "layers")
    part = subset(context.train, rows)
    gram = kernel(
        "trntk0",
        context.model,
        part,
        per_layer=True,
        device=context.device,
        memory=context.memory // 2,
        certify=context.certify,
    )
    context.keep_certificate("layers.trntk0", "train", gram)
    total = float(gram.diagonal().double().sum())
    context.pair("trntk0")  # its coverage is what the page shows
    coverage = context.record.metrics.get("coverage") or {}
    roads, numbers = coverage.get("roads", {}), coverage.get("numbers", {})
    seconds = coverage.get("seconds", {})
    layers: dict[str, dict[str, Any]] = {}
    sums: dict[str, torch.Tensor] = {}
    for name, values in gram.contributions.items():
        layer = name.rpartition(".")[0] or name
        entry = layers.setdefault(layer, {"name": layer, "parameters": 0, "share": 0.0, "road": [], "seconds": 0.0})
        entry["parameters"] += int(numbers.get(name, 0))
        entry["share"] += float(values.diagonal().double().sum()) / total
        entry["seconds"] += float(seconds.get(name, 0.0))
        entry["road"].append(roads.get(name, "unused"))
        sums[layer] = sums[layer] + values.double() if layer in sums else values.double()
    for layer, entry in layers.items():
        entry["road"] = "+".join(dict.fromkeys(entry["road"]))
        entry["centred_alignment"] = _alignment(sums[layer], part.y.numpy())
    order = {name.rpartition(".")[0] or name: i for i, name in enumerate(dict(context.model.named_parameters()))}
    everything = sum(numbers.values()) or 1
    shares = {
        road: sum(numbers[name] for name in numbers if roads[name] == road) / everything
        for road in sorted({*roads.values()})
    }
    slow = shares.get("func", 0.0)
    confidence = (
        f"Shares are exact on {len(rows)} training items and change little with more."
        f" {100 * (1 - slow):.1f} % of the parameters are computed by a rule of their layer,"
        f" the rest by differentiation of that parameter alone; both are exact."
    )
    return Finding(
        {
            "layers": sorted(layers.values(), key=lambda entry: order.get(entry["name"], 0)),
            "coverage": {"roads": shares},
            "stages": dict(coverage.get("stages", {})),
            "items": len(rows),
        },
        confidence,
    )


def _alignment(values: torch.Tensor, y: np.ndarray) -> float | None:
    try:
        return kernel_target_alignment(values, y, centred=True)
    except NumericalError:  # a readout's bias: the same for all items
        return None


def cost(work: Workload) -> float:
    return kernel_seconds("trntk0", ITEMS, 0, work.rates)


register(
    Section(
        name="layers",
        place=6,
        title="Where it lives",
        meaning=(
            "The kernel is a sum over layers: the share of a layer says how much of the network's reaction to a training"
            " step goes through it. Alignment says which layers already sort the classes."
        ),
        formula=(
            "κ₀(x, x′) = Σ_l κ_l(x, x′), κ_l(x, x′) = Σ_k ⟨∂f_k(x)/∂w_l, ∂f_k(x′)/∂w_l⟩. Share of l: tr K_l / tr K."
        ),
        run=run,
        cost=cost,
    )
)
