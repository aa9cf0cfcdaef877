"""Where it lives: what each layer adds to the trace-NTK, and which method the engine used for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ntkscope.data.subsets import stratified
from ntkscope.kernels import kernel
from ntkscope.xray.context import Context, subset
from ntkscope.xray.plan import EXACT
from ntkscope.xray.registry import Finding, Section, register
from ntkscope.xray.result import Result
from ntkscope.xray.verdict import aligned
from ntkscope.xray.workload import Workload

ITEMS = 96  # training items on which each layer's part is kept; a share of the trace converges long before


@dataclass(frozen=True)
class Layer(Result):
    """One layer: its share of the trace, and how its part was computed."""

    name: str
    parameters: int
    share: float
    road: str
    seconds: float
    centred_alignment: float | None


@dataclass(frozen=True)
class Coverage(Result):
    """The share of the parameters that each method computed."""

    roads: Mapping[str, float]


@dataclass(frozen=True)
class Layers(Result):
    """The layers in the order of the network; `stages` are seconds of the whole kernel."""

    layers: tuple[Layer, ...]
    coverage: Coverage
    stages: Mapping[str, float]
    items: int


def run(context: Context) -> Finding[Layers]:
    rows = stratified(context.train.strata, max(ITEMS, len(context.classes)), context.seed, "xray", "layers")
    part = subset(context.train, rows)
    gram = kernel(
        EXACT,
        context.model,
        part,
        per_layer=True,
        device=context.device,
        memory=context.memory // 2,
        certify=context.settings.certify,
        params=context.params,
    )
    context.pairs.keep_certificate(f"layers.{EXACT}", "train", gram)
    total = float(gram.diagonal().double().sum())
    context.pair(EXACT)  # the page shows its coverage
    coverage = context.record.metrics.get("coverage") or {}
    roads, numbers = coverage.get("roads", {}), coverage.get("numbers", {})
    seconds = coverage.get("seconds", {})
    members: dict[str, list[str]] = defaultdict(list)
    for name in gram.contributions:
        members[_layer(name)].append(name)
    layers = []
    for layer, names in members.items():
        parts = [gram.contributions[name].double() for name in names]
        layers.append(
            Layer(
                name=layer,
                parameters=sum(int(numbers.get(name, 0)) for name in names),
                share=sum(float(values.diagonal().sum()) / total for values in parts),
                road="+".join(dict.fromkeys(roads.get(name, "unused") for name in names)),
                seconds=sum(float(seconds.get(name, 0.0)) for name in names),
                centred_alignment=aligned(sum(parts[1:], start=parts[0]), context.aim_train[rows]),
            )
        )
    order = {_layer(name): i for i, name in enumerate(dict(context.model.named_parameters()))}
    everything = sum(numbers.values()) or 1
    shares = {
        road: sum(numbers[name] for name in numbers if roads[name] == road) / everything
        for road in sorted({*roads.values()})
    }
    slow = shares.get("func", 0.0)
    confidence = (
        f"Shares are exact on {len(rows):,} training items and change little with more."
        f" {100 * (1 - slow):.1f} % of the parameters are computed by a rule for their layer,"
        f" the rest by differentiating that parameter alone; both are exact."
    )
    return Finding(
        Layers(
            layers=tuple(sorted(layers, key=lambda layer: order.get(layer.name, 0))),
            coverage=Coverage(shares),
            stages=dict(coverage.get("stages", {})),
            items=len(rows),
        ),
        confidence,
    )


def _layer(parameter: str) -> str:
    """The layer a parameter belongs to; the parameter itself if it belongs to none."""
    return parameter.rpartition(".")[0] or parameter


def cost(work: Workload) -> float:
    return work.once(max(ITEMS, work.classes))


SECTION = register(
    Section(
        name="layers",
        place=6,
        title="Where it lives",
        meaning=(
            "The kernel is a sum over layers: a layer's share says how much of the network's response to a training"
            " step goes through it. Alignment says which layers already separate the classes, or vary with the targets."
        ),
        formula=(
            "κ₀(x, x′) = Σ_l κ_l(x, x′), κ_l(x, x′) = Σ_k ⟨∂f_k(x)/∂w_l, ∂f_k(x′)/∂w_l⟩. Share of l: tr K_l / tr K."
        ),
        run=run,
        result=Layers,
        cost=cost,
    )
)
