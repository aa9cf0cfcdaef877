"""The pre-activation tangent kernel: what the outputs feel of a change in one layer's pre-activations.

`Γ_c(x) = ∂f_c(x)/∂h` at the output h of a module. Its n × m Gram is the kernel, its k × k covariance over the data the
dual view: both have the same non-zero spectrum up to the factor n (Beaglehole, Mitliagkas & Agarwala 2024, section 2.2).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from ntkscope.core import UsageError
from ntkscope.kernels import costs
from ntkscope.kernels._feature_tiles import FeatureRecipe, feature_rows
from ntkscope.kernels._stored import refuse_store, stored
from ntkscope.kernels.registry import KERNELS, Request, describe
from ntkscope.linalg import DenseGram, FactoredGram, Gram
from ntkscope.tangent.batches import Batch
from ntkscope.tangent.contraction import ranges
from ntkscope.tangent.feature_audit import AuditedFeatures
from ntkscope.tangent.heads import Heads, as_heads
from ntkscope.tangent.module_outputs import outputs_of
from ntkscope.tangent.pristine import ours
from ntkscope.tangent.subject import Subject

BLOCK = 128
AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@KERNELS.register(
    "ptk",
    by_parameters=False,
    cost=costs.derivatives,
    features=True,
    priority=None,
    title="pre-activation tangent kernel",
)
def ptk(request: Request, *, layer: str | None = None, form: str = "dual") -> Gram:
    """`form="dual"`: `Σ_c <Γ_c(x), Γ_c(x')>`, (n, m). `form="features"`: `1/n Σ_i Σ_c Γ_c(x_i) Γ_c(x_i)ᵀ`, (k, k).

    `layer` names a module; default the last affine one before the readout. Where a layer has positions (pixels, tokens),
    the dual sums over them within a sample, and the covariance is between channels, summed over positions.
    """
    if request.params is not None:
        raise UsageError("got params= for 'ptk', which differentiates by a layer's output; leave it out and use layer=")
    if form not in ("dual", "features"):
        raise UsageError(f"got form={form!r}; expected 'dual' (n × m) or 'features' (k × k)")
    if form == "features" and request.x2 is not None:
        raise UsageError("got form='features' with x2; the covariance is over one set of inputs: leave x2 out")
    subject, few = request.still()
    heads = as_heads(request.outputs)
    heads.count(subject(few).shape[1])
    layer = layer or last_hidden(subject, few)
    meta = describe(subject, layer=layer, form=form)
    if form == "features":
        refuse_store(request, "form='features'", "its k × k covariance is small: leave store= out, or use form='dual'")
    compute = partial(_layers, layer=layer, heads=heads)
    if request.store is not None:
        recipe = FeatureRecipe(request.model, request.dtype, request.device, compute, request.certify, kinked=True)
        return stored(request, recipe, {"layer": layer}, meta=meta)
    audited = AuditedFeatures(subject, compute, request.certify, kinked=True)
    shape = compute(subject, few)[0].shape[1:]  # (c, *shape of h)
    request.check_memory(shape.numel() if form == "dual" else 0, subject.dtype.itemsize)
    if form == "dual":
        features = feature_rows(audited, request, few, BLOCK)
        return FactoredGram(*features.sides, name=request.name, meta=meta | {"certificate": features.certificate()})
    channel = _channel_axis(subject, layer)
    count = shape[channel - 1 if channel > 0 else channel]
    total = torch.zeros(count, count, dtype=torch.float64, device=subject.device)
    for at in ranges(0, len(request.x1), BLOCK):
        (block,) = audited(request.x1[at.start : at.stop])
        rows = block.movedim(channel, -1).flatten(0, -2).double()  # (n · c · positions, k)
        total.addmm_(rows.T, rows)
    covariance = (total / len(request.x1)).to(subject.dtype)
    meta["certificate"] = audited.certificate()
    return DenseGram(covariance, symmetric=True, name=request.name, rows=f"features of {layer}", meta=meta)


def _channel_axis(subject: Subject, layer: str) -> int:
    """Where (n, c, …) tangents keep the layer's features: axis 2 after a convolution or its like, else the last."""
    module = dict(subject.model.named_modules())[layer]
    channels_first = (*AFFINE[1:], nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)
    return 2 if isinstance(module, channels_first) else -1


def last_hidden(subject: Subject, batch: Batch) -> str:
    """The last affine module called before the readout; the readout itself if it is the only one."""
    order: list[str] = []
    handles = [
        module.register_forward_hook(ours(lambda *_, name=name: order.append(name)))
        for name, module in subject.model.named_modules()
        if isinstance(module, AFFINE)
    ]
    try:
        subject(batch)
    finally:
        for handle in handles:
            handle.remove()
    if not order:
        raise UsageError(f"{type(subject.model).__name__} calls no Linear or Conv module; name a module with layer=")
    return order[-2] if len(order) > 1 else order[-1]


def _layers(subject: Subject, batch: Batch, layer: str, heads: Heads) -> list[Tensor]:
    return [_tangent_block(subject, batch, layer, heads)]


def _tangent_block(subject: Subject, batch: Batch, layer: str, heads: Heads) -> Tensor:
    edges = []

    def keep(module: nn.Module, args: object, output: object) -> object:
        if not isinstance(output, Tensor):
            raise UsageError(f"module {layer!r} gives {type(output).__name__}; expected a tensor to differentiate by")
        cut = output.detach().requires_grad_().clone()  # nothing below matters, and what follows may work in place
        edges.append((get_gradient_edge(cut), cut.shape))
        return cut

    with outputs_of(subject.model, [layer]):  # refuses unknown names
        pass
    handle = dict(subject.model.named_modules())[layer].register_forward_hook(ours(keep))
    try:
        outputs = heads(subject(batch))
    finally:
        handle.remove()
    if len(edges) != 1:
        raise UsageError(
            f"module {layer!r} is called {len(edges)} times in a forward pass; expected once: choose another"
        )
    edge, shape = edges[0]
    if len(shape) < 2 or shape[0] != len(batch):
        raise UsageError(f"module {layer!r} gives {tuple(shape)} for {len(batch)} samples; expected one row a sample")
    rows = []
    for k in range(outputs.shape[1]):
        (tangent,) = torch.autograd.grad(outputs[:, k].sum(), [edge], retain_graph=True, allow_unused=True)
        rows.append(outputs.new_zeros(shape) if tangent is None else tangent)
    return torch.stack(rows, dim=1).detach()
