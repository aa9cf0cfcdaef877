"""What each layer looks for: the directions its weights pass on and those the outputs react to, and how well they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
import torch
from torch import Tensor

from ntkscope.core import Certificate, NtkscopeError, NumericalError, UsageError
from ntkscope.data.subsets import stratified
from ntkscope.linalg.features.correlation import weighted_correlation
from ntkscope.linalg.features.directions import Directions, leading_of_features, leading_of_matrix, multiple_of_identity
from ntkscope.tangent.blocks.heads import OutputSketch
from ntkscope.tangent.matrices.feature_matrices import FeatureMatrices, LayerFeatures, feature_matrices
from ntkscope.tangent.matrices.projections import Projector
from ntkscope.tangent.matrices.sites import INPUT
from ntkscope.tangent.model.selection import select
from ntkscope.xray.context import Context
from ntkscope.xray.items import Items
from ntkscope.xray.pictures import PickedOut, channel_range, picked_out
from ntkscope.xray.registry import Finding, Section, Skip, register
from ntkscope.xray.result import Result
from ntkscope.xray.salient_words import token_names
from ntkscope.xray.workload import Workload

ITEMS = 512  # training items that gradients are averaged over
OUTPUTS = 32  # outputs that are differentiated one by one; of more, so many random combinations
WIDEST = 1024  # outputs of a layer; of wider ones the control alone would take minutes
SEEN, DEEP = 4, 2  # directions of a layer that sees the input, and of any other
SHOWN = 5  # training items for each direction of a deep layer
DRAWS = (40, 200)  # of the control: at least and at most
DRAWN = 2e9  # multiply-adds that the draws of one layer may take, beyond the fewest
OUTPUTS_THEMSELVES = "it makes the outputs themselves, so that they react to what its weights pass on by definition"


@dataclass(frozen=True)
class Layer(Result):
    """One affine layer, or the network's own input. `kind`: "input", "inputs" (a layer that sees them whole), "patches" (of
    them), "deep".

    `correlation` is ρ of NFM and AGOP, `low` to `high` the 95 % range of its control with random directions, `p` the share of
    draws at least as high; `centred` is ρ of what training added to the weights. `agop` and `nfm`: shares of the trace that
    the leading directions carry; `overlap`: cos² of the first of each. `shape`: of what a direction is drawn as.
    `vectors`: where its directions begin in the array of all layers, those of the AGOP first; `items`: the same of the
    training items that project most on each, `shown` of them; `patches`: of their patches, each of shape `patch`, which are
    `size` pixels of the image. `tokens`: the words that deep directions react to.
    """

    name: str
    kind: str
    rows: int
    columns: int
    positions: int
    shape: tuple[int, ...]
    correlation: float | None
    low: float | None
    high: float | None
    p: float | None
    draws: int
    centred: float | None
    agop: tuple[float, ...]
    nfm: tuple[float, ...]
    overlap: float | None
    vectors: int = 0
    items: int | None = None
    shown: int = 0
    patches: int | None = None
    patch: tuple[int, ...] = ()
    size: tuple[int, ...] = ()
    tokens: tuple[tuple[str, ...], ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class LayerFeatureMatrices(Result):
    """The layers in the order in which they are called; what is left out and why."""

    layers: tuple[Layer, ...]
    items: int
    outputs: int
    passes: int
    items_are: str
    left_out: Mapping[str, str]


def run(context: Context) -> Finding[LayerFeatureMatrices]:
    rows = stratified(context.train.strata, ITEMS, context.seed, "xray", "layer features")
    part = context.train.take(torch.from_numpy(rows))
    try:
        projector = Projector(context.model, part.x, device=context.device)
    except UsageError as why:
        raise Skip(str(why)) from why
    left_out = dict(projector.left_out)
    names = _chosen(projector, context, left_out)
    if not names:
        raise Skip("no affine layer can be looked at: " + "; ".join(f"{name}: {why}" for name, why in left_out.items()))
    try:
        found, sketched = _matrices(context, part, names, projector)
    except UsageError as why:
        raise Skip(str(why)) from why
    left_out |= {name: why for name, why in found.left_out.items() if name not in names and name not in left_out}
    layers = _layers(context, part, rows, found, projector)
    passes = min(OUTPUTS, found.outputs) if sketched else found.outputs
    result = LayerFeatureMatrices(layers, len(part), found.outputs, passes, part.kind, left_out)
    return Finding(result, _confidence(result, found.certificate))


def _chosen(projector: Projector, context: Context, left_out: dict[str, str]) -> list[str]:
    """The layers that are examined: those of the chosen parameters that are not too wide."""
    chosen = None if context.examined is None else set(select(context.model, context.examined))
    names = []
    for name, site in projector.sites.items():
        if chosen is not None and site.parameter not in chosen:
            continue
        if site.out > WIDEST:
            left_out[name] = f"it has {site.out:,} outputs, more than the {WIDEST:,} this section looks at"
        else:
            names.append(name)
    return names


def _matrices(
    context: Context, part: Items, names: Sequence[str], projector: Projector
) -> tuple[FeatureMatrices, bool]:
    sketched = len(context.classes) > OUTPUTS
    tensors = part.tensors
    memory = context.memory // 2
    width = prod(tensors[0].shape[1:]) if len(tensors) == 1 and tensors[0].is_floating_point() else 0
    every = list(names) == list(projector.sites)  # then the input is looked at if that fits, or named where it does not
    wanted = [*names, *([INPUT] if width and 64 * width**2 <= memory else [])]
    found = feature_matrices(
        context.model,
        part.x,
        layers=None if every else wanted,
        outputs=OutputSketch(OUTPUTS, seed=context.seed) if sketched else None,
        memory=memory,
        device=context.device,
        certify=context.settings.certify,
    )
    return found, sketched


def _layers(
    context: Context, part: Items, rows: np.ndarray, found: FeatureMatrices, projector: Projector
) -> tuple[Layer, ...]:
    sees = {name: name == INPUT or projector.sees_input(name) for name in found}
    directions = {name: _directions(layer, sees[name]) for name, layer in found.items()}
    joined = {name: torch.cat([each.vectors for each in sides.values()]) for name, sides in directions.items() if sides}
    strongest = projector.strongest({name: v for name, v in joined.items() if not sees[name]}, SHOWN)
    lightness = channel_range(part.x) if part.kind == "image" and isinstance(part.x, Tensor) else None
    words = token_names(context, part) if part.kind == "text" else []
    kept = Kept()
    made = []
    for name, layer in found.items():
        record = _described(context, layer, directions[name], _shape(name, part, projector, sees[name]))
        record = replace(record, kind=_kind(name, sees[name], projector))
        vectors = joined.get(name)
        if vectors is not None and name in strongest:
            outward = torch.cat([_outward(layer, each.vectors, side) for side, each in directions[name].items()])
            shown = picked_out(projector, name, outward, strongest[name], part.kind, lightness)
            vectors = vectors * shown.signs[:, None].to(vectors)
            record = _with_items(record, kept, shown, rows, words)
        if vectors is not None:
            record = replace(record, vectors=kept.add("vectors", vectors.to(torch.float32).cpu().numpy()))
        made.append(record)
    for kind, values in kept.joined().items():
        context.keep(f"layer_features.{kind}", values)
    return tuple(made)


@dataclass
class Kept:
    """Arrays of all layers one after the other, since each array of a record is a file."""

    parts: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def add(self, kind: str, values: np.ndarray) -> int:
        """Where the values begin."""
        earlier = self.parts.setdefault(kind, [])
        start = sum(part.size for part in earlier)
        earlier.append(values.ravel())
        return start

    def joined(self) -> dict[str, np.ndarray]:
        return {kind: np.concatenate(parts) for kind, parts in self.parts.items()}


def _directions(layer: LayerFeatures, seen: bool) -> dict[str, Directions]:
    """The leading eigenvectors of AGOP and, of a layer with weights, of the NFM; none where no output reacts."""
    count = SEEN if seen else DEEP
    try:
        if layer.weight is None:
            return {"agop": leading_of_matrix(layer.ptk, count)}
        return {
            "agop": leading_of_features(layer.weight, layer.ptk, count),
            "nfm": leading_of_features(layer.weight, None, count),
        }
    except NumericalError:
        return {}


def _described(
    context: Context, layer: LayerFeatures, sides: Mapping[str, Directions], shape: tuple[int, ...]
) -> Layer:
    """The numbers of one layer: how well weights and gradients agree, and what chance would give."""
    W = layer.weight
    columns = len(layer.ptk) if W is None else W.shape[1]
    shares = {side: tuple(float(v) for v in each.shares) for side, each in sides.items()}
    record = Layer(
        layer.name, "", len(layer.ptk), columns, layer.positions, shape,
        *(None,) * 4, draws=0, centred=None, agop=shares.get("agop", ()), nfm=shares.get("nfm", ()), overlap=None,
    )  # fmt: skip
    if not sides:
        return replace(record, reason="no output reacts to this layer, or its weights are zero")
    if W is None:
        return record
    if multiple_of_identity(layer.ptk):
        return replace(record, reason=OUTPUTS_THEMSELVES, nfm=())
    draws = control_draws(len(W))
    try:
        control = layer.control(draws, context.seed)
    except NtkscopeError as why:
        return replace(record, reason=str(why))
    ends = control.quantiles
    return replace(
        record,
        correlation=control.observed,
        low=ends[0.025],
        high=ends[0.975],
        p=control.p_value,
        draws=draws,
        centred=_centred(context, layer),
        overlap=float((sides["agop"].vectors[0] @ sides["nfm"].vectors[0]).square().clamp(max=1)),
    )


def control_draws(out: int) -> int:
    """How many draws the control of a layer with so many outputs takes.

    >>> control_draws(64), control_draws(1024)
    (200, 40)
    """
    least, most = DRAWS
    return int(min(most, max(least, DRAWN / _one_draw(out))))


def _one_draw(out: int) -> float:
    """Multiply-adds of one draw: an orthogonal matrix and its products with the weights."""
    return 6.0 * out**3


def _centred(context: Context, layer: LayerFeatures) -> float | None:
    """ρ of what training added to the weights, where the initial ones are known and differ."""
    before = None if context.initial is None else dict(context.initial.named_parameters())
    after = dict(context.model.named_parameters())
    name = f"{layer.name}.weight"
    if before is None or layer.weight is None or name not in before or name not in after:
        return None
    W, W0 = (parameters[name].detach().double().cpu().flatten(1) for parameters in (after, before))
    weight = layer.weight.cpu()
    factor = float((weight * W).sum() / W.square().sum()) if weight.shape == W.shape and bool(W.any()) else 0.0
    if not factor or float((weight - factor * W).norm()) > 1e-4 * float(weight.norm()):
        return None  # groups or a transposed weight: not the parameter itself, up to the layer's own scale
    try:
        return weighted_correlation(W - W0, layer.ptk.cpu())
    except NumericalError:
        return None


def _outward(layer: LayerFeatures, vectors: Tensor, side: str) -> Tensor:
    """u with `Wᵀ u ∝ v`: an eigenvector of WᵀKW is WᵀK W v, one of WᵀW is WᵀW v, up to its eigenvalue."""
    assert layer.weight is not None
    out = vectors @ layer.weight.T
    out = out @ layer.ptk if side == "agop" else out
    return out / torch.linalg.vector_norm(out, dim=1, keepdim=True).clamp_min(1e-300)


def _kind(name: str, seen: bool, projector: Projector) -> str:
    if name == INPUT:
        return "input"
    return ("patches" if projector.kernel(name) else "inputs") if seen else "deep"


def _shape(name: str, part: Items, projector: Projector, seen: bool) -> tuple[int, ...]:
    """What a direction is drawn as: like one input, a patch of it, or the window of a convolution; () for none of these."""
    whole = tuple(part.x.shape[1:]) if isinstance(part.x, Tensor) else ()
    if name == INPUT or (seen and not projector.kernel(name)):
        return whole
    window = projector.kernel(name)
    site = projector.sites[name]
    return (site.groups * site.inside // prod(window), *window) if window else ()


def _with_items(record: Layer, kept: Kept, shown: PickedOut, rows: np.ndarray, words: Sequence[Sequence[str]]) -> Layer:
    """The layer with the training items that its directions pick out."""
    at = kept.add("items", rows[shown.items].astype(np.int64))
    record = replace(record, items=at, shown=shown.items.shape[1])
    if shown.patches is not None:
        at = kept.add("patches", shown.patches)
        record = replace(record, patches=at, patch=tuple(shown.patches.shape[2:]), size=shown.size)
    if shown.tokens is not None and words:
        told = tuple(
            tuple(words[i][t] if t < len(words[i]) else "" for i, t in zip(items, tokens, strict=True))
            for items, tokens in zip(shown.items.tolist(), shown.tokens.tolist(), strict=True)
        )
        record = replace(record, tokens=told)
    return record


def _confidence(found: LayerFeatureMatrices, checks: Certificate) -> str:
    outputs = f"{found.outputs} output{'s' * (found.outputs != 1)}"
    if found.passes < found.outputs:
        outputs = f"{found.passes} random combinations of {outputs}"
    said = f"Gradients of {outputs} at {found.items:,} training items, averaged"
    if checks.checked:
        which = "every block" if checks.checked == checks.blocks else f"{checks.checked:,} of {checks.blocks:,} blocks"
        said += f"; {which} of them was compared with PyTorch's own autograd."
    else:
        said += "; none was compared with PyTorch's own autograd."
    rated = [layer for layer in found.layers if layer.correlation is not None]
    if rated:
        draws = min(layer.draws for layer in rated)
        said += f" Ranges of ρ are those of {draws} draws or more, for each layer by itself."
    if found.left_out:
        said += f" Left out: {', '.join(list(found.left_out)[:5])}{', …' if len(found.left_out) > 5 else ''}."
    return said


def cost(work: Workload) -> float:
    """A pass back per output over the items, forward passes for what layers pick out, and the draws of the controls."""
    n = min(work.train, ITEMS)
    share = min(1.0, OUTPUTS / max(1, work.rates.outputs))
    sample = max(work.rates.sample, work.rates.whole)
    passes = 2 * work.rates.setup + n * (sample * share + 3 * work.rates.forward)
    algebra = 0.0
    for out, inside in work.matrices:
        if out <= WIDEST:
            algebra += control_draws(out) * _one_draw(out) + 30.0 * out**3 + 8.0 * out * out * inside
    return passes + algebra * work.rates.double


SECTION = register(
    Section(
        name="layer_features",
        place=7,
        title="What each layer looks for",
        meaning=(
            "A layer passes on some directions of its inputs and ignores others: the leading eigenvectors of its weights"
            " (NFM). The outputs react to some directions more than to others: the leading eigenvectors of the gradients"
            " (AGOP). Where training has taught the layer what to look for, the two agree more than random directions would."
        ),
        formula=(
            "NFM = WᵀW. AGOP = WᵀKW, K = 1/n Σ b bᵀ over items, outputs and positions, b the gradient of an output by the"
            " layer's pre-activations; of the network's input, 1/n Σ ∇f ∇fᵀ. ρ = tr(NFM · AGOP) / (‖NFM‖ ‖AGOP‖). Control: K's"
            " eigenvectors drawn at random. Saliency of a token with embedding e: √Σ (∂f/∂e · (e − ē))², ē the mean embedding."
        ),
        run=run,
        result=LayerFeatureMatrices,
        cost=cost,
    )
)
