"""The pre-activation tangent kernel: what the outputs feel of a change in one layer's pre-activations.

`Γ_c(x) = ∂f_c(x)/∂h` at the output h of a module. Its n × m Gram is the kernel, its k × k covariance over the data the
dual view: both have the same non-zero spectrum up to the factor n (Beaglehole, Mitliagkas & Agarwala 2024, section 2.2).
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ntkscope.core import UsageError
from ntkscope.kernels import costs
from ntkscope.kernels._feature_tiles import feature_rows, stored_features
from ntkscope.kernels._stored import refuse_store
from ntkscope.kernels.registry import KERNELS, Request, describe
from ntkscope.linalg import DenseGram, FactoredGram, Gram
from ntkscope.tangent.blocks.heads import Heads, as_heads
from ntkscope.tangent.certify.features import AuditedFeatures
from ntkscope.tangent.forward.stages import outputs_of
from ntkscope.tangent.kernel.products import ranges
from ntkscope.tangent.model.arithmetic import check_feature_range
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.state import ours
from ntkscope.tangent.model.subject import Subject

BLOCK = 128
AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
WRITTEN = (
    "the model keeps the output of module {layer!r} in a hook or an attribute and writes to it in place, so that it cannot be"
    " differentiated by; use operations that are not in place (relu instead of relu_, inplace=False), or choose another layer="
)


@KERNELS.register(
    "ptk",
    by_parameters=False,
    cost=costs.derivatives,
    features=True,
    priority=None,
    title="pre-activation tangent kernel",
)
def ptk(request: Request, *, layer: str | None = None, form: Literal["dual", "features"] = "dual") -> Gram:
    """`form="dual"`: `Σ_c <Γ_c(x), Γ_c(x')>`, (n, m). `form="features"`: `1/n Σ_i Σ_c Γ_c(x_i) Γ_c(x_i)ᵀ`, (k, k).

    `layer` names a module; default the last affine one before the readout. Where a layer has positions (pixels, tokens),
    the dual sums over them within a sample, and the covariance is between channels, summed over positions.
    """
    if request.params is not None:
        raise UsageError("got params= for 'ptk', which differentiates by a layer's output; leave it out and use layer=")
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
        return stored_features(request, compute, {"layer": layer}, meta, kinked=True)
    audited = AuditedFeatures(subject, compute, request.certify, kinked=True)
    shape = compute(subject, few)[0].shape[1:]  # (c, *shape of h)
    request.check_memory(shape.numel() if form == "dual" else 0, subject.dtype.itemsize)
    if form == "dual":
        features = feature_rows(audited, request, few, BLOCK)
        check_feature_range(*features.sides)
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
    """∂f_c/∂h, (n, c, *shape of h): by what the module returns, and by the same tensor wherever else it is kept and used.

    What is returned is a copy, since what follows may work in place; a hook or an attribute may hold the tensor itself.
    """
    seen: list[tuple[Tensor, Tensor, list[GradientEdge], int]] = []

    def keep(module: nn.Module, args: object, output: object) -> object:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            kind = output.dtype if isinstance(output, Tensor) else type(output).__name__
            raise UsageError(f"module {layer!r} gives {kind}; expected a tensor of real numbers to differentiate by")
        with torch.enable_grad():
            held = output if output.requires_grad else output.requires_grad_()
            cut = held.detach().requires_grad_().clone()
            seen.append((cut, held, [get_gradient_edge(cut), get_gradient_edge(held)], held._version))
        return cut

    with outputs_of(subject.model, [layer]):  # refuses unknown names
        pass
    handle = dict(subject.model.named_modules())[layer].register_forward_hook(ours(keep))
    try:
        outputs = heads(subject(batch))
    except RuntimeError as error:
        if "in-place" in str(error):
            raise UsageError(WRITTEN.format(layer=layer)) from error
        raise
    finally:
        handle.remove()
    if len(seen) != 1:
        raise UsageError(
            f"module {layer!r} is called {len(seen)} times in a forward pass; expected once: choose another"
        )
    cut, held, edges, version = seen[0]
    if cut.dim() < 2 or len(cut) != len(batch):
        shape = tuple(cut.shape)
        raise UsageError(f"module {layer!r} gives {shape} for {len(batch)} samples; expected one row per sample")
    if not outputs.requires_grad:
        raise UsageError(
            f"no output depends on the output of module {layer!r} as far as autograd can see; choose another layer=, or look"
            " for torch.no_grad() and .detach() after it"
        )
    every = range(outputs.shape[1])
    parts = [torch.autograd.grad(outputs[:, k].sum(), edges, retain_graph=True, allow_unused=True) for k in every]
    elsewhere = any(part[1] is not None for part in parts)
    if held._version != version or (elsewhere and cut._version):
        raise UsageError(WRITTEN.format(layer=layer))
    rows = []
    for part in parts:
        found = [each for each in part if each is not None] or [torch.zeros_like(cut)]
        rows.append(sum(found[1:], start=found[0]))
    return [torch.stack(rows, dim=1).detach()]
